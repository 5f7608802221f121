"""Tables on adaptation: docs/adaptation.md, reproductions.md."""

from statistics import mean

from experiments.results import Result, Row
from experiments.tables.markdown import Pivot, Table, with_origin
from experiments.tables.values import MISSING, claim, epsilon_or, score, select

OFFICE = ("A-W", "A-D", "W-A", "W-D", "D-A", "D-W")
RULES = {  # rules of adaptation of tables, and their names on the pages
    "default": "default",
    "as in 0.3": "not standardised",
    "always": "always",
}
METHODS = {  # names of methods on the pages, where they differ from those in the results
    "image map, real target": "image map, real target: NOT PRIVATE",
    "image map, synthetic target": "**image map, synthetic target**",
}


def table1(result: Result) -> str:
    """Rakotomamonjy2021, Table 1: digits, all methods beside the print."""
    rows = result["rows"]
    table = Table(rows)
    table.text("problem", "dataset")
    table.column("method", _changed_method)
    table.column("guarantee", _guarantee)
    table.column("accuracy", score)
    table.number("seeds", "seeds", form="d")
    table.number("printed", "printed", form="g")
    table.column("along the run", _curve)
    return with_origin(table, result, rows, note=f"{rows[0]['steps']:,} steps")


def table1_office(result: Result) -> str:
    """Rakotomamonjy2021, Table 1: Office-Caltech-10 in its format."""
    rows = result["rows"]
    table = Pivot("method", "noise")
    for row in rows:
        table.add([row["method"], row["noise"] or MISSING], column=row["dataset"], cell=score(row))
    return with_origin(table, result, rows, note=_seeds(rows))


def _guarantee(row: Row) -> str:
    """Return the epsilon of DP-DANN, and that others have none."""
    if row["epsilon"] is None:
        return "none"
    return f"ε = {row['epsilon']:.2g}, conditional"


def _seeds(rows: list[Row]) -> str:
    """Return the number of seeds of the rows in words."""
    numbers = sorted({row["seeds"] for row in rows})
    if numbers == [1]:
        return "one seed"
    return " or ".join(map(str, numbers)) + " seeds"


def _curve(row: Row) -> str:
    """Return the first, the best and the last accuracy along the run."""
    curve = row["curve"]
    return f"{curve[0]:.0f} {max(curve):.0f} {curve[-1]:.0f}"


def table1_gap(result: Result) -> str:
    """Rakotomamonjy2021, Table 1: what the published algorithm depends on."""
    rows = select(result["rows"], changed=({}, {"box": "28"}))
    table = Pivot("method", "changed", "steps")
    for row in rows:
        table.add(
            [row["method"], _changes(row), f"{row['steps']:,}"],
            column=row["dataset"],
            cell=score(row),
        )
    return with_origin(table, result, rows, note="three seeds")


def _changed_method(row: Row) -> str:
    """Return the method of a row with its changed settings."""
    if not row["changed"]:
        return str(row["method"])
    return f"{row['method']}, {_changes(row)}"


def _changes(row: Row) -> str:
    """Return the changed settings of a row."""
    changes = [f"{name} {value}" for name, value in row["changed"].items()]
    return ", ".join(changes) or MISSING


def image_map(result: Result) -> str:
    """Accuracies of the image map on digits as they are."""
    rows = result["rows"]
    table = Pivot("method", "guarantee")
    for row in rows:
        table.add([_method(row), claim(row)], column=row["dataset"], cell=score(row))
    return with_origin(table, result, rows, note="three seeds")


def fig3(result: Result) -> str:
    """Rakotomamonjy2021, Figure 3: accuracy of the adapter against epsilon."""
    rows = [row for row in result["rows"] if row["method"].startswith("DP-SWD")]
    table = Pivot("problem")
    for row in rows:
        table.add([row["dataset"]], column=epsilon_or(row, ""), cell=score(row))
    return with_origin(table, result, rows, note=_seeds(rows))


def figure3(result: Result) -> str:
    """Rakotomamonjy2021, Figure 3: published algorithm, accuracy against epsilon."""
    rows = result["rows"]
    table = Pivot("problem")
    for row in rows:
        column = f"ε = {row['nominal_epsilon']:g}"
        table.add([row["dataset"]], column=column, cell=f"{row['mean']:.1f}")
    note = f"{rows[0]['steps']:,} steps, {_seeds(rows)}, no guarantee"
    return with_origin(table, result, rows, note=note)


def _method(row: Row) -> str:
    method: str = row["method"]
    return METHODS.get(method, method)


def fallback_errors(result: Result) -> str:
    """Both kinds of error of the fallback, and what they cost."""
    rows = result["errors"]
    table = Table(rows)
    table.text("pairs", "group")
    table.number("ε", "epsilon", form="g")
    table.column("adapted, though worse", _wrongly_adapted)
    table.column("kept, though worse", _wrongly_kept)
    table.number("plain", "plain", form=".1f")
    table.number("always adapted", "always", form=".1f")
    table.number("the adapter's choice", "result", form=".1f")
    table.number("the better one", "best", form=".1f")
    return with_origin(table, result, rows, note="mean accuracies over all pairs of a line")


def table_pairs(result: Result) -> str:
    """Adaptation of tables: mean accuracies, and the largest loss against the source."""
    rows = result["summary"]
    table = Table(rows)
    table.text("target domain", "kind")
    table.number("pairs", "pairs", form="g")
    table.number("runs", "runs", form="g")
    table.number("source", "source", form=".1f")
    for rule, name in RULES.items():
        table.number(name, rule, "accuracy", form=".1f")
        table.number(f"{name}: adapted", rule, "adapted", form="g")
        table.number(f"{name}: largest loss", rule, "largest_loss", form=".1f")
    return with_origin(table, result, rows, note="ε = 10, three seeds")


def _wrongly_adapted(row: Row) -> str:
    return f"{row['wrongly_adapted']:g} of {row['n_worse']}"


def _wrongly_kept(row: Row) -> str:
    return f"{row['wrongly_kept']:g} of {row['n_better']}"


def adaptation_module(result: Result) -> str:
    """Accuracy of AdaptationModule by the command line.

    The rows are digits and the mean of the office pairs.
    """
    table = Pivot("method", "guarantee")
    groups = {"MNIST-USPS": ("MNIST-USPS",), "USPS-MNIST": ("USPS-MNIST",), "office": OFFICE}
    names = {"office": "Office-Caltech-10, mean of 6 pairs"}
    rows = result["rows"]
    for group, datasets in groups.items():
        for row in select(rows, dataset=datasets[:1]):
            same = {"method": row["method"], "epsilon": row["epsilon"]}
            group_rows = [
                other
                for other in rows
                if other["dataset"] in datasets and same == {name: other[name] for name in same}
            ]
            cell = score(row)
            if len(group_rows) > 1:
                cell = f"{mean(other['mean'] for other in group_rows):.1f}"
            guarantee = f"ε = {row['epsilon']:g}"
            if row["method"].startswith("source"):
                guarantee = "no distance"
            table.add([row["method"], guarantee], column=names.get(group, group), cell=cell)
    return with_origin(table, result, rows, note="three seeds")


def adaptation_sizes(result: Result) -> str:
    """Time and memory of the configs of Office-31 and VisDA-2017 at full size."""
    rows = result["full_size"]
    table = Table(rows)
    table.text("config", "config")
    table.number("source records", "n_source", form=",")
    table.number("target records", "n_target", form=",")
    table.number("seconds of a core", "cpu_seconds", form=".0f")
    table.number("peak memory, GiB", "peak_gib", form=".1f")
    return with_origin(table, result, rows)
