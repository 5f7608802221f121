"""Coding of cells as rows: indicators of categories and of missing cells, record by record."""

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from dpswd.columns import Coding, Table

FACTS = {
    "id": {"kind": "identifier"},
    "sex": {"kind": "binary", "categories": ["F", "M"]},
    "smoker": {"kind": "binary", "missing": True},
    "ward": {"kind": "nominal", "categories": ["heart", "lung"], "missing": "?"},
    "weight": {"low": 30, "high": 200, "decimals": 1, "missing": True},
    "admitted": {"kind": "date", "low": "2020-01-01", "high": "2020-12-31"},
}
TABLE = Table.of(FACTS)
NAMES = (
    "sex M",
    "smoker missing",
    "smoker 1",
    "ward missing",
    "ward heart",
    "ward lung",
    "ward other",
    "weight",
    "weight missing",
    "admitted",
)
CELLS = st.fixed_dictionaries(
    {
        "sex": st.sampled_from(["F", "M"]),
        "smoker": st.sampled_from(["0", "1", ""]),
        "ward": st.sampled_from(["heart", "lung", "?", "eye", ""]),
        "weight": st.sampled_from(["", "30", "71.5", "200", "1e9"]),
        "admitted": st.sampled_from(["2019-05-05", "2020-06-01", "2020-12-31"]),
    }
)
SOURCE = TABLE.numbers(
    {
        "sex": ["F", "M"],
        "smoker": ["1", ""],
        "ward": ["heart", "?"],
        "weight": ["60", "80"],
        "admitted": ["2020-01-01"] * 2,
    },
    "source",
)
CODING = Coding.of(TABLE, SOURCE)


def numbers_of(records):
    return TABLE.numbers({name: [each[name] for each in records] for name in TABLE.names}, "X")


def test_names_and_a_missing_cell():
    assert CODING.names == NAMES
    row = {"sex": "M", "smoker": "", "ward": "eye", "weight": "", "admitted": "2020-01-03"}
    expected = [1, 1, 0, 0, 0, 0, 1, 70, 1, 2]
    assert CODING.rows(numbers_of([row])).tolist() == [expected]


@given(st.lists(CELLS, min_size=1, max_size=5), CELLS)
def test_each_record_is_coded_by_itself_and_within_public_bounds(records, other):
    rows = CODING.rows(numbers_of(records))
    assert rows.shape == (len(records), len(NAMES))
    alone = [CODING.rows(numbers_of([record]))[0] for record in records]
    np.testing.assert_array_equal(rows, alone)
    neighbours = CODING.rows(numbers_of([*records[:-1], other]))
    np.testing.assert_array_equal(rows[:-1], neighbours[:-1])
    indicators = rows[:, [NAMES.index(name) for name in NAMES if " " in name]]
    assert set(indicators.flatten()) <= {0.0, 1.0}
    assert (rows[:, 3:7].sum(1) == 1).all()  # one category of a ward, or missing
    assert ((rows[:, 7] >= 30) & (rows[:, 7] <= 200)).all()
    assert ((rows[:, 9] >= 0) & (rows[:, 9] <= 365)).all()


@given(st.lists(CELLS, min_size=1, max_size=5))
def test_numbers_in_float32_have_the_same_rows(records):
    """Files are read in float32."""
    numbers = numbers_of(records)
    np.testing.assert_allclose(
        CODING.rows(numbers.astype(np.float32)), CODING.rows(numbers), rtol=1e-6
    )


def test_a_column_that_is_missing_in_all_of_the_source_has_the_middle_of_its_bounds():
    numbers = SOURCE.copy()
    numbers[:, 3] = TABLE.bounds[3][0]
    coding = Coding.of(TABLE, numbers)
    assert abs(coding.fills[3] - 115) < 0.1
