r"""The distinguishing game of docs/audit.md, played on the loss and on the queries as users call them.

:class:`ProjectionGame` uses N equal records z, and the same with one record replaced by -z: all entries
:math:`c = z^\top u` of a column are equal, and one becomes -c, at the other end of the sorted column. The score is the
log-likelihood ratio. With :math:`b` rows per value, :math:`s_j = -2 c_j / b` and y the released values that move,

.. math:: \ell = \frac1{\sigma^2} \sum_j s_j (y_j - c_j - s_j / 2), \qquad
          \text{score} = \sum_{t=1}^T \ln(1 - q + q e^{\ell_t}).

Noisy rows are scored before their last sort, because the claim does not rely on it. A pair of runs, one on each data
set, uses the same directions, which halves the cost and leaves the error rates as they are.
"""

import copy
import dataclasses
import math
import timeit
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dpswd._layout import Layout
from dpswd._validate import at_least
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.audit.bounds import MIN_TRIALS, Claim, Evidence, evaluate
from dpswd.errors import InputError
from dpswd.loss import DPSlicedWassersteinLoss, Release
from dpswd.mechanism import Mechanism, ProjectionMechanism
from dpswd.queries import GaussianQuery
from dpswd.records import PrivateBatch, PrivateRecords, Stored
from dpswd.release import Recorder

_LENGTH = 1000.0  # norm of z, in units of the bound on rows
_SECONDS = 45.0  # of an audit without ``trials``
_FEW_TRIALS, _MANY_TRIALS = 20_000, 200_000  # runs per data set, if there is time
_LARGE_MU = 4.0  # above it errors are rare and need many trials
_ENOUGH_TRIALS = 1000  # with fewer runs per data set, releases per run are reduced instead
_QUERIED = 10  # records of a query
_SILENT = 1e-9  # noise, relative to sigma, of the releases that give the exact values of a query


class Unrecorded(Recorder):
    """Recorder of releases that are simulated for an audit: it allows all of them and keeps nothing."""

    def record(self, mechanism: Mechanism) -> None:
        """Do nothing."""


class Game(Protocol):
    """Two neighbouring data sets and an attack."""

    def play(self, replaced: bool) -> float:
        """Make one run on the first or the second data set; a large score is evidence for the second."""


def run_game(game: Game, trials: int, *, delta: float = 1e-5, confidence: float = 0.99) -> Evidence:
    """Make ``trials`` runs on each data set and evaluate the scores."""
    at_least(MIN_TRIALS, trials=trials)
    scores = [(game.play(False), game.play(True)) for _ in range(trials)]
    first, second = np.array(scores, dtype=float).T
    return evaluate(first, second, delta=delta, confidence=confidence)


class _Audited(DPSlicedWassersteinLoss):
    """A loss with directions that can be used twice, whose rows are sorted before the noise in place of after it."""

    again = False

    def __init__(self, mechanism: ProjectionMechanism) -> None:
        super().__init__(mechanism, recorder=Unrecorded())
        self.used: list[Tensor] = []

    def draw_projections(self) -> Tensor:
        if self.again:
            return self.used.pop(0)
        self.used.append(super().draw_projections())
        return self.used[-1]

    def compute_statistic(self, rows: Tensor, labels: Tensor | None, projections: Tensor) -> Tensor:
        return (
            super().compute_statistic(rows, labels, projections).sort(dim=-2).values
        )  # same law of the release

    def discard_order(self, values: Tensor) -> Tensor:
        return values


class ProjectionGame:
    """Runs of ``n_releases`` releases on subsets of ``sample_size`` records; ``seed`` determines z and nothing else."""

    def __init__(
        self,
        mechanism: ProjectionMechanism,
        sample_size: int,
        n_releases: int = 1,
        *,
        seed: int = 0,
        loss: type[DPSlicedWassersteinLoss] = DPSlicedWassersteinLoss,
    ) -> None:
        at_least(1, sample_size=sample_size, n_releases=n_releases)
        at_least(0, seed=seed)
        self.mechanism, self.sample_size, self.n_releases = mechanism, sample_size, n_releases
        self.rate = mechanism.batch_size / sample_size
        z = np.random.default_rng(seed).standard_normal(mechanism.dim)
        z *= _LENGTH * mechanism.row_norm / np.linalg.norm(z)
        self.record = torch.from_numpy(z).to(torch.float32)
        self.clipped = (
            mechanism.row_norm * self.record.double() / self.record.double().norm()
        )  # (d,)
        self.loss: _Audited = type("Audited", (_Audited, loss), {})(mechanism)
        labels = torch.zeros(sample_size, dtype=torch.int64) if mechanism.n_classes else None
        classes, layout = range(mechanism.n_classes or 0) or None, Layout.of(self.record[None])
        self.records = []  # handles of both data sets, whose records are computed when they are opened
        for replaced in (False, True):
            rows = Stored(
                partial(self.rows, replaced=replaced), (sample_size, mechanism.dim), torch.float32
            )
            self.records.append(
                PrivateRecords.from_values(rows, labels, classes=classes, layout=layout)
            )

    def rows(self, index: Tensor, replaced: bool) -> Tensor:
        """Return the records (n, d) at ``index`` of one data set; record 0 is the one that differs."""
        rows = self.record.repeat(len(index), 1)
        if replaced:
            rows[index == 0] *= -1
        return rows

    def play(self, replaced: bool) -> float:
        """Make one run; see :class:`Game`."""
        self.loss.again = replaced and bool(self.loss.used)
        if not self.loss.again:
            self.loss.used.clear()
        return self.score(
            np.array([self.log_ratio(release) for release in self.releases(replaced)])
        )

    def releases(self, replaced: bool) -> Iterable[Release]:
        """Make the releases of one run on one data set."""
        for _ in range(self.n_releases):
            yield self.loss.release(PrivateBatch(self.records[replaced], self.mechanism.batch_size))

    def score(self, ratios: NDArray[np.float64]) -> float:
        """Return the log-likelihood ratio of a run from those of its releases (T,), given the record is in each."""
        if self.rate == 1:
            return float(ratios.sum())
        return float(np.logaddexp(math.log1p(-self.rate), math.log(self.rate) + ratios).sum())

    def log_ratio(self, release: Release) -> float:
        """Return the log of the likelihood of a release with the replaced record over that without it."""
        mechanism = self.mechanism
        values = (
            release.values if mechanism.n_classes is None else release.values[0]
        )  # (m, k); all rows are of class 0
        c = release.projections.T @ self.clipped  # (k,)
        moved = torch.where(c > 0, values[0], values[-1])
        shift = -2 * c / mechanism.block_size
        return float(shift @ (moved - c - shift / 2)) / mechanism.sigma**2


class QueryGame:
    r"""One release of a query, scored by the log-likelihood ratio.

    The query states its worst pair (:meth:`dpswd.queries.GaussianQuery.worst_pair`) and the coordinates in which its
    noise is isotropic with standard deviation sigma. There the ratio is
    :math:`\langle y - (y_0 + y_1)/2, y_1 - y_0 \rangle / \sigma^2`. The exact values :math:`y_0, y_1` are releases of
    the query with a billionth of the noise, so that a fault in the query (a missing clip) makes the attack stronger.

    ``moved`` is the distance of the exact values in units of sigma, the true mu of this pair.
    """

    def __init__(self, query: GaussianQuery) -> None:
        self.data = query.worst_pair(_QUERIED)
        self.query: Any = copy.copy(query)
        self.query.recorder = Unrecorded()
        silent: Any = copy.copy(self.query)
        silent.mechanism = dataclasses.replace(
            query.mechanism, sigma=_SILENT * query.mechanism.sigma
        )
        first, second = (silent.coordinates(silent.release(records)) for records in self.data)
        self.difference: Tensor = second - first
        self.middle: Tensor = (first + second) / 2
        self.moved = float(self.difference.norm()) / query.mechanism.sigma

    def play(self, replaced: bool) -> float:
        """Make one release; see :class:`Game`."""
        released = self.query.coordinates(self.query.release(self.data[replaced]))
        sigma: float = self.query.mechanism.sigma
        return float(((released - self.middle) * self.difference).sum()) / sigma**2


@dataclass(frozen=True, kw_only=True)
class AuditResult(Evidence):
    """Evidence and the claim that it is compared with; docs/audit.md explains the fields."""

    mu_claimed: float
    mu_claimed_at_fpr: float
    epsilon_claimed: float
    passed: bool  # whether no measured point lies below the claimed trade-off curve
    n_releases: int  # T
    releases_audited: (
        int  # per run of the game, which the claim is for; fewer than T if time was short
    )
    assumptions: list[str]  # of the claim

    @classmethod
    def of(
        cls, claim: Claim, evidence: Evidence, n_releases: int = 1, releases_audited: int = 1
    ) -> "AuditResult":
        """Compare the evidence with the claim."""
        return cls(
            **vars(evidence),
            mu_claimed=claim.mu,
            mu_claimed_at_fpr=claim.mu_at(evidence.fpr),
            epsilon_claimed=claim.epsilon,
            passed=claim.is_consistent_with(evidence),
            n_releases=n_releases,
            releases_audited=releases_audited,
            assumptions=claim.assumptions,
        )


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
    loss: type[DPSlicedWassersteinLoss] = DPSlicedWassersteinLoss,
) -> AuditResult:
    """Run the game and compare the result with the claim of the accountant.

    Args:
        mechanism: The mechanism that is released.
        sample_size: Number N of records.
        n_releases: Number T of releases.
        delta: Where epsilon is evaluated; the tails of the Bernstein and CLT bounds are charged to it.
        trials: Runs per data set. ``None`` for as many as are useful within about 45 seconds; if T releases take too
            long for that, runs have fewer releases and are compared with the claim for that number.
        seed: Seed of the record that is replaced. Noise, directions and subsets come from the system's entropy.
        confidence: Probability with which the lower bounds hold.
        accountant: ``"pld"`` or ``"rdp"``, for the claimed epsilon.
        loss: The class of the loss under attack: your own, to audit it against the claim of the mechanism.

    Returns:
        The lower bounds and the claim.

    Raises:
        InputError: If an argument is out of range or nothing can be claimed.

    Example:
        >>> mechanism = ProjectionMechanism(4, 8, sigma=1.0, batch_size=10, kind="orthogonal")
        >>> audit(mechanism, sample_size=10, trials=100, confidence=1 - 1e-6).passed
        True
    """
    if not mechanism.is_private:
        raise InputError(
            "Expected a mechanism without noise_seed, got one with: it is NOT PRIVATE and claims nothing."
        )

    def claimed(count: int) -> Claim:
        account = PrivacyAccountant(accountant).step(
            mechanism, sample_size=sample_size, n_releases=count
        )
        return Claim.of(account, delta)

    game = partial(ProjectionGame, mechanism, sample_size, seed=seed, loss=loss)
    claim, audited = claimed(n_releases), n_releases
    if trials is None:
        trials, audited = _affordable(game(1), n_releases, claim.mu)
        claim = claimed(audited)
    evidence = run_game(game(audited), trials, delta=delta, confidence=confidence)
    return AuditResult.of(claim, evidence, n_releases, audited)


def _affordable(game: Game, releases: int, mu: float) -> tuple[int, int]:
    """Return runs per data set and releases per run: small and large mu need more runs, long runs are shortened."""
    timed = timeit.repeat(lambda: (game.play(False), game.play(True)), number=1, repeat=6)
    one = float(np.median(timed[1:]))  # after a warm-up
    wanted = (
        _MANY_TRIALS
        if mu > _LARGE_MU
        else int(min(max(_FEW_TRIALS / mu**2, _FEW_TRIALS), _MANY_TRIALS))
    )
    releases = max(1, min(releases, int(_SECONDS / (one * _ENOUGH_TRIALS))))
    return max(MIN_TRIALS, min(wanted, int(_SECONDS / (one * releases)))), releases
