"""Diagnostics and audits from any arguments: a number that is no nan, or a sentence."""

import inspect
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from factories import REFUSED, fuzz, near, odd, outcome, plain_floats

from dpswd import ProjectionMechanism, tangent, wasserstein_dp
from dpswd.audit import audit
from dpswd.audit.bounds import upper_limit, weigh
from dpswd.diagnostics.accountant import WassersteinAccountant, step_loss
from dpswd.report.gdp import round_up

SCALARS = [
    "gaussian_distance",
    "gaussian_wdp",
    "laplace_wdp",
    "wdp_from_dp",
    "wdp_from_rdp",
    "rdp_from_wdp",
    "dp_from_wdp",
    "group_privacy",
    "attack_probability",
]
value = near(st.one_of(plain_floats, st.integers(1, 9)), odds=0.3)


@pytest.mark.parametrize("name", SCALARS)
@fuzz(30, data=st.data())
def test_numbers_of_wasserstein_dp(name, data):
    function = getattr(wasserstein_dp, name)
    found = outcome(function, *[data.draw(value) for _ in inspect.signature(function).parameters])
    assert found is REFUSED or found >= 0


LISTS = near(st.lists(near(st.floats(0, 1e3), odds=0.1), max_size=4), odds=0.2)


@fuzz(60, x=LISTS, y=LISTS, order=value)
def test_lists_of_wasserstein_dp(x, y, order):
    for call in (
        lambda: wasserstein_dp.empirical_distance(x, y, order),
        lambda: wasserstein_dp.parallel_composition(x),
        lambda: wasserstein_dp.sequential_composition(x),
        lambda: wasserstein_dp.advanced_composition_delta(x, order, order),
    ):
        found = outcome(call)
        assert found is REFUSED or found >= 0


@fuzz(60, order=value, distances=LISTS, sigma=value, rate=near(st.floats(0, 1)), steps=value, beta=value, delta=value)
def test_wasserstein_accountant(order, distances, sigma, rate, steps, beta, delta):
    found = outcome(step_loss, order, distances, sigma, rate)
    assert found is REFUSED or 0 <= found < math.inf
    made = outcome(WassersteinAccountant, order=order, beta=beta, sigma=sigma, sampling_rate=rate)
    if made is REFUSED or outcome(made.step, distances, n_steps=steps) is REFUSED:
        return
    for call in (lambda: made.get_epsilon(delta), lambda: made.get_delta(delta)):
        assert outcome(call) is REFUSED or not math.isnan(outcome(call))


@st.composite
def matrices(draw):
    """Arrays of a few shapes and types, now and then with something odd in them."""
    shape = draw(st.sampled_from([(3, 4), (3, 4), (1, 1), (0, 4), (3, 0), (4,), (), (2, 3, 4)]))
    made = np.random.default_rng(draw(st.integers(0, 9))).random(shape).astype(draw(st.sampled_from("fdbi")))
    scale = draw(st.sampled_from([1, 1, 1, 1e30, math.nan, math.inf]))
    return made if scale == 1 else (made.astype(float) + 1) * scale


@fuzz(
    120,
    risk=near(matrices(), odds=0.1),
    beta=near(plain_floats),
    q=near(st.none(), odds=0.3),
    stiffness=near(st.none(), odds=0.1),
)
def test_tangent(risk, beta, q, stiffness):
    with np.errstate(all="ignore"):
        made = outcome(tangent.gibbs_distribution, risk, beta, data=q)
        assert made is REFUSED or abs(made.sum() - 1) < 1e-9
        norms = outcome(tangent.tangent_norms, risk, beta, q=q, stiffness=stiffness)
        assert norms is REFUSED or all(tight >= 0 for tight, _ in norms.bounds.values())
        changes = outcome(tangent.removal_changes, risk, beta, prior=q)
        assert changes is REFUSED or (changes.total_variation <= 1 + 1e-9).all()


@fuzz(
    60, first=odd, n=st.integers(0, 80), second=near(st.just(1.0)), delta=near(st.just(0.1)), sure=near(st.just(0.99))
)
def test_weigh(first, n, second, delta, sure):
    rng = np.random.default_rng(n)
    shift = second if isinstance(second, float) else 0.0
    assert outcome(weigh, first, first) is REFUSED
    found = outcome(weigh, rng.normal(0, 1, n), rng.normal(0, 1, n) + shift, delta=delta, confidence=sure)
    if found is not REFUSED:
        assert 0 <= found.mu < math.inf
        assert 0 <= found.epsilon < math.inf


@fuzz(40, errors=near(st.integers(0, 50)), trials=near(st.integers(1, 50)), level=near(st.just(0.01)))
def test_upper_limit(errors, trials, level):
    found = outcome(upper_limit, errors, trials, level)
    assert found is REFUSED or np.all((found >= 0) & (found <= 1))


GOOD = ProjectionMechanism(4, 4, 1.0, 8, kind="orthogonal")


@fuzz(
    20,
    name=st.sampled_from(
        ["mechanism", "sample_size", "n_releases", "delta", "trials", "seed", "confidence", "accountant", "seconds"]
    ),
    thing=odd,
)
def test_audit(name, thing):
    small = isinstance(thing, int | np.integer) and not isinstance(thing, bool) and 9 < thing < 2**60
    if (name == "n_releases" and small) or (name in ("trials", "seconds") and not isinstance(thing, str | None)):
        return  # takes as long as it was told to
    arguments = {"mechanism": GOOD, "sample_size": 8, "n_releases": 1, "trials": 60} | {name: thing}
    found = outcome(audit, **arguments)
    assert found is REFUSED or found.evidence.mu >= 0


@fuzz(40, given=st.floats())
def test_round_up(given):
    assert not round_up(given) < given
