"""Cells and tables of docs/performance.md. What misses its target says so."""

from typing import Any

__all__ = ["limit", "ms", "percent", "ratio", "size", "table"]

Row = dict[str, Any]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table."""
    return ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]


def ms(seconds: float) -> str:
    """Milliseconds."""
    return f"{seconds * 1e3:,.0f}" if seconds > 0.1 else f"{seconds * 1e3:.3g}"


def ratio(ratio: float, holds: bool | None) -> str:
    """A ratio, with a mark where it does not hold what it should."""
    return f"{ratio:.2f}" + {True: "", False: " **(missed)**", None: ""}[holds]


def size(row: Row) -> str:
    """The three sizes of a problem."""
    return f"({row['n']:,}, {row['d']:,}, {row['k']:,})"


def percent(share: float, target: float) -> str:
    """A share, marked where it is beyond the target."""
    return f"{share:.0%}" + ("" if share <= target else " **(missed)**")


def limit(seconds: float, target: float) -> str:
    """Seconds, marked where they are beyond the target."""
    return f"{seconds:.2f} s" + ("" if seconds <= target else " **(missed)**")
