"""Synthetic records as files: npz, csv, and folders of PNG images."""

import csv
import io
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpswd._files import atomic_write, check_new
from dpswd._layout import Array, Layout
from dpswd.errors import InputError

__all__ = ["export"]


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays to an ``.npz`` file that is read without pickle: objects, as pandas holds text, become text."""
    found = {name: np.asarray(array) for name, array in arrays.items()}
    plain: dict[str, Any] = {
        name: each.astype(str) if each.dtype == object else each for name, each in found.items()
    }
    atomic_write(path, lambda file: np.savez_compressed(file, **plain))


def export(
    path: str | Path, records: Any, classes: Any = None, layout: Layout | None = None
) -> None:
    """Write synthetic records, in the caller's format, and their classes (n,) to a file or a folder.

    ``.npz`` has arrays ``data``, ``targets`` and ``columns`` (names, of a table), ``.csv`` the class as its last
    column; a folder gets one PNG per image in class folders. ``layout`` has names and types of the columns of a table.
    """
    path, values, layout = Path(path), np.asarray(records), layout or Layout()
    if path.suffix not in (".npz", ".csv" if values.ndim == 2 else ""):
        wanted = (
            "FILE.npz or FILE.csv for rows"
            if values.ndim == 2
            else "FILE.npz or a folder for images"
        )
        raise InputError(f"Expected {wanted}, got {path.name}.")
    if path.suffix == ".npz":
        content: dict[str, Any] = {"data": values}
        if layout.columns is not None:
            content["columns"] = np.array([str(name) for name in layout.columns])
        if classes is not None:
            content["targets"] = classes
        write_npz(path, content)
    elif path.suffix == ".csv":
        names = list(layout.columns or range(values.shape[1]))
        columns = list(values.T) if layout.columns is None else layout.typed(values)
        if classes is not None:
            names, columns = [*names, layout.target or "class"], [*columns, np.asarray(classes)]
        write_csv(path, names, columns)
    else:
        _write_folder(path, values, classes)


def write_csv(path: Path, names: Sequence[Any], columns: Sequence[Array]) -> None:
    """Write columns (n,) and their names."""
    text = io.StringIO()
    lines = zip(*(column.tolist() for column in columns), strict=True)
    csv.writer(text, lineterminator="\n").writerows([names, *lines])
    atomic_write(path, text.getvalue().encode())


def _write_folder(path: Path, images: Array, classes: Any) -> None:
    from PIL import Image

    check_new(path)
    if images.dtype != np.uint8:
        images = (images.clip(0, 1) * 255).round().astype(np.uint8)
    names = (
        [""] * len(images)
        if classes is None
        else [str(name).replace("/", "_") for name in np.asarray(classes)]
    )
    digits = len(str(len(images) - 1))
    for i, (image, name) in enumerate(zip(images, names, strict=True)):
        save = partial(Image.fromarray(image).save, format="PNG")
        atomic_write(path / name / f"{i:0{digits}d}.png", save)
