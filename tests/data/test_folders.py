"""Image folders and zips: what is read, what is taken from the images, and files that cannot be read."""

import io
import shutil
import zipfile
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from dpswd import InputError, records
from dpswd.data import read, read_public
from dpswd.data.folders import Images, read_folder


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


def opened(handle, index=None):
    return handle.open_records(torch.arange(len(handle)) if index is None else torch.tensor(index))


PACKS = pytest.mark.parametrize("pack", [lambda folder: folder, zipped], ids=["folder", "zip"])


@pytest.mark.parametrize("channels", [1, 3])
@PACKS
def test_images(folder, pack, channels, capsys):
    found = read_folder(str(pack(folder)), size=4, channels=channels, classes=["cats", "dogs"])
    assert (found.classes, found.taken, found.name) == (["cats", "dogs"], (), "images")
    assert not capsys.readouterr().err
    values, labels = opened(found)
    assert values.shape == (6, *found.shape) == (6, channels, 4, 4)
    assert labels.tolist() == [0, 0, 1, 1, 1, 1]
    assert found.layout.restore(values).shape == ((6, 4, 4) if channels == 1 else (6, 4, 4, 3))
    if channels == 3:
        assert (values[0, :, 0, 0] * 255).tolist() == [10, 20, 30]
    public = read_public(pack(folder), size=4, channels=channels)
    assert torch.equal(public.train.floats(), values)
    assert read(pack(folder), size=4, channels=channels, labelled=False).n_classes == 0


def test_facts_that_are_taken_from_the_images_are_named(folder, capsys, monkeypatch):
    found = read(folder)
    told = "size=6, channels=3 and classes=['cats', 'dogs'] are taken from the records and treated as public; pass"
    assert found.taken[0].startswith(told)
    assert capsys.readouterr().err.strip() == found.taken[0]
    assert read(folder, size=6, classes=["cats", "dogs"]).taken[0].startswith("channels=3 is taken from the records")
    capsys.readouterr()
    monkeypatch.setenv("RANK", "1")
    assert read(folder).taken == found.taken
    assert not capsys.readouterr().err


@PACKS
def test_images_that_are_decoded_at_every_pass(folder, pack, monkeypatch):
    whole = opened(read(pack(folder), size=4, channels=3))[0]
    monkeypatch.setattr(records, "IN_MEMORY", 0)
    stored = read(pack(folder), size=4, channels=3)
    assert isinstance(stored._values, records.Stored)
    assert torch.equal(opened(stored)[0], whole)
    assert torch.equal(opened(stored, [3, 1])[0], whole[[3, 1]])
    (folder / "cats" / "1.png").write_bytes(b"damaged")
    broken = read(pack(folder), size=4, channels=3)
    assert len(broken) == 6  # nothing is decoded
    with pytest.raises(InputError, match=r"readable image, got cats/1\.png"):
        opened(broken)
    assert not opened(read(pack(folder), size=4, channels=3, unreadable="zero"))[0][0].any()


@pytest.mark.parametrize(
    ("size", "mode", "shape"),
    [((8, 8), "L", (1, 8, 8)), ((28, 30), "RGB", (3, 28, 28)), ((128, 128), "1", (1, 128, 128)),
     ((300, 200), "RGB", (3, 64, 64))],
)  # fmt: skip
def test_size_and_channels_of_most_images(tmp_path, monkeypatch, size, mode, shape):
    """Nothing but headers is read for it. A stated number wins."""
    for i in range(5):
        (tmp_path / f"{i}.png").write_bytes(png(size, mode=mode))
    (tmp_path / "0.png").write_bytes(png((50, 50), mode="RGB" if shape[0] == 1 else "L"))
    assert opened(read(tmp_path))[0].shape == (5, *shape)
    monkeypatch.setattr(Images, "decode", None)
    assert read(tmp_path, in_memory=False).shape == shape
    assert read(tmp_path, size=16, channels=3, in_memory=False).shape == (3, 16, 16)


def test_images_are_read_in_the_order_of_their_names(tmp_path):
    for i in range(120):
        (tmp_path / f"{i:03}.png").write_bytes(png(colour=(i, i, i)))
    values = opened(read(tmp_path, size=4, channels=1))[0]
    assert (values[:, 0, 0, 0] * 255).tolist() == list(range(120))


def grey_images(root, places):
    """Write images by relative path, each of its own grey."""
    for name, grey in places.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png(colour=(grey, grey, grey)))
    return root


def multiset(path):
    values, labels = opened(read(path, size=4, channels=1))
    return Counter(zip(values[:, 0, 0, 0].tolist(), labels.tolist(), strict=True))


REPLACED = [("a/00.png", "b/00_.png"), ("a/00.png", "b/zz.png"), ("b/39.png", "a/0.png"), ("a/05.png", "a/x.png")]


@PACKS
def test_replacing_one_image_replaces_one_record(tmp_path, pack):
    one = grey_images(tmp_path / "one", {f"{'ab'[i >= 20]}/{i:02}.png": i for i in range(40)})
    before = multiset(pack(one))
    for i, (old, new) in enumerate(REPLACED):  # its class, its name, and its pixels
        other = tmp_path / f"other{i}"
        shutil.copytree(one, other)
        (other / old).unlink()
        after = multiset(pack(grey_images(other, {new: 255})))
        assert after.total() == before.total() == 40
        assert (before - after).total() == 1


@PACKS
def test_a_class_without_images_keeps_its_number(tmp_path, pack):
    one = grey_images(tmp_path / "one", {"a/0.png": 0} | {f"{'bc'[i % 2]}/{i}.png": i for i in range(1, 21)})
    (one / "a" / "0.png").rename(one / "b" / "0.png")
    after = read(pack(one), size=4)
    assert (after.classes, opened(after)[1].unique().tolist()) == (["a", "b", "c"], [1, 2])
    (one / "a").rmdir()  # control: the list of folders is public, and another list is another task
    assert read(pack(one), size=4).classes == ["b", "c"]
    stated = read(pack(one), size=4, classes=["c", "a", "b"])
    assert opened(stated)[1].unique().tolist() == [0, 2]


def test_folders_that_are_not_classes(folder):
    wanted = opened(read(folder, size=4))[1]
    for name in (".ipynb_checkpoints/x.png", "__MACOSX/cats/._1.png", "cats/.thumbs/1.png"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(b"no image")
    for path in (folder, zipped(folder)):
        assert torch.equal(opened(read(path, size=4))[1], wanted)
    with pytest.raises(InputError, match=r"in the folders cats, mice, got dogs/"):
        read(folder, classes=["cats", "mice"])
    (folder / "stray.png").write_bytes(png())
    with pytest.raises(InputError, match=r"innermost folders .*, got stray\.png"):
        read(folder, size=4)
    (folder / "stray.png").rename(folder / "dogs" / "stray.png")
    (folder / "cats" / "inner").mkdir()
    with pytest.raises(InputError, match=r"innermost folders .*, got cats/[12]\.(png|PNG)"):
        read(folder, size=4)


def test_zips_that_hide_an_empty_class_or_an_image(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a/1.png", png())
        archive.writestr("b/2.png", png())
    with pytest.raises(InputError, match=r"lists its folders.*, got no entry for a"):
        read(tmp_path / "x.zip", size=4)
    assert read(tmp_path / "x.zip", size=4, classes=["a", "b", "c"]).n_classes == 3  # control
    with zipfile.ZipFile(tmp_path / "one.zip", "w") as archive:  # control: one class needs no list
        archive.writestr("a/1.png", png())
    assert read(tmp_path / "one.zip", size=4).n_classes == 0
    with zipfile.ZipFile(tmp_path / "one.zip", "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("a/1.png", png())
    with pytest.raises(InputError, match=r"got two of a/1\.png"):
        read(tmp_path / "one.zip", size=4)


@PACKS
@pytest.mark.parametrize(
    "content",
    [b"", b"no image at all", png()[:40], noisy()[:400], b"GIF89a", png()[:16] + b"\0\0\xea\x60" * 2 + png()[24:]],
    ids=["empty", "text", "head", "cut", "gif", "huge"],
)
def test_an_unreadable_image_is_refused_or_black(folder, pack, content):
    """The message recommends the map that keeps N, and the map changes this record only."""
    before, labels = opened(read(pack(folder), size=4))
    (folder / "dogs" / "4.png").write_bytes(content)
    path = pack(folder)
    with pytest.raises(InputError, match=r'got dogs/4\.png .*unreadable="zero"') as caught:
        read(path, size=4)
    assert "\n" not in str(caught.value)
    after, same = opened(read(path, size=4, unreadable="zero"))
    assert torch.equal(labels, same)
    assert (after != before).flatten(1).any(1).tolist() == [False, False, False, True, False, False]
    assert not after[3].any()


def test_an_image_for_which_memory_is_short_is_not_black(folder, monkeypatch):
    """Memory depends on the images that are decoded at the same time, so the black image would depend on them."""
    decode = Image.open

    def short(file):
        if str(file).endswith("4.png"):
            raise MemoryError
        return decode(file)

    monkeypatch.setattr(Image, "open", short)
    with pytest.raises(InputError, match=r"Expected memory to decode dogs/4\.png"):
        read(folder, size=4, channels=3, unreadable="zero")


@pytest.mark.parametrize("options", [{"size": 2}, {"channels": 2}, {"classes": ["cats"]}, {"unreadable": "drop"}])
def test_options_out_of_range(folder, options):
    with pytest.raises(InputError, match=next(iter(options))):
        read(folder, **options)


def test_missing_path_and_text_file(tmp_path):
    with pytest.raises(InputError, match="check the path"):
        read_folder(tmp_path / "none")
    (tmp_path / "file.zip").write_text("no zip")
    with pytest.raises(InputError, match="a zip of images"):
        read(tmp_path / "file.zip")
