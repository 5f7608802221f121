r"""Wasserstein differential privacy (Yang2024): a diagnostic, not a guarantee.

Definition 3. A mechanism M is :math:`(\mu, \varepsilon)`-WDP if for all adjacent data sets D, D'

.. math:: W_\mu(M(D), M(D'))
   = \Big( \inf_\gamma \int \|x - y\|^\mu \, d\gamma(x, y) \Big)^{1/\mu} \le \varepsilon .

The unit of :math:`\varepsilon` is that of the output, not that of a log-likelihood ratio.
Definition 4 (Kantorovich DP) is the case :math:`\mu = 1`. Definition 5 (generalized WDP) asks for
:math:`\Pr[W_\mu \ge \varepsilon] \le \delta` where the distance is random.

docs/notions.md has a verdict for every statement of the paper, with tests. No value of this module
may satisfy a privacy budget. Orders are at least 1; scales and noise are above 0.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Array = NDArray[np.float64]

# |mean| / std above which the mass of the Gaussian beyond 0 is below e^-800.
_FAR_RATIO = 40.0


def gaussian_distance(mean_gap: float, std: float, other_std: float, order: float) -> float:
    r""":math:`W_\mu` of N(a, s^2) and N(b, t^2) on the line, ``mean_gap`` being a - b.

    The monotone map between the laws is affine, so the distance is
    :math:`(E|N(a - b, (s - t)^2)|^\mu)^{1/\mu}`. For s = t that is ``|a - b|`` for every s.
    """
    log_moment = float(log_absolute_moment(order, mean_gap, abs(std - other_std)))
    return math.exp(log_moment / order)


def gaussian_wdp(order: float, sigma: float, sensitivity: float = 1.0) -> float:
    r"""Proposition 8: :math:`\tfrac12 (\Delta / \sigma)^{1/\mu}`.

    ``sigma`` and ``sensitivity`` are in output units. The distance of Definition 3 is
    :math:`\Delta` for every sigma (:func:`gaussian_distance`).
    """
    return float(0.5 * (sensitivity / sigma) ** (1 / order))


def laplace_wdp(order: float, scale: float, sensitivity: float = 1.0) -> float:
    r"""Proposition 7, for Laplace noise.

    .. math:: \tfrac12 \Delta \sqrt{2 (1/\lambda + e^{-1/\lambda} - 1)}^{\,1/\mu}

    The bracket is the KL divergence of two Laplace laws of ``scale`` :math:`\lambda` that lie 1
    apart.
    """
    divergence = 1 / scale + math.expm1(-1 / scale)
    return float(0.5 * sensitivity * (2 * divergence) ** (1 / (2 * order)))


def log_absolute_moment(order: float, mean: ArrayLike, std: float) -> Array:
    r"""Compute the log of an absolute moment of a normal variable (Yang2024, Lemma 1).

    The result is :math:`\ln E|Z|^p` for :math:`Z \sim N(m, s^2)`, computed in logs throughout.

    .. math:: E|Z|^p = (2 s^2)^{p/2} \frac{\Gamma(\frac{p+1}2)}{\sqrt\pi}\,
              {}_1F_1\!\Big(-\tfrac p2;\, \tfrac12;\, -\tfrac{m^2}{2 s^2}\Big)

    With :math:`x = m^2 / 2 s^2`, Kummer's transformation turns the product into a Poisson mixture
    of positive terms:
    :math:`\sum_k e^{-x} \frac{x^k}{k!}\, \Gamma(\tfrac{p+1}2 + k) / \Gamma(\tfrac12 + k)`. Where
    :math:`|m| > 40 s` the binomial series :math:`|m|^p \sum_j \binom{p}{2j} (2j-1)!!\, (s/m)^{2j}`
    is exact to e^-800.
    """
    location: Array = np.abs(np.asarray(mean, dtype=float))
    if std == 0:
        with np.errstate(divide="ignore"):
            return np.asarray(order * np.log(location))
    with np.errstate(over="ignore"):
        ratio = location / std
    is_far = ratio > _FAR_RATIO
    # Each series is computed at a harmless ratio where the other one is used.
    near_ratio = np.where(is_far, 0.0, ratio)
    far_ratio = np.where(is_far, ratio, 2 * _FAR_RATIO)
    log_mixture = _log_poisson_mixture(order, near_ratio**2 / 2)
    near_log = order / 2 * math.log(2) + log_mixture
    far_log = _log_binomial_series(order, far_ratio)
    log_of_standard = np.where(is_far, far_log, near_log)
    return np.asarray(order * math.log(std) + log_of_standard)


def _log_poisson_mixture(order: float, x: Array) -> Array:
    r"""Return the log of a Poisson mixture of ratios of Gamma functions.

    .. math:: \sum_k e^{-x} x^k / k!\, \Gamma((p+1)/2 + k) / \Gamma(1/2 + k)
    """
    largest_mean = float(x.max(initial=0.0)) + order
    n_terms = math.ceil(largest_mean + 12 * math.sqrt(largest_mean) + 60)
    k = np.arange(n_terms)
    log_gammas = special.gammaln((order + 1) / 2 + k) - special.gammaln(0.5 + k)
    log_poisson = special.xlogy(k, x[..., None]) - x[..., None]
    log_terms = log_poisson + (log_gammas - special.gammaln(k + 1))
    return np.asarray(special.logsumexp(log_terms, axis=-1))


def _log_binomial_series(order: float, ratio: Array) -> Array:
    r"""Return the log of a binomial series in the ratio :math:`\rho`.

    .. math:: \rho^p \sum_j \binom{p}{2j} (2j-1)!!\, \rho^{-2j}
    """
    term = np.ones_like(ratio)
    total = np.ones_like(ratio)
    for j in range(math.ceil(order / 2) + 12):
        factor = (order - 2 * j) * (order - 2 * j - 1) / (2 * j + 2)
        term = term * factor / ratio / ratio
        total = total + term
    return np.asarray(order * np.log(ratio) + np.log(total))


def step_loss(
    order: float, gradient_distances: ArrayLike, sigma: float, sampling_rate: float
) -> float:
    r"""Loss of one step of subsampled Gaussian training.

    The authors' program computes Theorem 2 in this way.

    .. math:: L = \Big( \sum_i E|Z_i|^\mu \Big)^{1/\mu}, \quad
       Z_i \sim N(q d_i,\, (2 - 2q + 2q^2) \sigma^2)

    In the authors' program ``gradient_distances`` are those of all pairs of eight gradients; with
    the absolute components of one difference of gradients it is the bracket of the printed theorem
    (:func:`theorem_2_loss`).
    """
    q = sampling_rate
    distances = np.asarray(gradient_distances, dtype=float)
    std = sigma * math.sqrt(2 - 2 * q + 2 * q * q)
    log_moments = log_absolute_moment(order, q * distances, std)
    log_sum = float(special.logsumexp(log_moments))
    return math.exp(log_sum / order)


def theorem_2_loss(
    order: float, differences: ArrayLike, sigma: float, sampling_rate: float
) -> float:
    r"""Loss of one step as Theorem 2 is printed.

    :math:`\inf_d (\sum_{i=1}^n E|Z_i|^\mu)^{1/\mu}`.
    """
    losses = []
    for difference in np.asarray(differences):
        losses.append(step_loss(order, np.abs(difference), sigma, sampling_rate))
    return min(losses)


class WassersteinAccountant:
    """Sum of the losses of training steps (Yang2024, Theorem 3 and Corollary 1).

    The sum is a diagnostic. The losses are statistics of private gradients: a value made of them
    must not be published without noise. The authors' program computes
    ``beta * exp(loss - epsilon)`` for delta, which does not invert its own epsilon; here delta and
    epsilon are inverses of each other, as printed. ``beta`` is the free constant of Theorem 1.
    """

    def __init__(self, *, order: float, beta: float, sigma: float, sampling_rate: float) -> None:
        self.order = order
        self.beta = beta
        self.sigma = sigma
        self.sampling_rate = sampling_rate
        self.total_loss = 0.0  # in gradient units

    def step(self, gradient_distances: ArrayLike, *, sigma: float | None = None) -> None:
        """Add the loss of a step with these distances; ``sigma`` overrides its noise."""
        if sigma is None:
            sigma = self.sigma
        loss = step_loss(self.order, gradient_distances, sigma, self.sampling_rate)
        self.total_loss += loss

    def get_wdp(self, delta: float) -> float:
        r"""Corollary 1: :math:`\sum_t L_t - \ln(\delta) / \beta`, in gradient units."""
        return self.total_loss - math.log(delta) / self.beta

    def get_delta(self, wdp: float) -> float:
        r"""Theorem 3: delta for ``wdp``, the inverse of :meth:`get_wdp`.

        .. math:: \min(1, e^{\beta (\sum_t L_t - \varepsilon)})
        """
        return math.exp(min(0.0, self.beta * (self.total_loss - wdp)))
