"""Feature vectors from a NumPy file, and records that are arrays in memory."""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from dpswd._validate import at_least, choice
from dpswd.data.base import PrivateData, Records, Unreadable, data_root, every_fifth
from dpswd.errors import InputError

__all__ = ["ArrayData", "FeatureFile"]

_MOST_CLASSES = 10_000  # where their number is not stated
_UNREADABLE = (ValueError, OSError, EOFError, TypeError, AttributeError, RuntimeError)


class FeatureFile(PrivateData):
    """An ``.npz`` file with ``features`` (N, d) and, if there are classes, ``labels`` (N,). Pickles are never loaded.

    The number of classes is public: ``n_classes``, else the length of an array ``classes`` in the file, else the
    largest label plus one, which the owner then declares to be public.

    Args:
        path: The file, relative to the working directory or to the root.
        root: See :class:`PrivateData`.
        batch_size: See :class:`PrivateData`.
        n_synthetic: See :class:`PrivateData`.
        test_split: Hold out every fifth row for testing.
        labelled: ``True`` requires labels, ``False`` ignores them; ``None`` reads them if the file has them.
        n_classes: Number of classes.
        public_benchmark: States that the records are public.
        unreadable: ``"zero"`` maps a row with NaN or inf to zeros; ``"refuse"`` raises.
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
    def n_classes(self) -> int | None:
        """See :class:`PrivateData`."""
        self._loaded()
        return self._n_classes

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
                wanted = self.labelled if self.labelled is not None else "labels" in archive
                labels = np.asarray(archive["labels"]) if wanted else np.zeros(len(features), dtype=np.int64)
                names = len(archive["classes"]) if wanted and "classes" in archive else None
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
        classes = torch.from_numpy(labels.astype(np.int64))
        records = Records.read(torch.from_numpy(features).float(), classes, self.unreadable)
        self._n_classes = class_count(records.labels, self._n_classes or names) if wanted else 0
        return every_fifth(records) if self.test_split and len(records) >= 5 else (records, None)


class ArrayData(PrivateData):
    """Records that are arrays in memory: images, or rows of features.

    Args:
        values: Images (N, H, W) or (N, H, W, C) with C = 1 or 3, as bytes or as floats in [0, 1]; or finite rows
            (N, d). NumPy, torch or pandas.
        labels: Classes (N,): integers from 0, or names that ``classes`` lists; ``None`` for no labels.
        classes: Public list of classes, in the order of their numbers. Without it, integer labels range from 0 to the
            largest one, which the owner then declares to be public.
        batch_size: See :class:`PrivateData`.
        n_synthetic: See :class:`PrivateData`.
        test: Values and labels for evaluation only, in the same form.
        public_benchmark: States that the records are public.
        unreadable: ``"zero"`` maps a record with NaN or inf to zeros; ``"refuse"`` raises.

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

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`PrivateData`."""
        assert self._splits is not None
        return self._splits

    def _records(self, values: Any, labels: Any) -> Records:
        tensor = _values(values)
        if tensor.ndim > 2 and tensor.is_floating_point():
            inside = (tensor >= 0) & (tensor <= 1) | ~torch.isfinite(tensor)
            if not bool(inside.all()):
                raise InputError("Expected pixels as bytes or as floats in [0, 1], got floats outside; scale them.")
        numbers = torch.zeros(len(tensor), dtype=torch.int64) if labels is None else _labels(labels, self.classes)
        return Records.read(tensor, numbers, self.unreadable)


def class_count(labels: Tensor, stated: int | None) -> int:
    """Returns the public number of classes: the stated one, or the largest label plus one.

    Raises:
        InputError: If a label lies outside the stated classes, or there is one class only.
    """
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


def _values(values: Any) -> Tensor:
    """Returns images (N, C, H, W) in uint8 or float32, or rows (N, d) in float32."""
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
    """Returns class numbers (N,) in int64."""
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
