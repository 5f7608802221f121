"""Tables of docs/howto/evaluate.md: figures of good and of bad records."""

from experiments.results import Result
from experiments.tables.markdown import Table, with_origin
from experiments.tables.values import number, percent

_NOTE = "ε = 10, 4,000 synthetic records (copies: 2,000) and 2,000 real ones"


def evaluation_images(result: Result) -> str:
    """Figures of images."""
    rows = [row for row in result["rows"] if row["propensity"] is None]
    table = Table(rows)
    table.text("real records", "dataset")
    table.text("synthetic records", "records")
    table.number("CNN", "accuracy", form=".1f")
    table.number("real half", "real_accuracy", form=".1f")
    table.number("AUC", "two_sample", "cnn", form=".2f")
    table.number("Fréchet", "fidelity", "frechet", form=".3f")
    table.number("halves", "fidelity", "halves", "frechet", form=".3f")
    table.number("precision", "fidelity", "precision", form=".2f")
    table.number("recall", "fidelity", "recall", form=".2f")
    table.column("close", lambda row: percent(row["nearest"]["close"]))
    return with_origin(table, result, rows, note=_NOTE)


def evaluation_tables(result: Result) -> str:
    """Figures of records of Adult."""
    rows = [row for row in result["rows"] if row["propensity"] is not None]
    table = Table(rows)
    table.text("synthetic records", "records")
    table.number("boosting", "accuracy", form=".1f")
    table.number("real half", "real_accuracy", form=".1f")
    table.number("AUC", "two_sample", "boosting", form=".2f")
    table.number("pMSE", "propensity", "pmse", form=".3f")
    table.number("times equal", "propensity", "ratio", form=".1f")
    table.column("largest distance", lambda row: f"{max(row['fidelity']['column_distances']):.3f}")
    table.number("correlations", "fidelity", "correlation_difference", form=".3f")
    table.number("halves", "fidelity", "halves", "correlation_difference", form=".3f")
    table.column("close", lambda row: percent(row["nearest"]["close"]))
    return with_origin(table, result, rows, note=_NOTE)


def photographs(result: Result) -> str:
    """Figures of variants of faces."""
    rows = result["rows"]
    table = Table(rows)
    table.text("faces", "variant")
    table.column("spread", lambda row: number(row.get("spread"), "g"))
    table.number("Fréchet", "frechet", form=".3f")
    table.number("precision", "precision", form=".2f")
    table.number("recall", "recall", form=".2f")
    table.number("AUC", "auc", form=".3f")
    return with_origin(table, result, rows, note="ε = 10, 4,000 faces, one seed")
