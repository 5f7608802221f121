"""Handles of private records show public facts only; batches are released once."""

import numpy as np
import pytest
import torch
from factories import X, Y, loader, records
from torch.utils.data import DataLoader

from dpswd import InputError, PrivateBatch, PrivateRecords, Records
from dpswd._layout import Layout
from dpswd._public_facts import taken_from_records
from dpswd.data import read
from dpswd.records import Stored


def test_handle_of_images_shows_public_facts():
    images = np.zeros((6, 8, 8, 3), dtype=np.uint8)
    handle = PrivateRecords(images, list("abcabc"), classes=list("abc"), name="letters")
    assert len(handle) == 6
    assert handle.shape == (3, 8, 8)
    assert handle.n_classes == 3
    assert handle.classes == ["a", "b", "c"]
    assert handle.name == "letters"
    assert handle.taken == ()
    assert handle.bounds is None
    assert handle.kinds is None
    assert repr(handle) == "PrivateRecords(6 records of shape (3, 8, 8), n_classes=3)"


def test_handle_of_a_table_shows_bounds_and_kinds():
    kinds = ["numeric", "integer", "binary"]
    handle = PrivateRecords(X, bounds=[(-1, 1)] * 3, kinds=kinds)
    assert handle.shape == (3,)
    assert handle.n_classes == 0
    assert handle.classes is None
    assert handle.bounds == [(-1, 1)] * 3
    assert handle.kinds == kinds


def make_batch():
    return next(iter(loader()))


HANDLES = pytest.mark.parametrize("make", [records, make_batch])


@HANDLES
@pytest.mark.parametrize(
    "use",
    [
        lambda handle: handle[0],
        list,
        lambda handle: handle + 1,
        float,
        lambda handle: handle.mean(),
        torch.as_tensor,
        lambda handle: np.asarray(handle) + 0,
        lambda handle: next(iter(DataLoader(handle, batch_size=4))),
    ],
    ids=["index", "list", "add", "float", "mean", "as_tensor", "asarray", "DataLoader"],
)
def test_handle_shows_no_record(make, use):
    with pytest.raises((TypeError, AttributeError, RuntimeError, ValueError)):
        use(make())


@HANDLES
def test_handle_has_no_public_array(make):
    handle = make()
    for name in dir(handle):
        if not name.startswith("_"):
            assert not hasattr(getattr(handle, name), "__array__"), name
    assert not any(f"{float(value):.4g}" in repr(handle) for value in X.flatten())


NAN = float("nan")
IMAGES = np.zeros((4, 5, 5))
ROWS = np.arange(24, dtype=np.float64).reshape(12, 2)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (IMAGES + 1.5, r"floats in \[0, 1\]"),
        (IMAGES.astype(int), r"uint8.*astype"),
        (np.zeros((4, 5, 5, 2)), "1 or 3 channels.*drop channels"),
        (np.zeros((32, 32, 3, 9)), "move the axes"),
        (np.zeros((4, 3, 5, 3)), "both ways"),
        (np.zeros((0, 5)), "at least one record"),
        (np.zeros(5), r"rows \(N, d\)"),
        ("photos", r"got photos; .*PrivateRecords\.from_folder or dpswd\.data\.read"),
        ([[1.0], [1.0, 2.0]], "one shape"),
        (X.log(), r'NaN.*unreadable="zero"'),
        (ROWS * 1e300, "finite records"),
    ],
)
def test_records_of_another_form_are_refused(values, message):
    with pytest.raises(InputError, match=message) as error:
        PrivateRecords(values)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"y": Y[:-1], "classes": range(3)}, "label for each record"),
        ({"y": np.eye(len(X))}, "argmax"),
        ({"classes": [0, 1]}, "Expected y"),
        ({"unreadable": "skip"}, "unreadable"),
        ({"bounds": [(0, 1)]}, "bounds"),
        ({"bounds": [(0, 1), (1, 1), (0, 1)]}, "bounds"),
        ({"bounds": (0, 1, 2)}, "bounds.*pairs"),
        ({"bounds": [(0, 1, 2)] * 3}, "bounds.*pairs"),
        ({"bounds": 1}, "bounds.*pairs"),
        ({"bounds": [("a", "b")] * 3}, "bounds"),
        ({"bounds": [(0, 1e300)] * 3, "kinds": ["integer"] * 3}, "float32"),
        ({"kinds": ["numeric", "text", "binary"]}, "kinds"),
        ({"kinds": ["numeric"]}, "kinds"),
        ({"kinds": "numeric"}, "kinds as a list"),
        ({"kinds": 3}, "kinds as a list"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else None,
)
def test_facts_that_do_not_fit_are_refused(options, message):
    with pytest.raises(InputError, match=message) as error:
        PrivateRecords(X, **options)
    assert "\n" not in str(error.value)
    assert not any(f"{float(value):.4g}" in str(error.value) for value in X.flatten())


def test_bounds_of_images_are_refused():
    with pytest.raises(InputError, match="of vectors only"):
        PrivateRecords(IMAGES, bounds=[(0, 1)])


def images():
    return torch.arange(6 * 16, dtype=torch.uint8).reshape(6, 1, 4, 4)


def on_disk(key="key"):
    """A handle of the same images that are read when they are opened."""
    values = images()
    stored = Stored(lambda index: values[index], tuple(values.shape), torch.uint8, key)
    return PrivateRecords.from_values(stored, Y[:6], classes=range(3), layout=Layout.of(values))


def in_memory():
    return Records(images(), Y[:6]).private(classes=range(3))


@pytest.mark.parametrize("make", [in_memory, on_disk])
def test_open_records_returns_pixels_and_classes(make):
    values, labels = make().open_records(torch.tensor([4, 1]))
    torch.testing.assert_close(values, images()[[4, 1]].float() / 255)
    assert labels.tolist() == [1, 1]


def test_digest_tells_records_apart():
    digest = records().digest()
    assert records(X.clone()).digest() == digest
    assert records(X.flip(0)).digest() != digest
    assert records(X[:-1]).digest() != digest
    assert records(X, Y.flip(0)).digest() != digest


def test_digest_of_records_on_disk_has_their_key():
    assert on_disk().digest() == on_disk().digest()
    assert len({in_memory().digest(), on_disk().digest(), on_disk("other").digest()}) == 3


def test_records_on_disk_are_large_from_a_size_on():
    assert not Stored(None, (6, 1, 4, 4), torch.uint8).large
    assert Stored(None, (2**20, 3, 64, 64), torch.uint8).large


def test_batch_has_a_length():
    batch = PrivateBatch(records(), 5)
    assert len(batch) == 5
    assert repr(batch) == "PrivateBatch(5 records)"
    assert batch.to("cpu", non_blocking=True) is batch


def test_batch_of_a_tensor_is_refused():
    with pytest.raises(InputError, match="PrivateRecords"):
        PrivateBatch(X, 2)


def test_batch_is_consumed_once():
    handle = records()
    batch = PrivateBatch(handle, 5)
    assert batch.consume() is handle
    with pytest.raises(InputError, match="one release"):
        batch.consume()


def test_empty_batch_is_not_consumed():
    with pytest.raises(InputError, match=r"loss\.distance"):
        PrivateBatch(None, 5).consume()


def test_unreadable_record_becomes_zero_by_itself():
    pixels = np.full((2, 2, 2), 0.5)
    pixels[1, 0, 1] = NAN
    values, _ = PrivateRecords(pixels, unreadable="zero").open_records(torch.arange(2))
    assert values.flatten(1).tolist() == [[0.5] * 4, [0.0] * 4]


LINE = "taken from the records and treated as public"


def test_line_about_taken_facts_names_them_and_their_options():
    line = taken_from_records(size=8, a=1)
    assert line == f"{LINE}: size=8, a=1; pass size= (--size), a= to state them."


def test_classes_that_are_taken_are_named(capsys):
    handle = PrivateRecords(torch.zeros(2, 2), ["a", "b"])
    assert handle.taken == (
        f"{LINE}: classes=['a', 'b']; pass classes= (--classes) to state them.",
    )
    assert capsys.readouterr().err.strip() == handle.taken[0]


def test_classes_that_are_stated_are_not_named(capsys):
    handle = PrivateRecords(torch.zeros(2, 2), [1, 2], classes=range(3))
    assert handle.taken == ()
    assert capsys.readouterr().err == ""


AGES = {"age": [31, 70, 50], "height": [1.5, 1.75, 1.6], "smokes": [True, False, True]}
BOUNDS = [(0, 120), (0, 2.5), (0, 1)]
KINDS = ["integer", "numeric", "binary"]


def age_frames():
    """Two frames that differ in one entry, which makes floats of a column of integers."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(AGES)
    neighbour = pd.DataFrame(AGES | {"age": [31, 70, None]})
    assert str(frame.dtypes["age"]) == "int64"
    assert str(neighbour.dtypes["age"]) == "float64"
    return frame, neighbour


@pytest.mark.parametrize("columns", [["age", "height", "smokes"], ["age"]])
def test_stated_kinds_decide_on_the_types_of_columns(columns):
    n = len(columns)
    for frame in age_frames():
        handle = PrivateRecords(
            frame[columns], bounds=BOUNDS[:n], kinds=KINDS[:n], unreadable="zero"
        )
        assert handle.taken == ()
        assert handle.layout.dtypes == ("int64", "float64", "int64")[:n]


@pytest.mark.parametrize("backend", ["numpy_nullable", "pyarrow"])
def test_stated_kinds_decide_on_nullable_and_arrow_types(backend):
    """One fraction makes floats of a column of whole numbers."""
    pd = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    expected = {"numpy_nullable": "Float64", "pyarrow": "double[pyarrow]"}[backend]
    for heights in ([1, 2, 1], [1.5, 2, 1]):
        frame = pd.DataFrame({"height": heights}).convert_dtypes(dtype_backend=backend)
        handle = PrivateRecords(frame, bounds=[(0, 2.5)], kinds=["numeric"])
        assert handle.layout.dtypes == (expected,)
        assert handle.taken == ()


@pytest.mark.parametrize("height", [np.float32(1.5), 1.5, 1, None])
def test_stated_kinds_decide_on_the_precision_of_floats_of_a_frame(height):
    """One float of Python makes float64 of a column of numbers in float32."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame([[height], [np.float32(1.25)], [np.float32(2)]])
    handle = PrivateRecords(frame, bounds=[(0, 2.5)], kinds=["numeric"], unreadable="zero")
    assert handle.layout.dtypes == ("float64",)


def test_kinds_of_some_columns_of_a_table_are_refused():
    frame, _ = age_frames()
    with pytest.raises(InputError, match="kinds for each of the 3 columns"):
        PrivateRecords(frame, kinds=KINDS[:2])


def test_stated_kinds_decide_on_the_type_of_an_array():
    for frame in age_frames():
        array = frame[["age"]].to_numpy()
        handle = PrivateRecords(array, bounds=BOUNDS[:1], kinds=KINDS[:1], unreadable="zero")
        assert handle.taken == ()
        assert handle.layout.dtypes == ("int64",)


@pytest.mark.parametrize("bounds", [None, BOUNDS])
def test_types_of_columns_that_are_taken_are_named(bounds, capsys):
    frame, neighbour = age_frames()
    handle = PrivateRecords(frame, bounds=bounds)
    assert "kinds=['integer (int64)', 'numeric (float64)', 'binary (bool)']" in handle.taken[0]
    assert capsys.readouterr().err.strip() == handle.taken[0]
    other = PrivateRecords(neighbour, bounds=bounds, unreadable="zero")
    assert "kinds=['numeric (float64)', 'numeric (float64)', 'binary (bool)']" in other.taken[0]


def test_type_of_an_array_is_named_unless_it_is_a_float():
    assert "kinds=integer (uint8)" in PrivateRecords(np.ones((3, 2), dtype=np.uint8)).taken[0]
    for dtype in (np.float32, np.float64):
        assert PrivateRecords(np.ones((3, 2), dtype=dtype)).taken == ()


@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_types_of_columns_in_files_are_named_or_follow_from_kinds(tmp_path, dtype):
    np.savez(tmp_path / "x.npz", features=np.ones((4, 2), dtype=dtype))
    handle = read(tmp_path / "x.npz")
    assert handle.layout.dtypes == (np.dtype(dtype).name,)
    if dtype is np.int64:
        (line,) = handle.taken
        assert "kinds=integer (int64)" in line
    else:
        assert handle.taken == ()
    with_kinds = read(tmp_path / "x.npz", kinds=["integer", "integer"])
    assert with_kinds.layout.dtypes == ("int64",)
    assert with_kinds.taken == ()


def test_public_records_are_read_as_floats_and_vectors():
    public = Records(images(), Y[:6])
    expected = images().float() / 255
    torch.testing.assert_close(public.floats(), expected)
    torch.testing.assert_close(public.floats(torch.tensor([2])), expected[[2]])
    assert public.vectors().shape == (6, 16)
    np.testing.assert_allclose(public.vectors(), expected.flatten(1).numpy())


def test_public_records_need_a_label_each():
    with pytest.raises(InputError, match="label per record"):
        Records(images(), Y[:5])
