"""Post-processing of released moments: shrinkage, cells, spectra."""

import pytest
import torch

from dpswd.mixture import moments


def test_cells_depend_on_the_record_alone():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (50,), generator=generator)
    centres = torch.randn(3, 2, 4, generator=generator, dtype=torch.float64)
    cells = moments.cell_of(rows, labels, centres)
    assert bool((cells // 2 == labels).all())
    alone = [
        moments.cell_of(row[None], label[None], centres)
        for row, label in zip(rows, labels, strict=True)
    ]
    assert torch.equal(cells, torch.cat(alone))
    means, hidden = torch.eye(3, 4, dtype=torch.float64), torch.zeros(4, 4, dtype=torch.float64)
    assert torch.allclose(
        moments.centres(means, hidden, 3), means[:, None], atol=1e-3
    )  # all noise, and no warning


def test_a_reference_gets_the_released_moments():
    generator = torch.Generator().manual_seed(0)
    reference = torch.randn(300, 4, generator=generator, dtype=torch.float64) * torch.tensor(
        [3.0, 2.0, 1.0, 0.5]
    )
    half = torch.randn(4, 4, generator=generator, dtype=torch.float64)
    mean, covariance = half[0], half @ half.T
    moved = moments.like_reference(reference, mean, covariance)
    assert torch.allclose(moved.mean(0), mean)
    assert torch.allclose(torch.cov(moved.T, correction=0), covariance)
    own = moments.like_reference(reference, reference.mean(0), torch.cov(reference.T, correction=0))
    assert torch.allclose(own, reference)  # the transport of a normal law to itself moves nothing


def test_class_means_are_pulled_together_as_far_as_the_noise_asks():
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(10, 50, generator=generator, dtype=torch.float64)
    counts, reference = (
        torch.full((10,), 100.0, dtype=torch.float64),
        torch.ones(50, dtype=torch.float64),
    )
    for noise, factor in ((1.0, 1.05), (500.0, 0.2)):
        sums = counts[:, None] * truth + noise * torch.randn(
            10, 50, generator=generator, dtype=torch.float64
        )
        error = (moments.class_means(counts, sums, reference, noise) - truth).square().mean()
        assert error < factor * (noise / 100) ** 2


def test_the_nearest_spectrum_keeps_the_trace():
    matrix = torch.diag(torch.tensor([3.0, 1.0, -1.0], dtype=torch.float64))
    found = moments.nearest_spectrum(matrix)
    assert float(found.trace()) == pytest.approx(3.0)
    assert torch.linalg.eigvalsh(found).min() >= -1e-12
    assert torch.allclose(moments.nearest_spectrum(found), found)
    assert float(moments.nearest_spectrum(-matrix @ matrix).abs().max()) == 0


def test_covariances_of_cells_weigh_the_cell_against_its_class():
    """With noise as large as the difference between cells, Wiener's weight halves the squared error of either."""
    generator = torch.Generator().manual_seed(0)
    d, n, n_cells = 6, 400.0, 100
    two = torch.stack(
        [torch.diag(torch.arange(1.0, d + 1)), torch.diag(torch.arange(d, 0.0, -1))]
    ).double()
    truth, of_class = two.repeat(n_cells // 2, 1, 1), two.mean(0)[None]
    draws = torch.randn(n_cells, d, d, generator=generator, dtype=torch.float64)
    counts, means = torch.full((n_cells,), n).double(), torch.zeros(n_cells, d).double()
    weights = torch.full((1, n_cells), 1 / n_cells).double()

    def error_sq(estimate):
        return float((estimate - truth).square().sum((1, 2)).mean())

    noise = n * (error_sq(of_class) / (d * (d + 1) / 2)) ** 0.5
    released = n * truth + noise * (draws + draws.mT) / 2
    found = moments.cell_covariances(counts, released, noise, weights, means, of_class)
    assert error_sq(found) < 0.7 * min(error_sq(of_class), error_sq(released / n))
    exact = moments.cell_covariances(counts, n * truth, 1e-9, weights, means, of_class)
    assert error_sq(exact) < 1e-9
    clipped = moments.cell_covariances(counts, 0.4 * n * truth, 1e-9, weights, means, of_class)
    assert error_sq(clipped) < 1e-9  # has the variance of its class again


def test_the_covariance_of_a_rare_class_is_pulled_to_the_pooled_one(monkeypatch):
    """Without noise it stays as it is; noise has half the effect or less, until it hides the largest variance."""
    generator = torch.Generator().manual_seed(0)
    d, counts = 30, torch.tensor([900.0, 100.0], dtype=torch.float64)
    spectrum = 1 / torch.arange(1, d + 1, dtype=torch.float64)
    turn = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q
    other = spectrum.sqrt()[:, None] * (turn * spectrum * d / 5) @ turn.T * spectrum.sqrt()
    truth = torch.stack([torch.diag(spectrum), other])
    draws = torch.randn(2, d, d, generator=generator, dtype=torch.float64)

    def rare_error(noise):
        own = truth + noise / counts[:, None, None] * (draws + draws.mT) / 2
        pooled = moments.nearest_spectrum((counts[:, None, None] * own).sum(0) / counts.sum())
        return float(
            (moments.class_covariances(counts, own, pooled, noise, 1)[1] - other).square().sum()
        )

    exact, noisy, hidden = rare_error(1e-9), rare_error(10.0), rare_error(30.0)
    monkeypatch.setattr(moments, "RARE", 0.0)  # control: no class is pulled
    assert exact < 1e-9
    assert noisy < 0.5 * rare_error(10.0)
    assert hidden == rare_error(30.0)  # as released


def test_all_classes_have_the_pooled_covariance_where_one_is_smaller_than_a_cell():
    own = torch.tensor([[[2.0, 0.5], [0.5, 1.0]], [[1.0, 0.0], [0.0, 2.0]]], dtype=torch.float64)
    for counts, noise, n_cells, pooled in (
        ((900.0, 100.0), 1e-9, 3, True),
        ((900.0, 250.0), 1e-9, 3, False),
        ((900.0, 100.0), 1e-9, 1, False),
        ((60.0, 40.0), 100.0, 3, False),  # balanced classes keep the noise
    ):
        found = moments.class_covariances(
            torch.tensor(counts).double(), own, own.mean(0), noise, n_cells
        )
        assert torch.allclose(found, own.mean(0).expand(2, 2, 2) if pooled else own)
