"""``dpswd report RUN_DIR``: the guarantee of a run, computed from its ledger."""

from argparse import ArgumentParser, Namespace
from dataclasses import astuple
from pathlib import Path
from typing import Any

FILES = ("report.html", "report.md", "report.json")


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "run_dir",
        metavar="RUN_DIR",
        type=Path,
        help="directory of the run; it has ledger.jsonl and privacy.json",
    )
    parser.add_argument(
        "--title",
        help="title of the report (default: Synthetic records of NAME, as the run states it)",
    )


def run(arguments: Namespace) -> dict[str, Any]:
    # Imports torch, which the help of the command does not need.
    from dpswd.report.render import write_files
    from dpswd.report.sentences import banner, summary

    report = write_files(arguments.run_dir, title=arguments.title)
    content = report.to_dict()
    result: dict[str, Any] = {"files": [str(arguments.run_dir / name) for name in FILES]}
    for name in ("title", "private", "conditions", "sound", "reasons", "caveats"):
        result[name] = content[name]
    result |= content["guarantee"]
    warning = banner(report)
    result["banner"] = None
    if warning is not None:
        result["banner"] = astuple(warning)
    result["summary"] = [line for line in astuple(summary(report)) if line]
    return result


def show(result: dict[str, Any]) -> None:
    if result["banner"]:
        print(": ".join(result["banner"]))
    for line in (*result["summary"], *result["caveats"]):
        print(line)
    print("Written: " + ", ".join(result["files"]))
