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


# Packages that take longer to import than --help may take.
SLOW_IMPORTS = {"torch", "lightning", "torchvision", "sklearn", "matplotlib", "scipy"}
PRINT_HELP_AND_IMPORTS = """
import sys
from dpswd.commands.main import main
try:
    main(sys.argv[1:])
finally:
    print(*sys.modules)
"""


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_names_the_command_and_imports_nothing_slow(name):
    words = [*name.split(), "--help"]
    command = [sys.executable, "-c", PRINT_HELP_AND_IMPORTS, *words]
    process = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    imported = set(process.stdout.splitlines()[-1].split())
    assert "dpswd.commands.main" in imported  # control
    assert not imported & SLOW_IMPORTS
    assert f"usage: dpswd {name}".rstrip() in process.stdout


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("fit", "ledger")])
def test_help_names_json(name, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert "--json" in capsys.readouterr().out


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
    before = warnings.showwarning

    def warns(_):
        warnings.simplefilter("always")
        warnings.warn("be careful", stacklevel=1)
        return {"configs": {}}

    monkeypatch.setattr("dpswd.commands.configs.run", warns)
    assert main(["configs"]) == 0
    assert capsys.readouterr().err == "Warning: be careful\n"
    assert warnings.showwarning is before
