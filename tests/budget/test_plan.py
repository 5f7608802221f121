"""The epsilon of a part of a plan, as a progress bar shows it."""

import itertools

import pytest

from dpswd.budget.plan import Plan, ReleaseRequest, Target
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism


@pytest.fixture(scope="module")
def plan():
    """Sixty releases within epsilon = 8."""
    request = ReleaseRequest(GaussianMechanism(sensitivity=1.0), 60, share=0.2)
    return Plan.calibrate([request], Target(8.0, 1e-5), sample_size=1000)


def test_epsilon_grows_to_the_target_at_the_end_of_the_plan(plan):
    spent = [plan.epsilon_after(n) for n in (1, 15, 30, 33, 48, 56, 60)]
    assert spent == sorted(spent)
    assert spent[3] < 7  # of 33 releases
    assert spent[-2] < spent[-1] == pytest.approx(plan.epsilon())


def test_epsilon_is_not_below_that_of_the_releases_made(plan):
    for n in (1, 7, 31, 59):
        request = plan.parts[-1]
        made = Plan(plan.target, plan.sample_size, (type(request)(request.mechanism, n),))
        assert plan.epsilon_after(n) >= made.epsilon()


def test_few_values_are_computed_in_a_run(plan):
    assert len({plan.epsilon_after(n) for n in range(1, 61)}) <= 20


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_subsampled_releases_have_an_epsilon_by_each_accountant(accountant):
    mechanism = ProjectionMechanism(16, 16, batch_size=100, kind="orthogonal")
    request = ReleaseRequest(mechanism, 30, share=0.2)
    plan = Plan.calibrate([request], Target(4.0, 1e-5, accountant), sample_size=2000)
    epsilons = plan.epsilon_by_accountant()
    assert epsilons[accountant] == plan.epsilon()
    assert epsilons["pld"] < epsilons["rdp"]


def test_subsampled_releases_show_what_is_spent_by_each_accountant():
    mechanism = ProjectionMechanism(16, 16, batch_size=100, kind="orthogonal")
    request = ReleaseRequest(mechanism, 30, share=0.2)
    plan = Plan.calibrate([request], Target(4.0, 1e-5), sample_size=2000)
    spent = [plan.epsilons_after(n) for n in (1, 10, 30)]
    assert [epsilons["pld"] for epsilons in spent] == [plan.epsilon_after(n) for n in (1, 10, 30)]
    for earlier, later in itertools.pairwise(spent):
        assert earlier["pld"] < later["pld"]
        assert earlier["rdp"] < later["rdp"]
    assert spent[-1] == plan.epsilon_by_accountant()


def test_releases_of_all_records_have_one_epsilon(plan):
    assert plan.epsilon_by_accountant() == {}
    assert plan.epsilons_after(30) == {}
