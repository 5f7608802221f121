"""``dpswd demo``: generates private digits, evaluates them and writes the report."""

from argparse import ArgumentParser, Namespace
from itertools import count
from pathlib import Path
from typing import Any

from dpswd.commands._options import constants_of, run_directory
from dpswd.commands.evaluate import evaluate_pair
from dpswd.commands.generate import generate

N_SYNTHETIC = 5000


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="directory of the run (default: runs/demo, or else runs/demo-2, ...)",
    )
    parser.add_argument(
        "--epsilon",
        type=float,
        default=10.0,
        help="privacy budget; a smaller one protects more and adds more noise (default: 10)",
    )


def run(arguments: Namespace) -> dict[str, Any]:
    requested = arguments.out
    if requested is None:
        requested = _free_directory()
    directory = run_directory(requested, "demo", vars(arguments), resume=None)
    # These modules import torch, which the help of the command does not need.
    from dpswd.data import benchmark, read_public
    from dpswd.report.render import write_report

    digits = benchmark("digits")
    result = generate(
        digits.private(),
        directory,
        constants_of("digits"),
        n=N_SYNTHETIC,
        proportions="equal",
        epsilon=arguments.epsilon,
    )
    synthetic = read_public(directory / "synthetic.npz")
    evaluation = evaluate_pair(synthetic, digits, directory, public=True)
    # generate() has written a report, which lacks the accuracies.
    write_report(directory)
    _, figure = evaluation["files"]
    return {**result, "evaluation": evaluation["rows"], "figure": figure}


def _free_directory() -> Path:
    """Return the first of runs/demo, runs/demo-2, ... that holds no run."""
    directory = Path("runs/demo")
    numbers = count(2)
    while (directory / "ledger.jsonl").exists():
        directory = Path(f"runs/demo-{next(numbers)}")
    return directory


def show(result: dict[str, Any]) -> None:
    print(result["in_words"])
    print(
        "Accuracy on real test digits of classifiers trained on "
        f"{result['n_synthetic']:,} synthetic ones:"
    )
    for row in result["evaluation"]:
        print(f"  {row['classifier']:<10}{row['accuracy']:5.1f} %")
    files = [*result["files"], result["figure"]]
    print(f"Files:     {', '.join(files)}")
    print(f"Next:      {result['next']}")
