"""``dpswd demo``: generates private digits, evaluates them and writes the report, in about ten seconds."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from dpswd.commands.evaluate import evaluate_pair
from dpswd.commands.generate import constants_of, generate, run_directory


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="run directory (default: runs/demo, runs/demo-2, ...)",
    )
    parser.add_argument("--epsilon", type=float, default=10.0, help="privacy budget (default: 10)")


def run(arguments: Namespace) -> dict[str, Any]:
    out, number = arguments.out, 2
    if out is None:
        out = Path("runs/demo")
        while (out / "ledger.jsonl").exists():
            out, number = Path(f"runs/demo-{number}"), number + 1
    directory = run_directory(out, "demo", vars(arguments))
    from dpswd.data import benchmark, read_public
    from dpswd.report.render import write_report

    digits = benchmark("digits")
    options: dict[str, Any] = {"n": 5000, "proportions": "equal", "epsilon": arguments.epsilon}
    result = generate(digits.private(), directory, constants_of("digits"), **options)
    made = read_public(directory / "synthetic.npz")
    evaluation = evaluate_pair(made, digits, directory, public=True)
    write_report(directory)  # again, with the accuracies
    return {**result, "evaluation": evaluation["rows"], "figure": evaluation["files"][1]}


def show(result: dict[str, Any]) -> None:
    print(result["summary"])
    print(
        f"Accuracy on real test digits of classifiers trained on {result['n_synthetic']} synthetic ones:"
    )
    for row in result["evaluation"]:
        print(f"  {row['classifier']:<10}{row['accuracy']:5.1f} %")
    print(f"Files:     {', '.join([*result['files'], result['figure']])}")
    print(f"Next:      {result['next']}")
