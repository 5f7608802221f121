"""Pixels of image files.

Images are upright, in 8 bits, on a white ground, and cropped to the middle square. Every image is
converted by itself. 16-bit pixels are divided by 65,535, those of TIFF files with fewer bits (12,
say) by the largest number of these bits, floats are in [0, 1]. Transparent images are composited on
white. The orientation that a camera notes is applied. A file with several frames is refused, since
each frame could be a record.
"""

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from dpswd._layout import Array

# Modes of Pillow for grey images of more than 8 bits a pixel, and all modes without colour.
_DEEP_MODES = {"I", "I;16", "I;16L", "I;16B", "I;16N", "F"}
GREY_MODES = {"1", "L", "LA", "La"} | _DEEP_MODES

_WHITE = 255

# Numbers of two tags of TIFF files, and the value of the second one for signed integers.
_BITS_PER_SAMPLE = 258
_SAMPLE_FORMAT = 339
_SIGNED = 2

_STDERR = 2  # file descriptor
_ABOVE_ALL = logging.CRITICAL + 1

# Descriptor and logger are those of the process, so that one thread at a time may change them.
_SILENCE = threading.Lock()


class UnreadablePixelsError(ValueError):
    """Pixels that are refused; the text quotes nothing of the file."""


@contextmanager
def silent_decoders() -> Iterator[None]:
    """Drop what decoders write about a damaged image, which would tell of a record.

    Pillow logs, and the C library of TIFF files writes to the file descriptor of stderr.
    """
    logger = logging.getLogger("PIL")
    with _SILENCE:
        level = logger.level
        logger.setLevel(_ABOVE_ALL)
        descriptor = None
        with suppress(OSError):  # a process may have no stderr
            descriptor = os.dup(_STDERR)
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), _STDERR)
        try:
            yield
        finally:
            if descriptor is not None:
                os.dup2(descriptor, _STDERR)
                os.close(descriptor)
            logger.setLevel(level)


def square_pixels(path: Path, size: int, channels: int) -> Array:
    """Return the pixels (channels, size, size) of an image in uint8.

    Raises:
        UnreadablePixelsError: If the image has several frames, or numbers outside the range of its
            pixels.
        Exception: Many types, if the file is damaged.
    """
    from PIL import Image  # slow to import: needed for images alone

    with Image.open(path) as opened:
        # The second picture of an MPO file, as phones write them, is a preview or a depth map.
        if opened.format != "MPO" and getattr(opened, "n_frames", 1) > 1:
            raise UnreadablePixelsError("several frames in one file; write one file per frame")
        image = _upright(opened)
        if opened.mode in _DEEP_MODES:
            image = _eight_bits(image, _largest_number(opened))
        image = _on_white(image).convert("L" if channels == 1 else "RGB")
    side = min(image.size)
    left = (image.width - side) // 2
    top = (image.height - side) // 2
    square = image.resize((size, size), box=(left, top, left + side, top + side))
    pixels = np.asarray(square, dtype=np.uint8)
    return pixels.reshape(size, size, channels).transpose(2, 0, 1)


def _upright(image: Any) -> Any:
    """Return an image in the orientation that its camera noted."""
    from PIL import ImageOps  # slow to import: needed for images alone

    image.load()  # raises on a damaged image, whereas a damaged note of the orientation is ignored
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # readers of notes raise many types
        return image


def _largest_number(image: Any) -> float:
    """Return the number of a white pixel in a grey image of more than 8 bits."""
    if image.mode == "F":
        return 1.0
    tags = getattr(image, "tag_v2", {})  # of TIFF
    if int(tags.get(_SAMPLE_FORMAT, (1,))[0]) == _SIGNED:
        raise UnreadablePixelsError("signed numbers, of which none is known to be white")
    n_bits = 16  # of PNG and PGM files, which Pillow may hold in 32 bits
    if _BITS_PER_SAMPLE in tags:
        n_bits = int(tags[_BITS_PER_SAMPLE][0])
    return 2.0**n_bits - 1


def _eight_bits(image: Any, largest: float) -> Any:
    """Return a grey image with numbers in [0, largest] as one of 8 bits."""
    from PIL import Image  # slow to import: needed for images alone

    numbers = np.asarray(image).astype(np.float64)
    is_inside = (numbers >= 0) & (numbers <= largest)
    if not bool(is_inside.all()):
        raise UnreadablePixelsError(f"numbers outside [0, {largest:.0f}], the range of its pixels")
    return Image.fromarray(np.rint(numbers * (_WHITE / largest)).astype(np.uint8))


def _on_white(image: Any) -> Any:
    """Return an image without transparency, on a white ground."""
    from PIL import Image  # slow to import: needed for images alone

    if not image.has_transparency_data:
        return image
    with_alpha = image.convert("RGBA")
    ground = Image.new("RGBA", with_alpha.size, (_WHITE,) * 4)
    return Image.alpha_composite(ground, with_alpha).convert("RGB")
