"""The distinguishing game on the small releases beside the projections: class counts and a second moment."""

import torch
from torch import Tensor

from dpswd.errors import InputError
from dpswd.queries import ClassCounts, SecondMoment

__all__ = ["QueryGame"]


class QueryGame:
    r"""One release of a query; the score is the log-likelihood ratio.

    Worst pairs: one record that changes its class moves two counts by one, :math:`\sqrt 2`. A row
    :math:`R e_1` that becomes :math:`R e_2` moves the second moment by :math:`R^2 (e_1 e_1^T - e_2 e_2^T)`,
    :math:`\sqrt 2 R^2` in Frobenius norm; it moves the diagonal only, where the noise has deviation sigma.

    Args:
        query: The query itself.
        size: Number N >= 1 of records.
    """

    def __init__(self, query: ClassCounts | SecondMoment, size: int = 10) -> None:
        self.query = query
        if isinstance(query, ClassCounts):
            first = torch.zeros(size, dtype=torch.int64)
            second = first.clone()
            second[0] = 1
            self.difference = torch.zeros(query.n_classes, dtype=torch.float64)
            self.middle = self.difference.clone()
            self.difference[0], self.difference[1] = -1, 1
            self.middle[0], self.middle[1] = size - 0.5, 0.5
        elif isinstance(query, SecondMoment):
            first = torch.zeros(size, query.dim, dtype=torch.float64)
            second = first.clone()
            first[0, 0] = second[0, 1] = 1000 * query.row_norm  # clipping takes part in the game
            self.difference = torch.zeros(query.dim, query.dim, dtype=torch.float64)
            self.middle = self.difference.clone()
            for i, sign in ((0, -1), (1, 1)):
                self.difference[i, i], self.middle[i, i] = sign * query.row_norm**2, query.row_norm**2 / 2
        else:
            raise InputError(f"Expected ClassCounts or SecondMoment, got {type(query).__name__}.")
        self.data: tuple[Tensor, Tensor] = (first, second)

    def play(self, replaced: bool) -> float:
        """Makes one release; see :class:`dpswd.audit.game.Game`."""
        released = self.query.release(self.data[replaced])
        return float(((released - self.middle) * self.difference).sum()) / self.query.mechanism.sigma**2
