"""``dpswd ledger``: shows a ledger, or creates one that several runs share."""

import argparse
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from dpswd.accounting.accountant import PrivacyAccountant, round_up
from dpswd.accounting.ledger import Ledger, SharedLedger, plan_of, statement


def add_arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="show|create")
    show = actions.add_parser("show", help="verify a ledger; print its releases and their cost")
    show.add_argument("path", metavar="PATH", type=Path, help="run directory, its ledger.jsonl, or a shared ledger")
    show.add_argument("--delta", type=float, help="default: the delta in the ledger's header")
    create = actions.add_parser("create", help="create a shared ledger, for shared_ledger of several runs")
    create.add_argument("path", metavar="PATH", type=Path, help="the new file")
    create.add_argument("--epsilon", type=float, required=True, help="total budget of all runs")
    create.add_argument("--delta", type=float, required=True, help="total budget of all runs")
    for action in (show, create):
        action.add_argument("--accountant", choices=["pld", "rdp"], help="default: that of the ledger, or pld")
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object")


def run(arguments: Namespace) -> dict[str, Any]:
    path = arguments.path
    if arguments.action == "create":
        budget = {"target_epsilon": arguments.epsilon, "target_delta": arguments.delta}
        SharedLedger.create(path, **budget, accountant=arguments.accountant or "pld")
    ledger = Ledger.open_existing(path / "ledger.jsonl" if path.is_dir() else path)
    header = ledger.header
    delta = arguments.delta if arguments.delta is not None else header.get("target_delta") or 1e-5
    accountant = arguments.accountant or header.get("accountant") or "pld"
    planned = ledger.planned()
    made = PrivacyAccountant.from_groups(ledger.groups(), accountant).guarantee(delta)
    names = ("version", "config_sha256", "sample_size", "private")
    runs = [
        {
            "run": run,
            **{name: facts.get(name) for name in names},
            "releases_made": sum(count for *_, count in ledger.groups(run)),
            "releases_planned": sum(count for *_, count in plan_of(facts)),
        }
        for run, facts in ledger.runs.items()
    ]
    return {
        "path": str(ledger.path),
        "torn": ledger.torn,
        "head": ledger.head,
        "header": header,
        "runs": runs,
        "groups": [
            {"description": mechanism.description, "sigma": mechanism.sigma, "sample_size": size, "count": count}
            for mechanism, size, count in planned
        ],
        "releases_made": ledger.n_releases,
        "releases_planned": sum(count for *_, count in planned),
        "accountant": accountant,
        **statement(ledger, delta, accountant),
        "made": {name: made[name] for name in ("epsilon", "mu")},
    }


def show(result: dict[str, Any]) -> None:
    print(f"{result['path']}: chain ok, {len(result['runs'])} run(s), head {result['head']}")
    if result["torn"]:
        print("The last line is incomplete: a crash interrupted the write. Its release was not made.")
    for run in result["runs"]:
        print(
            f"  run {run['run']}: {run['releases_made']} of {run['releases_planned']} planned releases made, "
            f"N = {run['sample_size']}, dpswd {run['version']}, config {(run['config_sha256'] or '-')[:12]}"
        )
    for group in result["groups"]:
        print(f"  {group['count']:>7} x {group['description']}, sigma {group['sigma']:.4g}, N = {group['sample_size']}")
    if result["sentence"]:
        print(result["sentence"])
    for name, facts in (("made", result["made"]), ("planned", result)):
        epsilon, mu = (f"{round_up(facts[key], 3):g}" for key in ("epsilon", "mu"))
        print(f"{name:<10}epsilon {epsilon}   mu {mu}   at delta {result['delta']:g}")
    if "target_epsilon" in result["header"]:
        print(f"budget    epsilon {result['header']['target_epsilon']:g}")
    print("The cost of a run is that of its plan, even if it stops early.")
    for line in result["assumptions"]:
        print(f"  - {line}")
