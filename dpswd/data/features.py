"""Records in NumPy files, and records that are arrays in memory."""

import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from dpswd._validate import at_least, choice
from dpswd.data.base import (
    PrivateData,
    Records,
    Stored,
    Unreadable,
    data_root,
    every_fifth,
    finite_records,
    held_out,
)
from dpswd.errors import InputError

__all__ = ["ArrayData", "FeatureFile"]

_DIMENSIONS = {"features": (2,), "images": (3, 4)}
_MOST_CLASSES = 10_000  # where their number is not stated
_UNREADABLE = (ValueError, OSError, EOFError, TypeError, AttributeError, RuntimeError)


class _Arrays:
    """The arrays of an ``.npz`` file, or of a folder of ``.npy`` files, which is an unpacked ``.npz``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def _open(self, name: str) -> Iterator[tuple[IO[bytes], bool]]:
        """Open the ``.npy`` of an array; also yield whether it is stored uncompressed."""
        if self.path.is_dir():
            with (self.path / f"{name}.npy").open("rb") as file:
                yield file, True
        else:
            with zipfile.ZipFile(self.path) as archive, archive.open(f"{name}.npy") as member:
                yield member, archive.getinfo(f"{name}.npy").compress_type == zipfile.ZIP_STORED

    def __contains__(self, name: str) -> bool:
        if self.path.is_dir():
            return (self.path / f"{name}.npy").is_file()
        with zipfile.ZipFile(self.path) as archive:
            return f"{name}.npy" in archive.namelist()

    def header(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Return shape and type of an array."""
        with self._open(name) as (file, _):
            shape, _, dtype = _header(file)
        return shape, dtype

    def read(self, name: str) -> np.ndarray:
        """Read a whole array."""
        with self._open(name) as (file, _):
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))

    def checksum(self, name: str) -> str | None:
        """Read an array to its end, which verifies a zip; return its checksum, ``None`` if it cannot be mapped."""
        found = 0
        with self._open(name) as (file, plain):
            while part := file.read(2**20):
                found = zlib.crc32(part, found)
        return f"{found:08x}" if plain else None

    def stamp(self) -> list[tuple[int, int, int]]:
        """Return inode, size and time of each file, which differ after a file was written again."""
        names = ("features", "images", "labels")
        files = [self.path / f"{name}.npy" for name in names] if self.path.is_dir() else [self.path]
        facts = [file.stat() for file in files if file.exists()]
        return [(fact.st_ino, fact.st_size, fact.st_mtime_ns) for fact in facts]

    def mapped(self, name: str) -> np.ndarray:
        """Map an array that is not compressed. A new map each time, since pages that were read count as memory."""
        if self.path.is_dir():
            return np.asarray(np.load(self.path / f"{name}.npy", mmap_mode="r", allow_pickle=False))
        with zipfile.ZipFile(self.path) as archive:
            start = archive.getinfo(f"{name}.npy").header_offset
        with self.path.open("rb") as file:
            file.seek(start + 26)  # lengths of the name and of the extra field, in the header of the member
            lengths = np.frombuffer(file.read(4), dtype="<u2")
            file.seek(start + 30 + int(lengths.sum()))
            shape, fortran, dtype = _header(file)
            order: Any = "F" if fortran else "C"
            return np.asarray(np.memmap(self.path, dtype, "r", file.tell(), shape, order))


class FeatureFile(PrivateData):
    """An ``.npz`` file with ``features`` (N, d) and, if there are classes, ``labels`` (N,). Pickles are never loaded.

    A folder with ``features.npy`` and ``labels.npy`` is read, too. In place of ``features`` there may be ``images``,
    (N, H, W) or (N, H, W, C), bytes or floats in [0, 1]. Records of more than 1 GiB stay on disk and are read anew at
    every pass, unless they are compressed; a file that was written again in the meantime is refused.

    The number of classes is public: ``n_classes``, else the length of an array ``classes`` in the file, else the
    largest label plus one, which the owner then declares to be public.

    Args:
        path: The file or folder, relative to the working directory or to the root.
        test_split: Hold out every fifth row for testing.
        labelled: ``True`` requires labels, ``False`` ignores them; ``None`` reads them if the file has them.
        n_classes: Number of classes.
        public_benchmark: States that the records are public.
        unreadable: ``"zero"`` maps a row with NaN or inf to zeros; ``"refuse"`` raises.
        root: See :class:`~dpswd.data.base.PrivateData`.
        batch_size: As ``root``.
        n_synthetic: As ``root``.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     np.savez(f"{folder}/vectors.npz", features=np.zeros((10, 4)), labels=np.arange(10) % 2)
        ...     FeatureFile(f"{folder}/vectors.npz", n_classes=2).public_facts()
        (8, (4,), 2)
    """

    name = "features"

    def __init__(
        self,
        path: str,
        root: str | None = None,
        batch_size: int | None = None,
        n_synthetic: int = 10_000,
        test_split: bool = True,
        labelled: bool | None = None,
        n_classes: int | None = None,
        public_benchmark: bool = False,
        unreadable: Unreadable = "refuse",
    ) -> None:
        super().__init__(root, batch_size, n_synthetic)
        choice(("refuse", "zero"), unreadable=unreadable)
        if n_classes is not None:
            at_least(2, n_classes=n_classes)
        self.path, self.test_split, self.labelled, self.unreadable = path, test_split, labelled, unreadable
        self.public_benchmark = public_benchmark
        self._n_classes = n_classes

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """See :class:`PrivateData`; reads the header of the array only."""
        size = self._contents[0][1:]
        return size if len(size) == 1 else (1, *size) if len(size) == 2 else (size[2], *size[:2])

    @property
    def n_classes(self) -> int | None:
        """See :class:`PrivateData`; reads the labels at most."""
        return self._contents[2]

    @property
    def class_names(self) -> list[Any] | None:
        """The array ``classes`` of the file."""
        return self._contents[3]

    def _count(self) -> int:
        n = self._contents[0][0]
        return n - held_out(n) if self.test_split else n

    @cached_property
    def _contents(self) -> tuple[tuple[int, ...], Tensor | None, int, list[Any] | None]:
        """Shape of the features, labels if there are any, number of classes and their names."""
        path, arrays = self._path, _Arrays(self._path)
        with _reading(path):
            self._stamp = arrays.stamp()
            shape, dtype = arrays.header(self._key)
            wanted = self.labelled if self.labelled is not None else "labels" in arrays
            labels = arrays.read("labels") if wanted else None
            names = arrays.read("classes").tolist() if wanted and "classes" in arrays else None
        if len(shape) not in _DIMENSIONS[self._key] or dtype.kind not in "biuf":
            form = "(N, d)" if self._key == "features" else "(N, H, W) or (N, H, W, C)"
            raise InputError(f"Expected {self._key} {form} as numbers in {path}, got {dtype} {shape}.")
        if not shape[0]:
            raise InputError(f"Expected at least one record in {path}, got none.")
        if labels is None:
            return shape, None, 0, None
        if labels.shape != shape[:1] or labels.dtype.kind not in "iu":
            raise InputError(f"Expected integer labels (N,) in {path}, got {labels.dtype} {labels.shape}.")
        numbers = torch.from_numpy(labels.astype(np.int64))
        stated = self._n_classes or (None if names is None else len(names))
        return shape, numbers, class_count(numbers, stated), names

    @property
    def _path(self) -> Path:
        path = Path(self.path)
        if not path.exists():
            path = data_root(self.root) / self.path
        if not path.exists():
            raise InputError(f"Expected an .npz file or a folder at {self.path}, got nothing there; check data.path.")
        return path

    @cached_property
    def _key(self) -> str:
        """Name of the array of records."""
        with _reading(self._path):
            return "images" if "images" in _Arrays(self._path) else "features"

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`PrivateData`."""
        shape, labels, *_ = self._contents
        arrays, key = _Arrays(self._path), self._key

        def read(index: Tensor) -> Tensor:
            with _reading(self._path):
                found = arrays.mapped(key)[index.numpy()]
            self._check_unchanged()
            return _converted(found, self.unreadable)

        with _reading(self._path):
            pixels = key == "images" and arrays.header(key)[1] == np.uint8
            stored = Stored(read, (shape[0], *self.sample_shape), torch.uint8 if pixels else torch.float32)
            checksum = arrays.checksum(key) if stored.large else None
            array = arrays.read(key) if checksum is None else None
        self._check_unchanged()
        stored.key = checksum or ""
        values = stored if array is None else _converted(array, self.unreadable)
        records = Records(values, torch.zeros(shape[0], dtype=torch.int64) if labels is None else labels)
        return every_fifth(records) if self.test_split and len(records) >= 5 else (records, None)

    def _check_unchanged(self) -> None:
        """Raise if the file is not the one whose labels were read; a person could then be part of two records."""
        if _Arrays(self._path).stamp() != self._stamp:
            raise InputError(f"Expected {self.path} as it was first read, got a changed file; start a new run.")


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn the errors of NumPy on damaged files into an InputError."""
    try:
        yield
    except KeyError as error:
        raise InputError(f"Expected arrays 'features' and 'labels' in {path}, got: {error.args[0]}.") from None
    except FileNotFoundError as error:
        raise InputError(f"Expected arrays 'features' and 'labels' in {path}, got no {error.filename}.") from None
    except (*_UNREADABLE, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(
            f"Expected a readable .npz file or .npy files at {path}, got: {error}; write them again."
        ) from None


def _header(member: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, order and type of a ``.npy`` file."""
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return read(member)


class ArrayData(PrivateData):
    """Records that are arrays in memory: images, or rows of features.

    Args:
        values: Images (N, H, W) or (N, H, W, C) with C = 1 or 3, as bytes or as floats in [0, 1]; or finite rows
            (N, d). NumPy, torch or pandas.
        labels: Classes (N,): integers from 0, or names that ``classes`` lists; ``None`` for no labels.
        classes: Public list of classes, in the order of their numbers. Without it, integer labels range from 0 to the
            largest one, which the owner then declares to be public.
        test: Values and labels for evaluation only, in the same form.
        public_benchmark: States that the records are public.
        unreadable: ``"zero"`` maps a record with NaN or inf to zeros; ``"refuse"`` raises.
        batch_size: See :class:`~dpswd.data.base.PrivateData`.
        n_synthetic: As ``batch_size``.

    Raises:
        InputError: If the arrays have another form, pixels lie outside [0, 1], or labels do not fit.

    Example:
        >>> data = ArrayData(np.zeros((6, 8, 8), dtype=np.uint8), ["a", "b"] * 3, classes=["a", "b"])
        >>> data.sample_shape, data.n_classes
        ((1, 8, 8), 2)
    """

    name = "arrays"

    def __init__(
        self,
        values: Any,
        labels: Any = None,
        classes: Sequence[Any] | None = None,
        batch_size: int | None = None,
        n_synthetic: int = 10_000,
        test: tuple[Any, Any] | None = None,
        public_benchmark: bool = False,
        unreadable: Unreadable = "refuse",
    ) -> None:
        super().__init__(None, batch_size, n_synthetic)
        choice(("refuse", "zero"), unreadable=unreadable)
        self.classes, self.public_benchmark, self.unreadable = classes, public_benchmark, unreadable
        private = self._records(values, labels)
        self._n_classes = 0
        if labels is not None:
            self._n_classes = class_count(private.labels, None if classes is None else len(classes))
        self._splits = private, None if test is None else self._records(*test)

    @property
    def n_classes(self) -> int | None:
        """See :class:`PrivateData`."""
        return self._n_classes

    @property
    def class_names(self) -> list[Any] | None:
        """The list that was passed as ``classes``."""
        names = None if self.classes is None else list(self.classes)
        return names and [name.item() if isinstance(name, np.generic) else name for name in names]

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`PrivateData`."""
        assert self._splits is not None
        return self._splits

    def _records(self, values: Any, labels: Any) -> Records:
        tensor = _converted(values, self.unreadable)
        numbers = torch.zeros(len(tensor), dtype=torch.int64) if labels is None else _labels(labels, self.classes)
        return Records(tensor, numbers)


def class_count(labels: Tensor, stated: int | None) -> int:
    """Return the public number of classes: the stated one, or the largest label plus one.

    Raises:
        InputError: If a label lies outside the stated classes, or there is one class only.
    """
    if bool((labels < 0).any()):
        raise InputError("Expected labels of at least 0, got negative ones; number the classes from 0.")
    found = int(labels.max()) + 1
    if stated is None and found > _MOST_CLASSES:
        raise InputError(f"Expected labels below {_MOST_CLASSES}, got larger ones; number the classes from 0.")
    if stated is None:
        rank_zero_info(f"n_classes={found} is the largest label plus one and is treated as public.")
    elif found > stated:
        raise InputError(f"Expected labels between 0 and {stated - 1}, got larger ones; check n_classes.")
    if (stated or found) < 2:
        raise InputError("Expected at least 2 classes, got 1; leave the labels out.")
    return stated or found


def _array(name: str, value: Any) -> np.ndarray:
    try:
        return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    except (ValueError, TypeError, RuntimeError):  # lists of different lengths
        raise InputError(f"Expected {name} as an array, all entries of one shape, got none; make them alike.") from None


def _converted(values: Any, unreadable: Unreadable) -> Tensor:
    """Return images in [0, 1] or rows as :func:`_values` does, all finite."""
    tensor = _values(values)
    if tensor.ndim > 2 and tensor.is_floating_point():
        inside = (tensor >= 0) & (tensor <= 1) | ~torch.isfinite(tensor)
        if not bool(inside.all()):
            raise InputError("Expected pixels as bytes or as floats in [0, 1], got floats outside; scale them.")
    return finite_records(tensor, unreadable)


def _values(values: Any) -> Tensor:
    """Return images (N, C, H, W) in uint8 or float32, or rows (N, d) in float32."""
    array = _array("values", values)
    if array.dtype.kind not in "biuf" or array.ndim not in (2, 3, 4) or 0 in array.shape:
        raise InputError(
            "Expected numbers as images (N, H, W) or (N, H, W, C), or as rows (N, d), all of one shape, got "
            f"{array.dtype} {array.shape}."
        )
    if array.ndim == 2:
        with np.errstate(over="ignore"):  # infinite numbers are handled with the other unreadable ones
            return torch.from_numpy(array.astype(np.float32))
    if array.ndim == 4 and array.shape[3] not in (1, 3):
        raise InputError(f"Expected images (N, H, W, C) with 1 or 3 channels, got shape {array.shape}.")
    if array.dtype.kind != "f" and array.dtype != np.uint8:
        raise InputError(f"Expected pixels as uint8 or as floats in [0, 1], got {array.dtype}; convert them.")
    images = array[:, None] if array.ndim == 3 else array.transpose(0, 3, 1, 2)
    return torch.from_numpy(np.array(images if array.dtype == np.uint8 else images.astype(np.float32), order="C"))


def _labels(labels: Any, classes: Sequence[Any] | None) -> Tensor:
    """Return class numbers (N,) in int64."""
    array = _array("labels", labels)
    if array.ndim != 1:
        raise InputError(f"Expected labels (N,), got shape {array.shape}.")
    if classes is not None:
        names = list(classes)
        if len(set(names)) != len(names):
            raise InputError("Expected classes without repetition, got a repeated name.")
        numbers = {name: number for number, name in enumerate(names)}
        try:
            return torch.tensor([numbers[name] for name in array.tolist()], dtype=torch.int64)
        except (KeyError, TypeError):
            raise InputError(
                f"Expected labels among the {len(names)} classes, got a label that is not listed."
            ) from None
    if array.dtype.kind not in "iu":
        raise InputError(f"Expected integer labels, got {array.dtype}; pass classes=, the public list of class names.")
    return torch.from_numpy(array.astype(np.int64))
