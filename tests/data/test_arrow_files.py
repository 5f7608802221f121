"""Tables in .parquet and .feather files, and frames of polars and pyarrow."""

import datetime
import tracemalloc
from decimal import Decimal

import numpy as np
import pytest
import torch

from dpswd import PrivateGenerator, PrivateRecords
from dpswd.commands.main import main
from dpswd.data import read
from dpswd.errors import InputError
from dpswd.files.export import export

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")

FACTS = {
    "patient": {"kind": "identifier"},
    "day": {"kind": "date", "low": "2020-01-01", "high": "2020-12-31"},
    "seen": {"kind": "datetime", "low": "2020-01-01", "high": "2021-01-01", "missing": True},
    "smoker": {"kind": "binary", "missing": True},
    "ward": {"kind": "nominal", "categories": ["heart", "lung", "eye"]},
    "bmi": {"low": 10, "high": 60, "missing": True, "decimals": 1},
    "cost": {"kind": "integer", "low": 2**60, "high": 2**60 + 1000, "missing": True},
}
N = 500
CLASSES = {"target": "sick", "classes": ["no", "yes"]}


def table(n=N):
    random = np.random.default_rng(0)
    first_day = datetime.date(2020, 1, 1)
    days = [first_day + datetime.timedelta(days=int(day)) for day in random.integers(366, size=n)]
    seen = [datetime.datetime(day.year, day.month, day.day, 12, 30) for day in days]
    bmi = random.normal(25, 4, n).round(1)
    columns = {
        "patient": [f"p{number}" for number in range(n)],
        "day": pa.array(days, pa.date32()),
        "seen": pa.array([None, *seen[1:]], pa.timestamp("us")),
        "smoker": pa.array([None, *(random.random(n - 1) < 0.3)], pa.bool_()),
        "ward": pa.array(random.choice(["heart", "lung", "eye"], n)).dictionary_encode(),
        "bmi": pa.array(np.where(random.random(n) < 0.2, np.nan, bmi), from_pandas=True),
        "cost": pa.array([None, *(2**60 + int(x) for x in random.integers(1001, size=n - 1))]),
        "sick": random.choice(["no", "yes"], n),
    }
    return pa.table(columns)


def write(folder, ending):
    path = folder / f"people{ending}"
    if ending == ".parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(table(), path)
    else:
        import pyarrow.feather

        pyarrow.feather.write_feather(table(), path)
    return path


@pytest.mark.parametrize("ending", [".parquet", ".feather"])
def test_a_file_comes_back_with_the_types_that_it_had(tmp_path, monkeypatch, ending):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path, ending)
    (tmp_path / "columns.yaml").write_text(
        "patient: {kind: identifier}\n"
        "day: {kind: date, low: 2020-01-01, high: 2020-12-31}\n"
        "seen: {kind: datetime, low: 2020-01-01, high: 2021-01-01, missing: true}\n"
        "smoker: {kind: binary, missing: true}\n"
        "ward: {kind: nominal, categories: [heart, lung, eye]}\n"
        "bmi: {low: 10, high: 60, missing: true, decimals: 1}\n"
        f"cost: {{kind: integer, low: {2**60}, high: {2**60 + 1000}, missing: true}}\n"
    )
    reading = ["--columns", "columns.yaml", "--target", "sick"]
    command = ["generate", path.name, *reading, "--classes", "no", "yes", "--out", "run"]
    assert main(command) == 0
    import pyarrow.dataset

    def read_again(file):
        return pyarrow.dataset.dataset(file, format=ending[1:]).to_table()

    synthetic = read_again(tmp_path / "run" / f"synthetic{ending}")
    expected = table().drop_columns("patient").schema
    assert synthetic.schema.names == expected.names
    for name in expected.names:
        types = {str(synthetic.schema.field(name).type), str(expected.field(name).type)}
        is_text = {"string", "large_string"} >= types
        assert len(types) == 1 or is_text or name == "ward"
    assert pa.types.is_dictionary(synthetic.schema.field("ward").type)
    costs = [cost for cost in synthetic["cost"].to_pylist() if cost is not None]
    assert all(2**60 <= cost <= 2**60 + 1000 for cost in costs)
    assert main(["sample", "run", "-n", "200", "--out", f"more{ending}"]) == 0
    evaluate = ["evaluate", f"more{ending}", path.name, *reading, "--classifiers", "logreg"]
    assert main(evaluate) == 0


def test_a_file_and_its_csv_are_the_same_records(tmp_path):
    path = write(tmp_path, ".parquet")
    table().to_pandas().to_csv(tmp_path / "people.csv", index=False)
    ward = FACTS["ward"] | {"categories": ["heart", "lung", "eye"]}
    facts = FACTS | {"ward": ward, "cost": FACTS["cost"] | {"kind": "identifier"}}
    facts["cost"] = {"kind": "identifier"}  # pandas writes floats for integers with missing cells
    records = read(path, columns=facts, **CLASSES)
    assert records.digest() == read(tmp_path / "people.csv", columns=facts, **CLASSES).digest()
    assert records.layout.columns == ("day", "seen", "smoker", "ward", "bmi")


def test_facts_may_leave_the_target_and_the_unit_out(tmp_path):
    path = write(tmp_path, ".parquet")
    facts = FACTS | {"sick": {"kind": "identifier"}}
    records = read(path, columns=facts, unit="patient", **CLASSES)
    assert len(records) == N
    assert records.has_units
    assert records.digest() == read(path, columns=FACTS, unit="patient", **CLASSES).digest()


def test_tables_of_numbers_need_no_facts(tmp_path):
    frame = pd.DataFrame({"a": np.arange(20) / 20, "b": np.arange(20), "sick": ["no", "yes"] * 10})
    frame.to_parquet(tmp_path / "numbers.parquet")
    frame.to_csv(tmp_path / "numbers.csv", index=False)
    records = read(tmp_path / "numbers.parquet", bounds=[(0, 1), (0, 20)], **CLASSES)
    assert records.kinds == ["numeric", "integer"]
    assert records.digest() == read(tmp_path / "numbers.csv", **CLASSES).digest()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "sik"}, "target .--target. to be a column"),
        ({"unit": "person"}, "unit .--unit. to be a column"),
        ({}, "text or mixed types"),
        ({"columns": {"bmi": {"low": 0, "high": 1}}, **CLASSES}, "which the facts do not have"),
        ({"columns": FACTS | {"bmi": {"low": 10, "high": 60}}, **CLASSES}, "column bmi .* in line"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        read(write(tmp_path, ".parquet"), **options)


def test_a_folder_of_parts_is_refused_as_such(tmp_path):
    (tmp_path / "x.parquet").mkdir()
    frame_of_parts = pd.DataFrame({"a": [1.0]})
    frame_of_parts.to_parquet(tmp_path / "x.parquet" / "part-0.parquet")
    with pytest.raises(InputError, match=r"Expected one file, got .*x\.parquet, a folder"):
        read(tmp_path / "x.parquet")


def test_a_damaged_file_is_refused(tmp_path):
    path = write(tmp_path, ".parquet")
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(InputError, match="a readable file"):
        read(path, columns=FACTS, **CLASSES)


@pytest.mark.parametrize("kind", ["polars", "pyarrow"])
def test_frames_of_polars_and_pyarrow_are_read(tmp_path, kind):
    people = table()
    expected = PrivateRecords(
        people.drop_columns("sick"), people["sick"].to_pylist(), columns=FACTS
    )
    if kind == "polars":
        people = pl.from_arrow(people)
        X, sick = people.drop("sick"), people["sick"].to_list()
    else:
        X, sick = people.drop_columns("sick"), people["sick"].to_pylist()
    assert PrivateRecords(X, sick, columns=FACTS).digest() == expected.digest()
    generator = PrivateGenerator(
        10, 1e-3, columns=FACTS, classes=["no", "yes"], run_dir=tmp_path / "run", verbose=False
    )
    frame, _ = generator.fit(X, sick).sample(50)
    assert type(frame) is type(X)
    generator.save(tmp_path / "generator.pt")
    loaded, labels = PrivateGenerator.load(tmp_path / "generator.pt").sample(50)
    assert type(loaded) is type(X)
    assert set(np.asarray(labels)) <= {"no", "yes"}
    if kind == "polars":
        assert frame.schema == X.drop("patient").schema
    else:
        types = dict(zip(frame.schema.names, frame.schema.types, strict=True))
        assert pa.types.is_dictionary(types["ward"])
        names = ["day", "seen", "smoker", "bmi", "cost"]
        assert [types[name] for name in names] == [X.schema.field(name).type for name in names]
    for ending in (".parquet", ".csv"):
        export(tmp_path / f"made{ending}", frame, labels, generator.generator_.layout)
        again = read(
            tmp_path / f"made{ending}", columns=FACTS, target="class", classes=["no", "yes"]
        )
        assert len(again) == 50


def test_a_frame_of_numbers_of_polars_comes_back_as_one(tmp_path):
    random = np.random.default_rng(0)
    frame = pl.DataFrame(
        {"age": random.integers(0, 90, N), "dose": random.random(N).astype(np.float32)}
    )
    sick = pl.Series("sick", random.choice(["no", "yes"], N))
    generator = PrivateGenerator(
        10,
        1e-3,
        bounds=[(0, 90), (0, 1)],
        classes=["no", "yes"],
        run_dir=tmp_path / "run",
        verbose=False,
    )
    synthetic, labels = generator.fit(frame, sick).sample(50)
    assert synthetic.schema == frame.schema
    assert isinstance(labels, pl.Series)
    assert labels.name == "sick"


def test_a_large_file_is_read_some_rows_at_a_time(tmp_path):
    n = 60_000
    random = np.random.default_rng(0)
    names = [f"c{position}" for position in range(3)]
    frame = pd.DataFrame(random.integers(0, 10**6, (n, len(names))), columns=names)
    frame.to_parquet(tmp_path / "large.parquet")
    frame[:10].to_parquet(tmp_path / "small.parquet")
    facts = {name: {"kind": "integer", "low": 0, "high": 10**6} for name in names}
    read(tmp_path / "small.parquet", columns=facts)  # what is imported is not counted
    tracemalloc.start()
    read(tmp_path / "large.parquet", columns=facts)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Numbers in float64, twice; 20,000 rows of objects of 32 bytes in lists of 8.
    assert peak < 2 * n * len(names) * 8 + 20_000 * len(names) * 60 * 1.5


def write_column(folder, column, ending):
    """Write a column x beside labels, in groups of two rows."""
    labels = pa.array((["no", "yes"] * len(column))[: len(column)])
    written = pa.table({"x": column, "sick": labels})
    path = folder / f"x{ending}"
    if ending == ".parquet":
        import pyarrow.parquet

        pyarrow.parquet.write_table(written, path, row_group_size=2)
    else:
        import pyarrow.feather

        pyarrow.feather.write_feather(written, path, chunksize=2)
    return path


def numbers_of(records):
    return records.open_records(torch.arange(len(records)))[0][:, 0].tolist()


NUMBER = {"x": {"low": 0, "high": 10, "missing": True}}
WORD = {"x": {"kind": "nominal", "categories": ["a", "b"], "missing": True}}
TIME = {"x": {"kind": "datetime", "low": "2020-01-01", "high": "2021-01-01"}}
NOON = 1577880000 * 10**9  # 2020-01-01, in nanoseconds


def dictionary(indices, categories):
    return pa.DictionaryArray.from_arrays(pa.array(indices), pa.array(categories))


@pytest.mark.parametrize("ending", [".parquet", ".feather"])
@pytest.mark.parametrize(
    ("column", "facts", "numbers"),
    [
        (pa.array([Decimal("1.25"), None, Decimal("9.5")]), NUMBER, [1.25, None, 9.5]),
        (pa.array([Decimal("1.25")], pa.decimal256(50, 2)), NUMBER, [1.25]),
        (pa.array(np.array([0.5, 1], np.float16)), NUMBER, [0.5, 1]),
        (pa.array([2**64 - 1, 3], pa.uint64()), NUMBER, [10, 3]),
        (pa.array(["a", "b", "z", None], pa.large_string()), WORD, [1, 2, 3, 0]),
        (pa.array(["a", "b"], pa.string_view()), WORD, [1, 2]),
        (dictionary([0, 1, 0], ["a", "b", "unused"]), WORD, [1, 2, 1]),
        (dictionary([0, None, 1], ["b", "a"]), WORD, [2, 0, 1]),
        (pa.chunked_array([dictionary([0], ["a"]), dictionary([0], ["b"])]), WORD, [1, 2]),
        (pa.array([NOON + 123456789], pa.timestamp("ns")), TIME, [43200]),
    ],
    ids=str,
)
def test_columns_of_all_types_are_read(tmp_path, ending, column, facts, numbers):
    records = read(write_column(tmp_path, column, ending), columns=facts, **CLASSES)
    is_missing = [number is None for number in numbers]
    read_numbers = numbers_of(records)
    for number, expected, missing in zip(read_numbers, numbers, is_missing, strict=True):
        assert number < 0 if missing else number == pytest.approx(expected, abs=1)
    if facts is not TIME:
        again = PrivateRecords(
            pa.table({"x": column}),
            (["no", "yes"] * len(column))[: len(column)],
            classes=["no", "yes"],
            columns=facts,
        )
        assert numbers_of(again) == read_numbers


@pytest.mark.parametrize("ending", [".parquet", ".feather"])
@pytest.mark.parametrize(
    ("column", "facts", "message"),
    [
        (pa.nulls(3), NUMBER, "a type that cannot hold"),
        (pa.array([[1.0], [2.0]]), NUMBER, "a type that cannot hold"),
        (pa.array([[1.0, 2.0]], pa.list_(pa.float64(), 2)), NUMBER, "a type that cannot hold"),
        (pa.array([{"a": 1}]), WORD, "a type that cannot hold"),
        (pa.array([NOON], pa.timestamp("ns", "Europe/Berlin")), TIME, "a time with a time zone"),
        (pa.array([b"\xff"]).view(pa.string()), WORD, "text that is not UTF-8"),
        (pa.array([datetime.timedelta(1)]), NUMBER, "a cell of another form in line 1"),
    ],
    ids=str,
)
def test_columns_that_hold_something_else_are_refused(tmp_path, ending, column, facts, message):
    with pytest.raises(InputError, match=message) as error:
        read(write_column(tmp_path, column, ending), columns=facts, **CLASSES)
    assert "write it again" not in str(error.value)
    labels = (["no", "yes"] * len(column))[: len(column)]
    with pytest.raises(InputError):
        PrivateRecords(pa.table({"x": column}), labels, classes=["no", "yes"], columns=facts)


@pytest.mark.parametrize("ending", [".parquet", ".feather"])
def test_repeated_names_in_a_file_are_refused_as_such(tmp_path, ending):
    column = pa.array([0.5, 1.0])
    path = write_column(tmp_path, column, ending)
    twice = pa.Table.from_arrays([column, column], names=["x", "x"])
    import pyarrow.feather
    import pyarrow.parquet

    formats = {".parquet": pyarrow.parquet.write_table, ".feather": pyarrow.feather.write_feather}
    formats[ending](twice, path)
    for options in ({"columns": NUMBER}, {"bounds": [(0, 1)] * 2}):
        with pytest.raises(InputError, match=r"different names of columns in .* got x twice"):
            read(path, **options)


@pytest.mark.parametrize("ending", [".parquet", ".feather"])
def test_files_that_end_early_are_refused(tmp_path, ending):
    path = write_column(tmp_path, pa.array([0.5, 1.0, 2.0] * 4), ending)
    whole = path.read_bytes()
    for end in range(0, len(whole), 101):
        path.write_bytes(whole[:end])
        with pytest.raises(InputError, match="Expected"):
            read(path, columns=NUMBER, **CLASSES)


def test_groups_without_rows_have_no_records(tmp_path):
    import pyarrow.parquet

    rows = pa.table({"x": pa.array([0.5, 1.0]), "sick": pa.array(["no", "yes"])})
    with pyarrow.parquet.ParquetWriter(tmp_path / "x.parquet", rows.schema) as writer:
        for part in (rows.slice(0, 0), rows, rows.slice(0, 0)):
            writer.write_table(part)
    assert numbers_of(read(tmp_path / "x.parquet", columns=NUMBER, **CLASSES)) == [0.5, 1.0]
    pyarrow.parquet.write_table(rows.slice(0, 0), tmp_path / "empty.parquet")
    with pytest.raises(InputError, match="with records"):
        read(tmp_path / "empty.parquet", columns=NUMBER, **CLASSES)
