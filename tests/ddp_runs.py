"""Two processes under gloo for the tests: each is forked from a server that has imported everything."""

import os
import socket
import traceback

import lightning as L
import torch
import torch.distributed as dist
from training_runs import MECHANISM, Mine, N, Records, privacy

from dpswd import DPSlicedWassersteinLoss, FixedSizeSampler
from dpswd.accounting.ledger import Ledger
from dpswd.queries import ClassCounts
from dpswd.sampling import ReleaseLoader
from dpswd.sketch import release_sketch
from dpswd.training.callback import PrivacyBudget


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def enter(rank, world, port, answers, work, arguments):
    """Runs ``work`` as one process of several, and answers (rank, result, sentence of the error)."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "NODE_RANK": "0"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    try:
        answers.put((rank, work(rank, *arguments), None))
    except Exception as error:
        traceback.print_exc()
        answers.put((rank, None, f"{type(error).__name__}: {error}"))


def together(server, work, *arguments, world=2):
    """Runs ``work(rank, *arguments)`` on every process; returns results and errors by rank."""
    answers, port = server.SimpleQueue(), free_port()
    processes = [server.Process(target=enter, args=(r, world, port, answers, work, arguments)) for r in range(world)]
    for process in processes:
        process.start()
    found = sorted(answers.get() for _ in processes)
    for process in processes:
        process.join(30)
    return [result for _, result, _ in found], [error for *_, error in found]


def part(rank, rows, world=2):
    return torch.tensor_split(rows, world)[rank]


class Book(list):
    """A ledger in memory, on every process."""

    def record(self, mechanism):
        self.append(mechanism)


def releases(rank, mechanism, rows, labels, times):
    """Makes releases of the rows of all processes."""
    dist.init_process_group("gloo")
    loss = DPSlicedWassersteinLoss(mechanism, recorder=Book())
    mine = part(rank, rows), None if labels is None else part(rank, labels)
    made = [loss.release(*mine) for _ in range(times)]
    return [(r.values.numpy(), r.projections.numpy()) for r in made], len(loss.recorder), loss.releases


def losses(rank, mechanism, rows, public, times):
    """Values of the loss on fixed rows."""
    dist.init_process_group("gloo")
    loss = DPSlicedWassersteinLoss(mechanism)
    return [float(loss(part(rank, rows), public)) for _ in range(times)]


def subsets(rank, size, batch, steps, every):
    """Indices that a process gets."""
    dist.init_process_group("gloo")
    return [indices.tolist() for indices in FixedSizeSampler(size, batch, n_steps=steps, every=every)]


def counts(rank, labels, times):
    """Class counts, released."""
    dist.init_process_group("gloo")
    query = ClassCounts(3, sigma=5.0)
    query.recorder = Book()
    return [query.release(labels).tolist() for _ in range(times)], len(query.recorder)


def sketch(rank, mechanism, shards, max_bytes=None, ledger=None):
    """One release of all shards by a stream; ``shards[rank]`` are the chunks of one, the first has the ledger."""
    dist.init_process_group("gloo")
    loss = DPSlicedWassersteinLoss(mechanism, recorder=ledger if rank == 0 else None)
    release = release_sketch(loss, lambda: shards[rank], max_bytes=max_bytes)
    return release.values.numpy(), release.projections.numpy(), loss.releases


def spoiled(rank, mechanism, rows, bad):
    """One process has rows that are refused."""
    dist.init_process_group("gloo")
    loss = DPSlicedWassersteinLoss(mechanism, recorder=Book())
    mine = part(rank, rows).clone()
    if rank == bad:
        mine[0, 0] = torch.nan
    try:
        loss.release(mine)
    except ValueError as error:
        return f"{type(error).__name__}: {error}", len(loss.recorder), loss.releases
    return None


# training


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


def train(rank, directory, steps=6, every=1, kind=Watched, mechanism=MECHANISM, ckpt_path=None, fail=None, **options):
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
    return getattr(module, "seen", None), weights, module.criterion.releases, budget.releases, facts


def full():
    from dpswd import InputError

    raise InputError("Expected room on the disk, got none; make room.")


def written(directory):
    return Ledger.open_existing(directory / "ledger.jsonl")
