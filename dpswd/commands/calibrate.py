"""``dpswd calibrate``: the least sigma that keeps a budget."""

from argparse import ArgumentParser, Namespace
from typing import Any

from dpswd.commands.account import account, add_mechanism, mechanism_of, n_releases_of
from dpswd.commands.account import show as show


def add_arguments(parser: ArgumentParser) -> None:
    add_mechanism(parser)
    budget = parser.add_argument_group("the budget: state --epsilon and --delta, or --mu")
    budget.add_argument("--epsilon", type=float, help="budget, as in --epsilon 10 --delta 1e-5")
    budget.add_argument("--delta", type=float, help="choose it well below 1 / N for N records")
    budget.add_argument(
        "--mu", type=float, help="the budget as one number, mu of Gaussian differential privacy"
    )


def run(arguments: Namespace) -> dict[str, Any]:
    from dpswd.accounting.calibrate import calibrate_sigma  # not needed by --help

    target_delta = arguments.delta
    if arguments.mu is not None:
        target_delta = None  # delta is only the value at which epsilon is reported
    mechanism = mechanism_of(arguments, 1.0)
    sigma = calibrate_sigma(
        mechanism,
        sample_size=arguments.sample_size,
        n_releases=n_releases_of(arguments),
        target_epsilon=arguments.epsilon,
        target_delta=target_delta,
        target_mu=arguments.mu,
        accountant=arguments.accountant,
    )
    return account(mechanism.replace(sigma=sigma), arguments)
