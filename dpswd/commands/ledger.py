"""``dpswd ledger``: shows a ledger, or creates one that several runs share.

Accounting is imported where it is called, so that ``--help`` is quick.
"""

import argparse
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any


def add_arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="show|create")
    show = actions.add_parser("show", help="check a ledger, and print its runs and what they cost")
    show.add_argument(
        "path",
        metavar="PATH",
        type=Path,
        help="directory of a run, its ledger.jsonl, or a shared ledger",
    )
    create = actions.add_parser(
        "create",
        help="create a ledger that several runs share, for their option --shared-ledger (dpswd "
        "fit: --privacy.shared_ledger)",
    )
    create.add_argument("path", metavar="PATH", type=Path, help="the new file")
    create.add_argument("--epsilon", type=float, required=True, help="budget of all runs together")
    create.add_argument(
        "--delta", type=float, required=True, help="choose it well below 1 / N for N records"
    )
    create.add_argument(
        "--accountant",
        choices=["pld", "rdp"],
        default="pld",
        help="pld adds budgets up exactly, rdp by Renyi bounds (default: pld)",
    )
    for action in (show, create):
        action.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object"
        )


def run(arguments: Namespace) -> dict[str, Any]:
    from dpswd.accounting.accountant import PrivacyAccountant
    from dpswd.accounting.ledger import Ledger, plan_of
    from dpswd.accounting.shared_ledger import SharedLedger, statement

    path = arguments.path
    if arguments.action == "create":
        budget = {"target_epsilon": arguments.epsilon, "target_delta": arguments.delta}
        SharedLedger.create(path, **budget, accountant=arguments.accountant)
    ledger = Ledger.open_existing(path / "ledger.jsonl" if path.is_dir() else path)
    planned = statement(ledger).to_dict()
    account = PrivacyAccountant.from_groups(ledger.groups(), ledger.accountant)
    so_far = account.guarantee(ledger.delta)
    return {
        "path": str(ledger.path),
        "torn": ledger.torn,
        "head": ledger.head,
        "header": ledger.header,
        "runs": [
            {
                "run": run,
                "releases_made": sum(count for *_, count in ledger.groups(run)),
                "releases_planned": sum(count for *_, count in plan_of(run_header)),
            }
            for run, run_header in ledger.runs.items()
        ],
        **planned,
        "made": {"epsilon": so_far.epsilon, "mu": so_far.mu},
    }


def show(result: dict[str, Any]) -> None:
    from dpswd.accounting.rounding import round_up

    print(f"{result['path']}: unchanged. Hash of the last line: {result['head']}")
    if result["torn"]:
        print(
            "The last line is incomplete: a crash interrupted the write. Its release was not made."
        )
    for run in result["runs"]:
        print(
            f"  run {run['run']}: {run['releases_made']} of {run['releases_planned']} planned "
            f"releases made"
        )
    for name, cost in (("made", result["made"]), ("planned", result)):
        epsilon = round_up(float(cost["epsilon"]), 3)
        mu = round_up(float(cost["mu"]), 3)
        print(f"{name:<10}epsilon {epsilon:g}   mu {mu:g}   at delta {result['delta']:g}")
    if result["sentence"]:
        print(result["sentence"])
