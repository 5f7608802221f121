"""The methods of Table 1, each from the same network trained on the source, for the same number of steps.

``image map`` is that of ``dpswd adapt``, for digits as they are, with a network and steps of its own: its jitter and
number of steps were chosen on one seed of USPS-MNIST. ``source only`` trains that network on the source;
``real target`` fits the map to the private images themselves and is NOT PRIVATE.

No other choice uses target labels, and the settings are the same for all problems of a kind. The weight of an
unprotected term follows a rule without target labels: at the start the weighted term is a tenth of ln C, the loss of a
random guess among C classes (DANN and DP-DANN have weight 1, as in the paper of DANN). Ours has no weight, since the
distance moves the adapter alone.
"""

import copy
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpswd.adaptation.methods import ImageMap
from dpswd.estimators.adapter import PrivateAdapter
from dpswd.features.frequencies import DCT
from dpswd.features.maps import FeatureMap, Flatten
from dpswd.networks.adapters import ImageAdapter
from experiments.adaptation.pairs import Pair, digits, office
from models.adaptation import accuracy, fit_aligned, fit_source, source_batches
from models.alignment import DANNTerm, SWDTerm, endless, fit_unprotected
from models.dp_dann import fit_dp_dann
from models.encoders import DigitEncoder, FeatureEncoder, ShiftAdapter, jitter
from models.encoders import classifier as two_layers

CLASSES = 10
JITTER = {
    "shift": 1.5,
    "rotation": 10.0,
    "zoom": 0.1,
    "shear": 0.1,
    "elastic": 0.6,
}  # of configs/adapt_digits.yaml
IMAGE_MAP_STEPS = 1500
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
    encoder: Any
    classifier: nn.Module
    seed: int

    def parts(self) -> tuple[Any, nn.Module]:
        """Return copies of encoder and classifier."""
        return copy.deepcopy(self.encoder), copy.deepcopy(self.classifier)

    def score(self, encoder: Any, classifier: nn.Module) -> float:
        """Return the accuracy on the labelled test records of the target."""
        return accuracy(nn.Sequential(encoder, classifier), self.pair.test)

    def source(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return endless batches of the source."""
        return source_batches(
            self.pair.source,
            self.problem.batch,
            jitter if self.pair.source.values.ndim > 2 else None,
        )

    @property
    def target(self) -> Tensor:
        """All private records."""
        return self.pair.target.floats()


def make_start(problem: Problem, seed: int, root: str | None) -> Start:
    """Train encoder and classifier on the source alone."""
    torch.manual_seed(seed)
    encoder = problem.encoder()
    start = Start(problem, problem.data(root), encoder, two_layers(encoder.dim, CLASSES), seed)
    fit_source(start.encoder, start.classifier, start.source(), problem.pretrain, problem.lr)
    return start


def _unprotected(
    make: Callable[[int], nn.Module], weighed: bool
) -> Callable[[Start, float | None], dict[str, Any]]:
    def method(start: Start, epsilon: float | None) -> dict[str, Any]:
        term, (encoder, classifier) = make(start.encoder.dim), start.parts()
        batches = endless(len(start.target), start.problem.batch)
        source, target = start.source(), (start.target[part] for part in batches)
        weight = _weight(term, encoder, source, target) if weighed else 1.0
        options: dict[str, Any] = {
            "steps": start.problem.steps,
            "weight": weight,
            "lr": start.problem.lr,
        }
        fit_unprotected(encoder, classifier, term, source, target, **options)
        return {"accuracy": start.score(encoder, classifier)}

    return method


@torch.no_grad()
def _weight(term: nn.Module, encoder: nn.Module, source: Any, target: Any) -> float:
    """Return a tenth of ln C divided by the term at the start, the mean of five raw batches. NOT PRIVATE."""
    pairs = islice(zip(source, target, strict=False), 5)
    values = [float(term(encoder(records), encoder(others), 0.0)) for (records, _), others in pairs]
    return _SHARE * math.log(CLASSES) / (sum(values) / len(values))


def align(start: Start, epsilon: float | None, **changes: Any) -> dict[str, Any]:
    """Run ours: adapter, public space, one release, or as ``changes`` say; ``None`` for no noise: NOT PRIVATE."""
    problem, (encoder, classifier) = start.problem, start.parts()
    space = problem.space()
    options: dict[str, Any] = {
        "adapter": problem.adapter(),
        "space": space,
        "n_projections": 2 * space.dim if space.dim <= 100 else space.dim,
        "n_quantiles": problem.blocks,
        "lr": problem.lr,
        "adapter_lr": problem.adapter_lr,
        "target_epsilon": epsilon,
        "target_delta": problem.delta,
    }
    target = start.pair.target.private()
    facts = fit_aligned(
        encoder, classifier, start.source(), target, steps=problem.steps, **(options | changes)
    )
    return {"accuracy": start.score(encoder, classifier), **facts}


def _image_map(aim: str) -> Callable[[Start, float | None], dict[str, Any]]:
    def method(start: Start, epsilon: float | None) -> dict[str, Any]:
        image_map, private = ImageMap(IMAGE_MAP_STEPS, **JITTER), start.target
        images, labels = start.pair.source.floats(), start.pair.source.labels
        if epsilon is None:
            network = image_map.fit(
                images, labels, private if aim == "real target" else None, start.seed
            )
            return {"accuracy": accuracy(network, start.pair.test)}
        options: dict[str, Any] = {
            "method": image_map,
            "random_state": start.seed,
            "verbose": False,
        }
        with tempfile.TemporaryDirectory() as directory:
            adapter = PrivateAdapter(
                epsilon, start.problem.delta, run_dir=Path(directory) / "run", **options
            ).fit(
                torch.cat([images, private]),
                np.r_[labels.numpy(), np.full(len(private), -1)],
                np.repeat([1, -1], [len(images), len(private)]),
            )
        test = start.pair.test
        found = adapter.score(test.floats(), test.labels.numpy())
        return {
            "accuracy": 100 * found,
            **{name: adapter.guarantee_[name] for name in ("delta", "mu", "sound")},
        }

    return method


FEATURES: dict[str, Any] = {
    "adapter": None,
    "space": None,
    "n_projections": None,
    "alignment": 1e-2,
}  # no adapter


def _dp_dann(start: Start, epsilon: float | None) -> dict[str, Any]:
    assert epsilon is not None
    problem, (encoder, classifier) = start.problem, start.parts()
    facts = fit_dp_dann(
        encoder,
        classifier,
        encoder.dim,
        start.source(),
        start.target,
        steps=problem.steps // 2,
        batch_size=min(problem.private_batch, len(start.target)),
        lr=problem.lr,
        clip=1.0,
        target_epsilon=epsilon,
        target_delta=problem.delta,
    )
    return {"accuracy": start.score(encoder, classifier), **facts}


METHODS: dict[
    str, tuple[Callable[[Start, float | None], dict[str, Any]], tuple[float | None, ...]]
] = {
    "source only": (lambda start, epsilon: {"accuracy": start.score(*start.parts())}, (None,)),
    "DANN": (_unprotected(DANNTerm, weighed=False), (None,)),
    "SWD": (_unprotected(lambda dim: SWDTerm(), weighed=True), (None,)),
    "SWD, adapter": (align, (None,)),
    "DP-DANN": (_dp_dann, (10.0, 1.0)),
    "DP-SWD, features": (
        lambda start, epsilon: align(start, epsilon, n_releases=10, **FEATURES),
        (10.0,),
    ),
    "DP-SWD, adapter": (align, (10.0, 1.0)),
    **{
        f"image map, {aim}": (_image_map(aim), budgets)
        for aim, budgets in (
            ("synthetic target", (10.0, 1.0)),
            ("source only", (None,)),
            ("real target", (None,)),
        )
    },
}


def run_method(start: Start, method: str, epsilon: float | None) -> dict[str, Any]:
    """Run one method; return its accuracy in percent, the privacy spent, and seconds."""
    torch.manual_seed(1000 + start.seed)
    began = time.monotonic()
    found = METHODS[method][0](start, epsilon)
    return {"method": method, "budget": epsilon, "seconds": time.monotonic() - began, **found}
