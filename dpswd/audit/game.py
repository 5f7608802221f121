r"""The distinguishing game of docs/audit.md.

It is played on the loss and on the queries as users call them. :class:`ProjectionGame` uses N equal
records z, and the same with one record replaced by -z: all entries :math:`c = z^\top u` of a column
are equal, and one becomes -c, at the other end of the sorted column. The score is the
log-likelihood ratio. With :math:`b` rows per value, :math:`s_j = -2 c_j / b` and y the released
values that move,

.. math:: \ell = \frac1{\sigma^2} \sum_j s_j (y_j - c_j - s_j / 2), \qquad
          \text{score} = \sum_{t=1}^T \ln(1 - q + q e^{\ell_t}).

Noisy rows are scored before their last sort, because the claim does not rely on it. A pair of runs,
one on each data set, uses the same directions, which halves the cost and leaves the error rates as
they are.

With ``per_unit`` = c records of a unit, N units have c equal records each, and those of one unit
are replaced: c entries of a column are then -c, which lie in the first or in the last blocks.
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

from dpswd._kernels import Projections
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
from dpswd.units import Units

# Norm of z, in units of the bound on rows: a missing clip then shows.
_LENGTH = 1000.0
# Duration of an audit without ``trials``.
_SECONDS = 45.0
# Runs per data set, if there is time: the few, and the many where errors are rare.
_FEW_TRIALS = 20_000
_MANY_TRIALS = 200_000
# Value of mu above which errors are rare and need many trials.
_LARGE_MU = 4.0
# With fewer runs per data set than this, the releases of a run are reduced instead.
_ENOUGH_TRIALS = 1000
# Number of records that a query reads.
_QUERIED = 10
# Noise, relative to sigma, of the releases that give the exact values of a query.
_SILENT = 1e-9
# Pairs of runs that are timed; the first one warms up.
_N_TIMED = 6


class Unrecorded(Recorder):
    """Recorder of releases that are simulated for an audit.

    It allows all of them and keeps nothing.
    """

    def record(self, mechanism: Mechanism) -> None:
        """Do nothing."""


class Game(Protocol):
    """Two neighbouring data sets and an attack."""

    def play(self, replaced: bool) -> float:
        """Make one run on the first or the second data set.

        A large score is evidence for the second.
        """


def run_game(game: Game, trials: int, *, delta: float = 1e-5, confidence: float = 0.99) -> Evidence:
    """Make ``trials`` runs on each data set and evaluate the scores."""
    at_least(MIN_TRIALS, trials=trials)
    scores = [(game.play(False), game.play(True)) for _ in range(trials)]
    first, second = np.array(scores, dtype=float).T
    return evaluate(first, second, delta=delta, confidence=confidence)


class _Audited(DPSlicedWassersteinLoss):
    """A loss with directions that can be used twice.

    Its rows are sorted before the noise in place of after it.
    """

    again = False

    def __init__(self, mechanism: ProjectionMechanism) -> None:
        super().__init__(mechanism, recorder=Unrecorded())
        self.used: list[Tensor] = []

    def draw_projections(self) -> Tensor:
        """Draw directions for the first run of a pair; return them again for the second."""
        if self.again:
            return self.used.pop(0)
        projections = super().draw_projections()
        self.used.append(projections)
        return projections

    def compute_statistic(
        self, rows: Tensor, labels: Tensor | None, projections: Projections
    ) -> Tensor:
        """Sort every column of the exact values.

        The attack then knows where the record is. The noise is the same for all rows, so the law of
        the sorted release does not change.
        """
        values = super().compute_statistic(rows, labels, projections)
        return values.sort(dim=-2).values

    def discard_order(self, values: Tensor) -> Tensor:
        """Return noisy rows as they are: the claim does not rely on their last sort."""
        return values


class ProjectionGame:
    """Runs of ``n_releases`` releases on subsets of ``sample_size`` records.

    ``seed`` determines z and nothing else.
    """

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
        self.mechanism = mechanism
        self.sample_size = sample_size
        self.n_releases = n_releases
        self.rate = mechanism.batch_size / sample_size
        z = np.random.default_rng(seed).standard_normal(mechanism.dim)
        z *= _LENGTH * mechanism.row_norm / np.linalg.norm(z)
        self.record = torch.from_numpy(z).to(torch.float32)
        direction = self.record.double() / self.record.double().norm()
        self.clipped = mechanism.row_norm * direction  # (d,)
        # A subclass of the loss under attack in which the methods of _Audited come first.
        audited_class = type("Audited", (_Audited, loss), {})
        self.loss: _Audited = audited_class(mechanism)
        self.records = [self._handle(replaced=False), self._handle(replaced=True)]

    def _handle(self, replaced: bool) -> PrivateRecords:
        """Return a handle of one data set.

        Its records are computed when they are opened.
        """
        n_records = self.sample_size * self.mechanism.per_unit
        read = partial(self.rows, replaced=replaced)
        rows = Stored(read, (n_records, self.mechanism.dim), torch.float32)
        labels = None
        classes = None
        if self.mechanism.n_classes is not None:
            labels = torch.zeros(n_records, dtype=torch.int64)
            classes = range(self.mechanism.n_classes)
        units = None
        if self.mechanism.per_unit > 1:
            names = np.arange(n_records) // self.mechanism.per_unit
            units = Units.draw(names, self.mechanism.per_unit)
        layout = Layout.of(self.record[None])
        return PrivateRecords.from_values(rows, labels, classes=classes, layout=layout, units=units)

    def rows(self, index: Tensor, replaced: bool) -> Tensor:
        """Return the records (n, d) at ``index`` of one data set.

        The records of the first unit differ between the data sets.
        """
        rows = self.record.repeat(len(index), 1)
        if replaced:
            rows[index < self.mechanism.per_unit] *= -1
        return rows

    def play(self, replaced: bool) -> float:
        """Make one run; see :class:`Game`."""
        # The second run of a pair, on the other data set, has the directions of the first one.
        self.loss.again = replaced and bool(self.loss.used)
        if not self.loss.again:
            self.loss.used.clear()
        ratios = [self.log_ratio(release) for release in self.releases(replaced)]
        return self.score(np.array(ratios))

    def releases(self, replaced: bool) -> Iterable[Release]:
        """Make the releases of one run on one data set."""
        for _ in range(self.n_releases):
            yield self.loss.release(PrivateBatch(self.records[replaced], self.mechanism.batch_size))

    def score(self, ratios: NDArray[np.float64]) -> float:
        """Return the log-likelihood ratio of a run.

        Args:
            ratios: Those of its releases (T,), given that the record is in each of them.
        """
        if self.rate == 1:
            return float(ratios.sum())
        log_of_absent = math.log1p(-self.rate)
        log_of_present = math.log(self.rate) + ratios
        return float(np.logaddexp(log_of_absent, log_of_present).sum())

    def log_ratio(self, release: Release) -> float:
        """Return the log of the likelihood ratio of a release.

        The ratio is that of the data sets with and without the replaced record. With units, the c
        replaced entries of a column fill its first or last blocks, the last of them in part.
        """
        mechanism = self.mechanism
        values = release.values  # (m, k)
        if mechanism.n_classes is not None:
            values = release.values[0]  # all rows are of class 0
        c = release.project(self.clipped[None])[0]  # (k,)
        ratio = 0.0
        n_left = mechanism.per_unit
        block = 0
        while n_left > 0:
            n_here = min(n_left, mechanism.block_size)
            moved = torch.where(c > 0, values[block], values[-1 - block])
            shift = -2 * c * n_here / mechanism.block_size
            ratio += float(shift @ (moved - c - shift / 2)) / mechanism.sigma**2
            n_left -= n_here
            block += 1
        return ratio


class QueryGame:
    r"""One release of a query, scored by the log-likelihood ratio.

    The query states its worst pair (:meth:`dpswd.queries.GaussianQuery.worst_pair`) and the
    coordinates in which its noise is isotropic with standard deviation sigma. There the ratio is
    :math:`\langle y - (y_0 + y_1)/2, y_1 - y_0 \rangle / \sigma^2`. The exact values
    :math:`y_0, y_1` are releases of the query with a billionth of the noise, so that a fault in the
    query (a missing clip) makes the attack stronger.

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
        first = silent.coordinates(silent.release(self.data[0]))
        second = silent.coordinates(silent.release(self.data[1]))
        self.difference: Tensor = second - first
        self.middle: Tensor = (first + second) / 2
        self.moved = float(self.difference.norm()) / query.mechanism.sigma

    def play(self, replaced: bool) -> float:
        """Make one release; see :class:`Game`."""
        values = self.query.coordinates(self.query.release(self.data[replaced]))
        sigma: float = self.query.mechanism.sigma
        product = ((values - self.middle) * self.difference).sum()
        return float(product) / sigma**2


@dataclass(frozen=True, kw_only=True)
class AuditResult(Evidence):
    """Evidence and the claim that it is compared with.

    docs/audit.md explains the fields.

    Attributes:
        mu_claimed: The claimed mu.
        mu_claimed_at_fpr: The claimed mu at the measured false-positive rate.
        epsilon_claimed: The claimed epsilon.
        passed: Whether no measured point lies below the claimed trade-off curve.
        n_releases: Number T of releases.
        releases_audited: Releases per run of the game, which the claim is for; fewer than T if time
            was short.
        assumptions: Assumptions of the claim.
    """

    mu_claimed: float
    mu_claimed_at_fpr: float
    epsilon_claimed: float
    passed: bool
    n_releases: int
    releases_audited: int
    assumptions: tuple[str, ...]

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
        sample_size: Number N of records; of units, where units are stated.
        n_releases: Number T of releases.
        delta: Where epsilon is evaluated; the tails of the Bernstein and CLT bounds are charged to
            it.
        trials: Runs per data set. ``None`` for as many as are useful within about 45 seconds; if T
            releases take too long for that, runs have fewer releases and are compared with the
            claim for that number.
        seed: Seed of the record that is replaced. Noise, directions and subsets come from the
            system's entropy.
        confidence: Probability with which the lower bounds hold.
        accountant: ``"pld"`` or ``"rdp"``, for the claimed epsilon.
        loss: The class of the loss under attack: your own, to audit it against the claim of the
            mechanism.

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
            "Expected a mechanism without noise_seed, got one with: it is NOT PRIVATE and claims "
            "nothing."
        )

    game = partial(ProjectionGame, mechanism, sample_size, seed=seed, loss=loss)
    claim = _claim(mechanism, sample_size, n_releases, accountant, delta)
    n_audited = n_releases
    if trials is None:
        pair_seconds = _seconds_of_a_pair(game(1))
        n_audited = _affordable_releases(pair_seconds, n_releases)
        trials = _affordable_trials(pair_seconds, n_audited, claim.mu)
        claim = _claim(mechanism, sample_size, n_audited, accountant, delta)
    evidence = run_game(game(n_audited), trials, delta=delta, confidence=confidence)
    return AuditResult.of(claim, evidence, n_releases, n_audited)


def _claim(
    mechanism: ProjectionMechanism,
    sample_size: int,
    n_releases: int,
    accountant: str,
    delta: float,
) -> Claim:
    """Return the claim of the accountant for some releases."""
    account = PrivacyAccountant(accountant)
    account.step(mechanism, sample_size=sample_size, n_releases=n_releases)
    return Claim.of(account, delta)


def _seconds_of_a_pair(game: Game) -> float:
    """Return the median duration of a run on each data set."""
    durations = timeit.repeat(
        lambda: (game.play(False), game.play(True)), number=1, repeat=_N_TIMED
    )
    return float(np.median(durations[1:]))


def _affordable_releases(pair_seconds: float, n_releases: int) -> int:
    """Return the releases per run, such that there is time for enough runs."""
    most = int(_SECONDS / (pair_seconds * _ENOUGH_TRIALS))
    return max(1, min(n_releases, most))


def _affordable_trials(pair_seconds: float, n_releases: int, mu: float) -> int:
    """Return the runs per data set for which there is time.

    Small and large mu need more of them.
    """
    n_trials = _MANY_TRIALS
    if mu <= _LARGE_MU:
        n_trials = int(min(max(_FEW_TRIALS / mu**2, _FEW_TRIALS), _MANY_TRIALS))
    most = int(_SECONDS / (pair_seconds * n_releases))
    return max(MIN_TRIALS, min(n_trials, most))
