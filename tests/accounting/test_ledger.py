"""Ledger and shared ledger: written before noise, chained, budget checks,
concurrent writers, damaged files.
"""

import json
import multiprocessing
import os
import re
import resource
import signal

import hypothesis.strategies as st
import pytest
from factories import REFUSED, damage, fuzz, outcome, untouched

from dpswd import (
    BudgetExceededError,
    GaussianMechanism,
    InputError,
    PrivacyAccountant,
    ProjectionMechanism,
)
from dpswd.accounting.ledger import CONDITIONS, FORMAT, HANDED_OVER, Ledger, digest
from dpswd.accounting.shared_ledger import SharedLedger, statement
from dpswd.errors import LedgerError

N, DELTA = 100, 1e-5
ROWS = ProjectionMechanism(dim=4, n_projections=8, sigma=4.0, batch_size=10)
COUNTS = GaussianMechanism(sensitivity=1.0, sigma=4.0, name="class counts")  # mu = 1/4
SEEDED = GaussianMechanism(sensitivity=1.0, sigma=4.0, noise_seed=7)
CLT = ProjectionMechanism(dim=400, n_projections=800, sigma=40.0, batch_size=N, bound="clt")


def facts(mechanism=COUNTS, count=1, size=N, **more):
    plan = [{"mechanism": mechanism.to_dict(), "n_releases": count}]
    return {"sample_size": size, "plan": plan, "version": "test", "target_delta": DELTA, **more}


def epsilon(*groups):
    return PrivacyAccountant.from_groups(groups).get_epsilon(DELTA)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "ledger.jsonl"


@pytest.fixture
def written(path):
    """A ledger of five releases by two mechanisms."""
    ledger = Ledger.create(path, {"target_epsilon": 1.0})
    for mechanism in (ROWS, COUNTS, ROWS, ROWS, COUNTS):
        ledger.record(mechanism, N)
    return ledger


@pytest.fixture
def shared(tmp_path):
    return SharedLedger.create(tmp_path / "all.jsonl", target_epsilon=9.0, target_delta=DELTA)


def test_round_trip(path, written):
    again = Ledger.open_existing(path)
    assert again.groups() == written.groups() == [(ROWS, N, 3), (COUNTS, N, 2)]
    assert (again.header, again.n_releases, again.head) == (
        {"format": FORMAT, "target_epsilon": 1.0},
        5,
        written.head,
    )
    again.record(ROWS, 90)  # another sample size is another group
    assert Ledger.open_existing(path).groups()[-1] == (ROWS, 90, 1)
    assert again.count(ROWS, N) == 3
    assert PrivacyAccountant.from_groups(again.groups()).get_epsilon(DELTA) > 0


def test_release_is_on_the_disk_when_record_returns(path, monkeypatch):
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda descriptor: synced.append(path.read_bytes().count(b'"kind": "release"'))
    )
    ledger = Ledger.create(path, {})
    for count in (1, 2, 3):
        ledger.record(ROWS, N)
        assert synced[-1] == count
        assert Ledger.open_existing(path).n_releases == count


def test_a_limit_on_the_size_of_files(tmp_path, path, written):
    """As a full disk: a line that does not fit is removed again, and a new ledger stays empty."""
    before = path.read_bytes()
    limits, handler = (
        resource.getrlimit(resource.RLIMIT_FSIZE),
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
    )
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, limits[1]))
        with pytest.raises(LedgerError, match="File too large"):
            written.record(ROWS, N)
        assert path.read_bytes() == before
        with pytest.raises(LedgerError, match="File too large"):
            Ledger.create(tmp_path / "other", {"long": "x" * len(before)})
        assert not (tmp_path / "other").read_bytes()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    written.record(ROWS, N)
    assert Ledger.open_existing(path).n_releases == 6


def test_an_incomplete_last_line_is_replaced_and_a_damaged_one_refused(path, written):
    """A line that was written whole is a release that was made,
    also where bytes in it were lost.
    """
    whole = path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    for lost in (b"\x07", b"\0" * 10):
        path.write_bytes(whole[: start + 19] + lost + whole[start + 19 + len(lost) : -1])
        with pytest.raises(LedgerError):
            Ledger.open_existing(path)
    for byte in b"x} \x00\xff\r":  # in place of the last line break: must not hide the release
        path.write_bytes(whole[:-1] + bytes([byte]))
        with pytest.raises(LedgerError):
            Ledger.open_existing(path)
    for cut in (start + 1, start + 20, len(whole) - 1):  # the last one lacks its line break only
        path.write_bytes(whole[:cut])
        ledger = Ledger.open_existing(path)
        assert (ledger.n_releases, ledger.torn) == (
            4,
            True,
        )  # its noise was not drawn: record had not returned
        ledger.record(COUNTS, N)
        assert Ledger.open_existing(path).groups() == written.groups()


def test_create_replaces_a_ledger_without_releases_only(path, written):
    before = path.read_bytes()
    for create in (Ledger.check_free, lambda path: Ledger.create(path, {})):
        with pytest.raises(InputError, match=r"ledger\.jsonl"):
            create(path)
    assert path.read_bytes() == before
    for content in (before.splitlines(keepends=True)[0], b"", b'{"kin'):  # a header, and less
        path.write_bytes(content)
        Ledger.check_free(path)
        assert Ledger.create(path, {"run": "b"}).header["run"] == "b"


def edit(path, number, change):
    lines = path.read_bytes().splitlines(keepends=True)
    lines[number - 1 : number] = change(lines[number - 1])
    path.write_bytes(b"".join(lines))


def changed(**values):
    return lambda line: [json.dumps(json.loads(line) | values, sort_keys=True).encode() + b"\n"]


@pytest.mark.parametrize(
    ("number", "change"),
    [
        (1, changed(target_epsilon=9.0)),
        (2, changed(sample_size=10**9)),
        (3, lambda line: []),
        (3, lambda line: [line, line]),
        (8, lambda line: [line, b"no json\n"]),
    ],
)
def test_edited_ledger_is_refused(path, written, number, change):
    edit(path, number, change)
    with pytest.raises(LedgerError, match=r"line \d"):
        Ledger.open_existing(path)


def forged(path, *entries):
    """Writes entries whose hashes are right."""
    path.parent.mkdir(exist_ok=True)
    head, lines = "", []
    for entry in entries:
        head = digest(head, entry)
        lines.append(json.dumps(entry | {"hash": head}) + "\n")
    path.write_text("".join(lines))


HEADER = {"kind": "header", "format": 3}
MECHANISM = {"kind": "mechanism", "id": 0, "sample_size": 10, "mechanism": COUNTS.to_dict()}


@pytest.mark.parametrize(
    "entries",
    [
        [HEADER | {"format": 2}],
        [{"kind": "release", "n": 1, "mechanism": 0}],
        [HEADER, {"kind": "refund"}],
        [HEADER, {"kind": "release", "n": 1, "mechanism": 0}],
        [HEADER, MECHANISM | {"mechanism": {"mechanism": "laplace"}}],
        [HEADER, MECHANISM, {"kind": "release", "n": 2, "mechanism": 0}],
        [HEADER, MECHANISM, {"kind": "release", "n": 1, "mechanism": -1}],
        [HEADER, {"kind": "run", "run": "a"}, {"kind": "run", "run": "a"}],
    ],
)
def test_invalid_entries_with_valid_hashes_are_refused(path, entries):
    forged(path, *entries)
    with pytest.raises(LedgerError):
        Ledger.open_existing(path)


def test_second_writer_of_a_run_is_refused(path, written):
    other = Ledger.open_existing(path)  # another process, or a copy of the object
    other.record(ROWS, N)
    with pytest.raises(LedgerError, match="second process"):
        written.record(ROWS, N)
    assert Ledger.open_existing(path).n_releases == 6
    edit(path, 9, changed(n=7))
    with pytest.raises(LedgerError, match="no release was made"):
        other.record(ROWS, N)
    path.unlink()
    with pytest.raises(LedgerError, match="no release was made"):
        other.record(ROWS, N)


def test_missing_and_unwritable_paths(path, tmp_path):
    for wrong in (path, tmp_path):
        with pytest.raises(InputError, match="ledger"):
            Ledger.open_existing(wrong)
    path.parent.mkdir()
    path.write_bytes(b"")
    with pytest.raises(LedgerError, match="complete line"):
        Ledger.open_existing(path)
    with pytest.raises(LedgerError, match="write"):
        Ledger.create(path / "ledger.jsonl", {})


def test_plans_are_reserved_until_the_budget_is_used(tmp_path):
    limit = epsilon((COUNTS, N, 3)) * 1.001
    ledger = SharedLedger.create(tmp_path / "all", target_epsilon=limit, target_delta=DELTA)
    for run in "abc":
        ledger.reserve(run, facts())
    before = ledger.path.read_bytes()
    with pytest.raises(BudgetExceededError, match="epsilon"):
        ledger.check([(COUNTS, N, 1)])
    with pytest.raises(BudgetExceededError, match="epsilon"):
        ledger.reserve("d", facts())
    assert ledger.path.read_bytes() == before
    again = SharedLedger.open_existing(ledger.path)
    assert (again.n_releases, list(again.runs), again.header["target_epsilon"]) == (
        0,
        ["a", "b", "c"],
        limit,
    )
    assert again.planned() == [(COUNTS, N, 1)] * 3  # nothing was released: plans count
    assert statement(again).guarantee.mu == pytest.approx(
        3**0.5 / 4, rel=1e-4
    )  # Dong2022, Corollary 3.3


def test_run_releases_its_plan_only(shared):
    other = SharedLedger.open_existing(shared.path)
    shared.reserve("a", facts(COUNTS, 2))
    other.reserve("b", facts(ROWS, 3))
    for ledger, run, mechanism in (
        (shared, "a", COUNTS),
        (other, "b", ROWS),
        (shared, "a", COUNTS),
    ):
        ledger.record(mechanism, N, run)  # each reads the lines of the other
    for mechanism in (COUNTS, ROWS):
        with pytest.raises(BudgetExceededError, match="run a"):
            shared.record(mechanism, N, "a")
    with pytest.raises(LedgerError, match="plan"):
        shared.record(COUNTS, N, "unknown")
    ledger = Ledger.open_existing(shared.path)
    assert (ledger.groups("a"), ledger.groups("b")) == ([(COUNTS, N, 2)], [(ROWS, N, 1)])
    assert ledger.planned() == [(COUNTS, N, 2), (ROWS, N, 3)]


def test_shared_ledger_is_created_once(shared, tmp_path):
    shared.reserve("a", facts())  # charged, even if it has released nothing
    with pytest.raises(InputError, match="existing"):
        SharedLedger.create(shared.path, target_epsilon=1.0, target_delta=DELTA)
    for wrong in (tmp_path / "none", Ledger.create(tmp_path / "run", {}).path):
        with pytest.raises(InputError, match="dpswd ledger create"):
            SharedLedger.open_existing(wrong)
    for name, value in (("target_epsilon", 0.0), ("target_delta", 1.0), ("accountant", "x")):
        arguments = {"target_epsilon": 1.0, "target_delta": DELTA, name: value}
        with pytest.raises(InputError, match=name):
            SharedLedger.create(tmp_path / "new", **arguments)
    with pytest.raises(InputError, match="sample_size"):
        shared.reserve("b", facts(size=90))
    weak = SharedLedger.create(tmp_path / "weak", target_epsilon=9.0, target_delta=1 / N)
    with pytest.raises(InputError, match="below 1 / N"):
        weak.check([(COUNTS, N, 1)])
    weak.check([(COUNTS, N - 1, 1)])  # control


def compete(path, run, answers):
    try:
        ledger = SharedLedger.open_existing(path)
        ledger.reserve(run, facts(count=5))
        for _ in range(5):
            ledger.record(COUNTS, N, run)
        answers.put("made")
    except BudgetExceededError:
        answers.put("refused")


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_processes_compete_for_the_budget(tmp_path):
    limit = epsilon((COUNTS, N, 12))  # room for two runs of five releases
    path = SharedLedger.create(tmp_path / "all", target_epsilon=limit, target_delta=DELTA).path
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    children = [context.Process(target=compete, args=(path, str(i), answers)) for i in range(4)]
    for child in children:
        child.start()
    found = sorted(answers.get(timeout=60) for _ in children)
    for child in children:
        child.join()
    assert found == ["made", "made", "refused", "refused"]
    ledger = Ledger.open_existing(path)
    assert (ledger.n_releases, len(ledger.runs)) == (10, 2)


@pytest.mark.parametrize(
    ("mechanism", "more", "kind", "why"),
    [
        (SEEDED, {}, "NOT PRIVATE", "noise seed"),
        (CLT, {}, "NOT SOUND", "CLT"),
        (COUNTS, {"records": HANDED_OVER}, "CONDITIONAL", CONDITIONS[0]),
    ],
)
@pytest.mark.parametrize("order", [["bad", "good"], ["good", "bad"]])
def test_statement_starts_with_the_run_that_voids_it(shared, mechanism, more, kind, why, order):
    for run in order:
        shared.reserve(run, facts(mechanism, **more) if run == "bad" else facts())
    found = statement(SharedLedger.open_existing(shared.path))
    assert found.sentence.startswith(f"{kind}: run bad: ")
    assert why in found.sentence
    assert not found.guarantee.sound
    assert found.guarantee.private == (kind != "NOT PRIVATE")
    assert "run good" not in found.sentence


def test_statement_of_sound_runs(shared):
    for run in (None, "a"):
        if run:
            shared.reserve(run, facts())
        line = statement(SharedLedger.open_existing(shared.path)).guarantee.assumptions[-1]
        assert (
            "after you have looked at releases" in line
        )  # exactly Gaussian: the budget is a privacy filter
    shared.reserve("b", facts(ROWS))
    found = statement(SharedLedger.open_existing(shared.path))
    assert found.guarantee.private
    assert found.guarantee.sound
    assert found.sentence.startswith("Runs in the shared ledger: 2,")
    assert found.guarantee.assumptions[-1].startswith("Assumed: plans of later runs")
    assert found.guarantee.epsilon == pytest.approx(
        epsilon((COUNTS, N, 1), (ROWS, N, 1)), rel=1e-12
    )


def test_numbers_of_a_shared_ledger_are_rounded_up(shared):
    for number in range(12):
        shared.reserve(str(number), facts())
        total = statement(SharedLedger.open_existing(shared.path))
        epsilon, mu = re.search(r"epsilon (\S+) at delta \S+, mu (\S+)\. ", total.sentence).groups()
        assert total.guarantee.epsilon <= float(epsilon) <= 1.002 * total.guarantee.epsilon
        assert total.guarantee.mu <= float(mu) <= 1.002 * total.guarantee.mu


def test_statement_of_one_run(path):
    ledger = Ledger.create(path, facts(run="a"))
    assert statement(ledger).sentence == ""
    ledger.record(SEEDED, N)
    assert ledger.planned() == [
        (COUNTS, N, 1),
        (SEEDED, N, 1),
    ]  # a release beyond the plan counts, too
    assert statement(Ledger.open_existing(path)).sentence.startswith("NOT PRIVATE: run a")


# Damaged files: refused, or read with at least the same count


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory):
    """Bytes of a ledger with a plan, of one without, and of a shared one."""
    directory = tmp_path_factory.mktemp("ledgers")
    for name, header in (
        ("planned", facts(ROWS, 4, run="a" * 16)),
        ("bare", {"target_delta": DELTA}),
    ):
        ledger = Ledger.create(directory / name, header)
        for mechanism in (COUNTS, ROWS, ROWS, ROWS):
            ledger.record(mechanism, N)
    ledger = SharedLedger.create(directory / "shared", target_epsilon=9.0, target_delta=DELTA)
    ledger.reserve("b", facts(ROWS))
    ledger.record(ROWS, N, "b")
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("name", ["planned", "bare", "shared"])
@fuzz(150, data=st.data())
def test_damage(name, ledgers, tmp_path, data):
    whole = ledgers[name]
    content = data.draw(damage(whole))
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(whole)
    before = Ledger.open_existing(path)
    path.write_bytes(content)
    with untouched(tmp_path):
        found = outcome(Ledger.open_existing, path)
    if found is REFUSED:
        return
    if not whole.startswith(
        content.rstrip(b"\0")
    ):  # not a cut, which count and head of the checkpoint show
        assert (found.planned(), found.groups()) == (before.planned(), before.groups())
    elif name == "planned":
        assert (ROWS, N, 4) in found.planned()
    assert set(found.heads) <= set(before.heads)


@fuzz(20, content=st.binary(max_size=300))
def test_other_files_are_never_overwritten(tmp_path, content):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content)
    made = outcome(Ledger.create, path, {"target_epsilon": 1.0})
    assert made is not REFUSED or path.read_bytes() == content
    if content and not content.startswith(b'{"'):
        assert made is REFUSED
