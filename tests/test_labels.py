"""Labels: each is read by itself, as one of the stated classes, in every type of array."""

import datetime
import enum
from decimal import Decimal

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given

from dpswd import InputError, PrivateRecords
from dpswd._keys import label_key
from dpswd._labels import as_classes, as_labels, class_array, class_positions
from dpswd.data import read

RARE = ["1", "2", "3", "X"]  # the last one is a class of few records
AGES = ["5", "6", "7+"]


def numbers(y, classes):
    """Numbers of the classes of records, as a query would see them."""
    n = max(np.shape(y))  # of a column or a row, too
    records = PrivateRecords(np.zeros((n, 2)), y, classes=classes)
    return records.open_records(torch.arange(n))[1].tolist()


def containers(labels):
    """The same labels, which are spelled integers, in every type of array."""
    integers = [int(label) for label in labels]
    return {
        "text": labels,
        "text array": np.array(labels),
        "bytes array": np.array(labels, dtype=bytes),
        "objects": np.array(labels, dtype=object),
        "integers": integers,
        "tuple": tuple(integers),
        "small integers": np.array(integers, dtype=np.int8),
        "unsigned, as a column": np.array(integers, dtype=np.uint8)[:, None],
        "floats": np.array(integers, dtype=np.float32),
        "floats as a row": np.array([integers], dtype=np.float64),
        "tensor": torch.tensor(integers),
        "bfloat16": torch.tensor(integers, dtype=torch.bfloat16),
        "series": pd.Series(integers),
        "nullable": pd.Series(integers, dtype="Int64"),
        "categories": pd.Series(labels, dtype="category"),
        "frame": pd.DataFrame({"y": integers}),
        "mixed list": [label if i % 2 else int(label) for i, label in enumerate(labels)],
        "scalars of NumPy": [np.int64(integer) for integer in integers],
        "decimals": [Decimal(integer) for integer in integers],
    }


@given(st.lists(st.sampled_from(RARE[:3]), min_size=1, max_size=8))
def test_labels_give_the_same_numbers_in_every_type_of_array(labels):
    right = [RARE.index(label) for label in labels]
    for name, y in containers(labels).items():
        assert numbers(y, RARE) == right, name


@given(st.lists(st.sampled_from(RARE), min_size=2, max_size=8), st.sampled_from(RARE))
def test_labels_do_not_depend_on_another_label(labels, replaced):
    """The neighbour has one other label, which decides the type of the array."""

    def typed(values):
        """Integers where all labels are, text otherwise, as every reader of tables has it."""
        if all(value.isdigit() for value in values):
            return [int(value) for value in values]
        return values

    neighbour = [replaced, *labels[1:]]
    for make in (np.array, pd.Series, list):
        before = numbers(make(typed(labels)), RARE)
        after = numbers(make(typed(neighbour)), RARE)
        assert before[1:] == after[1:] == [RARE.index(label) for label in labels[1:]]


def test_a_missing_label_does_not_round_the_others():
    """One missing label makes floats of an array of integers, in which two classes are one."""
    classes = [2**53, 2**53 + 1, "nan"]
    labels = [2**53 + 1, 2**53, 2**53 + 1]
    assert numbers(pd.Series(labels), classes) == [1, 0, 1]
    with_missing = pd.Series([None, *labels[1:]], dtype=object)
    assert numbers(with_missing, ["None", *classes[:2]]) == [0, 1, 2]
    with pytest.raises(InputError, match=r"float beyond 2\^53.*in row 1"):
        numbers(pd.Series([None, *labels[1:]]), classes)


def numbers_by_the_type_of_the_array(labels, classes):
    """The conversion of 0.3.0 in short: integers are indices, text is a name."""
    if np.asarray(labels).dtype.kind in "iu":
        return list(labels)
    return [classes.index(str(label)) for label in labels]


def test_labels_read_by_the_type_of_the_array_are_noticed():
    """A control: the comparison above finds the conversion of 0.3.0."""
    before = numbers_by_the_type_of_the_array([3, 1, 2], RARE)
    after = numbers_by_the_type_of_the_array(["X", 1, 2], RARE)
    assert before[1:] != after[1:]


@pytest.mark.parametrize("kind", ["csv", "npz", "npz of text"])
def test_labels_in_files_do_not_depend_on_another_label(tmp_path, kind):
    labels = ["3", "1", "2", "2"]
    results = []
    for first in ("3", "X"):
        names = [first, *labels[1:]]
        path = tmp_path / f"{first}.{kind[:3]}"
        if kind == "csv":
            lines = [f"0.5,{name}" for name in names]
            path.write_text("\n".join(["value,y", *lines]))
            records = read(path, target="y", classes=RARE)
        else:
            is_number = kind == "npz" and first != "X"
            y = np.array(names).astype(np.int64) if is_number else np.array(names)
            np.savez(path, features=np.zeros((4, 2)), labels=y)
            records = read(path, classes=RARE)
        results.append(records.open_records(torch.arange(4))[1].tolist())
        assert records.classes == RARE
    assert results == [[2, 0, 1, 1], [3, 0, 1, 1]]


def test_a_class_without_records_changes_nothing():
    assert numbers([5, 6, 5], AGES) == numbers(["5", "6", "5"], AGES) == [0, 1, 0]
    assert numbers(["5", "7+", "5"], AGES) == [0, 2, 0]


@pytest.mark.parametrize(
    "y", [["1", "2"], [1, 2], np.array([1.0, 2.0]), np.array(["1", "X"]), [1, "X"]]
)
@pytest.mark.parametrize("classes", [RARE, [1, 2, 3, "X"], np.array(RARE)])
def test_classes_are_returned_as_they_are_stated(y, classes):
    """Their types do not depend on the labels."""
    records = PrivateRecords(np.zeros((2, 2)), y, classes=classes)
    assert records.classes == list(classes)
    assert [type(name) for name in records.classes] == [type(name) for name in as_classes(classes)]
    assert records.taken == ()


@pytest.mark.parametrize(
    ("label", "key"),
    [
        (3, 3),
        (3.0, 3),
        (np.uint8(3), 3),
        (np.float16(3), 3),
        (torch.tensor(3), 3),
        (Decimal(3), 3),
        ("3", 3),
        (" 03", 3),
        ("3.0", 3),
        (b"3", 3),
        (np.bytes_(b"3"), 3),
        ("3e0", 3),
        (True, 1),
        (np.bool_(True), 1),
        ("True", 1),
        ("False", 0),
        (2**60 + 1, 2**60 + 1),
        (str(2**60 + 1), 2**60 + 1),
        (0.5, 0.5),
        ("0.50", 0.5),
        (np.float32(0.1), 0.1),
        ("0.1", 0.1),
        ("1_5", "1_5"),
        ("7+", "7+"),
        (" cat ", "cat"),
        (b"cat", "cat"),
        ("1e999", "1e999"),
        ("9" * 5000, "9" * 5000),
        (float("nan"), "nan"),
        (None, "None"),
        (pd.NA, "<NA>"),
        (pd.NaT, "NaT"),
        (datetime.date(2026, 1, 31), "2026-01-31"),
        (pd.Timestamp("2026-01-31"), "2026-01-31"),
        (np.datetime64("2026-01-31", "ns"), "2026-01-31"),
        (pd.Interval(0, 30), "(0, 30]"),
        (enum.Enum("Pet", ["CAT"]).CAT, "Pet.CAT"),
        (enum.StrEnum("Pet", ["CAT"]).CAT, "cat"),
        (enum.IntEnum("Grade", ["A"]).A, 1),
    ],
)
def test_key_of_a_label(label, key):
    assert label_key(label) == key
    assert type(label_key(label)) is type(key)
    assert label_key(label_key(label)) == key


def test_integers_are_positions_where_no_class_reads_as_a_number():
    assert numbers([1, 0, 1], ["cat", "dog"]) == [1, 0, 1]
    # one label that is a name does not change the others
    assert numbers([1, "cat", "1"], ["cat", "dog"]) == [1, 0, 1]
    assert numbers([True, False], ["no", "yes"]) == [1, 0]
    assert class_positions(["cat", "0.5"]) == {"cat": 0, 0.5: 1}
    for classes in (["cat", "7"], ["cat", 0.5], ["cat", "True"]):
        with pytest.raises(InputError, match="not listed"):
            numbers([0, 0], classes)


@given(st.lists(st.sampled_from(["1", "2", "3"]), min_size=2, max_size=12), st.data())
def test_a_label_that_is_not_listed_is_named_by_its_row_in_every_container(labels, data):
    """The first one is named, and none by its value."""
    rows = data.draw(st.sets(st.integers(0, len(labels) - 1), min_size=1))
    for row in rows:
        labels[row] = "87"
    for container in containers(labels).values():
        with pytest.raises(InputError, match=f"in row {min(rows)}, counted from 0") as error:
            as_labels(container, ["1", "2", "3"])
        assert "87" not in str(error.value)


def test_a_missing_label_is_named_by_its_row():
    for labels in (["a", "b", None], np.array([0, 1, np.nan]), pd.Series(["a", "b", None])):
        with pytest.raises(InputError, match="missing label in row 2, counted from 0"):
            as_labels(labels)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ([1, "1"], "got 1 and '1', which read as one label"),
        (["1", "01"], "read as one label"),
        ([1, True], "read as one label"),
        (["a", " a"], "read as one label"),
        ([0.5, "0.5"], "read as one label"),
        (["a"], "at least 2 classes"),
        ([], "at least 2 classes"),
        ("ab", "a list"),
        (3, "a list"),
        ([[0], [1]], "flat list"),
        (np.eye(2), "flat list"),
        (["a", "b\0"], "NUL"),
        (["a", "b\udcff"], "UTF-8"),
    ],
)
def test_classes_that_do_not_fit(classes, message):
    with pytest.raises(InputError, match=message):
        as_classes(classes)


def test_classes_become_plain_values_that_files_can_hold():
    names = [np.int8(2), np.str_("a"), b"c", Decimal(4), Decimal("0.5"), True]
    assert as_classes(names) == [2, "a", "c", 4, 0.5, True]
    assert [type(name) for name in as_classes(names)] == [int, str, str, int, float, bool]
    days = [datetime.date(2026, 1, day) for day in (1, 2)]
    assert as_classes(days) == ["2026-01-01", "2026-01-02"]
    assert as_classes(pd.interval_range(0, 2)) == ["(0, 1]", "(1, 2]"]
    assert class_array([0, "unknown"]).tolist() == [0, "unknown"]
    assert class_array([0, 1]).dtype.kind == "i"


@pytest.mark.parametrize(
    ("y", "classes"),
    [
        ([0, 2, 1, 0], [0, 1, 2]),
        ([0, 3], [0, 1, 2, 3]),
        ([*"acba"], ["a", "b", "c"]),
        (["1", "10", "2"], ["1", "10", "2"]),
        ([True, False], [False, True]),
        ([True, 3], [0, 1, 2, 3]),
        ([0, "unknown", 7], [0, 7, "unknown"]),
        ([datetime.date(2026, 1, 2), datetime.date(2026, 1, 1)], ["2026-01-01", "2026-01-02"]),
    ],
)
def test_classes_that_are_taken_from_the_labels(y, classes):
    labels = as_labels(y)
    assert labels.classes == classes
    assert [type(name) for name in labels.classes] == [type(name) for name in classes]
    assert labels.notice.startswith("taken from the records and treated as public: classes=")
    assert as_labels(y, classes).numbers.tolist() == labels.numbers.tolist()
    assert as_labels(y, classes).notice is None


@pytest.mark.parametrize(
    ("y", "classes", "message"),
    [
        ([0.0, 0.5], None, "not integers"),
        (["0.5", "cat"], None, "not integers"),
        ([0, None], None, "missing label"),
        (pd.Series([1, None], dtype="Int64"), None, "missing label"),
        ([0, float("nan")], None, "missing label"),
        ([-1, 1], None, "classes="),
        ([0, 10**6], None, "at most 10000 classes"),
        ([f"c{i}" for i in range(101)], None, "at most 100 classes"),
        ([0, 0], None, "at least 2 classes"),
        ([*"abc"], ["a", "b"], "add its class"),
        ([0, 5], ["a", "b"], "add its class"),
        ([0, None], [0, 1], "add its class"),
        ([0, b"\xff"], [0, 1], "add its class"),
        (np.eye(3), None, "argmax"),
        (np.zeros((2, 2, 2)), None, r"classes \(N,\)"),
        (3, None, r"classes \(N,\)"),
        ([[0, 1], [2]], None, "one shape"),
    ],
)
def test_labels_that_do_not_fit(y, classes, message):
    with pytest.raises(InputError, match=message) as caught:
        as_labels(y, classes)
    assert "\n" not in str(caught.value)


def test_a_missing_label_may_be_a_class_of_its_own():
    for y in ([1, None], np.array([1, None], dtype=object)):
        assert numbers(y, [1, "None"]) == [0, 1]
    assert numbers(np.array([1, np.nan]), [1, "nan"]) == [0, 1]
