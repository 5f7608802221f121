"""Tables of numbers: what is read, taken, refused."""

import sys
import tempfile
from pathlib import Path

import hypothesis.strategies as st
import pytest
from factories import check_refusal, fuzz, opened
from hypothesis import given

from dpswd.data import read, read_public
from dpswd.errors import InputError

TABLE = "age,weight,smokes,sick\n31,70.5,0,yes\n64,80,1,no\n50,,1,no\n"


SICK = {"target": "sick"}


def table(path, text, **options):
    (path / "people.csv").write_text(text, encoding="utf-8-sig")
    return read(path / "people.csv", **options)


@pytest.mark.parametrize("delimiter", [*",;\t"])
def test_a_table_of_numbers(tmp_path, capsys, delimiter):
    text = TABLE.replace(",", delimiter)
    stated = {"target": "sick", "classes": ["no", "yes"], "unreadable": "zero"}
    found = table(tmp_path, text, **stated)
    values, labels = opened(found)
    assert (values.tolist(), labels.tolist()) == (
        [[31, 70.5, 0], [64, 80, 1], [0, 0, 0]],
        [1, 0, 0],
    )
    assert (found.layout.columns, found.kinds, found.taken) == (
        ("age", "weight", "smokes"),
        None,
        (),
    )
    bounds = [(0, 120), (0, 200), (0, 1)]
    taken = table(tmp_path, text, bounds=bounds, **stated)
    assert taken.kinds == ["integer", "numeric", "binary"]
    assert "records and treated as public: kinds=['integer', 'numeric', 'binary']" in taken.taken[0]
    assert taken.taken[0] in capsys.readouterr().err
    kinds = ["integer", "integer", "numeric"]
    assert table(tmp_path, text, bounds=bounds, kinds=kinds, **stated).taken == ()
    pd = pytest.importorskip("pandas")
    restored = taken.layout.restore(values)
    assert isinstance(restored, pd.DataFrame)
    assert restored.dtypes.astype(str).tolist() == ["int64", "float32", "int64"]


def test_a_table_needs_no_pandas_names_or_classes(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    found = table(tmp_path, "1,2\n3,0\n")
    assert found.layout.restore(opened(found)[0]).tolist() == [[1, 2], [3, 0]]
    assert table(tmp_path, "a,b\n1,2\n3,0\n", target="b").classes == [0, 1, 2]
    assert table(tmp_path, "y,0,1\n1,2,3\n0,5,6\n", target="y").layout.columns == ("0", "1")


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (
            TABLE,
            {},
            r"mixed types \(sick\); .*--columns FILE.*; name the column of classes by target",
        ),
        (TABLE, SICK, "NaN"),
        (TABLE, {"target": "sik"}, "target .*'sik'; the closest columns are sick"),
        (TABLE, {"unit": "person"}, "unit .*'person'; its columns are"),
        (TABLE, SICK | {"classes": ["no", "maybe"], "unreadable": "zero"}, "not listed"),
        ("a,b\n1,2\n", {"classes": [1, 2]}, "name the column of classes by target"),
        (TABLE + "1,2\n", {}, "4 cells"),
        ("," + TABLE.replace("\n", "\n0,")[:-2], {}, "none for column 1;.*an index"),
        ("a,b,a\n1,2,3\n", {}, "got a twice; rename one"),
        ("a,b\n1,x\n2,\n", {"target": "b"}, "empty cell"),
        ("a,b\n1,x\n2,NA\n", {"target": "b", "classes": ["x", "y"]}, "empty cell"),
        ("5,x\n6, x\n7,y\n", {"target": "x"}, "line of names"),
        ("0.126,?\n6,7\n", {}, "line of names"),
        ("a,b\n", {}, "with records"),
        ("", {}, "with records"),
        ("a\n1\n", {"size": 8}, "no size"),
        ("a,b\n1_5,2\n3,4\n", {}, "text or mixed types"),
        # one record would hide those after it, or be left out
        ('a,p\n1,anna\n2,"bert\n3,carl\n4,dora\n', {"unit": "p"}, "in column p on line 3;"),
        ('a,b\n1,x\n2,"y\n3,x"\n', {"target": "b"}, "in column b on line 3;"),
        ("a\n1\n\n3\n", {"unreadable": "zero"}, "empty line.*write NA"),
        ("a\n1\n2\n\n", {"unreadable": "zero"}, "empty line.*write NA"),
        ("a,b\n1," + 200_000 * "x" + "\n", {"target": "b"}, "no table of cells"),
    ],
)
def test_tables_that_do_not_fit(tmp_path, text, options, message):
    (tmp_path / "x.csv").write_text(text)
    check_refusal(tmp_path / "x.csv", options, message)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@given(line=st.integers(2, 9), size=st.sampled_from(["5", '5"', '5,"', "5;'"]))
def test_a_refusal_counts_lines_by_the_separator_of_the_table(
    tmp_path_factory, separator, line, size
):
    """A size in inches, which another separator makes a cell of the lines up to the next one."""
    if separator in size:
        size = "5"
    lines = [f"a{separator}size{separator}b", *[f"1{separator}{size}{separator}x"] * 8]
    lines[line - 1] = f"1{separator}{size}{separator}secret"
    path = tmp_path_factory.mktemp("table") / "x.csv"
    path.write_text("\n".join(lines) + "\n")
    columns = {
        "a": {"low": 0, "high": 1},
        "size": {"kind": "nominal", "categories": ["5", "6"]},
    }
    with pytest.raises(InputError, match=f"on line {line} that is not listed") as error:
        read(path, target="b", classes=["x", "y"], columns=columns)
    assert "secret" not in str(error.value)


def test_a_class_of_missing_entries_can_be_stated(tmp_path):
    handle = table(tmp_path, "a,b\n1,x\n2,NA\n", target="b", classes=["x", "NA"])
    assert opened(handle)[1].tolist() == [0, 1]


def test_a_missing_entry_of_the_only_column_is_a_record(tmp_path):
    for missing in ("NA", '""', " "):
        handle = table(tmp_path, f"a\n1\n{missing}\n3\n", unreadable="zero")
        assert opened(handle)[0].tolist() == [[1], [0], [3]]
    assert len(table(tmp_path, "a,b\n1,2\n\n3,4\n\n")) == 2  # lines between records of two columns


def test_test_records_of_one_stated_class(tmp_path):
    (tmp_path / "x.csv").write_text("a,b\n1,x\n2,x\n")
    options = {"target": "b", "classes": ["x"]}
    assert read_public(tmp_path / "x.csv", **options, min_classes=1).classes == ["x"]
    with pytest.raises(InputError, match="at least 2 classes"):
        read_public(tmp_path / "x.csv", **options)


def test_empty_lines_above_the_names_do_not_hide_the_separator(tmp_path):
    (tmp_path / "x.csv").write_text("\n\na;b\n1;2\n3;4\n")
    assert opened(read(tmp_path / "x.csv"))[0].tolist() == [[1, 2], [3, 4]]


def test_labels_in_a_table_are_read_one_by_one(tmp_path):
    """Numbers and names side by side; without stated classes all of them are taken."""
    handle = table(tmp_path, "a,b\n1,3\n2,x\n3,1\n", target="b")
    assert (handle.classes, opened(handle)[1].tolist()) == ([1, 3, "x"], [1, 2, 0])


@fuzz(
    60,
    n_lines=st.integers(10, 30),
    place=st.integers(0, 9),
    empty=st.sets(st.integers(1, 8)),
    mistake=st.sampled_from(["text", "missing", "long", "short", "class", "no class"]),
    delimiter=st.sampled_from(",;\t"),
)
def test_a_refusal_names_the_line_and_no_value(n_lines, place, empty, mistake, delimiter):
    lines = [["7.25", "8.5", ("yes", "no")[number % 2]] for number in range(n_lines)]
    wrong = {
        "text": ["secret", "8.5", "yes"],
        "missing": ["7.25", "", "yes"],
        "long": ["7.25", "8.5", "yes", "secret"],
        "short": ["7.25", "8.5"],
        "class": ["7.25", "8.5", "secret"],
        "no class": ["7.25", "8.5", ""],
    }
    lines[place] = wrong[mistake]
    text = [delimiter.join(cells) for cells in [["a", "b", "sick"], *lines]]
    line = place + 2
    for position in sorted(empty, reverse=True):  # empty lines do not count as records
        text.insert(position, "")
        line += position <= place + 1
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "x.csv"
        path.write_text("\n".join(text) + "\n")
        with pytest.raises(InputError) as caught:
            read(path, target="sick", classes=["no", "yes"])
    assert f" on line {line}" in str(caught.value)
    assert not any(value in str(caught.value) for value in ("secret", "7.25", "8.5"))
