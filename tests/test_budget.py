"""Budget without Lightning: calibration over shares, ledger, stored releases, resume,
statement, refusals.
"""

import hashlib
import json
import math
import shutil
import threading

import numpy as np
import pytest
import torch
from factories import (
    X,
    agree,
    deadly,
    kill_and_finish,
    ledger_of,
    privacy,
    records,
    untouched,
    witness_noise,
    written,
)

import dpswd.budget.run_directory
from dpswd import (
    Budget,
    BudgetExceededError,
    ClassCounts,
    ClassCovariances,
    InputError,
    PrivacyBudget,
)
from dpswd._files import atomic_write
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.accounting.ledger import Ledger, digest
from dpswd.accounting.shared_ledger import RunLedger
from dpswd.budget.run_directory import RunDirectory
from dpswd.errors import DpswdError, LedgerError
from dpswd.report.render import write_report


def queries():
    return [
        ClassCounts(3, share=0.25),
        ClassCovariances(1, 3, share=0.5),
        ClassCovariances(1, 3, row_norm=1.0),
    ]


def budget(handle, directory, parts=None, epsilon=2.0, delta=1e-5, **options):
    parts = queries() if parts is None else parts
    return Budget(
        handle, parts, target_epsilon=epsilon, target_delta=delta, run_dir=directory, **options
    )


def spend(directory, handle=None, parts=None, **options):
    handle, parts = handle or records(), parts or queries()
    with budget(handle, directory, parts, **options) as made:
        return made, [part.release(handle) for part in parts], parts


def test_shares_split_the_squared_mu(tmp_path):
    made, _, parts = spend(tmp_path)
    mus = [part.mechanism.sensitivity / part.mechanism.sigma for part in parts]
    assert mus[0] ** 2 / made.mu**2 == pytest.approx(0.25, rel=1e-9)
    assert mus[1] ** 2 / made.mu**2 == pytest.approx(0.5, rel=1e-9)
    assert math.hypot(*mus) == pytest.approx(made.statement()["mu"], rel=1e-4)
    assert 0.99 * 2 < made.statement()["epsilon"] <= 2
    agree(tmp_path, 3)
    facts = privacy(tmp_path)
    assert facts["weights_from_runs"] == [facts["run"]]
    plan = [{"mechanism": part.mechanism.to_dict(), "n_releases": 1} for part in parts]
    assert ledger_of(tmp_path).header["plan"] == plan


LAUNCHERS = {
    "torchrun": {"WORLD_SIZE": "2", "RANK": "0"},
    "srun": {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"},
    "srun without the size of the step": {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"},
    "Open MPI": {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"},
    "MPICH": {"PMI_SIZE": "2", "PMI_RANK": "0"},
    "MPICH on one machine": {"MPI_LOCALNRANKS": "2", "MPI_LOCALRANKID": "1"},
    "PMIx": {"PMIX_RANK": "1"},
}
ALONE = {
    "one process of srun": {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"},
    "one process in an allocation of two": {
        "SLURM_PROCID": "0",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "1",
    },
    "a shell of salloc": {"SLURM_NTASKS": "2"},
    "one process of mpirun": {"OMPI_COMM_WORLD_SIZE": "1", "PMI_SIZE": "1", "PMIX_RANK": "0"},
    "no number": {"WORLD_SIZE": "", "PMI_SIZE": "many"},
}


@pytest.fixture
def launched(monkeypatch, request):
    """Sets the environment variables of a launcher, and no others."""
    for launcher in (*LAUNCHERS.values(), *ALONE.values()):
        for variable in launcher:
            monkeypatch.delenv(variable, raising=False)
    for variable, value in request.param.items():
        monkeypatch.setenv(variable, value)


@pytest.mark.parametrize("launched", LAUNCHERS.values(), ids=LAUNCHERS, indirect=True)
@pytest.mark.usefixtures("launched")
def test_a_process_that_has_not_joined_the_others_is_refused(tmp_path):
    with pytest.raises(InputError, match="2 processes that have joined"):
        spend(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("launched", ALONE.values(), ids=ALONE, indirect=True)
@pytest.mark.usefixtures("launched")
def test_a_process_alone_is_not_refused(tmp_path):
    spend(tmp_path)
    agree(tmp_path, 3)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_mu_is_that_of_the_accountant(accountant):
    mu, exact = PrivacyBudget(1.0, 1e-5, accountant).mu, mu_of_epsilon(1.0, 1e-5)
    assert (
        mu == exact if accountant == "pld" else 0.5 * exact < mu < exact
    )  # Renyi: a looser bound, a smaller mu


def test_report_of_the_directory(tmp_path):
    spend(tmp_path, config={"method": "test"})
    report = write_report(tmp_path)
    assert report["sound"] is report["private"] is True
    assert report["releases"]["made"] == report["releases"]["planned"] == 3
    config = (tmp_path / "config.yaml").read_bytes()
    assert config == b"method: test\n"
    assert ledger_of(tmp_path).header["config_sha256"] == hashlib.sha256(config).hexdigest()


def test_privacy_json_after_a_failure(tmp_path):
    handle, (counts, moment, _) = records(), queries()

    def fail():
        with budget(handle, tmp_path, [counts, moment]):
            counts.release(handle)
            moment.release(handle, rows=lambda x: x[:, :2])

    with pytest.raises(InputError, match="dim"):
        fail()
    facts = privacy(tmp_path)
    assert (facts["releases_made"], facts["planned_releases"], written(tmp_path)) == (1, 2, 1)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"records": X}, "PrivateRecords"),
        ({"queries": []}, "queries"),
        ({"queries": ClassCounts(3)}, "as a list"),
        ({"queries": ["counts"]}, "got str"),
        ({"config": {"rate": np.float64(0.1)}}, "config"),
        (
            {"queries": [ClassCounts(3, share=0.5), ClassCounts(3, share=0.5), ClassCounts(3)]},
            "shares",
        ),
        ({"target_epsilon": 0.0}, "target_epsilon"),
        ({"target_delta": 1 / len(X)}, "target_delta"),
        ({"accountant": "gdp"}, "accountant"),
        ({"shared_ledger": "missing.jsonl"}, "dpswd ledger create"),
        ({"run_dir": "file/run"}, "Expected to write"),
    ],
)
def test_bad_input_leaves_no_file(tmp_path, monkeypatch, change, match):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    arguments = {
        "records": records(),
        "queries": queries(),
        "target_epsilon": 1.0,
        "target_delta": 1e-5,
    }
    arguments |= {"run_dir": "run", "config": {"method": "test"}} | change
    with untouched(tmp_path), pytest.raises(DpswdError, match=match), Budget(**arguments):
        pass


def test_the_directory_of_a_run_is_refused_before_records_are_read(tmp_path, monkeypatch):
    spend(tmp_path)
    monkeypatch.setattr("dpswd.budget.budget.check_same_records", None)
    for use in (lambda: Budget.check_free(tmp_path), lambda: budget(records(), tmp_path)):
        with pytest.raises(InputError, match=r"ledger\.jsonl.* by resume=True \(--resume\),"):
            use()
    assert not Budget.is_free(tmp_path)
    assert Budget.is_free(tmp_path / "new")


def test_threads_share_one_planned_release(tmp_path, monkeypatch):
    query, handle = ClassCounts(3), records()
    made, done, refused, start = budget(handle, tmp_path, [query]), [], [], threading.Barrier(8)
    check = made.check

    def slow(mechanism):
        check(mechanism)
        threading.Event().wait(0.02)  # other threads check meanwhile

    monkeypatch.setattr(made, "check", slow)

    def release():
        start.wait()
        try:
            done.append(query.release(handle))
        except BudgetExceededError:
            refused.append(True)

    with made:
        threads = [threading.Thread(target=release) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (len(done), len(refused), written(tmp_path)) == (1, 7, 1)


# resume: a run that is killed at any moment is finished with nothing paid twice


def fit(directory, moment=None):
    """The run of this file in a process that dies at a moment (owner, function, call, before or
    after), or resumes.
    """
    witness_noise(directory / "witness")
    owners = {
        "budget": Budget,
        "directory": RunDirectory,
        "ledger": Ledger,
        "run ledger": RunLedger,
        "file": dpswd.budget.run_directory,
    }
    if moment is not None:
        owner, *rest = moment
        deadly(owners[owner], *rest)
    _, values, parts = spend(directory / "run", resume=moment is None, config={"method": "test"})
    torch.save((values, [part.mechanism.sigma for part in parts]), directory / "values.pt")


MOMENTS = [
    ("directory", "create", 0),
    ("ledger", "create", 0),  # before the ledger
    ("budget", "before_release", 0),
    ("directory", "record", 0),
    ("file", "atomic_write", 0, "after"),  # a marker, and no line
    ("ledger", "write_draw", 0),
    ("ledger", "write_draw", 0, "after"),  # in the ledger, and no noise
    ("budget", "store", 0),  # noise, and no file
    ("file", "atomic_write", 1),
    ("file", "atomic_write", 1, "after"),  # a file, and not confirmed
    ("run ledger", "confirm", 0, "after"),  # a file, and a marker
    ("ledger", "write_draw", 1, "after"),
    ("budget", "store", 2),
    ("budget", "store", 2, "after"),
    ("budget", "write_statement", 0),
]


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda moment: " ".join(map(str, moment)))
def test_a_killed_run_is_finished_and_pays_nothing_twice(server, tmp_path, moment):
    kill_and_finish(server, fit, tmp_path, moment, 3)
    values, _ = torch.load(tmp_path / "values.pt", weights_only=True)
    for i, value in enumerate(values, 1):
        content = torch.load(tmp_path / "run" / "releases" / f"{i:06d}.pt", weights_only=True)
        assert torch.equal(content["tensors"]["values"], value)
    assert write_report(tmp_path / "run")["sound"] is True


def test_a_finished_run_is_read_from_its_files(tmp_path, monkeypatch):
    handle = records()
    made, values, _ = spend(tmp_path / "first", handle)
    shutil.move(tmp_path / "first", tmp_path / "run")  # nothing depends on the path
    ledger = (tmp_path / "run" / "ledger.jsonl").read_bytes()
    monkeypatch.setattr(type(handle), "open_records", None)
    again, same, parts = spend(tmp_path / "run", handle, resume=True)
    assert all(torch.equal(a, b) for a, b in zip(values, same, strict=True))
    assert [part.n_releases for part in parts] == [0, 0, 0]
    assert (again.run_id, again.n_releases) == (made.run_id, 3)
    assert (tmp_path / "run" / "ledger.jsonl").read_bytes() == ledger
    agree(tmp_path / "run", 3)


@pytest.mark.parametrize("number", [1, 3])
def test_a_lost_file_is_not_drawn_again(tmp_path, number):
    """Its value was returned: it counts."""
    spend(tmp_path)
    (tmp_path / "releases" / f"{number:06d}.pt").unlink()
    with pytest.raises(BudgetExceededError, match="at most 1"):
        spend(tmp_path, resume=True)
    assert written(tmp_path) == 3


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"epsilon": 3.0}, "target_epsilon"),
        ({"delta": 1e-6}, "target_delta"),
        ({"accountant": "rdp"}, "accountant"),
        ({"handle": records(X[:-1])}, "sample_size"),
        ({"parts": [ClassCounts(3), ClassCovariances(1, 3)]}, "Expected the releases"),
        (
            {"parts": [*queries()[:2], ClassCovariances(1, 3, row_norm=2.0)]},
            r"Expected sensitivity=.* got sensitivity=.* of that run",
        ),
        ({"parts": [*queries()[:2], ClassCounts(3)]}, "Expected name='second moments' for"),
        ({"n_releases": 2}, "Expected n_releases=1 for .*, got n_releases=2;"),
    ],
)
def test_another_plan_is_not_resumed(tmp_path, change, match):
    spend(tmp_path)
    with untouched(tmp_path), pytest.raises(InputError, match=match):
        spend(tmp_path, resume=True, **change)


def edit_header(path, change):
    """Changes the header of a ledger, and computes all hashes again."""
    head = ""
    lines = []
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        del entry["hash"]
        if entry["kind"] == "header":
            change(entry)
        head = digest(head, entry)
        lines.append(json.dumps(entry | {"hash": head}, sort_keys=True) + "\n")
    path.write_text("".join(lines))


@pytest.fixture
def interrupted(tmp_path):
    """Directory of a run with one of three releases."""
    handle, parts = records(), queries()
    with budget(handle, tmp_path / "run", parts):
        parts[0].release(handle)
    return tmp_path / "run"


def test_releases_that_another_version_names_otherwise_are_not_resumed(interrupted):
    """The sentence names the version that can finish the run."""

    def rename(header):
        header["version"] = "0.3.0"
        header["plan"][1]["mechanism"]["name"] = "an earlier name"

    edit_header(interrupted / "ledger.jsonl", rename)
    with untouched(interrupted), pytest.raises(InputError, match=r"resume the run with dpswd 0\.3"):
        spend(interrupted, resume=True)
    assert written(interrupted) == 1


@pytest.mark.parametrize("number", [0, 2])
def test_noise_in_an_edited_header_is_refused(interrupted, number):
    """On 0.3.0 a run resumed with sigma 1e-6 and stated the epsilon of the header."""

    def weaken(header):
        header["plan"][number]["mechanism"]["sigma"] = 1e-6

    edit_header(interrupted / "ledger.jsonl", weaken)
    with pytest.raises(DpswdError, match="target_epsilon=2"):
        spend(interrupted, resume=True)
    assert written(interrupted) == 1


def test_a_guarantee_in_an_edited_header_is_not_stated(interrupted):
    def promise(header):
        header["guarantee"] |= {"epsilon": 0.1, "mu": 0.01, "sound": True, "assumptions": []}

    edit_header(interrupted / "ledger.jsonl", promise)
    spend(interrupted, resume=True)
    agree(interrupted, 3)
    assert 1.9 < privacy(interrupted)["epsilon"] <= 2
    assert privacy(interrupted)["assumptions"]


def test_a_ledger_that_no_budget_has_written_is_not_resumed(tmp_path):
    ledger = Ledger.create(tmp_path / "ledger.jsonl", {"target_epsilon": 2.0})
    ledger.record(ClassCounts(3, sigma=1.0).mechanism, len(X))
    with pytest.raises(LedgerError, match="without plan or budget"):
        spend(tmp_path, resume=True)


def test_damaged_and_foreign_files_are_refused(tmp_path):
    spend(tmp_path / "a")
    spend(tmp_path / "b")
    path = tmp_path / "a" / "releases" / "000002.pt"
    whole = path.read_bytes()
    for content in (whole[:-40], (tmp_path / "b" / "releases" / "000002.pt").read_bytes()):
        path.write_bytes(content)
        with pytest.raises(InputError, match=r"000002\.pt"):
            spend(tmp_path / "a", resume=True)
    path.write_bytes(whole)
    lines = (tmp_path / "a" / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "a" / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(InputError, match="was cut"):
        spend(tmp_path / "a", resume=True)


def test_a_full_disk_between_ledger_and_file(tmp_path, monkeypatch):
    calls = iter(range(9))

    def full(path, content):
        if (
            next(calls) == 3
        ):  # after marker and value of the first release, and the marker of the second
            raise InputError("Expected room on the disk, got none; make room.")
        atomic_write(path, content)

    with monkeypatch.context() as patched:
        patched.setattr("dpswd.budget.run_directory.atomic_write", full)
        with pytest.raises(InputError, match="room"):
            spend(tmp_path)
    assert (written(tmp_path), privacy(tmp_path)["releases_made"]) == (2, 2)
    spend(tmp_path, resume=True)
    agree(tmp_path, 3)
    monkeypatch.setattr(
        "dpswd.accounting.ledger.os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space"))
    )
    with pytest.raises(LedgerError, match="No space"):
        spend(tmp_path / "b")
