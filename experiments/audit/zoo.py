"""Nine broken mechanisms that an audit must catch, each with its sound twin, which must pass.

All but the twins are NOT PRIVATE. A specimen overrides one documented step of the library's loss, or hands over tensors
against the conditions of that path, and is attacked where it leaks. Its twin is the sound mechanism, with private
records behind a handle, under the same attack and the same claim.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd._kernels import block_means
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.audit.bounds import Claim
from dpswd.audit.game import Game, ProjectionGame, Unrecorded, run_game
from dpswd.loss import DPSlicedWassersteinLoss, Release
from dpswd.mechanism import ProjectionMechanism
from dpswd.queries import ClassCounts
from dpswd.records import PrivateBatch, PrivateRecords
from dpswd.sampling import FixedSizeSampler

__all__ = ["CONFIDENCE", "TRIALS", "ZOO", "Specimen", "inspect"]

CONFIDENCE = 1 - 1e-3  # of each verdict
TRIALS = 1500  # runs per data set
DELTA = 1e-5

# mu = 1 for one release: S = 2, sensitivity sqrt(2) / 4
MECHANISM = ProjectionMechanism(
    4, 8, sigma=2**0.5 / 4, batch_size=8, statistic="quantiles", n_quantiles=2, kind="orthogonal"
)
LABELLED = MECHANISM.replace(n_classes=2)
STRONG = MECHANISM.replace(sigma=MECHANISM.sigma / 4)  # mu = 4: membership in a batch shows
EPOCH = 4  # batches in an epoch of the shuffled loader


class Loss(DPSlicedWassersteinLoss):
    """The sound loss, which a specimen breaks, within no budget."""

    def __init__(self, mechanism: ProjectionMechanism) -> None:
        super().__init__(mechanism, recorder=Unrecorded())

    def release_all(self, records: PrivateRecords, **options: Any) -> Release:
        """Release one batch of all records, behind their handle."""
        return self.release(PrivateBatch(records, len(records)), **options)


class BatchMax(Loss):
    def exact_values(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        longest = torch.linalg.vector_norm(rows.double(), dim=1).max()
        return super().exact_values(
            rows.double() * (self.mechanism.row_norm / longest), labels, projections
        )


class ClipsLast(Loss):
    def exact_values(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        return self.compute_statistic(rows.double(), labels, projections)

    def add_noise(self, values: Tensor) -> Tensor:
        return super().add_noise(values).clamp(-self.mechanism.row_norm, self.mechanism.row_norm)


class SameNoise(Loss):
    noise: Tensor | None = None

    def add_noise(self, values: Tensor) -> Tensor:
        if self.noise is None:
            self.noise = super().add_noise(torch.zeros_like(values))
        return values + self.noise


class BlockSums(Loss):
    def exact_values(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        return super().exact_values(rows, labels, projections) * self.mechanism.block_size


def _batches(rng: np.random.Generator, length: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return equal rows z of the largest norm, and the same with row 0 replaced by -z, ``length`` times as long."""
    z = torch.from_numpy(rng.standard_normal(MECHANISM.dim)).float()
    first = (MECHANISM.row_norm * z / z.norm()).expand(MECHANISM.batch_size, -1).clone()
    second = first.clone()
    second[0] *= -length
    return first, second


def _log_ratio(values: Tensor, first: Tensor, second: Tensor, sigma: float) -> float:
    """Return the log-likelihood ratio of Gaussian values with mean ``second`` over mean ``first``."""
    return float(((values - (first + second) / 2) * (second - first)).sum()) / sigma**2


class OneRelease:
    """One release, scored by the log-likelihood ratio of what the specimen computes."""

    def __init__(self, loss: Loss, rng: np.random.Generator, length: float = 1.0) -> None:
        self.loss, self.batches = loss, _batches(rng, length)
        self.records = [PrivateRecords(batch) for batch in self.batches]

    def play(self, replaced: bool) -> float:
        release = self.loss.release_all(self.records[replaced])
        first, second = (
            self.loss.exact_values(batch, None, release.projections) for batch in self.batches
        )
        return _log_ratio(release.values, first, second, self.loss.mechanism.sigma)


class Difference:
    """Difference of two releases, which cancels common noise; the second rank reads other records."""

    def __init__(
        self, losses: Callable[[], tuple[Loss, Loss]], rng: np.random.Generator, *, ranks: bool
    ) -> None:
        self.losses, self.ranks, self.batches = losses, ranks, _batches(rng)
        self.records = [PrivateRecords(batch) for batch in self.batches]

    def play(self, replaced: bool) -> float:
        one, two = self.losses()
        left = one.release_all(self.records[replaced])
        right = two.release_all(self.records[replaced and not self.ranks])
        first, second = (
            one.exact_values(batch, None, left.projections)
            - two.exact_values(self.batches[0] if self.ranks else batch, None, right.projections)
            for batch in self.batches
        )
        return _log_ratio(left.values - right.values, first, second, one.mechanism.sigma * 2**0.5)


class Labels:
    """A record changes its class; class counts are released beside the projections."""

    def __init__(self, rng: np.random.Generator, *, exact_counts: bool) -> None:
        self.loss, self.counts, self.exact_counts = Loss(LABELLED), _counts(), exact_counts
        self.counts.recorder = Unrecorded()
        rows, first = _batches(rng)[0], torch.zeros(MECHANISM.batch_size, dtype=torch.int64)
        second = first.clone()
        second[0] = 1
        self.labels = (first, second)
        self.records = [PrivateRecords(rows, labels, classes=range(2)) for labels in self.labels]

    def play(self, replaced: bool) -> float:
        self.loss.release_all(self.records[replaced])
        exact = torch.bincount(self.labels[replaced], minlength=2).double()
        counts = exact if self.exact_counts else self.counts.release(self.records[replaced])
        return float(counts[1] - counts[0])


class Gradient:
    """Gradient of an encoder that both branches share; raw records differ in one coordinate each."""

    def __init__(self, rng: np.random.Generator, *, through_private_branch: bool) -> None:
        self.through, self.loss = through_private_branch, Loss(MECHANISM)
        self.encoder = torch.nn.Linear(6, MECHANISM.dim, bias=False, dtype=torch.float64)
        z = _batches(rng)[0][0]
        with torch.no_grad():
            self.encoder.weight[:] = torch.from_numpy(rng.standard_normal((MECHANISM.dim, 6)) / 10)
            self.encoder.weight[:, :3] = torch.stack([z, -z, z], dim=1)
        self.source = torch.from_numpy(rng.standard_normal((4, 6)))
        self.raw = [
            torch.eye(6, dtype=torch.float64)[[pixel] + [2] * (MECHANISM.batch_size - 1)]
            for pixel in (0, 1)
        ]
        self.records = [PrivateRecords(raw) for raw in self.raw]

    def rows(self, values: Tensor) -> Tensor:
        """Row function: the library gives float32 to the encoder, which computes in float64 for the attack."""
        rows: Tensor = self.encoder(values.double())
        return rows

    def play(self, replaced: bool) -> float:
        if not self.through:
            release = self.loss.release_all(self.records[replaced], rows=self.rows)
            explained = published = self._gradient(release)  # computable from the release alone
        else:
            private = self.encoder(self.raw[replaced])
            release = self.loss.release(private.detach())
            explained = self._gradient(release)
            live = self._values(private, release)
            attached = Release(
                release.values + live - live.detach(), release.projections, release.mechanism
            )
            published = self._gradient(attached)
        with torch.no_grad():
            first, second = (self._values(self.encoder(raw), release) for raw in self.raw)
        ratio = _log_ratio(release.values, first, second, self.loss.mechanism.sigma)
        excess = (published - explained).norm(dim=0)  # (6,): which inputs moved the weights
        return ratio + 1e9 * float(excess[1] - excess[0])

    def _values(self, rows: Tensor, release: Release) -> Tensor:
        return block_means(
            (rows @ release.projections).sort(dim=0).values, self.loss.mechanism.n_values
        )

    def _gradient(self, release: Release) -> Tensor:
        public = self._values(self.encoder(self.source), release)
        (gradient,) = torch.autograd.grad(
            (release.values - public).square().mean(), self.encoder.weight
        )
        return gradient


class ShuffledEpoch(ProjectionGame):
    """Batches of a shuffled epoch, handed over by the caller: the record is in exactly one of them."""

    def releases(self, replaced: bool) -> Iterable[Release]:
        (order,) = FixedSizeSampler(self.sample_size, self.sample_size, n_steps=1)
        for index in torch.split(order, self.mechanism.batch_size):
            yield self.loss.release(self.rows(index, replaced))

    def score(self, ratios: NDArray[np.float64]) -> float:
        return float(np.logaddexp.reduce(ratios) - np.log(len(ratios)))


def _counts() -> ClassCounts:
    """Return class counts with noise for mu = 1."""
    return ClassCounts(2, sigma=2**0.5)


def _ranks(*, shared_seed: bool) -> tuple[Loss, Loss]:
    seed = int(np.random.SeedSequence().entropy % 2**32) if shared_seed else None
    return Loss(MECHANISM.replace(noise_seed=seed)), Loss(MECHANISM.replace(noise_seed=seed))


def _twice(loss: Loss) -> tuple[Loss, Loss]:
    return loss, loss


def _account(*mechanisms: Any, sample_size: int = MECHANISM.batch_size) -> PrivacyAccountant:
    account = PrivacyAccountant()
    for mechanism in mechanisms:
        account.step(mechanism, sample_size=sample_size)
    return account


@dataclass(frozen=True)
class Specimen:
    """A broken mechanism and its sound twin."""

    name: str  # the fault
    leak: str  # what the attack uses
    game: Callable[
        [np.random.Generator, bool], Game
    ]  # against the broken mechanism (True), or its twin
    claim: Callable[[], PrivacyAccountant] = lambda: _account(MECHANISM)  # of both


def _one(loss: type[Loss], mechanism: ProjectionMechanism = MECHANISM, length: float = 1.0) -> Any:
    """Return the ``game`` of one release by a broken loss or mechanism."""

    def game(rng: np.random.Generator, broken: bool) -> Game:
        return OneRelease(loss(mechanism) if broken else Loss(MECHANISM), rng, length)

    return game


def _two(
    broken_pair: Callable[[], tuple[Loss, Loss]],
    sound_pair: Callable[[], tuple[Loss, Loss]],
    ranks: bool,
) -> Any:
    """Return the ``game`` of the difference of two releases."""
    return lambda rng, broken: Difference(broken_pair if broken else sound_pair, rng, ranks=ranks)


def _epoch(rng: np.random.Generator, broken: bool) -> Game:
    kind = ShuffledEpoch if broken else ProjectionGame
    return kind(STRONG, EPOCH * STRONG.batch_size, EPOCH, seed=int(rng.integers(2**31)))


ZOO = (
    Specimen(
        "rows divided by the batch's largest norm",
        "one long row shrinks all others",
        _one(BatchMax, length=100.0),
    ),
    Specimen(
        "half the noise",
        "likelihood ratio",
        _one(Loss, MECHANISM.replace(sigma=MECHANISM.sigma / 2)),
    ),
    Specimen(
        "noise first, then the clip",
        "a long row is seen through the noise",
        _one(ClipsLast, length=100.0),
    ),
    Specimen(
        "same noise at every release",
        "two releases, subtracted",
        _two(lambda: _twice(SameNoise(MECHANISM)), lambda: _twice(Loss(MECHANISM)), ranks=False),
        lambda: _account(MECHANISM, MECHANISM),
    ),
    Specimen(
        "same noise on two ranks",
        "the ranks' releases, subtracted",
        _two(lambda: _ranks(shared_seed=True), lambda: _ranks(shared_seed=False), ranks=True),
    ),
    Specimen(
        "labels released in clear",
        "class counts",
        lambda rng, broken: Labels(rng, exact_counts=broken),
        lambda: _account(LABELLED, _counts().mechanism),
    ),
    Specimen(
        "gradient through the private branch",
        "which weights moved beyond what the release explains",
        lambda rng, broken: Gradient(rng, through_private_branch=broken),
    ),
    Specimen(
        "shuffled epochs accounted as subsets",
        "every record is read exactly once",
        _epoch,
        lambda: _account(*[STRONG] * EPOCH, sample_size=EPOCH * STRONG.batch_size),
    ),
    Specimen(
        "sensitivity ignores the block size",
        "blocks are summed, the noise is that for means",
        _one(BlockSums),
    ),
)


def inspect(specimen: Specimen, *, trials: int = TRIALS, seed: int = 0) -> dict[str, Any]:
    """Audit a specimen and its twin against the same claim."""
    claim = Claim.of(specimen.claim(), DELTA)
    broken, sound = (
        run_game(
            specimen.game(np.random.default_rng(seed), fault),
            trials,
            delta=DELTA,
            confidence=CONFIDENCE,
        )
        for fault in (True, False)
    )
    return {
        "name": specimen.name,
        "leak": specimen.leak,
        "mu_claimed": claim.mu,
        "mu_claimed_at_fpr": claim.mu_at(broken.fpr),
        "mu_lower": broken.mu_lower,
        "caught": not claim.is_consistent_with(broken),
        "twin_mu_lower": sound.mu_lower,
        "twin_passed": claim.is_consistent_with(sound),
        "trials": trials,
    }
