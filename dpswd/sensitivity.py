r"""Law of the squared sensitivity of random projections, and bounds on it.

The squared L2 norm of the projections of a unit move :math:`z`, which is fixed before the directions :math:`U` (d x k,
unit columns) are drawn, is :math:`S = \|z^\top U\|^2`. Its law depends on the kind of directions:

==============  ===============================================  ==========================================
kind            law of S                                         :math:`E e^{tS}`
==============  ===============================================  ==========================================
``iid``         sum of k i.i.d. Beta(1/2, (d-1)/2)               :math:`{}_1F_1(1/2; d/2; t)^k`
``orthogonal``  a + Beta(r/2, (d-r)/2), k = a d + r, 0 <= r < d  :math:`e^{at}\,{}_1F_1(r/2; d/2; t)`
==============  ===============================================  ==========================================

For whole orthonormal bases (r = 0), S = k / d is constant. Proof: docs/theory/sensitivity.md, Proposition 4.
"""

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import fft, special, stats

from dpswd.errors import InputError

Array = NDArray[np.float64]

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)
_FFT_SLACK = (
    1e-11  # bound on the absolute error of the discrete convolution, added to the survival function
)
_FAR_TAIL = 1e-20  # below this Chernoff bound, the remaining mass is placed at the maximum of S
_TOP_SLOPE = 200.0  # of the Chernoff bounds, in units of the dimension
_MAX_GRID = 2**26  # points of the grid of S: 2 GB while it is computed


def _variance(n_projections: int, dim: int) -> float:
    return n_projections * 2 * (dim - 1) / (dim**2 * (dim + 2))


def bernstein_bound(n_projections: int, dim: int, failure_prob: float) -> float:
    """Bound S for k i.i.d. directions with probability at least ``1 - failure_prob``, by Bernstein's inequality.

    Rakotomamonjy2021, Lemma 2. Every release spends the tail; the paper counts it once (docs/errata.md).
    """
    log_inverse = -math.log(failure_prob)
    spread = math.sqrt(2 * _variance(n_projections, dim) * log_inverse)
    return float(min(n_projections / dim + 2 / 3 * log_inverse + spread, n_projections))


def clt_bound(n_projections: int, dim: int, failure_prob: float) -> float:
    """Approximate a quantile of S, at ``1 - failure_prob``, by a normal law (Rakotomamonjy2021, Section 3.3).

    NOT rigorous: the law of S is skewed to the right, so the true quantile is larger.
    """
    if n_projections <= 30:
        raise InputError(
            f"Expected n_projections > 30 for bound='clt', got {n_projections}; use bound='exact'."
        )
    deviation = math.sqrt(_variance(n_projections, dim))
    return float(min(n_projections / dim + stats.norm.isf(failure_prob) * deviation, n_projections))


def log_kummer(r: int, dim: int, t: ArrayLike) -> Array:
    r"""Compute :math:`\ln {}_1F_1(r/2; d/2; t) = \ln E e^{tY}`, :math:`Y \sim \mathrm{Beta}(r/2, (d-r)/2)`.

    With :math:`Y = \sin^2\theta` the integrand in :math:`\theta` has one mode, and Gauss-Legendre quadrature is used on
    both sides of it. For small t the power series keeps the relative accuracy, which is 1e-10 for d <= 4096. For t
    above 1e12 and 100 d, where the peak is narrower than the rounding of its position, t is returned: Y <= 1.
    """
    t = np.asarray(t, dtype=float)
    small = (t <= min(dim / 100, 5.0)) | ((t <= dim / 8) & (r * t <= dim))
    near, term, series = np.where(small, t, 0.0), np.ones_like(t), np.zeros_like(t)
    for n in range(40):
        # ratio of terms: t / (n + 1) (r + 2n) / (d + 2n) <= min(t / (n + 1), (t / d) (r / (n + 1) + 2))
        term = term * (r / 2 + n) / (dim / 2 + n) * near / (n + 1)
        series = series + term
    huge = t > max(1e12, 100.0 * dim)
    rest = np.where(huge, t, _log_kummer_integral(r, dim, np.where(huge, 1.0, t)))
    return np.where(small, np.log1p(series), rest)


def _log_kummer_integral(r: int, dim: int, t: Array) -> Array:
    flat = t.reshape(-1, 1)
    p, q = r - 1, dim - r - 1

    def exponent(theta: Array) -> Array:
        sin_sq = np.sin(theta) ** 2
        value: Array = (
            0.5 * special.xlogy(p, sin_sq) + 0.5 * special.xlog1py(q, -sin_sq) + flat * sin_sq
        )
        return value

    # the mode in s = sin^2 solves -t s^2 + s (t - (p + q)/2) + p/2 = 0; written without cancellation
    slope = flat - (p + q) / 2
    root = np.sqrt(slope**2 + 2 * flat * p)
    with np.errstate(invalid="ignore", divide="ignore"):
        mode_sq = np.where(slope > 0, (slope + root) / (2 * flat), p / (root - slope))
    mode = np.arcsin(np.sqrt(np.nan_to_num(np.clip(mode_sq, 0.0, 1.0), nan=0.0)))
    peak = exponent(mode)
    # Each side is integrated as far as the integrand is above e^-45 of its peak; bisection finds that point.
    total = np.zeros_like(flat)
    for end in (0.0, math.pi / 2):
        near, far = np.zeros_like(mode), np.ones_like(mode)
        for _ in range(40):
            middle = (near + far) / 2
            inside = exponent(mode + middle * (end - mode)) > peak - 45
            near, far = np.where(inside, middle, near), np.where(inside, far, middle)
        width = far * np.abs(end - mode)
        nodes = mode + np.sign(end - mode) * width * (_NODES + 1) / 2
        total += (
            width
            / 2
            * (np.exp(exponent(np.clip(nodes, 0, math.pi / 2)) - peak) @ _WEIGHTS)[:, None]
        )
    log_norm = special.betaln(r / 2, (dim - r) / 2) - math.log(2)
    return np.asarray((np.log(total) + peak - log_norm).reshape(t.shape), dtype=float)


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

    ``labelled``: the survival function also covers a change of class, :math:`\max(P(S > s), \min(1, 2 P(S > 2s)))`; the
    moment generating function is unchanged (docs/theory/sensitivity.md, Proposition 5).

    ``n_replaced``: number c of records that change together. The survival function is then at most ``c P(S > s)``, and
    the moment generating function is unchanged (docs/theory/units.md, Proposition 30).
    """

    dim: int
    n_projections: int
    kind: str = "iid"  # or "orthogonal": stacked random orthonormal bases
    labelled: bool = False
    n_replaced: int = 1

    @property
    def is_constant(self) -> bool:
        """Whether S is constant: whole orthonormal bases."""
        return self.kind == "orthogonal" and self.n_projections % self.dim == 0

    @property
    def mean(self) -> float:
        """Mean of S: k / d for both kinds."""
        return self.n_projections / self.dim

    @property
    def maximum(self) -> float:
        """Maximum of S."""
        return float(
            self.n_projections if self.kind == "iid" else -(-self.n_projections // self.dim)
        )

    def log_mgf(self, t: ArrayLike) -> Array:
        """Return ``ln E exp(t S)`` for t >= 0, with the relative accuracy of :func:`log_kummer`."""
        t = np.asarray(t, dtype=float)
        if self.kind == "iid":
            return self.n_projections * log_kummer(1, self.dim, t)
        whole, rest = divmod(self.n_projections, self.dim)
        return whole * t + (log_kummer(rest, self.dim, t) if rest else 0.0)

    def survival(self, s: ArrayLike) -> Array:
        """Bound P(S > s) from above; exact up to the grid, which rounds up."""
        s = np.asarray(s, dtype=float)
        tail = self._single_survival(s)
        if self.labelled and not self.is_constant:
            tail = np.maximum(tail, np.minimum(1.0, 2 * self._single_survival(2 * s)))
        if self.is_constant:
            return tail
        return np.minimum(1.0, self.n_replaced * tail)

    def atoms(self) -> tuple[Array, Array]:
        """Return increasing atoms and weights of a discrete law that dominates S."""
        if self.is_constant:
            return np.array([self.mean]), np.array([1.0])
        return _discretise(self)

    def _single_survival(self, s: Array) -> Array:
        whole, rest = divmod(self.n_projections, self.dim)
        if self.kind == "orthogonal" or self.n_projections == 1:
            at, r = (s - whole, rest) if self.kind == "orthogonal" else (s, 1)
            beyond = (
                special.betaincc(r / 2, (self.dim - r) / 2, np.clip(at, 0.0, 1.0)) if r else 0.0
            )
            return np.where(at < 0, 1.0, beyond)
        step, table = _iid_survival(self.dim, self.n_projections)
        index = np.floor(np.clip(s / step, 0, len(table) - 1)).astype(
            int
        )  # P(S > s) <= P(S > step * index)
        return np.asarray(
            np.minimum(table[index], np.exp(_chernoff(self.dim, self.n_projections, s))),
            dtype=float,
        )


Law = ConstantLaw | ProjectionLaw


def _chernoff(dim: int, n_projections: int, s: Array) -> Array:
    """Bound ln P(S > s) for i.i.d. directions by the smallest of 400 Chernoff bounds."""
    slopes, logs = _chernoff_table(dim, n_projections)
    return np.asarray(
        np.minimum(0.0, (logs - np.multiply.outer(s, slopes)).min(axis=-1)), dtype=float
    )


@functools.lru_cache(maxsize=64)
def _chernoff_table(dim: int, n_projections: int) -> tuple[Array, Array]:
    slopes = np.geomspace(1e-2 * dim / math.sqrt(n_projections), dim * _TOP_SLOPE, 400)
    return slopes, ProjectionLaw(dim, n_projections).log_mgf(slopes)


@functools.lru_cache(maxsize=8)
def _iid_survival(dim: int, n_projections: int) -> tuple[float, Array]:
    """Tabulate upper bounds of P(S > i step) for i.i.d. directions: Beta laws rounded up to a grid, convolved."""
    law = ProjectionLaw(dim, n_projections)
    near = law.mean * np.geomspace(1, max(law.maximum / law.mean, 1 + 1e-9), 4000)
    reach = np.sort(
        np.minimum(np.append(near, np.linspace(law.mean, law.maximum, 4000)), law.maximum)
    )
    far = _chernoff(dim, n_projections, reach) < math.log(_FAR_TAIL)
    top = float(reach[np.argmax(far)]) if far.any() else law.maximum
    step = 1e-3 / dim
    size = math.ceil(top / step) + 2
    if size > _MAX_GRID:
        got = f"n_projections={n_projections} for dim={dim}, whose law needs too much memory"
        remedy = "use kind='orthogonal' with n_projections a multiple of dim, or bound='bernstein'"
        raise InputError(f"Expected fewer i.i.d. directions, got {got}; {remedy}.")
    edges = np.arange(min(size, math.ceil(1 / step) + 1, 200 * 1000)) * step
    cdf = special.betainc(
        0.5, (dim - 1) / 2, np.minimum(edges, 1.0)
    )  # beyond 200 means: below 1e-22
    missing = n_projections * float(1 - cdf[-1])
    length = fft.next_fast_len(size, real=True)
    total = fft.irfft(fft.rfft(np.diff(cdf, prepend=0.0), length) ** n_projections, length)[:size]
    survival = np.clip(1 - np.cumsum(np.maximum(total, 0.0)), 0.0, 1.0)
    return step, np.minimum(1.0, survival + missing + _FFT_SLACK)


@functools.lru_cache(maxsize=64)
def _discretise(law: ProjectionLaw) -> tuple[Array, Array]:
    if law.kind == "iid":
        lowest, variance = 0.0, _variance(law.n_projections, law.dim)
    else:
        lowest, rest = map(float, divmod(law.n_projections, law.dim))
        variance = stats.beta.var(rest / 2, (law.dim - rest) / 2)
    deviation = math.sqrt(variance)
    start = max(law.mean - 6 * deviation, lowest + 1e-3 * (law.mean - lowest))
    core = np.arange(start, law.mean + 8 * deviation, deviation / 24)
    tail = (
        np.geomspace(1.0, max((law.maximum - law.mean) / (8 * deviation), 1.0), 100) * 8 * deviation
        + law.mean
    )
    points = np.unique(np.concatenate([core, tail]))
    points = points[points < law.maximum]
    survival = law.survival(points)
    # the mass of (s_{i-1}, s_i] moves to s_i, that below the first point to it, the rest to the maximum
    atoms = np.append(points, law.maximum)
    weights = np.append(-np.diff(survival, prepend=1.0), survival[-1])
    kept = weights > 0
    return atoms[kept], weights[kept] / weights[kept].sum()
