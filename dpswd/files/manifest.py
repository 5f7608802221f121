"""Manifest of a bundle: its files with their SHA-256, and the head of its ledger.

``MANIFEST.json`` has one form. Its last field is the SHA-256 of all others, so that a changed byte
of the manifest itself is detected, too. This digest identifies the bundle: it is its fingerprint.
This module needs the standard library alone.
"""

import contextlib
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from dpswd import __version__
from dpswd._files import atomic_write
from dpswd.errors import InputError

__all__ = ["Manifest", "files_of"]

MANIFEST = "MANIFEST.json"
FORMAT = 1

# What dataset hubs and version control add to a folder; no part of a bundle.
_FOREIGN = (".git", ".gitattributes", ".gitignore", ".cache")

_CHUNK = 2**20  # bytes that are read at a time

# The end of a sentence about a changed manifest.
_COPY_AGAIN = "get the bundle again from where it was published"


@dataclass(frozen=True)
class Manifest:
    """Files of a bundle, and the ledger that they belong to.

    Attributes:
        run: Identifier of the run.
        ledger_head: Hash of the last line of its ledger.
        files: SHA-256 of each file, by its path relative to the bundle, with slashes.
        version: Version of dpswd that wrote the manifest.
    """

    run: str
    ledger_head: str
    files: dict[str, str] = field(default_factory=dict)
    version: str = __version__

    @classmethod
    def of(cls, bundle: Path, run: str, ledger_head: str) -> Self:
        """Return the manifest of the files that are in a folder now."""
        digests = {name: sha256(path) for name, path in files_of(bundle).items()}
        return cls(run, ledger_head, digests)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the manifest, which identifies the bundle."""
        return hashlib.sha256(_canonical(self._content())).hexdigest()

    def write(self, bundle: Path) -> None:
        """Write ``MANIFEST.json``."""
        atomic_write(bundle / MANIFEST, self._bytes())

    @classmethod
    def read(cls, bundle: Path) -> Self:
        """Read ``MANIFEST.json``.

        Raises:
            InputError: If it is missing, of another format, or changed.
        """
        path = bundle / MANIFEST
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(
                f"Expected a bundle of dpswd publish with {MANIFEST} at {bundle}, got: "
                f"{error.strerror}; pass the folder that dpswd publish has written."
            ) from None
        values: Any = None
        with contextlib.suppress(ValueError, RecursionError):
            values = json.loads(content)
        if not isinstance(values, dict):
            raise InputError(f"Expected JSON in {path}, got a damaged file; {_COPY_AGAIN}.")
        if values.get("format") != FORMAT:
            raise InputError(
                f"Expected {path} in format {FORMAT}, got format {values.get('format')!r}, written "
                f"by dpswd {values.get('version')}; verify it with that version."
            )
        try:
            manifest = cls(
                run=str(values["run"]),
                ledger_head=str(values["ledger_head"]),
                files={str(name): str(digest) for name, digest in values["files"].items()},
                version=str(values["version"]),
            )
        except (KeyError, AttributeError):
            raise InputError(
                f"Expected the fields of a manifest in {path}, got others; {_COPY_AGAIN}."
            ) from None
        if manifest._bytes() != content:
            raise InputError(
                f"Expected {path} as dpswd publish wrote it, got other bytes: it was changed; "
                f"{_COPY_AGAIN}."
            )
        return manifest

    def _content(self) -> dict[str, Any]:
        """Return all fields but the digest."""
        return {
            "format": FORMAT,
            "version": self.version,
            "run": self.run,
            "ledger_head": self.ledger_head,
            "files": dict(sorted(self.files.items())),
        }

    def _bytes(self) -> bytes:
        """Return the content of the file."""
        return _canonical({**self._content(), "sha256": self.fingerprint})


def files_of(bundle: Path) -> dict[str, Path]:
    """Return the files of a folder but the manifest, by their relative paths.

    Files of version control and of dataset hubs do not count.
    """
    files = {}
    for path in sorted(bundle.rglob("*")):
        name = path.relative_to(bundle)
        is_foreign = name.parts[0] in _FOREIGN or str(name) == MANIFEST
        if not is_foreign and (path.is_symlink() or not path.is_dir()):
            files[name.as_posix()] = path
    return files


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file.

    For a link it is the text ``"a link"``; the link is not followed.
    """
    if path.is_symlink():
        return "a link"
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for chunk in iter(lambda: file.read(_CHUNK), b""):
            digest.update(chunk)
    return digest.hexdigest()


def _canonical(content: dict[str, Any]) -> bytes:
    """Return the one form of a manifest."""
    return (json.dumps(content, indent=1) + "\n").encode()
