"""Export of synthetic records: images as a folder and as arrays, rows as a table."""

import csv
import unicodedata

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
from factories import fuzz, untouched
from PIL import Image

from dpswd import InputError
from dpswd._layout import Layout
from dpswd.files.export import export, folder_names

IMAGES = np.random.default_rng(0).integers(0, 256, (12, 6, 6), dtype=np.uint8)
CLASSES = np.array(["cat", "a/b"] * 6)
FRAME = pd.DataFrame({"age": np.arange(4), "income": np.linspace(0, 1, 4)})


def pixels_of(path):
    with Image.open(path) as image:
        return np.asarray(image)


def test_images_become_a_folder_of_class_folders(tmp_path):
    export(tmp_path / "pictures", IMAGES, CLASSES)
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == ["a%2Fb", "cat"]
    assert np.array_equal(pixels_of(tmp_path / "pictures" / "cat" / "02.png"), IMAGES[2])


def test_images_without_classes_become_a_folder(tmp_path):
    export(tmp_path / "floats", IMAGES / 255)
    assert np.array_equal(pixels_of(tmp_path / "floats" / "11.png"), IMAGES[11])


def test_images_become_arrays(tmp_path):
    classes = CLASSES.astype(object)  # as pandas holds text
    export(tmp_path / "x.npz", IMAGES, classes)
    with np.load(tmp_path / "x.npz", allow_pickle=False) as arrays:
        assert np.array_equal(arrays["data"], IMAGES)
        assert np.array_equal(arrays["targets"], CLASSES)


def test_rows_become_a_table_with_the_types_of_its_columns(tmp_path):
    layout = Layout(dtypes=("int64", "float64"), columns=("age", "income"))
    export(tmp_path / "x.csv", FRAME, [0, 1, 1, 0], layout)
    lines = list(csv.reader((tmp_path / "x.csv").read_text().splitlines()))
    assert lines[0] == ["age", "income", "class"]
    assert lines[2] == ["1", str(1 / 3), "1"]  # every digit
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "x.csv").drop(columns="class"), FRAME)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_a_column_named_class_is_beside_the_classes(tmp_path, ending):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    layout = Layout(dtypes=("int64", "float64"), columns=("class", "class_"))
    frame = FRAME.set_axis(["class", "class_"], axis=1)
    path = tmp_path / f"x.{ending}"
    export(path, frame, ["a", "b", "b", "a"], layout)
    table = pd.read_csv(path) if ending == "csv" else pd.read_parquet(path)
    assert list(table) == ["class", "class_", "class__"]
    assert table["class"].tolist() == [0, 1, 2, 3]
    assert table["class__"].tolist() == ["a", "b", "b", "a"]


def test_rows_without_names_become_a_table_of_numbered_columns(tmp_path):
    export(tmp_path / "y.csv", np.eye(2))
    assert (tmp_path / "y.csv").read_text().splitlines() == ["0,1", "1.0,0.0", "0.0,1.0"]


@pytest.mark.parametrize(
    ("name", "records", "message"),
    [
        ("x.csv", IMAGES, "npz or a folder"),
        ("folder", FRAME, "FILE.csv"),
        ("x.tar", IMAGES, "x.tar"),
        ("full", IMAGES, "which exists"),
    ],
)
def test_export_refuses_a_form_that_does_not_fit(tmp_path, name, records, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with untouched(tmp_path), pytest.raises(InputError, match=message):
        export(tmp_path / name, records)


NAMES = st.lists(st.text(max_size=8) | st.sampled_from(["..", ".", "a", "A", "CON", "a/b", "é"]))


@fuzz(200, names=NAMES)
def test_folder_names_are_safe_and_distinct(names):
    folders = folder_names(names)
    assert folders == folder_names(names)
    assert len({unicodedata.normalize("NFC", folder).casefold() for folder in folders}) == len(
        names
    )
    for folder in folders:
        assert not set(folder) & set('/\\\0:*?"<>|\n')
        assert folder.strip(". ") == folder != ""
        assert len(folder.encode()) < 255


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("cat", "cat"),
        ("7+", "7+"),
        ("two words", "two words"),
        ("naïve", "naïve"),
        ("a_b", "a_b"),
        ("a/b", "a%2Fb"),
        ("..", "%2E%2E"),
        (".cat", "%2Ecat"),
        ("cat.", "cat%2E"),
        ("100%", "100%25"),
        ("nul.txt", "%6Eul.txt"),
        ("", "%"),
        (3, "3"),
    ],
)
def test_folder_name_of_a_class(name, folder):
    assert folder_names([name]) == [folder]


def test_folder_names_of_long_classes():
    one, two = folder_names(["x" * 300, "x" * 301])
    assert one.startswith("x" * 100 + "~")
    assert one != two


def test_images_of_unsafe_classes_stay_in_their_folder(tmp_path):
    """A class ".." once wrote beside the folder, and "a/b" and "a_b" shared one."""
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "0.png").write_bytes(b"mine")
    classes = ["..", "../..", "a/b", "a_b", "/tmp", "A_B"]
    export(victim / "more", IMAGES[:6], classes)
    assert (victim / "0.png").read_bytes() == b"mine"
    assert len([*(victim / "more").iterdir()]) == 6
    assert {path.parent.parent for path in victim.rglob("*.png")} <= {victim / "more", tmp_path}


def test_images_with_channels_first_as_a_folder(tmp_path):
    colour = np.stack([IMAGES, IMAGES, IMAGES], axis=1)
    export(tmp_path / "first", colour, layout=Layout("images", "first", True))
    export(tmp_path / "grey", IMAGES[..., None], layout=Layout("images", "last", True))
    for name, shape in (("first", (6, 6, 3)), ("grey", (6, 6))):
        with Image.open(tmp_path / name / "02.png") as image:
            assert np.asarray(image).shape == shape


def test_a_class_with_a_line_break_is_not_written_to_a_table(tmp_path):
    """Tables have one record per line when they are read."""
    rows = np.zeros((2, 3))
    with pytest.raises(InputError, match="without line breaks"):
        export(tmp_path / "rows.csv", rows, np.array(["two\nlines", "one"]))
