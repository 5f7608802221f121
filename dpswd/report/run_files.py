"""Reads the files of a run directory besides the ledger.

They are privacy.json, config.yaml, evaluation.json and pictures. Each may have been edited or
damaged, so nothing in them is trusted: privacy.json can weaken what the ledger gives, and its
numbers are compared with those of the ledger.
"""

import base64
import contextlib
import hashlib
import json
import math
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from dpswd._json import INFINITE, as_dict
from dpswd._paths import mask_lines, mask_paths
from dpswd._png import is_of_releases
from dpswd.budget.statement import FORMAT
from dpswd.errors import InputError
from dpswd.report.facts import Accuracy, ConfigFile, GuaranteeNumbers, Together

# Options of a resumed run that differ from config.yaml, by their names with dots.
RESUMED = "resumed.yaml"

PICTURES = ("samples.png", "columns.png", "adaptation.png")

# Relative; rounding on another machine differs by less, a wrong claim by more.
TOLERANCE = 1e-3

# Name of records that have none.
_UNNAMED = "records"

# Length of a line of public facts: a list of a thousand classes is cut there.
_MOST_CHARACTERS = 200

# Facts of the records, as config.yaml states them.
_PUBLIC = {
    "shape": "The shape of a record",
    "n_classes": "The number of classes",
    "classes": "The classes",
    "bounds": "The bounds of the columns",
}

# Entries of "records" in config.yaml that a report states elsewhere.
_STATED_ELSEWHERE = ("bounds", "kinds", "columns", "column_facts")


# privacy.json


@dataclass(frozen=True)
class PrivacyFile:
    """What privacy.json states."""

    path: Path
    sound: bool
    private: bool
    releases_made: int
    records: str | None  # how the records were opened
    weights_from_runs: tuple[str, ...]
    across_runs: str | None  # sentence about all runs of a shared ledger
    together: Together | None  # their cost
    numbers: dict[str, Any]  # delta, epsilon and mu, where they are stated

    def check(self, guarantee: GuaranteeNumbers) -> None:
        """Raise an InputError if the file states other numbers than the ledger gives."""
        computed = {"delta": guarantee.delta, "epsilon": guarantee.epsilon, "mu": guarantee.mu}
        for name, claimed in self.numbers.items():
            if not _agree(claimed, computed[name]):
                raise InputError(
                    f"Expected {name}={computed[name]} in {self.path} as computed from the ledger, "
                    f"got {claimed!r}: one of these files was changed; do not rely on it."
                )


def read_privacy(path: Path) -> PrivacyFile:
    """Read privacy.json.

    Raises:
        InputError: If the file is missing or damaged, or lacks a field.
    """
    content = _read_object(path, "the run writes it at its end: let it finish or resume it")
    if content.get("format", FORMAT) != FORMAT:
        raise InputError(
            f"Expected {path} in format {FORMAT}, got format {content['format']!r}, written by "
            f"dpswd {content.get('version')}; read the run with that version."
        )
    _check_field(path, content, "sound", bool)
    _check_field(path, content, "private", bool)
    _check_field(path, content, "releases_made", int)
    across_runs = as_dict(content.get("across_runs"))
    stated_numbers = {
        name: content[name] for name in ("delta", "epsilon", "mu") if content.get(name) is not None
    }
    return PrivacyFile(
        path=path,
        sound=content["sound"],
        private=content["private"],
        releases_made=content["releases_made"],
        records=content.get("records"),
        weights_from_runs=tuple(content.get("weights_from_runs") or ()),
        across_runs=across_runs.get("sentence"),
        together=_together(across_runs),
        numbers=stated_numbers,
    )


def _together(across_runs: dict[str, Any]) -> Together | None:
    """Return the cost of all runs of a shared ledger.

    It is ``None`` without a finite one, and where one of the runs voids it or leaves it unproven.
    """
    if across_runs.get("private") is False or across_runs.get("sound") is False:
        return None
    epsilon = across_runs.get("epsilon")
    delta = across_runs.get("delta")
    mu = across_runs.get("mu")
    if not isinstance(epsilon, int | float) or not isinstance(delta, int | float):
        return None
    if not isinstance(mu, int | float):
        mu = None
    return Together(mu=mu, epsilon=epsilon, delta=delta)


def _check_field(path: Path, content: dict[str, Any], name: str, kind: type) -> None:
    if not isinstance(content.get(name), kind):
        raise InputError(
            f"Expected {name!r} in {path} as {kind.__name__}, got "
            f"{type(content.get(name)).__name__}; finish the run again."
        )


def _agree(claimed: Any, computed: float | None) -> bool:
    """Return whether a claimed number equals a computed one up to rounding."""
    if claimed == INFINITE:
        return computed == math.inf
    if computed is None or not isinstance(claimed, int | float):
        return False
    return math.isclose(claimed, computed, rel_tol=TOLERANCE)


# config.yaml


@dataclass(frozen=True)
class StatedFacts:
    """Title and public facts of the records, as config.yaml states them."""

    title: str  # empty without one
    classes: tuple[str, ...]
    public: tuple[str, ...]  # one sentence each
    columns: tuple[str, ...]  # one line each: name, and what it can hold


def read_config(path: Path) -> tuple[ConfigFile, StatedFacts]:
    """Read config.yaml, and the facts of the records in it.

    Of absolute paths, the text has the last part only, since they may name people or projects.
    Title and facts are empty where the file is missing or is not a config.
    """
    content = _content(path)
    if content is None:
        return ConfigFile(sha256=None, text=None), _stated_facts({})
    settings: Any = None
    text = mask_lines(content.decode(errors="replace"))
    # ValueError: text that is not UTF-8, or a date such as 2026-02-30
    with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
        settings = yaml.safe_load(content.decode())
        text = _masked(content.decode(), settings)
    file = ConfigFile(sha256=hashlib.sha256(content).hexdigest(), text=text)
    return file, _stated_facts(as_dict(settings))


def read_resumed(path: Path) -> list[str]:
    """Return the options of a resumed run that differ from config.yaml.

    They have the form ``name=value``. A list or a dictionary is too long for a sentence, and is
    named only.
    """
    content = _content(path)
    options: dict[str, Any] = {}
    if content is not None:
        with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):
            options = as_dict(mask_paths(yaml.safe_load(content.decode())))
    lines = []
    for name, value in options.items():
        if isinstance(value, list | dict):
            lines.append(str(name))
        else:
            lines.append(f"{name}={value}")
    return lines


def _masked(text: str, settings: Any) -> str:
    """Return the text of a config, written anew if it has absolute paths."""
    masked = mask_paths(settings)
    if masked == settings:
        return text
    return str(yaml.safe_dump(masked, sort_keys=False, allow_unicode=True))


def _stated_facts(settings: dict[str, Any]) -> StatedFacts:
    records = as_dict(settings.get("records"))
    name = records.get("name", _UNNAMED)
    title = settings.get("title")
    if not title and name != _UNNAMED:
        title = f"Synthetic records of {name}"
    columns = _lines(records.get("column_facts"))
    facts_of_records = dict(records)
    if columns:
        for key in ("shape", "bounds"):
            facts_of_records.pop(key, None)
    public = list(public_facts(facts_of_records))
    if columns:
        public.append(f"The names of {len(columns):,} columns, and what each can hold.")
    public += _lines(records.get("taken"))
    return StatedFacts(
        title=str(title or ""),
        classes=tuple(_lines(records.get("classes"))),
        public=tuple(public),
        columns=tuple(columns),
    )


def public_facts(records: dict[str, Any]) -> tuple[str, ...]:
    """Return the public facts of records, one sentence each.

    Args:
        records: Facts by their keys in config.yaml or in the header of a ledger; others are
            ignored.
    """
    sentences = []
    for key, words in _PUBLIC.items():
        if not records.get(key) or (key == "n_classes" and records.get("classes")):
            continue
        separator = ", "
        if key == "shape":
            separator = " x "
        values = separator.join(_lines(records[key]))
        values = textwrap.shorten(values, _MOST_CHARACTERS, placeholder=" ...")
        sentences.append(f"{words}: {values}.")
    return tuple(sentences)


def settings_of(text: str) -> str:
    """Return the settings in config.yaml, for a reader.

    Keys that are not set and the facts of columns are left out.
    """
    lines = []
    in_records = False
    is_left_out = False
    for line in text.splitlines():
        top = re.match(r"\S", line)
        entry = re.match(r"  (\w+):", line)
        if top:
            in_records = line.startswith("records:")
            is_left_out = False
        elif entry:
            is_left_out = in_records and entry[1] in _STATED_ELSEWHERE
        if is_left_out or line.rstrip().endswith(": null"):
            continue
        lines.append(line)
    return "\n".join(lines)


def _lines(value: Any) -> list[str]:
    """Return the entries of a list as text, or one value as the only entry."""
    if value is None:
        return []
    if isinstance(value, list):
        return [str(entry) for entry in value]
    return [str(value)]


# Accuracies and pictures


def read_evaluation(path: Path) -> tuple[Accuracy, ...]:
    """Read the accuracies of evaluation.json; none without such a file."""
    if not path.exists():
        return ()
    content = _read_object(path, "evaluate the run again")
    rows = content.get("rows")
    real_rows = content.get("real_rows", [])
    if isinstance(rows, list) and isinstance(real_rows, list):
        rows = rows + real_rows
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(
            f"Expected a list of 'rows' in {path}, got another form; evaluate the run again."
        )
    return tuple(
        Accuracy(
            dataset=row.get("dataset"),
            classifier=row.get("classifier"),
            train=row.get("train"),
            accuracy=row.get("accuracy"),
            n_train=row.get("n_train"),
            n_test=row.get("n_test"),
        )
        for row in rows
    )


def read_pictures(directory: Path) -> dict[str, str]:
    """Return the pictures of a run directory, base64 by file name."""
    pictures = {}
    for name in PICTURES:
        content = _content(directory / name)
        if content:
            pictures[name] = base64.b64encode(content).decode("ascii")
    return pictures


def unchecked(pictures: dict[str, str]) -> tuple[str, ...]:
    """Return the names of pictures that this library is not known to have drawn.

    Args:
        pictures: Pictures as :func:`read_pictures` returns them.
    """
    return tuple(
        name for name, text in pictures.items() if not is_of_releases(base64.b64decode(text))
    )


# Files


def _content(path: Path) -> bytes | None:
    """Return the content of a file, ``None`` of a file that does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(
            f"Expected to read {path}, got: {error.strerror}; check its permissions."
        ) from None


def _read_object(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object; an InputError ends with the remedy."""
    content = _content(path)
    if content is None:
        raise InputError(f"Expected {path}, got no such file; {remedy}.")
    value: Any = None
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(content)
    if not isinstance(value, dict):
        raise InputError(f"Expected a JSON object in {path}, got a corrupt file; {remedy}.")
    return value
