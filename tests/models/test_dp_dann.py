"""DP-DANN: clipping, noise, account, and what Opacus leaves behind."""

import pytest
import torch
from factories import triangle
from torch import nn

from dpswd import PrivacyAccountant
from dpswd.mechanism import GaussianMechanism
from models import dp_dann
from models.adaptation import accuracy, source_batches
from models.encoders import FeatureEncoder, classifier

BATCH = 16
N = 120

pytestmark = [
    # Opacus: images need no gradient.
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
]


def fit(steps=4, clip=0.5):
    """Encoder and classifier after a training, and what is stated of it."""
    torch.manual_seed(0)
    encoder = FeatureEncoder(6, 5, normalise=False)
    head = classifier(5, 3)
    statement = dp_dann.fit_dp_dann(
        encoder,
        head,
        5,
        source_batches(triangle(300, 0), 32),
        triangle(N, 1).floats(),
        steps=steps,
        batch_size=BATCH,
        lr=1e-2,
        clip=clip,
        target_epsilon=8.0,
        target_delta=1e-4,
    )
    return encoder, head, statement


def epsilon_of(sensitivity, sigma):
    mechanism = GaussianMechanism(sensitivity=sensitivity, sigma=sigma, batch_size=BATCH)
    account = PrivacyAccountant("pld").step(mechanism, sample_size=N, n_releases=4)
    return account.get_epsilon(1e-4)


def test_accounts_for_replace_one_at_twice_the_clip():
    _, _, statement = fit(clip=0.25)
    sigma = 0.25 * statement["noise_multiplier"]
    assert epsilon_of(0.5, sigma) == pytest.approx(statement["epsilon"], rel=1e-6)
    assert statement["epsilon"] <= 8.0
    # Control: a sensitivity of C would claim less.
    assert epsilon_of(0.25, sigma) < 0.7 * statement["epsilon"]


def test_is_conditional():
    _, _, statement = fit()
    assert statement["sound"] is False
    assert len(statement["conditions"]) == 3


def test_parameters_keep_no_gradient():
    encoder, _, _ = fit()
    for parameter in encoder.parameters():
        assert parameter.grad is None
        assert all(value is None for value in vars(parameter).values())


def test_releases_a_clipped_sum_with_the_stated_noise(monkeypatch):
    """A release is (sum of clipped gradients + noise) / B."""
    clip = 1e-3
    releases = []
    wrap = dp_dann.wrap_for_opacus

    def wrap_and_watch(*modules, noise_multiplier, **options):
        networks = wrap(*modules, noise_multiplier=noise_multiplier, **options)
        optimiser = networks.dp_optimiser
        pre_step = optimiser.pre_step

        def watched_pre_step():
            result = pre_step()
            norms = [
                parameter.grad_sample.flatten(1).norm(dim=1)
                for parameter in optimiser.params
                if parameter.requires_grad
            ]
            exact = torch.cat([parameter.summed_grad.flatten() for parameter in optimiser.params])
            noisy = torch.cat([parameter.grad.flatten() for parameter in optimiser.params])
            noise = (BATCH * noisy - exact) / (noise_multiplier * clip)
            releases.append((torch.stack(norms).norm(dim=0), exact, noise))
            return result

        optimiser.pre_step = watched_pre_step
        return networks

    monkeypatch.setattr(dp_dann, "wrap_for_opacus", wrap_and_watch)
    fit(steps=6, clip=clip)
    for norms, exact, _ in releases:
        assert norms.max() > clip  # control: clipping has something to do
        assert exact.norm() <= BATCH * clip * (1 + 1e-4)
    noise = torch.cat([noise for _, _, noise in releases])
    # A sample variance of n normal numbers has the standard error sqrt(2 / n); 5 of them.
    tolerance = 5 * (2 / len(noise)) ** 0.5
    assert abs(float(noise.square().mean()) - 1) < tolerance


def test_learns_the_source():
    encoder, head, _ = fit(steps=80)
    assert accuracy(nn.Sequential(encoder, head), triangle(600, 2)) > 90
