"""Readers of folders, files and benchmarks.

Readers return handles of private records.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpswd._arrays import Unreadable
from dpswd._frames import ARROW_FORMATS
from dpswd._labels import Labels
from dpswd.columns import Table
from dpswd.data.arrow_files import read_arrow
from dpswd.data.benchmarks import (
    Benchmark,
    benchmark,
    benchmark_name,
    every_fifth,
    refuse_two_meanings,
    similar_benchmark,
)
from dpswd.data.folders import read_images
from dpswd.data.numpy_files import has_arrays, read_arrays
from dpswd.data.reading import REMEDIES, ReadOptions, ReadRecords, data_root, find_path
from dpswd.data.tables import TARGET, read_table
from dpswd.errors import InputError
from dpswd.records import PrivateRecords

__all__ = ["Benchmark", "benchmark", "data_root", "every_fifth", "read", "read_public"]


@dataclass(frozen=True)
class _Reader:
    """Reader of one type of files, and the options that it knows."""

    read: Callable[[Path, ReadOptions], ReadRecords]
    options: frozenset[str] = frozenset()


_ARROW_READER = _Reader(read_arrow, frozenset({"classes", "target", "unit", "columns"}))
_READERS = {  # by ending; that of a folder is empty
    "": _Reader(read_images, frozenset({"size", "channels", "classes", "unit"})),
    ".npz": _Reader(read_arrays, frozenset({"classes", "unit"})),
    ".npy": _Reader(read_arrays),
    ".csv": _Reader(read_table, frozenset({"classes", "target", "unit", "columns"})),
    **dict.fromkeys(ARROW_FORMATS, _ARROW_READER),
}
_OPTIONS = ("channels", "classes", "columns", "size", "target", "unit")
_FACES_SIZE = 64  # side of the faces of CelebA where none is stated


def read(
    data: str | Path,
    *,
    root: str | Path | None = None,
    size: int | None = None,
    channels: int | None = None,
    classes: Sequence[Any] | None = None,
    labelled: bool = True,
    target: str | None = None,
    bounds: Sequence[tuple[float, float]] | None = None,
    kinds: Sequence[str] | None = None,
    columns: Any = None,
    unit: str | None = None,
    per_unit: int = 1,
    unreadable: Unreadable = "refuse",
    download: bool = False,
    in_memory: bool | None = None,
) -> PrivateRecords:
    """Read private records from files.

    Size, channels, classes and kinds are public. If they are not stated, they are taken from the
    records, and a line on the screen says so. Each label is read by itself as one of the stated
    classes; see :class:`~dpswd.PrivateRecords`.

    Images of a folder are upright, have 8 bits, and lie on a white ground where they are
    transparent. Files and folders whose names start with a dot are left out.

    Args:
        data: A folder of class folders of images; an ``.npz`` file (``features`` or ``images``,
            and ``labels``; also of MedMNIST), a folder of such arrays as ``.npy`` files, or one
            ``.npy`` file; a table in a ``.csv``, ``.parquet`` or ``.feather`` file; or a
            benchmark's name, whose training records are read (see :func:`benchmark`). Paths are
            relative to the working directory or to ``root``. Where a folder has the name of a
            benchmark, write ``"./mnist"`` for the folder and ``"benchmark:mnist"`` for the
            benchmark.
        root: Directory of the data sets; ``DPSWD_DATA`` or ``./data`` if not given.
        size: Side to which images of a folder are cropped and resized.
        channels: Channels of images of a folder: 1 for grey, 3 for RGB.
        classes: Public list of classes.
        labelled: ``False`` leaves the classes of the records out.
        target: Column of the classes in a table.
        bounds: Public bounds (low, high) of every column of rows.
        kinds: Public kind of every column of rows: ``"numeric"``, ``"integer"`` or ``"binary"``.
        columns: Public facts of the columns of a table, instead of bounds and kinds: a
            dictionary by names, or a file (:mod:`dpswd.columns`).
        unit: What names the person of each record: a column of a table, an array of an
            ``.npz`` file, or ``"folder"``, the innermost folder of an image, below that of the
            class. The guarantee then protects a person with all records (docs/theory/units.md).
        per_unit: Number of records of a person that enter at most.
        unreadable: ``"zero"`` maps a record with NaN, or an unreadable image, to zeros;
            ``"refuse"`` raises.
        download: Let torchvision fetch a benchmark.
        in_memory: ``False`` leaves records on disk where possible, for public facts alone. By
            default, those of more than 1 GiB stay there.

    Raises:
        InputError: If the records are missing or damaged, or an option does not fit them.

    Example:
        >>> read("digits")
        PrivateRecords(1438 records of shape (1, 8, 8), n_classes=10)
    """
    table = None
    if columns is not None:
        if bounds is not None or kinds is not None:
            raise InputError(
                "Expected columns, or bounds and kinds, got both; leave bounds and kinds out."
            )
        table = Table.of(columns)
    options = ReadOptions(
        columns=table,
        root=root,
        size=size,
        channels=channels,
        classes=classes,
        labelled=labelled,
        target=target,
        unit=unit,
        per_unit=per_unit,
        unreadable=unreadable,
        download=download,
        in_memory=in_memory,
    )
    return _read(data, options).private(bounds, kinds, per_unit)


def read_public(data: str | Path, **options: Any) -> Benchmark:
    """Read records that the user may look at.

    These are a public source, synthetic records or test records.

    The records are ``train``; ``test`` is the test part of a benchmark, or of a file of MedMNIST or
    Keras.

    Args:
        data: As in :func:`read`.
        options: ``root``, ``size`` and ``channels`` (without effect on records other than images
            of a folder), ``classes``, ``labelled``, ``target``, ``unit`` and ``unreadable`` of
            :func:`read`; ``min_classes``, which is 1 for test records of one class; and
            ``missing_is_class``, with which labels such as ``None`` are classes of these names.

    Example:
        >>> len(read_public("digits").test)
        359
    """
    if options.get("columns") is not None:
        options["columns"] = Table.of(options["columns"])
    records = _read(data, ReadOptions(**options, in_memory=True), unused={"size", "channels"})
    return Benchmark(
        records.name,
        records.public(),
        records.test,
        True,
        records.classes,
        records.files,
        records.columns,
        records.unit_names,
    )


def _read(data: str | Path, options: ReadOptions, unused: Set[str] = frozenset()) -> ReadRecords:
    """Read records by the reader that knows them.

    Options that it does not know are refused, except those in ``unused``.
    """
    if benchmark_name(data) is not None:
        refuse_two_meanings(str(data), options.root)
        return _read_benchmark(str(data), options, unused)
    path = find_path(data, options.root)
    if path is None:
        remedy = "check the path"
        similar = similar_benchmark(str(data))
        if similar:
            remedy = f"did you mean the benchmark {similar}? If not, check the path"
        raise InputError(
            f"Expected a folder, a file or a benchmark's name, got nothing at {data}; {remedy}."
        )
    reader = _reader_of(path)
    _refuse_unknown_options(data, options, reader.options | unused)
    records = reader.read(path, options)
    if options.classes is not None and options.labelled and records.labels is None:
        remedy = "name its array of labels 'labels'"
        if path.suffix.lower() in (".csv", *ARROW_FORMATS):
            remedy = TARGET
        raise InputError(
            f"Expected labels in {data} for the stated classes, got none; {remedy}, or leave the "
            "classes out."
        )
    return records


def _refuse_run(path: Path) -> None:
    """Refuse the directory of a run or a bundle, whose files are not all records."""
    if not (path / "ledger.jsonl").is_file():
        return
    records = [*sorted(path.glob("synthetic.*")), *sorted(path.glob("data/train*"))]
    remedy = "pass the records that the run has read, or records drawn by dpswd sample"
    if records:
        remedy = f"pass its synthetic records, {records[0]}"
    raise InputError(f"Expected records, got {path}, the directory of a run; {remedy}.")


def _reader_of(path: Path) -> _Reader:
    """Return the reader of a folder or file."""
    suffix = path.suffix.lower()
    if path.is_dir():
        _refuse_run(path)
        if suffix in ARROW_FORMATS:
            raise InputError(
                f"Expected one file, got {path}, a folder; write its parts as one {suffix} file."
            )
        suffix = ".npz" if has_arrays(path) else ""
    elif not suffix:
        suffix = path.name
    if suffix not in _READERS:
        raise InputError(
            "Expected a folder of images, .npz, .npy, .csv, .parquet or .feather, got "
            f"{path.name}; {REMEDIES.get(suffix, 'convert it to one of these')}."
        )
    return _READERS[suffix]


def _refuse_unknown_options(data: str | Path, options: ReadOptions, known: Set[str]) -> None:
    """Refuse an option that the reader of these records would ignore."""
    for name in _OPTIONS:
        value = getattr(options, name)
        if value is not None and name not in known:
            remedy = "leave it out"
            if name == "classes" and Path(data).suffix == ".npy":
                remedy = "write records and labels to one .npz, or leave them out"
            text = repr(value)
            if isinstance(value, Table):
                text = "facts of columns"
            raise InputError(f"Expected no {name} (--{name}) for {data}, got {text}; {remedy}.")


def _read_benchmark(data: str, options: ReadOptions, unused: Set[str]) -> ReadRecords:
    """Read a benchmark."""
    known = set(unused)
    if benchmark_name(data) == "CelebA":
        known.add("size")
    _refuse_unknown_options(data, options, known)
    size = options.size
    if size is None:
        size = _FACES_SIZE
    records = benchmark(data, options.root, options.download, size=size)
    labels = None
    if options.labelled and records.classes is not None:
        labels = Labels(records.train.labels, records.classes)
    return ReadRecords(records.name, records.train.values, labels, test=records.test)
