r"""Law of the squared sensitivity of random projections, and bounds on it.

The squared L2 norm of the projections of a unit move :math:`z`, which is fixed before the
directions :math:`U` (d x k, unit columns) are drawn, is :math:`S = \|z^\top U\|^2`. Its law depends
on the kind of directions:

==============  ==================================  ======================================
kind            law of S                            :math:`E e^{tS}`
==============  ==================================  ======================================
``iid``         sum of k i.i.d. Beta(1/2, (d-1)/2)  :math:`{}_1F_1(1/2; d/2; t)^k`
``orthogonal``  a + Beta(r/2, (d-r)/2)              :math:`e^{at}\,{}_1F_1(r/2; d/2; t)`
``structured``  k / d                               :math:`e^{tk/d}`
==============  ==================================  ======================================

For orthogonal directions k = a d + r with 0 <= r < d: a whole bases and r columns of another one.
For whole orthonormal bases (r = 0), S = k / d is constant, and so for whole frames of structured
slices. Proofs: docs/theory/sensitivity.md, Propositions 4 and 33. Products in float32 have a
larger S (:class:`RoundedLaw`, Proposition 38).
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft, special, stats

from dpswd.errors import InputError

Array = NDArray[np.float64]

# Nodes and weights of Gauss-Legendre quadrature on [-1, 1].
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)
# An integrand is left out where its logarithm is so far below that of its peak.
_NEGLIGIBLE = 45
# Terms of the power series for small arguments.
_N_TERMS = 40
# Steps of a bisection: the last one is narrower than 1e-12.
_N_BISECTIONS = 40
# Bound on the absolute error of the discrete convolution; it is added to the survival function.
_FFT_SLACK = 1e-11
# Where the Chernoff bound is below this probability, the remaining mass is placed at the maximum.
_FAR_TAIL = 1e-20
# Largest slope of the Chernoff bounds, in units of the dimension.
_TOP_SLOPE = 200.0
# Number of the Chernoff bounds, of which the smallest one is used.
_N_SLOPES = 400
# Spacing of the grid of S for i.i.d. directions, in units of the mean of one direction, 1 / d.
_STEP = 1e-3
# Points of that grid: 2 GB while it is computed.
_MAX_GRID = 2**26
# One direction is tabulated up to so many times its mean; the probability of more is below 1e-22.
_REACH = 200
# Products that are added up in float32 before their sum is added to the others.
SUMMED_AT_ONCE = 1024
# Points per standard deviation of S where a law is made discrete.
_ATOMS_PER_DEVIATION = 24


def _variance(n_projections: int, dim: int) -> float:
    """Compute the variance of S for k i.i.d. directions, 2 k (d - 1) / (d^2 (d + 2))."""
    return n_projections * 2 * (dim - 1) / (dim**2 * (dim + 2))


def bernstein_bound(n_projections: int, dim: int, failure_prob: float) -> float:
    r"""Bound S for k i.i.d. directions, except with probability ``failure_prob``.

    .. math:: w = \frac kd + \frac23 L + \sqrt{2 k v L}, \quad
              L = \ln(1 / \mathtt{failure\_prob}), \quad v = \frac{2 (d - 1)}{d^2 (d + 2)}

    It is Bernstein's inequality (Rakotomamonjy2021, Lemma 2), and never above k. Every release
    spends the tail; the paper counts it once (docs/errata.md).
    """
    log_inverse = -math.log(failure_prob)
    spread = math.sqrt(2 * _variance(n_projections, dim) * log_inverse)
    bound = n_projections / dim + 2 / 3 * log_inverse + spread
    return float(min(bound, n_projections))


def clt_bound(n_projections: int, dim: int, failure_prob: float) -> float:
    """Approximate a quantile of S, at ``1 - failure_prob``, by a normal law.

    Rakotomamonjy2021, the text after Lemma 2. NOT rigorous: the law of S is skewed to the right, so
    the true quantile is larger.

    Raises:
        InputError: If there are at most 30 directions.
    """
    if n_projections <= 30:
        raise InputError(
            f"Expected n_projections > 30 for bound='clt', got {n_projections}; use bound='exact'."
        )
    deviation = math.sqrt(_variance(n_projections, dim))
    quantile = n_projections / dim + stats.norm.isf(failure_prob) * deviation
    return float(min(quantile, n_projections))


def log_kummer(r: int, dim: int, t: ArrayLike) -> Array:
    r"""Compute :math:`\ln {}_1F_1(r/2; d/2; t)` for t >= 0.

    It is :math:`\ln E e^{tY}` for :math:`Y \sim \mathrm{Beta}(r/2, (d-r)/2)`. With :math:`Y =
    \sin^2\theta` the integrand in :math:`\theta` has one mode, and Gauss-Legendre quadrature is
    used on both sides of it. For small t the power series keeps the relative accuracy, which is
    1e-10 for d <= 4096. For t above 1e12 and 100 d, where the peak is narrower than the rounding of
    its position, t is returned: Y <= 1.
    """
    t = np.asarray(t, dtype=float)
    is_small = (t <= min(dim / 100, 5.0)) | ((t <= dim / 8) & (r * t <= dim))
    is_huge = t > max(1e12, 100.0 * dim)
    series = _kummer_series(r, dim, np.where(is_small, t, 0.0))
    integral = _log_kummer_integral(r, dim, np.where(is_huge, 1.0, t))
    large = np.where(is_huge, t, integral)
    return np.where(is_small, np.log1p(series), large)


def _kummer_series(r: int, dim: int, t: Array) -> Array:
    r"""Compute :math:`{}_1F_1(r/2; d/2; t) - 1` by its power series."""
    term = np.ones_like(t)
    total = np.zeros_like(t)
    for n in range(_N_TERMS):
        # ratio of terms: t / (n + 1) (r + 2n) / (d + 2n), at most t / (n + 1)
        term = term * (r / 2 + n) / (dim / 2 + n) * t / (n + 1)
        total = total + term
    return total


def _log_kummer_integral(r: int, dim: int, t: Array) -> Array:
    """Compute the logarithm by quadrature in theta, on both sides of the mode."""
    flat = t.reshape(-1, 1)
    mode = _mode(r, dim, flat)
    peak = _log_integrand(mode, r, dim, flat)
    total = np.zeros_like(flat)
    for end in (0.0, math.pi / 2):
        width = _relevant_width(mode, end, peak, r, dim, flat)
        nodes = mode + np.sign(end - mode) * width * (_NODES + 1) / 2
        inside = np.clip(nodes, 0, math.pi / 2)
        values = np.exp(_log_integrand(inside, r, dim, flat) - peak)
        total += width / 2 * (values @ _WEIGHTS)[:, None]
    log_norm = special.betaln(r / 2, (dim - r) / 2) - math.log(2)
    logarithm = np.log(total) + peak - log_norm
    return np.asarray(logarithm.reshape(t.shape), dtype=float)


def _log_integrand(theta: Array, r: int, dim: int, t: Array) -> Array:
    r"""Compute the logarithm of the integrand, with p = r - 1 and q = d - r - 1.

    .. math:: \ln(\sin^p\theta \cos^q\theta\, e^{t \sin^2\theta})
    """
    sin_sq = np.sin(theta) ** 2
    log_powers = 0.5 * special.xlogy(r - 1, sin_sq) + 0.5 * special.xlog1py(dim - r - 1, -sin_sq)
    value: Array = log_powers + t * sin_sq
    return value


def _mode(r: int, dim: int, t: Array) -> Array:
    """Compute the theta at which the integrand is largest.

    s = sin^2 solves -t s^2 + s (t - (p + q)/2) + p/2 = 0; the roots are written without
    cancellation.
    """
    p = r - 1
    q = dim - r - 1
    slope = t - (p + q) / 2
    root = np.sqrt(slope**2 + 2 * t * p)
    with np.errstate(invalid="ignore", divide="ignore"):
        mode_sq = np.where(slope > 0, (slope + root) / (2 * t), p / (root - slope))
    inside = np.nan_to_num(np.clip(mode_sq, 0.0, 1.0), nan=0.0)
    return np.asarray(np.arcsin(np.sqrt(inside)))


def _relevant_width(mode: Array, end: float, peak: Array, r: int, dim: int, t: Array) -> Array:
    """Return the relevant width between the mode and ``end``, by bisection."""
    near = np.zeros_like(mode)
    far = np.ones_like(mode)
    for _ in range(_N_BISECTIONS):
        middle = (near + far) / 2
        theta = mode + middle * (end - mode)
        is_relevant = _log_integrand(theta, r, dim, t) > peak - _NEGLIGIBLE
        near = np.where(is_relevant, middle, near)
        far = np.where(is_relevant, far, middle)
    return np.asarray(far * np.abs(end - mode))


@dataclass(frozen=True)
class ConstantLaw:
    """Constant S: one, or a bound."""

    mean: float
    is_constant = True

    @property
    def maximum(self) -> float:
        """The constant."""
        return self.mean

    def log_mgf(self, t: ArrayLike) -> Array:
        """Return ``ln E exp(t S)``."""
        return np.asarray(t, dtype=float) * self.mean

    def atoms(self) -> tuple[Array, Array]:
        """Return the one atom and its weight."""
        return np.array([self.mean]), np.array([1.0])


@dataclass(frozen=True)
class ProjectionLaw:
    r"""Law of :math:`S = \|z^\top U\|^2` for random directions.

    Attributes:
        dim: Dimension d of the rows.
        n_projections: Number k of directions.
        kind: ``"iid"``, ``"orthogonal"`` for stacked random orthonormal bases, or ``"structured"``
            for whole frames of structured slices.
        labelled: Whether the survival function also covers a change of class, by
            :math:`\max(P(S > s), \min(1, 2 P(S > 2s)))`. The moment generating function is
            unchanged (docs/theory/sensitivity.md, Proposition 5).
        n_replaced: Number c of records that change together. The survival function is then at most
            ``c P(S > s)``, and the moment generating function is unchanged (docs/theory/units.md,
            Proposition 30).
    """

    dim: int
    n_projections: int
    kind: str = "iid"
    labelled: bool = False
    n_replaced: int = 1

    @property
    def is_constant(self) -> bool:
        """Whether S is constant: whole orthonormal bases, or frames of structured slices."""
        if self.kind == "structured":
            return True
        return self.kind == "orthogonal" and self.n_projections % self.dim == 0

    @property
    def mean(self) -> float:
        """Mean of S: k / d for every kind."""
        return self.n_projections / self.dim

    @property
    def maximum(self) -> float:
        """Maximum of S: k, the number of bases, or k / d for structured slices."""
        if self.kind == "structured":
            return self.mean
        if self.kind == "iid":
            return float(self.n_projections)
        return float(math.ceil(self.n_projections / self.dim))

    def log_mgf(self, t: ArrayLike) -> Array:
        """Return ``ln E exp(t S)`` for t >= 0, as accurate as :func:`log_kummer`."""
        t = np.asarray(t, dtype=float)
        if self.kind == "iid":
            return self.n_projections * log_kummer(1, self.dim, t)
        if self.kind == "structured":
            return self.mean * t
        whole, rest = divmod(self.n_projections, self.dim)
        if rest == 0:
            return whole * t
        return whole * t + log_kummer(rest, self.dim, t)

    def survival(self, s: ArrayLike) -> Array:
        """Bound P(S > s) from above; exact up to the grid, which rounds up."""
        s = np.asarray(s, dtype=float)
        tail = self._single_survival(s)
        if self.is_constant:
            return tail
        if self.labelled:
            tail = np.maximum(tail, np.minimum(1.0, 2 * self._single_survival(2 * s)))
        return np.minimum(1.0, self.n_replaced * tail)

    def atoms(self) -> tuple[Array, Array]:
        """Return increasing atoms and weights of a discrete law that dominates S."""
        if self.is_constant:
            return np.array([self.mean]), np.array([1.0])
        return _discretise(self)

    def _single_survival(self, s: Array) -> Array:
        """Bound P(S > s) for one record that keeps its class."""
        if self.kind == "structured":
            return np.where(s < self.mean, 1.0, 0.0)
        if self.kind == "orthogonal":
            whole, rest = divmod(self.n_projections, self.dim)
            return _beta_survival(s - whole, rest, self.dim)
        if self.n_projections == 1:
            return _beta_survival(s, 1, self.dim)
        step, table = _iid_survival(self.dim, self.n_projections)
        index = np.floor(np.clip(s / step, 0, len(table) - 1)).astype(int)
        # P(S > s) <= P(S > step * index)
        chernoff = np.exp(_chernoff(self.dim, self.n_projections, s))
        return np.asarray(np.minimum(table[index], chernoff), dtype=float)


def product_error(dim: int) -> float:
    r"""Bound the error of a product in float32 of a unit vector and a unit direction.

    It is :math:`\gamma_n = n u / (1 - n u)` with u = 2^-24 and n = c + m + 3, for m parts of c
    products (docs/theory/sensitivity.md, Proposition 38).

    Args:
        dim: Dimension d of the vectors.
    """
    n_parts = math.ceil(dim / SUMMED_AT_ONCE)
    relative = (min(dim, SUMMED_AT_ONCE) + n_parts + 3) * 2.0**-24
    return relative / (1 - relative)


@dataclass(frozen=True)
class RoundedLaw:
    r"""Bound on the law of S for directions and products in float32.

    .. math:: \hat S = (\sqrt S + \eta)^2

    with :math:`\eta` a bound on the error of all k products of a unit vector
    (docs/theory/sensitivity.md, Proposition 38).

    Attributes:
        exact: Law of S in real numbers.
        error: The bound :math:`\eta`.
    """

    exact: ConstantLaw | ProjectionLaw
    error: float

    @property
    def is_constant(self) -> bool:
        """Whether S is constant in real numbers."""
        return self.exact.is_constant

    @property
    def mean(self) -> float:
        """Upper bound on the mean, by Jensen's inequality for the root."""
        return float(self._rounded(np.asarray(self.exact.mean)))

    @property
    def maximum(self) -> float:
        """Upper bound on the maximum."""
        return float(self._rounded(np.asarray(self.exact.maximum)))

    def log_mgf(self, t: ArrayLike) -> Array:
        r"""Bound ``ln E exp(t S)`` for t >= 0.

        For every c > 0, :math:`(\sqrt S + \eta)^2 \le (1 + c)\, S + (1 + 1 / c)\, \eta^2`.
        """
        t = np.asarray(t, dtype=float)
        if self.is_constant:
            return t * self.mean
        c = self.error / math.sqrt(self.exact.mean)
        bound = self.exact.log_mgf((1 + c) * t) + (1 + 1 / c) * self.error**2 * t
        return np.minimum(bound, t * self.maximum)

    def atoms(self) -> tuple[Array, Array]:
        """Return increasing atoms and weights of a discrete law that dominates S."""
        atoms, weights = self.exact.atoms()
        return self._rounded(atoms), weights

    def _rounded(self, s: Array) -> Array:
        """Return the bound on S in float32 where it is ``s`` in real numbers."""
        return np.asarray((np.sqrt(s) + self.error) ** 2)


Law = ConstantLaw | ProjectionLaw | RoundedLaw


def _beta_survival(s: Array, r: int, dim: int) -> Array:
    """Compute P(Y > s) for Y ~ Beta(r/2, (dim - r)/2), which is 0 for r = 0."""
    if r == 0:
        beyond = np.zeros_like(s)
    else:
        beyond = special.betaincc(r / 2, (dim - r) / 2, np.clip(s, 0.0, 1.0))
    return np.where(s < 0, 1.0, beyond)


def _chernoff(dim: int, n_projections: int, s: Array) -> Array:
    """Bound ln P(S > s) for i.i.d. directions by the smallest of the Chernoff bounds."""
    slopes, log_mgfs = _chernoff_table(dim, n_projections)
    bounds = log_mgfs - np.multiply.outer(s, slopes)
    return np.asarray(np.minimum(0.0, bounds.min(axis=-1)), dtype=float)


@functools.lru_cache(maxsize=64)
def _chernoff_table(dim: int, n_projections: int) -> tuple[Array, Array]:
    """Return slopes, and ln E exp(slope S) for i.i.d. directions."""
    lowest = 1e-2 * dim / math.sqrt(n_projections)
    slopes = np.geomspace(lowest, dim * _TOP_SLOPE, _N_SLOPES)
    return slopes, ProjectionLaw(dim, n_projections).log_mgf(slopes)


@functools.lru_cache(maxsize=8)
def _iid_survival(dim: int, n_projections: int) -> tuple[float, Array]:
    """Tabulate upper bounds of P(S > i step), i = 0, 1, ..., for i.i.d. directions.

    The Beta law of one direction is rounded up to the grid, and its distribution is convolved.

    Returns:
        The step, and the bounds.

    Raises:
        InputError: If the table is too large.
    """
    step = _STEP / dim
    size = math.ceil(_relevant_top(dim, n_projections) / step) + 2
    if size > _MAX_GRID:
        raise InputError(
            f"Expected fewer i.i.d. directions, got n_projections={n_projections} for dim={dim}, "
            "whose law needs too much memory; use kind='orthogonal' with n_projections a multiple "
            "of dim, or bound='bernstein'."
        )
    n_edges = min(size, math.ceil(1 / step) + 1, round(_REACH / _STEP))
    edges = np.arange(n_edges) * step
    cdf = special.betainc(0.5, (dim - 1) / 2, np.minimum(edges, 1.0))
    missing = n_projections * float(1 - cdf[-1])
    length = fft.next_fast_len(size, real=True)
    spectrum = fft.rfft(np.diff(cdf, prepend=0.0), length)
    probabilities = fft.irfft(spectrum**n_projections, length)[:size]
    survival = np.clip(1 - np.cumsum(np.maximum(probabilities, 0.0)), 0.0, 1.0)
    return step, np.minimum(1.0, survival + missing + _FFT_SLACK)


def _relevant_top(dim: int, n_projections: int) -> float:
    """Return the S beyond which the Chernoff bound is negligible."""
    law = ProjectionLaw(dim, n_projections)
    geometric = law.mean * np.geomspace(1, max(law.maximum / law.mean, 1 + 1e-9), 4000)
    linear = np.linspace(law.mean, law.maximum, 4000)
    candidates = np.sort(np.minimum(np.append(geometric, linear), law.maximum))
    is_far = _chernoff(dim, n_projections, candidates) < math.log(_FAR_TAIL)
    if not is_far.any():
        return law.maximum
    return float(candidates[np.argmax(is_far)])


@functools.lru_cache(maxsize=64)
def _discretise(law: ProjectionLaw) -> tuple[Array, Array]:
    """Return atoms and weights of a discrete law that dominates a random S.

    The mass of an interval between two points moves to its upper end, that below the first point to
    that point, and the rest to the maximum.
    """
    if law.kind == "iid":
        lowest = 0.0
        variance = _variance(law.n_projections, law.dim)
    else:
        whole, rest = divmod(law.n_projections, law.dim)
        lowest = float(whole)
        variance = stats.beta.var(rest / 2, (law.dim - rest) / 2)
    points = _points(law, lowest, math.sqrt(variance))
    survival = law.survival(points)
    atoms = np.append(points, law.maximum)
    weights = np.append(-np.diff(survival, prepend=1.0), survival[-1])
    is_positive = weights > 0
    atoms = atoms[is_positive]
    weights = weights[is_positive]
    return atoms, weights / weights.sum()


def _points(law: ProjectionLaw, lowest: float, deviation: float) -> Array:
    """Return points below the maximum, equidistant near the mean, geometric beyond."""
    start = max(law.mean - 6 * deviation, lowest + 1e-3 * (law.mean - lowest))
    tail_start = 8 * deviation
    core = np.arange(start, law.mean + tail_start, deviation / _ATOMS_PER_DEVIATION)
    longest = max((law.maximum - law.mean) / tail_start, 1.0)
    tail = np.geomspace(1.0, longest, 100) * tail_start + law.mean
    points = np.unique(np.concatenate([core, tail]))
    return np.asarray(points[points < law.maximum])
