"""``python -m experiments``: list, run, tables, errors; and the table writer."""

import json
import platform

import pytest

import experiments.__main__ as runner
from dpswd import __version__
from experiments import cells, tables


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
    assert (
        runner.main(["run", "fake", "--out", str(tmp_path), "--quick", *options]) == 0
    )  # --quick has no use here
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


OLD, NEW = {"version": "0.0.1"}, {"version": __version__}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (NEW, False),
        (OLD, True),
        (OLD | {"reason": "It takes days."}, False),
        (NEW | {"rows": [{}, OLD]}, True),
        (NEW | {"other": [{}, OLD | {"reason": "It takes days."}]}, False),
        (OLD | {"reason": "It takes days.", "rows": [OLD]}, True),
    ],
)
def test_outdated(result, expected):
    assert cells.outdated(result) == expected


def test_a_table_refuses_rows_that_it_would_merge_and_prints_reasons_once(monkeypatch):
    file = {
        "command": "run",
        "version": "0.3.0",
        "rows": [{"steps": 500, "value": 1}, {"steps": 2000, "value": 2}],
    }
    monkeypatch.setattr(tables, "_result", lambda name: file)
    monkeypatch.setattr(
        tables, "TABLES", {"some": {"columns": "all -> x", "spread": ["v", "{value}"]}}
    )
    with pytest.raises(ValueError, match="must tell rows apart"):
        tables.render("some")
    old = OLD | {"value": 1, "reason": "Rows of 0.0.1 take days."}
    file = NEW | {
        "command": "run",
        "machine": {"cores": 2},
        "rows": [old, old],
        "reason": "The rest is new.",
    }
    monkeypatch.setattr(tables, "TABLES", {"some": {"columns": "v -> {value}"}})
    monkeypatch.setattr(tables, "_result", lambda name: file)
    assert tables.render("some").endswith("dpswd 0.3.0. The rest is new. Rows of 0.0.1 take days.")


@pytest.mark.parametrize("path", sorted(tables.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_is_of_this_version_or_a_page_says_why(path):
    result = json.loads(path.read_text())
    assert not cells.outdated(result), (
        "measure it again, or write a sentence into 'reason' of the file or the row"
    )
    words = " ".join(" ".join(page.read_text().split()) for page in tables.pages())
    assert result.get("reason", "") in words, "no table prints the reason: write it on the page"


def test_every_result_of_the_docs_has_a_command():
    results = [json.loads(path.read_text()) for path in runner.RESULTS.glob("*.json")]
    assert {runner.experiment_of(result) for result in results} <= set(runner.available())


@pytest.mark.parametrize("page", tables.pages(), ids=lambda page: page.name)
def test_tables_of_pages_are_made_from_results(page):
    assert tables.fill(page.read_text()) == page.read_text(), "run: python -m experiments tables"


def test_the_package_has_the_stand_ins_of_the_results():
    assert json.loads(tables.STAND_INS.read_text()) == tables.stand_ins(), (
        "run: python -m experiments tables"
    )
