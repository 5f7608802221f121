"""A network trained by the paper's mechanism: the config ``mnist_rows``.

The mechanism is applied at every step, and the config is shipped. ``dpswd fit`` runs the config at
full length: 60,100 releases of 100 noisy rows in 1,000 directions. Classifiers are trained on
60,000 images of the generator and tested on the real test images. ``OUT/rows`` is the run
directory. An interrupted experiment goes on from its last checkpoint.
"""

import json
import os
from pathlib import Path

import torch

from dpswd.data import benchmark
from dpswd.files.generators import read_generator
from dpswd.files.pictures import save_samples
from experiments import cells
from experiments.commands import fit
from experiments.generation.slices import evaluated
from experiments.results import Result

CONFIG = "mnist_rows"
QUICK_STEPS = 20


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> Result:
    """Train a network by the paper's mechanism at every step (2 hours; resumes).

    The two hours are those of a core.
    """
    directory = cells.directory_of(out, "rows", quick=quick)
    loaded = benchmark("mnist", data, public=True)
    options = []
    if quick:
        options = ["--trainer.max_steps", str(QUICK_STEPS)]
    train(directory, data, options)
    generator, _ = read_generator(directory / "generator.pt")
    torch.manual_seed(0)
    save_samples(generator, out / "rows.png")
    privacy = json.loads((directory / "privacy.json").read_text())
    result = {"accuracy": evaluated(generator.eval(), loaded)}
    row = {
        "dataset": "MNIST",
        "method": "the paper's mechanism at every step",
        "statistic": "rows",
        "epsilon": privacy["epsilon"],
        "delta": privacy["delta"],
        "mu": privacy["mu"],
        "sound": privacy["sound"],
        "steps": privacy["releases_made"],
    }
    return {"rows": cells.by_classifier([result], row)}


def train(directory: Path, data: Path | None, options: list[str]) -> None:
    """Run the config by the command line, or go on with a run that was interrupted.

    Raises:
        DpswdError: If the command ends with an error, which it has printed.
    """
    if (directory / "generator.pt").exists():
        return
    settings: dict[str, object] = {"config": CONFIG, "trainer.default_root_dir": directory}
    checkpoint = directory / "checkpoints" / "last.ckpt"
    if checkpoint.exists():
        settings["ckpt_path"] = checkpoint
    if data is not None:
        os.environ["DPSWD_DATA"] = str(data)  # where the config looks for MNIST
    fit(settings, options)
