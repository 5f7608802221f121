"""Tables on adaptation: docs/adaptation.md, reproductions.md."""

from statistics import mean

from experiments.results import Result, Row
from experiments.tables.markdown import Pivot, Table, with_origin
from experiments.tables.values import MISSING, claim, epsilon_or, score, select

DIGITS = ("MNIST-USPS, as they are", "USPS-MNIST, as they are")
OFFICE = ("A-W", "A-D", "W-A", "W-D", "D-A", "D-W")
METHODS = {  # names of methods on the pages, where they differ from those in the results
    "SWD, adapter": "ours without noise",
    "DP-SWD, adapter": "**DP-SWD, adapter (ours)**",
    "DP-SWD, features": "DP-SWD, encoder's features (ours)",
    "image map, real target": "image map, real target: NOT PRIVATE",
    "image map, synthetic target": "**image map, synthetic target (ours)**",
}


def table1_published(result: Result) -> str:
    """Rakotomamonjy2021, Table 1: the published algorithm beside the print."""
    rows = result["rows"]
    table = Table(rows)
    table.text("problem", "dataset")
    table.text("method", "method")
    table.column("changed", _changes)
    table.column("accuracy", score)
    table.number("printed", "printed", form="g")
    table.column("along the run", _curve)
    note = "one seed; two where a deviation is given"
    return with_origin(table, result, rows, note=note)


def _curve(row: Row) -> str:
    """Return the first, the best and the last accuracy along the run."""
    curve = row["curve"]
    return f"{curve[0]:.0f} {max(curve):.0f} {curve[-1]:.0f}"


def table1_gap(result: Result) -> str:
    """Rakotomamonjy2021, Table 1: what the published algorithm depends on."""
    rows = select(
        result["rows"],
        changed=(
            {"steps": 295},
            {"steps": 295, "box": 28},
            {"steps": 295, "dropout": True},
            {"steps": 2340, "box": 28},
        ),
    )
    table = Pivot("method", "changed", "steps")
    for row in rows:
        table.add(
            [row["method"], _changes(row), f"{row['steps']:,}"],
            column=row["dataset"],
            cell=score(row),
        )
    return with_origin(table, result, rows, note="three seeds")


def _changes(row: Row) -> str:
    """Return the changed settings without the steps, which have a column."""
    changes = [f"{name} {value}" for name, value in row["changed"].items() if name != "steps"]
    return ", ".join(changes) or MISSING


def adaptation_digits(result: Result) -> str:
    """Accuracies of all methods on digits as they are."""
    rows = select(result["rows"], dataset=DIGITS)
    table = Pivot("method", "guarantee")
    for row in rows:
        table.add([_method(row), claim(row)], column=_problem(row), cell=score(row))
    return with_origin(table, result, rows, note="three seeds")


def adaptation_office(result: Result) -> str:
    """Accuracies of all methods, averaged over the six pairs of Office-Caltech-10."""
    rows = select(result["rows"], dataset=OFFICE)
    means: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        means.setdefault((_method(row), claim(row)), []).append(row["mean"])
    lines = []
    for (method, budget), of_pairs in means.items():
        lines.append({"method": method, "guarantee": budget, "mean": mean(of_pairs)})
    table = Table(lines)
    table.text("method", "method")
    table.text("guarantee", "guarantee")
    table.number("mean", "mean", form=".1f")
    return with_origin(table, result, rows, note=f"{rows[0]['seeds']} seeds")


def fig3(result: Result) -> str:
    """Rakotomamonjy2021, Figure 3: accuracy of ours against epsilon."""
    rows = select(result["rows"], method="DP-SWD, adapter", dataset=DIGITS)
    table = Pivot("problem")
    for row in rows:
        table.add([_problem(row)], column=epsilon_or(row, ""), cell=score(row))
    return with_origin(table, result, rows, note=f"{rows[0]['seeds']} seeds")


def _problem(row: Row) -> str:
    """Return source and target without the protocol, as ``"MNIST-USPS"``."""
    problem: str = row["dataset"]
    return problem.split(",")[0]


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


def _wrongly_adapted(row: Row) -> str:
    return f"{row['wrongly_adapted']:g} of {row['n_worse']}"


def _wrongly_kept(row: Row) -> str:
    return f"{row['wrongly_kept']:g} of {row['n_better']}"


def adaptation_module(result: Result) -> str:
    """Accuracy of AdaptationModule by the command line, digits and the mean of the office pairs."""
    table = Pivot("method", "guarantee")
    groups = {"MNIST-USPS": ("MNIST-USPS",), "USPS-MNIST": ("USPS-MNIST",), "office": OFFICE}
    names = {"office": "Office-Caltech-10, mean of 6 pairs"}
    rows = result["rows"]
    for group, datasets in groups.items():
        for row in select(rows, dataset=datasets[:1]):
            same = {"method": row["method"], "epsilon": row["epsilon"]}
            of_group = [
                other
                for other in rows
                if other["dataset"] in datasets and same == {name: other[name] for name in same}
            ]
            cell = score(row)
            if len(of_group) > 1:
                cell = f"{mean(other['mean'] for other in of_group):.1f}"
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
    table.number("seconds", "seconds", form=".0f")
    table.number("peak memory, GiB", "peak_gib", form=".1f")
    return with_origin(table, result, rows)
