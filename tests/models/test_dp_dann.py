"""DP-DANN: clipping, noise, account, and what Opacus leaves behind."""

from dataclasses import replace
from types import SimpleNamespace

import lightning as L
import pytest
import torch
from factories import ledger_of, privacy, triangle
from torch import nn

from dpswd import PrivacyAccountant, PrivacyBudget
from dpswd.errors import InputError
from dpswd.lightning.adaptation_data import SourceLoader
from dpswd.mechanism import GaussianMechanism
from dpswd.networks.classifiers import Head
from dpswd.networks.encoders import VectorEncoder
from models.domains import TargetLoader, accuracy
from models.dp_dann import DPDANN
from models.gradients import ClippedGradients

BATCH = 16
N = 120
DELTA = 1e-4


def fit(directory, steps=4, clip=0.5, first_step=0):
    """A module after a training within epsilon = 8."""
    torch.manual_seed(0)
    encoder = VectorEncoder(6, (5,), activation="tanh")
    options = {"lr": 1e-2, "first_step": first_step, "hidden": 8}
    module = DPDANN(encoder, Head(5, 3), clip=clip, batch_size=BATCH, **options)
    source = triangle(300, 0)
    loaders = {
        "source": SourceLoader(source.values, source.labels, 32),
        "target": TargetLoader(triangle(N, 1).values, BATCH, fresh=True),
    }
    budget = PrivacyBudget(8.0, DELTA, sample_size=N, n_releases=steps - first_step)
    trainer = L.Trainer(
        max_steps=steps,
        default_root_dir=directory,
        callbacks=[budget],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, loaders)
    return module


def epsilon_of(sensitivity, sigma):
    mechanism = GaussianMechanism(sensitivity=sensitivity, sigma=sigma, batch_size=BATCH)
    account = PrivacyAccountant("pld").step(mechanism, sample_size=N, n_releases=4)
    return account.get_epsilon(DELTA)


def test_accounts_for_replace_one_at_twice_the_clip(tmp_path):
    module = fit(tmp_path, clip=0.25)
    sigma = module.gradients.mechanism.sigma
    statement = privacy(tmp_path)
    assert epsilon_of(0.5, sigma) == pytest.approx(statement["epsilon"], rel=1e-6)
    assert statement["epsilon"] <= 8.0
    # Control: a sensitivity of C would claim less.
    assert epsilon_of(0.25, sigma) < 0.7 * statement["epsilon"]


def test_guarantee_is_conditional_and_counts_the_steps_with_the_term(tmp_path):
    fit(tmp_path, steps=6, first_step=2)
    statement = privacy(tmp_path)
    assert not statement["sound"]
    assert statement["conditions"]
    assert ledger_of(tmp_path).n_releases == statement["releases_made"] == 4


def test_parameters_keep_no_gradient_of_a_record(tmp_path):
    module = fit(tmp_path)
    for parameter in module.parameters():
        assert getattr(parameter, "grad_sample", None) is None


def test_checkpoint_has_every_weight_once(tmp_path):
    names = fit(tmp_path).state_dict().keys()
    assert len([name for name in names if name.endswith("encoder.layers.0.weight")]) == 1


def sum_by_autograd(network, loss, records, clip):
    """The sum of clipped gradients, each by a pass of autograd."""
    total = 0.0
    parameters = list(network.parameters())
    for record in records.split(1):
        parts = torch.autograd.grad(loss(network(record)), parameters)
        gradient = torch.cat([part.flatten() for part in parts]).double()
        total += gradient * min(1.0, clip / float(gradient.norm()))
    return total


def mean_of_squares(outputs):
    return outputs.square().flatten(1).sum(1).mean()


@pytest.mark.parametrize("clip", [1.0, 1e9])
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("n_channels", [1, 3])
@pytest.mark.parametrize("n", [1, 70])
def test_gradients_of_convolutions_are_those_of_autograd(n, n_channels, layout, clip):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(n_channels, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 200, 3, padding=1, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(1800, 20),
    ).to(memory_format=layout)
    records = torch.rand(n, n_channels, 14, 14).to(memory_format=layout)
    query = ClippedGradients(sum(part.numel() for part in network.parameters()), clip, n)
    query.start(network, mean_of_squares)
    with torch.no_grad():
        network[0].weight.mul_(2)  # the copy gets the present weights
    computed = query.contribution(records, torch.zeros(n), n)
    expected = sum_by_autograd(network, mean_of_squares, records, clip)
    error = (computed - expected).norm() / expected.norm()
    assert error < 3e-4  # 1e-4 by the margin of the clip


def test_sum_of_clipped_gradients_with_the_stated_noise():
    """The sum is that of the clipped rows, of which none exceeds C; the noise has its sigma."""
    n_entries = 4000
    clip = 0.1
    rows = torch.randn(BATCH, n_entries, generator=torch.Generator().manual_seed(0))
    rows[0] *= 1e-4  # below the norm
    linear = nn.Linear(n_entries, 1, bias=False)  # its gradient at a record is the record
    query = ClippedGradients(n_entries, clip, BATCH)
    query.start(linear, torch.mean)
    query.mechanism = replace(query.mechanism, sigma=0.3)
    exact = query.contribution(rows, torch.zeros(BATCH), BATCH)
    norms = rows.norm(dim=1, keepdim=True)
    assert norms[1:].min() > clip  # control: clipping has something to do
    expected = (rows * (clip / norms).clamp(max=1)).sum(0).double()
    torch.testing.assert_close(exact, expected, rtol=1e-3, atol=1e-6)
    alone = query.contribution(rows[1:2], torch.zeros(1), 1)
    assert 0.99 * clip < alone.norm() <= clip
    noise = (query.release(rows) - exact) / 0.3
    # A sample variance of n normal numbers has the standard error sqrt(2 / n); 5 of them.
    assert abs(float(noise.square().mean()) - 1) < 5 * (2 / n_entries) ** 0.5


@pytest.mark.parametrize("is_autocast", [False, True])
@pytest.mark.parametrize("change", [-1.0, 0.0])
def test_one_record_moves_the_sum_by_twice_the_clip_at_most(change, is_autocast):
    """All records are equal, so that every rounding has the same sign; one is changed."""
    n = 600
    query = ClippedGradients(1000, 1.0, n)
    query.start(nn.Linear(1000, 1, bias=False), torch.mean)
    rows = torch.full((n, 1000), 0.7)
    neighbour = rows.clone()
    neighbour[0] *= change
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_autocast):
        sums = [query.contribution(part, torch.zeros(n), n) for part in (rows, neighbour)]
        alone = query.contribution(rows[:1], torch.zeros(1), 1)
    assert float(alone.norm()) <= 1.0
    assert 0.99 < float((sums[1] - sums[0]).norm()) <= 2.0


class Centred(nn.Module):
    """Subtracts the mean of the batch."""

    def forward(self, values):
        return values - values.mean(0)


@pytest.mark.parametrize(
    "layer",
    [
        nn.BatchNorm1d(5, affine=False),
        nn.BatchNorm1d(5, affine=False, track_running_stats=False),
        Centred(),
    ],
)
def test_a_layer_that_looks_at_the_batch_is_refused(layer):
    network = nn.Sequential(nn.Linear(3, 5), layer, nn.Tanh(), nn.Dropout(0.5), nn.Linear(5, 1))
    query = ClippedGradients(26, 1.0, 8)
    query.start(network, torch.mean)
    with pytest.raises(InputError, match="treat each record by itself"):
        query.contribution(torch.rand(8, 3), torch.zeros(8), 8)
    network[1] = nn.Identity()  # control: dropout is accepted
    query.start(network, torch.mean)
    query.contribution(torch.rand(8, 3), torch.zeros(8), 8)


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setattr("models.gradients.Processes", lambda: SimpleNamespace(world_size=2))
    query = ClippedGradients(3, 1.0, 8)
    with pytest.raises(InputError, match="Expected one process, got 2"):
        query.start(nn.Linear(3, 1, bias=False), torch.mean)
    assert query.gradients_of is None


def test_batches_of_another_size_than_that_of_the_account_are_refused():
    query = ClippedGradients(3, 1.0, 8)
    query.mechanism = replace(query.mechanism, sigma=0.3)
    query.start(nn.Linear(3, 1, bias=False), torch.mean)
    with pytest.raises(InputError, match=r"batches of batch_size=8 records.*got 9"):
        query.release(torch.rand(9, 3))
    assert query.release(torch.rand(8, 3)).shape == (3,)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 3e38])
def test_a_gradient_without_a_usable_norm_counts_as_zero(number):
    linear = nn.Linear(10, 1, bias=False)  # its gradient at a record is the record
    rows = torch.ones(BATCH, 10)
    query = ClippedGradients(10, 1.0, BATCH)
    query.start(linear, torch.mean)
    others = query.contribution(rows[1:], torch.zeros(BATCH - 1), BATCH)
    rows[0, 3] = number
    torch.testing.assert_close(query.contribution(rows, torch.zeros(BATCH), BATCH), others)


def test_learns_the_source(tmp_path):
    assert accuracy(fit(tmp_path, steps=80), triangle(600, 2)) > 90
