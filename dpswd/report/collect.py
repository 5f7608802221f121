"""The facts of a report, in one dictionary: recomputed from the ledger, checked against what the run claims.

The ledger says what was released; ``privacy.json`` is believed for two things only, both of which can only
make the report worse: the planned number of releases (where a run stopped early the plan counts, since the
decision to stop may depend on private data) and that a run is NOT private or NOT sound for a reason that no
mechanism knows of. docs/report.md says what every number means; schema.json, beside this file, what the
dictionary looks like.
"""

import base64
import contextlib
import importlib.metadata
import math
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import dpswd
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.ledger import ReleaseGroup
from dpswd.diagnostics.appendix import read_diagnostics
from dpswd.errors import InputError
from dpswd.mechanism import mechanism_from_dict
from dpswd.report.gdp import TABLE_FPR, TradeOff, closed_form_mu
from dpswd.report.run_dir import Run, read_run

__all__ = ["NOT_COVERED", "SCHEMA_VERSION", "collect"]

SCHEMA_VERSION = 1
ATTACK_FPR = 1e-3  # the attacker of the report's sentence: may accuse one innocent in a thousand
TOLERANCE = 1e-3  # relative; the same computation elsewhere differs by float error, a wrong claim by more
PROFILE_POINTS = 61
PACKAGES = ("dp-accounting", "autodp", "gdpnum", "numpy", "scipy", "torch")

# The words before the colon name the topic; what a run says of the same topic is not repeated.
NOT_COVERED = (
    "Choices made after looking at the private records: a run that was picked among others (architecture, "
    "hyperparameters, number of steps) because of its result on private data costs what all of them cost "
    "together.",
    "Evaluation: an accuracy that is measured on private records is itself a release, made without noise; "
    "treat the test set as public or leave the number out.",
    "Floating-point arithmetic: the analysis is of real numbers; attacks on the low bits of Gaussian noise "
    "are not excluded.",
    "Side channels: running time, memory, logs of other programs, and what an error message says about a "
    "record (records are expected to be finite).",
    "Several records of one person: the unit of protection is one record.",
)


def collect(run_dir: str | Path, *, diagnostics: bool = False) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Collects everything that a report states.

    Args:
        run_dir: Directory with ``ledger.jsonl`` and ``privacy.json``; ``config.yaml``, ``samples.png`` and
            ``downstream.json`` are used where they are.
        diagnostics: Whether to add ``diagnostics.json`` as an appendix; it is no part of the guarantee.

    Returns:
        A dictionary that is valid against schema.json (the same run gives the same dictionary), and points
        ``fpr``, ``fnr`` of the trade-off curve for the plots.

    Raises:
        InputError: If a file is missing or corrupt, or the ledger and ``privacy.json`` contradict each other.
    """
    run = read_run(run_dir)
    appendix = read_diagnostics(run.path) if diagnostics else None
    groups = _planned_groups(run)
    header, privacy = run.ledger.header, run.privacy
    target_delta = _target_delta(run)
    headline = str(header.get("accountant") or privacy.get("accountant") or "pld")
    accountants = {name: _account(name, groups) for name in ("pld", "rdp")}
    if headline not in accountants:
        raise InputError(f"Expected accountant to be pld or rdp in the ledger of {run.path}, got {headline!r}.")
    chosen = accountants[headline]
    exact = accountants["pld"].resolve(target_delta)  # where a bound spends tails, the curve needs them chosen
    curve = TradeOff.of(exact.pld(), exact_mu=closed_form_mu(exact.history))
    epsilons = [_epsilons(delta, target_delta, headline, accountants) for delta in _deltas(run, target_delta)]
    at_target = next(row["epsilon"] for row in epsilons if row["target"])
    private = (
        bool(privacy["private"])
        and bool(header.get("private", True))
        and all(mechanism.is_private for mechanism, _, _ in groups)
    )
    sound = private and bool(privacy["sound"]) and bool(chosen.sound)
    _cross_check(run, private, bool(chosen.sound), at_target, target_delta, chosen, exact)
    report = {
        "schema_version": SCHEMA_VERSION,
        "name": run.name,
        "private": private,
        "sound": sound,
        "reasons": _reasons(run, groups, bool(chosen.sound)),
        "guarantee": {
            "tier": curve.tier,
            "mu": curve.mu,
            "regret": curve.regret,
            "advantage": curve.advantage,
            "mu_numerical": curve.mu_numerical,
            "exactly_gaussian": curve.is_gaussian,
            "epsilon": at_target,
            "delta": target_delta,
            "attack": curve.rows([ATTACK_FPR])[0],
            "attacks": curve.rows([1e-1, 1e-2, 1e-3, 1e-4, 1e-6]),
            "trade_off": curve.rows(TABLE_FPR),
            "epsilon_delta": epsilons,
            "profile": _profile(exact, curve.advantage),
        },
        "budget": {
            "epsilon": header.get("target_epsilon", privacy.get("target_epsilon")),
            "delta": header.get("target_delta", privacy.get("target_delta")),
        },
        "releases": {
            "made": run.ledger.n_releases,
            "planned": sum(count for _, _, count in groups),
            "sample_size": int(privacy["sample_size"]),
            "neighboring_relation": str(privacy.get("neighboring_relation") or "replace-one"),
            "groups": [_group(*group) for group in exact.history],
        },
        "accountant": headline,
        "assumptions": _merge(chosen.assumptions, privacy["assumptions"]),
        "not_covered": _merge(NOT_COVERED, privacy["not_covered"], by_topic=True),
        "caveats": _caveats(run, target_delta),
        "ledger": {
            "head": run.ledger.head,
            "config_sha256": header.get("config_sha256"),
            "version": header.get("version"),
        },
        "config": {
            "sha256": run.config_sha256,
            "matches_ledger": None if run.config is None else run.config_sha256 == header.get("config_sha256"),
            "text": run.config,
        },
        "versions": _versions(),
        "samples_png": None if run.picture is None else base64.b64encode(run.picture).decode("ascii"),
        "downstream": run.downstream,
        "diagnostics": appendix,
    }
    fpr = np.unique(np.concatenate([np.geomspace(1e-10, 1.0, 301), np.linspace(0.0, 1.0, 201)]))
    return report, {"fpr": fpr.tolist(), "fnr": curve.fnr(fpr).tolist()}


def _planned_groups(run: Run) -> list[ReleaseGroup]:
    """The plan in the ledger's header, checked; else its releases, those not made counted as of the kind made last."""
    groups, made, planned = run.ledger.groups(), run.ledger.n_releases, int(run.privacy["planned_releases"])
    where = run.path / "privacy.json"
    if not groups:
        raise InputError(f"Expected at least one release in the ledger of {run.path}, got none: nothing to report.")
    if run.privacy["releases_made"] > made:
        raise InputError(
            f"Expected a ledger with at least {run.privacy['releases_made']} releases as {where} says, got "
            f"{made}: the ledger was cut; do not rely on it."
        )
    for name, expected in (("planned_releases", planned), ("sample_size", run.privacy["sample_size"])):
        if run.ledger.header.get(name, expected) != expected:
            stated = run.ledger.header[name]
            raise InputError(f"Expected {name}={stated!r} in {where} as in the ledger, got {expected!r}.")
    if made > planned:
        raise InputError(f"Expected at most {planned} releases in {run.path} as planned, got {made} in the ledger.")
    if run.privacy["sample_size"] not in {size for _, size, _ in groups}:
        sizes = ", ".join(str(size) for _, size, _ in groups)
        raise InputError(f"Expected sample_size={sizes} in {where} as in the ledger, got {run.privacy['sample_size']}.")
    if "plan" not in run.ledger.header:
        mechanism, size, count = groups[-1]
        return [*groups[:-1], (mechanism, size, count + planned - made)]
    size = int(run.ledger.header["sample_size"])
    plan = [(mechanism_from_dict(part["mechanism"]), size, part["n_releases"]) for part in run.ledger.header["plan"]]
    for mechanism, found, count in groups:
        if count > sum(allowed for other, _, allowed in plan if other == mechanism) or found != size:
            raise InputError(
                f"Expected only planned releases in the ledger of {run.path}, got others: {mechanism.noun}."
            )
    return plan


def _target_delta(run: Run) -> float:
    for source in (
        run.ledger.header.get("target_delta"),
        run.privacy.get("target_delta"),
        run.privacy["delta"],
    ):
        if source is not None:
            if not isinstance(source, int | float) or not 0 < source < 1:
                raise InputError(f"Expected a delta strictly between 0 and 1 in {run.path}, got {source!r}.")
            return float(source)
    return 1e-5


def _account(name: str, groups: list[ReleaseGroup]) -> PrivacyAccountant:
    accountant = PrivacyAccountant(name)
    for mechanism, size, count in groups:
        accountant.step(mechanism, sample_size=size, n_releases=count)
    return accountant


def _deltas(run: Run, target: float) -> list[float]:
    """Three deltas and the target, largest first."""
    wanted = [target, 1e-5, 1e-6, float(f"{1 / (10 * run.privacy['sample_size']):.1g}")]
    distinct: list[float] = []
    for delta in sorted(wanted, reverse=True):
        if not any(math.isclose(delta, other, rel_tol=1e-9) for other in distinct):
            distinct.append(delta)
    if len(distinct) < 4:
        distinct.append(distinct[-1] / 10)
    return distinct


def _epsilons(delta: float, target: float, headline: str, accountants: dict[str, PrivacyAccountant]) -> dict[str, Any]:
    both: dict[str, float | None] = {}
    for name, accountant in accountants.items():
        try:
            both[name] = accountant.get_epsilon(delta)
        except InputError:  # all of this delta is spent on the tails of a bound: no epsilon is claimed
            both[name] = None
    return {
        "delta": delta,
        "epsilon": both[headline],
        "epsilon_pld": both["pld"],
        "epsilon_rdp": both["rdp"],
        "target": math.isclose(delta, target, rel_tol=1e-9),
    }


def _profile(accountant: PrivacyAccountant, at_zero: float) -> list[dict[str, float]]:
    top = None
    for delta in np.geomspace(1e-12, 0.1, 23):  # the smallest that the tails of a bound leave something of
        with contextlib.suppress(InputError):
            top = accountant.get_epsilon(float(delta))
            break
    epsilons = np.linspace(0.0, top if top else 1.0, PROFILE_POINTS).tolist()
    deltas = [at_zero, *accountant.profile(epsilons[1:])]
    return [{"epsilon": float(e), "delta": float(d)} for e, d in zip(epsilons, deltas, strict=True)]


def _group(mechanism: Any, sample_size: int, count: int) -> dict[str, Any]:
    batch = sample_size if mechanism.batch_size is None else int(mechanism.batch_size)
    law = mechanism.law
    return {
        "count": count,
        "noun": mechanism.noun,
        "sample_size": sample_size,
        "batch_size": batch,
        "sampling_rate": batch / sample_size,
        "subsampling": "none: every record is read" if batch == sample_size else "fixed size, without replacement",
        "sigma": mechanism.sigma,
        "unit_sensitivity": mechanism.unit_sensitivity,
        "sensitivity": mechanism.unit_sensitivity * math.sqrt(law.mean),
        "sensitivity_is_random": not law.is_constant,
        "mechanism": mechanism.to_dict(),
    }


def _reasons(run: Run, groups: list[ReleaseGroup], sound: bool) -> list[str]:
    reasons = []
    if not all(mechanism.is_private for mechanism, _, _ in groups):
        reasons.append("A fixed noise seed makes the noise repeatable: anyone can take it off again.")
    if any(getattr(m, "spends_tail", False) and getattr(m, "bound", "") == "clt" for m, _, _ in groups):
        reasons.append("The bound on the sensitivity is a normal approximation (CLT), not a theorem.")
    if not run.privacy["private"] and not reasons:
        reasons.append("The run declares itself not private; its assumptions below say why.")
    if (not run.privacy["sound"] or not sound) and not reasons:
        reasons.append("The run declares its account not sound; its assumptions below say why.")
    return reasons


def _caveats(run: Run, delta: float) -> list[str]:
    made, planned = run.ledger.n_releases, int(run.privacy["planned_releases"])
    caveats = []
    if planned > made:
        caveats.append(
            f"The run made {made} of {planned} planned releases. All that were planned are counted, because "
            f"the decision to stop may have depended on private data."
        )
    if delta >= 1 / run.privacy["sample_size"]:
        caveats.append(
            f"δ = {delta:g} is not below 1/N: by the letter of (ε, δ) a mechanism that "
            f"publishes one record outright would pass. The trade-off curve and μ do not have this weakness."
        )
    if run.ledger.header.get("shared"):
        caveats.append(_together(run.privacy.get("across_runs")))
    stated = run.ledger.header.get("config_sha256")
    if run.config_sha256 is not None and stated is not None and run.config_sha256 != stated:
        caveats.append(
            "The SHA-256 of config.yaml differs from the one in the ledger: it was edited after the run began."
        )
    return caveats


def _together(found: Any) -> str:
    """What the run says of all runs in its ledger; never a number without a word where one of them is not sound."""
    facts = found if isinstance(found, dict) else {}
    sentence = str(facts.get("sentence") or "Other runs share its ledger, and their costs add up.")
    if facts.get("sound", True) and facts.get("private", True):
        return sentence if facts.get("sentence") else f"{sentence} See dpswd ledger show."
    if sentence.startswith("NOT "):
        return sentence
    kind = "NOT SOUND" if facts.get("private", True) else "NOT PRIVATE"  # of a version that did not say which run
    return f"{kind}: a run in its ledger is not; see dpswd ledger show. {sentence}"


def _cross_check(
    run: Run,
    private: bool,
    sound: bool,
    epsilon: float | None,
    delta: float,
    chosen: PrivacyAccountant,
    exact: PrivacyAccountant,
) -> None:
    """Refuses a report whose two sources contradict each other; mu is compared with the accountant's own."""
    claims, where = run.privacy, run.path / "privacy.json"
    if claims["private"] and not private:
        raise InputError(f'Expected "private": false in {where}, got true, but the ledger has a fixed noise seed.')
    if claims["sound"] and not sound:
        raise InputError(f'Expected "sound": false in {where}, got true, but the ledger\'s bound is not a proof.')
    for name in ("target_epsilon", "target_delta", "accountant"):
        planned, claimed = run.ledger.header.get(name), claims.get(name)
        if planned is not None and claimed is not None and planned != claimed:
            raise InputError(f"Expected {name}={planned!r} in {where} as in the ledger, got {claimed!r}.")
    claimed = claims["epsilon"]
    if claimed is not None:
        if claims["delta"] is not None and not math.isclose(claims["delta"], delta, rel_tol=1e-9):
            epsilon = chosen.get_epsilon(claims["delta"])
        if epsilon is None or not math.isclose(claimed, epsilon, rel_tol=TOLERANCE):
            raise InputError(
                f"Expected epsilon={epsilon} in {where}, which is what the ledger amounts to, got "
                f"{claimed!r}; the two do not belong together."
            )
    claimed, (mu, _) = claims.get("mu"), exact.get_mu_and_regret()
    if claimed is not None and not math.isclose(claimed, mu, rel_tol=TOLERANCE):
        raise InputError(f"Expected mu={mu} in {where}, which is what the ledger amounts to, got {claimed!r}.")


def _merge(ours: Iterable[str], theirs: Iterable[Any], *, by_topic: bool = False) -> list[str]:
    """Our sentences, then those of the run that say something else."""
    lines: dict[str, str] = {}
    for line in map(str, [*ours, *theirs]):
        lines.setdefault(line.split(":")[0] if by_topic else line, line)
    return list(lines.values())


def _versions() -> dict[str, str | None]:
    versions: dict[str, str | None] = {"dpswd": dpswd.__version__, "python": platform.python_version()}
    for name in PACKAGES:  # metadata only: nothing is imported
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions
