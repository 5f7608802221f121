"""Images from a folder, with one class per sub-folder."""

import hashlib
import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from statistics import mode
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpswd._arrays import Unreadable
from dpswd._labels import as_classes
from dpswd._layout import Array
from dpswd._progress import passing
from dpswd._public_facts import taken_from_records
from dpswd._validate import at_least
from dpswd.data.found import Found, Options
from dpswd.errors import InputError
from dpswd.records import Stored

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"}
_GREY = {"1", "L", "LA", "I", "I;16", "F"}  # modes of Pillow without colour
_SMALL, _LARGE = 64, 128  # side of photographs; largest side that is taken over as it is
_PART = 1000  # images that are decoded at a time
_HEADERS = 100  # images whose headers decide on size and channels


def find_images(path: Path, options: Options) -> Found:
    """Read the images of a folder, cropped to the middle square and resized; see :func:`dpswd.data.read`.

    Without ``size`` it is the most frequent side of the first 100 images if that is at most 128, else 64; ``channels``
    likewise. Without ``classes`` they are the innermost folders in alphabetical order, the empty ones, too; one folder,
    or none, means no labels. Images that are not held in memory are decoded anew at every pass.
    """
    size, channels, classes = options.size, options.channels, options.classes
    if size is not None:
        at_least(4, size=size)
    if channels not in (None, 1, 3):
        raise InputError(f"Expected channels=1 (grey) or 3 (RGB), got channels={channels!r}.")
    files, folders, others = _list(path)
    if not files:
        raise InputError(f"Expected images ({', '.join(sorted(SUFFIXES))}) in {path}, got none.")
    names = folders if classes is None else [str(name) for name in as_classes(classes)]
    if wrong := next((file for file in files if _folder(file) not in names), None):
        where = (
            "the innermost folders (the classes)"
            if classes is None
            else f"the folders {', '.join(names)}"
        )
        raise InputError(
            f"Expected images of {path} in {where}, got {wrong}; move it, or add its class."
        )
    facts: dict[str, Any] = {}
    if size is None or channels is None:
        side, depth = _most_frequent([path / file for file in files[:_HEADERS]])
        facts = {"size": side} if size is None else {}
        facts |= {"channels": depth} if channels is None else {}
        size, channels = size or side, channels or depth
    labelled = options.labelled and len(names) > 1
    if classes is None and labelled:
        facts["classes"] = names
    images = Images(path, files, size, channels, options.unreadable)
    key = hashlib.sha256("\0".join(files).encode(errors="surrogateescape")).hexdigest()
    stored = Stored(images.decode, (len(files), channels, size, size), torch.uint8, key)
    values = stored if options.keep_on_disk(stored) else images.whole()
    place = {folder: number for number, folder in enumerate(names)}
    return Found(
        path.resolve().stem,
        values,
        torch.tensor([place[_folder(file)] for file in files]) if labelled else None,
        names if labelled else None,
        taken=(taken_from_records(**facts),) if facts else (),
        note=f"In {path}, files of other types are left out: {', '.join(others)}."
        if others
        else "",
        files=tuple(files),
    )


def _most_frequent(files: list[Path]) -> tuple[int, int]:
    """Return size and channels of most images, from their headers."""
    from PIL import Image

    sides, grey = [], []
    for file in files:
        # a file that cannot be decoded is reported, or mapped to zeros, when it is read
        with (
            suppress(Exception),
            warnings.catch_warnings(action="ignore"),
            Image.open(file) as image,
        ):
            sides.append(min(image.size))
            grey.append(image.mode in _GREY)
    side = mode(sides or [_SMALL])
    return max(4, side) if side <= _LARGE else _SMALL, 1 if mode(grey or [False]) else 3


@dataclass(frozen=True)
class Images:
    """Image files of a folder by record number, and the format to which they are decoded."""

    folder: Path
    files: list[str]  # relative paths
    size: int
    channels: int
    unreadable: Unreadable

    def decode(self, index: Tensor) -> Tensor:
        """Decode some images (n, channels, size, size), in threads."""
        wanted = [self.files[i] for i in index.tolist()]
        values = np.empty((len(wanted), self.channels, self.size, self.size), dtype=np.uint8)

        def read(i: int) -> None:
            values[i] = self._read(wanted[i])

        with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(read, range(len(wanted))))
        return torch.from_numpy(values)

    def whole(self) -> Tensor:
        """Decode all images."""
        values = torch.empty(
            (len(self.files), self.channels, self.size, self.size), dtype=torch.uint8
        )
        for part in passing(torch.arange(len(values)).split(_PART), "Reading images"):
            values[part] = self.decode(part)
        return values

    def _read(self, name: str) -> Array:
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(self.folder / name) as opened:
                image = opened.convert("L" if self.channels == 1 else "RGB")
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            square = image.resize((self.size, self.size), box=(left, top, left + side, top + side))
            pixels = np.asarray(square, dtype=np.uint8)
        except (
            MemoryError
        ):  # may depend on the images that other threads decode, so it must not give a black image
            raise InputError(
                f"Expected memory to decode {name}, got none; free memory or repair the image."
            ) from None
        except Exception as error:  # decoders raise many types on damaged files
            if self.unreadable == "zero":
                return np.zeros((self.channels, self.size, self.size), dtype=np.uint8)
            reason = (
                "unknown image format" if isinstance(error, UnidentifiedImageError) else str(error)
            )
            raise InputError(
                f'Expected a readable image, got {name} ({reason}); repair it, or pass unreadable="zero" (--unreadable '
                "zero), for a black one. Do not remove it: the number of records is public."
            ) from None
        return pixels.reshape(self.size, self.size, self.channels).transpose(2, 0, 1)


def _folder(file: str) -> str:
    return PurePosixPath(file).parent.as_posix()


def _list(path: Path) -> tuple[list[str], list[str], list[str]]:
    """Return the images and the innermost folders below a folder, and the types of its other files, all sorted.

    Paths are relative, "." for a folder without folders. What systems and tools keep is left out: .git, __MACOSX.
    """
    below = [file.relative_to(path) for file in path.rglob("*")]
    below = [
        file
        for file in below
        if not any(part.startswith(".") or part == "__MACOSX" for part in file.parts)
    ]
    folders = {file for file in below if (path / file).is_dir()}
    images = [file for file in below if file.suffix.lower() in SUFFIXES and file not in folders]
    others = {file.suffix.lower() or file.name for file in below if file not in folders} - SUFFIXES
    innermost = folders - {parent for folder in folders for parent in folder.parents}
    paths, names = (sorted(each.as_posix() for each in found) for found in (images, innermost))
    return paths, names or ["."], sorted(others)
