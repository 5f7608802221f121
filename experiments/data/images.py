"""A user's own images: a folder or a zip of them, classes by folder."""

import io
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from dpswd._validate import at_least
from dpswd.errors import InputError
from experiments.data.base import PrivateData, Records, data_root, every_fifth

__all__ = ["ImageFolder"]

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"}


class ImageFolder(PrivateData):
    """Images of a folder or zip. Sub-folders are classes, in alphabetical order; without them there is one class.

    The names and the number of the classes are taken to be public, as are ``size`` and ``channels``.

    Args:
        path: The folder or zip, as given or below the root.
        size: Side to which images are cropped to a square and resized.
        channels: 1 for grey, 3 for RGB.
        root: See :class:`PrivateData`, like the rest.
        batch_size: Records in a release.
        n_synthetic: Records to generate.
        test_split: Keep every fifth image for testing, out of the private records.
    """

    name = "images"

    def __init__(
        self,
        path: str,
        size: int = 32,
        channels: int = 3,
        root: str | None = None,
        batch_size: int | None = None,
        n_synthetic: int = 10_000,
        test_split: bool = True,
    ) -> None:
        super().__init__(root, batch_size, n_synthetic)
        at_least(4, size=size)
        if channels not in (1, 3):
            raise InputError(f"Expected channels=1 (grey) or 3 (RGB), got channels={channels!r}.")
        self.path, self.size, self.channels, self.test_split = path, size, channels, test_split

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`PrivateData`."""
        path = Path(self.path)
        if not path.exists():
            path = data_root(self.root) / self.path
        if not path.exists():
            raise InputError(f"Expected a folder or zip of images at {self.path}, got nothing there; check data.path.")
        found = sorted(_from_zip(path) if path.is_file() else _from_folder(path), key=lambda entry: entry[0])
        if not found:
            raise InputError(f"Expected images ({', '.join(sorted(SUFFIXES))}) in {path}, got none.")
        classes = sorted({PurePosixPath(name).parent.as_posix() for name, _ in found})
        values = np.stack([self._read(name, content) for name, content in found])
        labels = [classes.index(PurePosixPath(name).parent.as_posix()) for name, _ in found]
        records = Records(torch.from_numpy(values), torch.tensor(labels))
        return every_fifth(records) if self.test_split and len(records) >= 5 else (records, None)

    def _read(self, name: str, content: Path | bytes) -> np.ndarray:
        try:
            source = io.BytesIO(content) if isinstance(content, bytes) else content
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of files that are read all the same
                with Image.open(source) as image:
                    image = image.convert("L" if self.channels == 1 else "RGB")
                side = min(image.size)
                left, top = (image.width - side) // 2, (image.height - side) // 2
                square = image.resize((self.size, self.size), box=(left, top, left + side, top + side))
                pixels = np.asarray(square, dtype=np.uint8)
        except Exception as error:  # whatever a decoder stumbles over
            reason = "no image format that is known" if isinstance(error, UnidentifiedImageError) else str(error)
            raise InputError(f"Expected a readable image, got {name} ({reason}); repair or remove it.") from None
        return pixels.reshape(self.size, self.size, self.channels).transpose(2, 0, 1)


def _from_folder(path: Path) -> Iterator[tuple[str, Path]]:
    for file in path.rglob("*"):
        if file.suffix.lower() in SUFFIXES and file.is_file():
            yield file.relative_to(path).as_posix(), file


def _from_zip(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if PurePosixPath(name).suffix.lower() in SUFFIXES:
                    yield name, archive.read(name)
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, zlib.error) as error:  # RuntimeError: encrypted
        raise InputError(f"Expected a zip of images at {path}, got: {error}; make it again.") from None
