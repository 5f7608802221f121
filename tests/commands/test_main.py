"""The command line: table of commands, exit status, one line of error, --help."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from factories import answer, make_run, refused

from dpswd import __version__
from dpswd.commands.main import COMMANDS, EXAMPLES, main

ROOT = Path(__file__).parents[2]
ACCOUNT = (
    "account --dim 4 --n-projections 8 --sample-size 64 --batch-size 16 --n-releases 3 "
    "--sigma 1 --delta 1e-5"
)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (f"{ACCOUNT} --sigma nan", "sigma"),
        (f"{ACCOUNT} --sigma much", "'much'"),
        (f"{ACCOUNT} --batch-size 65", "got --batch-size=65"),
        ("account --dim 4", "--n-projections"),
        ("nonsense", "dpswd --help"),
        ("demo --epsilon nan", "Expected --epsilon"),
        ("configs --colour", "got --colour; dpswd configs --help"),
        # a mistyped option must not be left out: the run would take the default
        ("generate digits --epsilion 3", "got --epsilion; did you mean --epsilon?"),
        ("generate digits --eps=3", "got --eps; did you mean --epsilon?"),
        ("generate --sizes 32 digits", "got --sizes; did you mean --size?"),
        ("sample run --n 3", "got --n; did you mean -n?"),
        (
            "ledger create new.jsonl --epsilon 1 --delta 1e-5 --epsilom 2",
            "option of dpswd ledger create, got --epsilom; did you mean --epsilon?",
        ),
        ("publish runs/a bundle", "got bundle, which no option takes"),
        ("generate --classes cats dogs photos", "got none; write it before --classes, which takes"),
        ("generate", "Expected DATA of dpswd generate, got none; add what is missing (dpswd gen"),
        ("verify", "Expected BUNDLE of dpswd verify, got none; add what is missing (dpswd verify"),
        ("calibrate --epsilon 4 --delta 1e-5", "got none; add what is missing (dpswd calibrate"),
        ("generat digits", "got generat; did you mean generate?"),
        ("--seed generate digits", "got --seed; dpswd --help"),
        (
            "fit --config mnist_swd --privacy.target_epsilion 3",
            "got --privacy.target_epsilion; did you mean --privacy.target_epsilon?",
        ),
        ("fit --config mnist_swd --epsilon 3", "did you mean --privacy.target_epsilon?"),
    ],
)
def test_bad_input_is_one_line_and_leaves_no_file(capfd, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    message = refused(capfd, *arguments.split())
    assert words in message
    assert "leave it out" not in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("flag", "word"), [("--version", __version__), ("--help", "calibrate")])
def test_version_and_help(capfd, flag, word):
    with pytest.raises(SystemExit) as caught:
        main([flag])
    assert caught.value.code == 0
    text = capfd.readouterr().out
    assert word in text
    assert len(text.splitlines()) <= 45


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


def test_the_command_alone_prints_its_help(capsys):
    assert main([]) == 0
    streams = capsys.readouterr()
    assert "generate" in streams.out
    assert streams.err == ""


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in ("fit", "ledger")])
def test_help_names_json(name, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert "--json" in capsys.readouterr().out


@pytest.mark.parametrize("name", EXAMPLES)
def test_help_shows_an_example_whose_options_exist(name, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    text = capsys.readouterr().out
    assert f"Example:\n  dpswd {EXAMPLES[name]}\n" in text
    options = {word for word in EXAMPLES[name].split() if word.startswith("-")}
    listed = text.partition("Example:")[0]
    assert [option for option in options if option not in listed] == []


def test_help_of_generate_has_units_and_ranges(capsys):
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for option in ("--shift SHIFT", "--rotation ROTATION", "--zoom ZOOM", "--elastic ELASTIC"):
        description = text.partition(f"{option} ")[2].partition("(default: 0)")[0]
        assert "from 0 to" in description
    assert "persons times --per-unit" in text


def test_every_command_has_an_example():
    assert set(COMMANDS) - set(EXAMPLES) == {"fit"}


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """The working directory, which has no configs."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("elsewhere")
def test_configs_lists_the_shipped_ones(capfd):
    summaries = answer(capfd, "configs")["configs"]
    assert {"digits", "mnist", "fashion", "images", "features"} <= set(summaries)
    assert all(0 < len(summary) <= 100 for summary in summaries.values())
    assert main(["configs"]) == 0
    assert "mnist" in capfd.readouterr().out


@pytest.mark.usefixtures("elsewhere")
def test_configs_prints_one_to_copy(capfd):
    assert main(["configs", "digits"]) == 0
    assert capfd.readouterr().out == (ROOT / "configs" / "digits.yaml").read_text()


@pytest.mark.usefixtures("elsewhere")
@pytest.mark.parametrize("name", ["nothing", "../pyproject"])
def test_configs_refuses_another_name(capfd, name):
    message = refused(capfd, "configs", name)
    assert name in message
    assert "digits" in message


def test_warnings_are_one_line_without_source(monkeypatch, capsys):
    showwarning = warnings.showwarning

    def warns(_):
        warnings.simplefilter("always")
        warnings.warn("be careful", stacklevel=1)
        return {"configs": {}}

    monkeypatch.setattr("dpswd.commands.configs.run", warns)
    assert main(["configs"]) == 0
    assert capsys.readouterr().err == "Warning: be careful\n"
    assert warnings.showwarning is showwarning


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_character_that_the_terminal_lacks_is_escaped(tmp_path, encoding):
    run = make_run(tmp_path / "run")
    command = [sys.executable, "-m", "dpswd", "report", str(run)]
    environment = os.environ | {"PYTHONIOENCODING": encoding}
    result = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert result.returncode == 0, result.stderr
    assert rb"\u03bc = " in result.stdout


def test_a_file_that_the_system_refuses_is_one_line(tmp_path, monkeypatch, capfd):
    # A name that is too long stands for a directory without permissions, which root may read.
    monkeypatch.chdir(tmp_path)
    name = 300 * "x"
    line = refused(capfd, "generate", "digits", "--out", name)
    assert name in line
    assert "got: File name too long; check the path" in line


def test_an_existing_picture_is_named_by_its_own_option(capfd, tmp_path):
    picture = tmp_path / "picture.png"
    picture.write_text("kept")
    words = ["forecast", "--shape", "8,8", "--n", "1000", "--picture", str(picture)]
    assert "choose another one (--picture)" in refused(capfd, *words)
    assert picture.read_text() == "kept"
