"""Generation experiments on tiny settings: cells, rows, and what their measures are."""

import json
import math
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.model_selection import train_test_split

from dpswd import InputError
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.data import Benchmark, benchmark
from dpswd.estimators.generator import PrivateGenerator
from dpswd.evaluation.images import random_convolutions
from dpswd.mixture.forecast import forecast
from dpswd.records import Records
from experiments import cells
from experiments.generation import (
    fig6_published,
    generation_ablation,
    imagebench,
    networks,
    own_network,
    readme_picture,
    simulated_choice,
    slices,
    stand_ins,
    tables_adult,
)
from experiments.generation import forecast as forecasts
from experiments.generation.frechet import fidelity
from experiments.generation.generation_ablation import Part
from experiments.generation.imagebench import summarise, summarise_fidelity
from experiments.generation.training import UNLIMITED_MU


def run_again(*arguments, **options):
    """Stands in for the work of a cell that has a result."""
    pytest.fail("a finished cell was run again")


@pytest.fixture
def faces(tmp_path):
    """A data directory with 25 random pictures of 64 x 64: 20 private ones and 5 for testing."""
    rng = np.random.default_rng(0)
    (tmp_path / "celeba64").mkdir()
    for i in range(25):
        pixels = rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "celeba64" / f"{i:02}.png")
    return tmp_path


@pytest.mark.filterwarnings("ignore:NOT PRIVATE")
def test_published_algorithm_on_faces(faces, tmp_path, monkeypatch):
    monkeypatch.setattr(fig6_published, "SHORT_STEPS", 2)
    run = partial(fig6_published.fig6_published, tmp_path / "out", data=faces)
    (row,) = run(only="DP-SWD-c")["rows"]
    assert (row["sigma"], row["sound"], row["sample_size"], row["steps"]) == (0.37, False, 20, 2)
    assert row["frechet"] > 0
    assert (tmp_path / "out" / "fig6_published.png").exists()
    (from_checkpoint,) = run(only="DP-SWD-c")["rows"]
    del row["train_seconds"], from_checkpoint["train_seconds"]
    assert from_checkpoint == row
    with pytest.raises(InputError, match="--only"):
        run(only="ours")


FOLDERS = {
    "MNIST": "MNIST",
    "FashionMNIST": "FashionMNIST",
    "USPS": "USPS",
    "CIFAR10": "cifar10_images",
}
SLOW = [pytest.param(name, 10.0, marks=pytest.mark.slow) for name in FOLDERS]


@pytest.mark.parametrize(("dataset", "epsilon"), [("digits", 10.0), ("digits", 1.0), *SLOW])
def test_forecast_is_within_a_factor_of_two(dataset, epsilon):
    root = Path(os.environ.get("DPSWD_DATA") or "data")
    if dataset != "digits" and not (root / FOLDERS[dataset]).is_dir():
        pytest.skip(f"no {dataset} below {root}")
    for row in forecasts.measure(dataset, epsilon, root):
        assert 0.5 <= row["realised"] / row["forecast"] <= 2, row


def test_records_without_classes_are_not_as_forecast():
    records = benchmark("digits").train
    structure = forecast(len(records), (1, 8, 8), 10, 2.0)
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(0))
    shuffled = Records(records.values, records.labels[order])
    ratios = forecasts.realised(shuffled, structure, 2.0)
    assert ratios["means"] < 0.5 * structure.signal_to_noise["means"]


def test_public_features_put_noise_farther_away_than_other_digits():
    digits = benchmark("digits")
    real, other = digits.train.floats(), digits.test.floats()
    assert random_convolutions(other).shape == (359, 256)
    near = fidelity(real, other)
    far = fidelity(real, torch.rand(other.shape, generator=torch.Generator().manual_seed(0)))
    assert 0 < near["frechet"] < far["frechet"] / 10
    assert near["precision"] > 0.7 > 0.1 > far["precision"]
    assert near["recall"] > 0.7 > 0.1 > far["recall"]


@pytest.mark.parametrize("epsilon", [10.0, None])
def test_a_changed_run_is_sound_or_has_no_guarantee(monkeypatch, epsilon):
    monkeypatch.setattr(generation_ablation, "N_SYNTHETIC", 400)
    generators = []

    def draw(generator, labels):
        generators.append(generator)
        return torch.rand(len(labels), 1, 8, 8)

    monkeypatch.setattr(generation_ablation, "draw", draw)
    part = Part("one cell per class", ("digits",), limits=(("max_cells", 1),), epsilon=epsilon)
    row = generation_ablation.evaluate(generation_ablation.Cell("digits", part, 0), None)
    if epsilon is None:
        assert row["sound"] is None
        assert row["mu"] is None
    else:
        assert row["sound"] is True
        assert row["mu"] > 0
    assert generators[0].structure.n_cells == 1
    assert forecast(1438, (1, 8, 8), 10, 3 * UNLIMITED_MU).n_cells > 1  # control
    assert row["accuracy"]["cnn"] > row["frechet"] > 0


def test_faces_have_the_attributes_of_their_names(tmp_path):
    (tmp_path / "celeba64").mkdir()
    names = [f"{i:06}.jpg" for i in range(1, 11)]
    for i, name in enumerate(names):
        Image.new("RGB", (64, 64), (20 * i, 0, 0)).save(tmp_path / "celeba64" / name)
    lines = [f"{name}  1 {1 if i % 3 else -1} -1" for i, name in enumerate(names)]
    (tmp_path / "celeba64_attr.txt").write_text(
        "\n".join(["10", "Bald Male Young", *lines[::-1]]) + "\n"
    )
    train = imagebench.faces(tmp_path).train
    assert train.values.shape == (8, 3, 32, 32)
    red = (train.values[:, 0].double().mean((1, 2)) / 20).round().long()
    assert red.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert torch.equal(train.labels, (red % 3 > 0).long())


def test_best_and_mean_are_over_networks_of_one_seed():
    setting = {
        "dataset": "MNIST",
        "method": "mixture",
        "epsilon": 10.0,
        "n_train": 9,
        "delta": 1e-5,
        "mu": 2.0,
        "sound": True,
        "train_seconds": 1.0,
    }
    accuracies = [
        {"logreg": 99.0, "mlp": 60.0, "cnn": 70.0, "larger_cnn": 80.0},
        {"logreg": 99.0, "mlp": 90.0, "cnn": 30.0, "larger_cnn": 60.0},
    ]
    results = []
    for seed, accuracy in enumerate(accuracies):
        results.append(setting | {"accuracy": accuracy, "fidelity": {"recall": 0.25 * seed}})
    means = {row["classifier"]: row["mean"] for row in summarise(results)}
    assert means["best"] == 85.0  # of 80 and 90
    assert means["mean"] == 65.0  # of 70 and 60
    (row,) = summarise_fidelity(results)
    assert row["recall"] == 0.125


@pytest.mark.filterwarnings("ignore")
def test_quick_run_resumes(tmp_path, monkeypatch):
    small = replace(imagebench.TASKS["digits"], n_synthetic=400)
    monkeypatch.setitem(imagebench.TASKS, "digits", small)
    monkeypatch.setattr(cells, "run_cells", partial(cells.run_cells, workers=0))
    result = imagebench.run(tmp_path, quick=True)
    assert {(row["method"], row["epsilon"]) for row in result["fidelity"]} == {
        ("real records", None),
        ("one-shot mixture", 10.0),
        ("one-shot mixture", 1.0),
    }
    real = [row for row in result["rows"] if row["epsilon"] is None]
    private = [row for row in result["rows"] if row["epsilon"] == 10.0]
    classifiers = ["logreg", "mlp", "cnn", "larger_cnn", "best", "mean"]
    assert [row["classifier"] for row in private] == classifiers
    assert all(row["mean"] > 85 for row in real)
    assert all(row["sound"] and row["mu"] > 0 for row in private)
    assert private[0]["delta"] == pytest.approx(1 / (1438 * np.log(1438)))
    assert (tmp_path / "imagebench.png").exists()
    monkeypatch.setattr(imagebench, "evaluate_cell", run_again)
    assert json.dumps(imagebench.run(tmp_path, quick=True)) == json.dumps(result)


@pytest.fixture
def tiny(monkeypatch):
    """Networks of 8 x 8 pixels, trained for two steps."""
    network = {"sample_shape": (1, 8, 8), "hidden": 16, "width": 4, "jitter": {"shift": 0.2}}
    chosen = {"steps": 2, "batch": 40, "lr": 1e-3}
    monkeypatch.setattr(networks, "settings", lambda dataset: chosen | {"network": dict(network)})
    return network


def test_cells_of_digits(tmp_path, monkeypatch, tiny):
    monkeypatch.setattr(networks, "N_SYNTHETIC", 100)
    monkeypatch.setattr(networks, "DATASETS", {"digits": "digits"})
    monkeypatch.setattr(networks, "PRINTED", ())
    planned = [networks.Cell("digits", 10.0, seed) for seed in range(2)]
    monkeypatch.setattr(networks, "plan", lambda: planned)
    for method, steps in (("start", 0), ("maps", 2)):
        control = networks.Cell("digits", 10.0, 0, method)
        assert networks.run_cell(control, tmp_path, None)["steps"] == steps
    rows = networks.run(tmp_path)["rows"]
    keys = [(row["classifier"], row["seeds"]) for row in rows]
    assert keys == [("logreg", 2), ("mlp", 2), ("cnn", 2)]
    for row in rows:
        assert row["sound"]
        assert row["method"].startswith(("DP-SWD", "moment matching"))
        assert row["cpu_seconds"] >= 0
    names = {path.name for path in (tmp_path / "networks" / "runs" / "digits-10-0").iterdir()}
    of_run = {"ledger.jsonl", "privacy.json", "report.html"}
    of_network = {"moments.pt", "generator.pt", "samples.png"}
    assert of_run | of_network <= names
    monkeypatch.setattr(networks, "run_cell", run_again)
    assert networks.run(tmp_path)["rows"] == rows


def test_cells_of_slices(tmp_path, monkeypatch):
    network = {"sample_shape": (1, 8, 8), "size": 6, "hidden": 16, "jitter": {"shift": 0.2}}
    chosen = {"steps": 2, "generated": 40, "lr": 1e-3, "network": network}
    monkeypatch.setattr(slices, "settings", lambda dataset: chosen)
    monkeypatch.setattr(slices, "N_SYNTHETIC", 100)
    monkeypatch.setattr(slices, "DATASETS", {"digits": "digits"})
    monkeypatch.setattr(slices, "BUDGETS", (10.0,))
    monkeypatch.setattr(slices, "OF_PAPER", ("digits",))
    monkeypatch.setattr(slices, "OF_PIXELS", {"steps": 2, "generated": 40, "lr": 1e-3})
    rows = slices.run(tmp_path, seeds=2)["rows"]
    keys = [(row["method"], row["steps"], row["classifier"], row["seeds"]) for row in rows]
    expected = []
    for method, steps, seeds in (("slices", 2, 2), ("start", 0, 1), ("pixels", 2, 1)):
        for name in ("logreg", "mlp", "cnn"):
            expected.append((slices.METHODS[method], steps, name, seeds))
    assert keys == expected
    assert all(row["sound"] for row in rows)
    names = {path.name for path in (tmp_path / "slices" / "runs" / "digits-10-0").iterdir()}
    assert {"ledger.jsonl", "privacy.json", "report.html"} <= names
    assert {"slices.pt", "generator.pt", "samples.png"} <= names
    monkeypatch.setattr(slices, "run_cell", run_again)
    assert slices.run(tmp_path, seeds=2)["rows"] == rows


def test_cells_of_an_own_network(tmp_path, monkeypatch):
    network = {"sample_shape": (1, 8, 8), "size": 6, "hidden": 16, "jitter": {"shift": 0.2}}
    monkeypatch.setattr(own_network, "settings", lambda dataset: {"network": dict(network)})
    monkeypatch.setattr(own_network, "N_SYNTHETIC", 100)
    monkeypatch.setattr(own_network, "DATASETS", {"digits": "digits"})
    part = {"steps": 2, "batch": 40, "lr": 1e-3}
    for name in ("TEACHER", "IMITATION"):
        monkeypatch.setattr(own_network, name, part)
    planned = [own_network.Cell("digits", seed) for seed in range(2)]
    monkeypatch.setattr(own_network, "plan", lambda n_seeds: planned)
    (row,) = own_network.run(tmp_path, seeds=2)["rows"]
    assert (row["dataset"], row["classifier"], row["seeds"]) == ("digits", "cnn", 2)
    assert row["sound"]
    assert (tmp_path / "own_network.png").exists()
    monkeypatch.setattr(own_network, "run_cell", run_again)
    assert own_network.run(tmp_path, seeds=2, only="digits")["rows"] == [row]
    with pytest.raises(InputError, match="only"):
        own_network.run(tmp_path, only="letters")


def test_a_cell_without_classes(tmp_path, monkeypatch, tiny):
    train = Records(torch.rand(300, 3, 8, 8), torch.zeros(300, dtype=torch.int64))
    test = Records(torch.rand(100, 3, 8, 8), torch.zeros(100, dtype=torch.int64))
    loaded = Benchmark("faces", train, test, public=True)
    monkeypatch.setattr(networks, "benchmark", lambda *_, **__: loaded)
    monkeypatch.setattr(networks, "N_FACES", 50)
    tiny |= {"sample_shape": (3, 8, 8), "n_classes": 0}
    monkeypatch.setattr(networks, "plan", lambda: [networks.Cell("CelebA", 10.0, 0)])
    (row,) = networks.run(tmp_path)["faces"]
    assert row["sound"]
    assert row["frechet"] > 0


def test_picture_of_digits(tmp_path, monkeypatch):
    result = readme_picture.run(tmp_path, quick=True)
    (row,) = json.loads(json.dumps(result))["rows"]
    assert row["sound"]
    assert 9.9 < row["epsilon"] <= readme_picture.EPSILON
    with Image.open(tmp_path / "readme.png") as picture:
        assert picture.width > 900

    monkeypatch.setattr(PrivateGenerator, "fit", run_again)  # the generator is read
    assert readme_picture.run(tmp_path, quick=True) == result


@pytest.mark.filterwarnings("ignore:Expect noise")
def test_one_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(stand_ins, "N_SYNTHETIC", 500)
    (row,) = stand_ins.run(tmp_path, quick=True)["rows"]
    assert (row["dataset"], row["n_records"], row["epsilon"], row["channels"]) == (
        "digits",
        300,
        10.0,
        1,
    )
    assert row["signal"] == pytest.approx(mu_of_epsilon(10.0, 1e-5) * 300 / math.sqrt(10), abs=0.01)
    assert row["accuracy"] > 50
    monkeypatch.setattr(stand_ins, "measure", run_again)
    assert stand_ins.run(tmp_path, quick=True)["rows"] == [row]


def test_a_small_set_all_ways(tmp_path, monkeypatch):
    monkeypatch.setattr(tables_adult, "DATASETS", {"breast_cancer": 1})
    monkeypatch.setattr(tables_adult, "BUDGETS", (10.0,))
    monkeypatch.setattr(cells, "run_cells", partial(cells.run_cells, workers=0))
    rows = tables_adult.run(tmp_path, quick=True)["rows"]
    assert [(row["method"], row.get("chosen")) for row in rows[:3]] == [
        ("columns of each class", False),
        ("columns of all classes", True),
        ("scaled columns", False),
    ]
    assert min(rows[1][name] for name in ("logreg", "neighbours")) > 75


def test_the_stated_number_of_records_is_that_of_the_split():
    # 30 % of the 178 wines are 53.4 records; 54 are test records.
    wine = tables_adult._small("wine", None)
    train, _ = train_test_split(wine.rows, test_size=0.3, random_state=0)
    assert wine.n_train == len(train) == 124


def test_the_kind_of_covariance_is_chosen_by_the_simulation_and_scored_on_real_records():
    results = [
        {
            "real": {"as released": 60.0, "by the rule": 70.0},
            "simulated": {"as released": 80.0, "by the rule": 79.0},
        },
        {
            "real": {"as released": 62.0, "by the rule": 50.0},
            "simulated": {"as released": 75.0, "by the rule": 78.0},
        },
    ]
    row = simulated_choice.summarise(results)
    assert row["chosen"] == 55.0  # 60 and 50
    assert (row["n_rule"], row["seeds"]) == (1, 2)
    assert (row["as released"], row["by the rule"]) == (61.0, 60.0)
    assert row["differences"] == [-1.0, 3.0]
