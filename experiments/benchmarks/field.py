"""Accuracy over cost, beside other generators: from measured results, and from what their papers print.

Ours and the baselines that run here: seconds of one core for the whole fit. DPImageBench (Gong2025), in whose code
FETA-Pro (Gong2026) is trained, takes 3 to 4 GPUs for a day per generator. For DPDM (Dockhorn2023) no number of hours is
known, and for DP-FETA neither hours nor accuracies in this protocol: the one is a line, the other is left out.
"""

import json
from pathlib import Path
from typing import Any

from experiments.plots import figure
from experiments.results import RESULTS

DATASETS = ("MNIST", "FashionMNIST", "CIFAR10")
EPSILONS = (10.0, 1.0)
MEASURED = [  # label, result, method, classifier, key of the seconds
    ("one-shot mixture, best of three", "imagebench", "one-shot mixture", "best", "train_seconds"),
    ("network by DP-SWD, CNN", "networks", "DP-SWD, sketch", "cnn", "cpu_seconds"),
    ("DP-MERF, CNN", "generation", "DP-MERF", "cnn", "train_seconds"),
]
PRINTED = [  # label, method of imagebench, classifier, GPU-hours
    ("FETA-Pro, best of three", "FETA-Pro, as printed", "best", [72, 96]),
    ("DPDM, CNN (hours unknown)", "DPDM, as printed", "cnn", None),
    ("DPDM, MLP (hours unknown)", "DPDM, as printed", "mlp", None),
]


def collect() -> list[dict[str, Any]]:
    """Return a row per method, data set and budget, with its hours, their unit and its source."""
    rows = []
    for label, file, method, classifier, seconds in MEASURED:
        result = json.loads((RESULTS / f"{file}.json").read_text())
        origin = {key: result[key] for key in ("version", "reason") if "reason" in result}
        for row in _chosen(result, method, classifier):
            cost = {"hours": [row[seconds] / 3600] * 2, "unit": "core", "source": f"{file}.json"}
            rows.append(origin | _facts(row, label) | cost)
    result = json.loads((RESULTS / "imagebench.json").read_text())
    for label, method, classifier, hours in PRINTED:
        rows += [
            {
                **_facts(row, label),
                "hours": hours,
                "unit": "GPU",
                "source": "printed accuracy; docs/imagebench.md",
            }
            for row in _chosen(result, method, classifier)
        ]
    return rows


def _chosen(result: dict[str, Any], method: str, classifier: str) -> list[dict[str, Any]]:
    return [
        row
        for row in result["rows"]
        if (row["method"], row["classifier"]) == (method, classifier)
        and row["dataset"] in DATASETS
        and row["epsilon"] in EPSILONS
    ]


def _facts(row: dict[str, Any], label: str) -> dict[str, Any]:
    return {
        "method": label,
        **{key: row[key] for key in ("dataset", "epsilon", "classifier", "mean")},
    }


def run(out: Path) -> dict[str, Any]:
    """Accuracy over core- or GPU-hours of ours, DP-MERF, FETA-Pro and DPDM, from docs/results (a second)."""
    rows = collect()
    draw(rows, out / "field.png")
    return {"rows": rows}


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw accuracy over hours, a panel per data set; epsilon 10 filled, epsilon 1 hollow."""
    colours = {
        label: f"C{i}" for i, label in enumerate(dict.fromkeys(row["method"] for row in rows))
    }
    with figure(path, 11, 3.8, 1, len(DATASETS), dpi=100, sharex=True) as axes_of:
        panels = dict(zip(DATASETS, axes_of, strict=True))
        for row in rows:
            axes, colour, strong = (
                panels[row["dataset"]],
                colours[row["method"]],
                row["epsilon"] == EPSILONS[0],
            )
            label = f"{row['method']}, ε = {row['epsilon']:g}"
            if row["hours"] is None:
                axes.axhline(
                    row["mean"], color=colour, linestyle="--" if strong else ":", label=label
                )
                continue
            fill = colour if strong else "none"
            axes.plot(
                row["hours"],
                [row["mean"]] * 2,
                "o-",
                color=colour,
                markerfacecolor=fill,
                label=label,
            )
        handles = {}
        for name, axes in panels.items():
            axes.set(title=name, xscale="log", xlim=(2e-4, 1e3))
            axes.grid(alpha=0.3)
            handles |= {
                label: handle
                for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
            }
        whole = axes_of[0].figure
        whole.supxlabel(
            "hours: of a core for one-shot mixture, network by DP-SWD and DP-MERF; of a GPU for FETA-Pro",
            fontsize=10,
        )
        whole.supylabel("accuracy on real test images, %", fontsize=10)
        whole.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize=8)
