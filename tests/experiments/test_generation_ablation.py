"""Ablation of the default generator: every change changes the run, and nothing else; rows over seeds."""

from unittest.mock import patch

import pytest
import torch

from dpswd.mixture import structure
from dpswd.mixture.structure import forecast
from experiments.generation import generation_ablation
from experiments.generation.generation_ablation import CELLS, PARTS, Cell, Part, evaluate


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
