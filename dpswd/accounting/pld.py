r"""Privacy loss distributions of releases, composed by FFT.

One release, given U, is a Gaussian mechanism with :math:`\mu = \mathtt{scale}\sqrt S`; its profile is the mixture over
S. Chords of the profile, linear in :math:`e^\varepsilon`, belong to a pair of discrete distributions that dominates the
release. The spacing of the grid is a fraction of the standard deviation of the loss of one release, and relative far
from zero. Proofs: docs/theory/accounting.md, Propositions 13 to 16.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from dp_accounting.pld import common
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import ArrayLike, NDArray
from scipy import fft, signal, special

from dpswd.errors import InputError
from dpswd.sensitivity import ConstantLaw, Law

Array = NDArray[np.float64]

POINTS_PER_DEVIATION = 32  # grid points per standard deviation of the loss of one release
COARSE = 8  # the same, for a search whose result is confirmed on the fine grid
_GROWTH = (
    0.16  # relative spacing far from zero, times the points per deviation: 0.5% on the fine grid
)
_FEW = 64  # up to so many releases do not average out the discretisation: four times as many points
_TAIL = 1e-16  # probability of losses beyond the grid, over all releases; counted as infinite loss
_TRUNCATION = 1e-15  # probability that the FFT composition may cut off; counted as infinite loss
_MAX_POINTS = (
    2**20
)  # of one release, on each side of zero; beyond it the grid is coarser, still an upper bound
_MAX_COMPOSED = 2**25  # points of a composition, about 2 GB
_MAX_PER_DEVIATION = (
    4096  # points per standard deviation of the result; more slow down and disturb the converters
)
_LEAST_MU = 1e-10  # of one release given U; smaller values are rounded up
_LEAST_LOSS = 1e-16  # of the rate times mu, rounded up too: smaller values vanish in the rounding of the profile
_MAX_LOSS = 250.0  # mean loss of a composition; e^epsilon is meaningless beyond it


class LossTooLargeError(InputError):
    """The noise is so small that the privacy loss cannot be represented."""


class Releases(NamedTuple):
    """Equal releases, each on a fresh subset of fixed size, drawn without replacement."""

    law: Law  # of S
    scale: float  # unit_sensitivity / sigma
    rate: float  # q = B / N in (0, 1]
    times: int  # T


def merge_gaussians(parts: Iterable[Releases]) -> list[Releases]:
    """Replace all unsampled releases with constant S by the Gaussian mechanism that they compose to (Dong2022)."""
    kept, mu_sq = [], 0.0
    for part in parts:
        if part.rate == 1 and part.law.is_constant:
            mu_sq += part.times * part.scale**2 * part.law.mean
        else:
            kept.append(part)
    if mu_sq:
        kept.append(Releases(ConstantLaw(1.0), math.sqrt(mu_sq), 1.0, 1))
    return kept


def gaussian_delta(mu: ArrayLike, epsilon: ArrayLike) -> Array:
    r"""Compute :math:`\delta_\mu(\varepsilon)` of the Gaussian mechanism, in logarithms, with broadcasting.

    References:
        | Improving the Gaussian Mechanism for Differential Privacy (Balle and Wang, 2018), Theorem 8.
    """
    mu, epsilon = np.asarray(mu, dtype=float), np.asarray(epsilon, dtype=float)
    upper = special.log_ndtr(mu / 2 - epsilon / mu)
    lower = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    return np.asarray(np.exp(upper) * -np.expm1(np.minimum(lower - upper, 0.0)), dtype=float)


def _before_sampling(epsilon: Array, rate: float) -> Array:
    """Solve ``epsilon = ln(1 + q (e^x - 1))`` for x, without overflow."""
    near = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / rate)
    far = epsilon - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-np.maximum(epsilon, 1.0)))
    return np.where(epsilon < 1, near, far)


def release_profile(part: Releases, epsilon: ArrayLike) -> Array:
    """Compute delta (n,) of one release of ``part`` at every epsilon (n,) >= 0, with S rounded up."""
    epsilon = np.asarray(epsilon, dtype=float)
    atoms, weights = part.law.atoms()
    inner = _before_sampling(epsilon, part.rate)[:, None]  # (n, 1)
    positive = atoms > 0
    least = max(_LEAST_MU, min(_LEAST_LOSS / part.rate, 1.0))
    mu = np.maximum(part.scale * np.sqrt(atoms[positive]), least)  # (a,)
    chunks = [
        gaussian_delta(mu, inner[i : i + 512]) @ weights[positive]
        for i in range(0, len(inner), 512)
    ]
    return np.asarray(np.clip(part.rate * np.concatenate(chunks), 0.0, 1.0), dtype=float)


def _masses(x: Array, delta: Array) -> Array:
    """Probabilities of the losses ``x[1:]`` > 0 for the chords of a profile on ``x``, which starts at 0."""
    drop, width = -np.diff(delta), np.diff(x)
    with np.errstate(over="ignore"):
        mass = drop / -np.expm1(-width)
        mass[:-1] -= drop[1:] / np.expm1(width[1:])
    return np.maximum(mass, 0.0)


@functools.lru_cache(maxsize=256)
def _loss_moments(part: Releases) -> tuple[float, float, float, float]:
    """Mean and variance of the loss of one release, the largest loss on the grid, and the probability beyond it."""
    start = part.rate * min(part.scale * math.sqrt(part.law.mean), 1.0)
    x = np.concatenate([[0.0], np.geomspace(1e-4 * start, 1e7 * max(start, 1.0), 480)])
    delta = release_profile(part, x)
    last = min(int(np.count_nonzero(delta[1:] > _TAIL / part.times)), len(x) - 2) + 1
    x, delta = x[: last + 1], delta[: last + 1]
    mass, x = _masses(x, delta), x[1:]
    mirror = np.exp(-x)
    mean = float(np.sum(mass * (1 - mirror) * x))
    second = float(np.sum(mass * (1 + mirror) * x**2))
    return mean, max(second - mean**2, 1e-3 * second), float(x[-1]), float(delta[-1])


def _multiples(top: float, step: float, points: int) -> NDArray[np.int64]:
    """Integers from 0 to beyond ``top / step``: all of them near zero, then with constant relative spacing."""
    last, growth = math.ceil(top / step), 1 + _GROWTH / points
    dense = min(last, math.ceil(1 / (growth - 1)))
    sparse = dense * growth ** np.arange(1, math.log(last / dense) / math.log(growth))
    return np.unique(
        np.concatenate([np.arange(dense + 1), np.rint(sparse), [last]]).astype(np.int64)
    )


def _symmetric(upper: Array, infinite: float, step: float) -> Array:
    """Complete the probabilities of ``step, 2 step, ...`` (upper) and of infinite loss by P(-y) = e^-y P(y) and P(0).

    The lower half of an FFT has absolute errors of about 1e-16 per release, and gdpnum reads small false-positive rates
    off it (Proposition 20).
    """
    upper = np.maximum(upper, 0.0)
    lower = upper * np.exp(-step * np.arange(1, len(upper) + 1))
    middle = max(0.0, 1.0 - infinite - float(upper.sum() + lower.sum()))
    return np.concatenate([lower[::-1], [middle], upper])


@functools.lru_cache(maxsize=32)
def _one_release(part: Releases, step: float, points: int) -> tuple[Array, float]:
    """Probabilities of the losses ``-n ... n`` times ``step`` of one release, and of infinite loss."""
    _, _, top, _ = _loss_moments(part)
    grid = _multiples(top, step, points)
    x = np.asarray(grid * step, dtype=float)
    delta = np.minimum.accumulate(release_profile(part, x))
    upper = np.zeros(grid[-1])
    upper[grid[1:] - 1] = _masses(x, delta)
    infinite = float(delta[-1])
    return _symmetric(upper, infinite, step), infinite


def _self_compose(
    probabilities: Array, infinite: float, times: int, step: float
) -> tuple[Array, float]:
    """Compose one release with itself; raise LossTooLargeError if the result does not fit into memory."""
    if times == 1:
        return probabilities, infinite
    half = len(probabilities) // 2
    index = np.arange(-half, half + 1)
    mean = float(index @ probabilities)
    deviation = math.sqrt(times * float((index - mean) ** 2 @ probabilities))
    # Chernoff bounds at orders around the best one for a Gaussian; dp_accounting's own orders are too large for many
    # releases, and its support then grows with their number instead of its root
    order = math.sqrt(2 * math.log(2 / _TRUNCATION)) / deviation
    orders = np.concatenate([sign * np.geomspace(order / 64, 4 * order, 33) for sign in (-1, 1)])
    low, high = common.compute_self_convolve_bounds(probabilities, times, _TRUNCATION, orders)
    if high - low > _MAX_COMPOSED:
        raise LossTooLargeError(
            f"Expected at most {_MAX_COMPOSED} grid points, got {high - low:.2g}; use more noise."
        )
    top, bottom = (
        high - half * times,
        max(half * times - low, 0),
    )  # losses on the grid, above and below 0
    size = fft.next_fast_len(max(top + bottom, 2 * half) + 1, real=True)
    circular = np.zeros(
        size
    )  # loss 0 at index 0: the transform is then almost real, and its powers are more accurate
    circular[: half + 1], circular[-half:] = probabilities[half:], probabilities[:half]
    circular = fft.irfft(fft.rfft(circular) ** times, size)
    infinite = _TRUNCATION - math.expm1(times * math.log1p(-infinite))
    return _symmetric(circular[1 : top + 1], infinite, step), infinite


def _coarsen(upper: Array, step: float, factor: int) -> Array:
    """Replace the grid of losses 1, 2, ... by its multiples of ``factor``.

    Every loss is split between its two neighbours such that both probabilities of the pair are kept: the chords of the
    profile, an upper bound.
    """
    if factor == 1:
        return upper
    fraction = np.expm1(-step * np.arange(factor)) / math.expm1(
        -step * factor
    )  # that goes to the larger neighbour
    cells = np.concatenate([[0.0], upper, np.zeros(-(len(upper) + 1) % factor)]).reshape(-1, factor)
    return np.asarray(np.append(cells @ (1 - fraction), 0.0)[1:] + cells @ fraction)


def compose(
    parts: Sequence[Releases], *, points: int = POINTS_PER_DEVIATION, infinity_mass: float = 0.0
) -> PrivacyLossDistribution:
    """Compose any sequence of releases, of which there is at least one.

    ``points`` are the grid points per standard deviation of the loss of one release; ``infinity_mass`` is the
    probability that a bound on S fails at some release, and is added to every delta.
    """
    merged = merge_gaussians(parts)
    # times is rounded to a power of two for the grid, so that the caches hit during a run
    rounded = [part._replace(times=1 << (part.times - 1).bit_length()) for part in merged]
    means, variances, tops, tails = np.transpose([_loss_moments(part) for part in rounded])
    times = np.array([part.times for part in merged])
    if not times @ means < _MAX_LOSS or times @ tails > 1 / 2:
        least = 1 / max(part.scale for part in merged)
        raise LossTooLargeError(
            f"Expected a mean loss below {_MAX_LOSS:g}, got sigma = {least:.3g} sensitivities; use a larger sigma."
        )
    count, variance = int(times.sum()), float(times @ variances)
    step = math.sqrt(variance / count) / (4 * points if count <= _FEW else points)
    step = float(f"{max(step, tops.max() / _MAX_POINTS):.6g}")
    total, infinite = np.ones(1), 0.0
    for part, one in zip(merged, rounded, strict=True):
        found = _one_release(one, step, 4 * points if part.times <= _FEW else points)
        losses, lost = _self_compose(*found, part.times, step)
        infinite += lost - infinite * lost
        if len(total) > 1:
            losses = signal.fftconvolve(total, losses)
            losses = _symmetric(losses[len(losses) // 2 + 1 :], infinite, step)
        total = losses
    infinite += infinity_mass
    upper = total[len(total) // 2 + 1 :]
    factor = max(1, int(math.sqrt(variance) / step / _MAX_PER_DEVIATION))
    upper, step = _coarsen(upper, step, factor), step * factor
    probabilities = _symmetric(upper, infinite, step)
    return PrivacyLossDistribution(DensePLDPmf(step, -len(upper), probabilities, infinite, True))
