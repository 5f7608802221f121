"""generate, sample, evaluate, forecast and demo: files, what is printed, exports, refusals."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from factories import account, answer, ledger_of, privacy, refused, untouched, write_images

from dpswd import Budget, data
from dpswd.commands._options import FINISHED_BEFORE, spelled_classes
from dpswd.commands.main import main
from dpswd.data import benchmark
from dpswd.files.generators import read_generator
from dpswd.queries import ColumnCounts

ROOT = Path(__file__).parents[2]
FILES = {"generator.pt", "synthetic.npz", "report.html", "report.md", "report.json", "config.yaml"}
FILES |= {"ledger.jsonl", "privacy.json", "releases"}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pictures(folder, n=60):
    """Ten images of one class for every fifty of the other."""
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 100, (12, 12, 3)) + 100 * (i % 6 == 0) for i in range(n)]
    return write_images(
        folder, {f"{'common' if i % 6 else 'rare'}/{i}.png": each for i, each in enumerate(images)}
    )


BOUNDS = "column,low,high,kind\nage,0,90,integer\nincome,0,100000,numeric\nmember,0,1,binary\n"


def table(path, n=400):
    """Ages up to 90, incomes up to 100,000, a binary column, and a class that depends on both."""
    rng = np.random.default_rng(0)
    label = np.arange(n) % 2
    age, income = rng.integers(20, 60, n) + 25 * label, rng.random(n) * 4e4 + 5e4 * label
    rows = zip(age, income, rng.integers(0, 2, n), label, strict=True)
    lines = [f"{int(a)},{float(b):.2f},{int(c)},{int(d)}" for a, b, c, d in rows]
    path.write_text("\n".join(["age,income,member,sick", *lines]) + "\n")
    (path.parent / "bounds.csv").write_text(BOUNDS)
    return path


STATED = ("--classes", "common", "rare", "--size", "12", "--channels", "3", "--delta", "1e-3")


def test_images_from_the_folder_to_the_export(capfd, place):
    """Photos, generator, samples and pictures, evaluation."""
    folder = pictures(place / "photos")
    result = answer(capfd, "generate", folder, *STATED, "--epsilon", "300")
    directory = place / "runs" / "photos"
    assert {path.name for path in directory.iterdir()} == FILES | {"samples.png"}
    assert (result["n_records"], result["n_synthetic"]) == (60, 60)
    # 60 photographs are too few even at this budget; scans of one channel are not photographs
    words = ("forecast", "--shape", "12,12,3", "--n", "60", "--n-classes", "2", "--epsilon", "300")
    assert answer(capfd, *words)["text"].startswith("Expect clouds")
    assert result["expected"].startswith("Expect clouds")
    words = ("forecast", "--shape", "32,32,3", "--n", "50000", "--n-classes", "10")
    assert "Scenes of all kinds stay clouds" in answer(capfd, *words)["text"]
    words = ("forecast", "--shape", "28,28", "--n", "60000", "--n-classes", "10")
    assert "clouds" not in answer(capfd, *words)["text"]
    assert result["guarantee"]["sound"]
    assert result["next"].startswith("dpswd sample runs/photos/generator.pt")
    assert privacy(directory)["epsilon"] == pytest.approx(
        account(ledger_of(directory).groups()).get_epsilon(1e-3)
    )
    assert privacy(directory)["epsilon"] <= 300
    with np.load(directory / "synthetic.npz", allow_pickle=False) as made:
        assert (made["data"].shape, made["data"].dtype) == ((60, 12, 12, 3), np.uint8)
        assert sorted(set(made["targets"].tolist())) == ["common", "rare"]
    made = directory / "generator.pt"
    answer(capfd, "sample", made, "-n", "12", "--out", "pictures", "--proportions", "released")
    assert {path.name for path in (place / "pictures").iterdir()} <= {"common", "rare"}
    assert len(list((place / "pictures").rglob("*.png"))) == 12
    answer(capfd, *f"sample {made} -n 5 --labels rare --spread 0.8 --out one.npz".split())
    with np.load("one.npz", allow_pickle=False) as sampled:
        assert sampled["targets"].tolist() == ["rare"] * 5
    assert "exists" in refused(capfd, "sample", made, "--out", "one.npz")
    found = answer(
        capfd, "evaluate", directory / "synthetic.npz", folder, "--classifiers", "logreg"
    )
    assert found["rows"][0]["balanced_accuracy"] > 80
    assert {path.name for path in directory.iterdir()} == FILES | {
        "samples.png"
    }  # no real record among them
    made_of_records = {"private_evaluation.json", "private_evaluation.png"}
    assert {path.name for path in (place / "private" / "photos").iterdir()} == made_of_records
    assert "['common', 'rare'], got blue" in refused(capfd, "sample", made, "--labels", "blue")


def test_a_table_from_bounds_to_columns(capfd, place):
    train = table(place / "people.csv")
    words = ("--target", "sick", "--classes", "0", "1", "--delta", "1e-4")
    assert "--bounds FILE" in refused(capfd, "generate", train, *words)
    assert not (place / "runs").exists()
    forecast = answer(capfd, "forecast", train, *words, "--bounds", "bounds.csv", "--details")
    assert (forecast["n_bins"], "distributions of each class" in forecast["text"]) == (64, True)
    facts = (
        "--shape",
        "3",
        "--n",
        "400",
        "--n-classes",
        "2",
        "--delta",
        "1e-4",
        "--bounds",
        "bounds.csv",
        "--details",
    )
    assert answer(capfd, "forecast", *facts)["text"] == forecast["text"]
    answer(capfd, "generate", train, *words, "--bounds", "bounds.csv", "--out", "out")
    assert {path.name for path in (place / "out").iterdir()} == FILES | {"columns.png"}
    answer(capfd, "sample", "out", "-n", "300", "--out", "made.csv")
    lines = list(csv.DictReader((place / "made.csv").read_text().splitlines()))
    assert list(lines[0]) == ["age", "income", "member", "sick"]
    assert all(line["age"].isdigit() and int(line["age"]) <= 90 for line in lines)
    assert {(line["member"], line["sick"]) for line in lines} == {
        (a, b) for a in "01" for b in "01"
    }
    found = answer(capfd, "evaluate", "made.csv", train, "--target", "sick")
    assert [row["classifier"] for row in found["rows"]] == ["logreg", "mlp", "boosting"]
    assert min(row["accuracy"] for row in found["rows"]) > 80
    assert len(found["fidelity"]["column_distances"]) == 3
    table(place / "other.csv").write_text(train.read_text().replace("1\n", "2\n"))
    assert "classes 0, 1, got 2" in refused(
        capfd, "evaluate", "made.csv", "other.csv", "--target", "sick", "--out", "other"
    )
    again = ("evaluate", "made.csv", train, "--target", "sick")
    assert "private_evaluation.json, which exists" in refused(capfd, *again)
    main([*map(str, again), "--out", "private/again"])
    out = capfd.readouterr().out
    assert out.startswith("Exact numbers on private records are not covered")
    assert out.endswith("private_evaluation.png shows real records: do not publish it.\n")
    for words in (
        ["evaluate", "out/synthetic.npz", train],
        ["adapt", train, "made.csv"],
    ):  # the class is a number
        assert "--target" in refused(capfd, *words)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("age,0,90\n", "low,high"),
        ("column,low,high\nage,0\n", "low,high"),
        ("column,low,high\nage,0,90\nincome,0,1\n", "got no line in place of member; mend"),
        (
            "column,low,high\nage,0,90\nincome,0,1\nmember,0,1\nsick,0,1\n",
            "got sick in place of the end; mend",
        ),
        ("column,low,high\nincome,0,90\nage,0,1\nmember,0,1\n", "got income in place of age"),
    ],
)
def test_bounds_that_do_not_fit(capfd, place, content, message):
    train = table(place / "people.csv")
    (place / "bounds.csv").write_text(content)
    words = "--target sick --classes 0 1 --bounds bounds.csv".split()
    assert message in refused(capfd, "generate", train, *words)
    assert not (place / "runs").exists()


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_bounds_as_spreadsheets_write_them(capfd, place, separator, encoding):
    train = table(place / "people.csv")
    text = BOUNDS.replace(",", separator)
    (place / "bounds.csv").write_text(text, encoding=encoding)
    words = "--target sick --classes 0 1 --bounds bounds.csv".split()
    assert answer(capfd, "forecast", train, *words)["n_bins"] == 64


def test_a_benchmark_has_test_records_that_generate_did_not_read(capfd, place):
    assert main(["generate", "digits", "-n", "20"]) == 0
    out = capfd.readouterr().out
    assert "How good:  dpswd evaluate runs/digits/synthetic.npz digits" in out
    assert "Better in place of" not in out


def test_a_run_is_refused_before_a_record_is_read_and_can_be_resumed(capfd, place, monkeypatch):
    """A second run once failed after reading all images, without naming the option."""

    leave = Budget.__exit__

    def stopped(*_, **__):
        raise KeyboardInterrupt

    def stopped_after_the_last_release(budget, *error):
        leave(budget, *error)
        raise KeyboardInterrupt

    again = (
        "To finish the run, which pays for no release twice: "
        "dpswd generate digits --out run --resume"
    )
    for owner, name, replacement, ending in (
        (data, "read", stopped, "interrupted. Nothing was released, so nothing was spent."),
        (Budget, "__exit__", stopped_after_the_last_release, again),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, replacement)
            assert main(["generate", "digits", "--out", "run"]) == 130
        assert capfd.readouterr().err.endswith(f"{ending}\n")
    ledger = (place / "run" / "ledger.jsonl").read_bytes()
    for wrong in (("--epsilon", "0"), ("--delta", "1")):
        assert wrong[0][2:] in refused(capfd, "generate", "no/such/data", *wrong)
    said = refused(capfd, "generate", "no/such/data", "--out", "run")
    assert "--out" in said
    assert "--resume" in said
    assert "the budgets add up" in said
    for command in ("publish run --out bundle", "sample run", "sample run/generator.pt"):
        said = refused(capfd, *command.split())
        assert "got one without generator.pt" in said
        assert "to finish the run, which pays for no release twice: dpswd generate " in said
        assert "allback" not in said
    answer(capfd, "generate", "digits", "--out", "run", "--resume")
    assert (place / "run" / "ledger.jsonl").read_bytes() == ledger
    assert FILES <= {path.name for path in (place / "run").iterdir()}


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        (("--classes", "1", "0"), "Expected records.classes=[0, 1]"),
        (("--classes", "0", "1", "--bounds", "wide.csv"), "Expected records.bounds="),
    ],
    ids=["order of the classes", "bounds"],
)
def test_a_run_is_resumed_with_the_facts_of_its_stored_releases(
    capfd, place, monkeypatch, stated, message
):
    """Its counts would be read as those of other classes, or between other bounds."""
    table(place / "people.csv")
    (place / "wide.csv").write_text(BOUNDS.replace("100000", "900000"))
    words = ["generate", "people.csv", "--target", "sick", "--delta", "1e-3", "--out", "run"]
    with monkeypatch.context() as killed:
        killed.setattr(ColumnCounts, "release", die_after(ColumnCounts.release))
        assert main([*words, "--classes", "0", "1", "--bounds", "bounds.csv"]) == 130
    capfd.readouterr()
    said = refused(capfd, *words, "--bounds", "bounds.csv", *stated, "--resume")
    assert message in said
    assert ledger_of(place / "run").n_releases == 1
    answer(capfd, *words, "--classes", "0", "1", "--bounds", "bounds.csv", "--resume")


def die_after(function):
    """Let a method return nothing, as in a process that is killed when it returns."""

    def called(*arguments, **options):
        function(*arguments, **options)
        raise KeyboardInterrupt

    return called


def test_constants_of_a_config_and_of_options(capfd, place):
    (place / "mine.yaml").write_text("centre: 0.25\nshift: 0.5\n")
    answer(capfd, "generate", "digits", "--config", "mine.yaml", "--shift", "1.5")
    config = (place / "runs" / "digits" / "config.yaml").read_text()
    assert "centre: 0.25" in config
    assert "shift: 1.5" in config
    assert read_generator("runs/digits/generator.pt")[0].jitter["shift"] == 1.5
    for text, said in (
        ("colour: red\n", "colour"),
        ("model: {}\n", "dpswd fit"),
        ("a: [", "YAML"),
        ("- 1\n", "list"),
    ):
        (place / "mine.yaml").write_text(text)
        assert said in refused(
            capfd, "generate", "digits", "--config", "mine.yaml", "--out", "other"
        )
    assert "got 'none'" in refused(
        capfd, "generate", "digits", "--config", "none", "--out", "other"
    )
    assert "n >= 1" in refused(capfd, "generate", "digits", "-n", "0", "--out", "other")
    assert not (place / "other").exists()


def test_facts_that_are_taken_from_the_records_are_said(capfd, place):
    """Size, channels and classes are stated, or taken with a line on the screen."""
    pictures(place / "photos")
    main(["generate", "photos", "--delta", "1e-3"])
    out, said = capfd.readouterr()
    assert all(words in said for words in ("taken from the records", "size", "channels", "classes"))
    assert all(
        words in out
        for words in ("Guarantee: mu = ", "Files: ", "Next: ", "expect ", "Rarest class (")
    )
    assert "Look at:   runs/photos/samples.png" in out
    assert "How good:  dpswd evaluate runs/photos/synthetic.npz photos" in out
    assert "Better in place of photos: records of the same kind that generate did not read" in out
    main(["generate", "photos", *STATED, "--out", "again"])
    assert "taken from the records" not in capfd.readouterr().err
    main(["sample", "runs/photos/generator.pt", "-n", "3"])
    out = capfd.readouterr().out
    assert out.startswith("3 synthetic records, the classes in turn: synthetic.npz")
    assert "costs no privacy" in out


def digits_run(place, name="run"):
    """A run directory with synthetic digits, and real ones that are not public."""
    main(["generate", "digits", "--out", name, "-n", "300"])
    images = np.round(benchmark("digits").test.floats().numpy()[:, 0] * 255).astype(np.uint8)
    np.savez(place / "real.npz", images=images, labels=benchmark("digits").test.labels.numpy())
    return place / name


def test_pictures_of_real_records_are_not_written_to_a_run(capfd, place, monkeypatch):
    run = digits_run(place)
    real = place / "real.npz"
    words = ("evaluate", run / "synthetic.npz", real, "--classifiers", "logreg")
    with untouched(run):
        for out in (run, run / "below", run / "pictures" / "deep"):
            assert "outside of every run" in refused(capfd, *words, "--out", out)
        with monkeypatch.context() as patch:
            patch.chdir(run)
            assert "outside of every run" in refused(capfd, *words)
    # a generator that was saved elsewhere makes no run of that directory
    (place / "generator.pt").write_bytes((run / "generator.pt").read_bytes())
    answer(capfd, *words)
    assert (place / "private" / "run" / "private_evaluation.png").exists()
    with untouched(place):
        assert "which exists" in refused(capfd, *words)
        swapped = ("evaluate", real, run / "synthetic.npz", "--out", place / "private" / "run")
        assert "swap SYNTHETIC and TEST" in refused(capfd, *swapped)


def test_clouds_are_announced_once_and_before_anything_is_spent(capfd, place):
    folder = pictures(place / "photos")
    capfd.readouterr()
    assert main(["generate", str(folder), *STATED, "--epsilon", "300"]) == 0
    printed = capfd.readouterr()
    lines = printed.err.splitlines()
    (line,) = [line for line in lines if line.startswith("Expect clouds")]
    assert "Expect clouds" not in printed.out
    assert "expect synthetic records" in printed.out
    assert "60 records are too few" in line
    assert "dpswd forecast draws a picture of what to expect, and spends nothing." in lines
    # the run is not started where it cannot be, and errors of options come first
    assert main(["generate", str(folder), *STATED, "--delta", "0.5", "--out", "other"]) == 2
    assert "Expect clouds" not in capfd.readouterr().err
    assert main(["generate", str(folder), *STATED, "--epsilon", "300"]) == 2
    assert "Expect clouds" not in capfd.readouterr().err


def test_records_of_one_class_can_be_evaluated(capfd, place):
    rng = np.random.default_rng(0)
    for name, labels in (("made", np.arange(60) % 2), ("real", np.ones(60, dtype=int))):
        np.savez(place / f"{name}.npz", features=rng.normal(size=(60, 3)), labels=labels)
    (row, *_) = answer(capfd, "evaluate", "made.npz", "real.npz")["rows"]
    assert row["auc"] is None


def test_columns_are_matched_by_name(capfd, place):
    rng = np.random.default_rng(0)
    rows = np.column_stack([rng.normal(size=80), rng.normal(size=80) + 50, np.arange(80) % 2])

    def write(name, order, header):
        lines = [",".join(f"{row[i]:g}" for i in order) for row in rows]
        (place / name).write_text("\n".join([header, *lines]))

    write("made.csv", [0, 1, 2], "age,height,class")
    write("same.csv", [0, 1, 2], "age,height,class")
    write("reordered.csv", [2, 1, 0], "class,height,age")
    write("renamed.csv", [0, 1, 2], "income,height,class")
    results = [
        answer(capfd, "evaluate", "made.csv", name, "--out", f"out/{name}")
        for name in ("same.csv", "reordered.csv")
    ]
    assert results[0]["fidelity"] == results[1]["fidelity"]
    # 40 records of each side; heights are 50 above ages
    assert max(results[0]["fidelity"]["column_distances"]) < 0.5
    assert "got income, height; rename them" in refused(
        capfd, "evaluate", "made.csv", "renamed.csv"
    )


GERMAN_FACTS = """
weight: {kind: numeric, low: 0, high: 200, decimals: 1, decimal_mark: ',', missing: true}
cost: {kind: numeric, low: 0, high: 90000, decimals: 2, decimal_mark: ',', thousands_mark: '.'}
days: {kind: integer, low: 0, high: 2000, decimal_mark: ',', thousands_mark: '.'}
"""


def test_a_table_with_decimal_commas_to_the_bundle(capfd, place):
    rng = np.random.default_rng(0)
    lines = ["weight;cost;days;sick"]
    for i in range(120):
        weight = f"{rng.uniform(40, 120):.1f}".replace(".", ",") if i % 9 else ""
        cost = f"{rng.uniform(1000, 9000):,.2f}".translate(str.maketrans(",.", ".,"))
        lines.append(f"{weight};{cost};1.{i:03d};{('no', 'yes')[i % 2]}")
    (place / "people.csv").write_text("\n".join(lines) + "\n")
    (place / "facts.yaml").write_text(GERMAN_FACTS)
    options = "--columns facts.yaml --target sick".split()
    command = ["generate", "people.csv", *options, "--classes", "no", "yes"]
    assert main(command) == 0
    assert FINISHED_BEFORE not in capfd.readouterr().out
    run = place / "runs" / "people"
    assert {"columns.png", "report.html"} <= {path.name for path in run.iterdir()}
    with (run / "synthetic.csv").open() as file:
        header, *rows = csv.reader(file, delimiter=";")
    assert header == ["weight", "cost", "days", "sick"]
    costs = [float(row[1].replace(".", "").replace(",", ".")) for row in rows]
    assert all(0 <= cost <= 90000 for cost in costs)
    assert all("." in row[1] for row, cost in zip(rows, costs, strict=True) if cost >= 1000)
    assert any(cost >= 1000 for cost in costs)
    (run / "report.html").unlink()
    assert main([*command, "--resume"]) == 0  # as after an error in the last files
    assert FINISHED_BEFORE in capfd.readouterr().out
    assert (run / "report.html").exists()
    assert main(["evaluate", "runs/people/synthetic.csv", "people.csv", *options]) == 0
    assert main(["publish", "runs/people", "--out", "bundle"]) == 0
    assert main(["verify", "bundle"]) == 0


@pytest.mark.parametrize(("spelling", "is_noticed"), [("rome", True), ("Rome", False)])
def test_a_category_that_no_cell_has_is_noticed_by_the_synthetic_records(
    capfd, place, spelling, is_noticed
):
    lines = [
        "city,age,sick",
        *(f"Rome,{20 + i % 50},{'no yes'.split()[i % 2]}" for i in range(400)),
    ]
    (place / "people.csv").write_text("\n".join(lines) + "\n")
    (place / "facts.yaml").write_text(
        f"city: {{kind: nominal, categories: [{spelling}, Oslo]}}\n"
        "age: {kind: integer, low: 0, high: 120}\n"
    )
    options = ["--columns", "facts.yaml", "--target", "sick", "--classes", "no", "yes"]
    assert main(["generate", "people.csv", *options, "--epsilon", "50"]) == 0
    assert ("check how the categories are spelled" in capfd.readouterr().out) == is_noticed


def test_a_column_of_persons_is_left_out(capfd, place):
    rng = np.random.default_rng(0)
    lines = [f"{a:g},{b:g},{i % 2}" for i, (a, b) in enumerate(rng.normal(size=(80, 2)))]
    (place / "made.csv").write_text("\n".join(["age,height,class", *lines]))
    (place / "real.csv").write_text(
        "\n".join(["patient,age,height,class", *(f"p{i},{line}" for i, line in enumerate(lines))])
    )
    people = "generate real.csv --target class --classes 0 1 --radius 3 --delta 1e-3".split()
    assert main([*people, "--unit", "patient", "--out", "run"]) == 0
    assert "Every person counts alike" in capfd.readouterr().out
    real = ("made.csv", "real.csv", "--out", "figures")
    assert "column of persons by --unit" in refused(capfd, "evaluate", *real)
    found = answer(capfd, "evaluate", *real, "--unit", "patient")
    assert len(found["fidelity"]["column_distances"]) == 2  # age and height
    (place / "others.csv").write_text((place / "real.csv").read_text())
    words = ("attack", "made.csv", "real.csv", "others.csv", "--unit", "patient")
    assert answer(capfd, *words)["n_members"] == 80


@pytest.mark.parametrize("name", ["", "nan", "None", "NA"])
@pytest.mark.parametrize("ending", ["npz", "csv"])
def test_a_class_that_is_named_as_missing_entries_is_read_back(capfd, place, name, ending):
    """As data of defects have it: None is the class without any."""
    rows = np.random.default_rng(0).normal(size=(60, 2))
    np.savez(place / "real.npz", X=rows, y=np.array(["x", name] * 30))
    words = ("real.npz", "--classes", "x", name, "--radius", "3", "--delta", "1e-3", "--out", "run")
    answer(capfd, "generate", *words)
    answer(capfd, "sample", "run", "-n", "60", "--out", f"more.{ending}")
    found = answer(capfd, "evaluate", f"more.{ending}", "real.npz", "--classifiers", "logreg")
    assert found["rows"][0]["auc"] is not None


def test_a_run_directory_in_the_folder_of_the_records_is_refused(capfd, place, monkeypatch):
    """Its pictures would be read as records by a second run."""
    folder = pictures(place / "photos")
    with untouched(place):
        for words in (("photos", "--out", "photos/run"), (folder, "--out", folder)):
            assert "outside of the records" in refused(capfd, "generate", *words)
        monkeypatch.chdir(folder)
        assert "outside of the records" in refused(capfd, "generate", ".")


def test_samples_are_new_and_a_seed_repeats_them(capfd, place):
    main(["generate", "digits", "--out", "run dir", "-n", "200"])
    (next_line,) = [line for line in capfd.readouterr().out.splitlines() if "Next:" in line]
    assert next_line.endswith("sample 'run dir/generator.pt' -n 10000 --out more.npz")
    seeds = {"a": (), "b": (), "c": ("--seed", "7"), "d": ("--seed", "7")}
    for name, seed in seeds.items():
        answer(capfd, "sample", "run dir/generator.pt", "-n", "200", "--out", f"{name}.npz", *seed)
    drawn = {name: np.load(place / f"{name}.npz")["data"] for name in seeds}
    first = np.load(place / "run dir" / "synthetic.npz")["data"]
    known = {image.tobytes() for image in first}
    assert sum(image.tobytes() in known for image in drawn["a"]) < 100
    assert not np.array_equal(drawn["a"], drawn["b"])
    assert np.array_equal(drawn["c"], drawn["d"])


@pytest.mark.parametrize("labels", [[], ["--labels", "0"]])
def test_a_negative_number_of_samples_is_refused(capfd, place, labels):
    line = refused(capfd, "sample", "generator.pt", "-n", "-5", *labels, "--out", "more")
    assert "n >= 1" in line or "-n" in line


def test_classes_of_a_command_line_are_integers_if_all_are_spelled_so():
    assert spelled_classes(["0", "1", "12"]) == [0, 1, 12]
    for names in (["1", "2", "X"], ["01", "02"], ["1.0", "2"], ["cat", "dog"]):
        assert spelled_classes(names) == names
    assert spelled_classes(None) is None


def test_a_rare_class_does_not_renumber_the_others(capfd, place):
    """One record of class X once changed how the labels of all others were read."""
    rng = np.random.default_rng(0)
    sizes = []
    labels = rng.choice(["1", "2", "3"], 900, p=[0.6, 0.3, 0.1]).tolist()
    for first in ("3", "X"):
        lines = [f"{rng.random():.3f},{name}" for name in [first, *labels]]
        (place / f"{first}.csv").write_text("\n".join(["value,y", *lines]))
        words = (f"{first}.csv", "--target", "y", "--classes", *"123X", "--radius", "2")
        answer(capfd, "generate", *words, "--epsilon", "100", "--out", first)
        generator, _ = read_generator(place / first / "generator.pt")
        assert generator.class_names == [*"123X"]
        sizes.append([round(part * 901, -1) for part in generator.proportions])
    assert np.abs(np.subtract(*sizes)).max() <= 20
    assert sizes[0][0] > sizes[0][1] > sizes[0][2] > sizes[0][3]


@pytest.mark.slow
def test_torchrun_needs_no_further_flag(place):
    """Two runs once fought for one ledger."""
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "dpswd"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for again in (False, True):
        command = [sys.executable, *words, "generate", "digits", "--out", "run"]
        ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
        assert (ran.returncode == 0) is not again, ran.stderr
        assert ran.stdout.count("Guarantee") == 1 - again
        assert (ran.stderr.count("dpswd: Expected") == 1) is again
    assert len(ledger_of(place / "run").header["plan"]) == 4
    assert {path.name for path in (place / "run").iterdir()} == FILES | {"samples.png"}


def test_forecast_says_where_its_facts_come_from(capfd, place):
    stated = answer(capfd, "forecast", "--shape", "8,8", "--n", "1438", "--n-classes", "10")
    read = answer(capfd, "forecast", "digits")
    assert stated["shares"] == read["shares"]
    assert read["source"].startswith("From digits: 1,438 records of shape (1, 8, 8), 10 classes.")
    assert "No data were read" in stated["source"]
    imbalanced = answer(
        capfd, "forecast", "--shape", "8,8", "--n", "1000", "--class-sizes", "900", "100"
    )
    assert (imbalanced["n_classes"], "Rarest class (100 records, 10 %)" in imbalanced["text"]) == (
        2,
        True,
    )
    refused(capfd, "forecast", "--shape", "8,8", "--n", "1000", "--class-sizes", "900", "10")
    assert main(["forecast", "--shape", "32,32,3", "--n", "20"]) == 0
    out = capfd.readouterr().out
    assert "Expect noise" in out
    assert "Budget: epsilon 10, delta 1e-05." in out
    for words in ("digits --shape 8,8 --n 3", "", "--shape 8;8 --n 5", "digits --epsilon 0"):
        refused(capfd, "forecast", *words.split())
    assert [path.name for path in place.iterdir()] == ["forecast.png"]  # of a public stand-in


@pytest.mark.slow
def test_demo_end_to_end(capfd, place):
    result = answer(capfd, "demo", "--out", "demo")
    assert result["guarantee"]["sound"] is True
    assert 9 < result["guarantee"]["epsilon"] <= 10
    more = {"samples.png", "evaluation.json", "evaluation.png"}
    assert {path.name for path in (place / "demo").iterdir()} == FILES | more
    with np.load("demo/synthetic.npz", allow_pickle=False) as made:
        assert np.bincount(made["targets"]).tolist() == [500] * 10
    assert min(row["accuracy"] for row in result["evaluation"]) > 80  # chance is 10
    report = json.loads((place / "demo" / "report.json").read_text())
    trained_on = [row["train"] for row in report["evaluation"]]
    assert trained_on == ["synthetic"] * 3 + ["real"] * 3
    assert "--out" in refused(capfd, "demo", "--out", "demo")
