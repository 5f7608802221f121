"""Columns: bins, normal scores and their inverse, estimated masses, and tables through the generator."""

import numpy as np
import pytest
import torch
from factories import booked
from scipy import stats

from dpswd import Budget, ColumnCounts, InputError, PrivateGenerator, PrivateRecords, mixture
from dpswd.bins import Bins
from dpswd.mixture.columns import NormalScores, estimate
from dpswd.networks.generator import draw

N = 6000
BOUNDS, KINDS = [(0, 99_999), (0, 10), (2, 5), (1, 16)], ["integer", "numeric", "binary", "integer"]


def table(n=N, seed=0):
    """A wide integer column with zeros in nine of ten rows, a clipped normal one, a binary one, few integers."""
    rng = np.random.default_rng(seed)
    gain = np.where(rng.random(n) < 0.9, 0, rng.integers(1, 99_999, n))
    level = rng.normal(5, 2, n).clip(0, 10)
    group = np.where(level + rng.normal(0, 1, n) > 6, 5, 2)
    years = (level + rng.normal(0, 1, n) + 3).round().clip(1, 16)
    return torch.from_numpy(np.stack([gain, level, group, years], axis=1)).float()


@pytest.fixture(scope="module")
def fitted():
    """Bins, and normal scores of two classes from counts with little noise."""
    query = ColumnCounts(2, BOUNDS, KINDS, 64, sigma=0.5, noise_seed=0)
    labels = torch.arange(N) % 2
    counts = booked(query).release(PrivateRecords(table(), labels, classes=range(2)))
    estimated = estimate(query.bins, counts, 0.5, N)
    return NormalScores.of(query.bins, estimated.masses), labels, estimated.sizes


def test_bins_hold_their_values_and_atoms():
    bins = Bins.of([*BOUNDS, (-0.3, 0.7)], [*KINDS, "numeric"], 64)
    assert bins.n_bins == (64, 64, 2, 16, 64)
    for j, (low, high) in enumerate([*BOUNDS, (-0.3, 0.7)]):
        ends = torch.tensor([[low, high]]).float().T.expand(2, 5).clone()
        assert bins.index(ends)[:, j].tolist() == [0, bins.n_bins[j] - 1]
        assert bins.atoms[j, [0, bins.n_bins[j] - 1]].float().tolist() == ends[:, j].tolist()
    assert torch.equal(bins.atoms[3, :16], torch.arange(1, 17).double())
    assert bins.atoms[0].isnan().sum() == 62  # wide bins; zero and the upper bound are atoms
    assert bins.index(torch.full((1, 5), -1e30)).tolist() == [[0] * 5]
    assert bins.nodes(ends).shape == (2, len(bins.levels))
    assert int(bins.nodes(ends).max()) == bins.n_nodes - 1
    with pytest.raises(
        InputError, match=r"two values of the integer column 1 between them, got \(0, 0\.1\)"
    ):
        Bins.of([(0, 1), (0, 0.1)], ["binary", "integer"], 64)


def test_scores_of_numbers_are_normal_and_come_back_and_atoms_have_one_score(fitted):
    columns, labels, sizes = fitted
    torch.testing.assert_close(sizes, torch.tensor([N / 2, N / 2]).double(), rtol=0.01, atol=0)
    scores = columns.scores(table(), labels)
    assert stats.kstest(scores[:, 1].numpy(), "norm").statistic < 0.02
    assert scores[:, 2].unique().numel() == 4  # two values in two classes
    torch.testing.assert_close(scores.mean(0), torch.zeros(4).double(), atol=0.02, rtol=0)
    alone = columns.scores(table()[7:8], labels[7:8])
    torch.testing.assert_close(alone, scores[7:8])  # of one record each
    uniform = torch.rand(N, 4, generator=torch.Generator().manual_seed(0))
    drawn = columns.values(uniform, labels)
    assert float((drawn[:, 0] == 0).float().mean()) == pytest.approx(0.9, abs=0.02)
    inner = (uniform[:, 1] - 0.5).abs() < 0.47  # beyond are the atoms at the bounds
    back = torch.special.ndtr(columns.scores(drawn, labels))[inner, 1]
    torch.testing.assert_close(
        back, uniform[inner, 1].double(), atol=1e-3, rtol=0
    )  # a number comes back


def test_masses_are_a_distribution_whatever_the_noise():
    query = ColumnCounts(3, BOUNDS, KINDS, 64, sigma=1.0)
    counts = (
        200
        * torch.randn(3, query.bins.n_nodes, generator=torch.Generator().manual_seed(0)).double()
    )
    estimated = estimate(query.bins, counts, 200.0, 100)
    masses = estimated.masses
    torch.testing.assert_close(masses.sum(2), torch.ones(3, 4).double())
    assert bool((masses >= 0).all())
    assert float(estimated.sizes.sum()) == pytest.approx(100)
    assert bool((masses[:, 2, 2:] == 0).all())  # padding


def test_trees_beat_bins():
    """Noise of 300 on 256 counts of 24 on average: groups keep the distribution."""
    query = ColumnCounts(1, [(0, 100_000)], ["integer"], 256, sigma=1.0)
    rows = table()[:, :1]
    exact = torch.zeros(1, query.bins.n_nodes).double()
    exact[0] += torch.bincount(query.bins.nodes(rows).flatten(), minlength=query.bins.n_nodes)
    noisy = (
        exact + 300 * torch.randn(exact.shape, generator=torch.Generator().manual_seed(1)).double()
    )
    tree = estimate(query.bins, noisy, 300.0, N).masses[0, 0]
    bins = (noisy[0, :256].clamp(min=0) / noisy[0, :256].clamp(min=0).sum()).cumsum(0)
    true = (exact[0, :256] / N).cumsum(0)
    assert float((tree.cumsum(0) - true).abs().mean()) < 0.5 * float((bins - true).abs().mean())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    rows, labels = table().numpy(), (table()[:, 1] > 6).numpy().astype(int)
    options = {"bounds": BOUNDS, "kinds": KINDS, "classes": [0, 1], "verbose": False}
    return PrivateGenerator(8, 1e-5, run_dir=tmp_path_factory.mktemp("run") / "r", **options).fit(
        rows, labels
    )


def test_tables_have_their_columns_and_correlations(made, tmp_path):
    rows, (drawn, classes) = table().numpy(), made.sample(N, proportions="released")
    assert made.guarantee_["epsilon"] <= 8
    for j in range(4):
        assert stats.wasserstein_distance(rows[:, j], drawn[:, j]) < 0.06 * rows[:, j].std()
    assert np.abs(np.corrcoef(rows.T) - np.corrcoef(drawn.T)).max() < 0.1
    ends = np.quantile(drawn[classes == 1, 1], 0.05), np.quantile(drawn[classes == 0, 1], 0.95)
    assert ends == pytest.approx((6, 6), abs=0.3)
    assert np.array_equal(drawn[:, [0, 2, 3]], drawn[:, [0, 2, 3]].round())
    assert set(drawn[:, 2]) == {2.0, 5.0}
    made.save(tmp_path / "generator.pt")
    loaded = PrivateGenerator.load(tmp_path / "generator.pt")
    loaded.set_params(random_state=made.random_state)
    loaded._n_draws = made._n_draws = 0
    np.testing.assert_array_equal(loaded.sample(50)[0], made.sample(50)[0])


def test_classes_with_columns_in_common_differ_in_theirs(tmp_path):
    """Few records: one distribution of each column, and the means of the scores of classes."""
    rng, classes = np.random.default_rng(0), np.arange(400) % 2
    rows = np.stack(
        [rng.exponential(1, 400) * (1 + 3 * classes), rng.random(400) < 0.3], axis=1
    ).clip(0, 30)
    records = PrivateRecords(
        rows, classes, classes=[0, 1], bounds=[(0, 30), (0, 1)], kinds=["numeric", "binary"]
    )
    budget = Budget(records, target_epsilon=4, target_delta=1e-5, run_dir=tmp_path / "run")
    generator = mixture.fit(records, budget, noise_seed=0)
    assert (generator.structure.own_columns, generator.structure.n_bins > 0) == (False, True)
    torch.manual_seed(0)
    drawn = draw(generator, torch.arange(4000) % 2).double().numpy()
    for j in range(2):
        assert stats.wasserstein_distance(rows[:, j], drawn[:, j]) < 0.15 * rows[:, j].std()
    found = [np.median(drawn[c::2, 0]) / np.median(rows[classes == c, 0]) for c in (0, 1)]
    assert found == pytest.approx([1, 1], abs=0.35)  # one median for both: 2.1 and 0.5
    assert set(drawn[:, 1]) == {0.0, 1.0}


def test_one_cell_and_no_classes(tmp_path):
    rows = np.random.default_rng(0).exponential(1, (1000, 120)) + np.random.default_rng(
        1
    ).exponential(1, (1000, 1))
    made = PrivateGenerator(
        10, 1e-5, bounds=[(0, 8)] * 120, run_dir=tmp_path / "run", verbose=False
    ).fit(rows)
    assert (made.generator_.structure.n_cells, made.generator_.structure.n_releases) == (1, 2)
    drawn = made.sample(1000)[0]
    each = [
        stats.wasserstein_distance(*pair) / pair[0].std()
        for pair in zip(rows.T, drawn.T, strict=True)
    ]
    assert np.median(each) < 0.4
    assert np.corrcoef(drawn.T).mean() > 0.2  # real columns: 0.5
