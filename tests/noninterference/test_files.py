"""Non-interference of readers and commands: files and folders of two neighbours.

See docs/theory/non-interference.md.
"""

import functools
import json
from decimal import Decimal
from io import BytesIO

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from observation import SOURCE, check_neighbours, check_public_facts, observe, pairs
from PIL import Image

from dpswd import Budget, ClassCounts, PrivateRecords, SumAndNorm
from dpswd.commands.main import main
from dpswd.data import read

pa = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")

N = 6  # records of a data set
ONE_IN_FOUR = st.sampled_from([True, False, False, False])  # most pairs are to be compared
BUDGET = ["--epsilon", "1", "--delta", "0.01", "--out", "run"]

# Tables

COLUMNS = ["a", "b", "c"]
CELLS = ["1", "0", "0.5", "1.0", "1e3", " 0.25 ", "-3", "831.7719", "0.125"]
ODD_CELLS = ["", "NA", "zebra", "1_5", "TRUE", "0x10", "nan", "inf", '"1,5"', "1e999", "?"]
CLASSES = [["1", "2", "3", "X"], ["cat", "dog"], ["5", "6", "7+"], ["0", "1"], ["yes", "no"]]
ODD_LABELS = ["1", "1.0", "01", "2", "X", "cat", "zebra-class", "5", "7+", "0", "yes", "", "nan"]


@st.composite
def tables(draw):
    """Draw the classes, and the lines of two tables whose first record differs."""
    classes = draw(st.sampled_from(CLASSES))
    records = st.tuples(*[st.sampled_from(CELLS)] * len(COLUMNS), st.sampled_from(classes))
    lines = draw(st.lists(records, min_size=N, max_size=N))
    first = list(draw(records))
    if draw(ONE_IN_FOUR):
        odd_entry = draw(st.integers(0, len(COLUMNS)))
        is_label = odd_entry == len(COLUMNS)
        first[odd_entry] = draw(st.sampled_from(ODD_LABELS if is_label else ODD_CELLS))
    return classes, lines, [tuple(first), *lines[1:]]


def write_table(folder, lines, separator=","):
    text = [separator.join([*COLUMNS, "class"])]
    text += [separator.join(line) for line in lines]
    (folder / "table.csv").write_text("\n".join(text) + "\n")
    bounds = ["column,low,high,kind", "a,0,1,numeric", "b,-5,5,integer", "c,0,1,binary"]
    (folder / "bounds.csv").write_text("\n".join(bounds) + "\n")


def released(name, **options):
    """Read private records and release counts and sums; return what the handle shows."""
    if "columns" not in options:  # with facts of columns, unreadable cells are refused
        options["unreadable"] = "zero"
    records = read(f"{SOURCE}/{name}", **options)
    dim = int(np.prod(records.shape))
    queries = [SumAndNorm(dim)]
    if records.n_classes:
        queries = [ClassCounts(records.n_classes, share=0.5), *queries]
    with Budget(records, queries, target_epsilon=1, target_delta=1e-2, run_dir="run"):
        values = [query.release(records) for query in queries]
    shown = (repr(records), records.shape, records.classes, records.layout, records.kinds)
    return shown, records.taken, values


def check_tables(neighbours, separator, **facts):
    """Check that releases from two tables show the same, with these facts of the columns."""
    classes, *data = neighbours
    runs = [
        observe(
            lambda: released("table.csv", target="class", classes=classes, **facts),
            lambda folder, lines=lines: write_table(folder, lines, separator),
        )
        for lines in data
    ]
    check_neighbours(*runs, private=[lines[0] for lines in data])


@pairs(400, compared=310)
@given(tables(), st.sampled_from(",;\t"))
def test_tables_of_neighbours_show_the_same(neighbours, separator):
    kinds = ["numeric", "integer", "binary"]
    check_tables(neighbours, separator, bounds=[(0, 1), (-5, 5), (0, 1)], kinds=kinds)


@pairs(120, compared=78)
@given(tables(), st.sampled_from(["classes", "nothing"]))
def test_tables_of_neighbours_show_only_the_facts_that_are_named(neighbours, how):
    classes, *data = neighbours
    facts = {"target": "class", "bounds": [(0, 1), (-5, 5), (0, 1)]}
    if how == "classes":
        facts["classes"] = classes
    runs = [
        observe(
            lambda: released("table.csv", **facts),
            lambda folder, lines=lines: write_table(folder, lines),
        )
        for lines in data
    ]
    check_public_facts(*runs, private=[lines[0] for lines in data])


FACTS = {
    "a": {"low": 0, "high": 1, "missing": True},
    "b": {"kind": "nominal", "categories": ["1", "0", "zebra"], "missing": "?"},
    "c": {"kind": "integer", "low": -(2**40), "high": 2**40, "missing": True},
}


@pairs(150, compared=75)
@given(tables())
def test_tables_with_facts_of_neighbours_show_the_same(neighbours):
    check_tables(neighbours, separator=",", columns=FACTS)


# Tables of pyarrow

# Types of a column, which the schema of a file states, and cells that have this type.
ARROW_COLUMNS = {
    "a": (["float64", "float32", "float16", "decimal"], [0.5, 0.25, 0.0, 1.0, -3.0, 7.5, None]),
    "b": (["string", "large_string", "dictionary"], ["1", "0", "zebra", "mouse", "", None]),
    "c": (["int64", "int8", "decimal"], [0, 1, 5, -3, 100, None]),
    "class": (["string", "large_string", "dictionary"], ["cat", "dog"]),
}
ODD_ARROW_CELLS = {"a": [float("nan"), 1e4], "b": ["\0"], "c": [127], "class": ["zebra", "", None]}
ARROW_FACTS = FACTS | {"b": {"kind": "nominal", "categories": ["1", "0", "zebra"], "missing": True}}


@st.composite
def arrow_tables(draw):
    """Draw types, and the records of two tables whose first record differs."""
    types = {name: draw(st.sampled_from(choices)) for name, (choices, _) in ARROW_COLUMNS.items()}
    cells = [st.sampled_from(usual) for _, usual in ARROW_COLUMNS.values()]
    records = draw(st.lists(st.tuples(*cells), min_size=N, max_size=N))
    first = list(draw(st.tuples(*cells)))
    if draw(ONE_IN_FOUR):
        name = draw(st.sampled_from(list(ARROW_COLUMNS)))
        is_decimal = types[name] == "decimal"
        odd = [cell for cell in ODD_ARROW_CELLS[name] if not is_decimal or cell == cell]
        first[list(ARROW_COLUMNS).index(name)] = draw(st.sampled_from(odd))
    return types, records, [tuple(first), *records[1:]]


def arrow_column(cells, kind):
    """Return cells as a column of a type; the categories of a dictionary are those that occur."""
    if kind == "dictionary":
        return pa.array(cells, pa.string()).dictionary_encode()
    if kind == "decimal":
        exact = [None if cell is None else Decimal(str(cell)) for cell in cells]
        return pa.array(exact, pa.decimal128(20, 4))
    if kind == "float16":
        return pa.array(
            [None if cell is None else np.float16(cell) for cell in cells], pa.float16()
        )
    return pa.array(cells, getattr(pa, kind)())


def arrow_table(types, records):
    columns = zip(*records, strict=True)
    named = zip(types.items(), columns, strict=True)
    return pa.table({name: arrow_column(cells, kind) for (name, kind), cells in named})


def write_arrow(folder, table, ending, group):
    path = folder / f"table{ending}"
    if ending == ".parquet":
        parquet.write_table(table, path, row_group_size=group)
    else:
        feather.write_feather(table, path, chunksize=group)


@pairs(120, compared=60)
@given(arrow_tables(), st.sampled_from([".parquet", ".feather"]), st.sampled_from([2, 5, N]))
def test_arrow_files_of_neighbours_show_the_same(neighbours, ending, group):
    """Where their categories differ, too, and whatever rows are stored together."""
    types, *data = neighbours
    options = {"target": "class", "classes": ["cat", "dog"], "columns": ARROW_FACTS}
    runs = [
        observe(
            lambda: released(f"table{ending}", **options),
            lambda folder, records=records: write_arrow(
                folder, arrow_table(types, records), ending, group
            ),
        )
        for records in data
    ]
    check_neighbours(*runs, private=[records[0] for records in data])


def released_frame(table):
    """Release counts and sums of a table of pyarrow; return what the handle shows."""
    handle = PrivateRecords(
        table.drop_columns("class"), table["class"], classes=["cat", "dog"], columns=ARROW_FACTS
    )
    queries = [ClassCounts(2, share=0.5), SumAndNorm(3)]
    with Budget(handle, queries, target_epsilon=1, target_delta=1e-2, run_dir="run"):
        values = [query.release(handle) for query in queries]
    return (repr(handle), handle.layout, handle.kinds), handle.taken, values


@pairs(100, compared=35)
@given(arrow_tables(), st.sampled_from([2, N]))
def test_arrow_tables_of_neighbours_show_the_same(neighbours, chunk):
    """Of chunks with dictionaries of their own."""
    types, *data = neighbours
    runs = []
    for records in data:
        parts = [records[start : start + chunk] for start in range(0, N, chunk)]
        whole = pa.concat_tables([arrow_table(types, part) for part in parts])
        runs.append(observe(lambda whole=whole: released_frame(whole)))
    check_neighbours(*runs, private=[records[0] for records in data])


# Arrays

LABELS = [[0, 1, 2], ["a", "b", "c"], [10, 20, 30]]


@st.composite
def archives(draw):
    """Draw the classes, and the arrays of two archives whose first record differs."""
    classes = draw(st.sampled_from(LABELS))
    labels = draw(st.lists(st.sampled_from(classes), min_size=N, max_size=N))
    changed = [draw(st.sampled_from([*classes, *classes, "zebra-class", 0, 1])), *labels[1:]]
    shape = draw(st.sampled_from([(N, 3), (N, 8, 8), (N, 8, 8, 3)]))
    as_bytes = len(shape) > 2 and draw(st.booleans())
    values = np.linspace(0, 1, int(np.prod(shape))).reshape(shape)
    if as_bytes:
        values = (255 * values).astype(np.uint8)
    else:
        values = values.astype(draw(st.sampled_from([np.float32, np.float64])))
    changed_values = values.copy()
    odd = [0, 1] if as_bytes else [0, 1, 0.25, np.nan, np.inf, 5.0, -1.0]
    changed_values[0] = draw(st.sampled_from(odd))
    return classes, (values, labels), (changed_values, changed)


def write_archive(folder, values, labels):
    if len({type(label) for label in labels}) > 1:
        labels = [str(label) for label in labels]
    np.savez(folder / "records.npz", data=values, targets=np.array(labels))


@pairs(250, compared=205)
@given(archives())
def test_archives_of_neighbours_show_the_same(neighbours):
    classes, *data = neighbours
    runs = [
        observe(
            lambda: released("records.npz", classes=classes),
            lambda folder, data=data: write_archive(folder, *data),
        )
        for data in data
    ]
    check_neighbours(*runs)


# Folders of images

SIDE = 8
FOLDERS = ["cat", "dog"]


@st.composite
def image_files(draw):
    """Draw the content of one image file: mode, size, format, and whether it can be read."""
    mode = draw(st.sampled_from(["L", "RGB", "RGBA", "LA", "1", "P", "I;16", "CMYK", "F"]))
    size = draw(st.sampled_from([(SIDE, SIDE), (SIDE + 3, SIDE), (1, 1), (20, 20)]))
    kinds = {"L": ["png", "jpeg", "bmp", "webp", "tiff"], "RGB": ["png", "jpeg", "bmp", "webp"]}
    kind = draw(st.sampled_from(kinds.get(mode, ["tiff" if mode in ("CMYK", "F") else "png"])))
    image = Image.new(mode, size, draw(st.integers(0, 1)) if mode == "1" else 0)
    if mode in ("L", "RGB"):
        pixels = np.arange(np.prod(size[::-1])).reshape(size[::-1]) * draw(st.integers(0, 9))
        image = Image.fromarray(pixels.astype(np.uint8), "L").convert(mode)
    content = BytesIO()
    image.save(content, format=kind)
    data = content.getvalue()
    damage = draw(st.sampled_from(["none", "none", "none", "cut", "empty", "text"]))
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "empty":
        data = b""
    elif damage == "text":
        data = b"zebra-text"
    return kind, data


@st.composite
def image_folders(draw):
    """Draw the files of two folders of which one file differs:
    in content, format, name, class or kind of link.
    """
    plain = Image.new("L", (SIDE, SIDE), 128)
    content = BytesIO()
    plain.save(content, format="png")
    files = {}
    for number in range(N):
        folder = FOLDERS[number % len(FOLDERS)]
        files[f"{folder}/{number}.png"] = content.getvalue()
    changed = dict(list(files.items())[1:])
    kind, data = draw(image_files())
    folder = draw(st.sampled_from(FOLDERS))
    name = draw(st.sampled_from(["0", "zebra-name", "a b", "0.x", "Ü"]))
    changed[f"{folder}/{name}.{kind}"] = data
    if draw(st.booleans()):
        changed = {**changed, f"{folder}/link.png": None}
        changed.pop(f"{folder}/{name}.{kind}")
    return files, changed


def write_folder(folder, files):
    for name in FOLDERS:
        (folder / "photos" / name).mkdir(parents=True)
    (folder / "elsewhere.png").write_bytes(next(data for data in files.values() if data))
    for name, data in files.items():
        path = folder / "photos" / name
        if data is None:
            path.symlink_to(folder / "elsewhere.png")
        else:
            path.write_bytes(data)


@pairs(200, compared=195)
@given(image_folders())
def test_image_folders_of_neighbours_show_the_same(neighbours):
    facts = {"size": SIDE, "channels": 1, "classes": FOLDERS}
    runs = [
        observe(
            lambda: released("photos", **facts),
            lambda folder, files=files: write_folder(folder, files),
        )
        for files in neighbours
    ]
    check_neighbours(*runs, private=[["zebra-text"]])


@pairs(80, compared=78)
@given(image_folders())
def test_image_folders_of_neighbours_show_only_the_facts_that_are_named(neighbours):
    runs = [
        observe(lambda: released("photos"), lambda folder, files=files: write_folder(folder, files))
        for files in neighbours
    ]
    check_public_facts(*runs, private=[["zebra-text"]])


# Commands, from the files to the pictures and the report


def command(*words):
    """Return a run of the command line."""
    return lambda: main([str(word) for word in words])


@pairs(30, compared=16)
@given(tables())
def test_generate_of_tables_of_neighbours_leaves_the_same(neighbours):
    classes, *data = neighbours
    facts = ["--classes", *classes, "--bounds", f"{SOURCE}/bounds.csv"]
    run = command("generate", f"{SOURCE}/table.csv", "--target", "class", *facts, *BUDGET)
    runs = [observe(run, lambda folder, lines=lines: write_table(folder, lines)) for lines in data]
    check_neighbours(*runs, private=[lines[0] for lines in data])


@pairs(25, compared=24)
@given(image_folders())
def test_generate_of_image_folders_of_neighbours_leaves_the_same(neighbours):
    facts = ["--classes", *FOLDERS, "--size", SIDE, "--channels", 1, "--unreadable", "zero"]
    run = command("generate", f"{SOURCE}/photos", *facts, *BUDGET)
    runs = [
        observe(run, lambda folder, files=files: write_folder(folder, files))
        for files in neighbours
    ]
    check_neighbours(*runs, private=[["zebra-text"]])


@pairs(25, compared=14)
@given(tables())
def test_forecast_of_neighbours_leaves_the_same(neighbours):
    classes, *data = neighbours
    facts = ["--classes", *classes, "--bounds", f"{SOURCE}/bounds.csv"]
    budget = ["--epsilon", "1", "--delta", "0.01"]
    run = command("forecast", f"{SOURCE}/table.csv", "--target", "class", *facts, *budget)
    runs = [observe(run, lambda folder, lines=lines: write_table(folder, lines)) for lines in data]
    check_neighbours(*runs, private=[lines[0] for lines in data])


def write_source_and_target(folder, values):
    generator = np.random.default_rng(0)
    source = generator.random((40, *values.shape[1:])).astype(np.float32)
    np.savez(folder / "source.npz", data=source, targets=np.arange(40) % 2)
    np.savez(folder / "target.npz", data=values)


@pairs(15, compared=13)
@given(archives())
def test_adapt_of_neighbours_leaves_the_same(neighbours):
    _, *data = neighbours
    files = [f"{SOURCE}/source.npz", f"{SOURCE}/target.npz"]
    run = command("adapt", *files, "--method", "class_shift", "--unreadable", "zero", *BUDGET)
    runs = [
        observe(run, lambda folder, values=values: write_source_and_target(folder, values))
        for values, _ in data
    ]
    check_neighbours(*runs)


FIT = {
    "seed_everything": 0,
    "trainer": {
        "default_root_dir": "run",
        "max_steps": 2,
        "accelerator": "cpu",
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "logger": False,  # files of TensorBoard hold the time
        "enable_model_summary": False,
        "callbacks": [{"class_path": "dpswd.lightning.callbacks.GeneratorFile"}],
    },
    "privacy": {"target_epsilon": 1.0, "target_delta": 0.01},
    "model": {
        "class_path": "dpswd.lightning.module.GeneratorModule",
        "init_args": {
            "generator": {
                "class_path": "dpswd.networks.image_generators.ConvGenerator",
                "init_args": {"sample_shape": [1, SIDE, SIDE], "latent_dim": 4, "hidden": 8},
            },
            "features": {
                "class_path": "dpswd.features.maps.Flatten",
                "init_args": {"sample_shape": [1, SIDE, SIDE], "radius": 3.2},
            },
            "batch_size": 4,
            "n_projections": 64,
            "n_quantiles": 2,
            "labels": "none",
            "generated": 4,
        },
    },
    "data": {
        "class_path": "dpswd.lightning.data.PrivateDataModule",
        "init_args": {"path": f"{SOURCE}/photos", "size": SIDE, "channels": 1, "classes": FOLDERS},
    },
}


def write_fit(folder, files):
    write_folder(folder, files)
    (folder / "fit.yaml").write_text(json.dumps(FIT))


@functools.cache
def warm_up():
    """Fit once before the pairs: libraries print some warnings once in a process."""
    plain = BytesIO()
    Image.new("L", (SIDE, SIDE), 128).save(plain, format="png")
    files = {f"{FOLDERS[number % 2]}/{number}.png": plain.getvalue() for number in range(N)}
    run = command("fit", "--config", f"{SOURCE}/fit.yaml")
    observe(run, lambda folder: write_fit(folder, files))


@pytest.mark.slow
@pairs(8, compared=7)
@given(image_folders())
def test_fit_of_neighbours_leaves_the_same(neighbours):
    unreadable = ["--data.unreadable", "zero"]
    run = command("fit", "--config", f"{SOURCE}/fit.yaml", *unreadable)
    warm_up()
    runs = [
        observe(run, lambda folder, files=files: write_fit(folder, files)) for files in neighbours
    ]
    check_neighbours(*runs, private=[["zebra-text"]])
