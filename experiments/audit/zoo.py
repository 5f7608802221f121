"""Nine broken mechanisms that the audit must catch, each with its sound twin, which it must spare.

NOT PRIVATE, all but the twins: specimens, for tests and for ``dpswd audit --zoo``. Each breaks the library's own loss
in one place, and each is attacked where it really leaks. The twin is the loss as it is, under the same attack and the
same claim.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd._random import SecureRandom, subset
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.audit.claim import Claim
from dpswd.audit.game import Game, ProjectionGame, contest
from dpswd.loss import DPSlicedWassersteinLoss, Release
from dpswd.mechanism import ProjectionMechanism
from dpswd.queries import ClassCounts
from dpswd.sliced import block_means

__all__ = ["CONFIDENCE", "TRIALS", "ZOO", "Kind", "inspect"]

CONFIDENCE = 1 - 1e-3  # of each verdict
TRIALS = 1500  # runs per data set
DELTA = 1e-5

# mu = 1 for one release: S = 2, sensitivity sqrt(2) / 4
MECHANISM = ProjectionMechanism(
    4, 8, sigma=2**0.5 / 4, batch_size=8, statistic="quantiles", n_quantiles=2, kind="orthogonal"
)
EPOCH = 4  # batches in an epoch of the shuffled loader


class _Loss(DPSlicedWassersteinLoss):
    """The loss, with the values that the attacker expects without noise."""

    def expected(self, rows: Tensor, projections: Tensor) -> Tensor:
        """Compute the values (m, k) of a release without noise."""
        return self.exact_values(rows, None, projections)


class _BatchMax(_Loss):
    def exact_values(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        rows = rows.double()
        longest: Tensor = torch.linalg.vector_norm(rows, dim=1).max()
        return super().exact_values(rows * (self.mechanism.row_norm / longest), labels, projections)


class _ClipsLast(_Loss):
    def exact_values(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        return self.compute_statistic(rows.double(), labels, projections)

    def add_noise(self, values: Tensor) -> Tensor:
        return super().add_noise(values).clamp(-self.mechanism.row_norm, self.mechanism.row_norm)

    def expected(self, rows: Tensor, projections: Tensor) -> Tensor:
        return super().expected(rows, projections).clamp(-self.mechanism.row_norm, self.mechanism.row_norm)


class _SameNoise(_Loss):
    kept: Tensor | None = None

    def add_noise(self, values: Tensor) -> Tensor:
        if self.kept is None:
            self.kept = super().add_noise(torch.zeros_like(values))
        return values + self.kept


class _Sums(_Loss):
    def exact_values(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        return super().exact_values(rows, labels, projections) * self.mechanism.block_size


def _batches(rng: np.random.Generator, length: float = 1.0, size: int = MECHANISM.batch_size) -> tuple[Tensor, Tensor]:
    """Equal rows z of the largest norm, and the same with row 0 replaced by -z, ``length`` times as long."""
    z = torch.from_numpy(rng.standard_normal(MECHANISM.dim))
    first = (MECHANISM.row_norm * z / z.norm()).expand(size, -1).clone()
    second = first.clone()
    second[0] *= -length
    return first, second


def _log_ratio(values: Tensor, first: Tensor, second: Tensor, sigma: float) -> float:
    """The log-likelihood ratio of Gaussian values with mean ``second`` over mean ``first``."""
    return float(((values - (first + second) / 2) * (second - first)).sum()) / sigma**2


class _One:
    """One release; the log-likelihood ratio of what the specimen computes."""

    def __init__(self, loss: _Loss, rng: np.random.Generator, length: float = 1.0) -> None:
        self.loss, self.batches = loss, _batches(rng, length)

    def play(self, replaced: bool) -> float:
        release = self.loss.release(self.batches[replaced])
        first, second = (self.loss.expected(batch, release.projections) for batch in self.batches)
        return _log_ratio(release.values, first, second, self.loss.mechanism.sigma)


class _Difference:
    """Two releases, subtracted: noise that both share is gone. ``ranks``: the second one reads other records."""

    def __init__(self, losses: Callable[[], tuple[_Loss, _Loss]], rng: np.random.Generator, *, ranks: bool) -> None:
        self.losses, self.ranks, self.batches = losses, ranks, _batches(rng)

    def play(self, replaced: bool) -> float:
        one, two = self.losses()
        left = one.release(self.batches[replaced])
        right = two.release(self.batches[replaced and not self.ranks])
        first, second = (
            one.expected(batch, left.projections)
            - two.expected(self.batches[0] if self.ranks else batch, right.projections)
            for batch in self.batches
        )
        return _log_ratio(left.values - right.values, first, second, one.mechanism.sigma * 2**0.5)


class _Labels:
    """A record changes its class; class counts are released beside the projections."""

    def __init__(self, rng: np.random.Generator, *, clear: bool) -> None:
        self.loss, self.counts, self.clear = DPSlicedWassersteinLoss(LABELLED), _counts(), clear
        self.rows = _batches(rng)[0]

    def play(self, replaced: bool) -> float:
        labels = torch.zeros(len(self.rows), dtype=torch.int64)
        labels[0] = int(replaced)
        self.loss.release(self.rows, labels)
        counts = torch.bincount(labels, minlength=2).double() if self.clear else self.counts.release(labels)
        return float(counts[1] - counts[0])


class _Gradient:
    """The gradient of an encoder that both branches share; raw records differ in one coordinate each."""

    def __init__(self, rng: np.random.Generator, *, through: bool) -> None:
        self.through, self.loss = through, _Loss(MECHANISM)
        self.encoder = torch.nn.Linear(6, MECHANISM.dim, bias=False, dtype=torch.float64)
        z = _batches(rng)[0][0]
        with torch.no_grad():
            self.encoder.weight[:] = torch.from_numpy(rng.standard_normal((MECHANISM.dim, 6)) / 10)
            self.encoder.weight[:, :3] = torch.stack([z, -z, z], dim=1)
        self.source = torch.from_numpy(rng.standard_normal((4, 6)))
        self.raw = [torch.eye(6, dtype=torch.float64)[[pixel] + [2] * (MECHANISM.batch_size - 1)] for pixel in (0, 1)]

    def play(self, replaced: bool) -> float:
        private = self.encoder(self.raw[replaced])
        release = self.loss.release(private)
        known = self._gradient(release)  # anybody can compute it from what was released
        shown = known
        if self.through:
            columns = (private @ release.projections).sort(dim=0).values  # rows are within the bound
            live = block_means(columns, self.loss.mechanism.n_values)
            attached = Release(release.values + live - live.detach(), release.projections, release.mechanism)
            shown = self._gradient(attached)
        first, second = (self.loss.expected(self.encoder(raw), release.projections) for raw in self.raw)
        ratio = _log_ratio(release.values, first, second, self.loss.mechanism.sigma)
        size = (shown - known).norm(dim=0)  # (6,): which inputs moved the weights
        return ratio + 1e9 * float(size[1] - size[0])

    def _gradient(self, release: Release) -> Tensor:
        columns = (self.encoder(self.source) @ release.projections).sort(dim=0).values  # (4, k)
        public = block_means(columns, self.loss.mechanism.n_values)
        (gradient,) = torch.autograd.grad((release.values - public).square().mean(), self.encoder.weight)
        return gradient


class _Shuffled(ProjectionGame):
    """Batches of an epoch in place of fresh subsets: the record is in exactly one of them."""

    def _subsets(self) -> Iterable[Tensor]:
        order = torch.from_numpy(subset(SecureRandom(), self.sample_size, self.sample_size))
        return torch.split(order, self.mechanism.batch_size)

    def _score(self, ratios: NDArray[np.float64]) -> float:
        return float(np.logaddexp.reduce(ratios) - np.log(len(ratios)))


LABELLED = MECHANISM.replace(n_classes=2)
STRONG = MECHANISM.replace(sigma=MECHANISM.sigma / 4)  # mu = 4: whoever is in a batch is seen


def _counts() -> ClassCounts:
    """Class counts with noise for mu = 1."""
    return ClassCounts(2, sigma=2**0.5)


def _ranks(shared: bool) -> tuple[_Loss, _Loss]:
    seed = int(SecureRandom().words(1)[0] >> np.uint64(11)) if shared else None  # both ranks read it from the config
    return tuple(_Loss(MECHANISM.replace(noise_seed=seed)) for _ in range(2))  # type: ignore[return-value]


def _same(loss: _Loss) -> tuple[_Loss, _Loss]:
    return loss, loss


def _account(*mechanisms: Any, sample_size: int = MECHANISM.batch_size) -> PrivacyAccountant:
    account = PrivacyAccountant()
    for mechanism in mechanisms:
        account.step(mechanism, sample_size=sample_size)
    return account


@dataclass(frozen=True)
class Kind:
    """One way to break the mechanism.

    Attributes:
        name: What is broken.
        leak: What the attack looks at.
        claim: The accountant with what is claimed, for the specimen and its twin.
        broken: Makes the game against the specimen.
        sound: Makes the game against the twin.
    """

    name: str
    leak: str
    claim: Callable[[], PrivacyAccountant]
    broken: Callable[[np.random.Generator], Game]
    sound: Callable[[np.random.Generator], Game]


ZOO = (
    Kind(
        "rows divided by the batch's largest norm",
        "one long row shrinks all others",
        lambda: _account(MECHANISM),
        lambda rng: _One(_BatchMax(MECHANISM), rng, 100.0),
        lambda rng: _One(_Loss(MECHANISM), rng, 100.0),
    ),
    Kind(
        "half the noise",
        "likelihood ratio",
        lambda: _account(MECHANISM),
        lambda rng: _One(_Loss(MECHANISM.replace(sigma=MECHANISM.sigma / 2)), rng),
        lambda rng: _One(_Loss(MECHANISM), rng),
    ),
    Kind(
        "noise first, then the clip",
        "a long row is seen through the noise",
        lambda: _account(MECHANISM),
        lambda rng: _One(_ClipsLast(MECHANISM), rng, 100.0),
        lambda rng: _One(_Loss(MECHANISM), rng, 100.0),
    ),
    Kind(
        "same noise at every release",
        "two releases, subtracted",
        lambda: _account(MECHANISM, MECHANISM),
        lambda rng: _Difference(lambda: _same(_SameNoise(MECHANISM)), rng, ranks=False),
        lambda rng: _Difference(lambda: _same(_Loss(MECHANISM)), rng, ranks=False),
    ),
    Kind(
        "same noise on two ranks",
        "the ranks' releases, subtracted",
        lambda: _account(MECHANISM),
        lambda rng: _Difference(lambda: _ranks(True), rng, ranks=True),
        lambda rng: _Difference(lambda: _ranks(False), rng, ranks=True),
    ),
    Kind(
        "labels released in clear",
        "class counts",
        lambda: _account(LABELLED, _counts().mechanism),
        lambda rng: _Labels(rng, clear=True),
        lambda rng: _Labels(rng, clear=False),
    ),
    Kind(
        "gradient through the private branch",
        "which weights moved beyond what the release explains",
        lambda: _account(MECHANISM),
        lambda rng: _Gradient(rng, through=True),
        lambda rng: _Gradient(rng, through=False),
    ),
    Kind(
        "shuffled epochs accounted as subsets",
        "every record is read exactly once",
        lambda: _account(*[STRONG] * EPOCH, sample_size=EPOCH * STRONG.batch_size),
        lambda rng: _Shuffled(STRONG, EPOCH * STRONG.batch_size, EPOCH, seed=int(rng.integers(2**31))),
        lambda rng: ProjectionGame(STRONG, EPOCH * STRONG.batch_size, EPOCH, seed=int(rng.integers(2**31))),
    ),
    Kind(
        "sensitivity forgets the block size",
        "blocks are summed, the noise is that for means",
        lambda: _account(MECHANISM),
        lambda rng: _One(_Sums(MECHANISM), rng),
        lambda rng: _One(_Loss(MECHANISM), rng),
    ),
)


def inspect(kind: Kind, *, trials: int = TRIALS, seed: int = 0) -> dict[str, Any]:
    """Audits a specimen and its twin against the same claim."""
    claim = Claim.of(kind.claim(), DELTA)
    broken, sound = (
        contest(make(np.random.default_rng(seed)), trials, delta=DELTA, confidence=CONFIDENCE)
        for make in (kind.broken, kind.sound)
    )
    return {
        "name": kind.name,
        "leak": kind.leak,
        "mu_claimed": claim.mu,
        "mu_claimed_at_fpr": claim.mu_at(broken.for_mu.fpr),
        "mu_lower": broken.mu,
        "caught": not claim.stands(broken),
        "twin_mu_lower": sound.mu,
        "twin_passed": claim.stands(sound),
        "trials": trials,
    }
