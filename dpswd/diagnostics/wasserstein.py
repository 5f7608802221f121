r"""Wasserstein differential privacy: a diagnostic, not a guarantee. NumPy, SciPy and POT only.

Definition (Yang2024, Definition 3). A mechanism M is :math:`(\mu, \varepsilon)`-WDP if for all neighbours D,
D'

.. math:: W_\mu(M(D), M(D')) = \inf_\gamma \Big( \int \rho(x, y)^\mu \, d\gamma(x, y) \Big)^{1/\mu} \le
\varepsilon .

The unit of :math:`\varepsilon` is that of the OUTPUT (pixels, metres), not that of a log-likelihood ratio.
What the paper states about it does not all hold; docs/notions.md proves the following by programs that the
tests run:

==================  ==============================  =======================================================
statement           here                            verdict
==================  ==============================  =======================================================
Propositions 1-4    ``empirical_distance``          true: a metric, monotone in the order
Proposition 5       ``parallel_composition``        true for blocks that are fixed beforehand
Proposition 6       ``sequential_composition``      true for independent releases, false for adaptive ones
Propositions 7, 8   ``laplace_wdp, gaussian_wdp``   not the distance of Definition 3: that one is the
                                                    sensitivity, at every noise level
Propositions 9, 10  ``wdp_from_dp, wdp_from_rdp``   false in general (randomised response)
Proposition 11      ``dp_from_wdp, rdp_from_wdp``   false: a constant is missing
Proposition 12      post-processing                 false (true for 1-Lipschitz maps only)
Proposition 13      ``group_privacy``               true (triangle inequality)
==================  ==============================  =======================================================

So nothing in this module may satisfy a privacy budget; its values are called *diagnostics*.

Conventions. Propositions 7 and 8 are as Table 1 of the paper has them, whose sensitivity "can be an
arbitrary positive constant": :math:`\tfrac12 \Delta\, \mathrm{KL}'^{1/(2\mu)}` with :math:`\mathrm{KL}' = 2
(1/\lambda + e^{-1/\lambda} - 1)` for Laplace noise, and :math:`\tfrac12 (\Delta / \sigma)^{1/\mu}` for Gaussian
noise. Propositions 7, 9 and 10 have one form, :math:`\tfrac12 \Delta (2\,\mathrm{KL})^{1/(2\mu)}`; the Gaussian
row lacks its factor :math:`\Delta`, and the Laplace row has the divergence of sensitivity 1 at every
:math:`\Delta`, so that the rows agree with Proposition 10 at sensitivity 1 only, the case of the figures. What
holds, by Pinsker, is :math:`W_\mu \le \mathrm{diam}\,(\mathrm{KL}/2)^{1/(2\mu)}` on a space of bounded
diameter. Proposition 11's form is what the paper's discussion implies: (mu, eps)-WDP gives :math:`\tfrac12 (L
\varepsilon^{\mu/(\mu+1)})^2`-zCDP, by way of :math:`L \varepsilon^{\mu/(\mu+1)}`-DP.

Of the paper, Table 1, the captions and the discussion were at hand, and the authors' program, which the
accountant follows; not the statements and proofs of the propositions and theorems themselves. A
constant printed there may differ from ours.

References:
    | Yang2024: Yang, Qi, Zhou. Wasserstein Differential Privacy. AAAI 2024, arXiv:2401.12436.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import ot
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dpswd._validate import array, at_least, positive, probability, real
from dpswd.errors import InputError

__all__ = [
    "KantorovichDual",
    "advanced_composition_delta",
    "attack_probability",
    "dp_from_wdp",
    "empirical_distance",
    "gaussian_distance",
    "gaussian_wdp",
    "group_privacy",
    "kantorovich_dual",
    "laplace_wdp",
    "log_absolute_moment",
    "parallel_composition",
    "rdp_from_wdp",
    "sequential_composition",
    "wdp_from_dp",
    "wdp_from_rdp",
]

Array = NDArray[np.float64]

_MAX_ORDER = 1000  # beyond it the binomial series can leave the range of a float
_LARGEST_LOG = 700.0  # e^700 is within the range of a float
_FAR_RATIO = 40.0  # |mean| / std beyond which the Gaussian's mass on the other side of 0 is below e^-800


def check_order(order: float) -> None:
    """Raises unless ``order`` is a finite number of at least 1."""
    positive(order=order)
    if order < 1:
        raise InputError(f"Expected order >= 1 (no metric below it), got order={order!r}; use order=1 or more.")


def _not_negative(**named: float) -> None:
    for name, value in named.items():
        if not 0 <= real(name, value) < math.inf:
            raise InputError(f"Expected {name} to be finite and at least 0, got {name}={value!r}.")


def log_absolute_moment(order: float, mean: ArrayLike, std: float) -> Array:
    r"""Computes :math:`\ln E|Z|^p` for :math:`Z \sim N(m, s^2)` (Yang2024, Lemma 1), in logs throughout.

    .. math:: E|Z|^p = (2 s^2)^{p/2} \frac{\Gamma(\frac{p+1}2)}{\sqrt\pi}\,
              {}_1F_1\!\Big(-\tfrac p2;\, \tfrac12;\, -\tfrac{m^2}{2 s^2}\Big)

    With :math:`x = m^2 / 2 s^2`, Kummer's transformation turns the product into a Poisson mixture, all of
    whose terms are positive: :math:`\sum_k e^{-x} \frac{x^k}{k!}\, \Gamma(\tfrac{p+1}2 + k) / \Gamma(\tfrac12
    + k)`. Where :math:`|m| > 40 s` the binomial series :math:`|m|^p \sum_j \binom{p}{2j} (2j-1)!!\,
    (s/m)^{2j}` is exact to e^-800.

    Args:
        order: The order :math:`p \ge 0`.
        mean: The means m, any shape.
        std: The standard deviation :math:`s \ge 0`, in the units of the mean.

    Returns:
        The logarithms, in the shape of ``mean``; minus infinity where mean and ``std`` are both 0.

    Raises:
        InputError: If ``order`` or ``std`` is negative or not finite, or ``order`` is above 1000.
    """
    _not_negative(order=order, std=std)
    if order > _MAX_ORDER:
        raise InputError(f"Expected order <= {_MAX_ORDER}, got order={order!r}; use a smaller one.")
    order, std = float(order), float(std)
    location: Array = np.abs(array("mean", mean))
    if not np.isfinite(location).all():
        raise InputError("Expected finite means, got nan or inf; check the gradients they come from.")
    if std == 0:
        with np.errstate(divide="ignore"):
            return np.asarray(order * np.log(location) if order > 0 else np.zeros_like(location))
    with np.errstate(over="ignore"):
        ratio = location / std
    far = ratio > _FAR_RATIO
    near_log = order / 2 * math.log(2) + _log_poisson_mixture(order, np.where(far, 0.0, ratio) ** 2 / 2)
    far_log = _log_binomial_series(order, np.where(far, ratio, 2 * _FAR_RATIO))
    return np.asarray(order * math.log(std) + np.where(far, far_log, near_log))


def _log_poisson_mixture(order: float, x: Array) -> Array:
    reach = float(x.max(initial=0.0)) + order
    k = np.arange(math.ceil(reach + 12 * math.sqrt(reach) + 60))
    gammas = special.gammaln((order + 1) / 2 + k) - special.gammaln(0.5 + k) - special.gammaln(k + 1)
    terms = special.xlogy(k, x[..., None]) - x[..., None] + gammas
    return np.asarray(special.logsumexp(terms, axis=-1))


def _log_binomial_series(order: float, ratio: Array) -> Array:
    term, total = np.ones_like(ratio), np.ones_like(ratio)
    for j in range(math.ceil(order / 2) + 12):
        term = term * ((order - 2 * j) * (order - 2 * j - 1) / (2 * j + 2)) / ratio / ratio
        total = total + term
    return np.asarray(order * np.log(ratio) + np.log(total))


def gaussian_distance(mean_gap: float, std: float, other_std: float, order: float) -> float:
    r"""The true :math:`W_\mu` of two Gaussian laws on the line, N(a, s^2) and N(b, t^2).

    The monotone map between them is affine, so that the distance is the root of an absolute moment,
    :math:`(E|N(a - b, (s - t)^2)|^\mu)^{1/\mu}`. For s = t that is ``|a - b|``, whatever s is: noise does not
    make this distance smaller.
    """
    check_order(order)
    _not_negative(std=std, other_std=other_std)
    gap = abs(float(std) - float(other_std))
    if (log_distance := float(log_absolute_moment(order, real("mean_gap", mean_gap), gap)) / order) > _LARGEST_LOG:
        raise InputError("Expected a distance that a float can hold, got an overflow; use a larger unit.")
    return math.exp(log_distance)


def empirical_distance(x: ArrayLike, y: ArrayLike, order: float) -> float:
    r"""The exact :math:`W_\mu` of two empirical laws on the line, with uniform weights.

    Args:
        x: Samples (n,).
        y: Samples (m,), of any other size.
        order: The order :math:`\mu \ge 1`.

    Returns:
        The distance, in the unit of the samples.
    """
    check_order(order)
    p, q = (np.sort(array(name, z).ravel()) for name, z in (("x", x), ("y", y)))
    if not p.size or not q.size or not (np.isfinite(p).all() and np.isfinite(q).all()):
        raise InputError(f"Expected finite samples, at least one each, got {p.size} and {q.size}.")
    levels = np.union1d(np.arange(1, p.size + 1) / p.size, np.arange(1, q.size + 1) / q.size)
    weights = np.diff(levels, prepend=0.0)
    middle = levels - weights / 2
    gap: Array = np.abs(p[(middle * p.size).astype(int)] - q[(middle * q.size).astype(int)])
    peak = float(gap.max())
    return peak * float(weights @ (gap / peak) ** order) ** (1 / order) if peak else 0.0


@dataclass(frozen=True)
class KantorovichDual:
    r"""Potentials with :math:`\varphi(x) + \psi(y) \le \|x - y\|^\mu` and the value they reach.

    Attributes:
        value: The distance, :math:`(\int \varphi\, dP + \int \psi\, dQ)^{1/\mu}`.
        phi: Potential on the first sample (n,), in output units to the power of the order.
        psi: Potential on the second sample (m,).
    """

    value: float
    phi: Array
    psi: Array


def kantorovich_dual(x: ArrayLike, y: ArrayLike, order: float) -> KantorovichDual:
    r"""The Kantorovich form of WDP (Yang2024): the supremum over pairs of potentials.

    For :math:`\mu = 1` it is the largest difference of means that a 1-Lipschitz test function can see.

    Args:
        x: Samples (n, d), Euclidean ground distance.
        y: Samples (m, d).
        order: The order :math:`\mu \ge 1`.
    """
    check_order(order)
    x, y = np.atleast_2d(array("x", x)), np.atleast_2d(array("y", y))
    if not x.size or not y.size or x.shape[1] != y.shape[1]:
        raise InputError(f"Expected two samples (n, d) and (m, d), got shapes {x.shape} and {y.shape}.")
    cost = ot.dist(x, y, metric="euclidean") ** order
    a, b = np.full(len(x), 1 / len(x)), np.full(len(y), 1 / len(y))
    _, log = ot.emd(a, b, cost, log=True)
    phi = np.asarray(log["u"])
    psi = (cost - phi[:, None]).min(axis=0)  # the best partner of phi: feasible whatever the solver's rounding
    return KantorovichDual(max(float(a @ phi + b @ psi), 0.0) ** (1 / order), phi, psi)


def gaussian_wdp(order: float, sigma: float, sensitivity: float = 1.0) -> float:
    r"""Proposition 8: :math:`\tfrac12 (\Delta / \sigma)^{1/\mu}`. A diagnostic.

    NOT the distance of Definition 3, which is :math:`\Delta` for every sigma (:func:`gaussian_distance`).

    Args:
        order: The order :math:`\mu \ge 1`.
        sigma: Standard deviation of the noise, in the unit of the query.
        sensitivity: Sensitivity :math:`\Delta`, in the unit of the query.
    """
    check_order(order)
    positive(sigma=sigma, sensitivity=sensitivity)
    return float(0.5 * (float(sensitivity) / float(sigma)) ** (1 / float(order)))


def laplace_wdp(order: float, scale: float, sensitivity: float = 1.0) -> float:
    r"""Proposition 7: :math:`\tfrac12 \Delta (2 (1/\lambda + e^{-1/\lambda} - 1))^{1/(2\mu)}`.

    A diagnostic, and not the distance of Definition 3. The bracket is the KL divergence of two Laplace laws
    of scale :math:`\lambda` (in units of the sensitivity) that lie one sensitivity apart.
    """
    check_order(order)
    positive(scale=scale, sensitivity=sensitivity)
    divergence = 1 / float(scale) + math.expm1(-1 / float(scale))
    return float(0.5 * float(sensitivity) * (2 * divergence) ** (1 / (2 * float(order))))


def wdp_from_dp(epsilon: float, order: float, sensitivity: float = 1.0) -> float:
    r"""Proposition 9: :math:`\tfrac12 \Delta (2 \varepsilon (e^\varepsilon - 1))^{1/(2\mu)}`."""
    check_order(order)
    _not_negative(epsilon=epsilon)
    positive(sensitivity=sensitivity)
    if epsilon > _LARGEST_LOG:
        raise InputError(f"Expected epsilon <= {_LARGEST_LOG:g}, got epsilon={epsilon!r}; it protects nothing.")
    return wdp_from_rdp(float(epsilon) * math.expm1(epsilon), order, sensitivity)


def wdp_from_rdp(rdp_epsilon: float, order: float, sensitivity: float = 1.0) -> float:
    r"""Proposition 10: :math:`\tfrac12 \Delta (2 \varepsilon_\alpha)^{1/(2\mu)}`. Diagnostic.

    ``rdp_epsilon`` is the Renyi bound of any order of at least 1, in nats; it bounds the KL divergence.
    """
    check_order(order)
    _not_negative(rdp_epsilon=rdp_epsilon)
    positive(sensitivity=sensitivity)
    return float(0.5 * float(sensitivity) * (2 * float(rdp_epsilon)) ** (1 / (2 * float(order))))


def rdp_from_wdp(wdp: float, order: float, lipschitz: float, alpha: float) -> float:
    r"""Proposition 11: :math:`\frac{\alpha}{\alpha - 1} L\, \varepsilon^{\mu/(\mu+1)}`. NOT a bound.

    ``lipschitz`` is the Lipschitz constant L of the log-density of the output, per unit of output. The
    estimate :math:`W_\infty \le C\, W_\mu^{\mu/(\mu+1)}` behind it has a constant that the proposition
    leaves out: Laplace noise and a shift of 4 are (mu, 4)-WDP with L = 1/scale, and 4/scale-DP, where the
    proposition promises 2/scale at mu = 1.
    """
    alpha = real("alpha", alpha)
    if not alpha > 1:
        raise InputError(f"Expected alpha > 1, got alpha={alpha!r}; use dp_from_wdp for the limit of infinity.")
    factor = 1.0 if math.isinf(alpha) else alpha / (alpha - 1)
    return factor * dp_from_wdp(wdp, order, lipschitz)


def dp_from_wdp(wdp: float, order: float, lipschitz: float) -> float:
    r"""Proposition 11 at infinite alpha: :math:`L\, \varepsilon^{\mu/(\mu+1)}`. NOT a bound."""
    check_order(order)
    _not_negative(wdp=wdp, lipschitz=lipschitz)
    return float(lipschitz) * float(float(wdp) ** (float(order) / (float(order) + 1)))


def _diagnostics(values: Any) -> list[float]:
    listed = values.tolist() if isinstance(values, np.ndarray) else values
    if not isinstance(listed, Sequence) or isinstance(listed, str | bytes):
        raise InputError(f"Expected a list of WDP diagnostics, got {type(values).__name__}.")
    if len(values) == 0:
        raise InputError("Expected at least one WDP diagnostic, got none; give one value per release.")
    for value in values:
        _not_negative(wdp=value)
    return [float(value) for value in values]


def parallel_composition(values: Sequence[float]) -> float:
    """Proposition 5: the largest of the values, where every record is read by one release only."""
    return max(_diagnostics(values))


def sequential_composition(values: Sequence[float]) -> float:
    """Proposition 6: the sum of the values. True for releases that are independent given the data.

    False where a release may look at an earlier output: multiplying that output by 1000 is 0-WDP on its own.
    """
    return math.fsum(_diagnostics(values))


def advanced_composition_delta(losses: Sequence[float], wdp: float, beta: float) -> float:
    r"""Theorem 1: :math:`\delta = \min(1, e^{\beta (\sum_t W_t - \varepsilon)})` for a chosen beta.

    Markov's inequality for a sum of expectations: delta is the chance that a sum exceeds a level, and no
    probability of a disclosure. ``beta`` (one over output units) may be anything above 0; a larger one makes
    every delta smaller.
    """
    _not_negative(wdp=wdp)
    positive(beta=beta)
    return math.exp(min(0.0, beta * (math.fsum(_diagnostics(losses)) - wdp)))


def group_privacy(wdp: float, group_size: int) -> float:
    """Proposition 13: k times the value for k records, by the triangle inequality."""
    _not_negative(wdp=wdp)
    at_least(1, group_size=group_size)
    return group_size * wdp


def attack_probability(epsilon: float, prior: float = 0.5) -> float:
    r"""P(A) of Table 2, :math:`1 / (1 + e^{-\varepsilon})`: an attacker's posterior under pure DP.

    It bounds an attack for an epsilon of differential privacy only; of a WDP diagnostic it is a rescaling.
    """
    probability(prior=prior)
    if math.isnan(real("epsilon", epsilon)):
        raise InputError("Expected epsilon to be a number, got nan.")
    return float(special.expit(float(epsilon) + special.logit(prior)))
