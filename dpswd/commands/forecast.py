"""``dpswd forecast``: signal-to-noise ratios of the releases for a budget, from public facts only."""

import dataclasses
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from dpswd import _validate
from dpswd.commands import Command
from dpswd.errors import InputError


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--config", required=True, metavar="NAME|FILE", help="config of the run that is planned")
    parser.add_argument("--data.path", dest="path", metavar="PATH", help="folder or file of the records")
    parser.add_argument("--data.root", dest="root", metavar="DIR", help="directory of the data sets")
    parser.add_argument("--epsilon", type=float, help="budget (default: that of the config)")
    parser.add_argument("--delta", type=float, help="budget (default: that of the config)")


def _run(arguments: Namespace) -> dict[str, Any]:
    from dpswd.accounting.calibrate import mu_of_epsilon
    from dpswd.commands.main import fit
    from dpswd.generation.structure import forecast

    options = ["--config", arguments.config]
    for name in ("path", "root"):
        if (value := getattr(arguments, name)) is not None:
            options += [f"--data.{name}", str(Path(value))]
    cli = fit(options, run=False)
    data: Any = cli.datamodule
    if not hasattr(data, "public_facts"):
        raise InputError(f"Expected a config of a generator, got data of type {type(data).__name__}.")
    n_records, shape, n_classes = data.public_facts()
    budget = cli.config["privacy"]
    epsilon = budget["target_epsilon"] if arguments.epsilon is None else arguments.epsilon
    delta = budget["target_delta"] if arguments.delta is None else arguments.delta
    _validate.positive(epsilon=epsilon)
    _validate.probability(delta=delta)
    structure = forecast(n_records, shape, n_classes, mu_of_epsilon(epsilon, delta))
    facts = {"n_records": n_records, "epsilon": epsilon, "delta": delta}
    return {**facts, **dataclasses.asdict(structure), "text": str(structure)}


def _show(result: dict[str, Any]) -> None:
    print(result["text"])


COMMANDS = {
    "forecast": Command(
        help="forecast signal-to-noise ratios from public facts", add_arguments=_add_arguments, run=_run, show=_show
    )
}
