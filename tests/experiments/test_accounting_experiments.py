"""The accounting experiments run, their committed results are what they give, and errata 3 and 6."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
import torch

RESULTS = Path(__file__).parents[2] / "docs" / "results"
NAMES = ["table4", "fig1", "fig7", "gdp_table3", "gdp_dpsgd", "gdp_fig3", "gdp_topdown"]


def committed(name):
    return json.loads((RESULTS / f"{name}.json").read_text())


@pytest.mark.parametrize("name", ["table4", "fig1", "gdp_table3", "gdp_topdown"])
def test_quick_runs(name, tmp_path, capsys):
    module = importlib.import_module(f"experiments.{name}")
    result = module.run(tmp_path, quick=True)
    json.dumps(result, allow_nan=False)
    assert result["rows"]
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert capsys.readouterr().out.count("\n") >= 2
    assert module.HELP


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fig7", "gdp_dpsgd", "gdp_fig3"])
def test_slow_quick_runs(name, tmp_path):
    assert importlib.import_module(f"experiments.{name}").run(tmp_path, quick=True)["rows"]


@pytest.mark.parametrize("name", NAMES)
def test_results_are_committed_with_their_origin(name):
    result = committed(name)
    assert result["command"] == f"python -m experiments run {name}"
    assert {"version", "machine", "rows"} <= set(result)


def test_table4_meets_the_reference_values():
    rows = {row["dataset"]: row for row in committed("table4")["rows"]}
    reference = {"USPS-MNIST": 0.492, "MNIST (b)": 0.695, "Office-31": 1.567, "VisDA": 1.833, "CelebA": 0.311}
    for name, sigma in reference.items():
        row = rows[name]
        assert row["exact_pld"] == pytest.approx(sigma, rel=0.01)
        assert row["exact_pld_epsilon_optimistic"] <= row["exact_pld_epsilon"] <= 10
        assert row["exact_pld_epsilon"] < 1.01 * row["exact_pld_epsilon_optimistic"]
    assert rows["USPS-MNIST, d = 320"]["exact_pld"] > 1.5 * rows["USPS-MNIST"]["exact_pld"]


def test_pure_epsilon_and_gdpnum_agree():
    for row in committed("gdp_table3")["rows"]:
        assert row["mu_pure_gdpnum"] == pytest.approx(row["mu_pure"], rel=1e-6)


def test_census_is_close_to_its_continuous_twin():
    for row in committed("gdp_topdown")["rows"]:
        assert row["mu_continuous"] <= row["mu"] < 1.002 * row["mu_continuous"]
        assert row["regret"] < 1e-3


def test_erratum_3_what_is_projected_has_320_dimensions():
    # FeatureExtractor of the authors' da_models.py: two convolutions of 5 x 5 (32, then 20 maps), each halved
    # by pooling
    with torch.random.fork_rng():
        features = torch.nn.Sequential(
            torch.nn.Conv2d(1, 32, kernel_size=5),
            torch.nn.MaxPool2d(2),
            torch.nn.ReLU(),
            torch.nn.Conv2d(32, 20, kernel_size=5),
            torch.nn.MaxPool2d(2),
            torch.nn.Flatten(),
        )
    assert features(torch.zeros(2, 1, 28, 28)).shape == (2, 320)


def test_erratum_6_shuffled_epochs_are_not_fresh_subsets():
    size, batch = 10_000, 128
    per_epoch = size // batch + 1
    assert per_epoch * 100 == 7_900  # the T of Table 4
    assert size % batch == 16  # the last batch of an epoch
    rng = np.random.default_rng(0)
    epochs = 400
    shuffled, fresh = np.zeros((2, epochs), dtype=int)
    for epoch in range(epochs):
        where = int(np.flatnonzero(rng.permutation(size) == 0)[0])  # record 0 is in batch where // 128
        seen = np.arange(per_epoch) == where // batch
        shuffled[epoch] = seen.sum()
        assert not seen[:-1].any() or not seen[-1]  # in an earlier batch: surely not in the last; in none: surely in it
        fresh[epoch] = (rng.random(per_epoch) < batch / size).sum()  # one record, 79 independent subsets
    assert (shuffled == 1).all()
    assert fresh.var() > 0.5  # binomial: 79 q (1 - q) = 1.0
