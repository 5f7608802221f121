"""Part ``training``: where the time of a run goes, loss against network against Lightning."""

import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

CONFIGS = {
    "configs/mnist.yaml": [],  # the whole run: it begins with a flow and ends with steps of the network
    "configs/mnist_rows.yaml": ["--trainer.max_steps=100"],
    "configs/digits.yaml": ["--trainer.max_steps=300"],
}
ROOT = Path(__file__).parents[2]


def training(tiny: bool, rounds: int) -> list[dict[str, Any]]:
    """Runs the shipped configs, the longer ones for a few hundred steps, without their evaluations, on one thread."""
    root = Path(os.environ.get("DPSWD_DATA") or ROOT / "data")
    torch.set_num_threads(1)
    found = []
    for config, arguments in CONFIGS.items():
        if not (ROOT / config).exists() or (tiny and "digits" not in config):
            continue
        if "mnist" in config and not (root / "MNIST").is_dir():
            continue
        found.append(_profile(config, ["--trainer.max_steps=12"] if tiny else arguments))
    return found


def _profile(config: str, arguments: list[str]) -> dict[str, Any]:
    import lightning as L

    from dpswd.training.callback import PrivacyBudget
    from dpswd.training.cli import PrivateCLI

    seconds: dict[str, float] = defaultdict(float)

    def timed(name: str, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return work(*args, **kwargs)
            finally:
                seconds[name] += time.perf_counter() - start

        return run

    class Watch(L.Callback):
        """Starts the clocks at the first step and stops them after the last one."""

        def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
            if "start" in seconds:
                return
            criterion = module.criterion
            criterion.distance = timed("loss", criterion.distance)
            criterion.release = timed("release", criterion.release)
            module.training_step = timed("training_step", module.training_step)
            trainer.save_checkpoint = timed("saving", trainer.save_checkpoint)
            trainer.strategy.optimizer_step = timed("optimizer_step", trainer.strategy.optimizer_step)
            for callback in trainer.callbacks:
                if isinstance(callback, PrivacyBudget):
                    callback._spent = timed("epsilon", callback._spent)
            seconds["start"] = time.perf_counter()

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
            seconds["end"] = time.perf_counter()
            seconds["steps"] += 1

    with tempfile.TemporaryDirectory() as directory:
        overrides = [f"--trainer.default_root_dir={directory}", "--trainer.enable_progress_bar=false", *arguments]
        typed, sys.argv = sys.argv, sys.argv[:1]  # Lightning warns where it sees two command lines
        try:
            cli = PrivateCLI(["--config", str(ROOT / config), "--trainer.callbacks=null", *overrides], run=False)
        finally:
            sys.argv = typed
        cli.trainer.callbacks.append(Watch())
        cli.trainer.fit(cli.model, datamodule=cli.datamodule)
        manual = not cli.model.automatic_optimization
    total = seconds["end"] - seconds["start"]
    work = seconds["training_step" if manual else "optimizer_step"]
    return {
        "part": "training",
        "config": config,
        "steps": int(seconds["steps"]),
        "total_s": total,
        "release_s": seconds["release"],
        "loss_s": seconds["loss"],
        "work_s": work,
        "epsilon_s": seconds["epsilon"],
        "saving_s": seconds["saving"],
        "rest_s": total - work - seconds["epsilon"] - seconds["saving"],
    }
