"""NumPy files and tables: what is read, from memory and from disk, and what is refused. No pickle is ever loaded."""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dpswd import InputError, records
from dpswd.data import read, read_public

FEATURES, LABELS = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12) % 3
NAN = np.where(FEATURES == 3, np.nan, FEATURES)
BYTES = np.random.default_rng(0).integers(0, 256, (12, 5, 4, 3), dtype=np.uint8)


def saved(path, **arrays):
    np.savez(path / "x.npz", **arrays)
    return path / "x.npz"


def opened(handle, index=None):
    return handle.open_records(torch.arange(len(handle)) if index is None else torch.tensor(index, dtype=torch.int64))


def test_features(tmp_path, capsys):
    path = saved(tmp_path, features=FEATURES.astype(np.float64), labels=LABELS.astype(np.uint8))
    found = read("x.npz", root=tmp_path)
    values, labels = opened(found)
    assert values.tolist() == FEATURES.tolist()
    assert labels.tolist() == LABELS.tolist()
    assert found.taken == (capsys.readouterr().err.strip(),) != ()
    assert found.layout.restore(values).dtype == np.float64
    stated = read(path, classes=range(5), bounds=[(0, 30)] * 2, kinds=["integer", "numeric"])
    assert (stated.n_classes, stated.bounds, stated.kinds) == (5, [(0, 30)] * 2, ["integer", "numeric"])
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


def test_files_of_synthetic_records(tmp_path):
    path = saved(tmp_path, data=BYTES, targets=np.array([*"ab"] * 6))
    assert read_public(path).classes == ["a", "b"]
    assert read_public(path).shape == (3, 5, 4)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": FEATURES, "labels": LABELS}, "'features' or 'images'"),
        ({"features": FEATURES.astype(object), "labels": LABELS}, "as numbers"),
        ({"features": NAN, "labels": LABELS}, "finite records.*unreadable"),
        ({"features": FEATURES, "labels": LABELS[:5]}, "a label per record"),
        ({"features": FEATURES, "labels": LABELS / 2}, "not integers"),
        ({"features": FEATURES.astype(str), "labels": LABELS}, "smartnoise-synth"),
        ({"features": FEATURES[:0], "labels": LABELS[:0]}, "at least one record"),
    ],
)
def test_files_that_do_not_fit(tmp_path, arrays, message):
    with pytest.raises(InputError, match=message) as caught:
        read(saved(tmp_path, **arrays))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("part", [0.05, 0.3, 0.7, 0.95])
def test_damaged_files(tmp_path, save, part):
    save(tmp_path / "x.npz", features=FEATURES, labels=LABELS)
    whole = (tmp_path / "x.npz").read_bytes()
    at = int(part * len(whole))
    for damaged in (whole[:at], whole[:at] + bytes(20) + whole[at + 20 :]):
        (tmp_path / "x.npz").write_bytes(damaged)
        with pytest.raises(InputError, match=r"\.npz|features|labels"):
            read(tmp_path / "x.npz")


class Trap:
    """Code in a file: leaves a file behind when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_no_pickle_is_ever_loaded(tmp_path):
    trap = Trap(tmp_path / "sprung")
    np.savez(tmp_path / "x.npz", features=np.array([trap], dtype=object), labels=LABELS)
    (tmp_path / "y.npz").write_bytes(pickle.dumps(trap))
    for name in ("x.npz", "y.npz"):
        with pytest.raises(InputError, match=r"numbers|readable file"):
            read(tmp_path / name)
    assert not trap.path.exists()


# records that stay on disk


@pytest.mark.parametrize("array", [FEATURES, FEATURES.astype(np.float64), BYTES, BYTES[..., 0], BYTES / 255])
@pytest.mark.parametrize("kind", ["npz", "folder", "fortran"])
def test_records_on_disk_equal_those_in_memory(tmp_path, array, kind):
    arrays = {"features" if array.ndim == 2 else "images": array, "labels": LABELS}
    path = tmp_path
    if kind == "folder":
        for name, value in arrays.items():
            np.save(tmp_path / f"{name}.npy", value)
    else:
        path = saved(tmp_path, **{n: np.asfortranarray(a) if kind == "fortran" else a for n, a in arrays.items()})
    memory, disk = read(path), read(path, in_memory=False)
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


@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_a_file_that_is_replaced_is_refused(tmp_path, kind):
    """The labels of the old file and the rows of the new one would put a person into two records."""

    def write(rows, labels):
        np.savez(tmp_path / "new.npz", features=rows, labels=labels)
        (tmp_path / "new.npz").replace(tmp_path / "x.npz")
        for name, array in (("features", rows), ("labels", labels)):
            np.save(tmp_path / "new.npy", array)
            (tmp_path / "new.npy").replace(tmp_path / f"{name}.npy")

    write(FEATURES, LABELS)
    private = read(tmp_path / "x.npz" if kind == "npz" else tmp_path, in_memory=False)
    assert opened(private, [0, 1])[0].tolist() == FEATURES[:2].tolist()
    write(FEATURES[::-1], LABELS[::-1])
    with pytest.raises(InputError, match="as it was first read, got a changed file"):
        opened(private, [0, 1])


def test_records_on_disk_are_checked(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "IN_MEMORY", 0)
    path = saved(tmp_path, features=NAN, labels=LABELS)
    with pytest.raises(InputError, match=r"finite records.*unreadable"):
        opened(read(path), [0, 1])
    assert opened(read(path, unreadable="zero"))[0][1].tolist() == [0, 0]
    whole = path.read_bytes()
    at = whole.index(np.float32(7).tobytes())
    path.write_bytes(whole[:at] + bytes(4) + whole[at + 4 :])  # a finite number: the checksum tells
    with pytest.raises(InputError, match="CRC"):
        read(path)
    np.savez_compressed(tmp_path / "y.npz", features=FEATURES)
    assert isinstance(read(tmp_path / "y.npz")._values, torch.Tensor)


# tables

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
    assert values.tolist() == [[31, 70.5, 0], [64, 80, 1], [0, 0, 0]]
    assert labels.tolist() == [1, 0, 0]
    assert (found.layout.columns, found.kinds, found.taken) == (("age", "weight", "smokes"), None, ())
    bounds = [(0, 120), (0, 200), (0, 1)]
    taken = table(tmp_path, text, bounds=bounds, **stated)
    assert taken.kinds == ["integer", "numeric", "binary"]
    assert taken.taken[0].startswith("kinds=['integer', 'numeric', 'binary'] are taken from the records")
    assert taken.taken[0] in capsys.readouterr().err
    kinds = ["integer", "integer", "numeric"]
    assert table(tmp_path, text, bounds=bounds, kinds=kinds, **stated).taken == ()
    pd = pytest.importorskip("pandas")
    restored = taken.layout.restore(values)
    assert isinstance(restored, pd.DataFrame)
    assert restored.dtypes.astype(str).tolist() == ["int64", "float32", "int64"]


def test_a_table_needs_no_pandas(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    found = table(tmp_path, "a,b\n1,2\n3,0\n")
    assert found.layout.restore(opened(found)[0]).tolist() == [[1, 2], [3, 0]]


def test_a_table_without_names_or_classes(tmp_path):
    assert table(tmp_path, "1,2\n3,4\n").shape == (2,)
    labelled = table(tmp_path, "a,b\n1,2\n3,0\n", target="b")
    assert labelled.classes == [0, 1, 2]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (TABLE, {}, r"text or mixed types \(sick\); name the column of classes by target; .*smartnoise-synth.*dpmm"),
        (TABLE, {"target": "sick"}, "NaN"),
        (TABLE, {"target": "ill"}, "target"),
        (TABLE, {"target": "sick", "classes": ["no", "maybe"], "unreadable": "zero"}, "not listed"),
        (TABLE + "1,2\n", {}, "4 cells"),
        ("," + TABLE.replace("\n", "\n0,")[:-2], {}, "empty or repeated"),
        ("a,b\n1,x\n2,\n", {"target": "b"}, "empty cell"),
        ("a,b\n", {}, "names of its columns only"),
        ("", {}, "empty"),
        ("a\n1\n", {"size": 8}, "no size"),
    ],
)
def test_tables_that_do_not_fit(tmp_path, text, options, message):
    with pytest.raises(InputError, match=message) as caught:
        table(tmp_path, text, **options)
    assert "\n" not in str(caught.value)


def test_what_is_no_file_of_records(tmp_path):
    (tmp_path / "x.mat").write_bytes(b"")
    with pytest.raises(InputError, match=r"x\.mat.*PrivateRecords"):
        read(tmp_path / "x.mat")
    with pytest.raises(InputError, match="check the path"):
        read(tmp_path / "none.npz")
