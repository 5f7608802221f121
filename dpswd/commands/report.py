"""``dpswd report RUN_DIR``: the guarantee of a run, computed from its ledger."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "run_dir", metavar="RUN_DIR", type=Path, help="directory with ledger.jsonl and privacy.json"
    )
    parser.add_argument("--title", help="default: Synthetic records of NAME, as the run states it")


def run(arguments: Namespace) -> dict[str, Any]:
    from dpswd.report.render import banner, summary, write_report  # imports torch

    report = write_report(arguments.run_dir, title=arguments.title)
    return {
        "files": [
            str(arguments.run_dir / name) for name in ("report.html", "report.md", "report.json")
        ],
        **{
            name: report[name]
            for name in ("title", "private", "conditions", "sound", "reasons", "caveats")
        },
        **report["guarantee"],
        "banner": banner(report),
        "summary": summary(report),
    }


def show(result: dict[str, Any]) -> None:
    if result["banner"]:
        print(": ".join(result["banner"]))
    for line in (*result["summary"], *result["caveats"]):
        print(line)
    print("Written: " + ", ".join(result["files"]))
