"""Images from a folder or a zip, with one class per sub-folder."""

import hashlib
import io
import os
import warnings
import zipfile
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path, PurePosixPath

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from dpswd._progress import passing
from dpswd._validate import at_least, choice
from dpswd.data.base import PrivateData, Records, Stored, Unreadable, data_root, held_out
from dpswd.errors import InputError

__all__ = ["ImageFolder"]

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"}
_GREY = {"1", "L", "LA", "I", "I;16", "F"}  # modes of Pillow without colour
_SMALL, _LARGE = 64, 128  # side of photographs; largest side that is taken over as it is
_PART = 1000  # images that are decoded at a time
_HEADERS = 100  # images whose headers decide on size and channels


class ImageFolder(PrivateData):
    """Images of a folder or zip. Its innermost folders are the classes, in alphabetical order.

    Public are the list of folders (empty ones are classes too), the number n of images, ``size`` and ``channels``. A
    record is one image file: pixels, file name and folder, all private. One folder, or none, means no labels. Images of
    more than 1 GiB together, as bytes, are decoded anew at every pass instead of being held in memory.

    Formal guarantee:
        Replacing one of the n records, its class and its name included, replaces at most one of the private records,
        and their number N is n, or n - n // 5 with ``test_split`` (docs/theory/private-side.md, Proposition 21).

    Args:
        path: The folder or zip, relative to the working directory or to the root.
        size: Side to which images are cropped to a square and resized. ``None`` for the most frequent side of the
            first 100 images if it is at most 128, else 64; the owner then declares this number to be public.
        channels: 1 for grey, 3 for RGB; ``None`` for that of most of the first 100 images, which is then public.
        test_split: Hold out a fifth of the images for testing.
        public_benchmark: States that the images are public.
        unreadable: ``"zero"`` maps a file that cannot be decoded to a black image (docs/theory/private-side.md,
            Proposition 22); ``"refuse"`` raises.
        root: See :class:`~dpswd.data.base.PrivateData`.
        batch_size: As ``root``.
        n_synthetic: As ``root``.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("cats", "dogs"):
        ...         (Path(folder) / name).mkdir()
        ...         Image.new("RGB", (20, 16)).save(f"{folder}/{name}/1.png")
        ...     data = ImageFolder(folder, size=16, channels=3)
        ...     data.public_facts(), data.class_names
        ((2, (3, 16, 16), 2), ['cats', 'dogs'])
    """

    name = "images"

    def __init__(
        self,
        path: str,
        size: int | None = None,
        channels: int | None = None,
        root: str | None = None,
        batch_size: int | None = None,
        n_synthetic: int = 10_000,
        test_split: bool = True,
        public_benchmark: bool = False,
        unreadable: Unreadable = "refuse",
    ) -> None:
        super().__init__(root, batch_size, n_synthetic)
        if size is not None:
            at_least(4, size=size)
        if channels not in (None, 1, 3):
            raise InputError(f"Expected channels=1 (grey) or 3 (RGB), got channels={channels!r}.")
        choice(("refuse", "zero"), unreadable=unreadable)
        self.path, self.size, self.channels, self.test_split = path, size, channels, test_split
        self.public_benchmark, self.unreadable = public_benchmark, unreadable

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """See :class:`PrivateData`; reads at most the headers of 100 images."""
        size, channels = self._format
        return channels, size, size

    @property
    def n_classes(self) -> int | None:
        """See :class:`PrivateData`; decodes no image."""
        classes = self._found[1]
        return len(classes) if len(classes) > 1 else 0

    @property
    def class_names(self) -> list[str] | None:
        """Folders of the classes."""
        return self._found[1] if self.n_classes else None

    def _count(self) -> int:
        n = len(self._found[0])
        return n - held_out(n) if self.test_split else n

    @cached_property
    def _found(self) -> tuple[dict[str, Path | bytes], list[str]]:
        """Images by relative path, in alphabetical order, and the classes."""
        path = Path(self.path)
        if not path.exists():
            path = data_root(self.root) / self.path
        if not path.exists():
            raise InputError(f"Expected a folder or zip of images at {self.path}, got nothing there; check data.path.")
        found, classes = _from_zip(path) if path.is_file() else _from_folder(path)
        if not found:
            raise InputError(f"Expected images ({', '.join(sorted(SUFFIXES))}) in {path}, got none.")
        known = set(classes)
        for name in found:
            if _folder(name) not in known:
                raise InputError(
                    f"Expected images in the innermost folders of {path} (they are the classes), got {name} beside "
                    "folders; move it into one of them."
                )
        return dict(sorted(found.items())), classes

    @cached_property
    def _format(self) -> tuple[int, int]:
        """Size and channels."""
        if self.size is not None and self.channels is not None:
            return self.size, self.channels
        sides: Counter[int] = Counter()
        grey: Counter[bool] = Counter()
        for content in list(self._found[0].values())[:_HEADERS]:
            try:
                with warnings.catch_warnings(action="ignore"), Image.open(_source(content)) as image:
                    sides[min(image.size)] += 1
                    grey[image.mode in _GREY] += 1
            except Exception:  # a file that cannot be decoded is reported, or mapped to zeros, when it is read
                continue
        side = sides.most_common(1)[0][0] if sides else _SMALL
        size = self.size or (max(4, side) if side <= _LARGE else _SMALL)
        channels = self.channels or (1 if grey and grey.most_common(1)[0][0] else 3)
        rank_zero_info(
            f"size={size} and channels={channels} are taken from the images and treated as public; set data.size and "
            "data.channels to state them."
        )
        return size, channels

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`PrivateData`."""
        found, classes = self._found
        names = list(found)
        key = hashlib.sha256("\0".join(names).encode(errors="surrogateescape")).hexdigest()
        stored = Stored(partial(self._decode, names), (len(names), *self.sample_shape), torch.uint8, key=key)
        place = {folder: number for number, folder in enumerate(classes)}
        labels = torch.tensor([place[_folder(name)] for name in names])
        records = Records(stored if stored.large else self._whole(stored), labels)
        if not self.test_split or len(records) < 5:
            return records, None
        keys = [_key(name) for name in names]
        order = sorted(range(len(names)), key=keys.__getitem__)
        tested = torch.zeros(len(names), dtype=torch.bool)
        tested[order[len(names) - held_out(len(names)) :]] = True
        return records.select(~tested), records.select(tested)

    def _whole(self, stored: Stored) -> Tensor:
        """Decode all images."""
        values = torch.empty(stored.shape, dtype=stored.dtype)
        for part in passing(torch.arange(len(stored)).split(_PART), "Reading images"):
            values[part] = stored[part]
        return values

    def _decode(self, names: list[str], index: Tensor) -> Tensor:
        """Decode some images (n, channels, size, size), in threads."""
        wanted = [names[i] for i in index.tolist()]
        values = np.empty((len(wanted), *self.sample_shape), dtype=np.uint8)

        def read(i: int) -> None:
            values[i] = self._read(wanted[i], self._found[0][wanted[i]])

        with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(read, range(len(wanted))))
        return torch.from_numpy(values)

    def _read(self, name: str, content: Path | bytes) -> np.ndarray:
        size, channels = self._format
        try:
            with Image.open(_source(content)) as opened:
                image = opened.convert("L" if channels == 1 else "RGB")
            side = min(image.size)
            left, top = (image.width - side) // 2, (image.height - side) // 2
            square = image.resize((size, size), box=(left, top, left + side, top + side))
            pixels = np.asarray(square, dtype=np.uint8)
        except MemoryError:  # may depend on the images that other threads decode, so it must not give a black image
            raise InputError(f"Expected memory to decode {name}, got none; free memory or repair the image.") from None
        except Exception as error:  # decoders raise many types on damaged files
            if self.unreadable == "zero":
                return np.zeros((channels, size, size), dtype=np.uint8)
            reason = "unknown image format" if isinstance(error, UnidentifiedImageError) else str(error)
            raise InputError(
                f"Expected a readable image, got {name} ({reason}); set data.unreadable=zero, which maps it to zeros, "
                "or repair it. Removing it makes the number of records depend on private data."
            ) from None
        return pixels.reshape(size, size, channels).transpose(2, 0, 1)


def _source(content: Path | bytes) -> Path | io.BytesIO:
    return io.BytesIO(content) if isinstance(content, bytes) else content


def _key(name: str) -> tuple[bytes, str]:
    """Position of an image in the order of the split: a function of its own name and folder."""
    return hashlib.sha256(PurePosixPath(name).name.encode(errors="surrogateescape")).digest(), name


def _folder(name: str) -> str:
    return PurePosixPath(name).parent.as_posix()


def _ignored(name: str) -> bool:
    """Whether a path belongs to a system or tool: .git, .ipynb_checkpoints, __MACOSX."""
    return any(part.startswith(".") or part == "__MACOSX" for part in PurePosixPath(name).parts)


def _innermost(folders: set[str]) -> list[str]:
    """Folders without sub-folders, sorted; the root, ".", if there are no folders."""
    outer = {parent.as_posix() for folder in folders for parent in PurePosixPath(folder).parents}
    return sorted(folders - outer - {"."}) or ["."]


def _from_folder(path: Path) -> tuple[dict[str, Path | bytes], list[str]]:
    below = {file.relative_to(path).as_posix(): file for file in path.rglob("*")}
    below = {name: file for name, file in below.items() if not _ignored(name)}
    folders = {name for name, file in below.items() if file.is_dir()}
    return {
        name: file for name, file in below.items() if file.suffix.lower() in SUFFIXES and file.is_file()
    }, _innermost(folders)


def _from_zip(path: Path) -> tuple[dict[str, Path | bytes], list[str]]:
    images: dict[str, Path | bytes] = {}
    folders: set[str] = set()
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                name = PurePosixPath(entry.filename).as_posix()
                if _ignored(name):
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
