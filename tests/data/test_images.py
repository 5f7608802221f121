"""Image folders and zips: what is read, the split's sensitivity, and files that cannot be read."""

import io
import shutil
import zipfile
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from dpswd import InputError
from dpswd.data import ImageFolder, base
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
    """Two classes, six images, grey and RGB, two formats, and a text file."""
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


PACKS = pytest.mark.parametrize("pack", [lambda folder: folder, zipped], ids=["folder", "zip"])


@pytest.mark.parametrize("channels", [1, 3])
@PACKS
def test_images(folder, pack, channels):
    data = ImageFolder(str(pack(folder)), size=4, channels=channels, test_split=False)
    records = data.private
    assert data.test is None
    assert data.n_classes == 2
    assert records.values.shape == (6, *data.sample_shape) == (6, channels, 4, 4)
    assert records.values.dtype == torch.uint8
    assert records.labels.tolist() == [0, 0, 1, 1, 1, 1]
    if channels == 3:
        assert records.values[0, :, 0, 0].tolist() == [10, 20, 30]


@PACKS
def test_images_that_are_decoded_at_every_pass(folder, pack, monkeypatch):
    options = {"size": 4, "channels": 3}
    memory = ImageFolder(str(pack(folder)), **options)
    whole = memory.private.floats()
    monkeypatch.setattr(base, "IN_MEMORY", 0)
    stored = ImageFolder(str(pack(folder)), **options)
    assert isinstance(stored.private.values, base.Stored)
    assert torch.equal(stored.private.floats(), whole)
    assert torch.equal(stored.private.floats(torch.tensor([3, 1])), whole[[3, 1]])
    assert torch.equal(stored.test.floats(), memory.test.floats())
    (folder / "cats" / "1.png").write_bytes(b"damaged")
    broken = ImageFolder(str(pack(folder)), **options, test_split=False)
    assert len(broken.private) == 6  # nothing is decoded
    with pytest.raises(InputError, match=r"readable image, got cats/1\.png"):
        broken.private.floats()
    black = ImageFolder(str(pack(folder)), **options, test_split=False, unreadable="zero").private.floats()
    assert not black[0].any()


@pytest.mark.parametrize(
    ("size", "mode", "shape"),
    [((8, 8), "L", (1, 8, 8)), ((28, 30), "RGB", (3, 28, 28)), ((128, 128), "1", (1, 128, 128)),
     ((300, 200), "RGB", (3, 64, 64))],
)  # fmt: skip
def test_size_and_channels_are_taken_from_the_images(tmp_path, size, mode, shape):
    """Of most images; nothing but headers is read for it. A stated number wins."""
    for i in range(5):
        (tmp_path / f"{i}.png").write_bytes(png(size, mode=mode))
    (tmp_path / "0.png").write_bytes(png((50, 50), mode="RGB" if shape[0] == 1 else "L"))
    data = ImageFolder(str(tmp_path), test_split=False)
    data._read = None
    assert data.sample_shape == shape
    del data._read
    assert data.private.values.shape == (5, *shape)
    assert ImageFolder(str(tmp_path), size=16, channels=3).sample_shape == (3, 16, 16)


def test_images_are_read_in_the_order_of_their_names(tmp_path):
    for i in range(120):
        (tmp_path / f"{i:03}.png").write_bytes(png(colour=(i, i, i)))
    values = ImageFolder(str(tmp_path), size=4, channels=1, test_split=False).private.values
    assert values[:, 0, 0, 0].tolist() == list(range(120))


def grey_images(root, places):
    """Writes images by relative path, each of its own grey."""
    for name, grey in places.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(colour=(grey, grey, grey)))
    return root


def multiset(records):
    return Counter(zip(records.values[:, 0, 0, 0].tolist(), records.labels.tolist(), strict=True))


REPLACED = [("a/000.png", "b/000.png"), ("a/000.png", "b/zzz.png"), ("b/199.png", "a/0.png"), ("a/050.png", "a/x.png")]


@pytest.mark.parametrize(
    ("pack", "shared"), [(lambda folder: folder, False), (zipped, True)], ids=["names", "names that classes share"]
)
def test_replacing_one_image_replaces_at_most_one_private_record(tmp_path, pack, shared):
    places = {f"{'ab'[i >= 100]}/{i % 100 if shared else i:03d}.png": i for i in range(200)}
    one = grey_images(tmp_path / "one", places)
    private = ImageFolder(str(pack(one)), size=4).private
    assert len(private) == 160
    moved = []
    for i, old in enumerate(places):  # records change their class; a few change their name as well
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
    assert max(moved) == 1

    def path_order(folder):
        return every_fifth(ImageFolder(str(folder), size=4, test_split=False).private)[0]

    shifted = multiset(path_order(one)) - multiset(path_order(tmp_path / "other0"))
    assert shifted.total() > 10  # control: every fifth in the order of the paths


@PACKS
def test_a_class_without_images_keeps_its_number(tmp_path, pack):
    places = {"a/0.png": 0} | {f"{'bc'[i % 2]}/{i}.png": i for i in range(1, 21)}
    one = grey_images(tmp_path / "one", places)
    before = ImageFolder(str(pack(one)), size=4, test_split=False).private
    (one / "a" / "0.png").rename(one / "b" / "0.png")
    after = ImageFolder(str(pack(one)), size=4, test_split=False)
    assert after.private.labels.unique().tolist() == [1, 2]
    assert after.n_classes == 3
    assert (multiset(before) - multiset(after.private)).total() == 1
    (one / "a").rmdir()  # control: the list of folders is public, and another list is another task
    assert ImageFolder(str(pack(one)), size=4, test_split=False).private.labels.unique().tolist() == [0, 1]


def test_folders_that_are_not_classes(folder):
    wanted = ImageFolder(str(folder), size=4, test_split=False).private.labels
    for name in (".ipynb_checkpoints/x.png", "__MACOSX/cats/._1.png", "cats/.thumbs/1.png"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(b"no image")
    for path in (folder, zipped(folder)):
        assert torch.equal(ImageFolder(str(path), size=4, test_split=False).private.labels, wanted)
    (folder / "stray.png").write_bytes(png())
    with pytest.raises(InputError, match=r"innermost folders of .*, got stray\.png"):
        ImageFolder(str(folder), size=4).load()
    (folder / "stray.png").rename(folder / "dogs" / "stray.png")
    (folder / "cats" / "inner").mkdir()
    with pytest.raises(InputError, match=r"innermost folders of .*, got cats/[12]\.(png|PNG)"):
        ImageFolder(str(folder), size=4).load()


def test_zips_that_hide_an_empty_class_or_an_image(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a/1.png", png())
        archive.writestr("b/2.png", png())
    with pytest.raises(InputError, match=r"lists its folders .*, got no entry for a"):
        ImageFolder(str(tmp_path / "x.zip"), size=4).load()
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:  # control: one class needs no list
        archive.writestr("a/1.png", png())
    assert len(ImageFolder(str(tmp_path / "one.zip"), size=4).private) == 1
    with zipfile.ZipFile(tmp_path / "one.zip", "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("a/1.png", png())
    with pytest.raises(InputError, match=r"got two of a/1\.png"):
        ImageFolder(str(tmp_path / "one.zip"), size=4).load()


@PACKS
@pytest.mark.parametrize(
    "content",
    [b"", b"no image at all", png()[:40], noisy()[:400], b"GIF89a", png()[:16] + b"\0\0\xea\x60" * 2 + png()[24:]],
    ids=["empty", "text", "head", "cut", "gif", "huge"],
)
def test_an_unreadable_image_is_refused_or_black(folder, pack, content):
    """Issue 15, item 5: the message recommends the map that keeps N, and the map changes this record only."""
    before = ImageFolder(str(pack(folder)), size=4, test_split=False).private
    (folder / "dogs" / "4.png").write_bytes(content)
    path = str(pack(folder))
    with pytest.raises(InputError, match=r"got dogs/4\.png .*unreadable=zero") as caught:
        ImageFolder(path, size=4).load()
    assert "\n" not in str(caught.value)
    after = ImageFolder(path, size=4, test_split=False, unreadable="zero").private
    assert torch.equal(after.labels, before.labels)
    changed = (after.values != before.values).flatten(1).any(1)
    assert changed.tolist() == [False, False, False, True, False, False]
    assert not after.values[3].any()


def test_an_image_for_which_memory_is_short_is_not_black(folder, monkeypatch):
    """Memory depends on the images that are decoded at the same time, so the black image would depend on them."""
    decode = Image.open

    def short(file):
        if str(file).endswith("4.png"):
            raise MemoryError
        return decode(file)

    monkeypatch.setattr(Image, "open", short)
    with pytest.raises(InputError, match=r"Expected memory to decode dogs/4\.png"):
        ImageFolder(str(folder), size=4, channels=3, unreadable="zero").load()


def test_missing_path_and_text_file(tmp_path):
    with pytest.raises(InputError, match=r"data\.path"):
        ImageFolder(str(tmp_path / "none")).load()
    (tmp_path / "file.zip").write_text("no zip")
    with pytest.raises(InputError, match="a zip of images"):
        ImageFolder(str(tmp_path / "file.zip")).load()
