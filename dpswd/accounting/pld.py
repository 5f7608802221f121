r"""Privacy loss distributions of releases, composed by FFT.

One release, given U, is a Gaussian mechanism with :math:`\mu = \mathtt{scale}\sqrt S`. Its privacy
profile :math:`\delta(\varepsilon)` is the mixture over S. The chords of the profile between the
points of a grid, which are linear in :math:`e^\varepsilon`, belong to a pair of discrete
distributions that dominates the release. The spacing of the grid is a fraction of the standard
deviation of the loss of one release near zero, and relative far from zero.

Replace-one has no direction, so every loss distribution here is symmetric: :math:`P(-y) = e^{-y}
P(y)`. The probabilities of the positive losses and of infinite loss determine the rest.

Proofs: docs/theory/accounting.md, Propositions 13 to 16.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from dp_accounting.pld import common
from dp_accounting.pld.pld_pmf import DensePLDPmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import ArrayLike, NDArray
from scipy import fft, signal, special

from dpswd.errors import InputError
from dpswd.sensitivity import ConstantLaw, Law

Array = NDArray[np.float64]

# Grid points per standard deviation of the loss of one release; epsilon errs by less than 0.1 %.
POINTS_PER_DEVIATION = 32
# The same for a search whose result is confirmed on the fine grid.
COARSE = 8
# Relative spacing far from zero, times the points per deviation: 0.5 % on the fine grid.
_GROWTH = 0.16
# Few releases do not average out the error of the grid: up to this number it is finer.
_FEW = 64
# Factor of that finer grid.
_FINER = 4
# Probability of losses beyond the grid, over all releases; it is counted as infinite loss.
_TAIL = 1e-16
# Probability that the composition may cut off; it is counted as infinite loss.
_TRUNCATION = 1e-15
# Orders of the Chernoff bounds on each side of a composed loss; see _composed_range.
_N_ORDERS = 13
# Points of one release on each side of zero. Beyond it the grid is coarser, still an upper bound.
_MAX_POINTS = 2**20
# Points of a composition, which then takes about 2 GB.
_MAX_COMPOSED = 2**25
# Points per standard deviation of the result: more of them slow down and disturb the converters.
_MAX_PER_DEVIATION = 4096
# Smallest mu of one release given U; smaller values are rounded up.
_LEAST_MU = 1e-10
# Smallest product of rate and mu, to which smaller ones are rounded up. They would vanish in the
# rounding of the profile.
_LEAST_LOSS = 1e-16
# Largest loss of one release on the grid; larger ones are counted as infinite.
_LARGEST_LOSS = 1e7
# Largest mean loss of a composition. The profile loses digits beyond it, and no such guarantee
# protects anyone.
_MAX_LOSS = 1e6
# Largest epsilon that dp_accounting solves for. Beyond it, e^-loss loses digits and then vanishes.
_MAX_EXPONENT = 600.0
# Probabilities below this are left out at both ends, where a sum of exponentials divides by them.
_VANISHING = 1e-290
# Absolute error of delta per release that the FFT of a composition leaves.
_FFT_ERROR = 4e-17
# Part of delta that this error may be. The chords of the profile overestimate epsilon by more.
_NEGLIGIBLE = 1e-4


class LossTooLargeError(InputError):
    """The noise is so small, or delta is, that the privacy loss cannot be represented."""


@dataclass(frozen=True)
class Releases:
    """Equal releases, each of a fresh subset of fixed size without replacement.

    Attributes:
        law: Law of S, the squared sensitivity of the directions.
        scale: L2 sensitivity at S = 1 in units of the noise, ``unit_sensitivity / sigma``.
        rate: Part q = B / N of the records that one release reads, in (0, 1].
        n_releases: Number T of releases.
    """

    law: Law
    scale: float
    rate: float
    n_releases: int


def merge_gaussians(parts: Iterable[Releases]) -> list[Releases]:
    """Merge all unsampled releases with constant S.

    They compose to one Gaussian mechanism (Dong2022, Corollary 3.3).
    """
    merged = []
    mu_sq = 0.0
    for part in parts:
        if part.rate == 1 and part.law.is_constant:
            mu_sq += part.n_releases * part.scale**2 * part.law.mean
        else:
            merged.append(part)
    if mu_sq:
        merged.append(Releases(ConstantLaw(1.0), math.sqrt(mu_sq), 1.0, 1))
    return merged


def gaussian_delta(mu: ArrayLike, epsilon: ArrayLike) -> Array:
    r"""Compute the profile of the Gaussian mechanism, in logarithms, with broadcasting.

    .. math:: \delta_\mu(\varepsilon) = \Phi(\tfrac\mu2 - \tfrac\varepsilon\mu)
              - e^\varepsilon\, \Phi(-\tfrac\mu2 - \tfrac\varepsilon\mu)

    References:
        | Balle and Wang (2018). Improving the Gaussian Mechanism for Differential Privacy.
        | Theorem 8.
    """
    mu = np.asarray(mu, dtype=float)
    epsilon = np.asarray(epsilon, dtype=float)
    upper = special.log_ndtr(mu / 2 - epsilon / mu)
    lower = epsilon + special.log_ndtr(-mu / 2 - epsilon / mu)
    difference = -np.expm1(np.minimum(lower - upper, 0.0))
    return np.asarray(np.exp(upper) * difference, dtype=float)


def _before_sampling(epsilon: Array, rate: float) -> Array:
    """Solve ``epsilon = ln(1 + q (e^x - 1))`` for x, without overflow."""
    near = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / rate)
    correction = np.log1p(-(1 - rate) * np.exp(-np.maximum(epsilon, 1.0)))
    far = epsilon - math.log(rate) + correction
    return np.where(epsilon < 1, near, far)


def release_profile(part: Releases, epsilon: ArrayLike) -> Array:
    r"""Compute the profile of one release: delta (n,) at epsilon (n,) >= 0.

    .. math:: \delta(\varepsilon) = q\, E_S\, \delta_{c \sqrt S}(\ln(1 + (e^\varepsilon - 1) / q))
    """
    epsilon = np.asarray(epsilon, dtype=float)
    atoms, weights = part.law.atoms()
    positive = atoms > 0
    least_mu = max(_LEAST_MU, min(_LEAST_LOSS / part.rate, 1.0))
    mu = np.maximum(part.scale * np.sqrt(atoms[positive]), least_mu)  # (a,)
    inner = _before_sampling(epsilon, part.rate)[:, None]  # (n, 1)
    chunks = []
    for start in range(0, len(inner), 512):
        deltas = gaussian_delta(mu, inner[start : start + 512])  # (512, a)
        chunks.append(deltas @ weights[positive])
    profile = part.rate * np.concatenate(chunks)
    return np.asarray(np.clip(profile, 0.0, 1.0), dtype=float)


def _masses(x: Array, delta: Array) -> Array:
    """Compute the probabilities of losses from a profile.

    Args:
        x: Values (n + 1,) of epsilon, of which the first one is 0.
        delta: The profile at these; it is a chord, linear in ``e^epsilon``, between two of them.

    Returns:
        Probabilities (n,) of the losses ``x[1:]``.
    """
    drop = -np.diff(delta)
    width = np.diff(x)
    with np.errstate(over="ignore"):
        mass = drop / -np.expm1(-width)
        mass[:-1] -= drop[1:] / np.expm1(width[1:])
    return np.maximum(mass, 0.0)


@dataclass(frozen=True)
class _LossMoments:
    """Moments of the loss of one release.

    Attributes:
        mean: Mean of the loss.
        variance: Variance of the loss.
        largest: Largest loss of the grid.
        beyond: Probability of a larger loss.
    """

    mean: float
    variance: float
    largest: float
    beyond: float


@functools.lru_cache(maxsize=256)
def _loss_moments(part: Releases) -> _LossMoments:
    """Estimate the moments of the loss of one release on a coarse geometric grid."""
    start = part.rate * min(part.scale * math.sqrt(part.law.mean), 1.0)
    positive = np.geomspace(1e-4 * start, _LARGEST_LOSS, 480)
    x = np.concatenate([[0.0], positive])
    delta = release_profile(part, x)
    n_relevant = int(np.count_nonzero(delta[1:] > _TAIL / part.n_releases))
    n_losses = min(n_relevant + 1, len(positive))  # up to the first one that is not relevant
    x = x[: n_losses + 1]
    delta = delta[: n_losses + 1]
    mass = _masses(x, delta)
    losses = x[1:]
    mirror = np.exp(-losses)  # P(-y) / P(y)
    mean = float(np.sum(mass * (1 - mirror) * losses))
    second_moment = float(np.sum(mass * (1 + mirror) * losses**2))
    variance = max(second_moment - mean**2, 1e-3 * second_moment)  # the difference may cancel
    return _LossMoments(mean, variance, largest=float(losses[-1]), beyond=float(delta[-1]))


def _multiples(top: float, step: float, points: int) -> NDArray[np.int64]:
    """List integers from 0 to beyond ``top / step``.

    Near zero these are all integers, and then some with a constant relative spacing.
    """
    last = math.ceil(top / step)
    growth = 1 + _GROWTH / points
    dense = min(last, math.ceil(1 / (growth - 1)))
    exponents = np.arange(1, math.log(last / dense) / math.log(growth))
    sparse = np.rint(dense * growth**exponents)
    integers = np.concatenate([np.arange(dense + 1), sparse, [last]])
    return np.unique(integers.astype(np.int64))


def _symmetric(upper: Array, infinite: float, step: float) -> Array:
    """Complete the probabilities of ``step, 2 step, ...`` and of infinite loss.

    The lower half follows from the symmetry, and the probability of 0 from the sum. The lower half
    of an FFT has absolute errors of about 1e-16 per release, and gdpnum reads small false-positive
    rates off it (Proposition 20).
    """
    upper = np.maximum(upper, 0.0)
    lower = upper * np.exp(-step * np.arange(1, len(upper) + 1))
    middle = max(0.0, 1.0 - infinite - float(upper.sum() + lower.sum()))
    return np.concatenate([lower[::-1], [middle], upper])


@functools.lru_cache(maxsize=32)
def _one_release(part: Releases, step: float, points: int) -> tuple[Array, float]:
    """Discretise the loss of one release.

    Returns:
        The probabilities (2 n + 1,) of the losses ``-n ... n`` times ``step``, and of infinite
        loss.
    """
    grid = _multiples(_loss_moments(part).largest, step, points)
    x = np.asarray(grid * step, dtype=float)
    delta = np.minimum.accumulate(release_profile(part, x))
    upper = np.zeros(grid[-1])
    upper[grid[1:] - 1] = _masses(x, delta)
    infinite = float(delta[-1])
    return _symmetric(upper, infinite, step), infinite


def _self_compose(
    probabilities: Array, infinite: float, n_releases: int, step: float
) -> tuple[Array, float]:
    """Compose one release, a result of :func:`_one_release`, with itself.

    Raises:
        LossTooLargeError: If the result does not fit into memory.
    """
    if n_releases == 1:
        return probabilities, infinite
    half = len(probabilities) // 2
    if not probabilities[half + 1 :].any():  # every loss is 0 or infinite
        infinite = -math.expm1(n_releases * math.log1p(-infinite))
        return _symmetric(probabilities[half + 1 :], infinite, step), infinite
    low, high = _composed_range(probabilities, n_releases)
    if high - low > _MAX_COMPOSED:
        raise LossTooLargeError(
            f"Expected a privacy loss that {_MAX_COMPOSED:,} grid points represent, got one that "
            f"needs {high - low:.2g}; use a larger sigma or fewer releases."
        )
    above = high - half * n_releases  # losses on the grid above 0
    below = max(half * n_releases - low, 0)
    size = fft.next_fast_len(max(above + below, 2 * half) + 1, real=True)
    # Loss 0 is at index 0: the transform is then almost real, and its powers are more accurate.
    circular = np.zeros(size)
    circular[: half + 1] = probabilities[half:]
    circular[-half:] = probabilities[:half]
    circular = fft.irfft(fft.rfft(circular) ** n_releases, size)
    infinite = _TRUNCATION - math.expm1(n_releases * math.log1p(-infinite))
    return _symmetric(circular[1 : above + 1], infinite, step), infinite


def _composed_range(probabilities: Array, n_releases: int) -> tuple[int, int]:
    """Bound the index of a sum of losses by Chernoff bounds.

    The sum lies outside with a probability of at most ``_TRUNCATION``. The orders lie around the
    best one for a Gaussian. Those of dp_accounting are too large for many releases: the range would
    grow with their number instead of its root. Neighbouring orders have a ratio of 1.6, so that one
    is within a factor of 1.26 of the best order, and the range is at most 3 % wider.
    """
    half = len(probabilities) // 2
    index = np.arange(-half, half + 1)
    mean = float(index @ probabilities)
    deviation = math.sqrt(n_releases * float((index - mean) ** 2 @ probabilities))
    order = math.sqrt(2 * math.log(2 / _TRUNCATION)) / deviation
    positive = np.geomspace(order / 64, 4 * order, _N_ORDERS)
    orders = np.concatenate([-positive, positive])
    support = np.flatnonzero(probabilities >= _VANISHING)
    first = int(support[0])
    last = int(support[-1])
    low, high = common.compute_self_convolve_bounds(
        probabilities[first : last + 1], n_releases, _TRUNCATION, orders
    )
    return low + first * n_releases, high + first * n_releases


def _coarsen(upper: Array, step: float, factor: int) -> Array:
    """Replace the grid of losses 1, 2, ... by its multiples of ``factor``.

    Every loss is split between its two neighbours such that both probabilities of the pair are
    preserved. These are the chords of the profile, an upper bound.
    """
    if factor == 1:
        return upper
    # part of a loss that goes to the larger neighbour
    fraction = np.expm1(-step * np.arange(factor)) / math.expm1(-step * factor)
    padding = np.zeros(-(len(upper) + 1) % factor)
    cells = np.concatenate([[0.0], upper, padding]).reshape(-1, factor)
    smaller = np.append(cells @ (1 - fraction), 0.0)[1:]
    return np.asarray(smaller + cells @ fraction)


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """Symmetric distribution of a privacy loss on a grid.

    The probabilities of negative losses and of 0 follow: P(-y) = e^-y P(y).

    Attributes:
        step: Spacing of the grid.
        upper: Probabilities (n,) of the losses ``step, 2 step, ..., n step``.
        infinite: Probability of infinite loss.
    """

    step: float
    upper: Array
    infinite: float

    def to_pld(self) -> PrivacyLossDistribution:
        """Return the distribution in the form of ``dp_accounting``."""
        probabilities = _symmetric(self.upper, self.infinite, self.step)
        lowest = -len(self.upper)
        return PrivacyLossDistribution(
            DensePLDPmf(self.step, lowest, probabilities, self.infinite, True)
        )

    def get_epsilon(self, delta: float) -> float:
        """Return the smallest epsilon at ``delta``, infinite below ``infinite``."""
        epsilon = float(self.to_pld().get_epsilon_for_delta(delta))
        if _MAX_EXPONENT < epsilon < math.inf:
            return self._large_epsilon(delta)
        return epsilon

    def error_rates(self) -> tuple[Array, Array]:
        r"""Return the breakpoints of the trade-off curve up to loss 0.

        A test accuses if the loss is at least y. It finds a member with probability
        :math:`P(L \ge y)`, and accuses a non-member with probability :math:`E e^{-L} 1(L \ge y)`.
        The other half of the curve follows from the symmetry.

        Returns:
            False-positive rates (n + 2,) in ascending order from 0, and the true-positive rates of
            the same tests. The last ones mirror those of the smallest loss above 0.
        """
        descending = self.upper[::-1]
        losses = self.step * np.arange(len(descending), 0, -1)
        false_positive = np.concatenate([[0.0], np.cumsum(descending * np.exp(-losses))])
        true_positive = self.infinite + np.concatenate([[0.0], np.cumsum(descending)])
        mirrored_false_positive = 1 - true_positive[-1]
        mirrored_true_positive = 1 - false_positive[-1]
        return (
            np.append(false_positive, mirrored_false_positive),
            np.append(true_positive, mirrored_true_positive),
        )

    def _large_epsilon(self, delta: float) -> float:
        r"""Return :meth:`get_epsilon` without any e^-loss, of which only ratios enter.

        Between two neighbouring losses, of which x is the larger one,
        :math:`\delta(\varepsilon) = P(L \ge x) - e^{\varepsilon - x} D(x)` with
        :math:`D(x) = E e^{x - L} 1(L \ge x)`.
        """
        ratio = math.exp(-self.step)
        descending = self.upper[::-1]
        tail = self.infinite + np.cumsum(descending)  # P(L >= x)
        discounted = signal.lfilter([1.0], [1.0, -ratio], descending)  # D(x)
        exceeds = tail - ratio * discounted > delta  # delta at the loss below x
        if not exceeds.any():
            return 0.0
        index = int(np.argmax(exceeds))
        x = self.step * (len(descending) - index)
        return max(0.0, x + math.log((tail[index] - delta) / discounted[index]))


def compose_losses(
    parts: Sequence[Releases],
    *,
    points: int = POINTS_PER_DEVIATION,
    infinity_mass: float = 0.0,
    delta: float | None = None,
) -> LossDistribution:
    """Compose any sequence of releases, of which there is at least one.

    Args:
        parts: The releases.
        points: Grid points per standard deviation of the loss of one release.
        infinity_mass: Probability that a bound on S fails at some release; it is added to every
            delta.
        delta: Smallest delta that is read off the result. Where the error of the FFT matters for
            it, the tail is computed again with a relative error; see :func:`_accurate_tail`.

    Raises:
        LossTooLargeError: If the mean loss is above 1e6, or the distribution does not fit into
            memory.
    """
    merged = merge_gaussians(parts)
    # The grid is that of a power of two of releases, so that the caches hit during a run.
    rounded = [_with_power_of_two(part) for part in merged]
    moments = [_loss_moments(part) for part in rounded]
    counts = np.array([part.n_releases for part in merged])
    _check_size(merged, moments)
    n_releases = int(counts.sum())
    variance = float(counts @ np.array([moment.variance for moment in moments]))
    largest = max(moment.largest for moment in moments)
    step = _spacing(math.sqrt(variance / n_releases), n_releases, largest, points)
    total = np.ones(1)
    infinite = 0.0
    singles = []
    for part, rounded_part in zip(merged, rounded, strict=True):
        points_of_part = _refined(points, part.n_releases)
        single, infinite_once = _one_release(rounded_part, step, points_of_part)
        singles.append(single)
        losses, infinite_of_part = _self_compose(single, infinite_once, part.n_releases, step)
        infinite += infinite_of_part - infinite * infinite_of_part  # at this part or an earlier one
        if len(total) > 1:
            losses = signal.fftconvolve(total, losses)
            losses = _symmetric(losses[len(losses) // 2 + 1 :], infinite, step)
        total = losses
    infinite += infinity_mass
    upper = total[len(total) // 2 + 1 :]
    if delta is not None and n_releases > 1 and upper.any():
        if n_releases * _FFT_ERROR > _NEGLIGIBLE * delta:
            upper = _accurate_tail(upper, singles, counts, delta)
    factor = max(1, int(math.sqrt(variance) / step / _MAX_PER_DEVIATION))
    upper = _coarsen(upper, step, factor)
    return LossDistribution(step * factor, upper, infinite)


def _accurate_tail(
    upper: Array, singles: Sequence[Array], counts: NDArray[np.int64], delta: float
) -> Array:
    r"""Replace the tail of a composition by one with a small relative error.

    The FFT of a composition errs by about 4e-17 per release, which matters for delta = 1e-12 and
    6,000 releases. The distributions are tilted first:
    :math:`P_\lambda(x) = e^{\lambda x} P(x) / M(\lambda)`. The tilted composition has its bulk
    where the tail is, and the error is multiplied by :math:`M(\lambda) e^{-\lambda x}` when it is
    tilted back.

    Args:
        upper: Probabilities (n,) of the composed losses 1, 2, ..., n, in units of the grid.
        singles: Probabilities of the losses of one release, for each of the parts.
        counts: Numbers of releases of the parts.
        delta: Where the tail must be accurate.
    """
    longest = max(len(upper), *(len(single) // 2 for single in singles))
    size = fft.next_fast_len(2 * longest + 1, real=True)
    order, log_mgfs = _order_of_tail(singles, counts, delta, size)
    spectrum = np.ones(size // 2 + 1, dtype=complex)
    for single, count, log_mgf in zip(singles, counts, log_mgfs, strict=True):
        half = len(single) // 2
        tilted = single * np.exp(order * np.arange(-half, half + 1) - log_mgf)
        circular = np.zeros(size)
        circular[: half + 1] = tilted[half:]
        circular[size - half :] = tilted[:half]
        spectrum *= fft.rfft(circular) ** int(count)
    composed = fft.irfft(spectrum, size)[1 : len(upper) + 1]
    log_factors = float(counts @ log_mgfs) - order * np.arange(1, len(upper) + 1)
    tail = np.maximum(composed, 0.0) * np.exp(np.minimum(log_factors, 0.0))
    return np.where(log_factors < 0, tail, upper)


def _order_of_tail(
    singles: Sequence[Array], counts: NDArray[np.int64], delta: float, size: int
) -> tuple[float, Array]:
    r"""Return the order that tilts the tail at ``delta`` into the bulk.

    It has the smallest Chernoff bound on the loss at ``delta`` among the orders :math:`\lambda` for
    which the circular transform may be used. A loss of at least ``size`` returns to the tail
    multiplied by :math:`e^{\lambda\, \mathtt{size}}`. By a Chernoff bound of order :math:`\nu`, it
    adds at most :math:`e^{\ln M(\nu) - (\nu - \lambda)\, \mathtt{size}}` to the tail.

    Returns:
        The order, and ln M of every part at it.
    """
    variance = 0.0
    for single, count in zip(singles, counts, strict=True):
        half = len(single) // 2
        index = np.arange(-half, half + 1)
        mean = float(index @ single)
        variance += float(count) * float((index - mean) ** 2 @ single)
    log_inverse = -math.log(delta)
    gaussian_order = math.sqrt(2 * log_inverse / variance)
    orders = np.geomspace(gaussian_order / 1000, 4 * gaussian_order, 60)
    log_mgfs = np.empty((len(orders), len(singles)))
    for column, single in enumerate(singles):
        support = np.flatnonzero(single >= _VANISHING)
        index = support - len(single) // 2
        for row, order in enumerate(orders):
            log_mgfs[row, column] = special.logsumexp(order * index, b=single[support])
    composed = log_mgfs @ counts
    returning = float(np.min(composed - orders * size)) + orders * size
    bounds = (composed + log_inverse) / orders
    bounds[returning > math.log(_NEGLIGIBLE * delta)] = math.inf
    best = int(np.argmin(bounds))
    return float(orders[best]), log_mgfs[best]


def _with_power_of_two(part: Releases) -> Releases:
    """Round the number of releases up to a power of two."""
    return dataclasses.replace(part, n_releases=1 << (part.n_releases - 1).bit_length())


def _check_size(parts: Sequence[Releases], moments: Sequence[_LossMoments]) -> None:
    """Raise a LossTooLargeError if the loss of a composition is too large."""
    mean = 0.0
    beyond = 0.0
    for part, moment in zip(parts, moments, strict=True):
        mean += part.n_releases * moment.mean
        beyond += part.n_releases * moment.beyond
    if beyond > 1 / 2:
        mean = math.inf
    if not mean < _MAX_LOSS:
        sigma = 1 / max(part.scale for part in parts)
        raise LossTooLargeError(
            f"Expected noise with a mean privacy loss below {_MAX_LOSS:g}, got a larger one, "
            f"since sigma is {sigma:.3g} sensitivities; use a larger sigma."
        )


def _refined(points: int, n_releases: int) -> int:
    """Return the points per deviation: more for a small number of releases."""
    return _FINER * points if n_releases <= _FEW else points


def _spacing(deviation: float, n_releases: int, largest: float, points: int) -> float:
    """Return the spacing of the grid.

    ``deviation`` and ``largest`` are the standard deviation and the maximum of the loss of a
    release.
    """
    step = deviation / _refined(points, n_releases)
    step = max(step, largest / _MAX_POINTS)
    return float(f"{step:.6g}")  # rounded, so that the caches hit
