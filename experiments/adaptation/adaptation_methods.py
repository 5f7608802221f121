"""The methods of Table 1, each from the same network trained on the source, for the same number of steps.

No choice uses target labels, and the settings are the same for all problems of a kind. The weight of an unprotected
term follows a rule without target labels: at the start the weighted term is a tenth of ln C, the loss of a random guess
among C classes (DANN and DP-DANN have weight 1, as in the paper of DANN). Ours has no weight, since the distance moves
the adapter alone.
"""

import copy
import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import nn

from dpswd.adaptation.methods import ImageAdapter
from dpswd.lightning.budget import PrivacyBudget
from dpswd.mechanism import Mechanism
from dpswd.mixture.features import DCT, FeatureMap, Flatten
from dpswd.records import Records
from dpswd.release import Recorder
from experiments.adaptation.pairs import Pair, digits, office
from models.adaptation import AdaptationModule, AlignmentData, accuracy, fit_source, source_batches
from models.alignment import DANNTerm, JDOTTerm, Side, SWDTerm, fit_unprotected, raw_batches
from models.dp_dann import fit_dp_dann
from models.encoders import DigitEncoder, FeatureEncoder, ShiftAdapter, jitter

__all__ = [
    "METHODS",
    "PROBLEMS",
    "NoNoise",
    "Problem",
    "Start",
    "make_module",
    "make_start",
    "run_method",
    "train_module",
]

CLASSES = 10
_SHARE = 0.1  # weighted term at the start, as a share of ln C


@dataclass(frozen=True)
class Problem:
    """Source, target and public settings of one adaptation problem."""

    name: str
    data: Callable[[str | None], Pair]
    encoder: Callable[[], Any]
    adapter: Callable[[], nn.Module]
    space: Callable[[], FeatureMap]
    pretrain: int
    steps: int
    batch: int
    blocks: int
    delta: float
    lr: float
    adapter_lr: float
    private_batch: int  # records per release of DP-DANN


def _digits(source: str, target: str, framing: str) -> Problem:
    suffix = "" if framing == "framed" else ", as they are"
    return Problem(
        name=f"{source}-{target}{suffix}",
        data=lambda root: digits(source, target, framing, root),
        encoder=DigitEncoder,
        adapter=ImageAdapter,
        space=lambda: DCT((1, 28, 28), 10, radius=12.0),
        pretrain=400,
        steps=300,
        batch=128,
        blocks=32,
        delta=1e-5,
        lr=1e-3,
        adapter_lr=2e-2,
        private_batch=256,
    )


def _office(source: str, target: str) -> Problem:
    return Problem(
        name=f"{source}-{target}",
        data=lambda root: office(source, target, root),
        encoder=lambda: FeatureEncoder(1024, 50),
        adapter=lambda: ShiftAdapter(1024),
        space=lambda: Flatten((1024,), radius=45.0),
        pretrain=200,
        steps=150,
        batch=64,
        blocks=4,
        delta=1e-3,
        lr=5e-4,
        adapter_lr=1e-2,
        private_batch=64,
    )


PROBLEMS = {
    problem.name: problem
    for problem in (
        *(
            _digits(*pair, framing)
            for framing in ("framed", "resized")
            for pair in (("MNIST", "USPS"), ("USPS", "MNIST"))
        ),
        *(_office(*pair) for pair in ("AW", "AD", "WA", "WD", "DA", "DW")),
    )
}


@dataclass(frozen=True)
class Start:
    """Encoder and classifier trained on the source, and the data."""

    problem: Problem
    pair: Pair
    data: AlignmentData
    module: AdaptationModule
    seed: int

    def parts(self) -> tuple[Any, nn.Module]:
        """Return copies of encoder and classifier."""
        return copy.deepcopy(self.module.encoder), copy.deepcopy(self.module.classifier)

    def score(self, encoder: Any, classifier: nn.Module) -> float:
        """Return the accuracy on the labelled test records of the target."""
        return accuracy(AdaptationModule(encoder, CLASSES, self.module.dim, classifier=classifier), self.test)

    @property
    def test(self) -> Records:
        """Labelled test records of the target."""
        return self.pair.test


class NoNoise(Recorder, L.Callback):
    """Replaces the budget by a run without noise. NOT PRIVATE."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Set the noise to zero, up to rounding."""
        criterion: Any = pl_module.criterion
        criterion.mechanism = criterion.mechanism.replace(sigma=1e-12)
        criterion.recorder = self

    def record(self, mechanism: Mechanism) -> None:
        """Record nothing."""


def make_start(problem: Problem, seed: int, root: str | None) -> Start:
    """Train encoder and classifier on the source alone."""
    torch.manual_seed(seed)
    pair = problem.data(root)
    augment = jitter if pair.source.values.ndim > 2 else None
    data = AlignmentData(pair.source, pair.target.floats(), problem.batch, augment)
    encoder = problem.encoder()
    module = AdaptationModule(encoder, CLASSES, encoder.dim)
    batches = source_batches(data.source_loader(), CLASSES)
    fit_source(module.encoder, module.classifier, lambda: next(batches), problem.pretrain, problem.lr)
    return Start(problem, pair, data, module, seed)


def _source_only(start: Start, epsilon: float | None) -> dict[str, Any]:
    return {"accuracy": accuracy(start.module, start.test)}


def _unprotected(make: Callable[[int], nn.Module], weighed: bool) -> Callable[[Start, float | None], dict[str, Any]]:
    def method(start: Start, epsilon: float | None) -> dict[str, Any]:
        term, (encoder, classifier) = make(start.module.dim), start.parts()
        source = source_batches(start.data.source_loader(), CLASSES)
        target = raw_batches(start.data.private, start.problem.batch)
        weight = _weight(term, encoder, classifier, source, target) if weighed else 1.0
        options: dict[str, Any] = {"steps": start.problem.steps, "weight": weight, "lr": start.problem.lr}
        fit_unprotected(encoder, classifier, term, source, target, **options)
        return {"accuracy": start.score(encoder, classifier)}

    return method


@torch.no_grad()
def _weight(term: nn.Module, encoder: nn.Module, classifier: nn.Module, source: Any, target: Any) -> float:
    """Return a tenth of ln C divided by the term at the start, the mean of five raw batches. NOT PRIVATE."""
    values = []
    for (records, classes), others in islice(zip(source, target, strict=False), 5):
        ours, theirs = encoder(records), encoder(others)
        known, unknown = Side(ours, classifier(ours), classes), Side(theirs, classifier(theirs), None)
        values.append(float(term(known, unknown, 0.0)))
    return _SHARE * math.log(CLASSES) / (sum(values) / len(values))


def make_module(start: Start, **changes: Any) -> AdaptationModule:
    """Return our module: adapter, public space, one release."""
    problem, (encoder, classifier) = start.problem, start.parts()
    space = problem.space()
    options: dict[str, Any] = {
        "adapter": problem.adapter(),
        "space": space,
        "release_every": 0,
        "n_projections": 2 * space.dim if space.dim <= 100 else space.dim,
        "n_quantiles": problem.blocks,
        "lr": problem.lr,
        "adapter_lr": problem.adapter_lr,
    }
    return AdaptationModule(encoder, CLASSES, classifier=classifier, **(options | changes))


def train_module(module: AdaptationModule, start: Start, callback: L.Callback) -> dict[str, Any]:
    """Train a module; return its accuracy and the guarantee in ``privacy.json``."""
    with tempfile.TemporaryDirectory() as directory:
        trainer = L.Trainer(
            default_root_dir=directory,
            max_steps=start.problem.steps,
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[callback],
        )
        trainer.fit(module, datamodule=start.data)
        path = Path(directory) / "privacy.json"
        facts = json.loads(path.read_text()) if path.exists() else {}
    return {"accuracy": accuracy(module, start.test)} | {
        name: facts.get(name) for name in ("epsilon", "delta", "mu", "sound")
    }


def _sound(start: Start, epsilon: float | None) -> dict[str, Any]:
    budget = NoNoise() if epsilon is None else PrivacyBudget(epsilon, start.problem.delta)
    found = train_module(make_module(start), start, budget)
    return {"accuracy": found["accuracy"]} if epsilon is None else found


def _chase(start: Start, epsilon: float | None) -> dict[str, Any]:
    """Ours without an adapter: features of the encoder, released ten times."""
    assert epsilon is not None
    module = make_module(
        start, adapter=None, space=None, n_projections=None, release_every=start.problem.steps // 10, alignment=1e-2
    )
    return train_module(module, start, PrivacyBudget(epsilon, start.problem.delta))


def _dp_dann(start: Start, epsilon: float | None) -> dict[str, Any]:
    assert epsilon is not None
    problem, (encoder, classifier) = start.problem, start.parts()
    facts = fit_dp_dann(
        encoder,
        classifier,
        encoder.dim,
        source_batches(start.data.source_loader(), CLASSES),
        start.data.private,
        steps=problem.steps // 2,
        batch_size=min(problem.private_batch, len(start.data.private)),
        weight=1.0,
        lr=problem.lr,
        clip=1.0,
        target_epsilon=epsilon,
        target_delta=problem.delta,
    )
    return {"accuracy": start.score(encoder, classifier), "sound": True, **facts}


METHODS: dict[str, tuple[Callable[[Start, float | None], dict[str, Any]], tuple[float | None, ...]]] = {
    "source only": (_source_only, (None,)),
    "DANN": (_unprotected(DANNTerm, weighed=False), (None,)),
    "SWD": (_unprotected(lambda dim: SWDTerm(), weighed=True), (None,)),
    "DeepJDOT": (_unprotected(lambda dim: JDOTTerm(), weighed=True), (None,)),
    "SWD, adapter": (_sound, (None,)),
    "DP-DANN": (_dp_dann, (10.0, 1.0)),
    "DP-SWD, features": (_chase, (10.0,)),
    "DP-SWD, adapter": (_sound, (10.0, 1.0)),
}


def run_method(start: Start, method: str, epsilon: float | None) -> dict[str, Any]:
    """Run one method; return its accuracy in percent, the privacy spent, and seconds."""
    torch.manual_seed(1000 + start.seed)
    began = time.monotonic()
    found = METHODS[method][0](start, epsilon)
    return {"method": method, "budget": epsilon, "seconds": time.monotonic() - began, **found}
