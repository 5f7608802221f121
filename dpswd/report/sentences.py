"""Numbers and sentences of a report.

Numbers have three digits and are rounded towards less privacy: epsilon up, noise down.
"""

import math
from dataclasses import dataclass

from scipy.special import ndtr as normal_cdf
from scipy.special import ndtri as normal_quantile

from dpswd.accounting.rounding import round_up
from dpswd.report.facts import Report
from dpswd.report.gdp import REGRET_LIMIT, RESOLUTION

DIGITS = 3
NO_NUMBER = "—"
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


# Numbers


def number(value: float | None) -> str:
    """Format a number with three digits, rounded up; a dash for ``None``."""
    if value is None:
        return NO_NUMBER
    if value == math.inf:
        return "∞"
    return _format(round_up(value, DIGITS))


def number_rounded_down(value: float) -> str:
    """Format a number with three digits, rounded down."""
    return _format(-round_up(-value, DIGITS))


def _format(value: float) -> str:
    """Format a rounded number: 0.573, 1240, 3.22 × 10⁻⁷ or 10⁻⁵."""
    if value == 0 or 1e-3 <= abs(value) < 10**DIGITS:
        return f"{value:.{DIGITS}g}"
    if 10**DIGITS <= abs(value) < 1e6:
        return f"{value:.0f}"
    mantissa, exponent = f"{value:.{DIGITS - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    power = "10" + str(int(exponent)).translate(SUPERSCRIPTS)
    if mantissa == "1":
        return power
    return f"{mantissa} × {power}"


def percent(probability: float) -> str:
    """Format a probability in percent, rounded up, at most 100."""
    return f"{number(min(100.0, 100 * probability))} %"


# The banner


@dataclass(frozen=True)
class Banner:
    """Warning above all numbers."""

    title: str
    text: str


def banner(report: Report) -> Banner | None:
    """Return the warning of a report whose numbers do not hold, or on conditions only."""
    if not report.private:
        return _not_private_banner(report)
    if report.conditions:
        return _conditional_banner(report)
    if not report.sound:
        return _not_sound_banner(report)
    return None


def _not_private_banner(report: Report) -> Banner:
    reasons = " ".join(report.reasons)
    return Banner("NOT PRIVATE", f"The numbers below do not hold for this run. {reasons}")


def _not_sound_banner(report: Report) -> Banner:
    reasons = " ".join(report.reasons)
    return Banner("NOT SOUND", f"The numbers below are not proven upper bounds. {reasons}")


def _conditional_banner(report: Report) -> Banner:
    numbered = [f"({i}) {condition}" for i, condition in enumerate(report.conditions, 1)]
    title = "CONDITIONAL"
    text = (
        "The records were handed over by the caller, as tensors. The numbers below hold on these "
        "conditions, which the library did not check and the caller answers for: "
    )
    text += " ".join(numbered)
    if report.reasons:
        title += " AND NOT SOUND"
        text += " Besides, they are not proven upper bounds. " + " ".join(report.reasons)
    return Banner(title, text)


# The guarantee in three sentences


@dataclass(frozen=True)
class Summary:
    """The guarantee in sentences."""

    numbers: str
    together: str  # numbers of all runs of a shared ledger; empty where this is the only one
    attack: str  # what the numbers mean for an attacker
    tier: str  # of Gomez2025


def summary(report: Report) -> Summary:
    """Return the numbers of the guarantee, the same as an attack, and the tier."""
    return Summary(
        numbers=_numbers_sentence(report),
        together=_together_sentence(report),
        attack=_attack_sentence(report),
        tier=_tier(report),
    )


def _numbers_sentence(report: Report) -> str:
    guarantee = report.guarantee
    if not report.private:
        prefix = "void: "
    elif report.conditions:
        prefix = "conditional: "
    else:
        prefix = ""
    if report.together is not None:
        prefix = f"This run alone: {prefix}"
    mu = f"μ = {number(guarantee.mu)}{_range(report)} (regret {number(guarantee.regret)})"
    pair = f"({number(guarantee.epsilon)}, {number(guarantee.delta)})"
    return f"{prefix}{mu}; (ε, δ) = {pair}"


def _together_sentence(report: Report) -> str:
    if report.together is None:
        return ""
    mu = ""
    if report.together.mu is not None:
        mu = f"μ = {number(report.together.mu)}; "
    pair = f"({number(report.together.epsilon)}, {number(report.together.delta)})"
    return f"All runs in the shared ledger, when this run ended: {mu}(ε, δ) = {pair}"


def _range(report: Report) -> str:
    """Return at which error rates mu and its regret hold, with a space before it."""
    if report.guarantee.exactly_gaussian:
        return ""
    return f" at error rates above {number(RESOLUTION)}"


def _attack_sentence(report: Report) -> str:
    if not report.private:
        return "There is no bound on what an attacker finds."
    if report.sound:
        subject = "An attacker"
    elif report.conditions:
        subject = "On the three conditions above, an attacker"
    else:
        subject = "If the account holds, an attacker"
    others = "every other record"
    if report.records.is_by_person:
        others = "the records of all other persons"
    attack = report.guarantee.attack
    non_members = f"{1 / attack.fpr:,.0f}"
    hits = attack.tpr
    releases = "all releases"
    if report.together is not None:
        releases = "all releases of this run"
        if report.together.mu is not None:
            hits = float(normal_cdf(normal_quantile(attack.fpr) + report.together.mu))
            releases = "all releases of all runs in the shared ledger"
    counted = "records"
    if report.records.is_by_person:
        counted = "persons"
    return (
        f"{subject} who guesses whose data were read, and accuses at most 1 in {non_members} "
        f"non-members ({counted} that were not read), finds at most {percent(hits)} of the members "
        f"({counted} that were read), even knowing {others}, {releases}, and everything computed "
        "from them."
    )


def _tier(report: Report) -> str:
    regret = number(report.guarantee.regret)
    rates = _range(report)
    if report.guarantee.tier == 1:
        if not rates:
            rates = " at every false-positive rate"
        difference = (
            f"are lower than those of the run by at most {regret} (the regret), which is not above "
            f"{REGRET_LIMIT:g}, the limit of Tier I"
        )
        if report.guarantee.regret == 0:
            difference = "are those of the run (the regret is 0)"
        return (
            f"μ alone describes what an attacker can do{rates} (Tier I of Gomez2025): the error "
            f"rates that follow from μ {difference}."
        )
    return (
        f"Tier II of Gomez2025: the regret of μ{rates} is {regret}, above {REGRET_LIMIT:g}. "
        "μ alone overstates what an attacker can do; the trade-off curve is the guarantee."
    )
