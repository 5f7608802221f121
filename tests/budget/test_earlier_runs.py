"""A run says that an earlier one had as many records, and stores nothing of the records."""

import dataclasses
import re
import shutil
import warnings

import pytest
import torch
from factories import X, Y, ledger_of, records

from dpswd import Budget, ClassMeans, PrivateRecords
from dpswd.accounting.calibrate import epsilon_of_mu
from dpswd.accounting.shared_ledger import SharedLedger
from dpswd.budget import earlier_runs
from dpswd.errors import PrivacyWarning
from dpswd.report import collect


def spend(directory, handle=None, *, release=True, **options):
    """Releases the sum of the rows in a run directory."""
    handle = handle or records()
    query = ClassMeans(1, *handle.shape)
    options = {"target_epsilon": 1.0, "target_delta": 1e-5} | options
    with Budget(handle, [query], run_dir=directory, **options):
        if release:
            query.release(handle)


@pytest.fixture(params=["new process", "same process"])
def forget(request, monkeypatch):
    """Forgets the runs of this process, as a new process does; or not."""

    def forgets():
        if request.param == "new process":
            monkeypatch.setattr(earlier_runs, "_runs_of_process", {})

    return forgets


@pytest.fixture
def quiet():
    """A context in which the warning is an error."""
    context = warnings.catch_warnings()
    with context:
        warnings.filterwarnings("error", category=PrivacyWarning)
        yield


def test_a_second_run_beside_the_first_is_told(tmp_path, forget):
    spend(tmp_path / "runs" / "a")
    forget()
    with pytest.warns(PrivacyWarning, match="budgets add up") as caught:
        spend(tmp_path / "runs" / "b", records(-X))  # other records: only public facts count
    (warning,) = caught
    text = str(warning.message)
    assert "\n" not in text
    assert str(tmp_path / "runs" / "a") in text
    assert "had as many records: 40. If the records were the same" in text
    header = ledger_of(tmp_path / "runs" / "a").header
    together = epsilon_of_mu(2**0.5 * header["guarantee"]["mu"], 1e-5)  # two equal runs
    assert f"as one run of epsilon {together:.3g} at delta 1e-05 does" in text
    forget()
    with pytest.warns(PrivacyWarning, match="2 earlier runs"):
        spend(tmp_path / "runs" / "c")


def test_a_run_is_named_in_place_of_its_published_copies(tmp_path, monkeypatch):
    run = tmp_path / "run"
    spend(run)
    for name in "abcxyz":  # directories are listed in any order
        (tmp_path / name).mkdir()
        shutil.copy(run / "ledger.jsonl", tmp_path / name)
    header = ledger_of(run).header
    facts = earlier_runs.PublicFacts.from_header(header)
    monkeypatch.setattr(earlier_runs, "_runs_of_process", {})
    runs = earlier_runs.find_earlier_runs(facts, tmp_path / "new", [])
    assert [(run_id, earlier.path) for run_id, earlier in runs.items()] == [(header["run"], run)]


def test_a_run_in_the_folder_of_the_commands_is_remembered_elsewhere(tmp_path, monkeypatch):
    spend(tmp_path / "runs" / "a")
    monkeypatch.setattr(earlier_runs, "_runs_of_process", {})
    spend(tmp_path / "elsewhere" / "b")  # control: no warning without the folder
    monkeypatch.setattr(earlier_runs, "_runs_of_process", {})
    monkeypatch.setattr(earlier_runs, "_RUNS", tmp_path / "runs")
    with pytest.warns(PrivacyWarning, match=re.escape(f"An earlier run ({tmp_path}/runs/a, run")):
        spend(tmp_path / "other" / "c")


def test_the_report_names_earlier_runs(tmp_path, forget):
    """A reviewer sees the report alone, and not the warning."""
    spend(tmp_path / "a")
    forget()
    with pytest.warns(PrivacyWarning):
        spend(tmp_path / "b")
    earlier = ledger_of(tmp_path / "a").header["run"]
    assert ledger_of(tmp_path / "b").header["earlier_runs"] == [earlier]
    report, _ = collect(tmp_path / "b")
    (caveat,) = report.caveats
    assert caveat.startswith(f"An earlier run ({earlier}) may have read the same records: ")
    assert "earlier_runs" not in ledger_of(tmp_path / "a").header
    first, _ = collect(tmp_path / "a")
    assert first.caveats == ()  # control


@pytest.mark.usefixtures("quiet")
def test_another_number_of_records_is_another_data_set(tmp_path, forget):
    spend(tmp_path / "a")
    forget()
    spend(tmp_path / "b", records(X[:-1]))


@pytest.mark.parametrize(
    "handle",
    [
        lambda: PrivateRecords(X[:, :2], Y, classes=range(3)),
        lambda: PrivateRecords(X, Y, classes=range(4)),
        lambda: PrivateRecords(X, Y.numpy().astype(str), classes=["0", "1", "2", "other"]),
        lambda: PrivateRecords(X),
    ],
    ids=["shape", "number of classes", "names of classes", "no classes"],
)
def test_the_same_records_in_another_form_are_told(tmp_path, handle, forget):
    """Images in another size, and tables with fewer columns, are still the same records."""
    spend(tmp_path / "a")
    forget()
    with pytest.warns(PrivacyWarning, match="An earlier run .* had as many records: 40"):
        spend(tmp_path / "b", handle())


def of_persons(n_persons, per_unit):
    """Records of persons, two of each."""
    n = 2 * n_persons
    persons = torch.arange(n) // 2
    return PrivateRecords(X[:n], Y[:n], classes=range(3), unit=persons, per_unit=per_unit)


@pytest.mark.usefixtures("quiet")
def test_another_number_of_persons_is_another_data_set(tmp_path, forget):
    spend(tmp_path / "a", of_persons(20, per_unit=2))
    forget()
    spend(tmp_path / "b", of_persons(19, per_unit=1))
    forget()
    with pytest.raises(PrivacyWarning, match=r"An earlier run .* had as many persons: 20"):
        spend(tmp_path / "c", of_persons(20, per_unit=1))  # control


def test_between_persons_and_records_shape_and_classes_are_compared(tmp_path, forget):
    spend(tmp_path / "a", of_persons(20, per_unit=2))
    spend(tmp_path / "b", PrivateRecords(X[:30]))  # control: no classes, and another number
    forget()
    with pytest.warns(PrivacyWarning) as caught:
        spend(tmp_path / "c", records(X[:30], Y[:30]))
    (warning,) = caught
    text = str(warning.message)
    ids = {name: ledger_of(tmp_path / name).header["run"] for name in "ab"}
    assert f"An earlier run ({tmp_path / 'b'}, run {ids['b']}) had as many records: 30. " in text
    same_form = "had the same public facts: records of shape (3,) in 3 classes."
    assert f"An earlier run ({tmp_path / 'a'}, run {ids['a']}) {same_form}" in text


def test_the_report_of_persons_names_earlier_runs(tmp_path):
    spend(tmp_path / "a")
    with pytest.warns(PrivacyWarning, match="same public facts"):
        spend(tmp_path / "b", of_persons(20, per_unit=2))
    report, _ = collect(tmp_path / "b")
    (caveat,) = report.caveats
    assert "the number of persons is the same, or records were counted there" in caveat


@pytest.mark.usefixtures("quiet")
def test_runs_that_spend_no_further_budget_are_not_mentioned(tmp_path, forget):
    shared = SharedLedger.create(tmp_path / "all.jsonl", target_epsilon=9.0, target_delta=1e-5)
    spend(tmp_path / "unused", release=False)
    forget()
    spend(tmp_path / "a", shared_ledger=shared.path)
    forget()
    spend(tmp_path / "b", shared_ledger=shared.path)
    forget()
    spend(tmp_path / "b", shared_ledger=shared.path, resume=True)
    with pytest.raises(PrivacyWarning, match="2 earlier runs"):
        spend(tmp_path / "c")  # control: outside the shared ledger


def test_a_run_whose_directory_was_removed_is_remembered_by_its_process(tmp_path):
    spend(tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    with pytest.warns(PrivacyWarning, match="An earlier run"):
        spend(tmp_path / "a")


def test_removed_runs_in_one_directory_count_one_by_one(tmp_path):
    for n_earlier in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PrivacyWarning)
            spend(tmp_path / "a")
        shutil.rmtree(tmp_path / "a")
        assert len(caught) == (n_earlier > 0)
    text = str(caught[0].message)
    assert text.startswith("2 earlier runs (")
    assert text.count(str(tmp_path / "a")) == 2


@pytest.mark.filterwarnings("ignore::dpswd.errors.PrivacyWarning")
@pytest.mark.parametrize("seeds", [(0, None), (None, 0)], ids=["earlier run", "new run"])
def test_a_run_with_a_fixed_seed_leaves_no_guarantee_to_all_runs(tmp_path, forget, seeds):
    for name, seed in zip("ab", seeds, strict=True):
        handle = records()
        query = ClassMeans(1, *handle.shape)
        query.mechanism = dataclasses.replace(query.mechanism, noise_seed=seed)
        budget = Budget(
            handle, [query], target_epsilon=1.0, target_delta=1e-5, run_dir=tmp_path / name
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", PrivacyWarning)
            with budget:
                query.release(handle)
        forget()
    texts = [str(warning.message) for warning in caught]
    (text,) = [text for text in texts if "budgets add up" in text]
    assert "a run without a guarantee leaves none to all of them together" in text


@pytest.mark.usefixtures("quiet")
def test_files_beside_a_run_that_are_no_ledgers(tmp_path):
    contents = [b"", b"no json", b"[1]\n", b"{}\n{}\n", b"[" * 10**5, b"\xff\x00"]
    for number, content in enumerate(contents):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "ledger.jsonl").write_bytes(content)
    (tmp_path / "folder" / "ledger.jsonl").mkdir(parents=True)
    (tmp_path / "file").touch()
    spend(tmp_path / "run")


def test_the_ledger_states_public_facts_only(tmp_path):
    handle = PrivateRecords(torch.full((50, 3), 0.123456789), Y.repeat(2)[:50], classes=range(3))
    spend(tmp_path / "run", handle)
    header = ledger_of(tmp_path / "run").header
    assert (header["sample_size"], header["shape"]) == (50, [3])
    assert header["classes"] == ["0", "1", "2"]
    assert "0.1234" not in (tmp_path / "run" / "ledger.jsonl").read_text()
