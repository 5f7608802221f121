"""Readers of folders, files and benchmarks, which return handles of private records."""

from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

from dpswd._arrays import Unreadable
from dpswd._progress import say
from dpswd.data.benchmarks import Benchmark, benchmark, benchmark_name, every_fifth
from dpswd.data.folders import find_images
from dpswd.data.found import Found, Options, data_root, located
from dpswd.data.numpy_files import find_arrays, has_arrays
from dpswd.data.tables import find_table
from dpswd.errors import InputError
from dpswd.records import PrivateRecords

__all__ = ["Benchmark", "benchmark", "data_root", "every_fifth", "read", "read_public"]

_READERS: dict[
    str, tuple[Callable[[Path, Options], Found], set[str]]
] = {  # by ending, with the options
    "": (find_images, {"size", "channels", "classes"}),
    ".npz": (find_arrays, {"classes"}),
    ".npy": (find_arrays, set()),
    ".csv": (find_table, {"classes", "target"}),
}


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
    unreadable: Unreadable = "refuse",
    download: bool = False,
    in_memory: bool | None = None,
) -> PrivateRecords:
    """Read private records from files.

    Size, channels and classes are public. If they are not given, they are taken from the records, and a line on the
    screen says so. Kinds are taken likewise for a ``.csv`` file with bounds.

    Args:
        data: A folder of class folders of images; an ``.npz`` file (``features`` or ``images``, and ``labels``; also of
            MedMNIST), a folder of such arrays as ``.npy`` files, or one ``.npy`` file; a ``.csv`` file of numbers; or a
            benchmark's name, whose training records are read (see :func:`benchmark`). Paths are relative to the working
            directory or to ``root``.
        root: Directory of the data sets; ``DPSWD_DATA`` or ``./data`` if not given.
        size: Side to which images of a folder are cropped and resized.
        channels: Channels of images of a folder: 1 for grey, 3 for RGB.
        classes: Public list of classes.
        labelled: ``False`` leaves the classes of the records out.
        target: Column of the classes in a ``.csv`` file.
        bounds: Public bounds (low, high) of every column of rows.
        kinds: Public kind of every column of rows: ``"numeric"``, ``"integer"`` or ``"binary"``.
        unreadable: ``"zero"`` maps a record with NaN, or an unreadable image, to zeros; ``"refuse"`` raises.
        download: Let torchvision fetch a benchmark.
        in_memory: ``False`` leaves records on disk where possible, for public facts alone. By default, those of more
            than 1 GiB stay there.

    Raises:
        InputError: If the records are missing or damaged, or an option does not fit them.

    Example:
        >>> read("digits")
        PrivateRecords(1438 records of shape (1, 8, 8), n_classes=10)
    """
    options = Options(
        root, size, channels, classes, labelled, target, unreadable, download, in_memory
    )
    return _found(data, options).private(bounds, kinds)


def read_public(data: str | Path, **options: Any) -> Benchmark:
    """Read records that the user may look at: a public source, synthetic records or test records.

    The options are ``root``, ``size`` and ``channels`` (without effect on records other than images of a folder),
    ``classes``, ``labelled``, ``target`` and ``unreadable`` of :func:`read`. The records are ``train``; ``test`` is the
    test part of a benchmark, or of a file of MedMNIST or Keras.

    Example:
        >>> len(read_public("digits").test)
        359
    """
    found = _found(data, Options(**options, in_memory=True), unused={"size", "channels"})
    return Benchmark(found.name, found.public(), found.test, True, found.classes, found.files)


def _found(data: str | Path, options: Options, unused: Set[str] = frozenset()) -> Found:
    """Find records by the reader that knows them; refuse options that it does not know, unless they may be unused."""
    name, path = benchmark_name(data), None
    known = {"size"} if name == "CelebA" else set()
    if name is None:
        path = located(data, options.root)
        if path is None:
            raise InputError(
                f"Expected a folder, a file or a benchmark's name, got nothing at {data}; check the path."
            )
        suffix = (".npz" if has_arrays(path) else "") if path.is_dir() else path.suffix.lower()
        if suffix not in _READERS or (path.is_file() and not suffix):
            remedy = "unpack or convert it, or pass its arrays to PrivateRecords"
            raise InputError(
                f"Expected a folder of images, .npz, .npy or .csv, got {path.name}; {remedy}."
            )
        reader, known = _READERS[suffix]
    for key in sorted({"size", "channels", "classes", "target"} - known - unused):
        if (given := getattr(options, key)) is not None:
            raise InputError(f"Expected no {key} for {data}, got {key}={given!r}; leave it out.")
    if path is not None:
        return reader(path, options)
    if Path(data).exists():
        say(f"{data} is the benchmark of this name; pass ./{data} for the folder.")
    found = benchmark(
        str(data), options.root, options.download, size=64 if options.size is None else options.size
    )
    labels, classes = (found.train.labels, found.classes) if options.labelled else (None, None)
    return Found(found.name, found.train.values, labels, classes, test=found.test)
