"""Ledgers that are damaged: refused with the reason, or read as what they were. Never does the account get smaller."""

import collections
import json
import shutil
from pathlib import Path

import hypothesis.strategies as st
import pytest
from factories import REFUSED, command, damage, fuzz, outcome, untouched

from dpswd import GaussianMechanism, ProjectionMechanism
from dpswd.accounting.across import cost
from dpswd.accounting.chain import digest
from dpswd.accounting.ledger import Ledger
from dpswd.accounting.shared import SharedBudget, merge

ROWS = ProjectionMechanism(dim=4, n_projections=8, sigma=3.0, batch_size=100, kind="orthogonal")
COUNTS = GaussianMechanism(sensitivity=2**0.5, sigma=20.0, name="class counts")
PLAN = [{"mechanism": ROWS.to_dict(), "n_releases": 4}, {"mechanism": COUNTS.to_dict(), "n_releases": 1}]
FACTS = {"version": "0.1.0", "sample_size": 100, "target_epsilon": 5.0, "target_delta": 1e-5, "private": True}


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory):
    """Bytes of a ledger with a plan, of one without, and of one of two runs."""
    directory = tmp_path_factory.mktemp("ledgers")
    for name, header in (("planned", FACTS | {"plan": PLAN, "run": "a" * 16}), ("bare", FACTS)):
        ledger = Ledger.create(directory / name, header)
        for mechanism in (COUNTS, ROWS, ROWS, ROWS):
            ledger.record(mechanism, 100)
    shared = merge([directory / "planned"], directory / "shared", target_epsilon=9.0)
    plan = [(ROWS, 100, 1)]
    shared.reserve("b", FACTS | {"plan": [{"mechanism": ROWS.to_dict(), "n_releases": 1}]}, lambda ledger: None)
    shared.record(*plan[0][:2], "b")
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def spent(ledger):
    return cost(ledger.planned(), 1e-5)["mu"]


def counts(groups):
    found = collections.Counter()
    for mechanism, _, count in groups:
        found[json.dumps(mechanism.to_dict(), sort_keys=True)] += count
    return found


@pytest.mark.parametrize("name", ["planned", "bare", "shared"])
@fuzz(60, data=st.data())
def test_damage(name, ledgers, tmp_path, data):
    whole = ledgers[name]
    content = data.draw(damage(whole))
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content)
    with untouched(tmp_path):
        found = outcome(Ledger.open_existing, path)
    if found is REFUSED:
        return
    cut = whole.startswith(
        content.rstrip(b"\0")
    )  # what a crash leaves; a checkpoint's count and the plan are held against it
    (tmp_path / "whole").write_bytes(whole)
    before = Ledger.open_existing(tmp_path / "whole")
    (tmp_path / "whole").unlink()
    if not cut:
        assert counts(found.planned()) == counts(before.planned())
        assert counts(found.groups()) == counts(before.groups())
    elif name == "planned":
        assert counts(found.planned()) == counts(before.planned())
    assert found.n_releases <= before.n_releases
    assert found.heads <= before.heads


@pytest.mark.parametrize("name", ["planned", "bare", "shared"])
def test_every_byte_in_turn_is_flipped(name, ledgers, tmp_path):
    whole = ledgers[name]
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(whole)
    before = counts(Ledger.open_existing(path).planned())
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 7]) + whole[at + 1 :])
        found = outcome(Ledger.open_existing, path)
        assert found is REFUSED or counts(found.planned()) == before, at


def test_a_line_break_that_is_overwritten_hides_no_release(ledgers, tmp_path):
    path = tmp_path / "ledger.jsonl"
    for byte in b"x} \x00\xff\r":
        path.write_bytes(ledgers["bare"][:-1] + bytes([byte]))
        assert outcome(Ledger.open_existing, path) is REFUSED


junk = st.sampled_from(
    [None, True, -1, 0, 1.5, 1e400, -1e400, 10**30, 10**400, "", "x", [], {}, [1], {"a": 1}, "pld", "shared", "release"]
)
KEYS = [
    "kind",
    "n",
    "mechanism",
    "times",
    "id",
    "sample_size",
    "plan",
    "scope",
    "run",
    "target_epsilon",
    "target_delta",
    "accountant",
    "format",
    "private",
    "shared",
    "n_releases",
    "sigma",
    "batch_size",
    "dim",
    "version",
    "config_sha256",
]


def replaced(value, key, to):
    """Puts another value in the place of every key of this name."""
    if isinstance(value, dict):
        return {k: to if k == key else replaced(v, key, to) for k, v in value.items()}
    return [replaced(each, key, to) for each in value] if isinstance(value, list) else value


def rehashed(content, change):
    """A ledger whose chain is right and whose entries are not: by somebody who knows how hashes are made."""
    head, lines = "", []
    for line in content.splitlines():
        entry = change(json.loads(line))
        entry.pop("hash", None)
        head = digest(head, entry)
        lines.append(json.dumps({**entry, "hash": head}, sort_keys=True).encode() + b"\n")
    return b"".join(lines)


@fuzz(
    100,
    name=st.sampled_from(["planned", "bare", "shared"]),
    key=st.sampled_from(KEYS),
    to=junk,
    action=st.sampled_from(["show", "merge", "resume"]),
)
def test_entries_that_make_no_sense(ledgers, tmp_path, capfd, name, key, to, action):
    path, out = tmp_path / "ledger.jsonl", tmp_path / "out.jsonl"
    path.write_bytes(rehashed(ledgers[name], lambda entry: replaced(entry, key, to)))
    before = path.read_bytes()
    out.unlink(missing_ok=True)
    if action == "resume":
        outcome(SharedBudget, path, 9.0, 1e-5, "pld")
    elif action == "show":
        command(capfd, ["ledger", "show", path, "--json"])
    elif command(capfd, ["ledger", "merge", path, "--out", out, "--delta", "1e-5"]) == 2:
        assert not out.exists()
    assert path.read_bytes() == before
    assert not list(tmp_path.glob("*.part"))


@fuzz(25, data=st.data())
def test_commands_on_damaged_ledgers(ledgers, tmp_path, capfd, data):
    path, out = tmp_path / "a.jsonl", tmp_path / "out.jsonl"
    path.write_bytes(data.draw(damage(ledgers["planned"])))
    (tmp_path / "b.jsonl").write_bytes(ledgers["shared"])
    with untouched(tmp_path):
        command(capfd, ["ledger", "show", path])
        words = [path, tmp_path / "b.jsonl", "--out", out]
        if command(capfd, ["ledger", "merge", *words], allowed=(0, 2)) == 0:
            out.unlink()


@fuzz(20, content=st.binary(max_size=300), text=st.text(max_size=50))
def test_garbage_is_never_written_over(tmp_path, content, text):
    directory = tmp_path / "run"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    path = Path(directory / "ledger.jsonl")
    path.write_bytes(content + text.encode("utf-8", "surrogatepass"))
    before = path.read_bytes()
    made = outcome(Ledger.create, path, {"target_epsilon": 1.0})
    if before.strip() and not before.startswith(b'{"'):
        assert made is REFUSED
    assert made is not REFUSED or path.read_bytes() == before
