"""``dpswd columns``, and the commands that take its file."""

import csv
import datetime
import json
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import yaml
from hypothesis import given

from dpswd.columns import read_columns
from dpswd.commands.main import main
from dpswd.data import read_public
from dpswd.errors import InputError


@pytest.fixture
def table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    lines = ["id,day,sex,ward,weight,sick"]
    for number in range(600):
        sick = random.choice(["no", "yes"])
        ward = random.choice(["heart", "lung", "eye"])
        weight = "" if number % 5 == 0 else f"{random.normal(75, 9):.1f}"
        day = f"2021-{random.integers(1, 13):02d}-{random.integers(1, 29):02d}"
        lines.append(f"p{number},{day},{random.choice(['F', 'M'])},{ward},{weight},{sick}")
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    return tmp_path / "people.csv"


def generate(*options):
    classes = ["--target", "sick", "--classes", "no", "yes"]
    return main(["generate", "people.csv", "--columns", "columns.yaml", *classes, *options])


FACTS_WITHOUT_WARD = """
id: {kind: identifier}
day: {kind: date, low: 2021-01-01, high: 2021-12-31}
sex: {kind: binary, categories: [F, M]}
weight: {kind: numeric, low: 30, high: 200, missing: true}
"""


@pytest.mark.parametrize(
    ("options", "message"),
    [(("-n", "0"), "-n >= 1"), (("--per-unit", "0"), "--per-unit >= 1")],
)
def test_errors_of_options_come_before_notes_on_the_table(table, capsys, options, message):
    (table.parent / "columns.yaml").write_text(FACTS_WITHOUT_WARD)
    assert generate("--out", "run", "--unit", "ward", *options) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert "Left out" not in output.err


def test_draft_is_refused_until_it_is_confirmed(table, capsys):
    draft = ["columns", "people.csv", "--out", "columns.yaml", "--target", "sick"]
    assert main([*draft, "--kinds", "id=identifier"]) == 0
    assert "private until you have corrected" in capsys.readouterr().out
    text = (table.parent / "columns.yaml").read_text()
    assert "sick" not in text
    assert generate("--out", "run") == 2
    assert "got a draft" in capsys.readouterr().err
    assert not (table.parent / "run").exists()
    (table.parent / "columns.yaml").write_text(text.replace("  draft: true\n", ""))
    assert generate("--out", "run") == 0
    output = capsys.readouterr()
    assert "Left out, as stated: id" in output.err
    assert "released proportions" in output.out
    with (table.parent / "run" / "synthetic.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["day", "sex", "ward", "weight", "sick"]
    assert {row["sex"] for row in rows} == {"F", "M"}
    assert {row["ward"] for row in rows} <= {"heart", "lung", "eye", "other"}
    assert 0.1 < np.mean([row["weight"] == "" for row in rows]) < 0.3
    config = json.loads((table.parent / "run" / "privacy.json").read_text())
    assert "ward" in json.dumps(config)
    assert main(["sample", "run", "-n", "50", "--out", "more.csv"]) == 0
    reading = ["--columns", "columns.yaml", "--target", "sick"]
    evaluate = ["evaluate", "more.csv", "people.csv", *reading]
    assert main([*evaluate, "--classifiers", "logreg"]) == 0
    attack = ["attack", "run", "people.csv", "more.csv", *reading]
    assert main(attack) == 0
    assert main(["attack", "run", "people.csv", "more.csv", "--target", "sick", "--out", "b"]) == 2
    assert "by --columns FILE" in capsys.readouterr().err
    assert main(["publish", "run", "--out", "bundle"]) == 0
    assert main(["verify", "bundle"]) == 0
    assert (table.parent / "bundle" / "columns.png").is_file()


def test_a_guessed_identifier_is_a_draft(table, capsys):
    draft = ["columns", "people.csv", "--out", "columns.yaml", "--target", "sick"]
    assert main(draft) == 0
    assert "id:\n  kind: identifier\n  draft: true" in (table.parent / "columns.yaml").read_text()
    assert generate("--out", "run") == 2
    assert "facts of column id that you have confirmed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["people.csv", "--out", "columns.csv"], "FILE.yaml"),
        (["people.csv", "--out", "c.yaml", "--target", "sik"], "--target to be a column"),
        (["people.csv", "--out", "c.yaml", "--kinds", "sex=gender"], "COLUMN=KIND"),
        (["people.csv", "--out", "c.yaml", "--kinds", "sx=binary"], "COLUMN=KIND"),
        (["missing.csv", "--out", "c.yaml"], "check the path"),
    ],
)
def test_a_mistake_is_named(table, capsys, options, message):
    assert main(["columns", *options]) == 2
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in table.parent.iterdir()) == ["people.csv"]


def test_a_draft_knows_german_dates_and_numbers(table, capsys):
    lines = ["day;dose;school;lab"]
    lines += [f"{1 + i % 28:02d}.03.2021;{i},5;{'none' if i % 2 else 'a'};?{i}" for i in range(90)]
    (table.parent / "german.csv").write_text("\n".join(lines) + "\n")
    assert main(["columns", "german.csv", "--out", "g.yaml", "--kinds", "lab=numeric"]) == 0
    text = (table.parent / "g.yaml").read_text()
    assert "# Column school: none counts as a missing cell" in text
    drafts = yaml.safe_load(text)
    assert drafts["day"]["format"] == "%d.%m.%Y"
    assert (str(drafts["day"]["low"]), str(drafts["day"]["high"])) == ("2021-03-01", "2021-03-28")
    assert drafts["dose"] == {
        "kind": "numeric",
        "draft": True,
        "low": 0.5,
        "high": 89.5,
        "decimal_mark": ",",
        "decimals": 1,
    }
    assert drafts["lab"]["low"] == "fill in"


@pytest.mark.parametrize("cell", ["2.5", "2,5"])
def test_the_only_number_with_a_decimal_mark_is_no_missing_cell(tmp_path, monkeypatch, cell):
    monkeypatch.chdir(tmp_path)
    lines = ["dose;room", *(f"{number};{number % 3}" for number in range(20)), f"{cell};1"]
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    assert main(["columns", "people.csv", "--out", "draft.yaml"]) == 0
    dose = yaml.safe_load((tmp_path / "draft.yaml").read_text())["dose"]
    assert dose["kind"] == "numeric"
    assert dose["decimals"] == 1
    assert "missing" not in dose


def test_a_draft_keeps_zeros_of_codes_and_digits_of_numbers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = ["code;ward;room;dose;rate"]
    for number in range(90):
        dose = f"{number}.{number % 100:02d}"
        rate = f"{number}e-3" if number > 1 else f"{number}.5"  # an exponent moves the point
        lines.append(f"{number:05d};{number % 3:02d};{number % 7};{dose};{rate}")
    (tmp_path / "people.csv").write_text("\n".join(lines) + "\n")
    assert main(["columns", "people.csv", "--out", "draft.yaml"]) == 0
    text = (tmp_path / "draft.yaml").read_text()
    drafts = yaml.safe_load(text)
    assert drafts["code"]["kind"] == "identifier"  # more codes than a column may have categories
    assert drafts["ward"]["categories"] == ["00", "01", "02"]
    assert drafts["room"]["kind"] == "integer"
    assert drafts["dose"]["decimals"] == 2
    assert "decimals" not in drafts["rate"]
    assert text.count("are taken for codes") == 2
    assert main(["columns", "people.csv", "--out", "o.yaml", "--kinds", "code=integer"]) == 0
    assert yaml.safe_load((tmp_path / "o.yaml").read_text())["code"]["kind"] == "integer"


def write_facts(table, weight):
    """Writes the confirmed facts of the columns, with these bounds of the weight."""
    low, high = weight
    facts = {
        "id": {"kind": "identifier"},
        "day": {"kind": "date", "low": "2021-01-01", "high": "2021-12-31"},
        "sex": {"kind": "binary", "categories": ["F", "M"]},
        "ward": {"kind": "nominal", "categories": ["heart", "lung", "eye"]},
        "weight": {"kind": "numeric", "low": low, "high": high, "missing": True},
    }
    (table.parent / "columns.yaml").write_text(yaml.safe_dump(facts))


@pytest.mark.parametrize("has_units", [False, True])
def test_a_column_of_identifiers_is_a_reason_to_name_persons(table, capsys, has_units):
    write_facts(table, weight=(30, 200))
    units = ["--unit", "id"] if has_units else []
    assert generate("--out", "run", *units) == 0
    output = capsys.readouterr()
    assert ("if a person may have several" in output.err) != has_units
    evaluate = "dpswd evaluate run/synthetic.csv people.csv --columns columns.yaml --target sick"
    if has_units:
        evaluate += " --unit id"
    assert f"How good:  {evaluate}\n" in output.out
    assert main([*evaluate.split()[1:], "--classifiers", "logreg"]) == 0


def test_a_draft_takes_no_text_for_a_number_or_a_fact(tmp_path, monkeypatch, capsys):
    """Python reads 2021_05 as a number; a line break in a name would end a comment."""
    monkeypatch.chdir(tmp_path)
    lines = ['month,"a\nb"'] + [f"2021_{1 + i % 5:02d},NA" for i in range(20)]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")
    assert main(["columns", "x.csv", "--out", "x.yaml"]) == 0
    text = (tmp_path / "x.yaml").read_text()
    drafts = yaml.safe_load(text)
    assert list(drafts) == ["month", "a\nb"]
    assert drafts["month"]["kind"] == "nominal"
    private, _, remarks = text.partition("they are PRIVATE. Delete them, too.\n")
    assert "# Column a b: NA counts as a missing cell" in remarks
    assert "# Column" not in private


def test_facts_of_the_target_and_a_wrong_path_are_named(table, capsys):
    (table.parent / "columns.yaml").write_text("sick: {kind: binary, categories: [no, yes]}\n")
    assert generate("--out", "run") == 2
    assert "take it out of the facts" in capsys.readouterr().err
    (table.parent / "columns.yaml").unlink()
    assert generate("--out", "run") == 2
    assert "No such file or directory; check the path" in capsys.readouterr().err


def test_draft_of_a_parquet_file_has_the_kinds_of_its_types(tmp_path, monkeypatch, capsys):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    monkeypatch.chdir(tmp_path)
    columns = {
        "patient": [f"p{number}" for number in range(60)],
        "day": pa.array([datetime.date(2021, 1, 1 + number % 28) for number in range(60)]),
        "seen": pa.array([datetime.datetime(2021, 1, 1, number % 24) for number in range(60)]),
        "smoker": pa.array([None, *[True] * 59]),
        "ward": pa.array(["heart", "lung"] * 30).dictionary_encode(),
        "sex": ["F", "M"] * 30,
        "weight": [70.5] * 30 + [None] * 30,
        "age": [40, 60] * 30,
        "sick": ["no", "yes"] * 30,
    }
    parquet.write_table(pa.table(columns), "people.parquet")
    words = ["columns", "people.parquet", "--out", "columns.yaml", "--target", "sick"]
    assert main([*words, "--kinds", "patient=identifier"]) == 0
    drafts = yaml.safe_load((tmp_path / "columns.yaml").read_text())
    kinds = {name: draft["kind"] for name, draft in drafts.items()}
    assert kinds == {
        "patient": "identifier",
        "day": "date",
        "seen": "datetime",
        "smoker": "binary",
        "ward": "nominal",
        "sex": "binary",
        "weight": "numeric",
        "age": "integer",
    }
    assert "categories" in drafts["smoker"]  # one value alone: the user states the other
    assert drafts["smoker"]["missing"]
    assert drafts["weight"]["missing"]
    assert drafts["ward"]["categories"] == ["heart", "lung"]
    assert (drafts["age"]["low"], drafts["age"]["high"]) == (40, 60)
    assert str(drafts["seen"]["high"]) == "2021-01-01 23:00:00"
    assert all(draft.get("draft") for name, draft in drafts.items() if name != "patient")
    capsys.readouterr()
    assert main(["columns", "no.parquet", "--out", "other.yaml"]) == 2
    assert "no.parquet" in capsys.readouterr().err


def write_hospital(path):
    """Write a table of a spreadsheet: separators ;, decimal commas, and - for missing cells."""
    lines = ["age;dose;empty;flag;person;sick"]
    for i in range(300):
        dose = "-" if i % 7 == 0 else f"{i % 90},{i % 10}5"
        lines.append(f"{20 + i % 60};{dose};;{i % 2};p{i // 3};{'yes' if i % 60 > 30 else 'no'}")
    path.write_text("\n".join(lines) + "\n")


def confirm(draft, columns):
    """Write the facts of a draft without the lines that mark it as one; return them."""
    facts = yaml.safe_load(draft.read_text())
    for column in facts.values():
        column.pop("draft", None)
    columns.write_text(yaml.safe_dump(facts))
    return facts


def test_long_texts_among_categories_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    notes = ["transferred from the department of surgery and stable", "none of note", "well"]
    lines = [f"{notes[i % 3]},{20 + i}" for i in range(60)]
    Path("visits.csv").write_text("\n".join(["note,age", *lines]) + "\n")
    assert main(["columns", "visits.csv", "--out", "draft.yaml"]) == 0
    remark = "Column note: some categories are long texts, which would be published"
    assert remark in capsys.readouterr().out
    assert f"# {remark}" in Path("draft.yaml").read_text()
    lines = [f"{notes[1 + i % 2]},{20 + i}" for i in range(60)]  # a control: short ones
    Path("short.csv").write_text("\n".join(["note,age", *lines]) + "\n")
    assert main(["columns", "short.csv", "--out", "short.yaml"]) == 0
    assert "long texts" not in capsys.readouterr().out


def test_a_draft_of_a_spreadsheet_is_accepted_once_confirmed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_hospital(tmp_path / "hospital.csv")
    words = ["columns", "hospital.csv", "--out", "draft.yaml", "--target", "sick"]
    assert main([*words, "--kinds", "flag=nominal", "person=identifier"]) == 0
    text = (tmp_path / "draft.yaml").read_text()
    assert "# Column dose: - is taken for a missing cell" in text
    assert "# Column empty: no cell has a value, so the column is left out." in text
    facts = confirm(tmp_path / "draft.yaml", tmp_path / "columns.yaml")
    assert facts["dose"]["missing"] == "-"
    assert (facts["dose"]["low"], facts["dose"]["high"]) == (0.05, 89.95)
    assert facts["empty"] == {"kind": "identifier"}
    assert facts["flag"]["categories"] == ["0", "1"]
    classes = ["--target", "sick", "--classes", "no", "yes"]
    assert main(["forecast", "hospital.csv", "--columns", "columns.yaml", *classes]) == 0
    assert "300 records" in capsys.readouterr().out


def test_synthetic_tables_have_the_separator_and_digits_of_the_records(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    write_hospital(tmp_path / "hospital.csv")
    assert main(["columns", "hospital.csv", "--out", "draft.yaml", "--target", "sick"]) == 0
    facts = confirm(tmp_path / "draft.yaml", tmp_path / "columns.yaml")
    facts["dose"]["decimals"] = 2
    del facts["person"]
    (tmp_path / "columns.yaml").write_text(yaml.safe_dump(facts))
    options = ["--columns", "columns.yaml", "--target", "sick", "--classes", "no", "yes"]
    options += ["--unit", "person", "--per-unit", "3"]
    assert main(["generate", "hospital.csv", *options, "--out", "run"]) == 0
    header, *lines = (tmp_path / "run/synthetic.csv").read_text().splitlines()
    assert header == "age;dose;flag;sick"
    doses = [line.split(";")[1] for line in lines]
    assert "-" in doses
    assert all(dose == "-" or len(dose.split(",")[1]) == 2 for dose in doses)
    # Readers of a published folder expect commas.
    assert main(["publish", "run", "--out", "bundle"]) == 0
    assert (tmp_path / "bundle/data/train.csv").read_text().startswith("age,dose,flag,sick\n")
    capsys.readouterr()
    # A person is meant wherever persons are stated.
    assert main(["verify", "bundle"]) == 0
    text = capsys.readouterr().out
    assert "% of the persons" in text
    assert "% of the records" not in text
    ledger = (tmp_path / "run/ledger.jsonl").read_text().splitlines()
    guarantee = json.loads(ledger[0])["guarantee"]
    assert guarantee["unit"] == "one person, at most 3 records"
    assert "records of one person, at most 3" in guarantee["assumptions"][0]
    assert main(["forecast", "hospital.csv", *options]) == 0
    assert "100 persons with at most 3 records each, 300 entries" in capsys.readouterr().out
    # More records of such a table are a table, too.
    assert main(["sample", "run", "-n", "5"]) == 0
    header, *lines = (tmp_path / "synthetic.csv").read_text().splitlines()
    assert (header, len(lines)) == ("age;dose;flag;sick", 5)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--per-unit", "0"], "Expected --per-unit >= 1, got 0."),
        (["--epsilon", "-1"], "Expected --epsilon above 0, got -1.0."),
        (["--delta", "2"], "Expected --delta strictly between 0 and 1, got 2.0."),
    ],
)
def test_a_check_names_the_option(option, message, capsys):
    assert main(["forecast", "--shape", "4", "--n", "1000", *option]) == 2
    assert message in capsys.readouterr().err


def test_json_has_no_infinity(capsys):
    words = ["forecast", "--shape", "4", "-n", "1000", "--epsilon", "inf", "--json"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert json.loads(text, parse_constant=pytest.fail)["epsilon"] == "inf"


def test_facts_that_cut_most_cells_are_named_by_evaluate(table, capsys):
    write_facts(table, weight=(0, 1))
    assert generate("--out", "run") == 0
    words = ["evaluate", "run/synthetic.csv", "people.csv", "--columns", "columns.yaml"]
    words += ["--target", "sick", "--classifiers", "logreg"]
    assert main([*words, "--out", "figures"]) == 0
    text = capsys.readouterr().out
    assert "Column weight: 80 % of the real cells are at a stated bound or beyond it" in text
    assert "Column day" not in text


def test_bounds_that_cut_most_cells_are_named_by_the_synthetic_records(table, capsys):
    facts = FACTS_WITHOUT_WARD + "ward: {kind: nominal, categories: [heart, lung, eye]}\n"
    path = table.parent / "columns.yaml"
    for changes, expected in (
        ({}, []),
        ({"low: 30, high: 200": "low: 0, high: 1"}, ["at the bound high: 1."]),
        ({"numeric, low: 30, high: 200": "integer, low: 0, high: 1"}, ["at the bound high: 1."]),
        ({"low: 2021-01-01": "low: 2021-11-01"}, ["at the bound low: 2021-11-01."]),
    ):
        text = facts
        for before, after in changes.items():
            text = text.replace(before, after)
        path.write_text(text)
        number = len(list(table.parent.glob("run*")))
        assert generate("--out", f"run{number}", "--epsilon", "30") == 0
        lines = [
            line for line in capsys.readouterr().out.splitlines() if "check the bounds" in line
        ]
        assert len(lines) == len(expected)
        for line, words in zip(lines, expected, strict=True):
            assert words in line


def test_a_column_without_facts_is_answered_in_words_of_the_command_line(table, capsys):
    (table.parent / "columns.yaml").write_text(FACTS_WITHOUT_WARD)
    assert generate("--out", "run") == 2
    sentence = capsys.readouterr().err
    assert "has ward, which the facts do not have" in sentence
    assert "(1) add to --columns its facts, as in ward: {kind: integer" in sentence
    assert "by ward: {kind: identifier}, (3) name it by --target if" in sentence
    assert "as y" not in sentence


# Cells of one column, in many spellings.
SPELLINGS = (
    st.integers(-50, 50).map(str),
    st.floats(-1e5, 1e5).map(lambda number: f"{number:.2f}"),
    st.floats(-1e5, 1e5).map(lambda number: f"{number:.2f}".replace(".", ",")),
    st.dates().map(str),
    st.dates().map(lambda day: day.strftime("%d.%m.%Y")),
    st.datetimes().map(lambda moment: moment.isoformat(sep=" ", timespec="seconds")),
    st.text("ab|;,.'- \"", max_size=4),
    st.sampled_from(["0", "1"]),
    st.sampled_from(["1", "01", "1.0", "true"]),
    st.sampled_from(["1,0", "1", "1.000"]),
    st.just("x"),
    st.just(""),
)
MISSING = st.sampled_from(["", "NA", "-", "?", "null", "nan", "#N/A"])
N_LINES = 20


def columns_of(spelling):
    """Return a strategy of columns of one spelling, some with one text of missing cells."""
    plain = st.lists(spelling, min_size=N_LINES, max_size=N_LINES)
    with_missing = MISSING.flatmap(
        lambda text: st.lists(
            st.one_of(spelling, spelling, st.just(text)), min_size=N_LINES, max_size=N_LINES
        )
    )
    return st.one_of(plain, with_missing)


@given(
    columns=st.lists(st.sampled_from(SPELLINGS).flatmap(columns_of), min_size=2, max_size=4),
    separator=st.sampled_from(",;\t|"),
)
def test_a_confirmed_draft_reads_the_file_that_it_was_made_of(tmp_path_factory, columns, separator):
    directory = tmp_path_factory.mktemp("draft")
    path = directory / "table.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow([f"c{number}" for number in range(len(columns))])
        writer.writerows(zip(*columns, strict=True))
    assert main(["columns", str(path), "--out", str(directory / "draft.yaml")]) == 0
    facts = confirm(directory / "draft.yaml", directory / "facts.yaml")
    is_complete = not any("fill in" in column.values() for column in facts.values())
    if is_complete and any(column["kind"] != "identifier" for column in facts.values()):
        records = read_public(path, columns=read_columns(directory / "facts.yaml"))
        assert len(records.train) == N_LINES


def test_bounds_that_are_too_far_apart_are_named(tmp_path):
    path = tmp_path / "facts.yaml"
    path.write_text("far: {kind: numeric, low: 0, high: 1e19}")
    with pytest.raises(InputError, match=r"less than 1e\+18 apart, got low=0, high=1e19"):
        read_columns(path)
