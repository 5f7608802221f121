r"""Alignment of source and target by DP-SWD during the training, for Table 1.

This is the sound version of the algorithm of Rakotomamonjy2021. The product is
:class:`dpswd.PrivateAdapter`, which makes a synthetic target first.

An encoder g and a classifier h are trained on source records. An optional public adapter T maps the
source records to records that look like those of the target; a release of the target's rows
determines T:

.. math:: \min_{g, h, T} \; \mathbb{E}\, \ell(h(g(T x_s)), y_s) + \lambda \, d \, (2 R)^2 \,
          SW_2^2(r(T x_s), \text{release}).

With ``space``, rows are those of a fixed public map r, and the distance moves T alone. Without it
they are features :math:`r(x) = (g(x) - c) / (2 R)`, with c and R computed from public source
records, and the distance moves g and T.

Formal guarantee:
    The target is a handle, and a :class:`dpswd.Budget` holds the loss that opens it: at a release
    only, for a fresh uniform subset of fixed size, whose rows are computed in evaluation mode
    without gradients. So the row function of each release is a function of public records and
    earlier releases (docs/theory/private-side.md), and the training steps that follow are
    post-processing. The published algorithm lets the gradient pass through :math:`g(x_t)` and is
    not private (docs/errata.md, items 4 and 5).

References:
    | Rakotomamonjy2021, Sections 4 and 6.2 and appendix 8.5.2.
    | Lee et al., Sliced Wasserstein Discrepancy, CVPR 2019.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpswd import (
    Budget,
    DPSlicedWassersteinLoss,
    FixedSizeSampler,
    PrivateRecords,
    ProjectionMechanism,
    Release,
    ReleaseLoader,
)
from models.alignment import endless

# Number of source records whose features give the public centre and radius.
_N_REFERENCE = 2048

# Part of the source features that lies within the radius; the features beyond it are clipped.
_WITHIN_RADIUS = 0.99

# Deviation of the noise where there shall be none; a mechanism requires a positive one.
_NO_NOISE = 1e-12

# Lowest factor on the learning rates, at the end of the training.
_LOWEST_FACTOR = 0.05

# Records in a chunk of an encoder's evaluation, which bounds its memory.
_CHUNK = 2048

Batches = Iterator[tuple[Tensor, Tensor]]


# Training on the source


def source_batches(
    records: Any, batch_size: int = 128, augment: Callable[[Tensor], Tensor] | None = None
) -> Batches:
    """Yield shuffled batches of labelled public records without end, all of one size.

    Args:
        records: :class:`dpswd.Records` with labels.
        batch_size: Records in a batch; all records if there are fewer.
        augment: Map of the values of a batch, such as a random shift of images.

    Yields:
        Values (b, ...) and classes (b,).
    """
    values = records.floats()
    labels = records.labels
    size = min(batch_size, len(labels))
    for indices in endless(len(labels), size):
        batch = values[indices]
        if augment is not None:
            batch = augment(batch)
        yield batch, labels[indices]


def fit_source(
    encoder: nn.Module, classifier: nn.Module, source: Batches, steps: int, lr: float
) -> None:
    """Train encoder and classifier on the source alone, in place.

    The optimiser is Adam with a one-cycle learning rate, whose peak is ``4 lr``.
    """
    parameters = [*encoder.parameters(), *classifier.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4 * lr, max(2, steps))
    for _ in range(steps):
        records, classes = next(source)
        loss = nn.functional.cross_entropy(classifier(encoder(records)), classes)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()


def accuracy(module: nn.Module, records: Any) -> float:
    """Return the accuracy of a module on labelled records, in percent."""
    predictions = _evaluate(module, records.floats()).argmax(1)
    return float(100 * (predictions == records.labels).float().mean())


# Rows that are compared


class CentredFeatures(nn.Module):
    """Row function: features about a public centre, in units of a public diameter.

    Args:
        encoder: Maps records to features (n, encoder.dim).
    """

    centre: Tensor
    radius: Tensor

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.dim = int(encoder.dim)
        self.register_buffer("centre", torch.zeros(self.dim))
        self.register_buffer("radius", torch.ones(()))

    @torch.no_grad()
    def measure(self, source: Batches) -> None:
        """Set centre and radius from the present features of public source records."""
        parts: list[Tensor] = []
        while sum(len(part) for part in parts) < _N_REFERENCE:
            records, _ = next(source)
            parts.append(_evaluate(self.encoder, records))
        features = torch.cat(parts)
        self.centre.copy_(features.mean(0))
        distances = torch.linalg.vector_norm(features - self.centre, dim=1)
        self.radius.copy_(distances.quantile(_WITHIN_RADIUS).clamp(min=1e-6))

    def rows(self, features: Tensor) -> Tensor:
        """Map features (n, dim) to rows (n, dim)."""
        return (features - self.centre) / (2 * self.radius)

    def forward(self, records: Tensor) -> Tensor:
        """Map records to rows (n, dim)."""
        return self.rows(self.encoder(records))


# Training on the source and releases of the target


class Alignment:
    """Training of encoder, classifier and adapter on a source and the last release.

    Args:
        encoder: Maps records to features (n, encoder.dim).
        classifier: Maps features to logits (n, C).
        sample_size: Number N of target records.
        steps: Number of training steps.
        adapter: Maps source records to records of the target's kind; ``None`` for none.
        space: Public map from records to rows, with ``dim`` and ``radius``; ``None`` to compare
            features.
        alignment: Weight of the distance.
        n_projections: Number of directions; the dimension of the rows if not given.
        n_quantiles: Block means per direction.
        lr: Learning rate of encoder and classifier.
        adapter_lr: Learning rate of the adapter.
    """

    def __init__(
        self,
        encoder: Any,
        classifier: nn.Module,
        sample_size: int,
        *,
        steps: int,
        adapter: nn.Module | None = None,
        space: Any = None,
        alignment: float = 1.0,
        n_projections: int | None = None,
        n_quantiles: int = 16,
        lr: float = 1e-3,
        adapter_lr: float = 2e-2,
    ) -> None:
        self.encoder = encoder
        self.classifier = classifier
        self.adapter = adapter
        self.space = space
        self.features = CentredFeatures(encoder)
        self.alignment = alignment
        dim = self.row_function.dim
        mechanism = ProjectionMechanism(
            dim,
            n_projections or dim,
            # Blocks have equal sizes, so a few records may be left out of a release.
            batch_size=sample_size // n_quantiles * n_quantiles,
            kind="orthogonal",
            statistic="quantiles",
            n_quantiles=n_quantiles,
        )
        self.loss = DPSlicedWassersteinLoss(mechanism)
        groups = [{"params": [*encoder.parameters(), *classifier.parameters()], "lr": lr}]
        if adapter is not None:
            groups.append({"params": list(adapter.parameters()), "lr": adapter_lr})
        self.optimiser = torch.optim.Adam(groups)
        factor = partial(_cosine_factor, steps=steps)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimiser, factor)
        classifier.train()
        encoder.train()

    @property
    def row_function(self) -> Any:
        """The map from records to the rows that are compared."""
        if self.space is not None:
            return self.space
        return self.features

    def prepare_release(self, source: Batches) -> None:
        """Set the public centre and radius of the features, if they are compared."""
        if self.space is None:
            self.features.measure(source)

    def step(self, records: Tensor, classes: Tensor, release: Release) -> None:
        """Make a training step on a batch of the source. Post-processing of the release."""
        if self.adapter is not None:
            records = self.adapter(records)
        if self.space is not None:
            # The distance moves the adapter, and the cross-entropy encoder and classifier.
            features = self.encoder(records.detach())
            rows = self.space(records)
        else:
            features = self.encoder(records)
            rows = self.features.rows(features)
        diameter = 2 * float(self.row_function.radius)
        distance = self.row_function.dim * diameter**2 * self.loss.distance(release, rows)
        cross_entropy = nn.functional.cross_entropy(self.classifier(features), classes)
        self.optimiser.zero_grad()
        (cross_entropy + self.alignment * distance).backward()
        self.optimiser.step()
        self.schedule.step()


def fit_aligned(
    encoder: Any,
    classifier: nn.Module,
    source: Batches,
    target: PrivateRecords,
    *,
    steps: int,
    run_dir: str | Path,
    target_epsilon: float,
    target_delta: float,
    n_releases: int = 1,
    **options: Any,
) -> dict[str, Any]:
    """Train encoder, classifier and adapter in place, within a budget.

    The module docstring states the guarantee. Releases are evenly spread over the steps.

    Args:
        encoder: Maps records to features (n, encoder.dim).
        classifier: Maps features to logits (n, C).
        source: Batches of public records and their classes, without end.
        target: The private records; their classes are not read.
        steps: Number of training steps.
        run_dir: Directory of the ledger.
        target_epsilon: Budget of the run.
        target_delta: Budget of the run; below 1 / N.
        n_releases: Number of releases.
        options: Further options of :class:`Alignment`.

    Returns:
        The privacy spent: ``epsilon``, ``delta``, ``mu`` and ``sound``.
    """
    training = Alignment(encoder, classifier, len(target), steps=steps, **options)
    loader = ReleaseLoader(
        target,
        batch_size=training.loss.mechanism.batch_size or 0,
        n_releases=n_releases,
        every=math.ceil(steps / n_releases),
    )
    budget = Budget(
        target,
        [training.loss],
        n_releases=n_releases,
        target_epsilon=target_epsilon,
        target_delta=target_delta,
        run_dir=run_dir,
    )
    release: Any = None
    with budget:
        for batch in islice(loader, steps):
            if len(batch):
                training.prepare_release(source)
                release = training.loss.release(batch, rows=training.row_function)
            records, classes = next(source)
            training.step(records, classes, release)
    statement = budget.statement()
    return {name: statement[name] for name in ("epsilon", "delta", "mu", "sound")}


def fit_aligned_unprotected(
    encoder: Any,
    classifier: nn.Module,
    source: Batches,
    target: Tensor,
    *,
    steps: int,
    n_releases: int = 1,
    **options: Any,
) -> None:
    """Train as :func:`fit_aligned` does, on exact block means. NOT PRIVATE.

    Args:
        encoder: Maps records to features (n, encoder.dim).
        classifier: Maps features to logits (n, C).
        source: Batches of public records and their classes, without end.
        target: The records (N, ...), which are read without noise.
        steps: Number of training steps.
        n_releases: How often block means are computed.
        options: Further options of :class:`Alignment`.
    """
    training = Alignment(encoder, classifier, len(target), steps=steps, **options)
    mechanism = training.loss.mechanism.replace(sigma=_NO_NOISE)
    training.loss.mechanism = mechanism
    subsets = iter(FixedSizeSampler(len(target), mechanism.batch_size or 0, n_steps=n_releases))
    every = math.ceil(steps / n_releases)
    release: Any = None
    for step in range(steps):
        if step % every == 0:
            training.prepare_release(source)
            records = target[next(subsets)]
            release = training.loss.release(_evaluate(training.row_function, records))
        records, classes = next(source)
        training.step(records, classes, release)


def _cosine_factor(step: int, steps: int) -> float:
    """Return the factor on the learning rates: half a cosine from 1 to the lowest."""
    progress = min(1.0, step / steps)
    return _LOWEST_FACTOR + (1 - _LOWEST_FACTOR) * 0.5 * (1 + math.cos(math.pi * progress))


@torch.no_grad()
def _evaluate(network: nn.Module, records: Tensor) -> Tensor:
    """Map records in chunks, in evaluation mode, without gradients."""
    training = network.training
    network.eval()
    outputs = torch.cat([network(chunk) for chunk in records.split(_CHUNK)])
    network.train(training)
    return outputs
