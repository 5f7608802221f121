"""A user's own images: a folder or a zip of them, classes by folder."""

import hashlib
import io
import warnings
import zipfile
import zlib
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError

from dpswd._validate import at_least
from dpswd.data.base import PrivateData, Records, data_root
from dpswd.errors import InputError

__all__ = ["ImageFolder"]

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"}


class ImageFolder(PrivateData):
    """Images of a folder or zip. Its innermost folders are classes, in alphabetical order; without any there is one.

    Public are the folders (empty ones are classes too), the number n of images, ``size`` and ``channels``. A record is
    one image file: pixels, file name and folder, all private.

    Formal guarantee:
        Replacing one of the n records, its class and its name included, replaces at most one of the private ones, and
        their number N is n, or n - n // 5 where ``test_split`` keeps a fifth out. Proof. The class of a record is the
        place of its folder in a public list, so that it depends on that record alone. Private are the N smallest
        records in the order of (SHA-256 of the file name, path): a total order that compares two records by
        themselves. Let S be the n - 1 records that stay, T the N - 1 smallest of S and s the next one. With r beside
        S, the N smallest are T and the smaller of r and s; with r' they are T and the smaller of r' and s. (With every
        fifth in the order of the paths, an image that changes its folder would shift all that lie between.)

    Args:
        path: The folder or zip, as given or below the root.
        size: Side to which images are cropped to a square and resized.
        channels: 1 for grey, 3 for RGB.
        root: See :class:`PrivateData`, like the rest.
        batch_size: Records in a release.
        n_synthetic: Records to generate.
        test_split: Keep a fifth of the images for testing, out of the private records.
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
        found, classes = _from_zip(path) if path.is_file() else _from_folder(path)
        if not found:
            raise InputError(f"Expected images ({', '.join(sorted(SUFFIXES))}) in {path}, got none.")
        for name in found:
            if _folder(name) not in classes:
                raise InputError(
                    f"Expected images in the innermost folders of {path} (they are the classes), got {name} beside "
                    "folders; move it into one of them."
                )
        self.n_classes = len(classes)
        found = dict(sorted(found.items()))
        values = np.stack([self._read(name, content) for name, content in found.items()])
        labels = torch.tensor([classes.index(_folder(name)) for name in found])
        records = Records(torch.from_numpy(values), labels)
        if not self.test_split or len(records) < 5:
            return records, None
        order = sorted(range(len(found)), key=[_key(name) for name in found].__getitem__)
        held_out = torch.zeros(len(found), dtype=torch.bool)
        held_out[order[len(found) - len(found) // 5 :]] = True
        return records.select(~held_out), records.select(held_out)

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


def _key(name: str) -> tuple[bytes, str]:
    """What the split orders an image by: a function of its own name and folder."""
    return hashlib.sha256(PurePosixPath(name).name.encode(errors="surrogateescape")).digest(), name


def _folder(name: str) -> str:
    return PurePosixPath(name).parent.as_posix()


def _passed_over(name: str) -> bool:
    """Whether a path lies in what systems and tools leave behind: .git, .ipynb_checkpoints, __MACOSX."""
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)


def _innermost(folders: set[str]) -> list[str]:
    """Folders that hold no folders, sorted; the root, ".", if there are none below it."""
    outer = {parent.as_posix() for folder in folders for parent in PurePosixPath(folder).parents}
    return sorted(folders - outer - {"."}) or ["."]


def _from_folder(path: Path) -> tuple[dict[str, Path], list[str]]:
    """Images by their relative path, and the classes."""
    below = {file.relative_to(path).as_posix(): file for file in path.rglob("*")}
    below = {name: file for name, file in below.items() if not _passed_over(name)}
    folders = {name for name, file in below.items() if file.is_dir()}
    images = {name: file for name, file in below.items() if file.suffix.lower() in SUFFIXES and file.is_file()}
    return images, _innermost(folders)


def _from_zip(path: Path) -> tuple[dict[str, bytes], list[str]]:
    """Images by their path in the archive, and the classes: folders that the archive lists as such."""
    images: dict[str, bytes] = {}
    folders: set[str] = set()
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                name = PurePosixPath(entry.filename).as_posix()
                if _passed_over(name):
                    continue
                if entry.is_dir():
                    folders.add(name)
                elif PurePosixPath(name).suffix.lower() in SUFFIXES:
                    if name in images:
                        raise InputError(f"Expected one image of each name in {path}, got two of {name}; rename one.")
                    images[name] = archive.read(entry)
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, zlib.error) as error:  # RuntimeError: encrypted
        raise InputError(f"Expected a zip of images at {path}, got: {error}; make it again.") from None
    used = {_folder(name) for name in images}
    if len(used) > 1 and (missing := sorted(used - folders - {"."})):
        raise InputError(
            f"Expected a zip that lists its folders (an empty one is a class too), got no entry for {missing[0]}; "
            "make it with zip -r, or unpack it."
        )
    return images, _innermost(folders | used)
