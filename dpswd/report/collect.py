"""Collects the facts of a report from the files of a run directory.

The numbers are computed from the ledger, which holds the plan and what was released, and compared
with those that the run states. Where a run stopped early the plan counts, since the decision to
stop may depend on private data. ``privacy.json`` adds what the releases do not contain: other runs
that the weights depend on, and whether the run declares itself not private or not sound.
``config.yaml`` adds the name and the public facts of the records.
"""

import contextlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpswd._public_facts import ONE_RECORD
from dpswd._validate import delta_caveats
from dpswd._versions import package_versions
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.ledger import CONDITIONS, HANDED_OVER, Ledger
from dpswd.budget.statement import not_covered
from dpswd.errors import InputError
from dpswd.mechanism import Mechanism
from dpswd.report.facts import (
    SCHEMA_VERSION,
    Accuracy,
    ConfigFile,
    Epsilons,
    EqualReleases,
    GuaranteeNumbers,
    LedgerFacts,
    ProfilePoint,
    RecordFacts,
    Releases,
    Report,
    Runs,
    Together,
)
from dpswd.report.gdp import REGRET_LIMIT, TABLE_FPR, TradeOff
from dpswd.report.run_files import (
    RESUMED,
    TOLERANCE,
    PrivacyFile,
    StatedFacts,
    public_facts,
    read_config,
    read_evaluation,
    read_pictures,
    read_privacy,
    read_resumed,
    unchecked,
)

# False-positive rate of the attacker in the first sentence of the report.
ATTACK_FPR = 1e-3

# Deltas of the table of epsilons, besides the target and 1 / (10 N).
USUAL_DELTAS = (1e-5, 1e-6)

# Points of the privacy profile.
PROFILE_POINTS = 21

# The profile ends at epsilon of the first of these deltas that has one.
_PROFILE_DELTAS = np.geomspace(1e-12, 0.1, 23)

PROTECTED = (
    "Each single record{classes}, against everyone who knows all other records and the releases."
)
PROTECTED_PERSON = (
    "Each single person, with all records of the person that enter ({unit}){classes}, "
    "against everyone who knows the records of all other persons and the releases."
)
WITH_CLASSES = ", its class included"
WITH_CLASSES_OF_PERSON = " and their classes"
# For a run on records without labels, or whose labels the reader left out.
CLASSES_NOT_READ = " (classes were not read)"
ON_CONDITIONS = "On the conditions above only."
NOTHING_PROTECTED = "Nothing: the run is not private."
DECLARED = "The run declares it so in privacy.json."
OTHER_PUBLIC_FACTS = "The settings, and all that was released."
PUBLISHABLE = (
    "May be published: ledger.jsonl, privacy.json, releases/, {reports}generator.pt or "
    "classifier.pt, weights in checkpoints (unless code of your own stores records in them), and "
    "everything that is computed from the releases, such as synthetic records{pictures}. "
    "{check}Keep to yourself: the records, everything that is "
    "measured on them, such as an accuracy or predictions, and a config.yaml with paths that name "
    "people or projects."
)
# For pictures that this library is not known to have drawn from released values.
CHECK = (
    "Code of your own, or an earlier version of dpswd, drew {names}: check that {shows} no private "
    "record before you publish {these} or the reports. "
)
NOT_PUBLISHABLE = "Nothing of this run may be published: it is not private."
NOT_PROVEN = "Nothing of this run should be published: its guarantee is not proven."


def collect(
    run_dir: str | Path, *, title: str | None = None, extras: bool = True
) -> tuple[Report, TradeOff]:
    """Return everything that a report states, and its trade-off curve.

    Files of ``run_dir`` other than ``ledger.jsonl`` and ``privacy.json`` are optional.

    Args:
        run_dir: The run directory.
        title: Title; by default "Synthetic records of NAME", as the run states, else the name of
            the directory.
        extras: Whether pictures and accuracies are read, too.

    Raises:
        InputError: If a file is missing or damaged, or contradicts another; the message names it.
    """
    directory = Path(run_dir)
    ledger = Ledger.open_existing(directory / "ledger.jsonl")
    privacy = read_privacy(directory / "privacy.json")
    _check_number_of_releases(directory, ledger, privacy)
    config, record_facts = read_config(directory / "config.yaml")
    evaluation: tuple[Accuracy, ...] = ()
    pictures: dict[str, str] = {}
    if extras:
        evaluation = read_evaluation(directory / "evaluation.json")
        pictures = read_pictures(directory)
    account = _Account.of(ledger)
    curve = TradeOff.of(account.exact)
    guarantee = _guarantee(account, curve)
    privacy.check(guarantee)
    standing = _standing(ledger, privacy, account.of_budget)
    records = RecordFacts(
        size=account.sample_size,
        opened=ledger.header.get("records"),
        classes=record_facts.classes,
        unit=ledger.header.get("unit", ONE_RECORD),
        columns=record_facts.columns,
    )
    releases = _releases(ledger, account)
    runs = Runs(this=ledger.header.get("run"), weights_from=privacy.weights_from_runs)
    ledger_facts = LedgerFacts(
        config_sha256=ledger.header.get("config_sha256"),
        version=ledger.header.get("version"),
        head=ledger.head,
    )
    caveats = [
        *_early_stop_caveats(releases),
        *delta_caveats(guarantee.delta, releases.sample_size),
        *_foreign_weights_caveats(runs),
        *_shared_ledger_caveats(ledger, privacy),
        *_earlier_runs_caveats(ledger),
        *_edited_config_caveats(ledger_facts, config),
        *_resumed_caveats(directory),
    ]
    report = Report(
        schema_version=SCHEMA_VERSION,
        title=title or record_facts.title or _title_of(directory),
        private=standing.private,
        conditions=standing.conditions,
        sound=standing.sound,
        reasons=standing.reasons,
        records=records,
        public=_public_facts(records, record_facts, ledger.header),
        protected=_protected(records, standing, has_classes=_has_classes(ledger, records)),
        not_covered=not_covered(
            shared=bool(ledger.header.get("shared")), by_person=records.is_by_person
        ),
        guarantee=guarantee,
        releases=releases,
        runs=runs,
        accountant=ledger.accountant,
        assumptions=tuple(account.of_budget.assumptions),
        ledger=ledger_facts,
        config=config,
        versions=package_versions(),
        pictures=pictures,
        evaluation=evaluation,
        caveats=tuple(caveats),
        together=_with_other_runs(guarantee, privacy),
        publishing=_publishing(standing, pictures),
        unchecked_pictures=unchecked(pictures),
    )
    return report, curve


def _check_number_of_releases(directory: Path, ledger: Ledger, privacy: PrivacyFile) -> None:
    """Raise if the ledger has no release, or fewer than privacy.json states."""
    least = max(1, privacy.releases_made)
    if ledger.n_releases < least:
        raise InputError(
            f"Expected a ledger with at least {least} releases in {directory}, "
            f"got {ledger.n_releases}: it was cut or the run made none; do not rely on it."
        )


def _title_of(directory: Path) -> str:
    # The rest of the path may hold names of people or projects.
    return f"Privacy report: {directory.resolve().name}"


# Guarantee


@dataclass(frozen=True)
class _Account:
    """The planned releases in three accountants."""

    delta: float
    sample_size: int
    of_budget: PrivacyAccountant  # the one that the budget of the run was calibrated by
    pld: PrivacyAccountant
    rdp: PrivacyAccountant
    exact: PrivacyAccountant  # by PLD, with a failure_prob for every bound, which the curve needs

    @classmethod
    def of(cls, ledger: Ledger) -> "_Account":
        """Return the accounts of the plan in a ledger."""
        planned = ledger.planned()
        pld = PrivacyAccountant.from_groups(planned, "pld")
        rdp = PrivacyAccountant.from_groups(planned, "rdp")
        _, sample_size, _ = planned[0]
        delta: float = ledger.delta
        of_budget = {"pld": pld, "rdp": rdp}[ledger.accountant]
        # The statement of the run has the tails that the accountant of its budget chooses.
        resolved = of_budget.resolve(delta)
        return cls(
            delta=delta,
            sample_size=sample_size,
            of_budget=of_budget,
            pld=pld,
            rdp=rdp,
            exact=PrivacyAccountant.from_groups(resolved.history, "pld"),
        )


def _guarantee(account: _Account, curve: TradeOff) -> GuaranteeNumbers:
    tier = 1
    if curve.regret > REGRET_LIMIT:
        tier = 2
    return GuaranteeNumbers(
        tier=tier,
        mu=curve.mu,
        regret=curve.regret,
        advantage=curve.advantage,
        advantage_rates=curve.table([curve.advantage_fpr])[0],
        exactly_gaussian=curve.is_gaussian,
        epsilon=_epsilon(account.of_budget, account.delta),
        delta=account.delta,
        attack=curve.table([ATTACK_FPR])[0],
        trade_off=curve.table(TABLE_FPR),
        epsilon_delta=_epsilons(account),
        profile=_profile(account.exact, curve.advantage),
    )


def _with_other_runs(guarantee: GuaranteeNumbers, privacy: PrivacyFile) -> Together | None:
    """Return the cost of all runs of a shared ledger, if above that of this run.

    The mu of both is compared, since the ledger may have another delta than the run; epsilon where
    the file states no mu.
    """
    together = privacy.together
    if together is None or guarantee.epsilon is None:
        return None
    alone = guarantee.epsilon
    total = together.epsilon
    if together.mu is not None:
        alone = guarantee.mu
        total = together.mu
    if total <= alone * (1 + TOLERANCE):
        return None
    return together


def _epsilon(accountant: PrivacyAccountant, delta: float) -> float | None:
    """Return epsilon, or ``None`` where the tails of a bound use up delta."""
    with contextlib.suppress(InputError):
        return accountant.get_epsilon(delta)
    return None


def _epsilons(account: _Account) -> tuple[Epsilons, ...]:
    """Return epsilon of both accountants at several deltas, the largest delta first.

    These are the target delta, 1e-5, 1e-6, and 1 / (10 N) with one digit.
    """
    a_tenth_of_one_record = float(f"{1 / (10 * account.sample_size):.1g}")
    deltas = {account.delta}
    for delta in (*USUAL_DELTAS, a_tenth_of_one_record):
        if not math.isclose(delta, account.delta, rel_tol=1e-9):
            deltas.add(delta)
    return tuple(
        Epsilons(
            delta=delta,
            epsilon_pld=_epsilon(account.pld, delta),
            epsilon_rdp=_epsilon(account.rdp, delta),
        )
        for delta in sorted(deltas, reverse=True)
    )


def _profile(accountant: PrivacyAccountant, advantage: float) -> tuple[ProfilePoint, ...]:
    """Return the privacy profile at equidistant epsilons.

    At the first one, epsilon = 0, delta is the advantage.
    """
    epsilons = np.linspace(0.0, _largest_epsilon(accountant), PROFILE_POINTS).tolist()
    deltas = [advantage, *accountant.profile(epsilons[1:]).tolist()]
    return tuple(
        ProfilePoint(epsilon=epsilon, delta=delta)
        for epsilon, delta in zip(epsilons, deltas, strict=True)
    )


def _largest_epsilon(accountant: PrivacyAccountant) -> float:
    """Return epsilon at the smallest delta that has a positive one; 1 if none has."""
    for delta in _PROFILE_DELTAS:
        epsilon = _epsilon(accountant, float(delta))
        if epsilon == math.inf:
            return 1.0
        if epsilon:
            return epsilon
    return 1.0


# Standing: whether the numbers hold


@dataclass(frozen=True)
class _Standing:
    private: bool
    sound: bool
    conditions: tuple[str, ...]  # that the caller answers for
    reasons: tuple[str, ...]  # why the run is not private or not sound


def _standing(ledger: Ledger, privacy: PrivacyFile, accountant: PrivacyAccountant) -> _Standing:
    """Return the standing of a run: the ledger's, which privacy.json can only weaken."""
    declared_private = bool(privacy.private and ledger.header.get("private", True))
    noise_is_secret = all(mechanism.is_private for mechanism, _, _ in ledger.planned())
    private = declared_private and noise_is_secret
    handed_over = HANDED_OVER in (ledger.header.get("records"), privacy.records)
    # A run whose records were handed over declares itself not sound; the conditions say why.
    declared_sound = privacy.sound or handed_over
    proven = accountant.sound and declared_sound
    reasons = accountant.shortcomings
    if not reasons and not (private and proven):
        reasons = [DECLARED]
    conditions = []
    if handed_over:
        conditions = CONDITIONS
    return _Standing(
        private=private,
        sound=private and proven and not handed_over,
        conditions=tuple(conditions),
        reasons=tuple(reasons),
    )


def _publishing(standing: _Standing, pictures: dict[str, str]) -> str:
    """Return what may be published, and on which conditions."""
    if not standing.private:
        return NOT_PUBLISHABLE
    if standing.conditions:
        return f"{ON_CONDITIONS} {_publishable(pictures)}"
    if not standing.sound:
        return NOT_PROVEN
    return _publishable(pictures)


def _publishable(pictures: dict[str, str]) -> str:
    """Return what may be published of a private run with these pictures."""
    to_check = unchecked(pictures)
    known = [name for name in pictures if name not in to_check]
    reports = "the reports, "
    check = ""
    if to_check:
        reports = ""  # which contain the pictures
        shows, these = "it shows", "it"
        if len(to_check) > 1:
            shows, these = "they show", "them"
        check = CHECK.format(names=" and ".join(to_check), shows=shows, these=these)
    of_releases = "".join(f" and {name}" for name in known)
    return PUBLISHABLE.format(reports=reports, pictures=of_releases, check=check)


def _has_classes(ledger: Ledger, records: RecordFacts) -> bool:
    """Return whether the run read classes.

    Ledgers of version 0.3, and runs on tensors, do not say so: then a class counts as read.
    """
    names = ledger.header.get("classes")
    return names is None or bool(names or records.classes)


def _protected(records: RecordFacts, standing: _Standing, *, has_classes: bool) -> tuple[str, ...]:
    if not standing.private:
        return (NOTHING_PROTECTED,)
    classes = WITH_CLASSES
    if records.is_by_person:
        classes = WITH_CLASSES_OF_PERSON
    if not has_classes:
        classes = CLASSES_NOT_READ
    protected = PROTECTED.format(classes=classes)
    if records.is_by_person:
        protected = PROTECTED_PERSON.format(unit=records.unit, classes=classes)
    if standing.conditions:
        return (protected, ON_CONDITIONS)
    return (protected,)


def _public_facts(
    records: RecordFacts, record_facts: StatedFacts, header: dict[str, Any]
) -> tuple[str, ...]:
    """Return the public facts, of the config or else of the header of the ledger.

    The lines about facts that were taken from the records are those of both.
    """
    counted = "records"
    if records.is_by_person:
        counted = "persons"
    size = f"The number of {counted}: {records.size:,}."
    of_records = record_facts.public
    if not of_records:
        of_records = public_facts({name: header.get(name) for name in ("shape", "classes")})
    notices = [str(line) for line in header.get("taken", ()) if line not in of_records]
    return (size, *of_records, *notices, OTHER_PUBLIC_FACTS)


# Releases


def _releases(ledger: Ledger, account: _Account) -> Releases:
    n_planned = sum(count for _, _, count in ledger.planned())
    groups = [
        _equal_releases(mechanism, sample_size, count)
        for mechanism, sample_size, count in account.exact.history
    ]
    return Releases(
        n_releases=ledger.n_releases,
        n_planned=n_planned,
        sample_size=account.sample_size,
        neighboring_relation="replace-one",
        groups=tuple(groups),
    )


def _equal_releases(mechanism: Mechanism, sample_size: int, count: int) -> EqualReleases:
    batch_size = sample_size
    if mechanism.batch_size is not None:
        batch_size = int(mechanism.batch_size)
    return EqualReleases(
        count=count,
        description=mechanism.description,
        sample_size=sample_size,
        batch_size=batch_size,
        sampling_rate=batch_size / sample_size,
        sigma=mechanism.sigma,
        sensitivity=mechanism.unit_sensitivity * math.sqrt(mechanism.law.mean),
        sensitivity_is_random=not mechanism.law.is_constant,
        mechanism=mechanism.to_dict(),
    )


# Caveats: what a reader of these particular numbers should know


def _early_stop_caveats(releases: Releases) -> list[str]:
    if releases.n_planned <= releases.n_releases:
        return []
    return [
        f"The run made {releases.n_releases} of {releases.n_planned} planned releases. "
        "All planned releases are counted, because the decision to stop may have depended on "
        "private data."
    ]


def _foreign_weights_caveats(runs: Runs) -> list[str]:
    foreign = [run for run in runs.weights_from if run != runs.this]
    if not foreign:
        return []
    return [
        f"The weights also depend on releases of other runs ({', '.join(foreign)}), which this "
        "guarantee does not cover. If those runs read the same records, all costs add up."
    ]


def _shared_ledger_caveats(ledger: Ledger, privacy: PrivacyFile) -> list[str]:
    if not ledger.header.get("shared"):
        return []
    hint = "Other runs share the ledger of this run, and their costs add up. See dpswd ledger show."
    return [privacy.across_runs or hint]


def _earlier_runs_caveats(ledger: Ledger) -> list[str]:
    earlier = list(map(str, ledger.header.get("earlier_runs", ())))
    if not earlier:
        return []
    noun = "An earlier run"
    if len(earlier) > 1:
        noun = f"{len(earlier)} earlier runs"
    counted = ("records", "persons")
    if ledger.header.get("unit", ONE_RECORD) != ONE_RECORD:
        counted = ("persons", "records")
    return [
        f"{noun} ({', '.join(earlier)}) may have read the same records: the number of "
        f"{counted[0]} is the same, or {counted[1]} were counted there, and shape and classes are "
        "the same. If so, all costs add up."
    ]


def _resumed_caveats(directory: Path) -> list[str]:
    options = read_resumed(directory / RESUMED)
    if not options:
        return []
    return [
        "The run was resumed with other options than those of config.yaml, which are shown below: "
        f"{', '.join(options)}."
    ]


def _edited_config_caveats(ledger: LedgerFacts, config: ConfigFile) -> list[str]:
    if not ledger.config_sha256 or not config.sha256 or ledger.config_sha256 == config.sha256:
        return []
    return [
        "The SHA-256 of config.yaml differs from that in the ledger: it was edited after the run "
        "began."
    ]
