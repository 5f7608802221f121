"""A report as Markdown, short enough for a model card. Everything from files is escaped."""

import re
from typing import Any

from dpswd.diagnostics.appendix import NOTE, WARNING
from dpswd.report import tables
from dpswd.report.tables import Table
from dpswd.report.words import attack_sentence, banner, headline, snippet, tier_sentence

__all__ = ["markdown"]


def markdown(report: dict[str, Any]) -> str:
    """Writes the page; ``report`` is what :func:`dpswd.report.collect.collect` returns."""
    guarantee, releases = report["guarantee"], report["releases"]
    parts = [f"## Privacy: {_escape(report['name'])}"]
    found = banner(report)
    if found is not None:
        parts.append(f"> **{found[0]}.** {_escape(found[1])}")
    parts += [
        f"**{_escape(headline(report))}**",
        _escape(attack_sentence(report)),
        _escape(tier_sentence(guarantee)),
        *[_escape(caveat) for caveat in report["caveats"]],
        _table(tables.attacks(report)),
    ]
    if guarantee["tier"] == 2:
        parts += ["### Trade-off curve (Tier II)", _table(tables.trade_off(report))]
    parts += [
        "### (ε, δ) and privacy profile",
        _table(tables.epsilons(report)),
        _table(tables.profile(report, every=10)),
    ]
    parts += [
        "### What was released",
        f"Releases made: {releases['made']:,}; accounted for: {releases['planned']:,}; of a data set of "
        f"{releases['sample_size']:,} records. Neighbouring data sets: "
        f"{_escape(releases['neighboring_relation'])}.",
    ]
    for title, table in tables.releases(report):
        parts += [f"**{_escape(title)}**", _table(table)]
    if report["samples_png"] is not None:
        parts += ["### Samples", "![Synthetic samples](samples.png)"]
    if report["downstream"]:
        parts += [
            "### Classifiers trained on it",
            _table(tables.downstream(report)),
            "Measured on real records, without noise: these numbers are outside the guarantee.",
        ]
    parts += ["### What this rests on", _list(report["assumptions"])]
    parts += ["### What is not covered", _list(report["not_covered"])]
    parts += [
        "### Where the numbers come from",
        _table(tables.provenance(report)),
        _fence(snippet(report), "python"),
    ]
    if report["config"]["text"] is not None:
        parts += [
            "<details><summary>config.yaml</summary>",
            _fence(report["config"]["text"], "yaml"),
            "</details>",
        ]
    if report["diagnostics"] is not None:
        parts += ["### Appendix: diagnostics", f"**{NOTE}**", WARNING]
        for title, table in tables.diagnostics(report):
            parts += [f"**{_escape(title)}**", _table(table)]
    return "\n\n".join(parts) + "\n"


def _escape(text: str) -> str:
    """Takes the meaning out of everything that Markdown or HTML would interpret, and makes it one line."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~!])", r"\\\1", text)


def _table(table: Table) -> str:
    rules = ["---:" if i in table.numeric else "---" for i in range(len(table.columns))]
    rows = [[_escape(cell) for cell in row] for row in (table.columns, *table.rows)]
    lines = [rows[0], rules, *rows[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _list(items: list[str]) -> str:
    return "\n".join(f"- {_escape(item)}" for item in items)


def _fence(text: str, language: str) -> str:
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
