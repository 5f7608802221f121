"""Alignment of domains: terms of the baselines, DP-DANN's clipping, noise and account, one private release."""

import pytest
import torch
from torch import nn

from dpswd import PrivacyAccountant
from dpswd.features.maps import Flatten
from dpswd.mechanism import GaussianMechanism
from dpswd.records import Records
from models import adaptation, dp_dann
from models.adaptation import accuracy, fit_aligned, fit_source, source_batches
from models.alignment import DANNTerm, SWDTerm, endless, fit_unprotected
from models.dp_dann import fit_dp_dann
from models.encoders import FeatureEncoder, ShiftAdapter, classifier

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:Full backward hook is firing"
    ),  # opacus: images need no gradient
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
]
SHIFT = 1.5


def triangle(n, seed, shift=0.0):
    """Three classes on a triangle in six dimensions, all moved alike."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    angles = 2 * torch.pi * labels / 3
    values = 0.3 * torch.randn(n, 6, generator=generator)
    values[:, :2] += 2 * torch.stack([angles.cos(), angles.sin()], 1)
    return Records(values + shift * torch.tensor([1.0, 0.5, 0.0, 0.0, 0.0, 0.0]), labels)


def parts(seed=0):
    torch.manual_seed(seed)
    return FeatureEncoder(6, 5, normalise=False), classifier(5, 3)


def batches(size=32):
    return source_batches(triangle(300, 0), size)


def score(encoder, head, shift=0.0):
    return accuracy(nn.Sequential(encoder, head), triangle(600, 2, shift))


@pytest.mark.parametrize("term", [SWDTerm(), DANNTerm(5)], ids=lambda term: type(term).__name__)
def test_unprotected_training_adapts(term):
    encoder, head = parts()
    points = triangle(300, 1, 0.5).floats()
    target = (points[part] for part in endless(300, 32))
    fit_unprotected(encoder, head, term, batches(), target, steps=150, weight=0.3, lr=1e-2)
    assert score(encoder, head, 0.5) > 90


def dp(steps=4, batch=16, clip=0.5, n=120, seed=0):
    encoder, head = parts(seed)
    options = {"steps": steps, "batch_size": batch, "lr": 1e-2, "clip": clip, "target_epsilon": 8.0}
    options["target_delta"] = 1e-4
    return (
        encoder,
        head,
        fit_dp_dann(encoder, head, 5, batches(), triangle(n, 1).floats(), **options),
    )


def test_dp_dann_accounts_for_replace_one_at_twice_the_clip():
    encoder, _, facts = dp(clip=0.25)
    mechanism = GaussianMechanism(
        sensitivity=0.5, sigma=0.25 * facts["noise_multiplier"], batch_size=16
    )
    account = PrivacyAccountant("pld").step(mechanism, sample_size=120, n_releases=4)
    assert account.get_epsilon(1e-4) == pytest.approx(facts["epsilon"], rel=1e-6)
    assert facts["epsilon"] <= 8.0
    assert not any(hasattr(p, "grad_sample") or p.grad is not None for p in encoder.parameters())
    half = GaussianMechanism(
        sensitivity=0.25, sigma=0.25 * facts["noise_multiplier"], batch_size=16
    )
    add_remove = PrivacyAccountant("pld").step(half, sample_size=120, n_releases=4)
    assert (
        add_remove.get_epsilon(1e-4) < 0.7 * facts["epsilon"]
    )  # control: a sensitivity of C would claim less


def test_dp_dann_releases_a_clipped_sum_with_that_noise(monkeypatch):
    """What leaves is (sum of clipped gradients + noise) / B: bounded without noise, of the stated deviation with it."""
    seen = []
    inner = dp_dann._opacus

    def spy(*arguments):
        optimizer, network, adversary, private = inner(*arguments)
        step = private.pre_step

        def pre_step():
            done = step()
            norms = torch.stack(
                [p.grad_sample.flatten(1).norm(dim=1) for p in private.params if p.requires_grad]
            )
            exact = torch.cat([p.summed_grad.flatten() for p in private.params])
            noisy = torch.cat([p.grad.flatten() for p in private.params])
            seen.append((norms.norm(dim=0), exact, noisy, arguments[4].sigma))
            return done

        private.pre_step = pre_step
        return optimizer, network, adversary, private

    monkeypatch.setattr(dp_dann, "_opacus", spy)
    dp(steps=6, clip=1e-3)
    noise = []
    for norms, exact, noisy, sigma in seen:
        assert norms.max() > 1e-3  # clipping has something to do
        assert exact.norm() <= 16 * 1e-3 * (1 + 1e-4)
        noise.append((16 * noisy - exact) / sigma)
    drawn = torch.cat(noise)
    # a sample variance of n normal numbers has standard error sqrt(2 / n); 5 of them
    assert abs(float(drawn.square().mean()) - 1) < 5 * (2 / len(drawn)) ** 0.5


def test_dp_dann_learns_the_source():
    encoder, head, _ = dp(steps=80)
    assert score(encoder, head) > 90


@pytest.fixture
def start():
    """Encoder and classifier trained on the source, and its batches."""
    torch.manual_seed(0)
    encoder, head = FeatureEncoder(6, 4, normalise=False), classifier(4, 3)
    source = source_batches(triangle(600, 0), 64)
    fit_source(encoder, head, source, 200, 5e-3)
    return encoder, head, source


@pytest.mark.parametrize("epsilon", [10.0, None])
def test_an_adapter_learns_the_target_from_one_release(start, epsilon):
    encoder, head, source = start
    test, target = triangle(600, 2, SHIFT), triangle(3000, 1, SHIFT)
    before = accuracy(nn.Sequential(encoder, head), test)
    options = {
        "adapter": ShiftAdapter(6),
        "space": Flatten((6,), radius=6.0),
        "lr": 2e-3,
        "target_epsilon": epsilon,
    }
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
    target = triangle(330, 1, SHIFT).private()
    spent = fit_aligned(encoder, head, source, target, steps=10, n_releases=3, target_epsilon=2.0)
    assert [shape for _, shape in seen] == [(320, 4)] * 3
    assert len({sigma for sigma, _ in seen}) == 1
    assert spent["epsilon"] == pytest.approx(2.0, rel=0.01)
    fit_aligned(encoder, head, source, target, steps=10, n_releases=1, target_epsilon=2.0)
    assert seen[3][0] < seen[0][0]
