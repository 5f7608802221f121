"""The published distances: scalings, groups, and errata 4 and 5."""

import pytest
import torch

from models.published import published_distance, published_loss


def seeded_distance(source, target, sigma=0.0, n_projections=500, **options):
    """The distance along the same directions at every call."""
    torch.manual_seed(0)
    return float(published_distance(source, target, sigma, n_projections, **options))


def normal_rows(n_samples, n=64, seed=0):
    """Samples (n, 6) of normal rows."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n_samples, n, 6, generator=generator).unbind()


def test_algorithm_1_adds_noise_to_both_sides():
    """The difference of two noises has variance 0.5; one alone would give 0.25."""
    zeros = torch.zeros(1, 6)
    distance = seeded_distance(zeros, zeros, sigma=0.5, n_projections=20_000, scaling="none")
    assert distance == pytest.approx(2 * 0.5**2, rel=0.05)


def test_algorithm_1_does_not_scale_rows():
    source, target = normal_rows(2)
    scale = 2 * float(target.norm(dim=1).max())
    scaled = seeded_distance(source, target, scaling="target")
    assert seeded_distance(source, target, scaling="none") == pytest.approx(scaled * scale**2)


def test_algorithm_2_does_not_see_one_side_grow():
    source, target = normal_rows(2)
    distance = seeded_distance(source, target, scaling="own")
    assert seeded_distance(source, 2 * target, scaling="own") == pytest.approx(distance)
    grown = {"source": 2 * target, "target": target, "n_projections": 50}
    assert seeded_distance(**grown, scaling="own") == pytest.approx(0, abs=1e-10)
    assert seeded_distance(**grown, scaling="target") > 0.001  # control: the authors' code


def test_groups_are_compared_separately():
    torch.manual_seed(0)
    rows = torch.randn(6, 5)
    first = rows[:3]
    second = rows[3:]
    swapped = torch.cat([second, first])
    # Together, both sides hold the same six rows.
    assert seeded_distance(rows, swapped, n_projections=50) == pytest.approx(0, abs=1e-12)
    # In groups of three, other rows are compared; the scale is that of all six, or of three.
    groups = seeded_distance(rows, swapped, n_projections=20_000, groups=2)
    single = seeded_distance(first, second, n_projections=20_000)
    largest_of_all = float(rows.norm(dim=1).max())
    largest_of_second = float(second.norm(dim=1).max())
    expected = single * largest_of_second**2
    assert groups * largest_of_all**2 == pytest.approx(expected, rel=0.05)


def test_published_loss_is_the_root_in_units_of_the_rows():
    (rows,) = normal_rows(1, n=32)
    # All rows move by 3 sqrt(6), of which a direction sees a sixth of the square.
    moved = rows + 3.0
    torch.manual_seed(0)
    assert float(published_loss(moved, rows, 0.0, 20_000)) == pytest.approx(3.0, rel=0.03)


def one_record_1000_times_as_long(target):
    """Return private rows of which the first one is longer."""
    far = target.clone()
    far[0] *= 1000
    return far


def gradients_of_the_others(target, distance):
    """Norms of the gradient of the other records, without a long record and with one."""
    norms = []
    for private in (target.clone(), one_record_1000_times_as_long(target)):
        private.requires_grad_(True)
        distance(private).backward()
        norms.append(float(private.grad[1:].norm()))
    return norms


def test_erratum_4_in_algorithm_2_one_record_removes_the_gradient_of_the_others():
    source, target = normal_rows(2, n=32)
    near, far = gradients_of_the_others(
        target, lambda private: published_distance(source, private, 4.74, 12, scaling="own")
    )
    assert far < near / 50


def test_erratum_4_in_the_code_one_record_makes_the_noise_of_all_larger():
    source, target = normal_rows(2, n=32)
    # The gradient of the others keeps its size, since the distance is multiplied back.
    near, far = gradients_of_the_others(
        target, lambda private: published_loss(source, private, 4.74, 200)
    )
    assert near / 2 < far < 2 * near
    # Nearly all of the loss is noise, whose deviation in units of the rows is 4.74 times the scale.
    near_loss = published_loss(source, target, 4.74, 200)
    far_loss = published_loss(source, one_record_1000_times_as_long(target), 4.74, 200)
    longest = torch.linalg.vector_norm(target, dim=1).max()
    ratio = 1000 * torch.linalg.vector_norm(target[0]) / longest
    assert float(far_loss / near_loss) == pytest.approx(float(ratio), rel=0.1)


def test_erratum_5_the_gradient_reads_the_raw_batch():
    """A pixel that only one private record inks shows, with equal noise."""
    torch.manual_seed(0)
    encoder = torch.nn.Linear(5, 3)
    source = torch.rand(16, 5)
    source[:, 4] = 0
    target = torch.rand(16, 5)
    target[:, 4] = 0
    inked = target.clone()
    inked[0, 4] = 1e-6

    def pixel_shows(private):
        torch.manual_seed(0)
        loss = published_loss(encoder(source), encoder(private), 50.0, 8)
        (gradient,) = torch.autograd.grad(loss, encoder.weight)
        return bool(gradient[:, 4].any())

    assert not pixel_shows(target)
    assert pixel_shows(inked)
