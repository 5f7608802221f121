"""The ablation: every change is an option that the command line takes and that changes something; runs are kept."""

import json

import pytest

from dpswd.training.cli import PrivateCLI
from experiments.generation import generation_ablation
from experiments.generation.generation_ablation import RUNS
from experiments.generation.table2_methods import Cell, shipped_configs
from experiments.generation.train_config import CONFIGS


def model_of(epsilon, options, root):
    configs = shipped_configs(Cell("MNIST", "sketch", epsilon, 0))
    arguments = [part for name in configs for part in ("--config", str(CONFIGS / name))]
    cli = PrivateCLI([*arguments, f"--trainer.default_root_dir={root}", *options], run=False)
    return repr(cli.config.model)


@pytest.mark.filterwarnings("ignore:LightningCLI's args parameter")
@pytest.mark.parametrize("epsilon", [10.0, 1.0])
def test_every_change_changes_the_model(epsilon, tmp_path):
    options = [options for _, at, options in RUNS if at == epsilon]
    models = [model_of(epsilon, each, tmp_path) for each in options]
    assert options[0] == []
    assert len(set(models)) == len(models)


def test_runs_are_kept_and_shown(monkeypatch, tmp_path):
    made = []

    def one(epsilon, options, data):
        made.append((epsilon, tuple(options)))
        return {"logreg": 90.0 + len(made), "mlp": 80.0}

    monkeypatch.setattr(generation_ablation, "_one", one)
    assert len(generation_ablation.run(tmp_path, quick=True)["rows"]) == 1
    rows = generation_ablation.run(tmp_path)["rows"]
    assert len(made) == len(RUNS) == len(rows)
    assert json.loads(json.dumps(rows)) == generation_ablation.run(tmp_path)["rows"]
    assert len(made) == len(RUNS)
