"""The command line: table of commands, exit status, one line of error, speed of --help."""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from factories import refused

from dpswd import __version__
from dpswd.commands.main import COMMANDS, main

ROOT = Path(__file__).parents[2]
ACCOUNT = "account --dim 4 --n-projections 8 --sample-size 64 --batch-size 16 --n-releases 3 --sigma 1 --delta 1e-5"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([*ACCOUNT.split(), "--sigma", "nan"], ["sigma"]),
        ([*ACCOUNT.split(), "--sigma", "much"], ["--sigma", "much"]),
        ([*ACCOUNT.split(), "--batch-size", "65"], ["batch", "65"]),
        (["account", "--dim", "4"], ["--n-projections"]),
        ([], ["dpswd --help"]),
        (["nonsense"], ["dpswd --help"]),
        (["demo", "--epsilon", "nan"], ["Expected epsilon"]),
        (["wdp"], ["wdp"]),  # commands of 0.2 that are gone
    ],
)
def test_bad_input(capfd, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    said = refused(capfd, *arguments)
    assert all(word in said for word in words)
    assert not list(tmp_path.iterdir())


def test_version_and_help(capfd):
    for flag, word in (("--version", __version__), ("--help", "calibrate")):
        with pytest.raises(SystemExit) as left:
            main([flag])
        assert left.value.code == 0
        out = capfd.readouterr().out
        assert word in out
        assert len(out.splitlines()) <= 45


@pytest.mark.parametrize("name", ["", *(name for name in COMMANDS if name != "fit")])
def test_help_imports_nothing_large_and_names_the_command_and_json(name):
    """Issue 30: below half a second, where torch alone needs more."""
    code = "import sys; from dpswd.commands.main import main\ntry: main(sys.argv[1:])\nfinally: print(*sys.modules)"
    command = [sys.executable, "-c", code, *name.split(), "--help"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    loaded = set(ran.stdout.splitlines()[-1].split())
    assert "dpswd.commands.main" in loaded
    assert not loaded & {
        "torch",
        "lightning",
        "sklearn",
        "matplotlib",
        *(() if name else ("numpy", "scipy", "yaml")),
    }
    assert f"dpswd {name}" in ran.stdout
    assert name in ("", "ledger") or "--json" in ran.stdout  # of ledger, in its actions


def test_configs_by_name(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["configs", "--json"]) == 0
    names = json.loads(capfd.readouterr().out)["configs"]
    assert {"digits", "mnist", "fashion", "images", "features"} <= set(names)
    assert all(len(line) <= 110 for line in names.values())
    assert main(["configs", "digits"]) == 0
    assert capfd.readouterr().out == (ROOT / "configs" / "digits.yaml").read_text()
    assert main(["configs"]) == 0
    assert "mnist" in capfd.readouterr().out
    said = refused(capfd, "configs", "nothing")
    assert "nothing" in said
    assert "digits" in said
    assert "pyproject" in refused(capfd, "configs", "../pyproject")


def test_warnings_are_one_line_without_source(monkeypatch, capsys):
    """Issue 31: a warning once printed the line of source that raised it."""
    before = warnings.showwarning

    def warns(_):
        warnings.simplefilter("always")
        warnings.warn("be careful", stacklevel=1)
        return {"configs": {}}

    monkeypatch.setattr("dpswd.commands.configs.run", warns)
    assert main(["configs"]) == 0
    assert capsys.readouterr().err == "Warning: be careful\n"
    assert warnings.showwarning is before
