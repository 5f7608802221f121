"""Adaptation experiments on tiny settings: configs of the paper, image map, fallback."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import yaml

from dpswd import InputError, PrivateAdapter
from dpswd.data import benchmark
from dpswd.records import Records
from experiments.adaptation import fallback, fig3, figure3, image_map, pairs, table1
from experiments.adaptation.table1 import Cell

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")


@pytest.fixture
def office_root(tmp_path):
    """Office-Caltech-10 with 40 random vectors in each domain."""
    rng = np.random.default_rng(0)
    directory = tmp_path / "office_caltech10"
    directory.mkdir()
    for name in pairs.OFFICE.values():
        features = rng.random((40, 1024), dtype=np.float32)
        np.savez(
            directory / f"{name}_GoogleNet1024.npz", features=features, labels=np.arange(40) % 10
        )
    return tmp_path


def run(cells, directory, root):
    """Rows of cells that are run one after another, five steps each."""
    return table1.summarise([table1.run_cell(cell, directory, root) for cell in cells])


def test_office_pairs_by_the_configs_of_the_paper(tmp_path, office_root):
    """The published algorithm claims nothing; DP-DANN is conditional."""
    cells = [Cell("A-W", method, seed, steps=5) for method in ("dann", "dp_swd") for seed in (0, 1)]
    dann, published = run(cells, tmp_path, office_root)
    assert (dann["method"], dann["sound"], dann["epsilon"], dann["printed"]) == (
        "DANN",
        None,
        None,
        None,
    )
    assert (published["sound"], published["epsilon"], published["noise"]) == (
        False,
        None,
        "printed",
    )
    for row in (dann, published):
        assert (row["seeds"], len(row["values"]), len(row["curve"]), row["steps"]) == (2, 2, 5, 5)
        assert 0 <= row["mean"] <= 100


def test_dp_dann_has_the_noise_of_the_code_or_of_an_epsilon(tmp_path, office_root, monkeypatch):
    monkeypatch.setitem(table1.OFFICE_SIZES, "W", 40)
    cells = [Cell("A-W", "dp_dann", 0, steps=5), Cell("A-W", "dp_dann", 0, 10.0, 5)]
    of_code, of_epsilon = run(cells, tmp_path, office_root)
    # A release of 32 of 40 records at each of four steps, after the first one.
    expected = table1.epsilon_of_noise(9.81, 32, 40, 4, 1e-3)
    assert of_code["epsilon"] == pytest.approx(expected, rel=1e-3)
    assert 9.9 < of_epsilon["epsilon"] <= 10
    for row in (of_code, of_epsilon):
        assert row["sound"] is False
        assert row["conditions"]


def test_a_pair_that_the_table_has_not_is_refused(tmp_path):
    with pytest.raises(InputError, match="pairs"):
        table1.table1_office(tmp_path, pairs="D-W,W-X")
    assert not list(tmp_path.iterdir())


def test_epsilon_of_noise_on_each_gradient():
    """Noise on each of B gradients is noise on their sum, with sqrt(B) times the deviation."""
    one = table1.epsilon_of_noise(17.0, 128, 7438, 10, 1e-5)
    other = table1.epsilon_of_noise(17.0 * math.sqrt(128), 1, 7438, 10, 1e-5)
    assert one > other  # control: fewer records of a batch leak less at equal noise


@pytest.mark.parametrize("steps", [None, 590])
def test_noise_of_dp_dann_in_the_configs_is_that_of_the_code(steps):
    for problem, target_epsilon in (("MNIST-USPS", 0.0365), ("USPS-MNIST", 0.0310)):
        cell = Cell(problem, "dp_dann", 0, steps=steps)
        options = table1.options_of(cell, None)
        values = dict(zip(options[::2], options[1::2], strict=True))
        n_steps = int(values["--trainer.max_steps"])
        n_releases = int(values["--privacy.n_releases"])
        assert n_releases == n_steps - int(values["--model.first_step"])
        if steps is None:
            epsilon = float(values["--privacy.target_epsilon"])
            assert epsilon == pytest.approx(target_epsilon, rel=1.5e-3)
            config = yaml.safe_load(cell.config.read_text())
            assert config["privacy"]["target_epsilon"] == target_epsilon
            assert config["privacy"]["n_releases"] == n_releases


def test_changed_settings_are_options_of_the_command_line(tmp_path):
    cell = Cell("USPS-MNIST", "swd", 0, steps=295, changed=("data.box", "28"))
    options = table1.options_of(cell, tmp_path)
    assert options[-2:] == ["--data.box", "28"]
    assert options[options.index("--trainer.max_steps") + 1] == "295"
    assert options[options.index("--model.first_step") + 1] == str(649 * 295 // 5900)


def test_image_map_of_digits(monkeypatch):
    monkeypatch.setattr(image_map, "STEPS", 2)
    digits = benchmark("digits").train.select(torch.arange(200))
    small = Records(F.interpolate(digits.floats(), (12, 12)), digits.labels)
    pair = pairs.Pair(small, small, small)
    private = image_map.fit_synthetic(pair, 10.0, 0)
    assert private["sound"]
    for target in (None, small.floats()):
        assert 0 <= image_map.fit_directly(pair, target, 0)["accuracy"] <= 100


def test_figure_3_has_a_panel_for_each_problem(tmp_path):
    planned = fig3.plan(2, (1.0, 10.0))
    assert len(planned) == 2 * 2 * 3
    results = []
    for cell in planned:
        facts_of_run = {"accuracy": 90.0, "delta": 1e-5, "mu": 1.0, "sound": True, "seconds": 1.0}
        names = ("problem", "epsilon", "aligned", "seed")
        results.append({name: getattr(cell, name) for name in names} | facts_of_run)
    fig3.draw(fig3.summarise(results), tmp_path / "fig3.png")
    assert (tmp_path / "fig3.png").stat().st_size > 1000


def test_published_figure_3_has_five_budgets_and_two_problems(tmp_path):
    planned = figure3.plan(1, figure3.EPSILONS, 295)
    assert len(dict(planned)) == 5 * 2
    sigmas = [float(cell.changed[1]) for cell, _ in planned if cell.problem == "MNIST-USPS"]
    assert sigmas == sorted(sigmas, reverse=True)  # less noise for a larger budget
    assert sigmas[-1] == pytest.approx(5.34, rel=0.01)  # of Table 4, for epsilon = 10
    options = table1.options_of(planned[0][0], tmp_path)
    assert options[options.index("--model.sigma") + 1] == planned[0][0].changed[1]
    rows = []
    for cell, epsilon in planned:
        row = {"dataset": cell.problem, "mean": 90.0, "std": None, "printed": 94.0}
        rows.append(row | {"nominal_epsilon": epsilon})
    figure3.draw(rows, tmp_path / "figure3.png")
    assert (tmp_path / "figure3.png").stat().st_size > 1000


def test_errors_of_the_fallback():
    facts = {"group": "g", "epsilon": 10.0}
    choices = [(90, 80, 1), (90, 80, 0), (80, 90, 0), (80, 90, 1), (80, 80.5, 0)]
    rows = [
        facts | {"plain": p, "always": a, "adapted": c, "result": (p, a)[c]} for p, a, c in choices
    ]
    rows += [row | {"epsilon": 1.0} for row in rows]
    summary, _ = fallback.errors(rows)
    assert (summary["n_worse"], summary["wrongly_adapted"]) == (2, 1)
    assert (summary["n_better"], summary["wrongly_kept"]) == (2, 1)
    assert (summary["plain"], summary["best"]) == (84.0, 88.1)


def test_the_fallback_is_compared_with_both_results():
    adapter = PrivateAdapter(n_synthetic=200, verbose=False)
    results = fallback.compare(pairs.vectors("digits, reduced", 0), adapter)
    assert results["adapted"]
    assert results["result"] == results["always"] > results["plain"] + 20


def test_the_fallback_is_compared_with_the_method_that_it_refused():
    adapter = PrivateAdapter(n_synthetic=200, min_shift=100.0, verbose=False)
    results = fallback.compare(pairs.vectors("digits, reduced", 0), adapter)
    assert not results["adapted"]
    assert results["result"] == results["plain"] < results["always"] - 20
