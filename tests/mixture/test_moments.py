"""Post-processing of released moments: shrinkage, cells, spectra."""

import pytest
import torch

from dpswd.mixture import moments


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, generator):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def symmetric_noise(*shape, generator):
    """Noise of a second moment: variance 1 on the diagonal, 1/2 off it."""
    draws = normal(*shape, generator=generator)
    return (draws + draws.mT) / 2


def test_cells_of_depends_on_the_record_alone():
    generator = seeded()
    rows = normal(50, 4, generator=generator)
    labels = torch.randint(3, (50,), generator=generator)
    centres = normal(3, 2, 4, generator=generator)
    cells = moments.cells_of(rows, labels, centres)
    assert bool((cells // 2 == labels).all())
    for i in range(50):
        alone = moments.cells_of(rows[i : i + 1], labels[i : i + 1], centres)
        assert int(alone) == int(cells[i])


def test_first_centres_of_rows_without_variance_are_their_means():
    """A released covariance may be all noise; k-means must not warn that rows coincide."""
    means = torch.eye(3, 4, dtype=torch.float64)
    centres = moments.first_centres(means, torch.zeros(4, 4, dtype=torch.float64), 3)
    assert torch.allclose(centres, means[:, None], atol=1e-3)


def test_moved_to_has_the_released_moments():
    generator = seeded()
    deviations = torch.tensor([3.0, 2.0, 1.0, 0.5])
    reference = normal(300, 4, generator=generator) * deviations
    half = normal(4, 4, generator=generator)
    mean = half[0]
    covariance = half @ half.T
    moved = moments.moved_to(reference, mean, covariance)
    assert torch.allclose(moved.mean(0), mean)
    assert torch.allclose(torch.cov(moved.T, correction=0), covariance)


def test_moved_to_of_its_own_moments_moves_nothing():
    reference = normal(300, 4, generator=seeded())
    covariance = torch.cov(reference.T, correction=0)
    same = moments.moved_to(reference, reference.mean(0), covariance)
    assert torch.allclose(same, reference)


@pytest.mark.parametrize(("noise", "factor"), [(1.0, 1.05), (500.0, 0.2)])
def test_class_means_are_pulled_together_as_far_as_the_noise_asks(noise, factor):
    """Small noise leaves the means; large noise has a fifth of its effect or less."""
    generator = seeded()
    truth = normal(10, 50, generator=generator)
    counts = torch.full((10,), 100.0, dtype=torch.float64)
    variances = torch.ones(50, dtype=torch.float64)
    sums = counts[:, None] * truth + noise * normal(10, 50, generator=generator)
    error = (moments.class_means(counts, sums, variances, noise) - truth).square().mean()
    assert error < factor * (noise / 100) ** 2


def test_nearest_spectrum_keeps_the_trace():
    matrix = torch.diag(torch.tensor([3.0, 1.0, -1.0], dtype=torch.float64))
    nearest = moments.nearest_spectrum(matrix)
    assert float(nearest.trace()) == pytest.approx(3.0)
    assert torch.linalg.eigvalsh(nearest).min() >= -1e-12
    assert torch.allclose(moments.nearest_spectrum(nearest), nearest)
    assert float(moments.nearest_spectrum(-matrix @ matrix).abs().max()) == 0


def test_cell_covariances_weigh_the_cell_against_its_class():
    """With noise as large as the difference between cells, the weight halves the squared error."""
    generator = seeded()
    d = 6
    n = 400.0
    n_cells = 100
    ascending = torch.diag(torch.arange(1.0, d + 1)).double()
    two = torch.stack([ascending, ascending.flip(0, 1)])
    truth = two.repeat(n_cells // 2, 1, 1)
    of_class = two.mean(0)[None]
    counts = torch.full((n_cells,), n).double()
    means = torch.zeros(n_cells, d).double()
    weights = torch.full((1, n_cells), 1 / n_cells).double()

    def error_sq(estimate):
        return float((estimate - truth).square().sum((1, 2)).mean())

    def estimate(released, noise):
        return moments.cell_covariances(counts, released, noise, weights, means, of_class)

    noise = n * (error_sq(of_class) / (d * (d + 1) / 2)) ** 0.5
    released = n * truth + noise * symmetric_noise(n_cells, d, d, generator=generator)
    nearer = min(error_sq(of_class), error_sq(released / n))
    assert error_sq(estimate(released, noise)) < 0.7 * nearer
    assert error_sq(estimate(n * truth, 1e-9)) < 1e-9
    assert error_sq(estimate(0.4 * n * truth, 1e-9)) < 1e-9  # clipped: the variance of the class


def test_class_covariances_of_a_rare_class_are_pulled_to_the_pooled_one():
    """Noise has half of its effect or less, until it hides the largest variance."""
    generator = seeded()
    d = 30
    counts = torch.tensor([900.0, 100.0], dtype=torch.float64)
    spectrum = 1 / torch.arange(1, d + 1, dtype=torch.float64)
    turn = torch.linalg.qr(normal(d, d, generator=generator)).Q
    half = spectrum.sqrt()
    rare_covariance = half[:, None] * (turn * spectrum * d / 5) @ turn.T * half
    truth = torch.stack([torch.diag(spectrum), rare_covariance])
    unit_noise = symmetric_noise(2, d, d, generator=generator) / counts[:, None, None]

    def rare_error(noise, rare):
        released = truth + noise * unit_noise
        total = (counts[:, None, None] * released).sum(0)
        pooled = moments.nearest_spectrum(total / counts.sum())
        pulled = moments.class_covariances(counts, released, pooled, noise, 1, rare)
        return float((pulled[1] - rare_covariance).square().sum())

    assert rare_error(1e-9, moments.RARE) < 1e-9
    assert rare_error(10.0, moments.RARE) < 0.5 * rare_error(
        10.0, rare=0.0
    )  # control: none is rare
    assert rare_error(30.0, moments.RARE) == rare_error(30.0, rare=0.0)


@pytest.mark.parametrize(
    ("counts", "noise", "n_cells", "is_pooled"),
    [
        pytest.param((900.0, 100.0), 1e-9, 3, True, id="a class below a cell"),
        pytest.param((900.0, 250.0), 1e-9, 3, False, id="a class above a cell"),
        pytest.param((900.0, 100.0), 1e-9, 1, False, id="one cell per class"),
        pytest.param((60.0, 40.0), 100.0, 3, False, id="balanced classes keep the noise"),
    ],
)
def test_class_covariances_are_the_pooled_one_where_a_class_is_smaller_than_a_cell(
    counts, noise, n_cells, is_pooled
):
    own = torch.tensor([[[2.0, 0.5], [0.5, 1.0]], [[1.0, 0.0], [0.0, 2.0]]], dtype=torch.float64)
    pooled = own.mean(0)
    counts = torch.tensor(counts).double()
    estimate = moments.class_covariances(counts, own, pooled, noise, n_cells)
    expected = pooled.expand(2, 2, 2) if is_pooled else own
    assert torch.allclose(estimate, expected)


@pytest.mark.parametrize("noise", [0.001, 0.3, 2.0])
def test_column_variances_have_their_sum_and_are_not_below_the_noise(noise):
    """Of a hundred columns with variances of 0.1 to 2, about half clipped."""
    true = torch.linspace(0.1, 2, 100, dtype=torch.float64)
    normal = torch.randn(100, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    released = true / 2 + noise * normal
    variances = moments.column_variances(released, noise, total=float(true.sum()))
    assert float(variances.sum()) == pytest.approx(float(true.sum()))
    factor = float(true.sum() / released.sum().clamp(min=1e-9))
    assert float(variances.min()) > 0.25 * min(noise * factor, float(true.mean()))
    if noise < 0.1:
        torch.testing.assert_close(variances, true, rtol=0.05, atol=0.01)
