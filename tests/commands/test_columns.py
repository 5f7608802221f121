"""``dpswd columns``, and the commands that take its file."""

import csv
import datetime
import json

import numpy as np
import pytest
import yaml

from dpswd.commands.main import main


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
    }
    assert drafts["lab"]["low"] == "fill in"


def test_facts_of_the_target_and_a_wrong_path_are_named(table, capsys):
    (table.parent / "columns.yaml").write_text("sick: {kind: binary, categories: [no, yes]}\n")
    assert generate("--out", "run") == 2
    assert "take it out of the facts" in capsys.readouterr().err
    (table.parent / "columns.yaml").unlink()
    assert generate("--out", "run") == 2
    assert "no such file; check the path" in capsys.readouterr().err


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
