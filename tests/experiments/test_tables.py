"""Tables of the documentation: their form, and that the pages have those of the results."""

import json

import pytest

from experiments import tables
from experiments.results import RESULTS
from experiments.tables.markdown import Pivot, Table, with_origin
from experiments.tables.values import claim, guarantee, matches, milliseconds, number, score, seeds

OLD = {"version": "0.0.1", "reason": "Rows of 0.0.1 take days."}


@pytest.mark.parametrize("page", tables.pages(), ids=lambda page: page.name)
def test_tables_of_pages_are_made_from_results(page):
    assert tables.fill(page.read_text()) == page.read_text(), "run: python -m experiments tables"


def test_every_table_is_on_a_page():
    text = "".join(page.read_text() for page in tables.pages())
    assert [name for name in tables.TABLES if f"<!-- table {name} -->" not in text] == []


def test_a_table_without_a_result_stays_as_it_is(monkeypatch, tmp_path):
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    page = "<!-- table leak -->\n| measured later |\n<!-- end -->\n"
    assert tables.fill(page) == page


def test_the_package_has_the_stand_ins_of_the_results():
    stand_ins = json.loads(tables.STAND_INS.read_text())
    assert stand_ins == tables.stand_ins(), "run: python -m experiments tables"


def test_stand_ins_of_the_results_are_not_changed():
    before = (RESULTS / "stand_ins.json").read_text()
    tables.stand_ins()
    assert (RESULTS / "stand_ins.json").read_text() == before


def test_table_has_a_line_for_each_row():
    table = Table([{"name": "a", "seconds": 0.25}, {"name": "b", "seconds": None}])
    table.text("what", "name")
    table.number("s", "seconds", form=".1f")
    table.column("length", lambda row: str(len(row)))
    lines = ["| what | s | length |", "|---|---|---|", "| a | 0.2 | 2 |", "| b | - | 2 |"]
    assert table.markdown().splitlines() == lines


def test_table_reads_nested_numbers():
    table = Table([{"accuracy": {"cnn": 95.04}}])
    table.number("CNN", "accuracy", "cnn", form=".1f")
    table.formatted("keys", "accuracy", ", ".join)
    assert table.markdown().endswith("| 95.0 | cnn |")


def test_pivot_has_a_line_for_each_group_and_a_dash_for_a_missing_cell():
    table = Pivot("data set", last=["seconds"])
    table.add(["a"], column="CNN", cell="95", last=["3"])
    table.add(["b"], column="MLP", cell="94", last=["4"])
    table.add(["a"], column="MLP", cell="93", last=["the first row of a line counts"])
    lines = ["| a | 95 | 93 | 3 |", "| b | - | 94 | 4 |"]
    assert table.markdown().splitlines()[2:] == lines


def test_pivot_refuses_rows_that_it_would_merge():
    table = Pivot("data set")
    table.add(["a"], column="CNN", cell="95")
    with pytest.raises(ValueError, match="tell rows apart"):
        table.add(["a"], column="CNN", cell="96")


def test_origin_prints_every_reason_once():
    result = {"command": "run", "version": "0.3.0", "reason": "The rest is new."}
    text = with_origin(Table([]), result, [OLD, OLD], note="one seed")
    origin = "`run`, one seed, dpswd 0.3.0. The rest is new. Rows of 0.0.1 take days."
    assert text.splitlines()[-1] == origin
    text = with_origin(Table([]), result, [], command="networks")
    assert text.splitlines()[-1].startswith("`python -m experiments run networks`, dpswd 0.3.0.")


@pytest.mark.parametrize(
    ("row", "of_claim", "of_guarantee"),
    [
        ({"epsilon": None, "sound": None}, "none", "none"),
        ({"epsilon": 10.0, "sound": True, "mu": 2.0}, "ε = 10", "ε = 10, μ = 2"),
        (
            {"epsilon": 1.0, "sound": False, "mu": 0.2681, "conditions": ["fresh subsets"]},
            "ε = 1",
            "ε = 1, μ = 0.268, conditional",
        ),
        (
            {"epsilon": 10.0, "sound": False},
            "ε = 10 claimed, **unsound**",
            "ε = 10 claimed, **unsound**",
        ),
        ({"epsilon": 10.0, "sound": None}, "ε = 10 claimed", "ε = 10 claimed"),
    ],
)
def test_guarantee_says_what_holds(row, of_claim, of_guarantee):
    assert claim(row) == of_claim
    assert guarantee(row) == of_guarantee


def test_values_that_were_not_measured_are_dashes():
    assert number(None, ".1f") == score({"mean": None}) == "-"
    assert score({"mean": 90.04, "std": None}) == "90.0"
    assert score({"mean": 90.04, "std": 0.21}) == "90.0 ± 0.2"


def test_milliseconds_have_three_digits_below_a_tenth_of_a_second():
    assert milliseconds(1.2344) == "1,234"
    assert milliseconds(0.0123456) == "12.3"


def test_matches_takes_a_value_or_one_of_several():
    row = {"epsilon": None, "dataset": "MNIST"}
    assert matches(row, epsilon=None, dataset=("MNIST", "USPS"))
    assert not matches(row, epsilon=(10.0, 1.0))


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [([1, 1], "one seed"), ([3, 3], "three seeds"), ([7], "7 seeds"), ([1, 3], "1 to 3 seeds")],
)
def test_seeds_are_those_of_the_rows(numbers, expected):
    assert seeds([{"seeds": number_of_seeds} for number_of_seeds in numbers]) == expected
