"""``dpswd account``: epsilon, mu and assumptions of releases with a given sigma.

Needs no data and no torch. Accounting is imported where it is called, so that ``--help`` is quick.
"""

import dataclasses
import re
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from dpswd._validate import delta_caveats
from dpswd.errors import InputError

if TYPE_CHECKING:
    from dpswd.mechanism import ProjectionMechanism


@contextmanager
def in_options() -> Iterator[None]:
    """Let errors speak of the options of the command instead of the arguments of the library."""
    try:
        yield
    except InputError as error:
        said = re.sub(r"\b[a-z]+(_[a-z]+)+\b", lambda name: _option(name[0]), str(error))
        raise InputError(said) from None


def _option(name: str) -> str:
    return "--" + name.removeprefix("target_").replace("_", "-")


def add_mechanism(parser: ArgumentParser) -> None:
    """Add the options of a mechanism and of its accounting."""
    what = parser.add_argument_group("what is released")
    what.add_argument("--dim", type=int, required=True, help="dimension of the rows")
    what.add_argument(
        "--n-projections", type=int, required=True, help="number of directions per release"
    )
    what.add_argument("--sample-size", type=int, required=True, help="number of private records")
    what.add_argument(
        "--batch-size", type=int, required=True, help="records that one release reads"
    )
    what.add_argument("--n-releases", type=int, default=1, help="number of releases (default 1)")
    what.add_argument("--statistic", choices=["rows", "quantiles"], default="rows")
    what.add_argument("--n-quantiles", type=int, help="blocks per column, for quantiles")
    what.add_argument(
        "--kind", choices=["iid", "orthogonal"], default="iid", help="directions (default iid)"
    )
    what.add_argument(
        "--row-norm", type=float, default=0.5, help="bound on the L2 norm of a row (default 0.5)"
    )
    what.add_argument("--n-classes", type=int, help="classes, where labels are embedded one-hot")
    how = parser.add_argument_group("how it is accounted for")
    how.add_argument("--accountant", choices=["pld", "rdp"], default="pld")
    how.add_argument(
        "--bound", choices=["exact", "bernstein", "clt"], default="exact", help="default exact"
    )
    how.add_argument(
        "--failure-prob", type=float, help="tail probability per release of bernstein or clt"
    )


def add_arguments(parser: ArgumentParser) -> None:
    add_mechanism(parser)
    parser.add_argument(
        "--sigma", type=float, required=True, help="standard deviation of the noise"
    )
    parser.add_argument("--delta", type=float, required=True)


def mechanism_of(arguments: Namespace, sigma: float) -> "ProjectionMechanism":
    """Return the mechanism of the options."""
    from dpswd.mechanism import ProjectionMechanism

    fields = [
        field.name for field in dataclasses.fields(ProjectionMechanism) if field.name in arguments
    ]
    return ProjectionMechanism(
        **{name: getattr(arguments, name) for name in fields} | {"sigma": sigma}
    )


def account(mechanism: "ProjectionMechanism", arguments: Namespace) -> dict[str, Any]:
    """Return what the accountant claims, and warnings about the numbers."""
    from dpswd.accounting.accountant import PrivacyAccountant

    accountant = PrivacyAccountant(arguments.accountant).step(
        mechanism, sample_size=arguments.sample_size, n_releases=arguments.n_releases
    )
    return {
        **{"sigma": mechanism.sigma, "accountant": arguments.accountant, "bound": mechanism.bound},
        **accountant.guarantee(arguments.delta),
        "caveats": delta_caveats(arguments.delta, arguments.sample_size),
    }


def run(arguments: Namespace) -> dict[str, Any]:
    with in_options():
        return account(mechanism_of(arguments, arguments.sigma), arguments)


def show(result: dict[str, Any]) -> None:
    print(f"sigma    {result['sigma']:.6g}")
    if result["epsilon"] is not None:
        print(f"epsilon  {result['epsilon']:.6g}   at delta {result['delta']:g}")
    print(f"mu       {result['mu']:.5g}   regret {result['regret']:.2g}")
    print(
        f"account  {result['accountant']}, bound {result['bound']}, {'sound' if result['sound'] else 'NOT SOUND'}"
    )
    print(*(f"warning  {line}\n" for line in result["caveats"]), sep="", end="")
    print(*(f"  - {line}" for line in result["assumptions"]), sep="\n")
