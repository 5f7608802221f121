"""Two processes under gloo: one subset, release, draw of noise and ledger, as in one process."""

import math

import lightning as L
import numpy as np
import pytest
import torch
import torch.distributed as dist
from factories import (
    MECHANISM,
    Book,
    Mine,
    N,
    Records,
    fork_server,
    loader,
    part,
    privacy,
    run_ranks,
    trainer,
)

from dpswd import DPSlicedWassersteinLoss, FixedSizeSampler, InputError, ProjectionMechanism
from dpswd.accounting.ledger import Ledger
from dpswd.loss import clip_rows
from dpswd.queries import ClassCounts
from dpswd.sampling import ReleaseLoader
from dpswd.sliced import padded_block_means
from dpswd.training.callback import PrivacyBudget

pytestmark = pytest.mark.slow  # two processes, which meet over a network


@pytest.fixture(scope="module")
def server():
    return fork_server()


def rows(n, d=6, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 0.3


def fine(outcome):
    results, errors = outcome
    assert errors == [None] * len(errors)
    return results


# work of one rank


def run_releases(rank, mechanism, rows, labels, times):
    """Makes releases of the rows of all processes."""
    dist.init_process_group("gloo")
    loss = DPSlicedWassersteinLoss(mechanism, recorder=Book())
    mine = part(rank, rows), None if labels is None else part(rank, labels)
    made = [loss.release(*mine) for _ in range(times)]
    return [(r.values.numpy(), r.projections.numpy()) for r in made], len(loss.recorder), loss.n_releases


def run_subsets(rank, size, batch, steps, every):
    """Indices that a process gets."""
    dist.init_process_group("gloo")
    return [indices.tolist() for indices in FixedSizeSampler(size, batch, n_steps=steps, every=every)]


def run_counts(rank, labels, times):
    """Class counts of the labels of all processes, released."""
    dist.init_process_group("gloo")
    query = ClassCounts(3, sigma=5.0, noise_seed=1)
    query.recorder = Book()
    return [query.release(part(rank, labels)).tolist() for _ in range(times)], len(query.recorder)


def run_same_labels(rank, labels):
    """Every process passes all labels."""
    dist.init_process_group("gloo")
    query = ClassCounts(3, sigma=5.0)
    query.recorder = Book()
    query.recorder.sample_size = len(labels)
    query.release(labels)


def run_spoiled(rank, mechanism, rows, bad):
    """One process has rows that are refused."""
    dist.init_process_group("gloo")
    loss = DPSlicedWassersteinLoss(mechanism, recorder=Book())
    mine = part(rank, rows).clone()
    if rank == bad:
        mine[0, 0] = torch.nan
    try:
        loss.release(mine)
    except ValueError as error:
        return f"{type(error).__name__}: {error}", len(loss.recorder), loss.n_releases
    return None


class Twice(Mine):
    """The second process calls the loss twice in a step."""

    def training_step(self, batch, batch_idx):
        if self.global_rank == 1 and self.global_step == 2:
            self.criterion.release(batch)
        return super().training_step(batch, batch_idx)


class Watched(Mine):
    """Keeps what was released, and what it was released from."""

    def __init__(self, **options):
        super().__init__(**options)
        self.seen = []

    def training_step(self, batch, batch_idx):
        value = super().training_step(batch, batch_idx)
        assert self.released.values.dtype == self.released.projections.dtype == torch.float64
        norms = self.released.projections.norm(dim=0)
        assert float((norms - 1).abs().max()) < 1e-12
        self.seen.append((len(batch), self.released.values.numpy().copy(), float(value.detach())))
        return value


def run_training(
    rank, directory, steps=6, every=1, kind=Watched, mechanism=MECHANISM, ckpt_path=None, fail=None, **options
):
    """Fits as one process of two; returns what it saw."""
    budget = PrivacyBudget(5.0, 1e-5)
    if fail == "budget" and rank == 0:
        budget.before_ledger = full
    trainer = L.Trainer(
        default_root_dir=directory,
        **{"max_steps": steps, "accelerator": "cpu", "devices": 2, "strategy": "ddp", "logger": False}
        | {"use_distributed_sampler": False, "enable_progress_bar": False, "enable_model_summary": False}
        | {"enable_checkpointing": False, "callbacks": [budget]}
        | options,
    )
    module = kind(mechanism=mechanism)
    batch = mechanism.batch_size
    trainer.fit(
        module, ReleaseLoader(Records(), FixedSizeSampler(N, batch, n_steps=steps, every=every)), ckpt_path=ckpt_path
    )
    weights = torch.cat([value.flatten() for value in module.state_dict().values()]).tolist()
    facts = privacy(directory) if rank == 0 else None
    return getattr(module, "seen", None), weights, module.criterion.n_releases, budget.n_releases, facts


def full():
    raise InputError("Expected room on the disk, got none; make room.")


def written(directory):
    return Ledger.open_existing(directory / "ledger.jsonl")


# one release


@pytest.mark.parametrize(
    "mechanism",
    [
        ProjectionMechanism(6, 12, 0.1, 9, noise_seed=4),  # parts of 5 and 4 rows
        ProjectionMechanism(6, 12, 0.1, 12, statistic="quantiles", n_quantiles=4, kind="orthogonal", noise_seed=4),
        ProjectionMechanism(6, 7, 0.1, 12, statistic="quantiles", n_quantiles=3, n_classes=3, noise_seed=4),
    ],
    ids=["rows", "quantiles", "classes"],
)
def test_ddp_release_equals_one_process(server, mechanism):
    x = rows(mechanism.batch_size)
    labels = torch.arange(len(x)) % 3 if mechanism.n_classes else None
    alone = DPSlicedWassersteinLoss(mechanism)
    expected = [alone.release(x, labels) for _ in range(2)]
    for made, written_down, count in fine(run_ranks(server, run_releases, mechanism, x, labels, 2)):
        assert written_down == count == 2
        for (values, projections), one in zip(made, expected, strict=True):
            np.testing.assert_array_equal(projections, one.projections.numpy())
            np.testing.assert_array_equal(values, one.values.numpy())  # the grid hides rounding, and all is in order


def test_ddp_noise(server):
    """Without a seed: both processes see the same noise, which is as large as stated and new at every release."""
    sigma, times = 0.5, 40
    mechanism = ProjectionMechanism(6, 24, sigma, 20, statistic="quantiles", n_quantiles=10, kind="orthogonal")
    x = rows(20)
    first, second = (made for made, *_ in fine(run_ranks(server, run_releases, mechanism, x, None, times)))
    noise = []
    for (values, u), (others, theirs) in zip(first, second, strict=True):
        np.testing.assert_array_equal(values, others)  # a second draw would be a second release
        np.testing.assert_array_equal(u, theirs)
        projected = (clip_rows(x, 0.5) @ torch.from_numpy(u)).sort(dim=0).values
        noise.append((values - padded_block_means(projected, 20, 10).numpy()).ravel())
    noise = np.stack(noise) / sigma  # (times, 240)
    count = noise.size
    limit = 6 * math.sqrt(2 / count)  # six standard errors of a mean square
    assert abs(np.mean(noise**2) - 1) < limit
    assert abs(np.mean(((noise[0::2] + noise[1::2]) / 2) ** 2) - 1) > limit  # control: two draws, averaged
    correlation = np.mean(noise[:-1] * noise[1:])
    assert abs(correlation) < 6 / math.sqrt(count - 240)
    assert np.mean(noise[:-1] * noise[:-1]) > 6 / math.sqrt(count)  # control: the same noise again
    assert len({tuple(u.ravel()[:3]) for _, u in first}) == times  # directions too


def test_ddp_subset(server):
    first, second = fine(run_ranks(server, run_subsets, 100, 9, 7, 3))
    seen = []
    for step, (ours, theirs) in enumerate(zip(first, second, strict=True)):
        if step % 3:
            assert ours == theirs == []
            continue
        assert (len(ours), len(theirs)) == (5, 4)
        whole = set(ours) | set(theirs)
        assert len(whole) == 9
        assert whole <= set(range(100))
        seen.append(whole)
    assert len(seen) == 3
    assert seen[0] != seen[1] != seen[2]
    _, errors = run_ranks(server, run_subsets, 100, 1, 7, 3)
    assert all("Expected batch_size >= the number of processes, got batch_size=1 and 2 processes" in e for e in errors)


def test_ddp_query(server):
    labels = torch.arange(31) % 3
    (first, ours), (second, theirs) = fine(run_ranks(server, run_counts, labels, 3))
    assert first == second
    assert first[0] != first[1] != first[2]
    assert ours == theirs == 3
    alone = ClassCounts(3, sigma=5.0, noise_seed=1)
    assert first == [alone.release(labels).tolist() for _ in range(3)]


def test_ddp_query_of_records_that_are_on_two_ranks(server):
    _, errors = run_ranks(server, run_same_labels, torch.arange(30) % 3)
    assert all("Expected every one of the 30 records once, got 60 records on 2 ranks" in error for error in errors)


@pytest.mark.parametrize("bad", [0, 1])
def test_ddp_refusal_by_one_rank(server, bad):
    mechanism = ProjectionMechanism(6, 12, 0.1, 8)
    found = fine(run_ranks(server, run_spoiled, mechanism, rows(8), bad))
    for rank, (said, written_down, count) in enumerate(found):
        assert "Expected finite private rows, got nan or inf" in said
        assert (f"rank {bad}: " in said) is (rank != bad)
        assert written_down == count == 0


def test_ddp_wrong_number_of_rows(server):
    _, errors = run_ranks(server, run_releases, ProjectionMechanism(6, 12, 0.1, 8), rows(9), None, 1)
    assert all("got (9, 6) on all ranks together" in error for error in errors)


# training


def test_ddp_training(server, tmp_path):
    trainer(tmp_path / "one").fit(Mine(), loader())
    (seen, weights, made, counted, facts), (theirs, others, *_) = fine(
        run_ranks(server, run_training, tmp_path / "two")
    )
    alone = privacy(tmp_path / "one")
    ids = {"run", "covered_runs", "weights_from_runs"}
    assert {name for name in alone if facts[name] != alone[name]} == ids  # epsilon, mu, sigma, releases are equal
    ledger = written(tmp_path / "two")
    assert ledger.n_releases == made == counted == 6
    assert ledger.groups() == written(tmp_path / "one").groups()
    assert weights == others  # one model
    assert all(ours[0] == other[0] == 4 for ours, other in zip(seen, theirs, strict=True))
    assert all(np.array_equal(ours[1], other[1]) for ours, other in zip(seen, theirs, strict=True))
    assert all(ours[2] != other[2] for ours, other in zip(seen, theirs, strict=True))  # own public samples


def train_refused(rank, directory, fail):
    return run_training(rank, directory, fail=fail)


def train_twice(rank, directory):
    return run_training(rank, directory, kind=Twice)


def train_replaced(rank, directory):
    return run_training(rank, directory, use_distributed_sampler=True)


def test_ddp_refusal_by_first_rank(server, tmp_path):
    _, errors = run_ranks(server, train_refused, tmp_path, "budget")
    assert errors == ["InputError: Expected room on the disk, got none; make room."] * 2
    assert not (tmp_path / "ledger.jsonl").exists()
    trainer(tmp_path).fit(Mine(), loader())
    before = (tmp_path / "ledger.jsonl").read_bytes()
    _, errors = run_ranks(server, train_refused, tmp_path, None)
    assert all("Expected no ledger at" in error for error in errors)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_ddp_second_release(server, tmp_path):
    _, errors = run_ranks(server, train_twice, tmp_path)
    assert "BudgetExceededError: Expected one release per private batch" in errors[1] or "ProcessLost" in errors[1]
    assert errors[0] is not None
    assert written(tmp_path).n_releases <= 3  # steps 0, 1 and at most the one in question: nothing twice


def test_ddp_distributed_sampler(server, tmp_path):
    _, errors = run_ranks(server, train_replaced, tmp_path)
    assert all("use_distributed_sampler" in e for e in errors)
    assert not list(tmp_path.iterdir())
