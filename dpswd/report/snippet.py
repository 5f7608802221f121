"""Python code that computes the numbers of a report, for a reader to run."""

from dpswd.report.facts import EqualReleases, Report

_CLASSES = {"projections": "ProjectionMechanism", "gaussian": "GaussianMechanism"}

_CODE = """\
from dpswd import PrivacyAccountant, {classes}
from dpswd.report.gdp import TABLE_FPR, TradeOff

accountant = PrivacyAccountant()
{steps}

curve = TradeOff.of(accountant.resolve({delta}))  # curve and regret by gdpnum
print(curve.mu, curve.regret)
{accountant}print(accountant.get_epsilon({delta}))
rates = (*TABLE_FPR, curve.advantage_fpr)
for fpr, fnr in zip(rates, curve.fnr(rates)):
    print(fpr, fnr)"""

_STEP = """\
mechanism = {mechanism}
accountant.step(mechanism, sample_size={sample_size}, n_releases={count})"""


def snippet(report: Report) -> str:
    """Return Python that computes the numbers of the report from the releases alone."""
    accountant = ""
    if report.accountant != "pld":
        accountant = f'accountant.accountant = "{report.accountant}"  # of the run, for epsilon\n'
    groups = report.releases.groups
    classes = {_class_of(group) for group in groups}
    return _CODE.format(
        classes=", ".join(sorted(classes)),
        steps="\n".join(_step(group) for group in groups),
        accountant=accountant,
        delta=report.guarantee.delta,
    )


def _class_of(group: EqualReleases) -> str:
    return _CLASSES[group.mechanism["mechanism"]]


def _step(group: EqualReleases) -> str:
    """Return the lines that add the releases of one mechanism to the accountant."""
    arguments = {
        name: value
        for name, value in group.mechanism.items()
        if value is not None and name != "mechanism"
    }
    return _STEP.format(
        mechanism=f"{_class_of(group)}(**{arguments})",
        sample_size=group.sample_size,
        count=group.count,
    )
