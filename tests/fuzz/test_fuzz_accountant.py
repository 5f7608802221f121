"""Accounts of any releases: a finite number that does not fall where more is released, or a sentence."""

import math

import hypothesis.strategies as st
import numpy as np
from factories import REFUSED, fuzz, likely_mechanisms, near, odd, outcome

from dpswd import GaussianMechanism, PrivacyAccountant, ProjectionMechanism, calibrate_sigma
from dpswd.accounting.plan import plan
from experiments.accounting.published import published_epsilon, published_sigma

deltas = near(st.sampled_from([1e-9, 1e-5, 1e-2, 0.5]), odds=0.2)
sizes = near(st.sampled_from([64, 100, 1000, 10_000]), odds=0.1)
counts = near(st.sampled_from([1, 2, 10, 1000]), odds=0.1)
kinds = near(st.sampled_from(["pld", "rdp"]), odds=0.1)
sigmas = st.sampled_from([1e-9, 0.01, 0.3, 1.0, 10.0, 1e6, 1e40])


def mechanism(values, sigma):
    return outcome(ProjectionMechanism, **values | {"sigma": sigma, "row_norm": 0.5})


@fuzz(25, values=likely_mechanisms, sigma=sigmas, size=sizes, count=counts, delta=deltas, kind=kinds)
def test_account(values, sigma, size, count, delta, kind):
    made = mechanism(values, sigma)
    account = outcome(PrivacyAccountant, kind)
    if REFUSED in (made, account) or outcome(account.step, made, sample_size=size, n_releases=count) is REFUSED:
        return
    epsilon = outcome(account.get_epsilon, delta)
    if epsilon is REFUSED:
        return
    assert 0 <= epsilon < math.inf
    more = outcome(account.copy().step(made, sample_size=size).get_epsilon, delta)
    assert more is REFUSED or more >= epsilon * 0.995
    resolved = account.resolve(delta)
    found = outcome(resolved.get_mu_and_regret)
    if found is not REFUSED:
        assert 0 < found[0] < math.inf
        assert 0 <= found[1] <= 1
    assert all(line.endswith((".", ")")) for line in account.assumptions)


@fuzz(25, values=likely_mechanisms, sigma=sigmas, epsilon=near(st.floats(1e-3, 30), odds=0.4), kind=kinds)
def test_delta(values, sigma, epsilon, kind):
    made, account = mechanism(values, sigma), outcome(PrivacyAccountant, kind)
    if REFUSED in (made, account) or outcome(account.step, made, sample_size=64) is REFUSED:
        return
    delta = outcome(account.get_delta, epsilon)
    assert delta is REFUSED or 0 <= delta <= 1
    profile = outcome(account.profile, [epsilon])
    assert profile is REFUSED or np.all((profile >= 0) & (profile <= 1))


@fuzz(40, thing=odd, size=odd, count=odd, delta=odd)
def test_odd_arguments(thing, size, count, delta):
    account = PrivacyAccountant()
    good = GaussianMechanism(sensitivity=1.0, sigma=1.0)
    for step in ((thing, 10, 1), (good, size, 1), (good, 10, count)):
        outcome(account.copy().step, step[0], sample_size=step[1], n_releases=step[2])
    assert outcome(account.get_epsilon, delta) is REFUSED  # nothing was released
    account.step(good, sample_size=10)
    for method in (account.get_epsilon, account.get_delta, account.resolve):
        outcome(method, delta)
    outcome(account.profile, delta)


TARGETS = {
    "target_epsilon": near(st.floats(0.05, 20), odds=0.2),
    "target_delta": near(st.sampled_from([1e-5, 1e-2]), odds=0.1),
    "target_mu": near(st.floats(0.05, 5), odds=0.2),
    "target_tpr": near(st.floats(0.05, 0.9), odds=0.2),
    "at_fpr": near(st.sampled_from([0.01, 0.1]), odds=0.1),
}
targets = st.one_of(
    st.fixed_dictionaries({name: TARGETS[name] for name in ("target_epsilon", "target_delta")}),
    st.fixed_dictionaries({"target_mu": TARGETS["target_mu"]}),
    st.fixed_dictionaries({}, optional=TARGETS),
)


@fuzz(12, values=likely_mechanisms, size=sizes, count=counts, target=targets, kind=kinds)
def test_calibrate(values, size, count, target, kind):
    made = mechanism(values, 1.0)
    if made is REFUSED:
        return
    sigma = outcome(calibrate_sigma, made, size, count, accountant=kind, **target)
    if sigma is REFUSED:
        return
    assert 0 < sigma < math.inf
    account = PrivacyAccountant(kind).step(made.replace(sigma=sigma), sample_size=size, n_releases=count)
    if "target_epsilon" in target and target["target_epsilon"] is not None:
        assert account.get_epsilon(target["target_delta"]) <= target["target_epsilon"] * (1 + 1e-9)


@fuzz(10, epsilon=near(st.just(1.0)), delta=deltas, size=sizes, dim=near(st.just(8)), releases=near(st.just([1, 3])))
def test_plan(epsilon, delta, size, dim, releases):
    rows = outcome(
        plan,
        target_epsilon=epsilon,
        target_delta=delta,
        sample_size=size,
        dim=dim,
        releases=releases,
        batch_fractions=(1.0, 0.5),
        n_bases=(1,),
        n_quantiles=(10,),
    )
    if rows is not REFUSED:
        assert all(0 < row["sigma"] < math.inf for row in rows)


@fuzz(15, values=likely_mechanisms, size=sizes, count=counts, epsilon=near(st.floats(0.1, 20)), delta=deltas)
def test_published(values, size, count, epsilon, delta):
    made = mechanism(values, 1.0)
    if made is REFUSED:
        return
    found = outcome(published_epsilon, made, size, count, delta)
    assert found is REFUSED or found >= 0
    sigma = outcome(published_sigma, made, size, count, target_epsilon=epsilon, target_delta=delta)
    assert sigma is REFUSED or 0 < sigma < math.inf
