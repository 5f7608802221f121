"""The distinguishing game on the Gaussian releases beside the projections, of whatever kind."""

import copy
import dataclasses
from typing import Any

from torch import Tensor

from dpswd.errors import InputError
from dpswd.queries import GaussianQuery

__all__ = ["QueryGame"]

_SILENT = 1e-9  # of sigma: the noise of the releases that the auditor makes to know the exact values


class QueryGame:
    r"""One release of a query; the score is the log-likelihood ratio.

    The query states its worst pair (:meth:`dpswd.queries.GaussianQuery.worst_pair`; the docstring of each query proves
    that it attains the sensitivity, and so does the pair itself: :attr:`moved`) and the coordinates in which its noise
    is isotropic with deviation sigma. There the ratio is :math:`\langle y - (y_0 + y_1)/2, y_1 - y_0 \rangle /
    \sigma^2`, where the exact values :math:`y_0, y_1` are what the query's own code releases with a billionth of the
    noise. Should that code be broken (a clip that does nothing), they are further apart than is claimed and the attack
    is the stronger for it. Any score is a fair attack, as long as it is fixed before the runs.

    Args:
        query: The query itself, in its own code.
        size: Number N >= 1 of records.
        pair: Arguments of ``release`` for two other neighbours; the worst pair if not given.

    Attributes:
        moved: Distance of the exact values, in units of the noise: the mu that is played for.

    Raises:
        InputError: If the query is none, or states no worst pair.
    """

    def __init__(
        self, query: GaussianQuery, size: int = 10, *, pair: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None
    ) -> None:
        if not isinstance(query, GaussianQuery):
            raise InputError(f"Expected a GaussianQuery, got {type(query).__name__}.")
        self.query: Any = query
        self.data = query.worst_pair(size) if pair is None else pair
        silent: Any = copy.copy(query)
        silent.recorder = None
        silent.mechanism = dataclasses.replace(query.mechanism, sigma=_SILENT * query.mechanism.sigma)
        first, second = (silent.coordinates(silent.release(*records)) for records in self.data)
        self.difference: Tensor = second - first
        self.middle: Tensor = (first + second) / 2
        self.moved = float(self.difference.norm()) / query.mechanism.sigma

    def play(self, replaced: bool) -> float:
        """Makes one release; see :class:`dpswd.audit.game.Game`."""
        released = self.query.coordinates(self.query.release(*self.data[replaced]))
        sigma: float = self.query.mechanism.sigma
        return float(((released - self.middle) * self.difference).sum()) / sigma**2
