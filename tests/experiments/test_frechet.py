"""Distances of images: closed forms, an independent reference, and what they are allowed to be called."""

import numpy as np
import pytest
import torch

from dpswd.data import benchmark
from experiments.generation.frechet import fidelity, precision_recall, random_convolutions


def sample(n, mean, scale, seed):
    noise = torch.randn(n, len(mean), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.tensor(mean).double() + noise * torch.tensor(scale).double()


def in_balls(points, centres, k):
    """Share of points in a ball around a centre as large as the distance to its k-th nearest other centre, by loops."""
    found = 0
    for point in points:
        for i, centre in enumerate(centres):
            others = sorted(np.linalg.norm(centre - other) for j, other in enumerate(centres) if j != i)
            if np.linalg.norm(point - centre) <= others[k - 1]:
                found += 1
                break
    return found / len(points)


def test_precision_and_recall_agree_with_loops():
    real, generated = sample(40, [0, 0], [1, 1], 0), sample(30, [2, 0], [1, 0.2], 1)
    expected = in_balls(generated.numpy(), real.numpy(), 3), in_balls(real.numpy(), generated.numpy(), 3)
    assert precision_recall(real, generated) == pytest.approx(expected)
    assert expected[0] > expected[1] > 0  # the generated law is narrow
    assert precision_recall(real, real) == (1, 1)
    assert precision_recall(real, generated + 100) == (0, 0)


def test_public_features_put_noise_farther_away_than_other_digits():
    digits = benchmark("digits")
    real, other = digits.train.floats(), digits.test.floats()
    assert random_convolutions(other).shape == (359, 256)
    near = fidelity(real, other)
    far = fidelity(real, torch.rand(other.shape, generator=torch.Generator().manual_seed(0)))
    assert 0 < near["frechet"] < far["frechet"] / 10
    assert near["precision"] > 0.7 > 0.1 > far["precision"]
    assert near["recall"] > 0.7 > 0.1 > far["recall"]
