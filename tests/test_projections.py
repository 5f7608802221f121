"""Directions: unit, uniform, whole bases, and drawn from the operating system."""

import numpy as np
import pytest
import torch
from scipy import stats

from dpswd import random_projections
from dpswd._random import SeededRandom
from dpswd.errors import InputError

FALSE_ALARM = 1e-6
KINDS = ("iid", "orthogonal")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("d", "k"), [(2, 1), (7, 3), (5, 5), (3, 11), (64, 200)])
def test_columns_are_unit(kind, d, k):
    u = random_projections(d, k, kind=kind)
    assert u.shape == (d, k)
    assert u.dtype == torch.float64
    torch.testing.assert_close(u.norm(dim=0), torch.ones(k, dtype=torch.float64), rtol=0, atol=1e-14)


@pytest.mark.parametrize("a", [1, 3])
def test_whole_bases_see_every_move_alike(a):
    u = random_projections(6, 6 * a, kind="orthogonal")
    torch.testing.assert_close(u @ u.T, a * torch.eye(6, dtype=u.dtype), rtol=0, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_entries_have_the_law_of_a_uniform_direction(kind):
    d, k = 5, 20_000
    u = random_projections(d, k, kind=kind, generator=SeededRandom(0))
    # the square of one entry of a uniform direction is Beta(1/2, (d-1)/2), in every column and row
    for row, column in ((0, slice(0, None, 5)), (3, slice(2, None, 5)), (4, slice(4, None, 5))):
        squares = u[row, column].square().numpy()  # one column of every basis: independent
        assert stats.kstest(squares, stats.beta(0.5, (d - 1) / 2).cdf).pvalue > FALSE_ALARM
        assert stats.kstest(squares, stats.beta(0.5, d / 2).cdf).pvalue < FALSE_ALARM  # control: one dimension more
        signs = int((u[row, column] > 0).sum())
        assert stats.binomtest(signs, len(squares)).pvalue > FALSE_ALARM  # QR alone would fail: see below


def test_bases_are_uniform_and_qr_alone_is_not():
    generator = torch.Generator().manual_seed(0)
    ours = random_projections(4, 4 * 4000, kind="orthogonal", generator=generator).T.reshape(4000, 4, 4)
    raw = torch.linalg.qr(torch.randn(4000, 4, 4, generator=generator, dtype=torch.float64)).Q.mT

    def p_value(bases):  # the trace of a uniform orthogonal matrix is symmetric about 0
        return stats.ks_2samp(trace := bases.diagonal(dim1=1, dim2=2).sum(1).numpy(), -trace).pvalue

    assert p_value(ours) > FALSE_ALARM
    assert p_value(raw) < FALSE_ALARM  # control: LAPACK's sign convention


@pytest.mark.parametrize("kind", KINDS)
def test_fresh_unless_a_test_says_otherwise(kind):
    torch.manual_seed(0)
    first = random_projections(4, 6, kind=kind)
    torch.manual_seed(0)
    assert not torch.equal(first, random_projections(4, 6, kind=kind))
    for make in (SeededRandom, torch.Generator().manual_seed):
        one, two = (random_projections(4, 6, kind=kind, generator=make(3)) for _ in range(2))
        assert torch.equal(one, two)


def test_drawing_does_not_disturb_torch():
    before = torch.get_rng_state()
    random_projections(4, 6)
    assert torch.equal(before, torch.get_rng_state())


def test_dtype():
    assert random_projections(4, 6, dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 3), r"Expected dim >= 2, got dim=1\."),
        ((3, 0), r"Expected n_projections >= 1, got n_projections=0\."),
        ((3, 2.5), r"Expected n_projections to be an integer, got n_projections=2\.5\."),
        ((True, 2), "Expected dim to be an integer, got dim=True"),
    ],
)
def test_sizes_out_of_range(arguments, message):
    with pytest.raises(InputError, match=message):
        random_projections(*arguments)


def test_wrong_kind_or_generator():
    with pytest.raises(InputError, match=r"Expected kind to be one of iid, orthogonal, got kind='haar'\."):
        random_projections(3, 3, kind="haar")
    with pytest.raises(InputError, match=r"Expected generator to be None, a RandomSource or a torch\.Generator, got 0"):
        random_projections(3, 3, generator=0)
    with pytest.raises(InputError, match="Expected generator"):
        random_projections(3, 3, generator=np.random.default_rng(0))
