"""End-to-end audit of a generator with canaries among the digits of scikit-learn.

Each slot of the data set holds one of two canaries, a random black-and-white pattern or its negative, as a coin of the
auditor decides. The generator is that of :class:`dpswd.PrivateGenerator`. The score of a slot compares the distances of
its two canaries to the nearest generated record of the class.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpswd import PrivateGenerator
from dpswd.data.benchmarks import benchmark
from dpswd.records import Records
from experiments.audit.one_run import one_run_epsilon

CONFIDENCE = 0.99


@dataclass(frozen=True)
class Canaries:
    """The digits with canaries in the first m records."""

    records: Records  # that the generator is fitted to
    pairs: Tensor  # canaries (m, 2, 1, 8, 8)
    classes: Tensor  # of the pairs (m,)
    coins: Tensor  # which canary of each pair is in the data (m,)

    @classmethod
    def of(cls, slots: int, seed: int) -> "Canaries":
        """Draw ``slots`` pairs and coins from the seed of the auditor and put them among the digits."""
        train = benchmark("digits").train
        rng = np.random.default_rng(seed)
        pattern = torch.from_numpy(rng.integers(0, 2, (slots, 1, 8, 8))).float()
        classes, coins = (torch.from_numpy(rng.integers(0, n, slots)) for n in (10, 2))
        pairs = torch.stack([pattern, 1 - pattern], dim=1)
        values, labels = train.floats().clone(), train.labels.clone()
        values[:slots], labels[:slots] = pairs[torch.arange(slots), coins], classes
        return cls(Records(values, labels), pairs, classes, coins)


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
    *, slots: int, epsilon: float, published: float | None = None
) -> dict[str, Any]:
    """Fit a generator to the digits with canaries in ``slots``; return a lower bound on its epsilon at delta = 1e-5.

    Control: with ``published``, this fraction of the records is given out as "synthetic" in place of a fit.
    """
    data = Canaries.of(slots, 0)
    if published is None:
        records, labels = _generated(data.records, epsilon)
    else:
        private = data.records
        pick = np.random.default_rng(1).permutation(len(private))[: round(published * len(private))]
        records, labels = private.values[pick], private.labels[pick]
    scores = scores_of(data.pairs, data.classes, records, labels)
    coins = data.coins.numpy()
    lower = one_run_epsilon(scores.numpy(), coins, delta=1e-5, confidence=CONFIDENCE)
    return {
        "what": "PrivateGenerator"
        if published is None
        else f"{published:.0%} of the records published",
        "slots": slots,
        "guessed_right": float(((scores > 0) == (data.coins == 1)).float().mean()),
        "epsilon_lower": lower,
        "best_provable_epsilon": one_run_epsilon(
            coins - 0.5, coins, delta=1e-5, confidence=CONFIDENCE
        ),
        "epsilon_claimed": epsilon,
        "delta": 1e-5,
        "confidence": CONFIDENCE,
        "passed": lower <= epsilon,
    }


def _generated(records: Records, epsilon: float) -> tuple[Tensor, Tensor]:
    """Fit a generator and draw 20,000 records with their classes."""
    with tempfile.TemporaryDirectory() as directory:
        generator = PrivateGenerator(
            epsilon, run_dir=Path(directory) / "run", random_state=0, verbose=False
        )
        generator.fit(records.private(classes=range(10)))
        drawn, labels = generator.sample(20_000, np.arange(20_000) % 10)
    return torch.as_tensor(drawn).float().reshape(-1, 1, 8, 8), torch.as_tensor(labels)
