r"""Privacy loss distributions of random projections under sampling; composed by ``dp_accounting``.

One release. Given U the released values are Gaussian, and two neighbouring batches are at distance
:math:`\mu = \mathtt{scale}\sqrt S` in units of the noise. U is part of what leaves, so the hockey-stick
divergence of the release is the mixture over S, and it increases with S (rounding S up is safe):

.. math:: \delta_1(\varepsilon) = E_S\, \delta_\mu(\varepsilon), \qquad
          \delta_\mu(\varepsilon)
          = \Phi(\tfrac\mu2 - \tfrac\varepsilon\mu) - e^\varepsilon \Phi(-\tfrac\mu2 - \tfrac\varepsilon\mu).

A subset of fixed size, drawn without replacement at rate q, under replace-one (Balle2018, Theorem 9, by their
advanced joint convexity): for :math:`\varepsilon' \ge 0`

.. math:: \delta_q(\varepsilon') = q\, \delta_1(\varepsilon), \quad
          \varepsilon = \ln(1 + (e^{\varepsilon'} - 1)/q).

Replace-one has no direction, so that the profile of the pair and that of the reversed pair are bounded alike,
and :math:`\delta(-\varepsilon') = 1 - e^{-\varepsilon'} + e^{-\varepsilon'}\delta(\varepsilon')`. Connecting
the dots of the profile, linearly in :math:`e^\varepsilon`, can only enlarge it, and gives the profile of an
explicit pair of discrete distributions, which dominates the release. Dominating pairs compose, adaptively
(Zhu2022, Theorem 10). docs/theory/accounting.md has the proofs.

Errors. A grid of spacing h adds at most :math:`h^2/4` to the variance of the loss of one release and
:math:`h^2/8` to its mean, so h is chosen relative to the standard deviation of that loss; far from zero a
relative spacing does the same.
"""

import functools
import math
from collections.abc import Sequence

import numpy as np
from dp_accounting.pld import common, pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dpswd.accounting.releases import Releases, merge_gaussians
from dpswd.errors import InputError

__all__ = ["LossTooLargeError", "compose", "gaussian_delta", "mirrored", "release_profile"]

Array = NDArray[np.float64]

POINTS_PER_DEVIATION = 32  # grid points per standard deviation of the loss of one release
COARSE = 8  # the same, for a search that is confirmed on the fine grid afterwards
_GROWTH = 0.16  # relative spacing far from zero, times the points per deviation: 0.5% on the fine grid
_FEW = 64  # so few releases do not average the error of the spacing: four times as many points
_TAIL = 1e-16  # probability of losses beyond the grid, over all releases; counted as infinite loss
_MAX_POINTS = 2**20  # of one release, on each side of zero; beyond it the grid gets coarser, which is still safe
_MAX_COMPOSED = 2**25  # of a composition: 2 GB while it is made; reached by about 4e9 releases of a Gaussian
_LEAST_MU = 1e-10  # of one release given U; a smaller one is rounded up to it, which is safe
_LEAST_LOSS = 1e-16  # of the rate times mu, likewise: below it the dots cannot be told apart
_MAX_LOSS = 250.0  # mean loss of a composition beyond which e^epsilon is no number that means anything


class LossTooLargeError(InputError):
    """The noise is so small that the privacy loss cannot be represented."""


def gaussian_delta(mu: ArrayLike, epsilon: ArrayLike) -> Array:
    r"""Computes :math:`\delta_\mu(\varepsilon)` of the Gaussian mechanism, in logs, with broadcasting.

    References:
        | Improving the Gaussian Mechanism for Differential Privacy (Balle and Wang, 2018), Theorem 8.
    """
    mu, epsilon = np.asarray(mu, dtype=float), np.asarray(epsilon, dtype=float)
    upper = special.log_ndtr(mu / 2 - epsilon / mu)
    lower = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    return np.asarray(np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0.0)), dtype=float)


def _before_sampling(epsilon: Array, rate: float) -> Array:
    """Solves ``epsilon = ln(1 + q (e^x - 1))`` for x, without overflow."""
    near = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / rate)
    far = epsilon - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-np.maximum(epsilon, 1.0)))
    return np.where(epsilon < 1, near, far)


def release_profile(part: Releases, epsilon: ArrayLike, *, pessimistic: bool = True) -> Array:
    """Computes delta of ONE release of ``part`` at every epsilon >= 0, up to the rounding of the law of S.

    Args:
        part: The release; its ``times`` is ignored.
        epsilon: (n,) values >= 0.
        pessimistic: Whether S is rounded up or, for tests of tightness, down.

    Returns:
        (n,) values of delta.
    """
    epsilon = np.asarray(epsilon, dtype=float)
    atoms, weights = part.law.atoms(pessimistic=pessimistic)
    inner = _before_sampling(epsilon, part.rate)[:, None]  # (n, 1)
    positive = atoms > 0
    least = max(_LEAST_MU, min(_LEAST_LOSS / part.rate, 1.0))
    mu = np.maximum(part.scale * np.sqrt(atoms[positive]), least)  # (a,)
    chunks = [gaussian_delta(mu, inner[i : i + 512]) @ weights[positive] for i in range(0, len(inner), 512)]
    return np.asarray(np.clip(part.rate * np.concatenate(chunks), 0.0, 1.0), dtype=float)


@functools.lru_cache(maxsize=256)
def _loss_moments(part: Releases) -> tuple[float, float, float, float]:
    """Mean and variance of the loss of one release, the loss beyond which only the allowed tail lies, and the tail."""
    start = part.rate * min(part.scale * math.sqrt(part.law.mean), 1.0)
    x = np.geomspace(1e-4 * start, 1e7 * max(start, 1.0), 480)
    delta = release_profile(part, x)
    inside = delta > _TAIL / part.times
    last = min(int(np.count_nonzero(inside)), len(x) - 1)
    top = float(x[last])
    x, delta = x[: last + 1], delta[: last + 1]
    x = np.concatenate([[0.0], x])
    delta = np.concatenate([release_profile(part, np.zeros(1)), delta])
    drop = -np.diff(delta)
    with np.errstate(over="ignore"):
        # what connecting the dots puts on the right end of a cell, less what the next cell takes from there
        mass = drop / -np.expm1(-np.diff(x))
        mass[:-1] -= drop[1:] / np.expm1(np.diff(x)[1:])
        x, mass = x[1:], np.maximum(mass, 0.0)
        mirror = np.exp(-x)
    mean = float(np.sum(mass * (1 - mirror) * x))
    second = float(np.sum(mass * (1 + mirror) * x**2))
    return mean, max(second - mean**2, 1e-3 * second), top, float(delta[-1])


def _multiples(top: float, step: float, points: int) -> NDArray[np.int64]:
    """Integers from 0 to beyond ``top / step``: all of them near zero, then a constant relative spacing."""
    last, growth = math.ceil(top / step), 1 + _GROWTH / points
    dense = math.ceil(1 / (growth - 1))
    if last <= dense:
        return np.arange(last + 1)
    sparse = dense * growth ** np.arange(1, math.log(last / dense) / math.log(growth))
    return np.unique(np.concatenate([np.arange(dense + 1), np.rint(sparse), [last]]).astype(np.int64))


@functools.lru_cache(maxsize=32)
def _release_pmf(part: Releases, step: float, points: int, pessimistic: bool) -> pld_pmf.DensePLDPmf:
    """The discrete loss of one release, on multiples of ``step``."""
    _, _, top, _ = _loss_moments(part)
    grid = _multiples(top, step, points)
    x = np.asarray(grid * step, dtype=float)
    delta = np.minimum.accumulate(release_profile(part, x, pessimistic=pessimistic))
    if not pessimistic:
        delta = _below(part, x, delta)
    shrink = np.exp(-x[:0:-1])
    mirrored = -np.expm1(-x[:0:-1]) + shrink * delta[:0:-1]
    both = np.minimum.accumulate(np.clip(np.concatenate([mirrored, delta]), 0.0, 1.0))
    losses = np.concatenate([-grid[:0:-1], grid])
    if not pessimistic:
        both = _convex_minorant(losses * step, both)
    with np.errstate(over="ignore"):
        pmf = pld_pmf.create_pmf_pessimistic_connect_dots(step, losses, both)
    return pmf.to_dense_pmf()


def _below(part: Releases, x: Array, delta: Array) -> Array:
    """Lowers every dot by the largest sag of the chords beside it: the chords stay below the profile."""
    with np.errstate(over="ignore"):
        middle = x[1:] + np.log1p(np.exp(-np.diff(x))) - math.log(2)  # in the middle of the chord, in e^epsilon
    # the sag is concave in e^epsilon and zero at both ends: at most twice its value in the middle
    sag = np.maximum(delta[:-1] + delta[1:] - 2 * release_profile(part, middle, pessimistic=False), 0.0)
    lowered = np.maximum(delta - np.maximum(np.append(sag, 0.0), np.insert(sag, 0, 0.0)), 0.0)
    lowered[-1] = 0.0
    return np.asarray(np.minimum.accumulate(lowered), dtype=float)


def _convex_minorant(x: Array, delta: Array) -> Array:
    """The largest convex function of e^epsilon below the dots: slopes are pooled until they increase."""
    widths = np.exp(x[:-1]) * np.expm1(np.diff(x))
    blocks: list[tuple[float, float, int]] = []  # width, drop, number of cells
    for cell in zip(widths, -np.diff(delta), np.ones(len(widths), dtype=int), strict=True):
        while blocks and blocks[-1][1] * cell[0] <= cell[1] * blocks[-1][0]:
            cell = tuple(a + b for a, b in zip(blocks.pop(), cell, strict=True))
        blocks.append(cell)
    slopes = np.repeat([drop / width for width, drop, _ in blocks], [count for _, _, count in blocks])
    return np.asarray(np.clip(np.append(np.cumsum((slopes * widths)[::-1])[::-1], 0.0), 0.0, 1.0), dtype=float)


def compose(
    parts: Sequence[Releases],
    *,
    pessimistic: bool = True,
    points: int = POINTS_PER_DEVIATION,
    infinity_mass: float = 0.0,
) -> PrivacyLossDistribution:
    """Composes any sequence of releases.

    Args:
        parts: What was released. Unsampled Gaussians among them are merged exactly beforehand.
        pessimistic: Whether every epsilon and delta errs upwards. The optimistic twin errs downwards, for
            tests only.
        points: Grid points per standard deviation of the loss of one release.
        infinity_mass: Probability that a bound on S fails at some release; added to every delta.

    Returns:
        The symmetric distribution of the privacy loss.

    Raises:
        InputError: If there is nothing to compose or the loss is too large to be represented.
    """
    merged = merge_gaussians(parts)
    if not merged:
        raise InputError("Expected at least one release to account for, got none; call step() first.")
    # the range of the grid depends on the releases only by powers of two, so that a run can use the cache
    ones = [part._replace(times=1 << (part.times - 1).bit_length()) for part in merged]
    moments = [_loss_moments(part) for part in ones]
    total_mean = sum(part.times * mean for part, (mean, *_) in zip(merged, moments, strict=True))
    beyond = sum(part.times * tail for part, (*_, tail) in zip(merged, moments, strict=True))
    if not total_mean < _MAX_LOSS or beyond > 1 / 2:
        noisiest = max(part.scale for part in merged)
        raise LossTooLargeError(
            f"Expected noise for which the privacy loss can be represented (mean below {_MAX_LOSS:g}), got "
            f"{'a mean loss of ' + format(total_mean, '.3g') if beyond <= 1 / 2 else 'none that is finite'} from a "
            f"sigma of {1 / noisiest:.3g} times the sensitivity; use a larger sigma."
        )
    count = sum(part.times for part in merged)
    variance = sum(part.times * variance for part, (_, variance, *_) in zip(merged, moments, strict=True))
    fine = 4 * points if count <= _FEW else points
    step = math.sqrt(variance / count) / fine
    step = max(step, max(top for _, _, top, _ in moments) / _MAX_POINTS)
    step = float(f"{step:.6g}")
    total: pld_pmf.PLDPmf | None = None
    for part, one in zip(merged, ones, strict=True):
        pmf = _release_pmf(one, step, 4 * points if part.times <= _FEW else points, pessimistic)
        if part.times > 1:
            _check_room(pmf, part.times)
            pmf = pmf.self_compose(part.times, tail_mass_truncation=1e-15)
        total = pmf if total is None else total.compose(pmf)
    assert total is not None
    probabilities = np.maximum(total._probs, 0.0)
    extra = infinity_mass + (total._infinity_mass if pessimistic else 0.0)
    return mirrored(
        PrivacyLossDistribution(pld_pmf.DensePLDPmf(step, total._lower_loss, probabilities, extra, pessimistic))
    )


def _check_room(pmf: pld_pmf.DensePLDPmf, times: int) -> None:
    """Refuses a composition that would fill the memory of the machine."""
    if len(pmf._probs) * times > _MAX_COMPOSED:
        lower, upper = common.compute_self_convolve_bounds(pmf._probs, times, 1e-15)
        if upper - lower > _MAX_COMPOSED:
            raise LossTooLargeError(
                f"Expected releases whose loss can be composed on a grid of {_MAX_COMPOSED} points, got {times} "
                f"releases that need {upper - lower:.2g}; use fewer releases or more noise."
            )


def mirrored(pld: PrivacyLossDistribution) -> PrivacyLossDistribution:
    """Replaces the lower half of a symmetric distribution by what its upper half says of it.

    The loss Y of a pair (P, Q) under P and the loss -X under Q satisfy Q(X = y) = e^-y P(Y = y); where the
    pair is symmetric, P(Y = -y) = e^-y P(Y = y). What is left of the mass sits at 0. Every delta at epsilon
    >= 0 depends on the upper half only and stays as it was. A distribution that is not symmetric is returned
    as it is.

    Without this the lower half holds ``dp_accounting``'s differences of numbers near 1, noise of about 1e-10, off
    which gdpnum reads false-positive rates: mu came out up to a third too small, and for its own Gaussian with mu = 10
    as 9.91 (tests/accounting/test_pld.py).
    """
    if not pld._symmetric:
        return pld
    pmf = pld._pmf_remove.to_dense_pmf()
    start, step = pmf._lower_loss, pmf._discretization
    last = start + len(pmf._probs) - 1
    upper = np.zeros(max(last, 0))  # losses step, 2 step, ...
    kept = np.maximum(pmf._probs[max(1 - start, 0) :], 0.0)
    upper[len(upper) - len(kept) :] = kept
    lower = upper * np.exp(-step * np.arange(1, len(upper) + 1))
    middle = max(0.0, 1.0 - pmf._infinity_mass - float(upper.sum() + lower.sum()))
    probabilities = np.concatenate([lower[::-1], [middle], upper])
    return PrivacyLossDistribution(
        pld_pmf.DensePLDPmf(step, -len(upper), probabilities, pmf._infinity_mass, pmf._pessimistic_estimate)
    )
