"""Curves of Gomez2025: loss distributions, trade-off curves from privacy profiles, and one way to draw them."""

import math
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import (
    PrivacyLossDistribution,
    from_discrete_gaussian_mechanism,
    from_gaussian_mechanism,
)
from numpy.typing import NDArray

Array = NDArray[np.float64]
AUTHORS_STEP = 1e-4  # discretisation of the loss in gdpnum's examples
QUERIES = 10  # of a level of geography in TopDown


def dp_sgd(noise: float, rate: float, updates: int, step: float | None = None) -> PrivacyLossDistribution:
    """The loss of DP-SGD: Poisson sampling, neighbours by adding or removing a record.

    The default discretisation is a fifth of the deviation of the loss of one update, about ``rate / noise``, and at
    least 1e-3: ``dp_accounting`` takes second differences of delta, whose rounding error grows as ``1e-16 / step^2``
    per update and replaces the tail of the composed loss where the step is too small.
    """
    chosen = step or max(1e-3, 0.2 * rate / noise)
    loss = from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=chosen)
    return loss.self_compose(updates)


def top_down(total_rho: float, shares: dict[str, float], step: float) -> PrivacyLossDistribution:
    """The loss of TopDown: per level ``QUERIES`` discrete Gaussians of ``sigma^2 = QUERIES / (2 share rho)``."""
    total: PrivacyLossDistribution | None = None
    for share in shares.values():
        sigma = math.sqrt(QUERIES / (2 * share * total_rho))
        level = from_discrete_gaussian_mechanism(sigma, value_discretization_interval=step).self_compose(QUERIES)
        total = level if total is None else total.compose(level)
    assert total is not None
    return total


def randomised_response(epsilon: float) -> PrivacyLossDistribution:
    """The loss of randomised response, the worst epsilon-DP mechanism: two points."""
    likely = 1 / (1 + math.exp(-epsilon))
    loss = pld_pmf.create_pmf({-1: 1 - likely, 1: likely}, epsilon, 0.0, pessimistic_estimate=True)
    return PrivacyLossDistribution(loss)


def zcdp_delta(rho: float, epsilon: Array) -> Array:
    """The least delta that rho-zCDP implies (Canonne, Kamath and Steinke 2020, Proposition 12), on a grid of orders."""
    order = 1 + np.geomspace(1e-3, 1e3, 4000)[:, None]
    log_delta = (order - 1) * (order * rho - epsilon) - np.log(order - 1) + order * np.log1p(-1 / order)
    delta: Array = np.exp(np.minimum(0.0, log_delta.min(axis=0)))
    return delta


def curve_of_profile(alpha: Array, epsilon: Array, delta: Array) -> Array:
    """The trade-off curve of (epsilon_i, delta_i)-DP for all i (Gomez2025, Corollary 2.8)."""
    a, e, d = alpha[:, None], epsilon[None], delta[None]
    beta: Array = np.maximum(1 - d - np.exp(e) * a, np.exp(-e) * (1 - d - a)).max(axis=1)
    return np.maximum(0, beta)


def draw_curves(axes: Any, alpha: Array, curves: dict[str, Array], *, logarithmic: bool = False) -> None:
    """Draw false-negative against false-positive rates; on logarithmic axes points below 1e-6 are cut off."""
    for (label, beta), style in zip(curves.items(), ("-", "--", "-.", ":") * 4, strict=False):
        axes.plot(alpha, beta, style, label=label)
    if logarithmic:
        axes.set(xscale="log", yscale="log", xlim=(1e-6, 1), ylim=(1e-6, 1.5))
    axes.set(xlabel="false-positive rate", ylabel="false-negative rate")
    axes.grid(True, alpha=0.3)
    axes.legend(fontsize=7)
