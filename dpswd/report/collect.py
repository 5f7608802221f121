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
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]

from dpswd._validate import delta_caveats
from dpswd._versions import package_versions
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.ledger import CONDITIONS, HANDED_OVER, Ledger
from dpswd.budget.budget import NOT_COVERED
from dpswd.errors import InputError
from dpswd.report.gdp import REGRET_LIMIT, TABLE_FPR, TradeOff

SCHEMA_VERSION = 6
ATTACK_FPR = 1e-3  # false-positive rate of the attacker in the first sentence of the report
PICTURES = ("samples.png", "columns.png")
TOLERANCE = 1e-3  # relative; rounding on another machine differs by less, a wrong claim by more
PROFILE_POINTS = 21
PROTECTED = "Each single record, its class included, against everyone who knows all other records and the releases."
DECLARED = "The run declares it so in privacy.json."
ON_CONDITIONS, NOTHING = "On the conditions above only.", "Nothing: the run is not private."

_PRIVACY = {"sound": bool, "private": bool, "releases_made": int}
_ACCURACY = ("dataset", "classifier", "train", "accuracy", "n_train", "n_test")
_PUBLIC = {  # facts of the records, as config.yaml states them
    "shape": "The shape of a record",
    "n_classes": "The number of classes",
    "classes": "The classes",
    "bounds": "The bounds of the columns",
}


def collect(run_dir: str | Path, *, title: str | None = None) -> tuple[dict[str, Any], TradeOff]:
    """Return everything that a report states, valid against schema.json, and its trade-off curve.

    Files of ``run_dir`` other than ``ledger.jsonl`` and ``privacy.json`` are optional; an InputError says which one is
    missing or contradicts another.
    """
    path = Path(run_dir)
    ledger = Ledger.open_existing(path / "ledger.jsonl")
    privacy = _json_object(
        path / "privacy.json", "the run writes it at its end: let it finish or resume it"
    )
    for field, kind in _PRIVACY.items():
        if not isinstance(privacy.get(field), kind):
            raise InputError(
                f"Expected {field!r} in {path / 'privacy.json'} as {kind.__name__}; finish the run again."
            )
    if ledger.n_releases < (made := max(1, privacy["releases_made"])):
        raise InputError(
            f"Expected a ledger with at least {made} releases in {path}, got {ledger.n_releases}: it was cut or the "
            "run made none; do not rely on it."
        )
    config = _content(path / "config.yaml")
    stated, measured = _stated(config or b""), path / "evaluation.json"
    evaluation = (
        _json_object(measured, "evaluate the run again") if measured.exists() else {"rows": []}
    )

    header, groups = ledger.header, ledger.planned()
    size, delta, name = groups[0][1], ledger.delta, ledger.accountant
    accountants = {kind: PrivacyAccountant.from_groups(groups, kind) for kind in ("pld", "rdp")}
    exact = accountants["pld"].resolve(
        delta
    )  # the curve needs a failure_prob for every bound that may fail
    curve = TradeOff.of(exact)
    guarantee = {
        "tier": 2 if curve.regret > REGRET_LIMIT else 1,  # of Gomez2025
        "mu": curve.mu,
        "regret": curve.regret,
        "advantage": curve.advantage,
        "exactly_gaussian": curve.is_gaussian,
        "epsilon": _epsilon(accountants[name], delta),
        "delta": delta,
        "attack": curve.rows([ATTACK_FPR])[0],
        "trade_off": curve.rows(TABLE_FPR),
        "epsilon_delta": _epsilons(accountants, size, delta),
        "profile": _profile(exact, curve.advantage),
    }
    _cross_check(path / "privacy.json", privacy, guarantee)
    private = all(
        [
            privacy["private"],
            header.get("private", True),
            *(each.is_private for each, _, _ in groups),
        ]
    )
    handed_over = HANDED_OVER in (header.get("records"), privacy.get("records"))
    proven = accountants[name].sound and (privacy["sound"] or handed_over)
    report = {
        "schema_version": SCHEMA_VERSION,
        # the rest of the path may hold names of people or projects
        "title": title or stated["title"] or f"Privacy report: {path.resolve().name}",
        "private": private,
        "conditions": CONDITIONS if handed_over else [],
        "sound": private and proven and not handed_over,
        "reasons": accountants[name].shortcomings or ([] if private and proven else [DECLARED]),
        "records": {"size": size, "opened": header.get("records"), "classes": stated["classes"]},
        "public": [
            f"The number of records: {size:,}.",
            *stated["public"],
            "The settings, and all that was released.",
        ],
        "protected": [PROTECTED, *([ON_CONDITIONS] if handed_over else [])]
        if private
        else [NOTHING],
        "not_covered": NOT_COVERED,
        "guarantee": guarantee,
        "releases": {
            "made": ledger.n_releases,
            "planned": sum(count for *_, count in groups),
            "sample_size": size,
            "neighboring_relation": "replace-one",
            "groups": [_group(*group) for group in exact.history],
        },
        "runs": {"this": header.get("run"), "weights_from": privacy.get("weights_from_runs") or []},
        "accountant": name,
        "assumptions": accountants[name].assumptions,
        "ledger": {key: header.get(key) for key in ("config_sha256", "version")}
        | {"head": ledger.head},
        "config": {
            "sha256": None if config is None else hashlib.sha256(config).hexdigest(),
            "text": None if config is None else config.decode(errors="replace"),
        },
        "versions": package_versions(),
        "pictures": {
            each: base64.b64encode(content).decode("ascii")
            for each in PICTURES
            if (content := _content(path / each))
        },
        "evaluation": [{name: row.get(name) for name in _ACCURACY} for row in evaluation["rows"]],
    }
    return report | {
        "caveats": _caveats(report, header.get("shared"), privacy.get("across_runs") or {})
    }, curve


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


def _stated(config: bytes) -> dict[str, Any]:
    """Return title, classes and public facts of the records in config.yaml, which may have been edited."""
    settings: Any = None
    with contextlib.suppress(yaml.YAMLError, UnicodeDecodeError, RecursionError):
        settings = yaml.safe_load(config.decode())
    settings = settings if isinstance(settings, dict) else {}
    records = settings.get("records")
    records = records if isinstance(records, dict) else {}
    name = records.get("name", "records")  # which is the name of records without one
    title = settings.get("title") or ("" if name == "records" else f"Synthetic records of {name}")
    public = [
        f"{words}: {textwrap.shorten(', '.join(_lines(records[key])), 200, placeholder=' ...')}."
        for key, words in _PUBLIC.items()
        if records.get(key)
    ]
    public += _lines(records.get("taken"))
    return {"title": str(title), "classes": _lines(records.get("classes")), "public": public}


def _lines(value: Any) -> list[str]:
    return (
        [str(each) for each in value]
        if isinstance(value, list)
        else []
        if value is None
        else [str(value)]
    )


# Guarantee


def _epsilon(accountant: PrivacyAccountant, delta: float) -> float | None:
    """Return epsilon, or None where the tails of a bound use up delta."""
    with contextlib.suppress(InputError):
        return accountant.get_epsilon(delta)
    return None


def _epsilons(
    accountants: dict[str, PrivacyAccountant], size: int, target: float
) -> list[dict[str, Any]]:
    """Return epsilon of both accountants at the target delta and the usual ones, in descending order of delta."""
    usual = {1e-5, 1e-6, float(f"{1 / (10 * size):.1g}")}
    deltas = {target, *(delta for delta in usual if not math.isclose(delta, target, rel_tol=1e-9))}
    return [
        {"delta": delta}
        | {f"epsilon_{kind}": _epsilon(each, delta) for kind, each in accountants.items()}
        for delta in sorted(deltas, reverse=True)
    ]


def _profile(accountant: PrivacyAccountant, at_zero: float) -> list[dict[str, float]]:
    found = (_epsilon(accountant, float(delta)) for delta in np.geomspace(1e-12, 0.1, 23))
    epsilons = np.linspace(0.0, next(filter(None, found), 1.0), PROFILE_POINTS).tolist()
    deltas = [at_zero, *map(float, accountant.profile(epsilons[1:]))]
    return [
        {"epsilon": epsilon, "delta": delta}
        for epsilon, delta in zip(epsilons, deltas, strict=True)
    ]


def _cross_check(path: Path, privacy: dict[str, Any], guarantee: dict[str, Any]) -> None:
    """Raise if ``privacy.json`` states other numbers than the ledger gives."""
    for name in ("delta", "epsilon", "mu"):
        claimed, found = privacy.get(name), guarantee[name]
        if claimed is not None and (
            found is None or not math.isclose(claimed, found, rel_tol=TOLERANCE)
        ):
            raise InputError(
                f"Expected {name}={found} in {path} as computed from the ledger, got {claimed!r}."
            )


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


def _caveats(report: dict[str, Any], shared: bool | None, together: dict[str, Any]) -> list[str]:
    """Return what a reader of these particular numbers should know."""
    releases, runs, caveats = report["releases"], report["runs"], []
    if releases["planned"] > releases["made"]:
        caveats.append(
            f"The run made {releases['made']} of {releases['planned']} planned releases. All planned releases are "
            "counted, because the decision to stop may have depended on private data."
        )
    caveats += delta_caveats(report["guarantee"]["delta"], releases["sample_size"])
    if foreign := [name for name in runs["weights_from"] if name != runs["this"]]:
        caveats.append(
            f"The weights also depend on releases of other runs ({', '.join(foreign)}), which this guarantee does not "
            "cover. If those runs read the same records, all costs add up."
        )
    if shared:
        hint = "Other runs share the ledger of this run, and their costs add up. See dpswd ledger show."
        caveats.append(together.get("sentence") or hint)
    stated, found = report["ledger"]["config_sha256"], report["config"]["sha256"]
    if stated and found and stated != found:
        caveats.append(
            "The SHA-256 of config.yaml differs from that in the ledger: it was edited after the run began."
        )
    return caveats
