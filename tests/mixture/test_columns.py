"""Columns: normal scores and their inverse, estimated masses, and tables through the generator."""

import numpy as np
import pytest
import torch
from factories import booked
from scipy import stats

from dpswd import Budget, ColumnCounts, PrivateGenerator, PrivateRecords, mixture
from dpswd.mixture.columns import NormalScores, category_order, estimate
from dpswd.networks.generator import draw

N = 6000
BOUNDS = [(0, 99_999), (0, 10), (2, 5), (1, 16)]
KINDS = ["integer", "numeric", "binary", "integer"]
GAIN, LEVEL, GROUP, YEARS = range(4)


def table(n=N, seed=0):
    """Zeros in nine of ten rows of a wide column; a clipped normal, a binary, an integer column."""
    rng = np.random.default_rng(seed)
    gain = np.where(rng.random(n) < 0.9, 0, rng.integers(1, 99_999, n))
    level = rng.normal(5, 2, n).clip(0, 10)
    group = np.where(level + rng.normal(0, 1, n) > 6, 5, 2)
    years = (level + rng.normal(0, 1, n) + 3).round().clip(1, 16)
    return torch.from_numpy(np.stack([gain, level, group, years], axis=1)).float()


def distance(real, synthetic):
    """1-Wasserstein distance of two columns, in standard deviations of the real one."""
    return stats.wasserstein_distance(real, synthetic) / real.std()


@pytest.fixture(scope="module")
def labels():
    return torch.arange(N) % 2


@pytest.fixture(scope="module")
def estimated(labels):
    """Bins, and the estimate for two classes from counts with little noise."""
    query = ColumnCounts(2, BOUNDS, KINDS, 64, sigma=0.5, noise_seed=0)
    counts = booked(query).release(PrivateRecords(table(), labels, classes=range(2)))
    return query.bins, estimate(query.bins, counts, 0.5, N)


@pytest.fixture(scope="module")
def scores(estimated):
    bins, estimate = estimated
    return NormalScores.of(bins, estimate.masses, category_order(bins, estimate))


def test_scores_of_numbers_are_normal(scores, labels):
    rows = scores.scores(table(), labels)
    assert stats.kstest(rows[:, LEVEL].numpy(), "norm").statistic < 0.02
    torch.testing.assert_close(rows.mean(0), torch.zeros(4).double(), atol=0.02, rtol=0)


def test_scores_of_an_atom_are_one_number_in_each_class(scores, labels):
    rows = scores.scores(table(), labels)
    assert rows[:, GROUP].unique().numel() == 4  # two values in two classes


def test_scores_are_of_one_record_each(scores, labels):
    rows = scores.scores(table(), labels)
    alone = scores.scores(table()[7:8], labels[7:8])
    torch.testing.assert_close(alone, rows[7:8])


def test_values_have_the_released_distribution_and_come_back(scores, labels):
    uniform = torch.rand(N, 4, generator=torch.Generator().manual_seed(0))
    rows = scores.values(uniform, labels)
    assert float((rows[:, GAIN] == 0).float().mean()) == pytest.approx(0.9, abs=0.02)
    inner = (uniform[:, LEVEL] - 0.5).abs() < 0.47  # beyond are the atoms at the bounds
    back = torch.special.ndtr(scores.scores(rows, labels))[inner, LEVEL]
    torch.testing.assert_close(back, uniform[inner, LEVEL].double(), atol=1e-3, rtol=0)


def test_categories_are_ordered_by_the_odds_of_the_classes():
    # Sick records per category, of 1,000 each: the log odds order the categories 2, 0, 3, 1.
    sick = [300, 900, 100, 500]
    wards = torch.arange(4).repeat_interleave(1000)
    labels = torch.cat([(torch.arange(1000) < count).long() for count in sick])
    records = PrivateRecords(wards[:, None].float(), labels, classes=range(2))
    query = ColumnCounts(2, [(0, 3)], ["nominal"], 8, sigma=0.5, noise_seed=0)
    released = estimate(query.bins, booked(query).release(records), 0.5, 4000)
    order = category_order(query.bins, released)[0, :4].tolist()
    assert order in ([2, 0, 3, 1], [1, 3, 0, 2])
    scores = NormalScores.of(query.bins, released.masses, category_order(query.bins, released))
    values = scores.values(torch.rand(4000, 1, dtype=torch.float64), labels)
    assert set(values.flatten().tolist()) == {0, 1, 2, 3}
    # Categories of the same odds have the order of their scores within a class, too.
    of_class = scores.scores(wards[:, None].float(), torch.zeros(4000, dtype=torch.int64))
    first_of_ward = of_class[::1000, 0]
    assert first_of_ward.argsort().tolist() == order
    # Without classes: by their frequency.
    alone = ColumnCounts(1, [(0, 3)], ["nominal"], 8, sigma=0.5, noise_seed=0)
    counts = torch.tensor([[10.0, 40.0, 20.0, 30.0]], dtype=torch.float64)
    by_frequency = category_order(alone.bins, estimate(alone.bins, counts, 0.5, 100))
    assert by_frequency[0, :4].tolist() == [1, 3, 2, 0]


def test_categories_have_a_bin_each_and_one_level():
    query = ColumnCounts(1, [(0, 99)], ["nominal"], 8, sigma=1.0)
    assert query.bins.n_bins == (100,)
    assert query.mechanism.sensitivity == pytest.approx(2**0.5)
    integers = ColumnCounts(1, [(0, 99)], ["integer"], 64, sigma=1.0)
    assert integers.mechanism.sensitivity > query.mechanism.sensitivity
    first, second = query.worst_pair(5)
    values = [booked(ColumnCounts(1, [(0, 99)], ["nominal"], 8, sigma=1e-9, noise_seed=0))]
    difference = values[0].release(first) - booked(
        ColumnCounts(1, [(0, 99)], ["nominal"], 8, sigma=1e-9, noise_seed=0)
    ).release(second)
    assert float(difference.norm()) == pytest.approx(2**0.5, abs=1e-6)


def test_estimate_has_the_sizes_of_the_classes(estimated):
    _, estimate = estimated
    expected = torch.tensor([N / 2, N / 2]).double()
    torch.testing.assert_close(estimate.sizes, expected, rtol=0.01, atol=0)


def test_estimate_is_a_distribution_whatever_the_noise():
    query = ColumnCounts(3, BOUNDS, KINDS, 64, sigma=1.0)
    noise = torch.randn(3, query.bins.n_nodes, generator=torch.Generator().manual_seed(0)).double()
    estimated = estimate(query.bins, 200 * noise, 200.0, 100)
    torch.testing.assert_close(estimated.masses.sum(2), torch.ones(3, 4).double())
    assert bool((estimated.masses >= 0).all())
    assert float(estimated.sizes.sum()) == pytest.approx(100)
    assert bool((estimated.masses[:, GROUP, 2:] == 0).all())  # padding


def test_estimate_from_trees_beats_bins():
    """Noise of 300 on 256 counts of 24 on average: groups keep the distribution."""
    query = ColumnCounts(1, [(0, 100_000)], ["integer"], 256, sigma=1.0)
    nodes = query.bins.nodes(table()[:, :1]).flatten()
    exact = torch.bincount(nodes, minlength=query.bins.n_nodes)[None].double()
    noise = torch.randn(exact.shape, generator=torch.Generator().manual_seed(1)).double()
    noisy = exact + 300 * noise
    tree = estimate(query.bins, noisy, 300.0, N).masses[0, 0].cumsum(0)
    positive = noisy[0, :256].clamp(min=0)
    bins = (positive / positive.sum()).cumsum(0)
    true = (exact[0, :256] / N).cumsum(0)
    assert float((tree - true).abs().mean()) < 0.5 * float((bins - true).abs().mean())


@pytest.fixture(scope="module")
def generator(tmp_path_factory):
    """A generator of the table, in classes by the level."""
    rows = table().numpy()
    generator = PrivateGenerator(
        8,
        1e-5,
        bounds=BOUNDS,
        kinds=KINDS,
        classes=[0, 1],
        run_dir=tmp_path_factory.mktemp("run") / "run",
        verbose=False,
    )
    return generator.fit(rows, (rows[:, LEVEL] > 6).astype(int))


def test_fit_of_a_table_has_its_columns_and_correlations(generator):
    real = table().numpy()
    synthetic, classes = generator.sample(N, proportions="released")
    assert generator.guarantee_["epsilon"] <= 8
    for j in range(4):
        assert distance(real[:, j], synthetic[:, j]) < 0.06
    difference = np.corrcoef(real.T) - np.corrcoef(synthetic.T)
    assert np.abs(difference).max() < 0.1
    lowest = np.quantile(synthetic[classes == 1, LEVEL], 0.05)
    highest = np.quantile(synthetic[classes == 0, LEVEL], 0.95)
    assert (lowest, highest) == pytest.approx((6, 6), abs=0.3)


def test_fit_of_a_table_returns_integers_and_binary_values_as_such(generator):
    rows, _ = generator.sample(N)
    integers = rows[:, [GAIN, GROUP, YEARS]]
    assert np.array_equal(integers, integers.round())
    assert set(rows[:, GROUP]) == {2.0, 5.0}


def test_load_of_a_table_draws_the_same_records(generator, tmp_path):
    generator.save(tmp_path / "generator.pt")
    loaded = PrivateGenerator.load(tmp_path / "generator.pt")
    labels = torch.arange(50) % 2
    torch.manual_seed(0)
    before = draw(generator.generator_, labels)
    torch.manual_seed(0)
    assert torch.equal(draw(loaded.generator_, labels), before)


def test_fit_with_columns_in_common_keeps_the_differences_of_classes(tmp_path):
    """Few records: one distribution of each column, and the means of the scores of classes."""
    rng = np.random.default_rng(0)
    classes = np.arange(400) % 2
    income = rng.exponential(1, 400) * (1 + 3 * classes)
    real = np.stack([income, rng.random(400) < 0.3], axis=1).clip(0, 30)
    records = PrivateRecords(
        real, classes, classes=[0, 1], bounds=[(0, 30), (0, 1)], kinds=["numeric", "binary"]
    )
    budget = Budget(records, target_epsilon=4, target_delta=1e-5, run_dir=tmp_path / "run")
    generator = mixture.fit(records, budget, noise_seed=0)
    assert generator.structure.n_bins > 0
    assert not generator.structure.own_columns
    torch.manual_seed(0)
    synthetic = draw(generator, torch.arange(4000) % 2).double().numpy()
    for j in range(2):
        assert distance(real[:, j], synthetic[:, j]) < 0.15
    assert set(synthetic[:, 1]) == {0.0, 1.0}
    for c in (0, 1):  # with one median for both classes the ratios would be 2.1 and 0.5
        ratio = np.median(synthetic[c::2, 0]) / np.median(real[classes == c, 0])
        assert ratio == pytest.approx(1, abs=0.35)


def test_fit_of_many_columns_has_one_cell_and_their_correlations(tmp_path):
    own = np.random.default_rng(0).exponential(1, (1000, 120))
    common = np.random.default_rng(1).exponential(1, (1000, 1))
    real = own + common
    generator = PrivateGenerator(
        10, 1e-5, bounds=[(0, 8)] * 120, run_dir=tmp_path / "run", verbose=False
    )
    generator.fit(real)
    assert generator.generator_.structure.n_cells == 1
    assert generator.generator_.structure.n_releases == 2
    synthetic, _ = generator.sample(1000)
    distances = [distance(real[:, j], synthetic[:, j]) for j in range(120)]
    assert np.median(distances) < 0.4
    assert np.corrcoef(synthetic.T).mean() > 0.2  # real columns: 0.5
