"""``dpswd report RUN_DIR``: the guarantee of a run, computed from its ledger."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from dpswd.commands import Command
from dpswd.report.render import banner, summary, write_report

_FACTS = ("private", "sound", "reasons", "outside_guarantee", "runs", "accountant", "assumptions", "caveats")


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="directory with ledger.jsonl and privacy.json")
    parser.add_argument(
        "--include-private-evaluation",
        action="store_true",
        help="add RUN_DIR/private_evaluation.json: accuracies on private records, which the guarantee does not cover",
    )


def _run(arguments: Namespace) -> dict[str, Any]:
    report = write_report(
        arguments.run_dir,
        include_private_evaluation=arguments.include_private_evaluation,
    )
    guarantee = report["guarantee"]
    return {
        "files": [str(arguments.run_dir / name) for name in ("report.html", "report.md", "report.json")],
        **{name: report[name] for name in _FACTS},
        **{name: guarantee[name] for name in ("tier", "mu", "regret", "epsilon", "delta", "attack", "epsilon_delta")},
        "releases_made": report["releases"]["made"],
        "releases_planned": report["releases"]["planned"],
        "ledger_head": report["ledger"]["head"],
        "banner": banner(report),
        "summary": summary(report),
    }


def _show(result: dict[str, Any]) -> None:
    if result["banner"]:
        print(": ".join(result["banner"]))
    for line in (*result["summary"], *result["caveats"]):
        print(line)
    print("Written: " + ", ".join(result["files"]))


COMMANDS = {
    "report": Command(
        help="write report.html, report.md and report.json for a run",
        add_arguments=_add_arguments,
        run=_run,
        show=_show,
    )
}
