"""Files of weights, which are read without running code of theirs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml  # type: ignore[import-untyped]

from dpswd._files import verified_archive
from dpswd._json import as_dict
from dpswd.errors import InputError

__all__ = ["read_file", "refuse_unfinished"]

# The file of each kind in a run directory, and a key that files of this kind alone have.
_FILE_NAMES = {"generator": "generator.pt", "classifier": "classifier.pt"}
_OWN_KEYS = {
    "generator": "generator",
    "classifier": "weights",
    "file of moments": "maps",
    "file of slices": "map",
}

# Command and file of weights of a run, by the key that its config.yaml has.
_OF_COMMANDS = {
    "generator": ("generate", "generator.pt"),
    "adapter": ("adapt", "classifier.pt"),
}

# A key of checkpoints of Lightning.
_OF_CHECKPOINTS = "pytorch-lightning_version"


@contextmanager
def read_file(path: str | Path, kind: str, *formats: int) -> Iterator[dict[str, Any]]:
    """Yield the content of a file of weights; no code of it is run.

    Args:
        path: The file.
        kind: ``"generator"``, ``"classifier"``, ...; for messages.
        formats: Versions of the format that the caller reads, the current one last.

    Raises:
        InputError: If the file, or what the caller does with its content, fails.
    """
    try:
        archive = verified_archive(path)
        content = torch.load(archive, map_location="cpu", weights_only=True)
        _refuse_checkpoint(content, path, kind)
        _check_kind(content, path, kind)
        if content["format"] not in formats:
            raise InputError(_wrong_format(path, kind, formats, content))
        _check_size(content, path, kind)
        yield content
    except OSError as error:
        if kind in _FILE_NAMES:
            refuse_unfinished(Path(path).parent)
        raise InputError(
            f"Expected a {kind} at {path}, got: {error.strerror}; pass {_file_of(kind)}."
        ) from None
    except InputError:
        raise
    except Exception:  # torch.load raises many types on damaged files
        raise InputError(
            f"Expected a {kind} written by dpswd at {path}, got a file of another kind or a "
            f"damaged one; pass {_file_of(kind)}, or restore a copy of it."
        ) from None


def refuse_unfinished(directory: Path) -> None:
    """Refuse the directory of a run of an estimator that lacks its file of weights.

    There is no effect on other directories, such as those of ``dpswd fit``.

    Raises:
        InputError: If ``config.yaml`` is of ``dpswd generate`` or ``dpswd adapt``, and the file is
            missing.
    """
    try:
        config = as_dict(yaml.safe_load((directory / "config.yaml").read_bytes()))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return
    for key, (command, name) in _OF_COMMANDS.items():
        if key in config and not (directory / name).exists():
            raise InputError(
                f"Expected a finished run in {directory}, got one without {name}; to finish the "
                f"run, which pays for no release twice: dpswd {command} ... --resume, with the "
                "words that started it (a run in Python: its method save writes the file)."
            )


def _file_of(kind: str) -> str:
    """Return which file holds weights of a kind, for messages."""
    if kind in _FILE_NAMES:
        return f"the {_FILE_NAMES[kind]} of a run"
    return "a file of its method save"


def _refuse_checkpoint(content: Any, path: str | Path, kind: str) -> None:
    """Refuse a checkpoint of Lightning.

    Runs of networks of the user have no other file.
    """
    if kind in _FILE_NAMES and isinstance(content, dict) and _OF_CHECKPOINTS in content:
        raise InputError(
            f"Expected a {kind} written by dpswd at {path}, got a checkpoint; pass "
            f"{_FILE_NAMES[kind]} of a run, which the callback GeneratorFile or ClassifierFile "
            "writes at the end of dpswd fit for a network of this library. For a network of your "
            "own, load its weights from the checkpoint in Python."
        )


def _check_kind(content: dict[str, Any], path: str | Path, kind: str) -> None:
    """Refuse a file of another kind of this library."""
    if _OWN_KEYS.get(kind) in content:
        return
    for other, key in _OWN_KEYS.items():
        if key in content:
            remedy = ""
            if kind in _FILE_NAMES:
                remedy = f"; pass a {_FILE_NAMES[kind]}"
            raise InputError(f"Expected a {kind} at {path}, got a {other}{remedy}.")


def _wrong_format(
    path: str | Path, kind: str, formats: tuple[int, ...], content: dict[str, Any]
) -> str:
    """Return the message about a file of another format."""
    known = " or ".join(map(str, formats))
    message = f"Expected a {kind} of format {known} at {path}, got format {content['format']!r}"
    version = content.get("version")
    if version is None:
        return f"{message}, of an unknown version of dpswd; read it with the version that wrote it."
    return (
        f"{message}, written by dpswd {version}; read it with that version (pip install "
        f"dpswd=={version})."
    )


def _check_size(content: Any, path: str | Path, kind: str) -> None:
    """Refuse tensors that need more memory than their file has bytes.

    ``torch.save`` writes every entry of a tensor. A tensor that repeats one entry a billion times
    comes from another program.
    """
    if _n_bytes(content, set()) > Path(path).stat().st_size:
        raise InputError(
            f"Expected a {kind} written by dpswd at {path}, got tensors that are larger than the "
            "file; do not use it."
        )


def _n_bytes(content: Any, seen: set[int]) -> int:
    """Return the memory in bytes of all tensors in nested dictionaries and lists.

    Those that were ``seen``, by their identities, count once: ten lists of ten lists, nine times,
    are ten objects and a billion entries.
    """
    if isinstance(content, torch.Tensor):
        return content.numel() * content.element_size()
    if not isinstance(content, dict | list | tuple) or id(content) in seen:
        return 0
    seen.add(id(content))
    values = content
    if isinstance(content, dict):
        values = list(content.values())
    return sum(_n_bytes(value, seen) for value in values)
