"""Rakotomamonjy2021, Table 1 and Figure 3: domain adaptation.

Digits in two protocols: framed alike (each image by itself, which is public knowledge) and as they
are (scaled to 28 x 28); Office-Caltech-10 in six pairs. ``OUT/adaptation_cells`` holds one file for
each finished cell: a method with its budget, on a problem, with a seed. All methods of a problem
and seed start from the same network, and
:func:`~experiments.adaptation.adaptation_methods.run_method` seeds each method by itself, so that
the experiments share their cells.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments import cells
from experiments.adaptation.adaptation_methods import (
    METHODS,
    PROBLEMS,
    Start,
    make_start,
    run_method,
)
from experiments.plots import figure
from experiments.results import Result, Row

N_SEEDS = 10  # of Table 1
FEW_SEEDS = 3  # of digits as they are, and of all problems with --quick
ONE_SEED = 1  # of Figure 3 with --quick
KEYS = tuple((name, budget) for name, method in METHODS.items() for budget in method.budgets)
OURS = ("DP-SWD, adapter", 10.0)
COMPARED = (
    ("source only", None),
    ("SWD", None),
    ("SWD, adapter", None),
    ("DP-DANN", 10.0),
    ("DP-SWD, adapter", 1.0),
)
PUBLISHED = {"MNIST-USPS": 94.0, "USPS-MNIST": 83.4}  # Table 1 of the paper, DP-SWD at (10, 1e-5)
DIGITS = tuple(name for name in PROBLEMS if "MNIST" in name)
AS_THEY_ARE = tuple(name for name in DIGITS if name.endswith("as they are"))
EPSILONS: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0, 10.0)
QUICK_EPSILONS = (0.5, 10.0)


@dataclass(frozen=True)
class Cell(cells.Cell):
    """A method with its budget on a problem."""

    problem: str
    seed: int
    method: str
    budget: float | None


def run_adaptation(planned: Sequence[Cell], data: Path | None, out: Path) -> list[Result]:
    """Run the missing cells; return the result of each, in their order."""
    root = None
    if data is not None:
        root = str(data)
    return cells.run_cells(planned, partial(_measure, root=root), out / "adaptation_cells")


def _measure(cell: Cell, root: str | None) -> Result:
    """Run the method of a cell."""
    start = _start(cell.problem, cell.seed, root)
    outcome = run_method(start, cell.method, cell.budget)
    return {"problem": cell.problem, "seed": cell.seed, **outcome}


@lru_cache(maxsize=1)  # the methods of a problem and seed follow each other
def _start(problem: str, seed: int, root: str | None) -> Start:
    return make_start(PROBLEMS[problem], seed, root)


def summarise(results: Sequence[Result]) -> list[Row]:
    """Return means and standard deviations over seeds as rows of the tables."""
    rows = []
    groups = cells.grouped(
        results, lambda result: (result["problem"], result["method"], result["budget"])
    )
    for (problem, method, budget), of_seeds in groups.items():
        statistic = None
        if method.startswith("DP-SWD,"):
            statistic = "quantiles"
        first = of_seeds[0]
        seconds = mean(result["seconds"] for result in of_seeds)
        row: Row = {
            "dataset": problem,
            "method": method,
            "epsilon": budget,
            "statistic": statistic,
            "delta": first.get("delta"),
            "mu": first.get("mu"),
            "sound": first.get("sound"),
            "conditions": first.get("conditions"),
            "classifier": "encoder and head",
            "train_seconds": round(seconds, 1),
        }
        accuracies = [result["accuracy"] for result in of_seeds]
        rows.append(row | cells.averaged(accuracies, 2))
    return rows


# Table 1 ------------------------------------------------------------------------------------------


def table1(out: Path, *, quick: bool = False, data: Path | None = None) -> Result:
    """Table 1: private domain adaptation, 10 seeds (--quick: 3; an hour; resumes)."""
    n_seeds = N_SEEDS
    if quick:
        n_seeds = FEW_SEEDS
    results = run_adaptation(_cells_of_table1(n_seeds), data, out)
    return {"published": PUBLISHED, "rows": summarise(results), "comparisons": compare(results)}


def _cells_of_table1(n_seeds: int) -> list[Cell]:
    """Return all cells.

    Digits as they are have few seeds, and they alone have the image map.
    """
    planned = []
    for seed in range(n_seeds):
        for problem in PROBLEMS:
            as_they_are = problem in AS_THEY_ARE
            if as_they_are and seed >= FEW_SEEDS:
                continue
            for method, budget in KEYS:
                if as_they_are or not method.startswith("image map"):
                    planned.append(Cell(problem, seed, method, budget))
    return planned


def compare(results: list[Result]) -> list[Row]:
    """Compare ours with others, seed by seed from the same start.

    A row has the mean of ours minus another method, and its standard error. The six pairs of
    Office-Caltech-10 are averaged within a seed first.
    """
    accuracies: dict[tuple[str, str, float | None], dict[int, list[float]]] = {}
    for result in results:
        group = "Office-Caltech-10"
        if "MNIST" in result["problem"]:
            group = result["problem"]
        of_method = accuracies.setdefault((group, result["method"], result["budget"]), {})
        of_method.setdefault(result["seed"], []).append(result["accuracy"])
    rows = []
    for group in dict.fromkeys(group for group, _, _ in accuracies):
        ours = accuracies[group, *OURS]
        for method, budget in COMPARED:
            theirs = accuracies[group, method, budget]
            gaps = [mean(ours[seed]) - mean(theirs[seed]) for seed in ours]
            row: Row = {"dataset": group, "method": method, "epsilon": budget, "seeds": len(gaps)}
            row["gap"] = round(mean(gaps), 2) + 0.0  # no minus zero
            row["standard_error"] = None
            if len(gaps) > 1:
                row["standard_error"] = round(stdev(gaps) / len(gaps) ** 0.5, 2)
            rows.append(row)
    return rows


# Figure 3 -----------------------------------------------------------------------------------------

STYLES = {
    "DP-SWD, adapter": "o-",
    "DP-DANN": "s--",
    "source only": ":",
    "image map, synthetic target": "D-",
    "image map, real target": "-.",
    "image map, source only": "--",
}


@dataclass(frozen=True)
class Protocol:
    """A protocol of digits: its label, its colour, and the suffix of the problem."""

    label: str
    colour: str
    suffix: str


PROTOCOLS = (
    Protocol("framed alike", "tab:blue", ""),
    Protocol("as they are", "tab:orange", ", as they are"),
)


def fig3(out: Path, *, quick: bool = False, data: Path | None = None) -> Result:
    """Figure 3: adaptation accuracy against epsilon, three seeds (--quick: one)."""
    n_seeds = FEW_SEEDS
    epsilons = EPSILONS
    if quick:
        n_seeds = ONE_SEED
        epsilons = QUICK_EPSILONS
    planned = _cells_of_fig3(n_seeds, epsilons)
    rows = summarise(run_adaptation(planned, data, out))
    _draw(rows, out / "fig3.png")
    return {"rows": rows}


def _cells_of_fig3(n_seeds: int, epsilons: tuple[float, ...]) -> list[Cell]:
    """Return the cells of the figure.

    Framed digits have ours and the source only: DP-DANN hardly differs from the source there.
    """
    keys: list[tuple[str, float | None]] = [("source only", None)]
    for method in (OURS[0], "DP-DANN"):
        keys += [(method, epsilon) for epsilon in epsilons]
    keys += [(method, budget) for method, budget in KEYS if method.startswith("image map")]
    planned = []
    for seed in range(n_seeds):
        for problem in DIGITS:
            for method, budget in keys:
                if method in ("source only", OURS[0]) or problem in AS_THEY_ARE:
                    planned.append(Cell(problem, seed, method, budget))
    return planned


def _draw(rows: list[Row], path: Path) -> None:
    """Draw accuracy against epsilon, a panel for each pair."""
    groups = cells.grouped(rows, lambda row: (row["dataset"], row["method"]))
    with figure(path, 9, 4.6, 1, 2, dpi=100, sharey=True) as panels:
        for axes, pair in zip(panels, PUBLISHED, strict=True):
            for protocol in PROTOCOLS:
                for method in STYLES:
                    line = groups.get((pair + protocol.suffix, method), [])
                    _draw_line(axes, line, method, protocol)
            axes.set(xscale="log", xlabel="epsilon", title=pair)
            axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
            axes.minorticks_off()
        panels[0].set_ylabel("accuracy on the target's test set, %")
        handles, labels = panels[0].get_legend_handles_labels()
        panels[0].figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)


def _draw_line(axes: Any, rows: list[Row], method: str, protocol: Protocol) -> None:
    """Draw the accuracies of a method; a method without epsilon is a horizontal line."""
    if not rows:
        return
    label = f"{method}, {protocol.label}"
    style = STYLES[method]
    rows = sorted(rows, key=lambda row: row["epsilon"] or 0)
    if rows[0]["epsilon"] is None:
        axes.axhline(rows[0]["mean"], color=protocol.colour, linestyle=style, label=label)
        return
    axes.errorbar(
        [row["epsilon"] for row in rows],
        [row["mean"] for row in rows],
        [row["std"] or 0.0 for row in rows],
        fmt=style,
        color=protocol.colour,
        capsize=2,
        label=label,
    )


EXPERIMENTS = (table1, fig3)
