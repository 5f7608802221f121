"""``dpswd account`` and ``dpswd calibrate``: noise and budgets. Needs no data and no torch."""

import dataclasses
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dpswd._validate import delta_caveat
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.calibrate import calibrate_sigma
from dpswd.commands import Command
from dpswd.errors import InputError
from dpswd.mechanism import ProjectionMechanism

_ARGUMENTS = (
    "target_epsilon|target_delta|target_mu|target_tpr|at_fpr|n_projections|sample_size|batch_size|n_releases|"
    "n_quantiles|row_norm|n_classes|failure_prob"
)


@contextmanager
def in_options() -> Iterator[None]:
    """Let errors speak of the options of the command instead of the arguments of the library."""
    try:
        yield
    except InputError as error:
        text = re.sub(
            rf"\b({_ARGUMENTS})\b", lambda m: "--" + re.sub("^(target_|at_)", "", m[1]).replace("_", "-"), str(error)
        )
        raise InputError(text) from None


def add_mechanism(parser: ArgumentParser) -> None:
    """Add the options of a mechanism and of its accounting."""
    what = parser.add_argument_group("what is released")
    what.add_argument("--dim", type=int, required=True, help="dimension of the rows")
    what.add_argument("--n-projections", type=int, required=True, help="number of directions per release")
    what.add_argument("--sample-size", type=int, required=True, help="number of private records")
    what.add_argument("--batch-size", type=int, required=True, help="records that one release reads")
    what.add_argument("--n-releases", type=int, default=1, help="number of releases (default 1)")
    what.add_argument("--statistic", choices=["rows", "quantiles"], default="rows")
    what.add_argument("--n-quantiles", type=int, help="blocks per column, for quantiles")
    what.add_argument("--kind", choices=["iid", "orthogonal"], default="iid", help="directions (default iid)")
    what.add_argument("--row-norm", type=float, default=0.5, help="bound on the L2 norm of a row (default 0.5)")
    what.add_argument("--n-classes", type=int, help="classes, where labels are embedded one-hot")
    how = parser.add_argument_group("how it is accounted for")
    how.add_argument("--accountant", choices=["pld", "rdp"], default="pld")
    how.add_argument("--bound", choices=["exact", "bernstein", "clt"], default="exact", help="default exact")
    how.add_argument("--failure-prob", type=float, help="tail probability per release of bernstein or clt")


def mechanism_of(arguments: Namespace, sigma: float) -> ProjectionMechanism:
    """Return the mechanism of the options."""
    fields = [field.name for field in dataclasses.fields(ProjectionMechanism) if field.name in arguments]
    return ProjectionMechanism(**{name: getattr(arguments, name) for name in fields} | {"sigma": sigma})


def _account(mechanism: ProjectionMechanism, arguments: Namespace, delta: float | None) -> dict[str, Any]:
    accountant = PrivacyAccountant(arguments.accountant).step(
        mechanism, sample_size=arguments.sample_size, n_releases=arguments.n_releases
    )
    facts = {"accountant": arguments.accountant, "bound": mechanism.bound, "sigma": mechanism.sigma}
    return facts | accountant.guarantee(delta) | {"caveats": caveats(arguments, delta)}


def caveats(arguments: Namespace, delta: float | None) -> list[str]:
    """Return warnings about the numbers, in a list for ``--json``."""
    weak = None if delta is None else delta_caveat(delta, arguments.sample_size)
    return [] if weak is None else [weak]


def _add_account(parser: ArgumentParser) -> None:
    add_mechanism(parser)
    parser.add_argument("--sigma", type=float, required=True, help="standard deviation of the noise")
    parser.add_argument("--delta", type=float, required=True)


def _run_account(arguments: Namespace) -> dict[str, Any]:
    with in_options():
        return _account(mechanism_of(arguments, arguments.sigma), arguments, arguments.delta)


def _add_calibrate(parser: ArgumentParser) -> None:
    add_mechanism(parser)
    budget = parser.add_argument_group("budget: --epsilon and --delta, or --mu, or --tpr and --fpr")
    budget.add_argument("--epsilon", type=float)
    budget.add_argument("--delta", type=float)
    budget.add_argument("--mu", type=float, help="of Gaussian differential privacy")
    budget.add_argument("--tpr", type=float, help="largest true-positive rate of an attack ...")
    budget.add_argument("--fpr", type=float, help="... at this false-positive rate")


def _run_calibrate(arguments: Namespace) -> dict[str, Any]:
    with in_options():
        mechanism = mechanism_of(arguments, 1.0)
        sigma = calibrate_sigma(
            mechanism,
            sample_size=arguments.sample_size,
            n_releases=arguments.n_releases,
            target_epsilon=arguments.epsilon,
            # with --mu or --tpr, delta is only the value at which epsilon is reported
            target_delta=None if arguments.mu is not None or arguments.tpr is not None else arguments.delta,
            target_mu=arguments.mu,
            target_tpr=arguments.tpr,
            at_fpr=arguments.fpr,
            accountant=arguments.accountant,
        )
        return {"sigma": sigma, **_account(mechanism.replace(sigma=sigma), arguments, arguments.delta)}


def _show(result: dict[str, Any]) -> None:
    print(f"sigma    {result['sigma']:.6g}")
    if result["epsilon"] is not None:
        print(f"epsilon  {result['epsilon']:.6g}   at delta {result['delta']:g}")
    if result["mu"] is not None:
        print(f"mu       {result['mu']:.5g}   regret {result['regret']:.2g}")
    print(f"account  {result['accountant']}, bound {result['bound']}, {'sound' if result['sound'] else 'NOT SOUND'}")
    for line in result["caveats"]:
        print(f"warning  {line}")
    for line in result["assumptions"]:
        print(f"  - {line}")


COMMANDS: dict[str, Command] = {
    "account": Command("epsilon, mu and assumptions of releases with a given sigma", _add_account, _run_account, _show),
    "calibrate": Command("least sigma that keeps a budget", _add_calibrate, _run_calibrate, _show),
}
