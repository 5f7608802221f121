"""Arrays, lists and frames: accepted, refused, and returned in the caller's format."""

from dataclasses import asdict

import numpy as np
import pytest
import torch

from dpswd import InputError, PrivateRecords
from dpswd._arrays import as_records, finite
from dpswd._layout import Layout

NAN = float("nan")
INF = float("inf")
ROWS = np.arange(24, dtype=np.float32).reshape(12, 2)
GREY = np.arange(2 * 5 * 4, dtype=np.uint8).reshape(2, 5, 4)
COLOUR = np.stack([GREY, GREY + 1, GREY + 2], axis=3)


def restored_from_dictionary(layout):
    """The same layout, after it was written to a file and read."""
    return Layout(**asdict(layout))


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
    ids=["no channel", "one channel last", "one channel first", "last", "first", "floats"],
)
def test_images_come_back_in_their_format(convert, images, shape):
    values, layout = as_records(convert(images))
    assert tuple(values.shape[1:]) == shape
    pixels = values
    if not values.is_floating_point():
        pixels = values / 255
    assert torch.allclose(pixels[0, 0], torch.from_numpy(GREY[0] / np.float32(255)))
    if layout.as_bytes:
        pixels = pixels + 0.3 / 255  # which is rounded
    for known in (layout, restored_from_dictionary(layout)):
        restored = known.restore(pixels)
        assert restored.dtype == images.dtype
        assert np.allclose(restored, images)


@pytest.mark.parametrize(
    ("dtype", "kinds"),
    [
        ("float64", None),
        ("float32", None),
        ("int64", ["integer", "integer"]),
        ("uint8", ["integer", "integer"]),
        ("bool", ["binary", "binary"]),
    ],
)
def test_rows_come_back_in_their_type(dtype, kinds):
    values, layout = as_records(ROWS.astype(dtype))
    assert values.dtype == torch.float32
    if "float" not in dtype:
        values = values + 0.2  # which is rounded
    restored = layout.restore(values)
    assert restored.dtype == dtype
    assert np.array_equal(restored, ROWS.astype(dtype))
    assert layout.column_kinds(2) == kinds


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_rows_beyond_the_range_of_their_type_come_back_in_it(dtype):
    """Noise leads out of the range of bytes."""
    _, layout = as_records(ROWS.astype(dtype))
    assert layout.restore(torch.tensor([[-1e9, 1e9]])).dtype == dtype


def test_rows_of_a_list_have_no_type():
    """One record with a fraction would change it."""
    assert as_records(ROWS.astype(int).tolist())[1] == Layout()


@pytest.fixture
def frame():
    pd = pytest.importorskip("pandas")
    columns = {"age": [31, 70], "height": [1.5, 1.75], "smokes": [True, False], 7: [1, 2]}
    return pd.DataFrame(columns).astype({"height": "float32", 7: "Int64"})


def test_data_frame_comes_back_as_one(frame):
    pd = pytest.importorskip("pandas")
    values, layout = as_records(frame)
    assert values.tolist() == [[31, 1.5, 1, 1], [70, 1.75, 0, 2]]
    assert layout.column_kinds(4) == ["integer", "numeric", "binary", "integer"]
    is_whole = values == values.round()
    for known in (layout, restored_from_dictionary(layout)):
        pd.testing.assert_frame_equal(known.restore(values + 0.2 * is_whole), frame)


def test_data_frame_with_a_missing_entry(frame):
    frame.loc[0, 7] = None
    with pytest.raises(InputError, match="NaN"):
        as_records(frame)
    values, _ = as_records(frame, unreadable="zero")
    assert values.tolist()[0] == [0, 0, 0, 0]


def test_mixed_table_is_refused_in_one_sentence():
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"age": [1, 2], "sex": ["f", "m"], "grade": pd.Categorical([1, 2])})
    for values in (table, table.to_numpy()):
        with pytest.raises(InputError, match=r"numbers.*--columns FILE") as error:
            as_records(values)
        assert "\n" not in str(error.value)
    with pytest.raises(InputError, match="'sex', 'grade'"):
        as_records(table)


@pytest.mark.parametrize("record", [[NAN, 1.0], [1.0, -INF]])
def test_unreadable_row_becomes_zero_by_itself(record):
    """The map acts per record: the others stay, and so does their number."""
    values = torch.arange(8.0).reshape(4, 2) + 1
    values[2] = torch.tensor(record)
    assert finite(values, "zero").tolist() == [[1, 2], [3, 4], [0, 0], [7, 8]]


def test_readable_rows_stay():
    values = torch.arange(8.0).reshape(4, 2) + 1
    assert torch.equal(finite(values, "zero"), values)


MASK = np.eye(4, dtype=np.uint8)


@pytest.mark.parametrize(
    "other", [MASK / 2, torch.eye(4), (MASK / 2).tolist(), MASK.astype(bool)], ids=type
)
def test_images_of_several_types_are_refused(other):
    """NumPy would convert all to floats, and images of bytes 0 and 1 would turn white."""
    with pytest.raises(InputError, match="images of one type"):
        PrivateRecords([MASK, MASK, other])


def test_images_of_one_type_in_a_list_are_accepted():
    assert PrivateRecords([200 * MASK, 100 * MASK]).shape == (1, 4, 4)
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
    values, _ = PrivateRecords(images.astype("float32")).open_records(torch.tensor([0]))
    assert values.max() == 1


def test_pixels_beyond_one_ask_for_a_public_constant():
    """``x / x.max()`` would be a statistic of the private records."""
    with pytest.raises(InputError, match=r"public constants, as X / 255"):
        PrivateRecords(255 * torch.rand(3, 4, 4))


def test_rows_of_swapped_bytes_are_read():
    values, layout = as_records(np.arange(6, dtype=">i4").reshape(3, 2))
    assert values.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert layout.restore(values + 0.3).tolist() == values.tolist()


def test_masked_entries_are_missing():
    mask = [[False, True], [False, False], [False, False]]
    masked = np.ma.array(np.ones((3, 2), dtype=int), mask=mask)
    with pytest.raises(InputError, match="NaN"):
        as_records(masked)
    assert as_records(masked, unreadable="zero")[0].tolist() == [[0, 0], [1, 1], [1, 1]]


def vectors_with(number, dtype):
    """Vectors of which the first entry is another number."""
    vectors = np.full((3, 2), 0.5, dtype=dtype)
    vectors[0, 0] = number
    return vectors


def with_missing_number_of_r():
    """Vectors with a missing number as R writes it, a signalling NaN."""
    vectors = vectors_with(0, np.float64)
    vectors.view(np.uint64)[0, 0] = 0x7FF00000000007A2
    return vectors


def masked(vectors):
    """The same, of which another entry is masked."""
    mask = np.zeros(vectors.shape, dtype=bool)
    mask[2, 1] = True
    return np.ma.array(vectors, mask=mask)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_masked_entry_leaves_floats_in_their_type(dtype):
    vectors = vectors_with(0, dtype)
    for array in (vectors, masked(vectors)):
        _, layout = as_records(array, unreadable="zero")
        assert layout.dtypes == (np.dtype(dtype).name,)


def framed(vectors):
    return pytest.importorskip("pandas").DataFrame(vectors)


@pytest.mark.parametrize("container", [np.asarray, masked, framed, list])
@pytest.mark.parametrize(
    "vectors",
    [
        with_missing_number_of_r(),
        vectors_with(np.finfo(np.longdouble).max, np.longdouble),
        vectors_with(1e300, np.float64),
    ],
)
def test_no_warning_tells_of_a_record(container, vectors):
    """Tests turn warnings into errors; the record becomes zeros."""
    values, _ = as_records(container(vectors), unreadable="zero")
    assert values[:2].tolist() == [[0, 0], [0.5, 0.5]]


def test_no_warning_tells_of_an_image():
    images = np.stack([with_missing_number_of_r(), vectors_with(0.5, np.float64)])
    values, _ = as_records(images, unreadable="zero")
    assert values[0].max() == 0
    assert values[1].min() == 0.5
