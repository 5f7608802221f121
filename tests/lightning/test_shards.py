"""The default generator on two processes: shares of the records, equal releases, refusals, a killed rank, resuming."""

import os
import signal
import warnings

import lightning as L
import numpy as np
import pytest
import torch.distributed as dist
from factories import fork_server, privacy, run_ranks, sentence, spy_on_exact_values
from PIL import Image

import dpswd.loss
import dpswd.queries
from dpswd.accounting.ledger import Ledger
from dpswd.data import ArrayData, ImageFolder, base
from dpswd.errors import BudgetExceededError
from dpswd.generation import mixture_module
from dpswd.generation.mixture_module import MixtureModule
from dpswd.training.callback import PrivacyBudget
from dpswd.training.checkpoints import LastCheckpoint

N, RELEASES = 91, 8  # records; releases


@pytest.fixture(scope="module")
def server():
    return fork_server()


@pytest.fixture
def images(tmp_path):
    """Three class folders; the second one has a single image."""
    pixels = np.random.default_rng(0).integers(0, 200, (N, 8, 8, 3), dtype=np.uint8)
    for i, image in enumerate(pixels):
        folder = tmp_path / "images" / ("b" if i == 40 else "ac"[i % 2])
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{i}.png")
    return tmp_path / "images"


def fit(rank, directory, images, world=2, die=None, steps=1):
    """Fits as one rank of ``world``; rank 1 is killed at ``die``, a function and a number of calls before."""
    warnings.simplefilter("ignore")
    base.IN_MEMORY = 0
    draw, exact = dpswd.loss.normal, spy_on_exact_values()

    def noise(source, shape):
        with (directory.parent / "witness").open("a") as file:
            file.write(".")
        return draw(source, shape)

    dpswd.loss.normal = dpswd.queries.normal = noise
    budget = PrivacyBudget(20.0, 1e-3)
    if rank == 1 and die is not None:
        deadly(mixture_module if die[0] == "private_rows" else PrivacyBudget, *die)
    model = MixtureModule(noise_seed=1)
    model._mu = lambda: 400.0  # with cells
    trainer = L.Trainer(
        default_root_dir=directory,
        **{"max_steps": steps, "accelerator": "cpu", "devices": world, "logger": False},
        strategy="ddp_find_unused_parameters_true" if world > 1 else "auto",
        **{"use_distributed_sampler": False, "enable_progress_bar": False, "enable_model_summary": False},
        callbacks=[budget, LastCheckpoint(directory, steps)],
    )
    last = directory / "checkpoints" / "last.ckpt"
    data = ImageFolder(str(images[rank] if isinstance(images, list) else images), test_split=False)
    trainer.fit(model, data, ckpt_path=str(last) if last.exists() else None, weights_only=False)
    return [value.numpy() for value in exact] if rank == 0 else [], model.generator.means.tolist(), budget.n_releases


def deadly(owner, name, count):
    """Kills this process at the call of a function after ``count`` other calls."""
    method, calls = getattr(owner, name), iter(range(10**9))

    def last(*arguments, **options):
        if next(calls) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return method(*arguments, **options)

    setattr(owner, name, last)


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_several_ranks_have_the_releases_of_one(server, images, tmp_path, world):
    exact = []
    for ranks in (1, world):
        results, errors = run_ranks(server, fit, tmp_path / str(ranks), images, ranks, world=ranks)
        assert errors == [None] * ranks
        assert all(found[1:] == results[0][1:] for found in results)
        assert len(results[0][0]) == results[0][2] == RELEASES
        exact.append(results[0][0])
    for alone, together in zip(*exact, strict=True):
        np.testing.assert_allclose(together, alone, rtol=1e-9, atol=1e-9)
    one, several = privacy(tmp_path / "1"), privacy(tmp_path / str(world))
    assert {name for name in one if one[name] != several[name]} == {"run", "covered_runs", "weights_from_runs"}
    assert (tmp_path / "witness").stat().st_size == 2 * RELEASES  # each noise is drawn once, on rank 0


def refused(server, tmp_path, images, said):
    _, errors = run_ranks(server, fit, tmp_path / "run", images)
    for error in errors:
        kind, _, text = error.partition(": ")
        assert kind == "InputError"
        assert said in text
        sentence(text.removeprefix("rank 1: ").removeprefix("rank 0: "))
    assert not (tmp_path / "run").exists()


def test_an_unreadable_share_is_refused(server, images, tmp_path):
    (images / "c" / "89.png").write_bytes(b"damaged")  # the last record: on rank 1
    refused(server, tmp_path, images, "Expected a readable image, got c/89.png")


def test_ranks_that_see_different_files_are_refused(server, images, tmp_path):
    other = tmp_path / "other"
    for file in images.rglob("*.png"):
        name = "new.png" if file.name == "0.png" else file.name
        (other / file.parent.name).mkdir(parents=True, exist_ok=True)
        (other / file.parent.name / name).write_bytes(file.read_bytes())
    refused(server, tmp_path, [images, other], "Expected the same list of records on every rank")


def set_up(rank, rows):
    """Arrays in memory without labels, which the second rank has in another order."""
    dist.init_process_group("gloo")
    ArrayData(rows[::-1] if rank else rows).setup("fit")


def test_ranks_with_records_in_another_order_are_refused(server):
    _, errors = run_ranks(server, set_up, np.arange(20.0).reshape(10, 2))
    assert all("InputError: Expected the same list of records on every rank" in str(error) for error in errors)
    _, errors = run_ranks(server, set_up, np.ones((10, 2)))  # control
    assert errors == [None, None]


def test_a_rank_without_records_is_refused(server, images, tmp_path):
    refused(server, tmp_path, [images, tmp_path / "none"], "Expected a folder or zip of images")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("moment", "count", "world"),
    [
        ("before_release", 2, 1),
        ("private_rows", 3, 3),
        ("record", 2, 1),
        ("record", 5, 1),
        ("store", 4, 3),
        ("store", 2, 3),
        ("record", 7, 3),
        ("store", 7, 1),
    ],
)
def test_a_killed_rank_ends_the_run_and_no_release_is_made_twice(server, images, tmp_path, moment, count, world):
    run, witness = tmp_path / "run", tmp_path / "witness"
    _, (error,) = run_ranks(server, fit, run, images, 2, (moment, count), killed=1)
    assert error.startswith("ProcessLostError: Expected all ranks of the run to respond, got a lost connection")
    sentence(error.removeprefix("ProcessLostError: "))
    ledger = Ledger.open_existing(run / "ledger.jsonl")
    drawn = witness.stat().st_size if witness.exists() else 0
    stored = len(list((run / "releases").glob("*"))) if (run / "releases").exists() else 0
    assert stored <= drawn <= ledger.n_releases <= drawn + 1
    _, errors = run_ranks(server, fit, run, images, world, world=world)
    again = Ledger.open_existing(run / "ledger.jsonl").n_releases
    assert witness.stat().st_size <= again <= RELEASES
    if stored == ledger.n_releases:
        assert errors == [None] * world
        assert witness.stat().st_size == again == RELEASES
    else:  # in the ledger, but lost: it counts
        assert all(BudgetExceededError.__name__ in each for each in errors)
