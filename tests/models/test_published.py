"""The published alignment: errata 4 and 5, shown by running it. Controls of the sound module's tests."""

import pytest
import torch

from models.alignment import Side
from models.published import NOT_PRIVATE, PublishedTerm, published_distance


def test_algorithm_1_adds_noise_to_both_sides():
    torch.manual_seed(0)
    distance = published_distance(torch.zeros(1, 6), torch.zeros(1, 6), 0.5, 20_000)
    assert float(distance) == pytest.approx(2 * 0.5**2, rel=0.05)  # the difference of two noises; 0.25 with one


def test_erratum_4_one_record_scales_all_rows():
    source, target = torch.randn(2, 32, 6, generator=torch.Generator().manual_seed(0)).unbind()
    far = target.clone()
    far[0] *= 1000
    sizes = []
    for batch in (target, far):
        rows = source.clone().requires_grad_(True)
        published_distance(rows, batch, 1e-6, 12).backward()
        sizes.append(rows.grad[1:].norm())
    assert sizes[1] < sizes[0] / 50  # rows that were not replaced
    assert "erratum 4" in NOT_PRIVATE[0]


def test_erratum_5_the_gradient_reads_the_raw_batch():
    """With equal noise, a pixel that only one private record inks shows in the gradient."""
    encoder = torch.nn.Linear(5, 3)
    target = torch.rand(16, 5)
    target[:, 4] = 0
    inked = target.clone()
    inked[0, 4] = 1e-6
    source = torch.rand(16, 5)
    source[:, 4] = 0
    shown = []
    for batch in (target, inked):
        torch.manual_seed(0)
        ours, theirs = (Side(encoder(side), encoder(side), None) for side in (source, batch))
        (gradient,) = torch.autograd.grad(PublishedTerm(50.0, 8)(ours, theirs, 0.0), encoder.weight)
        shown.append(bool(gradient[:, 4].any()))
    assert shown == [False, True]
    assert "erratum 5" in NOT_PRIVATE[1]
