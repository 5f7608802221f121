"""Tables of README.md and docs/*.md, made from ``docs/results``: ``python -m experiments tables``.

A table stands between ``<!-- table NAME -->`` and ``<!-- end -->``. A test fails where a page and the results differ.
``tables.yaml`` defines the tables. Keys of one, all but ``columns`` optional:

- ``columns``: ``HEADING -> CELL | HEADING -> CELL``. A cell is a format string over the keys of a row, or ``*NAME`` of
  :data:`FUNCTIONS`.
- ``source``: the result, ``docs/results/SOURCE.json``, if it has another name.
- ``part``: key of the list of rows, ``rows`` if not given.
- ``where``: values of keys in the rows that are kept, or the name of a function.
- ``spread``: heading and cell of further columns, one for each distinct heading. Rows that agree in ``columns`` make
  one line; a row whose heading is empty fills all of them.
- ``last``: columns after those, of all rows of a line; a format string takes the first row.
- ``note``: format string over the keys of the file and the first row, shown with the command. The reasons for which
  the file or its rows are kept from an earlier version follow.
- ``command``: arguments of ``run``, for a result whose last command made some of its rows only.
"""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from dpswd._files import write_json
from experiments.generation.stand_ins import BUDGETS, of_all_records

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
STAND_INS = ROOT / "dpswd" / "mixture" / "stand_ins.json"  # read by ``dpswd forecast``
MARKS = re.compile(r"(<!-- table (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
UNITS = {"MB": 1e-6, "GB": 1e-9, "us": 1e6, "percent": 100.0}
DIGITS = {"MB": ",.0f", "GB": ".2f", "us": ".0f", "percent": ".1f"}

Row = dict[str, Any]
TABLES: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("tables.yaml").read_text()
)


def render(name: str) -> str:
    """Return a table in Markdown with a line on its origin."""
    table = TABLES[name]
    file = _result(table.get("source", name))
    rows = [row for row in file[table.get("part", "rows")] if _kept(table.get("where"), row)]
    columns, last = (_columns(table.get(key, "")) for key in ("columns", "last"))
    lines: dict[tuple[str, ...], list[Row]] = {}
    for i, row in enumerate(rows):
        key = tuple(_show(cell, row) for cell in columns.values())
        lines.setdefault(key if "spread" in table else (*key, str(i)), []).append(row)
    heading, cell = table.get("spread", ("", ""))
    headings = [each for each in dict.fromkeys(_show(heading, row) for row in rows) if each]
    shown = [[*columns, *headings, *last], ["---"] * len([*columns, *headings, *last])]
    for key, same in lines.items():
        found = {_show(heading, row): _show(cell, row) for row in same}
        if "spread" in table and len(found) < len([row for row in same if _show(heading, row)]):
            raise ValueError(f"columns of table {name!r} must tell rows apart; two are {key}")
        cells = [found.get(each, found.get("", "-")) for each in headings]
        shown.append(
            [
                *key[: len(columns)],
                *cells,
                *(_show(form, {**same[0], "same": same}) for form in last.values()),
            ]
        )
    note = table.get("note", "").format_map({**file, **rows[0]})
    command = (
        f"python -m experiments run {table['command']}" if "command" in table else file["command"]
    )
    facts = [f"`{command}`", note, f"dpswd {file['version']}."]
    reasons = dict.fromkeys(each["reason"] for each in (file, *rows) if "reason" in each)
    body = [
        f"| {' | '.join(cells)} |" if cells[0] != "---" else f"|{'|'.join(cells)}|"
        for cells in shown
    ]
    return "\n".join([*body, "", " ".join([", ".join(fact for fact in facts if fact), *reasons])])


def _result(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return result


def _kept(where: Any, row: Row) -> bool:
    if isinstance(where, str):
        return bool(FUNCTIONS[where](row))
    return all(
        row[key] in values if isinstance(values, list) else row[key] == values
        for key, values in (where or {}).items()
    )


def _columns(spec: str) -> dict[str, str]:
    return dict(column.split(" -> ") for column in spec.split(" | ") if column)


class _Value:
    """A value in a format string: ``ms`` and the keys of ``UNITS`` are units; what is missing is a dash.

    ``{key:yes/no}`` shows a truth value, ``{key:name}`` a word of ``NAMES``.
    """

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getitem__(self, key: Any) -> "_Value":
        return _Value(self.value[int(key) if isinstance(self.value, list) else key])

    def __format__(self, form: str) -> str:
        if self.value is None:
            return "-"
        if isinstance(self.value, bool):
            return form.split("/")[not self.value]
        if form == "name":
            return NAMES.get(self.value, self.value)
        if form == "ms":
            return f"{self.value * 1e3:,.0f}" if self.value > 0.1 else f"{self.value * 1e3:.3g}"
        shown = (
            format(self.value * UNITS.get(form, 1), DIGITS[form])
            if form in UNITS
            else format(self.value, form)
        )
        return f"{shown} %" if form == "percent" else shown


class _Values(dict[str, Any]):
    def __missing__(self, key: str) -> _Value:
        return _Value(None)


def _show(cell: str, row: Row) -> str:
    if cell.startswith("*"):
        return FUNCTIONS[cell[1:]](row)
    return cell.format_map(_Values({key: _Value(value) for key, value in row.items()}))


# Cells --------------------------------------------------------------------------------------------------------------


def ratio(
    top: str, bottom: str, holds: Callable[[Row, float], bool] = lambda row, value: True
) -> Callable[[Row], str]:
    """Format a quotient of two keys, marked where it misses its target."""

    def cell(row: Row) -> str:
        value = row[top] / row[bottom]
        return f"{value:.2f}" + ("" if holds(row, value) else " **(missed)**")

    return cell


def score(row: Row) -> str:
    """Format an accuracy in percent with its standard deviation; ``-`` for what was not run."""
    if row["mean"] is None:
        return "-"
    return f"{row['mean']:.1f}" + (f" ± {row['std']:.1f}" if row["std"] is not None else "")


def guarantee(row: Row) -> str:
    """Format the guarantee of a trained model, or what an unsound method claims."""
    if row["epsilon"] is None:
        return "none"
    if not row["sound"] and not row.get("conditions"):
        return f"ε = {row['epsilon']:g} claimed" + (
            ", **unsound**" if row["sound"] is False else ""
        )
    return f"ε = {row['epsilon']:g}, μ = {row['mu']:.3g}" + (
        ", conditional" if row.get("conditions") else ""
    )


def beside(sources: Sequence[str], row: Row, **other: Any) -> Row:
    """Return the row of a result with the same data set and classifier, and with ``other`` keys; a dash if none has."""
    wanted = {"dataset": row["dataset"], "classifier": row["classifier"], **other}
    rows = (each for source in sources for each in _result(source)["rows"])
    return next((each for each in rows if _kept(wanted, each)), {"mean": None})


def mixture_beside(row: Row) -> str:
    """Show the accuracies of the same classifier after training on the one-shot mixture at epsilon 10, 1 and 0.2."""
    budgets = (10.0, 1.0, 0.2)
    found = (
        beside(["generation"], row, method="one-shot mixture", epsilon=epsilon)
        for epsilon in budgets
    )
    return " / ".join(f"{each['mean']:.1f}" for each in found)


def feta_pro(row: Row) -> str:
    """Show the accuracy that FETA-Pro prints at the same epsilon: best of three networks."""
    found = beside(
        ["imagebench"],
        row,
        method="FETA-Pro, as printed",
        epsilon=row["epsilon"],
        classifier="best",
    )
    return score(found)


def real_beside(row: Row) -> str:
    """Show the accuracy of the same classifier after training on real records."""
    return score(beside(["generation", "imagebench"], row, method="real records"))


NAMES = {  # for format strings ``{key:name}``
    "N": "N = B (one shot)",
    "T": "T (account)",
    "SWD, adapter": "ours without noise",
    "DP-SWD, adapter": "**DP-SWD, adapter (ours)**",
    "DP-SWD, features": "DP-SWD, encoder's features (ours)",
    "image map, real target": "image map, real target: NOT PRIVATE",
    "image map, synthetic target": "**image map, synthetic target (ours)**",
} | {"logreg": "LogReg", "mlp": "MLP", "cnn": "CNN"}


def with_n(row: Row, value: float) -> bool:
    """Whether a ratio is at least 1.5 for n >= 1,000, and 1 below."""
    return value >= (1.5 if row["n"] >= 1000 else 1)


def budget(row: Row, none: str = "") -> str:
    """Return the epsilon of a row."""
    return none if row["epsilon"] is None else f"ε = {row['epsilon']:g}"


FUNCTIONS: dict[str, Callable[[Row], Any]] = {
    **{each.__name__: each for each in (score, guarantee, mixture_beside, feta_pro, real_beside)},
    "budget": lambda row: guarantee(row).split(", μ")[0],
    "budget_or_real": lambda row: budget(row, "real records"),
    "changes": lambda row: (
        ", ".join(f"{key} {value}" for key, value in row["changed"].items() if key != "steps")
        or "-"
    ),
    "curve": lambda row: " ".join(
        f"{value:.0f}" for value in (row["curve"][0], max(row["curve"]), row["curve"][-1])
    ),
    "epsilon_or_all": budget,
    "epsilon_or_printed": lambda row: budget(row) if row["sound"] else row["method"],
    "method_and_budget": lambda row: ", ".join(filter(None, (row["method"], budget(row)))),
    "mean_of_all": lambda row: (
        f"{sum(each['mean'] for each in row['same']) / len(row['same']):.1f}"
    ),
    "naive_ours": ratio("naive_s", "ours_s", with_n),
    "on_processor": lambda row: row["part"] == "distance" and row["device"] == "cpu",
    "ours_floor": ratio("ours_s", "floor_s", lambda row, value: value <= 1.3 or row["n"] < 1000),
    "paper_ours": lambda row: " / ".join(
        ratio("paper_s", f"{name}_s", with_n)(row) for name in ("rows", "quantiles")
    ),
    "problem": lambda row: row["dataset"].split(",")[0],
    "peak": lambda row: (
        f"{max(row['peak_bytes']) / 1e9:.2f}"
        + ("" if max(row["peak_bytes"]) <= 4e9 else " **(missed)**")
    ),
    "pot_ours": ratio(
        "pot_s", "ours_s", lambda row, value: value >= (3 if row["d"] <= 784 else 1.4)
    ),
    "whose": lambda row: f"{'ours' if row['sound'] else 'FETA-Pro'}, {row['classifier']}",
}


def fill(text: str) -> str:
    """Return a page with every table made anew that has a result."""

    def table(match: re.Match[str]) -> str:
        name, facts = match[2], TABLES[match[2]]
        source = facts.get("source", name)
        if not (RESULTS / f"{source}.json").exists() or facts.get("part", "rows") not in _result(
            source
        ):
            return match[0]  # measured later
        return f"{match[1]}{render(name)}\n{match[3]}"

    return MARKS.sub(table, text)


def pages() -> Sequence[Path]:
    """List the pages that may hold tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def stand_ins() -> dict[str, Any]:
    """Return the rows of the experiment of this name for the package, with those of all records of this version."""
    rows = [
        of_all_records(row)
        for row in _result("generation")["rows"]
        if row["classifier"] == "logreg"
        and "mixture" in row["method"]
        and row["epsilon"] in BUDGETS
        if "version" not in row  # of an earlier version
    ]
    return {"rows": [*_result("stand_ins")["rows"], *rows]}


def write_tables() -> None:
    """Write all tables in place, and the rows that ``dpswd forecast`` reads."""
    write_json(STAND_INS, stand_ins())
    for page in pages():
        text = page.read_text()
        if (new := fill(text)) != text:
            page.write_text(new)
            print(f"Written: {page.relative_to(ROOT)}")
