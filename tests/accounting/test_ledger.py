"""The ledger: written before, chained, and hard to lie with."""

import json
import os

import pytest

from dpswd import GaussianMechanism, InputError, PrivacyAccountant, ProjectionMechanism
from dpswd.accounting.ledger import Ledger

ROWS = ProjectionMechanism(dim=4, n_projections=8, sigma=2.0, batch_size=10)
COUNTS = GaussianMechanism(sensitivity=2**0.5, sigma=20.0, name="class counts")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "ledger.jsonl"


@pytest.fixture
def written(path):
    """A ledger of five releases, by two mechanisms, in turn."""
    ledger = Ledger.create(path, {"target_epsilon": 1.0})
    for mechanism in (ROWS, COUNTS, ROWS, ROWS, COUNTS):
        ledger.record(mechanism, 100)
    return ledger


def test_round_trip(path, written):
    again = Ledger.open_existing(path)
    assert again.header == {"format": 1, "target_epsilon": 1.0}
    assert again.n_releases == written.n_releases == 5
    assert list(again) == written.groups() == [(ROWS, 100, 3), (COUNTS, 100, 2)]
    assert again.head == written.head
    again.record(ROWS, 100)
    assert Ledger.open_existing(path).groups() == [(ROWS, 100, 4), (COUNTS, 100, 2)]


def test_another_sample_size_is_another_group(path, written):
    written.record(ROWS, 90)
    assert Ledger.open_existing(path).groups()[-1] == (ROWS, 90, 1)


def test_an_accountant_accepts_its_groups(written):
    account = PrivacyAccountant("pld")
    for group in written:
        account.step(group[0], sample_size=group[1], n_releases=group[2])
    assert 0 < account.get_epsilon(1e-5) < 100


def test_every_release_is_on_the_disk_when_record_returns(path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(path.read_bytes().count(b'"kind": "release"')))
    ledger = Ledger.create(path, {})
    for count in (1, 2, 3):
        ledger.record(ROWS, 100)
        assert synced[-1] == count
        assert Ledger.open_existing(path).n_releases == count


def test_a_write_that_fails_counts_nothing(path, written, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"got: No space left on device; no release was made\."):
        written.record(ROWS, 100)
    assert written.n_releases == 5
    monkeypatch.undo()
    written.record(ROWS, 100)
    assert Ledger.open_existing(path).n_releases == 6


def test_a_crash_in_the_middle_of_a_write_hides_nothing(path, written):
    whole = path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    for cut in (start + 1, start + 20, len(whole) - 1):  # the last one lacks its line break only
        path.write_bytes(whole[:cut])
        ledger = Ledger.open_existing(path)
        assert ledger.n_releases == 4  # its noise had not been drawn: record had not returned
        ledger.record(COUNTS, 100)
        assert path.read_bytes() == whole
        assert Ledger.open_existing(path).n_releases == 5


def test_a_new_run_never_touches_a_file_that_is_there(path, written):
    before = path.read_bytes()
    with pytest.raises(InputError, match=r"Expected no ledger at .* for a new run, got one; resume that run"):
        Ledger.create(path, {})
    assert path.read_bytes() == before


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
        (3, changed(mechanism=1)),
        (3, lambda line: []),
        (3, lambda line: [line, line]),
        (1, lambda line: []),
        (3, lambda line: [line.replace(b'"hash": "', b'"hash": "0')]),
    ],
    ids=["budget", "sample size", "mechanism", "removed", "doubled", "headless", "hash"],
)
def test_what_is_changed_removed_or_inserted_breaks_the_chain(path, written, number, change):
    edit(path, number, change)
    with pytest.raises(InputError, match="the ledger was edited or a line is missing; do not rely on it") as caught:
        Ledger.open_existing(path)
    assert "\n" not in str(caught.value)


def test_two_lines_swapped(path, written):
    lines = path.read_bytes().splitlines(keepends=True)
    lines[5], lines[6] = lines[6], lines[5]
    path.write_bytes(b"".join(lines))
    with pytest.raises(InputError, match=r"Expected line 6 of .* to continue the chain"):
        Ledger.open_existing(path)


def test_a_cut_at_the_end_shows_in_the_count_only(path, written):
    edit(path, 8, lambda line: [])  # declared: a run compares the count with its checkpoint
    assert Ledger.open_existing(path).n_releases == 4


@pytest.mark.parametrize(
    "junk", [b"\n", b"no json\n", b"[]\n", b'"text"\n', b"null\n", b"{}\n", b"\xff\xfe\n", b'{"hash": 1}\n']
)
def test_lines_that_are_no_entries(path, written, junk):
    with path.open("ab") as file:
        file.write(junk)
    with pytest.raises(InputError, match=r"Expected JSON on line 9 of .*, got something else: corrupt\."):
        Ledger.open_existing(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"", "got an empty file"), (b'{"half a li', "got an empty file"), (b"a novel", "whole or cut off")],
)
def test_files_without_a_header(path, content, message):
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        Ledger.open_existing(path)


def forged(path, *entries):
    """Writes a chain whose hashes are right."""
    from dpswd.accounting.chain import digest

    path.parent.mkdir(exist_ok=True)
    head, lines = "", []
    for entry in entries:
        head = digest(head, entry)
        lines.append(json.dumps(entry | {"hash": head}) + "\n")
    path.write_text("".join(lines))


HEADER = {"kind": "header", "format": 1}
MECHANISM = {"kind": "mechanism", "id": 0, "sample_size": 10, "mechanism": {"mechanism": "laplace"}}
KNOWN = MECHANISM | {"mechanism": COUNTS.to_dict()}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{"kind": "header", "format": 2}], r"Expected ledger format 1 in .*, got 2\."),
        ([{"kind": "release", "n": 1, "mechanism": 0}], "Expected the header on line 1"),
        ([HEADER, HEADER], "Expected the header on line 1 of .* only, got 'header' on line 2"),
        ([HEADER, {"kind": "release", "n": 1, "mechanism": 0}], "got 'release': unknown entry"),
        ([HEADER, {"kind": "refund"}], "got 'refund': unknown entry"),
        ([HEADER, MECHANISM], "line 2 of .* to make sense, got: Expected mechanism to be one of projections, gaussian"),
        ([HEADER, KNOWN, {"kind": "release"}], "got 'release': unknown entry"),
        ([HEADER, KNOWN, {"kind": "release", "n": 1, "mechanism": -1}], "got 'release': unknown entry"),
        ([HEADER, KNOWN, {"kind": "release", "n": 1, "mechanism": "0"}], "got 'release': unknown entry"),
    ],
)
def test_well_hashed_nonsense(path, entries, message):
    forged(path, *entries)
    with pytest.raises(InputError, match=message):
        Ledger.open_existing(path)


def test_unknown_mechanism_is_refused_and_not_guessed(path):
    release = {"kind": "release", "n": 1, "mechanism": 0}
    forged(path, HEADER, MECHANISM, release)
    with pytest.raises(InputError, match="Expected mechanism to be one of projections, gaussian, got 'laplace'"):
        Ledger.open_existing(path).groups()
    forged(path, HEADER, {"kind": "mechanism", "id": 0}, release)
    with pytest.raises(InputError, match="Expected mechanism to be one of projections, gaussian, got None"):
        Ledger.open_existing(path).groups()


def test_two_writers_never_hide_each_others_releases(path, written):
    other = Ledger.open_existing(path)  # a second process, or a deep copy of the loss
    other.record(ROWS, 100)
    with pytest.raises(InputError, match=r"Expected to be the only writer of .*; no release was made"):
        written.record(ROWS, 100)
    assert Ledger.open_existing(path).n_releases == 6
    other.record(ROWS, 100)
    assert Ledger.open_existing(path).n_releases == 7


def test_missing_and_unwritable(path, tmp_path):
    with pytest.raises(InputError, match=r"Expected a ledger at .*, got none; check the run directory"):
        Ledger.open_existing(path)
    with pytest.raises(InputError, match=r"Expected to read the ledger at .*, got: Is a directory"):
        Ledger.open_existing(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(
        InputError, match=r"Expected to write a ledger at .*, got: (Not a directory|File exists); check the path"
    ):
        Ledger.create(tmp_path / "file" / "ledger.jsonl", {})


def test_a_ledger_that_was_removed_refuses_the_release(path, written):
    path.unlink()
    with pytest.raises(InputError, match="got: No such file or directory; no release was made"):
        written.record(ROWS, 100)
    assert written.n_releases == 5
