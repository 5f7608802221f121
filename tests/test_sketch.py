"""The streaming release: against the one in memory, over chunks, passes, shards, processes; its ledger; bad input."""

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from factories import Book, fork_server, refusing, run_ranks

from dpswd import DPSlicedWassersteinLoss, InputError, ProjectionMechanism, random_projections
from dpswd._random import SeededRandom
from dpswd.errors import BudgetExceededError
from dpswd.loss import clip_rows
from dpswd.sketch import exact_sketch, release_sketch

N, D, K, M = 1200, 7, 14, 20
U = random_projections(D, K, generator=SeededRandom(3))


def mechanism(**changes):
    values = {"dim": D, "n_projections": K, "sigma": 0.1, "batch_size": N, "statistic": "quantiles", "n_quantiles": M}
    return ProjectionMechanism(**values | {"noise_seed": 5} | changes)


def records(n=N, seed=0):
    x = torch.randn(n, D, generator=torch.Generator().manual_seed(seed)) * 0.3  # about two thirds are clipped
    x[: n // 10] = 0.0  # ties
    return x, torch.randint(0, 3, (n,), generator=torch.Generator().manual_seed(seed + 1))


def in_memory(made, x, labels=None):
    loss = DPSlicedWassersteinLoss(made)
    return loss.compute_statistic(*clipped(made, x, labels), U)


def clipped(made, x, labels):
    return clip_rows(x, made.row_norm), labels


@pytest.mark.parametrize(("size", "max_bytes"), [(N, 1), (500, 3 * 8 * N), (7, None)])
def test_exact_sketch_equals_memory(size, max_bytes):
    x, _ = records()
    found = exact_sketch(mechanism(), lambda: x.split(size), U, max_bytes=max_bytes)
    torch.testing.assert_close(found, in_memory(mechanism(), x), rtol=0, atol=1e-14)  # the issue asks for 1e-6


def test_exact_sketch_of_classes():
    x, labels = records()
    made = mechanism(n_classes=4)  # class 3 has no record
    found = exact_sketch(made, lambda: zip(x.split(100), labels.split(100), strict=True), U, max_bytes=1)
    torch.testing.assert_close(found, in_memory(made, x, labels), rtol=0, atol=1e-14)


def test_release_sketch_equals_loss():
    x, _ = records()
    whole = DPSlicedWassersteinLoss(mechanism()).release(x)
    loss = DPSlicedWassersteinLoss(mechanism())
    streamed = release_sketch(loss, lambda: x.split(100))
    assert torch.equal(streamed.projections, whole.projections)  # the same test seed: the same directions and noise
    torch.testing.assert_close(streamed.values, whole.values, rtol=0, atol=1e-14)
    assert loss.n_releases == 1
    exact = exact_sketch(mechanism(), lambda: x.split(100), streamed.projections)
    assert float((streamed.values - exact).std()) == pytest.approx(0.1, rel=0.25)  # 280 values: six standard errors


def test_release_sketch_ledger():
    x, _ = records()
    ledger = Book()
    release_sketch(DPSlicedWassersteinLoss(mechanism(), recorder=ledger), lambda: x.split(100), max_bytes=1)
    assert ledger == [mechanism()]
    refused = DPSlicedWassersteinLoss(mechanism(), recorder=refusing(BudgetExceededError("spent")))
    with pytest.raises(BudgetExceededError, match="spent"):
        release_sketch(refused, lambda: x.split(100))
    assert refused.n_releases == 0


def other_rows_every_time():
    seeds = iter(range(100))
    return lambda: [records(seed=next(seeds))[0]]


X, LABELS = records()
BAD = [
    (
        {"n_quantiles": None, "statistic": "rows"},
        lambda: [X],
        "Expected statistic='quantiles' for a sketch, got 'rows'",
    ),
    ({}, lambda: [X[:-1]], "Expected 1200 records .* got 1199"),
    ({}, lambda: [X[:, :3]], r"rows of a chunk .*\(n, 7\)"),
    ({}, lambda: [X / 0], "finite"),
    ({}, lambda: [(X, LABELS)], "no classes of a chunk"),
    ({"n_classes": 2}, lambda: [(X, LABELS)], "labels outside"),
    ({}, other_rows_every_time(), "same order at every pass"),
    ({}, iter([[X], [X], [X[:50]]]).__next__, "Expected 1200 rows at every pass, got 50"),
]


@pytest.mark.parametrize(("changes", "chunks", "message"), BAD)
def test_release_sketch_bad_input(changes, chunks, message):
    ledger = Book()
    loss = DPSlicedWassersteinLoss(mechanism(**changes), recorder=ledger)
    with pytest.raises(InputError, match=message):
        release_sketch(loss, chunks)
    assert ledger == []
    assert loss.n_releases == 0


# shards


def run_sketch(rank, mechanism, shards, max_bytes=None, ledger=None):
    """One release of all shards by a stream; ``shards[rank]`` are the chunks of one, the first has the ledger."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    loss = DPSlicedWassersteinLoss(mechanism, recorder=ledger if rank == 0 else None)
    release = release_sketch(loss, lambda: shards[rank], max_bytes=max_bytes and max_bytes[rank])
    return release.values.numpy(), release.projections.numpy(), loss.n_releases


@pytest.fixture(scope="module")
def server():
    return fork_server()


@pytest.mark.parametrize("by_class", [False, True])
def test_release_sketch_of_shards(server, by_class):
    x, labels = records()
    made = mechanism(n_classes=3 if by_class else None)
    order = [torch.arange(700, N), torch.arange(0), torch.arange(700)]  # unequal, one empty, not in order
    shards = [[(x[mine], labels[mine])] if by_class else [x[mine]] for mine in order]
    memory = [3 * 8 * N, 2 * 8 * N, 5 * 8 * N]  # each rank has its own limit; the columns of a pass are the same
    found, errors = run_ranks(server, run_sketch, made, shards, memory, world=3)
    assert errors == [None] * 3
    whole = DPSlicedWassersteinLoss(made).release(x, labels if by_class else None)
    for values, projections, _ in found:
        assert torch.equal(torch.from_numpy(projections), whole.projections)
        torch.testing.assert_close(torch.from_numpy(values), whole.values, rtol=0, atol=1e-14)
    assert [releases for *_, releases in found] == [1, 1, 1]


def test_release_sketch_refused_by_a_shard(server):
    x, _ = records()
    _, (first, second) = run_ranks(server, run_sketch, mechanism(), [[x[:600]], [x[600:] / 0]])
    assert "rank 1: Expected finite private rows" in first
    assert second.startswith("InputError: Expected finite private rows")


def test_release_sketch_refused_by_ledger(server):
    x, _ = records()
    shards = [[part] for part in x.split(600)]
    _, errors = run_ranks(server, run_sketch, mechanism(), shards, None, refusing(BudgetExceededError("spent")))
    assert errors == ["BudgetExceededError: spent", "BudgetExceededError: rank 0: spent"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured on Linux only")
def test_release_sketch_of_a_million_rows(tmp_path):
    """1,000,000 x 784 rows of float32 (3.1 GB, made chunk by chunk), 40 directions, in a process of its own."""
    code = """
import re, torch
from pathlib import Path
from dpswd import DPSlicedWassersteinLoss, ProjectionMechanism
from dpswd.sketch import release_sketch
torch.set_num_threads(1)
def chunks():
    for seed in range(100):
        yield torch.rand(10_000, 784, generator=torch.Generator().manual_seed(seed))
made = ProjectionMechanism(784, 40, 0.01, 1_000_000, "quantiles", 100)
release_sketch(DPSlicedWassersteinLoss(made), chunks)
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])  # not ru_maxrss: that outlives exec
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 2e9
