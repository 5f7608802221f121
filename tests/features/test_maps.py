"""Public feature maps: linear, row by row, and never longer than the record."""

import math

import pytest
import torch
from torch import nn

from dpswd import InputError
from dpswd.features.encoded import EncodedRows
from dpswd.features.frequencies import DCT, Frequencies
from dpswd.features.maps import Columns, Flatten, histogram
from dpswd.row_check import check_row_function

SCALED = [
    Flatten((1, 8, 8), centre=0.3, radius=3.2),
    Flatten((7,), radius=2.0),
    DCT((1, 28, 28), size=12, centre=0.13, radius=11),
    DCT((3, 9, 13), size=9),
]
MAPS = [*SCALED, Frequencies((3, 8, 8), 5, 3), Columns([(0, 1), (-5, 5)])]


def random_records(features, n=5):
    return torch.rand(n, *features.sample_shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("features", MAPS, ids=repr)
def test_rows_are_of_one_record_each(features):
    records = random_records(features)
    rows = features(records)
    assert rows.shape == (5, features.dim)
    for i in range(5):  # up to the rounding of float32
        alone = features(records[i : i + 1])[0]
        torch.testing.assert_close(alone, rows[i], rtol=1e-5, atol=1e-6)
    check_row_function(features, features.sample_shape)


@pytest.mark.parametrize("features", MAPS, ids=repr)
def test_maps_have_constants_only_and_pass_gradients(features):
    assert list(features.parameters()) == []
    assert dict(features.state_dict()) == {}
    records = random_records(features).requires_grad_()
    features(records).sum().backward()
    assert records.grad is not None


@pytest.mark.parametrize("features", SCALED, ids=repr)
def test_a_record_within_radius_of_the_centre_has_a_row_of_norm_one_half(features):
    records = random_records(features)
    distances = (records - features.centre).flatten(1).norm(dim=1)
    bound = distances / (2 * features.radius) * (1 + 1e-5)
    assert bool((features(records).norm(dim=1) <= bound).all())
    centre = torch.full((1, *features.sample_shape), features.centre)
    assert bool((features(centre).abs() < 1e-6).all())


def test_columns_are_scaled_by_their_bounds_and_clipped():
    features = Columns([(0.0, 10.0), (-1.0, 1.0), (1e6, 2e6)])
    records = torch.tensor([[5.0, 0.0, 1.5e6], [10.0, 1.0, 2e6], [-3.0, -9.0, 9e9]])
    rows = features(records)
    assert bool((rows[0] == 0).all())
    # A corner is at distance sqrt(3) / 2 from the centre, twice the radius, hence of norm 1.
    torch.testing.assert_close(rows[1:].norm(dim=1), torch.ones(2, dtype=rows.dtype))
    clipped = torch.tensor([[5.0, 0.0, 1.5e6], [10.0, 1.0, 2e6], [0.0, -1.0, 2e6]])
    torch.testing.assert_close(features.decode(rows).float(), clipped)


@pytest.mark.parametrize(
    "values",
    [{"sample_shape": (0,)}, {"sample_shape": 3}, {"radius": 0.0}, {"centre": math.nan}],
    ids=str,
)
def test_flatten_refuses_values_out_of_range(values):
    (name,) = values
    with pytest.raises(InputError, match=f"Expected {name}"):
        Flatten(**{"sample_shape": (3,)} | values)


@pytest.mark.parametrize("bounds", [[], [(1.0, 1.0)], [(0.0, math.nan)], (0.0, 1.0)], ids=str)
def test_columns_refuse_bounds_of_another_form(bounds):
    with pytest.raises(InputError, match="bounds"):
        Columns(bounds)


def test_encoder_has_the_modes_of_its_layers_after_it_was_measured():
    frozen = nn.BatchNorm1d(2).eval()
    rows = EncodedRows(nn.Sequential(frozen, nn.BatchNorm1d(2)), 2)
    rows.measure(torch.rand(4, 2))
    assert [layer.training for layer in rows.encoder] == [False, True]


def test_forward_refuses_records_of_another_shape():
    with pytest.raises(
        InputError, match=r"of shape \(3,\), as Flatten maps, got \(4,\); give Flatten"
    ):
        Flatten((3,))(torch.zeros(2, 4))


def test_histogram_counts_pixels_and_keeps_the_norm():
    images = torch.tensor([[0.0, 0.1, 0.5, 1.0], [1.0, 1.0, 1.0, 1.0]]).reshape(2, 1, 2, 2)
    rows = histogram(images, 5)
    assert torch.allclose(rows, torch.tensor([[0.25, 0, 0.125, 0, 0.125], [0, 0, 0, 0, 0.5]]))
    assert torch.equal(rows[:1], histogram(images[:1], 5))


def test_histogram_keeps_the_norm_of_what_is_no_image():
    values = torch.tensor([[-3.0, 7.0, float("nan"), float("inf")]]).reshape(1, 1, 2, 2)
    assert float(histogram(values, 5).norm()) <= 0.5
