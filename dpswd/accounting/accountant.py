"""The accountant: adds up releases, answers with epsilon, delta and mu, and says what the number rests on."""

import copy
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from gdpnum import PLDConverter
from numpy.typing import NDArray

from dpswd._validate import at_least, choice, positive, probability
from dpswd.accounting import pld as pld_module
from dpswd.accounting.rdp import RenyiAccount
from dpswd.accounting.releases import Releases, merge_gaussians
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, Mechanism, ProjectionMechanism

__all__ = ["PrivacyAccountant", "ReleaseGroup"]

ReleaseGroup = tuple[ProjectionMechanism | GaussianMechanism, int, int]  # (mechanism, sample_size, n_releases)

_TAIL_SHARE = 0.5  # of delta, for the tails of bounds whose failure_prob is left to the accountant
_MU_FLOOR = 1e-10  # gdpnum's: mu is a bound at error rates above this
_TINY_MU = 1e-3  # where the curve is too close to blind guessing for gdpnum, a crude bound up to here is given


def _spends_tail(mechanism: Mechanism) -> bool:
    return isinstance(mechanism, ProjectionMechanism) and mechanism.spends_tail


class PrivacyAccountant:
    r"""Accounts for any sequence of releases under replace-one.

    Formal guarantee:
        ``get_epsilon(delta)`` is an upper bound on epsilon such that the whole sequence is (epsilon,
        delta)-differentially private, also where later releases were chosen from earlier ones with noise
        fixed beforehand, under the sentences in ``assumptions``. It errs upwards by well below 1%.

    Args:
        accountant: ``"pld"`` (privacy loss distribution, the default) or ``"rdp"`` (Renyi, the second
            opinion).

    Attributes:
        accountant: As given.
        history: ``(mechanism, sample_size, n_releases)`` in order, equal neighbours merged.

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
        self.history: list[tuple[Mechanism, int, int]] = []

    @classmethod
    def from_groups(cls, groups: Iterable[tuple[Mechanism, int, int]], accountant: str = "pld") -> "PrivacyAccountant":
        """Returns an accountant of the given ``(mechanism, sample_size, n_releases)``."""
        made = cls(accountant)
        for mechanism, sample_size, n_releases in groups:
            made.step(mechanism, sample_size=sample_size, n_releases=n_releases)
        return made

    def step(self, mechanism: Mechanism, *, sample_size: int, n_releases: int = 1) -> "PrivacyAccountant":
        """Adds ``n_releases`` releases on a data set of ``sample_size`` records; returns itself.

        Raises:
            InputError: If the batch is larger than the data set, or a number is out of range. Nothing is
                added then.
        """
        at_least(1, sample_size=sample_size, n_releases=n_releases)
        if not isinstance(mechanism, ProjectionMechanism | GaussianMechanism):
            raise InputError(
                f"Expected a ProjectionMechanism or a GaussianMechanism, got {type(mechanism).__name__}; "
                "no other "
                "release can be accounted for."
            )
        if mechanism.batch_size is not None and mechanism.batch_size > sample_size:
            raise InputError(
                f"Expected batch_size <= sample_size, got batch_size={mechanism.batch_size} and "
                f"sample_size={sample_size}; "
                "use a smaller batch."
            )
        if self.history and self.history[-1][:2] == (mechanism, sample_size):
            n_releases += self.history.pop()[2]
        self.history.append((mechanism, int(sample_size), int(n_releases)))
        return self

    def copy(self) -> "PrivacyAccountant":
        """Returns an accountant with the same history that can be stepped on its own."""
        other = copy.copy(self)
        other.history = list(self.history)
        return other

    def resolve(self, delta: float) -> "PrivacyAccountant":
        """Returns a copy in which every bound that spends tails has a ``failure_prob``, out of ``delta``."""
        probability(delta=delta)
        open_releases = self._tail_weight(chosen=False)
        other = self.copy()
        if open_releases:
            share = _TAIL_SHARE * delta / open_releases
            other.history = [
                (_with_failure_prob(mechanism, share), size, count) for mechanism, size, count in self.history
            ]
        return other

    @property
    def tail(self) -> float:
        """Part of delta spent on bounds that may fail, for the releases whose ``failure_prob`` is chosen."""
        return self._tail_weight(chosen=True)

    def get_epsilon(self, delta: float) -> float:
        """Returns epsilon at ``delta``, an upper bound.

        Raises:
            InputError: If nothing was released, if the tails of the bounds or the far tail of the loss use up
                delta, or if the noise is too small for the loss to be represented.
        """
        probability(delta=delta)
        resolved = self.resolve(delta)
        left = resolved._left_of(delta)
        if self.accountant == "rdp":
            epsilon = RenyiAccount(resolved._parts()).get_epsilon(left)
        else:
            epsilon = float(pld_module.compose(resolved._parts()).get_epsilon_for_delta(left))
        if not math.isfinite(epsilon):
            raise pld_module.LossTooLargeError(
                f"Expected a delta for which epsilon is finite, got delta={delta:g}; use a larger delta or more noise."
            )
        return epsilon

    def get_delta(self, epsilon: float) -> float:
        """Returns delta at ``epsilon``, an upper bound of at most 1."""
        positive(epsilon=epsilon)
        if not self._tail_weight(chosen=False):
            return self._delta(epsilon)
        # Half of delta goes to the tails, so that the rest is a decreasing function of delta itself: a damped
        # fixed point.
        # Wherever the iteration stops, the sum of both parts is a valid delta.
        delta, best = 1e-5, 1.0
        for _ in range(12):
            found = self.resolve(delta)._delta(epsilon)
            converged = found > 0.98 * best
            best = min(best, found)
            if converged and best < 1:
                break
            delta = min(max(math.sqrt(delta * found), 1e-300), 0.5)
        return best

    def _delta(self, epsilon: float) -> float:
        if self.accountant == "rdp":
            delta = RenyiAccount(self._parts()).get_delta(epsilon) + self.tail
        else:
            delta = float(self.pld().get_delta_for_epsilon(epsilon))
        return min(max(delta, 0.0), 1.0)

    def profile(self, epsilons: Sequence[float]) -> NDArray[np.float64]:
        """Returns delta for every epsilon: the privacy profile."""
        given: Any = epsilons
        listed = isinstance(given, Sequence) and not isinstance(given, str | bytes)
        if not listed and not (isinstance(given, np.ndarray) and given.ndim == 1):
            raise InputError(f"Expected a list of epsilons, got {type(epsilons).__name__}.")
        positive(**{f"epsilons[{i}]": epsilon for i, epsilon in enumerate(epsilons)})
        values = [float(epsilon) for epsilon in epsilons]
        if self.accountant == "rdp" or self._tail_weight(chosen=False):
            return np.array([self.get_delta(value) for value in values])
        loss = self.pld()
        return np.clip([float(loss.get_delta_for_epsilon(value)) for value in values], 0.0, 1.0)

    def pld(self) -> PrivacyLossDistribution:
        """Returns the distribution of the privacy loss of everything, the tails of bounds as infinite loss.

        Raises:
            InputError: If a bound's ``failure_prob`` is still open: ``resolve(delta)`` chooses it.
        """
        self._require_failure_prob()
        return pld_module.compose(self._parts(), infinity_mass=self._pld_tail)

    def get_mu_and_regret(self) -> tuple[float, float]:
        """Returns mu of Gaussian differential privacy, rounded up, and the regret of mu alone (Gomez2025).

        Always through the privacy loss distribution, also for ``accountant="rdp"``: a Renyi curve has no
        tight mu. mu bounds the trade-off curve wherever both error rates exceed 1e-10 (``gdpnum``). Where
        every release is an unsampled Gaussian with constant S the closed form is used, and the regret is 0.

        Raises:
            InputError: If no such mu exists, because the noise is too small or a bound may fail too often.
        """
        self._require_failure_prob()
        merged = merge_gaussians(self._parts())
        if len(merged) == 1 and merged[0].rate == 1 and merged[0].law.is_constant and not self.tail:
            return _round_up(merged[0].scale), 0.0
        try:
            mu, regret = PLDConverter(self.pld()).get_mu_and_regret()
        except ValueError as error:  # gdpnum found no point of the curve where both error rates exceed its floor
            if isinstance(error, InputError):
                raise
            mu, regret = math.inf, 1.0
        if not math.isfinite(mu):
            # unsampled and with the largest S every release is Gaussian; a curve between that of mu and blind guessing
            # is no farther from the former than mu / sqrt(2 pi)
            most = math.sqrt(sum(part.times * part.scale**2 * part.law.maximum for part in merged))
            if most <= _TINY_MU and not self.tail:
                return _round_up(most), most / math.sqrt(2 * math.pi)
            remedy = "use a larger sigma" if most > 1 else "so little leaks: read epsilon instead"
            raise pld_module.LossTooLargeError(
                f"Expected a trade-off curve with both error rates above {_MU_FLOOR:g} somewhere, got none; {remedy}."
            )
        return _round_up(float(mu)), float(regret)

    @property
    def gaussian_mu(self) -> float | None:
        r"""The mu of an exactly Gaussian composition, else ``None``.

        It is, if every release reads all records and has a constant S: then
        :math:`\mu^2 = \sum_i T_i (\mathtt{scale}_i)^2 S_i` (Dong2022, Corollary 3.3).
        """
        if not self.history or any(_spends_tail(mechanism) for mechanism, _, _ in self.history):
            return None
        merged = merge_gaussians(self._parts())
        exact = len(merged) == 1 and merged[0].rate == 1 and merged[0].law.is_constant
        return merged[0].scale * math.sqrt(merged[0].law.mean) if exact else None

    @property
    def sound(self) -> bool:
        """False where the CLT bound or a fixed noise seed takes part."""
        return all(mechanism.is_private and not _is_clt(mechanism) for mechanism, _, _ in self.history)

    @property
    def assumptions(self) -> list[str]:
        """One plain sentence for everything that the numbers rest on."""
        mechanisms = [mechanism for mechanism, _, _ in self.history]
        projections = [m for m in mechanisms if isinstance(m, ProjectionMechanism)]
        lines = ["Neighbouring data sets have the same size and differ in one record (replace-one)."]
        lines += [
            f"Every row is clipped to an L2 norm of at most {r:g}." for r in sorted({m.row_norm for m in projections})
        ]
        if any(size != mechanism.batch_size and mechanism.batch_size for mechanism, size, _ in self.history):
            lines.append(
                "Every release reads a fresh uniform subset of fixed size, drawn without replacement and "
                "kept secret; "
                "shuffled epochs are not that."
            )
        if any(not _constant(m) for m in projections):
            lines.append(
                "Directions are drawn afresh for every release, independently of the data and of earlier directions."
            )
        elif projections:
            lines.append(
                "Directions are whole orthonormal bases, for which the sensitivity is the same whatever they are."
            )
        if any(m.n_classes for m in projections):
            lines.append("Labels are private: a record is (row, class), and a change of class is accounted for.")
        lines += sorted({_bound_sentence(m) for m in projections})
        if any(_spends_tail(m) for m in mechanisms):
            lines.append(
                "The tail probability of the bound is charged to delta at every release; unless "
                "failure_prob is given, the "
                "tails get half of delta."
            )
        lines.append(
            "Composed as privacy loss distributions, rounded towards less privacy (dp_accounting)."
            if self.accountant == "pld"
            else "Composed as Renyi divergences (autodp); mu comes from the privacy loss distribution."
        )
        lines.append("Noise is Gaussian in exact arithmetic; attacks on floating-point noise are not covered.")
        if not all(m.is_private for m in mechanisms):
            lines.append("NOT PRIVATE: a fixed noise seed makes the noise repeatable.")
        return lines

    def _parts(self) -> list[Releases]:
        return [
            Releases(mechanism.law, mechanism.unit_sensitivity / mechanism.sigma, _rate(mechanism, size), count)
            for mechanism, size, count in self.history
        ]

    def _require_failure_prob(self) -> None:
        if self._tail_weight(chosen=False):
            raise InputError(
                "Expected failure_prob for a bound that spends a tail probability at every release, got "
                "none; "
                "give the mechanism one, or use resolve(delta)."
            )

    @property
    def _pld_tail(self) -> float:
        """The tail as the privacy loss distribution charges it, also where this is a Renyi accountant."""
        return self._tail_weight(chosen=True, pld=True)

    def _tail_weight(self, *, chosen: bool, pld: bool = False) -> float:
        """Weighs releases that spend a tail: with their failure_prob, or those that have none yet with 1."""
        total = 0.0
        for mechanism, size, count in self.history:
            if not isinstance(mechanism, ProjectionMechanism) or not mechanism.spends_tail:
                continue
            if (mechanism.failure_prob is not None) is not chosen:
                continue
            rate = _rate(mechanism, size)
            # the proof of Wang2019 compares three subsets of which a record is part: 3 q T failure_prob for
            # 1/3 < q < 1
            weight = 3 * rate if self.accountant == "rdp" and not pld and 1 / 3 < rate < 1 else 1.0
            total += count * weight * (mechanism.failure_prob if mechanism.failure_prob is not None else 1.0)
        return total

    def _left_of(self, delta: float) -> float:
        tail = self.tail
        if tail >= delta:
            releases = sum(count for mechanism, _, count in self.history if _spends_tail(mechanism))
            raise InputError(
                f"Expected delta above what the tails of the bound spend, got delta={delta:g} and "
                f"{releases} releases that "
                f"spend {tail:.3g}; use failure_prob <= "
                f"{delta / (2 * tail / self._largest_failure_prob()):.1g} or bound='exact'."
            )
        return delta - tail

    def _largest_failure_prob(self) -> float:
        return max(
            m.failure_prob
            for m, _, _ in self.history
            if isinstance(m, ProjectionMechanism) and m.failure_prob is not None
        )


def _constant(mechanism: ProjectionMechanism) -> bool:
    return not mechanism.spends_tail and mechanism.law.is_constant


def _is_clt(mechanism: Mechanism) -> bool:
    return isinstance(mechanism, ProjectionMechanism) and mechanism.spends_tail and mechanism.bound == "clt"


def _rate(mechanism: Mechanism, sample_size: int) -> float:
    return 1.0 if mechanism.batch_size is None else mechanism.batch_size / sample_size


def _with_failure_prob(mechanism: Mechanism, share: float) -> Mechanism:
    if isinstance(mechanism, ProjectionMechanism) and mechanism.spends_tail and mechanism.failure_prob is None:
        return dataclasses.replace(mechanism, failure_prob=share)
    return mechanism


def _bound_sentence(mechanism: ProjectionMechanism) -> str:
    if _constant(mechanism):
        return "The squared sensitivity is the constant k / d; no tail probability is spent."
    return {
        "exact": "The random squared sensitivity is accounted for by its exact law; no tail probability is spent.",
        "bernstein": "The random squared sensitivity is bounded by Bernstein's inequality.",
        "clt": "NOT SOUND: the random squared sensitivity is bounded by the central limit theorem, which is no bound.",
    }[mechanism.bound]


def _round_up(value: float, digits: int = 5) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) + 1 - digits)
    return float(f"{math.ceil(value / unit) * unit:.{digits}g}")
