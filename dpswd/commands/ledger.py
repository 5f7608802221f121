"""``dpswd ledger show`` and ``dpswd ledger merge``: what a ledger says, and several of them in one."""

import argparse
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from dpswd._validate import probability
from dpswd.accounting.across import across, cost
from dpswd.accounting.ledger import Ledger, plan_of
from dpswd.accounting.shared import merge
from dpswd.commands import Command

__all__ = ["COMMANDS"]


def _add_arguments(parser: ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="show|merge")
    show = actions.add_parser("show", help="verify the chain; say what was released and what it costs")
    show.add_argument("path", metavar="PATH", type=Path, help="ledger.jsonl of a run, or a ledger of several runs")
    both = actions.add_parser("merge", help="join the ledgers of runs on the same records")
    both.add_argument("paths", metavar="PATH", type=Path, nargs="+")
    both.add_argument("--out", type=Path, required=True, help="the new ledger; --privacy.ledger of further runs")
    both.add_argument("--epsilon", type=float, help="budget of all runs together, further ones included")
    both.add_argument(
        "--different-sizes",
        action="store_true",
        help="the runs read data sets of different sizes; costs add up (parallel composition is not assumed)",
    )
    for action in (show, both):
        action.add_argument("--delta", type=float, help="default: the one that the ledgers state")
        action.add_argument("--accountant", choices=["pld", "rdp"], help="default: the one that the ledger states")
        action.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON object")


def _run(arguments: Namespace) -> dict[str, Any]:
    if arguments.action == "show":
        return _facts(Ledger.open_existing(arguments.path), arguments)
    merged = merge(
        arguments.paths,
        arguments.out,
        target_epsilon=arguments.epsilon,
        target_delta=arguments.delta,
        accountant=arguments.accountant or "pld",
        different_sizes=arguments.different_sizes,
    )
    return _facts(merged, arguments)


def _facts(ledger: Ledger, arguments: Namespace) -> dict[str, Any]:
    header = ledger.header
    delta = arguments.delta if arguments.delta is not None else header.get("target_delta") or 1e-5
    probability(delta=delta)
    accountant = arguments.accountant or header.get("accountant") or "pld"
    planned, made = ledger.planned(), ledger.groups()
    so_far = cost(made, delta, accountant)
    stated = {str(header.get("run", "")): header} if not ledger.shared else ledger.runs
    runs = [
        {
            "run": run,
            "version": facts.get("version"),
            "config_sha256": facts.get("config_sha256"),
            "sample_size": facts.get("sample_size"),
            "private": facts.get("private"),
            "releases_made": sum(count for *_, count in ledger.groups(run if ledger.shared else None)),
            "releases_planned": sum(count for *_, count in plan_of(facts)),
        }
        for run, facts in stated.items()
    ]
    return {
        "path": str(ledger.path),
        "scope": "shared" if ledger.shared else "run",
        "chain": "ok",  # a broken one is refused
        "torn": ledger.torn,
        "head": ledger.head,
        "header": header,
        "runs": runs,
        "groups": [
            {"noun": mechanism.noun, "sigma": mechanism.sigma, "sample_size": size, "count": count}
            for mechanism, size, count in planned
        ],
        "releases_made": ledger.n_releases,
        "releases_planned": sum(count for *_, count in planned),
        "accountant": accountant,
        **across(ledger, delta, accountant),
        "made": {name: so_far[name] for name in ("epsilon", "mu")},
        "budget": {"epsilon": header.get("target_epsilon"), "delta": header.get("target_delta")},
    }


def _show(result: dict[str, Any]) -> None:
    print(f"{result['path']}: chain ok, {len(result['runs'])} run(s), head {result['head']}")
    if result["torn"]:
        print("The last line is torn: what a crash leaves of a release that was not made. It is not counted.")
    for run in result["runs"]:
        print(
            f"  run {run['run'] or '-'}: {run['releases_made']} of {run['releases_planned']} planned releases made, "
            f"N = {run['sample_size']}, dpswd {run['version']}, config {(run['config_sha256'] or '-')[:12]}"
        )
    for group in result["groups"]:
        print(f"  {group['count']:>7} x {group['noun']}, sigma {group['sigma']:.4g}, N = {group['sample_size']}")
    if result["sentence"]:
        print(result["sentence"])
    budget = "" if result["budget"]["epsilon"] is None else f"   budget {result['budget']['epsilon']:g}"
    print(f"made      epsilon {result['made']['epsilon']:.4g}   mu {result['made']['mu']:.4g}")
    print(
        f"planned   epsilon {result['epsilon']:.4g}   mu {result['mu']:.4g}   at delta {result['delta']:g}{budget}"
        "   (this is what counts)"
    )
    for line in result["assumptions"]:
        print(f"  - {line}")


COMMANDS = {
    "ledger": Command(
        help="show a ledger, or merge the ledgers of runs on the same records",
        add_arguments=_add_arguments,
        run=_run,
        show=_show,
    )
}
