"""The LightningCLI: a fit of digits, help, progress, refusals, damaged checkpoints."""

import contextlib
import io

import lightning.pytorch.cli  # noqa: F401  (at collection: its loggers keep the stderr that they find)
import pytest
import torch
import yaml
from factories import Trap, agree, fit_arguments, privacy, untouched, written
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from dpswd.budget.budget import _released
from dpswd.commands.main import main
from dpswd.files.generators import read_generator
from dpswd.networks.generator import draw

pytestmark = [
    pytest.mark.filterwarnings("ignore:The dirpath has changed"),
    pytest.mark.filterwarnings(
        "ignore:Total length of .CombinedLoader. across ranks is zero"
    ),  # no step is left
]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Directory of a finished run, and what it said."""
    directory, said = tmp_path_factory.mktemp("fitted"), io.StringIO()
    _released.clear()  # earlier tests may have released the digits
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        assert main(fit_arguments(directory, 5, "--trainer.enable_progress_bar", "true")) == 0
    return directory, said.getvalue()


def test_fit_of_digits(fitted):
    directory, said = fitted
    agree(directory, 5)
    config = yaml.safe_load((directory / "config.yaml").read_text())
    assert config["data"]["class_path"] == "dpswd.lightning.data.PrivateDataModule"
    assert privacy(directory)["records"] == "behind a handle"
    generator, facts = read_generator(directory / "generator.pt")[:2]
    assert draw(generator, torch.zeros(3, dtype=torch.int64)).shape == (3, 1, 8, 8)
    assert (facts["epsilon"], facts["sound"]) == (privacy(directory)["epsilon"], True)
    assert "5/5" in [line for line in said.splitlines() if line.startswith("training")][-1]
    assert "Guarantee: mu = " in said
    assert not any(word in said for word in ("Epoch", "GPU available", "litlogger", "Warning"))
    names = {
        "checkpoints",
        "config.yaml",
        "generator.pt",
        "ledger.jsonl",
        "lightning_logs",
        "privacy.json",
        "releases",
    }
    assert {path.name for path in directory.iterdir()} == names
    assert {"loss", "epsilon"} <= {
        *EventAccumulator(str(directory / "lightning_logs")).Reload().Tags()["scalars"]
    }


def test_help_is_one_screen(capsys):
    assert main(["fit", "--help"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 40
    assert all(
        word in text
        for word in ("--privacy.target_epsilon", "--privacy.shared_ledger", "--help all")
    )


@pytest.mark.parametrize(("epochs", "said"), [(1, False), (3, True)])
def test_a_plan_that_ends_before_the_steps_is_named(tmp_path, capfd, epochs, said):
    more = ("--data.n_releases", "2", "--trainer.max_epochs", str(epochs))
    assert main(fit_arguments(tmp_path / "run", -1, *more)) == 0
    line = "All 2 planned releases are made; the run ends at step 2 of 6."
    assert (line in capfd.readouterr().err) is said


def test_a_used_directory_is_refused_and_a_finished_run_resumed_without_a_release(fitted, capfd):
    directory, _ = fitted
    words = fit_arguments(directory, 5)
    at = words.index("--ckpt_path")
    with untouched(directory):
        assert main([*words[:at], *words[at + 2 :]]) == 2
    assert "Expected a new run directory" in capfd.readouterr().err
    before = (directory / "ledger.jsonl").read_bytes()
    assert main(words) == 0
    assert (directory / "ledger.jsonl").read_bytes() == before
    agree(directory, 5)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--data.path", "nowhere"), "nowhere"),
        (("--data.pth", "x"), "got: Option 'pth' is not accepted (dpswd fit --help)"),
        (
            ("--trainer.accel", "cpu"),
            "nrecognized arguments: --trainer.accel cpu (dpswd fit --help)",
        ),
        (
            ("--trainer.max_steps", "-1", "--trainer.max_epochs", "1"),
            "n_releases or trainer.max_steps",
        ),
        (("--model.labels", "blocks", "--model.generator.n_classes", "3"), "n_classes=10"),
        (("--privacy.target_delta", "0.1"), "target_delta"),
        (("--data.batch_size", "30"), "batch_size"),
        (("--trainer.devices", "2", "--trainer.strategy", "ddp_spawn"), "trainer.strategy"),
        (("--ckpt_path", "nowhere.ckpt"), "nowhere.ckpt"),
    ],
)
def test_refusals_leave_no_file(tmp_path, capfd, more, said):
    assert main(fit_arguments(tmp_path / "run", 5, *more)) == 2
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("at", "cut"), [(0.3, False), (0.7, True)])
def test_damaged_checkpoints_are_refused(fitted, at, cut, tmp_path, capfd):
    directory, _ = fitted
    whole = (directory / "checkpoints" / "last.ckpt").read_bytes()
    path, byte = tmp_path / "x.ckpt", int(at * len(whole))
    path.write_bytes(whole[:byte] + (b"" if cut else bytes([whole[byte] ^ 1]) + whole[byte + 1 :]))
    with untouched(directory):
        assert main([*fit_arguments(directory, 5), "--ckpt_path", str(path)]) == 2
    assert (
        capfd.readouterr().err.strip().splitlines()[-1].startswith("dpswd: Expected a checkpoint")
    )


def test_no_code_of_a_checkpoint_is_run(tmp_path):
    path = tmp_path / "x.ckpt"
    for content in ({"state_dict": Trap()}, Trap(), [1], {"state_dict": 3}, {}):
        torch.save(content, path)
        assert main(fit_arguments(tmp_path / "out", 2, "--ckpt_path", str(path))) == 2
    assert not Trap.sprung
    assert written(tmp_path / "out") is None
