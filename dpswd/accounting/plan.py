r"""Plans: batch size, quantiles and directions with the least noise within a budget.

All plans use whole orthonormal bases (S = k / d) and block means. Noise is compared with a public number, the standard
deviation of a projected row of full norm in a random direction, :math:`\mathtt{row\_norm}/\sqrt d`: below 1,
``noise_to_spread`` says that the noise on a block mean is smaller than the spread of the projections.
"""

from collections.abc import Sequence
from typing import Any

from dpswd._validate import at_least, positive, probability
from dpswd.accounting.calibrate import calibrate_sigma
from dpswd.errors import InputError
from dpswd.mechanism import ProjectionMechanism

__all__ = ["plan"]

_QUANTILES = (10, 20, 50)
_BASES = (1, 2, 5)
_FRACTIONS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)


def plan(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_size: int,
    dim: int,
    releases: Sequence[int] = (1,),
    row_norm: float = 0.5,
    n_quantiles: Sequence[int] = _QUANTILES,
    n_bases: Sequence[int] = _BASES,
    batch_fractions: Sequence[float] = _FRACTIONS,
) -> list[dict[str, Any]]:
    """Compares plans that spend the same budget.

    Args:
        target_epsilon: Budget.
        target_delta: Budget.
        sample_size: Number N of records.
        dim: Dimension d of the rows.
        releases: Numbers T of releases to compare.
        row_norm: Bound on the norm of a row.
        n_quantiles: Numbers m of blocks per column to compare.
        n_bases: Numbers of whole bases to compare; k is that many times d.
        batch_fractions: Batches to compare, as fractions of N; rounded down to a multiple of m.

    Returns:
        One row for each plan, least noise first: ``n_releases``, ``batch_size``, ``n_quantiles``, ``n_projections``,
        ``sigma``, the ``spread`` of a projected row, and ``noise_to_spread``.

    Raises:
        InputError: If an argument is out of range or no plan fits.
    """
    positive(target_epsilon=target_epsilon, row_norm=row_norm)
    probability(target_delta=target_delta)
    at_least(1, sample_size=sample_size)
    at_least(2, dim=dim)
    for count in releases:
        at_least(1, releases=count)
    spread = row_norm / dim**0.5
    rows: list[dict[str, Any]] = []
    ratios: dict[tuple[int, int], float] = {}  # sigma / sensitivity depends on batch and releases only
    for count in sorted(set(releases)):
        for m in n_quantiles:
            for batch in sorted({int(fraction * sample_size) // m * m for fraction in batch_fractions}, reverse=True):
                if batch < m:
                    continue
                for bases in n_bases:
                    mechanism = ProjectionMechanism(
                        dim=dim,
                        n_projections=bases * dim,
                        sigma=1.0,
                        batch_size=batch,
                        statistic="quantiles",
                        n_quantiles=m,
                        row_norm=row_norm,
                        kind="orthogonal",
                    )
                    sensitivity = mechanism.unit_sensitivity * mechanism.law.mean**0.5
                    if (batch, count) not in ratios:
                        sigma = calibrate_sigma(
                            mechanism,
                            sample_size=sample_size,
                            n_releases=count,
                            target_epsilon=target_epsilon,
                            target_delta=target_delta,
                        )
                        ratios[batch, count] = sigma / sensitivity
                    sigma = ratios[batch, count] * sensitivity
                    rows.append(
                        {
                            "n_releases": count,
                            "batch_size": batch,
                            "n_quantiles": m,
                            "n_projections": bases * dim,
                            "sigma": sigma,
                            "spread": spread,
                            "noise_to_spread": sigma / spread,
                        }
                    )
    if not rows:
        raise InputError(
            f"Expected sample_size >= n_quantiles, got sample_size={sample_size} and n_quantiles of at least "
            f"{min(n_quantiles)}; use fewer quantiles."
        )
    return sorted(rows, key=lambda row: float(row["noise_to_spread"]))
