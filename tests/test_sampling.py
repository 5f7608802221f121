"""Batches: uniform subsets without replacement, fresh at every release,
of handles or of indices.
"""

import collections
import itertools
import math
import pickle

import numpy as np
import pytest
import torch
from factories import MECHANISM, B, N, X, booked, loader, records
from scipy import stats
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from dpswd import (
    ClassMeans,
    DPSlicedWassersteinLoss,
    FixedSizeSampler,
    InputError,
    PrivateRecords,
    ReleaseLoader,
)

# Chance that a correct sampler fails a statistical test here.
FALSE_ALARM = 1e-6


def chi_square(counts, expected, population, size):
    """Statistic of counts of records in batches, with the law of a chi square.

    A count has variance T q (1 - q), less than that of a multinomial.
    """
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return statistic * (population - 1) / (population - size)


def test_batches_of_indices_are_uniform_and_independent():
    """Also where the batch does not divide the records."""
    population = 103
    size = 10
    steps = 4001
    sampler = FixedSizeSampler(population, size, n_steps=steps)
    batches = [set(indices.tolist()) for indices in sampler]
    assert {len(batch) for batch in batches} == {size}  # no short last batch, no record twice
    counts = np.bincount([index for batch in batches for index in batch], minlength=population)
    statistic = chi_square(counts, steps * size / population, population, size)
    assert FALSE_ALARM < stats.chi2.sf(statistic, population - 1) < 1 - FALSE_ALARM
    n_shared = sum(len(one & other) for one, other in itertools.pairwise(batches))
    law = stats.hypergeom(population, size, size)
    deviation = math.sqrt(4000 * law.var())
    assert abs(n_shared - 4000 * law.mean()) / deviation < stats.norm.isf(FALSE_ALARM / 2)
    assert 4000 * law.mean() / deviation > 50  # control: batches of an epoch share no record


def test_batches_of_a_handle_are_uniform_subsets(monkeypatch):
    """Whatever the seed of torch, and whatever the step."""
    batches = []
    original = PrivateRecords.open_records

    def open_records(handle, index):
        batches.append(index.tolist())
        return original(handle, index)

    monkeypatch.setattr(PrivateRecords, "open_records", open_records)
    for _ in range(300):
        torch.manual_seed(0)
        booked(DPSlicedWassersteinLoss(MECHANISM)).release(next(iter(loader())))
    assert {len(set(batch)) for batch in batches} == {B}
    counter = collections.Counter(itertools.chain(*batches))
    counts = np.array([counter[number] for number in range(N)])
    assert counts.min() > 0
    assert chi_square(counts, 300 * B / N, N, B) < 110  # 39 degrees of freedom: false alarm 1e-8


def test_sampler_is_fresh_at_every_pass():
    torch.manual_seed(0)
    sampler = FixedSizeSampler(10**15, 3, n_steps=2)
    batches = [tuple(indices.tolist()) for _ in range(2) for indices in sampler]
    torch.manual_seed(0)
    other = FixedSizeSampler(10**15, 3, n_steps=2)
    batches += [tuple(indices.tolist()) for indices in other]
    assert len(set(batches)) == 6


def test_sampler_holds_no_index():
    sampler = FixedSizeSampler(10**15, 3, n_steps=2)
    for indices in sampler:
        for index in indices.tolist():
            assert str(index) not in repr(vars(sampler))
    assert len(next(iter(pickle.loads(pickle.dumps(sampler))))) == 3


@pytest.mark.parametrize(
    ("every", "n_done", "sizes"),
    [(1, 0, [4, 4, 4]), (2, 0, [4, 0, 4, 0, 4, 0]), (2, 3, [0, 4, 0])],
    ids=["a release per step", "a release per two steps", "resumed at step 3"],
)
def test_loader_yields_a_handle_per_planned_release(every, n_done, sizes):
    batches = loader(3, every, batch_size=4)
    batches.n_done = lambda: n_done
    assert [len(batch) for batch in batches] == sizes
    assert len(batches) == 3 * every
    assert batches.state_dict() == {}


@pytest.mark.parametrize(
    ("size", "message"), [(0, "batch_size >= 1"), (51, "<= 50, the number of records, got 51")]
)
def test_sampler_refuses_sizes_out_of_range(size, message):
    with pytest.raises(InputError, match=message):
        FixedSizeSampler(50, size, n_steps=3)


@pytest.mark.parametrize(
    ("name", "value"), [("batch_size", 0), ("batch_size", N + 1), ("n_releases", 0), ("every", 0)]
)
def test_loader_refuses_numbers_out_of_range(name, value):
    options = {"batch_size": 4, "n_releases": 3}
    options[name] = value
    with pytest.raises(InputError, match=name):
        ReleaseLoader(records(), **options)


def balanced_loader():
    """A loader that draws record 0 in half of the cases."""
    sampler = WeightedRandomSampler([1.0, *[0.01] * (N - 1)], N)
    return DataLoader(TensorDataset(X), 10, sampler=sampler)


def data_set():
    return TensorDataset(X)


def tensor():
    return X


@pytest.mark.parametrize("make", [balanced_loader, data_set, tensor])
def test_records_without_a_handle_are_refused(make):
    """A sampler that repeats a record would multiply its weight in a sum."""
    query = booked(ClassMeans(2, 3, sigma=1.0))
    with pytest.raises(InputError, match="PrivateRecords"):
        query.release(make())
    with pytest.raises(InputError, match="PrivateRecords"):
        ReleaseLoader(make(), batch_size=4, n_releases=1)
    assert query.n_releases == 0
