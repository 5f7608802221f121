"""Sentences that PNG files of this library hold about themselves."""

import struct
import zlib
from pathlib import Path

from dpswd._files import atomic_write

__all__ = ["is_of_releases", "mark_picture"]

_HEADER = 33  # bytes of a PNG file before the first chunk that may be added: signature and IHDR


def mark_picture(path: Path, notice: str, *, of_releases: bool) -> None:
    """Write into a PNG file what a reader of the picture should know.

    Args:
        path: The file.
        notice: Sentence for the text ``Comment`` of the file; empty for none.
        of_releases: Whether code of this library has drawn the picture, from released values and
            public records only; the text ``Source`` of the file says so.
    """
    marks = b""
    if notice:
        marks += _text_chunk("Comment", notice)
    if of_releases:
        marks += _OF_RELEASES
    if marks:
        content = path.read_bytes()
        atomic_write(path, content[:_HEADER] + marks + content[_HEADER:])


def is_of_releases(content: bytes) -> bool:
    """Return whether a PNG file is marked as drawn from released values.

    The mark says that code of this library has drawn it. Pictures of earlier versions have none.
    """
    return _OF_RELEASES in content


def _text_chunk(name: str, text: str) -> bytes:
    """Return a text as a part of a PNG file."""
    chunk = f"tEXt{name}\0{text}".encode("latin-1")
    return struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))


# That code of this library has drawn a picture from these.
_OF_RELEASES = _text_chunk("Source", "dpswd, from released values and public records only")
