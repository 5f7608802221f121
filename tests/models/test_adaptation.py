"""Alignment by private releases: it adapts, and the budget holds every release."""

import pytest
import torch
from factories import ledger_of, privacy, triangle
from torch import nn

from dpswd.features.maps import Flatten
from models.adaptation import (
    accuracy,
    fit_aligned,
    fit_aligned_unprotected,
    fit_source,
    source_batches,
)
from models.encoders import FeatureEncoder, ShiftAdapter, classifier

SHIFT = 1.5


@pytest.fixture
def start():
    """Encoder and classifier trained on the source, and its batches."""
    torch.manual_seed(0)
    encoder = FeatureEncoder(6, 4, normalise=False)
    head = classifier(4, 3)
    source = source_batches(triangle(600, 0), 64)
    fit_source(encoder, head, source, 200, 5e-3)
    return encoder, head, source


def adapter_options():
    return {"adapter": ShiftAdapter(6), "space": Flatten((6,), radius=6.0), "lr": 2e-3}


def target_accuracy(encoder, head):
    return accuracy(nn.Sequential(encoder, head), triangle(600, 2, SHIFT))


def test_an_adapter_learns_the_target_from_one_release(start, tmp_path):
    encoder, head, source = start
    before = target_accuracy(encoder, head)
    spent = fit_aligned(
        encoder,
        head,
        source,
        triangle(3000, 1, SHIFT).private(),
        steps=200,
        run_dir=tmp_path / "run",
        target_epsilon=10.0,
        target_delta=1e-5,
        **adapter_options(),
    )
    assert target_accuracy(encoder, head) > max(90, before + 5)
    assert spent["sound"]
    assert spent["epsilon"] <= 10.0


def test_an_adapter_learns_the_target_without_noise(start):
    encoder, head, source = start
    before = target_accuracy(encoder, head)
    target = triangle(3000, 1, SHIFT).floats()
    fit_aligned_unprotected(encoder, head, source, target, steps=200, **adapter_options())
    assert target_accuracy(encoder, head) > max(90, before + 5)


def fit_features(start, run_dir, n_releases):
    """Align features of 330 records, of which a release reads 320: 16 blocks of 20."""
    encoder, head, source = start
    return fit_aligned(
        encoder,
        head,
        source,
        triangle(330, 1, SHIFT).private(),
        steps=10,
        n_releases=n_releases,
        run_dir=run_dir,
        target_epsilon=2.0,
        target_delta=1e-5,
    )


def test_the_ledger_holds_the_releases_of_features(start, tmp_path):
    spent = fit_features(start, tmp_path, n_releases=3)
    (group,) = ledger_of(tmp_path).groups()
    mechanism, sample_size, count = group
    assert sample_size == 330
    assert count == 3
    assert mechanism.batch_size == 320
    assert mechanism.dim == 4
    statement = privacy(tmp_path)
    assert statement["sound"]
    assert statement["epsilon"] == spent["epsilon"] == pytest.approx(2.0, rel=0.01)


def test_more_releases_get_more_noise(start, tmp_path):
    fit_features(start, tmp_path / "one", n_releases=1)
    fit_features(start, tmp_path / "three", n_releases=3)
    ((one, _, _),) = ledger_of(tmp_path / "one").groups()
    ((three, _, _),) = ledger_of(tmp_path / "three").groups()
    assert three.sigma > one.sigma
