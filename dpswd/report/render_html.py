"""A report as one self-contained page: no script, no request to anywhere, everything from files escaped."""

import importlib.resources
from html import escape
from typing import Any

from dpswd.diagnostics.appendix import NOTE, WARNING
from dpswd.report import tables
from dpswd.report.tables import Table
from dpswd.report.words import attack_sentence, banner, headline, number, snippet, tier_sentence

__all__ = ["html"]

_CAPTIONS = {
    "trade_off": (
        "Trade-off curve",
        "The two errors of the best attack. Higher is more private. μ-GDP (dashed) never lies above the "
        "curve of this run.",
    ),
    "attack": (
        "Small false-positive rates",
        "The same curve where it matters most: few innocents accused. Lower is more private.",
    ),
    "profile": ("Privacy profile", "Every (ε, δ) that holds at the same time."),
}


def html(report: dict[str, Any], pictures: dict[str, str]) -> str:
    """Writes the page.

    Args:
        report: What :func:`dpswd.report.collect.collect` returns.
        pictures: SVG elements of :func:`dpswd.report.plots.draw`; may be empty.

    Returns:
        The HTML document.
    """
    style = importlib.resources.files("dpswd.report").joinpath("report.css").read_text(encoding="utf-8")
    body = "\n".join(part for part in _body(report, pictures) if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">\n"
        f"<title>Privacy report: {escape(report['name'])}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _body(report: dict[str, Any], pictures: dict[str, str]) -> list[str]:
    guarantee = report["guarantee"]
    return [
        '<p class="kicker">Privacy report</p>',
        f"<h1>{escape(report['name'])}</h1>",
        _banner(report),
        f'<p class="lead">{escape(attack_sentence(report))}</p>',
        _facts(report),
        *[f"<p>{escape(caveat)}</p>" for caveat in report["caveats"]],
        "<h2>What is guaranteed</h2>",
        f"<p>{escape(tier_sentence(guarantee))}</p>",
        _closed_form(guarantee),
        _plots(pictures),
        "<h3>What an attacker can do</h3>",
        _table(tables.attacks(report), "narrow"),
        *_tier_two(report),
        "<h3>In terms of (ε, δ)</h3>",
        _table(tables.epsilons(report)),
        '<p class="note">Both columns are upper bounds on the same releases; the smaller one is not wrong, '
        "it is "
        "better informed.</p>",
        "<h3>Privacy profile</h3>",
        _table(tables.profile(report), "narrow"),
        "<h2>What was released</h2>",
        f"<p>{_released(report)}</p>",
        *[f"<h3>{escape(title)}</h3>\n{_pairs(table)}" for title, table in tables.releases(report)],
        *_results(report),
        "<h2>What this rests on</h2>",
        _list(report["assumptions"]),
        "<h2>What is not covered</h2>",
        _list(report["not_covered"]),
        "<h2>Where the numbers come from</h2>",
        _pairs(tables.provenance(report)),
        *_config(report),
        "<h3>Compute it again</h3>",
        f"<pre>{escape(snippet(report))}</pre>",
        *_diagnostics(report),
        f"<footer>{escape(headline(report))}. All numbers are rounded towards less privacy.</footer>",
    ]


def _banner(report: dict[str, Any]) -> str:
    found = banner(report)
    if found is None:
        return ""
    title, why = found
    return f'<div class="banner" role="alert"><strong>{escape(title)}</strong><p>{escape(why)}</p></div>'


def _facts(report: dict[str, Any]) -> str:
    guarantee = report["guarantee"]
    facts = [
        ("μ (μ-GDP, rounded up)", number(guarantee["mu"])),
        ("regret of μ", number(guarantee["regret"], 2)),
        (f"ε at δ = {number(guarantee['delta'])}", number(guarantee["epsilon"])),
        ("releases accounted for", f"{report['releases']['planned']:,}"),
    ]
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts)
    return f'<dl class="facts">{cells}</dl>'


def _closed_form(guarantee: dict[str, Any]) -> str:
    if not guarantee["exactly_gaussian"]:
        return ""
    mu, numerical = number(guarantee["mu"], 6), number(guarantee["mu_numerical"], 6)
    text = (
        "Every release reads all records and has a constant sensitivity: what they compose to is Gaussian, "
        f"μ = {mu} in closed form, and the two curves below coincide. The numerical account, which errs "
        f"upwards, finds {numerical}."
    )
    return f"<p>{escape(text)}</p>"


def _plots(pictures: dict[str, str]) -> str:
    if not pictures:
        return ""
    figures = []
    for name, svg in pictures.items():
        title, text = _CAPTIONS[name]
        named = svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
        figures.append(f"<figure>\n{named}\n<figcaption><b>{escape(title)}.</b> {escape(text)}</figcaption>\n</figure>")
    return '<div class="plots">\n' + "\n".join(figures) + "\n</div>"


def _tier_two(report: dict[str, Any]) -> list[str]:
    if report["guarantee"]["tier"] == 1:
        return []
    return ["<h3>Tier II: the trade-off curve</h3>", _table(tables.trade_off(report))]


def _released(report: dict[str, Any]) -> str:
    releases = report["releases"]
    return escape(
        f"Releases made: {releases['made']:,}; accounted for: {releases['planned']:,}; of a data set of "
        f"{releases['sample_size']:,} records. Neighbouring data sets: {releases['neighboring_relation']}. "
        "What is computed from the releases afterwards (training, samples, pictures) costs nothing."
    )


def _results(report: dict[str, Any]) -> list[str]:
    parts = []
    if report["samples_png"] is not None:
        parts += [
            "<h2>Samples</h2>",
            '<figure><img alt="Synthetic samples" src="data:image/png;base64,'
            f'{escape(report["samples_png"])}">'
            "<figcaption>Drawn from the generator: post-processing of the releases.</figcaption></figure>",
        ]
    if report["downstream"]:
        parts += [
            "<h2>Classifiers trained on it</h2>",
            _table(tables.downstream(report)),
            '<p class="note">Measured on real records, without noise: these numbers are outside the guarantee.</p>',
        ]
    return parts


def _config(report: dict[str, Any]) -> list[str]:
    text = report["config"]["text"]
    return [] if text is None else ["<h3>config.yaml</h3>", f"<pre>{escape(text)}</pre>"]


def _diagnostics(report: dict[str, Any]) -> list[str]:
    if report["diagnostics"] is None:
        return []
    parts = ["<h2>Appendix: diagnostics</h2>", f"<p><strong>{escape(NOTE)}</strong></p>", f"<p>{escape(WARNING)}</p>"]
    return parts + [f"<h3>{escape(title)}</h3>\n{_pairs(table)}" for title, table in tables.diagnostics(report)]


def _table(table: Table, style: str = "wide") -> str:
    def row(cells: tuple[str, ...], tag: str, mark: bool = False) -> str:
        parts = (
            f'<{tag} class="n">{escape(cell)}</{tag}>' if i in table.numeric else f"<{tag}>{escape(cell)}</{tag}>"
            for i, cell in enumerate(cells)
        )
        opening = '<tr class="mark">' if mark else "<tr>"
        return opening + "".join(parts) + "</tr>"

    body = "\n".join(row(cells, "td", i in table.marked) for i, cells in enumerate(table.rows))
    head = row(table.columns, "th")
    return f'<table class="{style}">\n<thead>{head}</thead>\n<tbody>\n{body}\n</tbody>\n</table>'


def _pairs(table: Table) -> str:
    body = "\n".join(f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>" for name, value in table.rows)
    return f'<table class="pairs">\n<tbody>\n{body}\n</tbody>\n</table>'


def _list(items: list[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{escape(item)}</li>" for item in items) + "\n</ul>"
