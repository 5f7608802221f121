"""Public feature maps: linear, row by row, never longer than the record."""

import pytest
import torch
from scipy.fft import dctn

from dpswd import InputError
from dpswd.mixture.features import DCT, Columns, Flatten, Frequencies, Histogram, dct_matrix
from dpswd.release import check_row_function


def maps():
    return [
        Flatten((1, 8, 8), centre=0.3, radius=3.2),
        Flatten((7,), radius=2.0),
        DCT((1, 28, 28), size=12, centre=0.13, radius=11),
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
    distances = (records - features.centre).flatten(1).norm(dim=1)
    assert bool((rows.norm(dim=1) <= distances / (2 * features.radius) * (1 + 1e-5)).all())
    assert bool((features(torch.full((1, *features.sample_shape), features.centre)).abs() < 1e-6).all())


@pytest.mark.parametrize(
    "features", [*maps(), Frequencies((3, 8, 8), 5, 3), Histogram((1, 8, 8), 7), Columns([(0, 1), (-5, 5)])], ids=repr
)
def test_every_map_passes_the_check_of_row_functions(features):
    check_row_function(features, features.sample_shape)


def test_columns_are_scaled_by_their_bounds_and_clipped():
    features = Columns([(0.0, 10.0), (-1.0, 1.0), (1e6, 2e6)])
    records = torch.tensor([[5.0, 0.0, 1.5e6], [10.0, 1.0, 2e6], [-3.0, -9.0, 9e9]])
    rows = features(records)
    assert bool((rows[0] == 0).all())
    # a corner is at distance sqrt(3) / 2 from the centre, twice the radius, hence of norm 1: nothing is clipped later
    torch.testing.assert_close(rows[1:].norm(dim=1), torch.ones(2, dtype=rows.dtype))
    inside = torch.tensor([[5.0, 0.0, 1.5e6], [10.0, 1.0, 2e6], [0.0, -1.0, 2e6]])
    torch.testing.assert_close(features.decode(rows).float(), inside)


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


def test_histogram_counts_pixels_and_keeps_the_norm():
    features = Histogram((1, 2, 2), n_levels=5)
    images = torch.tensor([[0.0, 0.1, 0.5, 1.0], [1.0, 1.0, 1.0, 1.0], [-3.0, 7.0, float("nan"), float("inf")]])
    rows = features(images.reshape(3, 1, 2, 2))
    assert torch.allclose(rows[:2], torch.tensor([[0.25, 0, 0.125, 0, 0.125], [0, 0, 0, 0, 0.5]]))
    assert bool((rows.norm(dim=1) <= 0.5).all())  # also of what is no image
    assert torch.equal(rows[:1], features(images[:1].reshape(1, 1, 2, 2)))
