"""Batches: fixed size, fresh, uniform, and no more than were planned."""

import itertools
import math
import pickle

import pytest
import torch
from factories import N, loader, records
from scipy import stats
from torch.utils.data import DataLoader

from dpswd import FixedSizeSampler, InputError, ReleaseLoader

FALSE_ALARM = 1e-6


def test_uniform_where_the_batch_does_not_divide_the_records():
    population, size, steps = 103, 10, 3000
    counts = torch.zeros(population, dtype=torch.int64)
    for indices in FixedSizeSampler(population, size, n_steps=steps, noise_seed=0):
        assert len(indices) == size == len(indices.unique())  # no short last batch, no record twice
        counts[indices] += 1
    # a count has variance T q (1 - q), less than a multinomial's: scale the statistic by (N - 1) / (N - B)
    expected = steps * size / population
    statistic = float(((counts - expected) ** 2 / expected).sum()) * (population - 1) / (population - size)
    assert FALSE_ALARM < stats.chi2.sf(statistic, population - 1) < 1 - FALSE_ALARM


def test_a_batch_says_nothing_about_the_next():
    # in a shuffled epoch two consecutive batches share no record; here one repeats with probability q
    sampler = FixedSizeSampler(20, 5, n_steps=4001, noise_seed=0)
    batches = [set(indices.tolist()) for indices in sampler]
    shared = sum(len(a & b) for a, b in itertools.pairwise(batches))
    mean, variance = 5 * 5 / 20, 5 * (5 / 20) * (15 / 20) * (15 / 19)  # hypergeometric
    z = (shared - 4000 * mean) / math.sqrt(4000 * variance)
    assert abs(z) < stats.norm.isf(FALSE_ALARM / 2)
    assert 4000 * mean / math.sqrt(4000 * variance) > 50  # control: epochs would share none


def test_fresh_for_every_sampler_and_every_pass():
    torch.manual_seed(0)
    sampler = FixedSizeSampler(10**15, 3, n_steps=2)
    first, again = [[i.tolist() for i in sampler] for _ in range(2)]
    torch.manual_seed(0)
    other = [i.tolist() for i in FixedSizeSampler(10**15, 3, n_steps=2)]
    assert len({tuple(i) for i in first + again + other}) == 6
    assert not any(value in repr(vars(sampler)) for batch in first for value in map(str, batch))
    assert len(next(iter(pickle.loads(pickle.dumps(sampler))))) == 3


@pytest.mark.parametrize(("every", "done", "sizes"), [(1, 0, [4, 4, 4]), (2, 0, [4, 0, 4, 0, 4, 0]), (2, 3, [0, 4, 0])])
def test_handles_of_planned_releases_and_free_steps(every, done, sizes):
    made = loader(3, every, batch_size=4)
    made.n_done = lambda: done  # of a resumed run
    batches = list(made)
    assert [len(batch) for batch in batches] == sizes
    assert len(made) == 3 * every
    assert made.state_dict() == {}
    assert all(batch.to("cpu") is batch.pin_memory() is batch for batch in batches)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")  # workers only copy tensors
def test_in_a_loader(workers):
    loader = DataLoader(torch.arange(50), batch_sampler=FixedSizeSampler(50, 8, n_steps=3), num_workers=workers)
    batches = [batch.tolist() for batch in loader]
    assert [len(set(batch)) for batch in batches] == [8, 8, 8]
    assert len({tuple(batch) for batch in batches}) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "batch_size >= 1"),
        ({"batch_size": 51}, "got batch_size=51 and 50 records"),
        ({"noise_seed": -1}, "noise_seed >= 0"),
    ],
)
def test_bad_input(changes, message):
    with pytest.raises(InputError, match=message):
        FixedSizeSampler(**({"sample_size": 50, "batch_size": 8, "n_steps": 3} | changes))


@pytest.mark.parametrize("changes", [{"batch_size": 0}, {"batch_size": N + 1}, {"n_releases": 0}, {"every": 0}])
def test_bad_input_of_a_release_loader(changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        ReleaseLoader(records(), **{"batch_size": 4, "n_releases": 3} | changes)
