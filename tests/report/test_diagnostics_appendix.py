"""Diagnostics reach a report when asked for, as an appendix, and change nothing else in it."""

import json
import os

import jsonschema
import pytest
from factories import ROWS

import dpswd.report.publish
from dpswd.commands.main import main
from dpswd.diagnostics.accountant import WassersteinAccountant
from dpswd.diagnostics.appendix import NOTE, WARNING, write_diagnostics
from dpswd.errors import InputError
from dpswd.report import write_report
from dpswd.report.words import headline

NAMES = ("report.html", "report.json", "report.md")


@pytest.fixture
def run_dir(make_run):
    path = make_run((ROWS, 1000, 50))
    accountant = WassersteinAccountant(order=16, beta=32.0, sigma=1.5, sampling_rate=0.01)
    accountant.step([1.0], n_steps=50)
    write_diagnostics(path, "wdp", accountant.to_dict(1e-5))
    return path


def read(path):
    return {name: (path / name).read_text() for name in NAMES}


def validate(path):
    schema = os.path.join(os.path.dirname(dpswd.report.publish.__file__), "schema.json")
    with open(schema) as file:
        checker = jsonschema.Draft202012Validator(json.load(file))
    report = json.loads((path / "report.json").read_text())
    checker.validate(report)
    return checker, report


def test_only_when_asked_for(run_dir):
    write_report(run_dir)
    before = read(run_dir)
    assert validate(run_dir)[1]["diagnostics"] is None
    assert not [name for name in NAMES if "Yang2024" in before[name]]
    write_report(run_dir, diagnostics=True)
    after = read(run_dir)
    checker, report = validate(run_dir)
    assert report["diagnostics"]["wdp"]["is_guarantee"] is False
    for name in NAMES:
        assert NOTE in after[name]
        if name != "report.json":
            assert "Wasserstein DP (Yang2024)" in after[name]
            assert WARNING in after[name]
    for claim in ({"is_guarantee": True}, {"epsilon": 1.0}):  # the schema refuses what the reader refuses
        forged = report | {"diagnostics": {"wdp": report["diagnostics"]["wdp"] | claim}}
        assert list(checker.iter_errors(forged))


def test_the_guarantee_and_the_headline_do_not_move(run_dir):
    plain = write_report(run_dir)
    before = read(run_dir)["report.md"]
    asked = write_report(run_dir, diagnostics=True)
    assert {**asked, "diagnostics": None} == plain
    assert headline(asked) == headline(plain)
    after = read(run_dir)["report.md"]
    assert after.startswith(before.rstrip("\n"))  # an appendix: at the end, and nowhere else
    appendix = after[len(before.rstrip("\n")) :]
    assert "ε" not in appendix
    assert "epsilon" not in appendix.lower()


def test_values_of_the_file_are_escaped(run_dir):
    write_diagnostics(run_dir, "tangent", {"<b>|": "<script>alert(1)</script>", "many": [1.5, None, True]})
    write_report(run_dir, diagnostics=True)
    text = read(run_dir)
    assert "<script" not in text["report.html"] + text["report.md"]
    assert "&lt;b&gt;\\|" in text["report.md"]
    assert "1.5, —, yes" in text["report.md"]


def test_asked_for_and_missing_or_foreign_writes_nothing(run_dir):
    (run_dir / "diagnostics.json").write_text("[]")
    with pytest.raises(InputError, match="something else"):
        write_report(run_dir, diagnostics=True)
    (run_dir / "diagnostics.json").unlink()
    with pytest.raises(InputError, match="got none"):
        write_report(run_dir, diagnostics=True)
    assert not list(run_dir.glob("report.*"))
    write_report(run_dir)


def test_command_line(run_dir, capsys):
    assert main(["report", str(run_dir), "--diagnostics", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["diagnostics"]["wdp"]["n_steps"] == 50
    assert not [line for line in result["summary"] if "diagnostic" in line]
    assert main(["report", str(run_dir), "--diagnostics"]) == 0
    assert f"Appendix: Wasserstein DP (Yang2024). {NOTE} {WARNING}" in capsys.readouterr().out
    (run_dir / "diagnostics.json").unlink()
    assert main(["report", str(run_dir), "--diagnostics"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
