"""Pixels of image files: depth, transparency, orientation, frames."""

import struct

import numpy as np
import pytest
import torch
from factories import opened, write_images
from PIL import Image

from dpswd import InputError
from dpswd.data import read
from dpswd.data.pixels import square_pixels

RAMP = np.linspace(0, 1, 64 * 64).reshape(64, 64)
EIGHT_BITS = np.rint(RAMP * 255).astype(np.uint8)


def pixels(image, tmp_path, name="x.png", channels=1, **options):
    """Pixels of an image in [0, 255], after it was written and read."""
    image.save(tmp_path / name, **options)
    values = square_pixels(tmp_path / name, 64, channels)
    assert (values.shape, values.dtype) == ((channels, 64, 64), np.uint8)
    return values


def deep(bits, dtype):
    """The ramp in more than 8 bits."""
    return np.rint(RAMP * (2**bits - 1)).astype(dtype)


def packed_tiff(numbers):
    """Bytes of a grey TIFF file with 12 bits a pixel, which Pillow reads and does not write."""
    pairs = numbers.reshape(-1, 2).astype(np.uint32)
    joined = (pairs[:, 0] << 12) | pairs[:, 1]
    strip = b"".join(int(three).to_bytes(3, "big") for three in joined)
    height, width = numbers.shape
    n_tags = 9
    start = 8 + 2 + 12 * n_tags + 4  # of the pixels, behind header and tags
    entries = [(256, width), (257, height), (258, 12), (259, 1), (262, 1)]
    entries += [(273, start), (277, 1), (278, height), (279, len(strip))]
    directory = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return struct.pack("<2sHIH", b"II", 42, 8, n_tags) + directory + bytes(4) + strip


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("8.png", Image.fromarray(EIGHT_BITS)),
        ("16.png", Image.fromarray(deep(16, np.uint16))),
        ("16.tif", Image.fromarray(deep(16, np.uint16))),
        ("swapped.tif", Image.fromarray(deep(16, ">u2"))),
        ("float.tif", Image.fromarray(RAMP.astype(np.float32))),
        ("16.pgm", Image.fromarray(deep(16, np.uint16))),
    ],
)
def test_pixels_are_scaled_by_their_depth(tmp_path, name, image, channels):
    values = pixels(image, tmp_path, name, channels)
    assert np.abs(values - EIGHT_BITS.astype(int)).max() <= 1


def test_pixels_of_12_bits(tmp_path):
    """The tag of a TIFF file says how many bits are used."""
    (tmp_path / "x.tif").write_bytes(packed_tiff(deep(12, np.uint16)))
    values = square_pixels(tmp_path / "x.tif", 64, 1)
    assert np.abs(values - EIGHT_BITS.astype(int)).max() <= 1


@pytest.mark.parametrize(
    "image",
    [
        Image.fromarray(2 * RAMP.astype(np.float32)),
        Image.fromarray(-RAMP.astype(np.float32)),
        Image.fromarray(np.full((64, 64), np.nan, dtype=np.float32)),
        Image.fromarray(deep(16, np.int32)),  # of 32 bits in a TIFF file, signed
    ],
)
def test_numbers_without_a_known_white_are_refused(tmp_path, image):
    image.save(tmp_path / "x.tif")
    with pytest.raises(ValueError, match=r"range of its pixels|signed numbers"):
        square_pixels(tmp_path / "x.tif", 64, 1)
    with pytest.raises(InputError, match=r"got x\.tif .*unreadable"):
        read(tmp_path, size=8, channels=1)
    assert not opened(read(tmp_path, size=8, channels=1, unreadable="zero"))[0].any()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
@pytest.mark.parametrize("channels", [1, 3])
def test_transparent_images_lie_on_white(tmp_path, mode, channels):
    """A black glyph on a transparent ground was once all black."""
    glyph = np.zeros((64, 64, 4), dtype=np.uint8)
    glyph[16:48, 16:48, 3] = 255
    image = Image.fromarray(glyph)
    if mode == "P":
        image = image.quantize(4)
    elif mode == "LA":
        image = image.convert("LA")
    values = pixels(image, tmp_path, "x.png", channels)
    assert values[:, 32, 32].max() == 0
    assert values[:, 4, 4].min() == 255


def test_images_are_upright(tmp_path):
    exif = Image.Exif()
    exif[274] = 6  # turned by 90 degrees
    image = Image.fromarray(np.repeat(EIGHT_BITS[..., None], 3, 2))
    turned = pixels(image, tmp_path, "turned.png", exif=exif)
    plain = pixels(image, tmp_path, "plain.png")
    assert np.array_equal(turned[0], np.rot90(plain[0], -1))


@pytest.mark.parametrize("kind", ["tif", "webp", "png"])
def test_several_frames_are_refused(tmp_path, kind):
    frames = [Image.fromarray(EIGHT_BITS), Image.fromarray(EIGHT_BITS.T.copy())]
    frames[0].save(tmp_path / f"x.{kind}", save_all=True, append_images=frames[1:])
    with pytest.raises(ValueError, match="several frames"):
        square_pixels(tmp_path / f"x.{kind}", 64, 1)


def test_one_image_does_not_change_another(tmp_path):
    """Each image is converted by itself, whatever lies beside it."""
    write_images(tmp_path / "a", {f"{i}.png": EIGHT_BITS for i in range(4)})
    before = opened(read(tmp_path / "a", size=16, channels=1))[0]
    for i, other in enumerate((deep(16, np.uint16), np.zeros((3, 5), dtype=np.uint8))):
        Image.fromarray(other).save(tmp_path / "a" / "3.png")
        after = opened(read(tmp_path / "a", size=16, channels=1))[0]
        assert torch.equal(after[:3], before[:3]), i
