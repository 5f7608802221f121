"""``python -m experiments``: list, run, options, old results."""

import json
import platform

import pytest

import experiments.__main__ as runner
from dpswd import __version__

NEW = {"version": __version__}


@pytest.fixture
def fake(monkeypatch):
    """One experiment that keeps the arguments of its calls."""
    calls = []

    def run(out, *, quick=False, data=None):
        calls.append({"out": out, "quick": quick, "data": data})
        return {"rows": [{"value": 1}]}

    monkeypatch.setattr(runner, "available", lambda: {"fake": runner.Experiment("a fake", run)})
    return calls


def test_list_marks_stale_results(monkeypatch, tmp_path, capsys):
    for name, version in (("fig1", __version__), ("leak", "0.0.1")):
        result = {"command": f"python -m experiments run {name} --full", "version": version}
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    assert runner.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    assert {"fig1", "table2", "tangent", "wdp_table2", "leak", "benchmarks"} <= set(names)
    assert names == sorted(names)
    assert [line.split()[:2] for line in lines if "(stale)" in line] == [["leak", "(stale)"]]


@pytest.mark.parametrize("name", sorted(runner.available()))
def test_help_of_every_experiment(name, capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        runner.main(["run", name, "--help"])
    assert "--out" in capsys.readouterr().out


def test_run_writes_result_with_origin(fake, tmp_path):
    out = tmp_path / "new" / "results"
    assert runner.main(["run", "fake", "--quick", "--out", str(out), "--data", str(tmp_path)]) == 0
    assert fake == [{"out": out, "quick": True, "data": tmp_path}]
    result = json.loads((out / "fake.json").read_text())
    assert result["rows"] == [{"value": 1}]
    assert result["command"] == "python -m experiments run fake --quick"  # without paths
    assert result["version"] == __version__
    assert {"processor", "cores", "python", "torch", "numpy"} <= set(result["machine"])
    assert len(platform.node()) < 3 or platform.node() not in json.dumps(result)
    assert [path.name for path in out.iterdir()] == ["fake.json"]


def test_options_are_the_arguments_of_the_experiment(monkeypatch, tmp_path):
    def run(
        out,
        *,
        box: int = 28,
        noise: str | None = None,
        dropout: bool = False,
        weight: float | None = None,
    ):
        return {"rows": [{"box": box, "noise": noise, "dropout": dropout, "weight": weight}]}

    monkeypatch.setattr(runner, "available", lambda: {"fake": runner.Experiment("a fake", run)})
    options = ["--box", "20", "--noise", "source only", "--dropout", "--weight", "0.05"]
    without_use = ["--quick"]  # the experiment has no such argument
    assert runner.main(["run", "fake", "--out", str(tmp_path), *without_use, *options]) == 0
    result = json.loads((tmp_path / "fake.json").read_text())
    assert result["rows"] == [{"box": 20, "noise": "source only", "dropout": True, "weight": 0.05}]
    assert result["command"].endswith("--box 20 --noise 'source only' --dropout --weight 0.05")
    with pytest.raises(SystemExit):
        runner.main(["run", "fake", "--bx", "20"])


def test_old_results_are_made_again_once(monkeypatch, tmp_path):
    calls = []

    def run(out, *, full=False):
        calls.append(full)
        if len(calls) == 2:
            raise ValueError
        return {"rows": [], "file": "second" if full else "first"}

    monkeypatch.setattr(runner, "available", lambda: {"fake": runner.Experiment("a fake", run)})
    monkeypatch.setattr(runner, "RESULTS", tmp_path)
    old = {"version": "0.0.1", "reason": "It takes hours."}
    for name, option, version in (
        ("first", "", old),
        ("second", " --full", old),
        ("third", "", NEW),
    ):
        content = {"command": f"python -m experiments run fake{option}", "rows": [], **version}
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    options = ["run", "all", "--resume", "--out", str(tmp_path / "out")]
    assert runner.main(options) == 1  # the second fails
    assert runner.main(options) == 0
    assert calls == [False, True, True]
    assert runner.main(options) == 0
    assert len(calls) == 3


def test_every_command_of_the_docs_is_parsed():
    experiments = runner.available()
    for path in runner.RESULTS.glob("*.json"):
        name, *options = json.loads(path.read_text())["command"].partition(" run ")[2].split()
        runner.parser_of(name, experiments[name]).parse_args(options)


def test_every_result_of_the_docs_has_a_command():
    results = [json.loads(path.read_text()) for path in runner.RESULTS.glob("*.json")]
    assert {runner.experiment_of(result) for result in results} <= set(runner.available())
