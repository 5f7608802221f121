"""The class-wise Gaussian and DP-MERF: what they learn where the answer is known, and on real digits."""

import torch

from dpswd.data import benchmark
from dpswd.evaluation.accuracy import accuracy, flat
from dpswd.lightning.networks import MLPGenerator
from dpswd.mixture.features import DCT, Flatten
from dpswd.records import Records
from models.dp_merf import DPMERF
from models.gaussian import ClassGaussian


def learnt(sample, n=2000):
    labels, test = torch.arange(n) % 10, benchmark("digits").test
    return accuracy("logreg", (flat(sample(labels)), labels.numpy()), (flat(test.floats()), test.labels.numpy()), True)


def test_gaussian_finds_means_and_covariances(tmp_path):
    """Two classes with known laws; a budget so large that sampling error is what is left."""
    generator = torch.Generator().manual_seed(0)
    n, roots = 20_000, torch.tensor([[[0.05, 0.0], [0.03, 0.02]], [[0.02, 0.0], [0.0, 0.06]]])
    labels = torch.arange(n) % 2
    centres = torch.tensor([[0.1, -0.1], [-0.15, 0.0]])
    rows = centres[labels] + (roots[labels] @ torch.randn(n, 2, 1, generator=generator))[:, :, 0]
    model = ClassGaussian(Flatten((2,), radius=0.5), n_classes=2, spread=0.4)
    model.fit(Records(rows, labels).private(classes=range(2)), tmp_path, 100.0, 1e-5)
    torch.testing.assert_close(model.means, centres, rtol=0, atol=0.005)
    torch.testing.assert_close(model.roots @ model.roots.mT, roots @ roots.mT, rtol=0.1, atol=2e-4)
    torch.manual_seed(0)
    drawn = model.sample(labels)
    for c in range(2):
        torch.testing.assert_close(torch.cov(drawn[labels == c].T), roots[c] @ roots[c].T, rtol=0.1, atol=2e-4)


def test_gaussian_digits_are_learnt_and_shuffled_labels_are_not(tmp_path):
    digits = benchmark("digits")
    shuffled = Records(digits.train.values, digits.train.labels[torch.randperm(len(digits.train))])
    scores = []
    for i, records in enumerate((digits.train, shuffled)):
        torch.manual_seed(0)
        model = ClassGaussian(DCT((1, 8, 8), size=8, centre=0.3, radius=4.0))
        budget = model.fit(records.private(classes=range(10)), tmp_path / str(i), 50.0, 1e-5)
        assert budget.statement()["sound"] is True
        scores.append(learnt(model.sample))
    assert scores[0] > 75
    assert scores[1] < 40


def test_dp_merf_digits(tmp_path):
    torch.manual_seed(0)
    generator = MLPGenerator((1, 8, 8), latent_dim=5, bounded=True)
    model = DPMERF(generator, n_frequencies=300, lengthscale=2.0, generated=200)
    budget = model.release(benchmark("digits").train.private(classes=range(10)), tmp_path, 50.0, 1e-5)
    assert budget.statement()["sound"] is True
    assert budget.n_releases == 1
    before = learnt(model.sample)
    model.train_generator(150)
    assert learnt(model.sample) > max(70, before + 30)
