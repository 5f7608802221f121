"""Random directions: unit columns, their law, whole bases, freshness, invalid input."""

import pytest
import torch
from scipy import stats

from dpswd import random_projections
from dpswd._random import SeededRandom, normal
from dpswd.errors import InputError

# Chance that a correct program fails a statistical test, over the choice of the seed.
FALSE_ALARM = 1e-6
KINDS = pytest.mark.parametrize("kind", ["iid", "orthogonal"])


@KINDS
@pytest.mark.parametrize(("d", "k"), [(2, 1), (7, 3), (5, 5), (6, 18), (3, 11), (64, 200)])
def test_random_projections_have_norm_one(kind, d, k):
    u = random_projections(d, k, kind=kind)
    assert (u.shape, u.dtype) == ((d, k), torch.float64)
    ones = torch.ones(k, dtype=torch.float64)
    torch.testing.assert_close(u.norm(dim=0), ones, rtol=0, atol=1e-14)
    if kind == "orthogonal" and k % d == 0:  # whole bases see every move alike
        torch.testing.assert_close(u @ u.T, k / d * torch.eye(d, dtype=u.dtype), rtol=0, atol=1e-13)


@KINDS
def test_random_projections_have_the_law_of_a_uniform_direction(kind):
    """The square of one entry of a uniform direction is Beta(1/2, (d-1)/2)."""
    d, k = 5, 20_000
    u = random_projections(d, k, kind=kind, generator=SeededRandom(0))
    for row, first in ((0, 0), (3, 2), (4, 4)):
        entries = u[row, first::5]  # one column of every basis: independent
        squares = entries.square().numpy()
        assert stats.kstest(squares, stats.beta(0.5, (d - 1) / 2).cdf).pvalue > FALSE_ALARM
        # control: the law of one dimension more
        assert stats.kstest(squares, stats.beta(0.5, d / 2).cdf).pvalue < FALSE_ALARM
        n_positive = int((entries > 0).sum())
        assert stats.binomtest(n_positive, len(squares)).pvalue > FALSE_ALARM


def asymmetry(bases):
    """The p-value of the trace of uniform orthogonal matrices, which is symmetric about 0."""
    trace = bases.diagonal(dim1=1, dim2=2).sum(1).numpy()
    return stats.ks_2samp(trace, -trace).pvalue


def test_random_projections_are_uniform_bases_and_qr_alone_is_not():
    generator = torch.Generator().manual_seed(0)
    ours = random_projections(4, 4 * 4000, kind="orthogonal", generator=generator)
    raw = torch.linalg.qr(torch.randn(4000, 4, 4, generator=generator, dtype=torch.float64)).Q.mT
    assert asymmetry(ours.T.reshape(4000, 4, 4)) > FALSE_ALARM
    assert asymmetry(raw) < FALSE_ALARM  # control: LAPACK's sign convention


@KINDS
def test_random_projections_are_fresh(kind):
    torch.manual_seed(0)
    first = random_projections(4, 6, kind=kind)
    torch.manual_seed(0)
    assert not torch.equal(first, random_projections(4, 6, kind=kind))


@KINDS
@pytest.mark.parametrize("make", [SeededRandom, torch.Generator().manual_seed])
def test_random_projections_repeat_with_a_generator(kind, make):
    first = random_projections(4, 6, kind=kind, generator=make(3))
    assert torch.equal(first, random_projections(4, 6, kind=kind, generator=make(3)))


@pytest.mark.parametrize(
    ("options", "name"),
    [({"kind": "haar"}, "kind"), ({"generator": 0}, "generator"), ({"dim": 2**31}, "dim")],
)
def test_random_projections_refuse(options, name):
    with pytest.raises(InputError, match=name):
        random_projections(**({"dim": 3, "n_projections": 3} | options))


@pytest.mark.parametrize(("d", "k"), [(4, 2), (9, 3), (784, 100), (784, 392)])
def test_narrow_bases_are_those_of_the_householder_method(d, k):
    """Both give the Q whose R has a positive diagonal."""
    drawn = random_projections(d, k, kind="orthogonal", generator=SeededRandom(3))
    gaussian = normal(SeededRandom(3), (d, k))
    q, r = torch.linalg.qr(gaussian)
    expected = q * torch.sign(torch.diagonal(r))
    torch.testing.assert_close(drawn, expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(drawn.T @ drawn, torch.eye(k).double(), rtol=0, atol=1e-14)
