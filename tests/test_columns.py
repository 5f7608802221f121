"""Columns of all kinds: cells to numbers and back, each cell by itself."""

import datetime
import io
from decimal import Decimal

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from dpswd import PrivateGenerator, PrivateRecords
from dpswd.columns import Column, Table, read_columns
from dpswd.data import read
from dpswd.errors import InputError

FACTS = {
    "patient": {"kind": "identifier"},
    "admitted": {"kind": "date", "low": "2020-01-01", "high": "2020-12-31"},
    "sex": {"kind": "binary", "categories": ["F", "M"]},
    "smoker": {"kind": "binary", "categories": ["no", "yes"], "missing": True},
    "school": {"kind": "nominal", "categories": list("abcdefgh"), "missing": "?"},
    "bmi": {"low": 10, "high": 60, "missing": True, "decimals": 1},
    "cost": {"kind": "integer", "low": 2**40, "high": 2**40 + 1000},
}


def people(n=400):
    """Return rows of text that fit the facts, and the names of the columns."""
    random = np.random.default_rng(0)
    lines = []
    for patient in range(n):
        day = datetime.date(2020, 1, 1) + datetime.timedelta(days=int(random.integers(366)))
        bmi = "" if random.random() < 0.25 else f"{random.normal(25, 4):.1f}"
        lines.append(
            [
                str(patient),
                day.isoformat(),
                str(random.choice(["F", "M"])),
                str(random.choice(["no", "yes", ""])),
                str(random.choice([*"abc", "?"])),
                bmi,
                str(2**40 + int(random.integers(1001))),
            ]
        )
    return lines


def write_people(path, lines, names=tuple(FACTS)):
    text = "\n".join(",".join(line) for line in [list(names), *lines])
    (path / "people.csv").write_text(text + "\n")
    return path / "people.csv"


def test_a_table_of_all_kinds_comes_back_as_it_was(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.read_csv(write_people(tmp_path, people(3000)), keep_default_na=False)
    frame["admitted"] = pd.to_datetime(frame["admitted"])
    frame["school"] = pd.Categorical(frame["school"].replace("?", None), list("abcdefgh"))
    frame["bmi"] = pd.to_numeric(frame["bmi"])
    generator = PrivateGenerator(
        10, 1e-5, columns=FACTS, run_dir=tmp_path / "run", verbose=False
    ).fit(frame)
    synthetic, _ = generator.sample(3000)
    assert list(synthetic) == list(frame)[1:]
    assert (synthetic.dtypes == frame.dtypes[1:]).all()
    assert synthetic["admitted"].between("2020-01-01", "2020-12-31").all()
    assert synthetic["cost"].between(2**40, 2**40 + 1000).all()
    # Four standard deviations of a share of 3,000 records, and as much for the noise.
    for name in ("bmi", "school"):
        assert abs(synthetic[name].isna().mean() - frame[name].isna().mean()) < 0.07
    shares = synthetic["smoker"].value_counts(normalize=True, dropna=False)
    assert shares.max() < 0.45
    generator.save(tmp_path / "generator.pt")
    loaded = PrivateGenerator.load(tmp_path / "generator.pt").sample(5)[0]
    assert (loaded.dtypes == synthetic.dtypes).all()


def test_columns_are_matched_by_name(tmp_path):
    lines = people()
    order = [6, 0, 3, 1, 2, 5, 4]
    names = list(FACTS)
    reordered = [[line[j] for j in order] for line in lines]
    records = read(write_people(tmp_path, lines), columns=FACTS)
    other = read(write_people(tmp_path, reordered, [names[j] for j in order]), columns=FACTS)
    assert records.digest() == other.digest()
    assert records.layout.columns == tuple(names[1:])


def without_path(error, directory):
    """Return the text of an error without a directory, whose name has random letters."""
    return str(error).replace(str(directory), "")


@pytest.mark.parametrize(
    ("name", "cell", "message"),
    [
        ("bmi", "heavy", "a number in column bmi of .*got a cell of another form in line 4"),
        ("bmi", "1_5", "a number in column bmi of .*line 4"),
        (
            "cost",
            "",
            "a number in column cost of .*got a missing cell in line 4.*add missing: true",
        ),
        ("sex", "X", "F or M in column sex of .*got a cell that is no category in line 4"),
        ("admitted", "31.01.2020", "a date .* in column admitted of .*line 4"),
        ("admitted", "2020-02-01T00:00:00+01:00", "got a time with a time zone in line 4"),
    ],
)
def test_a_cell_that_does_not_fit_is_named_by_its_line_without_its_value(
    tmp_path, name, cell, message
):
    lines = people(10)
    lines[2][list(FACTS).index(name)] = cell
    with pytest.raises(InputError, match=message) as error:
        read(write_people(tmp_path, lines), columns=FACTS)
    if cell:
        assert cell not in without_path(error.value, tmp_path)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"kind": "nominal"}, "categories of the nominal column a"),
        ({"kind": "binary", "categories": "x|y|z"}, "two categories"),
        ({"kind": "nominal", "categories": "x|x"}, "a repeated one"),
        ({"kind": "number", "low": 0, "high": 1}, "kind of column a out of"),
        ({"kind": "nominl"}, r"got 'nominl'; did you mean nominal\?"),
        ({"kind": "nominal", "categries": ["a"]}, r"'categries'; did you mean categories\?"),
        ({"kind": "date", "low": "01.01.2023", "high": "2024-01-01"}, "as in 2023-01-31"),
        ({"kind": "text"}, "got 'text'; columns of text are nominal"),
        ({"low": 1, "high": 0}, "low < high"),
        ({"kind": "date", "low": "yesterday", "high": "2020-01-01"}, "low < high"),
        ({"low": 0, "high": 1, "draft": "true"}, "confirmed, got a draft"),
        ({"low": 0, "high": 1, "bins": 4}, "facts out of"),
        ({"low": 0, "high": 1, "decimals": "many"}, "decimals of column a"),
        ({"low": 0, "high": 1, "missing": True, "other": "maybe"}, "true or false"),
        (
            {"kind": "identifier", "missing": True},
            "no facts of the identifier column a, got missing",
        ),
        ({"kind": "nominal", "categories": ["x"], "low": 0}, "got low, which means nothing"),
        ({"kind": "binary", "other": False}, "got other, which means nothing"),
        ({"kind": "date", "low": "2020-01-01", "high": "2020-01-02", "decimals": 1}, "decimals"),
        ({"kind": "date", "low": "01.01.2020", "high": "02.01.2020", "format": "%d.%m.%Y"}, "ISO"),
        ({"kind": "integer", "low": 0.5, "high": 3}, "whole numbers"),
        ({"kind": "nominal", "categories": ["x", None]}, "text or numbers, got NoneType"),
        ({"kind": "nominal", "categories": 3}, "as a list"),
        ({"low": 0, "high": 1, "decimal_mark": "point"}, "one character"),
        ({"low": 0, "high": 1, "thousands_mark": "."}, "two different marks"),
    ],
)
def test_facts_that_do_not_fit_are_refused(facts, message):
    with pytest.raises(InputError, match=message):
        Table.of({"a": facts})


def test_names_that_differ_are_refused(tmp_path):
    path = write_people(tmp_path, people(10))
    message = (
        "lacks height, and has admitted, .* which the facts do not have; .*(1) correct the names"
    )
    with pytest.raises(InputError, match=message.replace("(1)", r"\(1\)")):
        read(path, columns={"patient": {"kind": "identifier"}, "height": {"low": 0, "high": 1}})
    without_dates = {name: facts for name, facts in FACTS.items() if name != "admitted"}
    with pytest.raises(InputError, match=r"as in admitted: {kind: integer.*name it by target="):
        read(path, columns=without_dates)
    pd = pytest.importorskip("pandas")
    with pytest.raises(InputError, match="pass it as y"):
        PrivateRecords(pd.read_csv(path), columns=without_dates)
    with pytest.raises(InputError, match="both"):
        read(path, columns=FACTS, bounds=[(0, 1)] * 6)
    with pytest.raises(InputError, match="a DataFrame"):
        PrivateRecords(np.zeros((4, 2)), columns=FACTS)


@pytest.mark.parametrize("bounds", [None, [(0, 9)] * 3])
def test_repeated_names_of_a_frame_are_refused_without_facts_of_columns(bounds):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(np.ones((4, 3)), columns=["a", "b", "a"])
    with pytest.raises(InputError, match="different names of the columns of X, got a repeated one"):
        PrivateRecords(frame, bounds=bounds)
    renamed = frame.set_axis(["a", "b", "c"], axis=1)
    assert len(PrivateRecords(renamed, bounds=bounds)) == 4


def test_repeated_names_and_zeros_for_unreadable_cells_are_refused(tmp_path):
    pd = pytest.importorskip("pandas")
    facts = {"a": {"low": 0, "high": 1}}
    twice = pd.DataFrame(np.zeros((3, 2)), columns=["a", "a"])
    with pytest.raises(InputError, match="a repeated one"):
        PrivateRecords(twice, columns=facts)
    with pytest.raises(InputError, match="state missing cells"):
        PrivateRecords(twice.iloc[:, :1], columns=facts, unreadable="zero")
    path = write_people(tmp_path, people(10))
    with pytest.raises(InputError, match="state missing cells"):
        read(path, columns=FACTS, unreadable="zero")


def test_a_listed_category_may_be_spelled_as_a_missing_cell():
    column = Column(name="a", kind="nominal", categories=("None", "x"), missing=True)
    numbers = column.numbers(["None", None, float("nan"), "", "x", "NA"], "a")
    assert column.cells(numbers) == ["None", None, None, None, "x", None]
    unsure = Column(name="a", kind="nominal", categories=("None", "x"))
    with pytest.raises(InputError, match="line 2"):
        unsure.numbers(["None", None], "a")


def test_text_of_a_missing_cell_is_a_number():
    column = Table.of({"a": {"low": 0, "high": 9, "missing": -999}}).included[0]
    assert column.cells(column.numbers(["-999", "3"], "a")) == [None, 3]


@pytest.mark.parametrize(
    ("marks", "text", "number"),
    [((",", "."), "1.234,5", 1234.5), ((",", ""), "0,25", 0.25), ((".", ","), "1,700", 1700)],
)
def test_marks_of_numbers(marks, text, number):
    decimal_mark, thousands_mark = marks
    facts = {"low": 0, "high": 2000, "decimal_mark": decimal_mark, "decimals": 2}
    facts["thousands_mark"] = thousands_mark
    column = Table.of({"a": facts}).included[0]
    (cell,) = column.cells(column.numbers([text], "a"))
    assert cell == number
    (written,) = column.as_text([cell])
    assert column.numbers([written], "a").tolist() == column.numbers([text], "a").tolist()
    with pytest.raises(InputError, match="decimal_mark"):
        Table.of({"a": {"low": 0, "high": 2000}}).included[0].numbers([text + ",0"], "a")


def test_values_of_numpy_and_pandas_as_facts_can_be_loaded_again(tmp_path):
    pd = pytest.importorskip("pandas")
    facts = {
        "day": {"kind": "date", "low": pd.Timestamp("2020-01-01"), "high": np.datetime64("2021")},
        "ward": {"kind": "nominal", "categories": np.array(["x", "y"])},
        "age": {"kind": "integer", "low": np.int64(0), "high": np.float32(120)},
    }
    frame = pd.DataFrame({"day": ["2020-06-01"] * 400, "ward": ["x", "y"] * 200, "age": [30] * 400})
    generator = PrivateGenerator(10, 1e-3, columns=facts, verbose=False, run_dir=tmp_path / "run")
    generator.fit(frame).save(tmp_path / "generator.pt")
    loaded = PrivateGenerator.load(tmp_path / "generator.pt")
    assert loaded.generator_.layout == generator.generator_.layout
    day = loaded.generator_.layout.table.included[0]
    assert (day.low, day.high) == ("2020-01-01", "2021-01-01")


def test_files_of_facts(tmp_path):
    (tmp_path / "columns.csv").write_text(
        "column;low;high;kind;categories;missing\nage;0;120;integer;;\nsex;;;nominal;F|M;?\n",
        encoding="utf-8-sig",
    )
    (tmp_path / "columns.yaml").write_text(
        "age: {kind: integer, low: 0, high: 120}\n"
        "sex: {kind: nominal, categories: [F, M], missing: '?'}\n"
    )
    (tmp_path / "norway.yaml").write_text("a: {kind: binary, categories: [no, yes]}\n")
    tables = [read_columns(tmp_path / f"columns.{ending}") for ending in ("csv", "yaml")]
    assert tables[0] == tables[1]
    assert tables[0].bounds == [(0, 120), (0, 3)]
    assert read_columns(tmp_path / "norway.yaml").included[0].categories == ("no", "yes")
    (tmp_path / "columns.yaml").write_text("age: [\n")
    with pytest.raises(InputError, match="no YAML on line 2"):
        read_columns(tmp_path / "columns.yaml")


@given(
    low=st.integers(-(2**50), 2**50),
    width=st.integers(1, 2**23),
    part=st.floats(0, 1),
    missing=st.booleans(),
)
def test_numbers_far_from_zero_keep_five_digits_of_their_width(low, width, part, missing):
    column = Column(name="a", kind="numeric", low=low, high=low + width, missing=missing)
    value = low + part * width
    numbers = column.numbers([value], "x").astype(np.float32)
    (cell,) = column.cells(numbers)
    # Half a unit of the last digit, and float32 at 16 widths from 0.
    assert abs(cell - value) <= 1e-4 * width + abs(value) * 2**-50


@given(
    low=st.integers(-(2**50), 2**50),
    width=st.integers(1, 2**23),
    part=st.floats(0, 1),
    missing=st.booleans(),
)
def test_integers_come_back_exactly(low, width, part, missing):
    column = Column(name="a", kind="integer", low=low, high=low + width, missing=missing)
    value = low + int(part * width)
    numbers = column.numbers([str(value), value], "x").astype(np.float32)
    assert column.cells(numbers) == [value, value]
    if missing:
        assert column.cells(column.numbers(["", None, float("nan")], "x")) == [None] * 3


@given(st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2100, 1, 1)))
def test_dates_come_back(moment):
    column = Column(name="a", kind="date", low="1900-01-01", high="2100-01-01")
    german = Column(name="a", kind="date", low="1900-01-01", high="2100-01-01", format="%d.%m.%Y")
    day = moment.date()
    text = f"{day.day:02d}.{day.month:02d}.{day.year}"
    numbers = column.numbers([day, moment, day.isoformat()], "x")
    assert column.cells(numbers) == [day.isoformat()] * 3
    assert german.cells(german.numbers([text], "x")) == [text]


@given(st.text(max_size=5), st.booleans())
def test_a_cell_that_is_not_listed_is_other(cell, missing):
    column = Column(name="a", kind="nominal", categories=("x", "y"), missing=missing)
    if not missing and cell.strip().lower() in ("", "na", "null", "none", "nan", "nat"):
        with pytest.raises(InputError):
            column.numbers([cell], "x")
        return
    (back,) = column.cells(column.numbers([cell], "x"))
    assert back in ("x", "y", "other", None)
    assert (back == cell.strip()) or back in ("other", None)


def test_the_type_of_a_frame_must_hold_the_facts(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"a": np.arange(10, dtype=np.uint8)})
    facts = {"a": {"kind": "integer", "low": 0, "high": 1000}}
    with pytest.raises(InputError, match="fit their types"):
        PrivateRecords(frame, columns=facts)
    facts["a"]["dtype"] = "int64"
    assert PrivateRecords(frame, columns=facts).taken == ()


def test_axes_name_what_numbers_stand_for(tmp_path):
    table = Table.of(FACTS)
    marks = {column.name: column.ticks for column in table.included}
    assert marks["smoker"] == [(0.0, "missing"), (1.0, "no"), (2.0, "yes")]
    assert marks["admitted"] == [(0.0, "2020-01-01"), (365.0, "2020-12-31")]
    assert [name for _, name in marks["bmi"]] == ["missing", "60"]
    assert marks["cost"] == []
    for column in table.included:
        for number, name in column.ticks:
            if name != "missing":
                assert column.numbers([name], "x").tolist() == [number]


def test_the_report_has_the_facts_in_words(tmp_path):
    pd = pytest.importorskip("pandas")
    frame = pd.read_csv(write_people(tmp_path, people(400)), keep_default_na=False, dtype=str)
    generator = PrivateGenerator(
        10, 1e-3, columns=FACTS, run_dir=tmp_path / "run", verbose=False
    ).fit(frame)
    generator.report(tmp_path / "report.md")
    report = (tmp_path / "report.md").read_text()
    for line in (
        "- patient: left out",
        "- admitted: date from 2020-01-01 to 2020-12-31",
        "- sex: F or M",
        "- bmi: numeric from 10 to 60, may be missing",
    ):
        assert f"\n{line}\n" in report
    assert "The bounds of the columns" not in report


# One odd cell makes NumPy, pandas and pyarrow hold all cells of a column in another type.


def spelled(kind, values):
    """Return the values as a column of a frame, in the type that they have together."""
    pd = pytest.importorskip("pandas")
    if kind == "csv":
        return pd.read_csv(io.StringIO("a\n" + "\n".join(map(str, values)) + "\n"))
    if kind == "numpy":
        return pd.DataFrame({"a": np.array(values)})
    pa = pytest.importorskip("pyarrow")
    if kind == "arrow csv":
        from pyarrow.csv import read_csv

        return read_csv(io.BytesIO("\n".join(["a", *map(str, values)]).encode()))
    return pa.table({"a": values})


@pytest.mark.parametrize(
    ("kind", "facts", "values", "odd"),
    [
        ("csv", {"kind": "nominal", "categories": [1, 2, 3]}, ["1.0", "2.0", "3.0"], "X"),
        ("csv", {"kind": "nominal", "categories": ["1", "2"]}, ["01", "02", "01"], "X"),
        ("numpy", {"kind": "nominal", "categories": [1, 2]}, [1.0, 2.0, 1.0], "X"),
        ("numpy", {"kind": "nominal", "categories": [True, False]}, [True, False, True], 2.5),
        ("csv", {"low": 0, "high": 9, "missing": "-9"}, ["-9.0", "3.0", "-9.0"], "nUll"),
        (
            "arrow",
            {"kind": "nominal", "categories": ["1", "2"]},
            [Decimal("1"), Decimal("2"), Decimal("1")],
            Decimal("1.5"),
        ),
        ("csv", {"kind": "nominal", "categories": [True, False]}, ["TRUE", "FALSE", "TRUE"], "X"),
        ("csv", {"kind": "nominal", "categories": ["true", "no"]}, ["true", "false", "true"], "X"),
        (
            "numpy",
            {"kind": "nominal", "categories": [0.1, 0.2]},
            [np.float32(0.1), np.float32(0.2), np.float32(0.1)],
            "X",
        ),
        (
            "csv",  # integers beyond 2^53, which a missing cell makes floats of
            {"low": 2**60, "high": 2**60 + 2000, "missing": True},
            [2**60 + 50, 2**60 + 700, 2**60 + 1500],
            "NA",
        ),
        ("arrow csv", {"kind": "nominal", "categories": [0, 1]}, ["false", "true", "false"], "X"),
        (
            "arrow csv",
            {"kind": "nominal", "categories": ["10:30", "11:30:00"]},
            ["10:30", "11:30", "10:30"],
            "X",
        ),
        (
            "arrow csv",
            {"kind": "nominal", "categories": ["2020-01-31 10:30", "2020-02-01"]},
            ["2020-01-31 10:30", "2020-02-01 00:00", "2020-01-31T10:30:00"],
            "X",
        ),
        (
            "arrow csv",
            {"kind": "nominal", "categories": ["2020-01-31T10:30Z"]},
            ["2020-01-31 10:30Z", "2020-01-31 12:30Z", "2020-01-31T10:30:00Z"],
            "X",
        ),
        (
            "arrow csv",
            {"kind": "nominal", "categories": [1, 2], "missing": True},
            ["1", "#N/A", "2"],
            "X",
        ),
    ],
)
def test_the_type_of_all_cells_does_not_change_how_one_is_read(kind, facts, values, odd):
    facts = {"a": facts | {"dtype": "object"}}
    as_they_are = PrivateRecords(spelled(kind, [*values, values[0]]), columns=facts)
    with_odd_cell = PrivateRecords(spelled(kind, [*values, odd]), columns=facts)
    first = torch.arange(len(values))
    assert torch.equal(as_they_are.open_records(first)[0], with_odd_cell.open_records(first)[0])
    assert len(as_they_are.open_records(first)[0].unique()) > 1


@pytest.mark.parametrize(
    "facts",
    [
        {"kind": "integer", "low": 2**60, "high": 2**60 + 1000, "missing": True},
        {"kind": "nominal", "categories": [2**60 + 1, 2**60 + 2], "missing": True},
        {"kind": "nominal", "categories": [2**60, 2**60 + 1, 2**60 + 2], "missing": True},
        {"low": 0, "high": 9, "decimal_mark": ",", "missing": True},
    ],
)
def test_floats_in_which_a_value_was_changed_are_refused(facts):
    pd = pytest.importorskip("pandas")
    cells = [2**60 + 1, 2**60 + 2, None]
    if "decimal_mark" in facts:
        cells = [1.5, 2.5, None]
    with pytest.raises(InputError, match="column a of X, got a float"):
        PrivateRecords(pd.DataFrame({"a": cells}), columns={"a": facts | {"dtype": "object"}})


def test_units_beyond_2_53_are_no_floats():
    with pytest.raises(InputError, match="a float beyond 2\\^53"):
        PrivateRecords(np.zeros((3, 2)), unit=[2.0**60, 2.0**60, 7.5])


def test_cells_that_python_cannot_hold_are_refused_without_their_value():
    pa = pytest.importorskip("pyarrow")
    days = pa.array([1073741824, 12000], pa.int32()).cast(pa.date32())
    table = pa.table({"d": days, "w": [0.5, 0.5]})
    facts = {
        "d": {"kind": "date", "low": "2000-01-01", "high": "2020-01-01"},
        "w": {"low": 0, "high": 1},
    }
    with pytest.raises(InputError, match="column d of X") as error:
        PrivateRecords(table, columns=facts)
    assert "1073741824" not in str(error.value)
    left_out = PrivateRecords(table, columns=facts | {"d": {"kind": "identifier"}})
    assert left_out.shape == (1,)


def test_a_refusal_tells_no_byte_of_a_cell(tmp_path):
    (tmp_path / "b.csv").write_bytes(b"d,x\n2001-01-01,1\n2001-01-0\xe9,1\n")
    with pytest.raises(InputError, match="not UTF-8") as error:
        read(tmp_path / "b.csv", columns={"d": {"kind": "identifier"}, "x": {"low": 0, "high": 2}})
    text = without_path(error.value, tmp_path)
    assert "e9" not in text
    assert "position" not in text
