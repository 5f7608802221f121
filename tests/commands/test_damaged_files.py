"""Commands on damaged files: exit status 0 or 2, one line of error, no file left half-written."""

import json
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from factories import command, damage, fuzz, untouched

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main
from dpswd.mechanism import ProjectionMechanism


def finite(value):
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def matrix_file(save):
    def write(path):
        save(path)
        return path.read_bytes()

    return write


MATRICES = {
    "risk.npy": matrix_file(lambda path: np.save(path, np.arange(12.0).reshape(3, 4) / 12)),
    "risk.csv": matrix_file(lambda path: np.savetxt(path, np.arange(12.0).reshape(3, 4) / 12, delimiter=",")),
}


@fuzz(40, name=st.sampled_from(sorted(MATRICES)), data=st.data())
def test_tangent_of_a_damaged_file(name, data, tmp_path, capfd):
    (tmp_path / name).write_bytes(data.draw(damage(MATRICES[name](tmp_path / name))))
    with untouched(tmp_path):
        command(capfd, ["tangent", "--risk", tmp_path / name, "--beta", "2", "--json"])
    (tmp_path / name).unlink()


@fuzz(40, data=st.data())
def test_damaged_diagnostics_file(data, tmp_path, capfd):
    path = tmp_path / "diagnostics.json"
    path.unlink(missing_ok=True)
    words = ["wdp", "--sigma", "1", "--run-dir", str(tmp_path), "--json"]
    assert main(words) == 0
    path.write_bytes(data.draw(damage(path.read_bytes())))
    before = path.read_bytes()
    if command(capfd, words) == 2:
        assert path.read_bytes() == before
    else:
        assert finite(json.loads(path.read_text()))
    assert not list(tmp_path.glob("*.part"))


PRIVACY = {
    "sound": True,
    "private": True,
    "epsilon": 1.0,
    "delta": 1e-5,
    "planned_releases": 2,
    "releases_made": 2,
    "sample_size": 64,
    "assumptions": ["A."],
    "not_covered": ["B."],
    "target_epsilon": 9.0,
    "target_delta": 1e-5,
    "accountant": "pld",
    "neighboring_relation": "replace-one",
    "mu": 1.0,
}


@pytest.fixture(scope="module")
def run_files(tmp_path_factory):
    """The files of a run, as the report reads them."""
    directory = tmp_path_factory.mktemp("run")
    mechanism = ProjectionMechanism(4, 8, 3.0, 64, kind="orthogonal")
    plan = [{"mechanism": mechanism.to_dict(), "n_releases": 2}]
    header = {
        "sample_size": 64,
        "target_epsilon": 9.0,
        "target_delta": 1e-5,
        "accountant": "pld",
        "plan": plan,
        "private": True,
        "planned_releases": 2,
        "version": "0.1.0",
        "config_sha256": None,
    }
    ledger = Ledger.create(directory / "ledger.jsonl", header)
    for _ in range(2):
        ledger.record(mechanism, 64)
    account = PrivacyAccountant().step(mechanism, sample_size=64, n_releases=2)
    facts = PRIVACY | {"epsilon": account.get_epsilon(1e-5), "mu": account.get_mu_and_regret()[0]}
    (directory / "privacy.json").write_text(json.dumps(facts))
    rows = [{"dataset": "digits", "classifier": "linear", "train": "synthetic", "accuracy": 80.0}]
    (directory / "evaluation.json").write_text(json.dumps({"rows": rows}))
    (directory / "samples.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_report_of_an_intact_run(run_files, tmp_path, capfd):
    for name, content in run_files.items():
        (tmp_path / name).write_bytes(content)
    assert command(capfd, ["report", tmp_path]) == 0


JUNK = st.sampled_from([None, True, -1, 0, 2.5, math.nan, math.inf, 10**400, "x", [], {}, [[]], "<script>"])


@fuzz(40, name=st.sampled_from(["ledger.jsonl", "privacy.json", "evaluation.json", "samples.png"]), data=st.data())
def test_report_of_a_damaged_run(name, data, run_files, tmp_path, capfd):
    for old in tmp_path.iterdir():
        old.unlink()
    for other, content in run_files.items():
        (tmp_path / other).write_bytes(content)
    if name == "privacy.json" and data.draw(st.booleans()):
        facts = json.loads(run_files[name]) | {data.draw(st.sampled_from(sorted(PRIVACY))): data.draw(JUNK)}
        (tmp_path / name).write_text(json.dumps(facts))
    else:
        (tmp_path / name).write_bytes(data.draw(damage(run_files[name])))
    with untouched(tmp_path):
        if command(capfd, ["report", tmp_path]) == 0:
            report = json.loads((tmp_path / "report.json").read_text())
            assert finite(report)
            for made in ("report.json", "report.md", "report.html"):
                (tmp_path / made).unlink()


def test_json_that_is_too_deep(run_files, tmp_path, capfd):
    for name, content in run_files.items():
        (tmp_path / name).write_bytes(content)
    for name in ("privacy.json", "evaluation.json", "diagnostics.json"):
        (tmp_path / name).write_text("[" * 100_000)
        with untouched(tmp_path):
            assert command(capfd, ["report", tmp_path, "--diagnostics"]) == 2
        (tmp_path / name).write_bytes(run_files.get(name, b"{}"))
