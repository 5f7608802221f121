"""A budget that spans runs: admission, composition, several writers, merging."""

import json
import multiprocessing

import pytest

from dpswd import BudgetExceededError, GaussianMechanism, InputError, PrivacyAccountant, ProjectionMechanism
from dpswd.accounting.across import compose, cost
from dpswd.accounting.ledger import Ledger
from dpswd.accounting.shared import SharedBudget, merge

N, DELTA = 100, 1e-5
GAUSSIAN = GaussianMechanism(sensitivity=1.0, sigma=4.0)  # mu 1/4; five together: epsilon 2.2
ROWS = ProjectionMechanism(dim=4, n_projections=8, sigma=4.0, batch_size=10)


def facts(mechanism=GAUSSIAN, count=1, size=N, **more):
    plan = [{"mechanism": mechanism.to_dict(), "n_releases": count}]
    return {"sample_size": size, "plan": plan, "version": "test", "target_delta": DELTA, **more}


def admit(path, run, mechanism=GAUSSIAN, count=1, *, epsilon=None, size=N):
    budget = SharedBudget(path, epsilon, DELTA, "pld")
    budget.check([(mechanism, size, count)])
    budget.reserve(run, facts(mechanism, count, size), [(mechanism, size, count)])
    return budget


def test_runs_are_admitted_until_their_plans_use_up_the_budget(tmp_path):
    path = tmp_path / "all.jsonl"
    limit = compose([(GAUSSIAN, N, 3)]).get_epsilon(DELTA) * 1.001
    for run in "abc":
        admit(path, run, epsilon=limit)
    before = path.read_bytes()
    with pytest.raises(BudgetExceededError, match=r"Expected all runs in .* to cost at most .*, got .* with this one"):
        admit(path, "d", epsilon=limit)
    assert path.read_bytes() == before  # none of the three has released anything: plans count
    ledger = Ledger.open_existing(path)
    assert (ledger.n_releases, list(ledger.runs)) == (0, ["a", "b", "c"])
    assert ledger.planned() == [(GAUSSIAN, N, 1)] * 3
    assert cost(ledger.planned(), DELTA)["mu"] == pytest.approx(3**0.5 / 4, rel=1e-4)  # Dong2022, Corollary 3.3


def test_check_writes_nothing(tmp_path):
    SharedBudget(tmp_path / "all.jsonl", 1.0, DELTA, "pld").check([(GAUSSIAN, N, 1)])
    assert not list(tmp_path.iterdir())


def test_a_run_releases_its_plan_and_nothing_else(tmp_path):
    path = tmp_path / "all.jsonl"
    first, second = admit(path, "a", count=2, epsilon=9.0), admit(path, "b", ROWS, 3)
    for budget, mechanism in ((first, GAUSSIAN), (second, ROWS), (first, GAUSSIAN), (second, ROWS)):
        budget.record(mechanism, N)  # in turn: each reads what the other added
    with pytest.raises(BudgetExceededError, match="Expected at most 2 such releases by this run"):
        first.record(GAUSSIAN, N)
    with pytest.raises(BudgetExceededError, match="Expected at most 0 such releases by this run"):
        first.record(ROWS, N)
    ledger = Ledger.open_existing(path)
    assert ledger.groups("a") == [(GAUSSIAN, N, 2)]
    assert ledger.groups("b") == [(ROWS, N, 2)]
    assert ledger.planned() == [(GAUSSIAN, N, 2), (ROWS, N, 3)]
    assert ledger.n_releases == 4


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((9.5, DELTA), "Expected a budget of at most epsilon=9.0 for all runs"),
        ((9.0, 1e-6), "Expected target_delta=1e-05 as in"),
        ((0.0, DELTA), "ledger_epsilon"),
    ],
)
def test_another_budget(tmp_path, arguments, match):
    admit(tmp_path / "all.jsonl", "a", epsilon=9.0)
    with pytest.raises(InputError, match=match):
        SharedBudget(tmp_path / "all.jsonl", *arguments, "pld")


def test_refusals_say_why(tmp_path):
    with pytest.raises(InputError, match=r"Expected a budget for all runs in .*, got none"):
        SharedBudget(tmp_path / "new.jsonl", None, DELTA, "pld")
    admit(tmp_path / "all.jsonl", "a", epsilon=9.0)
    with pytest.raises(InputError, match=r"Expected 100 records as the other runs in .*, got 90"):
        admit(tmp_path / "all.jsonl", "b", size=90)
    Ledger.create(tmp_path / "one.jsonl", {})
    with pytest.raises(InputError, match=r"got that of one run; make one of it with dpswd ledger merge\."):
        SharedBudget(tmp_path / "one.jsonl", 1.0, DELTA, "pld")
    with pytest.raises(InputError, match="Expected a run that is planned in"):
        Ledger.open_existing(tmp_path / "all.jsonl").record(GAUSSIAN, N, "stranger")


def test_a_torn_first_line_is_no_ledger(tmp_path):
    path = tmp_path / "all.jsonl"
    for content in (b"", b'{"accoun'):
        path.write_bytes(content)
        assert admit(path, "a", epsilon=1.0).ledger.runs
        path.unlink()
    path.write_bytes(b"my only copy of a poem, without a line break")
    with pytest.raises(InputError, match=r"Expected line 1 of .* to be whole or cut off"):
        SharedBudget(path, 1.0, DELTA, "pld")
    assert path.read_bytes().startswith(b"my only copy")


def test_resume_wants_the_record_of_the_checkpoint(tmp_path):
    path = tmp_path / "all.jsonl"
    first = admit(path, "a", count=3, epsilon=9.0)
    first.record(GAUSSIAN, N)
    first.record(GAUSSIAN, N)
    head, whole = first.head, path.read_bytes()
    again = SharedBudget(path, None, DELTA, "pld")
    again.resume("a", 2, head)
    again.record(GAUSSIAN, N)
    path.write_bytes(b"".join(whole.splitlines(keepends=True)[:-1]))
    for releases, wanted in ((2, head), (1, head), (2, "")):  # by the count and by the hash, each alone too
        with pytest.raises(InputError, match="the ledger was cut or is another one, so the run cannot go on"):
            SharedBudget(path, None, DELTA, "pld").resume("a", releases, wanted)
    with pytest.raises(InputError, match=r"Expected the run that is resumed in .*, got none"):
        SharedBudget(path, None, DELTA, "pld").resume("b", 0, "")


# several processes


def compete(path, run, epsilon, answers):
    try:
        budget = admit(path, run, count=5, epsilon=epsilon)
        for _ in range(5):
            budget.record(GAUSSIAN, N)
        answers.put((run, "made"))
    except BudgetExceededError:
        answers.put((run, "refused"))


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")  # the children write lines, nothing else
def test_processes_that_compete_for_what_is_left(tmp_path):
    path, context = tmp_path / "all.jsonl", multiprocessing.get_context("fork")
    limit = compose([(GAUSSIAN, N, 12)]).get_epsilon(DELTA)  # room for two runs of five
    answers = context.Queue()
    children = [context.Process(target=compete, args=(path, str(i), limit, answers)) for i in range(4)]
    for child in children:
        child.start()
    found = sorted(answers.get(timeout=30)[1] for _ in children)
    for child in children:
        child.join()
    assert found == ["made", "made", "refused", "refused"]
    ledger = Ledger.open_existing(path)  # the chain holds
    assert ledger.n_releases == 10
    assert len(ledger.runs) == 2


# merge


def of_one_run(path, run, mechanism=GAUSSIAN, made=1, planned=1, size=N, **more):
    ledger = Ledger.create(path, facts(mechanism, planned, size, run=run, **more))
    for _ in range(made):
        ledger.record(mechanism, size)
    return path


def test_merged_runs_compose(tmp_path):
    paths = [of_one_run(tmp_path / "a", "a", made=2, planned=3), of_one_run(tmp_path / "b", "b", ROWS, 4, 4)]
    merged = merge(paths, tmp_path / "all.jsonl")
    assert merged.planned() == [(GAUSSIAN, N, 3), (ROWS, N, 4)]
    assert merged.groups() == [(GAUSSIAN, N, 2), (ROWS, N, 4)]
    assert merged.n_releases == 6
    fresh = PrivacyAccountant().step(GAUSSIAN, sample_size=N, n_releases=3).step(ROWS, sample_size=N, n_releases=4)
    assert cost(merged.planned(), DELTA)["epsilon"] == pytest.approx(fresh.get_epsilon(DELTA), rel=1e-12)
    assert merged.header["merged_from"] == [Ledger.open_existing(path).head for path in paths]
    admit(tmp_path / "all.jsonl", "c", epsilon=9.0)  # a further run
    assert len(merge([tmp_path / "all.jsonl", of_one_run(tmp_path / "d", "d")], tmp_path / "more.jsonl").runs) == 4
    assert not list(tmp_path.glob("*.part"))


def test_copies_that_went_on_separately_both_count(tmp_path):
    one = of_one_run(tmp_path / "a", "a", made=1, planned=3)
    other = tmp_path / "copy"
    other.write_bytes(one.read_bytes())
    with pytest.raises(InputError, match=r"Expected different runs, got the same one in .* \(run a\); give it once"):
        merge([one, other], tmp_path / "all.jsonl")
    Ledger.open_existing(one).record(GAUSSIAN, N)
    with pytest.raises(InputError, match="got the same one"):  # the copy is a part of it
        merge([other, one], tmp_path / "all.jsonl")
    Ledger.open_existing(other).record(ROWS, N)
    merged = merge([one, other], tmp_path / "all.jsonl")
    assert sum(count for *_, count in merged.planned()) == 3 + 3 + 1  # both plans, and what was not planned
    with pytest.raises(InputError, match="got the same one"):
        merge([tmp_path / "all.jsonl", one], tmp_path / "more.jsonl")


def test_merge_refuses_and_leaves_nothing(tmp_path):
    one, small = of_one_run(tmp_path / "a", "a"), of_one_run(tmp_path / "b", "b", size=50)
    exact = of_one_run(tmp_path / "c", "c")
    exact.write_text(exact.read_text().replace('"target_delta": 1e-05', '"target_delta": 1e-3'))
    other_delta = Ledger.create(tmp_path / "d", {"run": "d", "target_delta": 1e-6})
    before = sorted(tmp_path.iterdir())
    out = tmp_path / "all.jsonl"
    for paths, match, more in [
        ([one, small], "got data sets of 50, 100 records; if a record may be in each", {}),
        ([one, exact], "the ledger was edited", {}),
        ([one, other_delta.path], "Expected --delta", {}),
        ([one, tmp_path / "none"], "got none", {}),
        ([one], "Expected a new file for the merged ledger", {"out": small}),
        ([one], "Expected these runs to cost at most epsilon=0.1, got", {"target_epsilon": 0.1}),
        ([one], "Expected to write a ledger", {"out": one / "all.jsonl"}),
    ]:
        with pytest.raises(InputError, match=match):
            merge(paths, **({"out": out} | more))
        assert sorted(tmp_path.iterdir()) == before
    merged = merge([one, small], out, different_sizes=True)
    assert [size for _, size, _ in merged.planned()] == [100, 50]
    assert merged.header["sample_size"] is None


def test_a_line_of_a_shared_ledger_cannot_be_moved(tmp_path):
    path = tmp_path / "all.jsonl"
    budget = admit(path, "a", epsilon=9.0)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + json.dumps(json.loads(lines[1]) | {"sample_size": 10}).encode() + b"\n")
    with pytest.raises(InputError, match="got another file: it was replaced, cut or edited"):
        budget.record(GAUSSIAN, N)
