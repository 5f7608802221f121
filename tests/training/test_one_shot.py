"""A budget for a few Gaussian releases: its split, its ledger, its report, and what it refuses."""

import hashlib
import json
import math

import pytest
import torch

from dpswd import InputError
from dpswd.accounting.ledger import Ledger
from dpswd.errors import BudgetExceededError
from dpswd.queries import ClassCounts, SecondMoment
from dpswd.report.render import write_report
from dpswd.training.one_shot import OneShotBudget

N = 1000
LABELS, ROWS = torch.arange(N) % 2, torch.zeros(N, 3)


def spent(directory, shares=(0.25, 0.5), epsilon=2.0, config=None):
    counts, moment = ClassCounts(2, share=shares[0]), SecondMoment(3, share=shares[1])
    budget = OneShotBudget(directory, epsilon, 1e-5)
    with budget.spend([counts, moment], N, config):
        counts.release(LABELS)
        moment.release(ROWS)
    return budget, counts, moment


def test_shares_split_the_squared_mu(tmp_path):
    budget, counts, moment = spent(tmp_path)
    mus = [query.mechanism.sensitivity / query.mechanism.sigma for query in (counts, moment)]
    assert mus[0] ** 2 / (mus[0] ** 2 + mus[1] ** 2) == pytest.approx(0.25, rel=0.02)  # the calibration's slack
    assert math.hypot(*mus) == pytest.approx(budget.facts["mu"], rel=1e-4)
    assert 0.99 * 2.0 < budget.facts["epsilon"] <= 2.0


def test_the_report_is_complete_and_sound(tmp_path):
    spent(tmp_path, config={"method": "test"})
    report = write_report(tmp_path)
    assert report["sound"] is report["private"] is True
    assert report["guarantee"]["epsilon"] <= 2.0
    assert report["guarantee"]["exactly_gaussian"] is True
    assert report["releases"]["made"] == report["releases"]["planned"] == 2
    assert report["config"]["matches_ledger"] is True
    config = (tmp_path / "config.yaml").read_bytes()
    assert config == b"method: test\n"
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").header["config_sha256"] == hashlib.sha256(config).hexdigest()


def test_what_was_not_planned_is_refused(tmp_path):
    counts = ClassCounts(2)
    budget = OneShotBudget(tmp_path, 1.0, 1e-5)
    with budget.spend([counts], N):
        counts.release(LABELS)
        with pytest.raises(BudgetExceededError, match="Expected at most 1 releases within epsilon=1, got one more"):
            counts.release(LABELS)
        with pytest.raises(InputError, match="Expected a ledger for every release while"):
            SecondMoment(3).release(ROWS)
    with pytest.raises(BudgetExceededError, match="got one more"):
        counts.release(LABELS)
    assert json.loads((tmp_path / "privacy.json").read_text())["releases_made"] == 1
    SecondMoment(3).release(ROWS)  # control: no budget is left running


def test_a_failure_leaves_the_account_of_what_was_made(tmp_path):
    counts, moment = ClassCounts(2), SecondMoment(3)
    budget = OneShotBudget(tmp_path, 1.0, 1e-5)

    def careless():
        with budget.spend([counts, moment], N):
            counts.release(LABELS)
            moment.release(ROWS + math.inf)

    with pytest.raises(InputError, match="Expected finite"):
        careless()
    facts = json.loads((tmp_path / "privacy.json").read_text())
    assert (facts["releases_made"], facts["planned_releases"]) == (1, 2)


def test_a_second_run_in_the_same_place_is_refused(tmp_path, tree):
    spent(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(InputError, match="Expected no ledger at"):
        spent(tmp_path)
    assert tree(tmp_path) == before


def test_bad_input_leaves_nothing_behind(tmp_path, tree):
    with pytest.raises(InputError, match="Expected at least one query to spend a budget on, got none"):
        with OneShotBudget(tmp_path / "a", 1.0, 1e-5).spend([], N):
            pass
    with pytest.raises(InputError, match="Expected sample_size >= 1"):
        with OneShotBudget(tmp_path / "a", 1.0, 1e-5).spend([ClassCounts(2)], 0):
            pass
    with pytest.raises(InputError, match="Expected target_epsilon to be finite and above 0"):
        OneShotBudget(tmp_path / "a", 0.0, 1e-5)
    assert tree(tmp_path) == {}


def test_a_place_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="Expected to write into"):
        with OneShotBudget(tmp_path / "file" / "run", 1.0, 1e-5).spend([ClassCounts(2)], N, {"method": "test"}):
            pass
