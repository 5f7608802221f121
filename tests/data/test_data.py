"""Data modules on small files made here, and on files that lie."""

import hashlib
import io
import shutil
import struct
import zipfile
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from dpswd import InputError
from dpswd.data import MNIST, USPS, Digits, FashionMNIST, ImageFolder, Records
from dpswd.data.base import every_fifth


def png(size=(8, 6), colour=(10, 20, 30), mode="RGB", kind="PNG"):
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).convert(mode).save(buffer, kind)
    return buffer.getvalue()


def noisy():
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32), dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()  # more than 1,000 bytes


@pytest.fixture
def folder(tmp_path):
    """Two classes, six images: grey and RGB, two formats, with a file that is no image among them."""
    for name, content in {
        "cats/1.png": png(),
        "cats/2.PNG": png((5, 9), mode="L"),
        "cats/notes.txt": b"no image",
        "dogs/1.jpg": png(kind="JPEG"),
        "dogs/deep.png": png(mode="RGBA"),
        "dogs/4.png": png(mode="P"),
        "dogs/5.png": png(mode="1"),
    }.items():
        (tmp_path / "images" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "images" / name).write_bytes(content)
    return tmp_path / "images"


def zipped(folder):
    path = folder.with_suffix(".zip")
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*")):
            archive.write(file, file.relative_to(folder))
    return path


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("pack", [lambda folder: folder, zipped], ids=["folder", "zip"])
def test_images(folder, pack, channels):
    data = ImageFolder(str(pack(folder)), size=4, channels=channels, test_split=False)
    records = data.private
    assert data.test is None
    assert records.values.shape == (6, channels, 4, 4)
    assert records.values.dtype == torch.uint8
    assert records.labels.tolist() == [0, 0, 1, 1, 1, 1]
    pixels = records.floats()
    assert pixels.dtype == torch.float32
    assert 0 <= float(pixels.min()) <= float(pixels.max()) <= 1
    if channels == 3:
        assert records.values[0, :, 0, 0].tolist() == [10, 20, 30]


def test_folder_and_zip_agree(folder):
    one, other = (ImageFolder(str(path), size=4, test_split=False).private for path in (folder, zipped(folder)))
    assert torch.equal(one.values, other.values)
    assert torch.equal(one.labels, other.labels)


def test_images_without_folders_are_one_class(tmp_path):
    for i in range(6):
        (tmp_path / f"{i}.png").write_bytes(png(colour=(i, i, i)))
    data = ImageFolder(str(tmp_path), size=4)
    assert data.private.labels.tolist() == [0] * 5
    names = sorted(range(6), key=lambda i: hashlib.sha256(f"{i}.png".encode()).digest())
    assert data.test.values[0, 0, 0, 0] == names[-1]  # the last in an order of names, whatever it shows


def grey_images(root, places):
    """Writes images by relative path, each of a grey of its own."""
    for name, grey in places.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(colour=(grey, grey, grey)))
    return root


def multiset(records):
    return Counter(zip(records.values[:, 0, 0, 0].tolist(), records.labels.tolist(), strict=True))


def path_order(folder):
    """The rule that this replaces: every fifth in the order of the paths."""
    return every_fifth(ImageFolder(str(folder), size=4, test_split=False).private)[0]


REPLACED = [("a/000.png", "b/000.png"), ("a/000.png", "b/zzz.png"), ("b/199.png", "a/0.png"), ("a/050.png", "a/x.png")]


@pytest.mark.parametrize("pack", [lambda folder: folder, zipped], ids=["folder", "zip"])
@pytest.mark.parametrize("shared", [False, True], ids=["names", "names that classes share"])
def test_replacing_one_image_replaces_at_most_one_private_record(tmp_path, pack, shared):
    places = {f"{'ab'[i >= 100]}/{i % 100 if shared else i:03d}.png": i for i in range(200)}
    one = grey_images(tmp_path / "one", places)
    private = ImageFolder(str(pack(one)), size=4).private
    assert len(private) == 160
    moved = []
    for i, old in enumerate(places):  # every record once changes its class; a few change their name as well
        if i % 20 and old not in dict(REPLACED):
            continue
        new = dict(REPLACED).get(old, f"{'ba'[old[0] == 'b']}/{old[2:]}")
        if new in places:
            new = new.replace(".png", "_.png")
        other = tmp_path / f"other{i}"
        shutil.copytree(one, other)
        (other / old).unlink()
        grey_images(other, {new: 255})
        after = ImageFolder(str(pack(other)), size=4).private
        assert len(after) == 160
        moved.append((multiset(private) - multiset(after)).total())
    assert max(moved) == 1  # a record that stays in the test part moves none
    shifted = multiset(path_order(one)) - multiset(path_order(tmp_path / "other0"))
    assert shifted.total() > 10  # control: the old rule


@pytest.mark.parametrize("pack", [lambda folder: folder, zipped], ids=["folder", "zip"])
def test_a_class_that_loses_its_only_image_keeps_its_number(tmp_path, pack):
    places = {"a/0.png": 0} | {f"{'bc'[i % 2]}/{i}.png": i for i in range(1, 21)}
    one = grey_images(tmp_path / "one", places)
    before = ImageFolder(str(pack(one)), size=4, test_split=False).private
    (one / "a" / "0.png").rename(one / "b" / "0.png")
    after = ImageFolder(str(pack(one)), size=4, test_split=False).private
    assert after.labels.unique().tolist() == [1, 2]
    assert (multiset(before) - multiset(after)).total() == 1
    (one / "a").rmdir()  # control: the list of folders is public, and another one is another task
    assert ImageFolder(str(pack(one)), size=4, test_split=False).private.labels.unique().tolist() == [0, 1]


def test_folders_that_are_no_classes(folder):
    wanted = ImageFolder(str(folder), size=4, test_split=False).private.labels
    for name in (".ipynb_checkpoints/x.png", "__MACOSX/cats/._1.png", "cats/.thumbs/1.png"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(b"no image")
    for path in (folder, zipped(folder)):
        assert torch.equal(ImageFolder(str(path), size=4, test_split=False).private.labels, wanted)
    (folder / "stray.png").write_bytes(png())
    with pytest.raises(InputError, match=r"innermost folders of .*, got stray\.png beside folders; move it into one"):
        ImageFolder(str(folder), size=4).load()
    (folder / "stray.png").rename(folder / "dogs" / "stray.png")
    (folder / "cats" / "inner").mkdir()
    with pytest.raises(InputError, match=r"innermost folders of .*, got cats/[12]\.(png|PNG) beside folders"):
        ImageFolder(str(folder), size=4).load()


def test_zips_that_hide_an_empty_class_or_an_image(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a/1.png", png())
        archive.writestr("b/2.png", png())
    with pytest.raises(InputError, match=r"Expected a zip that lists its folders .*, got no entry for a; make it with"):
        ImageFolder(str(tmp_path / "x.zip"), size=4).load()
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:  # control: one class needs no list
        archive.writestr("a/1.png", png())
    assert len(ImageFolder(str(tmp_path / "one.zip"), size=4).private) == 1
    with zipfile.ZipFile(tmp_path / "one.zip", "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("a/1.png", png())
    with pytest.raises(InputError, match=r"Expected one image of each name in .*, got two of a/1\.png; rename one"):
        ImageFolder(str(tmp_path / "one.zip"), size=4).load()


def test_a_path_below_the_root(folder, monkeypatch):
    monkeypatch.setenv("DPSWD_DATA", str(folder.parent))
    assert len(ImageFolder("images", size=4, test_split=False).private) == 6
    monkeypatch.setenv("DPSWD_DATA", "elsewhere")
    assert len(ImageFolder("images", root=str(folder.parent), size=4, test_split=False).private) == 6


@pytest.mark.parametrize("pack", [lambda folder: folder, zipped], ids=["folder", "zip"])
@pytest.mark.parametrize(
    "content",
    [b"", b"no image at all", png()[:40], noisy()[:400], b"GIF89a"],
    ids=["empty", "text", "head", "cut", "gif"],
)
def test_an_unreadable_image(folder, pack, content):
    (folder / "cats" / "bad.png").write_bytes(content)
    with pytest.raises(
        InputError, match=r"Expected a readable image, got cats/bad\.png \(.*\); repair or remove it"
    ) as e:
        ImageFolder(str(pack(folder)), size=4).load()
    assert "\n" not in str(e.value)


def test_an_empty_folder_and_an_empty_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    (tmp_path / "empty").mkdir()
    for name in ("empty", "empty.zip"):
        with pytest.raises(InputError, match=r"Expected images \(\.bmp, .*\) in .*empty.*, got none\."):
            ImageFolder(str(tmp_path / name)).load()


def test_no_folder_and_no_zip(tmp_path):
    with pytest.raises(InputError, match=r"Expected a folder or zip of images at .*none, got nothing there; check"):
        ImageFolder(str(tmp_path / "none")).load()
    (tmp_path / "file.zip").write_text("no zip")
    with pytest.raises(InputError, match=r"Expected a zip of images at .*, got: File is not a zip file"):
        ImageFolder(str(tmp_path / "file.zip")).load()


def damaged(folder, change):
    path = zipped(folder)
    path.write_bytes(change(path.read_bytes()))
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content[:200],
        lambda content: content.replace(png(), png()[:-8] + b"12345678"),
        lambda content: content.replace(b"PK\x03\x04\x14\x00\x00\x00", b"PK\x03\x04\x14\x00\x01\x00").replace(
            b"PK\x01\x02\x14\x03\x14\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01\x00"
        ),
        lambda content: content.replace(
            b"PK\x01\x02\x14\x03\x14\x00\x00\x00\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x00\x00\x63\x00"
        ),
    ],
    ids=["cut", "checksum", "encrypted", "method"],
)
def test_a_damaged_zip(folder, change):
    with pytest.raises(InputError, match=r"Expected a zip of images at .*, got: .*; make it again"):
        ImageFolder(str(damaged(folder, change))).load()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 3}, r"Expected size >= 4, got size=3\."),
        ({"channels": 2}, r"Expected channels=1 \(grey\) or 3 \(RGB\), got channels=2\."),
        ({"batch_size": 0}, r"Expected batch_size >= 1, got batch_size=0\."),
        ({"n_synthetic": 0}, r"Expected n_synthetic >= 1, got n_synthetic=0\."),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(InputError, match=message):
        ImageFolder("x", **options)


# IDX files


def write_idx(path, shape, content, kind=8):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(">HBB", 0, kind, len(shape)) + struct.pack(f">{len(shape)}I", *shape) + content)


@pytest.fixture
def idx(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    for split, count in (("train", 5), ("t10k", 2)):
        write_idx(raw / f"{split}-images-idx3-ubyte", (count, 28, 28), bytes(range(256)) * 4 * count)
        content = bytes(range(256)) * 4 * count
        write_idx(raw / f"{split}-images-idx3-ubyte", (count, 28, 28), content[: count * 784])
        write_idx(raw / f"{split}-labels-idx1-ubyte", (count,), bytes(range(count)))
    return raw


def test_mnist(idx, tmp_path):
    data = MNIST(root=str(tmp_path))
    assert data.private.values.shape == (5, 1, 28, 28)
    assert data.private.labels.tolist() == [0, 1, 2, 3, 4]
    assert len(data.test) == 2


@pytest.mark.parametrize(
    ("shape", "size", "kind"),
    [
        ((5, 28, 28), 784, 8),
        ((10**9, 28, 28), 5 * 784, 8),
        ((4, 28, 28), 5 * 784, 8),
        ((5, 784), 5 * 784, 8),
        ((5, 28, 28), 5 * 784, 10),
        ((5, 28, 28), 5 * 784, 7),
        ((3, 28, 28), 3 * 784, 8),
        ((5, 28, 28), 0, 8),
    ],
    ids=["short", "huge", "long", "flat", "no type", "no type either", "fewer than labels", "header only"],
)
def test_idx_files_that_lie(idx, tmp_path, shape, size, kind):
    write_idx(idx / "train-images-idx3-ubyte", shape, bytes(size), kind)
    with pytest.raises(InputError, match=r"Expected .*MNIST|Expected images and labels under") as caught:
        MNIST(root=str(tmp_path)).load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\0", b"\0\0\x08\x03\0", b"text in place of numbers"])
def test_idx_files_with_a_broken_header(idx, tmp_path, content):
    (idx / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(InputError, match=r"Expected .*MNIST"):
        MNIST(root=str(tmp_path)).load()


def test_a_missing_directory(tmp_path):
    for kind in (MNIST, FashionMNIST, USPS):
        with pytest.raises(
            InputError, match=r"Expected \w+ under .*none.*, got: Dataset not found.*; pass --data\.root"
        ):
            kind(root=str(tmp_path / "none")).load()
    assert not (tmp_path / "none" / "MNIST").exists()


@pytest.mark.data
@pytest.mark.parametrize(
    ("kind", "shape", "n_test"),
    [
        (MNIST, (60_000, 1, 28, 28), 10_000),
        (FashionMNIST, (60_000, 1, 28, 28), 10_000),
        (USPS, (7291, 1, 16, 16), 2007),
    ],
)
def test_real_data(data_root, kind, shape, n_test):
    data = kind(root=str(data_root))
    assert tuple(data.private.values.shape) == shape
    assert len(data.test) == n_test
    assert sorted(data.private.labels.unique().tolist()) == list(range(10))


# records


def test_digits():
    data = Digits()
    assert data.private.values.shape == (1438, 1, 8, 8)
    assert len(data.test) == 359
    assert float(data.private.values.max()) == 1


def test_the_split_does_not_look_at_the_data():
    train, test = every_fifth(Records(torch.arange(12.0)[:, None], torch.zeros(12, dtype=torch.int64)))
    assert test.values.flatten().tolist() == [4, 9]
    assert len(train) == 10


@pytest.mark.parametrize(
    ("batch_size", "n_quantiles", "size"), [(None, None, 1438), (None, 100, 1400), (None, 1438, 1438), (50, 7, 50)]
)
def test_release_size(batch_size, n_quantiles, size):
    assert Digits(batch_size=batch_size).release_size(n_quantiles) == size


def test_more_blocks_than_records():
    with pytest.raises(InputError, match="Expected n_quantiles <= the number of records, got 1439 and 1438 records"):
        Digits().release_size(1439)


@pytest.mark.parametrize(
    ("values", "labels", "message"),
    [
        (torch.zeros(0, 2), torch.zeros(0).long(), "Expected at least one record, got none"),
        (torch.zeros(3, 2), torch.zeros(2).long(), "Expected a label per record, got 3 and 2"),
        (torch.tensor([[float("inf")]]), torch.zeros(1).long(), "Expected finite records, got nan or inf"),
    ],
)
def test_records_that_do_not_fit(values, labels, message):
    with pytest.raises(InputError, match=message):
        Records(values, labels)
