"""CelebA, 64 x 64: the full set through torchvision, or a folder or zip of faces that are cropped already."""

from pathlib import Path
from typing import Literal

import numpy as np
import torch
from PIL import Image

from dpswd._validate import at_least, choice
from dpswd.data.base import PrivateData, Records, data_root, every_fifth
from dpswd.data.images import ImageFolder
from dpswd.errors import InputError

__all__ = ["CelebA"]

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
