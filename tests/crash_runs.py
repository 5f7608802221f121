"""Runs of ``dpswd fit`` in processes of their own, which start fast: forked from one that has imported everything.

Python's fork server imports torch, Lightning and dpswd once; a run is then a fork of it, and dies like any process.
"""

import multiprocessing
import os
import sys
from pathlib import Path

CONFIG = Path(__file__).parents[1] / "configs" / "digits.yaml"
OPTIONS = {
    "--trainer.callbacks": "[]",
    "--trainer.enable_progress_bar": "false",
    "--trainer.logger": "false",
    "--model.init_args.generated": "10",
    "--model.init_args.n_projections": "64",
    "--model.init_args.n_quantiles": "10",
    "--model.init_args.labels": "none",
    "--model.init_args.release_every": "1",
    "--data.init_args.batch_size": "20",
}
PRELOAD = [
    "dpswd.training.cli",
    "dpswd.commands.main",
    "dpswd.data",
    "dpswd.generation.module",
    "dpswd.generation.generators",
    "crash_runs",
]


def fork_server():
    """Returns a context whose processes start within milliseconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, "ddp_runs"])
    return context


def arguments(directory: Path, steps: int, *more: str) -> list[str]:
    """Spells a small run with a release at every step; resumes where there is a checkpoint."""
    options = OPTIONS | {"--trainer.default_root_dir": str(directory), "--trainer.max_steps": str(steps)}
    checkpoint = directory / "checkpoints" / "last.ckpt"
    if checkpoint.exists():
        options["--ckpt_path"] = str(checkpoint)
    return ["fit", "--config", str(CONFIG), *(word for pair in options.items() for word in pair), *more]


def fit(words: list[str], witness: str, said: str) -> None:
    """Runs the command; a byte is added to ``witness`` whenever noise is drawn, whatever the ledger says."""
    from dpswd.commands.main import main
    from dpswd.loss import DPSlicedWassersteinLoss

    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    made = os.open(witness, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    noise = DPSlicedWassersteinLoss._noise

    def witnessed(loss: DPSlicedWassersteinLoss, shape: tuple[int, ...]):
        os.write(made, b".")
        return noise(loss, shape)

    DPSlicedWassersteinLoss._noise = witnessed
    sys.argv = ["dpswd", *words]
    status = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
