"""``dpswd report RUN_DIR``: what a run guarantees, recomputed from its ledger."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from dpswd.commands import Command
from dpswd.diagnostics.appendix import NOTE, TITLES, WARNING
from dpswd.report.publish import write_report
from dpswd.report.words import attack_sentence, banner, headline, tier_sentence

__all__ = ["COMMANDS"]


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="directory with ledger.jsonl and privacy.json")
    parser.add_argument(
        "--diagnostics",
        action="store_true",
        help="append RUN_DIR/diagnostics.json, as dpswd wdp and dpswd tangent write it; no part of the guarantee",
    )


def _run(arguments: Namespace) -> dict[str, Any]:
    report = write_report(arguments.run_dir, diagnostics=arguments.diagnostics)
    guarantee = report["guarantee"]
    files = ("report.html", "report.md", "report.json")
    return {
        "files": [str(arguments.run_dir / name) for name in files],
        **{name: report[name] for name in ("private", "sound", "reasons", "accountant", "assumptions", "caveats")},
        **{name: guarantee[name] for name in ("tier", "mu", "regret", "epsilon", "delta", "attack")},
        "epsilon_delta": guarantee["epsilon_delta"],
        "releases_made": report["releases"]["made"],
        "releases_planned": report["releases"]["planned"],
        "ledger_head": report["ledger"]["head"],
        "banner": banner(report),
        "summary": [headline(report), attack_sentence(report), tier_sentence(guarantee)],
        "diagnostics": report["diagnostics"],
    }


def _show(result: dict[str, Any]) -> None:
    if result["banner"]:
        print(": ".join(result["banner"]))
    for line in (*result["summary"], *result["caveats"]):
        print(line)
    if result["diagnostics"] is not None:
        print(f"Appendix: {', '.join(TITLES[name] for name in sorted(result['diagnostics']))}. {NOTE} {WARNING}")
    print("Written: " + ", ".join(result["files"]))


COMMANDS = {
    "report": Command(
        help="write report.html, report.md and report.json for a run",
        add_arguments=_add_arguments,
        run=_run,
        show=_show,
    )
}
