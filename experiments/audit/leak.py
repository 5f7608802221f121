"""Membership leak of the published gradient of adaptation: is a given record in the private batch?

One step of adaptation. The attacker knows the encoder, the source batch and all private records but one (replace-one: a
digit, or a corrupt scan with 20 times the ink in every pixel), and sees the gradient of the encoder. It simulates both
data sets and scores a gradient along the direction that separates them best (difference of means over variances).
Clopper-Pearson limits on its error rates, with 95 % confidence, give lower bounds on mu:

- ``as published``: rows divided by the batch's largest norm, gradient through the private branch;
- ``largest norm only``, ``private branch only``: one of the two faults;
- ``sound``: block means without either fault, attacked through the gradient and through the release itself, scored by
  its likelihood ratio.

All four claim the same mu for one full batch, whose rows are assumed to move by at most 1.

``synthetic target`` is the path of :class:`dpswd.PrivateAdapter`: the attacker sees all releases of
:func:`dpswd.mixture.fit` without classes and scores them by the likelihood ratio of the whole transcript. Synthetic
records, the method and the classifier are functions of the releases and public numbers, so that no attack on them has
more power. Records are vectors of digits in the coordinates of a source of other digits, which gives the cells from
mu = 1 on. The record is a digit, or white everywhere.
"""

import dataclasses
import math
import warnings
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from dpswd import mixture
from dpswd.accounting.calibrate import calibrate_sigma
from dpswd.adaptation.space import SourceSpace
from dpswd.audit.bounds import evaluate
from dpswd.audit.game import Unrecorded
from dpswd.loss import DPSlicedWassersteinLoss
from dpswd.mechanism import ProjectionMechanism
from dpswd.queries import GaussianQuery
from dpswd.records import PrivateBatch, PrivateRecords
from dpswd.sliced import random_projections, wasserstein_1d
from models.published import published_distance

HELP = "leak of the published gradient of adaptation and of ours: lower bounds on mu, a figure (minutes)"

BATCH, DIM, DIRECTIONS = 128, 16, 16
BLOCKS = 16
INK = 20.0
CONFIDENCE = 0.95
VARIANTS = ("as published", "largest norm only", "private branch only", "sound")
SYNTHETIC = "synthetic target"
N_TARGET = 900  # records, all of them in every release
_SIMULATED = 0.3  # share of the runs that train the attacker; the others are counted


class World:
    """Source batch, private batches with and without the record, and a random encoder."""

    def __init__(self, seed: int = 0) -> None:
        from sklearn.datasets import load_digits

        generator = torch.Generator().manual_seed(seed)
        images = torch.from_numpy(load_digits().data).float() / 16
        order = torch.randperm(len(images), generator=generator)
        self.source, first = images[order[:BATCH]], images[order[BATCH : 2 * BATCH]]
        second = first.clone()
        second[0] = INK  # in every pixel
        self.batches = (first, second)
        self.records = [PrivateRecords(batch) for batch in self.batches]
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, DIM))
        with torch.no_grad():
            for parameter in self.encoder.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(parameter.shape[-1]))
            self.radius = float(self.encoder(self.source).norm(dim=1).quantile(0.99))  # public

    def rows(self, values: Tensor) -> Tensor:
        """Row function: features of records, scaled by a public constant."""
        rows: Tensor = self.encoder(values) / (2 * self.radius)
        return rows

    def gradient(self, loss: Tensor) -> np.ndarray:
        """Return the published gradient of all parameters, flat."""
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(self.encoder.parameters()))]).numpy()


def clipped(features: Tensor, radius: float) -> Tensor:
    """Scale each row to norm at most 1/2, differentiably."""
    rows = features / (2 * radius)
    return rows * (0.5 / rows.norm(dim=1, keepdim=True).clamp(min=0.5))


def published_gradient(world: World, batch: Tensor, sigma: float, variant: str) -> np.ndarray:
    """Return the gradient of one step of an unsound variant."""
    ours = world.encoder(world.source)
    theirs = world.encoder(batch)
    if variant == "as published":
        return world.gradient(published_distance(ours, theirs, sigma, DIRECTIONS))
    if variant == "largest norm only":
        return world.gradient(published_distance(ours, theirs.detach(), sigma, DIRECTIONS))
    directions = random_projections(DIM, DIRECTIONS).float()
    noisy = [clipped(side, world.radius) @ directions for side in (ours, theirs)]
    noisy = [side + sigma * torch.randn_like(side) for side in noisy]
    return world.gradient(wasserstein_1d(noisy[0], noisy[1]).mean())


def sound_step(world: World, which: int, criterion: DPSlicedWassersteinLoss) -> tuple[np.ndarray, float]:
    """Return the gradient of one sound step on data set ``which`` and the log-likelihood ratio of its release."""
    release = criterion.release(PrivateBatch(world.records[which], BATCH), rows=world.rows)
    logs = []  # of noisy block means (m, k): the most powerful test
    for batch in world.batches:
        means = criterion.exact_values(world.rows(batch), None, release.projections)
        logs.append(-(release.values - means).square().sum() / (2 * release.mechanism.sigma**2))
    return world.gradient(criterion.distance(release, world.rows(world.source))), float(logs[1] - logs[0])


def _scores(gradients: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Learn a direction on the first runs of both data sets and score the others along it.

    The features are the entries of the gradient and the logarithms of their absolute values, which show an entry that
    is zero for one data set only.
    """
    n_train = int(_SIMULATED * len(gradients[0]))
    seen = [np.concatenate([g, np.log(np.abs(g) + 1e-20)], 1) for g in gradients]
    known, fresh = [g[:n_train] for g in seen], [g[n_train:] for g in seen]
    spread = (known[0].var(0) + known[1].var(0)) / 2
    direction = np.divide(known[1].mean(0) - known[0].mean(0), spread, out=np.zeros_like(spread), where=spread > 0)
    return fresh[0] @ direction, fresh[1] @ direction


def attack(world: World, variant: str, mu: float, trials: int) -> list[dict[str, Any]]:
    """Make ``trials`` runs on each data set; return one row per attack."""
    mechanism = ProjectionMechanism(DIM, DIRECTIONS, 1.0, BATCH)
    if variant == "sound":
        mechanism = mechanism.replace(statistic="quantiles", n_quantiles=BLOCKS, kind="orthogonal")
    mechanism = mechanism.replace(sigma=calibrate_sigma(mechanism, sample_size=BATCH, n_releases=1, target_mu=mu))
    if variant == "sound":
        criterion = DPSlicedWassersteinLoss(mechanism, recorder=Unrecorded())
        found = [[sound_step(world, which, criterion) for _ in range(trials)] for which in (0, 1)]
        gradients = [np.stack([gradient for gradient, _ in runs]) for runs in found]
        ratios = [np.array([ratio for _, ratio in runs]) for runs in found]
        return [
            _row(variant, "gradient", mu, _scores((gradients[0], gradients[1]))),
            _row(variant, "release itself", mu, (ratios[0], ratios[1])),
        ]
    worlds = [
        np.stack([published_gradient(world, batch, mechanism.sigma, variant) for _ in range(trials)])
        for batch in world.batches
    ]
    return [_row(variant, "gradient", mu, _scores((worlds[0], worlds[1])))]


class Transcript(Unrecorded):
    """Stands in for a :class:`dpswd.Budget`: makes all releases of a fit, or replays those of another fit.

    Args:
        mu: Claim of all releases together.
        replayed: Noisy values that every query returns, in place of new ones.
    """

    def __init__(self, mu: float, replayed: list[Tensor] | None = None) -> None:
        self.mu, self.queries = mu, list[GaussianQuery]()
        self.seen: list[Tensor] = []
        self.replayed = replayed
        self.log_likelihood = 0.0  # of the replayed values, up to a constant

    def __enter__(self) -> Self:
        shares = [query.share for query in self.queries[:-1]]
        for query, share in zip(self.queries, [*shares, 1 - sum(shares)], strict=True):
            sigma = query.mechanism.sensitivity / (self.mu * math.sqrt(share))
            query.mechanism, query.recorder = dataclasses.replace(query.mechanism, sigma=sigma), self
            query._publish = self._publisher(query, query._publish)  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    def statement(self) -> dict[str, Any]:
        """Return what the weights have seen: no run."""
        return {"weights_from_runs": []}

    def _publisher(self, query: GaussianQuery, publish: Any) -> Any:
        def published(exact: Tensor, *arguments: Any, **options: Any) -> Tensor:
            if self.replayed is None:
                self.seen.append(publish(exact, *arguments, **options))
            else:
                self.seen.append(self.replayed[len(self.seen)])
                squares = ((self.seen[-1] - exact) / query.mechanism.sigma).square().sum()
                self.log_likelihood -= float(squares) / 2
            return self.seen[-1]

        return published


class Target:
    """Two neighbouring sets of target vectors in the coordinates of a source, and a reference out of the source."""

    def __init__(self, mu: float) -> None:
        from sklearn.datasets import load_digits

        digits = load_digits().data / 16
        first, source = digits[:N_TARGET], digits[N_TARGET:]
        second = first.copy()
        second[0] = 1.0
        space = SourceSpace.of(source, N_TARGET, mu, normalise=False)
        self.mu, self.reference = mu, torch.from_numpy(space.leading(source)).float()
        self.records = [PrivateRecords(space.target_rows(vectors)) for vectors in (first, second)]

    def fit(self, which: int, replayed: list[Tensor] | None = None) -> Transcript:
        """Fit the mixture to data set ``which``; return the transcript of its releases."""
        transcript: Any = Transcript(self.mu, replayed)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Expect")
            mixture.fit(self.records[which], transcript, radius=1.0, reference=self.reference)
        return transcript  # type: ignore[no-any-return]

    def run(self, which: int) -> float:
        """Make all releases on data set ``which``; return the log-likelihood ratio of the second to the first."""
        seen = self.fit(which).seen
        return self.fit(1, seen).log_likelihood - self.fit(0, seen).log_likelihood


def attack_synthetic_target(mu: float, trials: int) -> dict[str, Any]:
    """Make ``trials`` runs on each data set; return one row."""
    target = Target(mu)
    found = [np.array([target.run(which) for _ in range(trials)]) for which in (0, 1)]
    return _row(SYNTHETIC, "all releases", mu, (found[0], found[1]))


def _row(variant: str, seen: str, mu: float, scores: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    evidence = evaluate(*scores, confidence=CONFIDENCE)
    return {
        "variant": variant,
        "seen": seen,
        "mu_claimed": mu,
        "mu_lower": round(evidence.mu, 3),
        "epsilon_lower": round(evidence.epsilon, 3),
        "caught": bool(evidence.mu > mu),
        "trials": len(scores[0]),
    }


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Attack every variant at several claims; draw ``leak.png``."""
    torch.manual_seed(0)
    world = World()
    rows = [
        row
        for variant in VARIANTS
        for mu in ((1.0,) if quick else (0.25, 0.5, 1.0, 2.0, 4.0))
        for row in attack(world, variant, mu, 400 if quick else 1500)
    ]
    rows += [
        attack_synthetic_target(mu, 100 if quick else 400)  # the likelihood ratio needs no runs to learn from
        for mu in ((1.0,) if quick else (0.25, 0.5, 1.0, 2.0, 4.0))
    ]
    _draw(rows, out / "leak.png")
    return {"confidence": CONFIDENCE, "rows": rows}


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.8), layout="constrained")
    axes = figure.subplots()
    claims = sorted({row["mu_claimed"] for row in rows})
    axes.plot(claims, claims, color="black", linestyle=":", label="claim")
    for width, variant in zip((9, 6, 2.5, 2, 2), (*VARIANTS, SYNTHETIC), strict=True):  # three curves coincide
        part = [row for row in rows if row["variant"] == variant]
        best = [max(row["mu_lower"] for row in part if row["mu_claimed"] == mu) for mu in claims]
        axes.plot(claims, best, "o-", label=variant, linewidth=width, markersize=width + 3)
    axes.set(xscale="log", xlabel="claimed mu of one step", ylabel="proved mu, 95 % confidence")
    axes.set_xticks(claims, [f"{mu:g}" for mu in claims])
    axes.minorticks_off()
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
