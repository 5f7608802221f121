"""Tables of docs/generation-table2.md and docs/celeba.md, from ``docs/results`` (see experiments/tables.py)."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["celeba_lines", "table2_lines"]

Row = Mapping[str, Any]


def table2_lines(rows: Sequence[Row], *, seeds: bool = False) -> list[str]:
    """Returns one line for each data set, method and budget, classifiers side by side; seeds too if asked."""
    cells: dict[tuple[str, str, float | None], dict[str, Row]] = {}
    for row in rows:
        cells.setdefault((row["dataset"], row["method"], row["epsilon"]), {})[row["classifier"]] = row
    more = " seeds |" if seeds else ""
    lines = [
        "| data set | method | guarantee | LogReg | MLP | CNN | training |" + more,
        "|---|---|---|---|---|---|---|" + ("---|" if seeds else ""),
    ]
    for (dataset, method, _), found in cells.items():
        one = next(iter(found.values()))
        scores = " | ".join(_score(found[name]) for name in ("logreg", "mlp", "cnn"))
        seconds = "-" if one["train_seconds"] is None else f"{one['train_seconds']} s"
        last = f" {one['seeds']} |" if seeds else ""
        lines.append(f"| {dataset} | {method} | {_guarantee(one)} | {scores} | {seconds} |{last}")
    return lines


def _score(row: Row) -> str:
    return f"{row['mean']:.1f}" + (f" ± {row['std']}" if row["std"] is not None else "")


def _guarantee(row: Row) -> str:
    if row["epsilon"] is None:
        return "none"
    if not row["sound"]:
        return f"ε = {row['epsilon']:g} claimed, **unsound**"
    return f"ε = {row['epsilon']:g}, μ = {row['mu']:.3g}"


def celeba_lines(rows: Sequence[Row]) -> list[str]:
    """Returns one line per variant of Figure 6; the distance under the name that it has."""
    name = next(key for key in ("fid", "small_cnn_frechet") if key in rows[0])
    lines = [f"| images | guarantee | sigma | `{name}` | training |", "|---|---|---|---|---|"]
    for row in rows:
        guarantee = "none" if row["epsilon"] is None else f"ε = {row['epsilon']:g}, μ = {row['mu']:.3g}"
        sigma = "-" if row["sigma"] is None else f"{row['sigma']:.2g}"
        seconds = "-" if row["train_seconds"] is None else f"{row['train_seconds']} s"
        lines.append(f"| {row['method']} | {guarantee} | {sigma} | {row[name]:g} | {seconds} |")
    return lines
