"""Feature files and arrays in memory: what is read, what is refused. No pickle is ever loaded."""

import pickle

import numpy as np
import pytest
import torch
from factories import Trap

from dpswd import InputError
from dpswd.data import ArrayData, FeatureFile, base

FEATURES, LABELS = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12) % 3
NAN = np.where(FEATURES == 3, np.nan, FEATURES)


def saved(path, **arrays):
    np.savez(path / "x.npz", **arrays)
    return str(path / "x.npz")


def test_features(tmp_path):
    path = saved(tmp_path, features=FEATURES.astype(np.float64), labels=LABELS.astype(np.uint8))
    data = FeatureFile(path)
    assert data.private.values.shape == (10, 2)
    assert data.sample_shape == (2,)
    assert data.test.values.tolist() == FEATURES[[4, 9]].tolist()
    assert data.private.labels.dtype == torch.int64
    assert len(FeatureFile("x.npz", root=str(tmp_path), test_split=False).private) == 12


def test_number_of_classes(tmp_path):
    """Stated, or the file's list of classes, or the largest label plus one; 0 without labels."""
    assert FeatureFile(saved(tmp_path, features=FEATURES, labels=LABELS)).n_classes == 3
    assert FeatureFile(saved(tmp_path, features=FEATURES, labels=LABELS), n_classes=5).n_classes == 5
    assert FeatureFile(saved(tmp_path, features=FEATURES, labels=LABELS), labelled=False).n_classes == 0
    assert FeatureFile(saved(tmp_path, features=FEATURES, labels=LABELS, classes=[*"abcd"])).n_classes == 4
    bare = FeatureFile(saved(tmp_path, features=FEATURES))
    assert bare.n_classes == 0
    assert set(bare.private.labels.tolist()) == {0}
    with pytest.raises(InputError, match="labels"):
        FeatureFile(saved(tmp_path, features=FEATURES), labelled=True).load()
    for labels, n_classes in ((LABELS, 2), (LABELS * 0, None)):
        with pytest.raises(InputError, match="classes"):
            FeatureFile(saved(tmp_path, features=FEATURES, labels=labels), n_classes=n_classes).load()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": FEATURES, "labels": LABELS}, "features"),
        ({"features": FEATURES.astype(object), "labels": LABELS}, r"features \(N, d\)"),
        ({"features": NAN, "labels": LABELS}, "finite records.*unreadable=zero"),
        ({"features": FEATURES.astype(np.float64) + 1e300, "labels": LABELS}, "finite records"),
        ({"features": FEATURES, "labels": LABELS[:5]}, r"labels \(N,\)"),
        ({"features": FEATURES, "labels": LABELS / 2}, "integer labels"),
        ({"features": FEATURES, "labels": LABELS - 1}, "labels of at least 0"),
        ({"features": FEATURES, "labels": LABELS * 10**6}, "labels below"),
        ({"features": FEATURES.astype(str), "labels": LABELS}, r"features \(N, d\)"),
        ({"features": FEATURES[:0], "labels": LABELS[:0]}, "at least one record"),
    ],
)
def test_feature_files_that_do_not_fit(tmp_path, arrays, message):
    with pytest.raises(InputError, match=message) as caught:
        FeatureFile(saved(tmp_path, **arrays)).load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("part", [0.05, 0.3, 0.7, 0.95])
def test_damaged_feature_files(tmp_path, save, part):
    save(tmp_path / "x.npz", features=FEATURES, labels=LABELS)
    whole = (tmp_path / "x.npz").read_bytes()
    at = int(part * len(whole))
    for damaged in (whole[:at], whole[:at] + bytes(20) + whole[at + 20 :]):
        (tmp_path / "x.npz").write_bytes(damaged)
        with pytest.raises(InputError, match=r"\.npz|features|labels"):
            FeatureFile(str(tmp_path / "x.npz")).load()


def test_rows_with_nan_become_zeros(tmp_path):
    data = FeatureFile(saved(tmp_path, features=NAN, labels=LABELS), test_split=False, unreadable="zero")
    changed = (data.private.values.numpy() != FEATURES).any(1)
    assert np.flatnonzero(changed).tolist() == [1]
    assert data.private.values[1].tolist() == [0, 0]


def test_no_pickle_is_ever_loaded(tmp_path):
    np.savez(tmp_path / "x.npz", features=np.array([Trap()], dtype=object), labels=LABELS)
    (tmp_path / "y.npz").write_bytes(pickle.dumps(Trap()))
    for name in ("x.npz", "y.npz"):
        with pytest.raises(InputError, match=r"\.npz|features"):
            FeatureFile(str(tmp_path / name)).load()
    assert not Trap.sprung


@pytest.fixture
def on_disk(monkeypatch):
    monkeypatch.setattr(base, "IN_MEMORY", 0)


BYTES = np.random.default_rng(0).integers(0, 256, (12, 5, 4, 3), dtype=np.uint8)


@pytest.mark.parametrize("array", [FEATURES, FEATURES.astype(np.float64), BYTES, BYTES[..., 0], BYTES / 255])
@pytest.mark.parametrize("kind", ["npz", "folder", "fortran"])
def test_records_on_disk_equal_those_in_memory(tmp_path, monkeypatch, array, kind):
    arrays = {"features" if array.ndim == 2 else "images": array, "labels": LABELS}
    path = str(tmp_path)
    if kind == "folder":
        for name, value in arrays.items():
            np.save(tmp_path / f"{name}.npy", value)
    else:
        path = saved(tmp_path, **{n: np.asfortranarray(a) if kind == "fortran" else a for n, a in arrays.items()})
    memory = FeatureFile(path)
    assert isinstance(memory.private.values, torch.Tensor)
    expected = ArrayData(array).private.select(torch.arange(12) % 5 != 4)
    monkeypatch.setattr(base, "IN_MEMORY", 0)
    disk = FeatureFile(path)
    assert isinstance(disk.private.values, base.Stored)
    assert disk.public_facts() == memory.public_facts()
    for mine, other in ((disk.private, memory.private), (disk.test, memory.test), (disk.private, expected)):
        assert torch.equal(mine.floats(), other.floats())
        assert torch.equal(mine.select(torch.tensor([1, 0])).floats(slice(1)), other.floats(torch.tensor([1])))
    assert torch.equal(disk.private.labels, memory.private.labels)
    assert disk.private.digest() == disk.private.digest() != disk.test.digest()


@pytest.mark.parametrize("size", [0, 2**30])
@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_other_records_have_another_digest(tmp_path, monkeypatch, kind, size):
    """Without labels, too: a rank that reads the same records in another order would read one of them twice."""
    monkeypatch.setattr(base, "IN_MEMORY", size)
    found = []
    for rows in (FEATURES, FEATURES, FEATURES[::-1]):
        np.save(tmp_path / "features.npy", rows)
        path = saved(tmp_path, features=rows) if kind == "npz" else str(tmp_path)
        found.append(FeatureFile(path, test_split=False).private.digest())
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_a_file_that_is_replaced_is_refused(tmp_path, on_disk, kind):
    """The labels of the old file and the rows of the new one would put a person into two records."""

    def write(rows, labels):
        np.savez(tmp_path / "new.npz", features=rows, labels=labels)
        (tmp_path / "new.npz").replace(tmp_path / "x.npz")
        for name, array in (("features", rows), ("labels", labels)):
            np.save(tmp_path / "new.npy", array)
            (tmp_path / "new.npy").replace(tmp_path / f"{name}.npy")

    write(FEATURES, LABELS)
    private = FeatureFile(str(tmp_path / "x.npz" if kind == "npz" else tmp_path)).private
    assert private.floats(slice(2)).tolist() == FEATURES[:2].tolist()
    write(FEATURES[::-1], LABELS[::-1])
    with pytest.raises(InputError, match="as it was first read, got a changed file"):
        private.floats(slice(2))


def test_records_on_disk_are_checked(tmp_path, on_disk):
    path = saved(tmp_path, features=NAN, labels=LABELS)
    with pytest.raises(InputError, match=r"finite records.*unreadable=zero"):
        FeatureFile(path, test_split=False).private.floats(torch.arange(4))
    zeros = FeatureFile(path, test_split=False, unreadable="zero").private
    assert zeros.floats()[1].tolist() == [0, 0]
    whole = (tmp_path / "x.npz").read_bytes()
    at = whole.index(np.float32(7).tobytes())
    (tmp_path / "x.npz").write_bytes(whole[:at] + bytes(4) + whole[at + 4 :])  # a finite number: the checksum tells
    with pytest.raises(InputError, match="CRC"):
        FeatureFile(path).load()
    np.savez_compressed(tmp_path / "y.npz", features=FEATURES)
    assert isinstance(FeatureFile(str(tmp_path / "y.npz")).private.values, torch.Tensor)
    (tmp_path / "features.npy").write_bytes(b"")
    with pytest.raises(InputError, match=r"readable .* \.npy files"):
        FeatureFile(str(tmp_path)).load()


def test_missing_file():
    with pytest.raises(InputError, match=r"data\.path"):
        FeatureFile("none.npz").load()


# arrays


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor, lambda values: values.tolist()])
def test_arrays_of_images(convert):
    grey = np.arange(2 * 4 * 3, dtype=np.uint8).reshape(2, 4, 3)
    values = convert(grey)
    if isinstance(values, list):
        values = (np.asarray(values) / 255).tolist()  # floats in [0, 1]
    data = ArrayData(values)
    assert data.sample_shape == (1, 4, 3)
    assert data.n_classes == 0
    assert np.allclose(data.private.floats()[:, 0] * 255, grey)
    colour = np.stack([grey, grey + 1, grey + 2], axis=3)
    assert ArrayData(colour).private.values[1, 2].tolist() == (grey[1] + 2).tolist()


class Frame:
    """Converts to an array as a data frame does."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.array(self.values, dtype=dtype)


def test_arrays_of_rows_and_a_data_frame():
    frame = Frame(FEATURES)
    for values in (FEATURES, torch.from_numpy(FEATURES), frame, FEATURES.astype(int)):
        data = ArrayData(values, LABELS, test=(FEATURES[:2], LABELS[:2]))
        assert data.private.values.tolist() == FEATURES.tolist()
        assert (data.n_classes, len(data.test)) == (3, 2)
    named = ArrayData(frame, Frame([*"abca"] * 3), classes=["a", "b", "c", "d"])
    assert named.private.labels.tolist() == [0, 1, 2, 0] * 3
    assert named.n_classes == 4
    assert ArrayData(NAN, unreadable="zero").private.values[1].tolist() == [0, 0]


IMAGES = np.zeros((4, 5, 5))


@pytest.mark.parametrize(
    ("values", "options", "message"),
    [
        (IMAGES + 1.5, {}, r"floats in \[0, 1\]"),
        (IMAGES.astype(int), {}, "uint8"),
        (np.zeros((4, 5, 5, 2)), {}, "1 or 3 channels"),
        (np.zeros((0, 5)), {}, "all of one shape"),
        (np.array([None, 1], dtype=object), {}, "all of one shape"),
        (NAN, {}, "finite records.*unreadable=zero"),
        (FEATURES.astype(np.float64) * 1e300, {}, "finite records"),
        (FEATURES, {"labels": LABELS / 2}, "integer labels"),
        (FEATURES, {"labels": [*"abc"] * 4}, "classes="),
        (FEATURES, {"labels": [*"abc"] * 4, "classes": ["a", "b"]}, "not listed"),
        (FEATURES, {"labels": LABELS, "classes": ["a", "a"]}, "without repetition"),
        (FEATURES, {"labels": LABELS * 0}, "at least 2 classes"),
        (FEATURES, {"labels": LABELS[:3]}, "a label per record"),
    ],
)
def test_arrays_that_do_not_fit(values, options, message):
    with pytest.raises(InputError, match=message) as caught:
        ArrayData(values, **options)
    assert "\n" not in str(caught.value)
