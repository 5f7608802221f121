"""A report as Markdown: headings, paragraphs, lists and tables.

All text of the run is escaped, since titles and names of classes may hold anything.
"""

import re
from collections.abc import Iterable, Sequence

from dpswd.report.facts import EqualReleases, Report
from dpswd.report.run_files import settings_of
from dpswd.report.sentences import NO_NUMBER, banner, number, number_rounded_down, summary
from dpswd.report.snippet import snippet

PLOT = "![Trade-off curve](curve.svg)"
PLOT_CAPTION = (
    "*Error rates of the best attack, and its hits where few non-members are accused. μ-GDP bounds "
    "the curve of the run.*"
)
ACCOUNTANTS = {"pld": "PLD (dp_accounting)", "rdp": "RDP (autodp)"}
FROM_SCRIPT = "none: started from a script"
NO_CONFIG = "none in this folder"

# What the pictures show.
_PICTURES = {
    "samples.png": "Synthetic records",
    "columns.png": "Histograms of synthetic records, of twelve columns at most",
    "adaptation.png": "Records of the public source, and synthetic records of the private target",
}

# Fields of a mechanism that the table of the releases has.
_IN_THE_TABLE = ("mechanism", "name", "sensitivity", "sigma", "batch_size")

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
    of_this_run = ""
    if report.together is not None:
        of_this_run = ": this run alone"
    return [
        f"## {escape(report.title)}",
        *_banner(report),
        *_pictures(report),
        _overview_table(report),
        *_key_sentences(report),
        f"### What is guaranteed{of_this_run}",
        escape(summary(report).tier),
        *plot,
        "#### What an attacker can do: the trade-off curve",
        _trade_off_table(report),
        "#### (ε, δ)",
        _epsilon_delta_table(report),
        "*Both columns are valid upper bounds; the smaller one is tighter.*",
        "#### Privacy profile: all these (ε, δ) hold at the same time",
        _profile_table(report),
        "*report.json has twice as many.*",
        "### What was released",
        *_releases(report),
        *_columns(report),
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
    names = list(report.pictures)
    if not names:
        return []
    if "adaptation.png" in names and "samples.png" in names:
        names.remove("samples.png")  # the other one has synthetic records, too
    to_check = [name for name in names if name in report.unchecked_pictures]
    known = [name for name in names if name not in to_check]
    titles = {name: _PICTURES[name] for name in known}
    images = " ".join(f"![{titles.get(name, name)}]({name})" for name in names)
    captions = [f"{title}." for title in titles.values()]
    if "samples.png" in known and report.records.classes:
        captions.append(f"One row per class: {', '.join(report.records.classes)}.")
    captions.append(_statement_on_records(to_check))
    return [images, f"*{escape(' '.join(captions))}*"]


def _statement_on_records(to_check: Sequence[str]) -> str:
    """Return whether pictures show private records, if it is known of all of them.

    Args:
        to_check: Names of those of which it is not.
    """
    if not to_check:
        return "No picture shows a private record."
    names = " and ".join(to_check)
    return (
        f"Code of your own, or an earlier version of dpswd, drew {names}: check that no private "
        "record is shown."
    )


def _overview_table(report: Report) -> str:
    topics = [line.split(":")[0].lower() for line in report.not_covered]
    not_covered = ", ".join(topics).capitalize()
    rows = [
        ("public", " ".join(report.public)),
        ("protected", " ".join(report.protected)),
        ("not covered", f"{not_covered}; see below."),
        ("publishing", report.publishing),
    ]
    return _table(("", ""), rows)


def _key_sentences(report: Report) -> list[str]:
    sentences = summary(report)
    caveats = [escape(caveat) for caveat in report.caveats]
    parts = [escape(sentences.attack)]
    if sentences.together:
        parts.append(f"**{escape(sentences.together)}**")
    parts.append(f"**{escape(sentences.numbers)}**")
    return [*parts, *caveats]


# Tables of the guarantee


def _trade_off_table(report: Report) -> str:
    """Return the table of the curve; that of mu-GDP has a column where it differs."""
    columns = ["non-members accused (FPR)", "members found, at most (TPR)"]
    best = report.guarantee.advantage_rates
    points = [(number(point.fpr), point) for point in report.guarantee.trade_off]
    points.append((f"{number(best.fpr)} (largest advantage)", best))
    rows = [[rate, number(point.tpr)] for rate, point in points]
    if not report.guarantee.exactly_gaussian:
        columns.append("TPR of μ-GDP")
        for row, (_, point) in zip(rows, points, strict=True):
            row.append(number(point.tpr_gaussian))
    return _table(columns, rows, [_RIGHT] * len(columns))


def _epsilon_delta_table(report: Report) -> str:
    columns = ("δ", "ε (exact, PLD)", "ε (second accountant, RDP)")
    rows = [
        (number(row.delta), number(row.epsilon_pld), number(row.epsilon_rdp))
        for row in report.guarantee.epsilon_delta
    ]
    return _table(columns, rows, [_RIGHT] * len(columns))


def _profile_table(report: Report) -> str:
    points = report.guarantee.profile[::2]
    rows = [(number(point.epsilon), number(point.delta)) for point in points]
    return _table(("ε", "δ(ε)"), rows, [_RIGHT, _RIGHT])


# Releases


def _releases(report: Report) -> list[str]:
    n_releases = f"{report.releases.n_releases:,}"
    n_planned = f"{report.releases.n_planned:,}"
    run = escape(report.runs.this or "?")
    scope = f"These are the releases of run {run}, which the guarantee covers."
    if report.together is not None:
        scope += " The total above covers all runs in the shared ledger."
    parts = [
        f"Releases made: {n_releases}; accounted for: {n_planned}. Everything that is computed "
        "from the releases (training, samples, pictures) reads no record and costs nothing "
        "(post-processing).",
        scope,
    ]
    parts.append(_release_table(report))
    if report.guarantee.exactly_gaussian:
        parts.append("*μ² is the sum of (sensitivity / σ)² over all releases.*")
    if any(group.sensitivity_is_random for group in report.releases.groups):
        parts.append("*RMS: root mean square; random, its law is accounted for.*")
    options = [_options(group) for group in report.releases.groups]
    options = [line for line in options if line]
    if options:
        parts.append(_list(options))
    return parts


def _release_table(report: Report) -> str:
    """Return what a reviewer looks for, a line for each kind of release."""
    counted = "records"
    if report.records.is_by_person:
        counted = "persons"
    columns = ("release", "times", f"{counted} read", "sensitivity (L2)", "noise σ", "σ / sens.")
    rows = []
    for group in report.releases.groups:
        read = f"{group.batch_size:,} (all)"
        if group.sampling_rate < 1:
            rate = number(group.sampling_rate)
            read = f"{group.batch_size:,}, a fresh random subset (q = {rate})"
        sensitivity = number(group.sensitivity)
        if group.sensitivity_is_random:
            sensitivity += " (RMS)"
        ratio = number_rounded_down(group.sigma / group.sensitivity)
        noise = number_rounded_down(group.sigma)
        rows.append((_name_of(group), f"{group.count:,}", read, sensitivity, noise, ratio))
    return _table(columns, rows, [_LEFT, _RIGHT, _LEFT, _RIGHT, _RIGHT, _RIGHT])


def _name_of(group: EqualReleases) -> str:
    return str(group.mechanism.get("name") or group.description)


def _options(group: EqualReleases) -> str:
    """Return the fields of a mechanism that the table lacks; empty without any."""
    fields = {
        name: value
        for name, value in group.mechanism.items()
        if value is not None and name not in _IN_THE_TABLE
    }
    if fields.get("per_unit") == 1:
        del fields["per_unit"]
    if not fields:
        return ""
    options = ", ".join(f"{name} = {value}" for name, value in fields.items())
    return f"{_name_of(group)}: {options}"


def _columns(report: Report) -> list[str]:
    """Return what each column can hold, a line for each."""
    if not report.records.columns:
        return []
    return ["### Columns: public facts, stated by the owner", _list(report.records.columns)]


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
        ("run", report.runs.this or NO_NUMBER),
        ("ledger, hash of the last entry", report.ledger.head),
        ("config, SHA-256 in the ledger", report.ledger.config_sha256 or FROM_SCRIPT),
        ("config.yaml, SHA-256", report.config.sha256 or NO_CONFIG),
        ("accountant of the budget", ACCOUNTANTS[report.accountant]),
        ("dpswd of the run", report.ledger.version or NO_NUMBER),
        ("versions of this report", ", ".join(versions)),
    ]
    return _table(("what", "value"), rows)


def _settings(report: Report) -> list[str]:
    """Return the settings in config.yaml."""
    if report.config.text is None:
        return []
    return ["#### Settings", _code(settings_of(report.config.text), "yaml")]


# Markdown


def escape(text: str) -> str:
    """Escape the characters that Markdown or HTML interprets, and join lines."""
    text = " ".join(text.split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|#~!])", r"\\\1", text)


def _table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], alignment: Sequence[str] | None = None
) -> str:
    """Return a table with escaped cells; by default all columns are on the left."""
    rule = "| " + " | ".join(alignment or [_LEFT] * len(columns)) + " |"
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
