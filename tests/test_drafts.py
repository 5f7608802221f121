"""Drafts of the facts of columns."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dpswd.columns import Column
from dpswd.columns.draft import draft_of


def column_of(draft):
    """Returns the column of a draft that the user confirms as it is."""
    facts = {name: fact for name, fact in draft.entry.items() if name != "draft"}
    return Column(name="x", **facts)


@given(st.lists(st.integers(-(10**17), 10**17), min_size=3, unique=True))
def test_bounds_of_large_integers_are_exact(numbers):
    facts = draft_of("x", [str(number) for number in numbers], "integer").entry
    assert (facts["low"], facts["high"]) == (min(numbers), max(numbers))


# Texts of 12327.2, of -3.5 and of 900, with their marks.
NUMBERS_WITH_MARKS = {
    ("12.327,20", "-3,5", "900"): (",", "."),
    ("12,327.20", "-3.5", "900"): (".", ","),
    ("12 327,20", "-3,5", "900"): (",", " "),
    ("12'327.20", "-3.5", "900"): (".", "'"),
    ("12\N{NARROW NO-BREAK SPACE}327,20", "-3,5", "900"): (",", "\N{NARROW NO-BREAK SPACE}"),
    ("12327,20", "-3,5", "900"): (",", ""),
    ("12327.20", "-3.5", "900"): (".", ""),
}


@pytest.mark.parametrize(("cells", "marks"), NUMBERS_WITH_MARKS.items())
def test_marks_of_numbers_are_drafted(cells, marks):
    draft = draft_of("x", cells, None)
    column = column_of(draft)
    assert (column.kind, column.low, column.high, column.decimals) == ("numeric", -3.5, 12327.2, 2)
    assert (column.decimal_mark, column.thousands_mark) == marks
    assert draft.remarks == []
    assert column.numbers(cells, "people").tolist() == [12327.2, -3.5, 900]


def test_whole_numbers_with_marks_between_thousands_are_integers():
    column = column_of(draft_of("x", ["1.234.567", "12.000", "7"], None))
    assert (column.kind, column.low, column.high) == ("integer", 7, 1_234_567)
    assert column.cells(column.numbers(["12.000"], "people")) == [12_000]


@pytest.mark.parametrize("mark", [".", ","])
def test_a_mark_that_may_be_one_of_thousands_is_named(mark):
    draft = draft_of("x", [f"1{mark}250", "900", f"22{mark}500"], None)
    assert draft.entry["kind"] == "numeric"
    (remark,) = draft.remarks
    assert f"1{mark}250 is read with a decimal mark" in remark
    assert f'thousands_mark: "{mark}"' in remark
    # Controls: all cells have three decimals, or one has another number of them.
    assert draft_of("x", [f"1{mark}250", f"0{mark}900", f"22{mark}500"], None).remarks == []
    assert draft_of("x", [f"1{mark}25", "900", f"22{mark}500"], None).remarks == []


def test_a_wide_column_of_different_whole_numbers_is_left_out():
    numbers = [str(10**17 + 12_345_678 * number) for number in range(20)]
    draft = draft_of("patient no", numbers, None)
    assert draft.entry == {"kind": "identifier", "draft": True}
    (remark,) = draft.remarks
    assert "--kinds 'patient no=integer'" in remark
    (remark,) = draft_of("x", [*numbers, "-"], None).remarks
    assert "none occurs twice" in remark
    draft = draft_of("patient no", numbers, "integer")
    assert draft.entry["high"] == 10**17 + 12_345_678 * 19
    assert "24 binary digits" in draft.remarks[0]
    # Controls: one number occurs twice, or all are near to each other.
    assert draft_of("x", [*numbers, numbers[0]], None).entry["kind"] == "integer"
    assert draft_of("x", [str(number) for number in range(20)], None).entry["kind"] == "integer"


def test_a_column_of_many_texts_is_left_out_with_a_remark():
    draft = draft_of("icd", [f"A{number}.1" for number in range(51)], None)
    assert draft.entry["kind"] == "identifier"
    (remark,) = draft.remarks
    assert "51 different texts, more than 50" in remark
    assert "--kinds icd=nominal" in remark
    nominal = draft_of("icd", [f"A{number}.1" for number in range(51)], "nominal")
    assert len(nominal.entry["categories"]) == 51
    assert nominal.remarks == []
    assert draft_of("icd", [f"A{number}.1" for number in range(50)], None).remarks == []


@pytest.mark.parametrize(("cells", "unit"), [(["95%", "7%", "-3.5 %"], "%"), (["3,5 kg"], "kg")])
def test_numbers_with_their_unit_are_named(cells, unit):
    (remark,) = draft_of("x", cells, None).remarks
    assert f"every cell is a number with {unit}" in remark


def test_times_of_day_are_named():
    (remark,) = draft_of("x", ["22:02", "7:15", "00:00:59"], None).remarks
    assert "every cell is a time of day" in remark


@pytest.mark.parametrize("cells", [["22:02", "07:15", "9:1"], ["1-2", "3-4"], ["1st", "2nd"]])
def test_other_text_with_digits_has_no_remark(cells):
    assert draft_of("x", cells, None).remarks == []


number_texts = st.one_of(
    st.integers(-(10**9), 10**9).map(str),
    st.integers(-(10**9), 10**9).map(lambda number: f"{number:,}"),
    st.floats(-1e6, 1e6).map(lambda number: f"{number:,.2f}"),
    st.floats(-1e6, 1e6).map(str),
)


@given(st.lists(number_texts, min_size=2, max_size=20))
def test_a_confirmed_draft_of_numbers_reads_them_all(cells):
    draft = draft_of("x", cells, None)
    is_left_out = draft.entry["kind"] == "identifier"
    has_no_high = draft.entry.get("high") == "fill in"
    if is_left_out or has_no_high:
        return
    column = column_of(draft)
    numbers = column.numbers(cells, "people")
    assert len(numbers) == len(cells)
