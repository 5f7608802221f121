"""NumPy files, tables and image folders: what is read, taken, refused. No pickle is ever loaded."""

import io
import pickle
import shutil
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from factories import Trap, write_images
from PIL import Image

from dpswd import InputError, PrivateRecords, records
from dpswd.data import read, read_public
from dpswd.data.folders import Images

FEATURES, LABELS = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12) % 3
NAN = np.where(FEATURES == 3, np.nan, FEATURES)
BYTES = np.random.default_rng(0).integers(0, 256, (12, 5, 4, 3), dtype=np.uint8)


def saved(path, **arrays):
    np.savez(path / "x.npz", **arrays)
    return path / "x.npz"


def opened(handle, index=None):
    return handle.open_records(
        torch.arange(len(handle)) if index is None else torch.tensor(index, dtype=torch.int64)
    )


def test_features(tmp_path, capsys):
    path = saved(tmp_path, features=FEATURES.astype(np.float64), labels=LABELS.astype(np.uint8))
    found = read("x.npz", root=tmp_path)
    values, labels = opened(found)
    assert (values.tolist(), labels.tolist()) == (FEATURES.tolist(), LABELS.tolist())
    assert found.taken == (capsys.readouterr().err.strip(),) != ()
    assert found.layout.restore(values).dtype == np.float64
    stated = read(path, classes=range(5), bounds=[(0, 30)] * 2, kinds=["integer", "numeric"])
    assert (stated.n_classes, stated.bounds, stated.kinds) == (
        5,
        [(0, 30)] * 2,
        ["integer", "numeric"],
    )
    assert stated.taken == ()
    assert not capsys.readouterr().err
    named = read(saved(tmp_path, features=FEATURES, labels=LABELS, classes=[*"abcd"]))
    assert (named.classes, named.taken) == ([*"abcd"], ())
    assert read(saved(tmp_path, features=FEATURES)).n_classes == 0
    np.save(tmp_path / "rows.npy", FEATURES)
    assert read(tmp_path / "rows.npy").shape == (2,)
    with pytest.raises(InputError, match="no classes"):
        read(tmp_path / "rows.npy", classes=range(5))


def test_classes_that_are_left_out(tmp_path, capsys):
    """They are not even read, so that none of them can be refused."""
    (tmp_path / "x.csv").write_text("a,b\n1,\n2,x\n")
    for path, options in (
        (saved(tmp_path, features=FEATURES, labels=LABELS * 0), {}),
        (tmp_path / "x.csv", {"target": "b"}),
    ):
        with pytest.raises(InputError, match="class"):
            read(path, **options)
        assert read(path, labelled=False, **options).n_classes == 0
    assert read("digits", labelled=False).n_classes == 0
    assert not capsys.readouterr().err


@pytest.mark.parametrize("shape", [(28, 28), (28, 28, 3)])
def test_medmnist(tmp_path, capsys, shape):
    """Labels (N, 1); the training part plays the private records, and public records come with the test part."""
    arrays = {}
    for part, n in (("train", 6), ("val", 2), ("test", 3)):
        arrays[f"{part}_images"] = np.full((n, *shape), n, dtype=np.uint8)
        arrays[f"{part}_labels"] = np.arange(n, dtype=np.uint8)[:, None] % 2
    path = saved(tmp_path, **arrays)
    found = read(path, classes=["normal", "pneumonia"])
    assert (len(found), found.shape[1:], found.classes) == (6, (28, 28), ["normal", "pneumonia"])
    assert "train_images of x.npz" in capsys.readouterr().err
    public = read_public(path)
    assert (len(public.train), len(public.test), public.n_classes) == (6, 3, 2)
    assert public.test.labels.tolist() == [0, 1, 0]


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("part", [0.05, 0.3, 0.7, 0.95])
def test_damaged_files(tmp_path, save, part):
    save(tmp_path / "x.npz", features=FEATURES, labels=LABELS)
    whole = (tmp_path / "x.npz").read_bytes()
    at = int(part * len(whole))
    for content in (whole[:at], whole[:at] + bytes(20) + whole[at + 20 :]):
        (tmp_path / "x.npz").write_bytes(content)
        with pytest.raises(InputError, match=r"\.npz|features|labels"):
            read(tmp_path / "x.npz")


@pytest.mark.parametrize(
    "array", [FEATURES, FEATURES.astype(np.float64), BYTES, BYTES[..., 0], BYTES / 255]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_records_on_disk_equal_those_in_memory(tmp_path, array, order):
    for name, value in {
        "features" if array.ndim == 2 else "images": array,
        "labels": LABELS,
    }.items():
        np.save(tmp_path / f"{name}.npy", np.asarray(value, order=order))
    memory, disk = read(tmp_path), read(tmp_path, in_memory=False)
    assert isinstance(memory._values, torch.Tensor)
    assert isinstance(disk._values, records.Stored)
    assert (len(disk), disk.shape, disk.layout) == (len(memory), memory.shape, memory.layout)
    for index in (None, [3, 1], []):
        assert all(map(torch.equal, opened(disk, index), opened(memory, index)))


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_other_records_have_another_digest(tmp_path, kind, in_memory):
    """Without labels, too: a rank that reads the same records in another order would read one of them twice."""
    found = []
    for rows in (FEATURES, FEATURES, FEATURES[::-1]):
        np.save(tmp_path / "features.npy", rows)
        path = saved(tmp_path, features=rows) if kind == "npz" else tmp_path
        found.append(read(path, in_memory=in_memory).digest())
    assert found[0] == found[1] != found[2]


def test_a_file_that_is_replaced_is_refused(tmp_path):
    """The labels of the old file and the rows of the new one would put a person into two records."""

    def write(rows, labels):
        for name, array in (("features", rows), ("labels", labels)):
            np.save(tmp_path / "new.npy", array)
            (tmp_path / "new.npy").replace(tmp_path / f"{name}.npy")

    write(FEATURES, LABELS)
    private = read(tmp_path, in_memory=False)
    assert opened(private, [0, 1])[0].tolist() == FEATURES[:2].tolist()
    write(FEATURES[::-1], LABELS[::-1])
    with pytest.raises(InputError, match="as it was first read, got a changed file"):
        opened(private, [0, 1])


def test_records_on_disk_are_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "IN_MEMORY", 0)
    for name, array in (("features", NAN), ("labels", LABELS)):
        np.save(tmp_path / f"{name}.npy", array)
    with pytest.raises(InputError, match=r"finite records.*unreadable"):
        opened(read(tmp_path), [0, 1])
    assert opened(read(tmp_path, unreadable="zero"))[0][1].tolist() == [0, 0]
    assert isinstance(read(saved(tmp_path, features=FEATURES))._values, torch.Tensor)


TABLE = "age,weight,smokes,sick\n31,70.5,0,yes\n64,80,1,no\n50,,1,no\n"


def table(path, text, **options):
    (path / "people.csv").write_text(text, encoding="utf-8-sig")
    return read(path / "people.csv", **options)


@pytest.mark.parametrize("delimiter", [*",;\t"])
def test_a_table_of_numbers(tmp_path, capsys, delimiter):
    text = TABLE.replace(",", delimiter)
    stated = {"target": "sick", "classes": ["no", "yes"], "unreadable": "zero"}
    found = table(tmp_path, text, **stated)
    values, labels = opened(found)
    assert (values.tolist(), labels.tolist()) == (
        [[31, 70.5, 0], [64, 80, 1], [0, 0, 0]],
        [1, 0, 0],
    )
    assert (found.layout.columns, found.kinds, found.taken) == (
        ("age", "weight", "smokes"),
        None,
        (),
    )
    bounds = [(0, 120), (0, 200), (0, 1)]
    taken = table(tmp_path, text, bounds=bounds, **stated)
    assert taken.kinds == ["integer", "numeric", "binary"]
    assert "records and treated as public: kinds=['integer', 'numeric', 'binary']" in taken.taken[0]
    assert taken.taken[0] in capsys.readouterr().err
    kinds = ["integer", "integer", "numeric"]
    assert table(tmp_path, text, bounds=bounds, kinds=kinds, **stated).taken == ()
    pd = pytest.importorskip("pandas")
    restored = taken.layout.restore(values)
    assert isinstance(restored, pd.DataFrame)
    assert restored.dtypes.astype(str).tolist() == ["int64", "float32", "int64"]


def test_a_table_needs_no_pandas_names_or_classes(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    found = table(tmp_path, "1,2\n3,0\n")
    assert found.layout.restore(opened(found)[0]).tolist() == [[1, 2], [3, 0]]
    assert table(tmp_path, "a,b\n1,2\n3,0\n", target="b").classes == [0, 1, 2]
    assert table(tmp_path, "y,0,1\n1,2,3\n0,5,6\n", target="y").layout.columns == ("0", "1")


LABELLED = {"features": FEATURES, "labels": LABELS}
SICK = {"target": "sick"}
REFUSED = [  # name, content (arrays, text or bytes), options, message
    ("x.npz", {"x": FEATURES}, {}, "'features' or 'images'"),
    ("x.npz", LABELLED | {"features": FEATURES.astype(object)}, {}, "Object arrays"),
    ("x.npz", LABELLED | {"features": np.array([Trap()], dtype=object)}, {}, "readable file"),
    ("x.npz", pickle.dumps(Trap()), {}, "readable file"),
    ("x.npz", LABELLED | {"features": NAN}, {}, "finite records.*unreadable"),
    ("x.npz", LABELLED | {"labels": LABELS[:5]}, {}, "a class per record"),
    ("x.npz", LABELLED | {"labels": LABELS / 2}, {}, "not integers"),
    ("x.npz", LABELLED | {"features": FEATURES.astype(str)}, {}, "smartnoise-synth"),
    ("x.npz", {"features": FEATURES[:0], "labels": LABELS[:0]}, {}, "at least one record"),
    ("x.npz", LABELLED, {"unreadable": "drop"}, "unreadable"),
    (
        "x.csv",
        TABLE,
        {},
        r"mixed types \(sick\); name the column of classes by target.*; .*smartnoise-synth.*dpmm",
    ),
    ("x.csv", TABLE, SICK, "NaN"),
    ("x.csv", TABLE, {"target": "ill"}, "target"),
    ("x.csv", TABLE, SICK | {"classes": ["no", "maybe"], "unreadable": "zero"}, "not listed"),
    ("x.csv", TABLE + "1,2\n", {}, "4 cells"),
    ("x.csv", "," + TABLE.replace("\n", "\n0,")[:-2], {}, "or repeated"),
    ("x.csv", "a,b\n1,x\n2,\n", {"target": "b"}, "empty cell"),
    ("x.csv", "5,x\n6, x\n7,y\n", {"target": "x"}, "line of names"),
    ("x.csv", "0.126,?\n6,7\n", {}, "line of names"),
    ("x.csv", "a,b\n", {}, "with records"),
    ("x.csv", "", {}, "with records"),
    ("x.csv", "a\n1\n", {"size": 8}, "no size"),
    ("x.mat", b"", {}, r"x\.mat.*PrivateRecords"),
    ("x.zip", b"", {}, r"x\.zip; unpack"),
    ("none", None, {}, "check the path"),
]


@pytest.mark.parametrize(("name", "content", "options", "message"), REFUSED)
def test_files_that_do_not_fit(tmp_path, name, content, options, message):
    if isinstance(content, dict):
        np.savez(tmp_path / name, **content)
    elif content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=message) as caught:
        read(tmp_path / name, **options)
    assert "\n" not in str(caught.value)
    assert not Trap.sprung  # no pickle is loaded


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
    monkeypatch.setattr(records, "IN_MEMORY", 0)
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
    stated = read(one, size=4, classes=["c", "a", "b"])
    assert opened(stated)[1].unique().tolist() == [0, 2]


def test_folders_that_are_not_classes_and_options_that_do_not_fit(folder):
    wanted = opened(read(folder, size=4))[1]
    for name in (".ipynb_checkpoints/x.png", "__MACOSX/cats/._1.png", "cats/.thumbs/1.png"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_bytes(b"no image")
    assert torch.equal(opened(read(folder, size=4))[1], wanted)
    for options, message in (
        ({"classes": ["cats", "mice"]}, r"in the folders cats, mice, got dogs/"),
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
    after, same = opened(read(folder, size=4, unreadable="zero"))
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
