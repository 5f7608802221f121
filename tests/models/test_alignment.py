"""Unprotected adaptation by the terms of DANN and SWD, and its batches."""

import pytest
import torch
from factories import triangle
from torch import nn

from models.adaptation import accuracy, source_batches
from models.alignment import DANNTerm, SWDTerm, endless, fit_unprotected, reverse, rising
from models.encoders import FeatureEncoder, classifier

SHIFT = 0.5


@pytest.mark.parametrize("kind", ["SWD", "DANN"])
def test_unprotected_training_adapts(kind):
    torch.manual_seed(0)
    encoder = FeatureEncoder(6, 5, normalise=False)
    head = classifier(5, 3)
    term = {"SWD": SWDTerm(), "DANN": DANNTerm(5)}[kind]
    points = triangle(300, 1, SHIFT).floats()
    target = (points[indices] for indices in endless(300, 32))
    source = source_batches(triangle(300, 0), 32)
    fit_unprotected(encoder, head, term, source, target, steps=150, weight=0.3, lr=1e-2)
    assert accuracy(nn.Sequential(encoder, head), triangle(600, 2, SHIFT)) > 90


@pytest.mark.parametrize(("short", "sizes"), [(False, [4, 4, 4, 4]), (True, [4, 4, 2, 4])])
def test_endless_batches(short, sizes):
    batches = endless(10, 4, short=short)
    first = [next(batches) for _ in range(4)]
    assert [len(indices) for indices in first] == sizes
    epoch = torch.cat(first[:3] if short else first[:2])
    assert len(set(epoch.tolist())) == len(epoch)


def test_reverse_turns_the_gradient():
    features = torch.randn(3, 2, requires_grad=True)
    reversed_features = reverse(features, 0.5)
    assert torch.equal(reversed_features, features)
    reversed_features.sum().backward()
    torch.testing.assert_close(features.grad, torch.full((3, 2), -0.5))


def test_rising_weight():
    assert rising(0.0) == 0
    assert 0.9999 < rising(1.0) < 1
