"""Feature vectors from a NumPy file."""

import zipfile
import zlib
from pathlib import Path

import numpy as np
import torch

from dpswd.data.base import PrivateData, Records, data_root, every_fifth
from dpswd.errors import InputError

__all__ = ["FeatureFile"]

_UNREADABLE = (ValueError, OSError, EOFError, TypeError, AttributeError, RuntimeError)


class FeatureFile(PrivateData):
    """An ``.npz`` with ``features`` (N, d) and ``labels`` (N,). No pickle is ever loaded.

    Args:
        path: The file, as given or below the root.
        root: See :class:`PrivateData`, like the rest.
        batch_size: Records in a release.
        n_synthetic: Records to generate.
        test_split: Keep every fifth row for testing, out of the private records.
        labelled: Read the labels. If not, they are not looked at, need not be there, and all records are of class 0.
    """

    name = "features"

    def __init__(
        self,
        path: str,
        root: str | None = None,
        batch_size: int | None = None,
        n_synthetic: int = 10_000,
        test_split: bool = True,
        labelled: bool = True,
    ) -> None:
        super().__init__(root, batch_size, n_synthetic)
        self.path, self.test_split, self.labelled = path, test_split, labelled

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`PrivateData`."""
        path = Path(self.path)
        if not path.exists():
            path = data_root(self.root) / self.path
        if not path.is_file():
            raise InputError(f"Expected an .npz file at {self.path}, got nothing there; check data.path.")
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                features = np.asarray(archive["features"])
                labels = np.asarray(archive["labels"]) if self.labelled else np.zeros(len(features), dtype=np.int64)
        except KeyError as error:
            raise InputError(f"Expected arrays 'features' and 'labels' in {path}, got no {error}.") from None
        except (*_UNREADABLE, zipfile.BadZipFile, zlib.error) as error:
            raise InputError(f"Expected a readable .npz file at {path}, got: {error}; write it again.") from None
        numbers = labels.dtype.kind in "iu" and features.dtype.kind in "biuf"
        if features.ndim != 2 or labels.shape != (len(features),) or not numbers:
            raise InputError(
                f"Expected features (N, d) and integer labels (N,) in {path}, got {features.dtype} {features.shape} "
                f"and {labels.dtype} {labels.shape}."
            )
        records = Records(torch.from_numpy(features).float(), torch.from_numpy(labels.astype(np.int64)))
        return every_fifth(records) if self.test_split and len(records) >= 5 else (records, None)
