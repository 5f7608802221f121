"""Plan of a run: its mechanisms, their numbers of releases and their noise.

A run first says what it needs: mechanisms without noise, with numbers of releases and shares of the
budget (:class:`ReleaseRequest`). :meth:`Plan.calibrate` finds the noise with which all of them
together keep the budget (:class:`PlannedReleases`). The header of the ledger holds the plan.
"""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from dpswd._json import plain_number
from dpswd._validate import budget, choice, probability
from dpswd.accounting.accountant import ACCOUNTANTS, PrivacyAccountant
from dpswd.accounting.calibrate import calibrate_sigma, planning_mu
from dpswd.accounting.ledger import plan_of
from dpswd.accounting.pld import LossTooLargeError
from dpswd.errors import InputError, LedgerError
from dpswd.mechanism import GaussianMechanism, Mechanism, ProjectionMechanism

__all__ = ["Plan", "PlannedReleases", "ReleaseRequest", "Target"]

# Bytes of all values of one mechanism, up to which each release is written to a file.
STORED_BYTES = 2**28
# Number of releases of one mechanism up to which each is written to a file, whatever its size.
_FEW_RELEASES = 20
_BYTES_PER_VALUE = 8  # of a float64
# Number of equal parts of a plan; the epsilon spent so far is computed anew after each of them.
_N_PARTS = 16
# At epsilon = inf, mu does not depend on delta.
_ANY_DELTA = 1e-5
# Relative tolerance for epsilon that is computed again, since another machine rounds differently.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Target:
    """Budget of a run, and the accountant that computes what the run spends.

    Attributes:
        epsilon: Budget, together with ``delta``. Infinity stands for no noise at all, for public
            stand-ins of records: the run is NOT PRIVATE.
        delta: Budget; below 1 / N.
        accountant: ``"pld"`` or ``"rdp"``.

    Raises:
        InputError: If a value is out of range.
    """

    epsilon: float
    delta: float
    accountant: str = "pld"

    def __post_init__(self) -> None:
        budget(target_epsilon=self.epsilon)
        probability(target_delta=self.delta)
        # Numbers of NumPy and fractions become floats, which the ledger holds as JSON.
        object.__setattr__(self, "epsilon", float(self.epsilon))
        object.__setattr__(self, "delta", float(self.delta))
        choice(ACCOUNTANTS, accountant=self.accountant)

    @property
    def mu(self) -> float:
        """Budget of Gaussian differential privacy.

        Queries and structure get their shares of it.
        """
        if self.accountant == "pld" or self.is_noise_free:
            return planning_mu(self.epsilon, self.delta)
        unit_mechanism = GaussianMechanism(sensitivity=1.0, sigma=1.0)
        return 1 / calibrate_sigma(unit_mechanism, sample_size=1, n_releases=1, **self.to_dict())

    @property
    def is_noise_free(self) -> bool:
        """Whether releases have no noise."""
        return self.epsilon == math.inf

    def check_sample_size(self, sample_size: int) -> None:
        """Raise an :class:`InputError` unless delta is below 1 / N."""
        if self.delta * sample_size >= 1:
            raise InputError(
                f"Expected target_delta below 1 / N = {1 / sample_size:.2g} for N records, got "
                f"{self.delta:g}, at which a whole record may be published; lower it."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the budget as the ledger's header states it."""
        return {
            "target_epsilon": plain_number(self.epsilon),
            "target_delta": self.delta,
            "accountant": self.accountant,
        }


@dataclass(frozen=True)
class ReleaseRequest:
    """Releases that a run needs: their noise is not calibrated.

    Attributes:
        mechanism: What is released.
        n_releases: How often.
        share: Part of the squared mu of the budget that each of these releases gets; without effect
            for the last request of a plan.
    """

    mechanism: Mechanism
    n_releases: int
    share: float


@dataclass(frozen=True)
class PlannedReleases:
    """Releases of one calibrated mechanism."""

    mechanism: Mechanism
    n_releases: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the ledger's header."""
        return {"mechanism": self.mechanism.to_dict(), "n_releases": self.n_releases}


@dataclass(frozen=True)
class Plan:
    """All releases of a run, with noise that keeps its budget.

    Attributes:
        target: The budget.
        sample_size: Number N of records; of units, where units are stated.
        parts: The releases, in the order of the requests; a loss is the last one.
    """

    target: Target
    sample_size: int
    parts: tuple[PlannedReleases, ...]
    # Epsilons that were computed, since each takes seconds: after numbers of releases, by the
    # accountant of the budget and by each accountant; and of the whole plan, by each accountant.
    _epsilon_by_count: dict[int, float] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _epsilons_by_count: dict[int, dict[str, float]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _epsilon_by_accountant: dict[str, float | None] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def calibrate(
        cls, requests: Sequence[ReleaseRequest], target: Target, sample_size: int
    ) -> Self:
        """Calibrate the noise of every request.

        Each request but the last gets its share of the squared mu of the budget. The last one gets
        the rest.

        Raises:
            InputError: If the shares leave nothing, or no noise keeps the budget.
        """
        if any(request.mechanism.noise_free for request in requests):
            raise InputError(
                "Expected mechanisms with noise in a plan, got one that is noise_free; "
                "leave it out, and state target_epsilon=inf for a run without noise."
            )
        *queries, last = requests
        total_share = sum(query.share * query.n_releases for query in queries)
        if total_share >= 1:
            raise InputError(
                f"Expected shares of the budget that add up to less than 1, got {total_share:g}; "
                "lower the share= of a query, or n_releases."
            )
        if target.is_noise_free:
            return cls(target, sample_size, tuple(map(_without_noise, requests)))
        parts: list[PlannedReleases] = []
        spent = PrivacyAccountant(target.accountant)
        mu = math.inf
        if queries:  # a loss alone needs no mu, which takes a calibration
            mu = target.mu
        for query in queries:
            sensitivity = query.mechanism.unit_sensitivity * math.sqrt(query.mechanism.law.mean)
            sigma = sensitivity / (mu * math.sqrt(query.share))
            mechanism = dataclasses.replace(query.mechanism, sigma=sigma)
            parts.append(PlannedReleases(mechanism, query.n_releases))
            spent.step(mechanism, sample_size=sample_size, n_releases=query.n_releases)
        sigma = calibrate_sigma(
            last.mechanism,
            sample_size=sample_size,
            n_releases=last.n_releases,
            spent=spent,
            **target.to_dict(),
        )
        mechanism = dataclasses.replace(last.mechanism, sigma=sigma)
        parts.append(PlannedReleases(mechanism, last.n_releases))
        return cls(target, sample_size, tuple(parts))

    @classmethod
    def from_header(cls, header: dict[str, Any]) -> Self:
        """Read a plan from the header of a ledger.

        Raises:
            LedgerError: If the planned releases cost more than the budget that the header states.
        """
        epsilon = float(header["target_epsilon"])  # "inf" in a run without noise
        target = Target(epsilon, header["target_delta"], header["accountant"])
        parts = tuple(PlannedReleases(mechanism, count) for mechanism, _, count in plan_of(header))
        plan = cls(target, header["sample_size"], parts)
        spent = plan.epsilon()
        if spent > target.epsilon * (1 + _ROUNDING):
            raise LedgerError(
                f"Expected planned releases that cost at most target_epsilon={target.epsilon:g}, "
                f"got {spent:.6g} for the noise in the ledger: its header was edited; start a "
                "new run in a new directory."
            )
        return plan

    @property
    def mechanism(self) -> Mechanism:
        """The mechanism of the loss, or of the last query."""
        return self.parts[-1].mechanism

    @property
    def n_releases(self) -> int:
        """The number of planned releases of all mechanisms."""
        return sum(part.n_releases for part in self.parts)

    @property
    def is_private(self) -> bool:
        """Whether every mechanism has noise, without a fixed seed."""
        return all(part.mechanism.is_private for part in self.parts)

    def count(self, mechanism: Mechanism) -> int:
        """Return the number of planned releases of a mechanism.

        It is 0 if the plan does not contain the mechanism.
        """
        return sum(part.n_releases for part in self.parts if part.mechanism == mechanism)

    def is_stored(self, mechanism: Mechanism) -> bool:
        """Return whether every release of a mechanism is written to a file."""
        n_planned = self.count(mechanism)
        if n_planned <= _FEW_RELEASES or mechanism.batch_size is None:
            return True
        if not isinstance(mechanism, ProjectionMechanism):
            return False  # a sum over a batch, of which the mechanism does not know the size
        # A release is stored with its directions, of which each has ``dim`` entries.
        n_values_per_direction = mechanism.n_values * (mechanism.n_classes or 1)
        n_values = mechanism.n_projections * (mechanism.dim + n_values_per_direction)
        return _BYTES_PER_VALUE * n_values * n_planned <= STORED_BYTES

    def matches(self, requests: Sequence[ReleaseRequest]) -> bool:
        """Return whether the plan is that of the requests, apart from the noise.

        Mechanisms and numbers of releases are compared.
        """
        if len(requests) != len(self.parts):
            return False
        for part, request in zip(self.parts, requests, strict=True):
            planned, requested = _without_sigma(part, request)
            if planned != requested or part.n_releases != request.n_releases:
                return False
        return True

    def first_difference(self, requests: Sequence[ReleaseRequest]) -> tuple[str, str]:
        """Return what is planned and what is requested, where they first differ.

        Both are texts for a message; :meth:`matches` says whether anything differs.
        """
        for part, request in zip(self.parts, requests, strict=False):
            planned, requested = _without_sigma(part, request)
            if type(planned) is not type(requested):
                return planned.description, requested.description
            of_planned = {"n_releases": part.n_releases, **dataclasses.asdict(planned)}
            of_requested = {"n_releases": request.n_releases, **dataclasses.asdict(requested)}
            for name, value in of_planned.items():
                if value != of_requested[name]:
                    expected = f"{name}={value!r} for {planned.description}"
                    return expected, f"{name}={of_requested[name]!r}"
        of_plan = [part.mechanism.description for part in self.parts]
        of_requests = [request.mechanism.description for request in requests]
        return f"the releases {of_plan}", f"{of_requests}"

    def account(self) -> PrivacyAccountant:
        """Return an accountant of all planned releases."""
        return self._account_of(self.parts)

    def epsilon(self) -> float:
        """Return the epsilon of all planned releases.

        It is infinite for noise that hides nothing.
        """
        try:
            return self.account().get_epsilon(self.target.delta)
        except LossTooLargeError:
            return math.inf

    def epsilon_by_accountant(self) -> dict[str, float | None]:
        """Return the epsilon of all planned releases by each accountant.

        The dictionary is empty without subsampling.
        """
        if not self._epsilon_by_accountant:
            epsilons = self.account().epsilon_by_accountant(self.target.delta)
            self._epsilon_by_accountant.update(epsilons)
        return dict(self._epsilon_by_accountant)

    def epsilon_after(self, n_releases: int) -> float:
        """Return an upper bound of epsilon after some releases of the last mechanism.

        All releases of the other mechanisms count. The number is rounded up, to a power of two or
        to a sixteenth of the plan, whichever is less, so that few values are computed in a run.
        """
        count = self._rounded_up(n_releases)
        if count not in self._epsilon_by_count:
            account = self._account_after(count)
            self._epsilon_by_count[count] = account.get_epsilon(self.target.delta)
        return self._epsilon_by_count[count]

    def epsilons_after(self, n_releases: int) -> dict[str, float]:
        """Return :meth:`epsilon_after` by each accountant that has a bound.

        The dictionary is empty without subsampling.
        """
        count = self._rounded_up(n_releases)
        if count not in self._epsilons_by_count:
            epsilons = self._account_after(count).epsilon_by_accountant(self.target.delta)
            bounds = {name: value for name, value in epsilons.items() if value is not None}
            self._epsilons_by_count[count] = bounds
        return dict(self._epsilons_by_count[count])

    def _rounded_up(self, n_releases: int) -> int:
        """Round a number of releases of the last mechanism up; see :meth:`epsilon_after`."""
        n_planned = self.parts[-1].n_releases
        at_least_one = max(n_releases, 1)
        power_of_two = 2 ** math.ceil(math.log2(at_least_one))
        part = math.ceil(n_planned / _N_PARTS)
        multiple_of_part = part * math.ceil(at_least_one / part)
        return int(min(n_planned, power_of_two, multiple_of_part))

    def _account_after(self, count: int) -> PrivacyAccountant:
        """Return an accountant of some releases of the last mechanism, and of all others."""
        *queries, last = self.parts
        return self._account_of([*queries, PlannedReleases(last.mechanism, count)])

    def _account_of(self, parts: Sequence[PlannedReleases]) -> PrivacyAccountant:
        """Return an accountant of some releases."""
        groups = [(part.mechanism, self.sample_size, part.n_releases) for part in parts]
        return PrivacyAccountant.from_groups(groups, self.target.accountant)


def _without_sigma(part: PlannedReleases, request: ReleaseRequest) -> tuple[Mechanism, Mechanism]:
    """Return the mechanisms of planned and of requested releases, with equal noise."""
    planned = dataclasses.replace(part.mechanism, sigma=1.0, noise_free=False)
    return planned, dataclasses.replace(request.mechanism, sigma=1.0)


def _without_noise(request: ReleaseRequest) -> PlannedReleases:
    """Return releases of exact values, whose ``sigma`` is that of a very large budget.

    Nothing has this deviation. Values are rounded to a grid whose width follows from it, and
    post-processing takes it for the noise.
    """
    mechanism = request.mechanism
    if isinstance(mechanism, ProjectionMechanism):
        mean = mechanism.exact_law.mean
    else:
        mean = mechanism.law.mean
    scale = mechanism.unit_sensitivity * math.sqrt(mean)
    sigma = scale / planning_mu(math.inf, _ANY_DELTA)
    mechanism = dataclasses.replace(mechanism, sigma=sigma, noise_free=True)
    return PlannedReleases(mechanism, request.n_releases)
