"""Tables of docs/adaptation.md, from the rows of ``table1.json``, ``fig3.json`` and ``leak.json``."""

from typing import Any

from scipy.stats import norm

__all__ = [
    "ablation_lines",
    "curve_lines",
    "digit_lines",
    "gap_lines",
    "leak_lines",
    "office_lines",
    "step_lines",
    "worth_lines",
]

Rows = list[dict[str, Any]]
_NAMES = {
    "SWD, adapter": "ours without noise",
    "DP-SWD, adapter": "**DP-SWD, adapter (ours)**",
    "DP-SWD, features": "DP-SWD, encoder's features (ours)",
    "DP-SWD as published": "DP-SWD as published: NOT PRIVATE",
}
OFFICE = ("A-W", "A-D", "W-A", "W-D", "D-A", "D-W")


def _methods(rows: Rows) -> list[tuple[str, float | None]]:
    return list(dict.fromkeys((row["method"], row["epsilon"]) for row in rows))


def _guarantee(row: dict[str, Any]) -> str:
    if row["sound"] is None:
        return "none"
    if not row["sound"]:
        return f"none (claims ε = {row['epsilon']:g})"
    return f"ε = {row['epsilon']:g}, μ = {row['mu']:.2f}"


def _cell(row: dict[str, Any]) -> str:
    return f"{row['mean']:.1f} ± {row['std']:.1f}" if row["std"] is not None else f"{row['mean']:.1f}"


def digit_lines(rows: Rows) -> list[str]:
    """Methods x the four digit problems."""
    names = [name for name in dict.fromkeys(row["dataset"] for row in rows) if "MNIST" in name]
    titles = [name if "," in name else f"{name}, framed" for name in names]
    lines = ["| method | guarantee | " + " | ".join(titles) + " |", "|---|---|" + "---|" * len(names)]
    for method, epsilon in _methods(rows):
        same = {r["dataset"]: r for r in rows if (r["method"], r["epsilon"]) == (method, epsilon)}
        cells = " | ".join(_cell(same[name]) for name in names)
        lines.append(f"| {_NAMES.get(method, method)} | {_guarantee(same[names[0]])} | {cells} |")
    return lines


def office_lines(rows: Rows) -> list[str]:
    """Methods x the six pairs of Office-Caltech-10, and their mean."""
    lines = ["| method | guarantee | " + " | ".join(OFFICE) + " | mean |", "|---|---|" + "---|" * 7]
    for method, epsilon in _methods(rows):
        same = {r["dataset"]: r for r in rows if (r["method"], r["epsilon"]) == (method, epsilon)}
        means = [same[name]["mean"] for name in OFFICE]
        cells = " | ".join(_cell(same[name]) for name in OFFICE)
        guarantee = _guarantee(same[OFFICE[0]]).split(", μ")[0]
        lines.append(f"| {_NAMES.get(method, method)} | {guarantee} | {cells} | {sum(means) / 6:.1f} |")
    return lines


def gap_lines(rows: Rows) -> list[str]:
    """Ours minus others, seed by seed."""
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    titles = [name if "," in name or "MNIST" not in name else f"{name}, framed" for name in names]
    lines = ["| ours at ε = 10 minus | " + " | ".join(titles) + " |", "|---|" + "---|" * len(names)]
    for method, epsilon in _methods(rows):
        same = {r["dataset"]: r for r in rows if (r["method"], r["epsilon"]) == (method, epsilon)}
        cells = " | ".join(
            f"{row['gap']:+.2f}" + (f" ± {row['standard_error']:.2f}" if row["standard_error"] is not None else "")
            for row in (same[name] for name in names)
        )
        ours = {"SWD, adapter": "itself without noise", "DP-SWD, adapter": "itself"}.get(method, method)
        lines.append(f"| {ours}{f' at ε = {epsilon:g}' if epsilon else ''} | {cells} |")
    return lines


def curve_lines(rows: Rows) -> list[str]:
    """Problems and methods x budgets."""
    budgets = list(dict.fromkeys(row["epsilon"] for row in rows if row["epsilon"]))
    lines = ["| problem | method | " + " | ".join(f"ε = {budget:g}" for budget in budgets) + " |"]
    lines.append("|---|---|" + "---|" * len(budgets))
    for name, method in dict.fromkeys((row["dataset"], row["method"]) for row in rows):
        same = {r["epsilon"]: r for r in rows if (r["dataset"], r["method"]) == (name, method)}
        cells = " | ".join(_cell(same.get(budget, same.get(None))) for budget in budgets)
        title = name if "," in name else f"{name}, framed"
        lines.append(f"| {title} | {_NAMES.get(method, method)} | {cells} |")
    return lines


def step_lines(rows: Rows) -> list[str]:
    """Problems x methods and numbers of steps."""
    keys = list(dict.fromkeys((row["method"], row["steps"]) for row in rows))
    titles = [f"{method.removesuffix(', adapter')}, {steps:,} steps" for method, steps in keys]
    lines = ["| problem | " + " | ".join(titles) + " |", "|---|" + "---|" * len(keys)]
    for name in dict.fromkeys(row["dataset"] for row in rows):
        same = {(r["method"], r["steps"]): r for r in rows if r["dataset"] == name}
        lines.append(f"| {name} | " + " | ".join(_cell(same[key]) for key in keys) + " |")
    return lines


def worth_lines(rows: Rows) -> list[str]:
    """What the guarantee is worth: power of the best test that mu allows, at two false-positive rates."""
    lines = [
        "| problem | ε, δ | μ | true positives at 5 % false ones, at most | at 1 % |",
        "|---|---|---|---|---|",
    ]
    for name in ("MNIST-USPS", "A-W"):
        for row in rows:
            if (row["dataset"], row["method"]) == (name, "DP-SWD, adapter"):
                found = [f"{100 * norm.cdf(norm.ppf(rate) + row['mu']):.0f} %" for rate in (0.05, 0.01)]
                lines.append(
                    f"| {name} | {row['epsilon']:g}, {row['delta']:g} | {row['mu']:.2f} | {found[0]} | {found[1]} |"
                )
    return lines


def ablation_lines(rows: Rows) -> list[str]:
    """Steps from the unprotected method to the sound one x problems."""
    names = list(dict.fromkeys(row["dataset"] for row in rows))
    lines = ["| | " + " | ".join(name.split(",")[0] for name in names) + " |", "|---|" + "---|" * len(names)]
    for step in dict.fromkeys(row["step"] for row in rows):
        same = {row["dataset"]: row["mean"] for row in rows if row["step"] == step}
        lines.append(f"| {step} | " + " | ".join(f"{same[name]:.1f}" for name in names) + " |")
    return lines


def leak_lines(rows: Rows) -> list[str]:
    """Variants x claims: what the attacker proves."""
    claims = sorted({row["mu_claimed"] for row in rows})
    lines = ["| what is published | attacker sees | " + " | ".join(f"claim μ = {mu:g}" for mu in claims) + " |"]
    lines.append("|---|---|" + "---|" * len(claims))
    for variant, seen in dict.fromkeys((row["variant"], row["seen"]) for row in rows):
        same = {r["mu_claimed"]: r for r in rows if (r["variant"], r["seen"]) == (variant, seen)}
        cells = " | ".join(f"{same[mu]['mu_lower']:.2f}{' **caught**' if same[mu]['caught'] else ''}" for mu in claims)
        lines.append(f"| {variant} | {seen} | {cells} |")
    return lines
