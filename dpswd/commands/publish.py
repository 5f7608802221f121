"""``dpswd publish``: a sealed bundle of a run.

The command is ``dpswd publish RUN_DIR --out BUNDLE``. A bundle holds synthetic records, card,
report and ledger.
"""

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from dpswd.commands._words import option_of
from dpswd.errors import InputError


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run_dir", metavar="RUN_DIR", type=Path, help="directory of a finished run")
    parser.add_argument("--out", type=Path, metavar="BUNDLE", help="the folder to write")
    parser.add_argument(
        "-n",
        type=int,
        metavar="N",
        help="number of synthetic records (default: as many as private ones, also after dpswd "
        "generate -n; at most 10,000 images)",
    )
    parser.add_argument(
        "--proportions",
        choices=["equal", "released"],
        help="draw all classes equally often, or as often as the noisy counts say (default: "
        "released for tables, equal for images)",
    )
    parser.add_argument("--seed", type=int, help="seed of the synthetic records (default: 0)")
    parser.add_argument(
        "--generator",
        action="store_true",
        help="add generator.pt, from which anyone can draw more records",
    )
    parser.add_argument(
        "--licence",
        "--license",
        metavar="NAME",
        help="licence of the synthetic records, as cc-by-4.0 (default: a line to fill in)",
    )
    parser.add_argument(
        "--title", help="title of the card and the report (default: that of the report)"
    )
    parser.add_argument(
        "--reseal",
        action="store_true",
        help="RUN_DIR is a bundle whose README.md you have edited: compute its MANIFEST.json anew",
    )


# Options that say what a new bundle holds.
_OF_NEW_BUNDLE = ("out", "n", "proportions", "seed", "generator", "licence", "title")


def _refuse_other_options(arguments: Namespace) -> None:
    """Refuse options beside ``--reseal``, which changes nothing but the manifest."""
    options_of_bundle = []
    for name in _OF_NEW_BUNDLE:
        value = getattr(arguments, name)
        if value is not None and value is not False:
            options_of_bundle.append(name)
    if options_of_bundle:
        raise InputError(
            f"Expected --reseal alone, got {option_of(options_of_bundle[0])}, too, which is of a "
            "new bundle; leave one of them out."
        )


def run(arguments: Namespace) -> dict[str, Any]:
    if not arguments.reseal and arguments.out is None:
        raise InputError("Expected --out BUNDLE, the new folder to publish, got none; pass it.")
    # Imports torch, which the help of the command does not need.
    from dpswd.files.publish import publish, reseal

    if arguments.reseal:
        _refuse_other_options(arguments)
        fingerprint = reseal(arguments.run_dir)
        return {"bundle": str(arguments.run_dir), "fingerprint": fingerprint}
    bundle = publish(
        arguments.run_dir,
        arguments.out,
        n=arguments.n,
        proportions=arguments.proportions,
        seed=arguments.seed,
        generator=arguments.generator,
        licence=arguments.licence,
        title=arguments.title,
    )
    return {
        "bundle": str(bundle.path),
        "n_records": bundle.n_records,
        "n_files": bundle.n_files,
        "licence": arguments.licence,
        "guarantee": bundle.guarantee.to_dict(),
        "summary": bundle.guarantee.line(),
        "fingerprint": bundle.fingerprint,
        "left_out": bundle.left_out,
    }


def show(result: dict[str, Any]) -> None:
    remark = "publish it in a second place, too: it tells this bundle from a forged one"
    if "n_records" in result:
        _show_new_bundle(result)
        remark = "it changes with --reseal; publish the one that is shown then"
    print(f"Fingerprint: {result['fingerprint']}")
    print(f"             ({remark})")
    print(f"Next:        {shlex.join(['dpswd', 'verify', result['bundle']])}")


def _show_new_bundle(result: dict[str, Any]) -> None:
    """Print what a new bundle has, and what is left to fill in."""
    print(result["summary"])
    n_records = f"{result['n_records']:,} synthetic records"
    if not result["n_records"]:
        n_records = "a classifier"
    print(f"Bundle:      {result['bundle']} ({n_records}, {result['n_files']:,} files)")
    if result["left_out"]:
        print(f"Left out:    {result['left_out']}")
    fields = "the intended use"
    if result["licence"] is None:
        fields = "the intended use and the line license: (--licence NAME fills it in a new bundle)"
    reseal = shlex.join(["dpswd", "publish", result["bundle"], "--reseal"])
    print(f"Fill in:     in {result['bundle']}/README.md {fields}; then: {reseal}")
