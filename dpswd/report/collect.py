"""The facts of a report in one dictionary: computed from the ledger and compared with what the run states.

The ledger holds the plan and what was released. Where a run stopped early the plan counts, since the decision to stop
may depend on private data. ``privacy.json`` adds what the releases do not contain: other runs that the weights depend
on, and whether the run declares itself not private or not sound. ``config.yaml`` adds the name and the public facts of
the records. schema.json, in this directory, describes the dictionary.
"""

import base64
import contextlib
import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]

from dpswd._validate import delta_caveat
from dpswd._versions import package_versions
from dpswd.accounting.accountant import PrivacyAccountant, ReleaseGroup, spends_tail
from dpswd.accounting.ledger import CONDITIONS, HANDED_OVER, Ledger
from dpswd.budget import NOT_COVERED
from dpswd.errors import InputError
from dpswd.report.gdp import TABLE_FPR, TradeOff

SCHEMA_VERSION = 5
ATTACK_FPR = 1e-3  # false-positive rate of the attacker in the first sentence of the report
PICTURES = ("samples.png", "columns.png")
TOLERANCE = 1e-3  # relative; rounding on another machine differs by less, a wrong claim by more
PROFILE_POINTS = 61
_UNNAMED = "records"  # name of records that were not given one
PROTECTED = "Each single record, its class included, against everyone who knows all other records and the releases."
ON_CONDITIONS, NOTHING = "On the conditions above only.", "Nothing: the run is not private."
_MOST_CLASSES = 12  # that are listed by name

_PRIVACY = {"sound": bool, "private": bool, "releases_made": int}
_ACCURACY = ("dataset", "classifier", "train", "accuracy", "n_train", "n_test")
_RECORDS = {"name": str, "shape": list, "n_classes": int, "classes": list, "bounds": list, "taken": list}


def collect(run_dir: str | Path, *, title: str | None = None) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Return everything that a report states, valid against schema.json, and points ``fpr``, ``fnr`` of its curve.

    Files of ``run_dir`` other than ``ledger.jsonl`` and ``privacy.json`` are optional; an InputError says which one is
    missing or contradicts another.
    """
    path = Path(run_dir)
    if not path.is_dir():
        raise InputError(f"Expected a run directory, got {path}; give the directory that the run wrote to.")
    ledger = Ledger.open_existing(path / "ledger.jsonl")
    privacy = _json_object(path / "privacy.json", "the run writes it at its end: let it finish or resume it")
    for field, kind in _PRIVACY.items():
        if not isinstance(privacy.get(field), kind):
            raise InputError(f"Expected {field!r} in {path / 'privacy.json'} as {kind.__name__}; finish the run again.")
    if not ledger.n_releases:
        raise InputError(f"Expected at least one release in the ledger of {path}, got none: nothing to report.")
    if (made := privacy["releases_made"]) > ledger.n_releases:
        raise InputError(
            f"Expected a ledger with at least {made} releases as {path / 'privacy.json'} says, got "
            f"{ledger.n_releases}: the ledger was truncated; do not rely on it."
        )
    config = _content(path / "config.yaml")
    config_hash = None if config is None else hashlib.sha256(config).hexdigest()
    settings: Any = None
    with contextlib.suppress(yaml.YAMLError, UnicodeDecodeError, RecursionError):  # edited into another format
        settings = yaml.safe_load((config or b"").decode())
    settings = settings if isinstance(settings, dict) else {}

    header, groups = ledger.header, ledger.planned()
    size, planned = groups[0][1], sum(count for *_, count in groups)
    target_delta, name = float(header.get("target_delta", 1e-5)), str(header.get("accountant", "pld"))
    accountants = {kind: PrivacyAccountant.from_groups(groups, kind) for kind in ("pld", "rdp")}
    exact = accountants["pld"].resolve(target_delta)  # the curve needs a failure_prob for every bound that may fail
    curve = TradeOff.of(exact)
    epsilons = _epsilons(accountants, name, size, target_delta)
    at_target = next(row["epsilon"] for row in epsilons if row["target"])
    _cross_check(path, privacy, accountants[name], {"epsilon": at_target, "mu": curve.mu}, target_delta)
    private = all([privacy["private"], header.get("private", True), *(each.is_private for each, _, _ in groups)])
    handed_over = HANDED_OVER in (header.get("records"), privacy.get("records"))
    proven = accountants[name].sound and (privacy["sound"] or handed_over)
    records = _records(settings, size, header.get("records"))
    stated = [str(each) for each in (title, settings.get("title")) if each]
    if records["name"] not in (None, "", _UNNAMED):
        stated.append(f"Synthetic records of {records['name']}")
    this = header.get("run")
    sources = privacy.get("weights_from_runs") or ([] if this is None else [this])
    runs = {"this": this, "weights_from": [str(each) for each in sources]}
    report = {
        "schema_version": SCHEMA_VERSION,
        # the rest of the path may hold names of people or projects
        "title": [*stated, f"Privacy report: {path.resolve().name}"][0],
        "private": private,
        "conditions": CONDITIONS if handed_over else [],
        "sound": private and proven and not handed_over,
        "reasons": _reasons(groups, privacy["private"], proven),
        "records": records,
        "public": _public(records),
        "protected": [PROTECTED, *([ON_CONDITIONS] if handed_over else [])] if private else [NOTHING],
        "not_covered": NOT_COVERED,
        "guarantee": {
            "tier": curve.tier,
            "mu": curve.mu,
            "regret": curve.regret,
            "advantage": curve.advantage,
            "exactly_gaussian": curve.is_gaussian,
            "epsilon": at_target,
            "delta": target_delta,
            "attack": curve.rows([ATTACK_FPR])[0],
            "attacks": curve.rows([1e-1, 1e-2, 1e-3, 1e-4, 1e-6]),
            "trade_off": curve.rows(TABLE_FPR),
            "epsilon_delta": epsilons,
            "profile": _profile(exact, curve.advantage),
        },
        "budget": {"epsilon": header.get("target_epsilon"), "delta": header.get("target_delta")},
        "releases": {
            "made": ledger.n_releases,
            "planned": planned,
            "sample_size": size,
            "neighboring_relation": "replace-one",
            "groups": [_group(*group) for group in exact.history],
        },
        "runs": runs,
        "accountant": name,
        "assumptions": accountants[name].assumptions,
        "caveats": _caveats(ledger, size, planned, target_delta, runs, privacy.get("across_runs") or {}, config_hash),
        "ledger": {key: header.get(key) for key in ("config_sha256", "version")} | {"head": ledger.head},
        "config": {"sha256": config_hash, "text": None if config is None else config.decode(errors="replace")},
        "versions": package_versions(),
        "pictures": {
            each: base64.b64encode(content).decode("ascii") for each in PICTURES if (content := _content(path / each))
        },
        "evaluation": _accuracies(path / "evaluation.json"),
    }
    fpr = np.unique(np.concatenate([np.geomspace(1e-10, 1.0, 301), np.linspace(0.0, 1.0, 201)]))
    return report, {"fpr": fpr.tolist(), "fnr": curve.fnr(fpr).tolist()}


# Files


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"Expected to read {path}, got: {error.strerror}.") from None


def _json_object(path: Path, remedy: str) -> dict[str, Any]:
    if (content := _content(path)) is None:
        raise InputError(f"Expected {path}, got no such file; {remedy}.")
    value: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(content)
    if not isinstance(value, dict):
        raise InputError(f"Expected a JSON object in {path}, got a corrupt file; {remedy}.")
    return value


def _accuracies(path: Path) -> list[dict[str, Any]]:
    """Return accuracies on a declared public benchmark."""
    if not path.exists():
        return []
    rows = _json_object(path, "evaluate the run again").get("rows")
    if not isinstance(rows, list):
        raise InputError(f"Expected a list 'rows' in {path}, got {rows!r}; evaluate the run again.")
    return [{name: row.get(name) for name in _ACCURACY} for row in rows]


# Records


def _records(settings: dict[str, Any], size: int, opened: Any) -> dict[str, Any]:
    """Return the public facts of the records, as far as config.yaml states them."""
    stated = settings.get("records")
    stated = stated if isinstance(stated, dict) else {}
    facts: dict[str, Any] = {
        key: value if isinstance(value := stated.get(key), kind) else None for key, kind in _RECORDS.items()
    }
    if facts["classes"]:
        facts["n_classes"] = len(facts["classes"])
    facts["taken"] = [str(line) for line in facts["taken"] or []]
    return {"size": size, "opened": opened, **facts}


def _public(records: dict[str, Any]) -> list[str]:
    """Return one sentence for each fact that the guarantee treats as public."""
    lines = [f"The number of records: {records['size']:,}."]
    if records["shape"]:
        lines.append(f"The shape of a record: {' x '.join(map(str, records['shape']))}.")
    names = [str(each) for each in records["classes"] or []]
    if names and len(names) <= _MOST_CLASSES:
        lines.append(f"The classes: {', '.join(names)}.")
    elif records["n_classes"]:
        lines.append(f"The list of {records['n_classes']} classes.")
    if records["bounds"]:
        lines.append("The bounds of every column.")
    return [*lines, *records["taken"], "The settings below, and everything that was released."]


# Guarantee


def _epsilons(accountants: dict[str, PrivacyAccountant], name: str, size: int, target: float) -> list[dict[str, Any]]:
    """Return epsilon of both accountants at the target delta and the usual ones, in descending order of delta."""
    usual = {1e-5, 1e-6, float(f"{1 / (10 * size):.1g}")}
    others = {delta for delta in usual if not math.isclose(delta, target, rel_tol=1e-9)}
    rows = []
    for delta in sorted({target, *others}, reverse=True):
        both: dict[str, float | None] = dict.fromkeys(accountants)
        for key, accountant in accountants.items():
            with contextlib.suppress(InputError):  # the tails of a bound use up this delta: no epsilon is claimed
                both[key] = accountant.get_epsilon(delta)
        found = {"epsilon": both[name], "epsilon_pld": both["pld"], "epsilon_rdp": both["rdp"]}
        rows.append({"delta": delta, **found, "target": delta == target})
    return rows


def _profile(accountant: PrivacyAccountant, at_zero: float) -> list[dict[str, float]]:
    top = None
    for delta in np.geomspace(1e-12, 0.1, 23):  # the smallest delta that the tails of a bound do not use up
        with contextlib.suppress(InputError):
            top = top or accountant.get_epsilon(float(delta))
    epsilons = np.linspace(0.0, top or 1.0, PROFILE_POINTS).tolist()
    deltas = [at_zero, *map(float, accountant.profile(epsilons[1:]))]
    return [{"epsilon": epsilon, "delta": delta} for epsilon, delta in zip(epsilons, deltas, strict=True)]


def _group(mechanism: Any, sample_size: int, count: int) -> dict[str, Any]:
    batch = sample_size if mechanism.batch_size is None else int(mechanism.batch_size)
    return {
        "count": count,
        "description": mechanism.description,
        "sample_size": sample_size,
        "batch_size": batch,
        "sampling_rate": batch / sample_size,
        "sigma": mechanism.sigma,
        "sensitivity": mechanism.unit_sensitivity * math.sqrt(mechanism.law.mean),
        "sensitivity_is_random": not mechanism.law.is_constant,
        "mechanism": mechanism.to_dict(),
    }


def _reasons(groups: list[ReleaseGroup], declared_private: bool, proven: bool) -> list[str]:
    """Return why the run is not private or the numbers are not proven."""
    reasons = []
    if not all(mechanism.is_private for mechanism, _, _ in groups):
        reasons.append("A fixed noise seed makes the noise repeatable: anyone can subtract it.")
    if any(spends_tail(mechanism) and mechanism.bound == "clt" for mechanism, _, _ in groups):
        reasons.append("The bound on the sensitivity is a normal approximation (CLT), not a theorem.")
    if not declared_private and not reasons:
        reasons.append("The run declares itself not private; see its assumptions below.")
    if not proven and not reasons:
        reasons.append("The run declares its account not sound; see its assumptions below.")
    return reasons


def _caveats(
    ledger: Ledger, size: int, planned: int, delta: float, runs: Any, together: Any, config_hash: str | None
) -> list[str]:
    """Return what a reader of these particular numbers should know."""
    made, caveats = ledger.n_releases, []
    if planned > made:
        caveats.append(
            f"The run made {made} of {planned} planned releases. All planned releases are counted, because the "
            "decision to stop may have depended on private data."
        )
    if weak := delta_caveat(delta, size):
        caveats.append(weak[0].upper() + weak[1:])
    if foreign := [name for name in runs["weights_from"] if name != runs["this"]]:
        caveats.append(
            f"The weights also depend on releases of other runs ({', '.join(foreign)}), which this guarantee does not "
            "cover. If those runs read the same records, all costs add up."
        )
    if ledger.header.get("shared"):
        hint = "Other runs share the ledger of this run, and their costs add up. See dpswd ledger show."
        sentence = str(together.get("sentence") or hint)
        if not together.get("sound", True) and not sentence.startswith(("NOT ", "CONDITIONAL")):
            sentence = f"NOT SOUND: a run in the ledger is not. {sentence}"
        caveats.append(sentence)
    stated = ledger.header.get("config_sha256")
    if config_hash is not None and stated is not None and config_hash != stated:
        caveats.append("The SHA-256 of config.yaml differs from that in the ledger: it was edited after the run began.")
    return caveats


def _cross_check(
    path: Path, privacy: dict[str, Any], accountant: PrivacyAccountant, found: dict[str, float | None], delta: float
) -> None:
    """Raise if ``privacy.json`` states another epsilon or mu than the ledger gives."""
    if privacy.get("epsilon") is not None and privacy.get("delta") not in (None, delta):
        found = {**found, "epsilon": accountant.get_epsilon(privacy["delta"])}
    for name, value in found.items():
        claimed = privacy.get(name)
        if claimed is not None and (value is None or not math.isclose(claimed, value, rel_tol=TOLERANCE)):
            raise InputError(
                f"Expected {name}={value} in {path / 'privacy.json'} as computed from the ledger, got {claimed!r}."
            )
