"""Public facts of records do not depend on one record, where they are stated.

Neighbouring inputs differ in one record. Both are converted, or one of them is refused; what the
handles show is equal.
"""

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given

from dpswd import InputError, PrivateRecords
from dpswd.data import read

CLASSES = ["1", "2", "7+", "cat"]
KINDS = ["integer", "numeric", "binary"]
BOUNDS = [(0, 100), (0.0, 1.0), (0, 1)]

LABELS = st.sampled_from([1, 2.0, "1", "2", " 7+", "cat", b"cat", np.int8(2), np.str_("7+")])
ENTRIES = (
    st.sampled_from([3, 7.0, 0, 100, None, True, np.float32(5)]),
    st.sampled_from([0.25, 1, 0, None, 0.5, np.float64(0.75)]),
    st.sampled_from([0, 1, True, False, None, 1.0]),
)
RECORDS = st.tuples(st.tuples(*ENTRIES), LABELS)


def frame_of(rows):
    """A DataFrame as pandas infers its types from all records."""
    return pd.DataFrame({f"c{i}": column for i, column in enumerate(zip(*rows, strict=True))})


def nullable_frame_of(rows):
    """The same with the nullable types of pandas, where one fraction makes floats of integers."""
    return frame_of(rows).convert_dtypes()


def arrow_frame_of(rows):
    """The same with the types of pyarrow."""
    pytest.importorskip("pyarrow")
    return frame_of(rows).convert_dtypes(dtype_backend="pyarrow")


def array_of(rows):
    """An array of the type that NumPy infers; missing entries are NaN."""
    return np.array([[np.nan if entry is None else entry for entry in row] for row in rows])


def series_of(labels):
    return pd.Series(labels)


def public_facts(handle):
    """All that a handle shows, with types."""
    classes = [(type(name), name) for name in handle.classes or ()]
    return (
        repr(handle),
        classes,
        handle.layout,
        handle.taken,
        handle.bounds,
        handle.kinds,
        handle.name,
    )


def facts_or_none(convert):
    """Public facts of converted records; ``None`` if they are refused."""
    try:
        return public_facts(convert())
    except InputError:
        return None


def assert_equal_or_refused(one, other):
    facts = facts_or_none(one)
    other_facts = facts_or_none(other)
    assert facts is None or other_facts is None or facts == other_facts


@pytest.mark.parametrize("rows_of", [frame_of, nullable_frame_of, arrow_frame_of, array_of, list])
@pytest.mark.parametrize("labels_of", [list, np.array, series_of])
@given(st.lists(RECORDS, min_size=3, max_size=5), RECORDS)
def test_neighbours_in_memory_show_equal_facts(rows_of, labels_of, records, replaced):
    def convert(all_records):
        rows, labels = zip(*all_records, strict=True)
        return PrivateRecords(
            rows_of(rows),
            labels_of(list(labels)),
            classes=CLASSES,
            bounds=BOUNDS,
            kinds=KINDS,
            unreadable="zero",
        )

    neighbour = [replaced, *records[1:]]
    assert_equal_or_refused(lambda: convert(records), lambda: convert(neighbour))


@given(st.lists(RECORDS, min_size=3, max_size=5), RECORDS)
def test_neighbours_in_memory_give_equal_other_records(records, replaced):
    """The values and classes of all records but the first are equal."""

    def opened(all_records):
        rows, labels = zip(*all_records, strict=True)
        handle = PrivateRecords(
            frame_of(rows), list(labels), classes=CLASSES, kinds=KINDS, unreadable="zero"
        )
        return handle.open_records(torch.arange(1, len(all_records)))

    try:
        before, after = opened(records), opened([replaced, *records[1:]])
    except InputError:
        return
    assert all(map(torch.equal, before, after))


def cell(entry):
    return "" if entry is None else f"{float(entry):g}"


def label_cell(label):
    return label.decode() if isinstance(label, bytes) else str(label)


@pytest.mark.parametrize("kind", ["csv", "npz"])
@given(st.lists(RECORDS, min_size=3, max_size=5), RECORDS)
def test_neighbours_in_files_show_equal_facts(tmp_path_factory, kind, records, replaced):
    folder = tmp_path_factory.mktemp("neighbours")
    facts = []
    for all_records in (records, [replaced, *records[1:]]):
        rows, labels = zip(*all_records, strict=True)
        path = folder / f"x.{kind}"
        if kind == "csv":
            lines = [
                ",".join([*map(cell, row), label_cell(label)])
                for row, label in zip(rows, labels, strict=True)
            ]
            path.write_text("\n".join(["a,b,c,y", *lines]))
            options = {"target": "y"}
        else:
            names = np.array([label_cell(label) for label in labels])
            np.savez(path, features=array_of(rows).astype(float), labels=names)
            options = {}

        def convert(path=path, options=options):
            return read(
                path,
                classes=CLASSES,
                bounds=BOUNDS,
                kinds=KINDS,
                unreadable="zero",
                **options,
            )

        facts.append(facts_or_none(convert))
    assert None in facts or facts[0] == facts[1]


def test_types_that_are_taken_are_noticed():
    """A control: without stated kinds, one missing age changes the types, and the line says so."""
    rows = [(31, 0.5, 1), (70, 0.25, 0), (50, 0.75, 1)]
    neighbour = [(None, 0.5, 1), *rows[1:]]
    handles = [PrivateRecords(frame_of(each), unreadable="zero") for each in (rows, neighbour)]
    facts = [public_facts(handle) for handle in handles]
    assert facts[0] != facts[1]
    assert handles[0].layout != handles[1].layout
    assert handles[0].taken != handles[1].taken
