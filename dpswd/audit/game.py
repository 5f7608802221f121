r"""The distinguishing game, played on the loss and the sampler themselves.

axes: B rows, d dimension, k directions, m values per column, b = B / m rows per value.

Two neighbouring data sets: N equal records z, and the same with one record replaced by -z. Runs are made on both, and
a score says after each which one it was.

Why this pair is worst. All entries of a column are :math:`c = z^\top u`, one jumps to -c, the far end of the column's
order: it moves through no other entry, so the column's values move by :math:`2|c|/b` in one place, which attains the
bound of :mod:`dpswd.mechanism` in all columns at once. The law of S does not depend on z, so any direction is worst; z
must not depend on the directions. Subsets: equal records make the release without the replaced record the same for
both data sets, the case in which the bound of Balle2018 is attained. z is far longer than the bound: clipping takes
part in the game.

The score is the logarithm of the likelihood ratio, known exactly (Neyman and Pearson: no test does better). With
:math:`s_j = -2 c_j / b` and y the released values in the places that move,

.. math:: \ell = \frac1{\sigma^2} \sum_j s_j (y_j - c_j - s_j / 2), \qquad
          \text{score} = \sum_{t=1}^T \ln(1 - q + q e^{\ell_t}).

Noisy rows are looked at before they are sorted for the last time: the claim does not count on that. With
``as_released`` the score is that of the sorted rows, :math:`\ell = \sum_j \ln \frac1B \sum_i e^{-2 c_j y_{ij} /
\sigma^2}`.

Both data sets are played with the same directions. They have the same law in both, and each error rate remains that of
independent runs; only the cost is halved.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd._validate import at_least, positive
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.audit.bounds import LEAST_TRIALS, Evidence, weigh
from dpswd.audit.claim import Claim
from dpswd.errors import InputError
from dpswd.loss import DPSlicedWassersteinLoss, Release
from dpswd.mechanism import ProjectionMechanism
from dpswd.sampling import FixedSizeSampler

__all__ = ["AuditResult", "Game", "ProjectionGame", "audit", "contest"]

_LENGTH = 1000.0  # of z, in units of the bound: the clip is part of the game
_FEW, _MANY = 20_000, 200_000  # runs per data set, where time allows
_LARGE_MU = 4.0  # from which errors are rare
_ENOUGH = 1000  # runs per data set below which releases are left out rather than runs


class Game(Protocol):
    """Two neighbouring data sets and an attack."""

    def play(self, replaced: bool) -> float:
        """Makes one run on the first data set or on the second; a large score speaks for the second."""


def contest(game: Game, trials: int, *, delta: float = 1e-5, confidence: float = 0.99) -> Evidence:
    """Plays ``trials`` runs on each data set and weighs the scores."""
    at_least(LEAST_TRIALS, trials=trials)
    scores = [(game.play(False), game.play(True)) for _ in range(trials)]
    first, second = np.array(scores, dtype=float).T
    return weigh(first, second, delta=delta, confidence=confidence)


class _Watched(DPSlicedWassersteinLoss):
    """The loss, with its directions played twice and without the last sort, which is post-processing."""

    def __init__(self, mechanism: ProjectionMechanism) -> None:
        super().__init__(mechanism)
        self.kept: list[Tensor] = []
        self.again = False

    def draw_projections(self) -> Tensor:
        if self.again:
            return self.kept.pop(0)
        self.kept.append(super().draw_projections())
        return self.kept[-1]

    def discard_order(self, values: Tensor) -> Tensor:
        return values


class ProjectionGame:
    """A run of ``n_releases`` releases on subsets of ``sample_size`` records.

    Args:
        mechanism: What is released.
        sample_size: Number N of records.
        n_releases: Number T of releases of one run.
        seed: Chooses z. Noise, directions and subsets stay the system's.
        as_released: Attack noisy rows as they leave, sorted.
    """

    def __init__(
        self,
        mechanism: ProjectionMechanism,
        sample_size: int,
        n_releases: int = 1,
        *,
        seed: int = 0,
        as_released: bool = False,
    ) -> None:
        at_least(1, sample_size=sample_size, n_releases=n_releases)
        at_least(0, seed=seed)
        self.mechanism, self.sample_size, self.n_releases = mechanism, sample_size, n_releases
        self.sorted = as_released and mechanism.statistic == "rows"
        self.rate = mechanism.batch_size / sample_size
        z = np.random.default_rng(seed).standard_normal(mechanism.dim)
        z *= _LENGTH * mechanism.row_norm / np.linalg.norm(z)
        self.record = torch.from_numpy(z).to(torch.float32)
        unit = self.record.double() / self.record.double().norm()
        self.clipped = mechanism.row_norm * unit  # (d,)
        self.labels = None if mechanism.n_classes is None else torch.zeros(mechanism.batch_size, dtype=torch.int64)
        self.loss = _Watched(mechanism)
        self._plain = self.record.expand(mechanism.batch_size, -1).contiguous()

    def play(self, replaced: bool) -> float:
        """Makes one run; see :class:`Game`."""
        self.loss.again = replaced and bool(self.loss.kept)
        if not self.loss.again:
            self.loss.kept.clear()
        return self._score(np.array([self._one(indices, replaced) for indices in self._subsets()]))

    def _subsets(self) -> Iterable[Tensor]:
        """The batches of one run, as the library draws them."""
        return FixedSizeSampler(self.sample_size, self.mechanism.batch_size, n_steps=self.n_releases)

    def _score(self, ratios: NDArray[np.float64]) -> float:
        """The log-likelihood ratio of a run, from those of its releases (T,), were the record in each of them."""
        if self.rate == 1:
            return float(ratios.sum())
        return float(np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + ratios).sum())

    def _one(self, indices: Tensor, replaced: bool) -> float:
        """One release on the subset ``indices`` of the data set, and its score. Record 0 is the one that differs."""
        batch = self._plain
        if replaced and bool((indices == 0).any()):
            batch = self._plain.clone()
            batch[indices == 0] *= -1
        return self._log_ratio(self.loss.release(batch, self.labels))

    def _log_ratio(self, release: Release) -> float:
        """The logarithm of the likelihood of a release with the replaced record over that without it."""
        mechanism = self.mechanism
        values = release.values if mechanism.n_classes is None else release.values[0]  # (m, k); all are of class 0
        c = release.projections.T @ self.clipped  # (k,)
        if self.sorted:
            each = torch.logsumexp(-2 * c * values / mechanism.sigma**2, dim=0) - math.log(len(values))
            return float(each.sum())
        moved = torch.where(c > 0, values[0], values[-1])
        shift = -2 * c / mechanism.block_size
        return float(shift @ (moved - c - shift / 2)) / mechanism.sigma**2


@dataclass(frozen=True)
class AuditResult:
    """Lower bounds and the claim that they were held against.

    Attributes:
        evidence: What was proved.
        claim: What is claimed for the releases that were audited.
        claim_of_all: What is claimed for all of them.
        n_releases: Number T of releases.
        releases_audited: Releases of one run of the game; fewer than T where time was short.
        attacked: What the attack looked at.
    """

    evidence: Evidence
    claim: Claim
    claim_of_all: Claim
    n_releases: int
    releases_audited: int
    attacked: str

    @property
    def passed(self) -> bool:
        """Whether the claim stands: no measured point lies below the claimed trade-off curve."""
        return self.claim.stands(self.evidence)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        evidence, claim = self.evidence, self.claim
        return {
            "mu_lower": evidence.mu,
            "mu_claimed": claim.mu,
            "passed": self.passed,
            "confidence": evidence.confidence,
            "mu_claimed_at_fpr": claim.mu_at(evidence.for_mu.fpr),
            "fpr": evidence.for_mu.fpr,
            "fnr": evidence.for_mu.fnr,
            "best_provable_mu": evidence.best_provable_mu,
            "epsilon_lower": evidence.epsilon,
            "epsilon_claimed": claim.epsilon,
            "delta": evidence.delta,
            "trials": evidence.trials,
            "n_releases": self.n_releases,
            "releases_audited": self.releases_audited,
            "mu_claimed_of_all": self.claim_of_all.mu,
            "attacked": self.attacked,
        }


def audit(
    mechanism: ProjectionMechanism,
    sample_size: int,
    n_releases: int = 1,
    *,
    delta: float = 1e-5,
    trials: int | None = None,
    seed: int = 0,
    confidence: float = 0.99,
    accountant: str = "pld",
    as_released: bool = False,
    seconds: float = 45.0,
) -> AuditResult:
    """Plays the game and holds the outcome against what the accountant claims.

    Args:
        mechanism: What is released.
        sample_size: Number N of records.
        n_releases: Number T of releases.
        delta: Where to read epsilon; tails of the Bernstein and CLT bounds come out of it.
        trials: Runs per data set. ``None`` for as many as are useful and take about ``seconds``; where T releases take
            too long for that, runs of fewer releases are played and held against the claim for so many.
        seed: Chooses the record that is replaced. Noise, directions and subsets stay the system's.
        confidence: Probability with which the lower bounds hold.
        accountant: Who claims epsilon: ``"pld"`` or ``"rdp"``.
        as_released: Attack noisy rows as they leave, sorted, in place of what the claim is about.
        seconds: See ``trials``.

    Raises:
        InputError: If an argument is out of range or nothing can be claimed.
    """
    positive(seconds=seconds)
    if trials is not None:
        at_least(LEAST_TRIALS, trials=trials)
    if not isinstance(mechanism, ProjectionMechanism):
        raise InputError(f"Expected a ProjectionMechanism to audit, got {type(mechanism).__name__}.")
    if not mechanism.is_private:
        raise InputError("Expected secret noise, got a mechanism with noise_seed: NOT PRIVATE, there is no claim.")

    def claimed(count: int) -> Claim:
        account = PrivacyAccountant(accountant).step(mechanism, sample_size=sample_size, n_releases=count)
        return Claim.of(account, delta)

    def game(count: int) -> ProjectionGame:
        return ProjectionGame(mechanism, sample_size, count, seed=seed, as_released=as_released)

    of_all = claim = claimed(n_releases)
    audited = n_releases
    if trials is None:
        trials, audited = _affordable(_time_of(game(1)), n_releases, claim.mu, seconds)
        claim = of_all if audited == n_releases else claimed(audited)
    played = game(audited)
    evidence = contest(played, trials, delta=delta, confidence=confidence)
    return AuditResult(evidence, claim, of_all, n_releases, audited, _words(played))


def _words(game: ProjectionGame) -> str:
    if game.mechanism.statistic == "quantiles":
        return "noisy block means, as they leave"
    return "noisy rows, sorted, as they leave" if game.sorted else "noisy rows before the last sort"


def _time_of(game: Game) -> float:
    """Seconds that one run on each of both data sets takes: the median of five, after one that warms up."""
    found: list[float] = []
    for _ in range(6):
        started = time.perf_counter()
        game.play(False)
        game.play(True)
        found.append(time.perf_counter() - started)
    return float(np.median(found[1:]))


def _affordable(of_one: float, releases: int, mu: float, seconds: float) -> tuple[int, int]:
    """Chooses runs per data set and releases per run: small and large mu want more runs, long runs are cut short."""
    wanted = _MANY if mu > _LARGE_MU else int(min(max(_FEW / mu**2, _FEW), _MANY))
    releases = max(1, min(releases, int(seconds / (of_one * _ENOUGH))))
    return max(LEAST_TRIALS, min(wanted, int(seconds / (of_one * releases)))), releases
