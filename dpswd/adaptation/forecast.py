"""Forecast of an adaptation, from public numbers only."""

from dataclasses import dataclass

from dpswd.adaptation.classifier import LEAST_SIGNAL
from dpswd.adaptation.space import count_directions
from dpswd.mixture.forecast import forecast
from dpswd.mixture.structure import Structure

__all__ = ["AdaptationForecast", "forecast_adaptation"]

# Records beyond which no more are proposed.
_MOST_RECORDS = 10**9


@dataclass(frozen=True)
class AdaptationForecast:
    """What an adaptation can see of a target.

    Attributes:
        signal: Forecast signal-to-noise ratio of the released mean of the target.
        n_needed: Least number of target records with which the mean can be seen; ``None`` beyond
            10^9.
        structure: What is released of the target, and how the budget is shared.
    """

    signal: float
    n_needed: int | None
    structure: Structure

    @property
    def can_be_seen(self) -> bool:
        """Whether the mean of the target is above the noise.

        Otherwise nothing is adapted.
        """
        return self.signal >= LEAST_SIGNAL

    def __str__(self) -> str:
        start = f"Adaptation: the mean of the target is {self.signal:.3g} times its noise"
        if self.can_be_seen:
            return (
                f"{start}; {LEAST_SIGNAL:g} is needed. Only after the release, dpswd adapt can "
                "tell whether the target differs from the source."
            )
        need = "no number of records would do"
        if self.n_needed is not None:
            need = f"{self.n_needed:,} records would do"
        return (
            f"{start}, where {LEAST_SIGNAL:g} is needed: nothing could be seen, and dpswd adapt "
            f"would return the classifier of the source; {need}."
        )


def forecast_adaptation(n: int, shape: tuple[int, ...], mu: float) -> AdaptationForecast:
    """Forecast an adaptation to n target records, and a source of as many records.

    Args:
        n: Number of target records.
        shape: Shape of a record: (channels, height, width) or (d,).
        mu: Budget of Gaussian differential privacy.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> forecast_adaptation(30, (50,), mu=1.0).can_be_seen
        False
        >>> forecast_adaptation(3000, (50,), mu=1.0).can_be_seen
        True
    """
    structure = _structure(n, shape, mu)
    signal = _signal_of_mean(structure)
    n_needed: int | None = n
    if signal < LEAST_SIGNAL:
        n_needed = _least_number(n, shape, mu)
    return AdaptationForecast(signal, n_needed, structure)


def _structure(n: int, shape: tuple[int, ...], mu: float) -> Structure:
    """Return what is released of n target records."""
    if len(shape) > 1:
        return forecast(n, shape, 0, mu)
    dim = count_directions(shape[0], n, mu)
    return forecast(n, (dim,), 0, mu, n_reference=n)


def _signal_of_mean(structure: Structure) -> float:
    """Return the signal-to-noise ratio of the mean of the target records."""
    return structure.signal_to_noise["means"]


def _least_number(too_few: int, shape: tuple[int, ...], mu: float) -> int | None:
    """Return the least number of records with which the mean can be seen.

    The number is found by bisection.
    """
    enough = 2 * too_few
    while _signal_of_mean(_structure(enough, shape, mu)) < LEAST_SIGNAL:
        enough *= 2
        if enough > _MOST_RECORDS:
            return None
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if _signal_of_mean(_structure(middle, shape, mu)) < LEAST_SIGNAL:
            too_few = middle
        else:
            enough = middle
    return enough
