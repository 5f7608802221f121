"""The facts of a report in one dictionary: computed from the ledger and compared with what the run states.

The ledger holds the plan and what was released. Where a run stopped early the plan counts, since the decision to stop
may depend on private data. ``privacy.json`` adds what the releases do not contain: other runs that the weights depend
on, and whether the run declares itself not private or not sound. schema.json, in this directory, describes the
dictionary.
"""

import base64
import contextlib
import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpswd._versions import package_versions
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.ledger import Ledger, ReleaseGroup
from dpswd.errors import InputError
from dpswd.report.gdp import TABLE_FPR, TradeOff
from dpswd.budget import NOT_COVERED

__all__ = ["collect"]

SCHEMA_VERSION = 3
ATTACK_FPR = 1e-3  # false-positive rate of the attacker in the first sentence of the report
TOLERANCE = 1e-3  # relative; rounding on another machine differs by less, a wrong claim by more
PROFILE_POINTS = 61
PNG = b"\x89PNG\r\n\x1a\n"
MAX_PICTURE = 8 * 2**20  # bytes; a larger picture is not embedded

_NUMBER = (int, float)
_OPTIONAL = (type(None),)
_PRIVACY: dict[str, tuple[type, ...]] = {
    **{name: (bool,) for name in ("sound", "private")},
    "releases_made": (int,),
    **{name: _NUMBER + _OPTIONAL for name in ("epsilon", "delta", "mu")},
    **{name: (list,) for name in ("assumptions", "not_covered")},
    **{name: (list, *_OPTIONAL) for name in ("covered_runs", "weights_from_runs")},
    "across_runs": (dict, *_OPTIONAL),
}
_EVALUATION: dict[str, tuple[type, ...]] = {
    "dataset": (str,),
    "classifier": (str,),
    "train": (str,),
    "accuracy": _NUMBER,
    "n_train": (int, *_OPTIONAL),
    "n_test": (int, *_OPTIONAL),
}


@dataclass(frozen=True)
class Run:
    """Content of a run directory.

    Attributes:
        path: The directory.
        ledger: Its ledger, with the hash chain verified.
        privacy: ``privacy.json``, what the run states.
        config: ``config.yaml``, or ``None``.
        picture: ``samples.png``, or ``None`` if it does not exist or is too large to embed.
        evaluation: Rows of ``evaluation.json``: accuracies on a declared public benchmark.
    """

    path: Path
    ledger: Ledger
    privacy: dict[str, Any]
    config: bytes | None
    picture: bytes | None
    evaluation: list[dict[str, Any]]

    @property
    def config_sha256(self) -> str | None:
        """SHA-256 of ``config.yaml``."""
        return None if self.config is None else hashlib.sha256(self.config).hexdigest()


def read_run(path: str | Path) -> Run:
    """Read and check a run directory.

    Raises:
        InputError: If the directory, its ledger or ``privacy.json`` is missing, or a file is corrupt.
    """
    path = Path(path)
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing there"
        raise InputError(f"Expected a run directory, got {path} ({found}); give the directory that the run wrote to.")
    ledger = Ledger.open_existing(path / "ledger.jsonl")
    privacy = _json_object(path / "privacy.json", "the run writes it at its end: let it finish or resume it")
    _check_fields(path / "privacy.json", privacy, _PRIVACY)
    picture = _content(path / "samples.png")
    if picture is not None and not picture.startswith(PNG):
        raise InputError(f"Expected a PNG picture at {path / 'samples.png'}, got another format; remove the file.")
    evaluation = path / "evaluation.json"
    return Run(
        path=path,
        ledger=ledger,
        privacy=privacy,
        config=_content(path / "config.yaml"),
        picture=picture if picture is None or len(picture) <= MAX_PICTURE else None,
        evaluation=_accuracies(evaluation) if evaluation.exists() else [],
    )


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"Expected to read {path}, got: {error.strerror}.") from None


def _json_object(path: Path, remedy: str) -> dict[str, Any]:
    content = _content(path)
    if content is None:
        raise InputError(f"Expected {path}, got no such file; {remedy}.")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise InputError(f"Expected JSON in {path}, got a corrupt file; {remedy}.") from None
    if not isinstance(value, dict):
        raise InputError(f"Expected a JSON object in {path}, got {type(value).__name__}; {remedy}.")
    return value


def _check_fields(path: Path, values: Any, fields: dict[str, tuple[type, ...]]) -> None:
    for name, kinds in fields.items():
        value = values.get(name) if isinstance(values, dict) else None
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise InputError(f"Expected {name!r} in {path} to be {wanted}, got {value!r}; write the file again.")


def _accuracies(path: Path) -> list[dict[str, Any]]:
    rows = _json_object(path, "evaluate the run again").get("rows")
    if not isinstance(rows, list):
        raise InputError(f"Expected a list 'rows' in {path}, got {rows!r}; evaluate the run again.")
    for row in rows:
        _check_fields(path, row, _EVALUATION)
        if not 0 <= row["accuracy"] <= 100:
            raise InputError(f"Expected accuracies from 0 to 100 percent in {path}, got {row['accuracy']!r}.")
    return [{name: row.get(name) for name in _EVALUATION} for row in rows]


def collect(
    run_dir: str | Path, *, include_private_evaluation: bool = False
) -> tuple[dict[str, Any], dict[str, list[float]]]:
    """Collect everything that a report states.

    Args:
        run_dir: Directory with ``ledger.jsonl`` and ``privacy.json``; ``config.yaml``, ``samples.png`` and
            ``evaluation.json`` are used if they exist.
        include_private_evaluation: Whether to add ``private_evaluation.json``: accuracies that were measured on private
            records without noise. Without this option the file is not read.

    Returns:
        A dictionary that is valid against schema.json (the same run gives the same dictionary), and points ``fpr``,
        ``fnr`` of the trade-off curve for the plots.

    Raises:
        InputError: If a file is missing or corrupt, or the ledger and ``privacy.json`` contradict each other.

    Example:
        >>> import tempfile, torch
        >>> from dpswd import Budget, ClassCounts
        >>> query = ClassCounts(2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with Budget([query], 10, target_epsilon=1.0, target_delta=1e-5, run_dir=folder):
        ...         counts = query.release(torch.arange(10) % 2)
        ...     report, curve = collect(folder)
        >>> report["guarantee"]["epsilon"] <= 1.0
        True
    """
    run = read_run(run_dir)
    private_evaluation = _accuracies(run.path / "private_evaluation.json") if include_private_evaluation else None
    groups = _planned_groups(run)
    header, privacy = run.ledger.header, run.privacy
    target_delta, name = float(header.get("target_delta", 1e-5)), str(header.get("accountant", "pld"))
    accountants = {kind: PrivacyAccountant.from_groups(groups, kind) for kind in ("pld", "rdp")}
    chosen = accountants[name]
    exact = accountants["pld"].resolve(target_delta)  # the curve needs a failure_prob for every bound that may fail
    curve = TradeOff.of(exact)
    epsilons = [_epsilons(delta, target_delta, name, accountants) for delta in _deltas(groups[0][1], target_delta)]
    at_target = next(row["epsilon"] for row in epsilons if row["target"])
    _cross_check(run, chosen, {"epsilon": at_target, "mu": curve.mu}, target_delta)
    seedless = all(mechanism.is_private for mechanism, _, _ in groups)
    private = bool(privacy["private"]) and bool(header.get("private", True)) and seedless
    outside = {"evaluation": run.evaluation, "private_evaluation": private_evaluation}
    report = {
        "schema_version": SCHEMA_VERSION,
        "name": run.path.resolve().name,  # the rest of the path may hold names of people or projects
        "private": private,
        "sound": private and bool(privacy["sound"]) and chosen.sound,
        "reasons": _reasons(run, groups, chosen.sound),
        "outside_guarantee": [key for key, value in outside.items() if value],
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
            "made": run.ledger.n_releases,
            "planned": sum(count for _, _, count in groups),
            "sample_size": groups[0][1],
            "neighboring_relation": "replace-one",
            "groups": [_group(*group) for group in exact.history],
        },
        "runs": _runs(run),
        "accountant": name,
        "assumptions": _merge(chosen.assumptions, privacy["assumptions"]),
        "not_covered": _merge(NOT_COVERED, privacy["not_covered"], by_topic=True),
        "caveats": _caveats(run, groups, target_delta, include_private_evaluation),
        "ledger": {
            "head": run.ledger.head,
            "config_sha256": header.get("config_sha256"),
            "version": header.get("version"),
        },
        "config": {
            "sha256": run.config_sha256,
            "matches_ledger": None if run.config is None else run.config_sha256 == header.get("config_sha256"),
            "text": None if run.config is None else run.config.decode(errors="replace"),
        },
        "versions": package_versions(),
        "samples_png": None if run.picture is None else base64.b64encode(run.picture).decode("ascii"),
        **outside,
    }
    fpr = np.unique(np.concatenate([np.geomspace(1e-10, 1.0, 301), np.linspace(0.0, 1.0, 201)]))
    return report, {"fpr": fpr.tolist(), "fnr": curve.fnr(fpr).tolist()}


def _planned_groups(run: Run) -> list[ReleaseGroup]:
    """Return the plan in the ledger, or the releases where they exceed it."""
    made, stated = run.ledger.n_releases, run.privacy["releases_made"]
    if not made:
        raise InputError(f"Expected at least one release in the ledger of {run.path}, got none: nothing to report.")
    if stated > made:
        raise InputError(
            f"Expected a ledger with at least {stated} releases as {run.path / 'privacy.json'} says, got {made}: "
            "the ledger was truncated; do not rely on it."
        )
    return run.ledger.planned()


def _deltas(sample_size: int, target: float) -> list[float]:
    """Return four deltas, the target among them, in descending order."""
    wanted = [target, 1e-5, 1e-6, float(f"{1 / (10 * sample_size):.1g}")]
    distinct: list[float] = []
    for delta in sorted(wanted, reverse=True):
        if not any(math.isclose(delta, other, rel_tol=1e-9) for other in distinct):
            distinct.append(delta)
    return distinct if len(distinct) == 4 else [*distinct, distinct[-1] / 10]


def _epsilons(delta: float, target: float, name: str, accountants: dict[str, PrivacyAccountant]) -> dict[str, Any]:
    both: dict[str, float | None] = dict.fromkeys(accountants)
    for key, accountant in accountants.items():
        with contextlib.suppress(InputError):  # the tails of a bound use up this delta: no epsilon is claimed
            both[key] = accountant.get_epsilon(delta)
    return {
        "delta": delta,
        "epsilon": both[name],
        "epsilon_pld": both["pld"],
        "epsilon_rdp": both["rdp"],
        "target": math.isclose(delta, target, rel_tol=1e-9),
    }


def _profile(accountant: PrivacyAccountant, at_zero: float) -> list[dict[str, float]]:
    top = 1.0
    for delta in np.geomspace(1e-12, 0.1, 23):  # the smallest delta that the tails of a bound do not use up
        with contextlib.suppress(InputError):
            top = accountant.get_epsilon(float(delta)) or top
            break
    epsilons = np.linspace(0.0, top, PROFILE_POINTS).tolist()
    deltas = [at_zero, *accountant.profile(epsilons[1:])]
    return [{"epsilon": float(e), "delta": float(d)} for e, d in zip(epsilons, deltas, strict=True)]


def _group(mechanism: Any, sample_size: int, count: int) -> dict[str, Any]:
    batch = sample_size if mechanism.batch_size is None else int(mechanism.batch_size)
    law = mechanism.law
    return {
        "count": count,
        "description": mechanism.description,
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


def _runs(run: Run) -> dict[str, Any]:
    """Return the ids of this run, of the runs that the guarantee covers, and of those that the weights depend on."""
    stated, this = run.privacy, run.ledger.header.get("run")
    covered = [str(name) for name in stated.get("covered_runs") or ([this] if this else [])]
    return {
        "this": this,
        "covered": covered,
        "weights_from": [str(n) for n in stated.get("weights_from_runs") or covered],
    }


def _reasons(run: Run, groups: list[ReleaseGroup], sound: bool) -> list[str]:
    reasons = []
    if not all(mechanism.is_private for mechanism, _, _ in groups):
        reasons.append("A fixed noise seed makes the noise repeatable: anyone can subtract it.")
    if any(getattr(m, "spends_tail", False) and getattr(m, "bound", "") == "clt" for m, _, _ in groups):
        reasons.append("The bound on the sensitivity is a normal approximation (CLT), not a theorem.")
    if not run.privacy["private"] and not reasons:
        reasons.append("The run declares itself not private; see its assumptions below.")
    if (not run.privacy["sound"] or not sound) and not reasons:
        reasons.append("The run declares its account not sound; see its assumptions below.")
    return reasons


def _caveats(run: Run, groups: list[ReleaseGroup], delta: float, private_evaluation: bool) -> list[str]:
    made, planned = run.ledger.n_releases, sum(count for _, _, count in groups)
    caveats = []
    if private_evaluation:
        caveats.append(
            "This report contains accuracies that were measured on private records without noise. The guarantee does "
            "not cover them: do not publish this report. It holds for everything else in the report."
        )
    if planned > made:
        caveats.append(
            f"The run made {made} of {planned} planned releases. All planned releases are counted, because the "
            "decision to stop may have depended on private data."
        )
    if delta >= 1 / groups[0][1]:
        caveats.append(
            f"δ = {delta:g} is not below 1/N. A mechanism that publishes one whole record would satisfy (ε, δ) "
            "with such a δ; read the trade-off curve and μ instead."
        )
    runs = _runs(run)
    if foreign := [name for name in runs["weights_from"] if name not in runs["covered"]]:
        caveats.append(
            f"The weights also depend on releases of other runs ({', '.join(foreign)}), which this guarantee does not "
            "cover. If those runs read the same records, all costs add up."
        )
    if run.ledger.header.get("shared"):
        caveats.append(_shared_ledger(run.privacy.get("across_runs") or {}))
    stated = run.ledger.header.get("config_sha256")
    if run.config_sha256 is not None and stated is not None and run.config_sha256 != stated:
        caveats.append("The SHA-256 of config.yaml differs from that in the ledger: it was edited after the run began.")
    return caveats


def _shared_ledger(facts: dict[str, Any]) -> str:
    """Return the run's sentence on all runs in its ledger, with a warning where one of them is not sound."""
    hint = "See dpswd ledger show."
    sentence = str(facts.get("sentence") or f"Other runs share the ledger of this run, and their costs add up. {hint}")
    if sentence.startswith("NOT ") or (facts.get("sound", True) and facts.get("private", True)):
        return sentence
    return f"NOT {'SOUND' if facts.get('private', True) else 'PRIVATE'}: a run in the ledger is not. {sentence}"


def _cross_check(run: Run, accountant: PrivacyAccountant, found: dict[str, float | None], target_delta: float) -> None:
    """Raise if ``privacy.json`` states another epsilon or mu than the ledger gives."""
    if run.privacy.get("epsilon") is not None and run.privacy.get("delta") not in (None, target_delta):
        found = {**found, "epsilon": accountant.get_epsilon(run.privacy["delta"])}
    for name, value in found.items():
        claimed = run.privacy.get(name)
        if claimed is not None and (value is None or not math.isclose(claimed, value, rel_tol=TOLERANCE)):
            raise InputError(
                f"Expected {name}={value} in {run.path / 'privacy.json'} as computed from the ledger, got {claimed!r}."
            )


def _merge(ours: Iterable[str], theirs: Iterable[Any], *, by_topic: bool = False) -> list[str]:
    """Return our sentences and those of the run that differ (with ``by_topic``: in the words before the colon)."""
    lines: dict[str, str] = {}
    for line in map(str, [*ours, *theirs]):
        lines.setdefault(line.split(":")[0] if by_topic else line, line)
    return list(lines.values())
