"""Report of a run as Markdown and JSON, and the Markdown as one HTML page.

Numbers are rounded to three digits, towards less privacy; report.json has them unrounded. The page has no script and
loads nothing; all text of the run is escaped.
"""

import base64
import importlib.resources
import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from dpswd._files import atomic_write
from dpswd.accounting.accountant import round_up
from dpswd.report.collect import collect
from dpswd.report.gdp import REGRET_LIMIT, RESOLUTION
from dpswd.report.plots import draw

__all__ = ["write_report"]

DIGITS = 3
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
FACTS = ("what", "value")  # columns of a table
PLOT = """![Trade-off curve](curve.svg)

*Error rates of the best attack, and its hits where few non-members are accused. μ-GDP bounds the curve of the run.*"""


def write_report(run_dir: str | Path, *, title: str | None = None) -> dict[str, Any]:
    """Write report.html, report.md and report.json into a run directory.

    Args:
        run_dir: The run directory.
        title: Title; by default "Synthetic records of NAME", as the run states, else of the directory.

    Returns:
        The content of report.json.

    Raises:
        InputError: If the run cannot be read or contradicts itself (nothing is written then).

    Example:
        >>> import tempfile, torch
        >>> from dpswd import Budget, ClassCounts, PrivateRecords
        >>> records, query = PrivateRecords(torch.rand(10, 3), torch.arange(10) % 2, classes=[0, 1]), ClassCounts(2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Budget(records, [query], target_epsilon=1, target_delta=1e-5, run_dir=folder):
        ...         counts = query.release(records)
        ...     report = write_report(folder, title="Counts")
        >>> report["title"], report["guarantee"]["epsilon"] <= 1.0
        ('Counts', True)
    """
    report, curve = collect(run_dir, title=title)
    texts = {
        "report.html": html(report, draw(curve)),
        "report.md": markdown(report),
        "report.json": json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
    }
    for name, text in texts.items():
        atomic_write(Path(run_dir) / name, text.encode())
    return report


def markdown(report: dict[str, Any]) -> str:
    """Return a Markdown section, which can be pasted into a model card."""
    return "\n\n".join(_parts(report)) + "\n"


def html(report: dict[str, Any], curve: bytes) -> str:
    """Return the same as one self-contained HTML page, with the plot of :func:`dpswd.report.plots.draw`."""
    from markdown_it import MarkdownIt  # needed here only

    text = "\n\n".join(
        part.removeprefix("#") for part in _parts(report, plot=True)
    )  # headings from level 1
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    images = {name: f"png;base64,{content}" for name, content in report["pictures"].items()}
    images["curve.svg"] = f"svg+xml;base64,{base64.b64encode(curve).decode()}"
    for name, content in images.items():
        body = body.replace(f'src="{name}"', f'src="data:image/{content}"')
    page = (
        importlib.resources.files("dpswd.report").joinpath("page.html").read_text(encoding="utf-8")
    )
    return Template(page).substitute(title=escape(report["title"]), body=body)


# Parts: headings, paragraphs, lists and tables in Markdown


def _parts(report: dict[str, Any], *, plot: bool = False) -> list[str]:
    return [*_head(report), *_guarantee(report, plot), *_releases(report), *_provenance(report)]


def _head(report: dict[str, Any]) -> list[str]:
    warning, (headline, attack, _) = banner(report), summary(report)
    parts = [f"## {_escape(report['title'])}"]
    if warning:
        parts.append(f"> **{warning[0]}.** {_escape(warning[1])}")
    if report["pictures"]:
        classes = report["records"]["classes"] if "samples.png" in report["pictures"] else []
        note = f" One row per class: {_escape(', '.join(classes))}." if classes else ""
        parts.append(" ".join(f"![Synthetic records]({name})" for name in report["pictures"]))
        parts.append(f"*Synthetic records: post-processing of the releases.{note}*")
    topics = ", ".join(line.split(":")[0].lower() for line in report["not_covered"]).capitalize()
    rows = [(topic, " ".join(report[topic])) for topic in ("public", "protected")]
    parts.append(_table(("", ""), [*rows, ("not covered", f"{topics}; see below.")]))
    return [*parts, _escape(attack), f"**{_escape(headline)}**", *map(_escape, report["caveats"])]


def _guarantee(report: dict[str, Any], plot: bool) -> list[str]:
    guarantee = report["guarantee"]
    parts = ["### What is guaranteed", _escape(summary(report)[2])]
    parts += [PLOT] if plot else []
    return [
        *parts,
        "#### What an attacker can do: the trade-off curve",
        _numbers(
            {
                "non-members accused (FPR)": "fpr",
                "members found, at most (TPR)": "tpr",
                "TPR of μ-GDP": "tpr_gaussian",
            },
            guarantee["trade_off"],
        ),
        "#### (ε, δ)",
        _numbers(
            {
                "δ": "delta",
                "ε (exact, PLD)": "epsilon_pld",
                "ε (second accountant, RDP)": "epsilon_rdp",
            },
            guarantee["epsilon_delta"],
        ),
        "*Both columns are valid upper bounds; the smaller one is tighter.*",
        "#### Privacy profile: all these (ε, δ) hold at the same time",
        _numbers({"ε": "epsilon", "δ(ε)": "delta"}, guarantee["profile"]),
    ]


def _releases(report: dict[str, Any]) -> list[str]:
    releases = report["releases"]
    parts = [
        "### What was released",
        f"Releases made: {releases['made']:,}; accounted for: {releases['planned']:,}. Everything that is computed "
        "from the releases (training, samples, pictures) is post-processing and costs nothing.",
        f"The guarantee covers the releases of run {_escape(report['runs']['this'] or '?')}. Other runs on the same "
        "records are not covered: their guarantees compose with this one, and the costs add up.",
    ]
    for group in releases["groups"]:
        name = group["mechanism"].get("name") or group["description"]
        parts += [f"#### {_escape(name)}", _table(FACTS, _group(group))]
    if report["evaluation"]:
        columns = ("dataset", "classifier", "train", "accuracy")
        rows = [[str(row[name]) for name in columns] for row in report["evaluation"]]
        parts += [
            "### Accuracy on a public benchmark",
            _table(("data set", "classifier", "trained on", "accuracy, %"), rows),
            "*Measured on records that the run declares a public benchmark; outside the guarantee.*",
        ]
    return parts


def _group(group: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what a reviewer looks for in a release, and then all fields of its mechanism."""
    rate = group["sampling_rate"]
    kind = (
        "root mean square; random, its law is accounted for"
        if group["sensitivity_is_random"]
        else "L2, replace-one"
    )
    subset = f" (q = {number(rate)}, a fresh subset of fixed size)" if rate < 1 else " (all)"
    fields = [(name, str(value)) for name, value in group["mechanism"].items() if value is not None]
    return [
        ("releases", f"{group['count']:,}"),
        ("records read by one release", f"{group['batch_size']:,}{subset}"),
        ("noise, standard deviation", number(group["sigma"], down=True)),
        ("sensitivity", f"{number(group['sensitivity'])} ({kind})"),
        ("noise / sensitivity", number(group["sigma"] / group["sensitivity"], down=True)),
        *fields,
    ]


def _provenance(report: dict[str, Any]) -> list[str]:
    ledger, config, versions = report["ledger"], report["config"], report["versions"]
    rows = {
        "run": report["runs"]["this"],
        "ledger, hash of the last entry": ledger["head"],
        "config, SHA-256 in the ledger": ledger["config_sha256"],
        "config.yaml, SHA-256": config["sha256"],
        "accountant of the budget": "PLD (dp_accounting)"
        if report["accountant"] == "pld"
        else "RDP (autodp)",
        "dpswd of the run": ledger["version"],
        "versions of this report": ", ".join(
            f"{name} {found}" for name, found in versions.items() if found
        ),
    }
    parts = ["### Assumptions", _items(report["assumptions"])]
    parts += ["### What is not covered", _items(report["not_covered"])]
    parts += [
        "### Provenance",
        _table(FACTS, [(name, str(value or "—")) for name, value in rows.items()]),
    ]
    if config["text"] is not None:
        lines = [
            line for line in config["text"].splitlines() if not line.rstrip().endswith(": null")
        ]
        parts += ["#### Settings", _code("\n".join(lines), "yaml")]
    parts += ["#### Code that computes these numbers", _code(snippet(report), "python")]
    return [
        *parts,
        "*All numbers are rounded towards less privacy; report.json has them unrounded.*",
    ]


def _escape(text: str) -> str:
    """Escape the characters that Markdown or HTML interprets, and join lines."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~!])", r"\\\1", text)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], rule: str = "---") -> str:
    lines = [[_escape(cell) for cell in row] for row in (columns, *rows)]
    return "\n".join(
        "| " + " | ".join(line) + " |" for line in (lines[0], [rule] * len(columns), *lines[1:])
    )


def _numbers(columns: dict[str, str], rows: Iterable[dict[str, Any]]) -> str:
    """Return a table of numbers; ``columns`` are headings and the keys of the numbers in each row."""
    return _table(
        list(columns), [[number(row[key]) for key in columns.values()] for row in rows], rule="---:"
    )


def _items(items: Iterable[str]) -> str:
    return "\n".join(f"- {_escape(item)}" for item in items)


def _code(text: str, language: str) -> str:
    """Return a code block whose fence is longer than any run of backticks in the text."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


# Numbers, sentences and rows


def number(value: float | None, *, down: bool = False) -> str:
    """Format a number with three digits, rounded up (or ``down``); a dash for ``None``."""
    if value is None:
        return "—"
    value = -round_up(-value, DIGITS) if down else round_up(value, DIGITS)
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.{DIGITS}g}" if abs(value) < 10**DIGITS else f"{value:.0f}"
    mantissa, exponent = f"{value:.{DIGITS - 1}e}".split("e")
    power = "10" + str(int(exponent)).translate(SUPERSCRIPTS)
    mantissa = mantissa.rstrip("0").rstrip(".")
    return power if mantissa == "1" else f"{mantissa} × {power}"


def percent(share: float) -> str:
    """Format a probability in percent, rounded up, at most 100."""
    return f"{number(min(100.0, 100 * share))} %"


def banner(report: dict[str, Any]) -> tuple[str, str] | None:
    """Return a title and a sentence where the numbers are conditional or must not be relied upon, else ``None``."""
    reasons = " ".join(report["reasons"])
    if not report["private"]:
        return "NOT PRIVATE", f"The numbers below do not hold for this run. {reasons}"
    if report["conditions"]:
        listed = " ".join(f"({i}) {line}" for i, line in enumerate(report["conditions"], 1))
        unproven = f" Besides, they are not proven upper bounds. {reasons}" if reasons else ""
        return "CONDITIONAL" + " AND NOT SOUND" * bool(reasons), (
            "The records were handed over by the caller, as tensors. The numbers below hold on these conditions, "
            f"which the library did not check and the caller answers for: {listed}{unproven}"
        )
    return (
        None
        if report["sound"]
        else ("NOT SOUND", f"The numbers below are not proven upper bounds. {reasons}")
    )


def summary(report: dict[str, Any]) -> tuple[str, str, str]:
    """Return three sentences: the numbers of the guarantee, the same as an attack, and the tier of Gomez2025."""
    found = report["guarantee"]
    mu, regret, epsilon, delta = (
        number(found[name]) for name in ("mu", "regret", "epsilon", "delta")
    )
    where = "" if found["exactly_gaussian"] else f" at error rates above {number(RESOLUTION)}"
    kind = "void: " if not report["private"] else "conditional: " if report["conditions"] else ""
    premise = (
        "On the three conditions above, an" if report["conditions"] else "If the account holds, an"
    )
    rates = f"1 in {1 / found['attack']['fpr']:,.0f} non-members finds at most {percent(found['attack']['tpr'])}"
    attack = (
        f"{'An' if report['sound'] else premise} attacker who accuses at most {rates} of the members, even knowing "
        "every other record, all releases, and everything computed from them."
    )
    tiers = {
        1: f"the regret of μ is {regret}, at most {REGRET_LIMIT:g}, so μ alone describes the guarantee"
        f"{where or ' at every false-positive rate'}.",
        2: f"the regret of μ{where} is {regret}, above {REGRET_LIMIT:g}. μ alone overstates what an attacker can do; "
        "the trade-off curve is the guarantee.",
    }
    return (
        f"{kind}μ = {mu}{where} (regret {regret}); (ε, δ) = ({epsilon}, {delta})",
        attack if report["private"] else "There is no bound on what an attacker finds.",
        f"Tier {'I' * found['tier']}: {tiers[found['tier']]}",
    )


def snippet(report: dict[str, Any]) -> str:
    """Return Python that computes the numbers of the report from the releases alone."""
    used, steps = set(), []
    for group in report["releases"]["groups"]:
        fields = {name: value for name, value in group["mechanism"].items() if value is not None}
        kind = {"projections": "ProjectionMechanism", "gaussian": "GaussianMechanism"}[
            fields.pop("mechanism")
        ]
        used.add(kind)
        steps.append(f"mechanism = {kind}(**{fields})")
        steps.append(
            f"accountant.step(mechanism, sample_size={group['sample_size']}, n_releases={group['count']})"
        )
    return _CODE.format(
        used=", ".join(sorted(used)), steps="\n".join(steps), delta=report["guarantee"]["delta"]
    )


_CODE = """from dpswd import PrivacyAccountant, {used}
from dpswd.report.gdp import TABLE_FPR, TradeOff

accountant = PrivacyAccountant()
{steps}

curve = TradeOff.of(accountant.resolve({delta}))  # conversions by gdpnum
print(curve.mu, curve.regret)
print(accountant.get_epsilon({delta}))
for fpr, fnr in zip(TABLE_FPR, curve.fnr(TABLE_FPR)):
    print(fpr, fnr)"""
