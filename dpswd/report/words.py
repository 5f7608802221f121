"""Numbers and sentences of a report, in HTML and in Markdown alike; all are rounded towards less privacy."""

from typing import Any

from dpswd.report.gdp import REGRET_LIMIT, RESOLUTION, round_up

__all__ = [
    "attack_sentence",
    "banner",
    "headline",
    "innocents",
    "number",
    "percent",
    "snippet",
    "tier_sentence",
]

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float | None, digits: int = 3) -> str:
    """Writes a number, rounded up; powers of ten where it is very small or large, a dash where there is none.

    Example:
        >>> number(0.57201), number(1e-5), number(3.2e-7), number(60100, 6), number(None)
        ('0.573', '10⁻⁵', '3.2 × 10⁻⁷', '60100', '—')
    """
    if value is None:
        return "—"
    value = round_up(value, digits)
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    power = str(int(exponent)).translate(_SUPERSCRIPTS)
    mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
    return f"10{power}" if mantissa == "1" else f"{mantissa} × 10{power}"


def percent(share: float) -> str:
    """Writes a probability in percent, rounded up, never above 100."""
    return f"{number(min(100.0, 100 * share))} %"


def innocents(fpr: float) -> str:
    """Writes a false-positive rate as the innocents that are accused."""
    return f"1 in {round(1 / fpr):,}"


def _where(guarantee: dict[str, Any]) -> str:
    """Where mu was looked for: everywhere by theorem, or above gdpnum's floor."""
    return "" if guarantee["exactly_gaussian"] else f" at error rates above {number(RESOLUTION)}"


def headline(report: dict[str, Any]) -> str:
    """One line: the guarantee."""
    guarantee = report["guarantee"]
    mu, regret = number(guarantee["mu"]), number(guarantee["regret"], 2)
    epsilon, delta = number(guarantee["epsilon"]), number(guarantee["delta"])
    void = "" if report["private"] else "void: "
    return f"{void}μ = {mu}{_where(guarantee)} (regret {regret}); (ε, δ) = ({epsilon}, {delta})"


def attack_sentence(report: dict[str, Any]) -> str:
    """The guarantee in words; none where there is none."""
    attack = report["guarantee"]["attack"]
    if not report["private"]:
        return "Nothing can be said about what an attacker finds at most."
    accused, found = innocents(attack["fpr"]), percent(attack["tpr"])
    sentence = (
        f"n attacker who may accuse {accused} innocents finds at most {found} of the members, even one who "
        f"knows every other record, all that was released, and everything that was computed from it."
    )
    return ("A" if report["sound"] else "If the account held: a") + sentence


def tier_sentence(guarantee: dict[str, Any]) -> str:
    """Which tier of Gomez2025 applies, and why."""
    regret = number(guarantee["regret"], 2)
    if guarantee["tier"] == 1:
        return (
            f"Tier I: the regret of μ is {regret}, at most {REGRET_LIMIT:g}, so that μ alone describes the "
            f"guarantee{_where(guarantee) or ' at every false-positive rate'}."
        )
    return (
        f"Tier II: the regret of μ{_where(guarantee)} is {regret}, above {REGRET_LIMIT:g}: μ alone overstates "
        f"what an attacker can do, and the Tier II table is the one to read."
    )


def banner(report: dict[str, Any]) -> tuple[str, str] | None:
    """A title and a sentence where the numbers must not be relied upon, else ``None``."""
    why = " ".join(report["reasons"])
    if not report["private"]:
        return "NOT PRIVATE", f"The numbers below do not hold for this run. {why}"
    if not report["sound"]:
        return "NOT SOUND", f"The numbers below are not proven upper bounds. {why}"
    return None


def snippet(report: dict[str, Any]) -> str:
    """Python that computes the numbers of the report again, from the releases alone."""
    kinds = {"projections": "ProjectionMechanism", "gaussian": "GaussianMechanism"}
    groups = report["releases"]["groups"]
    used = sorted({kinds[group["mechanism"]["mechanism"]] for group in groups})
    lines = [
        "from dpswd.accounting.accountant import PrivacyAccountant",
        f"from dpswd.mechanism import {', '.join(used)}",
        "from dpswd.report.gdp import TABLE_FPR, TradeOff, closed_form_mu",
        "",
        'accountant = PrivacyAccountant("pld")',
    ]
    for group in groups:
        fields = {name: value for name, value in group["mechanism"].items() if name != "mechanism"}
        lines.append(f"mechanism = {kinds[group['mechanism']['mechanism']]}(")
        lines += [f"    {name}={value!r}," for name, value in fields.items() if value is not None]
        lines.append(")")
        size, count = group["sample_size"], group["count"]
        lines.append(f"accountant.step(mechanism, sample_size={size}, n_releases={count})")
    exact = ", exact_mu=closed_form_mu(accountant.history)" if report["guarantee"]["exactly_gaussian"] else ""
    lines += [
        "",
        f"loss = accountant.resolve({report['guarantee']['delta']!r}).pld()",
        f"curve = TradeOff.of(loss{exact})  # gdpnum's PLDConverter",
        "print(curve.mu, curve.regret)",
        f"print(accountant.get_epsilon({report['guarantee']['delta']!r}))",
        "for fpr, fnr in zip(TABLE_FPR, curve.fnr(TABLE_FPR)):",
        "    print(fpr, fnr)",
    ]
    return "\n".join(lines)
