r"""The Wasserstein accountant (Yang2024, Theorems 2 and 3, Corollary 1): a diagnostic beside the real one.

Theorem 2 charges a step of subsampled Gaussian training, with gradient distances :math:`d_i = \|g_i - g_i'\|`
between neighbours, the loss

.. math:: L_t = \Big( \sum_i E|Z_i|^\mu \Big)^{1/\mu}, \quad Z_i \sim N(q d_i,\, (2 - 2q + 2q^2) \sigma^2),

and Corollary 1 turns the sum over steps into :math:`\delta = \exp(\beta (\sum_t L_t - \varepsilon))`. The
theorem takes an infimum over the distances; the authors' program sums over all pairs of eight gradients,
takes the power 1/mu and the minimum of that single number. ``gradient_distances`` is the list summed over, so
both readings are one call.

What it is worth (docs/notions.md). :math:`Z` is the difference of two INDEPENDENT draws. That coupling is not
the optimal one, so the loss is positive when the gradients agree, and it GROWS with the noise: a run with
more noise, which tells an attacker less, gets a larger number. It scales with the unit of the gradient, and
:math:`\beta` is free. The distances are private statistics too: a value computed from them must not leave the
private side unnoised.

References:
    | Yang2024. Corollary 1 is read with the same beta in both directions; the authors' program has
    | ``beta * exp(loss - epsilon)`` for delta, which is not the inverse of its own epsilon.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from dpswd._validate import array, at_least, positive, probability, real
from dpswd.diagnostics.wasserstein import check_order, log_absolute_moment
from dpswd.errors import InputError

__all__ = ["WassersteinAccountant", "step_loss"]

_LARGEST_LOG = 700.0  # e^700 is within the range of a float; the sum of the losses should be, too


def step_loss(order: float, gradient_distances: ArrayLike, sigma: float, sampling_rate: float) -> float:
    r"""The loss :math:`L_t` of one step (Yang2024, Theorem 2), computed in logs.

    Args:
        order: The order :math:`\mu \ge 1`.
        gradient_distances: Distances :math:`d_i \ge 0` (n,), in gradient units.
        sigma: Standard deviation of the noise, absolute, in gradient units.
        sampling_rate: The rate q in [0, 1].

    Returns:
        The loss, in gradient units.

    Raises:
        InputError: If a value is out of range or the list is empty.
    """
    check_order(order)
    positive(sigma=sigma)
    if not 0 <= real("sampling_rate", sampling_rate) <= 1:
        raise InputError(f"Expected sampling_rate in [0, 1], got sampling_rate={sampling_rate!r}.")
    distances = array("the list of gradient distances", gradient_distances).ravel()
    if distances.size == 0:
        raise InputError("Expected at least one gradient distance, got an empty list; pass the distances of one step.")
    if not (np.isfinite(distances).all() and (distances >= 0).all()):
        raise InputError("Expected finite gradient distances of at least 0, got a negative one, nan or inf.")
    order, sigma, q = float(order), float(sigma), float(sampling_rate)
    std = sigma * math.sqrt(2 - 2 * q + 2 * q * q)
    log_loss = float(special.logsumexp(log_absolute_moment(order, q * distances, std))) / order
    if log_loss > _LARGEST_LOG:
        raise InputError("Expected distances and noise with a finite loss, got an overflow; use a larger unit.")
    return math.exp(log_loss)


class WassersteinAccountant:
    """Adds up the losses of training steps. Its numbers are diagnostics and satisfy no budget.

    Attributes:
        order: The order mu >= 1 of the distance.
        beta: The free constant of Theorem 1, above 0, in one over gradient units.
        sigma: Standard deviation of the noise of a step, absolute, in gradient units.
        sampling_rate: The rate q in [0, 1].
        total_loss: Sum of the losses so far, in gradient units.
        n_steps: Number of steps so far.

    Example:
        >>> accountant = WassersteinAccountant(order=2, beta=32.0, sigma=0.01, sampling_rate=0.02)
        >>> accountant.step([0.5, 1.0], n_steps=100)
        >>> round(accountant.get_epsilon(1e-5), 3)
        3.347
    """

    is_guarantee = False

    def __init__(self, *, order: float, beta: float, sigma: float, sampling_rate: float) -> None:
        check_order(order)
        positive(beta=beta, sigma=sigma)
        step_loss(order, [0.0], sigma, sampling_rate)  # checks the rate
        self.order, self.beta, self.sigma, self.sampling_rate = order, beta, sigma, sampling_rate
        self.total_loss = 0.0
        self.n_steps = 0

    def step(
        self,
        gradient_distances: ArrayLike,
        *,
        n_steps: int = 1,
        sigma: float | None = None,
        sampling_rate: float | None = None,
    ) -> None:
        """Charges ``n_steps`` steps with these distances; their noise and rate may differ."""
        at_least(1, n_steps=n_steps)
        loss = step_loss(
            self.order,
            gradient_distances,
            self.sigma if sigma is None else sigma,
            self.sampling_rate if sampling_rate is None else sampling_rate,
        )
        self.total_loss += n_steps * loss
        self.n_steps += n_steps

    def get_epsilon(self, delta: float) -> float:
        r"""The diagnostic :math:`\sum_t L_t - \ln(\delta) / \beta` (Corollary 1), in gradient units."""
        probability(delta=delta)
        return self.total_loss - math.log(delta) / self.beta

    def get_delta(self, epsilon: float) -> float:
        r"""The diagnostic :math:`\min(1, e^{\beta (\sum_t L_t - \varepsilon)})`, the inverse of the above."""
        if not math.isfinite(real("epsilon", epsilon)):
            raise InputError(f"Expected a finite epsilon, got epsilon={epsilon!r}.")
        return math.exp(min(0.0, self.beta * (self.total_loss - epsilon)))

    def state_dict(self) -> dict[str, Any]:
        """Plain values: the settings and the sums."""
        return {
            "order": self.order,
            "beta": self.beta,
            "sigma": self.sigma,
            "sampling_rate": self.sampling_rate,
            "total_loss": self.total_loss,
            "n_steps": self.n_steps,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes up where the state was saved; the settings of the state win.

        Raises:
            InputError: If a key is missing or a value is out of range; nothing changes then.
        """
        missing = sorted(set(self.state_dict()) - set(state))
        if missing:
            raise InputError(
                f"Expected a state with {', '.join(missing)}, got none; load a state_dict() of this class."
            )
        settings = {key: state[key] for key in ("order", "beta", "sigma", "sampling_rate")}
        type(self)(**settings)
        at_least(0, n_steps=state["n_steps"])
        if not (state["total_loss"] >= 0 and math.isfinite(state["total_loss"])):
            raise InputError(f"Expected a finite total_loss of at least 0, got {state['total_loss']!r}.")
        self.__dict__.update({key: state[key] for key in self.state_dict()})

    def to_dict(self, delta: float) -> dict[str, Any]:
        """What a report's appendix prints: the diagnostic, never a key that is called epsilon."""
        return {
            "wdp_diagnostic": self.get_epsilon(delta),
            "delta": delta,
            "is_guarantee": self.is_guarantee,
            **self.state_dict(),
        }
