"""What all runs in a ledger cost together, in words: which of them void the number, and what holds by looking."""

import numpy as np
import pytest

from dpswd import GaussianMechanism, ProjectionMechanism
from dpswd.accounting.across import across, compose, cost, shortcomings, warning
from dpswd.accounting.ledger import Ledger
from dpswd.accounting.shared import SharedBudget, merge

N, DELTA = 100, 1e-5
GAUSSIAN = GaussianMechanism(sensitivity=1.0, sigma=4.0)
SEEDED = GaussianMechanism(sensitivity=1.0, sigma=4.0, noise_seed=7)
ROWS = ProjectionMechanism(dim=4, n_projections=8, sigma=4.0, batch_size=10)
CLT = ProjectionMechanism(dim=400, n_projections=800, sigma=40.0, batch_size=N, bound="clt")


def admit(path, run, mechanism=GAUSSIAN, **more):
    budget = SharedBudget(path, 9.0, DELTA, "pld")
    plan = [{"mechanism": mechanism.to_dict(), "n_releases": 1}]
    budget.reserve(run, {"sample_size": N, "plan": plan, "target_delta": DELTA, **more}, [(mechanism, N, 1)])
    return budget


def own(path, run, mechanism=GAUSSIAN):
    plan = [{"mechanism": mechanism.to_dict(), "n_releases": 1}]
    return Ledger.create(path, {"run": run, "sample_size": N, "plan": plan, "target_delta": DELTA}).path


# a run that voids the number


@pytest.mark.parametrize(
    ("mechanism", "more", "beginning"),
    [
        (SEEDED, {}, "NOT PRIVATE: run bad: a fixed noise seed makes the noise repeatable, so that anyone can take it"),
        (GAUSSIAN, {"private": False}, "NOT PRIVATE: run bad: the run declares itself not private. The numbers for"),
        (CLT, {}, "NOT SOUND: run bad: the bound on the sensitivity is a normal approximation (CLT), not a theorem."),
    ],
)
@pytest.mark.parametrize("order", [["bad", "good"], ["good", "bad"]])
def test_the_sentence_for_all_runs_begins_with_the_run_that_voids_it(tmp_path, mechanism, more, beginning, order):
    for run in order:
        budget = admit(tmp_path / "all", run, *([mechanism] if run == "bad" else []), **(more if run == "bad" else {}))
    facts = budget.facts()
    assert facts["sentence"].startswith(beginning)
    assert "All runs in the ledger that this one shares (2 so far)" in facts["sentence"]
    assert facts["sound"] is False
    assert facts["private"] is beginning.startswith("NOT SOUND")
    assert [entry["run"] for entry in facts["shortcomings"]] == ["bad"]


def test_runs_that_are_sound_say_nothing_of_it(tmp_path):
    admit(tmp_path / "all", "a")
    facts = admit(tmp_path / "all", "b", ROWS).facts()
    assert facts["sentence"].startswith("All runs in the ledger that this one shares (2 so far)")
    assert (facts["private"], facts["sound"], facts["shortcomings"]) == (True, True, [])


def test_several_runs_are_named_by_reason_and_the_worse_first(tmp_path):
    for run, mechanism in (("a", CLT), ("b", SEEDED), ("c", GAUSSIAN), ("d", SEEDED)):
        admit(tmp_path / "all", run, mechanism)
    ledger = Ledger.open_existing(tmp_path / "all")
    assert across(ledger, DELTA, "pld")["sentence"].startswith(warning(shortcomings(ledger)))
    first, second = warning(shortcomings(ledger)).split(" NOT SOUND: ")
    assert first.startswith("NOT PRIVATE: runs b, d: a fixed noise seed")
    assert first.endswith("The numbers for all runs together do not hold.")
    assert second.startswith("run a: ")
    assert second.endswith("are not proven upper bounds.")


def test_what_was_released_beyond_the_plan_counts(tmp_path):
    """A ledger of one run, and the same run in a merged one."""
    path = own(tmp_path / "a", "a")
    assert not across(Ledger.open_existing(path), DELTA, "pld")["sentence"]
    Ledger.open_existing(path).record(SEEDED, N)
    for ledger in (Ledger.open_existing(path), merge([path, own(tmp_path / "b", "b")], tmp_path / "all")):
        facts = across(ledger, DELTA, "pld")
        assert facts["sentence"].startswith("NOT PRIVATE: run a: a fixed noise seed")
        assert facts["private"] is facts["sound"] is False


# what holds where plans are chosen by looking


def test_the_budget_that_was_fixed_holds_by_looking_and_the_number_so_far_does_not(tmp_path):
    admit(tmp_path / "all", "a")
    line = admit(tmp_path / "all", "b").facts()["assumptions"][-1]
    assert "may be chosen after looking" in line
    assert "what holds then is the budget that was fixed beforehand, epsilon 9 at delta 1e-05." in line
    assert "The number so far holds for plans that were not chosen by looking." in line
    admit(tmp_path / "all", "c", ROWS)
    line = across(Ledger.open_existing(tmp_path / "all"), DELTA, "pld")["assumptions"][-1]
    assert line.startswith("Assumed: the plan of a later run")
    assert line.endswith(
        "is not chosen by looking at what earlier runs released; nothing is promised for plans that are."
    )


@pytest.mark.parametrize("budget", [None, 9.0])
def test_a_merge_promises_nothing_by_looking(tmp_path, budget):
    ledger = merge([own(tmp_path / run, run) for run in "ab"], tmp_path / "all", target_epsilon=budget)
    facts = across(ledger, DELTA, "pld")
    assert "may be chosen" not in facts["sentence"]
    assert facts["sentence"].endswith(
        "nothing is promised for plans that are: no budget was fixed before all of these runs."
    )
    assert ("their budget is epsilon 9." in facts["sentence"]) is (budget is not None)
    further = admit(tmp_path / "all", "c").facts()["assumptions"][-1]
    assert "may be chosen" not in further


def test_the_ledger_of_one_run_says_nothing_of_later_ones(tmp_path):
    facts = across(Ledger.open_existing(own(tmp_path / "a", "a")), DELTA, "pld")
    assert not any("later run" in line for line in facts["assumptions"])


def test_stopping_by_looking_beats_the_number_so_far_and_not_the_budget():
    """Ten Gaussian runs; their loss is a Gaussian walk. delta is at least the mean of (1 - e^(epsilon - loss))+."""
    delta, runs, n = 1e-3, 10, 400_000
    mu = np.sqrt(0.02 * 2.0 ** np.arange(runs))
    steps = np.sqrt(np.diff(mu**2, prepend=0))
    plans = [(GaussianMechanism(sensitivity=1.0, sigma=1 / float(step)), N, 1) for step in steps]
    so_far = [compose(plans[:i]).get_epsilon(delta) for i in range(1, runs + 1)]
    rng, loss = np.random.default_rng(0), np.zeros(n)
    stopped, at_so_far, at_budget = np.zeros(n, bool), 0.0, 0.0
    for step, epsilon in zip(steps, so_far, strict=True):
        loss += step * rng.standard_normal(n) + step**2 / 2
        now = ~stopped & (loss > epsilon)
        at_so_far += float((1 - np.exp(epsilon - loss[now])).sum()) / n
        at_budget += float((1 - np.exp(so_far[-1] - loss[now])).clip(min=0).sum()) / n
        stopped |= now
    deviation = (delta / n) ** 0.5  # of a mean of n numbers between 0 and 1, whose mean is delta at most
    assert at_so_far > 4 * delta + 5 * deviation
    assert at_budget <= delta + 5 * deviation


def test_costs_without_a_ledger():
    assert cost([], DELTA)["epsilon"] == 0
    assert any(
        "Parallel composition is not assumed" in line
        for line in cost([(GAUSSIAN, N, 2), (GAUSSIAN, 9, 2)], DELTA)["assumptions"]
    )
