"""The methods of Table 1, each from the same network trained on the source.

``image map`` is that of ``dpswd adapt``, for digits as they are, with a network and steps of its
own: its jitter and number of steps were chosen on one seed of USPS-MNIST. ``source only`` trains
that network on the source; ``real target`` fits the map to the private images themselves and is NOT
PRIVATE. All other methods take the same number of steps.

No other choice uses target labels, and the settings are the same for all problems of a kind. The
weight of an unprotected term follows a rule without target labels: at the start the weighted term
is a tenth of ln C, the loss of a random guess among C classes (DANN and DP-DANN have weight 1, as
in the paper of DANN). Ours has no weight, since the distance moves the adapter alone.
"""

import copy
import math
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpswd.adaptation.methods import ImageMap
from dpswd.errors import PrivacyWarning
from dpswd.estimators.adapter import PrivateAdapter
from dpswd.features.frequencies import DCT
from dpswd.features.maps import FeatureMap, Flatten
from dpswd.networks.adapters import ImageAdapter
from experiments.adaptation.pairs import Pair, digits, office
from experiments.results import Result
from models.adaptation import (
    accuracy,
    fit_aligned,
    fit_aligned_unprotected,
    fit_source,
    source_batches,
)
from models.alignment import DANNTerm, SWDTerm, endless, fit_unprotected
from models.dp_dann import fit_dp_dann
from models.encoders import DigitEncoder, FeatureEncoder, ShiftAdapter, jitter
from models.encoders import classifier as two_layers

CLASSES = 10
# Amounts of the jitter, those of configs/adapt_digits.yaml.
JITTER = {"shift": 1.5, "rotation": 10.0, "zoom": 0.1, "shear": 0.1, "elastic": 0.6}
IMAGE_MAP_STEPS = 1500
_WEIGHTED_TERM = 0.1  # an unprotected term at the start, as a part of ln C
_BATCHES_OF_WEIGHT = 5  # from which that term is estimated
_FEATURE_ALIGNMENT = 1e-2  # weight of the distance between features of the encoder
_MANY_DIMENSIONS = 100  # up to it two bases of directions are released, above it one


# Problems -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Problem:
    """Source, target and public settings of one adaptation problem.

    Attributes:
        name: Name in the tables.
        data: Function from the root of the data to the pair.
        encoder: Makes the encoder.
        adapter: Makes the public adapter of ours.
        space: Makes the public space in which ours compares records.
        pretrain: Steps on the source alone, before every method.
        steps: Steps of a method.
        batch: Source records per step.
        blocks: Block means per direction of ours.
        delta: Delta of the guarantee.
        lr: Learning rate of encoder and classifier.
        adapter_lr: Learning rate of the adapter.
        private_batch: Records per release of DP-DANN.
    """

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
    private_batch: int


def _digits(source: str, target: str, framing: str) -> Problem:
    name = f"{source}-{target}"
    if framing == "resized":
        name = f"{name}, as they are"
    return Problem(
        name=name,
        data=partial(digits, source, target, framing),
        encoder=DigitEncoder,
        adapter=ImageAdapter,
        space=partial(DCT, (1, 28, 28), 10, radius=12.0),
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
        data=partial(office, source, target),
        encoder=partial(FeatureEncoder, 1024, 50),
        adapter=partial(ShiftAdapter, 1024),
        space=partial(Flatten, (1024,), radius=45.0),
        pretrain=200,
        steps=150,
        batch=64,
        blocks=4,
        delta=1e-3,
        lr=5e-4,
        adapter_lr=1e-2,
        private_batch=64,
    )


_ALL_PROBLEMS = (
    _digits("MNIST", "USPS", "framed"),
    _digits("USPS", "MNIST", "framed"),
    _digits("MNIST", "USPS", "resized"),
    _digits("USPS", "MNIST", "resized"),
    _office("A", "W"),
    _office("A", "D"),
    _office("W", "A"),
    _office("W", "D"),
    _office("D", "A"),
    _office("D", "W"),
)
PROBLEMS = {problem.name: problem for problem in _ALL_PROBLEMS}


@dataclass(frozen=True)
class Start:
    """Encoder and classifier trained on the source, and the data."""

    problem: Problem
    pair: Pair
    encoder: Any
    classifier: nn.Module
    seed: int

    def copy_encoder(self) -> Any:
        """Return a copy of the encoder, for a method to train."""
        return copy.deepcopy(self.encoder)

    def copy_classifier(self) -> nn.Module:
        """Return a copy of the classifier, for a method to train."""
        return copy.deepcopy(self.classifier)

    def score(self, encoder: Any, classifier: nn.Module) -> float:
        """Return the accuracy on the labelled test records of the target, in percent."""
        return accuracy(nn.Sequential(encoder, classifier), self.pair.test)

    def source(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Return endless batches of the source; images are jittered."""
        augment = None
        if self.pair.source.values.ndim > 2:
            augment = jitter
        return source_batches(self.pair.source, self.problem.batch, augment)

    @property
    def target(self) -> Tensor:
        """All private records."""
        return self.pair.target.floats()


def make_start(problem: Problem, seed: int, root: str | None) -> Start:
    """Train encoder and classifier on the source alone."""
    torch.manual_seed(seed)
    encoder = problem.encoder()
    pair = problem.data(root)
    start = Start(problem, pair, encoder, two_layers(encoder.dim, CLASSES), seed)
    fit_source(start.encoder, start.classifier, start.source(), problem.pretrain, problem.lr)
    return start


# Methods ------------------------------------------------------------------------------------------


def source_only(start: Start, epsilon: float | None) -> Result:
    """Train on the source alone."""
    return {"accuracy": start.score(start.encoder, start.classifier)}


def dann(start: Start, epsilon: float | None) -> Result:
    """Run DANN with weight 1. NOT PRIVATE."""
    encoder = start.copy_encoder()
    term = DANNTerm(encoder.dim)
    return _fit_unprotected(start, encoder, term, start.source(), _target_batches(start), 1.0)


def swd(start: Start, epsilon: float | None) -> Result:
    """Run SWD with the weight of the module docstring. NOT PRIVATE."""
    encoder = start.copy_encoder()
    term = SWDTerm()
    source = start.source()
    target = _target_batches(start)
    weight = _weight(term, encoder, source, target)
    return _fit_unprotected(start, encoder, term, source, target, weight)


def _target_batches(start: Start) -> Iterator[Tensor]:
    """Yield raw batches of the target without end. NOT PRIVATE."""
    target = start.target
    for index in endless(len(target), start.problem.batch):
        yield target[index]


def _fit_unprotected(
    start: Start,
    encoder: Any,
    term: nn.Module,
    source: Iterator[tuple[Tensor, Tensor]],
    target: Iterator[Tensor],
    weight: float,
) -> Result:
    """Train with an unprotected alignment term; return the accuracy."""
    classifier = start.copy_classifier()
    fit_unprotected(
        encoder,
        classifier,
        term,
        source,
        target,
        steps=start.problem.steps,
        weight=weight,
        lr=start.problem.lr,
    )
    return {"accuracy": start.score(encoder, classifier)}


@torch.no_grad()
def _weight(term: nn.Module, encoder: nn.Module, source: Any, target: Any) -> float:
    """Return the weight with which a term starts at a tenth of ln C. NOT PRIVATE.

    The term at the start is the mean of five raw batches.
    """
    values = []
    for (records, _), others in islice(zip(source, target, strict=False), _BATCHES_OF_WEIGHT):
        values.append(float(term(encoder(records), encoder(others), 0.0)))
    return _WEIGHTED_TERM * math.log(CLASSES) / (sum(values) / len(values))


def align(start: Start, epsilon: float | None, **changes: Any) -> Result:
    """Run ours: adapter, public space, one release, or as ``changes`` say.

    Without ``epsilon`` there is no noise: NOT PRIVATE.
    """
    problem = start.problem
    encoder = start.copy_encoder()
    classifier = start.copy_classifier()
    space = problem.space()
    n_projections = space.dim
    if space.dim <= _MANY_DIMENSIONS:
        n_projections = 2 * space.dim
    options: dict[str, Any] = {
        "adapter": problem.adapter(),
        "space": space,
        "n_projections": n_projections,
        "n_quantiles": problem.blocks,
        "lr": problem.lr,
        "adapter_lr": problem.adapter_lr,
        "steps": problem.steps,
    }
    options |= changes
    source = start.source()
    if epsilon is None:
        fit_aligned_unprotected(encoder, classifier, source, start.target, **options)
        return {"accuracy": start.score(encoder, classifier)}
    target = start.pair.target.private()
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        # The methods of the table read the same records; each states a guarantee of its own.
        warnings.simplefilter("ignore", PrivacyWarning)
        spent = fit_aligned(
            encoder,
            classifier,
            source,
            target,
            run_dir=Path(directory) / "run",
            target_epsilon=epsilon,
            target_delta=problem.delta,
            **options,
        )
    return {"accuracy": start.score(encoder, classifier), **spent}


def align_features(start: Start, epsilon: float | None) -> Result:
    """Run ours on the encoder's features in ten releases, without an adapter."""
    return align(
        start,
        epsilon,
        n_releases=10,
        adapter=None,
        space=None,
        n_projections=None,
        alignment=_FEATURE_ALIGNMENT,
    )


def dp_dann(start: Start, epsilon: float | None) -> Result:
    """Run DANN with private gradients of the target (models/dp_dann.py)."""
    assert epsilon is not None
    problem = start.problem
    encoder = start.copy_encoder()
    classifier = start.copy_classifier()
    spent = fit_dp_dann(
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
    return {"accuracy": start.score(encoder, classifier), **spent}


def image_map_source_only(start: Start, epsilon: float | None) -> Result:
    """Train the network of the image map on the source."""
    return _fit_image_map(start, None)


def image_map_real_target(start: Start, epsilon: float | None) -> Result:
    """Fit the image map to the private images. NOT PRIVATE."""
    return _fit_image_map(start, start.target)


def _fit_image_map(start: Start, target: Tensor | None) -> Result:
    image_map = ImageMap(IMAGE_MAP_STEPS, **JITTER)
    source = start.pair.source
    network = image_map.fit(source.floats(), source.labels, target, start.seed)
    return {"accuracy": accuracy(network, start.pair.test)}


def image_map_synthetic_target(start: Start, epsilon: float | None) -> Result:
    """Run ``dpswd adapt`` with the image map."""
    assert epsilon is not None
    images = start.pair.source.floats()
    labels = start.pair.source.labels.numpy()
    private = start.target
    with tempfile.TemporaryDirectory() as directory:
        adapter = PrivateAdapter(
            epsilon,
            start.problem.delta,
            method=ImageMap(IMAGE_MAP_STEPS, **JITTER),
            random_state=start.seed,
            verbose=False,
            run_dir=Path(directory) / "run",
        )
        adapter.fit(
            torch.cat([images, private]),
            np.r_[labels, np.full(len(private), -1)],
            np.repeat([1, -1], [len(images), len(private)]),
        )
    test = start.pair.test
    guarantee = adapter.guarantee_
    return {
        "accuracy": 100 * adapter.score(test.floats(), test.labels.numpy()),
        "delta": guarantee["delta"],
        "mu": guarantee["mu"],
        "sound": guarantee["sound"],
    }


@dataclass(frozen=True)
class Method:
    """A method of the table and the epsilons at which it runs.

    ``None`` is the epsilon of a run without a guarantee.
    """

    run: Callable[[Start, float | None], Result]
    budgets: tuple[float | None, ...] = (None,)


METHODS = {
    "source only": Method(source_only),
    "DANN": Method(dann),
    "SWD": Method(swd),
    "SWD, adapter": Method(align),
    "DP-DANN": Method(dp_dann, (10.0, 1.0)),
    "DP-SWD, features": Method(align_features, (10.0,)),
    "DP-SWD, adapter": Method(align, (10.0, 1.0)),
    "image map, synthetic target": Method(image_map_synthetic_target, (10.0, 1.0)),
    "image map, source only": Method(image_map_source_only),
    "image map, real target": Method(image_map_real_target),
}


def run_method(start: Start, method: str, epsilon: float | None) -> Result:
    """Run one method; return its accuracy in percent, the privacy spent, and seconds."""
    torch.manual_seed(1000 + start.seed)
    began = time.monotonic()
    outcome = METHODS[method].run(start, epsilon)
    seconds = time.monotonic() - began
    return {"method": method, "budget": epsilon, "seconds": seconds, **outcome}
