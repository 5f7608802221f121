"""Private estimate of the sliced Wasserstein distance of two private data sets.

axes: n, m numbers of records, d dimension, k directions, b blocks.

Each set is released once, within a budget of its own: the block means of its sorted projections.
Both releases have the same directions, whole orthonormal bases, for which the sensitivity is the
same whatever the directions are, so that sharing them costs nothing (docs/theory/private-side.md,
Proposition 35).
"""

import math
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from dpswd._validate import at_least
from dpswd.accounting.guarantee import Guarantee
from dpswd.budget.budget import Budget
from dpswd.errors import InputError
from dpswd.loss import (
    DistanceEstimate,
    DPSlicedWassersteinLoss,
    Release,
    estimate_of_slices,
)
from dpswd.mechanism import ProjectionMechanism
from dpswd.records import PrivateBatch, PrivateRecords, check_handle
from dpswd.row_copy import RowFunction

__all__ = ["PrivateDistance", "private_distance"]


class PrivateDistance(NamedTuple):
    """A squared distance of two sets of private records; everything in it is released.

    Attributes:
        value: The estimate of the squared distance, which can be negative.
        standard_error: Its standard error, which covers noise and directions.
        releases: The releases of both sets, with values (b, k) and directions (d, k).
        guarantees: The guarantees of both sets.

    Example:
        >>> import tempfile
        >>> sets = [PrivateRecords(torch.rand(500, 3) / 4) for _ in range(2)]
        >>> distance = private_distance(
        ...     *sets, target_epsilon=8.0, target_delta=1e-4, run_dir=tempfile.mkdtemp())
        >>> [guarantee.epsilon <= 8 for guarantee in distance.guarantees]
        [True, True]
    """

    value: float
    standard_error: float
    releases: tuple[Release, Release]
    guarantees: tuple[Guarantee, Guarantee]


class _LossAlong(DPSlicedWassersteinLoss):
    """Loss that releases along directions of another release, of whole bases only."""

    directions: Tensor

    def draw_projections(self) -> Tensor:
        """Return the directions (d, k) of the other release."""
        return self.directions


def private_distance(
    records_a: PrivateRecords,
    records_b: PrivateRecords,
    *,
    target_epsilon: float | tuple[float, float],
    target_delta: float | tuple[float, float],
    run_dir: str | Path,
    rows: RowFunction | None = None,
    dim: int | None = None,
    n_bases: int = 8,
    n_quantiles: int = 20,
    row_norm: float = 0.5,
    resume: bool = False,
) -> PrivateDistance:
    """Estimate the squared sliced Wasserstein distance of two sets of private records.

    Formal guarantee:
        Each set is released by one Gaussian mechanism, under replace-one within the set, with its
        own epsilon and delta, whatever the other set is. For a person with a record in both sets
        the losses compose.

    The value is an unbiased estimate of the squared distance between the block means of both sets,
    averaged over all directions. Block means leave out the spread within a block.

    Args:
        records_a: The first set.
        records_b: The second set, whose records have the same shape.
        target_epsilon: Budget of each set; a pair for different budgets.
        target_delta: Budget of each set, well below one over its number of records; or a pair.
        run_dir: Directory of the run directories ``a`` and ``b``, with ledger and ``privacy.json``.
        rows: Maps records to rows (n, d), each by itself; ``None`` flattens them.
        dim: Dimension d of the rows of ``rows``; needed with it.
        n_bases: Number of orthonormal bases; there are k = ``n_bases`` * d directions. More bases
            have less error by directions and more by noise.
        n_quantiles: Number b of blocks, at most the number of records. The noise grows with it.
        row_norm: Public bound on the norm of a row, enforced by clipping.
        resume: Finish a run in ``run_dir``, with the releases that it has made.

    Raises:
        InputError: If the sets do not fit each other or are one handle, or a number is out of
            range; nothing is released then.

    References:
        | Rakotomamonjy2021, Algorithm 1, which adds noise to both sides.

    Example:
        >>> import tempfile
        >>> a = PrivateRecords(torch.rand(2000, 4) / 4)
        >>> b = PrivateRecords(torch.rand(3000, 4) / 4 + 0.1)
        >>> distance = private_distance(  # no row has a norm above 0.7
        ...     a, b, target_epsilon=8.0, target_delta=1e-5, run_dir=tempfile.mkdtemp(),
        ...     row_norm=0.7)
        >>> abs(distance.value - 0.1**2) < 4 * distance.standard_error + 1e-3
        True
    """
    _check_sets(records_a, records_b)
    at_least(1, n_bases=n_bases, n_quantiles=n_quantiles)
    dim = _dim_of_rows(records_a, rows, dim)
    epsilons = _pair(target_epsilon)
    deltas = _pair(target_delta)
    first = DPSlicedWassersteinLoss(_mechanism(records_a, dim, n_bases, n_quantiles, row_norm))
    second = _LossAlong(_mechanism(records_b, dim, n_bases, n_quantiles, row_norm))
    budgets = []
    sets = ((records_a, first, "a"), (records_b, second, "b"))
    for (records, loss, name), epsilon, delta in zip(sets, epsilons, deltas, strict=True):
        budget = Budget(
            records,
            [loss],
            target_epsilon=epsilon,
            target_delta=delta,
            run_dir=Path(run_dir) / name,
            resume=resume,
        )
        budgets.append(budget)
    with budgets[0], budgets[1]:  # what can be refused is refused before the first release
        release_a = first.release(_batch(records_a, first), rows=rows)
        assert isinstance(release_a.projections, Tensor)
        second.directions = release_a.projections
        release_b = second.release(_batch(records_b, second), rows=rows)
    guarantees = (budgets[0].statement().guarantee, budgets[1].statement().guarantee)
    estimate = _estimate(release_a, release_b)
    return PrivateDistance(*estimate, (release_a, release_b), guarantees)


def _check_sets(records_a: PrivateRecords, records_b: PrivateRecords) -> None:
    """Raise an InputError unless the sets are two handles of records of one shape."""
    for name, records in (("records_a", records_a), ("records_b", records_b)):
        check_handle(records, name)
    if records_a is records_b:
        raise InputError(
            "Expected two sets of records, got one handle twice; its distance to itself is 0."
        )
    if records_a.shape != records_b.shape:
        raise InputError(
            f"Expected records of one shape, got {records_a.shape} in records_a and "
            f"{records_b.shape} in records_b; pass rows of the same columns, or images of one "
            "size."
        )


def _dim_of_rows(records: PrivateRecords, rows: RowFunction | None, dim: int | None) -> int:
    """Return the dimension of the rows; without ``rows`` that of flat records."""
    if rows is None:
        n_entries = math.prod(records.shape)
        if dim not in (None, n_entries):
            raise InputError(
                f"Expected dim={n_entries}, the numbers of a record, without rows, got dim={dim}; "
                "leave it out, or pass rows, the map of records to rows."
            )
        return n_entries
    if dim is None:
        raise InputError("Expected dim, the dimension of the rows of rows=, got none; state it.")
    return dim


def _pair(value: float | tuple[float, float]) -> tuple[float, float]:
    """Return a number for each set."""
    if not isinstance(value, tuple | list):
        return value, value
    if len(value) != 2:
        raise InputError(
            "Expected target_epsilon and target_delta as one number for both sets, or as a pair, "
            f"got {len(value)} numbers; pass two."
        )
    return value[0], value[1]


def _mechanism(
    records: PrivateRecords, dim: int, n_bases: int, n_quantiles: int, row_norm: float
) -> ProjectionMechanism:
    """Return the mechanism of one release of a set.

    The release reads as many records as the largest multiple of ``n_quantiles``.
    """
    if n_quantiles > len(records):
        raise InputError(
            f"Expected n_quantiles <= {len(records)}, the number of records, got {n_quantiles}; "
            "lower it."
        )
    return ProjectionMechanism(
        dim,
        n_bases * dim,
        batch_size=len(records) // n_quantiles * n_quantiles,
        statistic="quantiles",
        n_quantiles=n_quantiles,
        row_norm=row_norm,
        kind="orthogonal",
    )


def _batch(records: PrivateRecords, loss: DPSlicedWassersteinLoss) -> PrivateBatch:
    """Return the batch that a release of a loss reads."""
    return PrivateBatch(records, loss.mechanism.batch_size)


def _estimate(release_a: Release, release_b: Release) -> DistanceEstimate:
    """Return the distance of two releases along the same directions. Post-processing.

    The noise of both adds its variance to every squared difference, which is subtracted.
    """
    directions = release_b.projections
    assert isinstance(directions, Tensor)
    if not torch.equal(release_a.projections, directions):  # type: ignore[arg-type]
        raise InputError(
            "Expected releases along the same directions, got different directions: run_dir holds "
            "releases of two calls; use a new directory."
        )
    mechanism = release_a.mechanism
    noise = mechanism.sigma**2 + release_b.mechanism.sigma**2
    squares = (release_a.values - release_b.values).double().square().mean(0)  # (k,)
    return estimate_of_slices(squares - noise, mechanism)
