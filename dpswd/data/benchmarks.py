"""Benchmarks with exact access.

They are digits, MNIST, Fashion-MNIST, USPS, CIFAR-10 and CelebA.

Nothing is downloaded unless the user asks for it. Records count as public if their files have the
official checksums, or if the user states it: private records may lie in the layout of MNIST.
"""

import hashlib
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from dpswd._layout import column_order
from dpswd._progress import working
from dpswd.data.folders import read_images
from dpswd.data.reading import ReadOptions, data_root
from dpswd.errors import InputError
from dpswd.records import PrivateRecords, Records

_NAMES = {  # what a user writes, and the name in reports
    "digits": "digits",
    "mnist": "MNIST",
    "fashion": "FashionMNIST",
    "fashionmnist": "FashionMNIST",
    "usps": "USPS",
    "cifar10": "CIFAR10",
    "celeba": "CelebA",
}
# What stands before the name of a benchmark where a folder or a file has this name, too.
PREFIX = "benchmark:"

# Benchmarks that lie in a directory of their name.
_IN_OWN_DIRECTORY = ("MNIST", "FashionMNIST", "USPS")

# MD5 of the files that torchvision reads, as torchvision states it of what it fetches
_OFFICIAL = {
    "MNIST/raw/train-images-idx3-ubyte": ("6bbc9ace898e44ae57da46a324031adb",),
    "MNIST/raw/train-labels-idx1-ubyte": ("a25bea736e30d166cdddb491f175f624",),
    "MNIST/raw/t10k-images-idx3-ubyte": ("2646ac647ad5339dbf082846283269ea",),
    "MNIST/raw/t10k-labels-idx1-ubyte": ("27ae3e4e09519cfbb04c329615203637",),
    "FashionMNIST/raw/train-images-idx3-ubyte": ("f4a8712d7a061bf5bd6d2ca38dc4d50a",),
    "FashionMNIST/raw/train-labels-idx1-ubyte": ("9018921c3c673c538a1fc5bad174d6f9",),
    "FashionMNIST/raw/t10k-images-idx3-ubyte": ("8181f5470baa50b63fa0f6fddb340f0a",),
    "FashionMNIST/raw/t10k-labels-idx1-ubyte": ("15d484375f8d13e6eb1aabb0c3f46965",),
    # as fetched, and packed anew
    "USPS/usps.bz2": ("ec16c51db3855ca6c91edd34d0e9b197", "41a09b14f595f6a024a8423e918d3bd4"),
    "USPS/usps.t.bz2": ("8ea070ee2aca1ac39742fdd1ef5ed118", "5c4ad9e0d50fcb6e3c41baffad9c1ad7"),
}


@dataclass(frozen=True)
class Benchmark:
    """Records of a benchmark, which the user may look at.

    Attributes:
        name: Name in reports.
        train: Records that play the private ones.
        test: Records for evaluation, if there are any.
        public: Whether all records are public, so that exact statistics of them may be published.
        classes: Names of the classes; ``None`` without classes.
        files: Names of the files of images, if they were read from a folder.
        columns: Names of the columns of rows, if the file has them.
        unit_names: Name of the person of each training record, if units were asked for.

    Example:
        >>> digits = benchmark("digits")
        >>> digits.shape, digits.n_classes, len(digits.train), len(digits.test)
        ((1, 8, 8), 10, 1438, 359)
        >>> digits.private()
        PrivateRecords(1438 records of shape (1, 8, 8), n_classes=10)
    """

    name: str
    train: Records
    test: Records | None
    public: bool
    classes: list[Any] | None = None
    files: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None
    unit_names: tuple[Any, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one record; images as (channels, height, width)."""
        return tuple(self.train.values.shape[1:])

    @property
    def n_classes(self) -> int:
        """Number of classes; 0 for none."""
        return len(self.classes or ())

    def private(self) -> PrivateRecords:
        """Return a handle of the training records."""
        return self.train.private(classes=self.classes, name=self.name)


def in_order_of(other: Benchmark, records: Benchmark, data: str) -> Benchmark:
    """Return records with their columns in the order of other records, by name.

    Records without names of columns are returned unchanged.

    Args:
        other: The records whose order is wanted.
        records: The records, of which both parts are brought into that order.
        data: Their file, for the message.

    Raises:
        InputError: If the columns differ.
    """
    if records.columns is None or other.columns is None or records.columns == other.columns:
        return records
    order = column_order(records.columns, other.columns, data)
    test = None
    if records.test is not None:
        test = _reordered(records.test, order)
    return replace(
        records, train=_reordered(records.train, order), test=test, columns=other.columns
    )


def _reordered(records: Records, order: list[int]) -> Records:
    """Return rows (N, d) with the columns of the positions ``order``."""
    nominal = tuple(sorted(order.index(position) for position in records.nominal))
    return replace(records, values=records.values[:, order], nominal=nominal)


def benchmark_name(name: Any) -> str | None:
    """Return the name in reports of a benchmark, ``None`` for anything else.

    The name may start with ``benchmark:``.
    """
    if not isinstance(name, str):
        return None
    return _NAMES.get(name.lower().removeprefix(PREFIX))


def similar_benchmark(name: str) -> str:
    """Return the benchmark that is spelled most like a name; empty if none is.

    Example:
        >>> similar_benchmark("MNISTT"), similar_benchmark("photos")
        ('mnist', '')
    """
    similar = get_close_matches(name.lower().removeprefix(PREFIX), _NAMES, n=1)
    if not similar:
        return ""
    return similar[0]


def refuse_two_meanings(data: str, root: str | Path | None) -> None:
    """Refuse the name of a benchmark that is the path of a folder or file, too.

    The directory in which the benchmark itself lies does not count.

    Args:
        data: The name of a benchmark; one that starts with ``benchmark:`` has one meaning.
        root: Directory of the data sets.

    Raises:
        InputError: If a folder or file of this name lies in the working directory or in ``root``.
    """
    if data.lower().startswith(PREFIX):
        return
    for folder, path in (("./", Path(data)), ("", data_root(root) / data)):
        if not path.exists() or _is_own_directory(path, str(benchmark_name(data)), root):
            continue
        raise InputError(
            f"Expected one meaning of {data}, got two: the benchmark, and the path {folder}{path}; "
            f"write {PREFIX}{data} for the benchmark, or {folder}{path} for the path."
        )


def _is_own_directory(path: Path, name: str, root: str | Path | None) -> bool:
    """Return whether a path is the directory in which a benchmark lies."""
    directory = data_root(root) / name
    return name in _IN_OWN_DIRECTORY and directory.exists() and path.samefile(directory)


def benchmark(
    name: str,
    root: str | Path | None = None,
    download: bool = False,
    *,
    size: int = 64,
    public: bool | None = None,
) -> Benchmark:
    """Read a benchmark.

    Args:
        name: ``"digits"`` (1,438 and 359 scans of 8 x 8, which ship with scikit-learn), ``"mnist"``
            and ``"fashion"`` (60,000 and 10,000 of 28 x 28), ``"usps"`` (7,291 and 2,007 of
            16 x 16), ``"cifar10"`` (50,000 and 10,000 of 32 x 32) or ``"celeba"`` (faces without
            classes, of a folder ``celeba64``, every fifth by name for testing); perhaps with
            ``benchmark:`` in front.
        root: Directory of the data sets; ``DPSWD_DATA`` or ``./data`` if not given.
        download: Let torchvision fetch missing files.
        size: Side to which faces are resized.
        public: States whether the records are public; by the checksums of the files if not given.

    Raises:
        InputError: If the name is unknown, or files are missing or damaged.

    Example:
        >>> benchmark("digits").train.floats().shape
        torch.Size([1438, 1, 8, 8])
    """
    full_name = benchmark_name(name)
    if full_name is None:
        raise InputError(f"Expected a benchmark out of {', '.join(_NAMES)}, got {name!r}.")
    folder = data_root(root)
    ten_classes = list(range(10))
    if full_name == "digits":
        train, test = _digits()
        return Benchmark(full_name, train, test, public is not False, ten_classes)
    if full_name == "CelebA":
        train, test = _celeba(folder / "celeba64", size)
        return Benchmark(full_name, train, test, bool(public))
    if full_name == "CIFAR10" and (folder / "cifar10_images").is_dir():
        return _cifar10_images(folder / "cifar10_images", bool(public))
    train = _torchvision(full_name, folder, train=True, download=download)
    test = _torchvision(full_name, folder, train=False, download=download)
    if public is None:
        public = _is_official(full_name, folder)
    return Benchmark(full_name, train, test, public, ten_classes)


def every_fifth(records: Records) -> tuple[Records, Records]:
    """Hold out every fifth record, by position, for testing."""
    position = torch.arange(len(records)) % 5
    return records.select(position != 4), records.select(position == 4)


def _digits() -> tuple[Records, Records]:
    """Return the scans of scikit-learn, whose pixels are 0 to 16."""
    from sklearn.datasets import load_digits  # slow to import: needed for this benchmark alone

    digits = load_digits()
    values = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    return every_fifth(Records(values, torch.from_numpy(digits.target).long()))


def _cifar10_images(folder: Path, public: bool) -> Benchmark:
    """Return CIFAR-10 from JPEG files, which are a lossy copy.

    The copy is public only if the user states it.
    """
    options = ReadOptions(size=32, channels=3, in_memory=True)
    train = read_images(folder / "train", options)
    test = read_images(folder / "test", options)
    return Benchmark("CIFAR10", train.public(), test.public(), public, train.classes)


def _torchvision(name: str, root: Path, *, train: bool, download: bool) -> Records:
    """Read a part of a data set that torchvision knows."""
    import torchvision  # slow to import: needed for some benchmarks alone

    if name == "USPS":
        root = root / "USPS"
    data_set = getattr(torchvision.datasets, name)
    try:
        # A download shows its own progress.
        with working(f"Reading {name}", shown=not download, line=False):
            data: Any = data_set(root, train=train, download=download)
    except Exception as error:  # torchvision raises many types on missing and damaged files
        reason = " ".join(str(error).split()).split(". ")[0]
        raise InputError(
            f"Expected readable files of {name} under {root}, got: {reason}; pass root= (--root), "
            "set DPSWD_DATA, or let torchvision fetch them, by dpswd.data.read(..., download=True) "
            "in Python or by dpswd fit --data.download true."
        ) from None
    values = torch.as_tensor(data.data)
    labels = torch.as_tensor(data.targets).long()
    if values.ndim not in (3, 4) or len(values) != len(labels):
        raise InputError(
            f"Expected images and labels under {root}, got {tuple(values.shape)} and {len(labels)}."
        )
    if values.ndim == 3:
        return Records(values.unsqueeze(1), labels)
    return Records(values.permute(0, 3, 1, 2).contiguous(), labels)


def _is_official(name: str, root: Path) -> bool:
    """Return whether every file has an official checksum.

    The checksums of CIFAR-10 are compared by torchvision.
    """
    for file, checksums in _OFFICIAL.items():
        if not file.startswith(f"{name}/"):
            continue
        if hashlib.md5((root / file).read_bytes()).hexdigest() not in checksums:
            return False
    return True


def _celeba(folder: Path, size: int) -> tuple[Records, Records]:
    """Read a folder of faces without classes."""
    if not folder.is_dir():
        raise InputError(
            f"Expected a folder of faces at {folder}, got none; set DPSWD_DATA, or fetch "
            "img_align_celeba.zip from the authors' page and unpack it there."
        )
    options = ReadOptions(size=size, channels=3, in_memory=True)
    return every_fifth(read_images(folder, options).public())
