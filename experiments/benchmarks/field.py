"""Accuracy over cost, beside other generators: measured and printed.

Ours and the baselines that run here: seconds of one core for the whole fit. DPImageBench
(Gong2025) is the code in which FETA-Pro (Gong2026) is trained, for 29 to 65 hours of a GPU.
For DPDM (Dockhorn2023) no number of hours is known, and for DP-FETA neither hours nor accuracies in
this protocol: the one is a line, the other is left out.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.plots import figure
from experiments.results import Result, Row, read_result
from experiments.tables.values import select

DATASETS = ("MNIST", "FashionMNIST", "CIFAR10")
EPSILONS = (10.0, 1.0)


@dataclass(frozen=True)
class Measured:
    """A method that runs here: its rows in a result, and the key of their times."""

    label: str
    result: str
    method: str
    classifier: str
    seconds: str  # key of the rows


@dataclass(frozen=True)
class Printed:
    """A method of a paper: its rows in the result ``imagebench``.

    ``gpu_hours`` are the least and the largest number, ``None`` where no number is known.
    """

    label: str
    method: str
    classifier: str
    gpu_hours: tuple[float, float] | None


MEASURED = (
    Measured(
        "one-shot mixture, best of three",
        "imagebench",
        "one-shot mixture",
        "best",
        "train_seconds",
    ),
    Measured("network by moments, CNN", "networks", "moment matching", "cnn", "cpu_seconds"),
    Measured("DP-MERF, CNN", "generation", "DP-MERF", "cnn", "train_seconds"),
)
PRINTED = (
    Printed("FETA-Pro, best of three", "FETA-Pro, as printed", "best", (29, 65)),
    Printed("DPDM, CNN (hours unknown)", "DPDM, as printed", "cnn", None),
    Printed("DPDM, MLP (hours unknown)", "DPDM, as printed", "mlp", None),
)


def run(out: Path) -> Result:
    """Accuracy over core- or GPU-hours, from docs/results (a second)."""
    rows = collect()
    draw(rows, out / "field.png")
    return {"rows": rows}


def collect() -> list[Row]:
    """Return a row per method, data set and budget, with its hours and source."""
    rows = []
    for measured in MEASURED:
        rows += _measured_rows(measured)
    for printed in PRINTED:
        rows += _printed_rows(printed)
    return rows


def _measured_rows(measured: Measured) -> list[Row]:
    """Return the rows of a method that runs here; those of an old version say so."""
    result = read_result(measured.result)
    origin = {}
    if "reason" in result:
        origin = {"version": result["version"], "reason": result["reason"]}
    rows = []
    for entry in _entries(result, measured.method, measured.classifier):
        hours = entry[measured.seconds] / 3600
        row = origin | _accuracy(entry, measured.label)
        row["hours"] = [hours, hours]
        row["unit"] = "core"
        row["source"] = f"{measured.result}.json"
        rows.append(row)
    return rows


def _printed_rows(printed: Printed) -> list[Row]:
    """Return the rows of a method of a paper."""
    hours = None
    if printed.gpu_hours is not None:
        hours = list(printed.gpu_hours)
    rows = []
    for entry in _entries(read_result("imagebench"), printed.method, printed.classifier):
        row = _accuracy(entry, printed.label)
        row["hours"] = hours
        row["unit"] = "GPU"
        row["source"] = "printed accuracy; docs/imagebench.md"
        rows.append(row)
    return rows


def _entries(result: Result, method: str, classifier: str) -> list[Row]:
    return select(
        result["rows"],
        method=method,
        classifier=classifier,
        dataset=DATASETS,
        epsilon=EPSILONS,
    )


def _accuracy(entry: Row, label: str) -> Row:
    """Return the accuracy of a result's row under the label of the method."""
    row: Row = {"method": label}
    for key in ("dataset", "epsilon", "classifier", "mean"):
        row[key] = entry[key]
    return row


def draw(rows: list[Row], path: Path) -> None:
    """Draw accuracy over hours, a panel per data set.

    Points of epsilon 10 are filled, those of epsilon 1 hollow.
    """
    methods = list(dict.fromkeys(row["method"] for row in rows))
    with figure(path, 11, 3.8, 1, len(DATASETS), dpi=100, sharex=True) as panels:
        entries: dict[str, Any] = {}  # of the legend
        for dataset, axes in zip(DATASETS, panels, strict=True):
            for row in select(rows, dataset=dataset):
                _draw_point(axes, row, f"C{methods.index(row['method'])}")
            axes.set(title=dataset, xscale="log", xlim=(2e-4, 1e3))
            axes.grid(alpha=0.3)
            handles, labels = axes.get_legend_handles_labels()
            entries |= dict(zip(labels, handles, strict=True))
        whole = panels[0].figure
        hours = (
            "of a core for one-shot mixture, network by moments and DP-MERF; of a GPU for FETA-Pro"
        )
        whole.supxlabel(f"hours: {hours}", fontsize=10)
        whole.supylabel("accuracy on real test images, %", fontsize=10)
        whole.legend(entries.values(), entries.keys(), loc="outside right upper", fontsize=8)


def _draw_point(axes: Any, row: Row, colour: str) -> None:
    """Draw an accuracy over its hours, or as a line where they are not known."""
    label = f"{row['method']}, ε = {row['epsilon']:g}"
    is_large_budget = row["epsilon"] == EPSILONS[0]
    if row["hours"] is None:
        style = ":"
        if is_large_budget:
            style = "--"
        axes.axhline(row["mean"], color=colour, linestyle=style, label=label)
        return
    fill = "none"
    if is_large_budget:
        fill = colour
    accuracies = [row["mean"], row["mean"]]
    axes.plot(row["hours"], accuracies, "o-", color=colour, markerfacecolor=fill, label=label)
