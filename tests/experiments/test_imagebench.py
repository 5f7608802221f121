"""DPImageBench's protocol: splits, faces, cells, rows."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dpswd import InputError
from dpswd.data import benchmark
from experiments.generation import imagebench
from experiments.generation.imagebench import Task, faces, run, summarise


def test_split_is_that_of_random_split_after_seed_0():
    torch.manual_seed(0)
    expected, _ = torch.utils.data.random_split(range(1438), [1000, 438])
    found = Task(Path(), (), 1000).records("digits", None)
    assert torch.equal(found.train.labels, benchmark("digits").train.labels[expected.indices])
    assert len(found.test) == 359


def test_faces_have_the_attributes_of_their_names(tmp_path):
    (tmp_path / "celeba64").mkdir()
    names = [f"{i:06}.jpg" for i in range(1, 11)]
    for i, name in enumerate(names):
        Image.new("RGB", (64, 64), (20 * i, 0, 0)).save(tmp_path / "celeba64" / name)
    lines = [f"{name}  1 {1 if i % 3 else -1} -1" for i, name in enumerate(names)]
    (tmp_path / "celeba64_attr.txt").write_text("\n".join(["10", "Bald Male Young", *lines[::-1]]) + "\n")
    train = faces(tmp_path).train
    assert train.values.shape == (8, 3, 32, 32)
    red = (train.values[:, 0].double().mean((1, 2)) / 20).round().long()
    assert red.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(train.labels, (red % 3 > 0).long())


def test_best_and_mean_are_over_networks_of_one_seed():
    facts = {"dataset": "MNIST", "method": "mixture", "epsilon": 10.0, "n_train": 9, "delta": 1e-5, "mu": 2.0}
    facts |= {"sound": True, "train_seconds": 1.0}
    scores = [{"logreg": 99.0, "mlp": 60.0, "cnn": 70.0, "larger_cnn": 80.0}, {"logreg": 99.0, "mlp": 90.0}]
    scores[1] |= {"cnn": 30.0, "larger_cnn": 60.0}
    results = [{**facts, "accuracy": found, "fidelity": {"recall": 0.25 * seed}} for seed, found in enumerate(scores)]
    rows, (measured,) = summarise(results)
    found = {row["classifier"]: row["mean"] for row in rows}
    assert found["best"] == 85.0  # of 80 and 90
    assert found["mean"] == 65.0  # of 70 and 60
    assert measured["recall"] == 0.125


@pytest.mark.filterwarnings("ignore")
def test_quick_run_resumes_and_filters(tmp_path, monkeypatch):
    monkeypatch.setattr(imagebench, "N_QUICK", 400)
    first = run(tmp_path, quick=True, only="mixture", epsilon=10.0, workers=0)
    assert {row["epsilon"] for row in first["rows"]} == {10.0}
    assert not (tmp_path / "imagebench.png").exists()  # wants both budgets
    result = run(tmp_path, quick=True, workers=0)
    assert {(row["method"], row["epsilon"]) for row in result["fidelity"]} == {
        ("real records", None),
        ("one-shot mixture", 10.0),
        ("one-shot mixture", 1.0),
    }
    real, private = ([row for row in result["rows"] if row["epsilon"] == epsilon] for epsilon in (None, 10.0))
    assert [row["classifier"] for row in private] == ["logreg", "mlp", "cnn", "larger_cnn", "best", "mean"]
    assert all(row["mean"] > 85 for row in real)
    assert all(row["sound"] and row["mu"] > 0 for row in private)
    assert private[0]["delta"] == pytest.approx(1 / (1438 * np.log(1438)))
    assert first["rows"] == private
    assert (tmp_path / "imagebench.png").exists()
    monkeypatch.setattr(imagebench, "evaluate_cell", lambda *_, **__: pytest.fail("a finished cell was run again"))
    again = run(tmp_path, quick=True, dataset="digits", workers=0)
    assert json.dumps(again) == json.dumps(result)
    with pytest.raises(InputError, match="filter"):
        run(tmp_path, quick=True, dataset="MNIST", workers=0)
