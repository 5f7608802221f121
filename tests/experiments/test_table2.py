"""Table 2: plan, cells, averages, published noise and training, figures 2, 4 and 5, ablation."""

import json

import numpy as np
import pytest
import torch

from dpswd.data.base import Records
from dpswd.data.benchmarks import Digits
from dpswd.errors import InputError
from dpswd.generation.features import DCT
from dpswd.report.render import write_report
from dpswd.training.cli import PrivateCLI
from experiments.generation import fig2, fig4, generation, generation_ablation, published_training, table2
from experiments.generation import table2_methods as methods
from experiments.generation.published_training import published_run, published_sigma_of
from experiments.generation.table2 import evaluate_cells, plan
from experiments.generation.table2_methods import BUDGETS, DATASETS, METHODS, Cell, Trained, shipped_configs, train
from experiments.generation.train_config import CONFIGS
from models.gaussian import ClassGaussian


class Small(Digits):
    """Digits enlarged to the size of MNIST."""

    def __init__(self, root=None, **options):
        super().__init__(root)

    def load(self):
        return tuple(
            Records(torch.nn.functional.interpolate(part.values, (28, 28)), part.labels) for part in super().load()
        )


@pytest.fixture
def small(monkeypatch):
    """Digits in place of MNIST, two methods, one classifier; returns the names of trained cells."""
    trained = []

    def gaussian(cell, data, directory):
        trained.append(cell.name)
        private = Small().private
        model = ClassGaussian(DCT((1, 28, 28), size=6, center=0.3, radius=12.0))
        budget = model.fit(private.values, private.labels, directory, cell.epsilon, methods.DELTA)
        return Trained(model.sample, methods._facts(budget), 1.5)

    monkeypatch.setattr(methods, "DATASETS", {"MNIST": Small})
    monkeypatch.setattr(table2, "GENERATED", {"MNIST": Small})
    monkeypatch.setattr(table2, "N_SYNTHETIC", {False: 500})
    monkeypatch.setattr(table2, "IMAGE_CLASSIFIERS", ("logreg",))
    monkeypatch.setattr(methods, "METHODS", {"Gaussian": (gaussian, (10.0,)), "real records": METHODS["real records"]})
    return trained


def test_plan():
    quick, full = plan(full=False), plan(full=True)
    assert {(cell.dataset, cell.method) for cell in quick} == {(d, m) for d in DATASETS for m in METHODS}
    assert len({cell.name for cell in full}) == len(full) == 5 * len(quick) - 4 * 3 * 2  # three methods with one seed
    for method in ("rows", "quantiles", "sketch", "DP-MERF", "Gaussian"):
        assert METHODS[method][1] == BUDGETS == (10.0, 1.0, 0.2)
    assert set(table2.LABELS) == set(METHODS)
    cells = generation.plan()
    assert len(cells) == len(set(cells))
    assert all((CONFIGS / name).is_file() for cell in [*cells, *full] for name in shipped_configs(cell))


def test_cells_resume_in_new_run_directories(small, tmp_path):
    cells = [Cell("MNIST", "Gaussian", 10.0, 0), Cell("MNIST", "real records", None, 0)]
    (first,) = evaluate_cells(cells[:1], tmp_path, None, workers=0)
    assert first["sound"] is True
    run = tmp_path / "table2-quick" / "runs" / first["run"]
    report = write_report(run)
    assert report["sound"] is True
    assert json.loads((run / "evaluation.json").read_text())["rows"][0]["accuracy"] == first["accuracy"]["logreg"] > 60
    assert np.load(run / "samples.npz")["data"].shape == (100, 28, 28)
    both = evaluate_cells(cells, tmp_path, None, workers=0)
    assert small == [cells[0].name]  # not trained again
    assert both[0] == first
    assert both[1]["sound"] is None
    (tmp_path / "table2-quick" / "cells" / f"{cells[0].name}.json").unlink()  # as after an interruption
    (again,) = evaluate_cells(cells[:1], tmp_path, None, workers=0)
    assert again["run"] == f"{first['run']}-2"
    assert run.is_dir()


def test_cell_follows_its_config(tmp_path, monkeypatch):
    cell = Cell("MNIST", "sketch", 10.0, 0)
    before = table2.config_digest(cell)
    (tmp_path / "mnist.yaml").write_text("another: config")
    monkeypatch.setattr(table2, "CONFIGS", tmp_path)
    assert table2.config_digest(cell) != before
    assert table2.config_digest(Cell("MNIST", "rows", 10.0, 0)) is None


def result(dataset, method, epsilon, seed, accuracy, **more):
    facts = {"statistic": "rows", "delta": 1e-5, "mu": 2.0, "sound": True, "train_seconds": 10 + seed, **more}
    scores = dict.fromkeys(("logreg", "mlp", "cnn"), accuracy)
    return {"dataset": dataset, "method": method, "epsilon": epsilon, "seed": seed, "accuracy": scores, **facts}


def test_averages_and_order(tmp_path):
    found = [result("FashionMNIST", "Gaussian", 1.0, seed, 70 + seed) for seed in range(3)]
    found += [result("MNIST", "sketch", epsilon, 0, 50.0) for epsilon in (0.2, 10.0)]
    found += [result("MNIST", "DP-SWD-b", 10.0, 0, 50.0, sound=False, steps=1500)]
    rows = table2.summarise(found)
    assert [(row["dataset"], row["epsilon"]) for row in rows[::3]] == [
        ("MNIST", 10.0),
        ("MNIST", 10.0),
        ("MNIST", 0.2),
        ("FashionMNIST", 1.0),
    ]
    assert rows[0]["method"] == "DP-SWD-b as published, 1,500 of 60,100 steps"
    assert [row["printed"] for row in rows[:3]] == [77, 76, None]  # logistic regression, MLP, CNN
    assert (rows[9]["mean"], rows[9]["std"], rows[9]["seeds"], rows[9]["train_seconds"]) == (71, 1.0, 3, 11)
    assert rows[3]["std"] is None
    wanted = "dataset method statistic epsilon delta mu sound classifier mean std printed seeds train_seconds".split()
    assert all(set(row) == set(wanted) for row in rows)
    table2.draw(rows, tmp_path / "table2.png")
    assert (tmp_path / "table2.png").read_bytes().startswith(b"\x89PNG")


def test_published_noise():
    assert [published_sigma_of(bound) for bound in ("none", "bernstein", "clt")] == [0.0, 2.94, 0.84]
    with pytest.raises(InputError, match="bound"):
        published_sigma_of("exact")


@pytest.mark.slow
def test_published_training_learns_without_noise(monkeypatch):
    """Without noise, generated images come near the mean of their class; a learning rate that fits 100 steps."""
    monkeypatch.setattr(published_training, "SETTING", published_training.SETTING._replace(n_projections=50))
    monkeypatch.setattr(published_training, "LEARNING_RATE", 2e-3)
    torch.manual_seed(0)
    private = Small().private
    generator, sigma = published_run(private, "none", steps=100)
    assert sigma == 0
    generator.eval()
    centers = torch.stack([private.values[private.labels == c].mean(0) for c in range(10)])
    with torch.no_grad():
        images = torch.stack([generator(generator.latent(50), torch.full((50,), c)).mean(0) for c in range(10)])
    assert torch.equal(torch.cdist(images.flatten(1), centers.flatten(1)).argmin(1), torch.arange(10))


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", ["rows", "quantiles", "sketch", "without noise"])
def test_configs_train_for_a_few_steps(method, tmp_path, monkeypatch, data_root):
    """The methods that use shipped configs, on real MNIST, cut short."""
    monkeypatch.setattr(methods, "STEPS", dict.fromkeys(methods.STEPS, (3, 3)))
    original = methods._config

    def short(cell, path, data, directory, *more):
        if cell.method in ("sketch", "without noise"):
            more = ("--trainer.max_steps", "3", "--model.flow_steps", "2", "--model.n_particles", "500")
        return original(cell, path, data, directory, *more)

    monkeypatch.setattr(methods, "_config", short)
    epsilon = None if method == "without noise" else 1.0
    cell = Cell("FashionMNIST" if method == "rows" else "MNIST", method, epsilon, 0)
    trained = train(cell, data_root, tmp_path / "run")
    assert trained.sample(torch.arange(20) % 10).shape == (20, 1, 28, 28)
    if epsilon is None:
        assert trained.facts["sound"] is None
        assert not (tmp_path / "run" / "ledger.jsonl").exists()
    else:
        assert trained.facts["sound"] is True
        report = write_report(tmp_path / "run")
        assert report["sound"] is True
        assert report["guarantee"]["epsilon"] <= 1.0
        assert report["releases"]["sample_size"] == 60_000


def test_figures_show_the_rows_of_the_paper_first():
    assert [method for method, _ in fig4.LINES[:3]] == ["SWD", "DP-SWD-b", "DP-MERF"]


def test_figure_uses_the_cells_of_the_table(small, tmp_path, monkeypatch):
    (made,) = evaluate_cells([Cell("MNIST", "Gaussian", 10.0, 0)], tmp_path, None, workers=0)
    monkeypatch.setattr(fig4, "LINES", (("Gaussian", 10.0),))
    found = fig4.run_grid(tmp_path, "figure", "MNIST", None, full=False, workers=0)
    assert len(small) == 1
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert found["rows"][0]["logreg_accuracy"] == made["accuracy"]["logreg"]


def test_fig2_distances():
    """SWD of equal Normals shifted by c tends to c; noise adds bias; block means have the variance taken off."""
    generator = torch.Generator().manual_seed(0)
    far = fig2.distances(1.0, 2000, 3.0, generator)
    assert far["swd"] == pytest.approx(1.0, abs=0.15)
    near = fig2.distances(0.0, 2000, 3.0, generator)
    assert near["swd"] < near["dp_swd"] < far["dp_swd"]
    assert near["block_means"] < near["dp_swd"]


def model_of(epsilon, options, root):
    """The model that a change of the ablation gives."""
    configs = shipped_configs(Cell("MNIST", "sketch", epsilon, 0))
    arguments = [part for name in configs for part in ("--config", str(CONFIGS / name))]
    cli = PrivateCLI([*arguments, f"--trainer.default_root_dir={root}", *options], run=False)
    return repr(cli.config.model)


@pytest.mark.filterwarnings("ignore:LightningCLI's args parameter")
@pytest.mark.parametrize("epsilon", [10.0, 1.0])
def test_every_change_of_the_ablation_changes_the_model(epsilon, tmp_path):
    options = [options for _, at, options in generation_ablation.RUNS if at == epsilon]
    models = [model_of(epsilon, each, tmp_path) for each in options]
    assert options[0] == []
    assert len(set(models)) == len(models)


def test_ablation_keeps_its_runs(monkeypatch, tmp_path):
    made = []

    def evaluate(change, data):
        made.append(change.name)
        return {"change": change.label, "epsilon": change.epsilon}

    monkeypatch.setattr(generation_ablation, "evaluate", evaluate)
    assert len(generation_ablation.run(tmp_path, quick=True, workers=0)["rows"]) == 1
    rows = generation_ablation.run(tmp_path, workers=0)["rows"]
    assert generation_ablation.run(tmp_path, workers=0)["rows"] == rows
    assert len(made) == len(set(made)) == len(generation_ablation.RUNS) == len(rows)
