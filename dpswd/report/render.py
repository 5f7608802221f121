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
from typing import Any

from dpswd._files import atomic_write
from dpswd.accounting.accountant import round_up
from dpswd.report.collect import PICTURES, collect
from dpswd.report.gdp import REGRET_LIMIT, RESOLUTION
from dpswd.report.plots import draw

__all__ = ["write_report"]

DIGITS = 3
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
PLOTS = "<plots>"  # where the plots stand in the HTML page
FACTS = ("what", "value")  # columns of a table


def write_report(run_dir: str | Path, *, title: str | None = None) -> dict[str, Any]:
    """Write report.html, report.md and report.json into a run directory.

    Args:
        run_dir: The run directory.
        title: Title; by default "Synthetic records of NAME", with the name that the run states.

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
        "report.html": html(report, draw(report, curve)),
        "report.md": markdown(report),
        "report.json": json.dumps(report, indent=1, ensure_ascii=False, allow_nan=False) + "\n",
    }
    for name, text in texts.items():
        atomic_write(Path(run_dir) / name, text.encode())
    return report


def markdown(report: dict[str, Any]) -> str:
    """Return a Markdown section, which can be pasted into a model card."""
    return "\n\n".join(part for part in _parts(report) if part != PLOTS) + "\n"


def html(report: dict[str, Any], plots: dict[str, bytes]) -> str:
    """Return the same as one self-contained HTML page, with the plots of :func:`dpswd.report.plots.draw`."""
    from markdown_it import MarkdownIt  # needed here only

    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    figures = "\n".join(_figure(name, svg) for name, svg in plots.items())
    together = f'<div class="plots">\n{figures}\n</div>'
    body = "\n".join(together if part == PLOTS else parser.render(part.removeprefix("#")) for part in _parts(report))
    for name, content in report["pictures"].items():
        body = body.replace(f'src="{name}"', f'src="data:image/png;base64,{content}"')
    style = importlib.resources.files("dpswd.report").joinpath("report.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>{escape(report['title'])}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


_CAPTIONS = {
    "trade_off": "Trade-off curve. Error rates of the best attack. Higher is more private. μ-GDP is a lower bound.",
    "attack": "Small false-positive rates. The same where few non-members are accused. Lower is more private.",
    "profile": "Privacy profile. All these (ε, δ) hold at the same time.",
}


def _figure(name: str, svg: bytes) -> str:
    title, text = _CAPTIONS[name].split(". ", 1)
    image = f'<img alt="{title}" src="data:image/svg+xml;base64,{base64.b64encode(svg).decode()}">'
    return f"<figure>\n{image}\n<figcaption><b>{title}.</b> {text}</figcaption>\n</figure>"


# Parts


def _parts(report: dict[str, Any]) -> list[str]:
    """Return headings, paragraphs, lists and tables in Markdown."""
    guarantee, releases, this = report["guarantee"], report["releases"], report["runs"]["this"]
    warning = banner(report)
    headline, attack, tier = summary(report)
    parts = [f"## {_escape(report['title'])}"]
    parts += [f"> **{warning[0]}.** {_escape(warning[1])}"] if warning else []
    if shown := [name for name in PICTURES if name in report["pictures"]]:
        parts += [" ".join(f"![Synthetic records]({name})" for name in shown)]
        names = [_escape(str(name)) for name in report["records"]["classes"] or []]
        note = f" One row per class: {', '.join(names)}." if names and "samples.png" in shown else ""
        parts += [f"*Synthetic records: post-processing of the releases.{note}*"]
    parts += [_box(report), _escape(attack), f"**{_escape(headline)}**", *map(_escape, report["caveats"])]
    parts += ["### What is guaranteed", _escape(tier)]
    if guarantee["exactly_gaussian"]:
        parts.append(
            "Every release reads all records with a constant sensitivity, so their composition is Gaussian: μ has a "
            "closed form, and the two curves below coincide."
        )
    attacks = [(_one_in(row["fpr"]), percent(row["tpr"])) for row in guarantee["attacks"]]
    parts += [PLOTS, "#### What an attacker can do"]
    parts += [_table(("non-members accused", "members found, at most"), attacks, right=(1,))]
    if guarantee["tier"] == 2:
        rates = [tuple(number(row[key]) for key in ("fpr", "tpr", "tpr_gaussian")) for row in guarantee["trade_off"]]
        parts += ["#### Tier II: trade-off curve"]
        parts += [_table(("FPR", "TPR, at most", "TPR of μ-GDP"), rates, right=(0, 1, 2))]
    epsilons = [
        (number(row["delta"]) + " (target)" * row["target"], number(row["epsilon_pld"]), number(row["epsilon_rdp"]))
        for row in guarantee["epsilon_delta"]
    ]
    parts += ["#### (ε, δ)", _table(("δ", "ε (exact, PLD)", "ε (second accountant, RDP)"), epsilons, right=(1, 2))]
    parts += ["*Both columns are valid upper bounds; the smaller one is tighter.*"]
    profile = [(number(point["epsilon"]), number(point["delta"])) for point in guarantee["profile"][::4]]
    parts += ["#### Privacy profile", _table(("ε", "δ(ε)"), profile, right=(0, 1))]
    parts += ["### What was released"]
    parts += [
        f"Releases made: {releases['made']:,}; accounted for: {releases['planned']:,}. Everything that is computed "
        "from the releases (training, samples, pictures) is post-processing and costs nothing.",
        f"The guarantee covers the releases of run {_escape(this or '?')}. Other runs on the same records are not "
        "covered: their guarantees compose with this one, and the costs add up.",
    ]
    for group in releases["groups"]:
        parts += [f"#### {_escape(group['mechanism'].get('name') or group['description'])}"]
        parts += [_table(FACTS, _group(group))]
    if report["evaluation"]:
        rows = [(r["dataset"], r["classifier"], r["train"], f"{r['accuracy']:.1f}") for r in report["evaluation"]]
        columns = ("data set", "classifier", "trained on", "accuracy, %")
        parts += ["### Accuracy on a public benchmark", _table(columns, rows, right=(3,))]
        parts += ["*Measured on records that the run declares a public benchmark; outside the guarantee.*"]
    parts += ["### Assumptions", _items(report["assumptions"])]
    parts += ["### What is not covered", _items(report["not_covered"])]
    parts += ["### Provenance", _table(FACTS, _provenance(report))]
    if report["config"]["text"] is not None:
        set_lines = [line for line in report["config"]["text"].splitlines() if not line.rstrip().endswith(": null")]
        parts += ["#### Settings", _code("\n".join(set_lines), "yaml")]
    parts += ["#### Code that computes these numbers", _code(snippet(report), "python")]
    return [*parts, "*All numbers are rounded towards less privacy; report.json has them unrounded.*"]


def _box(report: dict[str, Any]) -> str:
    """Return the table of what is public, protected and not covered."""
    topics = ", ".join(line.split(":")[0].lower() for line in report["not_covered"]).capitalize()
    rows = [(topic, " ".join(report[topic])) for topic in ("public", "protected")]
    return _table(("", ""), [*rows, ("not covered", f"{topics}; see below.")])


def _escape(text: str) -> str:
    """Escape the characters that Markdown or HTML interprets, and join lines."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~!])", r"\\\1", text)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], right: tuple[int, ...] = ()) -> str:
    """Return a table; ``right`` are the columns of numbers."""
    rule = ["---:" if i in right else "---" for i in range(len(columns))]
    lines = [[_escape(cell) for cell in row] for row in (columns, *rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (lines[0], rule, *lines[1:]))


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


def _one_in(rate: float) -> str:
    return f"1 in {round(1 / rate):,}"


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
    return None if report["sound"] else ("NOT SOUND", f"The numbers below are not proven upper bounds. {reasons}")


def summary(report: dict[str, Any]) -> tuple[str, str, str]:
    """Return three sentences: the numbers of the guarantee, the same as an attack, and the tier of Gomez2025."""
    guarantee = report["guarantee"]
    mu, regret = number(guarantee["mu"]), number(guarantee["regret"])
    where = "" if guarantee["exactly_gaussian"] else f" at error rates above {number(RESOLUTION)}"
    kind = "void: " if not report["private"] else "conditional: " if report["conditions"] else ""
    headline = f"{kind}μ = {mu}{where} (regret {regret}); "
    headline += f"(ε, δ) = ({number(guarantee['epsilon'])}, {number(guarantee['delta'])})"
    attack = "There is no bound on what an attacker finds."
    if report["private"]:
        premise = "On the three conditions above, an" if report["conditions"] else "If the account holds, an"
        attack = (
            f"{'An' if report['sound'] else premise} attacker who accuses at most "
            f"{_one_in(guarantee['attack']['fpr'])} non-members finds at most {percent(guarantee['attack']['tpr'])} of "
            "the members, even knowing every other record, all releases, and everything computed from them."
        )
    if guarantee["tier"] == 1:
        tier = f"Tier I: the regret of μ is {regret}, at most {REGRET_LIMIT:g}, so μ alone describes the guarantee"
        return headline, attack, f"{tier}{where or ' at every false-positive rate'}."
    tier = f"Tier II: the regret of μ{where} is {regret}, above {REGRET_LIMIT:g}."
    return headline, attack, f"{tier} μ alone overstates what an attacker can do; the trade-off curve is the guarantee."


def _group(group: dict[str, Any]) -> list[tuple[str, str]]:
    mechanism, rate = group["mechanism"], group["sampling_rate"]
    kind = "root mean square; random, its law is accounted for" if group["sensitivity_is_random"] else "L2, replace-one"
    subset = f" (q = {number(rate)}, a fresh subset of fixed size)" if rate < 1 else " (all)"
    rows = [
        ("releases", f"{group['count']:,}"),
        ("records read by one release", f"{group['batch_size']:,}{subset}"),
        ("noise, standard deviation", number(group["sigma"], down=True)),
        ("sensitivity", f"{number(group['sensitivity'])} ({kind})"),
        ("noise / sensitivity", number(group["sigma"] / group["sensitivity"], down=True)),
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


def _provenance(report: dict[str, Any]) -> list[tuple[str, str]]:
    ledger, versions = report["ledger"], report["versions"]
    rows = {
        "run": report["runs"]["this"],
        "ledger, hash of the last entry": ledger["head"],
        "config, SHA-256 in the ledger": ledger["config_sha256"],
        "config.yaml, SHA-256": report["config"]["sha256"] or "no such file",
        "accountant of the budget": "PLD (dp_accounting)" if report["accountant"] == "pld" else "RDP (autodp)",
        "dpswd of the run": ledger["version"],
        "versions of this report": ", ".join(f"{name} {found}" for name, found in versions.items() if found),
    }
    return [(name, str(value or "—")) for name, value in rows.items()]


def snippet(report: dict[str, Any]) -> str:
    """Return Python that computes the numbers of the report from the releases alone."""
    kinds = {"projections": "ProjectionMechanism", "gaussian": "GaussianMechanism"}
    groups, delta = report["releases"]["groups"], report["guarantee"]["delta"]
    used = sorted({kinds[group["mechanism"]["mechanism"]] for group in groups})
    steps = []
    for group in groups:
        fields = {name: value for name, value in group["mechanism"].items() if name != "mechanism"}
        steps.append(f"mechanism = {kinds[group['mechanism']['mechanism']]}(")
        steps += [f"    {name}={value!r}," for name, value in fields.items() if value is not None]
        size, count = group["sample_size"], group["count"]
        steps += [")", f"accountant.step(mechanism, sample_size={size}, n_releases={count})"]
    return _CODE.format(used=", ".join(used), steps="\n".join(steps), delta=repr(delta))


_CODE = """from dpswd import PrivacyAccountant, {used}
from dpswd.report.gdp import TABLE_FPR, TradeOff

accountant = PrivacyAccountant()
{steps}

curve = TradeOff.of(accountant.resolve({delta}))  # conversions by gdpnum
print(curve.mu, curve.regret)
print(accountant.get_epsilon({delta}))
for fpr, fnr in zip(TABLE_FPR, curve.fnr(TABLE_FPR)):
    print(fpr, fnr)"""
