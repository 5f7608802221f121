"""``dpswd audit``: tries to refute what ``dpswd account`` claims, on the library's own loss and sampler."""

from argparse import ArgumentParser, Namespace
from typing import Any

from dpswd._validate import at_least
from dpswd.commands import Command
from dpswd.commands.account import add_mechanism, mechanism_of
from dpswd.errors import InputError

__all__ = ["COMMANDS"]

_NEEDED = ("dim", "n_projections", "sample_size", "batch_size", "sigma")


def _add_arguments(parser: ArgumentParser) -> None:
    add_mechanism(parser, required=False)
    parser.add_argument("--sigma", type=float, help="standard deviation of the noise")
    parser.add_argument("--delta", type=float, default=1e-5, help="where epsilon is read (default 1e-5)")
    game = parser.add_argument_group("the game")
    game.add_argument("--trials", type=int, help="runs on each data set (default: what about 45 seconds allow)")
    game.add_argument("--seed", type=int, default=0, help="of the auditor's choices; the noise stays the system's")
    game.add_argument("--as-released", action="store_true", help="attack noisy rows after their last sort")
    game.add_argument("--zoo", action="store_true", help="show that broken mechanisms are caught; needs no other flag")


def _run(arguments: Namespace) -> dict[str, Any]:
    from dpswd.audit import audit

    at_least(0, seed=arguments.seed)
    if arguments.zoo:
        return _run_zoo(arguments)
    missing = [f"--{name.replace('_', '-')}" for name in _NEEDED if getattr(arguments, name) is None]
    if missing:
        raise InputError(f"Expected {', '.join(missing)} for an audit, got none; dpswd audit --help lists all flags.")
    result = audit(
        mechanism_of(arguments, arguments.sigma),
        arguments.sample_size,
        arguments.n_releases,
        delta=arguments.delta,
        trials=arguments.trials,
        seed=arguments.seed,
        accountant=arguments.accountant,
        as_released=arguments.as_released,
    )
    return {**result.to_dict(), "assumptions": result.claim.assumptions}


def _run_zoo(arguments: Namespace) -> dict[str, Any]:
    from experiments.audit.zoo import CONFIDENCE, TRIALS, ZOO, inspect

    given = [f"--{name.replace('_', '-')}" for name in _NEEDED if getattr(arguments, name) is not None]
    if given:
        raise InputError(f"Expected no mechanism beside --zoo, got {', '.join(given)}; leave one of them out.")
    rows = [inspect(kind, trials=arguments.trials or TRIALS, seed=arguments.seed) for kind in ZOO]
    caught = sum(row["caught"] for row in rows)
    spared = sum(row["twin_passed"] for row in rows)
    return {
        "zoo": rows,
        "caught": caught,
        "twins_passed": spared,
        "confidence": CONFIDENCE,
        "passed": caught == spared == len(rows),
    }


def _show(result: dict[str, Any]) -> None:
    if "zoo" in result:
        _show_zoo(result)
        return
    sure = f"{100 * result['confidence']:g} %"
    print(f"mu       at least {result['mu_lower']:.4g}, claimed {result['mu_claimed']:.4g}")
    print(f"epsilon  at least {result['epsilon_lower']:.4g}, claimed {result['epsilon_claimed']:.4g}", end="")
    print(f"   at delta {result['delta']:g}")
    print(f"verdict  {'the claim stands' if result['passed'] else 'REFUTED: more leaks than is claimed'}")
    print(f"game     {result['trials']} runs on each of two neighbouring data sets; {result['attacked']}")
    print(f"test     error rates at most {result['fpr']:.3g} and {result['fnr']:.3g}, with {sure} confidence;")
    print(f"         the claimed curve allows mu = {result['mu_claimed_at_fpr']:.4g} there")
    if result["releases_audited"] < result["n_releases"]:
        print(
            f"note     {result['releases_audited']} of {result['n_releases']} releases were played, claims are for "
            f"those (all: mu {result['mu_claimed_of_all']:.4g}); --trials plays all"
        )
    if result["best_provable_mu"] < result["mu_claimed"]:
        print(f"note     so many runs can prove no mu above {result['best_provable_mu']:.3g}, even without an error")
    print("         An audit can refute a claim, never prove it.")


def _show_zoo(result: dict[str, Any]) -> None:
    print(f"{'broken mechanism':<44} {'claimed':>8} {'at least':>8}          {'sound twin':>10}")
    for row in result["zoo"]:
        verdict = "caught" if row["caught"] else "MISSED"
        twin = "passed" if row["twin_passed"] else "ACCUSED"
        print(
            f"{row['name']:<44} {row['mu_claimed_at_fpr']:8.3f} {row['mu_lower']:8.3f}  {verdict}  "
            f"{row['twin_mu_lower']:8.3f}  {twin}"
        )
    print(f"mu, claimed at the false-positive rate of the test; confidence {result['confidence']:g} for each.")


COMMANDS = {
    "audit": Command("attack a mechanism and hold what is found against what is claimed", _add_arguments, _run, _show)
}
