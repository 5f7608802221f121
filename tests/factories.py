"""Modules, runs, processes and strategies that several tests share.
No test imports another test.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import signal
import socket
import struct
import sys
import traceback
from pathlib import Path

import hypothesis.strategies as st
import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from lightning.pytorch.callbacks import ModelCheckpoint
from PIL import Image

import dpswd.release
from dpswd import (
    ClassCounts,
    ClassCovariances,
    DPSlicedWassersteinLoss,
    GaussianMechanism,
    PrivacyAccountant,
    PrivacyBudget,
    PrivateRecords,
    ProjectionMechanism,
    Recorder,
    Records,
    ReleaseLoader,
)
from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main
from dpswd.data import read
from dpswd.errors import DpswdError, InputError
from dpswd.lightning.checkpoints import KeepsRelease, LastCheckpoint
from dpswd.release import Releasing

# private records, and a user's own module under a budget

N, B, STEPS = 40, 8, 6
X = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(N) % 3
MECHANISM = ProjectionMechanism(3, 6, 1.0, B, row_norm=2.0, kind="orthogonal")


def records(rows=X, labels=Y):
    """Forty private rows in three classes, behind a new handle."""
    return PrivateRecords(rows, labels[: len(rows)], classes=range(3))


def loader(n_releases=STEPS, every=1, of=None, batch_size=B):
    return ReleaseLoader(of or records(), batch_size=batch_size, n_releases=n_releases, every=every)


class Mine(KeepsRelease):
    """A user's own module with an encoder; ``fail_at`` raises an error in a step,
    after its release.
    """

    def __init__(self, mechanism=MECHANISM, fail_at=None, error=RuntimeError):
        super().__init__()
        self.net, self.fail_at, self.error = torch.nn.Linear(3, 3), fail_at, error
        self.encoder = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5))
        self.criterion = DPSlicedWassersteinLoss(mechanism)

    def training_step(self, batch, batch_idx):
        if len(batch):
            self.released = self.criterion.release(batch, rows=self.encoder)
        if self.global_step == self.fail_at:
            raise self.error("crash")
        return self.criterion.distance(self.released, self.net(torch.randn(16, 3)))

    def configure_optimizers(self):
        return torch.optim.Adam(self.net.parameters(), lr=1e-2)


class Queried(Mine):
    """Releases class counts and a second moment of ``of`` before the projections."""

    def __init__(self, of, mechanism=MECHANISM, counts=0.05, moment=0.2, **options):
        super().__init__(mechanism, **options)
        self.counts, self.moment, self.of = (
            ClassCounts(3, share=counts),
            ClassCovariances(1, 3, share=moment),
            of,
        )

    def on_train_start(self):
        super().on_train_start()
        if self.released is None:
            self.queried = (
                self.counts.release(self.of),
                self.moment.release(self.of, rows=self.encoder),
            )


def released(module):
    """Number of releases by the parts of a module."""
    return sum(part.n_releases for part in module.modules() if isinstance(part, Releasing))


def trainer(directory, *, budget=None, epsilon=5.0, callbacks=(), **changes):
    """A trainer that saves every step and, unless told otherwise, trains for one epoch."""
    budget = budget or PrivacyBudget(epsilon, 1e-5)
    if not {"max_steps", "max_epochs"} & set(changes):
        changes["max_epochs"] = 1
    options = {"accelerator": "cpu", "logger": False, "log_every_n_steps": 1} | changes
    checkpoints = ModelCheckpoint(directory / "ckpt", every_n_train_steps=1, save_top_k=-1)
    options |= {
        "default_root_dir": directory,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    saved = [checkpoints] if options.get("enable_checkpointing", True) else []
    made = L.Trainer(callbacks=[budget, *saved, *callbacks], **options)
    made.budget = budget
    return made


class Calls(L.Callback):
    """Calls a function of the module in one hook."""

    def __init__(self, hook, function):
        setattr(self, hook, lambda trainer, module, *_, **__: function(module))


def run_or_resume(directory, module, n_releases, *, every=1, of=None, **options):
    """Runs a module that saves its last step, or resumes it where there is a checkpoint."""
    made, path = trainer(directory, **options), directory / "checkpoints" / "last.ckpt"
    made.callbacks = [made.budget, LastCheckpoint(directory)]
    made.fit(module, loader(n_releases, every, of), ckpt_path=path if path.exists() else None)
    return made


def privacy(directory):
    return json.loads((directory / "privacy.json").read_text())


def ledger_of(directory):
    return Ledger.open_existing(directory / "ledger.jsonl")


def written(directory):
    """Number of releases in the ledger, or None without a ledger."""
    return ledger_of(directory).n_releases if (directory / "ledger.jsonl").exists() else None


def checkpoint_at(directory, step):
    (path,) = (directory / "ckpt").glob(f"*step={step}.ckpt")
    return path


account = PrivacyAccountant.from_groups


def agree(directory, releases):
    """Checks that ledger and privacy.json state the same number of releases,
    and the epsilon of the ledger's.
    """
    groups, facts = ledger_of(directory).groups(), privacy(directory)
    assert (
        sum(count for *_, count in groups)
        == facts["releases_made"]
        == facts["planned_releases"]
        == releases
    )
    assert abs(facts["epsilon"] / account(groups).get_epsilon(facts["delta"]) - 1) < 1e-9
    assert facts["epsilon"] <= facts["target_epsilon"]


# draws of noise, and processes that die


def witness_noise(path, patch=setattr):
    """Adds a byte to a file whenever noise is drawn, independent of the ledger."""
    normal = dpswd.release.normal

    def draw(source, shape):
        with path.open("ab") as file:
            file.write(b".")
        return normal(source, shape)

    patch(dpswd.release, "normal", draw)


def drawn(path):
    return path.stat().st_size if path.exists() else 0


def deadly(owner, name, count, when="before"):
    """Kills this process at the call number ``count`` (from 0) of a function,
    before or after it.
    """
    method, calls = getattr(owner, name), iter(range(10**9))

    def last(*arguments, **options):
        dies = next(calls) == count
        if dies and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(*arguments, **options)
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, last)


def kill_and_finish(server, fit, directory, moment, plan):
    """Kills ``fit(directory, moment)`` at that moment, and finishes the run:
    nothing is paid twice.
    """

    def exitcode(*arguments):
        process = server.Process(target=fit, args=arguments)
        process.start()
        process.join(60)
        return process.exitcode

    run, witness = directory / "run", directory / "witness"
    assert exitcode(directory, moment) == -signal.SIGKILL
    before = {path.name: path.read_bytes() for path in (run / "releases").glob("*.pt")}
    lost = drawn(witness) - len(before)
    assert len(before) <= drawn(witness) <= (written(run) or 0) <= len(before) + 1
    assert exitcode(directory) == 0
    agree(run, plan)
    assert (
        drawn(witness) == plan + lost
    )  # a value that was lost is drawn again, under the same line
    assert all(
        (run / "releases" / name).read_bytes() == content for name, content in before.items()
    )


# `dpswd fit` in processes that are forked from one that has imported everything

FIT_CONFIG = Path(__file__).parent / "fit.yaml"


def fit_arguments(directory, steps, *more):
    """Spells a small run with a release at every step; resumes where there is a checkpoint."""
    options = {
        "--config": FIT_CONFIG,
        "--trainer.default_root_dir": directory,
        "--trainer.max_steps": steps,
    }
    checkpoint = Path(directory) / "checkpoints" / "last.ckpt"
    if checkpoint.exists():
        options["--ckpt_path"] = checkpoint
    return ["fit", *(str(word) for pair in options.items() for word in pair), *more]


def run_fit(words, witness, said):
    """Runs the command in this process, with its words in a file."""
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    witness_noise(witness)
    sys.argv = ["dpswd", *words]
    status = main(words)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


# several processes under gloo


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _enter(rank, world, port, answers, work, arguments):
    """Runs ``work`` as one process of several, and answers
    (rank, result, sentence of the error).
    """
    os.environ |= {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(world),
        "NODE_RANK": "0",
    }
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    try:
        answers.put((rank, work(rank, *arguments), None))
    except Exception as error:
        traceback.print_exc()
        answers.put((rank, None, f"{type(error).__name__}: {error}"))


def run_ranks(server, work, *arguments, world=2, killed=0):
    """Runs ``work(rank, *arguments)`` on every process;
    returns results and errors of those that are not killed.
    """
    answers, port = server.SimpleQueue(), _free_port()
    processes = [
        server.Process(target=_enter, args=(r, world, port, answers, work, arguments))
        for r in range(world)
    ]
    for process in processes:
        process.start()
    found = sorted((answers.get() for _ in processes[killed:]), key=lambda each: each[0])
    for process in processes:
        process.join(30)
    return [result for _, result, _ in found], [error for *_, error in found]


def fine(outcome):
    """The results of :func:`run_ranks`, none of whose processes may have failed."""
    results, errors = outcome
    assert errors == [None] * len(errors)
    return results


# recorders


class Book(Recorder, list):
    """A ledger in memory, on every process."""

    def record(self, mechanism):
        self.append(mechanism)


def booked(part):
    """A loss or query with such a ledger."""
    part.recorder = Book()
    return part


def exact(query, rows, labels=None, *, function=None):
    """What a query releases of rows, almost without noise."""
    handle = (
        PrivateRecords(rows)
        if labels is None
        else PrivateRecords(rows, labels, classes=range(query.n_classes))
    )
    query.mechanism = dataclasses.replace(query.mechanism, sigma=1e-13, noise_seed=0)
    options = {} if function is None else {"rows": function}
    return query.coordinates(booked(query).release(handle, **options))


# run directories for the report

RUN_CONFIG = "model: {target_epsilon: 10.0}\n"
COUNTS = GaussianMechanism(sensitivity=2**0.5, sigma=50.0, name="class counts")
SKETCH = ProjectionMechanism(16, 32, 0.0175, 1000, "quantiles", 10, kind="orthogonal", n_classes=10)
ROWS = ProjectionMechanism(
    dim=64, n_projections=64, sigma=1.5, batch_size=10
)  # subsampled, random S


def make_run(
    path,
    *groups,
    planned=None,
    accountant="pld",
    delta=1e-5,
    header=(),
    config=RUN_CONFIG,
    **claims,
):
    """Writes ledger.jsonl, privacy.json and config.yaml, which agree unless told otherwise."""
    groups = groups or ((COUNTS, 1000, 1), (SKETCH, 1000, 1))
    size = groups[0][1]
    path.mkdir()
    digest = hashlib.sha256(RUN_CONFIG.encode()).hexdigest()
    stated = {
        "version": "0.1.0",
        "config_sha256": digest,
        "sample_size": size,
        "accountant": accountant,
    }
    stated |= {"target_epsilon": 10.0, "target_delta": delta} | dict(header)
    made = sum(count for *_, count in groups)
    counts = [count for *_, count in groups[:-1]] + [groups[-1][2] + (planned or made) - made]
    plan = [(mechanism, count) for (mechanism, *_), count in zip(groups, counts, strict=True)]
    stated["plan"] = [
        {"mechanism": mechanism.to_dict(), "n_releases": count} for mechanism, count in plan
    ]
    ledger, account = Ledger.create(path / "ledger.jsonl", stated), PrivacyAccountant(accountant)
    for mechanism, count in plan:
        account.step(mechanism, sample_size=size, n_releases=count)
    for mechanism, n, count in groups:
        for _ in range(count):
            ledger.record(mechanism, n)
    mu, regret = account.get_mu_and_regret()
    facts = {
        "epsilon": account.get_epsilon(delta),
        "delta": delta,
        "mu": mu,
        "regret": regret,
        "releases_made": made,
    }
    facts |= {
        "private": all(each.is_private for each, *_ in groups),
        "sound": account.sound,
        "version": "0.1.0",
    }
    facts |= {
        "assumptions": account.assumptions,
        "not_covered": ["Evaluation: in the words of the run."],
    }
    (path / "privacy.json").write_text(json.dumps(facts | claims))
    if config is not None:
        (path / "config.yaml").write_text(config)
    return path


# three classes of vectors, for the generators

BLOB_DIM, BLOB_SIZE = 6, 300


def blobs(seed=0):
    """Three classes in proportions 6 : 3 : 1, apart from each other."""
    labels = torch.tensor([0, 0, 1, 0, 1, 0, 2, 0, 1, 0]).repeat(BLOB_SIZE // 10)
    noise = torch.randn(BLOB_SIZE, BLOB_DIM, generator=torch.Generator().manual_seed(seed))
    return PrivateRecords(
        0.6 * torch.eye(BLOB_DIM)[:3][labels] + 0.1 * noise, labels, classes=range(3)
    )


# three classes of vectors in two domains, for adaptation


def triangle(n, seed, shift=0.0):
    """Three classes on a triangle in six dimensions, all moved alike by ``shift``."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % 3
    angles = 2 * torch.pi * labels / 3
    values = 0.3 * torch.randn(n, 6, generator=generator)
    values[:, 0] += 2 * angles.cos()
    values[:, 1] += 2 * angles.sin()
    direction = torch.tensor([1.0, 0.5, 0.0, 0.0, 0.0, 0.0])
    return Records(values + shift * direction, labels)


# fuzzing

REFUSED = object()


def fuzz(number, **strategies):
    """Runs a test on ``number`` drawn cases, and on more under
    ``--hypothesis-profile=thorough``.
    """

    def decorate(test):
        scale = settings().max_examples / 100  # of the profile
        return settings(max_examples=max(1, int(number * scale)))(given(**strategies)(test))

    return decorate


def outcome(call, *arguments, **named):
    """Returns what a call gives, or REFUSED where it raised a DpswdError of one sentence;
    all else fails.
    """
    try:
        return call(*arguments, **named)
    except DpswdError as error:
        sentence(str(error))
        return REFUSED


def sentence(text):
    """Checks a message: wanted and got, one line, an end."""
    assert re.match(r"(dpswd|experiments): Expected |Expected ", text), text
    assert "\n" not in text.strip(), text
    assert text.rstrip().endswith((".", ")")), text
    assert "Traceback" not in text
    assert len(text) < 2000, text


def answer(capfd, *words):
    """Runs ``dpswd`` with --json; returns its result, the only output on stdout."""
    capfd.readouterr()
    status = main([*map(str, words), "--json"])
    out, err = capfd.readouterr()
    assert (status, out.count("\n")) == (0, 1), err
    return json.loads(out)


def refused(capfd, *words, status=2):
    """Runs ``dpswd``, which must fail with nothing on stdout; returns the sentence on stderr."""
    capfd.readouterr()
    assert main([str(word) for word in words]) == status
    out, err = capfd.readouterr()
    assert not out.strip()
    said = err.strip().splitlines()[-1]
    assert said.startswith("dpswd: Expected ")
    sentence(said)
    return said


def snapshot(directory):
    """Every file below a directory with its content."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(Path(directory).rglob("*"))
    }


@contextlib.contextmanager
def untouched(directory):
    """Checks that nothing below a directory is changed, made or removed."""
    before = snapshot(directory)
    yield
    assert snapshot(directory) == before


# files


def opened(handle, index=None):
    """Records and labels of a handle, all of them or those with these numbers."""
    if index is None:
        index = range(len(handle))
    return handle.open_records(torch.tensor([*index], dtype=torch.int64))


def check_refusal(path, options, message):
    """Checks that :func:`dpswd.data.read` refuses a file in one sentence and runs no code of it."""
    with pytest.raises(InputError, match=message) as caught:
        read(path, **options)
    assert "\n" not in str(caught.value)
    assert not Trap.sprung


def write_images(root, images, **options):
    """Writes arrays of pixels to image files, by relative path."""
    for name, pixels in images.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(pixels, dtype=np.uint8)).save(root / name, **options)
    return root


def write_idx(path, values, shape=None):
    """Writes unsigned bytes in the IDX format of MNIST, with a header that states ``shape``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = values.shape if shape is None else shape
    header = struct.pack(">HBB", 0, 8, len(shape)) + struct.pack(f">{len(shape)}I", *shape)
    path.write_bytes(header + values.astype("uint8").tobytes())


@st.composite
def damage(draw, content):
    """A file with a byte flipped, cut, with bytes inserted or zeroed, lines in another order,
    empty, or replaced.
    """
    at = draw(st.integers(0, max(0, len(content) - 1)))
    before, after, noise = content[:at], content[at:], draw(st.binary(min_size=1, max_size=8))
    flipped = before + bytes([after[0] ^ draw(st.integers(1, 255))]) + after[1:] if after else b""
    zeroed = before + bytes(min(64, len(after))) + after[64:]
    shuffled = b"\n".join(draw(st.permutations(content.split(b"\n")[:20])))
    return draw(
        st.sampled_from(
            [flipped, flipped, before, before + noise + after, zeroed, shuffled, b"", noise]
        )
    )


class Trap:
    """Code in a file: counts how often it is unpickled."""

    sprung = 0

    def __reduce__(self):
        return (_spring, ())


def _spring():
    Trap.sprung += 1
    return {}
