"""``dpswd account``: epsilon, mu and assumptions of releases with a known sigma.

It needs no data and no torch. Accounting is imported where it is called, so that ``--help`` is
quick.
"""

import dataclasses
from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from dpswd._validate import delta_caveats
from dpswd.errors import InputError

if TYPE_CHECKING:
    from dpswd.mechanism import ProjectionMechanism

# Significant digits of epsilon, mu and sigma.
_DIGITS = 6

_EMPTY_CURVE = (
    "The trade-off curve is empty: no test of these releases has both error rates above 1e-10, so "
    "mu is not stated."
)


def add_mechanism(parser: ArgumentParser) -> None:
    """Add the options of a mechanism and of its accounting."""
    release = parser.add_argument_group("what is released")
    release.add_argument("--dim", type=int, required=True, help="how many numbers a row has")
    release.add_argument(
        "--n-projections",
        type=int,
        required=True,
        help="number of directions on which a release projects the rows",
    )
    release.add_argument("--sample-size", type=int, required=True, help="number of private records")
    release.add_argument(
        "--batch-size", type=int, required=True, help="number of records that one release reads"
    )
    number = release.add_mutually_exclusive_group()
    number.add_argument("--n-releases", type=int, help="number of releases (default: 1)")
    number.add_argument(
        "--epochs",
        type=int,
        metavar="E",
        help="instead of --n-releases: E epochs, counted as E (N // B + 1) releases of B out of N "
        "records, as in the code of the paper",
    )
    release.add_argument(
        "--statistic",
        choices=["rows", "quantiles"],
        default="rows",
        help="rows: every projected row gets noise; quantiles: so do means of blocks of a sorted "
        "slice (default: rows)",
    )
    release.add_argument(
        "--n-quantiles", type=int, help="quantiles: number of blocks of a sorted slice"
    )
    release.add_argument(
        "--kind",
        choices=["iid", "orthogonal", "structured"],
        default="iid",
        help="how directions are drawn: independently, in orthogonal sets, or by fast orthogonal "
        "transforms (default: iid)",
    )
    release.add_argument(
        "--row-norm",
        type=float,
        default=0.5,
        help="largest length (L2 norm) of a row (default: 0.5)",
    )
    release.add_argument(
        "--n-classes", type=int, help="number of classes, if the class is part of the row"
    )
    accounting = parser.add_argument_group("how it is accounted for")
    accounting.add_argument(
        "--accountant",
        choices=["pld", "rdp"],
        default="pld",
        help="pld adds budgets up exactly, rdp by Renyi bounds (default: pld)",
    )
    accounting.add_argument(
        "--bound",
        choices=["exact", "bernstein", "clt"],
        default="exact",
        help="bound on the sensitivity (default: exact)",
    )
    accounting.add_argument(
        "--failure-prob",
        type=float,
        help="bernstein and clt: probability that the bound fails, for each release",
    )


def add_arguments(parser: ArgumentParser) -> None:
    add_mechanism(parser)
    parser.add_argument(
        "--sigma",
        type=float,
        required=True,
        help="standard deviation of the noise, as in --sigma 0.5",
    )
    parser.add_argument(
        "--delta", type=float, required=True, help="delta at which epsilon is computed, as 1e-5"
    )


def mechanism_of(arguments: Namespace, sigma: float) -> "ProjectionMechanism":
    """Return the mechanism of the options."""
    from dpswd.mechanism import ProjectionMechanism

    has_tail = arguments.bound in ("bernstein", "clt")
    if arguments.failure_prob is not None and not has_tail:
        raise InputError(
            "Expected --failure-prob with --bound bernstein or clt only, got --bound exact, which "
            "spends no tail probability; leave one of them out."
        )
    values = {"sigma": sigma}
    for field in dataclasses.fields(ProjectionMechanism):
        if field.name in arguments and field.name != "sigma":
            values[field.name] = getattr(arguments, field.name)
    return ProjectionMechanism(**values)  # type: ignore[arg-type]


def n_releases_of(arguments: Namespace) -> int:
    """Return the number of releases, stated by ``--n-releases`` or by ``--epochs``.

    An epoch of N records in batches of B counts as N // B + 1 releases, as in the code of
    Rakotomamonjy2021 (Table 4): 100 epochs of 60,000 records in batches of 100 are 60,100.
    """
    if arguments.epochs is None:
        if arguments.n_releases is None:
            return 1
        n_releases: int = arguments.n_releases
        return n_releases
    if arguments.epochs < 1:
        raise InputError(f"Expected epochs to be at least 1, got epochs={arguments.epochs}.")
    releases_per_epoch: int = arguments.sample_size // arguments.batch_size + 1
    n_epochs: int = arguments.epochs
    return n_epochs * releases_per_epoch


def account(mechanism: "ProjectionMechanism", arguments: Namespace) -> dict[str, Any]:
    """Return what the accountant claims, and caveats about the numbers."""
    from dpswd.accounting.accountant import EmptyCurveError, PrivacyAccountant
    from dpswd.accounting.pld import LossTooLargeError

    n_releases = n_releases_of(arguments)
    accountant = PrivacyAccountant(arguments.accountant).step(
        mechanism, sample_size=arguments.sample_size, n_releases=n_releases
    )
    caveats = delta_caveats(arguments.delta, arguments.sample_size)
    try:
        guarantee = accountant.guarantee(arguments.delta)
    except EmptyCurveError:
        guarantee = accountant.guarantee(arguments.delta, with_mu=False)
        caveats.append(_EMPTY_CURVE)
    except LossTooLargeError as error:
        # epsilon may exist without a trade-off curve, for example by Renyi divergences
        guarantee = accountant.guarantee(arguments.delta, with_mu=False)
        caveats.append(f"There is no trade-off curve, so mu is not stated. {error}")
    epsilon_by_accountant: dict[str, float | None] = {}
    if arguments.delta is not None:  # dpswd calibrate --mu needs none
        epsilon_by_accountant = accountant.epsilon_by_accountant(arguments.delta)
    result = {
        "sigma": mechanism.sigma,
        "n_releases": n_releases,
        "accountant": arguments.accountant,
        "bound": mechanism.bound,
        "epsilon_by_accountant": epsilon_by_accountant,
    }
    return {**result, **guarantee.to_dict(), "caveats": caveats}


def run(arguments: Namespace) -> dict[str, Any]:
    return account(mechanism_of(arguments, arguments.sigma), arguments)


def show(result: dict[str, Any]) -> None:
    """Print a result; epsilon, mu and sigma are rounded up.

    A sigma that is copied from the screen then costs no more than the epsilon beside it.
    """
    from dpswd.accounting.rounding import round_up

    print(f"sigma    {round_up(result['sigma'], _DIGITS):.{_DIGITS}g}")
    if result["epsilon"] is not None:
        epsilon = round_up(result["epsilon"], _DIGITS)
        print(f"epsilon  {epsilon:.{_DIGITS}g}   at delta {result['delta']:g}")
    by_accountant = []
    for name, epsilon in result["epsilon_by_accountant"].items():
        if epsilon is not None:
            by_accountant.append(f"{round_up(epsilon, _DIGITS):.{_DIGITS}g} by {name}")
    if by_accountant:
        print(f"epsilon  {', '.join(by_accountant)}")
    if result["mu"] is None:
        print("mu       none")
    else:
        mu = round_up(result["mu"], _DIGITS)
        print(
            f"mu       {mu:.{_DIGITS}g}   an attacker's error rates differ from those of mu by "
            f"at most {result['regret']:.2g} (the regret)"
        )
    soundness = "NOT SOUND: epsilon and mu are not proven"
    if result["sound"]:
        soundness = "sound: epsilon and mu are proven"
    print(f"account  {result['accountant']}, bound {result['bound']}; {soundness}")
    for caveat in result["caveats"]:
        print(f"warning  {caveat}")
    for assumption in result["assumptions"]:
        print(f"  - {assumption}")
