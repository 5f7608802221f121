"""The tables of a report as rows of text, the same in HTML and in Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dpswd.diagnostics.appendix import diagnostics_appendix
from dpswd.report.gdp import round_up
from dpswd.report.words import innocents, number, percent

__all__ = [
    "Table",
    "attacks",
    "diagnostics",
    "downstream",
    "epsilons",
    "profile",
    "provenance",
    "releases",
    "trade_off",
]


@dataclass(frozen=True)
class Table:
    """Titles and rows of plain text; ``numeric`` columns are set flush right, ``marked`` rows stand out."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numeric: frozenset[int] = frozenset()
    marked: frozenset[int] = frozenset()


def epsilons(report: dict[str, Any]) -> Table:
    """(epsilon, delta), by both accountants."""
    entries = report["guarantee"]["epsilon_delta"]
    rows = [
        (
            number(entry["delta"]) + (" (target)" if entry["target"] else ""),
            number(entry["epsilon_pld"]),
            number(entry["epsilon_rdp"]),
        )
        for entry in entries
    ]
    marked = frozenset(i for i, entry in enumerate(entries) if entry["target"])
    return Table(("δ", "ε, exact (PLD)", "ε, second opinion (autodp, RDP)"), rows, frozenset({1, 2}), marked)


def attacks(report: dict[str, Any]) -> Table:
    """What an attacker finds at most, at a few rates of innocents accused."""
    rows = [(innocents(row["fpr"]), percent(row["tpr"])) for row in report["guarantee"]["attacks"]]
    return Table(("innocents accused", "members found, at most"), rows, frozenset({1}))


def trade_off(report: dict[str, Any]) -> Table:
    """The Tier II table of Gomez2025."""
    rows = [
        (
            number(row["fpr"]),
            f"{-round_up(-row['fnr'], 10):.10g}",
            number(row["tpr"]),
            number(row["tpr_gaussian"]),
        )
        for row in report["guarantee"]["trade_off"]
    ]
    return Table(("FPR", "FNR, at least", "TPR, at most", "TPR of μ-GDP"), rows, frozenset({0, 1, 2, 3}))


def profile(report: dict[str, Any], every: int = 4) -> Table:
    """The privacy profile, thinned out; report.json has all of it."""
    rows = [(number(point["epsilon"]), number(point["delta"])) for point in report["guarantee"]["profile"][::every]]
    return Table(("ε", "δ(ε)"), rows, frozenset({0, 1}))


def releases(report: dict[str, Any]) -> list[tuple[str, Table]]:
    """One table for every kind of release, with its title."""
    return [(group["noun"], Table(("what", "value"), _group(group))) for group in report["releases"]["groups"]]


def _group(group: dict[str, Any]) -> Sequence[tuple[str, ...]]:
    mechanism = group["mechanism"]
    sensitivity = f"{number(group['sensitivity'], 4)} (L2, replace-one)"
    if group["sensitivity_is_random"]:
        sensitivity = f"{number(group['sensitivity'], 4)} root mean square; random, its law is accounted for"
    rows = [
        ("releases", f"{group['count']:,}"),
        ("records", f"{group['sample_size']:,}"),
        ("records read by one release", f"{group['batch_size']:,} (q = {number(group['sampling_rate'], 4)})"),
        ("subsampling", group["subsampling"]),
        ("noise, standard deviation", f"{group['sigma']:.6g}"),
        ("sensitivity", sensitivity),
        ("noise / sensitivity", f"{group['sigma'] / group['sensitivity']:.4g}"),
    ]
    if mechanism["mechanism"] == "projections":
        rows += [
            (
                "directions",
                f"{mechanism['n_projections']:,} {mechanism['kind']} in {mechanism['dim']:,} dimensions",
            ),
            ("what leaves", str(mechanism["statistic"])),
            ("bound on a row", f"{mechanism['row_norm']:g} (L2 norm, enforced by clipping)"),
            ("law of the sensitivity", str(mechanism["bound"])),
        ]
    rows += [
        (name, str(mechanism[name]))
        for name in ("n_quantiles", "n_classes", "failure_prob", "noise_seed")
        if mechanism.get(name) is not None
    ]
    return rows


def downstream(report: dict[str, Any]) -> Table:
    """Accuracies of classifiers trained on synthetic and on real data."""
    rows = [
        (str(row["dataset"]), str(row["classifier"]), str(row["train"]), f"{row['accuracy']:.1f}")
        for row in report["downstream"]
    ]
    return Table(("data set", "classifier", "trained on", "accuracy, %"), rows, frozenset({3}))


def provenance(report: dict[str, Any]) -> Table:
    """Hashes and versions."""
    ledger, config = report["ledger"], report["config"]
    rows = [
        ("ledger, hash of the last entry", str(ledger["head"])),
        ("config, SHA-256 in the ledger", str(ledger["config_sha256"] or "—")),
        ("config.yaml, SHA-256", str(config["sha256"] or "no such file")),
        (
            "accountant of the budget",
            "PLD (dp_accounting)" if report["accountant"] == "pld" else "RDP (autodp)",
        ),
        ("dpswd of the run", str(ledger["version"] or "—")),
        (
            "this report made with",
            ", ".join(f"{name} {version}" for name, version in report["versions"].items() if version),
        ),
    ]
    return Table(("what", "value"), rows)


def diagnostics(report: dict[str, Any]) -> list[tuple[str, Table]]:
    """One table for every diagnostic of the appendix; none where the appendix was not asked for."""
    return [
        (title, Table(("what", "value"), [(what, _value(value)) for what, value in rows]))
        for title, rows in diagnostics_appendix(report["diagnostics"] or {})
    ]


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_value(part) for part in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "—"}[value]
    return number(value, 4) if isinstance(value, float) else str(value)
