"""Guarantee of released values: the facts that state it, and its one line."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from scipy.special import ndtr as normal_cdf
from scipy.special import ndtri as normal_quantile

from dpswd._json import INFINITE, plain_number
from dpswd._public_facts import ONE_RECORD
from dpswd._validate import real
from dpswd.accounting.rounding import round_up

__all__ = ["Guarantee"]

REPLACE_ONE = "replace-one"
SCOPE = (
    "The guarantee covers the releases of all runs that the weights depend on (weights_from_runs). "
    "Releases of other runs on the same records compose with it."
)

# Share of wrong accusations in the words on mu.
_FALSE_ALARMS = 1e-3
# Percentage of the records that an attacker may find, from which on a warning follows.
_UNPROTECTED_PERCENT = 99.0

_DIGITS = 3  # significant digits of the one line
_JSON_NAMES = {"relation": "neighboring_relation"}  # of fields with another name in files

# Fields that are not texts.
_TRUTH_VALUES = ("private", "sound")
_NUMBERS = ("epsilon", "delta", "mu", "regret")
_LISTS = ("conditions", "assumptions", "weights_from_runs")


@dataclass(frozen=True)
class Guarantee:
    """A guarantee of differential privacy, with the facts that it depends on.

    The numbers are upper bounds: the releases are (epsilon, delta)-differentially private, and
    mu-Gaussian differentially private at error rates above 1e-10; the regret says how loose mu is
    (Gomez2025). Without arguments there is no guarantee. A field is also read as in a dictionary,
    ``guarantee["epsilon"]``.

    Attributes:
        private: Whether there is any guarantee: False with a fixed noise seed, or without noise.
        sound: Whether the numbers are proven and depend on no condition of the caller.
        epsilon: Upper bound at ``delta``; ``None`` without a delta, infinite without noise.
        delta: The delta that epsilon was computed for.
        mu: Parameter of Gaussian differential privacy, rounded up.
        regret: Least amount by which the trade-off curve has to be moved to the left and down, so
            that it lies below that of mu.
        accountant: ``"pld"`` or ``"rdp"``.
        relation: Neighbouring relation; in files ``neighboring_relation``.
        unit: In what neighbouring data sets differ.
        records: How the library got the records.
        conditions: What the caller answers for; empty if the guarantee is unconditional.
        assumptions: Assumptions behind the numbers, one sentence each.
        run: Identifier of the run whose releases were made last.
        weights_from_runs: Identifiers of all runs whose releases the weights depend on.
        scope: Which releases the guarantee covers, in one sentence.

    Example:
        >>> guarantee = Guarantee(private=True, sound=True, epsilon=0.98765, delta=1e-5, mu=0.26456)
        >>> guarantee["epsilon"]
        0.98765
        >>> guarantee.line()
        'Guarantee: mu = 0.265, (epsilon, delta) = (0.988, 1e-05), replace-one.'
    """

    private: bool = False
    sound: bool = False
    epsilon: float | None = None
    delta: float | None = None
    mu: float | None = None
    regret: float | None = None
    accountant: str | None = None
    relation: str = REPLACE_ONE
    unit: str = ONE_RECORD
    records: str | None = None
    conditions: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    run: str | None = None
    weights_from_runs: tuple[str, ...] = ()
    scope: str | None = None

    def keys(self) -> Iterator[str]:
        """Return the names of the fields.

        They let ``**guarantee`` pass the fields as arguments.
        """
        return (field.name for field in dataclasses.fields(self))

    def __getitem__(self, name: str) -> Any:
        for field in self.keys():
            if name in (field, _JSON_NAMES.get(field)):
                return getattr(self, field)
        raise KeyError(name)

    @property
    def notice(self) -> str:
        """The words ``NOT PRIVATE`` and why, for files and the screen; empty if private."""
        if self.private:
            return ""
        if self.epsilon == math.inf:
            return "NOT PRIVATE: no noise was added (epsilon = inf)."
        return "NOT PRIVATE."

    def line(self) -> str:
        """Return the guarantee in one line, rounded up."""
        if self.notice:
            return f"Guarantee: none. {self.notice}"
        if self.epsilon is None or self.delta is None:
            return "Guarantee: none. NOT PRIVATE."
        epsilon = round_up(self.epsilon, _DIGITS)
        mu = ""
        if self.mu is not None:
            mu = f"mu = {round_up(self.mu, _DIGITS):g}, "
        unit = ""
        if self.unit != ONE_RECORD:
            unit = f" of {self.unit}"
        standing = ""
        if any(assumption.startswith("NOT SOUND") for assumption in self.assumptions):
            standing = ", NOT PROVEN (see privacy.json)"
        elif not self.sound:
            standing = ", ON CONDITIONS (see privacy.json)"
        return (
            f"Guarantee: {mu}(epsilon, delta) = ({epsilon:g}, {self.delta:g}), "
            f"{self.relation}{unit}{standing}."
        )

    def in_words(self) -> str:
        """Return the line, and below it what its words mean.

        Example:
            >>> import textwrap
            >>> guarantee = Guarantee(private=True, sound=True, epsilon=10.0, delta=1e-5, mu=2.0)
            >>> for line in guarantee.in_words().splitlines():
            ...     print(textwrap.fill(line, 88))
            Guarantee: mu = 2, (epsilon, delta) = (10, 1e-05), replace-one.
              replace-one: it limits how well an exchange of one record for another can be noticed.
              mu: an attacker who wrongly accuses 1 in 1,000 outsiders of being in the data finds at
            most 14 % of your records.
        """
        if self.notice or self.mu is None:
            return self.line()
        counted = "record"
        if self.unit != ONE_RECORD:
            counted = "person"
        most = normal_cdf(normal_quantile(_FALSE_ALARMS) + self.mu)
        percent = min(100.0, round_up(100 * float(most), 2))
        lines = [
            self.line(),
            f"  {self.relation}: it limits how well an exchange of one {counted} for another can "
            "be noticed.",
            "  mu: an attacker who wrongly accuses 1 in 1,000 outsiders of being in the data finds "
            f"at most {percent:g} % of your {counted}s.",
        ]
        if percent >= _UNPROTECTED_PERCENT:
            lines.append(
                "  Warning: this budget hardly protects anybody; an epsilon of at most 10 is usual."
            )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON and for files, without texts that are ``None``."""
        values: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, tuple):
                value = list(value)
            if field.name in _NUMBERS:
                value = plain_number(value)
            if value is not None or field.name in _NUMBERS:
                values[_JSON_NAMES.get(field.name, field.name)] = value
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Read what :meth:`to_dict` returned; other keys are ignored, as missing ones are.

        Raises:
            ValueError: If the values have other types; the reader of a file names the file.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"a guarantee by name, not {type(values).__name__}")
        arguments: dict[str, Any] = {}
        for field in dataclasses.fields(cls):
            value = values.get(_JSON_NAMES.get(field.name, field.name))
            if value is not None:
                arguments[field.name] = _checked(field.name, value)
        return cls(**arguments)


def _checked(name: str, value: Any) -> Any:
    """Return the value of a field; raise a ValueError if it has another type."""
    if name in _NUMBERS and value == INFINITE:
        return math.inf
    if name in _NUMBERS and isinstance(value, int | float) and not isinstance(value, bool):
        return real(name, value)
    if name in _LISTS and isinstance(value, list):
        if all(isinstance(text, str) for text in value):
            return tuple(value)
    if name in _TRUTH_VALUES and isinstance(value, bool):
        return value
    is_text = name not in (*_NUMBERS, *_LISTS, *_TRUTH_VALUES)
    if is_text and isinstance(value, str):
        return value
    raise ValueError(f"{name} of a guarantee as {type(value).__name__}")
