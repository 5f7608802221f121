"""Benchmark data sets: digits of scikit-learn, MNIST, Fashion-MNIST, USPS, CIFAR-10 and CelebA.

Nothing is downloaded unless ``download`` is set. A data set counts as a public benchmark if its files have the official
checksums, or if the user states it with ``public_benchmark``: private records may lie in the layout of MNIST.
"""

import bz2
import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torchvision
from PIL import Image

from dpswd._validate import at_least, choice
from dpswd.data.base import PrivateData, Records, data_root, every_fifth, held_out
from dpswd.data.images import ImageFolder
from dpswd.errors import InputError

__all__ = ["CIFAR10", "MNIST", "USPS", "CelebA", "Digits", "FashionMNIST"]

CROP = 140  # side of the square in the middle of the aligned 178 x 218 pictures of CelebA
# SHA-256 of the unpacked files that torchvision reads
_OFFICIAL = {
    "MNIST/raw/train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "MNIST/raw/train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "MNIST/raw/t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "MNIST/raw/t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    "FashionMNIST/raw/train-images-idx3-ubyte": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "FashionMNIST/raw/train-labels-idx1-ubyte": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "FashionMNIST/raw/t10k-images-idx3-ubyte": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "FashionMNIST/raw/t10k-labels-idx1-ubyte": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    "USPS/usps.bz2": "9a0edcd5b0ba3685318746f8e8fc945bc00e8cac60692e2cea60e4f1b47b49f1",
    "USPS/usps.t.bz2": "8d8b5579704b88819f3bde76ebc93e284ffee6ba3892c2146a649ff198972be4",
}


class Digits(PrivateData):
    """1,438 private scans of handwritten digits, 8 x 8, and 359 for testing; they ship with scikit-learn.

    Example:
        >>> data = Digits()
        >>> data.private.values.shape, len(data.test)
        (torch.Size([1438, 1, 8, 8]), 359)
    """

    name = "digits"
    public_benchmark = True

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Scans of 8 x 8."""
        return 1, 8, 8

    @property
    def n_classes(self) -> int | None:
        """Ten digits."""
        return 10

    def _count(self) -> int:
        return 1438

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`PrivateData`."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        values = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
        return every_fifth(Records(values, torch.from_numpy(digits.target).long()))


class _Benchmark(PrivateData):
    """Base of the data sets that torchvision reads: ten classes, official training and test set.

    Args:
        download: Let torchvision fetch the files if they are missing.
        public_benchmark: States whether the records are public; by the checksums of the files if not given.
    """

    dataset: ClassVar[Any]
    official: ClassVar[tuple[int, tuple[int, ...]]]  # number and shape of the official training records
    folder: ClassVar[str] = ""  # below the root, beyond the folder that torchvision adds itself

    def __init__(
        self,
        root: str | None = None,
        batch_size: int | None = None,
        n_synthetic: int = 20_000,
        download: bool = False,
        public_benchmark: bool | None = None,
    ) -> None:
        super().__init__(root, batch_size, n_synthetic)
        self.download, self._stated = download, public_benchmark

    @property
    def n_classes(self) -> int | None:
        """Ten, for all data sets of this kind."""
        return 10

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """See :class:`PrivateData`."""
        return self._header()[1] if self._splits is None else super().sample_shape

    def _count(self) -> int:
        return self._header()[0]

    def _header(self) -> tuple[int, tuple[int, ...]]:
        """Number and shape of the private records: the official ones, or those of the records that are found."""
        if self._verified:
            return self.official
        records = self.private
        return len(records), tuple(records.values.shape[1:])

    @property
    def public_benchmark(self) -> bool:  # type: ignore[override]
        """What the user states; otherwise whether every file has the official checksum."""
        return self._verified if self._stated is None else self._stated

    @cached_property
    def _verified(self) -> bool:
        return self._is_official()

    def _is_official(self) -> bool:
        files = {name: digest for name, digest in _OFFICIAL.items() if name.startswith(f"{self.name}/")}
        return all(_digest(data_root(self.root) / name) == digest for name, digest in files.items())

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`PrivateData`."""
        return self._read(train=True), self._read(train=False)

    def _read(self, train: bool) -> Records:
        root = data_root(self.root) / self.folder
        remedy = "pass --data.root or set DPSWD_DATA, or let torchvision fetch it with --data.download true"
        try:
            data: Any = self.dataset(root, train=train, download=self.download)
        except (RuntimeError, FileNotFoundError) as error:
            raise InputError(f"Expected {self.name} under {root}, got: {_first(error)}; {remedy}.") from None
        except Exception as error:  # torchvision raises many types on damaged files
            raise InputError(f"Expected readable {self.name} files under {root}, got: {error}; fetch them.") from None
        values, labels = torch.as_tensor(data.data), torch.as_tensor(data.targets).long()
        if values.ndim not in (3, 4) or len(values) != len(labels):
            raise InputError(f"Expected images and labels under {root}, got {tuple(values.shape)} and {len(labels)}.")
        return Records(values.unsqueeze(1) if values.ndim == 3 else values.permute(0, 3, 1, 2), labels)


class MNIST(_Benchmark):
    """60,000 private handwritten digits, 28 x 28; 10,000 for testing.

    Example:
        >>> data = MNIST(root="data", public_benchmark=True)
        >>> data.official, data.n_classes
        ((60000, (1, 28, 28)), 10)
    """

    name = "MNIST"
    dataset = torchvision.datasets.MNIST
    official = 60_000, (1, 28, 28)


class FashionMNIST(_Benchmark):
    """60,000 private pictures of clothes, 28 x 28; 10,000 for testing.

    Example:
        >>> data = FashionMNIST(root="data", public_benchmark=True)
        >>> data.official, data.n_classes
        ((60000, (1, 28, 28)), 10)
    """

    name = "FashionMNIST"
    dataset = torchvision.datasets.FashionMNIST
    official = 60_000, (1, 28, 28)


class USPS(_Benchmark):
    """7,291 private handwritten digits, 16 x 16; 2,007 for testing.

    Example:
        >>> data = USPS(root="data", public_benchmark=True)
        >>> data.official, data.n_classes
        ((7291, (1, 16, 16)), 10)
    """

    name = "USPS"
    dataset = torchvision.datasets.USPS
    official = 7291, (1, 16, 16)
    folder = "USPS"

    def _is_official(self) -> bool:
        files = [(name, md5) for _, name, md5 in torchvision.datasets.USPS.split_list.values()]
        root = data_root(self.root) / self.folder
        return super()._is_official() or all(_digest(root / name, "md5") == md5 for name, md5 in files)


class CIFAR10(_Benchmark):
    """50,000 private colour photographs, 32 x 32; 10,000 for testing.

    ``ROOT/cifar10_images/{train,test}/CLASS/*.jpg`` is read where it exists: class folders of JPEG, a lossy copy that
    counts as public only if the user states it. Otherwise torchvision reads ``ROOT/cifar-10-batches-py``, whose
    checksums it compares.

    Example:
        >>> data = CIFAR10(root="data", public_benchmark=True)
        >>> data.official, data.n_classes
        ((50000, (3, 32, 32)), 10)
    """

    name = "CIFAR10"
    dataset = torchvision.datasets.CIFAR10
    official = 50_000, (3, 32, 32)

    @property
    def _images(self) -> Path:
        return data_root(self.root) / "cifar10_images"

    def _is_official(self) -> bool:
        return not self._images.is_dir()

    def _header(self) -> tuple[int, tuple[int, ...]]:
        return self._folder("train").public_facts()[:2] if self._images.is_dir() else self.official

    def _folder(self, part: str) -> ImageFolder:
        return ImageFolder(str(self._images / part), size=32, channels=3, test_split=False)

    def _read(self, train: bool) -> Records:
        if not self._images.is_dir():
            return super()._read(train)
        return self._folder("train" if train else "test").private


class CelebA(PrivateData):
    """Faces without labels, resized to ``size`` x ``size``.

    Args:
        source: ``"torchvision"`` for the full set below ``ROOT/celeba``, whose training split has 162,770 pictures
            (Rakotomamonjy2021 has N = 162,000), or ``"faces"`` for a folder ``ROOT/celeba64`` or a zip
            ``ROOT/celeba64_5000.zip`` of cropped faces, of which every fifth by name is held out for testing;
            the list of file names is public then (:class:`ImageFolder` keeps it private).
        n_records: Number of private records with ``"torchvision"``: the first ones, in the order of the files.
        n_test: Number of test records with ``"torchvision"``.
        size: Side to which pictures are resized.
        download: Let torchvision fetch the full set.
        public_benchmark: States that the faces are public.
        root: See :class:`~dpswd.data.base.PrivateData`.
        batch_size: As ``root``.
        n_synthetic: As ``root``.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> data = CelebA("torchvision", size=32, root="data")
        >>> data.public_facts()
        (162000, (3, 32, 32), 0)
    """

    name = "CelebA"

    def __init__(
        self,
        source: Literal["faces", "torchvision"] = "faces",
        n_records: int = 162_000,
        n_test: int = 5_000,
        size: int = 64,
        root: str | None = None,
        batch_size: int | None = None,
        n_synthetic: int = 1_000,
        download: bool = False,
        public_benchmark: bool = False,
    ) -> None:
        super().__init__(root, batch_size, n_synthetic)
        choice(("faces", "torchvision"), source=source)
        at_least(1, n_records=n_records, n_test=n_test)
        at_least(8, size=size)
        self.source, self.n_records, self.n_test, self.size = source, n_records, n_test, size
        self.download, self.public_benchmark = download, public_benchmark

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Colour images of ``size``."""
        return 3, self.size, self.size

    @property
    def n_classes(self) -> int | None:
        """Faces have no labels."""
        return 0

    def _count(self) -> int:
        if self.source == "torchvision":
            return min(self.n_records, 162_770)
        n = self._faces().public_facts()[0]
        return n - held_out(n)

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`PrivateData`."""
        if self.source == "torchvision":
            return self._split("train", self.n_records), self._split("test", self.n_test)
        faces = self._faces().private
        return every_fifth(faces) if len(faces) >= 5 else (faces, None)

    def _faces(self) -> ImageFolder:
        root = data_root(self.root)
        for name in ("celeba64", "celeba64_5000.zip"):
            if (root / name).exists():
                return ImageFolder(str(root / name), size=self.size, channels=3, test_split=False)
        raise InputError(
            f"Expected faces in {root / 'celeba64'} or {root / 'celeba64_5000.zip'}, got neither; set DPSWD_DATA, or "
            "take the full set with --data.source torchvision."
        )

    def _split(self, split: Literal["train", "test"], most: int) -> Records:
        root = data_root(self.root)
        try:
            found = torchvision.datasets.CelebA(str(root), split=split, download=self.download)
        except (RuntimeError, FileNotFoundError, OSError, ValueError) as error:
            raise InputError(
                f"Expected CelebA in {root / 'celeba'} as torchvision lays it out, got: {_first(error)}; fetch "
                "img_align_celeba.zip and the list_*.txt files from its authors' page, or use --data.source faces."
            ) from None
        names = found.filename[:most]
        values = np.empty((len(names), 3, self.size, self.size), dtype=np.uint8)  # 2 GB for the full set
        for i, name in enumerate(names):
            values[i] = self._read(Path(found.root) / found.base_folder / "img_align_celeba" / name)
        return Records(torch.from_numpy(values), torch.zeros(len(names), dtype=torch.int64))

    def _read(self, path: Path) -> np.ndarray:
        try:
            with Image.open(path) as image:
                rgb = image.convert("RGB")
                left, top = (rgb.width - CROP) // 2, (rgb.height - CROP) // 2
                box = (left, top, left + CROP, top + CROP)
                square = rgb.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        except (OSError, ValueError) as error:
            raise InputError(f"Expected a readable picture at {path}, got: {error}; unpack CelebA again.") from None
        return np.asarray(square, dtype=np.uint8).transpose(2, 0, 1)


def _first(error: Exception) -> str:
    """First sentence of an error of torchvision."""
    if isinstance(error, FileNotFoundError) or not str(error):
        return "Dataset not found"
    return str(error).split(". ")[0].splitlines()[0]


def _digest(path: Path, kind: str = "sha256") -> str | None:
    """Digest of a file: SHA-256 of what it holds, unpacked, or MD5 of the file as it is; ``None`` if unreadable."""
    try:
        content = path.read_bytes()
        unpack = kind == "sha256" and path.suffix == ".bz2"
        return hashlib.new(kind, bz2.decompress(content) if unpack else content).hexdigest()
    except (OSError, ValueError, EOFError):
        return None
