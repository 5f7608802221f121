"""Private alignment in the training: one release and many steps, and no gradient through the private branch."""

import pytest
import torch
from torch import nn

from dpswd.records import Records
from models import adaptation
from models.adaptation import accuracy, fit_aligned, fit_source, source_batches
from models.encoders import FeatureEncoder, ShiftAdapter, classifier

SHIFT = 1.5


class Space(nn.Module):
    """Vectors of six numbers as they are, in a ball of radius 6."""

    dim, radius = 6, 6.0

    def forward(self, records):
        return records / (2 * self.radius)


def blobs(n, seed, shift=0.0):
    """Three classes on a triangle in six dimensions, all moved alike."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    angles = 2 * torch.pi * labels / 3
    values = 0.3 * torch.randn(n, 6, generator=generator)
    values[:, :2] += 2 * torch.stack([angles.cos(), angles.sin()], 1)
    return Records(values + shift * torch.tensor([1.0, 0.5, 0.0, 0.0, 0.0, 0.0]), labels)


@pytest.fixture
def start():
    """Encoder and classifier trained on the source, and its batches."""
    torch.manual_seed(0)
    encoder, head = FeatureEncoder(6, 4, normalise=False), classifier(4, 3)
    source = source_batches(blobs(600, 0), 64)
    fit_source(encoder, head, source, 200, 5e-3)
    return encoder, head, source


@pytest.mark.parametrize("epsilon", [10.0, None])
def test_an_adapter_learns_the_target_from_one_release(start, epsilon):
    encoder, head, source = start
    test, target = blobs(600, 2, SHIFT), blobs(3000, 1, SHIFT)
    before = accuracy(nn.Sequential(encoder, head), test)
    options = {"adapter": ShiftAdapter(6), "space": Space(), "lr": 2e-3, "target_epsilon": epsilon}
    spent = fit_aligned(encoder, head, source, target.private(), steps=200, **options)
    assert accuracy(nn.Sequential(encoder, head), test) > max(90, before + 5)
    if epsilon is None:
        assert spent == {}
    else:
        assert spent["sound"]
        assert spent["epsilon"] <= epsilon


def test_features_are_released_as_often_as_accounted(start, monkeypatch):
    """Every release gets the planned number of records and the noise of all releases."""
    encoder, head, source = start
    seen = []

    class Kept(adaptation.DPSlicedWassersteinLoss):
        def exact_values(self, rows, labels, projections):
            assert not rows.requires_grad
            seen.append((self.mechanism.sigma, tuple(rows.shape)))
            return super().exact_values(rows, labels, projections)

    monkeypatch.setattr(adaptation, "DPSlicedWassersteinLoss", Kept)
    target = blobs(330, 1, SHIFT).private()
    spent = fit_aligned(encoder, head, source, target, steps=10, n_releases=3, target_epsilon=2.0)
    assert [shape for _, shape in seen] == [(320, 4)] * 3
    assert len({sigma for sigma, _ in seen}) == 1
    assert spent["epsilon"] == pytest.approx(2.0, rel=0.01)
    fit_aligned(encoder, head, source, target, steps=10, n_releases=1, target_epsilon=2.0)
    assert seen[3][0] < seen[0][0]


def test_a_pass_over_the_source_has_every_record_at_most_once():
    records = Records(torch.arange(10.0)[:, None], torch.arange(10))
    batches = source_batches(records, 4)
    passes = [torch.cat([next(batches)[1] for _ in range(2)]) for _ in range(3)]
    assert all(len(seen.unique()) == 8 for seen in passes)
