"""The composed privacy loss against a straightforward, slow version: a loop per grid point, plain convolution."""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from dpswd.accounting import pld
from dpswd.accounting.pld import Releases
from dpswd.sensitivity import ConstantLaw


def profile(mu, rate, epsilon):
    """Delta of one sampled Gaussian release at any epsilon (DESIGN 2.3), one number at a time."""
    if epsilon < 0:  # replace-one has no direction
        return 1 - math.exp(epsilon) + math.exp(epsilon) * profile(mu, rate, -epsilon)
    x = math.log1p(math.expm1(epsilon) / rate)
    return rate * (stats.norm._cdf(mu / 2 - x / mu) - math.exp(x) * stats.norm._cdf(-mu / 2 - x / mu))


def one_release(mu, rate, step, reach):
    """Probabilities of the losses ``-reach ... reach`` times ``step``, and the mass beyond, for chords of the profile.

    The slope of the profile in e^epsilon is minus the probability, under the other data set, of a loss beyond it.
    """
    losses = step * np.arange(-reach, reach + 1)
    delta = np.array([profile(mu, rate, loss) for loss in losses])
    beyond = np.concatenate([[1.0], -np.diff(delta) / np.diff(np.exp(losses)), [0.0]])
    return np.exp(losses) * -np.diff(beyond), delta[-1]


def slow_epsilon(mu, rate, step, reach, releases, delta):
    probabilities, infinite = one_release(mu, rate, step, reach)
    total = np.ones(1)
    for _ in range(releases):
        total = np.convolve(total, probabilities)
    losses = step * (np.arange(len(total)) - len(total) // 2)
    lost = 1 - (1 - infinite) ** releases

    def gap(epsilon):
        return lost + float(np.sum(total * np.maximum(-np.expm1(epsilon - losses), 0))) - delta

    return optimize.brentq(gap, 0, losses[-1], xtol=1e-12)


@pytest.mark.parametrize(("mu", "rate", "releases"), [(1.5, 0.2, 6), (1.0, 0.5, 8), (0.5, 1.0, 5)])
def test_composition_equals_the_slow_one(monkeypatch, mu, rate, releases):
    monkeypatch.setattr(pld, "merge_gaussians", list)  # the closed form has its own test
    found = pld.compose([Releases(ConstantLaw(1.0), mu, rate, releases)])
    step = found._pmf_remove._discretization
    top = math.log1p(rate * math.expm1(mu**2 / 2 + 9 * mu))  # nine deviations: a mass below 1e-18
    for delta in (1e-3, 1e-5, 1e-7):
        expected = slow_epsilon(mu, rate, step, math.ceil(top / step), releases, delta)
        assert found.get_epsilon_for_delta(delta) == pytest.approx(expected, rel=1e-4)
    # control: one release more is told apart
    more = slow_epsilon(mu, rate, step, math.ceil(top / step), releases + 1, 1e-5)
    assert found.get_epsilon_for_delta(1e-5) != pytest.approx(more, rel=1e-4)
