"""Every small command with any options: status 0 or 2, one sentence, nothing half-written."""

import json
import math

import hypothesis.strategies as st
import numpy as np
import pytest
from factories import command, damage, fuzz, sentence, untouched

from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import COMMAND_MODULES, main
from dpswd.mechanism import ProjectionMechanism
from experiments.__main__ import main as run_experiments

NUMBERS = [
    "0",
    "-1",
    "1",
    "2",
    "3",
    "8",
    "16",
    "64",
    "1e-5",
    "0.5",
    "1.5",
    "nan",
    "inf",
    "-inf",
    "1e400",
    "1e-400",
    "5e-324",
    "1e308",
    str(2**53),
    str(2**64),
    "1" + 400 * "0",
    "",
    " ",
    "x",
    "None",
    "true",
    "0x10",
    "1_000",
    "१",
    "--",
    "-",
    "\0",
]
number = st.sampled_from(NUMBERS)
word = st.one_of(
    st.sampled_from(
        ["rows", "quantiles", "iid", "orthogonal", "pld", "rdp", "exact", "bernstein", "clt", "as_published"]
    ),
    number,
    st.text(max_size=5),
)
RELEASES = {
    "--dim": "4",
    "--n-projections": "8",
    "--sample-size": "64",
    "--batch-size": "16",
    "--n-releases": "3",
    "--statistic": None,
    "--n-quantiles": None,
    "--kind": None,
    "--row-norm": None,
    "--n-classes": None,
    "--accountant": None,
    "--bound": None,
    "--failure-prob": None,
    "--preset": None,
}
COMMANDS = {
    "account": RELEASES | {"--sigma": "1", "--delta": "1e-5"},
    "calibrate": RELEASES | {"--epsilon": "1", "--delta": "1e-3", "--mu": None, "--tpr": None, "--fpr": None},
    "plan": {
        "--epsilon": "1",
        "--delta": "1e-3",
        "--sample-size": "40",
        "--dim": "4",
        "--max-releases": "1",
        "--row-norm": None,
    },
    "audit": RELEASES
    | {"--sigma": "1", "--delta": "1e-5", "--trials": "60", "--seed": None, "--as-released": None, "--zoo": None},
    "wdp": {
        "--sigma": "1",
        "--mechanism": None,
        "--order": None,
        "--distance": None,
        "--sampling-rate": None,
        "--n-steps": None,
        "--beta": None,
        "--delta": None,
    },
}
WORDS = {"--statistic", "--kind", "--accountant", "--bound", "--preset", "--mechanism"}
CHOICES = {
    "--statistic": "quantiles",
    "--kind": "orthogonal",
    "--accountant": "rdp",
    "--bound": "bernstein",
    "--n-quantiles": "4",
    "--n-classes": "2",
    "--failure-prob": "1e-8",
    "--mu": "1",
    "--tpr": "0.5",
    "--fpr": "0.1",
    "--preset": "as_published",
    "--mechanism": "gaussian",
    "--zoo": "1",
}


@st.composite
def lines(draw, name):
    """A command line that fits but for one to three options; now and then one that has lost a word."""
    options = {option: value for option, value in COMMANDS[name].items() if value is not None}
    for option in draw(st.lists(st.sampled_from(sorted(CHOICES)), max_size=2)):
        if option in COMMANDS[name]:
            options[option] = CHOICES[option]
    for option in draw(st.lists(st.sampled_from(sorted(COMMANDS[name])), min_size=1, max_size=3)):
        value = draw(word if option in WORDS else number)
        if name == "audit" and option in ("--trials", "--n-releases", "--sample-size", "--batch-size"):
            value = draw(st.sampled_from(["0", "-1", "1", "60", "x", "nan", "1" + 400 * "0"]))  # others take long
        if not (name == "plan" and option == "--max-releases" and value in (str(2**53), str(2**64))):
            options[option] = value
    words = [name, *(each for pair in options.items() for each in pair)]
    if draw(st.integers(0, 19)) == 0:
        words.pop(draw(st.integers(0, len(words) - 1)))
    return [*words, *draw(st.sampled_from([[], ["--json"], ["--json"], ["--nonsense"], ["--help"]]))]


def finite(value):
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def check(capfd, directory, words):
    with untouched(directory):
        capfd.readouterr()
        try:
            status = main(words)
        except SystemExit as error:
            status = error.code
        out, err = capfd.readouterr()
    assert "Traceback" not in out + err
    if status == 2:
        assert len(err.strip().splitlines()) == 1, err
        sentence(err)
        assert not out
    else:
        assert status == 0, (status, err)
        assert not err.strip()
        if "--json" in words and not {"--help", "--version"} & set(words):
            assert finite(json.loads(out))


@fuzz(110, words=lines("account"))
def test_account(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    check(capfd, tmp_path, words)


@fuzz(25, words=lines("calibrate"))
def test_calibrate(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    check(capfd, tmp_path, words)


@fuzz(25, words=lines("plan"))
def test_plan(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    check(capfd, tmp_path, words)


@fuzz(15, words=lines("audit").filter(lambda words: "--zoo" not in words or "--dim" in words))
def test_audit(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    check(capfd, tmp_path, words)


@fuzz(60, words=lines("wdp"))
def test_wdp(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    check(capfd, tmp_path, words)


NAMES = [*(name for names in COMMAND_MODULES.values() for name in names), "fit", "predict", "nonsense", "--version"]


@fuzz(
    80,
    words=st.lists(
        st.one_of(
            st.sampled_from([name for name in NAMES if name not in ("demo", "fit", "predict")]),
            st.sampled_from(["--json", "--help", "show", "merge", "x", "/", ".", "/dev/null", "--out", "--dim", "4"]),
            st.text(max_size=4),
        ),
        max_size=5,
    ),
)
def test_any_words(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    check(capfd, tmp_path, words)


@fuzz(
    20,
    words=st.lists(
        st.one_of(
            st.sampled_from(["list", "run", "nonsense", "--quick", "--out", "x", "--data"]),
            st.text(max_size=4).filter(lambda text: not text.startswith("-")),
        ),
        max_size=4,
    ),
)
def test_experiments(words, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    capfd.readouterr()
    try:
        status = run_experiments(words)
    except SystemExit as error:  # of argparse
        status = error.code
    out, err = capfd.readouterr()
    assert status in (0, 2)
    assert "Traceback" not in out + err


# files that a command reads


def matrix_file(save):
    def write(path):
        save(path)
        return path.read_bytes()

    return write


MATRICES = {
    "risk.npy": matrix_file(lambda path: np.save(path, np.arange(12.0).reshape(3, 4) / 12)),
    "risk.csv": matrix_file(lambda path: np.savetxt(path, np.arange(12.0).reshape(3, 4) / 12, delimiter=",")),
}


@fuzz(80, name=st.sampled_from(sorted(MATRICES)), beta=st.one_of(st.just("2"), number), data=st.data())
def test_tangent(name, beta, data, tmp_path, capfd):
    (tmp_path / name).write_bytes(data.draw(damage(MATRICES[name](tmp_path / name))))
    check(capfd, tmp_path, ["tangent", "--risk", str(tmp_path / name), "--beta", beta, "--json"])
    (tmp_path / name).unlink()


@fuzz(40, data=st.data())
def test_diagnostics_file(data, tmp_path, capfd):
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
    from dpswd import PrivacyAccountant

    account = PrivacyAccountant().step(mechanism, sample_size=64, n_releases=2)
    facts = PRIVACY | {"epsilon": account.get_epsilon(1e-5), "mu": account.get_mu_and_regret()[0]}
    (directory / "privacy.json").write_text(json.dumps(facts))
    rows = [{"dataset": "digits", "classifier": "linear", "train": "synthetic", "accuracy": 80.0}]
    (directory / "evaluation.json").write_text(json.dumps({"rows": rows}))
    (directory / "samples.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_the_run_is_reported(run_files, tmp_path, capfd):
    for name, content in run_files.items():
        (tmp_path / name).write_bytes(content)
    assert command(capfd, ["report", tmp_path]) == 0


JUNK = st.sampled_from([None, True, -1, 0, 2.5, math.nan, math.inf, 10**400, "x", [], {}, [[]], "<script>"])


@fuzz(50, name=st.sampled_from(["ledger.jsonl", "privacy.json", "evaluation.json", "samples.png"]), data=st.data())
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
