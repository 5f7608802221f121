"""A run directory as the report reads it: every file checked, nothing computed, nothing written."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpswd.accounting.ledger import Ledger
from dpswd.errors import InputError

__all__ = ["Run", "read_run"]

PNG = b"\x89PNG\r\n\x1a\n"
MAX_PICTURE = 8 * 2**20  # bytes; a larger picture is named in the report, not embedded

_NUMBERS = (int, float)
_PRIVACY: dict[str, tuple[type, ...]] = {
    "sound": (bool,),
    "private": (bool,),
    "epsilon": (*_NUMBERS, type(None)),
    "delta": (*_NUMBERS, type(None)),
    "planned_releases": (int,),
    "releases_made": (int,),
    "sample_size": (int,),
    "assumptions": (list,),
    "not_covered": (list,),
}
_PRIVACY_OPTIONAL: dict[str, tuple[type, ...]] = {
    "mu": (*_NUMBERS, type(None)),
    "target_epsilon": (*_NUMBERS, type(None)),
    "target_delta": (*_NUMBERS, type(None)),
    "accountant": (str, type(None)),
    "neighboring_relation": (str, type(None)),
}
_DOWNSTREAM: dict[str, tuple[type, ...]] = {
    "dataset": (str,),
    "classifier": (str,),
    "train": (str,),
    "accuracy": _NUMBERS,
}
_DOWNSTREAM_OPTIONAL: dict[str, tuple[type, ...]] = {
    "n_train": (int, type(None)),
    "n_test": (int, type(None)),
}


@dataclass(frozen=True)
class Run:
    """What a run left behind.

    Attributes:
        path: The directory.
        ledger: Its ledger, chain verified.
        privacy: ``privacy.json``: what the run itself claims; the report checks it against the ledger.
        config: Text of ``config.yaml``, or ``None``.
        config_sha256: SHA-256 of that file, or ``None``.
        picture: Bytes of ``samples.png``, or ``None`` where there is none or it is too large to embed.
        downstream: Rows of ``downstream.json``: dataset, classifier, train, accuracy in percent.
    """

    path: Path
    ledger: Ledger
    privacy: dict[str, Any]
    config: str | None
    config_sha256: str | None
    picture: bytes | None
    downstream: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """Last part of the path; the rest of it is nobody's business."""
        return self.path.resolve().name


def read_run(path: str | Path) -> Run:
    """Reads a run directory.

    Raises:
        InputError: If the directory, its ledger or ``privacy.json`` is missing, or any file is not what it
            should be.
    """
    path = Path(path)
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing there"
        raise InputError(f"Expected a run directory, got {path} ({found}); give the directory that the run wrote to.")
    ledger = Ledger.open_existing(path / "ledger.jsonl")
    privacy = _json_object(path / "privacy.json", "is written when a run ends; let the run finish or resume it")
    _check_fields(path / "privacy.json", privacy, _PRIVACY, _PRIVACY_OPTIONAL)
    config = _optional(path / "config.yaml")
    picture = _optional(path / "samples.png")
    if picture is not None and not picture.startswith(PNG):
        raise InputError(f"Expected a PNG picture at {path / 'samples.png'}, got something else; remove it.")
    return Run(
        path=path,
        ledger=ledger,
        privacy=privacy,
        config=None if config is None else config.decode(errors="replace"),
        config_sha256=None if config is None else hashlib.sha256(config).hexdigest(),
        picture=picture if picture is None or len(picture) <= MAX_PICTURE else None,
        downstream=_downstream(path / "downstream.json"),
    )


def _optional(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"Expected to read {path}, got: {error.strerror}.") from None


def _json_object(path: Path, remedy: str) -> dict[str, Any]:
    content = _optional(path)
    if content is None:
        raise InputError(f"Expected {path}, got none; it {remedy}.")
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise InputError(f"Expected JSON in {path}, got something else: corrupt; it {remedy}.") from None
    if not isinstance(value, dict):
        raise InputError(f"Expected a JSON object in {path}, got {type(value).__name__}.")
    return value


def _check_fields(
    path: Path, values: Any, wanted: dict[str, tuple[type, ...]], optional: dict[str, tuple[type, ...]]
) -> None:
    for name, kinds in (wanted | optional).items():
        if not isinstance(values, dict) or (name in wanted and name not in values):
            raise InputError(f"Expected {name!r} in {path}, got none; write it with the dpswd version of the run.")
        value = values.get(name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise InputError(f"Expected {name!r} in {path} to be {names}, got {value!r}.")


def _downstream(path: Path) -> list[dict[str, Any]]:
    if _optional(path) is None:
        return []
    rows = _json_object(path, "holds the accuracies of classifiers: remove it or measure again").get("rows")
    if not isinstance(rows, list):
        raise InputError(f"Expected a list 'rows' in {path}, got {rows!r}.")
    for row in rows:
        _check_fields(path, row, _DOWNSTREAM, _DOWNSTREAM_OPTIONAL)
        if not 0 <= row["accuracy"] <= 100:
            raise InputError(f"Expected accuracies from 0 to 100 percent in {path}, got {row['accuracy']!r}.")
    names = (*_DOWNSTREAM, *_DOWNSTREAM_OPTIONAL)
    return [{name: row.get(name) for name in names} for row in rows]
