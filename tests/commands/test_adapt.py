"""``dpswd adapt`` and ``dpswd predict``: what a user without Python meets."""

import csv
import json

import numpy as np
import pytest
import torch
from PIL import Image

from dpswd import PrivateAdapter
from dpswd.commands.main import main

DIM = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Source and target files, and the directory of a run."""
    path = tmp_path_factory.mktemp("adapt")
    rng = np.random.default_rng(0)
    for name, n, move in (("source", 150, 0.0), ("target", 600, 2.0)):
        y = rng.integers(0, 3, n)
        X = 4 * np.eye(3, DIM)[y] + 0.6 * rng.normal(size=(n, DIM))
        X[:, :2] += move
        np.savez(path / f"{name}.npz", features=X, labels=y, classes=np.array(["a", "b", "c"]))
        np.savetxt(path / f"{name}.csv", np.c_[X, y], delimiter=",", header="p,q,r,s,t,u,class", comments="")
        np.savez(path / f"{name}_bare.npz", features=X)
    assert main(["adapt", *_files(path), "--out", str(path / "run")]) == 0
    return path


def _files(path, source="source.npz", target="target_bare.npz"):
    return [str(path / source), str(path / target)]


def test_adapt_writes_classifier_and_report(folder, capsys):
    written = {each.name for each in (folder / "run").iterdir()}
    assert written >= {"classifier.pt", "report.html", "ledger.jsonl", "privacy.json", "config.yaml"}
    loaded = PrivateAdapter.load(folder / "run" / "classifier.pt")
    assert loaded.adapted_
    with np.load(folder / "target.npz") as target:
        assert loaded.score(target["features"], np.array(["a", "b", "c"])[target["labels"]]) > 0.95
    assert main(["adapt", *_files(folder), "--out", str(folder / "run")]) == 2
    assert "--out" in capsys.readouterr().err
    assert main(["adapt", *_files(folder), "--out", str(folder / "run"), "--resume"]) == 0  # spends nothing
    out = capsys.readouterr().out
    assert "Files: " in out
    assert "Next: dpswd predict" in out


def test_the_command_and_the_estimator_plan_the_same_releases(folder, tmp_path):
    with np.load(folder / "source.npz") as source, np.load(folder / "target.npz") as target:
        X, y = np.r_[source["features"], target["features"]], np.r_[source["labels"], target["labels"]]
    domain = np.repeat([1, -1], [150, 600])
    PrivateAdapter(run_dir=tmp_path / "run", verbose=False).fit(X, y, domain)
    plans = [json.loads((each / "run/ledger.jsonl").read_text().splitlines()[0])["plan"] for each in (folder, tmp_path)]
    assert plans[0] == plans[1]


def test_json_and_options_of_a_config(folder, tmp_path, capsys):
    (tmp_path / "mine.yaml").write_text("epsilon: 5\nnormalise: true\nmin_shift: 1000\n")
    options = ["--config", str(tmp_path / "mine.yaml"), "--epsilon", "8", "--out", str(tmp_path / "run"), "--json"]
    assert main(["adapt", *_files(folder, "source.csv", "target.csv"), "--target", "class", *options]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert 7.9 < facts["guarantee"]["epsilon"] <= 8
    assert not facts["adapted"]
    assert (facts["n_source"], facts["n_target"]) == (150, 600)


@pytest.mark.parametrize(
    ("source", "target", "options", "word"),
    [
        ("source.npz", "target_bare.npz", ["--method", "image_map"], "images"),
        ("source_bare.npz", "target_bare.npz", [], "classes"),
        ("source.npz", "nothing.npz", [], "nothing"),
        ("source.npz", "target.csv", [], "shape"),
        ("source.npz", "target_bare.npz", ["--config", "other.yaml"], "other"),
        ("source.npz", "target_bare.npz", ["--epsilon", "-1"], "epsilon"),
    ],
)
def test_adapt_refuses_before_anything_is_written(folder, tmp_path, capsys, source, target, options, word):
    assert main(["adapt", *_files(folder, source, target), *options, "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert word in error.splitlines()[-1]
    assert not (tmp_path / "run").exists()


def test_predict(folder, tmp_path, capsys):
    classifier = str(folder / "run" / "classifier.pt")
    loaded = PrivateAdapter.load(classifier)
    with np.load(folder / "target.npz") as target:
        expected = loaded.predict(target["features"].astype(np.float32))
    out = tmp_path / "predictions.npz"
    assert main(["predict", classifier, str(folder / "target_bare.npz"), "--out", str(out), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    with np.load(out) as written:
        np.testing.assert_array_equal(written["predictions"], expected)
        assert list(written["classes"]) == ["a", "b", "c"]
    assert facts["guarantee"] == loaded.guarantee_
    assert sum(facts["counts"].values()) == 600
    table = tmp_path / "predictions.csv"
    assert main(["predict", classifier, str(folder / "target_bare.npz"), "--out", str(table)]) == 0
    assert table.read_text().splitlines()[1:] == expected.tolist()
    assert "600 predictions" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arrays", "word"),
    [
        ({"features": np.zeros((2, DIM + 1))}, "shape"),
        ({"features": np.full((2, DIM), np.nan)}, "--unreadable zero"),
        ({"features": np.array([["a"] * DIM])}, "numbers"),
        ({"other": np.zeros((2, DIM))}, "features"),
        (None, "npz"),
    ],
)
def test_predict_refuses_other_records(folder, tmp_path, capsys, arrays, word):
    path, out = tmp_path / "new.npz", tmp_path / "predictions.npz"
    path.write_bytes(b"nothing") if arrays is None else np.savez(path, **arrays)
    assert main(["predict", str(folder / "run/classifier.pt"), str(path), "--out", str(out)]) == 2
    assert word in capsys.readouterr().err
    torch.save({"format": 1}, tmp_path / "classifier.pt")
    assert main(["predict", str(tmp_path / "classifier.pt"), str(folder / "target.npz"), "--out", str(out)]) == 2
    assert "classifier" in capsys.readouterr().err
    assert not out.exists()


def test_unreadable_records_may_be_read_as_zeros(folder, tmp_path):
    """Issue 31: only generate once knew the option."""
    with np.load(folder / "target.npz") as target:
        records = target["features"].astype(np.float32)
    records[0] = 0
    expected = PrivateAdapter.load(folder / "run/classifier.pt").predict(records)
    records[0] = np.nan
    np.savez(tmp_path / "new.npz", features=records)
    words, out = ("--unreadable", "zero", "--out"), tmp_path / "predictions.npz"
    assert main(["predict", str(folder / "run/classifier.pt"), str(tmp_path / "new.npz"), *words, str(out)]) == 0
    with np.load(out) as written:
        np.testing.assert_array_equal(written["predictions"], expected)
    assert main(["adapt", *_files(folder, target=tmp_path / "new.npz"), *words, str(tmp_path / "run")]) == 0
    evaluated = main(["evaluate", str(tmp_path / "new.npz"), str(tmp_path / "new.npz"), *words, str(tmp_path)])
    assert evaluated == 0


def test_folders_of_images(tmp_path, capsys):
    """Size and channels of the private images are those of the source, and never taken from them."""
    rng = np.random.default_rng(0)
    for domain, side in (("source", 12), ("target", 16)):
        for i in range(80):
            image = rng.integers(0, 50, (side, side, 3)).astype(np.uint8)
            image[:, : side // 2] += np.uint8(150 * (i % 2))
            path = tmp_path / domain / ("left" if i % 2 else "none") / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image if domain == "source" else image[..., 0]).save(path)
    options = ["--channels", "1", "--epsilon", "50", "--delta", "1e-3", "--out", str(tmp_path / "run")]
    assert main(["adapt", str(tmp_path / "source"), str(tmp_path / "target"), *options]) == 0
    assert "taken" not in "".join(line for line in capsys.readouterr().err.splitlines() if "target" in line)
    out = tmp_path / "predictions.csv"
    assert main(["predict", str(tmp_path / "run/classifier.pt"), str(tmp_path / "target"), "--out", str(out)]) == 0
    header, *lines = csv.reader(out.read_text().splitlines())
    assert header == ["file", "prediction"]
    assert {line[1] for line in lines} <= {"left", "none"}
    assert [line[0] for line in lines] == sorted(
        path.relative_to(tmp_path / "target").as_posix() for path in (tmp_path / "target").rglob("*.png")
    )
