r"""What the runs in one ledger cost together, what that number rests on, and the words for both.

The losses of runs whose plans are fixed beforehand add up (Dong2022, Theorem 3.2; the accountants compose them): that
is the number so far. Plans that are chosen after looking at earlier results are another matter.

Where a budget was fixed beforehand and every release reads all records with a constant sensitivity, the *budget* holds
for such plans, too. Gaussian mechanisms are totally ordered by :math:`\mu`; those of which the i-th is chosen after
seeing the first i - 1, with :math:`\sum_i \mu_i^2 \le B^2` whatever is seen, are together B-GDP (Smith and Thakurta,
Fully Adaptive Composition for Gaussian Differential Privacy, 2022: a privacy filter). Admission keeps that sum: a plan
is refused where epsilon of the composition, which increases with :math:`\mu` and which the accountant rounds upwards,
would exceed the budget; B is the :math:`\mu` at which it equals the budget. Whoever stops early, or sends no further
run, is covered: further mechanisms may release nothing.

The number so far is no such thing (an odometer): whoever decides by looking when to stop can make it an understatement.
tests/accounting/test_across.py stops where the loss exceeds the epsilon so far, and delta is several times the one
stated. Nor was a budget fixed beforehand where ledgers were merged. Subsampled mechanisms are not totally ordered, and
no such theorem is known to hold for their exact losses.

A run with a fixed noise seed tells what it read, so no number for all runs holds: it is said first.
"""

from typing import Any

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.ledger import Ledger, ReleaseGroup
from dpswd.mechanism import Mechanism, ProjectionMechanism

__all__ = ["across", "compose", "cost", "shortcomings", "warning"]

_VOID = {
    "NOT PRIVATE": "The numbers for all runs together do not hold.",
    "NOT SOUND": "The numbers for all runs together are not proven upper bounds.",
}


def compose(groups: list[ReleaseGroup], accountant: str = "pld") -> PrivacyAccountant:
    """Returns an accountant that has seen the releases."""
    made = PrivacyAccountant(accountant)
    for mechanism, size, count in groups:
        made.step(mechanism, sample_size=size, n_releases=count)
    return made


def cost(groups: list[ReleaseGroup], delta: float, accountant: str = "pld") -> dict[str, Any]:
    """Returns epsilon at ``delta``, mu, regret, whether they are sound, and what they rest on."""
    if not groups:
        return {"epsilon": 0.0, "delta": delta, "mu": 0.0, "regret": 0.0, "sound": True, "assumptions": []}
    resolved = compose(groups, accountant).resolve(delta)
    mu, regret = resolved.get_mu_and_regret()
    sizes = sorted({size for _, size, _ in groups})
    assumptions = resolved.assumptions
    if len(sizes) > 1:
        assumptions.append(
            f"The runs read data sets of {', '.join(map(str, sizes))} records; what is protected is a record that is "
            "in each of them at most once. Parallel composition is not assumed: costs add up even if they are disjoint."
        )
    return {
        "epsilon": resolved.get_epsilon(delta),
        "delta": delta,
        "mu": mu,
        "regret": regret,
        "sound": resolved.sound,
        "assumptions": assumptions,
    }


def across(
    ledger: Ledger, delta: float, accountant: str, *, noun: str = "the ledger", budget: float | None = None
) -> dict[str, Any]:
    """Returns what :func:`cost` does for all plans in a ledger, with what is wrong with runs, and a sentence.

    Args:
        ledger: Of one run or of several.
        delta: Probability at which epsilon is stated.
        accountant: What composes the runs.
        noun: What the sentence calls the ledger.
        budget: Epsilon that admission keeps; that of the ledger if not given.

    Returns:
        Also ``private``, ``shortcomings`` and ``sentence``. The sentence begins with NOT PRIVATE or NOT SOUND where any
        run is, and says which and why. For one run's own ledger it is no more than that.
    """
    groups, found = ledger.planned(), shortcomings(ledger)
    facts = cost(groups, delta, accountant)
    words = [warning(found)] if found else []
    if ledger.shared:
        facts["assumptions"] = [*facts["assumptions"], _adaptivity(ledger, groups)]
        budget = ledger.header.get("target_epsilon") if budget is None else budget
        words.append(
            f"All runs in {noun} ({len(ledger.runs)} so far), on the same records, together: epsilon "
            f"{facts['epsilon']:.4g} at delta {delta:g}, mu {facts['mu']:.4g}, every plan counted in full"
            + (f"; their budget is epsilon {budget:g}." if budget is not None else ".")
        )
        words.append(facts["assumptions"][-1])
    return {
        **facts,
        "private": not any(entry["kind"] == "NOT PRIVATE" for entry in found),
        "sound": facts["sound"] and not found,
        "shortcomings": found,
        "sentence": " ".join(words),
    }


def shortcomings(ledger: Ledger) -> list[dict[str, str]]:
    """Returns the runs that are not private or not sound: ``run``, ``kind`` (NOT PRIVATE, NOT SOUND) and ``why``."""
    runs = ledger.runs if ledger.shared else {str(ledger.header.get("run", "-")): ledger.header}
    found = []
    for run, facts in runs.items():
        groups = ledger.planned(run if ledger.shared else None)
        if not all(mechanism.is_private for mechanism, *_ in groups):
            found.append(
                (run, "NOT PRIVATE", "a fixed noise seed makes the noise repeatable, so that anyone can take it off")
            )
        elif not facts.get("private", True):
            found.append((run, "NOT PRIVATE", "the run declares itself not private"))
        elif not compose(groups).sound:
            found.append(
                (run, "NOT SOUND", "the bound on the sensitivity is a normal approximation (CLT), not a theorem")
            )
    return [{"run": run, "kind": kind, "why": why} for run, kind, why in found]


def warning(found: list[dict[str, str]]) -> str:
    """Says which runs fall short, and why; the worse kind first. Empty where none does."""
    parts = []
    for kind, consequence in _VOID.items():
        runs: dict[str, list[str]] = {}
        for entry in found:
            if entry["kind"] == kind:
                runs.setdefault(entry["why"], []).append(entry["run"])
        if runs:
            which = "; ".join(f"run{'s' * (len(ids) > 1)} {', '.join(ids)}: {why}" for why, ids in runs.items())
            parts.append(f"{kind}: {which}. {consequence}")
    return " ".join(parts)


def _adaptivity(ledger: Ledger, groups: list[ReleaseGroup]) -> str:
    """What holds where plans are chosen by looking; the module's docstring has the proof."""
    budget, delta = ledger.header.get("target_epsilon"), ledger.header.get("target_delta")
    fixed = budget is not None and delta is not None and "merged_from" not in ledger.header
    if fixed and all(_is_gaussian(mechanism, size) for mechanism, size, _ in groups):
        return (
            "The plan of a later run, and whether there is one, may be chosen after looking at what earlier runs "
            f"released: what holds then is the budget that was fixed beforehand, epsilon {budget:g} at delta "
            f"{delta:g}. The number so far holds for plans that were not chosen by looking."
        )
    return (
        "Assumed: the plan of a later run (mechanisms, numbers, budget), and whether there is one, is not chosen by "
        "looking at what earlier runs released; nothing is promised for plans that are"
        + (": no budget was fixed before all of these runs." if not fixed else ".")
    )


def _is_gaussian(mechanism: Mechanism, size: int) -> bool:
    whole = mechanism.batch_size in (None, size)
    return (
        whole
        and not (isinstance(mechanism, ProjectionMechanism) and mechanism.spends_tail)
        and mechanism.law.is_constant
    )
