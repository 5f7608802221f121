"""Nine broken mechanisms that an audit must catch, and their sound twins.

All but the twins are NOT PRIVATE. A specimen overrides one documented step of the library's loss,
or hands over tensors against the conditions of that path, and is attacked where it leaks. Its twin
is the sound mechanism, with private records behind a handle, under the same attack and the same
claim.
"""

import secrets
from collections.abc import Iterable
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
from experiments.results import Row

__all__ = ["CONFIDENCE", "TRIALS", "ZOO", "Specimen", "inspect"]

CONFIDENCE = 1 - 1e-3  # of each verdict
TRIALS = 1500  # runs per data set
DELTA = 1e-5

# mu = 1 for one release: S = 2, sensitivity sqrt(2) / 4.
MECHANISM = ProjectionMechanism(
    4, 8, sigma=2**0.5 / 4, batch_size=8, statistic="quantiles", n_quantiles=2, kind="orthogonal"
)
LABELLED = MECHANISM.replace(n_classes=2)
# mu = 4 for one release: membership in a batch shows.
STRONG = MECHANISM.replace(sigma=MECHANISM.sigma / 4)
EPOCH = 4  # batches in an epoch of the shuffled loader
LONG = 100.0  # length of the row that differs, in units of the bound, where clipping must show
N_PIXELS = 6  # coordinates of the raw records of the shared encoder
CERTAIN = 1e9  # weight of what no release explains: it decides the score


# Broken losses ------------------------------------------------------------------------------------


class Loss(DPSlicedWassersteinLoss):
    """The sound loss, which a specimen breaks, within no budget."""

    def __init__(self, mechanism: ProjectionMechanism) -> None:
        super().__init__(mechanism, recorder=Unrecorded())

    def release_all(self, records: PrivateRecords, **options: Any) -> Release:
        """Release one batch of all records, behind their handle."""
        return self.release(PrivateBatch(records, len(records)), **options)


class BatchMax(Loss):
    """Divides rows by the largest norm of the batch instead of clipping each of them."""

    def exact_values(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        longest = torch.linalg.vector_norm(rows.double(), dim=1).max()
        scaled = rows.double() * (self.mechanism.row_norm / longest)
        return super().exact_values(scaled, labels, projections)


class ClipsLast(Loss):
    """Clips the noisy values instead of the rows."""

    def exact_values(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        return self.compute_statistic(rows.double(), labels, projections)

    def add_noise(self, values: Tensor) -> Tensor:
        return super().add_noise(values).clamp(-self.mechanism.row_norm, self.mechanism.row_norm)


class SameNoise(Loss):
    """Adds the noise of its first release at every release."""

    noise: Tensor | None = None

    def add_noise(self, values: Tensor) -> Tensor:
        if self.noise is None:
            self.noise = super().add_noise(torch.zeros_like(values))
        return values + self.noise


class BlockSums(Loss):
    """Releases sums of blocks with the noise for their means."""

    def exact_values(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        return super().exact_values(rows, labels, projections) * self.mechanism.block_size


# Attacks ------------------------------------------------------------------------------------------


def _batches(rng: np.random.Generator, length: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return neighbouring batches (8, 4).

    The first has equal rows z of the largest norm; in the second row 0 is -z, ``length`` times as
    long.
    """
    z = torch.from_numpy(rng.standard_normal(MECHANISM.dim)).float()
    first = (MECHANISM.row_norm * z / z.norm()).expand(MECHANISM.batch_size, -1).clone()
    second = first.clone()
    second[0] *= -length
    return first, second


def _log_ratio(values: Tensor, first: Tensor, second: Tensor, sigma: float) -> float:
    """Return the log-likelihood ratio of mean ``second`` over mean ``first``."""
    middle = (first + second) / 2
    return float(((values - middle) * (second - first)).sum()) / sigma**2


class OneRelease:
    """One release, scored by the log-likelihood ratio of what the specimen computes."""

    def __init__(self, loss: Loss, rng: np.random.Generator, length: float = 1.0) -> None:
        self.loss = loss
        self.batches = _batches(rng, length)
        self.records = [PrivateRecords(batch) for batch in self.batches]

    def play(self, replaced: bool) -> float:
        """Make one run; see :class:`dpswd.audit.game.Game`."""
        release = self.loss.release_all(self.records[replaced])
        first = self.loss.exact_values(self.batches[0], None, release.projections)
        second = self.loss.exact_values(self.batches[1], None, release.projections)
        return _log_ratio(release.values, first, second, self.loss.mechanism.sigma)


class TwoReleases:
    """Difference of two releases of the same records, which cancels common noise."""

    def __init__(self, loss_type: type[Loss], rng: np.random.Generator) -> None:
        self.loss_type = loss_type
        self.batches = _batches(rng)
        self.records = [PrivateRecords(batch) for batch in self.batches]

    def play(self, replaced: bool) -> float:
        """Make one run; see :class:`dpswd.audit.game.Game`."""
        loss = self.loss_type(MECHANISM)
        left = loss.release_all(self.records[replaced])
        right = loss.release_all(self.records[replaced])
        means = []
        for batch in self.batches:
            left_values = loss.exact_values(batch, None, left.projections)
            right_values = loss.exact_values(batch, None, right.projections)
            means.append(left_values - right_values)
        sigma = MECHANISM.sigma * 2**0.5
        return _log_ratio(left.values - right.values, means[0], means[1], sigma)


class TwoRanks:
    """Difference of the releases of two ranks; the second rank reads other records."""

    def __init__(self, rng: np.random.Generator, *, shared_seed: bool) -> None:
        self.shared_seed = shared_seed
        self.batches = _batches(rng)
        self.records = [PrivateRecords(batch) for batch in self.batches]

    def play(self, replaced: bool) -> float:
        """Make one run; see :class:`dpswd.audit.game.Game`."""
        noise_seed = None
        if self.shared_seed:
            noise_seed = secrets.randbits(32)
        one = Loss(MECHANISM.replace(noise_seed=noise_seed))
        two = Loss(MECHANISM.replace(noise_seed=noise_seed))
        left = one.release_all(self.records[replaced])
        right = two.release_all(self.records[0])
        means = []
        for batch in self.batches:
            left_values = one.exact_values(batch, None, left.projections)
            right_values = one.exact_values(self.batches[0], None, right.projections)
            means.append(left_values - right_values)
        sigma = MECHANISM.sigma * 2**0.5
        return _log_ratio(left.values - right.values, means[0], means[1], sigma)


class Labels:
    """A record changes its class; class counts are released beside the projections."""

    def __init__(self, rng: np.random.Generator, *, exact_counts: bool) -> None:
        self.loss = Loss(LABELLED)
        self.counts = _class_counts()
        self.counts.recorder = Unrecorded()
        self.exact_counts = exact_counts
        rows, _ = _batches(rng)
        first = torch.zeros(MECHANISM.batch_size, dtype=torch.int64)
        second = first.clone()
        second[0] = 1
        self.labels = (first, second)
        self.records = [PrivateRecords(rows, labels, classes=range(2)) for labels in self.labels]

    def play(self, replaced: bool) -> float:
        """Make one run; see :class:`dpswd.audit.game.Game`."""
        self.loss.release_all(self.records[replaced])
        if self.exact_counts:
            counts = torch.bincount(self.labels[replaced], minlength=2).double()
        else:
            counts = self.counts.release(self.records[replaced])
        return float(counts[1] - counts[0])


class Gradient:
    """Gradient of an encoder that both branches share.

    The raw records that differ have one coordinate each.
    """

    def __init__(self, rng: np.random.Generator, *, through_private_branch: bool) -> None:
        self.through_private_branch = through_private_branch
        self.loss = Loss(MECHANISM)
        self.encoder = torch.nn.Linear(N_PIXELS, MECHANISM.dim, bias=False, dtype=torch.float64)
        z = _batches(rng)[0][0]
        with torch.no_grad():
            weight = rng.standard_normal((MECHANISM.dim, N_PIXELS)) / 10
            self.encoder.weight[:] = torch.from_numpy(weight)
            self.encoder.weight[:, :3] = torch.stack([z, -z, z], dim=1)
        self.source = torch.from_numpy(rng.standard_normal((4, N_PIXELS)))
        units = torch.eye(N_PIXELS, dtype=torch.float64)
        others = [2] * (MECHANISM.batch_size - 1)
        self.raw = [units[[0, *others]], units[[1, *others]]]  # record 0 differs
        self.records = [PrivateRecords(raw) for raw in self.raw]

    def rows(self, values: Tensor) -> Tensor:
        """Row function: the library gives float32; the attack computes in float64."""
        rows: Tensor = self.encoder(values.double())
        return rows

    def play(self, replaced: bool) -> float:
        """Make one run; see :class:`dpswd.audit.game.Game`."""
        if self.through_private_branch:
            private = self.encoder(self.raw[replaced])
            release = self.loss.release(private.detach())
            values = self._values(private, release)
            # The values of the release with the gradient of the private rows.
            attached_values = release.values + values - values.detach()
            attached = Release(attached_values, release.projections, release.mechanism)
            published = self._gradient(attached)
            explained = self._gradient(release)
        else:
            release = self.loss.release_all(self.records[replaced], rows=self.rows)
            published = self._gradient(release)
            explained = published  # computable from the release alone
        with torch.no_grad():
            first = self._values(self.encoder(self.raw[0]), release)
            second = self._values(self.encoder(self.raw[1]), release)
        ratio = _log_ratio(release.values, first, second, self.loss.mechanism.sigma)
        excess = (published - explained).norm(dim=0)  # (6,): which inputs moved the weights
        return ratio + CERTAIN * float(excess[1] - excess[0])

    def _values(self, rows: Tensor, release: Release) -> Tensor:
        """Return the block means (m, k) of rows along the directions of a release."""
        projected = (rows @ release.projections).sort(dim=0).values
        return block_means(projected, self.loss.mechanism.n_values)

    def _gradient(self, release: Release) -> Tensor:
        """Return the gradient of the loss with respect to the weights of the encoder."""
        public = self._values(self.encoder(self.source), release)
        distance = (release.values - public).square().mean()
        (gradient,) = torch.autograd.grad(distance, self.encoder.weight)
        return gradient


class ShuffledEpoch(ProjectionGame):
    """Batches of a shuffled epoch: the record is in exactly one of them.

    The caller hands over tensors, against the conditions of that path.
    """

    def releases(self, replaced: bool) -> Iterable[Release]:
        """Make the releases of one epoch on one data set."""
        (order,) = FixedSizeSampler(self.sample_size, self.sample_size, n_steps=1)
        for index in torch.split(order, self.mechanism.batch_size):
            yield self.loss.release(self.rows(index, replaced))

    def score(self, ratios: NDArray[np.float64]) -> float:
        """Return the log-likelihood ratio of a run, given that one batch has the record."""
        return float(np.logaddexp.reduce(ratios) - np.log(len(ratios)))


# Specimens ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Specimen:
    """A broken mechanism and its sound twin, with an attack on both and their claim.

    Attributes:
        name: The fault.
        leak: What the attack uses.
    """

    name: str
    leak: str

    def game(self, rng: np.random.Generator, broken: bool) -> Game:
        """Return the attack on the broken mechanism, or on its twin."""
        raise NotImplementedError

    def claim(self) -> PrivacyAccountant:
        """Return the account of both: one release by ``MECHANISM``."""
        return PrivacyAccountant().step(MECHANISM, sample_size=MECHANISM.batch_size)


@dataclass(frozen=True)
class BrokenRelease(Specimen):
    """One release by a broken loss, or with the noise of another mechanism."""

    loss_type: type[Loss] = Loss
    mechanism: ProjectionMechanism = MECHANISM
    length: float = 1.0

    def game(self, rng: np.random.Generator, broken: bool) -> Game:
        """Return the attack on one release."""
        loss = Loss(MECHANISM)
        if broken:
            loss = self.loss_type(self.mechanism)
        return OneRelease(loss, rng, self.length)


class RepeatedNoise(Specimen):
    """Two releases by :class:`SameNoise`."""

    def game(self, rng: np.random.Generator, broken: bool) -> Game:
        """Return the attack on two releases."""
        if broken:
            return TwoReleases(SameNoise, rng)
        return TwoReleases(Loss, rng)

    def claim(self) -> PrivacyAccountant:
        """Return the account of two releases."""
        return super().claim().step(MECHANISM, sample_size=MECHANISM.batch_size)


class SharedSeed(Specimen):
    """Two ranks whose noise comes from the same seed."""

    def game(self, rng: np.random.Generator, broken: bool) -> Game:
        """Return the attack on the releases of two ranks."""
        return TwoRanks(rng, shared_seed=broken)


class ExactCounts(Specimen):
    """Class counts without noise."""

    def game(self, rng: np.random.Generator, broken: bool) -> Game:
        """Return the attack on the counts."""
        return Labels(rng, exact_counts=broken)

    def claim(self) -> PrivacyAccountant:
        """Return the account of one release of the rows and one of the counts."""
        account = PrivacyAccountant().step(LABELLED, sample_size=MECHANISM.batch_size)
        return account.step(_class_counts().mechanism, sample_size=MECHANISM.batch_size)


class AttachedGradient(Specimen):
    """A loss whose gradient passes through the private rows."""

    def game(self, rng: np.random.Generator, broken: bool) -> Game:
        """Return the attack on the gradient of the shared encoder."""
        return Gradient(rng, through_private_branch=broken)


class Epochs(Specimen):
    """Batches of a shuffled epoch, accounted as fresh subsets."""

    def game(self, rng: np.random.Generator, broken: bool) -> Game:
        """Return the attack on the releases of one epoch."""
        game_type = ProjectionGame
        if broken:
            game_type = ShuffledEpoch
        seed = int(rng.integers(2**31))
        return game_type(STRONG, EPOCH * STRONG.batch_size, EPOCH, seed=seed)

    def claim(self) -> PrivacyAccountant:
        """Return the account of subsampled releases."""
        account = PrivacyAccountant()
        for _ in range(EPOCH):
            account.step(STRONG, sample_size=EPOCH * STRONG.batch_size)
        return account


def _class_counts() -> ClassCounts:
    """Return class counts with noise for mu = 1."""
    return ClassCounts(2, sigma=2**0.5)


ZOO: tuple[Specimen, ...] = (
    BrokenRelease(
        "rows divided by the batch's largest norm",
        "one long row shrinks all others",
        loss_type=BatchMax,
        length=LONG,
    ),
    BrokenRelease(
        "half the noise",
        "likelihood ratio",
        mechanism=MECHANISM.replace(sigma=MECHANISM.sigma / 2),
    ),
    BrokenRelease(
        "noise first, then the clip",
        "a long row is seen through the noise",
        loss_type=ClipsLast,
        length=LONG,
    ),
    RepeatedNoise("same noise at every release", "two releases, subtracted"),
    SharedSeed("same noise on two ranks", "the ranks' releases, subtracted"),
    ExactCounts("labels released in clear", "class counts"),
    AttachedGradient(
        "gradient through the private branch",
        "which weights moved beyond what the release explains",
    ),
    Epochs("shuffled epochs accounted as subsets", "every record is read exactly once"),
    BrokenRelease(
        "sensitivity ignores the block size",
        "blocks are summed, the noise is that for means",
        loss_type=BlockSums,
    ),
)


def inspect(specimen: Specimen, *, trials: int = TRIALS, seed: int = 0) -> Row:
    """Audit a specimen and its twin against the same claim."""
    claim = Claim.of(specimen.claim(), DELTA)
    broken_game = specimen.game(np.random.default_rng(seed), True)
    broken = run_game(broken_game, trials, delta=DELTA, confidence=CONFIDENCE)
    sound_game = specimen.game(np.random.default_rng(seed), False)
    sound = run_game(sound_game, trials, delta=DELTA, confidence=CONFIDENCE)
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
