"""Table 2: plan, cells, averages; the rows of the paper: training, resumption, groupings, rows."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from factories import write_idx

from dpswd.data.benchmarks import Benchmark, benchmark
from dpswd.errors import InputError
from dpswd.features.frequencies import DCT
from dpswd.records import Records
from dpswd.report.render import write_report
from experiments import cells
from experiments.generation import table2, table2_published
from experiments.generation.table2 import METHODS, Cell, evaluate_cells
from models.gaussian import ClassGaussian


def enlarged(name="MNIST", root=None):
    """Digits enlarged to the size of MNIST."""
    digits = benchmark("digits")
    parts = []
    for part in (digits.train, digits.test):
        images = torch.nn.functional.interpolate(part.floats(), (28, 28))
        parts.append(Records(images, part.labels))
    return Benchmark("MNIST", *parts, True, list(range(10)))


@pytest.fixture
def small(monkeypatch):
    """Digits in place of MNIST, two methods, one classifier; returns the names of trained cells."""
    trained = []

    def gaussian(cell, loaded, directory):
        trained.append(cell.name)
        model = ClassGaussian(DCT((1, 28, 28), size=6, centre=0.3, radius=12.0))
        budget = model.fit(enlarged().private(), directory, cell.epsilon, table2.DELTA)
        return table2.Source(model.sample, table2.privacy_of(budget))

    monkeypatch.setattr(table2, "load", enlarged)
    monkeypatch.setitem(table2.LENGTHS, "quick", table2.Length({}, n_synthetic=500))
    monkeypatch.setattr(table2, "IMAGE_CLASSIFIERS", ("logreg",))
    methods = {"Gaussian": table2.Method(gaussian), "real records": METHODS["real records"]}
    monkeypatch.setattr(table2, "METHODS", methods)
    return trained


def test_cells_resume_in_new_run_directories(small, tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "run_cells", partial(cells.run_cells, workers=0))
    gaussian = Cell("MNIST", "Gaussian", 10.0, 0)
    real = Cell("MNIST", "real records", None, 0)
    (first,) = evaluate_cells([gaussian], tmp_path, None)
    assert first["sound"] is True
    run = tmp_path / "table2-quick" / "runs" / first["run"]
    report = write_report(run)
    assert report["sound"] is True
    assert first["accuracy"]["logreg"] > 60
    images = np.load(tmp_path / "table2-quick" / f"{gaussian.name}.npz")["data"]
    assert images.shape == (100, 28, 28)
    both = evaluate_cells([gaussian, real], tmp_path, None)
    assert small == [gaussian.name]  # not trained again
    assert both[0] == first
    assert both[1]["sound"] is None
    (tmp_path / "table2-quick" / f"{gaussian.name}.json").unlink()  # as after an interruption
    (again,) = evaluate_cells([gaussian], tmp_path, None)
    assert again["run"] == f"{first['run']}-1"
    assert run.is_dir()


@pytest.fixture
def mnist_root(tmp_path):
    """Enlarged digits in the layout of MNIST."""
    raw = tmp_path / "data" / "MNIST" / "raw"
    loaded = enlarged()
    for split, part in (("train", loaded.train), ("t10k", loaded.test)):
        pixels = (255 * part.floats()[:, 0]).numpy()
        write_idx(raw / f"{split}-images-idx3-ubyte", pixels)
        write_idx(raw / f"{split}-labels-idx1-ubyte", part.labels.numpy())
    return tmp_path / "data"


@pytest.mark.filterwarnings("ignore")
def test_rows_of_the_paper(tmp_path, monkeypatch, mnist_root):
    """Cut short, on digits: a row for each method and changed setting, with the printed number."""
    monkeypatch.setattr(table2_published, "DATASETS", ("MNIST",))
    monkeypatch.setattr(table2_published, "N_SYNTHETIC", 200)
    monkeypatch.setattr(table2_published, "N_SYNTHETIC_SHORT", 200)
    short = replace(table2_published.SETTING, n_releases=2)
    monkeypatch.setattr(table2_published, "SETTING", short)
    monkeypatch.setattr(table2_published, "MERF_EPOCH", 1)
    first = table2_published.table2_published(tmp_path, data=mnist_root)["rows"]
    sound = {"SWD": None, "DP-SWD-b": False, "DP-SWD-c": False, "DP-MERF": True}
    assert {row["method"]: row["sound"] for row in first} == sound
    settings = {"steps": 2, "lr": 1e-3}
    changes = [
        table2_published.Change("DP-SWD-b", settings | {"grouping": "ten"}),
        table2_published.Change("DP-SWD-b", settings | {"grouping": "one"}),
    ]
    monkeypatch.setattr(table2_published, "CHANGES", changes)
    rows = table2_published.table2_gap(tmp_path, data=mnist_root, seeds=2)["rows"]
    keys = [(row["grouping"], row["classifier"]) for row in rows]
    assert keys == [("ten", "logreg"), ("ten", "mlp"), ("one", "logreg"), ("one", "mlp")]
    for row in rows:
        assert (row["lr"], row["sigma"], row["steps"], row["seeds"]) == (1e-3, 2.94, 2, 2)
    assert rows[-1]["printed"] == 76
    with np.load(tmp_path / "table2_published" / "MNIST-SWD-0.npz") as images:
        assert images["data"].shape == (100, 28, 28)
    with pytest.raises(InputError, match="--only"):
        table2_published.table2_published(tmp_path, only="CIFAR10")


@pytest.mark.filterwarnings("ignore")
def test_a_network_with_a_release_at_every_step(tmp_path, monkeypatch):
    monkeypatch.setitem(table2.LENGTHS, "quick", table2.Length({"rows": 3}, n_synthetic=20))
    cell = Cell("MNIST", "rows", 1.0, 0)
    source = METHODS["rows"].run(cell, enlarged(), tmp_path / "run")
    assert source.draw(torch.arange(20) % 10).shape == (20, 1, 28, 28)
    assert source.privacy.sound is True
    report = write_report(tmp_path / "run")
    assert report["guarantee"]["epsilon"] <= 1.0
