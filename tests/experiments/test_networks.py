"""Networks on a sketch: one cell of digits, results that are kept, settings of the shipped configs."""

import pytest
import torch

from dpswd import InputError
from dpswd.data import Benchmark
from dpswd.lightning.networks import ShuffleGenerator
from dpswd.records import Records
from experiments.generation import networks
from experiments.generation.networks import Cell, plan, run, settings, version

SMALL = {"sample_shape": (1, 8, 8), "hidden": 16, "width": 4, "jitter": {"shift": 0.2}}


def test_cells_of_digits(tmp_path, monkeypatch):
    monkeypatch.setattr(networks, "N_SYNTHETIC", 100)
    monkeypatch.setattr(networks, "DATASETS", {"digits": "digits"})
    monkeypatch.setattr(networks, "PRINTED", {})
    monkeypatch.setattr(networks, "plan", lambda seeds: [Cell("digits", 10.0, seed) for seed in range(seeds)])
    chosen = {"steps": 2, "batch": 40, "lr": 1e-3}
    monkeypatch.setattr(networks, "settings", lambda dataset: chosen | {"network": dict(SMALL)})
    rows = run(tmp_path, seeds=2)["rows"]
    assert [(row["classifier"], row["seeds"]) for row in rows] == [("logreg", 2), ("mlp", 2), ("cnn", 2)]
    assert all(row["sound"] and row["method"].startswith("DP-SWD") and row["cpu_seconds"] >= 0 for row in rows)
    found = {path.name for path in (tmp_path / "networks" / "runs" / "digits-10-0").iterdir()}
    assert {"ledger.jsonl", "privacy.json", "report.html", "sketch.pt", "generator.pt", "samples.png"} <= found
    monkeypatch.setattr(networks, "run_cell", lambda *_, **__: pytest.fail("a finished cell was run again"))
    assert run(tmp_path, seeds=1)["rows"] == rows
    with pytest.raises(InputError, match="epsilon"):
        run(tmp_path, epsilon=3.0)


def test_a_cell_without_classes(tmp_path, monkeypatch):
    faces = [Records(torch.rand(n, 3, 8, 8), torch.zeros(n, dtype=torch.int64)) for n in (300, 100)]
    found = Benchmark("faces", *faces, public=True)
    monkeypatch.setattr(networks, "benchmark", lambda *_, **__: found)
    monkeypatch.setattr(networks, "N_FACES", 50)
    network = {"sample_shape": (3, 8, 8), "n_classes": 0, "hidden": 16, "width": 4}
    chosen = {"steps": 2, "batch": 40, "lr": 1e-3}
    monkeypatch.setattr(networks, "settings", lambda dataset: chosen | {"network": dict(network)})
    (row,) = run(tmp_path, dataset="CelebA")["faces"]
    assert row["sound"]
    assert row["frechet"] > 0


@pytest.mark.parametrize("dataset", networks.DATASETS)
def test_settings_are_those_of_the_shipped_configs(dataset):
    shape = (1, 16, 16) if dataset == "USPS" else (1, 28, 28)
    assert ShuffleGenerator(**settings(dataset)["network"]).sample_shape == shape
    assert version(Cell(dataset, 10.0, 0)) == version(Cell(dataset, 1.0, 1))


def test_plan():
    cells = plan(3)
    assert len({cell.name for cell in cells}) == len(cells) == 3 * 3 * 3 + 2 * 3 + 1
    assert {cell.seed for cell in cells[:9]} == {0}
