"""``dpswd audit``: tries to refute the claim of ``dpswd account`` on the library's own loss and sampler."""

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import Any

from dpswd._validate import delta_caveats
from dpswd.commands.account import add_mechanism, in_options, mechanism_of, n_releases_of


def add_arguments(parser: ArgumentParser) -> None:
    add_mechanism(parser)
    parser.add_argument(
        "--sigma", type=float, required=True, help="standard deviation of the noise"
    )
    parser.add_argument(
        "--delta", type=float, default=1e-5, help="where epsilon is evaluated (default 1e-5)"
    )
    game = parser.add_argument_group("the game")
    game.add_argument(
        "--trials",
        type=int,
        help="runs on each data set (default: as many as about 45 seconds allow)",
    )
    game.add_argument(
        "--seed", type=int, default=0, help="of the record that differs; the noise is never seeded"
    )


def run(arguments: Namespace) -> dict[str, Any]:
    from dpswd.audit.game import audit

    with in_options():
        result = audit(
            mechanism_of(arguments, arguments.sigma),
            arguments.sample_size,
            n_releases_of(arguments),
            delta=arguments.delta,
            trials=arguments.trials,
            seed=arguments.seed,
            accountant=arguments.accountant,
        )
    return asdict(result) | {"caveats": delta_caveats(arguments.delta, arguments.sample_size)}


def show(result: dict[str, Any]) -> None:
    print(f"mu       at least {result['mu_lower']:.4g}, claimed {result['mu_claimed']:.4g}")
    epsilons = f"at least {result['epsilon_lower']:.4g}, claimed {result['epsilon_claimed']:.4g}"
    print(f"epsilon  {epsilons}   at delta {result['delta']:g}")
    verdict = "REFUTED: the claim is false"
    if result["passed"]:
        verdict = "passed: the claim was not refuted"
    print(f"verdict  {verdict}")
    print(f"game     {result['trials']} runs on each of two neighbouring data sets")
    rates = f"at most {result['fpr']:.3g} and {result['fnr']:.3g}"
    print(f"test     error rates {rates}, where the claimed curve allows")
    confidence = f"{100 * result['confidence']:g} % confidence"
    print(f"         mu = {result['mu_claimed_at_fpr']:.4g}; with {confidence}")
    if result["releases_audited"] < result["n_releases"]:
        releases = f"{result['releases_audited']} of {result['n_releases']} releases"
        print(f"note     runs and claims are of {releases}; --trials uses all of them")
    if result["best_provable_mu"] < result["mu_claimed"]:
        print(
            f"note     this number of runs can prove no mu above {result['best_provable_mu']:.3g}"
        )
    for line in result["caveats"]:
        print(f"warning  {line}")
    print("         An audit can refute a claim; it cannot prove one.")
