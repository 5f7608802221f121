"""Report of a run as HTML, Markdown and JSON: one list of blocks, two writers.

All numbers are rounded towards less privacy. The page has no script and loads nothing; all text is escaped, in HTML and
in Markdown.
"""

import importlib.resources
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from dpswd._files import atomic_write
from dpswd.diagnostics.appendix import NOTE, WARNING, diagnostics_appendix
from dpswd.report.collect import collect
from dpswd.report.gdp import REGRET_LIMIT, RESOLUTION, round_up
from dpswd.report.plots import SUPERSCRIPTS, draw

__all__ = ["banner", "blocks", "html", "markdown", "summary", "write_report"]


def write_report(
    run_dir: str | Path, *, diagnostics: bool = False, include_private_evaluation: bool = False
) -> dict[str, Any]:
    """Write report.html, report.md and report.json into a run directory.

    Args:
        run_dir: The run directory.
        diagnostics: Whether to append ``diagnostics.json`` (Wasserstein DP, tangent DP).
        include_private_evaluation: Whether to add ``private_evaluation.json``, which the guarantee does not cover.

    Returns:
        The content of report.json.

    Raises:
        InputError: If the run cannot be read or contradicts itself (nothing is written then), or the directory is not
            writable.
    """
    report, curve = collect(run_dir, diagnostics=diagnostics, include_private_evaluation=include_private_evaluation)
    content = blocks(report, draw(report, curve))
    texts = {
        "report.html": html(report["name"], content),
        "report.md": markdown(content),
        "report.json": json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
    }
    for name, text in texts.items():
        atomic_write(Path(run_dir) / name, text.encode())
    return report


# ---------------------------------------------------------------------------------------------------------------------
# Blocks


@dataclass(frozen=True)
class Heading:
    """Heading of level 1 to 3."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """Paragraph; ``style`` is ``""``, ``"lead"``, ``"note"`` or ``"strong"``."""

    text: str
    style: str = ""


@dataclass(frozen=True)
class Banner:
    """Warning before everything else."""

    title: str
    text: str


@dataclass(frozen=True)
class Facts:
    """Main numbers by name; ``line`` says the same in one line."""

    numbers: Sequence[tuple[str, str]]
    line: str


@dataclass(frozen=True)
class Table:
    """Rows of text. Without ``columns`` a row is (name, value). ``numeric`` columns are right-aligned."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numeric: tuple[int, ...] = ()
    marked: tuple[int, ...] = ()


@dataclass(frozen=True)
class Items:
    """Bulleted list."""

    items: Sequence[str]


@dataclass(frozen=True)
class Code:
    """Preformatted text."""

    text: str
    language: str


@dataclass(frozen=True)
class Plots:
    """SVG elements by name; left out of Markdown."""

    pictures: dict[str, str]


@dataclass(frozen=True)
class Samples:
    """``samples.png``: embedded as base64 in HTML, linked in Markdown."""

    png: str
    caption: str


Block = Heading | Text | Banner | Facts | Table | Items | Code | Plots | Samples


def blocks(report: dict[str, Any], pictures: dict[str, str]) -> list[Block]:
    """Return the content of the page.

    Args:
        report: From :func:`dpswd.report.collect.collect`.
        pictures: From :func:`dpswd.report.plots.draw`; may be empty.
    """
    guarantee = report["guarantee"]
    warning = banner(report)
    headline, attack, tier = summary(report)
    mark = tuple(i for i, entry in enumerate(guarantee["epsilon_delta"]) if entry["target"])
    content: list[Block] = [Heading(f"Privacy report: {report['name']}", 1)]
    content += [Banner(*warning)] if warning else []
    content += [Text(attack, "lead"), Facts(_main_numbers(report), headline)]
    content += [Text(caveat) for caveat in report["caveats"]]
    content += [Heading("What is guaranteed"), Text(tier)]
    if guarantee["exactly_gaussian"]:
        content.append(Text(_closed_form(guarantee)))
    content += [Plots(pictures)] if pictures else []
    content += [
        Heading("What an attacker can do", 3),
        Table(
            ("non-members accused", "members found, at most"),
            [(_one_in(row["fpr"]), percent(row["tpr"])) for row in guarantee["attacks"]],
            (1,),
        ),
    ]
    if guarantee["tier"] == 2:
        content += [
            Heading("Tier II: trade-off curve", 3),
            Table(("FPR", "FNR, at least", "TPR, at most", "TPR of μ-GDP"), _trade_off(guarantee), (0, 1, 2, 3)),
        ]
    content += [
        Heading("(ε, δ)", 3),
        Table(("δ", "ε (exact, PLD)", "ε (second accountant, RDP)"), _epsilons(guarantee), (1, 2), mark),
        Text("Both columns are valid upper bounds; the smaller one is tighter.", "note"),
        Heading("Privacy profile", 3),
        Table(("ε", "δ(ε)"), [(number(p["epsilon"]), number(p["delta"])) for p in guarantee["profile"][::4]], (0, 1)),
        Heading("What was released"),
        Text(_released(report)),
        Text(_covered_runs(report)),
    ]
    for group in report["releases"]["groups"]:
        content += [Heading(group["description"], 3), Table((), _group(group))]
    if report["samples_png"] is not None:
        content += [Heading("Samples"), Samples(report["samples_png"], "Drawn from the generator: post-processing.")]
    content += _accuracies(report)
    content += [Heading("Assumptions"), Items(report["assumptions"])]
    content += [Heading("What is not covered"), Items(report["not_covered"])]
    content += [Heading("Provenance"), Table((), _provenance(report))]
    if report["config"]["text"] is not None:
        content += [Heading("config.yaml", 3), Code(report["config"]["text"], "yaml")]
    content += [Heading("Code that computes these numbers", 3), Code(snippet(report), "python")]
    if report["diagnostics"] is not None:
        content += [Heading("Appendix: diagnostics"), Text(NOTE, "strong"), Text(WARNING)]
        for title, rows in diagnostics_appendix(report["diagnostics"]):
            content += [Heading(title, 3), Table((), [(name, _value(value)) for name, value in rows])]
    return [*content, Text("All numbers are rounded towards less privacy.", "note")]


# ---------------------------------------------------------------------------------------------------------------------
# Numbers, sentences and rows


def number(value: float | None, digits: int = 3) -> str:
    """Format a number, rounded up, with a power of ten where it is very small or large; a dash for ``None``.

    Example:
        >>> number(0.57201), number(1e-5), number(3.2e-7), number(60100, 6), number(None)
        ('0.573', '10⁻⁵', '3.2 × 10⁻⁷', '60100', '—')
    """
    if value is None:
        return "—"
    value = round_up(value, digits)
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = "10" + str(int(exponent)).translate(SUPERSCRIPTS)
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return power if mantissa == "1" else f"{mantissa} × {power}"


def percent(share: float) -> str:
    """Format a probability in percent, rounded up, at most 100."""
    return f"{number(min(100.0, 100 * share))} %"


def _one_in(rate: float) -> str:
    return f"1 in {round(1 / rate):,}"


def banner(report: dict[str, Any]) -> tuple[str, str] | None:
    """Return a title and a sentence where the numbers must not be relied upon, else ``None``."""
    reasons = " ".join(report["reasons"])
    if not report["private"]:
        return "NOT PRIVATE", f"The numbers below do not hold for this run. {reasons}"
    if not report["sound"]:
        return "NOT SOUND", f"The numbers below are not proven upper bounds. {reasons}"
    return None


def summary(report: dict[str, Any]) -> tuple[str, str, str]:
    """Return three sentences: the numbers of the guarantee, the same as an attack, and the tier of Gomez2025."""
    guarantee = report["guarantee"]
    mu, regret = number(guarantee["mu"]), number(guarantee["regret"], 2)
    where = "" if guarantee["exactly_gaussian"] else f" at error rates above {number(RESOLUTION)}"
    headline = (
        f"{'' if report['private'] else 'void: '}μ = {mu}{where} (regret {regret}); "
        f"(ε, δ) = ({number(guarantee['epsilon'])}, {number(guarantee['delta'])})"
    )
    attack = "There is no bound on what an attacker finds."
    if report["private"]:
        attack = (
            f"{'An' if report['sound'] else 'If the account holds, an'} attacker who accuses at most "
            f"{_one_in(guarantee['attack']['fpr'])} non-members finds at most {percent(guarantee['attack']['tpr'])} of "
            "the members, even if the attacker knows every other record, all releases, and everything computed from "
            "them."
        )
    if guarantee["tier"] == 1:
        tier = (
            f"Tier I: the regret of μ is {regret}, at most {REGRET_LIMIT:g}, so μ alone describes the guarantee"
            f"{where or ' at every false-positive rate'}."
        )
    else:
        tier = (
            f"Tier II: the regret of μ{where} is {regret}, above {REGRET_LIMIT:g}. μ alone overstates what an attacker "
            "can do; the trade-off curve is the guarantee."
        )
    return headline, attack, tier


def _main_numbers(report: dict[str, Any]) -> list[tuple[str, str]]:
    guarantee = report["guarantee"]
    return [
        ("μ (μ-GDP, rounded up)", number(guarantee["mu"])),
        ("regret of μ", number(guarantee["regret"], 2)),
        (f"ε at δ = {number(guarantee['delta'])}", number(guarantee["epsilon"])),
        ("releases accounted for", f"{report['releases']['planned']:,}"),
    ]


def _closed_form(guarantee: dict[str, Any]) -> str:
    return (
        "Every release reads all records with a constant sensitivity, so their composition is Gaussian: "
        f"μ = {number(guarantee['mu'], 6)} in closed form, and the two curves below coincide."
    )


def _trade_off(guarantee: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            number(row["fpr"]),
            f"{-round_up(-row['fnr'], 10):.10g}",  # rounded down
            number(row["tpr"]),
            number(row["tpr_gaussian"]),
        )
        for row in guarantee["trade_off"]
    ]


def _epsilons(guarantee: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            number(row["delta"]) + (" (target)" if row["target"] else ""),
            number(row["epsilon_pld"]),
            number(row["epsilon_rdp"]),
        )
        for row in guarantee["epsilon_delta"]
    ]


def _released(report: dict[str, Any]) -> str:
    releases = report["releases"]
    return (
        f"Releases made: {releases['made']:,}; accounted for: {releases['planned']:,}; records in the data set: "
        f"{releases['sample_size']:,}. Neighbouring data sets: {releases['neighboring_relation']}. Everything that is "
        "computed from the releases (training, samples, pictures) is post-processing and costs nothing."
    )


def _covered_runs(report: dict[str, Any]) -> str:
    covered = report["runs"]["covered"]
    which = f"run{'s' if len(covered) > 1 else ''} {', '.join(covered)}" if covered else "the run in this directory"
    return (
        f"The guarantee covers the releases of {which}. Other runs on the same records are not covered: their "
        "guarantees compose with this one, and the costs add up."
    )


def _group(group: dict[str, Any]) -> list[tuple[str, str]]:
    mechanism = group["mechanism"]
    kind = "root mean square; random, its law is accounted for" if group["sensitivity_is_random"] else "L2, replace-one"
    rows = [
        ("releases", f"{group['count']:,}"),
        ("records", f"{group['sample_size']:,}"),
        ("records read by one release", f"{group['batch_size']:,} (q = {number(group['sampling_rate'], 4)})"),
        ("subsampling", group["subsampling"]),
        ("noise, standard deviation", f"{group['sigma']:.6g}"),
        ("sensitivity", f"{number(group['sensitivity'], 4)} ({kind})"),
        ("noise / sensitivity", f"{group['sigma'] / group['sensitivity']:.4g}"),
    ]
    if mechanism["mechanism"] == "projections":
        rows += [
            ("directions", f"{mechanism['n_projections']:,} {mechanism['kind']} in {mechanism['dim']:,} dimensions"),
            ("statistic", str(mechanism["statistic"])),
            ("bound on a row", f"{mechanism['row_norm']:g} (L2 norm, enforced by clipping)"),
            ("law of the sensitivity", str(mechanism["bound"])),
        ]
    names = ("n_quantiles", "n_classes", "failure_prob", "noise_seed")
    return rows + [(name, str(mechanism[name])) for name in names if mechanism.get(name) is not None]


def _accuracies(report: dict[str, Any]) -> list[Block]:
    titles = {
        "evaluation": (
            "Accuracy on a public benchmark",
            "Measured without noise on records that the run declares a public benchmark; outside the guarantee.",
        ),
        "private_evaluation": (
            "Accuracy on private records: NOT COVERED",
            "Measured without noise on private records; outside the guarantee.",
        ),
    }
    content: list[Block] = []
    for key, (title, note) in titles.items():
        rows = [(r["dataset"], r["classifier"], r["train"], f"{r['accuracy']:.1f}") for r in report[key] or []]
        if rows:
            columns = ("data set", "classifier", "trained on", "accuracy, %")
            content += [Heading(title), Table(columns, rows, (3,)), Text(note, "note")]
    return content


def _provenance(report: dict[str, Any]) -> list[tuple[str, str]]:
    ledger, config = report["ledger"], report["config"]
    return [
        ("run", str(report["runs"]["this"] or "—")),
        ("ledger, hash of the last entry", str(ledger["head"])),
        ("config, SHA-256 in the ledger", str(ledger["config_sha256"] or "—")),
        ("config.yaml, SHA-256", str(config["sha256"] or "no such file")),
        ("accountant of the budget", "PLD (dp_accounting)" if report["accountant"] == "pld" else "RDP (autodp)"),
        ("dpswd of the run", str(ledger["version"] or "—")),
        (
            "versions of this report",
            ", ".join(f"{name} {found}" for name, found in report["versions"].items() if found),
        ),
    ]


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_value(part) for part in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "—"}[value]
    return number(value, 4) if isinstance(value, float) else str(value)


def snippet(report: dict[str, Any]) -> str:
    """Return Python that computes the numbers of the report from the releases alone."""
    kinds = {"projections": "ProjectionMechanism", "gaussian": "GaussianMechanism"}
    groups, delta = report["releases"]["groups"], report["guarantee"]["delta"]
    used = sorted({kinds[group["mechanism"]["mechanism"]] for group in groups})
    lines = [
        "from dpswd.accounting.accountant import PrivacyAccountant",
        f"from dpswd.mechanism import {', '.join(used)}",
        "from dpswd.report.gdp import TABLE_FPR, TradeOff",
        "",
        'accountant = PrivacyAccountant("pld")',
    ]
    for group in groups:
        fields = {name: value for name, value in group["mechanism"].items() if name != "mechanism"}
        lines.append(f"mechanism = {kinds[group['mechanism']['mechanism']]}(")
        lines += [f"    {name}={value!r}," for name, value in fields.items() if value is not None]
        lines.append(")")
        lines.append(f"accountant.step(mechanism, sample_size={group['sample_size']}, n_releases={group['count']})")
    lines += [
        "",
        f"curve = TradeOff.of(accountant.resolve({delta!r}))  # conversions by gdpnum",
        "print(curve.mu, curve.regret)",
        f"print(accountant.get_epsilon({delta!r}))",
        "for fpr, fnr in zip(TABLE_FPR, curve.fnr(TABLE_FPR)):",
        "    print(fpr, fnr)",
    ]
    return "\n".join(lines)


# ---------------------------------------------------------------------------------------------------------------------
# HTML

_CAPTIONS = {
    "trade_off": (
        "Trade-off curve",
        "Error rates of the best attack. Higher is more private. The μ-GDP curve (dashed) is a lower bound.",
    ),
    "attack": (
        "Small false-positive rates",
        "The same where few non-members are accused. Lower is more private.",
    ),
    "profile": ("Privacy profile", "All these (ε, δ) hold at the same time."),
}


def html(name: str, content: Sequence[Block]) -> str:
    """Return one self-contained HTML page."""
    style = importlib.resources.files("dpswd.report").joinpath("report.css").read_text(encoding="utf-8")
    body = "\n".join(map(_html, content))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>Privacy report: {escape(name)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{escape(text)}</h{level}>"
        case Text(text, "strong"):
            return f"<p><strong>{escape(text)}</strong></p>"
        case Text(text, style):
            return f'<p class="{style}">{escape(text)}</p>' if style else f"<p>{escape(text)}</p>"
        case Banner(title, text):
            return f'<div class="banner" role="alert"><strong>{escape(title)}</strong><p>{escape(text)}</p></div>'
        case Facts(numbers, _):
            cells = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in numbers)
            return f'<dl class="facts">{"".join(cells)}</dl>'
        case Table():
            return _html_table(block)
        case Items(items):
            return "<ul>\n" + "\n".join(f"<li>{escape(item)}</li>" for item in items) + "\n</ul>"
        case Code(text, _):
            return f"<pre>{escape(text)}</pre>"
        case Plots(pictures):
            return '<div class="plots">\n' + "\n".join(_html_plot(*item) for item in pictures.items()) + "\n</div>"
        case Samples(png, caption):
            image = f'<img alt="Synthetic samples" src="data:image/png;base64,{escape(png)}">'
            return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def _html_plot(name: str, svg: str) -> str:
    title, text = _CAPTIONS[name]
    labelled = svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
    return f"<figure>\n{labelled}\n<figcaption><b>{escape(title)}.</b> {escape(text)}</figcaption>\n</figure>"


def _html_table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str, style: str = "") -> str:
        parts = (f"<{tag}{' class=n' if i in table.numeric else ''}>{escape(c)}</{tag}>" for i, c in enumerate(cells))
        return f"<tr{style}>{''.join(parts)}</tr>"

    style = "wide" if len(table.columns) > 2 else "narrow" if table.columns else "pairs"
    head = f"<thead>{row(table.columns, 'th')}</thead>\n" if table.columns else ""
    body = "\n".join(row(cells, "td", " class=mark" * (i in table.marked)) for i, cells in enumerate(table.rows))
    return f'<table class="{style}">\n{head}<tbody>\n{body}\n</tbody>\n</table>'


# ---------------------------------------------------------------------------------------------------------------------
# Markdown


def markdown(content: Sequence[Block]) -> str:
    """Return a Markdown section, which can be pasted into a model card."""
    return "\n\n".join(text for text in map(_markdown, content) if text) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * (level + 1)} {_escape(text)}"
        case Text(text, "strong"):
            return f"**{_escape(text)}**"
        case Text(text, _):
            return _escape(text)
        case Banner(title, text):
            return f"> **{_escape(title)}.** {_escape(text)}"
        case Facts(_, line):
            return f"**{_escape(line)}**"
        case Table(columns, rows, numeric):
            rule = ["---:" if i in numeric else "---" for i in range(len(columns or rows[0]))]
            escaped = [[_escape(cell) for cell in row] for row in (columns or ("what", "value"), *rows)]
            return "\n".join("| " + " | ".join(row) + " |" for row in (escaped[0], rule, *escaped[1:]))
        case Items(items):
            return "\n".join(f"- {_escape(item)}" for item in items)
        case Code(text, language):
            longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
            fence = "`" * max(3, longest + 1)
            return f"{fence}{language}\n{text.rstrip()}\n{fence}"
        case Samples():
            return "![Synthetic samples](samples.png)"
        case Plots():
            return ""


def _escape(text: str) -> str:
    """Escape the characters that Markdown or HTML interprets, and join lines."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~!])", r"\\\1", text)
