"""How often LastCheckpoint writes, and that a run without checkpoints has none."""

import lightning as L
import pytest
from factories import Mine, fit_arguments, loader, trainer, written

from dpswd.commands.main import main
from dpswd.lightning.checkpoints import LastCheckpoint


class Steps(L.Callback):
    """Notes the step of every checkpoint."""

    def __init__(self):
        self.steps = []

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        self.steps.append(trainer.global_step)


@pytest.mark.parametrize(
    ("n_steps", "limits", "interval"),
    [
        (60, {"max_steps": 60}, 3),
        (39, {"max_steps": 39}, 2),
        (10, {"max_steps": 10}, 1),
        (60, {"max_steps": -1, "max_epochs": 3}, 3),
        (60, {"max_steps": -1, "max_epochs": -1}, 3),
    ],
    ids=str,
)
def test_a_run_has_at_most_twenty_checkpoints_after_its_start(tmp_path, n_steps, limits, interval):
    steps = Steps()
    made = trainer(tmp_path, **limits)
    made.callbacks = [made.budget, LastCheckpoint(tmp_path), steps]
    made.fit(Mine(), loader(n_steps))
    assert steps.steps == list(range(0, n_steps + 1, interval))
    assert len(steps.steps) <= 21


@pytest.mark.parametrize(("value", "is_written"), [("false", False), ("true", True)])
def test_a_fit_without_checkpoints_writes_none(tmp_path, capfd, value, is_written):
    directory = tmp_path / "run"
    option = ["--trainer.enable_checkpointing", value]
    assert main(fit_arguments(directory, 2, *option)) == 0
    capfd.readouterr()
    assert written(directory) == 2
    assert (directory / "checkpoints").exists() == is_written
    assert (directory / "report.html").exists()
