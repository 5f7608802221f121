"""Verification of a bundle: digests, the ledger's chain, and its guarantee.

No number in the bundle is trusted. The guarantee is computed from the plan in the ledger alone
(:mod:`dpswd.accounting.recompute`), and what the files state is compared with it. Neither torch nor
the rest of the package is needed.

What cannot be verified: that the synthetic records are computed from the releases, and that the
ledger is the one that the run has written. A bundle that was forged as a whole has another
fingerprint than the one that its author has published.
"""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from dpswd._json import as_dict
from dpswd._public_facts import ONE_RECORD
from dpswd.accounting.ledger import Ledger
from dpswd.accounting.recompute import CURVE_FPR, Recomputed, recompute
from dpswd.accounting.shared_ledger import Standing
from dpswd.errors import DpswdError
from dpswd.files.manifest import MANIFEST, Manifest, files_of, sha256

__all__ = ["Verification", "verify"]

CARD = "README.md"
CARD_KEY = "differential_privacy"  # of the guarantee in the front matter of the card
LEDGER = "ledger.jsonl"
PRIVACY = "privacy.json"
REPORT = "report.json"
CONFIG = "config.yaml"

# Formats of report.json whose numbers are compared; docs/formats.md describes them.
_REPORT_FORMATS = (6, 7)

# Of numbers that are computed in two ways.
_RELATIVE = 1e-3
_ABSOLUTE = {"epsilon": 1e-3, "delta": 0.0, "mu": 2e-3}
_RELATIVE_RATE = 2e-2  # of a true-positive rate


@dataclass(frozen=True)
class Verification:
    """What was verified.

    Attributes:
        bundle: The folder.
        problems: One sentence per problem, which names the file; empty if all is as it should be.
        n_files: Number of files whose digests were compared.
        run: Identifier of the run; empty if the manifest cannot be read.
        ledger_head: Hash of the last line of the ledger, as computed.
        fingerprint: SHA-256 of the manifest.
        private: Whether the ledger's run is private at all.
        sound: Whether the numbers are proven and unconditional.
        remarks: What voids or conditions the numbers, and other runs; empty for one sound run.
        unit: What neighbouring data sets differ in.
        guarantee: The numbers, computed from the ledger; ``None`` if it cannot be read.
    """

    bundle: Path
    problems: tuple[str, ...]
    n_files: int
    run: str = ""
    ledger_head: str = ""
    fingerprint: str = ""
    private: bool = False
    sound: bool = False
    remarks: str = ""
    unit: str = ""
    guarantee: Recomputed | None = None


def verify(bundle: str | Path, fingerprint: str | None = None) -> Verification:
    """Verify a bundle of :func:`dpswd.files.publish.publish`.

    Args:
        bundle: The folder.
        fingerprint: The fingerprint that the author has published, if it is known.

    Raises:
        InputError: If the folder has no manifest.

    Example:
        >>> from pathlib import Path
        >>> from dpswd.errors import InputError
        >>> try:
        ...     verify("no/such/bundle")
        ... except InputError as error:
        ...     print(str(error).split(",")[0])
        Expected a bundle of dpswd publish with MANIFEST.json at no/such/bundle
    """
    bundle = Path(bundle)
    files = files_of(bundle)
    problems: list[str] = []
    manifest = None
    if not (bundle / MANIFEST).is_file():
        Manifest.read(bundle)  # raises
    try:
        manifest = Manifest.read(bundle)
    except DpswdError as error:
        problems.append(f"{MANIFEST}: {error}")
    if manifest is not None:
        problems += _changed_files(manifest, files)
        problems += _other_fingerprint(manifest, fingerprint)
    computed: dict[str, Any] = {}
    try:
        ledger = Ledger.open_existing(bundle / LEDGER)
        problems += _ledger_problems(ledger, manifest)
        standing = Standing.of(ledger)
        guarantee = recompute(ledger)
        computed = {
            "ledger_head": ledger.head,
            "private": standing.private,
            "sound": standing.sound,
            "remarks": _remarks(ledger, standing),
            "unit": ledger.header.get("unit", ONE_RECORD),
            "guarantee": guarantee,
        }
        for name, claims in _claims(bundle, ledger):
            problems += _contradictions(name, claims, computed, ledger.accountant)
        problems += _unknown_formats(bundle)
        problems += _curve_problems(bundle, guarantee)
        problems += _config_problems(ledger, files)
    except DpswdError as error:
        problems.append(f"{LEDGER}: {error}")
    return Verification(
        bundle=bundle,
        problems=tuple(problems),
        n_files=len(files) + 1,
        run="" if manifest is None else manifest.run,
        fingerprint="" if manifest is None else manifest.fingerprint,
        **computed,
    )


# Files


def _changed_files(manifest: Manifest, files: Mapping[str, Path]) -> list[str]:
    """Return a problem for each file that is missing, added or changed."""
    problems = []
    for name in (CARD, LEDGER, PRIVACY, REPORT):
        if name not in manifest.files:
            problems.append(f"{name}: not in {MANIFEST}, which lists it in every bundle.")
    for name, expected in manifest.files.items():
        if name not in files:
            problems.append(f"{name}: missing.")
        elif sha256(files[name]) != expected:
            problems.append(f"{name}: changed, its SHA-256 is not that of {MANIFEST}.")
    for name in files:
        if name not in manifest.files:
            problems.append(f"{name}: added, {MANIFEST} does not have it.")
    return problems


def _other_fingerprint(manifest: Manifest, fingerprint: str | None) -> list[str]:
    """Return a problem if the fingerprint is not the one that is published."""
    if fingerprint is None or fingerprint.strip().lower() == manifest.fingerprint:
        return []
    return [f"{MANIFEST}: its fingerprint is {manifest.fingerprint}, not the one that you stated."]


def _config_problems(ledger: Ledger, files: Mapping[str, Path]) -> list[str]:
    """Return a problem if the config is not the one that the run has started with."""
    expected = ledger.header.get("config_sha256")
    if CONFIG not in files or expected in (None, sha256(files[CONFIG])):
        return []
    return [f"{CONFIG}: not the one that the ledger names by its SHA-256."]


# The ledger


def _remarks(ledger: Ledger, standing: Standing) -> str:
    """Return what voids or conditions the numbers, and runs that share the budget."""
    sentences = list(standing.sentences)
    if ledger.header.get("shared"):
        sentences.append(
            "Other runs share the budget of this run. Their costs add up; the numbers above are of "
            "this run alone."
        )
    return " ".join(sentences)


def _ledger_problems(ledger: Ledger, manifest: Manifest | None) -> list[str]:
    """Return a problem if the ledger lacks its last lines, or is that of another run."""
    problems = []
    if ledger.torn:
        problems.append(f"{LEDGER}: its last line is incomplete.")
    if manifest is None:
        return problems
    if ledger.head != manifest.ledger_head:
        problems.append(
            f"{LEDGER}: its head is {ledger.head}, and {MANIFEST} states {manifest.ledger_head}."
        )
    if ledger.header.get("run") != manifest.run:
        problems.append(
            f"{LEDGER}: of run {ledger.header.get('run')}, and {MANIFEST} states {manifest.run}."
        )
    return problems


# Stated numbers


def _claims(bundle: Path, ledger: Ledger) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what the files state about the guarantee.

    They state epsilon, delta, mu, whether these hold, the head of the ledger, and its releases.
    """
    # The guarantee in the header is that of the plan, before the conditions of the run.
    planned = as_dict(ledger.header.get("guarantee"))
    yield LEDGER, {name: planned.get(name) for name in _ABSOLUTE}
    privacy = _read_json(bundle / PRIVACY)
    yield PRIVACY, {**privacy, "n_missing": _n_missing(privacy.get("releases_made"), ledger)}
    report = _read_json(bundle / REPORT)
    yield (
        REPORT,
        {
            **as_dict(report.get("guarantee")),
            "private": report.get("private"),
            "sound": report.get("sound"),
            "ledger_head": as_dict(report.get("ledger")).get("head"),
            "n_missing": _n_missing(as_dict(report.get("releases")).get("made"), ledger),
        },
    )
    yield CARD, as_dict(front_matter(bundle / CARD).get(CARD_KEY))


def _n_missing(n_releases: Any, ledger: Ledger) -> int:
    """Return how many releases a file states that the ledger does not have."""
    if not isinstance(n_releases, int):
        return 0
    return max(0, n_releases - ledger.n_releases)


def _contradictions(
    name: str, claims: dict[str, Any], computed: dict[str, Any], accountant: str
) -> list[str]:
    """Return a problem for each number of a file that the ledger does not give."""
    problems = []
    guarantee: Recomputed = computed["guarantee"]
    for number, slack in _ABSOLUTE.items():
        claimed = claims.get(number)
        value: float = getattr(guarantee, number)
        if claimed is None and number != "epsilon":
            continue
        # Renyi accounting gives another upper bound.
        is_other_bound = number == "epsilon" and accountant == "rdp"
        if not _agree(claimed, value, _RELATIVE, slack, may_exceed=is_other_bound):
            problems.append(
                f"{name}: states {number} = {claimed}, and the ledger gives {value:.6g}."
            )
    for word in ("private", "sound"):
        if claims.get(word) and not computed[word]:
            problems.append(f"{name}: states that the run is {word}, which the ledger denies.")
    head = claims.get("ledger_head")
    if head is not None and head != computed["ledger_head"]:
        problems.append(f"{name}: states another head of the ledger than it has.")
    if claims.get("n_missing"):
        problems.append(f"{name}: states {claims['n_missing']} releases more than the ledger has.")
    return problems


def _agree(
    claimed: Any, value: float, relative: float, absolute: float, *, may_exceed: bool = False
) -> bool:
    """Return whether a stated number is the computed one, but for rounding."""
    if isinstance(claimed, bool) or not isinstance(claimed, int | float):
        return False
    if may_exceed and claimed > value:
        return True
    return math.isclose(claimed, value, rel_tol=relative, abs_tol=absolute)


def _unknown_formats(bundle: Path) -> list[str]:
    """Return a problem for each file whose format this version does not know.

    It names the version that wrote the file.
    """
    problems = []
    report = _read_json(bundle / REPORT)
    version = as_dict(report.get("versions")).get("dpswd")
    if report.get("schema_version") not in _REPORT_FORMATS:
        problems.append(
            f"{REPORT}: of format {report.get('schema_version')}, written by dpswd {version}; "
            "verify it with that version."
        )
    privacy = _read_json(bundle / PRIVACY)
    if privacy.get("format", 1) != 1:  # version 0.3 wrote none
        problems.append(
            f"{PRIVACY}: of format {privacy.get('format')}, written by dpswd "
            f"{privacy.get('version')}; verify it with that version."
        )
    return problems


def _curve_problems(bundle: Path, guarantee: Recomputed) -> list[str]:
    """Return a problem for each rate where the report's curve is not the ledger's.

    A curve that states a weaker guarantee than the ledger gives is a problem, too.
    """
    points = as_dict(_read_json(bundle / REPORT).get("guarantee")).get("trade_off")
    rates: dict[float, Any] = {}
    if isinstance(points, list):
        for point in points:
            rates[as_dict(point).get("fpr", math.nan)] = as_dict(point).get("tpr")
    problems = []
    for fpr, fnr in zip(CURVE_FPR, guarantee.fnr, strict=True):
        claimed = rates.get(fpr)
        if not _agree(claimed, 1 - fnr, _RELATIVE_RATE, 0.0):
            problems.append(
                f"{REPORT}: states a true-positive rate of {claimed} at the false-positive rate "
                f"{fpr:g}, and the ledger gives {1 - fnr:.6g}."
            )
    return problems


def front_matter(path: Path) -> dict[str, Any]:
    """Return the YAML between the first two lines ``---`` of a card.

    It is empty without these lines.
    """
    content: Any = None
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError, RecursionError):
        _, head, _ = path.read_text(encoding="utf-8").split("---\n", 2)
        content = yaml.safe_load(head)
    return as_dict(content)


def _read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object; empty if the file is missing or damaged.

    The digest of the file shows either.
    """
    content: Any = None
    with contextlib.suppress(OSError, ValueError, RecursionError):
        content = json.loads(path.read_bytes())
    return as_dict(content)
