"""End-to-end audit of a trained generator with canaries among the digits of scikit-learn.

Each slot of the training set holds one of two canaries, a random black-and-white pattern or its negative, as a coin of
the auditor decides. The generator is trained by ``dpswd fit``. The score of a slot compares the distances of its two
canaries to the nearest generated record of the class.
"""

import tempfile
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dpswd.data.base import Records
from dpswd.generation.export import read_generator
from torch import Tensor

from dpswd._validate import at_least
from dpswd.audit.canaries import one_run_epsilon
from dpswd.commands.main import fit
from dpswd.data.benchmarks import Digits
from dpswd.errors import InputError


class CanaryDigits(Digits):
    """The digits of scikit-learn with ``slots`` private records replaced by canaries.

    Args:
        slots: Number m of canary slots; 0 for none.
        auditor_seed: Seed of canaries and coins, known to the auditor only.
    """

    name = "digits with canaries"

    def __init__(
        self,
        slots: int = 200,
        auditor_seed: int = 0,
        root: str | None = None,
        batch_size: int | None = None,
        n_synthetic: int = 10_000,
    ) -> None:
        super().__init__(root, batch_size, n_synthetic)
        at_least(0, slots=slots, auditor_seed=auditor_seed)
        self.slots, self.auditor_seed = slots, auditor_seed

    def canaries(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return canaries (m, 2, 1, 8, 8), their classes (m,), and which of each pair is in the data (m,)."""
        rng = np.random.default_rng(self.auditor_seed)
        pattern = torch.from_numpy(rng.integers(0, 2, (self.slots, 1, 8, 8))).float()
        classes = torch.from_numpy(rng.integers(0, 10, self.slots))
        coins = torch.from_numpy(rng.integers(0, 2, self.slots))
        return torch.stack([pattern, 1 - pattern], dim=1), classes, coins

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`dpswd.data.base.PrivateData`."""
        private, test = super().load()
        if self.slots > len(private):
            raise InputError(f"Expected slots <= {len(private)} (number of records), got slots={self.slots}.")
        pairs, classes, coins = self.canaries()
        values, labels = private.values.clone(), private.labels.clone()
        values[: self.slots] = pairs[torch.arange(self.slots), coins]
        labels[: self.slots] = classes
        return Records(values, labels), test


def scores_of(pairs: Tensor, classes: Tensor, records: Tensor, labels: Tensor) -> Tensor:
    """Return scores (m,): distance of the nearest record of the class to the first canary minus to the second.

    The canaries are (m, 2, *sample_shape) with classes (m,), the records (n, *sample_shape) with classes (n,).
    """
    scores = torch.zeros(len(pairs))
    for c in classes.unique().tolist():
        at, pool = classes == c, records[labels == c].flatten(1)
        canaries = pairs[at].flatten(2).transpose(0, 1)  # (2, slots of the class, d)
        near = torch.cdist(canaries, pool[None]).min(dim=2).values
        scores[at] = near[0] - near[1]
    return scores


def audit_generator(
    *,
    slots: int = 200,
    steps: int = 1500,
    epsilon: float = 10.0,
    seed: int = 0,
    published: float | None = None,
    confidence: float = 0.99,
) -> dict[str, Any]:
    """Train a generator on the digits with canaries and compute a lower bound on its epsilon.

    Args:
        slots: Number m of canary slots.
        steps: Training steps.
        epsilon: Budget, at delta = 1e-5.
        seed: Seed of the auditor and of the weights.
        published: Control: instead of training, this fraction of the records is published as "synthetic".
        confidence: Probability with which the lower bound holds.
    """
    data = CanaryDigits(slots, seed)
    pairs, classes, coins = data.canaries()
    if published is None:
        records, labels = _generated(slots, steps, epsilon, seed)
    else:
        private, _ = data.load()
        pick = np.random.default_rng(seed + 1).permutation(len(private))[: round(published * len(private))]
        records, labels = private.values[pick], private.labels[pick]
    scores = scores_of(pairs, classes, records, labels)
    right = float(((scores > 0) == (coins == 1)).float().mean())
    shown = coins.numpy()
    lower = one_run_epsilon(scores.numpy(), shown, delta=1e-5, confidence=confidence)
    best = one_run_epsilon(shown - 0.5, shown, delta=1e-5, confidence=confidence)
    return {
        "what": "generator of configs/digits.yaml"
        if published is None
        else f"{published:.0%} of the records published",
        "slots": slots,
        "guessed_right": right,
        "epsilon_lower": lower,
        "best_provable_epsilon": best,
        "epsilon_claimed": epsilon,
        "delta": 1e-5,
        "confidence": confidence,
        "passed": lower <= epsilon,
    }


def _generated(slots: int, steps: int, epsilon: float, seed: int) -> tuple[Tensor, Tensor]:
    """Train by the command line and generate 20,000 records from ``generator.pt``."""
    with tempfile.TemporaryDirectory() as directory, redirect_stdout(StringIO()):
        options = {
            "config": "digits",
            "trainer.default_root_dir": directory,
            "trainer.logger": "false",
            "trainer.max_steps": steps,
            "trainer.enable_progress_bar": "false",
            "trainer.callbacks": "[{class_path: dpswd.generation.export.GeneratorFile}]",
            "privacy.target_epsilon": epsilon,
            "seed_everything": seed,
            "data": "experiments.audit.canaries.CanaryDigits",
            "data.init_args.slots": slots,
            "data.init_args.auditor_seed": seed,
        }
        fit(["fit", *(word for name, value in options.items() for word in (f"--{name}", str(value)))])
        generator, _ = read_generator(Path(directory) / "generator.pt")
    labels = torch.arange(20_000) % 10
    with torch.no_grad():
        return generator(generator.latent(len(labels)), labels), labels
