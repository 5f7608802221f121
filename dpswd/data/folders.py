"""Images from a folder, with one class per sub-folder."""

import hashlib
import os
import unicodedata
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path, PurePosixPath
from statistics import mode
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from dpswd._arrays import Unreadable
from dpswd._labels import Labels, as_classes
from dpswd._layout import Array
from dpswd._memory import check_record_size
from dpswd._progress import with_progress_bar
from dpswd._public_facts import DO_NOT_REMOVE, taken_from_records
from dpswd._validate import at_least
from dpswd.data.pixels import (
    GREY_MODES,
    UnreadablePixelsError,
    silent_decoders,
    square_pixels,
)
from dpswd.data.reading import ReadOptions, ReadRecords, find_path, report_name
from dpswd.errors import InputError
from dpswd.records import Stored

# Value of ``unit`` with which the innermost folder is the person.
_UNIT_FOLDER = "folder"

SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".webp"}

# A smaller image has no shape that a generator could learn.
MIN_SIZE = 4
# Images up to this side, such as digits and icons, are read as large as they are.
_MAX_OWN_SIZE = 128
# Side to which larger images, which are photographs, are resized.
_PHOTOGRAPH_SIZE = 64
# The headers of this many images decide on size and channels where they are not stated.
_N_HEADERS = 100
_MAX_MESSAGE = 200  # characters of types of files in a message
# Images are decoded in parts of this number, after each of which the progress bar moves.
_PART = 1000


def read_images(path: Path, options: ReadOptions) -> ReadRecords:
    """Read the images of a folder, cropped to the middle square and resized.

    Without ``size`` it is the most frequent shorter side of the first 100 images if that is at most
    128, else 64; it is at least 4. Without ``channels``, images are grey if most of these are.
    Without ``classes`` they are the innermost folders in alphabetical order, the empty ones, too;
    fewer folders than ``min_classes``, which is 2 by default, mean no labels. Images that are not
    held in memory are decoded anew at every pass.

    With ``unit="folder"`` the innermost folder is the person, and the one above it the class, for
    example ``ill/patient7/scan2.png``; folders without images are then no classes. Folders of one
    name are one person, also in two classes.

    Raises:
        InputError: If there are no images, or images outside the folders of the classes.
    """
    if options.size is not None:
        at_least(MIN_SIZE, size=options.size)
    if options.channels not in (None, 1, 3):
        raise InputError(
            f"Expected channels=1 (grey) or 3 (RGB), got channels={options.channels!r}."
        )
    if options.unit not in (None, _UNIT_FOLDER):
        raise InputError(
            f'Expected unit="folder" (--unit folder) for a folder of images, got '
            f"{options.unit!r}: the innermost folder is then the person."
        )
    listing = _list(path)
    if not listing.images:
        _refuse_no_images(path, listing)
    classes = _class_folders(path, listing, options)
    is_flat = classes == ["."]
    has_labels = len(classes) >= options.min_classes and not is_flat
    form = _form_of(path, listing.images, options)
    check_record_size((form.channels, form.size, form.size), "state a smaller size")
    public_facts: dict[str, Any] = {}
    if options.size is None:
        public_facts["size"] = form.size
    if options.channels is None:
        public_facts["channels"] = form.channels
    if options.classes is None and has_labels:
        public_facts["classes"] = as_classes(classes, min_classes=options.min_classes)
    notices: tuple[str, ...] = ()
    if public_facts:
        notices = (taken_from_records(**public_facts),)
    labels = None
    if has_labels:
        labels = _labels(listing.images, classes, options)
    images = Images(path, listing.images, form.size, form.channels, options.unreadable)
    stored = Stored(images.decode, images.shape, torch.uint8, images.key)
    values: Tensor | Stored = stored
    if not options.stay_on_disk(stored):
        # A bar tells the number of records, which is private where persons are protected.
        values = images.decode_all(shows_bar=options.unit is None)
    return ReadRecords(
        report_name(path),
        values,
        labels,
        notices=notices,
        note=listing.note(path, has_units=options.unit is not None),
        files=tuple(listing.images),
        unit_names=_unit_names(listing.images, options),
    )


def check_class_names(
    data: str | Path, classes: Sequence[Any] | None, root: str | Path | None
) -> None:
    """Refuse a stated class that is nearly the name of a folder.

    Only the list of folders is read, which is public.

    Args:
        data: What :func:`dpswd.data.read` reads; only a folder of images is checked.
        classes: The stated classes; ``None`` for none.
        root: Directory of the data sets.

    Raises:
        InputError: If a class has no folder, and a folder of a similar name is no class.
    """
    path = find_path(data, root)
    if classes is None or path is None or not path.is_dir():
        return
    folders = {_composed(entry.name) for entry in path.iterdir() if entry.is_dir()}
    names = [_composed(str(name)) for name in classes]
    by_small_letters = {folder.lower(): folder for folder in sorted(folders - {*names})}
    for name in names:
        similar = get_close_matches(name.lower(), by_small_letters, n=1)
        if similar and not (path / name).is_dir():
            folder = by_small_letters[similar[0]]
            raise InputError(
                f"Expected a folder of the class {name!r} in {path}, got none; write the class as "
                f'its folder is called, "{folder}" in place of "{name}".'
            )


@dataclass(frozen=True)
class _Listing:
    """What lies below a folder, as sorted relative paths."""

    images: list[str]
    folders: list[str]  # those without folders in them; ["."] for a folder without folders
    other_types: list[str]  # endings of files that are no images
    has_hidden_images: bool

    def note(self, path: Path, *, has_units: bool) -> str:
        """Return the line about what is left out, empty for nothing.

        With units, other files in the folder of a person are private: the line is then the same for
        all folders.
        """
        if has_units:
            return f"In {path}, hidden files and files of other types than images are left out."
        parts = []
        if self.other_types:
            parts.append(f"files of other types are left out: {', '.join(self.other_types)}")
        if self.has_hidden_images:
            parts.append("images in hidden files and folders (.name) are left out")
        if not parts:
            return ""
        return f"In {path}, {'; '.join(parts)}."


@dataclass(frozen=True)
class _Form:
    """Side in pixels and channels to which images are converted."""

    size: int
    channels: int


def _class_folders(path: Path, listing: _Listing, options: ReadOptions) -> list[str]:
    """Return the folders of the classes; refuse images in other folders.

    Without labels the list is empty, since images may then be in any folder.
    """
    if not options.labelled:
        return []
    if options.classes is None:
        folders = sorted(map(_composed, listing.folders))
        place = "the innermost folders (the classes)"
        if options.unit is not None:
            folders = sorted({_class_of(image, options) for image in listing.images})
            place = "folders of persons within folders of classes"
    else:
        names = as_classes(options.classes, min_classes=options.min_classes)
        folders = [_composed(str(name)) for name in names]
        place = f"the folders of the classes {', '.join(map(repr, folders))}"
        if options.unit is not None:
            place = f"folders of persons within {place}"
    known = set(folders)
    for image in listing.images:
        folder = _class_of(image, options)
        if folder not in known:
            raise InputError(
                f"Expected images of {path} in {place}, got {image}; "
                f"{_remedy_of_folder(folder, listing, folders, options)}."
            )
    if options.classes is not None:
        _refuse_classes_without_folder(path, listing, folders)
    return folders


def _refuse_classes_without_folder(path: Path, listing: _Listing, classes: Sequence[str]) -> None:
    """Refuse a stated class without a folder, such as a mistyped name."""
    for name in _without_folder(listing, classes):
        raise InputError(
            f"Expected a folder of the class {name!r} in {path}, got none; correct the name, "
            "leave the class out, or make an empty folder for it."
        )


def _without_folder(listing: _Listing, classes: Sequence[str]) -> list[str]:
    """Return the classes that have no folder."""
    known: set[str] = set()
    for name in listing.folders:
        folder = PurePosixPath(name)
        known |= {_composed(folder.as_posix()), _composed(folder.parent.as_posix())}
    return [name for name in classes if name not in known]


def _remedy_of_folder(
    folder: str, listing: _Listing, classes: Sequence[str], options: ReadOptions
) -> str:
    """Return what to do about an image in a folder that is no class.

    A class is taken for misspelt only if it has no folder.
    """
    if options.classes is None:
        return "move it"
    if folder == "." and options.unit is not None:
        return "put it into a folder of its person, as in CLASS/PERSON/001.png"
    if folder == ".":
        return "put it into the folder of its class"
    if any("," in name for name in classes):
        return 'state each class by itself, as in classes=["a", "b c"] (--classes a "b c")'
    by_small_letters = {name.lower(): name for name in _without_folder(listing, classes)}
    similar = get_close_matches(folder.lower(), by_small_letters, n=1)
    if similar:
        name = by_small_letters[similar[0]]
        return f'write the class as its folder is called, "{folder}" in place of "{name}"'
    return f'move it, or add its class, as in classes=[..., "{folder}"] (--classes ... "{folder}")'


def _refuse_no_images(path: Path, listing: "_Listing") -> NoReturn:
    """Raise for a folder without images; name the types of its files."""
    known = ", ".join(sorted(SUFFIXES))
    if listing.has_hidden_images:
        raise InputError(
            f"Expected images ({known}) in {path}, got hidden ones alone, whose names or folders "
            "start with a dot; rename them."
        )
    if listing.other_types:
        types = ", ".join(listing.other_types)[:_MAX_MESSAGE]
        raise InputError(
            f"Expected images ({known}) in {path}, got files of other types alone ({types}); "
            "convert them, as scans of more than 8 bits to .png of 16 bits."
        )
    raise InputError(
        f"Expected images ({known}) in {path}, got a folder without files; check the path."
    )


def _labels(images: Sequence[str], folders: list[str], options: ReadOptions) -> Labels:
    """Return the classes of images by their folders."""
    numbers = {folder: number for number, folder in enumerate(folders)}
    labels = [numbers[_class_of(image, options)] for image in images]
    return Labels(torch.tensor(labels), as_classes(folders, min_classes=options.min_classes))


def _class_of(image: str, options: ReadOptions) -> str:
    """Return the relative path of the folder of the class.

    It is the folder of the image, or with units the one above it. The path of the folder that is
    read is ".".
    """
    folder = PurePosixPath(image).parent
    if options.unit is not None:
        folder = folder.parent
    return _composed(folder.as_posix())


def _composed(name: str) -> str:
    """Return the name of a folder with composed letters.

    An archive that was made on a Mac has an a and two dots for the letter that other systems, and
    keyboards, write as one character.
    """
    return unicodedata.normalize("NFC", name)


def _unit_names(images: Sequence[str], options: ReadOptions) -> tuple[str, ...] | None:
    """Return the name of the folder of each image, which is its person.

    The result is ``None`` without units.
    """
    if options.unit is None:
        return None
    names = [PurePosixPath(image).parent.name for image in images]
    if "" in names:
        raise InputError(
            "Expected images in a folder for each person (--unit folder), got images without one; "
            "put them into folders."
        )
    return tuple(names)


def _form_of(path: Path, images: Sequence[str], options: ReadOptions) -> _Form:
    """Return the stated size and channels, else those of most of the first images."""
    if options.size is not None and options.channels is not None:
        return _Form(options.size, options.channels)
    most_frequent = _most_frequent_form([path / image for image in images[:_N_HEADERS]])
    return _Form(
        options.size or most_frequent.size,
        options.channels or most_frequent.channels,
    )


def _most_frequent_form(files: Sequence[Path]) -> _Form:
    """Return size and channels of most images, from their headers."""
    from PIL import Image  # slow to import: needed for images alone

    sides = []
    has_grey_mode = []
    for file in files:
        # a file that cannot be decoded is reported, or mapped to zeros, when it is read
        with (
            suppress(Exception),
            silent_decoders(),
            warnings.catch_warnings(action="ignore"),
            Image.open(file) as image,
        ):
            sides.append(min(image.size))
            has_grey_mode.append(image.mode in GREY_MODES)
    size = _PHOTOGRAPH_SIZE
    if sides and mode(sides) <= _MAX_OWN_SIZE:
        size = max(MIN_SIZE, mode(sides))
    is_grey = bool(has_grey_mode) and mode(has_grey_mode)
    return _Form(size, 1 if is_grey else 3)


@dataclass(frozen=True)
class Images:
    """Image files of a folder by record number, and their decoded format."""

    folder: Path
    files: list[str]  # relative paths
    size: int
    channels: int
    unreadable: Unreadable

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Shape (N, channels, size, size) of all images."""
        return (len(self.files), self.channels, self.size, self.size)

    @property
    def key(self) -> str:
        """Checksum of the names of the files."""
        names = "\0".join(self.files)
        return hashlib.sha256(names.encode(errors="surrogateescape")).hexdigest()

    def decode(self, index: Tensor) -> Tensor:
        """Decode the images with these numbers (n,) to bytes (n, channels, size, size)."""
        values = np.empty((len(index), *self.shape[1:]), dtype=np.uint8)
        decode_one = partial(self._decode_into, values, index.tolist())
        with (
            silent_decoders(),
            warnings.catch_warnings(action="ignore"),
            ThreadPoolExecutor(os.cpu_count()) as pool,
        ):
            list(pool.map(decode_one, range(len(index))))
        return torch.from_numpy(values)

    def decode_all(self, *, shows_bar: bool = True) -> Tensor:
        """Decode all images to bytes (N, channels, size, size)."""
        values = torch.empty(self.shape, dtype=torch.uint8)
        parts = torch.arange(len(values)).split(_PART)
        for part in with_progress_bar(parts, "Reading images", shown=shows_bar):
            values[part] = self.decode(part)
        return values

    def _decode_into(self, values: Array, numbers: Sequence[int], place: int) -> None:
        """Decode one image into its place of ``values``."""
        values[place] = self._pixels(self.files[numbers[place]])

    def _pixels(self, name: str) -> Array:
        """Return the pixels (channels, size, size) of an image, zeros if it is unreadable."""
        from PIL import UnidentifiedImageError  # slow to import: needed for images alone

        try:
            return square_pixels(self.folder / name, self.size, self.channels)
        except MemoryError:
            # Memory may depend on the images that other threads decode, so that it must not
            # give a black image.
            raise InputError(
                f"Expected memory to decode {name}, got none; free memory or repair the image."
            ) from None
        except Exception as error:  # decoders raise many types on damaged files
            if self.unreadable == "zero":
                return np.zeros(self.shape[1:], dtype=np.uint8)
            reason = f"damaged: {type(error).__name__}"  # the text of a decoder may quote the file
            if isinstance(error, UnidentifiedImageError):
                reason = "unknown image format"
            elif isinstance(error, UnreadablePixelsError):
                reason = str(error)
            raise InputError(
                f"Expected a readable image, got {name} ({reason}); repair it, or pass "
                f'unreadable="zero" (--unreadable zero), for a black one. {DO_NOT_REMOVE}'
            ) from None


def _list(path: Path) -> _Listing:
    """List images and innermost folders below a folder; links to folders are followed.

    Hidden files and folders, such as .git and __MACOSX, are left out.

    Raises:
        InputError: If a folder cannot be listed, or a link gives a second name to a folder or
            image.
    """
    images = []
    folders = []
    other_types = set()
    has_hidden_images = False
    names: dict[str, str] = {}  # relative path of every folder and image, by its real path
    for parent, children, files in os.walk(path, followlinks=True, onerror=_refuse_folder):
        folder = Path(parent).relative_to(path)
        real_parent = os.path.realpath(parent)
        _add_name(names, real_parent, folder.as_posix())
        hidden_folders = [Path(parent, child) for child in children if _is_hidden(child)]
        children[:] = [child for child in children if not _is_hidden(child)]
        has_hidden_images = has_hidden_images or any(map(_has_images, hidden_folders))
        if not children:
            folders.append(folder.as_posix())
        for file in files:
            suffix = Path(file).suffix.lower()
            if _is_hidden(file):
                has_hidden_images = has_hidden_images or suffix in SUFFIXES
            elif suffix in SUFFIXES:
                image = (folder / file).as_posix()
                images.append(image)
                real_file = os.path.join(real_parent, file)
                if os.path.islink(real_file):
                    real_file = os.path.realpath(real_file)
                _add_name(names, real_file, image)
            else:
                other_types.add(suffix or file)
    return _Listing(sorted(images), sorted(folders), sorted(other_types), has_hidden_images)


def _add_name(names: dict[str, str], real_path: str, name: str) -> None:
    """Add the name of a folder or image, and refuse a second name of it.

    A folder or image with two names would be read twice.
    """
    if real_path in names:
        raise InputError(
            f"Expected every folder and image once, got {name} and {names[real_path]}, which are "
            "the same by a link; remove the link."
        )
    names[real_path] = name


def _refuse_folder(error: OSError) -> None:
    """Raise for a folder that cannot be listed, whose images would be left out."""
    raise InputError(
        f"Expected a readable folder at {error.filename}, got: {error.strerror}; change its "
        "permissions."
    ) from None


def _is_hidden(name: str) -> bool:
    """Return whether a name is that of a hidden file.

    What macOS adds to archives counts as hidden.
    """
    return name.startswith(".") or name == "__MACOSX"


def _has_images(folder: Path) -> bool:
    """Return whether there is an image that somebody put below a hidden folder."""
    if folder.name == "__MACOSX":  # its files have the names of images, and no pixels
        return False
    return any(file.suffix.lower() in SUFFIXES for file in folder.rglob("*"))
