"""End-to-end audit of a generator with canaries among the digits of scikit-learn.

Each slot of the data set holds one of two canaries, a random black-and-white pattern or its
negative, as a coin of the auditor decides. The generator is that of
:class:`dpswd.PrivateGenerator`. The score of a slot compares the distances of its two canaries to
the nearest generated record of the class.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dpswd import PrivateGenerator
from dpswd.data.benchmarks import benchmark
from dpswd.records import Records
from experiments.audit.one_run import one_run_epsilon
from experiments.results import Row

N_CLASSES = 10
SIDE = 8  # of the digits, in pixels
N_GENERATED = 20_000
CONFIDENCE = 0.99
DELTA = 1e-5


@dataclass(frozen=True)
class Canaries:
    """The digits with canaries in the first m records.

    Attributes:
        records: Records to which the generator is fitted.
        pairs: Canaries (m, 2, 1, 8, 8).
        classes: Classes of the pairs (m,).
        coins: Which canary of each pair is in the data (m,), 0 or 1.
    """

    records: Records
    pairs: Tensor
    classes: Tensor
    coins: Tensor

    @classmethod
    def of(cls, slots: int, seed: int) -> "Canaries":
        """Put ``slots`` canaries among the digits; the seed draws pairs and coins."""
        train = benchmark("digits").train
        rng = np.random.default_rng(seed)
        pattern = torch.from_numpy(rng.integers(0, 2, (slots, 1, SIDE, SIDE))).float()
        pairs = torch.stack([pattern, 1 - pattern], dim=1)
        classes = torch.from_numpy(rng.integers(0, N_CLASSES, slots))
        coins = torch.from_numpy(rng.integers(0, 2, slots))
        values = train.floats().clone()
        values[:slots] = pairs[torch.arange(slots), coins]
        labels = train.labels.clone()
        labels[:slots] = classes
        return cls(Records(values, labels), pairs, classes, coins)


def scores_of(pairs: Tensor, classes: Tensor, records: Tensor, labels: Tensor) -> Tensor:
    """Return scores (m,): distance to the first canary minus distance to the second.

    A distance is that of the nearest record of the class.

    Args:
        pairs: Canaries (m, 2, *sample_shape).
        classes: Classes of the pairs (m,).
        records: Records (n, *sample_shape).
        labels: Classes of the records (n,).
    """
    scores = torch.zeros(len(pairs))
    for c in classes.unique().tolist():
        is_of_class = classes == c
        pool = records[labels == c].flatten(1)
        canaries = pairs[is_of_class].flatten(2).transpose(0, 1)  # (2, slots of the class, d)
        distances = torch.cdist(canaries, pool[None]).min(dim=2).values
        scores[is_of_class] = distances[0] - distances[1]
    return scores


def audit_generator(*, slots: int, epsilon: float, published: float | None = None) -> Row:
    """Bound the epsilon of a generator from below, at delta = 1e-5.

    The generator is fitted to the digits with canaries in ``slots``. Control: with ``published``,
    this fraction of the records is given out as "synthetic" in place of a fit.
    """
    data = Canaries.of(slots, 0)
    if published is None:
        name = "PrivateGenerator"
        output = _generated(data.records, epsilon)
    else:
        name = f"{published:.0%} of the records published"
        output = _selected(data.records, published)
    scores = scores_of(data.pairs, data.classes, output.values, output.labels)
    guesses_are_right = (scores > 0) == (data.coins == 1)
    coins = data.coins.numpy()
    lower = one_run_epsilon(scores.numpy(), coins, delta=DELTA, confidence=CONFIDENCE)
    best = one_run_epsilon(coins - 0.5, coins, delta=DELTA, confidence=CONFIDENCE)
    return {
        "what": name,
        "slots": slots,
        "guessed_right": float(guesses_are_right.float().mean()),
        "epsilon_lower": lower,
        "best_provable_epsilon": best,
        "epsilon_claimed": epsilon,
        "delta": DELTA,
        "confidence": CONFIDENCE,
        "passed": lower <= epsilon,
    }


def _selected(records: Records, fraction: float) -> Records:
    """Return a random part of the records."""
    order = np.random.default_rng(1).permutation(len(records))
    index = order[: round(fraction * len(records))]
    return Records(records.values[index], records.labels[index])


def _generated(records: Records, epsilon: float) -> Records:
    """Fit a generator and draw ``N_GENERATED`` records with their classes."""
    with tempfile.TemporaryDirectory() as directory:
        generator = PrivateGenerator(
            epsilon, run_dir=Path(directory) / "run", random_state=0, verbose=False
        )
        generator.fit(records.private(classes=range(N_CLASSES)))
        values, labels = generator.sample(N_GENERATED, np.arange(N_GENERATED) % N_CLASSES)
    images = torch.as_tensor(values).float().reshape(-1, 1, SIDE, SIDE)
    return Records(images, torch.as_tensor(labels))
