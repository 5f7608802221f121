"""Folders of images: classes, sizes, links, hidden files, and neighbours."""

import io
import os
import shutil
import struct
import unicodedata
from collections import Counter
from contextlib import suppress

import numpy as np
import pytest
import torch
from factories import opened, write_images
from PIL import Image

from dpswd import InputError, PrivateRecords, records
from dpswd._public_facts import DO_NOT_REMOVE
from dpswd.data import read, read_public
from dpswd.data.folders import Images


def png(size=(8, 6), colour=(10, 20, 30), mode="RGB", kind="PNG"):
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).convert(mode).save(buffer, kind)
    return buffer.getvalue()


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


@pytest.mark.parametrize("channels", [1, 3])
def test_images(folder, channels, capsys):
    found = PrivateRecords.from_folder(
        str(folder), size=4, channels=channels, classes=["cats", "dogs"]
    )
    assert (found.classes, found.taken, found.name) == (["cats", "dogs"], (), "images")
    assert capsys.readouterr().err.endswith("/images, files of other types are left out: .txt.\n")
    (folder / "cats" / "notes.txt").unlink()
    PrivateRecords.from_folder(folder, size=4, channels=channels, classes=["cats", "dogs"])
    assert not capsys.readouterr().err
    values, labels = opened(found)
    assert values.shape == (6, *found.shape) == (6, channels, 4, 4)
    assert labels.tolist() == [0, 0, 1, 1, 1, 1]
    assert found.layout.restore(values).shape == ((6, 4, 4) if channels == 1 else (6, 4, 4, 3))
    if channels == 3:
        assert (values[0, :, 0, 0] * 255).tolist() == [10, 20, 30]
    public = read_public(folder, size=4, channels=channels)
    assert torch.equal(public.train.floats(), values)
    assert read(folder, size=4, channels=channels, labelled=False).n_classes == 0


def test_images_that_are_decoded_at_every_pass(folder, monkeypatch):
    whole = opened(read(folder, size=4, channels=3))[0]
    monkeypatch.setattr(records, "MOST_BYTES_IN_MEMORY", 0)
    stored = read(folder, size=4, channels=3)
    assert isinstance(stored._values, records.Stored)
    assert torch.equal(opened(stored)[0], whole)
    assert torch.equal(opened(stored, [3, 1])[0], whole[[3, 1]])
    (folder / "cats" / "1.png").write_bytes(b"damaged")
    broken = read(folder, size=4, channels=3)
    assert len(broken) == 6  # nothing is decoded
    with pytest.raises(InputError, match=r"readable image, got cats/1\.png"):
        opened(broken)
    assert not opened(read(folder, size=4, channels=3, unreadable="zero"))[0][0].any()


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


def grey_images(root, places):
    """Writes images by relative path, each of its own grey."""
    return write_images(root, {name: np.full((6, 8), grey) for name, grey in places.items()})


def multiset(path):
    values, labels = opened(read(path, size=4, channels=1))
    return Counter(zip(values[:, 0, 0, 0].tolist(), labels.tolist(), strict=True))


REPLACED = [
    ("a/00.png", "b/00_.png"),
    ("a/00.png", "b/zz.png"),
    ("b/39.png", "a/0.png"),
    ("a/05.png", "a/x.png"),
]


def test_replacing_one_image_replaces_one_record(tmp_path):
    one = grey_images(tmp_path / "one", {f"{'ab'[i >= 20]}/{i:02}.png": i for i in range(40)})
    before = multiset(one)
    for i, (old, new) in enumerate(REPLACED):  # its class, its name, and its pixels
        other = tmp_path / f"other{i}"
        shutil.copytree(one, other)
        (other / old).unlink()
        after = multiset(grey_images(other, {new: 255}))
        assert after.total() == before.total() == 40
        assert (before - after).total() == 1


def test_a_class_without_images_keeps_its_number(tmp_path):
    one = grey_images(
        tmp_path / "one", {"a/0.png": 0} | {f"{'bc'[i % 2]}/{i}.png": i for i in range(1, 21)}
    )
    (one / "a" / "0.png").rename(one / "b" / "0.png")
    after = read(one, size=4)
    assert (after.classes, opened(after)[1].unique().tolist()) == (["a", "b", "c"], [1, 2])
    (one / "a").rmdir()  # control: the list of folders is public, and another list is another task
    assert read(one, size=4).classes == ["b", "c"]
    with pytest.raises(InputError, match=r"a folder of the class 'a' in .*, got none"):
        read(one, size=4, classes=["c", "a", "b"])
    (one / "a").mkdir()
    stated = read(one, size=4, classes=["c", "a", "b"])
    assert opened(stated)[1].unique().tolist() == [0, 2]


def test_a_misspelt_class_is_shown_with_its_folder(tmp_path):
    images = grey_images(tmp_path / "one", {f"{'bc'[i % 2]}ats/{i}.png": i for i in range(4)})
    words = 'write the class as its folder is called, "bats" in place of "Bat"'
    with pytest.raises(InputError, match=words):
        read(images, size=4, classes=["Bat", "cats"])


def test_a_class_that_has_a_folder_is_not_taken_for_misspelt(tmp_path):
    names = [f"{'man woman_blond woman_dark'.split()[i % 3]}/{i}.png" for i in range(6)]
    images = grey_images(tmp_path / "one", dict.fromkeys(names, 0))
    with pytest.raises(InputError, match=r"got woman_blond/1\.png; move it, or add its class"):
        read(images, size=4, classes=["man", "woman_dark"])


def test_folders_that_are_not_classes_and_options_that_do_not_fit(folder):
    wanted = opened(read(folder, size=4))[1]
    for name in (".ipynb_checkpoints/x.png", "__MACOSX/cats/._1.png", "cats/.thumbs/1.png"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(b"no image")
    assert torch.equal(opened(read(folder, size=4))[1], wanted)
    for options, message in (
        ({"classes": ["cats", "mice"]}, r"classes 'cats', 'mice', got dogs/.*add its class"),
        ({"classes": ["cats,dogs", "mice"]}, "state each class by itself"),
        ({"classes": ["cats", "dogs"], "unit": "folder"}, "CLASS/PERSON/001"),
        ({"unit": "person"}, "--unit folder"),
        ({"classes": ["cats"]}, "classes"),
        ({"size": 2}, "size"),
        ({"channels": 2}, "channels"),
    ):
        with pytest.raises(InputError, match=message):
            read(folder, **options)
    (folder / "stray.png").write_bytes(png())
    with pytest.raises(InputError, match=r"innermost folders .*, got stray\.png"):
        read(folder, size=4)
    (folder / "stray.png").rename(folder / "dogs" / "stray.png")
    (folder / "cats" / "inner").mkdir()
    with pytest.raises(InputError, match=r"innermost folders .*, got cats/[12]\.(png|PNG)"):
        read(folder, size=4)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no image at all",
        png()[:40],
        png((300, 300))[:-40],
        b"GIF89a",
        png()[:16] + b"\0\0\xea\x60" * 2 + png()[24:],
    ],
    ids=["empty", "text", "head", "cut", "gif", "huge"],
)
def test_an_unreadable_image_is_refused_or_black(folder, content):
    """The message recommends the map that keeps N, and the map changes this record only."""
    before, labels = opened(read(folder, size=4))
    (folder / "dogs" / "4.png").write_bytes(content)
    with pytest.raises(InputError, match=r'got dogs/4\.png .*unreadable="zero"') as caught:
        read(folder, size=4)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(DO_NOT_REMOVE)
    after, same = opened(read(folder, size=4, unreadable="zero"))
    assert torch.equal(labels, same)
    assert (after != before).flatten(1).any(1).tolist() == [False, False, False, True, False, False]
    assert not after[3].any()


def damaged_tiff(kind):
    """A TIFF file on which Pillow logs a line, or the C library writes one."""
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), (10, 20, 30)).save(buffer, "TIFF", compression="tiff_deflate")
    content = bytearray(buffer.getvalue())
    if kind == "samples":
        entry = content.index(struct.pack("<HHI", 277, 3, 1))  # samples per pixel
        content[entry + 8] = 59
    else:
        start = content.index(b"\x78\x9c")  # of the compressed pixels
        content[start + 2 : start + 6] = b"\xff" * 4
    return bytes(content)


@pytest.mark.parametrize("kind", ["samples", "pixels"])
def test_decoders_write_nothing_about_a_damaged_image(folder, kind, capfd, caplog):
    """Pillow and the C library of TIFF files name sizes and positions of the one damaged image."""
    (folder / "cats" / "notes.txt").unlink()
    image = folder / "dogs" / "5.tif"
    image.write_bytes(damaged_tiff(kind))
    with suppress(Exception):
        Image.open(image).load()
    assert capfd.readouterr().err + caplog.text
    caplog.clear()
    for stated in ({"size": 4, "channels": 3}, {"size": 4, "channels": 3, "in_memory": False}):
        handle = read(folder, classes=["cats", "dogs"], unreadable="zero", **stated)
        assert not opened(handle)[0][5].any()
    assert (capfd.readouterr().err, caplog.text) == ("", "")


def test_an_image_for_which_memory_is_short_is_not_black(folder, monkeypatch):
    """Memory depends on the images that are decoded at the same time,
    so the black image would depend on them.
    """
    decode = Image.open

    def short(file):
        if str(file).endswith("4.png"):
            raise MemoryError
        return decode(file)

    monkeypatch.setattr(Image, "open", short)
    with pytest.raises(InputError, match=r"Expected memory to decode dogs/4\.png"):
        read(folder, size=4, channels=3, unreadable="zero")


@pytest.mark.parametrize(
    "hidden", ["cats/.hidden.png", ".secret/1.png", "cats/.thumbs/deep/2.png", ".cats.jpg"]
)
def test_hidden_images_are_left_out_with_a_line(folder, capsys, hidden):
    """Whether a file is hidden changes the number of records, which is public."""
    (folder / "cats" / "notes.txt").unlink()
    n = len(read(folder, size=4, channels=1, classes=["cats", "dogs"]))
    assert capsys.readouterr().err == ""
    (folder / hidden).parent.mkdir(parents=True, exist_ok=True)
    (folder / hidden).write_bytes(png())
    assert len(read(folder, size=4, channels=1, classes=["cats", "dogs"])) == n
    assert "images in hidden files and folders (.name) are left out" in capsys.readouterr().err


def test_links_to_folders_and_images_are_followed(folder, tmp_path):
    """A linked class folder was once a class without records."""
    right = opened(read(folder, size=4, channels=3))
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "cats").symlink_to(folder / "cats")
    (linked / "dogs").mkdir()
    for image in (folder / "dogs").iterdir():
        (linked / "dogs" / image.name).symlink_to(image)
    assert all(map(torch.equal, opened(read(linked, size=4, channels=3)), right))


@pytest.mark.parametrize(
    ("link", "target"),
    [("birds", "cats"), ("cats/again.png", "cats/1.png"), ("dogs/1.png", "cats/1.png"), ("x", ".")],
)
def test_links_that_read_a_record_twice_are_refused(folder, link, target):
    (folder / link).unlink(missing_ok=True)
    (folder / link).symlink_to(folder / target)
    with pytest.raises(InputError, match="the same by a link; remove the link"):
        read(folder, size=4)


def test_a_folder_that_cannot_be_read_is_refused(folder, monkeypatch):
    """Its images would be left out."""
    scan = os.scandir

    def denied(path):
        if str(path).endswith("dogs"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(InputError, match=r"readable folder at .*dogs"):
        read(folder, size=4)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "a folder without files; check the path"),
        (["cats/1.dcm", "dogs/2.gif"], r"other types alone \(\.dcm, \.gif\); convert them"),
        ([".cats/1.png"], "hidden ones alone.*rename them"),
    ],
)
def test_a_folder_without_images_says_what_it_has(tmp_path, names, message):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(png())
    with pytest.raises(InputError, match=message):
        read(tmp_path, size=4)


def test_images_without_labels_may_be_in_any_folder(folder):
    os.rename(folder / "cats" / "1.png", folder / "1.png")
    with pytest.raises(InputError, match=r"got 1\.png"):
        read(folder, size=4)
    assert len(read(folder, size=4, labelled=False)) == 6


def test_folders_that_a_mac_has_named_are_the_stated_classes(folder):
    os.rename(folder / "cats", folder / unicodedata.normalize("NFD", "kätzchen"))
    stated = unicodedata.normalize("NFC", "kätzchen")
    handle = read(folder, size=4, classes=[stated, "dogs"])
    assert opened(handle)[1].tolist() == [1, 1, 1, 1, 0, 0]
    assert read(folder, size=4).classes == ["dogs", stated]


def test_names_of_classes_that_are_no_utf8_are_refused(folder):
    """They once ended in a traceback of the report, after the budget was spent."""
    os.rename(folder / "cats", os.fsencode(folder) + b"/cats\xff")
    with pytest.raises(InputError, match="UTF-8"):
        read(folder, size=4)
    assert read(folder, size=4, labelled=False).n_classes == 0


def test_a_refusal_quotes_nothing_of_a_damaged_file(tmp_path):
    write_images(tmp_path, {"a/1.png": [[0] * 4] * 4, "b/2.png": [[0] * 4] * 4})
    (tmp_path / "b" / "2.png").write_bytes(b"P2\n4 4\n255\nMeier 3 4")
    with pytest.raises(InputError, match=r"got b/2\.png \(damaged: ValueError\)") as caught:
        read(tmp_path, size=4, channels=1)
    assert "Meier" not in str(caught.value)
