"""generate, sample, evaluate, forecast and demo: files, what is printed, exports, refusals."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from factories import account, answer, ledger_of, privacy, refused, write_images

from dpswd import Budget, data
from dpswd.commands.main import main
from dpswd.files.generators import read_generator

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
    forecast = answer(capfd, "forecast", train, *words, "--bounds", "bounds.csv")
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
    )
    assert answer(capfd, "forecast", *facts)["text"] == forecast["text"]
    answer(capfd, "generate", train, *words, "--bounds", "bounds.csv", "--out", "out")
    assert {path.name for path in (place / "out").iterdir()} == FILES | {"columns.png"}
    answer(capfd, "sample", "out/generator.pt", "-n", "300", "--out", "made.csv")
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
        capfd, "evaluate", "made.csv", "other.csv", "--target", "sick"
    )
    main(["evaluate", "made.csv", str(train), "--target", "sick"])
    out = capfd.readouterr().out
    assert out.startswith("Exact figures on private records are not covered")
    assert out.endswith("private_evaluation.png shows real records: do not publish it.\n")
    for words in (
        ["evaluate", "out/synthetic.npz", train],
        ["adapt", train, "made.csv"],
    ):  # the class is a number
        assert "--target" in refused(capfd, *words)


@pytest.mark.parametrize(
    ("content", "said"),
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
def test_bounds_that_do_not_fit(capfd, place, content, said):
    train = table(place / "people.csv")
    (place / "bounds.csv").write_text(content)
    words = "--target sick --classes 0 1 --bounds bounds.csv".split()
    assert said in refused(capfd, "generate", train, *words)
    assert not (place / "runs").exists()


def test_a_run_is_refused_before_a_record_is_read_and_can_be_resumed(capfd, place, monkeypatch):
    """Issue 31: a second run once failed after reading all images, without naming the option."""

    leave = Budget.__exit__

    def stopped(*_, **__):
        raise KeyboardInterrupt

    def stopped_after_the_last_release(budget, *error):
        leave(budget, *error)
        raise KeyboardInterrupt

    again = "To finish the run, which pays for no release twice: dpswd generate digits --out run --resume"
    for owner, name, replacement, ending in (
        (data, "read", stopped, "interrupted."),
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
    answer(capfd, "generate", "digits", "--out", "run", "--resume")
    assert (place / "run" / "ledger.jsonl").read_bytes() == ledger
    assert FILES <= {path.name for path in (place / "run").iterdir()}


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
    """Issue 30: size, channels and classes are stated, or taken with a line on the screen."""
    pictures(place / "photos")
    main(["generate", "photos", "--delta", "1e-3"])
    out, said = capfd.readouterr()
    assert all(words in said for words in ("taken from the records", "size", "channels", "classes"))
    assert all(
        words in out
        for words in ("Guarantee: mu = ", "Files: ", "Next: ", "Expect ", "Rarest class (")
    )
    main(["generate", "photos", *STATED, "--out", "again"])
    assert "taken from the records" not in capfd.readouterr().err
    main(["sample", "runs/photos/generator.pt", "-n", "3"])
    out = capfd.readouterr().out
    assert out.startswith("3 synthetic records, of each class equally many: synthetic.npz")
    assert "costs no privacy" in out


@pytest.mark.slow
def test_torchrun_needs_no_further_flag(place):
    """Issue 31: two runs once fought for one ledger."""
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
    assert read["source"].startswith("From digits: 1438 records of shape (1, 8, 8), 10 classes.")
    assert "No data were read" in stated["source"]
    imbalanced = answer(
        capfd, "forecast", "--shape", "8,8", "--n", "1000", "--class-sizes", "900", "100"
    )
    assert (imbalanced["n_classes"], "Rarest class (100 records, 10%)" in imbalanced["text"]) == (
        2,
        True,
    )
    refused(capfd, "forecast", "--shape", "8,8", "--n", "1000", "--class-sizes", "900", "10")
    assert main(["forecast", "--shape", "32,32,3", "--n", "20"]) == 0
    assert "Expect noise" in capfd.readouterr().out
    for words in ("digits --shape 8,8 --n 3", "", "--shape 8;8 --n 5", "digits --epsilon 0"):
        refused(capfd, "forecast", *words.split())
    assert not list(place.iterdir())


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
    assert len(report["evaluation"]) == 3
    assert "--out" in refused(capfd, "demo", "--out", "demo")
