"""Finite precision: what the proofs say of real numbers,
checked in exact arithmetic on what the code computes.
"""

import math
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from factories import booked
from hypothesis import given, settings
from hypothesis.extra import numpy as arrays

import dpswd._random
from dpswd import (
    DPSlicedWassersteinLoss,
    PrivacyAccountant,
    PrivateRecords,
    ProjectionMechanism,
    random_projections,
)
from dpswd._kernels import block_means, padded_block_means
from dpswd._random import SeededRandom, normal, on_grid
from dpswd.audit.bounds import Claim
from dpswd.audit.game import run_game
from dpswd.clipping import clip_rows
from dpswd.queries import ClassCounts, ClassCovariances, ClassMeans
from dpswd.sliced import sliced_wasserstein

UNIT32 = 2.0**-24  # half the distance from 1 to the next float32


def square_sum(values):
    """Sum of squares without any rounding."""
    return sum((Fraction(value) ** 2 for value in values), Fraction(0))


@settings(deadline=None, max_examples=300)
@given(
    row=st.integers(1, 40).flatmap(
        lambda d: arrays.arrays(
            "float64", d, elements=st.floats(-1e300, 1e300, allow_subnormal=True)
        )
    ),
    bound=st.sampled_from([0.5, 1.0, 0.1, 1e-6, 3e5]),
    dtype=st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    near=st.booleans(),
)
def test_no_row_exceeds_the_bound_by_one_ulp(row, bound, dtype, near):
    x = torch.from_numpy(row)
    if (
        near and 0 < float(x.norm()) < math.inf
    ):  # the dangerous ones: at the bound, but for rounding
        x = x / x.norm() * bound
    x = x.to(dtype)
    x = x[torch.isfinite(x)][None]  # a cast may overflow; the loss refuses that
    clipped = clip_rows(x, bound)
    assert clipped.dtype == torch.float64  # the type that the loss projects in
    assert square_sum(clipped[0].tolist()) <= Fraction(bound) ** 2


@pytest.mark.parametrize("dim", [784, 10**5, 10**6, 10**7])
@pytest.mark.parametrize("value", [1.0, 0.1, 0.7, 1 / 3])
def test_nor_do_rows_so_long_that_the_norm_itself_is_rounded(dim, value):
    entry = float(clip_rows(torch.full((1, dim), value, dtype=torch.float64), 0.5)[0, 0])
    assert dim * Fraction(entry) ** 2 <= Fraction(1, 4)
    if (dim, value) == (
        10**6,
        1 / 3,
    ):  # control: the margin of 1e-12 alone is not enough for this one
        x = torch.full((1, dim), value, dtype=torch.float64)
        entry = float(
            (x * (0.5 * (1 - 1e-12) / torch.linalg.vector_norm(x, dim=1, keepdim=True)))[0, 0]
        )
        assert dim * Fraction(entry) ** 2 > Fraction(1, 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("release", [{}, {"statistic": "quantiles", "n_quantiles": 3}])
def test_values_before_noise_move_no_more_than_is_claimed(dtype, release):
    """The worst pair, through the code that releases, in whole bases (S is a constant);
    the sum in exact arithmetic.
    """
    generator = torch.Generator().manual_seed(0)
    made = ProjectionMechanism(5, 10, 1.0, 12, kind="orthogonal", noise_seed=0, **release)
    loss = DPSlicedWassersteinLoss(made)
    claimed = Fraction(made.unit_sensitivity) ** 2 * 2
    ratios = []
    for _ in range(60):
        z = torch.randn(5, generator=generator).to(dtype) * 100
        x = z.expand(12, -1).clone()
        y = x.clone()
        y[0] = -y[0]
        u = loss.draw_projections()
        first, second = (loss.exact_values(rows, None, u).flatten().tolist() for rows in (x, y))
        moved = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(first, second, strict=True))
        ratios.append(moved / claimed)
    assert max(ratios) <= 1
    assert min(ratios) > 1 - Fraction(1, 10**9)


def moment_of(rows):
    return booked(ClassCovariances(1, 5, sigma=1.0, noise_seed=4)).release(PrivateRecords(rows))[0]


def autocast(on):
    return torch.autocast("cpu", torch.bfloat16, enabled=on)


def released(on):
    """A release, a second moment and directions, all from the same random numbers."""
    x = torch.randn(12, 5, generator=torch.Generator().manual_seed(0))
    made = ProjectionMechanism(
        5, 7, 0.3, 12, statistic="quantiles", n_quantiles=3, row_norm=1.2, noise_seed=4
    )
    with autocast(on):
        assert (x @ x.T).dtype == (
            torch.bfloat16 if on else torch.float32
        )  # control: autocast is at work
        loss = DPSlicedWassersteinLoss(made)
        release = loss.release(x)
        rows = DPSlicedWassersteinLoss(made.replace(statistic="rows", n_quantiles=None)).release(x)
        moment = moment_of(x)
        directions = random_projections(5, 10, kind="orthogonal", generator=SeededRandom(1))
        public = torch.randn(9, 5, generator=torch.Generator().manual_seed(1), requires_grad=True)
        distance = loss.distance(release, public)
        swd = sliced_wasserstein(x, public, directions)
    (gradient,) = torch.autograd.grad(
        distance + swd, public
    )  # outside, as PyTorch and Lightning do it
    tensors = [
        release.values,
        release.projections,
        rows.values,
        moment,
        directions,
        distance,
        swd,
        gradient,
    ]
    return [tensor.detach() for tensor in tensors]


def test_bf16_mixed_does_not_touch_clipping_projections_norms_or_noise():
    plain, mixed = released(on=False), released(on=True)
    for one, other in zip(plain, mixed, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)  # bit by bit
    values, projections, rows, moment, directions, distance, _, _ = mixed
    assert {t.dtype for t in (values, projections, rows, moment, directions)} == {torch.float64}
    assert distance.dtype == torch.float32
    assert float((projections.norm(dim=0) - 1).abs().max()) < 1e-15
    assert float((directions @ directions.T - 2 * torch.eye(5)).abs().max()) < 1e-14


class LowBits:
    """The attack of Jin et al. (2022) on Box and Muller's noise:
    are the words behind it whole numbers?

    A pair of noisy values and a guess of the exact ones give a radius, the radius a uniform number,
    and that was a multiple of 2^-53. Pairs in the tail, whose words are small, can be told to a
    fraction of one.
    """

    def __init__(self):
        # mu = 0.28 for any number of values
        made = ProjectionMechanism(
            8, 256, 10.0, 20, "quantiles", 10, kind="orthogonal", noise_seed=0
        )
        self.loss = DPSlicedWassersteinLoss(made)
        self.claim = Claim.of(PrivacyAccountant().step(made, sample_size=20), 1e-5)
        self.first = torch.randn(
            20, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
        )
        self.second = self.first.clone()
        self.second[0] *= -1

    def play(self, replaced):
        release = self.loss.release(self.second if replaced else self.first)
        one, two = (self._broken_words(release, rows) for rows in (self.first, self.second))
        return one - two

    def _broken_words(self, release, rows):
        sigma = release.mechanism.sigma
        exact = self.loss.exact_values(rows, None, release.projections)
        noise = (
            ((release.values - exact) / sigma).T.flatten().numpy().astype(np.longdouble)
        )  # in order of the draws
        half = len(noise) // 2
        square = noise[:half] ** 2 + noise[half:] ** 2
        words = np.exp(-square / 2) * np.longdouble(2) ** 53
        seen = words * square < 2.0**53 / 1000  # beyond, float64 has rounded the fraction away
        return float(np.abs(words - np.rint(words))[seen].sum())


@pytest.mark.repetitions
def test_the_low_bits_of_the_noise_tell_nothing(monkeypatch):
    game = LowBits()
    assert game.claim.mu < 0.3
    assert game.claim.is_consistent_with(run_game(game, 400))
    monkeypatch.setattr(
        dpswd._random, "on_grid", lambda values, sigma: values
    )  # control: what the grid is for
    evidence = run_game(LowBits(), 400)
    assert not game.claim.is_consistent_with(evidence)
    assert evidence.mu_lower > 5 * game.claim.mu


@pytest.mark.parametrize("sigma", [1e-308, 3e-5, 0.3, 1.0, 7e5, 1e300])
def test_the_grid(sigma):
    values = (
        torch.randn(1000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * sigma
    )
    rounded = on_grid(values, sigma)
    assert float((rounded - values).abs().max()) <= max(sigma / 2048, 2.0**-1000)
    assert bool(torch.isfinite(rounded).all())
    if sigma > 1e-300:
        spacing = 2.0 ** (math.floor(math.log2(sigma)) - 10)
        assert all(Fraction(value) % Fraction(spacing) == 0 for value in rounded.tolist())
        assert len(torch.unique(rounded)) > 700  # and the noise is still there


def test_noise_is_added_in_float64(monkeypatch):
    """Float32 noise differs by about 1e-8."""
    monkeypatch.setattr(dpswd._random, "on_grid", lambda values, sigma: values)
    x = (
        torch.randn(12, 5, generator=torch.Generator().manual_seed(0)) * 99
    ).round().double() / 1024
    made = ProjectionMechanism(5, 7, 0.3, 12, statistic="quantiles", n_quantiles=3, noise_seed=4)
    loss, source = DPSlicedWassersteinLoss(made), SeededRandom(4)
    u = random_projections(5, 7, generator=source)
    expected = loss.exact_values(x, None, u) + 0.3 * normal(source, (7, 3)).T
    torch.testing.assert_close(loss.release(x).values, expected, rtol=0, atol=1e-15)
    noise = normal(SeededRandom(4), (5, 5))
    moment = moment_of(x)
    torch.testing.assert_close(moment, x.T @ x + (noise + noise.T) / 2, rtol=0, atol=1e-14)


def test_everything_released_lies_on_the_grid():
    generator = torch.Generator().manual_seed(0)
    x, labels = (
        torch.randn(12, 5, generator=generator),
        torch.randint(3, (12,), generator=generator),
    )
    handle = PrivateRecords(x, labels, classes=range(3))
    quantiles = ProjectionMechanism(5, 7, 0.3, 12, statistic="quantiles", n_quantiles=3)
    released = [
        (DPSlicedWassersteinLoss(quantiles).release(x).values, 0.3),
        (DPSlicedWassersteinLoss(ProjectionMechanism(5, 7, 0.3, 12)).release(x).values, 0.3),
        (booked(ClassCounts(3, sigma=0.7)).release(handle), 0.7),
        (booked(ClassCovariances(1, 5, sigma=1.3)).release(handle), 1.3),
    ]
    for values, sigma in released:
        assert torch.equal(on_grid(values, sigma), values)


def test_plain_sums_of_neighbours_differ_by_more_than_the_sensitivity():
    """The example of docs/theory/numerics.md: beyond 2^12 small terms are rounded away, and below
    they are rounded up.
    """
    query = ClassMeans(1, 1, row_norm=0.5)
    plain = []
    released = []
    for first in (0.5, -0.5):
        rows = np.full(1 + 2**13 + 2**12, 0.5)
        rows[0] = first
        rows[-(2**12) :] = -0.4 * 2.0**-40
        plain.append(np.add.accumulate(rows)[-1])
        groups = torch.zeros(len(rows), dtype=torch.int64)
        sums = query.contribution(torch.from_numpy(rows)[:, None], groups, len(rows))
        released.append(float(sums[0, 1]))
    assert plain[0] - plain[1] == 1 + 2.0**-29
    assert 1 - 1e-9 < released[0] - released[1] <= 1


@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize("blocks", [1, 10, 997, 30_007])
def test_block_means_of_many_rows_in_float32(offset, blocks):
    """Pairwise sums of b values are off by (log2 b + 2) units at most, plus rounding;
    sums in float64 by one unit.
    """
    n = 10**6
    rows = (
        (torch.randn(n, 2, generator=torch.Generator().manual_seed(0)) * 0.1 + offset)
        .sort(dim=0)
        .values
    )
    exact, size = rows.double(), float(rows.abs().max())
    for length, means in ((n, block_means), (600_000, lambda s, m: padded_block_means(s, n, m))):
        found = means(rows[:length], blocks)
        assert found.dtype == torch.float32
        error = float((found.double() - means(exact[:length], blocks)).abs().max())
        assert error <= (math.log2(n / blocks) + 3) * UNIT32 * size
    # control: one running sum in float32, as textbooks write it, is not within that
    if blocks == 997 and offset:
        edges = torch.linspace(0, n, blocks + 1).round().long()
        running, correct = (
            torch.cat([torch.zeros(1, 2), each.cumsum(dim=0)])[edges].diff(dim=0)
            / edges.diff()[:, None]
            for each in (rows, exact)
        )
        assert (
            float((running.double() - correct).abs().max())
            > 10 * (math.log2(1003) + 3) * UNIT32 * size
        )
