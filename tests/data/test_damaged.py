"""Damaged data files, drawn by hypothesis: finite records or one sentence. No pickle is ever loaded."""

import bz2
import io
import struct
import zipfile

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from factories import REFUSED, damage, fuzz, outcome, untouched
from PIL import Image

from dpswd.data import MNIST, USPS, CelebA, FeatureFile, ImageFolder


def sane(found, dims):
    """Checks the records that a data module loaded, if any."""
    if found is REFUSED:
        return
    for records in found:
        if records is not None:
            assert records.values.ndim == dims
            assert len(records.values) == len(records.labels) > 0
            assert records.labels.dtype == torch.int64
            assert (records.labels >= 0).all()
            assert torch.isfinite(records.floats()).all()


def npz(features, labels, save=np.savez):
    buffer = io.BytesIO()
    save(buffer, features=features, labels=labels)
    return buffer.getvalue()


ROWS = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
LABELS = np.arange(10) % 3


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@fuzz(80, data=st.data())
def test_damaged_npz(save, tmp_path, data):
    (tmp_path / "x.npz").write_bytes(data.draw(damage(npz(ROWS, LABELS, save))))
    with untouched(tmp_path):
        sane(outcome(FeatureFile(str(tmp_path / "x.npz")).load), 2)


def idx(array):
    """An IDX file, as MNIST has them."""
    return struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


NAMES = {
    "train-images-idx3-ubyte": (6, 28, 28),
    "train-labels-idx1-ubyte": (6,),
    "t10k-images-idx3-ubyte": (4, 28, 28),
    "t10k-labels-idx1-ubyte": (4,),
}
FILES = {name: idx(np.arange(np.prod(shape), dtype=np.uint8).reshape(shape) % 10) for name, shape in NAMES.items()}


def mnist(directory, **changed):
    raw = directory / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for name, content in (FILES | changed).items():
        (raw / name).write_bytes(content)
    return MNIST(str(directory))


@fuzz(60, name=st.sampled_from(sorted(NAMES)), data=st.data())
def test_damaged_idx(tmp_path, name, data):
    module = mnist(tmp_path, **{name: data.draw(damage(FILES[name]))})
    with untouched(tmp_path):
        sane(outcome(module.load), 4)


USPS_TEXT = "\n".join(
    f"{i % 10 + 1} " + " ".join(f"{j + 1}:{(i * j % 21) / 10 - 1:g}" for j in range(256)) for i in range(4)
).encode()


@fuzz(50, data=st.data(), inside=st.booleans())
def test_damaged_usps(tmp_path, data, inside):
    (tmp_path / "USPS").mkdir(exist_ok=True)
    whole = bz2.compress(USPS_TEXT)
    broken = bz2.compress(data.draw(damage(USPS_TEXT))) if inside else data.draw(damage(whole))
    for name, content in (("usps.bz2", broken), ("usps.t.bz2", whole)):
        (tmp_path / "USPS" / name).write_bytes(content)
    with untouched(tmp_path):
        sane(outcome(USPS(str(tmp_path)).load), 4)


def picture(kind="PNG", size=(8, 6), mode="RGB", **options):
    buffer = io.BytesIO()
    Image.new(mode, size, 3).save(buffer, kind, **options)
    return buffer.getvalue()


PICTURES = {
    ".png": picture(),
    ".jpg": picture("JPEG"),
    ".bmp": picture("BMP"),
    ".tiff": picture("TIFF", compression="tiff_lzw"),
    ".webp": picture("WEBP"),
}


@fuzz(60, suffix=st.sampled_from(sorted(PICTURES)), data=st.data(), zipped=st.booleans())
def test_damaged_images(tmp_path, suffix, data, zipped):
    for old in tmp_path.iterdir():
        old.unlink()
    content = data.draw(damage(PICTURES[suffix]))
    if zipped:
        with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
            archive.writestr("a/x" + suffix, content)
    else:
        (tmp_path / ("x" + suffix)).write_bytes(content)
    with untouched(tmp_path):
        path = str(tmp_path / "x.zip" if zipped else tmp_path)
        channels = data.draw(st.sampled_from([1, 3, None]))
        sane(outcome(ImageFolder(path, size=8, channels=channels).load), 4)
        (records, _) = ImageFolder(path, size=8, channels=channels, unreadable="zero").load()
        assert len(records) == 1  # the number of records does not depend on what is in the file


@fuzz(60, data=st.data())
def test_damaged_zips(tmp_path, data):
    buffer = io.BytesIO()
    with zipfile.ZipFile(
        buffer, "w", data.draw(st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))
    ) as archive:
        for i in range(3):
            archive.writestr(f"{i % 2}/{i}.png", PICTURES[".png"])
    path = tmp_path / "celeba64_5000.zip"
    path.write_bytes(data.draw(damage(buffer.getvalue())))
    with untouched(tmp_path):
        sane(outcome(ImageFolder(str(path), size=8).load), 4)
        sane(outcome(CelebA(root=str(tmp_path), size=8).load), 4)


def test_a_picture_that_claims_to_be_huge(tmp_path):
    content = bytearray(picture())
    content[16:24] = struct.pack(">II", 60_000, 60_000)  # width and height
    (tmp_path / "x.png").write_bytes(bytes(content))
    assert outcome(ImageFolder(str(tmp_path), size=8).load) is REFUSED
