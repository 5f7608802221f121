"""``dpswd verify BUNDLE``: digests, chain and guarantee of a published bundle.

The check does not need torch.
"""

import dataclasses
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from dpswd._public_facts import ONE_RECORD

_SHOWN = (1e-6, 1e-3, 1e-2)  # false-positive rates of the curve on the screen


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "bundle", metavar="BUNDLE", type=Path, help="folder that dpswd publish has written"
    )
    parser.add_argument(
        "--fingerprint",
        metavar="HASH",
        help="fingerprint that the author has published in a second place, to compare",
    )


def run(arguments: Namespace) -> dict[str, Any]:
    # The accountant takes half a second to import, which the help of the command does not need.
    from dpswd.accounting.recompute import CURVE_FPR
    from dpswd.files.verify import verify

    verification = verify(arguments.bundle, arguments.fingerprint)
    result: dict[str, Any] = {"passed": not verification.problems}
    result |= dataclasses.asdict(verification)
    result["bundle"] = str(verification.bundle)
    result["problems"] = list(verification.problems)
    guarantee = result.pop("guarantee") or {}
    for name in ("epsilon", "delta", "mu", "method"):
        result[name] = guarantee.get(name)
    result["trade_off"] = [
        {"fpr": fpr, "fnr": fnr}
        for fpr, fnr in zip(CURVE_FPR, guarantee.get("fnr", ()), strict=False)
    ]
    return result


def _attack_line(point: dict[str, float], unit: str) -> str:
    """Say how many records (or persons) an attacker finds at a point of the curve."""
    from dpswd.accounting.rounding import round_up

    counted = "records"
    if unit != ONE_RECORD:
        counted = "persons"
    detected = 100 * round_up(1 - point["fnr"], 3)
    return (
        f"finds at most {detected:.3g} % of the {counted} if it wrongly accuses 1 in "
        f"{1 / point['fpr']:,.0f} others"
    )


def show(result: dict[str, Any]) -> None:
    from dpswd.accounting.rounding import round_up

    for problem in result["problems"]:
        print(f"PROBLEM  {problem}")
    print(f"{result['bundle']}: {result['n_files']:,} files, run {result['run']}")
    if not result["passed"]:
        _show_failure(result["problems"])
        return
    print(f"Ledger:      hash of the last line {result['ledger_head']}")
    print(
        f"Guarantee:   epsilon {round_up(result['epsilon'], 3):g} at delta "
        f"{result['delta']:g}, mu {round_up(result['mu'], 3):g}; {result['unit']}, replace-one"
    )
    for point in result["trade_off"]:
        if point["fpr"] in _SHOWN:
            print(f"Attack:      {_attack_line(point, result['unit'])}")
    print(f"Computed by: {result['method']}")
    if result["remarks"]:
        print(result["remarks"])
    print(f"Fingerprint: {result['fingerprint']}")
    print(
        "PASSED: all files are the listed ones, no line of the ledger was changed, and the "
        "stated numbers follow from it."
    )


def _show_failure(problems: list[str]) -> None:
    """Print what to do with a bundle that has problems.

    Its guarantee and its fingerprint are not printed: they may be those of the true bundle.
    """
    print(
        f"FAILED: {len(problems)} problem(s), see above. No guarantee was verified: do not use the "
        "bundle, and ask its publisher for it again."
    )
    if any("README.md" in problem for problem in problems):
        print("If you have edited README.md yourself: dpswd publish BUNDLE --reseal.")
