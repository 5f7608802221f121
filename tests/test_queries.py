"""Small Gaussian releases: sensitivity by search, the law of the noise, the ledger, secrecy, refusals."""

import math

import lightning as L
import numpy as np
import pytest
import torch
from factories import Book, refusing
from scipy import stats

from dpswd import BudgetExceededError, InputError
from dpswd.loss import BudgetWatch
from dpswd.queries import ClassCounts, ClassCovariances, ClassMeans, SecondMoment, SumAndNorm

FALSE_ALARM = 1e-6  # chance that a correct query fails a test here, over the choice of the seed
FAINT = 1e-13  # a noise that shows the query itself


class Source:
    """Counts the words that are drawn."""

    drawn = 0

    def words(self, count):
        self.drawn += count
        return np.arange(1, count + 1, dtype=np.uint64) << np.uint64(40)


def data(query):
    if isinstance(query, ClassCounts):
        return torch.arange(30) % query.n_classes
    return torch.randn(30, query.dim, generator=torch.Generator().manual_seed(0))


BOTH = pytest.mark.parametrize(
    "make",
    [lambda **o: ClassCounts(3, **{"sigma": 1.0} | o), lambda **o: SecondMoment(4, **{"sigma": 1.0} | o)],
)


# sensitivity


def test_class_counts_sensitivity():
    query, rng = ClassCounts(4, sigma=FAINT), np.random.default_rng(0)
    ratios = []
    for _ in range(200):
        labels = torch.from_numpy(rng.integers(0, 4, 9))
        other = labels.clone()
        other[rng.integers(9)] = int(rng.integers(4))
        moved = (query.release(labels) - query.release(other)).norm() / query.mechanism.unit_sensitivity
        ratios.append(float(moved))
    assert query.mechanism.unit_sensitivity == math.sqrt(2)
    assert max(ratios) == pytest.approx(1, abs=1e-9)
    assert max(ratios) <= 1 + 1e-9  # a record keeps its class (0) or changes it (1)
    assert min(ratios) < 1e-9


@pytest.mark.parametrize("bound", [0.5, 2.0])
def test_second_moment_sensitivity(bound):
    query, rng = SecondMoment(3, row_norm=bound, sigma=FAINT), np.random.default_rng(0)
    assert query.mechanism.unit_sensitivity == math.sqrt(2) * bound**2

    def moved(x, y):
        rest = rng.normal(size=(5, 3))
        one, two = (query.release(torch.from_numpy(np.vstack([rest, row]))) for row in (x, y))
        return float((one - two).norm()) / query.mechanism.unit_sensitivity

    ratios = [moved(*rng.normal(size=(2, 3)) * rng.choice([0.1, 1, 100], (2, 1))) for _ in range(300)]
    assert max(ratios) <= 1 + 1e-9
    assert max(ratios) > 0.98  # nearly orthogonal rows turn up among 300
    # orthogonal rows reach it, also where clipping makes them as long as the bound (1e-12: clipping stays below it)
    assert moved([bound, 0, 0], [0, -bound, 0]) == pytest.approx(1, abs=1e-9)
    assert moved([1e9, 0, 0], [0, 1e9, 1e9]) == pytest.approx(1, abs=1e-9)
    assert moved([bound, 0, 0], [-bound, 0, 0]) < 1e-9  # the moment does not see signs


def test_second_moment_value():
    rows = torch.randn(8193, 4, generator=torch.Generator().manual_seed(0))  # more than a part
    found = SecondMoment(4, row_norm=1.5, sigma=FAINT).release(rows)
    x = rows.double().numpy()
    x *= np.minimum(1, 1.5 / np.linalg.norm(x, axis=1, keepdims=True))
    assert torch.equal(found, found.T)
    np.testing.assert_allclose(found.numpy(), x.T @ x, rtol=1e-10, atol=1e-10)


# noise


def test_class_counts_noise():
    query, labels = ClassCounts(5, sigma=3.0, noise_seed=0), torch.arange(20) % 5
    drawn = torch.cat([query.release(labels) - 4 for _ in range(800)]).numpy()
    accepts_sigma_only(drawn, 3.0)
    assert abs(np.corrcoef(drawn[:-1], drawn[1:])[0, 1]) * math.sqrt(len(drawn)) < stats.norm.isf(FALSE_ALARM / 2)


def test_second_moment_noise():
    query, rows = SecondMoment(6, sigma=2.0, noise_seed=0), torch.zeros(3, 6)
    drawn = torch.stack([query.release(rows) for _ in range(700)]).numpy()  # 4,200 on the diagonal, 10,500 off it
    assert (drawn == drawn.transpose(0, 2, 1)).all()
    accepts_sigma_only(np.diagonal(drawn, axis1=1, axis2=2).ravel(), 2.0)
    above = drawn[:, *np.triu_indices(6, 1)]
    accepts_sigma_only(above.ravel(), 2.0 / math.sqrt(2))  # the diagonal's 2.0 is within the control below
    assert stats.kstest(above.ravel() / 2.0, "norm").pvalue < FALSE_ALARM
    # entries are independent: 21 coordinates of one release, standardised, sum to a chi-square of 21 per release
    total = (np.diagonal(drawn, axis1=1, axis2=2) ** 2).sum(1) + 2 * (above**2).sum(1)
    assert stats.kstest(total / 4, "chi2", args=(21,)).pvalue > FALSE_ALARM


def accepts_sigma_only(drawn, sigma):
    assert stats.kstest(drawn / sigma, "norm").pvalue > FALSE_ALARM
    for factor in (2 / 3, 3 / 2):
        assert stats.kstest(drawn / (sigma * factor), "norm").pvalue < FALSE_ALARM


@BOTH
def test_query_noise_is_fresh(make):
    seen = []
    for _ in range(2):
        torch.manual_seed(0)
        L.seed_everything(0, verbose=False)
        query = make()
        seen += [query.release(data(query)) for _ in range(2)]
    for i, one in enumerate(seen):
        assert not any(
            (one == other).float().mean() > 0.5 for other in seen[i + 1 :]
        )  # single entries of a grid may agree
    state = torch.get_rng_state()
    query.release(data(query))
    assert torch.equal(state, torch.get_rng_state())  # and torch's generator is not touched


# ledger


@BOTH
def test_query_records_before_noise(make):
    query, book = make(sigma=2.0), Book()
    query.recorder, query._source = book, Source()
    book.record = lambda mechanism: book.append((mechanism, query._source.drawn))
    query.release(data(query))
    assert book == [(query.mechanism, 0)]
    assert query._source.drawn > 0
    assert query.n_releases == 1


@BOTH
def test_query_refused_by_ledger(make):
    query = make()
    query.recorder, query._source = refusing(BudgetExceededError("spent")), Source()
    with pytest.raises(BudgetExceededError):
        query.release(data(query))
    assert query._source.drawn == query.n_releases == 0


@BOTH
def test_query_without_ledger_in_a_budget(make, monkeypatch):
    monkeypatch.setattr(BudgetWatch, "running", 1)
    query = make()
    query._source = Source()
    with pytest.raises(InputError, match="recorder"):
        query.release(data(query))
    assert query._source.drawn == query.n_releases == 0


@pytest.mark.parametrize(
    ("query", "wrong", "message"),
    [
        (ClassCounts(3), torch.tensor([0, 3]), "labels outside"),
        (ClassCounts(3), torch.tensor([-1, 2]), "labels outside"),
        (ClassCounts(3), torch.tensor([0.0, 1.0]), "labels to be integers"),
        (SecondMoment(3), torch.zeros(2, 4), r"rows .*\(n, 3\), .*\(2, 4\)"),
        (SecondMoment(3), torch.zeros(2, 3, dtype=torch.int64), "rows .*int64"),
        (SecondMoment(3), torch.tensor([[0.0, math.nan, 0]]), "finite"),
    ],
)
def test_query_bad_records(query, wrong, message):
    query.recorder = Book()
    with pytest.raises(InputError, match=message):
        query.release(wrong)
    assert query.recorder == []
    assert query.n_releases == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClassCounts(1), "n_classes"),
        (lambda: ClassCounts(3, sigma=0.0), "sigma"),
        (lambda: ClassCounts(3, share=0.0), "share"),
        (lambda: ClassCounts(3, share=1), "share"),
        (lambda: ClassCounts(3, noise_seed=-1), "noise_seed"),
        (lambda: SecondMoment(0), "dim"),
        (lambda: SecondMoment(3, row_norm=-1.0), "row_norm"),
    ],
)
def test_query_bad_options(make, message):
    with pytest.raises(InputError, match=message):
        make()


# what a query says of itself


# classes

C, D, R = 3, 4, 0.7
CENTERS = torch.randn(C, D, generator=torch.Generator().manual_seed(7), dtype=torch.float64) / 4


def means(x, y):
    """The query without noise, as one vector: counts times R, then sums."""
    counts, sums = ClassMeans(C, D, row_norm=R, sigma=1e-12, noise_seed=0).release([(x, y)])
    return torch.cat([counts * R, sums.flatten()])


def moments(x, y):
    """Likewise; the Frobenius norm of symmetric matrices is that of this vector."""
    return ClassCovariances(C, D, row_norm=R, sigma=1e-12, noise_seed=0).release([(x, y)], CENTERS).flatten()


def overall(x, y):
    """The sum of rows, and of squared norms over R, without noise."""
    query = SumAndNorm(D, R, sigma=1e-12, noise_seed=0)
    return query.coordinates(query.release([(x, y)]))


def moved(query, first, second):
    """How far the query moves when one record, (row, class), is replaced."""
    rest = torch.randn(5, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64), torch.arange(5) % C
    sides = [
        query(torch.cat([rest[0], row[None]]), torch.cat([rest[1], torch.tensor([label])]))
        for row, label in (first, second)
    ]
    return float((sides[0] - sides[1]).norm())


UNIT = torch.eye(D, dtype=torch.float64) * R
WORST = {
    "means, opposite rows": (means, (UNIT[0], 0), (-UNIT[0], 0)),
    "means, another class": (means, (UNIT[0], 0), (UNIT[1], 1)),
    "overall, opposite rows": (overall, (UNIT[0], 0), (-UNIT[0], 0)),
    "moments, orthogonal rows": (moments, (CENTERS[0] + UNIT[0], 0), (CENTERS[0] + UNIT[1], 0)),
    "moments, another class": (moments, (CENTERS[0] + UNIT[0], 0), (CENTERS[1] + UNIT[0], 1)),
}
BOUND = {
    means: ClassMeans(C, D, R).mechanism.sensitivity,
    overall: SumAndNorm(D, R).mechanism.sensitivity,
    moments: ClassCovariances(C, D, R).mechanism.sensitivity,
}


@pytest.mark.parametrize("name", WORST)
def test_class_queries_sensitivity_is_attained(name):
    query, first, second = WORST[name]
    assert moved(query, first, second) == pytest.approx(BOUND[query], rel=1e-6)


@pytest.mark.parametrize("query", [means, overall, moments])
def test_class_queries_sensitivity_search(query):
    """Rows of any length, clipped inside; half of the pairs change class."""
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for i in range(300):
        rows = 10 * torch.randn(2, D, generator=generator, dtype=torch.float64)
        largest = max(largest, moved(query, (rows[0], 0), (rows[1], i % 2)))
    assert largest <= BOUND[query] * (1 + 1e-9)
    assert largest > 0.8 * BOUND[query]  # control: the search comes close


def test_class_queries_noise():
    query = ClassMeans(2, 4000, row_norm=R, sigma=3.0, noise_seed=5)
    counts, sums = query.release([(torch.zeros(1, 4000), torch.tensor([0]))])
    n = sums.numel()
    assert abs(float(sums.var()) / 9 - 1) < 5 * math.sqrt(2 / n)  # five deviations of a sample variance
    assert counts.shape == (2,)
    drawn = torch.stack(
        [
            ClassMeans(2, 1, R, sigma=3.0, noise_seed=seed).release([(torch.zeros(1, 1), torch.tensor([0]))])[0]
            for seed in range(2000)
        ]
    )
    assert abs(float(drawn[:, 1].var()) / (3 / R) ** 2 - 1) < 5 * math.sqrt(2 / 2000)
    square = ClassCovariances(2, 90, R, sigma=2.0, noise_seed=6).release(
        [(torch.zeros(1, 90), torch.tensor([0]))], torch.zeros(2, 90)
    )
    torch.testing.assert_close(square, square.mT)
    off = square[:, *torch.triu_indices(90, 90, 1)]
    assert abs(float(off.var()) / 2 - 1) < 5 * math.sqrt(2 / off.numel())
    assert abs(float(square.diagonal(dim1=1, dim2=2).var()) / 4 - 1) < 5 * math.sqrt(2 / 180)


ROWS, LABELS = torch.zeros(4, D), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (torch.zeros(4, 2), LABELS, r"rows .*\(n, 4\)"),
        (ROWS.long(), LABELS, "rows .*floating-point"),
        (ROWS + math.nan, LABELS, "finite"),
        (ROWS, LABELS[:3], r"labels .*\(4,\)"),
        (ROWS, LABELS.float(), "labels to be integers"),
        (ROWS, LABELS + C, "labels outside"),
        (ROWS, LABELS - 1, "labels outside"),
    ],
)
def test_class_queries_refuse_invalid_parts(rows, labels, message):
    for query, more in ((ClassMeans(C, D), ()), (ClassCovariances(C, D), (torch.zeros(C, D),))):
        with pytest.raises(InputError, match=message):
            query.release([(rows, labels)], *more)
        assert query.n_releases == 0


@pytest.mark.parametrize("query", [ClassCounts(3), ClassMeans(3, 2)])
def test_query_without_sigma(query):
    query.recorder = Book()
    rows = (torch.zeros(4, dtype=torch.int64),) if isinstance(query, ClassCounts) else ([(ROWS[:, :2], LABELS)],)
    with pytest.raises(InputError, match="calibrate"):
        query.release(*rows)
    assert (query.recorder, query.n_releases) == ([], 0)


def test_sum_and_norm_sensitivity_at_a_larger_weight():
    """Control of Proposition 10: at twice the weight, norms R and R / 2 in opposite directions move it beyond 2 R."""
    label = torch.zeros(1, dtype=torch.int64)
    difference = overall(UNIT[:1], label) - overall(-UNIT[:1] / 2, label)
    difference[-1] *= 2
    assert float(difference.norm()) > BOUND[overall] * 1.05
