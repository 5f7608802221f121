"""Privacy accountant: composes releases and computes epsilon, delta and mu."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from gdpnum import PLDConverter
from gdpnum.converter import get_worst_case_regret
from numpy.typing import NDArray
from scipy import stats

from dpswd._validate import at_least, choice, positive, probability
from dpswd.accounting.guarantee import Guarantee
from dpswd.accounting.pld import (
    POINTS_PER_DEVIATION,
    LossDistribution,
    LossTooLargeError,
    Releases,
    compose_losses,
    merge_gaussians,
)
from dpswd.accounting.rdp import RenyiAccount
from dpswd.accounting.rounding import round_up
from dpswd.errors import InputError
from dpswd.mechanism import Mechanism, ProjectionMechanism

__all__ = ["PrivacyAccountant"]

ReleaseGroup = tuple[Mechanism, int, int]  # (mechanism, sample_size, n_releases)

# Names of the accountants: privacy loss distributions, and Renyi divergences.
ACCOUNTANTS = ("pld", "rdp")

# Part of delta for the tails of bounds that have no failure_prob.
_TAIL_SHARE = 0.5
# A probability of infinite loss up to this size comes from rounding, whatever sigma is.
_ROUNDED_MASS = 1e-12
# Nothing is claimed of smaller error rates.
_LEAST_RATE = 1e-10
# The tail of the loss has a small relative error down to about this probability.
_LEAST_PROBABILITY = 1e-12
# Significant digits of a stated mu.
_MU_DIGITS = 5
# A mu up to this size may be bounded without the curve, which would be rounded.
_TINY_MU = 1e-3

# The sentences of ``assumptions``, in their order.
_REPLACE_ONE = "Neighbouring data sets have the same size and differ in one record (replace-one)."
_REPLACE_PERSON = (
    "Neighbouring data sets have the same number of persons and differ in the records of one "
    "person, at most {per_unit} (replace-one)."
)
_CLIPPED = "Rows that are projected are clipped to an L2 norm of at most {norm:g}."
_SUBSETS = (
    "A release of a part of the records reads a fresh uniform subset of fixed size, drawn without "
    "replacement and kept secret; shuffled epochs are not such subsets."
)
_FRESH_DIRECTIONS = (
    "Directions are drawn afresh for every release, independently of the data and of earlier "
    "directions."
)
_WHOLE_BASES = (
    "Directions are whole orthonormal bases, so that the sensitivity does not depend on them."
)
_WHOLE_FRAMES = (
    "Directions are whole frames of structured slices, so that the sensitivity does not depend on "
    "them; private rows are projected by exact sums."
)
_SINGLE_PRECISION = (
    "Directions and products in float32 are rounded, which the sensitivity includes; the order of "
    "a sum does not depend on the numbers."
)
_PRIVATE_LABELS = (
    "Labels are private: a change of class is accounted for. The list of classes is public."
)
_BOUNDS = {
    "clt": (
        "NOT SOUND: the random squared sensitivity is replaced by a normal approximation, which is "
        "not a bound."
    ),
    "exact": (
        "The random squared sensitivity is accounted for by its exact law; no tail probability is "
        "spent."
    ),
    "bernstein": "The random squared sensitivity is bounded by Bernstein's inequality.",
    "constant": (
        "The squared sensitivity is the constant k / d, the number of directions over the number "
        "of dimensions; no tail probability is spent."
    ),
}
_TAILS = (
    "The tail of the bound is charged to delta at every release; without failure_prob, half of "
    "delta."
)
_COMPOSITIONS = {
    "pld": "Composed as privacy loss distributions, rounded towards less privacy.",
    "rdp": "Composed as Renyi divergences (autodp); mu comes from the privacy loss distribution.",
}
_EXACT_ARITHMETIC = (
    "Noise is Gaussian in exact arithmetic; attacks on floating-point noise are not covered."
)
_NOT_PRIVATE = "NOT PRIVATE: {reason}."


class EmptyCurveError(LossTooLargeError):
    """The trade-off curve has no point with both error rates above 1e-10.

    mu, which is a bound on tests with such rates, says nothing then.
    """


class PrivacyAccountant:
    r"""Accounts for any sequence of releases under replace-one.

    Formal guarantees:
        - ``get_epsilon(delta)`` bounds epsilon: the whole sequence is (epsilon, delta)-private
          under the sentences in ``assumptions``. This holds also if later releases were chosen from
          earlier ones, with noise fixed beforehand. The discretisation adds at most 2 % to epsilon
          in 150 random plans; one release along a single random direction can have 7 % more.
        - ``get_mu_and_regret()`` bounds the trade-off curve wherever both error rates exceed 1e-10.

    Args:
        accountant: ``"pld"`` (privacy loss distribution, the default) or ``"rdp"`` (Renyi, for
            comparison).

    Attributes:
        accountant: As given.
        history: ``(mechanism, sample_size, n_releases)`` in order; equal neighbours are merged.

    Raises:
        InputError: If the name of the accountant is unknown.

    Example:
        >>> from dpswd.mechanism import ProjectionMechanism
        >>> mechanism = ProjectionMechanism(dim=784, n_projections=1000, sigma=0.70, batch_size=100)
        >>> accountant = PrivacyAccountant().step(mechanism, sample_size=60_000, n_releases=60_100)
        >>> round(accountant.get_epsilon(1e-5), 2)
        9.79
    """

    def __init__(self, accountant: str = "pld") -> None:
        choice(ACCOUNTANTS, accountant=accountant)
        self.accountant = accountant
        self.history: list[ReleaseGroup] = []

    @classmethod
    def from_groups(
        cls, groups: Iterable[ReleaseGroup], accountant: str = "pld"
    ) -> "PrivacyAccountant":
        """Return an accountant of the given ``(mechanism, sample_size, n_releases)``."""
        composed = cls(accountant)
        for mechanism, sample_size, n_releases in groups:
            composed.step(mechanism, sample_size=sample_size, n_releases=n_releases)
        return composed

    def step(
        self, mechanism: Mechanism, *, sample_size: int, n_releases: int = 1
    ) -> "PrivacyAccountant":
        """Add releases and return the accountant.

        Args:
            mechanism: What is released.
            sample_size: Number N of records; of units, where units are stated.
            n_releases: Number T of releases.

        Raises:
            InputError: If the batch is larger than the data set, or a number is out of range.
                Nothing is added then.
        """
        at_least(1, sample_size=sample_size, n_releases=n_releases)
        check_mechanism(mechanism)
        mechanism.check_calibrated()
        if mechanism.batch_size is not None and mechanism.batch_size > sample_size:
            sizes = f"batch_size={mechanism.batch_size} and sample_size={sample_size}"
            raise InputError(
                f"Expected batch_size <= sample_size, got {sizes}; use a smaller batch."
            )
        if self.history and self.history[-1][:2] == (mechanism, sample_size):
            n_releases += self.history.pop()[2]
        self.history.append((mechanism, int(sample_size), int(n_releases)))
        return self

    def resolve(self, delta: float) -> "PrivacyAccountant":
        """Return a copy in which every bound has a ``failure_prob``.

        Those that were left out get half of ``delta`` together.
        """
        probability(delta=delta)
        weight = self._weight_of_open_tails()
        resolved = PrivacyAccountant(self.accountant)
        for mechanism, sample_size, n_releases in self.history:
            resolved_mechanism = mechanism
            if isinstance(mechanism, ProjectionMechanism) and _has_open_tail(mechanism):
                failure_prob = _TAIL_SHARE * delta / weight
                resolved_mechanism = mechanism.replace(failure_prob=failure_prob)
            resolved.step(resolved_mechanism, sample_size=sample_size, n_releases=n_releases)
        return resolved

    @property
    def tail(self) -> float:
        """Part of delta that bounds with a ``failure_prob`` spend."""
        return self._sum_of_tails(self.accountant)

    def get_epsilon(self, delta: float, *, points: int = POINTS_PER_DEVIATION) -> float:
        """Return an upper bound on epsilon at ``delta``.

        Args:
            delta: In (0, 1).
            points: Points of the grid per standard deviation of the loss of one release.

        Raises:
            InputError: If there is no release, tails of bounds use up delta, or delta or the noise
                is too small.
        """
        if self.is_noise_free:
            return math.inf
        resolved = self.resolve(delta)
        if resolved.tail >= delta:
            raise InputError(
                f"Expected delta above the tail probability {resolved.tail:.3g} of the bounds, "
                f"got delta={delta:g}; use a smaller failure_prob, or leave it out."
            )
        if self.accountant == "rdp":
            return resolved._renyi_epsilon(delta)
        return resolved._pld_epsilon(delta, points)

    def epsilon_by_accountant(self, delta: float) -> dict[str, float | None]:
        """Return epsilon at ``delta`` by each accountant, for comparison.

        Both are upper bounds: by privacy loss distributions (``"pld"``) and by autodp's Renyi
        divergences (``"rdp"``). Where an accountant has no bound, its value is ``None``. Without a
        subsampled release the dictionary is empty: the accountants then hardly differ.
        """
        if self.is_noise_free or not any(_is_subsampled(group) for group in self.history):
            return {}
        epsilons: dict[str, float | None] = {}
        for name in ACCOUNTANTS:
            account = PrivacyAccountant.from_groups(self.history, name)
            try:
                epsilons[name] = account.get_epsilon(delta)
            except InputError:
                epsilons[name] = None
        return epsilons

    def profile(self, epsilons: Sequence[float]) -> NDArray[np.float64]:
        """Return the privacy profile: an upper bound on delta at every epsilon.

        It comes from the privacy loss distribution, also for ``accountant="rdp"``.
        """
        for index, epsilon in enumerate(epsilons):
            positive(**{f"epsilons[{index}]": epsilon})
        if self.is_noise_free:
            return np.ones(len(epsilons))
        loss = self.pld()
        deltas = [float(loss.get_delta_for_epsilon(float(epsilon))) for epsilon in epsilons]
        return np.clip(deltas, 0.0, 1.0)

    def pld(self) -> PrivacyLossDistribution:
        """Return the distribution of the loss of all releases, for ``dp_accounting``.

        Raises:
            InputError: As :meth:`losses`.
        """
        return self.losses().to_pld()

    def losses(self, *, points: int = POINTS_PER_DEVIATION) -> LossDistribution:
        """Return the distribution of the privacy loss of all releases.

        Its tail has a small relative error down to the probabilities that error rates of 1e-10
        need (docs/theory/accounting.md, Proposition 16).

        Args:
            points: Points of the grid per standard deviation of the loss of one release.

        Raises:
            InputError: If a bound has no ``failure_prob``, which ``resolve(delta)`` chooses, or
                tails add up to 1.
        """
        if self._weight_of_open_tails():
            raise InputError(
                "Expected failure_prob for a bound that spends a tail probability, got None; "
                "resolve it."
            )
        tail = self._sum_of_tails("pld")
        if tail >= 1:
            raise InputError(
                f"Expected tail probabilities of the bounds below 1 in total, got {tail:.3g}; "
                "use a smaller failure_prob, or leave it out."
            )
        return compose_losses(
            self.parts(), points=points, infinity_mass=tail, delta=_LEAST_PROBABILITY
        )

    def get_mu_and_regret(self, *, points: int = POINTS_PER_DEVIATION) -> tuple[float, float]:
        """Return mu of Gaussian differential privacy, rounded up, and its regret.

        Both come from the privacy loss distribution, also for ``accountant="rdp"``: a Renyi curve
        has no tight mu. The regret is computed by ``gdpnum`` (Gomez2025). An exactly Gaussian
        composition has a closed form and regret 0.

        Raises:
            InputError: If a bound has no ``failure_prob``, if the loss is too large, or if no point
                of the curve has both error rates above 1e-10 (:class:`EmptyCurveError`).
        """
        exact = self.gaussian_mu
        if exact is not None:
            return round_up(exact, _MU_DIGITS), 0.0
        mu, regret = mu_and_regret(self.losses(points=points), self.unsampled_mu())
        return round_up(mu, _MU_DIGITS), regret

    @property
    def gaussian_mu(self) -> float | None:
        r"""The mu of an exactly Gaussian composition, or ``None``; infinite without noise.

        Every release must read all records and have a constant S: :math:`\mu^2 = \sum_i T_i
        \mathtt{scale}_i^2 S_i` (Dong2022, Corollary 3.3).
        """
        if self.is_noise_free:
            return math.inf
        if not self.history or any(mechanism.spends_tail for mechanism, *_ in self.history):
            return None
        first, *others = merge_gaussians(self.parts())
        if others or first.rate != 1 or not first.law.is_constant:
            return None
        return first.scale * math.sqrt(first.law.mean)

    def unsampled_mu(self) -> float:
        """Return the mu of the releases if each read all records and had the largest S.

        Every release is Gaussian then. It is infinite where tails are spent.
        """
        if self.tail:
            return math.inf
        total = sum(part.n_releases * part.scale**2 * part.law.maximum for part in self.parts())
        return math.sqrt(total)

    def guarantee(self, delta: float | None, *, with_mu: bool = True) -> Guarantee:
        """Return epsilon at ``delta``, mu, regret, soundness and assumptions.

        Args:
            delta: ``None`` for a guarantee without epsilon.
            with_mu: False for one without mu and regret, which are ``None`` then.

        Raises:
            InputError: As :meth:`get_epsilon` and :meth:`get_mu_and_regret`.
        """
        epsilon: float | None = None
        mu: float | None = None
        regret: float | None = None
        if not self.history:
            epsilon = 0.0
            mu = 0.0
            regret = 0.0
        elif with_mu:
            mu, regret = self._mu_and_regret_at(delta)
        if self.history and delta is not None:
            epsilon = self.get_epsilon(delta)
        return Guarantee(
            private=all(mechanism.is_private for mechanism, _, _ in self.history),
            sound=self.sound,
            epsilon=epsilon,
            delta=delta,
            mu=mu,
            regret=regret,
            accountant=self.accountant,
            assumptions=tuple(self.assumptions),
        )

    @property
    def is_noise_free(self) -> bool:
        """Whether a release adds no noise: epsilon and mu are infinite then."""
        return any(mechanism.noise_free for mechanism, *_ in self.history)

    @property
    def sound(self) -> bool:
        """Whether every number is a proven bound.

        This needs noise without a fixed seed, and no CLT bound.
        """
        return all(
            mechanism.is_private and not (mechanism.spends_tail and mechanism.bound == "clt")
            for mechanism, *_ in self.history
        )

    @property
    def shortcomings(self) -> list[str]:
        """What voids the numbers or leaves them unproven.

        That is a release without noise, a fixed seed, or a CLT bound.
        """
        reasons = []
        for sentence in self.assumptions:
            if sentence.startswith("NOT "):
                _, _, reason = sentence.partition(": ")
                reasons.append(reason.capitalize())
        return reasons

    @property
    def assumptions(self) -> list[str]:
        """The assumptions behind the numbers, one sentence each; none without a release."""
        if not self.history:
            return []
        mechanisms = [mechanism for mechanism, *_ in self.history]
        sentences = [self._neighbours()]
        sentences += self._assumptions_about_rows()
        sentences += self._assumptions_about_directions()
        if any(mechanism.spends_tail for mechanism in mechanisms):
            sentences.append(_TAILS)
        sentences.append(_COMPOSITIONS[self.accountant])
        sentences.append(_EXACT_ARITHMETIC)
        reasons = {mechanism.why_not_private for mechanism in mechanisms}
        sentences += [_NOT_PRIVATE.format(reason=reason) for reason in sorted(reasons) if reason]
        return sentences

    def _neighbours(self) -> str:
        """Return in what neighbouring data sets differ."""
        per_unit = max(mechanism.per_unit for mechanism, *_ in self.history)
        if per_unit == 1:
            return _REPLACE_ONE
        return _REPLACE_PERSON.format(per_unit=per_unit)

    def _assumptions_about_rows(self) -> list[str]:
        """Return what is assumed of the rows and of the subsets that the releases read."""
        norms = {mechanism.row_norm for mechanism in self._projections()}
        sentences = [_CLIPPED.format(norm=norm) for norm in sorted(norms)]
        if any(_rate(mechanism, sample_size) < 1 for mechanism, sample_size, _ in self.history):
            sentences.append(_SUBSETS)
        return sentences

    def _assumptions_about_directions(self) -> list[str]:
        """Return what is assumed of the directions and of their random sensitivity."""
        projections = self._projections()
        if not projections:
            return []
        treatments = set()
        for mechanism in projections:
            if mechanism.exact_law.is_constant:
                treatments.add("constant")
            else:
                treatments.add(mechanism.bound)
        sentences = [_FRESH_DIRECTIONS]
        if treatments == {"constant"}:
            sentences = []
            kinds = {mechanism.kind for mechanism in projections}
            if "structured" in kinds:
                sentences.append(_WHOLE_FRAMES)
            if kinds != {"structured"}:
                sentences.append(_WHOLE_BASES)
        if any(mechanism.precision == "single" for mechanism in projections):
            sentences.append(_SINGLE_PRECISION)
        if any(mechanism.n_classes for mechanism in projections):
            sentences.append(_PRIVATE_LABELS)
        for treatment, sentence in _BOUNDS.items():
            if treatment in treatments:
                sentences.append(sentence)
        return sentences

    def _projections(self) -> list[ProjectionMechanism]:
        """Return the mechanisms of projections."""
        projections = []
        for mechanism, *_ in self.history:
            if isinstance(mechanism, ProjectionMechanism):
                projections.append(mechanism)
        return projections

    def parts(self) -> list[Releases]:
        """Return the releases in units of their noise, as ``pld`` and ``rdp`` need them."""
        if not self.history:
            raise InputError(
                "Expected at least one release to account for, got none; call step() first."
            )
        parts = []
        for mechanism, sample_size, n_releases in self.history:
            scale = mechanism.unit_sensitivity / mechanism.sigma
            rate = _rate(mechanism, sample_size)
            parts.append(Releases(mechanism.law, scale, rate, n_releases))
        return parts

    def _renyi_epsilon(self, delta: float) -> float:
        """Return epsilon by Renyi divergences; every bound has a ``failure_prob``."""
        epsilon = RenyiAccount(self.parts()).get_epsilon(delta - self.tail)
        if not math.isfinite(epsilon):
            raise LossTooLargeError(
                "Expected a finite Renyi divergence, got none at any order; use a larger sigma."
            )
        return epsilon

    def _pld_epsilon(self, delta: float, points: int) -> float:
        """Return epsilon by PLD; every bound has a ``failure_prob``."""
        try:
            loss = compose_losses(self.parts(), points=points, infinity_mass=self.tail, delta=delta)
        except LossTooLargeError:
            mu = self.gaussian_mu
            if mu is None:
                raise
            # delta(epsilon) <= Phi(mu / 2 - epsilon / mu), relatively close for a large mu
            return mu**2 / 2 + mu * float(stats.norm.isf(delta))
        epsilon = loss.get_epsilon(delta)
        if not math.isfinite(epsilon):
            remedy = "use a larger delta"
            if loss.infinite > _ROUNDED_MASS:
                remedy = "use a larger sigma or a larger delta"
            raise LossTooLargeError(
                f"Expected delta above {loss.infinite:.3g}, the probability of a privacy loss that "
                f"the accountant does not bound, got delta={delta:g}; {remedy}."
            )
        return epsilon

    def _mu_and_regret_at(self, delta: float | None) -> tuple[float, float]:
        """Return mu and regret with the tails of :meth:`resolve`."""
        if delta is None:
            return self.get_mu_and_regret()
        return self.resolve(delta).get_mu_and_regret()

    def _sum_of_tails(self, accountant: str) -> float:
        """Sum the tail probabilities of all releases that have a ``failure_prob``."""
        total = 0.0
        for mechanism, sample_size, n_releases in self.history:
            if mechanism.spends_tail and mechanism.failure_prob is not None:
                weight = _tail_weight(_rate(mechanism, sample_size), accountant)
                total += n_releases * weight * mechanism.failure_prob
        return total

    def _weight_of_open_tails(self) -> float:
        """Sum the weights of all releases whose tail the accountant chooses."""
        total = 0.0
        for mechanism, sample_size, n_releases in self.history:
            if _has_open_tail(mechanism):
                weight = _tail_weight(_rate(mechanism, sample_size), self.accountant)
                total += n_releases * weight
        return total


def check_mechanism(mechanism: Any) -> None:
    """Raise an InputError unless a value is a mechanism."""
    if not isinstance(mechanism, Mechanism):
        raise InputError(
            "Expected mechanism to be a ProjectionMechanism or a GaussianMechanism, got "
            f"{type(mechanism).__name__}; pass the mechanism of the loss or query."
        )


def _has_open_tail(mechanism: Mechanism) -> bool:
    """Return whether a mechanism spends a tail that the accountant chooses."""
    return mechanism.spends_tail and mechanism.failure_prob is None


def _tail_weight(rate: float, accountant: str) -> float:
    """Return how often a release is charged its tail probability.

    For the Renyi accountant and 1/3 < q < 1 it is 3 q times: the proof of Wang2019 compares three
    subsets that may contain a record (Proposition 18).
    """
    if accountant == "rdp" and 1 / 3 < rate < 1:
        return 3 * rate
    return 1.0


def mu_and_regret(loss: LossDistribution, unsampled_mu: float = math.inf) -> tuple[float, float]:
    """Return mu, not rounded, and the regret of a loss, for error rates above 1e-10.

    Proof: docs/theory/accounting.md, Proposition 20.

    Args:
        loss: Distribution of the privacy loss.
        unsampled_mu: Another bound on mu, which is used where the loss is very small.

    Raises:
        EmptyCurveError: If no point of the curve has both error rates above 1e-10.
    """
    false_positive, true_positive = loss.error_rates()
    # the curve is linear between its breakpoints, so that its ends count, too
    at_least_rate = float(np.interp(_LEAST_RATE, false_positive, true_positive))
    if at_least_rate >= 1 - _LEAST_RATE:
        raise EmptyCurveError(
            f"Expected a trade-off curve with error rates above {_LEAST_RATE:g}, got an empty one; "
            "use a larger sigma or a smaller target, or read epsilon alone."
        )
    is_inside = (false_positive > _LEAST_RATE) & (true_positive < 1 - _LEAST_RATE)
    false_positive = np.append(false_positive[is_inside], _LEAST_RATE)
    true_positive = np.append(true_positive[is_inside], at_least_rate)
    mu = float(np.max(stats.norm.isf(false_positive) - stats.norm.isf(true_positive)))
    if unsampled_mu <= min(mu, _TINY_MU):
        # a curve between that of mu and 1 - x is at most mu / sqrt(2 pi) above the former
        return unsampled_mu, unsampled_mu / math.sqrt(2 * math.pi)
    mu = min(mu, unsampled_mu)
    curve = PLDConverter(loss.to_pld())
    return mu, float(get_worst_case_regret(curve.alphas_symm, curve.betas_symm, mu))


def _rate(mechanism: Mechanism, sample_size: int) -> float:
    """Return the part q of the records that one release reads."""
    if mechanism.batch_size is None:
        return 1.0
    return mechanism.batch_size / sample_size


def _is_subsampled(group: ReleaseGroup) -> bool:
    """Return whether the releases of a group read a part of the records."""
    mechanism, sample_size, _ = group
    return mechanism.batch_size is not None and mechanism.batch_size < sample_size
