"""``dpswd adapt`` and ``dpswd predict``: what a user without Python meets."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from factories import answer, refused, untouched, write_images

from dpswd import PrivateAdapter
from dpswd.commands._options import FINISHED_BEFORE
from dpswd.commands.main import main
from dpswd.errors import InputError
from dpswd.lightning.adaptation_data import AdaptationData

DIM = 6


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Source and target files, and the directory of a run."""
    path = tmp_path_factory.mktemp("adapt")
    rng = np.random.default_rng(0)
    for name, n, move in (("source", 150, 0.0), ("target", 600, 2.0)):
        y = rng.integers(0, 3, n)
        X = 4 * np.eye(3, DIM)[y] + 0.6 * rng.normal(size=(n, DIM))
        X[:, :2] += move
        np.savez(path / f"{name}.npz", features=X, labels=y, classes=np.array(["a", "b", "c"]))
        np.savetxt(
            path / f"{name}.csv",
            np.c_[X, y],
            delimiter=",",
            header="p,q,r,s,t,u,class",
            comments="",
        )
        np.savez(path / f"{name}_bare.npz", features=X)
    assert (
        main(
            [
                "adapt",
                str(path / "source.npz"),
                str(path / "target_bare.npz"),
                "--out",
                str(path / "run"),
            ]
        )
        == 0
    )
    return path


@pytest.fixture
def folder(made, monkeypatch):
    monkeypatch.chdir(made)
    return made


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("source.npz", "source.npz"),
        ("source.npz", "./link/source.npz"),
        ("images", "images"),
        ("images", "images/ward"),
        ("images/ward", "images"),
    ],
)
def test_private_records_are_no_public_source(folder, capfd, tmp_path, monkeypatch, source, target):
    """A classifier is trained on the source without noise."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(folder / "source.npz", "source.npz")
    Path("link").symlink_to(tmp_path, target_is_directory=True)
    pixels = np.arange(64).reshape(8, 8)
    names = [f"images/ward/{name}/{number}.png" for name in "ab" for number in range(3)]
    write_images(tmp_path, dict.fromkeys(names, pixels))
    before = sorted(path.name for path in tmp_path.iterdir())
    assert "without noise" in refused(capfd, "adapt", source, target)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    with pytest.raises(InputError, match="records in common"):
        AdaptationData(source, target)


BARE = ("source.npz", "target_bare.npz")
CLASSIFIER = "run/classifier.pt"


def test_columns_of_tables_are_matched_by_name(folder, capfd):
    answer(capfd, "adapt", "source.csv", "target.csv", "--target", "class", "--out", "by_name")
    lines = [line.split(",") for line in (folder / "target.csv").read_text().splitlines()]
    reordered = [",".join(reversed(line)) for line in lines]
    (folder / "reordered.csv").write_text("\n".join(reordered))
    renamed = (folder / "target.csv").read_text().replace("p,q", "income,q", 1)
    (folder / "renamed.csv").write_text(renamed)
    counts = [
        answer(
            capfd,
            "predict",
            "by_name/classifier.pt",
            name,
            "--target",
            "class",
            "--out",
            f"of_{name}",
        )["counts"]
        for name in ("target.csv", "reordered.csv")
    ]
    assert counts[0] == counts[1]
    predictions = [(folder / f"of_{name}.csv").read_bytes() for name in ("target", "reordered")]
    assert predictions[0] == predictions[1]
    words = ("renamed.csv", "--target", "class", "--out", "x.csv")
    for command in (("predict", "by_name/classifier.pt"), ("adapt", "source.csv")):
        said = refused(capfd, *command, *words)
        assert "Expected the columns p, q, r, s, t, u in renamed.csv, got income" in said


def test_a_column_of_persons_is_left_out(folder, capfd):
    answer(capfd, "adapt", "source.csv", "target.csv", "--target", "class", "--out", "persons")
    header, *lines = (folder / "target.csv").read_text().splitlines()
    named = [f"patient,{header}", *(f"p{i},{line}" for i, line in enumerate(lines))]
    (folder / "named.csv").write_text("\n".join(named))
    words = ("predict", "persons/classifier.pt", "named.csv", "--target", "class", "--out", "p.csv")
    assert "column of persons by --unit" in refused(capfd, *words)
    assert answer(capfd, *words, "--unit", "patient")["n_records"] == len(lines)


def test_adapt_writes_classifier_and_report(folder, capfd):
    written = {each.name for each in (folder / "run").iterdir()}
    assert written >= {
        "classifier.pt",
        "report.html",
        "ledger.jsonl",
        "privacy.json",
        "config.yaml",
    }
    loaded = PrivateAdapter.load(CLASSIFIER)
    assert loaded.adapted_
    with np.load("target.npz") as target:
        assert loaded.score(target["features"], np.array(["a", "b", "c"])[target["labels"]]) > 0.95
    assert "--out" in refused(capfd, "adapt", *BARE, "--out", "run")
    assert main(["adapt", *BARE, "--out", "run", "--resume"]) == 0  # spends nothing
    out = capfd.readouterr().out
    assert FINISHED_BEFORE in out
    assert "Files: " in out
    assert "Next: dpswd predict" in out


def test_a_classifier_of_an_interrupted_run_is_missing(folder, capfd):
    Path("started").mkdir()
    shutil.copy("run/config.yaml", "started")
    for command in ("predict started source.npz", "publish started --out bundle"):
        message = refused(capfd, *command.split())
        assert "got one without classifier.pt; to finish the run" in message
        assert "dpswd adapt ... --resume" in message


def test_evaluate_compares_a_classifier_with_labelled_records(folder, capfd):
    figures = answer(capfd, "evaluate", CLASSIFIER, "target.npz", "--out", "private/accuracy")
    adapter = PrivateAdapter.load(CLASSIFIER)
    with np.load("target.npz") as target:
        labels = np.array(["a", "b", "c"])[target["labels"]]
        is_right = adapter.predict(target["features"]) == labels
    recalls = {name: 100 * is_right[labels == name].mean() for name in "abc"}
    assert figures["accuracy"] == pytest.approx(100 * is_right.mean(), abs=0.01)
    assert figures["accuracy_of_class"] == pytest.approx(recalls, abs=0.01)
    assert figures["balanced_accuracy"] == pytest.approx(np.mean(list(recalls.values())), abs=0.01)
    assert sum(figures["count_of_class"].values()) == figures["n_test"] == len(labels)
    assert (folder / "private/accuracy/private_accuracy.json").is_file()


def test_evaluate_matches_classes_by_their_names(folder, capfd):
    """The same records have the same accuracy with classes in another order, and for one class."""
    with np.load("target.npz") as target:
        features = target["features"]
        labels = target["labels"]
    np.savez("turned.npz", features=features, labels=2 - labels, classes=np.array(["c", "b", "a"]))
    np.savez("only_b.npz", features=features[labels == 1], labels=["b"] * int((labels == 1).sum()))
    figures = answer(capfd, "evaluate", "run", "target.npz", "--out", "private/as_they_are")
    turned = answer(capfd, "evaluate", "run", "turned.npz", "--out", "private/turned")
    assert turned["accuracy_of_class"] == figures["accuracy_of_class"]
    only = answer(capfd, "evaluate", "run", "only_b.npz", "--out", "private/only")
    assert only["accuracy"] == figures["accuracy_of_class"]["b"]


def test_evaluate_refuses_what_does_not_fit_a_classifier(folder, capfd):
    np.savez("others.npz", features=np.zeros((4, DIM)), labels=["x", "y", "x", "y"])
    with untouched(folder):
        words = ("evaluate", CLASSIFIER)
        said = refused(capfd, *words, "target.npz", "--out", "out", "--classifiers", "cnn")
        assert "--classifiers" in said
        assert "classes a, b, c, got x, y" in refused(capfd, *words, "others.npz", "--out", "out")
        said = refused(capfd, *words, "target_bare.npz", "--out", "out")
        assert "dpswd predict" in said
        assert "run" in refused(capfd, *words, "target.npz", "--out", "run")


def test_json_and_options_of_a_config(folder, tmp_path, capfd):
    (tmp_path / "mine.yaml").write_text("epsilon: 5\nnormalise: true\nmin_shift: 1000\n")
    options = [
        "--target",
        "class",
        "--config",
        tmp_path / "mine.yaml",
        "--epsilon",
        "8",
        "--out",
        tmp_path / "run",
    ]
    facts = answer(capfd, "adapt", "source.csv", "target.csv", *options)
    assert 7.9 < facts["guarantee"]["epsilon"] <= 8
    assert not facts["adapted"]
    assert (facts["n_source"], facts["n_target"]) == (150, 600)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("source.npz target_bare.npz --method image_map", "images"),
        ("source_bare.npz target_bare.npz", "classes"),
        ("source.npz nothing.npz", "nothing"),
        ("source.npz target.csv", "shape"),
        ("source.npz target_bare.npz --config other.yaml", "other"),
        ("no such --epsilon -1", "epsilon"),
    ],
)
def test_adapt_refuses_before_anything_is_written(folder, capfd, words, said):
    with untouched(folder):
        assert said in refused(capfd, "adapt", *words.split(), "--out", "other")


@pytest.mark.parametrize("option", ["n_steps: 5", "shift: 1.0", "elastic: 0.5"])
@pytest.mark.parametrize("words", [[], ["--method", "class_shift"]])
def test_options_of_the_image_map_are_refused_without_it(folder, capfd, tmp_path, option, words):
    config = tmp_path / "mine.yaml"
    config.write_text(option)
    command = ["adapt", "source.npz", "target_bare.npz", "--config", config, "--out", "other"]
    with untouched(folder):
        line = refused(capfd, *command, *words)
    assert f"no {option.split(':')[0]} in {config} with the method class_shift" in line


def test_predict(folder, tmp_path, capfd):
    loaded = PrivateAdapter.load(CLASSIFIER)
    with np.load("target.npz") as target:
        expected = loaded.predict(target["features"].astype(np.float32))
    out = tmp_path / "predictions.npz"
    facts = answer(capfd, "predict", CLASSIFIER, "target_bare.npz", "--out", out)
    with np.load(out) as written:
        np.testing.assert_array_equal(written["predictions"], expected)
        assert list(written["classes"]) == ["a", "b", "c"]
    assert facts["guarantee"] == loaded.guarantee_.to_dict()
    assert sum(facts["counts"].values()) == 600
    table = tmp_path / "predictions.csv"
    assert main(["predict", CLASSIFIER, "target_bare.npz", "--out", str(table)]) == 0
    assert table.read_text().splitlines()[1:] == expected.tolist()
    said = capfd.readouterr().out
    assert "600 predictions" in said
    assert "the counts above, are statistics without noise" in said


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"features": np.zeros((2, DIM + 1))}, "shape"),
        ({"features": np.full((2, DIM), np.nan)}, "--unreadable zero"),
        ({"other": np.zeros((2, DIM))}, "features"),
    ],
)
def test_predict_refuses_other_records(folder, tmp_path, capfd, arrays, said):
    np.savez(tmp_path / "new.npz", **arrays)
    torch.save({"format": 1}, tmp_path / "classifier.pt")
    with untouched(folder):
        assert said in refused(capfd, "predict", CLASSIFIER, tmp_path / "new.npz")
        assert "classifier" in refused(capfd, "predict", tmp_path / "classifier.pt", "target.npz")


def test_unreadable_records_may_be_read_as_zeros(folder, tmp_path, capfd):
    """Issue 31: only generate once knew the option."""
    with np.load("target.npz") as target:
        records = target["features"].astype(np.float32)
    records[0] = 0
    expected = PrivateAdapter.load(CLASSIFIER).predict(records)
    records[0] = np.nan
    new, out = tmp_path / "new.npz", tmp_path / "predictions.npz"
    np.savez(new, features=records)
    zero = ("--unreadable", "zero", "--out")
    answer(capfd, "predict", CLASSIFIER, new, *zero, out)
    with np.load(out) as written:
        np.testing.assert_array_equal(written["predictions"], expected)
    answer(capfd, "adapt", "source.npz", new, *zero, tmp_path / "run")
    answer(capfd, "evaluate", new, new, *zero, tmp_path)


def test_folders_of_images(tmp_path, monkeypatch, capfd):
    """Size and channels of the private images are those of the source,
    and never taken from them.
    """
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for domain, side in (("source", 12), ("target", 16)):
        for i in range(80):
            image = rng.integers(0, 50, (side, side, 3)).astype(np.uint8)
            image[:, : side // 2] += np.uint8(150 * (i % 2))
            name = f"{domain}/{'left' if i % 2 else 'none'}/{i}.png"
            write_images(tmp_path, {name: image if domain == "source" else image[..., 0]})
    words = "adapt source target --channels 1 --epsilon 50 --delta 1e-3 --out run"
    assert main(words.split()) == 0
    err = capfd.readouterr().err
    assert "taken" not in "".join(line for line in err.splitlines() if "target" in line)
    assert "Matching 80 source records" in err
    assert (tmp_path / "run" / "adaptation.png").exists()
    answer(capfd, "predict", CLASSIFIER, "target", "--out", "predictions.csv")
    header, *lines = csv.reader((tmp_path / "predictions.csv").read_text().splitlines())
    assert header == ["file", "prediction"]
    assert {line[1] for line in lines} <= {"left", "none"}
    target = tmp_path / "target"
    assert [line[0] for line in lines] == sorted(
        path.relative_to(target).as_posix() for path in target.rglob("*.png")
    )
    figures = answer(capfd, "evaluate", CLASSIFIER, "target", "--out", "private/accuracy")
    is_right = [line[1] == line[0].partition("/")[0] for line in lines]
    assert figures["accuracy"] == pytest.approx(100 * np.mean(is_right), abs=0.01)
