"""plan: every plan keeps the budget, the least noise comes first."""

import pytest

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.plan import plan
from dpswd.errors import InputError
from dpswd.mechanism import ProjectionMechanism

BUDGET = {"target_epsilon": 3.0, "target_delta": 1e-5, "sample_size": 4321, "dim": 24}


@pytest.fixture(scope="module")
def rows():
    return plan(**BUDGET, releases=(1, 50), n_quantiles=(10, 20), n_bases=(1, 2), batch_fractions=(1.0, 0.3, 0.05))


def test_every_plan_keeps_the_budget(rows):
    for row in rows:
        mechanism = ProjectionMechanism(
            dim=24,
            n_projections=row["n_projections"],
            sigma=row["sigma"],
            batch_size=row["batch_size"],
            statistic="quantiles",
            n_quantiles=row["n_quantiles"],
            kind="orthogonal",
        )
        accountant = PrivacyAccountant().step(mechanism, sample_size=4321, n_releases=row["n_releases"])
        assert 2.985 <= accountant.get_epsilon(1e-5) <= 3 * (1 + 1e-9)


def test_best_first(rows):
    noise = [row["noise_to_spread"] for row in rows]
    assert noise == sorted(noise)
    assert rows[0]["n_releases"] == 1
    assert rows[0]["batch_size"] == 4320
    assert rows[0]["n_quantiles"] == 10
    assert rows[0]["n_projections"] == 24
    assert len(rows) == 2 * 2 * 2 * 3


def test_invalid_input():
    with pytest.raises(InputError, match="sample_size"):
        plan(**{**BUDGET, "sample_size": 9})
    with pytest.raises(InputError, match="releases"):
        plan(**BUDGET, releases=(0,))
