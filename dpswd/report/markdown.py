"""A report as Markdown: headings, paragraphs, lists and tables.

All text of the run is escaped, since titles and names of classes may hold anything.
"""

import re
from collections.abc import Iterable, Sequence

from dpswd.report.facts import EqualReleases, Report
from dpswd.report.sentences import banner, number, number_rounded_down, summary
from dpswd.report.snippet import snippet

PLOT = "![Trade-off curve](curve.svg)"
PLOT_CAPTION = (
    "*Error rates of the best attack, and its hits where few non-members are accused. μ-GDP bounds "
    "the curve of the run.*"
)
ACCOUNTANTS = {"pld": "PLD (dp_accounting)", "rdp": "RDP (autodp)"}
NO_VALUE = "—"

_LEFT = "---"  # alignment of columns in a table
_RIGHT = "---:"


def markdown(report: Report) -> str:
    """Return a Markdown section, which can be pasted into a model card."""
    return "\n\n".join(_parts(report, plot=[])) + "\n"


def markdown_with_plot(report: Report) -> str:
    """Return the same for an HTML page.

    Headings start at level 1, and there is a reference to the picture ``curve.svg``.
    """
    parts = _parts(report, plot=[PLOT, PLOT_CAPTION])
    return "\n\n".join(part.removeprefix("#") for part in parts)


def _parts(report: Report, plot: list[str]) -> list[str]:
    """Return headings, paragraphs, lists and tables; the plot comes before its table."""
    return [
        f"## {escape(report.title)}",
        *_banner(report),
        *_pictures(report),
        _overview_table(report),
        *_key_sentences(report),
        "### What is guaranteed",
        escape(summary(report).tier),
        *plot,
        "#### What an attacker can do: the trade-off curve",
        _trade_off_table(report),
        "#### (ε, δ)",
        _epsilon_delta_table(report),
        "*Both columns are valid upper bounds; the smaller one is tighter.*",
        "#### Privacy profile: all these (ε, δ) hold at the same time",
        _profile_table(report),
        "### What was released",
        *_releases(report),
        *_accuracies(report),
        "### Assumptions",
        _list(report.assumptions),
        "### What is not covered",
        _list(report.not_covered),
        "### Provenance",
        _provenance_table(report),
        *_settings(report),
        "#### Code that computes these numbers",
        _code(snippet(report), "python"),
        "*All numbers are rounded towards less privacy; report.json has them unrounded.*",
    ]


# What comes first


def _banner(report: Report) -> list[str]:
    warning = banner(report)
    if warning is None:
        return []
    return [f"> **{warning.title}.** {escape(warning.text)}"]


def _pictures(report: Report) -> list[str]:
    if not report.pictures:
        return []
    images = " ".join(f"![Synthetic records]({name})" for name in report.pictures)
    caption = "Synthetic records: post-processing of the releases."
    if "samples.png" in report.pictures and report.records.classes:
        caption += f" One row per class: {escape(', '.join(report.records.classes))}."
    return [images, f"*{caption}*"]


def _overview_table(report: Report) -> str:
    topics = [line.split(":")[0].lower() for line in report.not_covered]
    not_covered = ", ".join(topics).capitalize()
    rows = [
        ("public", " ".join(report.public)),
        ("protected", " ".join(report.protected)),
        ("not covered", f"{not_covered}; see below."),
    ]
    return _table(("", ""), rows)


def _key_sentences(report: Report) -> list[str]:
    sentences = summary(report)
    caveats = [escape(caveat) for caveat in report.caveats]
    return [escape(sentences.attack), f"**{escape(sentences.numbers)}**", *caveats]


# Tables of the guarantee


def _trade_off_table(report: Report) -> str:
    columns = ("non-members accused (FPR)", "members found, at most (TPR)", "TPR of μ-GDP")
    rows = [
        (number(point.fpr), number(point.tpr), number(point.tpr_gaussian))
        for point in report.guarantee.trade_off
    ]
    best = report.guarantee.advantage_rates
    rate = f"{number(best.fpr)} (largest advantage)"
    rows.append((rate, number(best.tpr), number(best.tpr_gaussian)))
    return _table(columns, rows, alignment=_RIGHT)


def _epsilon_delta_table(report: Report) -> str:
    columns = ("δ", "ε (exact, PLD)", "ε (second accountant, RDP)")
    rows = [
        (number(row.delta), number(row.epsilon_pld), number(row.epsilon_rdp))
        for row in report.guarantee.epsilon_delta
    ]
    return _table(columns, rows, alignment=_RIGHT)


def _profile_table(report: Report) -> str:
    rows = [(number(point.epsilon), number(point.delta)) for point in report.guarantee.profile]
    return _table(("ε", "δ(ε)"), rows, alignment=_RIGHT)


# Releases


def _releases(report: Report) -> list[str]:
    n_releases = f"{report.releases.n_releases:,}"
    n_planned = f"{report.releases.n_planned:,}"
    run = escape(report.runs.this or "?")
    parts = [
        f"Releases made: {n_releases}; accounted for: {n_planned}. Everything that is computed "
        "from the releases (training, samples, pictures) is post-processing and costs nothing.",
        f"The guarantee covers the releases of run {run}. Other runs on the same records are not "
        "covered: their guarantees compose with this one, and the costs add up.",
    ]
    for group in report.releases.groups:
        name = group.mechanism.get("name") or group.description
        parts.append(f"#### {escape(name)}")
        parts.append(_release_table(report, group))
    return parts


def _release_table(report: Report, group: EqualReleases) -> str:
    """Return what a reviewer looks for in a release, then the fields of its mechanism."""
    batch = f"{group.batch_size:,}"
    if group.sampling_rate < 1:
        subset = f"(q = {number(group.sampling_rate)}, a fresh subset of fixed size)"
    else:
        subset = "(all)"
    counted = "records"
    if report.records.is_by_person:
        counted = "persons"
    if group.sensitivity_is_random:
        kind = "(root mean square; random, its law is accounted for)"
    else:
        kind = "(L2, replace-one)"
    rows = [
        ("releases", f"{group.count:,}"),
        (f"{counted} read by one release", f"{batch} {subset}"),
        ("noise, standard deviation", number_rounded_down(group.sigma)),
        ("sensitivity", f"{number(group.sensitivity)} {kind}"),
        ("noise / sensitivity", number_rounded_down(group.sigma / group.sensitivity)),
    ]
    for name, value in group.mechanism.items():
        if value is not None:
            rows.append((name, str(value)))
    return _table(("what", "value"), rows)


def _accuracies(report: Report) -> list[str]:
    if not report.evaluation:
        return []
    rows = [
        (str(row.dataset), str(row.classifier), str(row.train), str(row.accuracy))
        for row in report.evaluation
    ]
    return [
        "### Accuracy on a public benchmark",
        _table(("data set", "classifier", "trained on", "accuracy, %"), rows),
        "*Measured on records that the run declares a public benchmark; outside the guarantee.*",
    ]


# Provenance


def _provenance_table(report: Report) -> str:
    versions = [f"{name} {version}" for name, version in report.versions.items() if version]
    rows = [
        ("run", report.runs.this or NO_VALUE),
        ("ledger, hash of the last entry", report.ledger.head),
        ("config, SHA-256 in the ledger", report.ledger.config_sha256 or NO_VALUE),
        ("config.yaml, SHA-256", report.config.sha256 or NO_VALUE),
        ("accountant of the budget", ACCOUNTANTS[report.accountant]),
        ("dpswd of the run", report.ledger.version or NO_VALUE),
        ("versions of this report", ", ".join(versions)),
    ]
    return _table(("what", "value"), rows)


def _settings(report: Report) -> list[str]:
    """Return config.yaml without the keys that are not set."""
    if report.config.text is None:
        return []
    lines = [
        line for line in report.config.text.splitlines() if not line.rstrip().endswith(": null")
    ]
    return ["#### Settings", _code("\n".join(lines), "yaml")]


# Markdown


def escape(text: str) -> str:
    """Escape the characters that Markdown or HTML interprets, and join lines."""
    text = " ".join(text.split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~!])", r"\\\1", text)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]], alignment: str = _LEFT) -> str:
    """Return a table; its cells are escaped."""
    rule = "| " + " | ".join([alignment] * len(columns)) + " |"
    lines = [_table_row(columns), rule]
    lines += [_table_row(row) for row in rows]
    return "\n".join(lines)


def _table_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {escape(item)}" for item in items)


def _code(text: str, language: str) -> str:
    """Return a code block whose fence is longer than any run of backticks in the text."""
    runs = re.findall(r"`+", text)
    longest = max((len(run) for run in runs), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
