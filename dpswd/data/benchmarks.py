"""Benchmark data sets: embedded digits, MNIST, Fashion-MNIST, USPS and CelebA."""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torchvision
from PIL import Image

from dpswd._validate import at_least, choice
from dpswd.data.base import PrivateData, Records, data_root, every_fifth
from dpswd.data.images import ImageFolder
from dpswd.errors import InputError

__all__ = ["MNIST", "USPS", "CelebA", "Digits", "FashionMNIST"]


class Digits(PrivateData):
    """scikit-learn's digits: 1,438 private records, 359 for testing."""

    name = "digits"
    public_benchmark = True

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`PrivateData`."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        values = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
        return every_fifth(Records(values, torch.from_numpy(digits.target).long()))


class _Torchvision(PrivateData):
    dataset: type
    public_benchmark = True

    def __init__(
        self,
        root: str | None = None,
        batch_size: int | None = None,
        n_synthetic: int = 20_000,
        download: bool = False,
    ) -> None:
        super().__init__(root, batch_size, n_synthetic)
        self.download = download

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`PrivateData`."""
        return self._read(train=True), self._read(train=False)

    def _read(self, train: bool) -> Records:
        root = data_root(self.root) / self.subfolder
        remedy = "pass --data.root or set DPSWD_DATA, or let torchvision fetch it with --data.download true"
        try:
            data: Any = self.dataset(root, train=train, download=self.download)
        except (RuntimeError, FileNotFoundError) as error:
            raise InputError(f"Expected {self.name} under {root}, got: {_first(error)}; {remedy}.") from None
        except Exception as error:  # what the readers of damaged files stumble over has no end
            raise InputError(
                f"Expected readable {self.name} files under {root}, got: {error}; fetch them again."
            ) from None
        values, labels = torch.as_tensor(data.data), torch.as_tensor(data.targets).long()
        if values.ndim != 3 or len(values) != len(labels):
            raise InputError(f"Expected images and labels under {root}, got {tuple(values.shape)} and {len(labels)}.")
        return Records(values.unsqueeze(1), labels)

    @property
    def subfolder(self) -> str:
        """Folder below the root, beyond the one that torchvision adds itself."""
        return ""


def _first(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "Dataset not found"
    return str(error).split(". ")[0].splitlines()[0]


class MNIST(_Torchvision):
    """60,000 private handwritten digits, 28 x 28; 10,000 for testing."""

    name = "MNIST"
    dataset = torchvision.datasets.MNIST


class FashionMNIST(_Torchvision):
    """60,000 private pictures of clothes, 28 x 28; 10,000 for testing."""

    name = "FashionMNIST"
    dataset = torchvision.datasets.FashionMNIST


class USPS(_Torchvision):
    """7,291 private handwritten digits, 16 x 16; 2,007 for testing."""

    name = "USPS"
    dataset = torchvision.datasets.USPS

    @property
    def subfolder(self) -> str:
        """USPS, where torchvision adds no folder of its own."""
        return "USPS"


CROP = 140  # side of the square in the middle of the aligned 178 x 218 pictures, as is customary for faces


class CelebA(PrivateData):
    """Faces without labels.

    Args:
        source: ``"torchvision"`` for the full set below ``ROOT/celeba`` (its training split has 162,770 pictures, of
            which the first ``n_records`` are used: N = 162,000 as in Rakotomamonjy2021), or ``"faces"`` for a folder
            ``ROOT/celeba64`` or a zip ``ROOT/celeba64_5000.zip``, of which every fifth, in the order of their public
            names, is kept for testing.
        n_records: Most private records used with ``"torchvision"``, in the order of the files: a rule that does not
            look at them.
        n_test: Most test records used with ``"torchvision"``.
        size: Side to which pictures are resized.
        root: See :class:`PrivateData`, like the rest.
        batch_size: Records in a release.
        n_synthetic: Records to generate.
        download: Let torchvision fetch the full set (its host limits how often).
    """

    name = "CelebA"
    public_benchmark = True

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
    ) -> None:
        super().__init__(root, batch_size, n_synthetic)
        choice(("faces", "torchvision"), source=source)
        at_least(1, n_records=n_records, n_test=n_test)
        at_least(8, size=size)
        self.source, self.n_records, self.n_test, self.size = source, n_records, n_test, size
        self.download = download

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`PrivateData`."""
        if self.source == "torchvision":
            return self._split("train", self.n_records), self._split("test", self.n_test)
        root = data_root(self.root)
        for name in ("celeba64", "celeba64_5000.zip"):
            if (root / name).exists():
                faces, _ = ImageFolder(str(root / name), size=self.size, channels=3, test_split=False).load()
                return every_fifth(faces) if len(faces) >= 5 else (faces, None)
        raise InputError(
            f"Expected faces in {root / 'celeba64'} or {root / 'celeba64_5000.zip'}, got neither; set DPSWD_DATA, or "
            "take the full set with --data.source torchvision."
        )

    def _split(self, split: Literal["train", "test"], most: int) -> Records:
        import torchvision

        root = data_root(self.root)
        try:
            found = torchvision.datasets.CelebA(str(root), split=split, download=self.download)
        except (RuntimeError, FileNotFoundError, OSError, ValueError) as error:
            first = str(error).split(". ")[0].splitlines()[0]
            raise InputError(
                f"Expected CelebA in {root / 'celeba'} as torchvision lays it out, got: {first}; fetch "
                "img_align_celeba.zip and the list_*.txt files from its authors' page, or use --data.source faces."
            ) from None
        names = found.filename[:most]
        values = np.empty((len(names), 3, self.size, self.size), dtype=np.uint8)  # 2 GB for all of them
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
