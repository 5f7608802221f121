"""Figure 3: accuracy on the target against epsilon, digits in both protocols.

Cells of Table 1 (source only, epsilon 1 and 10) are used where ``OUT/adaptation_cells`` has them. The figure shows the
rows of ``OUT/adaptation_images.json`` and, for the published algorithm, of ``OUT/table1_published.json``, too, where
these files exist.
"""

import json
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments.adaptation.adaptation_cells import Cell, run_adaptation
from experiments.adaptation.adaptation_methods import PROBLEMS

HELP = "Figure 3: adaptation accuracy against epsilon from 0.5 to 10, three seeds (one with --quick)"

EPSILONS, QUICK = (0.5, 1.0, 2.0, 5.0, 10.0), (0.5, 10.0)
SEEDS = 3
DIGITS = tuple(name for name in PROBLEMS if "MNIST" in name)
FRAMED = tuple(name for name in DIGITS if "," not in name)
METHODS = ("source only", "DP-SWD, adapter", "DP-DANN")
OTHERS = ("adaptation_images", "table1_published")
PROTOCOLS = (  # color, rest of the name of a problem, label
    ("tab:blue", "", "framed alike"),
    ("tab:orange", ", as they are", "as they are"),
    ("tab:red", ", as printed", "as printed"),
)


def wanted(name: str, epsilons: tuple[float, ...]) -> list[tuple[str, float | None]]:
    """Methods and budgets of a problem. No DP-DANN on framed digits, where it hardly differs from source only."""
    methods = METHODS[:2] if name in FRAMED else METHODS
    return [(method, budget) for method in methods for budget in ((None,) if method == "source only" else epsilons)]


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Run what is missing, draw ``fig3.png``, and return one row per problem, method and budget."""
    epsilons, seeds = (QUICK, 1) if quick else (EPSILONS, SEEDS)
    cells = [Cell(name, seed, *key) for seed in range(seeds) for name in DIGITS for key in wanted(name, epsilons)]
    found = run_adaptation(cells, data, out)
    rows = [_row(found, *key) for key in dict.fromkeys((r["problem"], r["method"], r["budget"]) for r in found)]
    for row in rows:
        budget = f"epsilon {row['epsilon']:g}" if row["epsilon"] else "no release"
        print(f"{row['dataset']:<24} {row['method']:<16} {budget:<12} {row['mean']} ± {row['std']}")
    others = [path for name in OTHERS if (path := out / f"{name}.json").exists()]
    _draw(rows + [row for path in others for row in json.loads(path.read_text())["rows"]], out / "fig3.png")
    return {"rows": rows}


def _row(found: list[dict[str, Any]], name: str, method: str, epsilon: float | None) -> dict[str, Any]:
    same = [r for r in found if (r["problem"], r["method"], r["budget"]) == (name, method, epsilon)]
    values = [row["accuracy"] for row in same]
    return {
        "dataset": name,
        "method": method,
        "epsilon": epsilon,
        "delta": same[0].get("delta"),
        "mu": same[0].get("mu"),
        "sound": same[0].get("sound"),
        "mean": round(mean(values), 2),
        "std": round(stdev(values), 2) if len(values) > 1 else None,
        "seeds": len(values),
    }


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.6), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, pair in zip(panels, ("MNIST-USPS", "USPS-MNIST"), strict=True):
        for color, suffix, protocol in PROTOCOLS:
            for style, method in (
                ("o-", "DP-SWD, adapter"),
                ("s--", "DP-DANN"),
                (":", "source only"),
                ("D-", "image map, synthetic target"),
                ("-.", "image map, real target"),
                ("--", "image map, source only"),
                ("x-", "published algorithm"),
            ):
                same = [row for row in rows if (row["dataset"], row["method"]) == (pair + suffix, method)]
                part = sorted(
                    (row for row in same if row.get("noise") != "corrected"), key=lambda row: row["epsilon"] or 0
                )
                if not part:
                    continue
                label = f"{method}, {protocol}" + (": unsound" if part[0]["sound"] is False else "")
                if part[0]["epsilon"] is None:
                    axes.axhline(part[0]["mean"], color=color, linestyle=style, label=label)
                else:
                    x, y = [row["epsilon"] for row in part], [row["mean"] for row in part]
                    spread = [row["std"] or 0.0 for row in part]
                    axes.errorbar(x, y, spread, fmt=style, color=color, capsize=2, label=label)
        axes.set(xscale="log", xlabel="epsilon", title=pair)
        axes.set_xticks(EPSILONS, [f"{epsilon:g}" for epsilon in EPSILONS])
        axes.minorticks_off()
    panels[0].set_ylabel("accuracy on the target's test set, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    figure.savefig(path, dpi=100)
