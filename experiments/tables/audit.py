"""Tables of docs/audit.md."""

from experiments.results import Result, Row
from experiments.tables.markdown import Pivot, Table, with_origin
from experiments.tables.values import percent, select


def audit_games(result: Result) -> str:
    """Lower bounds on mu of sound mechanisms and queries."""
    rows = select(
        result["rows"],
        setting=(
            "quantiles, orthogonal",
            "quantiles, orthogonal, 10 classes",
            "rows, orthogonal",
            "rows, iid, exact",
            "rows, iid, Bernstein",
            "rows, iid, CLT",
            "quantiles, orthogonal, 4 of 25 %",
            "rows, iid, exact, 4 of 25 %",
            "counts and sums of 10 classes",
            "second moments of 10 classes",
        ),
    )
    table = Table(rows)
    table.text("setting", "setting")
    table.number("μ at least", "mu_lower", form=".2f")
    table.number("allowed", "mu_claimed_at_fpr", form=".2f")
    return with_origin(table, result, rows, note="confidence 0.99, δ = 10^-5")


def audit_zoo(result: Result) -> str:
    """Lower bounds on mu of broken mechanisms and of their sound twins."""
    rows = result["zoo"]
    table = Table(rows)
    table.text("broken", "name")
    table.number("μ claimed", "mu_claimed_at_fpr", form=".2f")
    table.number("μ at least", "mu_lower", form=".2f")
    table.number("twin: μ at least", "twin_mu_lower", form=".2f")
    note = f"2 x {rows[0]['trials']:,} runs, confidence 0.999"
    return with_origin(table, result, rows, note=note)


def audit_canaries(result: Result) -> str:
    """Lower bounds on epsilon of generators, and of records that were given out."""
    rows = result["canaries"]
    table = Table(rows)
    table.text("what was given out", "what")
    table.formatted("guesses right", "guessed_right", percent)
    table.number("ε at least", "epsilon_lower", form=".2f")
    table.number("ε claimed", "epsilon_claimed", form="g")
    table.column("verdict", _verdict)
    return with_origin(table, result, rows, note="confidence 0.99, δ = 10^-5")


def _verdict(row: Row) -> str:
    if row["passed"]:
        return "passed"
    return "REFUTED"


def leak(result: Result) -> str:
    """Lower bounds on mu by an attack on all releases of an adaptation."""
    rows = result["rows"]
    table = Pivot("claim")
    for row in rows:
        bound = f"{row['mu_lower']:.2f}"
        if row["caught"]:
            bound = f"{bound} **caught**"
        table.add(["at least"], column=f"μ = {row['mu_claimed']:g}", cell=bound)
    return with_origin(table, result, rows, note=f"{rows[0]['trials']:,} runs on each data set")
