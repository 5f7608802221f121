"""Table 2: each row is planned, cells are kept and taken up again, averages are right, published noise is theirs."""

import json

import numpy as np
import pytest
import torch

import experiments.generation.table2_cells as table2_cells
import experiments.generation.table2_methods as methods
from dpswd import InputError
from dpswd.data import Digits, Records
from dpswd.generation.features import DCT
from dpswd.report.render import write_report
from experiments.accounting.published import TABLE4
from experiments.generation import fig2, fig4, fig5, generation, table2
from experiments.generation.published_training import published_noise, published_run
from experiments.generation.sample_figure import draw_samples
from experiments.generation.table2_cells import directory_of, plan, run_cells
from experiments.generation.table2_methods import BUDGETS, DATASETS, METHODS, Cell, Trained, train
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
    """Digits for MNIST, two methods, one classifier; counts what is trained."""
    trained = []

    def gaussian(cell, data, directory):
        trained.append(cell.name)
        private = Small().private
        model = ClassGaussian(DCT((1, 28, 28), size=6, center=0.3, radius=12.0))
        budget = model.fit(private.values, private.labels, directory, cell.epsilon, methods.DELTA)
        return Trained(model.sample, methods._facts(budget), 1.5)

    monkeypatch.setattr(methods, "DATASETS", {"MNIST": Small})
    monkeypatch.setattr(table2_cells, "GENERATED", {"MNIST": Small})
    monkeypatch.setattr(table2_cells, "N_SYNTHETIC", {False: 500})
    monkeypatch.setattr(table2_cells, "IMAGE_CLASSIFIERS", ("logreg",))
    monkeypatch.setattr(methods, "METHODS", {"Gaussian": (gaussian, (10.0,)), "real records": METHODS["real records"]})
    return trained


def test_every_row_is_planned():
    quick, full = plan(full=False), plan(full=True)
    assert len(full) == 5 * len(quick) == 5 * 38
    assert {(cell.dataset, cell.method) for cell in quick} == {(d, m) for d in DATASETS for m in METHODS}
    for method in ("rows", "quantiles", "sketch", "DP-MERF", "Gaussian"):
        assert METHODS[method][1] == BUDGETS == (10.0, 1.0, 0.2)
    assert len({cell.name for cell in full}) == len(full)
    assert set(table2.LABELS) == set(METHODS)


def test_the_shipped_generators_are_compared_first():
    cells = generation.plan()
    assert len(cells) == len({cell.name for cell in cells})
    first = cells[:40]
    assert {(cell.method, cell.epsilon) for cell in first} == {
        (m, e) for m in ("sketch", "Gaussian") for e in (10.0, 1.0)
    }
    assert {cell.seed for cell in first} == set(range(table2_cells.SEEDS))
    assert all(cell.full for cell in cells)
    for cell in cells:
        assert all((table2_cells.CONFIGS / name).is_file() for name in methods.shipped_configs(cell))


def test_cells_are_kept_and_a_stopped_run_goes_on(small, tmp_path, capsys):
    cells = [Cell("MNIST", "Gaussian", 10.0, 0), Cell("MNIST", "real records", None, 0)]
    (first,) = run_cells(cells[:1], tmp_path, None, workers=0)
    assert first["sound"] is True
    assert first["train_seconds"] == 1.5
    run = tmp_path / "runs" / first["run"]
    assert write_report(run)["sound"] is True
    assert write_report(run)["evaluation"][0]["accuracy"] == first["accuracy"]["logreg"] > 60
    assert np.load(run / "samples.npz")["data"].shape == (100, 28, 28)
    both = run_cells(cells, tmp_path, None, workers=0)
    assert small == [cells[0].name]  # not trained again
    assert both[0] == first
    assert both[1]["sound"] is None
    assert both[1]["accuracy"]["logreg"] > 80
    assert "1 of 2 cells are there already" in capsys.readouterr().out
    (tmp_path / "cells" / f"{cells[0].name}.json").unlink()  # as after an interruption: the ledger stays
    (again,) = run_cells(cells[:1], tmp_path, None, workers=0)
    assert again["run"] == f"{first['run']}-2"
    assert run.is_dir()


def test_a_cell_follows_the_shipped_config(tmp_path, monkeypatch):
    made = []

    def work(cell, directory, data):
        made.append(cell.name)
        result = {"name": cell.name, "follows": table2_cells._follows(cell), "accuracy": {}, "train_seconds": 0}
        table2_cells.write_json(directory / "cells" / f"{cell.name}.json", result)
        return result

    monkeypatch.setattr(table2_cells, "_work", work)
    cells = [Cell("MNIST", "sketch", 10.0, 0), Cell("MNIST", "rows", 10.0, 0)]
    run_cells(cells, tmp_path / "out", None, workers=0)
    run_cells(cells, tmp_path / "out", None, workers=0)
    assert made == [cell.name for cell in cells]
    (tmp_path / "mnist.yaml").write_text("another: config")
    monkeypatch.setattr(table2_cells, "CONFIGS", tmp_path)
    run_cells(cells, tmp_path / "out", None, workers=0)
    assert made[2:] == [cells[0].name]


def test_small_budgets_take_the_overlay():
    assert methods.shipped_configs(Cell("MNIST", "sketch", 10.0, 0)) == ["mnist.yaml"]
    assert methods.shipped_configs(Cell("MNIST", "SWD", None, 0)) == ["mnist.yaml"]
    small = methods.shipped_configs(Cell("FashionMNIST", "sketch", 1.0, 0))
    assert small == ["fashion.yaml", "overlays/small_budget.yaml"]
    assert all((table2_cells.CONFIGS / name).is_file() for name in small)


def result(dataset, method, epsilon, seed, accuracy):
    facts = {"statistic": "rows", "delta": 1e-5, "mu": 2.0, "sound": True, "train_seconds": 10 + seed}
    scores = dict.fromkeys(("logreg", "mlp", "cnn"), accuracy)
    return {"dataset": dataset, "method": method, "epsilon": epsilon, "seed": seed, "accuracy": scores, **facts}


def test_averages_and_order(tmp_path):
    found = [result("FashionMNIST", "Gaussian", 1.0, seed, 70 + seed) for seed in range(3)]
    found += [result("MNIST", "sketch", epsilon, 0, 50.0) for epsilon in (0.2, 10.0)]
    rows = table2.summarise(found)
    assert [(row["dataset"], row["epsilon"]) for row in rows[::3]] == [
        ("MNIST", 10.0),
        ("MNIST", 0.2),
        ("FashionMNIST", 1.0),
    ]
    assert (rows[6]["mean"], rows[6]["std"], rows[6]["seeds"], rows[6]["train_seconds"]) == (71, 1.0, 3, 11)
    assert rows[0]["std"] is None
    wanted = "dataset method release epsilon delta mu sound classifier mean std seeds train_seconds".split()
    assert all(set(row) == set(wanted) for row in rows)
    table2._draw(rows, tmp_path / "table2.png")
    assert (tmp_path / "table2.png").read_bytes().startswith(b"\x89PNG")


def test_published_noise():
    assert published_noise("bernstein") == 2.94 == TABLE4[1].sigma
    assert published_noise("clt") == pytest.approx(0.847, abs=0.001)
    with pytest.raises(InputError, match="Expected bound to be one of bernstein, clt"):
        published_noise("exact")


@pytest.mark.slow
def test_published_training_is_flagged_and_learns_without_its_noise(monkeypatch):
    """Control of the loop itself: without noise generated images come near those of their class."""
    monkeypatch.setattr("experiments.generation.published_training.published_noise", lambda bound: 0.0)
    monkeypatch.setattr("experiments.generation.published_training.ROW", TABLE4[1]._replace(n_projections=50))
    torch.manual_seed(0)
    private = Small().private
    generator, _ = published_run(private, "clt", steps=100)
    generator.eval()
    centers = torch.stack([private.values[private.labels == c].mean(0) for c in range(10)])
    with torch.no_grad():
        images = torch.stack([generator(generator.latent(50), torch.full((50,), c)).mean(0) for c in range(10)])
    assert torch.equal(torch.cdist(images.flatten(1), centers.flatten(1)).argmin(1), torch.arange(10))


@pytest.mark.slow
@pytest.mark.data
@pytest.mark.parametrize("method", ["rows", "quantiles", "sketch", "SWD"])
def test_configs_train_for_a_few_steps(method, tmp_path, monkeypatch, data_root):
    """The methods that go through shipped configs, on real MNIST, cut short."""
    monkeypatch.setattr(methods, "STEPS", dict.fromkeys(methods.STEPS, (3, 3)))
    original = methods._config

    def short(cell, path, data, directory, *more):
        if cell.method in ("sketch", "SWD"):
            more = ("--trainer.max_steps", "3", "--model.flow_steps", "2", "--model.n_particles", "500")
        return original(cell, path, data, directory, *more)

    monkeypatch.setattr(methods, "_config", short)
    epsilon = None if method == "SWD" else 1.0
    trained = train(
        Cell("FashionMNIST" if method == "rows" else "MNIST", method, epsilon, 0), data_root, tmp_path / "run"
    )
    images = trained.sample(torch.arange(20) % 10)
    assert images.shape == (20, 1, 28, 28)
    if epsilon is None:
        assert trained.facts["sound"] is None
        assert not (tmp_path / "run" / "ledger.jsonl").exists()
    else:
        assert trained.facts["sound"] is True
        report = write_report(tmp_path / "run")
        assert report["sound"] is True
        assert report["guarantee"]["epsilon"] <= 1.0
        assert report["releases"]["sample_size"] == 60_000


def test_figures_show_the_methods_they_name(tmp_path):
    assert [method for method, _ in fig2.LINES] == ["SWD", "DP-SWD-b", "DP-SWD-c"]
    assert fig4.LINES == fig5.LINES
    assert {method for method, _ in fig4.LINES} == set(METHODS) - {"real records"}
    pictures = np.random.default_rng(0).integers(0, 256, (100, 28, 28), dtype=np.uint8)
    draw_samples([("one", pictures), ("two", pictures)], tmp_path / "grid.png")
    assert (tmp_path / "grid.png").read_bytes().startswith(b"\x89PNG")


def test_a_figure_takes_the_cells_of_the_table(small, tmp_path, monkeypatch):
    monkeypatch.setattr(table2_cells.os, "cpu_count", lambda: 1)
    directory = directory_of(tmp_path, full=False)
    run_cells([Cell("MNIST", "Gaussian", 10.0, 0)], directory, None, workers=0)
    from experiments.generation.sample_figure import run_grid

    found = run_grid(tmp_path, "figure", "MNIST", [("Gaussian", 10.0)], None, full=False)
    assert len(small) == 1
    assert (tmp_path / "figure.png").exists()
    name = json.loads((directory / "cells" / "MNIST-Gaussian-10-0.json").read_text())["accuracy"]["logreg"]
    assert found["rows"][0]["logreg_accuracy"] == name
