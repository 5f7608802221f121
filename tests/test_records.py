"""Handles of private records show public facts only; arrays, frames and labels: accepted, refused, and the way back."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from factories import X, Y, loader, records
from torch.utils.data import DataLoader

from dpswd import InputError, PrivateBatch, PrivateRecords, Records
from dpswd._arrays import as_records, finite
from dpswd._layout import Layout
from dpswd._public_facts import taken_from_records
from dpswd.data import read
from dpswd.records import Stored


def test_public_facts():
    handle = PrivateRecords(
        np.zeros((6, 8, 8, 3), dtype=np.uint8), list("abcabc"), classes=list("abc"), name="x"
    )
    assert (len(handle), handle.shape, handle.n_classes, handle.classes) == (
        6,
        (3, 8, 8),
        3,
        ["a", "b", "c"],
    )
    assert repr(handle) == "PrivateRecords(6 records of shape (3, 8, 8), n_classes=3)"
    assert (handle.name, handle.taken, handle.bounds, handle.kinds) == ("x", (), None, None)
    table = PrivateRecords(X, bounds=[(-1, 1)] * 3, kinds=["numeric", "integer", "binary"])
    assert (table.shape, table.n_classes, table.classes) == ((3,), 0, None)
    assert (table.bounds, table.kinds) == ([(-1, 1)] * 3, ["numeric", "integer", "binary"])


@pytest.mark.parametrize(
    "use",
    [
        lambda handle: handle[0],
        iter,
        lambda handle: handle + 1,
        float,
        lambda handle: handle.mean(),
        torch.as_tensor,
        lambda handle: np.asarray(handle) + 0,
        lambda handle: next(iter(DataLoader(handle, batch_size=4))),
    ],
)
@pytest.mark.parametrize("make", [records, lambda: next(iter(loader()))], ids=["records", "batch"])
def test_no_record_is_shown(make, use):
    with pytest.raises((TypeError, AttributeError, RuntimeError, ValueError)):
        use(make())


def test_nothing_public_returns_a_record():
    """Every attribute without an underscore of both handles holds public facts."""
    handle, batch = records(), next(iter(loader()))
    for each in (handle, batch):
        for name in dir(each):
            assert name.startswith("_") or not hasattr(getattr(each, name), "__array__"), name
    assert not any(f"{float(value):.4g}" in repr(handle) + repr(batch) for value in X.flatten())


NAN, INF = float("nan"), float("inf")
ROWS = np.arange(24, dtype=np.float32).reshape(12, 2)
IMAGES = np.zeros((4, 5, 5))
LABELS = [0, 2, 1, 0]
ARRAYS = [
    (IMAGES + 1.5, r"floats in \[0, 1\]"),
    (IMAGES.astype(int), r"uint8.*astype"),
    (np.zeros((4, 5, 5, 2)), "1 or 3 channels.*drop channels"),
    (np.zeros((32, 32, 3, 9)), "move the axes"),
    (np.zeros((4, 3, 5, 3)), "both ways"),
    (np.zeros((0, 5)), "at least one record"),
    (np.zeros(5), r"rows \(N, d\)"),
    ("photos", r"got photos; .*PrivateRecords\.from_folder or dpswd\.data\.read"),
    ([[1.0], [1.0, 2.0]], "one shape"),
    (X.log(), r'NaN.*PrivateRecords\(\.\.\., unreadable="zero"\)'),
    (ROWS.astype(np.float64) * 1e300, "finite records"),
]


@pytest.mark.parametrize(
    ("rows", "options", "match"),
    [
        *((rows, {}, match) for rows, match in ARRAYS),
        (np.zeros((3, 2)), {"y": np.eye(3)}, "argmax"),
        (X, {"y": Y[:-1], "classes": range(3)}, "class per record"),
        (X, {"classes": [0, 1]}, "Expected y"),
        (X, {"unreadable": "skip"}, "unreadable"),
        *((X, {"bounds": bounds}, "bounds") for bounds in ([(0, 1)], [(0, 1), (1, 1), (0, 1)])),
        (np.zeros((9, 4, 4)), {"bounds": [(0, 1)]}, "of vectors only"),
        (X, {"kinds": ["numeric", "text", "binary"]}, "kinds"),
    ],
)
def test_records_that_do_not_fit(rows, options, match):
    with pytest.raises(InputError, match=match) as caught:
        PrivateRecords(rows, **options)
    assert "\n" not in str(caught.value)
    assert not any(f"{float(value):.4g}" in str(caught.value) for value in X.flatten())


def test_bytes_are_pixels_and_records_on_disk_are_read_and_digests_tell_records_apart():
    images = torch.arange(6 * 16, dtype=torch.uint8).reshape(6, 1, 4, 4)
    disk = Stored(lambda index: images[index], tuple(images.shape), torch.uint8, "key")
    here = Records(images, Y[:6]).private(classes=range(3))
    there = PrivateRecords.from_values(disk, Y[:6], classes=range(3), layout=Layout.of(images))
    for handle in (here, there):
        values, labels = handle.open_records(torch.tensor([4, 1]))
        torch.testing.assert_close(values, images[[4, 1]].float() / 255)
        assert labels.tolist() == [1, 1]
    assert not disk.large
    other = Stored(disk.read, disk.shape, torch.uint8, "other")
    again = PrivateRecords.from_values(other, Y[:6], classes=range(3), layout=Layout.of(images))
    assert len({here.digest(), there.digest(), again.digest()}) == 3
    assert records().digest() == records(X.clone()).digest()
    for rows, classes in ((X.flip(0), Y), (X[:-1], Y), (X, Y.flip(0))):
        assert records(rows, classes).digest() != records().digest()


def test_batches():
    handle = records()
    batch = PrivateBatch(handle, 5)
    assert (len(batch), repr(batch)) == (5, "PrivateBatch(5 records)")
    assert (batch.to("cpu", non_blocking=True), batch.consume()) == (batch, handle)
    for spent, match in ((batch, "one release"), (PrivateBatch(None, 5), "without a release")):
        with pytest.raises(InputError, match=match):
            spent.consume()


GREY = np.arange(2 * 5 * 4, dtype=np.uint8).reshape(2, 5, 4)
COLOUR = np.stack([GREY, GREY + 1, GREY + 2], axis=3)


@pytest.mark.parametrize("convert", [np.asarray, torch.tensor])
@pytest.mark.parametrize(
    ("images", "shape"),
    [
        (GREY, (1, 5, 4)),
        (GREY[..., None], (1, 5, 4)),
        (GREY[:, None], (1, 5, 4)),
        (COLOUR, (3, 5, 4)),
        (COLOUR.transpose(0, 3, 1, 2), (3, 5, 4)),
        (COLOUR / np.float32(255), (3, 5, 4)),
    ],
)
def test_images_come_back_as_they_were(convert, images, shape):
    """Channels first, last and none; bytes and floats."""
    values, layout = as_records(convert(images))
    assert tuple(values.shape[1:]) == shape
    floats = values if values.is_floating_point() else values / 255
    assert torch.allclose(floats[0, 0], torch.from_numpy(GREY[0] / np.float32(255)))
    for known in (layout, Layout(**asdict(layout))):
        back = known.restore(floats + 0.3 / 255 if layout.as_bytes else floats)
        assert back.dtype == images.dtype
        assert np.allclose(back, images)


@pytest.mark.parametrize("dtype", ["float64", "float32", "int64", "uint8", "bool"])
def test_rows_come_back_in_their_type(dtype):
    values, layout = as_records(ROWS.astype(dtype))
    assert values.dtype == torch.float32
    back = layout.restore(values + (0 if "float" in dtype else 0.2))
    assert back.dtype == dtype
    assert np.array_equal(back, ROWS.astype(dtype))
    assert (
        layout.restore(torch.tensor([[-1e9, 1e9]])).dtype == dtype
    )  # noise leads out of the range of bytes
    kind = {"int64": "integer", "uint8": "integer", "bool": "binary"}.get(dtype)
    assert layout.column_kinds(2) == (kind and [kind] * 2)
    assert (
        as_records(ROWS.astype(dtype).tolist())[1] == Layout()
    )  # of a list: one record with a fraction changes it


def test_a_data_frame_comes_back_as_one():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(
        {"age": [31, 70], "height": [1.5, 1.75], "smokes": [True, False], 7: [1, 2]}
    )
    frame = frame.astype({"height": "float32", 7: "Int64"})
    values, layout = as_records(frame)
    assert values.tolist() == [[31, 1.5, 1, 1], [70, 1.75, 0, 2]]
    assert layout.column_kinds(4) == ["integer", "numeric", "binary", "integer"]
    for known in (layout, Layout(**asdict(layout))):
        pd.testing.assert_frame_equal(
            known.restore(values + 0.2 * (values == values.round())), frame
        )
    frame.loc[0, 7] = pd.NA
    with pytest.raises(InputError, match="NaN"):
        as_records(frame)
    assert as_records(frame, unreadable="zero")[0].tolist()[0] == [0, 0, 0, 0]


def test_a_mixed_table_is_refused_in_one_sentence():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": [1, 2], "sex": ["f", "m"], "grade": pd.Categorical([1, 2])})
    for table in (frame, frame.to_numpy()):
        with pytest.raises(InputError, match=r"numbers.*smartnoise-synth.*dpmm") as caught:
            as_records(table)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="'sex', 'grade'"):
        as_records(frame)


def test_unreadable_records_become_zeros_one_by_one():
    """The map acts per record: the same record gives the same result beside any others, and N stays."""
    good = torch.arange(8.0).reshape(4, 2) + 1
    for bad in (torch.tensor([NAN, 1.0]), torch.tensor([1.0, -INF])):
        values = good.clone()
        values[2] = bad
        assert finite(values, "zero").tolist() == [[1, 2], [3, 4], [0, 0], [7, 8]]
    assert torch.equal(finite(good, "zero"), good)
    images = np.where(np.arange(8).reshape(2, 2, 2) == 5, NAN, 0.5)
    values, _ = PrivateRecords(images, unreadable="zero").open_records(torch.arange(2))
    assert values.flatten(1).tolist() == [[0.5] * 4, [0.0] * 4]


def test_facts_that_are_taken_from_the_records_are_named(capsys):
    line = "taken from the records and treated as public"
    assert taken_from_records(size=8, a=1) == f"{line}: size=8, a=1; pass size=, a= to state them."
    handle = PrivateRecords(torch.zeros(2, 2), ["a", "b"])
    assert handle.taken == (f"{line}: classes=['a', 'b']; pass classes= to state them.",)
    assert capsys.readouterr().err.strip() == handle.taken[0]
    assert PrivateRecords(torch.zeros(2, 2), [1, 2], classes=range(3)).taken == ()
    assert capsys.readouterr().err == ""  # control


AGES = {"age": [31, 70, 50], "height": [1.5, 1.75, 1.6], "smokes": [True, False, True]}
BOUNDS = [(0, 120), (0, 2.5), (0, 1)]
KINDS = ["integer", "numeric", "binary"]


def with_a_missing_age():
    """Two frames that differ in one entry, which makes floats of a column of integers."""
    pd = pytest.importorskip("pandas")
    frame, neighbour = pd.DataFrame(AGES), pd.DataFrame(AGES | {"age": [31, 70, None]})
    assert [str(each.dtypes["age"]) for each in (frame, neighbour)] == ["int64", "float64"]
    return frame, neighbour


def test_stated_kinds_decide_on_the_types_of_columns():
    for columns in ([*AGES], ["age"]):
        frames = [frame[columns] for frame in with_a_missing_age()]
        arrays = [frame[["age"]].to_numpy() for frame in frames]
        for rows in (*frames, *arrays):
            n = rows.shape[1]
            handle = PrivateRecords(rows, bounds=BOUNDS[:n], kinds=KINDS[:n], unreadable="zero")
            assert handle.taken == ()
            assert handle.layout.dtypes == ("int64", "float64", "int64")[:n]


@pytest.mark.parametrize("bounds", [None, BOUNDS])
def test_types_of_columns_that_are_taken_are_named(bounds, capsys):
    frame, neighbour = with_a_missing_age()
    handle = PrivateRecords(frame, bounds=bounds)
    assert "kinds=['integer (int64)', 'numeric (float64)', 'binary (bool)']" in handle.taken[0]
    assert capsys.readouterr().err.strip() == handle.taken[0]
    other = PrivateRecords(neighbour, bounds=bounds, unreadable="zero")
    assert "kinds=['numeric (float64)', 'numeric (float64)', 'binary (bool)']" in other.taken[0]
    assert "kinds=integer (uint8)" in PrivateRecords(np.ones((3, 2), dtype=np.uint8)).taken[0]
    for dtype in (np.float32, np.float64):  # the default, a control
        assert PrivateRecords(np.ones((3, 2), dtype=dtype)).taken == ()


def test_types_of_columns_in_files_are_named_or_follow_from_kinds(tmp_path):
    kinds = ["integer", "integer"]
    for dtype in (np.int64, np.float64):
        np.savez(tmp_path / "x.npz", features=np.ones((4, 2), dtype=dtype))
        handle = read(tmp_path / "x.npz")
        assert handle.layout.dtypes == (np.dtype(dtype).name,)
        assert [line for line in handle.taken if "kinds=integer (int64)" in line] == [*handle.taken]
        assert len(handle.taken) == (dtype is np.int64)
        stated = read(tmp_path / "x.npz", kinds=kinds)
        assert (stated.layout.dtypes, stated.taken) == (("int64",), ())


def test_images_of_several_types_are_refused():
    """NumPy would convert all to floats, and images of bytes 0 and 1 would turn white."""
    mask = np.eye(4, dtype=np.uint8)
    for other in (mask / 2, torch.eye(4), (mask / 2).tolist(), mask.astype(bool)):
        with pytest.raises(InputError, match="images of one type"):
            PrivateRecords([mask, mask, other])
    photos = [200 * mask, 100 * mask]
    assert PrivateRecords(photos).shape == (1, 4, 4)  # controls
    assert PrivateRecords([torch.eye(4), np.eye(4, dtype=np.float32)]).shape == (1, 4, 4)


@pytest.mark.parametrize(
    ("dtype", "remedy"),
    [
        ("bool", r"astype\('float32'\)"),
        ("uint16", "65535.0"),
        ("int16", "clip"),
        ("int64", "clip"),
        ("uint32", "4294967295.0"),
    ],
)
def test_pixels_of_other_types_are_refused_with_a_remedy_that_works(dtype, remedy):
    images = np.eye(4)[None].repeat(3, 0).astype(dtype)
    with pytest.raises(InputError, match=remedy):
        PrivateRecords(images)
    with pytest.raises(InputError, match="0 and 1 alone, which are black"):
        PrivateRecords(images.astype("uint8"))
    white = PrivateRecords(images.astype("float32")).open_records(torch.tensor([0]))[0]
    assert white.max() == 1


def test_entries_of_unusual_arrays():
    swapped = np.arange(6, dtype=">i4").reshape(3, 2)
    values, layout = as_records(swapped)
    assert values.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert layout.restore(values + 0.3).tolist() == values.tolist()
    masked = np.ma.array(np.ones((3, 2), dtype=int), mask=[[False, True], [False] * 2, [False] * 2])
    with pytest.raises(InputError, match="NaN"):
        as_records(masked)
    assert as_records(masked, unreadable="zero")[0].tolist() == [[0, 0], [1, 1], [1, 1]]
