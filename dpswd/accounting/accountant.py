"""Privacy accountant: composes releases and computes epsilon, delta and mu."""

import contextlib
import math
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from gdpnum import PLDConverter
from numpy.typing import NDArray

from dpswd._validate import at_least, choice, positive, probability
from dpswd.accounting.pld import (
    POINTS_PER_DEVIATION,
    LossTooLargeError,
    Releases,
    compose,
    merge_gaussians,
)
from dpswd.accounting.rdp import RenyiAccount
from dpswd.errors import InputError
from dpswd.mechanism import Mechanism, ProjectionMechanism

__all__ = ["PrivacyAccountant"]

ReleaseGroup = tuple[Mechanism, int, int]  # (mechanism, sample_size, n_releases)

_TAIL_SHARE = 0.5  # of delta, for the tails of bounds without a failure_prob
_TINY_MU = 1e-3  # up to here a bound without gdpnum is returned where gdpnum finds none

# assumptions
_SUBSETS = (
    "Every release reads a fresh uniform subset of fixed size, drawn without replacement and kept secret; shuffled "
    "epochs are not such subsets."
)
_FRESH_DIRECTIONS = "Directions are drawn afresh for every release, independently of the data and of earlier directions."
_WHOLE_BASES = (
    "Directions are whole orthonormal bases, so that the sensitivity does not depend on them."
)
_PRIVATE_LABELS = (
    "Labels are private: a change of class is accounted for. The list of classes is public."
)
_TAILS = "The tail of the bound is charged to delta at every release; without failure_prob, half of delta."
_FIXED_SEED = "NOT PRIVATE: a fixed noise seed makes the noise repeatable."
_BOUNDS = {
    "clt": "NOT SOUND: the random squared sensitivity is replaced by a normal approximation, which is not a bound.",
    "exact": "The random squared sensitivity is accounted for by its exact law; no tail probability is spent.",
    "bernstein": "The random squared sensitivity is bounded by Bernstein's inequality.",
    "constant": "The squared sensitivity is the constant k / d; no tail probability is spent.",
}


class PrivacyAccountant:
    r"""Accounts for any sequence of releases under replace-one.

    Formal guarantees:
        - ``get_epsilon(delta)`` is an upper bound on epsilon such that the whole sequence is (epsilon,
          delta)-differentially private, under the sentences in ``assumptions``; also if later releases were chosen
          from earlier ones, with noise fixed beforehand. The discretisation costs at most 2 %.
        - ``get_mu_and_regret()`` bounds the trade-off curve wherever both error rates exceed 1e-10.

    Args:
        accountant: ``"pld"`` (privacy loss distribution, the default) or ``"rdp"`` (Renyi, for comparison).

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
        choice(("pld", "rdp"), accountant=accountant)
        self.accountant = accountant
        self.history: list[ReleaseGroup] = []

    @classmethod
    def from_groups(
        cls, groups: Iterable[ReleaseGroup], accountant: str = "pld"
    ) -> "PrivacyAccountant":
        """Return an accountant of the given ``(mechanism, sample_size, n_releases)``."""
        made = cls(accountant)
        for mechanism, sample_size, n_releases in groups:
            made.step(mechanism, sample_size=sample_size, n_releases=n_releases)
        return made

    def step(
        self, mechanism: Mechanism, *, sample_size: int, n_releases: int = 1
    ) -> "PrivacyAccountant":
        """Add releases and return the accountant.

        Args:
            mechanism: What is released.
            sample_size: Number N of records.
            n_releases: Number T of releases.

        Raises:
            InputError: If the batch is larger than the data set, or a number is out of range. Nothing is added then.
        """
        at_least(1, sample_size=sample_size, n_releases=n_releases)
        if not isinstance(mechanism, Mechanism):
            raise InputError(
                f"Expected a ProjectionMechanism or GaussianMechanism, got {type(mechanism).__name__}."
            )
        mechanism.check_calibrated()
        if mechanism.batch_size is not None and mechanism.batch_size > sample_size:
            got = f"batch_size={mechanism.batch_size} and sample_size={sample_size}"
            raise InputError(f"Expected batch_size <= sample_size, got {got}; use a smaller batch.")
        if self.history and self.history[-1][:2] == (mechanism, sample_size):
            n_releases += self.history.pop()[2]
        self.history.append((mechanism, int(sample_size), int(n_releases)))
        return self

    def resolve(self, delta: float) -> "PrivacyAccountant":
        """Return a copy in which bounds without ``failure_prob`` have one; they get half of ``delta`` together."""
        probability(delta=delta)
        weight = self._tail(chosen=False)
        resolved = PrivacyAccountant(self.accountant)
        for mechanism, size, count in self.history:
            if (
                isinstance(mechanism, ProjectionMechanism)
                and mechanism.spends_tail
                and mechanism.failure_prob is None
            ):
                mechanism = mechanism.replace(failure_prob=_TAIL_SHARE * delta / weight)
            resolved.step(mechanism, sample_size=size, n_releases=count)
        return resolved

    @property
    def tail(self) -> float:
        """Part of delta that bounds with a ``failure_prob`` spend."""
        return self._tail(chosen=True)

    def get_epsilon(self, delta: float, *, points: int = POINTS_PER_DEVIATION) -> float:
        """Return an upper bound on epsilon at ``delta``, on a grid of ``points`` per deviation.

        Raises:
            InputError: If there is no release, tails of bounds use up delta, or delta or the noise is too small.
        """
        resolved = self.resolve(delta)
        if resolved.tail >= delta:
            raise InputError(
                f"Expected delta above the tail probability {resolved.tail:.3g} of the bounds, got delta={delta:g}; "
                "use a smaller failure_prob, or leave it out."
            )
        if self.accountant == "rdp":
            epsilon = RenyiAccount(resolved.parts()).get_epsilon(delta - resolved.tail)
        else:
            epsilon = float(resolved.pld(points=points).get_epsilon_for_delta(delta))
        if not math.isfinite(epsilon):
            raise LossTooLargeError(
                f"Expected a delta with a finite epsilon, got delta={delta:g}; use a larger one."
            )
        return epsilon

    def profile(self, epsilons: Sequence[float]) -> NDArray[np.float64]:
        """Return an upper bound on delta, at most 1, at every epsilon: the privacy profile, always by PLD."""
        positive(**{f"epsilons[{i}]": epsilon for i, epsilon in enumerate(epsilons)})
        loss = self.pld()
        return np.clip(
            [float(loss.get_delta_for_epsilon(float(epsilon))) for epsilon in epsilons], 0.0, 1.0
        )

    def pld(self, *, points: int = POINTS_PER_DEVIATION) -> PrivacyLossDistribution:
        """Return the distribution of the privacy loss of all releases; see :func:`dpswd.accounting.pld.compose`.

        Raises:
            InputError: If a bound has no ``failure_prob``; ``resolve(delta)`` chooses it.
        """
        if self._tail(chosen=False):
            raise InputError(
                "Expected failure_prob for a bound that spends a tail probability, got None; resolve it."
            )
        tail = self._tail(chosen=True, pld=True)
        return compose(self.parts(), points=points, infinity_mass=tail)

    def get_mu_and_regret(self, *, points: int = POINTS_PER_DEVIATION) -> tuple[float, float]:
        """Return mu of Gaussian differential privacy, rounded up, and its regret (Gomez2025).

        Both come from the privacy loss distribution, also for ``accountant="rdp"``: a Renyi curve has no tight mu. An
        exactly Gaussian composition has a closed form and regret 0.

        Raises:
            InputError: If a bound has no ``failure_prob``, or no point of the curve has both error rates above 1e-10.
        """
        exact = self.gaussian_mu
        if exact is not None:
            return round_up(exact, 5), 0.0
        loss, mu, regret = self.pld(points=points), math.inf, 1.0
        with contextlib.suppress(ValueError, AssertionError):  # gdpnum found no such point
            mu, regret = PLDConverter(loss).get_mu_and_regret()
        if not math.isfinite(mu):
            # Unsampled and with the largest S every release is Gaussian. A curve between that of mu and 1 - x is at
            # most mu / sqrt(2 pi) above the former.
            mu = math.sqrt(
                sum(part.n_releases * part.scale**2 * part.law.maximum for part in self.parts())
            )
            regret = mu / math.sqrt(2 * math.pi)
            if mu > _TINY_MU or self.tail:
                remedy = (
                    "use a larger sigma"
                    if mu > 1
                    else "the loss is negligible, read epsilon instead"
                )
                raise LossTooLargeError(
                    f"Expected a trade-off curve with error rates above 1e-10, got none; {remedy}."
                )
        return round_up(float(mu), 5), float(regret)

    @property
    def gaussian_mu(self) -> float | None:
        r"""The mu of an exactly Gaussian composition, else ``None``.

        Every release must read all records and have a constant S: :math:`\mu^2 = \sum_i T_i \mathtt{scale}_i^2 S_i`
        (Dong2022, Corollary 3.3).
        """
        if not self.history or any(mechanism.spends_tail for mechanism, *_ in self.history):
            return None
        first, *others = merge_gaussians(self.parts())
        if others or first.rate != 1 or not first.law.is_constant:
            return None
        return first.scale * math.sqrt(first.law.mean)

    def guarantee(self, delta: float | None) -> dict[str, Any]:
        """Return epsilon at ``delta`` (``None`` without one), mu, regret, soundness and assumptions."""
        if not self.history:
            return {
                "epsilon": 0.0,
                "delta": delta,
                "mu": 0.0,
                "regret": 0.0,
                "sound": True,
                "assumptions": [],
            }
        resolved = self if delta is None else self.resolve(delta)
        mu, regret = resolved.get_mu_and_regret()
        return {
            "epsilon": None if delta is None else self.get_epsilon(delta),
            "delta": delta,
            "mu": mu,
            "regret": regret,
            "sound": self.sound,
            "assumptions": self.assumptions,
        }

    @property
    def sound(self) -> bool:
        """Whether every number is a proven bound: no CLT bound and no fixed noise seed."""
        return all(
            mechanism.is_private and not (mechanism.spends_tail and mechanism.bound == "clt")
            for mechanism, *_ in self.history
        )

    @property
    def shortcomings(self) -> list[str]:
        """What voids the numbers (a fixed noise seed), or leaves them unproven (a CLT bound)."""
        return [
            line.partition(": ")[2].capitalize()
            for line in self.assumptions
            if line.startswith("NOT ")
        ]

    @property
    def assumptions(self) -> list[str]:
        """The assumptions behind the numbers, one sentence each."""
        mechanisms = [mechanism for mechanism, *_ in self.history]
        projections = [each for each in mechanisms if isinstance(each, ProjectionMechanism)]
        constant = [each.exact_law.is_constant for each in projections]
        bounds = [
            "constant" if fixed else each.bound
            for each, fixed in zip(projections, constant, strict=True)
        ]
        norms = sorted({each.row_norm for each in projections})
        pld = self.accountant == "pld"
        lines = [
            (
                True,
                "Neighbouring data sets have the same size and differ in one record (replace-one).",
            ),
            *((True, f"Every row is clipped to an L2 norm of at most {norm:g}.") for norm in norms),
            (any(_rate(mechanism, size) < 1 for mechanism, size, _ in self.history), _SUBSETS),
            (not all(constant), _FRESH_DIRECTIONS),
            (projections and all(constant), _WHOLE_BASES),
            (any(each.n_classes for each in projections), _PRIVATE_LABELS),
            *((bound in bounds, line) for bound, line in _BOUNDS.items()),
            (any(each.spends_tail for each in mechanisms), _TAILS),
            (pld, "Composed as privacy loss distributions, rounded towards less privacy."),
            (
                not pld,
                "Composed as Renyi divergences (autodp); mu comes from the privacy loss distribution.",
            ),
            (
                True,
                "Noise is Gaussian in exact arithmetic; attacks on floating-point noise are not covered.",
            ),
            (not all(each.is_private for each in mechanisms), _FIXED_SEED),
        ]
        return [line for holds, line in lines if holds]

    def parts(self) -> list[Releases]:
        """Return the releases in units of their noise, for :mod:`dpswd.accounting.pld` and ``rdp``."""
        if not self.history:
            raise InputError(
                "Expected at least one release to account for, got none; call step() first."
            )
        return [
            Releases(
                mechanism.law,
                mechanism.unit_sensitivity / mechanism.sigma,
                _rate(mechanism, size),
                count,
            )
            for mechanism, size, count in self.history
        ]

    def _tail(self, *, chosen: bool, pld: bool = False) -> float:
        """Sum the tails of releases with a ``failure_prob``, or count those without.

        For the Renyi accountant (unless ``pld``) and 1/3 < q < 1 a release counts 3 q times: the proof of Wang2019
        compares three subsets that may contain a record (Proposition 18).
        """
        total = 0.0
        for mechanism, size, count in self.history:
            if mechanism.spends_tail and (mechanism.failure_prob is not None) is chosen:
                rate = _rate(mechanism, size)
                weight = (
                    3 * rate if self.accountant == "rdp" and not pld and 1 / 3 < rate < 1 else 1.0
                )
                total += count * weight * (mechanism.failure_prob or 1.0)
        return total


def _rate(mechanism: Mechanism, sample_size: int) -> float:
    return 1.0 if mechanism.batch_size is None else mechanism.batch_size / sample_size


def round_up(value: float, digits: int) -> float:
    """Round to ``digits`` significant digits towards infinity, which is towards less privacy."""
    if not math.isfinite(value):
        return value
    return float(
        Decimal(repr(float(value))).normalize(Context(prec=digits, rounding=ROUND_CEILING))
    )
