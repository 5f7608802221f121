"""Rakotomamonjy2021, Table 1: domain adaptation, methods x problems, mean and standard deviation over seeds.

Digits in two protocols: framed alike (each image by itself, which is public knowledge) and as they are (scaled to
28 x 28); Office-Caltech-10 in six pairs. Interrupted, the table goes on where it stopped.
"""

from pathlib import Path
from statistics import mean, stdev
from typing import Any

from experiments.adaptation.adaptation_cells import Cell, run_adaptation
from experiments.adaptation.adaptation_methods import METHODS, PROBLEMS

HELP = "Table 1: private domain adaptation, 10 seeds (3 with --quick), epsilon 10 and 1; half an hour and more"

SEEDS, QUICK_SEEDS = 10, 3
_AS_THEY_ARE = 3  # seeds of the second protocol of digits
WANTED = tuple((method, budget) for method, (_, budgets) in METHODS.items() for budget in budgets)
OURS = ("DP-SWD, adapter", 10.0)
OTHERS = (
    ("source only", None),
    ("SWD", None),
    ("SWD, adapter", None),
    ("DP-DANN", 10.0),
    ("DP-SWD, adapter", 1.0),
)
PUBLISHED = {"MNIST-USPS": 94.0, "USPS-MNIST": 83.4}  # Table 1 of the paper, DP-SWD at (10, 1e-5)


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Run the missing cells, seed by seed; return one row per problem, method and budget."""
    cells = [
        Cell(name, seed, method, budget)
        for seed in range(QUICK_SEEDS if quick else SEEDS)
        for name in PROBLEMS
        if not name.endswith("as they are") or seed < _AS_THEY_ARE
        for method, budget in WANTED
    ]
    found = run_adaptation(cells, data, out)
    rows = summarise(found)
    for row in rows:
        budget = f"epsilon {row['epsilon']:g}" if row["epsilon"] else "no privacy"
        print(f"{row['dataset']:<24} {row['method']:<20} {budget:<11} {row['mean']} ± {row['std']}")
    return {"published": PUBLISHED, "rows": rows, "comparisons": compare(found)}


def summarise(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means and standard deviations over seeds, in the form of the accuracy tables."""
    rows = []
    for name in dict.fromkeys(row["problem"] for row in found):
        for method, (_, budgets) in METHODS.items():
            for budget in budgets:
                same = [r for r in found if (r["problem"], r["method"], r["budget"]) == (name, method, budget)]
                values = [row["accuracy"] for row in same]
                facts = same[0]
                rows.append(
                    {
                        "dataset": name,
                        "method": method,
                        "statistic": "quantiles" if method.startswith("DP-SWD,") else None,
                        "epsilon": budget,
                        "delta": facts.get("delta"),
                        "mu": facts.get("mu"),
                        "sound": facts.get("sound"),
                        "classifier": "encoder and head",
                        "mean": round(mean(values), 2),
                        "std": round(stdev(values), 2) if len(values) > 1 else None,
                        "seeds": len(values),
                        "train_seconds": round(mean(row["seconds"] for row in same), 1),
                    }
                )
    return rows


def compare(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours minus others, seed by seed from the same start: mean, and its standard error. One row per problem and other.

    The six pairs of Office-Caltech-10 are averaged within a seed first.
    """
    values: dict[tuple[str, str, float | None], dict[int, list[float]]] = {}
    for row in found:
        group = row["problem"] if "MNIST" in row["problem"] else "Office-Caltech-10"
        by_seed = values.setdefault((group, row["method"], row["budget"]), {})
        by_seed.setdefault(row["seed"], []).append(row["accuracy"])
    rows = []
    for group in dict.fromkeys(key[0] for key in values):
        ours = values[group, *OURS]
        for method, budget in OTHERS:
            theirs = values[group, method, budget]
            gaps = [mean(ours[seed]) - mean(theirs[seed]) for seed in ours]
            error = round(stdev(gaps) / len(gaps) ** 0.5, 2) if len(gaps) > 1 else None
            rows.append(
                {
                    "dataset": group,
                    "method": method,
                    "epsilon": budget,
                    "gap": round(mean(gaps), 2) + 0.0,  # no minus zero
                    "standard_error": error,
                    "seeds": len(gaps),
                }
            )
    return rows
