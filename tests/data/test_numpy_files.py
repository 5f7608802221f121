"""NumPy files: what is read, taken, refused. No pickle is ever loaded."""

import pickle

import numpy as np
import pytest
import torch
from factories import Trap, check_refusal, opened

from dpswd import InputError, records
from dpswd.data import read, read_public

FEATURES, LABELS = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12) % 3


NAN = np.where(FEATURES == 3, np.nan, FEATURES)


BYTES = np.random.default_rng(0).integers(0, 256, (12, 5, 4, 3), dtype=np.uint8)


def saved(path, **arrays):
    np.savez(path / "x.npz", **arrays)
    return path / "x.npz"


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
    assert named.classes == [*"abcd"]
    assert "classes=" in named.taken[-1]
    assert read(saved(tmp_path, features=FEATURES)).n_classes == 0
    np.save(tmp_path / "rows.npy", FEATURES)
    assert read(tmp_path / "rows.npy").shape == (2,)
    with pytest.raises(InputError, match="no classes"):
        read(tmp_path / "rows.npy", classes=range(5))


@pytest.mark.parametrize("shape", [(28, 28), (28, 28, 3)])
def test_medmnist(tmp_path, capsys, shape):
    """Labels (N, 1); the training part plays the private records,
    and public records come with the test part.
    """
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
    """Without labels, too: a rank that reads the same records in another order would read
    one of them twice.
    """
    found = []
    for rows in (FEATURES, FEATURES, FEATURES[::-1]):
        np.save(tmp_path / "features.npy", rows)
        path = saved(tmp_path, features=rows) if kind == "npz" else tmp_path
        found.append(read(path, in_memory=in_memory).digest())
    assert found[0] == found[1] != found[2]


def test_a_file_that_is_replaced_is_refused(tmp_path):
    """The labels of the old file and the rows of the new one would put a person
    into two records.
    """

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
    monkeypatch.setattr(records, "MOST_BYTES_IN_MEMORY", 0)
    for name, array in (("features", NAN), ("labels", LABELS)):
        np.save(tmp_path / f"{name}.npy", array)
    with pytest.raises(InputError, match=r"finite records.*unreadable"):
        opened(read(tmp_path), [0, 1])
    assert opened(read(tmp_path, unreadable="zero"))[0][1].tolist() == [0, 0]
    assert isinstance(read(saved(tmp_path, features=FEATURES))._values, torch.Tensor)


LABELLED = {"features": FEATURES, "labels": LABELS}


@pytest.mark.parametrize(
    ("arrays", "options", "message"),
    [
        ({"x": FEATURES}, {}, "'features' or 'images' .*got x; save the arrays with names"),
        (LABELLED | {"features": FEATURES.astype(object)}, {}, "array of Python objects"),
        (LABELLED | {"features": np.array([Trap()], dtype=object)}, {}, "array of Python objects"),
        (
            LABELLED | {"labels": np.array(["a", "b"], object)[LABELS % 2]},
            {},
            r"array 'labels' of .*\.astype\(str\)",
        ),
        (LABELLED | {"features": NAN}, {}, "finite records.*unreadable"),
        (LABELLED | {"labels": LABELS[:5]}, {}, "a label for each record"),
        (LABELLED | {"labels": LABELS / 2}, {}, "not integers"),
        (LABELLED | {"features": FEATURES.astype(str)}, {}, "--columns FILE"),
        ({"features": FEATURES[:0], "labels": LABELS[:0]}, {}, "at least one record"),
        (LABELLED, {"unreadable": "drop"}, "unreadable"),
        (LABELLED, {"target": "labels"}, "no target"),
        (LABELLED, {"columns": {"age": {"low": 0, "high": 9}}}, "no columns .*got facts of"),
        ({"features": FEATURES}, {"classes": [0, 1]}, "name its array of labels 'labels'"),
        (LABELLED, {"classes": [0, 1]}, "not listed"),
    ],
)
def test_arrays_that_do_not_fit(tmp_path, arrays, options, message):
    np.savez(tmp_path / "x.npz", **arrays)
    check_refusal(tmp_path / "x.npz", options, message)


@pytest.mark.parametrize("part", [0, 0.5, 0.99])
def test_a_file_that_was_not_written_to_its_end_is_named_as_such(tmp_path, part):
    np.savez(tmp_path / "x.npz", **LABELLED)
    content = (tmp_path / "x.npz").read_bytes()
    (tmp_path / "x.npz").write_bytes(content[: int(part * len(content))])
    check_refusal(tmp_path / "x.npz", {}, "not written to its end; write it again")


def test_a_pickle_is_not_loaded(tmp_path):
    (tmp_path / "x.npz").write_bytes(pickle.dumps(Trap()))
    check_refusal(tmp_path / "x.npz", {}, "readable file")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.mat", r"x\.mat; convert it to one of these"),
        ("x.zip", r"x\.zip; unpack"),
        ("x.tsv", r"x\.tsv; rename it to \.csv"),
        ("x", "got x; convert it to one of these"),
        ("none.npz", "check the path"),
    ],
)
def test_other_files_are_refused(tmp_path, name, message):
    if not name.startswith("none"):
        (tmp_path / name).write_bytes(b"")
    check_refusal(tmp_path / name, {}, message)


@pytest.mark.parametrize(
    ("records_name", "labels_name"),
    [
        ("features", "labels"),
        ("features", "label"),
        ("images", "y"),
        ("images", "targets"),
        ("data", "targets"),
        ("X", "y"),
        ("x_train", "y_train"),
        ("x_train", "train_labels"),
        ("train_images", "train_labels"),
    ],
)
def test_labels_beside_the_records_are_read(tmp_path, records_name, labels_name):
    """Labels of another name were once left out in silence."""
    handle = read(saved(tmp_path, **{records_name: FEATURES, labels_name: LABELS}))
    assert opened(handle)[1].tolist() == LABELS.tolist()
    stated = read(tmp_path / "x.npz", classes=["a", "b", "c"])
    assert stated.classes == ["a", "b", "c"]


def test_names_of_columns_beside_an_array(tmp_path):
    columns = np.array(["age", "height"])
    path = saved(tmp_path, features=FEATURES, labels=LABELS, columns=columns)
    assert read_public(path).columns == ("age", "height")
    assert read_public(saved(tmp_path, features=FEATURES)).columns is None


@pytest.mark.parametrize("names", [["age"], ["age", "height", "weight"]])
def test_names_of_other_columns_are_refused(tmp_path, names):
    path = saved(tmp_path, features=FEATURES, labels=LABELS, columns=np.array(names))
    with pytest.raises(InputError, match=f"got {len(names)} names for records of shape"):
        read_public(path)
