"""``dpswd audit``: tries to refute the claim of ``dpswd account``.

It attacks the loss and the sampler of the library.
"""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import Any

from dpswd._validate import delta_caveats
from dpswd.commands.account import add_mechanism, mechanism_of, n_releases_of


def add_arguments(parser: ArgumentParser) -> None:
    add_mechanism(parser)
    parser.add_argument(
        "--sigma",
        type=float,
        required=True,
        help="standard deviation of the noise, as in --sigma 0.5",
    )
    parser.add_argument(
        "--delta",
        type=float,
        default=1e-5,
        help="delta at which epsilon is compared (default: 1e-5)",
    )
    game = parser.add_argument_group("the attack")
    game.add_argument(
        "--trials",
        type=int,
        help="number of releases of each of the two data sets that the attack tells apart "
        "(default: as many as 45 seconds allow)",
    )
    game.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the record that differs; the noise has no seed (default: 0)",
    )


def run(arguments: Namespace) -> dict[str, Any]:
    from dpswd.audit.game import audit

    mechanism = mechanism_of(arguments, arguments.sigma)
    n_releases = n_releases_of(arguments)
    result = audit(
        mechanism,
        arguments.sample_size,
        n_releases,
        delta=arguments.delta,
        trials=arguments.trials,
        seed=arguments.seed,
        accountant=arguments.accountant,
    )
    caveats = delta_caveats(arguments.delta, arguments.sample_size)
    return asdict(result) | {"caveats": caveats}


def show(result: dict[str, Any]) -> None:
    mu = _bounds(result["mu_lower"], result["mu_claimed"])
    print(f"mu       {mu}")
    epsilon = _bounds(result["epsilon_lower"], result["epsilon_claimed"])
    print(f"epsilon  {epsilon}   at delta {result['delta']:g}")
    verdict = "REFUTED: the claim is false"
    if result["passed"]:
        verdict = "passed: the claim was not refuted"
    print(f"verdict  {verdict}")
    print(f"game     {result['trials']} runs on each of two neighbouring data sets")
    false_positives = f"{result['fpr']:.3g}"
    false_negatives = f"{result['fnr']:.3g}"
    rates = f"at most {false_positives} and {false_negatives}"
    print(f"test     error rates {rates}, where the claimed curve allows")
    percent = 100 * result["confidence"]
    mu_at_rate = result["mu_claimed_at_fpr"]
    print(f"         mu = {mu_at_rate:.4g}; with {percent:g} % confidence")
    n_audited = result["releases_audited"]
    n_releases = result["n_releases"]
    if n_audited < n_releases:
        releases = f"{n_audited} of {n_releases} releases"
        print(f"note     runs and claims are of {releases}; --trials uses all of them")
    best_mu = result["best_provable_mu"]
    if best_mu < result["mu_claimed"]:
        print(f"note     this number of runs can prove no mu above {best_mu:.3g}")
    for line in result["caveats"]:
        print(f"warning  {line}")
    print("         An audit can refute a claim; it cannot prove one.")


def _bounds(lower: float, claimed: float) -> str:
    """Return a lower bound that the audit has proven beside the claim."""
    return f"at least {lower:.4g}, claimed {claimed:.4g}"
