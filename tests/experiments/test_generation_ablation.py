"""Ablation of the default generator: every change changes the run, and nothing else; rows over seeds."""

from unittest.mock import patch

import pytest
import torch

from dpswd.mixture import structure
from dpswd.mixture.structure import forecast
from experiments.generation import generation_ablation
from experiments.generation.generation_ablation import CELLS, PARTS, Cell, Part, evaluate, plan, summarise


def test_plan_has_each_part_on_its_data_sets():
    cells = plan(seeds=2)
    assert len(cells) == len({cell.name for cell in cells}) == 2 * sum(len(part.datasets) for part in PARTS)


@pytest.mark.parametrize("part", [part for part in PARTS if part.constant], ids=lambda part: part.label)
def test_constants_decide_what_the_part_says(part):
    path, value = part.constant
    before = forecast(60_000, (1, 28, 28), 10, mu=10.0)
    with patch(path, value):  # fails where there is no such constant
        changed = forecast(60_000, (1, 28, 28), 10, mu=10.0)
    cells, levels = {"MAX_CELLS": (value, before.n_levels), "_MAX_LEVELS": (before.n_cells, 0)}.get(
        path.rpartition(".")[2], (before.n_cells, before.n_levels)
    )
    assert (changed.n_cells, changed.n_levels) == (cells, levels)
    assert forecast(60_000, (1, 28, 28), 10, mu=10.0) == before


@pytest.mark.parametrize("epsilon", [10.0, None])
def test_a_changed_run_is_sound_or_has_no_guarantee(monkeypatch, epsilon):
    monkeypatch.setattr(generation_ablation, "N_SYNTHETIC", 400)
    built = []
    monkeypatch.setattr(
        generation_ablation, "draw", lambda made, labels: built.append(made) or torch.rand(len(labels), 1, 8, 8)
    )
    part = Part("one cell per class", ("digits",), (), (CELLS, 1), epsilon)
    row = evaluate(Cell("digits", part, 0), None)
    assert (row["sound"], row["mu"] is None) == ((True, False) if epsilon else (None, True))
    assert built[0].structure.n_cells == 1
    assert structure.MAX_CELLS > 1
    assert set(row["accuracy"]) == {"logreg", "cnn"}
    assert row["frechet"] > 0


def test_rows_average_over_seeds():
    facts = {"dataset": "MNIST", "change": "no jitter", "epsilon": 10.0, "mu": 2.0, "delta": 1e-5, "sound": True}
    rows = summarise([facts | {"accuracy": {"logreg": 90.0 + i, "cnn": 97.0}, "frechet": 0.02 * i} for i in (0, 2)])
    assert [(row["classifier"], row["mean"], row["std"], row["seeds"]) for row in rows] == [
        ("logreg", 91.0, 1.4, 2),
        ("cnn", 97.0, 0.0, 2),
    ]
    assert not any("accuracy" in row for row in rows)
    assert {row["frechet"] for row in rows} == {0.02}
