"""``dpswd demo``: fits a private generator of digits, in about ten seconds."""

import json
import sys
from argparse import ArgumentParser, Namespace
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from dpswd.commands import Command
from dpswd.commands.configs import config_path
from dpswd.errors import InputError


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="run directory (default: runs/demo, or runs/demo-2, ...)"
    )
    parser.add_argument("--epsilon", type=float, default=10.0, help="privacy budget (default: 10)")


def _directory(out: Path | None) -> Path:
    if out is None:
        out, number = Path("runs/demo"), 2
        while (out / "ledger.jsonl").exists():
            out, number = Path(f"runs/demo-{number}"), number + 1
    if (out / "ledger.jsonl").exists():
        raise InputError(
            f"Expected a new directory for --out, got {out}, which holds the ledger of a run; choose another one."
        )
    return out


def _run(arguments: Namespace) -> dict[str, Any]:
    from dpswd.commands.main import fit
    from dpswd.commands.report import COMMANDS as REPORT

    config, out = str(config_path("digits")), _directory(arguments.out)
    shared = ["--config", config, "--trainer.default_root_dir", str(out)]
    with redirect_stdout(sys.stderr):  # stdout is for the result
        fit(["fit", *shared, "--privacy.target_epsilon", str(arguments.epsilon)])
        fit(
            ["predict", *shared, "--ckpt_path", str(out / "checkpoints" / "last.ckpt"), "--return_predictions", "false"]
        )
    report = REPORT["report"].run(Namespace(run_dir=out, diagnostics=False, include_private_evaluation=False))
    evaluation = json.loads((out / "evaluation.json").read_text())["rows"]
    return {"run_dir": str(out), "evaluation": evaluation, "synthetic": str(out / "synthetic.npz"), **report}


def _show(result: dict[str, Any]) -> None:
    print()
    for line in result["summary"]:
        print(line)
    print()
    print("Accuracy on real test digits of classifiers trained on")
    for row in result["evaluation"]:
        print(f"  {row['train']:>9} digits, {row['classifier']:<6} {row['accuracy']:5.1f} %")
    print()
    print(f"Pictures  {Path(result['run_dir']) / 'samples.png'}")
    print(f"Data      {result['synthetic']}")
    print(f"Report    {result['files'][0]}")


COMMANDS = {
    "demo": Command(
        help="fit a private generator to the digits of scikit-learn and write its report",
        add_arguments=_add_arguments,
        run=_run,
        show=_show,
    )
}
