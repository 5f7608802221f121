r"""The comparators of the Wasserstein accountant's figures: moments accountant and Bayesian accountant.

Both follow the log moment of the subsampled Gaussian's privacy loss at one integer order :math:`\lambda`,

.. math:: c(d) = \ln E_{k \sim B(\lambda + 1, q)} \exp\!\Big(\frac{k (k-1)}{2}\, \frac{d^2}{\sigma^2}\Big) .

The moments accountant takes the worst distance d that clipping allows. The Bayesian accountant (Triastcyn
and Faltings, 2020) takes the distances of sampled pairs of gradients, and an upper confidence bound of the
mean of :math:`e^{T c(d_i)}` (Hoelder's inequality over T steps). Its guarantee covers records drawn from
the distribution of the sampled ones, not of an outlier; its confidence assumes independent normal draws.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats


def _log_moment(distances: ArrayLike, sigma: float, rate: float, order: int) -> NDArray[np.float64]:
    k = np.arange(order + 2)
    log_binomial = stats.binom.logpmf(k, order + 1, rate)
    exponent = np.multiply.outer(np.square(np.asarray(distances) / sigma), k * (k - 1) / 2)
    return np.asarray(special.logsumexp(log_binomial + exponent, axis=-1))


class MomentsAccountant:
    """The classical accountant at one order, add-or-remove or replace-one according to the distance given."""

    def __init__(self, order: int) -> None:
        self.order, self.total = order, 0.0

    def step(self, distance: float, *, sigma: float, rate: float) -> None:
        """Charge one step whose gradients differ by at most ``distance``."""
        self.total += float(_log_moment(distance, sigma, rate, self.order))

    def get_epsilon(self, delta: float) -> float:
        """The epsilon of differential privacy at ``delta``, at this order."""
        return (self.total - math.log(delta)) / self.order


class BayesianAccountant:
    """The accountant of Triastcyn and Faltings (2020) at one order, for ``n_steps`` planned steps."""

    def __init__(self, order: int, n_steps: int, failure: float = 1e-16) -> None:
        self.order, self.n_steps, self.failure = order, n_steps, failure
        self.total, self.steps = 0.0, 0

    def step(self, distances: ArrayLike, *, sigma: float, rate: float) -> None:
        """Charge one step with the distances (n,) of sampled pairs of gradients, n >= 3."""
        logs = self.n_steps * _log_moment(distances, sigma, rate, self.order)
        top, n = logs.max(), len(logs)
        scaled = np.exp(logs - top)
        quantile = float(stats.t.isf(self.failure, n - 1))
        bound = scaled.mean() + quantile * scaled.std() / math.sqrt(n - 1)
        self.total += float(top + math.log(bound)) / self.n_steps
        self.steps += 1

    def get_epsilon(self, delta: float) -> float:
        """The epsilon of Bayesian differential privacy at ``delta``."""
        return (self.total - math.log(delta - self.steps * self.failure)) / self.order
