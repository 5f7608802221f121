"""Bins of columns: atoms, values beyond the bounds, nodes of the trees, refusals."""

import math

import pytest
import torch

from dpswd import InputError
from dpswd.bins import Bins

BOUNDS = [(0, 99_999), (0, 10), (2, 5), (1, 16), (-0.3, 0.7)]
KINDS = ["integer", "numeric", "binary", "integer", "numeric"]


@pytest.fixture(scope="module")
def bins():
    return Bins.of(BOUNDS, KINDS, 64)


def test_of_gives_few_integers_and_binary_columns_bins_of_their_own(bins):
    assert bins.n_bins == (64, 64, 2, 16, 64)
    assert torch.equal(bins.atoms[3, :16], torch.arange(1, 17).double())


def test_of_makes_atoms_of_the_bounds(bins):
    for j, bound in enumerate(BOUNDS):
        ends = bins.atoms[j, [0, bins.n_bins[j] - 1]]
        assert ends.float().tolist() == torch.tensor(bound).float().tolist()
    assert bins.atoms[0].isnan().sum() == 62  # the other bins of a wide column are no atoms


def test_index_counts_values_beyond_the_bounds_as_the_bounds(bins):
    low, high = torch.tensor(BOUNDS).float().unbind(1)
    last = [n_bins - 1 for n_bins in bins.n_bins]
    assert bins.index(torch.stack([low, high])).tolist() == [[0] * 5, last]
    beyond = torch.full((1, 5), 1e30)
    assert bins.index(torch.cat([-beyond, beyond])).tolist() == [[0] * 5, last]


def test_nodes_are_one_of_every_level(bins):
    _, high = torch.tensor(BOUNDS).float().unbind(1)
    nodes = bins.nodes(high[None])
    assert nodes.shape == (1, len(bins.levels))
    assert int(nodes.max()) == bins.n_nodes - 1


@pytest.mark.parametrize("bounds", [(0, math.inf), (0, math.nan), (0, 1e300)])
@pytest.mark.parametrize("kind", KINDS)
def test_of_refuses_bounds_that_are_not_finite_in_float32(bounds, kind):
    with pytest.raises(InputError, match="finite bounds"):
        Bins.of([bounds], [kind], 8)


def test_of_refuses_bounds_without_two_values():
    message = r"two values of the integer column 1 between them, got \(0, 0\.1\)"
    with pytest.raises(InputError, match=message):
        Bins.of([(0, 1), (0, 0.1)], ["binary", "integer"], 64)
