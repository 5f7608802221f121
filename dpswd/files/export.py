"""Synthetic records as files: npz, csv, and folders of PNG images."""

import csv
import hashlib
import io
import unicodedata
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dpswd._files import atomic_write, check_new
from dpswd._frames import ARROW_FORMATS, as_pandas, require
from dpswd._layout import Array, Layout
from dpswd.errors import InputError

__all__ = ["export", "folder_names", "write_csv", "write_folder"]

# File systems hold names of 255 bytes; this leaves room for a suffix.
_MAX_BYTES = 200
_SAFE_PUNCTUATION = " -_.,+=()[]{}@#&!'~^$;"
# Names of devices on Windows, where they cannot name a folder.
_DEVICES = {"CON", "PRN", "AUX", "NUL"}
_DEVICES |= {f"{port}{number}" for port in ("COM", "LPT") for number in range(1, 10)}


def folder_names(classes: Sequence[Any]) -> list[str]:
    """Return a safe name of a folder for each class, different from the others.

    Every system accepts the names. Letters, digits and most punctuation stay. Other characters, a
    dot or blank at either end, and names of devices are written as in a URL: ``a/b`` becomes
    ``a%2Fb``. A name that differs from an earlier one by case alone gets its position: ``A``,
    ``a~1``.

    Example:
        >>> folder_names(["cat", "a/b", "a_b", "..", "Cat", 3])
        ['cat', 'a%2Fb', 'a_b', '%2E%2E', 'Cat~4', '3']
    """
    names: list[str] = []
    folded_names: set[str] = set()
    for position, name in enumerate(classes):
        safe = _safe_name(str(name))
        candidate = safe
        while _folded(candidate) in folded_names:
            candidate = f"{candidate}~{position}"
        folded_names.add(_folded(candidate))
        names.append(candidate)
    return names


def _safe_name(name: str) -> str:
    """Return a name without characters that some file system refuses or interprets."""
    last = len(name) - 1
    characters = []
    for position, character in enumerate(name):
        is_end = position in (0, last) and character in ". "
        is_device = position == 0 and name.split(".")[0].upper() in _DEVICES
        is_safe = character.isalnum() or character in _SAFE_PUNCTUATION
        if is_safe and not is_end and not is_device:
            characters.append(character)
        else:
            encoded = character.encode(errors="surrogateescape")
            characters.append("".join(f"%{byte:02X}" for byte in encoded))
    safe = "".join(characters) or "%"
    if len(safe.encode()) > _MAX_BYTES:
        digest = hashlib.sha256(safe.encode()).hexdigest()[:16]
        safe = safe.encode()[: _MAX_BYTES // 2].decode(errors="ignore") + f"~{digest}"
    return safe


def _folded(name: str) -> str:
    """Return the form in which file systems that ignore case compare names."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def export(
    path: str | Path,
    records: Any,
    classes: Any = None,
    layout: Layout | None = None,
    names: Sequence[Any] | None = None,
    notice: str = "",
) -> None:
    """Write synthetic records and their classes to a file or a folder.

    Records are in the caller's format. ``.npz`` has arrays ``data``, ``targets`` and ``columns``
    (names, of a table). A table in another file has the class as its last column, ``class``, or the
    name that it has in the private table. A folder gets one PNG per image in class folders.

    Args:
        path: File that ends in ``.npz``, or in ``.csv``, ``.parquet`` or ``.feather`` for rows; or
            a folder for images.
        records: Images or rows (n, ...).
        classes: Their classes (n,), or ``None``.
        layout: Names and types of the columns of a table.
        names: All classes, which the names of the folders depend on; those that occur if not given.
        notice: ``NOT PRIVATE`` and why, if the records are not; ``.npz`` gets an array of this
            name.

    Raises:
        InputError: If the path has another ending, or cannot be written, or the folder has files.
    """
    path = Path(path)
    records = as_pandas(records)
    values = np.asarray(records)
    if layout is None:
        layout = Layout()
    is_table = values.ndim == 2
    if path.suffix == ".npz":
        _write_arrays(path, values, classes, layout, notice)
    elif path.suffix == ".csv" and is_table:
        _write_table(path, values, classes, layout)
    elif path.suffix in ARROW_FORMATS and is_table:
        _write_arrow(path, records, classes, layout)
    elif path.suffix == "" and not is_table:
        write_folder(path, values, classes, layout, names)
    else:
        forms = "FILE.npz or a folder for images"
        if is_table:
            forms = "FILE.npz, FILE.csv, FILE.parquet or FILE.feather for rows"
        raise InputError(f"Expected {forms}, got {path.name}.")


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays to an ``.npz`` file that is read without pickle.

    Arrays of objects, as pandas holds text, become text.
    """
    plain: dict[str, Any] = {}
    for name, array in arrays.items():
        values = np.asarray(array)
        if values.dtype == object:
            values = values.astype(str)
        plain[name] = values

    atomic_write(path, partial(np.savez_compressed, **plain))


def write_csv(
    path: Path, names: Sequence[Any], columns: Sequence[Array], separator: str = ","
) -> None:
    """Write columns (n,) and their names.

    Names of files keep bytes that are not UTF-8.
    """
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(zip(*(column.tolist() for column in columns), strict=True))
    atomic_write(path, text.getvalue().encode(errors="surrogateescape"))


def _write_arrays(path: Path, values: Array, classes: Any, layout: Layout, notice: str) -> None:
    """Write records and classes to an ``.npz`` file."""
    arrays: dict[str, Any] = {"data": values}
    if layout.columns is not None:
        arrays["columns"] = np.array([str(name) for name in layout.columns])
    if classes is not None:
        arrays["targets"] = classes
    if notice:
        arrays["NOT PRIVATE"] = np.array(notice)
    write_npz(path, arrays)


def _write_table(path: Path, values: Array, classes: Any, layout: Layout) -> None:
    """Write rows (n, d) and classes to a ``.csv`` file."""
    if layout.columns is None:
        names: list[Any] = list(range(values.shape[1]))
        columns = list(values.T)
    elif layout.table is not None:
        names = list(layout.columns)
        texts = [layout.table.as_text(name, values[:, j]) for j, name in enumerate(names)]
        columns = [np.array(text, dtype=object) for text in texts]
    else:
        names = list(layout.columns)
        columns = layout.typed(values)
    if classes is not None:
        class_names = map(str, set(np.asarray(classes).tolist()))
        if any("\n" in name or "\r" in name for name in class_names):
            raise InputError(
                f"Expected names of classes without line breaks in {path.name}, got one with; "
                "write FILE.npz."
            )
        names.append(_name_of_classes(names, layout))
        columns.append(np.asarray(classes))
    write_csv(path, names, columns, layout.separator)


def _name_of_classes(columns: Iterable[Any], layout: Layout) -> str:
    """Return the name of the column of classes, which no other column has.

    It is that of the private table, else ``class``, with underscores where it is taken: ``class_``.
    """
    name = layout.target or "class"
    while name in map(str, columns):
        name += "_"
    return name


def _write_arrow(path: Path, records: Any, classes: Any, layout: Layout) -> None:
    """Write rows (n, d) and classes to a ``.parquet`` or ``.feather`` file."""
    require("pandas", "pyarrow", data=path.name)
    import pandas as pd  # optional: needed for such files alone

    frame = pd.DataFrame(records, copy=True)
    frame.columns = frame.columns.map(str)
    if classes is not None:
        frame[_name_of_classes(frame.columns, layout)] = np.asarray(classes)
    content = io.BytesIO()
    if path.suffix == ".parquet":
        frame.to_parquet(content, index=False)
    else:
        frame.to_feather(content)
    atomic_write(path, content.getvalue())


def _channels_last(images: Array, layout: Layout) -> Array:
    """Return images in the caller's format as (n, H, W), or (n, H, W, C) in colour."""
    if images.ndim == 4 and layout.channels == "first":
        images = images.transpose(0, 2, 3, 1)
    if images.ndim == 4 and images.shape[3] == 1:
        images = images[..., 0]
    return images


def write_folder(
    path: Path,
    records: Any,
    classes: Any = None,
    layout: Layout | None = None,
    names: Sequence[Any] | None = None,
) -> list[str]:
    """Write images as PNG files in a new folder.

    If there are classes, each has a folder of its own.

    Args:
        path: The folder.
        records: Images (n, ...) in the caller's format.
        classes: Their classes (n,), or ``None``.
        layout: Format of the images.
        names: All classes, which the names of the folders depend on; those that occur if not given.

    Returns:
        The path of each image, relative to the folder, with slashes.

    Raises:
        InputError: If the folder has files, or cannot be written.
    """
    from PIL import Image  # slow to import: needed for images alone

    check_new(path)
    images = _channels_last(np.asarray(records), layout or Layout())
    if images.dtype != np.uint8:
        images = (images.clip(0, 1) * 255).round().astype(np.uint8)
    folders = [""] * len(images)
    if classes is not None:
        labels = np.asarray(classes).tolist()
        if names is None:
            names = sorted(set(labels), key=str)
        folder_of = dict(zip(names, folder_names(names), strict=True))
        folders = [f"{folder_of[label]}/" for label in labels]
    n_digits = len(str(len(images) - 1))
    files = []
    for position, (image, folder) in enumerate(zip(images, folders, strict=True)):
        files.append(f"{folder}{position:0{n_digits}d}.png")
        content = io.BytesIO()
        Image.fromarray(image).save(content, format="PNG")
        _write_quickly(path / files[-1], content.getvalue())
    return files


def _write_quickly(path: Path, content: bytes) -> None:
    """Write one of thousands of files of a new folder, without waiting for the disk.

    After a power cut the folder may be incomplete; it is drawn again from the generator.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    except OSError as error:
        raise InputError(
            f"Expected to write {path}, got: {error.strerror}; choose a writable directory."
        ) from None
