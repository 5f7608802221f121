"""DP-CGAN: account, clipping, and which part of it reads records."""

import lightning as L
import pytest
import torch
from factories import ledger_of, privacy
from torch.utils.data import DataLoader, TensorDataset

from dpswd import FixedSizeSampler, PrivacyAccountant, PrivacyBudget
from dpswd.mechanism import GaussianMechanism
from models.dp_cgan import DPCGAN

N, BATCH, STEPS, DELTA = 200, 20, 4, 1e-4


def images():
    generator = torch.Generator().manual_seed(0)
    return torch.rand(N, 1, 28, 28, generator=generator), torch.arange(N) % 10


def fit(directory, **options):
    """A module after a training within epsilon = 8."""
    torch.manual_seed(0)
    module = DPCGAN(batch_size=BATCH, **options)
    data = TensorDataset(*images())
    sampler = FixedSizeSampler(N, BATCH, n_steps=STEPS)
    trainer = L.Trainer(
        max_epochs=1,
        default_root_dir=directory,
        callbacks=[PrivacyBudget(8.0, DELTA, sample_size=N, n_releases=STEPS)],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, DataLoader(data, batch_sampler=sampler))
    return module


def test_gan_accounts_for_replace_one_at_twice_the_clip(tmp_path):
    module = fit(tmp_path, clip=0.5)
    statement = privacy(tmp_path)
    epsilons = []
    for sensitivity in (1.0, 0.5):
        mechanism = GaussianMechanism(
            sensitivity=sensitivity, sigma=module.gradients.mechanism.sigma, batch_size=BATCH
        )
        account = PrivacyAccountant("pld").step(mechanism, sample_size=N, n_releases=STEPS)
        epsilons.append(account.get_epsilon(DELTA))
    assert epsilons[0] == pytest.approx(statement["epsilon"], rel=1e-6)
    assert statement["epsilon"] <= 8
    assert epsilons[1] < 0.7 * statement["epsilon"]  # control: a sensitivity of C claims less
    assert ledger_of(tmp_path).n_releases == STEPS
    assert not statement["sound"]
    assert statement["conditions"]  # tensors are handed over


def test_a_record_moves_the_sum_of_gradients_by_twice_the_clip_at_most():
    torch.manual_seed(0)
    module = DPCGAN(batch_size=BATCH, clip=0.01)
    module.on_fit_start()
    records, labels = (part[:BATCH] for part in images())
    neighbour, other = records.clone(), labels.clone()
    records[0] = 1.0
    neighbour[0] = -1.0
    other[0] = 9
    sums, plain = [], []
    for images_of_batch, classes in ((records, labels), (neighbour, other)):
        rows = module._rows(images_of_batch, classes)
        sums.append(module.gradients.contribution(rows, classes, BATCH))
        plain.append(torch.cat(module.gradients.gradients_of(rows), dim=1).sum(0))
    assert 0.005 < float((sums[1] - sums[0]).norm()) <= 0.02
    assert float((plain[1] - plain[0]).norm()) > 0.2  # control: without clipping it moves more
    module.on_fit_end()


def test_generator_is_trained_by_the_discriminator_alone(tmp_path):
    before = DPCGAN(batch_size=BATCH).state_dict()
    module = fit(tmp_path)
    after = module.state_dict()
    assert all(bool((before[name] != after[name]).any()) for name in after if "weight" in name)
    sampled = module.generator(module.generator.latent(3), torch.tensor([0, 1, 2]))
    assert sampled.shape == (3, 1, 28, 28)
    assert 0 <= float(sampled.detach().min()) <= float(sampled.detach().max()) <= 1
