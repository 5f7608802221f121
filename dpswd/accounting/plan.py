r"""Plans: which batch, how many quantiles and directions give the least noise on a quantile within a budget.

All plans use whole orthonormal bases (S = k / d) and block means. The yardstick is public: the standard
deviation of a projected row of full norm in a random direction, :math:`\mathtt{row\_norm}/\sqrt d`.
``noise_to_spread`` below 1 says that the noise on a block mean is smaller than the spread of what is
projected.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpswd._validate import at_least, positive, probability
from dpswd.accounting.calibrate import calibrate_sigma
from dpswd.errors import InputError
from dpswd.mechanism import ProjectionMechanism

__all__ = ["draw_plans", "plan"]

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
        One row for each plan, least noise first: ``n_releases, batch_size, n_quantiles, n_projections,
        sigma``, the ``spread`` of a projected row and ``noise_to_spread``.

    Raises:
        InputError: If an argument is out of range or no plan fits.
    """
    positive(target_epsilon=target_epsilon, row_norm=row_norm)
    probability(target_delta=target_delta)
    at_least(1, sample_size=sample_size)
    at_least(2, dim=dim)
    if not isinstance(releases, list | tuple | range):
        raise InputError(f"Expected a list of numbers of releases, got {type(releases).__name__}.")
    for count in releases:
        at_least(1, releases=count)
    spread = row_norm / dim**0.5
    rows: list[dict[str, Any]] = []
    ratios: dict[tuple[int, int], float] = {}  # sigma over sensitivity depends on the batch and the releases only
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
                            sample_size,
                            count,
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
            f"Expected sample_size >= {min(n_quantiles)}, the least number of quantiles, got "
            f"sample_size={sample_size}; "
            "ask for fewer quantiles."
        )
    return sorted(rows, key=lambda row: float(row["noise_to_spread"]))


def draw_plans(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws noise against batch size, with the fewest directions, by numbers of releases and quantiles."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "Expected matplotlib to draw plans, got none; install dpswd[train] or leave out --out."
        ) from None
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    fewest = min(row["n_projections"] for row in rows)
    keys = sorted({(row["n_releases"], row["n_quantiles"]) for row in rows})
    for count, m in keys:
        line = sorted(
            (row["batch_size"], row["noise_to_spread"])
            for row in rows
            if (row["n_releases"], row["n_quantiles"], row["n_projections"]) == (count, m, fewest)
        )
        axes.loglog([x for x, _ in line], [y for _, y in line], marker="o", label=f"{count} releases, {m} quantiles")
    axes.set_xlabel("batch size")
    axes.set_ylabel(f"noise / spread of a projected row ({fewest} directions)")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend(fontsize=8)
    path = Path(path)
    if not path.parent.is_dir():
        raise InputError(f"Expected the folder of {path} to exist, got none; create it first.")
    figure.savefig(path, dpi=110)
