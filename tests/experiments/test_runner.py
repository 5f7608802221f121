"""``python -m experiments``: lists, runs, writes, and says in one sentence what is wrong."""

import json
import types

import pytest

import experiments.__main__ as runner
from dpswd import __version__


@pytest.fixture
def fake(monkeypatch):
    """One experiment that says how it was called."""
    calls = []

    def run(out, *, quick=False, data=None):
        calls.append({"out": out, "quick": quick, "data": data})
        return {"rows": [{"value": 1}]}

    module = types.SimpleNamespace(HELP="a fake", run=run)
    monkeypatch.setattr(runner, "available", lambda: {"fake": module})
    return calls


def test_lists_every_experiment(capsys):
    assert runner.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines]
    assert {"tangent", "wdp_fig1", "wdp_table2"} <= set(names)
    assert names == sorted(names)
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)  # each with its one line of help
    assert "evaluation" not in names


def test_a_result_says_how_it_was_made(fake, tmp_path):
    out = tmp_path / "new" / "results"
    assert runner.main(["run", "fake", "--quick", "--out", str(out), "--data", str(tmp_path)]) == 0
    assert fake == [{"out": out, "quick": True, "data": tmp_path}]
    result = json.loads((out / "fake.json").read_text())
    assert result["rows"] == [{"value": 1}]
    assert result["command"] == "python -m experiments run fake --quick"  # without the paths of a machine
    assert result["version"] == __version__
    assert {"processor", "cores", "python", "torch", "numpy"} <= set(result["machine"])
    assert not list(out.glob("*.part"))


def sentence(capsys, arguments):
    assert runner.main(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert err.startswith("experiments: Expected ")
    return err


def test_refuses_an_unknown_name(fake, capsys, tmp_path):
    assert "an experiment (fake), got 'nope'" in sentence(capsys, ["run", "nope", "--out", str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()


def test_refuses_an_unwritable_place(fake, capsys, tmp_path):
    (tmp_path / "file").write_text("")
    sentence(capsys, ["run", "fake", "--out", str(tmp_path / "file" / "out")])
    sentence(capsys, ["run", "fake", "--out", str(tmp_path / "file")])
    assert fake == []


def test_machine_names_no_host():
    import platform

    facts = json.dumps(runner.machine())
    assert len(platform.node()) < 3 or platform.node() not in facts
