"""Public feature maps, linear, row by row and never longer than the record."""

import pytest
import torch
from scipy.fft import dctn

from dpswd import InputError
from dpswd.features.frequencies import DCT, Frequencies, dct_matrix
from dpswd.features.maps import Columns, Flatten, histogram
from dpswd.row_check import check_row_function


def maps():
    return [
        Flatten((1, 8, 8), centre=0.3, radius=3.2),
        Flatten((7,), radius=2.0),
        DCT((1, 28, 28), size=12, centre=0.13, radius=11),
        DCT((3, 9, 13), size=9),
    ]


@pytest.mark.parametrize("features", maps(), ids=repr)
def test_rows(features):
    records = torch.rand(
        5, *features.sample_shape, generator=torch.Generator().manual_seed(0)
    ).requires_grad_()
    rows = features(records)
    assert rows.shape == (5, features.dim)
    rows.sum().backward()
    assert records.grad is not None
    assert not [
        *features.parameters(),
        *features.state_dict(),
    ]  # constants fixed before the data are seen
    # row by row: the other records of the batch do not matter; 1e-6 is float32
    for i in range(5):
        torch.testing.assert_close(features(records[i : i + 1])[0], rows[i], rtol=1e-5, atol=1e-6)
    # a record within radius of the centre has norm at most 1/2
    distances = (records - features.centre).flatten(1).norm(dim=1)
    assert bool((rows.norm(dim=1) <= distances / (2 * features.radius) * (1 + 1e-5)).all())
    assert bool(
        (features(torch.full((1, *features.sample_shape), features.centre)).abs() < 1e-6).all()
    )
    for each in (features, Frequencies((3, 8, 8), 5, 3), Columns([(0, 1), (-5, 5)])):
        check_row_function(each, each.sample_shape)


def test_columns_are_scaled_by_their_bounds_and_clipped():
    features = Columns([(0.0, 10.0), (-1.0, 1.0), (1e6, 2e6)])
    records = torch.tensor([[5.0, 0.0, 1.5e6], [10.0, 1.0, 2e6], [-3.0, -9.0, 9e9]])
    rows = features(records)
    assert bool((rows[0] == 0).all())
    # a corner is at distance sqrt(3) / 2 from the centre, twice the radius, hence of norm 1: nothing is clipped later
    torch.testing.assert_close(rows[1:].norm(dim=1), torch.ones(2, dtype=rows.dtype))
    inside = torch.tensor([[5.0, 0.0, 1.5e6], [10.0, 1.0, 2e6], [0.0, -1.0, 2e6]])
    torch.testing.assert_close(features.decode(rows).float(), inside)


def test_dct():
    for size in (1, 2, 8, 28):
        matrix = dct_matrix(size)
        torch.testing.assert_close(
            matrix @ matrix.T, torch.eye(size, dtype=matrix.dtype), rtol=0, atol=1e-13
        )
    image = torch.rand(2, 1, 9, 13, generator=torch.Generator().manual_seed(0))
    ours = DCT((1, 9, 13), size=5)(image).reshape(2, 5, 5)
    theirs = (
        torch.from_numpy(dctn(image[:, 0].double().numpy(), axes=(1, 2), norm="ortho")[:, :5, :5])
        / 2
    )
    torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Flatten((0,)), "Expected sample_shape_0 >= 1, got sample_shape_0=0"),
        (
            lambda: Flatten((3,), radius=0.0),
            "Expected radius to be finite and above 0, got radius=0",
        ),
        (lambda: DCT((1, 8, 8), size=9), r"Expected 1 <= size <= 8 .*, got size=9\."),
        (
            lambda: Flatten((3,))(torch.zeros(2, 4)),
            r"Expected records of shape \(3,\), got \(4,\); set sample_shape",
        ),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(InputError, match=message):
        make()


def test_histogram_counts_pixels_and_keeps_the_norm():
    images = torch.tensor(
        [[0.0, 0.1, 0.5, 1.0], [1.0, 1.0, 1.0, 1.0], [-3.0, 7.0, float("nan"), float("inf")]]
    )
    rows = histogram(images.reshape(3, 1, 2, 2), 5)
    assert torch.allclose(rows[:2], torch.tensor([[0.25, 0, 0.125, 0, 0.125], [0, 0, 0, 0, 0.5]]))
    assert bool((rows.norm(dim=1) <= 0.5).all())  # also of what is no image
    assert torch.equal(rows[:1], histogram(images[:1].reshape(1, 1, 2, 2), 5))
