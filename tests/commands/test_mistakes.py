"""Mistakes at the command line: one sentence, in its words, before anything is spent."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from factories import answer, refused, untouched, write_images

from dpswd.commands.main import main

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "0.4"
IMAGES = "generate photos --size 8 --channels 1 --delta 1e-3 --out run"
TABLE = "generate people.csv --bounds bounds.csv --target sick --classes no yes --out run"
ACCOUNT = "account --dim 40 --n-projections 80 --sample-size 64 --batch-size 16 --delta 1e-5"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working folder with images, a table, its bounds, and files of a run."""
    monkeypatch.chdir(tmp_path)
    pixels = np.arange(64).reshape(8, 8)
    names = [f"photos/{name}/{number}.png" for name in ("cats", "dogs") for number in range(3)]
    write_images(tmp_path, dict.fromkeys(names, pixels))
    Path("people.csv").write_text("age,sick\n" + 12 * "31,no\n64,yes\n")
    Path("bounds.csv").write_text("column,low,high\nage,0,120\n")
    np.save("rows.npy", np.ones((6, 3)))
    Path("day.yaml").write_text("centre: 2026-02-30\n")
    Path("old").mkdir()
    shutil.copy(FIXTURES / "generator.pt", "old/generator.pt")
    Path("old/ledger.jsonl").write_text('{"kind": "header"')
    Path("seen").mkdir()
    Path("seen/private_evaluation.json").write_text("{}")
    np.savez("old/synthetic.npz", X=np.ones((4, 8, 8)), y=[0, 1, 0, 1])
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        # numbers that would be refused after a release, or take all memory
        (f"{IMAGES} --epsilon 1e6", "at most 450,000"),
        (f"{IMAGES} --epsilon 1e300", "at most 450,000"),
        (f"{IMAGES} -n 1000000000000", "draw fewer"),
        (f"{IMAGES} --centre 7", "[0, 1]"),
        (IMAGES.replace("1e-3", "0.5"), "got 0.5, at which a whole record may be published"),
        ("generate photos --size 100000 --channels 3 --out run", "smaller size"),
        ("forecast --shape 100000,100000,3 --n 1000", "fewer numbers"),
        ("sample old -n 1000000000000", "draw fewer"),
        (f"{ACCOUNT} --sigma 0", "above 0"),
        (f"{IMAGES} --epsilon 10,0", "--epsilon to be a number such as 0.5, got '10,0'"),
        (f"{IMAGES} --size 28x28", "--size to be a whole number such as 32, got '28x28'"),
        (f"{IMAGES} --out people.csv", "got people.csv, a file"),
        # options that contradict each other
        ("sample old --labels 0 --proportions released", "leave --proportions out"),
        ("forecast photos --shape 8,8", "got DATA and --shape"),
        ("forecast --shape 28,28", "nor --n;"),
        ("forecast --shape 5 --n 500 --picture a.png", "Expected images for --picture"),
        ("forecast --shape 8,8 --n 500 --adapt --picture a.png", "no --picture with --adapt"),
        ("forecast --shape 5 --n 500 --adapt --class-sizes 500", "no --class-sizes with --adapt"),
        ("evaluate old photos --weights inception.pth", "Expected --fid with --weights"),
        ("publish old --reseal --out bundle", "got --out, too"),
        ("publish old --reseal --seed 0", "got --seed, too"),
        (f"{ACCOUNT} --sigma 1 --failure-prob 0.1", "--bound exact"),
        ("evaluate absent absent --classifiers lr", "Expected --classifiers to be one of logreg,"),
        ("evaluate absent absent --out seen", "seen/private_evaluation.json, which exists; choose"),
        # a mistyped class goes before the run directory, which exists
        ("generate photos --classes cast dogs --out old", '"cats" in place of "cast"'),
        ("generate photos --classes cats dogs --out old", "a directory without a run, got old"),
        # files of the wrong kind
        ("generate old/generator.pt", "by dpswd sample"),
        ("generate people.xlsx", "save the sheet as .csv"),
        ("evaluate old photos", "old/synthetic.npz"),
        ("evaluate photos old/synthetic.npz", "swap SYNTHETIC and TEST"),
        ("sample people.csv", "another kind or a damaged one"),
        ("verify old", "that dpswd publish has written"),
        ("report old", "without a complete line"),
        ("ledger show old/generator.pt", "pass the ledger.jsonl"),
        ("generate people.csv --bounds people.csv --target sick", "first line column,low,high"),
        ("generate rows.npy --classes 0 1 --radius 4", "one .npz"),
        (f"{IMAGES} --size 0", "Expected --size >= 4, got 0"),
        (f"{IMAGES} --config day.yaml", "Expected YAML in day.yaml"),
        # in the words of the command line
        ("demo --out old", "pass another one as --out."),
        ("ledger create new.jsonl --epsilon inf --delta 1e-5", "Expected --epsilon to be"),
        ("generate people.csv --target sick --classes no yes", "pass --bounds FILE, or --radius,"),
        (f"{TABLE} --shapes light", "Expected grey images for --shapes,"),
        (TABLE.replace("yes", "maybe"), "add it to --classes,"),
    ],
)
def test_a_mistake_is_one_sentence_and_changes_nothing(folder, capfd, arguments, words):
    Path("people.xlsx").write_bytes(b"PK")
    with untouched(folder):
        sentence = refused(capfd, *arguments.split())
    assert words in sentence
    assert "= (--" not in sentence


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("fit", "pass a shipped config"),
        (
            "fit --trainer.max_steps 3 --config mnist_swd",
            "options behind --config, got --trainer.max_steps before it",
        ),
        (
            "fit --trainer.max_steps=3 -c mnist_swd",
            "options behind --config, got --trainer.max_steps before it",
        ),
        ("fit --config mnist --data.path photos", "constants of dpswd generate"),
        ("fit --config adapt_digits", "constants of dpswd adapt; run that"),
        (
            "fit --config mnist_swd --data.path people.csv",
            "name the column of classes by --data.target;",
        ),
        (
            "fit --config mnist_swd --data.path photos --model.generator.n_classes 2 "
            "--trainer.accelerator cpu",
            "for images of a folder, pass --data.size 28 and --data.channels 1.",
        ),
    ],
)
def test_a_mistake_of_fit_changes_nothing(folder, capfd, arguments, words):
    with untouched(folder):
        sentence = refused(capfd, *arguments.split())
    assert words in sentence


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("generate digits --config adapt_digits", "adapt_digits, got a config of dpswd adapt"),
        ("adapt digits usps --config mnist", "mnist, got a config of dpswd generate"),
        ("adapt digits usps --config mnist_swd", "mnist_swd, got a config of dpswd fit"),
        ("forecast digits --config mnist_swd", "mnist_swd, got a config of dpswd fit"),
    ],
)
def test_a_config_of_another_command_is_named(folder, capfd, arguments, words):
    with untouched(folder):
        sentence = refused(capfd, *arguments.split())
    assert words in sentence


@pytest.mark.parametrize(
    "arguments",
    [
        "generate digits",
        "forecast digits",
        "evaluate rows.npz digits",
        "evaluate digits rows.npz",
        "adapt digits rows.npz",
        "adapt rows.npz digits",
        "attack digits rows.npz photos",
        "attack rows.npz digits photos",
        "attack rows.npz photos digits",
        f"predict {FIXTURES}/classifier.pt digits --out predicted.csv",
        "fit --config digits_fit.yaml",
    ],
)
def test_a_word_with_two_meanings_is_refused_by_every_command(folder, capfd, arguments):
    """A folder may hold private records, and must not be taken for a public benchmark."""
    labels = np.arange(24) % 2
    np.savez("rows.npz", images=np.random.default_rng(0).random((24, 8, 8)), labels=labels)
    shutil.copytree("photos", "digits")
    text = (ROOT / "tests" / "fit.yaml").read_text()
    Path("digits_fit.yaml").write_text(text)
    arguments = arguments.replace("digits_fit.yaml", "digits_fit.yaml --data.path digits")
    with untouched(folder):
        sentence = refused(capfd, *arguments.split())
    assert "one meaning of digits" in sentence
    assert "write benchmark:digits for the benchmark, or ./digits for the path" in sentence


def test_a_benchmark_beside_a_folder_of_its_name(folder, capfd):
    shutil.copytree("photos", "digits")
    answer(capfd, *"generate benchmark:digits -n 20".split())
    assert Path("runs/digits/synthetic.npz").is_file()
    test = "runs/digits/synthetic.npz benchmark:digits --classifiers logreg"
    assert answer(capfd, "evaluate", *test.split())["public"]


def test_facts_taken_are_named_by_options(folder, capfd):
    refused(capfd, *f"{TABLE} --radius 3".split())
    main(f"{TABLE} --radius 3".split())
    assert "pass --bounds FILE with a column kind to state them" in capfd.readouterr().err


def test_the_largest_epsilon_can_be_reported(folder, capfd):
    result = answer(capfd, *f"{IMAGES} --classes cats dogs -n 2 --epsilon 450000".split())
    assert result["guarantee"]["epsilon"] <= 450_000
    assert Path("run/report.html").is_file()


def test_test_records_of_one_class_are_evaluated(folder, capfd):
    images = np.random.default_rng(0).random((40, 8, 8))
    np.savez("more.npz", X=images, y=np.repeat(["cats", "dogs"], 20))
    shutil.rmtree("photos/dogs")
    result = answer(capfd, *"evaluate more.npz photos --classifiers logreg".split())
    assert result["rows"]


def test_adapt_counts_in_a_shared_ledger(folder, capfd):
    answer(capfd, *"ledger create shared.jsonl --epsilon 1 --delta 1e-3".split())
    capfd.readouterr()
    rows = np.random.default_rng(0).normal(size=(200, 3))
    for name in ("public", "private"):
        np.savez(f"{name}.npz", X=rows, y=np.arange(200) % 2)
    with untouched(folder):
        command = "adapt public.npz private.npz --delta 1e-3 --shared-ledger shared.jsonl --out run"
        sentence = refused(capfd, *command.split(), status=1)
    assert "use a smaller --epsilon" in sentence
