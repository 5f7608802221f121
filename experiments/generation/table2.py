"""Rakotomamonjy2021, Table 2: accuracy of classifiers trained on synthetic images, for every method and budget."""

from collections import defaultdict
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from dpswd.generation.evaluation import IMAGE_CLASSIFIERS
from experiments.generation.table2_cells import directory_of, plan, run_cells
from experiments.generation.table2_methods import DATASETS, GENERATED

HELP = "Rakotomamonjy2021, Table 2: MNIST and Fashion-MNIST, nine methods (one seed; --full: five, for hours, resumes)"

LABELS = {
    "real records": "real records",
    "SWD": "SWD",
    "DP-SWD-b": "DP-SWD-b as published",
    "DP-SWD-c": "DP-SWD-c as published",
    "rows": "DP-SWD, rows per step",
    "quantiles": "DP-SWD, quantiles per step",
    "sketch": "DP-SWD, one-shot sketch",
    "DP-MERF": "DP-MERF",
    "Gaussian": "class-wise Gaussian",
}


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Runs the cells that are not there yet; draws ``table2.png``. Without ``--full`` it is quick."""
    results = run_cells(plan(full=full), directory_of(out, full=full), data)
    rows = summarise(results)
    _show(rows)
    _draw(rows, out / "table2.png")
    return {"rows": rows}


def summarise(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Averages cells over seeds: one row for each data set, method, budget and classifier."""
    groups: dict[tuple[str, str, float | None], list[dict[str, Any]]] = defaultdict(list)
    for result in results:
        groups[result["dataset"], result["method"], result["epsilon"]].append(result)
    rows = []
    for (dataset, method, epsilon), found in sorted(groups.items(), key=lambda item: _order(*item[0])):
        facts = {name: found[0][name] for name in ("statistic", "delta", "mu", "sound")}
        seconds = mean(result["train_seconds"] for result in found)
        for classifier in IMAGE_CLASSIFIERS:
            values = [result["accuracy"][classifier] for result in found]
            rows.append(
                {
                    "dataset": dataset,
                    "method": LABELS[method],
                    "epsilon": epsilon,
                    **facts,
                    "classifier": classifier,
                    "mean": round(mean(values), 1),
                    "std": round(stdev(values), 1) if len(values) > 1 else None,
                    "seeds": len(values),
                    "train_seconds": None if method == "real records" else round(seconds),
                }
            )
    return rows


def _order(dataset: str, method: str, epsilon: float | None) -> tuple[int, int, float]:
    return list(GENERATED).index(dataset), list(LABELS).index(method), -(epsilon or 0.0)


def _show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["classifier"] == IMAGE_CLASSIFIERS[0]:
            budget = "-" if row["epsilon"] is None else f"{row['epsilon']:g}" + ("" if row["sound"] else " (unsound)")
            print(f"\n{row['dataset']:<13}{row['method']:<28}{budget:<14}", end="")
        print(f"{row['classifier']} {row['mean']:5.1f}   ", end="")
    print()


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    panels = figure.subplots(len(DATASETS), len(IMAGE_CLASSIFIERS), sharex=True)
    for line, dataset in zip(panels, DATASETS, strict=True):
        for axes, classifier in zip(line, IMAGE_CLASSIFIERS, strict=True):
            mine = [row for row in rows if row["dataset"] == dataset and row["classifier"] == classifier]
            for method in dict.fromkeys(row["method"] for row in mine):
                points = [row for row in mine if row["method"] == method]
                if points[0]["epsilon"] is None:
                    axes.axhline(
                        points[0]["mean"], color="grey", linestyle=":" if method == "SWD" else "-", linewidth=1
                    )
                    continue
                axes.errorbar(
                    [row["epsilon"] for row in points],
                    [row["mean"] for row in points],
                    [row["std"] or 0.0 for row in points],
                    marker="o" if points[0]["sound"] else "x",
                    linestyle="-" if points[0]["sound"] else "none",
                    label=method,
                )
            axes.set_xscale("log")
            axes.set_title(f"{dataset}, {classifier}", fontsize=9)
            axes.grid(True, alpha=0.3)
    figure.supxlabel("epsilon (grey: real records; dotted: SWD without noise)", fontsize=9)
    figure.supylabel("accuracy, %", fontsize=9)
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=80)
