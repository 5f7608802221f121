"""Tables of docs/tables-results.md: records with named columns."""

from experiments.results import Result, Row
from experiments.tables.markdown import Pivot, Table, with_origin
from experiments.tables.values import MISSING, seeds, select

NAMES = {True: "yes", False: "no", None: MISSING}


def tables_adult(result: Result) -> str:
    """Adult: distances of columns, correlations, accuracy of classifiers."""
    rows = result["rows"]
    cores = result["machine"]["cores"]
    note = (
        f"25,000 records, three seeds, {cores} CPU cores; "
        "the largest distance is that of all columns and seeds"
    )
    return with_origin(_adult(rows), result, rows, note=note)


def tables_mixed(result: Result) -> str:
    """All columns of Adult: accuracy of a classifier, and errors of shares."""
    return _with_command(result, "mixed", "26,000 records, three seeds (AIM: one)")


def tables_rand(result: Result) -> str:
    """Columns of RAND: accuracy of a classifier, and errors of shares."""
    return _with_command(result, "rand", "four fifths of 5,912 persons, three seeds")


def _with_command(result: Result, only: str, records: str) -> str:
    """Return the table of a mixed data set above its command and records."""
    rows = result["rows"]
    note = f"{records}, {result['machine']['cores']} CPU cores that were busy with other work"
    command = f"tables_adult --only {only}"
    return with_origin(_mixed(rows), result, rows, note=note, command=command)


def _mixed(rows: list[Row]) -> Table:
    table = Table(rows)
    table.text("method", "method")
    table.number("ε", "epsilon", form="g")
    table.number("boosting", "auc", form=".3f")
    table.number("least", "least_auc", form=".3f")
    table.number("shares", "share_error", form=".3f")
    table.number("missing", "missing_error", form=".3f")
    table.number("s", "seconds", form=".1f")
    return table


def tables_mst(result: Result) -> str:
    """Adult by MST."""
    rows = result["rows"]
    note = f"25,000 records, {seeds(rows)}, {result['machine']['cores']} CPU cores"
    command = "tables_adult --only mst"
    return with_origin(_adult(rows), result, rows, note=note, command=command)


def _adult(rows: list[Row]) -> Table:
    table = Table(rows)
    table.text("method", "method")
    table.number("ε", "epsilon", form="g")
    table.number("gain", "distances", "capital-gain", form=".3f")
    table.number("loss", "distances", "capital-loss", form=".3f")
    table.number("largest", "largest", form=".3f")
    table.number("correlations", "correlations", form=".3f")
    table.number("boosting", "auc", "boosting", form=".3f")
    table.number("LogReg", "auc", "logreg", form=".3f")
    table.number("s", "seconds", form=".1f")
    return table


def _choice(row: Row) -> str:
    """Return whether the rule chose this method; it does not judge all of them."""
    return NAMES[row.get("chosen")]


def tables_small(result: Result) -> str:
    """Small data sets: accuracies by treatment of columns, and the rule's choice."""
    rows = select(
        result["rows"],
        epsilon=10.0,
        dataset=("breast_cancer", "wine", "Office-Caltech-10"),
    )
    table = Table(rows)
    table.text("data set", "dataset")
    table.text("method", "method")
    table.column("rule", _choice)
    table.number("LogReg", "logreg", form=".1f")
    table.number("5 neighbours", "neighbours", form=".1f")
    command = "tables_adult --only small"
    return with_origin(table, result, rows, note="ε = 10", command=command)


def wide_rows(result: Result) -> str:
    """Covariances or variances of vectors: accuracy of a classifier."""
    rows = result["rows"]
    names = {None: "private records", "moments": "covariances", "variances": "variances"}
    table = Pivot("data", "records", "columns", "ε")
    for row in rows:
        name = row["dataset"]
        if row["factors"]:
            name = f"{name} with {row['factors']} factors"
        line = [name, f"{row['n_records']:,}", f"{row['n_columns']:,}", f"{row['epsilon']:g}"]
        table.add(line, column=names[row["spread"]], cell=f"{row['mean']:.1f}")
    note = f"accuracy of a ridge classifier in percent, {seeds(rows)}, noise with a seed"
    return with_origin(table, result, rows, note=note)
