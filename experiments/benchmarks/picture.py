"""docs/figures/scaling.png: time and memory against every size, with the fitted exponents."""

from pathlib import Path
from typing import Any

__all__ = ["draw"]

Row = dict[str, Any]


def draw(rows: list[Row], path: Path) -> bool:
    """Draws the parts ``scaling`` and ``cost``; returns False, and leaves the file, where they were not run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    scaling, cost = ([row for row in rows if row["part"] == part] for part in ("scaling", "cost"))
    if not scaling or not cost:
        return False
    figure, (distance, release, memory) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    for row in scaling:
        if row["variable"] in "ndk":
            _line(distance, row, row["seconds"], 1e3, row["exponent"])
    for row in [*(row for row in scaling if row["variable"] == "T"), *(row for row in cost if row["variable"] != "T")]:
        seconds, exponent = row.get("seconds", row.get("cpu_seconds")), row.get("exponent", row.get("time_exponent"))
        _line(release, row, seconds, 1e3, exponent)
    for row in cost:
        _line(memory, row, [max(above, 1e6) for above in row["above_bytes"]], 1e-6, row["memory_exponent"])
    distance.set(title="a distance, forward and backward", ylabel="milliseconds")
    release.set(title="a release and a comparison; T: an account", ylabel="milliseconds")
    memory.set(title="their memory above the inputs", ylabel="MB")
    for axes in (distance, release, memory):
        axes.set(xscale="log", yscale="log", xlabel="size")
        axes.xaxis.set_minor_formatter("")
        axes.yaxis.set_minor_formatter("")
        axes.grid(alpha=0.3)
        axes.legend(title="exponent against")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
    plt.close(figure)
    return True


def _line(axes: Any, row: Row, values: list[float], unit: float, exponent: float) -> None:
    name = "N = B" if row["variable"] == "N" else row["variable"]
    axes.plot(row["sizes"], [value * unit for value in values], "o-", label=f"{name}: {exponent:.2f}")
