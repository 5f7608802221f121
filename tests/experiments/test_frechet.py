"""Frechet distances: closed forms, an independent reference, and what they are allowed to be called."""

import numpy as np
import pytest
import torch
from scipy import linalg

from dpswd.data import Digits
from experiments.generation.frechet import frechet_distance, rotation_cnn, small_cnn_frechet


def sample(n, mean, scale, seed):
    noise = torch.randn(n, len(mean), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return torch.tensor(mean).double() + noise * torch.tensor(scale).double()


def test_agrees_with_the_matrix_square_root():
    mix = torch.randn(3, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    first, second = sample(500, [0, 1, 2], [1, 2, 3], 0), sample(400, [1, 1, 0], [2, 1, 1], 1) @ mix
    a, b = (np.cov(side.numpy(), rowvar=False) for side in (first, second))
    shift = (first.mean(0) - second.mean(0)).square().sum()
    expected = float(shift) + np.trace(a + b - 2 * linalg.sqrtm(a @ b).real)
    assert frechet_distance(first, second) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(second, first) == pytest.approx(expected, rel=1e-9)
    assert frechet_distance(first, first) == pytest.approx(0, abs=1e-9)


def test_small_cnn_puts_noise_farther_away_than_other_digits():
    data = Digits()
    real, other = data.private.floats(), data.test.floats()
    network = rotation_cnn(real)
    near = small_cnn_frechet(network, real, other)
    noise = torch.rand(other.shape, generator=torch.Generator().manual_seed(0))
    assert small_cnn_frechet(network, real, real) == pytest.approx(0, abs=1e-6)
    assert 0 < near < small_cnn_frechet(network, real, noise) / 10
