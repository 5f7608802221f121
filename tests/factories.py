"""Modules, runs, processes and strategies that several tests share. No test imports another test."""

import contextlib
import hashlib
import json
import multiprocessing
import os
import re
import socket
import sys
import traceback
from pathlib import Path

import hypothesis.strategies as st
import lightning as L
import torch
from hypothesis import given, settings
from lightning.pytorch.callbacks import ModelCheckpoint

from dpswd import (
    DPSlicedWassersteinLoss,
    FixedSizeSampler,
    GaussianMechanism,
    PrivacyAccountant,
    ProjectionMechanism,
)
from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main
from dpswd.data.base import PrivateData
from dpswd.data.base import Records as LabelledRecords
from dpswd.errors import DpswdError
from dpswd.loss import Recorder, Release
from dpswd.queries import GaussianQuery
from dpswd.sampling import ReleaseLoader
from dpswd.training.callback import PrivacyBudget

# a user's own module under a budget

N, B, STEPS = 40, 8, 6
MECHANISM = ProjectionMechanism(3, 6, 1.0, B, kind="orthogonal")


class Records(torch.utils.data.Dataset):
    """Forty private rows, batched by index tensor."""

    def __len__(self):
        return N

    def __getitems__(self, index):
        rows = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
        return rows[index]


class Mine(L.LightningModule):
    """A user's own module; ``fail_at`` crashes a step after its release."""

    def __init__(self, mechanism=MECHANISM, fail_at=None):
        super().__init__()
        self.net, self.fail_at, self.released = torch.nn.Linear(3, 3), fail_at, None
        self.criterion = DPSlicedWassersteinLoss(mechanism)

    def training_step(self, batch, batch_idx):
        if len(batch):
            self.released = self.criterion.release(batch)
        if self.global_step == self.fail_at:
            raise RuntimeError("crash")
        return self.criterion.distance(self.released, self.net(torch.randn(16, 3)))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)

    def on_save_checkpoint(self, checkpoint):
        if self.released is not None:
            checkpoint["released"] = self.released.state_dict()

    def on_load_checkpoint(self, checkpoint):
        self.released = Release.from_state_dict(checkpoint["released"])


def loader(steps=STEPS, every=1, **changes):
    return ReleaseLoader(Records(), FixedSizeSampler(N, B, n_steps=steps, every=every, **changes))


def trainer(directory, *, steps=STEPS, epsilon=5.0, callbacks=(), **changes):
    budget = PrivacyBudget(epsilon, 1e-5)
    options = {"max_steps": steps, "accelerator": "cpu", "logger": False, "log_every_n_steps": 1} | changes
    made = L.Trainer(
        default_root_dir=directory,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[budget, ModelCheckpoint(directory / "ckpt", every_n_train_steps=1, save_top_k=-1), *callbacks],
        **options,
    )
    made.budget = budget
    return made


def privacy(directory):
    return json.loads((directory / "privacy.json").read_text())


def account(groups):
    made = PrivacyAccountant("pld")
    for mechanism, size, count in groups:
        made.step(mechanism, sample_size=size, n_releases=count)
    return made


class WatchEpsilon(L.Callback):
    """Keeps what is shown, and what is in the file, after every step."""

    def on_train_batch_end(self, trainer, *_):
        releases = Ledger.open_existing(trainer.budget._ledger.path).n_releases
        self.seen = [*getattr(self, "seen", []), (releases, float(trainer.callback_metrics["epsilon"]))]


# `dpswd fit` in processes that are forked from one that has imported everything

GENERATOR_CONFIG = Path(__file__).parent / "generator.yaml"
FIT_OPTIONS = {
    "--trainer.callbacks": "[]",
    "--trainer.enable_progress_bar": "false",
    "--trainer.logger": "false",
    "--model.init_args.generated": "10",
    "--model.init_args.n_projections": "64",
    "--model.init_args.n_quantiles": "10",
    "--model.init_args.labels": "none",
    "--model.init_args.release_every": "1",
    "--data.init_args.batch_size": "20",
}
PRELOAD = [
    "dpswd.training.cli",
    "dpswd.commands.main",
    "dpswd.data",
    "dpswd.generation.module",
    "dpswd.generation.generators",
    "factories",
]


def fork_server():
    """Returns a context whose processes start within milliseconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    return context


def fit_arguments(directory: Path, steps: int, *more: str) -> list[str]:
    """Spells a small run with a release at every step; resumes where there is a checkpoint."""
    options = FIT_OPTIONS | {"--trainer.default_root_dir": str(directory), "--trainer.max_steps": str(steps)}
    checkpoint = directory / "checkpoints" / "last.ckpt"
    if checkpoint.exists():
        options["--ckpt_path"] = str(checkpoint)
    return ["fit", "--config", str(GENERATOR_CONFIG), *(word for pair in options.items() for word in pair), *more]


def run_fit(words: list[str], witness: str, said: str) -> None:
    """Runs the command; a byte is added to ``witness`` whenever noise is drawn, independent of the ledger."""
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    made = os.open(witness, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    noise = DPSlicedWassersteinLoss.add_noise

    def witnessed(loss: DPSlicedWassersteinLoss, values):
        os.write(made, b".")
        return noise(loss, values)

    DPSlicedWassersteinLoss.add_noise = witnessed
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
    """Runs ``work`` as one process of several, and answers (rank, result, sentence of the error)."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(world), "NODE_RANK": "0"}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    try:
        answers.put((rank, work(rank, *arguments), None))
    except Exception as error:
        traceback.print_exc()
        answers.put((rank, None, f"{type(error).__name__}: {error}"))


def run_ranks(server, work, *arguments, world=2, killed=0):
    """Runs ``work(rank, *arguments)`` on every process; returns results and errors of those that are not killed."""
    answers, port = server.SimpleQueue(), _free_port()
    processes = [server.Process(target=_enter, args=(r, world, port, answers, work, arguments)) for r in range(world)]
    for process in processes:
        process.start()
    found = sorted(answers.get() for _ in processes[killed:])
    for process in processes:
        process.join(30)
    return [result for _, result, _ in found], [error for *_, error in found]


def part(rank, rows, world=2):
    return torch.tensor_split(rows, world)[rank]


class Book(Recorder, list):
    """A ledger in memory, on every process; one with a ``refusal`` raises it."""

    refusal = None

    def record(self, mechanism):
        if self.refusal is not None:
            raise self.refusal
        self.append(mechanism)


def refusing(error):
    book = Book()
    book.refusal = error
    return book


def spy_on_exact_values(patch=setattr):
    """Returns a list that collects the values of all releases before noise."""
    seen = []
    for owner, name in ((GaussianQuery, "_publish"), (DPSlicedWassersteinLoss, "publish")):
        patch(owner, name, _spied(getattr(owner, name), seen))
    return seen


def _spied(method, seen):
    def spied(module, values, *arguments, **options):
        seen.append(values)
        return method(module, values, *arguments, **options)

    return spied


# run directories for the report

RUN_CONFIG = "model: {target_epsilon: 10.0}\n"
COUNTS = GaussianMechanism(sensitivity=2**0.5, sigma=50.0, name="class counts")
SKETCH = ProjectionMechanism(
    dim=16,
    n_projections=32,
    sigma=0.0175,
    batch_size=1000,
    statistic="quantiles",
    n_quantiles=10,
    kind="orthogonal",
    n_classes=10,
)
ROWS = ProjectionMechanism(dim=64, n_projections=64, sigma=1.5, batch_size=10)  # subsampled, random S
COARSE = ProjectionMechanism(dim=64, n_projections=64, sigma=0.25, batch_size=20, kind="orthogonal")  # high regret


def make_run(path, *groups, planned=None, accountant="pld", delta=1e-5, header=(), config=RUN_CONFIG, **claims):
    """Writes ledger.jsonl, privacy.json and config.yaml, which agree unless told otherwise."""
    groups = groups or ((COUNTS, 1000, 1), (SKETCH, 1000, 1))
    size = groups[0][1]
    path.mkdir()
    digest = hashlib.sha256(RUN_CONFIG.encode()).hexdigest()
    stated = {"version": "0.1.0", "config_sha256": digest, "sample_size": size, "accountant": accountant}
    stated |= {"target_epsilon": 10.0, "target_delta": delta} | dict(header)
    made = sum(count for *_, count in groups)
    counts = [count for *_, count in groups[:-1]] + [groups[-1][2] + (planned or made) - made]
    plan = [(mechanism, count) for (mechanism, *_), count in zip(groups, counts, strict=True)]
    stated["plan"] = [{"mechanism": mechanism.to_dict(), "n_releases": count} for mechanism, count in plan]
    ledger, account = Ledger.create(path / "ledger.jsonl", stated), PrivacyAccountant(accountant)
    for mechanism, count in plan:
        account.step(mechanism, sample_size=size, n_releases=count)
    for mechanism, n, count in groups:
        for _ in range(count):
            ledger.record(mechanism, n)
    mu, regret = account.get_mu_and_regret()
    facts = {
        "sound": account.sound,
        "private": all(mechanism.is_private for mechanism, _, _ in groups),
        "epsilon": account.get_epsilon(delta),
        "delta": delta,
        "mu": mu,
        "regret": regret,
        "releases_made": made,
        "assumptions": account.assumptions,
        "not_covered": ["Evaluation: in the words of the run."],
        "version": "0.1.0",
    }
    (path / "privacy.json").write_text(json.dumps(facts | claims))
    if config is not None:
        (path / "config.yaml").write_text(config)
    return path


# exact sigma of rows of Table 4: own computation by docs/theory/accounting.md, independent of the package

TABLE4_SIGMA = {"USPS-MNIST": 0.492, "MNIST (b)": 0.695, "Office-31": 1.567, "VisDA": 1.833, "CelebA (b)": 0.311}

# three classes of vectors, for the generators

BLOB_DIM, BLOB_SIZE = 6, 300


class Blobs(PrivateData):
    """Three classes in proportions 6 : 3 : 1, apart from each other."""

    def load(self):
        generator = torch.Generator().manual_seed(0)
        labels = torch.tensor([0, 0, 1, 0, 1, 0, 2, 0, 1, 0]).repeat(BLOB_SIZE // 10)
        centres = torch.eye(BLOB_DIM)[:3] * 0.6
        values = centres[labels] + 0.1 * torch.randn(BLOB_SIZE, BLOB_DIM, generator=generator)
        return LabelledRecords(values, labels), None


def blob_trainer(directory, steps, *callbacks, **changes):
    return L.Trainer(
        default_root_dir=directory,
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        log_every_n_steps=1,
        callbacks=[PrivacyBudget(20.0, 1e-3), *callbacks],
        **{"enable_checkpointing": False} | changes,
    )


# fuzzing

REFUSED = object()


def fuzz(number, **strategies):
    """Runs a test on ``number`` drawn cases, and on more under ``--hypothesis-profile=thorough``."""

    def decorate(test):
        scale = settings().max_examples / 100  # of the profile
        return settings(max_examples=max(1, int(number * scale)))(given(**strategies)(test))

    return decorate


def outcome(call, *arguments, **named):
    """Returns what a call gives, or REFUSED where it raised a DpswdError of one sentence; all else fails."""
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


def command(capfd, arguments, allowed=(0, 2)):
    """Runs ``dpswd`` in this process; returns its status, after checking stderr and stdout."""
    capfd.readouterr()
    status = None
    try:
        status = main([str(word) for word in arguments])
    except SystemExit as error:  # --help and --version of argparse
        status = error.code
    out, err = capfd.readouterr()
    assert status in allowed, (status, err)
    if status == 2:
        lines = err.strip().splitlines()
        assert len(lines) == 1, err
        sentence(lines[0])
        assert not out.strip()
    assert "Traceback" not in out + err
    return status


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


@st.composite
def damage(draw, content):
    """A file with a byte flipped, cut, doubled, lines swapped, or replaced."""
    kind = draw(st.sampled_from(["flip", "flip", "flip", "cut", "cut", "swap", "insert", "zero", "empty", "garbage"]))
    at = draw(st.integers(0, max(0, len(content) - 1)))
    if kind == "flip":
        byte = content[at] ^ draw(st.integers(1, 255))
        return content[:at] + bytes([byte]) + content[at + 1 :]
    if kind == "cut":
        return content[:at]
    if kind == "swap":
        lines = content.split(b"\n")
        i, j = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
        lines[i], lines[j] = lines[j], lines[i]
        return b"\n".join(lines)
    if kind == "insert":
        return content[:at] + draw(st.binary(min_size=1, max_size=8)) + content[at:]
    if kind == "zero":
        return content[:at] + bytes(min(64, len(content) - at)) + content[at + 64 :]
    return b"" if kind == "empty" else draw(st.binary(max_size=200))


class Trap:
    """Code in a file: counts how often it is unpickled."""

    sprung = 0

    def __reduce__(self):
        return (_spring, ())


def _spring():
    Trap.sprung += 1
    return {}


LIKELY_FIELDS = {
    "dim": st.integers(2, 9),
    "n_projections": st.integers(1, 40),
    "sigma": st.floats(1e-3, 1e3),
    "batch_size": st.integers(1, 64),
    "statistic": st.sampled_from(["rows", "quantiles"]),
    "n_quantiles": st.sampled_from([None, 1, 2, 4]),
    "row_norm": st.floats(1e-3, 1e3),
    "kind": st.sampled_from(["iid", "orthogonal"]),
    "bound": st.sampled_from(["exact", "exact", "bernstein", "clt"]),
    "failure_prob": st.sampled_from([None, 1e-7]),
    "n_classes": st.sampled_from([None, 2, 10]),
    "noise_seed": st.none(),
}
likely_mechanisms = st.fixed_dictionaries(LIKELY_FIELDS)


_OWN = {"private": True, "sound": True, "epsilon": 1.0, "delta": 1e-5, "mu": 0.3, "covered_runs": ["b"]}
_ACROSS = {"epsilon": 1.5, "delta": 1e-5, "mu": 0.4, "regret": 0.0, "sound": True}
FURTHER_RUNS = (  # facts of a run, and the epsilon and soundness that a file of its weights states
    (_OWN | {"weights_from_runs": ["b"]}, (1.0, True)),  # control
    (_OWN | {"weights_from_runs": ["a", "b"], "across_runs": _ACROSS}, (1.5, True)),
    (_OWN | {"weights_from_runs": ["a", "b"]}, (None, False)),
)
