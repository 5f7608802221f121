"""Statement of a run: the guarantee of weights that have seen several runs,
and what is not covered.
"""

import dataclasses

import pytest

from dpswd.accounting.guarantee import Guarantee
from dpswd.accounting.shared_ledger import LedgerStatement
from dpswd.budget.plan import Target
from dpswd.budget.statement import (
    NOT_COVERED,
    OTHER_RUNS,
    OUTSIDE_LEDGER,
    SEVERAL_RECORDS,
    RunStatement,
)
from dpswd.mechanism import GaussianMechanism

OWN = Guarantee(
    private=True, sound=True, epsilon=1.0, delta=1e-5, mu=0.3, run="b", weights_from_runs=("b",)
)
TOGETHER = dataclasses.replace(OWN, epsilon=1.5, mu=0.4, run=None, weights_from_runs=())
STATEMENT = RunStatement(
    guarantee=OWN,
    target=Target(1.0, 1e-5),
    version="test",
    sample_size=100,
    planned_releases=3,
    releases_made=2,
    mechanism=GaussianMechanism(sensitivity=1.0, sigma=4.0),
)


def after_two_runs(across_runs):
    guarantee = dataclasses.replace(OWN, weights_from_runs=("a", "b"))
    return dataclasses.replace(STATEMENT, guarantee=guarantee, across_runs=across_runs)


def test_weights_of_one_run_have_its_guarantee():
    guarantee = STATEMENT.guarantee_of_weights()
    assert (guarantee.epsilon, guarantee.mu, guarantee.sound) == (1.0, 0.3, True)
    assert "other runs" in guarantee.scope


def test_weights_of_two_runs_have_the_guarantee_of_both():
    """The second run alone would state its own epsilon."""
    guarantee = after_two_runs(LedgerStatement(TOGETHER, "")).guarantee_of_weights()
    assert (guarantee.epsilon, guarantee.mu, guarantee.sound) == (1.5, 0.4, True)
    assert guarantee.weights_from_runs == ("a", "b")


def test_weights_of_two_runs_without_a_shared_ledger_have_no_numbers():
    guarantee = after_two_runs(None).guarantee_of_weights()
    assert (guarantee.epsilon, guarantee.mu, guarantee.sound) == (None, None, False)
    assert guarantee.private


def test_weights_of_a_run_with_a_fixed_seed_have_no_guarantee():
    together = dataclasses.replace(TOGETHER, private=False)
    guarantee = after_two_runs(LedgerStatement(together, "")).guarantee_of_weights()
    assert (guarantee.private, guarantee.scope) == (False, None)


def test_keys_of_privacy_json():
    statement = after_two_runs(LedgerStatement(TOGETHER, "Both runs share a budget."))
    content = statement.to_dict()
    assert content["across_runs"]["epsilon"] == 1.5
    assert content["across_runs"]["sentence"] == "Both runs share a budget."
    assert statement["sound"] is content["sound"] is True
    assert dict(**statement) == content
    with pytest.raises(KeyError):
        statement["sounds"]


def test_records_of_one_person_are_covered_by_a_unit():
    guarantee = dataclasses.replace(OWN, unit="one person, at most 3 records")
    statement = dataclasses.replace(STATEMENT, guarantee=guarantee)
    assert set(NOT_COVERED) - set(statement.not_covered) == {SEVERAL_RECORDS}


def test_other_runs_are_covered_by_a_shared_ledger():
    assert STATEMENT.not_covered == NOT_COVERED
    shared = after_two_runs(LedgerStatement(TOGETHER, ""))
    assert set(NOT_COVERED) - set(shared.not_covered) == {OTHER_RUNS}
    assert set(shared.not_covered) - set(NOT_COVERED) == {OUTSIDE_LEDGER}


def test_words_have_the_total_of_a_shared_ledger():
    assert "shared ledger" not in STATEMENT.in_words()
    lines = after_two_runs(LedgerStatement(TOGETHER, "")).in_words().splitlines()
    assert lines[-1].startswith("  all runs in the shared ledger: ")
    assert "(epsilon, delta) = (1.5, " in lines[-1]
