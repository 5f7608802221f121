"""Baselines of Table 1: they adapt, and the gradient of DANN is reversed."""

import lightning as L
import pytest
import torch
from factories import triangle

from dpswd import InputError
from dpswd.lightning.adaptation_data import SourceLoader
from dpswd.networks.classifiers import Head
from dpswd.networks.encoders import VectorEncoder
from models.adaptation import DANN, SWD, PublishedDPSWD, SourceOnly, reverse
from models.domains import TargetLoader, accuracy

SHIFT = 2.0
STEPS = 150


def fit(module_class, **options):
    """Train on 300 points and 300 moved ones; return the accuracy on other moved ones."""
    torch.manual_seed(0)
    encoder = VectorEncoder(6, (5,), activation="tanh")
    module = module_class(encoder, Head(5, 3, dropout=0.0), lr=1e-2, **options)
    source = triangle(300, 0)
    loaders = {
        "source": SourceLoader(source.values, source.labels, 32),
        "target": TargetLoader(triangle(300, 1, SHIFT).values, 32),
    }
    trainer = L.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loaders)
    return accuracy(module, triangle(600, 2, SHIFT))


@pytest.fixture(scope="module")
def source_accuracy():
    """Accuracy on the target of a training on the source alone, in percent."""
    return fit(SourceOnly)


@pytest.mark.parametrize(("module_class", "weight"), [(DANN, 0.3), (SWD, 2.0)])
def test_baseline_adapts(module_class, weight, source_accuracy):
    assert fit(module_class, weight=weight) > source_accuracy + 8


def test_no_term_before_its_first_step(source_accuracy):
    assert fit(SWD, weight=0.3, first_step=STEPS) == source_accuracy


def test_published_noise_hinders(source_accuracy):
    """Noise far above the features leaves nothing of the distance but noise."""
    with_little = fit(PublishedDPSWD, weight=2.0, sigma=1e-3)
    assert with_little > source_accuracy + 8
    assert fit(PublishedDPSWD, weight=2.0, sigma=50.0) < source_accuracy + 8


def test_reverse_turns_the_gradient():
    features = torch.randn(3, 2, requires_grad=True)
    reversed_features = reverse(features)
    assert torch.equal(reversed_features, features)
    reversed_features.sum().backward()
    torch.testing.assert_close(features.grad, torch.full((3, 2), -1.0))


def test_options_out_of_range_are_refused():
    parts = (VectorEncoder(6, (5,)), Head(5, 3))
    with pytest.raises(InputError, match="weight"):
        DANN(*parts, weight=-1.0)
    with pytest.raises(InputError, match="sigma"):
        PublishedDPSWD(*parts, sigma=0.0)
