"""What the published gradient gives away: is a given record in the private batch?

One step of adaptation. The attacker knows the encoder, the source batch, all private records but one (replace-one: a
digit, or a corrupt scan with 20 times the ink in every pixel), and sees the gradient of the encoder that the step
publishes. It simulates both worlds itself, and scores a gradient along the direction that separates the simulated ones
best (means over variances). Upper limits on its error rates (Clopper and Pearson, all at 95%) give lower bounds on mu,
held against the claimed mu:

- ``as published``: rows divided by the batch's largest norm, gradient through the private branch;
- ``largest norm only``, ``private branch only``: one of the two holes open, the other closed;
- ``sound``: our release (block means), both closed, the same attack; and the strongest attacker there is, who sees the
  release itself and scores it by its likelihood ratio.

All four claim the same mu for one full batch, whose rows are said to move by at most 1.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpswd.accounting.calibrate import calibrate_sigma
from dpswd.audit import weigh
from dpswd.loss import DPSlicedWassersteinLoss, Release, clip_rows
from dpswd.mechanism import ProjectionMechanism
from dpswd.rowwise import rowwise
from dpswd.sliced import padded_block_means, random_projections, wasserstein_1d
from models.published import published_distance

HELP = "what the published gradient of adaptation leaks, and ours: lower bounds on mu, a figure (minutes)"

BATCH, DIM, DIRECTIONS = 128, 16, 16
BLOCKS = 16
INK = 20.0
CONFIDENCE = 0.95
VARIANTS = ("as published", "largest norm only", "private branch only", "sound")
_SIMULATED = 0.3  # of the runs teach the attacker, the rest are counted


class World:
    """Source, private batches with and without the record, and an encoder that starts at random."""

    def __init__(self, seed: int = 0) -> None:
        from sklearn.datasets import load_digits

        generator = torch.Generator().manual_seed(seed)
        images = torch.from_numpy(load_digits().data).float() / 16
        order = torch.randperm(len(images), generator=generator)
        self.source, first = images[order[:BATCH]], images[order[BATCH : 2 * BATCH]]
        second = first.clone()
        second[0] = INK  # in every pixel
        self.batches = (first, second)
        self.encoder = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, DIM))
        with torch.no_grad():
            for parameter in self.encoder.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / math.sqrt(parameter.shape[-1]))
            self.radius = float(self.encoder(self.source).norm(dim=1).quantile(0.99))  # public

    def gradient(self, loss: Tensor) -> np.ndarray:
        """The gradient of all parameters, flat: what is published."""
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(self.encoder.parameters()))]).numpy()


def clipped(features: Tensor, radius: float) -> Tensor:
    """Scales rows to norm at most 1/2, each by itself, differentiably."""
    rows = features / (2 * radius)
    return rows * (0.5 / rows.norm(dim=1, keepdim=True).clamp(min=0.5))


def published_gradient(world: World, batch: Tensor, sigma: float, variant: str) -> np.ndarray:
    """One step of the first three variants."""
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


def sound_step(world: World, batch: Tensor, criterion: DPSlicedWassersteinLoss) -> tuple[np.ndarray, float]:
    """One step of the sound version: the gradient, and the log-likelihood ratio of the release."""
    release = criterion.release(rowwise(world.encoder, batch) / (2 * world.radius))
    rows = world.encoder(world.source) / (2 * world.radius)
    return world.gradient(criterion.distance(release, rows)), _log_ratio(world, release)


def _log_ratio(world: World, release: Release) -> float:
    """The log-likelihood ratio of noisy block means (m, k), whose directions are public: the best test there is."""
    blocks = release.mechanism.n_values
    logs = []
    for batch in world.batches:
        rows = clip_rows(rowwise(world.encoder, batch) / (2 * world.radius), release.mechanism.row_norm)
        means = padded_block_means((rows @ release.projections).sort(dim=0).values, len(rows), blocks)
        logs.append(-(release.values - means).square().sum() / (2 * release.mechanism.sigma**2))
    return float(logs[1] - logs[0])


def _scores(gradients: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Learns a direction on the first runs of both worlds, and scores the others along it.

    What is looked at: every entry of the gradient, and the logarithm of its size (an entry that is never zero in one
    world and always zero in the other says all).
    """
    taught = int(_SIMULATED * len(gradients[0]))
    seen = [np.concatenate([g, np.log(np.abs(g) + 1e-20)], 1) for g in gradients]
    known, fresh = [g[:taught] for g in seen], [g[taught:] for g in seen]
    spread = (known[0].var(0) + known[1].var(0)) / 2
    direction = np.divide(known[1].mean(0) - known[0].mean(0), spread, out=np.zeros_like(spread), where=spread > 0)
    return fresh[0] @ direction, fresh[1] @ direction


def attack(world: World, variant: str, mu: float, trials: int) -> list[dict[str, Any]]:
    """Plays the game ``trials`` times in each world; returns a row per attack."""
    mechanism = ProjectionMechanism(DIM, DIRECTIONS, 1.0, BATCH)
    if variant == "sound":
        mechanism = mechanism.replace(statistic="quantiles", n_quantiles=BLOCKS, kind="orthogonal")
    mechanism = mechanism.replace(sigma=calibrate_sigma(mechanism, BATCH, 1, target_mu=mu))
    if variant == "sound":
        criterion = DPSlicedWassersteinLoss(mechanism)
        found = [[sound_step(world, batch, criterion) for _ in range(trials)] for batch in world.batches]
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


def _row(variant: str, seen: str, mu: float, scores: tuple[np.ndarray, np.ndarray]) -> dict[str, Any]:
    evidence = weigh(*scores, confidence=CONFIDENCE)
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
    """Attacks every variant at several claims; draws ``leak.png``."""
    torch.manual_seed(0)
    world = World()
    rows = [
        row
        for variant in VARIANTS
        for mu in ((1.0,) if quick else (0.25, 0.5, 1.0, 2.0, 4.0))
        for row in attack(world, variant, mu, 400 if quick else 1500)
    ]
    for row in rows:
        verdict = "CAUGHT" if row["caught"] else "within the claim"
        print(
            f"{row['variant']:<20} sees {row['seen']:<15} claims {row['mu_claimed']:<5g} "
            f"mu >= {row['mu_lower']:<6} {verdict}"
        )
    _draw(rows, out / "leak.png")
    return {"confidence": CONFIDENCE, "rows": rows}


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.8), layout="constrained")
    axes = figure.subplots()
    claims = sorted({row["mu_claimed"] for row in rows})
    axes.plot(claims, claims, color="black", linestyle=":", label="the claim")
    for width, variant in zip((9, 6, 2.5, 2), VARIANTS, strict=True):  # three of them lie on top of each other
        part = [row for row in rows if row["variant"] == variant]
        best = [max(row["mu_lower"] for row in part if row["mu_claimed"] == mu) for mu in claims]
        axes.plot(claims, best, "o-", label=variant, linewidth=width, markersize=width + 3)
    axes.set(xscale="log", xlabel="mu that is claimed for one step", ylabel="mu that the attacker proves, at 95%")
    axes.set_xticks(claims, [f"{mu:g}" for mu in claims])
    axes.minorticks_off()
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
