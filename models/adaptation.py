r"""Alignment of source and target by DP-SWD inside the training: the sound version of Rakotomamonjy2021, for Table 1.

The product is :class:`dpswd.PrivateAdapter`, which makes a synthetic target first.

An encoder g and a classifier h are trained on source records. An optional public adapter T maps the source records to
records that look like those of the target; a release of the target's rows determines T:

.. math:: \min_{g, h, T} \; \mathbb{E}\, \ell(h(g(T x_s)), y_s) + \lambda \, d \, (2 R)^2 \,
          SW_2^2(r(T x_s), \text{release}).

With ``space``, rows are those of a fixed public map, and the distance moves T alone. Without it they are features
:math:`r(x) = (g(x) - c) / (2 R)`, with c and R computed from public source records, and the distance moves g and T.

Formal guarantee:
    The target is a handle, which :class:`dpswd.DPSlicedWassersteinLoss` opens at a release only: a fresh uniform subset
    of fixed size, rows by encoder or space in evaluation mode without gradients. So the row function of each release
    is a function of public records and earlier releases (docs/theory/private-side.md), and the training steps that
    follow are post-processing. The published algorithm lets the gradient pass through :math:`g(x_t)` and is not private
    (docs/errata.md, items 4 and 5).

References:
    | Rakotomamonjy2021, Section 5.1 and appendix 8.5.2; Lee et al., Sliced Wasserstein Discrepancy, CVPR 2019.
"""

import math
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from dpswd import (
    DPSlicedWassersteinLoss,
    PrivacyAccountant,
    PrivateRecords,
    ProjectionMechanism,
    ReleaseLoader,
)
from dpswd.audit.game import Unrecorded
from models.alignment import endless

_REFERENCE = 2048  # source records whose features give the public centre and radius
_SHARE = 0.99  # share of them that lies within the radius

Batches = Iterator[tuple[Tensor, Tensor]]


def source_batches(
    records: Any, batch_size: int = 128, augment: Callable[[Tensor], Tensor] | None = None
) -> Batches:
    """Yield shuffled batches (values, classes) of labelled public records without end, and without short ones."""
    values, labels = records.floats(), records.labels
    size = min(batch_size, len(labels))
    for part in endless(len(labels), size):
        yield values[part] if augment is None else augment(values[part]), labels[part]


def fit_source(
    encoder: nn.Module, classifier: nn.Module, source: Batches, steps: int, lr: float
) -> None:
    """Train encoder and classifier on the source alone, by Adam with a one-cycle learning rate of peak ``4 lr``."""
    optimizer = torch.optim.Adam([*encoder.parameters(), *classifier.parameters()], lr=lr)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4 * lr, max(2, steps))
    for _ in range(steps):
        records, classes = next(source)
        loss = nn.functional.cross_entropy(classifier(encoder(records)), classes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


class CentredFeatures(nn.Module):
    """Row function: features (n, encoder.dim), about a public centre and in units of a public diameter."""

    centre: Tensor
    radius: Tensor

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder, self.dim = encoder, int(encoder.dim)
        self.register_buffer("centre", torch.zeros(self.dim))
        self.register_buffer("radius", torch.ones(()))

    @torch.no_grad()
    def measure(self, source: Batches) -> None:
        """Take centre and radius from the present features of public source records."""
        parts: list[Tensor] = []
        while sum(map(len, parts)) < _REFERENCE:
            parts.append(_evaluate(self.encoder, next(source)[0]))
        features = torch.cat(parts)
        self.centre.copy_(features.mean(0))
        self.radius.copy_(
            torch.linalg.vector_norm(features - self.centre, dim=1).quantile(_SHARE).clamp(min=1e-6)
        )

    def rows(self, features: Tensor) -> Tensor:
        """Map features (n, dim) to rows (n, dim)."""
        return (features - self.centre) / (2 * self.radius)

    def forward(self, records: Tensor) -> Tensor:
        """Map records to rows (n, dim)."""
        return self.rows(self.encoder(records))


def fit_aligned(
    encoder: Any,
    classifier: nn.Module,
    source: Batches,
    target: PrivateRecords,
    *,
    steps: int,
    n_releases: int = 1,
    adapter: nn.Module | None = None,
    space: Any = None,
    alignment: float = 1.0,
    n_projections: int | None = None,
    n_quantiles: int = 16,
    lr: float = 1e-3,
    adapter_lr: float = 2e-2,
    target_epsilon: float | None = 10.0,
    target_delta: float = 1e-5,
) -> dict[str, Any]:
    """Train encoder, classifier and adapter in place; the module docstring states the guarantee.

    Rows of the fixed public ``space`` are compared, or else the features, in ``n_releases`` that are evenly spread over
    the steps. Without ``target_epsilon`` there is no noise: NOT PRIVATE. Returned is the privacy spent: epsilon, delta,
    mu and sound; nothing without noise.
    """
    features = CentredFeatures(encoder) if space is None else None
    rows = space if features is None else features
    mechanism = ProjectionMechanism(
        rows.dim,
        n_projections or rows.dim,
        batch_size=len(target) // n_quantiles * n_quantiles,
        kind="orthogonal",
        statistic="quantiles",
        n_quantiles=n_quantiles,
    )
    if target_epsilon is None:
        mechanism = mechanism.replace(sigma=1e-12)
    else:
        budget = {"target_epsilon": target_epsilon, "target_delta": target_delta}
        mechanism = mechanism.calibrate(sample_size=len(target), n_releases=n_releases, **budget)
    criterion = DPSlicedWassersteinLoss(
        mechanism, recorder=Unrecorded()
    )  # the guarantee is accounted for below
    groups: list[dict[str, Any]] = [
        {"params": [*encoder.parameters(), *classifier.parameters()], "lr": lr}
    ]
    groups += [] if adapter is None else [{"params": list(adapter.parameters()), "lr": adapter_lr}]
    optimizer = torch.optim.Adam(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, step / steps)))
    )
    size, every = mechanism.batch_size or 0, -(-steps // n_releases)
    loader = ReleaseLoader(target, batch_size=size, n_releases=n_releases, every=every)
    released: Any = None
    classifier.train()
    encoder.train()
    for batch in islice(loader, steps):
        if len(batch):
            if features is not None:
                features.measure(source)
            released = criterion.release(batch, rows=rows)
        records, classes = next(source)
        adapted = records if adapter is None else adapter(records)
        seen = encoder(adapted if features is not None else adapted.detach())
        moved = space(adapted) if features is None else features.rows(seen)
        distance = rows.dim * (2 * float(rows.radius)) ** 2 * criterion.distance(released, moved)
        loss = nn.functional.cross_entropy(classifier(seen), classes) + alignment * distance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    if target_epsilon is None:
        return {}
    account = PrivacyAccountant("pld").step(
        mechanism, sample_size=len(target), n_releases=criterion.n_releases
    )
    spent = account.guarantee(target_delta)
    return {name: spent[name] for name in ("epsilon", "delta", "mu", "sound")}


@torch.no_grad()
def _evaluate(network: nn.Module, records: Tensor) -> Tensor:
    """Map public records in chunks, in evaluation mode, without gradients."""
    training = network.training
    network.eval()
    found = torch.cat([network(part) for part in records.split(2048)])
    network.train(training)
    return found


def accuracy(module: nn.Module, records: Any) -> float:
    """Return the accuracy of a module's predictions in percent, in evaluation mode."""
    return float(
        100 * (_evaluate(module, records.floats()).argmax(1) == records.labels).float().mean()
    )
