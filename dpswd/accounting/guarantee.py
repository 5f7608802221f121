"""Statement of a guarantee: the facts that state it, and its one line."""

from typing import Any

from dpswd.accounting.accountant import round_up

__all__ = ["guarantee_line", "stated_guarantee"]

GUARANTEE = (  # facts of privacy.json that state the guarantee
    "private sound epsilon delta mu regret neighboring_relation records conditions run weights_from_runs".split()
)


SCOPE = (
    "The guarantee covers the releases of all runs that the weights depend on (weights_from_runs). Releases of other "
    "runs on the same records compose with it."
)


def stated_guarantee(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that state the guarantee of the weights, of all runs that they have seen, and its scope."""
    stated = {key: value for key, value in facts.items() if key in GUARANTEE}
    if set(facts.get("weights_from_runs") or ()) - {facts.get("run")}:
        across = facts.get("across_runs") or {"private": facts.get("private"), "sound": False}
        stated |= {
            name: across.get(name)
            for name in ("private", "epsilon", "delta", "mu", "regret", "sound")
        }
    if stated.get("private"):
        stated["scope"] = SCOPE
    return stated


def guarantee_line(facts: dict[str, Any]) -> str:
    """Return the guarantee in one line, rounded up."""
    if not facts.get("private") or facts.get("mu") is None:
        return "Guarantee: none (not private)."
    conditions = "" if facts.get("sound") else ", ON CONDITIONS (see privacy.json)"
    return (
        f"Guarantee: mu = {round_up(facts['mu'], 3):g}, (epsilon, delta) = ({round_up(facts['epsilon'], 3):g}, "
        f"{facts['delta']:g}), replace-one{conditions}."
    )
