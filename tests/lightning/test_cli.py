"""The LightningCLI: a fit, help, progress, refusals, damaged checkpoints."""

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import lightning.pytorch.cli  # noqa: F401  (now, since its loggers keep the stderr that they find)
import numpy as np
import pytest
import torch
import yaml
from factories import (
    FIT_CONFIG,
    Trap,
    agree,
    fit_arguments,
    privacy,
    refused,
    untouched,
    written,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dpswd.commands.main import main
from dpswd.files.generators import read_generator
from dpswd.networks.generator import draw

STEPS = 5

pytestmark = [
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    # A resumed run that has made all its steps.
    pytest.mark.filterwarnings("ignore:Total length of .CombinedLoader. across ranks is zero"),
]


@dataclass(frozen=True)
class Fitted:
    """A finished run on records of its own, of which no budget warns."""

    directory: Path
    records: Path
    output: str

    def arguments(self):
        """The command that resumes the run."""
        return fit_arguments(self.directory, STEPS, "--data.path", str(self.records))


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    records = tmp_path_factory.mktemp("data") / "records.npz"
    images = np.random.default_rng(0).random((200, 8, 8))
    np.savez(records, images=images, labels=np.arange(200) % 10)
    directory = tmp_path_factory.mktemp("fitted")
    options = ["--data.path", str(records), "--trainer.enable_progress_bar", "true"]
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        assert main(fit_arguments(directory, STEPS, *options)) == 0
    return Fitted(directory, records, output.getvalue())


def test_fit_writes_its_files(fitted):
    agree(fitted.directory, STEPS)
    assert {path.name for path in fitted.directory.iterdir()} == {
        "checkpoints",
        "config.yaml",
        "generator.pt",
        "report.html",
        "report.json",
        "report.md",
        "ledger.jsonl",
        "lightning_logs",
        "privacy.json",
        "releases",
    }
    config = yaml.safe_load((fitted.directory / "config.yaml").read_text())
    # versions of jsonargparse write the module of a class, or the package that offers it
    assert config["data"]["class_path"] in (
        "dpswd.lightning.data.PrivateDataModule",
        "dpswd.lightning.PrivateDataModule",
    )
    assert privacy(fitted.directory)["records"] == "behind a handle"
    board = EventAccumulator(str(fitted.directory / "lightning_logs")).Reload()
    assert {"loss", "epsilon", "target_epsilon"} <= set(board.Tags()["scalars"])


def test_fit_writes_a_generator_with_its_guarantee(fitted):
    generator, statement = read_generator(fitted.directory / "generator.pt")
    labels = torch.zeros(3, dtype=torch.int64)
    assert draw(generator, labels).shape == (3, 1, 8, 8)
    assert statement["epsilon"] == privacy(fitted.directory)["epsilon"]
    assert statement["sound"]


def test_fit_shows_progress_and_guarantee_and_nothing_else_of_lightning(fitted):
    lines = fitted.output.splitlines()
    progress = [line for line in lines if line.startswith("training")]
    assert len(progress) == STEPS
    assert progress[-1].startswith(f"training: step {STEPS} of {STEPS}, loss ")
    assert "epsilon by PLD" in progress[-1]
    assert "target 10" in progress[-1]
    assert lines.index("Reading the records.") < lines.index(progress[0])
    assert lines.index(f"Training with {STEPS} releases.") < lines.index(progress[0])
    assert "Guarantee: mu = " in fitted.output
    for word in ("Epoch", "GPU available", "litlogger", "Warning"):
        assert word not in fitted.output


def test_releases_before_the_first_step_are_named_and_steps_have_no_epsilon(tmp_path, capfd):
    """The epsilon of all steps is the same, and would look like a progress that stands still."""
    features = {
        "class_path": "dpswd.features.frequencies.Frequencies",
        "init_args": {"sample_shape": [1, 8, 8], "size": 8},
    }
    options = (
        *("--config", "mnist_swd", "--data.path", "digits", "--trainer.max_steps", "2"),
        *("--trainer.default_root_dir", str(tmp_path / "run")),
        *("--model.init_args.features", json.dumps(features)),
        *("--model.init_args.generator.init_args.sample_shape", "[1, 8, 8]"),
        *("--model.init_args.generated", "200"),
    )
    assert main(["fit", *options]) == 0
    lines = capfd.readouterr().err.splitlines()
    [plan] = [line for line in lines if line.startswith("Releasing once, before the first step: ")]
    assert "counts and sums of 10 classes" in plan
    progress = [line for line in lines if line.startswith("training: step")]
    assert len(progress) == 2
    for line in progress:
        assert "loss" in line
        assert "epsilon" not in line
        assert "target" not in line


# Help


def test_help_is_one_screen(capsys):
    assert main(["fit", "--help"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 40
    for option in ("--privacy.target_epsilon", "--privacy.shared_ledger", "--help all"):
        assert option in text


def test_full_help_lists_options_of_the_trainer(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["fit", "--help", "all"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for option in ("--trainer.accelerator", "--privacy.target_epsilon", "--data"):
        assert option in text


# The end of a plan, and resumed runs


@pytest.mark.parametrize(("epochs", "is_named"), [(1, False), (3, True)])
def test_a_plan_that_ends_before_the_steps_is_named(tmp_path, capfd, epochs, is_named):
    options = ("--data.n_releases", "2", "--trainer.max_epochs", str(epochs))
    assert main(fit_arguments(tmp_path / "run", -1, *options)) == 0
    line = "All 2 planned releases are made; the run ends at step 2 of 6. The releases cover "
    assert (line in capfd.readouterr().err) is is_named


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize("shown", ["true", "false"])
def test_a_terminal_has_a_bar_or_ten_lines(tmp_path, capfd, monkeypatch, shown):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    options = ("--trainer.enable_progress_bar", shown)
    assert main(fit_arguments(tmp_path / "run", 20, *options)) == 0
    lines = capfd.readouterr().err.splitlines()
    n_lines = len([line for line in lines if line.startswith("training: step")])
    assert ("20/20" in terminal.getvalue()) == (shown == "true")
    assert n_lines == (0 if shown == "true" else 10)


def test_a_used_directory_is_refused(fitted, capfd):
    arguments = fitted.arguments()
    position = arguments.index("--ckpt_path")
    without_checkpoint = arguments[:position] + arguments[position + 2 :]
    with untouched(fitted.directory):
        assert main(without_checkpoint) == 2
    assert "Expected a new run directory" in capfd.readouterr().err


def test_a_finished_run_is_resumed_without_a_release(fitted, capfd):
    ledger = fitted.directory / "ledger.jsonl"
    before = ledger.read_bytes()
    assert main(fitted.arguments()) == 0
    assert "This run had made all its steps before" in capfd.readouterr().err
    assert ledger.read_bytes() == before
    agree(fitted.directory, STEPS)


def test_the_report_names_options_of_a_resumed_run(tmp_path, capfd):
    """The ledger names config.yaml by its checksum, so that it stays as it is."""
    directory = tmp_path / "run"
    once = ["--model.whiten=true", "--model.labels=blocks"]
    once += [f"--model.{name}=null" for name in ("batch_size", "n_projections", "n_quantiles")]
    assert main([*fit_arguments(directory, STEPS), *once]) == 0
    assert "resumed with" not in (directory / "report.md").read_text()  # control
    before = (directory / "config.yaml").read_bytes()
    assert main([*fit_arguments(directory, STEPS + 2), *once]) == 0
    assert "had made all its steps before" not in capfd.readouterr().err
    assert (directory / "config.yaml").read_bytes() == before
    resumed = yaml.safe_load((directory / "resumed.yaml").read_text())
    assert resumed == {"trainer.max_steps": STEPS + 2}
    report = (directory / "report.md").read_text()
    assert "resumed with other options" in report
    assert f"max\\_steps={STEPS + 2}." in report


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--model.generator.hidden=16", "parameter generator.body.0.weight has shape [32, "),
        ("--model.generator.latent_dim=9", "has shape"),
    ],
)
def test_a_checkpoint_of_another_network_is_one_sentence(fitted, capfd, option, words):
    with untouched(fitted.directory):
        assert main([*fitted.arguments(), option]) == 2
    *_, line = capfd.readouterr().err.strip().splitlines()
    assert line.startswith("dpswd: Expected the checkpoint of this network")
    assert words in line
    assert "To finish the run" not in line


# Refusals


@pytest.mark.parametrize(
    "missing", [("target_epsilon",), ("target_delta",), ("target_epsilon", "target_delta")]
)
def test_a_config_without_a_complete_budget_is_refused_in_words_of_the_command(
    tmp_path, capfd, missing
):
    config = yaml.safe_load(Path(FIT_CONFIG).read_text())
    for name in missing:
        config["privacy"].pop(name)
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    line = refused(capfd, "fit", "--config", str(tmp_path / "my.yaml"))
    assert "got: one without a complete budget; set --privacy.target_epsilon, as 10, and" in line


def test_a_misspelt_config_is_named_with_the_one_that_it_resembles(capfd):
    line = refused(capfd, "fit", "--config", "mnist_sdw")
    assert "did you mean mnist_swd? (dpswd configs lists all)" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--data.path nowhere", "nowhere"),
        ("--data.pth x", "got: data: Option 'pth' is not accepted by"),
        (
            "--trainer.accel cpu",
            "got --trainer.accel; did you mean --trainer.accelerator?",
        ),
        ("--trainer.max_steps -1 --trainer.max_epochs 1", "n_releases or trainer.max_steps"),
        ("--model.labels blocks --model.generator.n_classes 3", "n_classes=10"),
        ("--privacy.target_delta 0.1", "target_delta"),
        ("--privacy.target_delta null", "well below one over the number of records"),
        ("--data.batch_size 30", "batch_size"),
        ("--trainer.devices 2 --trainer.strategy ddp_spawn", "trainer.strategy"),
        ("--ckpt_path nowhere.ckpt", "nowhere.ckpt"),
        (
            "--lr_scheduler torch.optim.lr_scheduler.StepLR --lr_scheduler.step_size 1",
            "--optimizer",
        ),
        ("--model.generator nowhere.Net", "nowhere.Net is neither a class that can be imported"),
    ],
)
def test_refusals_are_one_line_and_leave_no_file(tmp_path, capfd, options, message):
    assert main(fit_arguments(tmp_path / "run", STEPS, *options.split())) == 2
    *before, line = capfd.readouterr().err.strip().splitlines()
    assert message in line
    assert before in ([], ["Reading the records."])
    assert not (tmp_path / "run").exists()


OWN_CLASS = """
from dpswd.features.frequencies import Frequencies
from dpswd.networks.image_generators import ConvGenerator

class Own(ConvGenerator):
    def __init__(self, latent_dim: int = 4, width: int = 8):
        super().__init__((1, 8, 8), 10, latent_dim, hidden=width)

class Large(ConvGenerator):
    def __init__(self, side: int = 12):
        super().__init__((1, side, side), 10)

class Nested(ConvGenerator):
    def __init__(self, size: int | Frequencies = 8):
        super().__init__((1, 8, 8), 10)

class Generator:
    def __init__(self, width: int = 8):
        self.width = width

class Needs(ConvGenerator):
    def __init__(self, width: int, height: int):
        super().__init__((1, 8, 8), 10)
"""


@pytest.mark.parametrize(
    ("class_path", "option", "message"),
    [
        ("own_clas.Own", "width", "model.generator: no module 'own_clas' in this folder"),
        ("own_class.Owm", "width", "module 'own_class' has no class 'Owm'; it has Own, Large, "),
        ("own_class.Own", "wdth", "'wdth' is not accepted by own_class.Own; it has latent_dim, "),
        ("own_class.Needs", "width", "own_class.Needs needs height; add it to init_args"),
        ("Unheard", "width", "Unheard is no import path; write its module before it"),
        ("broken.Own", "width", "broken.py has a syntax error in line 2: "),
        (
            "own_class.Generator",
            "width",
            "model.generator: own_class.Generator is no subclass of "
            "dpswd.networks.generator.Generator; derive it from that class",
        ),
    ],
)
def test_a_class_of_a_config_that_is_misspelt_is_named_in_one_sentence(
    tmp_path, capfd, monkeypatch, class_path, option, message
):
    generator = {"class_path": class_path, "init_args": {option: 8}}
    line = line_about_an_own_generator(tmp_path, capfd, monkeypatch, generator)
    assert message in line
    assert len(line) < 200


TOO_MANY_FREQUENCIES = {
    "class_path": "dpswd.features.frequencies.Frequencies",
    "init_args": {"sample_shape": [1, 8, 8], "size": 9},
}


@pytest.mark.parametrize(
    ("generator", "message"),
    [
        (
            {"class_path": "own_class.Large", "init_args": {"side": 12}},
            "dpswd: Expected one sample_shape for generator and features, got (1, 12, 12) and",
        ),
        (
            {"class_path": "own_class.Nested", "init_args": {"size": TOO_MANY_FREQUENCIES}},
            "dpswd: Expected 1 <= size <= 8 (the image's side), got 9",
        ),
    ],
    ids=["model", "one of several types"],
)
def test_a_class_that_refuses_its_arguments_says_so_in_its_own_sentence(
    tmp_path, capfd, monkeypatch, generator, message
):
    line = line_about_an_own_generator(tmp_path, capfd, monkeypatch, generator)
    assert line.startswith(message)
    assert "Subtypes" not in line


def line_about_an_own_generator(tmp_path, capfd, monkeypatch, generator):
    """Return the line about a config whose generator is a class of the working folder."""
    (tmp_path / "own_class.py").write_text(OWN_CLASS)
    (tmp_path / "broken.py").write_text("import math\ndef f(:\n")
    config = yaml.safe_load(Path(FIT_CONFIG).read_text())
    config["model"]["init_args"]["generator"] = generator
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    return refused(capfd, "fit", "--config", "my.yaml")


def test_a_model_of_no_module_class_is_named_in_one_sentence(tmp_path, capfd):
    config = yaml.safe_load(Path(FIT_CONFIG).read_text())
    config["model"] = {"class_path": "torch.nn.Linear"}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    line = refused(capfd, "fit", "--config", str(tmp_path / "my.yaml"))
    assert "model: torch.nn.Linear is no subclass of lightning.pytorch.core.module." in line
    assert len(line) < 200


SPELLINGS = (("--config", "{}"), ("--config={}",), ("-c", "{}"), ("-c={}",), ("-c{}",))


@pytest.mark.parametrize("spelling", SPELLINGS, ids=" ".join)
def test_a_shipped_config_is_read_by_its_name(capfd, spelling):
    words = [word.format("mnist_swd") for word in spelling]
    with pytest.raises(SystemExit) as stop:
        main(["fit", *words, "--print_config"])
    assert stop.value.code == 0
    printed = yaml.safe_load(capfd.readouterr().out)
    assert printed["trainer"]["default_root_dir"] == "runs/mnist_swd"


@pytest.mark.parametrize("spelling", SPELLINGS, ids=" ".join)
def test_a_syntax_error_in_a_config_names_the_file_and_the_line(
    tmp_path, capfd, monkeypatch, spelling
):
    (tmp_path / "my.yaml").write_text("trainer:\n  max_steps: 3\n   accelerator: cpu\n")
    monkeypatch.chdir(tmp_path)
    line = refused(capfd, "fit", *(word.format("my.yaml") for word in spelling))
    assert "Expected YAML in my.yaml, got a syntax error in line 3, column " in line


def flip_a_bit(content):
    position = int(0.3 * len(content))
    return content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]


def cut(content):
    return content[: int(0.7 * len(content))]


@pytest.mark.parametrize("damage", [flip_a_bit, cut])
def test_damaged_checkpoints_are_refused(fitted, damage, tmp_path, capfd):
    whole = (fitted.directory / "checkpoints" / "last.ckpt").read_bytes()
    path = tmp_path / "x.ckpt"
    path.write_bytes(damage(whole))
    with untouched(fitted.directory):
        assert main([*fitted.arguments(), "--ckpt_path", str(path)]) == 2
    last_line = capfd.readouterr().err.strip().splitlines()[-1]
    assert last_line.startswith("dpswd: Expected a checkpoint")


@pytest.mark.parametrize(
    "content",
    [{"state_dict": Trap()}, Trap(), [1], {"state_dict": 3}, {}],
    ids=["code in weights", "code", "list", "number", "empty"],
)
def test_no_code_of_a_checkpoint_is_run(tmp_path, content):
    path = tmp_path / "x.ckpt"
    torch.save(content, path)
    assert main(fit_arguments(tmp_path / "out", 2, "--ckpt_path", str(path))) == 2
    assert not Trap.sprung
    assert written(tmp_path / "out") is None
