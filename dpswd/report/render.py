"""Writes the report of a run as JSON, as Markdown and as one HTML page.

The page has no script and loads nothing; all text of the run is escaped.
"""

import base64
import importlib.resources
import json
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from dpswd._files import atomic_write
from dpswd.report.collect import collect
from dpswd.report.facts import Report
from dpswd.report.markdown import markdown, markdown_with_plot
from dpswd.report.plots import draw

__all__ = ["write_report"]


def write_report(run_dir: str | Path, *, title: str | None = None) -> dict[str, Any]:
    """Write report.html, report.md and report.json into a run directory.

    Args:
        run_dir: The run directory.
        title: Title; by default "Synthetic records of NAME", as the run states, else the name of
            the directory.

    Returns:
        The content of report.json.

    Raises:
        InputError: If the run cannot be read or contradicts itself; nothing is written then.

    Example:
        >>> import tempfile, torch
        >>> from dpswd import Budget, ClassCounts, PrivateRecords
        >>> records = PrivateRecords(torch.rand(10, 3), torch.arange(10) % 2, classes=[0, 1])
        >>> query = ClassCounts(2)
        >>> budget = {"target_epsilon": 1, "target_delta": 1e-5}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Budget(records, [query], **budget, run_dir=folder):
        ...         counts = query.release(records)
        ...     report = write_report(folder, title="Counts")
        >>> report["title"], report["guarantee"]["epsilon"] <= 1.0
        ('Counts', True)
    """
    report = write_files(run_dir, title=title)
    content: dict[str, Any] = json.loads(report_json(report))
    return content


def write_files(run_dir: str | Path, *, title: str | None = None) -> Report:
    """Write the files as :func:`write_report` does; return the report as an object."""
    report, curve = collect(run_dir, title=title)
    texts = {
        "report.html": html(report, draw(curve)),
        "report.md": markdown(report),
        "report.json": report_json(report),
    }
    for name, text in texts.items():
        # A name of a directory may have bytes that are not UTF-8: each becomes "?".
        atomic_write(Path(run_dir) / name, text.encode(errors="replace"))
    return report


def report_json(report: Report) -> str:
    """Return the text of report.json, which is valid against schema.json."""
    return json.dumps(report.to_dict(), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def html(report: Report, curve: bytes) -> str:
    """Return the report as one self-contained HTML page.

    Args:
        report: The report.
        curve: The plot of :func:`dpswd.report.plots.draw`.
    """
    from markdown_it import MarkdownIt  # of the extra "train", which no other module needs

    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    body = renderer.render(markdown_with_plot(report))
    for name, content in report.pictures.items():
        body = body.replace(f'src="{name}"', f'src="data:image/png;base64,{content}"')
    plot = base64.b64encode(curve).decode()
    body = body.replace('src="curve.svg"', f'src="data:image/svg+xml;base64,{plot}"')
    page = importlib.resources.files("dpswd.report").joinpath("page.html")
    template = Template(page.read_text(encoding="utf-8"))
    return template.substitute(title=escape(report.title), body=body)
