"""Public feature maps: linear, row by row, never longer than the record."""

import pytest
import torch
from scipy.fft import dctn
from torch import nn

from dpswd import InputError
from dpswd.generation.features import DCT, Basis, FeatureMap, Flatten, Histogram, check_rowwise, dct_matrix
from dpswd.generation.rows import private_rows


def maps():
    return [
        Flatten((1, 8, 8), center=0.3, radius=3.2),
        Flatten((7,), radius=2.0),
        DCT((1, 28, 28), size=12, center=0.13, radius=11),
        DCT((3, 9, 13), size=9),
    ]


@pytest.mark.parametrize("features", maps(), ids=repr)
def test_rows(features):
    generator = torch.Generator().manual_seed(0)
    records = torch.rand(5, *features.sample_shape, generator=generator)
    rows = features(records)
    assert rows.shape == (5, features.dim)
    # row by row: the other records of the batch do not matter; 1e-6 is float32
    for i in range(5):
        torch.testing.assert_close(features(records[i : i + 1])[0], rows[i], rtol=1e-5, atol=1e-6)
    # a record within radius of the centre has norm at most 1/2
    distances = (records - features.center).flatten(1).norm(dim=1)
    assert bool((rows.norm(dim=1) <= distances / (2 * features.radius) * (1 + 1e-5)).all())
    assert bool((features(torch.full((1, *features.sample_shape), features.center)).abs() < 1e-6).all())


@pytest.mark.parametrize("features", maps(), ids=repr)
def test_rows_are_differentiable_and_public(features):
    records = torch.rand(2, *features.sample_shape).requires_grad_()
    features(records).sum().backward()
    assert records.grad is not None
    assert list(features.parameters()) == []  # constants fixed before the data are seen
    assert features.state_dict() == {}


def test_dct_against_scipy():
    image = torch.rand(2, 1, 9, 13, generator=torch.Generator().manual_seed(0))
    ours = DCT((1, 9, 13), size=5)(image).reshape(2, 5, 5)
    theirs = torch.from_numpy(dctn(image[:, 0].double().numpy(), axes=(1, 2), norm="ortho")[:, :5, :5]) / 2
    torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 8, 28])
def test_dct_matrix_is_orthonormal(size):
    matrix = dct_matrix(size)
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(size, dtype=matrix.dtype), rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Flatten((0,)), "Expected sample_shape_0 >= 1, got sample_shape_0=0"),
        (lambda: Flatten((3,), radius=0.0), "Expected radius to be finite and above 0, got radius=0"),
        (lambda: DCT((1, 8, 8), size=9), r"Expected 1 <= size <= 8 .*, got size=9\."),
        (lambda: DCT((1, 8, 8), size=0), r"Expected 1 <= size <= 8 .*, got size=0\."),
        (lambda: Flatten((3,))(torch.zeros(2, 4)), r"Expected records of shape \(3,\), got \(4,\); set sample_shape"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()


# maps of a user's own

SHAPE = (1, 8, 8)


class Normed(Flatten):
    def __init__(self, layer):
        super().__init__(SHAPE)
        self.layer = layer

    def rows(self, centered):
        return self.layer(super().rows(centered))


class Standardises(Flatten):
    def rows(self, centered):
        rows = super().rows(centered)
        return (rows - rows.mean(0)) / (rows.std(0, correction=0) + 0.1)


class LargestNorm(Flatten):
    """Divides by the largest norm of the batch, as in the published code."""

    def rows(self, centered):
        rows = super().rows(centered)
        return rows / rows.norm(dim=1).max()


class Wrapped(FeatureMap):
    """Standardises the rows of another map."""

    def __init__(self, base):
        super().__init__(base.sample_shape)
        self.base = base

    @property
    def dim(self):
        return self.base.dim

    def forward(self, records):
        rows = self.base(records)
        return (rows - rows.mean(0)) / 8


class BytesOrPixels(Flatten):
    """Decides from the whole batch whether entries are bytes."""

    def forward(self, records):
        return super().forward(records / 255 if records.max() > 1 else records)


class Keeps(Flatten):
    """Keeps the largest entry so far in a buffer."""

    def __init__(self):
        super().__init__(SHAPE)
        self.register_buffer("kept", torch.zeros(()))

    def forward(self, records):
        self.kept.copy_(torch.maximum(self.kept, records.detach().abs().max()))
        return super().forward(records)


MIXED = "depend on the rest of the batch"


@pytest.mark.parametrize(
    ("features", "match"),
    [
        (lambda: Normed(nn.BatchNorm1d(64)), "BatchNorm1d in layer; use GroupNorm"),
        (lambda: Normed(nn.BatchNorm1d(64, affine=False).eval()), "BatchNorm1d in layer"),
        (lambda: Basis(Normed(nn.BatchNorm1d(64)), 5), r"BatchNorm1d in base\.layer"),
        (lambda: Normed(nn.Linear(64, 64)), "trainable parameters"),
        (lambda: Standardises(SHAPE), MIXED),
        (lambda: LargestNorm(SHAPE), MIXED),
        (lambda: Basis(Standardises(SHAPE), 5), MIXED),
        (lambda: Basis(Wrapped(Flatten(SHAPE)), 5), MIXED),
        (lambda: BytesOrPixels(SHAPE), MIXED),
        (Keeps, "whose buffers change"),
    ],
)
def test_check_rowwise_refuses(features, match):
    with pytest.raises(InputError, match=match):
        check_rowwise(features())


def test_check_rowwise_accepts():
    plain = Flatten(SHAPE)
    plain.base = DCT(SHAPE, size=4)  # a name only
    for features in (DCT(SHAPE, size=4), Normed(nn.GroupNorm(1, 64, affine=False)), plain):
        check_rowwise(features)


def test_histogram_counts_pixels_and_keeps_the_norm():
    features = Histogram((1, 2, 2), n_levels=5)
    images = torch.tensor([[0.0, 0.1, 0.5, 1.0], [1.0, 1.0, 1.0, 1.0], [-3.0, 7.0, float("nan"), float("inf")]])
    rows = private_rows(features, images.reshape(3, 1, 2, 2))
    assert torch.allclose(rows[:2], torch.tensor([[0.25, 0, 0.125, 0, 0.125], [0, 0, 0, 0, 0.5]]))
    assert bool((rows.norm(dim=1) <= 0.5).all())  # also of what is no image
    assert torch.equal(rows[:1], private_rows(features, images[:1].reshape(1, 1, 2, 2)))
