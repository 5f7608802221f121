"""The guarantee computed once more, against the accountant of the budget and closed forms."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.ledger import Ledger
from dpswd.accounting.recompute import BY_DISTRIBUTION, CURVE_FPR, recompute
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism
from dpswd.report.gdp import TradeOff

SUBSETS = ProjectionMechanism(dim=50, n_projections=100, sigma=1.0, batch_size=32)
PLANS = {
    "one-shot": [(GaussianMechanism(sensitivity=1.0, sigma=0.7), 300, 2)],
    "large mu": [(GaussianMechanism(sensitivity=1.0, sigma=0.01), 300, 1)],
    "whole bases": [
        (ProjectionMechanism(64, 128, 0.9, 300, kind="orthogonal"), 300, 1),
        (GaussianMechanism(sensitivity=2.0, sigma=5.0), 300, 3),
    ],
    "subsets": [(SUBSETS, 497, 80)],
    "random sensitivity": [(ProjectionMechanism(64, 40, 0.5, 497), 497, 1)],
    "bernstein": [(SUBSETS.replace(bound="bernstein"), 497, 40)],
}


def ledger_of(plan, path, delta=1e-4):
    """A ledger that plans these releases and has made none."""
    sample_size = plan[0][1]
    header = {
        "run": "00",
        "sample_size": sample_size,
        "target_delta": delta,
        "accountant": "pld",
        "plan": [
            {"mechanism": mechanism.to_dict(), "n_releases": count} for mechanism, _, count in plan
        ],
    }
    return Ledger.create(path, header)


@pytest.mark.parametrize("name", PLANS)
def test_numbers_are_those_of_the_accountant(name, tmp_path):
    ledger = ledger_of(PLANS[name], tmp_path / "ledger.jsonl")
    computed = recompute(ledger)
    accountant = PrivacyAccountant.from_groups(PLANS[name])
    exact = accountant.resolve(ledger.delta)
    mu, _ = exact.get_mu_and_regret()
    assert computed.epsilon == pytest.approx(accountant.get_epsilon(ledger.delta), rel=1e-3)
    assert computed.mu == pytest.approx(mu, rel=1e-3)
    curve = TradeOff.of(exact).fnr(CURVE_FPR)
    np.testing.assert_allclose(1 - np.array(computed.fnr), 1 - curve, rtol=1e-3)


def test_the_method_is_named(tmp_path):
    one_shot = recompute(ledger_of(PLANS["one-shot"], tmp_path / "a.jsonl"))
    subsets = recompute(ledger_of(PLANS["subsets"], tmp_path / "b.jsonl"))
    n_releases = sum(count for _, _, count in PLANS["one-shot"])
    assert f": {n_releases} Gaussian releases" in one_shot.method
    assert one_shot.method.endswith("one Gaussian mechanism")
    assert subsets.method == BY_DISTRIBUTION


def test_a_gaussian_curve_is_never_above_the_closed_form(tmp_path):
    computed = recompute(ledger_of(PLANS["one-shot"], tmp_path / "ledger.jsonl"))
    exact = stats.norm.cdf(stats.norm.isf(CURVE_FPR) - computed.mu)
    assert np.all(np.array(computed.fnr) <= exact * (1 + 1e-12))


def test_releases_beyond_the_plan_count(tmp_path):
    plan = PLANS["one-shot"]
    ledger = ledger_of(plan, tmp_path / "ledger.jsonl")
    planned = recompute(ledger)
    mechanism, sample_size, count = plan[0]
    for _ in range(2 * count):
        ledger.record(mechanism, sample_size)
    ledger.record(dataclasses.replace(mechanism, sigma=1.0), sample_size)
    more = recompute(Ledger.open_existing(ledger.path))
    assert more.mu == pytest.approx(np.sqrt(2 * planned.mu**2 + 1))
