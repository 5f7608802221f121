"""Non-interference of handles and estimators: arrays, lists and frames of two neighbours.

See docs/theory/non-interference.md.
"""

import hypothesis.strategies as st
import noninterference.test_files  # noqa: F401  # adds its tests to least_compared
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from observation import (
    check_neighbours,
    check_public_facts,
    differences,
    distance,
    least_compared,
    observe,
    pairs,
    refusals,
    stated_mu,
)

import dpswd.records
from dpswd import Budget, ClassCounts, PrivateAdapter, PrivateGenerator, PrivateRecords, SumAndNorm

N = 8  # records of a data set
DIM = 3
ONE_IN_FOUR = st.sampled_from([True, False, False, False])  # most pairs are to be compared

# Classes that a user states, and for each list labels that name its classes, as people write them.
CLASSES = [
    (["1", "2", "3", "X"], [1, "1", 1.0, 2, "2", "3", 3, np.int64(3), "X"]),
    ([1, 2, 3], [1, "1", 1.0, np.float32(2), 2, "2", 3, "3", True]),
    ([0, 1], [0, 1, "0", "1", False, True, 0.0, np.bool_(True)]),
    (["cat", "dog"], ["cat", "dog", np.str_("dog"), 0, 1]),
    (["5", "6", "7+"], ["5", 5, "6", 6.0, "7+"]),
    ([False, True], [False, True, 0, 1, "True", "False"]),
    ([0.5, 1.5], [0.5, 1.5, "0.5", np.float64(1.5)]),
    (["a", "1"], ["a", "1", 1, "b"]),
    ([10, 20, 30], [10, 20.0, "30", 0, 1, 2]),
]
ENTRIES = [0.0, 0.25, 1.0, 1, 0, -3.5]
ODD_ENTRIES = [831.7719, 1e30, np.float32(0.5), True, np.nan, np.inf]


@st.composite
def labelled_neighbours(draw):
    """Draw classes, records and labels of two neighbours, whose first record differs, in a list."""
    classes, labels = draw(st.sampled_from(CLASSES))
    # the labels of one data set are often of one type, and one label is of another
    kinds = sorted({type(label).__name__ for label in labels})
    kind = draw(st.sampled_from([*kinds, "any"]))
    pool = [label for label in labels if kind in ("any", type(label).__name__)]
    y = draw(st.lists(st.sampled_from(pool), min_size=N, max_size=N))
    pool_of_change = labels if draw(ONE_IN_FOUR) else pool
    changed_y = [draw(st.sampled_from(pool_of_change)), *y[1:]]
    X = draw(
        st.lists(
            st.lists(st.sampled_from(ENTRIES), min_size=DIM, max_size=DIM),
            min_size=N,
            max_size=N,
        )
    )
    first = draw(st.lists(st.sampled_from(ENTRIES), min_size=DIM, max_size=DIM))
    if draw(ONE_IN_FOUR):
        first[draw(st.integers(0, DIM - 1))] = draw(st.sampled_from(ODD_ENTRIES))
    changed_X = [first, *X[1:]]
    return classes, (X, y), (changed_X, changed_y)


def as_integers(y):
    """Return labels as an array of integers, where all of them are."""
    return np.array([int(label) for label in y])


LABEL_TYPES = {
    "list": list,
    "array": np.array,
    "objects": lambda y: np.array(y, dtype=object),
    "series": pd.Series,
    "text": lambda y: [str(label) for label in y],
    "column": lambda y: np.array(y, dtype=object)[:, None],
    "integers": as_integers,
    "nullable": lambda y: pd.Series(y).convert_dtypes(),
}
RECORD_TYPES = {
    "list": list,
    "array": np.array,
    "tensor": torch.tensor,
    "frame": pd.DataFrame,
    "typed frame": lambda X: pd.DataFrame(X).convert_dtypes(),
}


def attempt(convert, values):
    """Convert values as the caller would, or return them as they are where NumPy
    or pandas cannot.
    """
    try:
        return convert(values)
    except (ValueError, TypeError, OverflowError):
        return values


def released(X, y, classes):
    """Release counts and sums of a handle; return what the handle shows."""
    records = PrivateRecords(X, y, classes=classes, unreadable="zero")
    queries = [ClassCounts(records.n_classes, share=0.5), SumAndNorm(records.shape[0])]
    with Budget(records, queries, target_epsilon=1, target_delta=1e-2, run_dir="run"):
        values = [query.release(records) for query in queries]
    return repr(records), records.shape, records.classes, records.taken, values


@pairs(1000, compared=830)
@given(labelled_neighbours(), st.sampled_from([*LABEL_TYPES]), st.sampled_from([*RECORD_TYPES]))
def test_handles_of_neighbours_show_the_same(neighbours, label_type, record_type):
    classes, *data = neighbours
    runs = [
        observe(
            lambda X=X, y=y: released(
                attempt(RECORD_TYPES[record_type], X), attempt(LABEL_TYPES[label_type], y), classes
            )
        )
        for X, y in data
    ]
    # a frame states the types of its columns, which one entry may decide: they are named
    check_public_facts(*runs, private=[data[0][0][0], data[1][0][0]])


@pairs(300, compared=255)
@given(labelled_neighbours(), st.sampled_from([*LABEL_TYPES]), st.sampled_from([*LABEL_TYPES]))
def test_counts_do_not_depend_on_the_type_of_the_labels(neighbours, one_type, other_type):
    classes, (X, y), _ = neighbours
    X = np.zeros((N, DIM))
    runs = [
        observe(lambda kind=kind: released(X, attempt(LABEL_TYPES[kind], y), classes))
        for kind in (one_type, other_type)
    ]
    refusals.append(any(run.refused for run in runs))
    if not refusals[-1]:
        assert differences(*runs) == []
        assert distance(*runs) == 0


def fitted(X, y, classes, **options):
    """Fit a generator, and return all that it shows and writes."""
    X = np.nan_to_num(np.array(X, dtype=np.float64), posinf=1e30)
    generator = PrivateGenerator(epsilon=1, delta=1e-2, classes=classes, run_dir="run", **options)
    generator.fit(X, y)
    generator.save("generator.pt")
    return generator.sample(6), generator.classes_, generator.guarantee_


@pairs(150, compared=110)
@given(labelled_neighbours(), st.sampled_from(["bounds", "radius", "kinds"]))
def test_generators_of_neighbours_leave_the_same(neighbours, how):
    classes, *data = neighbours
    options = {
        "bounds": {"bounds": [(0, 1)] * DIM},
        "radius": {"radius": 1.0},
        "kinds": {"bounds": [(0, 1)] * DIM, "kinds": ["integer", "binary", "numeric"]},
    }[how]
    runs = [observe(lambda X=X, y=y: fitted(X, y, classes, **options)) for X, y in data]
    check_neighbours(*runs, private=[data[0][0][0], data[1][0][0]])


def adapted(source, y, target):
    adapter = PrivateAdapter(epsilon=1, delta=1e-2, run_dir="run")
    X = np.concatenate([source, target])
    domain = np.array([1] * len(source) + [-1] * len(target))
    adapter.fit(X, np.concatenate([y, np.full(len(target), -1)]), sample_domain=domain)
    adapter.save("classifier.pt")
    return adapter.predict(source), adapter.guarantee_


@pairs(40, compared=40)
@given(labelled_neighbours())
def test_adapters_of_neighbours_leave_the_same(neighbours):
    _, (X, _), (changed, _) = neighbours
    source = np.random.default_rng(0).random((30, DIM))
    y = np.arange(30) % 2
    targets = [
        np.nan_to_num(np.array(rows, dtype=np.float64), posinf=1e30) for rows in (X, changed)
    ]
    runs = [observe(lambda target=target: adapted(source, y, target)) for target in targets]
    check_neighbours(*runs, private=[X[0], changed[0]])


def test_at_least_2000_pairs_are_compared():
    """Every test of pairs of this module and of ``test_files`` fails below its least number."""
    assert "test_tables_of_neighbours_show_the_same" in least_compared  # of test_files
    assert sum(least_compared.values()) >= 2000


# Controls: what version 0.3 did, and what a careless reader would do, is found.


def numbered_by_all_labels(y, classes):
    """Number labels as version 0.3 did: as indices if all of them are integers, else as names."""
    if all(isinstance(label, int) for label in y):
        return [int(label) for label in y]
    return [[str(name) for name in classes].index(str(label)) for label in y]


def test_control_labels_read_by_the_type_of_all_are_found():
    classes = ["1", "2", "3", "X"]
    y = [1, 2, 3, 1, 2, 1, 1, 1]
    X = np.zeros((N, DIM))
    runs = [
        observe(lambda y=y: released(X, numbered_by_all_labels(y, classes), range(4)))
        for y in (y, ["X", *y[1:]])
    ]
    assert distance(*runs) > stated_mu(runs[0])


def test_control_column_types_of_all_records_are_found():
    frame = pd.DataFrame({"age": [30, 40, 50, 60]})
    changed = pd.DataFrame({"age": [None, 40, 50, 60]})

    def run(frame):
        return lambda: str(frame.dtypes)

    assert differences(observe(run(frame)), observe(run(changed)))


def test_control_a_reader_that_prints_a_record_is_found(monkeypatch):
    open_records = PrivateRecords.open_records

    def printing(self, index):
        values, labels = open_records(self, index)
        print(values[0])  # noqa: T201  # what the control is about
        return values, labels

    # the control replaces the one method that opens records
    monkeypatch.setattr(dpswd.records.PrivateRecords, "open_records", printing)
    X = np.zeros((N, DIM))
    changed = X.copy()
    changed[0] = 0.5
    y = [0, 1] * (N // 2)
    runs = [observe(lambda X=X: released(X, y, [0, 1])) for X in (X, changed)]
    with pytest.raises(AssertionError):
        check_neighbours(*runs)
