"""Counts, sums and second moments per class: sensitivity by example and by search, noise, what they refuse."""

import math

import pytest
import torch

from dpswd import InputError
from dpswd.generation.rows import rows_in_parts
from dpswd.queries import ClassCovariances, ClassMeans

C, D, R = 3, 4, 0.7
CENTERS = torch.randn(C, D, generator=torch.Generator().manual_seed(7), dtype=torch.float64) / 4


def means(x, y):
    """The query without noise, as one vector: counts times R, then sums."""
    counts, sums = ClassMeans(C, D, row_norm=R, sigma=1e-12, noise_seed=0).release([(x, y)])
    return torch.cat([counts * R, sums.flatten()])


def moments(x, y):
    """Likewise; the Frobenius norm of symmetric matrices is that of this vector."""
    return ClassCovariances(C, D, row_norm=R, sigma=1e-12, noise_seed=0).release([(x, y)], CENTERS).flatten()


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
    "moments, orthogonal rows": (moments, (CENTERS[0] + UNIT[0], 0), (CENTERS[0] + UNIT[1], 0)),
    "moments, another class": (moments, (CENTERS[0] + UNIT[0], 0), (CENTERS[1] + UNIT[0], 1)),
}
BOUND = {means: ClassMeans(C, D, R).mechanism.sensitivity, moments: ClassCovariances(C, D, R).mechanism.sensitivity}


@pytest.mark.parametrize("name", WORST)
def test_the_sensitivity_is_attained(name):
    query, first, second = WORST[name]
    assert moved(query, first, second) == pytest.approx(BOUND[query], rel=1e-6)


@pytest.mark.parametrize("query", [means, moments])
def test_no_pair_of_records_moves_it_further(query):
    """Rows of any length, clipped inside; half of the pairs change class."""
    generator = torch.Generator().manual_seed(0)
    largest = 0.0
    for i in range(300):
        rows = 10 * torch.randn(2, D, generator=generator, dtype=torch.float64)
        largest = max(largest, moved(query, (rows[0], 0), (rows[1], i % 2)))
    assert largest <= BOUND[query] * (1 + 1e-9)
    assert largest > 0.8 * BOUND[query]  # control: the search comes close


def test_counts_would_not_be_free_at_a_larger_weight():
    """Control of the proof: a count that weighs more than R moves a change of class beyond 2 R."""
    heavy = math.sqrt(2 * (1.5 * R) ** 2 + 2 * R**2)
    assert heavy > BOUND[means] * 1.2


def test_noise_is_that_of_the_mechanism():
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


def test_parts_and_bytes_change_nothing():
    records = torch.randint(0, 256, (20_000, D), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    labels = torch.arange(20_000) % C
    flat = torch.nn.Identity()
    assert len(list(rows_in_parts(flat, records, labels))) == 3
    whole = ClassMeans(C, D, noise_seed=0).release([(records.float() / 255, labels)])
    parts = ClassMeans(C, D, noise_seed=0).release(rows_in_parts(flat, records, labels))
    torch.testing.assert_close(parts, whole, rtol=0, atol=1e-3)  # the grid of released values


ROWS, LABELS = torch.zeros(4, D), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        (torch.zeros(4, 2), LABELS, r"Expected floating-point rows \(n, 4\), got torch.float32 \(4, 2\)"),
        (ROWS.long(), LABELS, "Expected floating-point rows"),
        (ROWS + math.nan, LABELS, "Expected finite private rows, got nan or inf"),
        (ROWS, LABELS[:3], r"Expected an int64 label per row, got torch.int64 \(3,\)"),
        (ROWS, LABELS.float(), "Expected an int64 label per row, got torch.float32"),
        (ROWS, LABELS + C, "Expected labels between 0 and 2, got others"),
        (ROWS, LABELS - 1, "Expected labels between 0 and 2, got others"),
    ],
)
def test_records_that_do_not_fit_release_nothing(rows, labels, message):
    for query, more in ((ClassMeans(C, D), ()), (ClassCovariances(C, D), (torch.zeros(C, D),))):
        with pytest.raises(InputError, match=message):
            query.release([(rows, labels)], *more)
        assert query.n_releases == 0


def test_centers_that_do_not_fit():
    with pytest.raises(InputError, match=r"Expected finite centers of shape \(3, 4\), got \(2, 4\)"):
        ClassCovariances(C, D).release([(ROWS, LABELS)], torch.zeros(2, D))


def test_a_label_per_record():
    with pytest.raises(InputError, match="Expected a label per record, got 4 and 3"):
        list(rows_in_parts(torch.nn.Identity(), ROWS, LABELS[:3]))
