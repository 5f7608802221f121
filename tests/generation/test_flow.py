"""Flow, then distil: the step is the documented formula, both phases learn, resume is free, nothing private stays."""

import json

import lightning as L
import numpy as np
import pytest
import torch
from factories import BLOB_DIM as D
from factories import BLOB_SIZE as N
from factories import Blobs, principal
from factories import blob_trainer as trainer
from factories import flow_module as module

from dpswd import InputError
from dpswd.accounting.ledger import Ledger
from dpswd.data.base import PrivateData, Records
from dpswd.generation.export import SampleGrid, SyntheticWriter
from dpswd.generation.features import DCT, Flatten
from dpswd.generation.flow import FlowModule
from dpswd.generation.generators import MLPGenerator


def blocks_of(rows, released, n):
    """Residuals (n_rows, k) of each row's block, by sorting in NumPy. Rows are padded with zeros to n."""
    u, target = released
    m, k = target.shape
    projected = np.vstack([rows @ u, np.zeros((n - len(rows), k))])
    residuals = np.empty_like(projected)
    for j in range(k):
        for block, members in enumerate(np.split(np.argsort(projected[:, j], kind="stable"), m)):
            residuals[members, j] = projected[members, j].mean() - target[block, j]
    return residuals[: len(rows)]


@pytest.mark.parametrize("step_size", [1.0, 0.3])
@pytest.mark.parametrize("labels", ["blocks", "none"])
@pytest.mark.parametrize("n_projections", [6, 18])
def test_a_step_is_the_documented_formula(tmp_path, step_size, labels, n_projections):
    made = module(labels=labels, step_size=step_size, momentum=0.0, n_projections=n_projections)
    before = made.particles.detach().double().numpy().copy()
    trainer(tmp_path, 1).fit(made, datamodule=Blobs())
    u, values = (getattr(made.released, name).double().numpy() for name in ("projections", "values"))
    if labels == "none":
        residuals = blocks_of(before, (u, values), 60)
    else:
        residuals, classes = np.empty((60, n_projections)), made.classes.numpy()
        for c in range(3):
            residuals[classes == c] = blocks_of(before[classes == c], (u, values[c]), 60)
    expected = before - step_size * D / n_projections * residuals @ u.T
    moved = np.abs(expected - before).max()
    assert moved > 0.02  # control: it does move
    np.testing.assert_allclose(made.particles.detach().numpy(), expected, rtol=0, atol=1e-5 * moved + 1e-6)


@pytest.mark.parametrize("labels", ["blocks", "none"])
def test_the_flow_fits_the_release(tmp_path, labels):
    share = 0.3 if labels == "blocks" else 0.0  # equal classes cannot fit 6 : 3 : 1
    made = module(flow_steps=40, labels=labels, count_share=share)
    start = made.particles.detach().clone()
    trainer(tmp_path, 40).fit(made, datamodule=Blobs())
    before, after = (float(made.distance(made.released, z, made.classes)) for z in (start, made.particles.detach()))
    assert after < 0.1 * before
    if labels == "none":  # 360 free coordinates for 30 noisy means: even the noise is fitted
        assert after < 0.1 * made.criterion.mechanism.sigma**2


def mse(made):
    with torch.no_grad():
        records = made.features.decode(made.particles)
        return float((made.generator(made.codes, made.classes) - records).square().mean())


def test_distillation_reduces_the_error_and_leaves_the_particles(tmp_path):
    made = module(flow_steps=3)
    trained = trainer(tmp_path, 150, Snapshots())
    first = mse_after_flow(trained, made)
    assert mse(made) < 0.3 * first
    snapshots = next(c for c in trained.callbacks if isinstance(c, Snapshots))
    assert torch.equal(snapshots.particles[3], made.particles)
    assert not torch.equal(snapshots.particles[2], made.particles)
    assert trained.global_step == 150


class Snapshots(L.Callback):
    """Keeps particles, and the error of the generator, after each step."""

    def __init__(self):
        self.particles, self.errors = {}, {}

    def on_train_batch_end(self, trainer, pl_module, *_):
        self.particles[trainer.global_step] = pl_module.particles.detach().clone()
        self.errors[trainer.global_step] = mse(pl_module)


def mse_after_flow(run, made):
    run.fit(made, datamodule=Blobs())
    return next(c for c in run.callbacks if isinstance(c, Snapshots)).errors[made.flow_steps]


# releases


def test_three_releases_and_proportions_that_follow_the_counts(tmp_path, monkeypatch):
    made, seen = module(principal(), count_share=0.5), []
    release = made.counts.release
    monkeypatch.setattr(made.counts, "release", lambda labels: seen.append(release(labels)) or seen[-1])
    trainer(tmp_path, 4).fit(made, datamodule=Blobs())
    groups = Ledger.open_existing(tmp_path / "ledger.jsonl").groups()
    assert [(getattr(m, "name", "projections"), count) for m, _, count in groups] == [
        ("second moment", 1),
        ("class counts", 1),
        ("projections", 1),
    ]
    (counts,) = seen
    wanted = counts.clamp(min=1) / counts.clamp(min=1).sum()
    torch.testing.assert_close(made.proportions.double(), wanted, rtol=1e-5, atol=0)
    assert bool(((torch.bincount(made.classes, minlength=3) - 60 * wanted).abs() <= 1).all())
    # six standard deviations of the noise around the truth; control: equal proportions are farther away
    truth, spread = torch.tensor([180.0, 90.0, 30.0]), 6 * made.counts.mechanism.sigma
    assert bool(((counts - truth).abs() < spread).all())
    assert bool(((100 - truth).abs() > spread).any())
    facts = json.loads((tmp_path / "privacy.json").read_text())
    assert 0.995 * 20 < facts["epsilon"] <= 20


def test_without_counts_the_classes_are_equal():
    assert torch.bincount(module().classes).tolist() == [20, 20, 20]


class SaveAndCrash(L.Callback):
    """Saves a checkpoint at a step and crashes at the next."""

    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
        if trainer.global_step == self.step + 1:
            raise RuntimeError("crash")


@pytest.mark.parametrize("at", [2, 6], ids=["in the flow", "in the distillation"])
def test_resume_makes_no_second_release_and_keeps_the_particles(tmp_path, at):
    steps, flow, path = 9, 4, tmp_path / "x.ckpt"
    first = module(principal(), flow_steps=flow, count_share=0.1)
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path, steps, SaveAndCrash(at, path)).fit(first, datamodule=Blobs())
    saved = torch.load(path, weights_only=False)["state_dict"]
    ledger = (tmp_path / "ledger.jsonl").read_bytes()

    second, seen = module(principal(), flow_steps=flow, count_share=0.1), Snapshots()
    run = trainer(tmp_path, steps, seen)
    run.fit(second, datamodule=Blobs(), ckpt_path=path)
    assert run.global_step == steps
    assert (tmp_path / "ledger.jsonl").read_bytes() == ledger
    assert second.criterion.n_releases == second.moment.n_releases == second.counts.n_releases == 0
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 3
    for name in ("codes", "classes", "proportions", "features.analysis"):
        assert torch.equal(second.state_dict()[name], saved[name])
    assert torch.equal(second.released.values, first.released.values)
    if at >= flow:
        assert torch.equal(second.particles, saved["particles"])
    else:  # the flow is deterministic: the step after the checkpoint is the one that the crashed run took
        torch.testing.assert_close(seen.particles[at + 1], first.particles.detach(), rtol=0, atol=1e-6)
        assert not torch.equal(second.particles, saved["particles"])


# secrecy


def tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from tensors(part)


def leaks(checkpoint, secrets):
    """Whether some tensor has a row (or column) that lies on a row of a secret matrix."""
    for tensor in tensors(checkpoint):
        if tensor.ndim < 2 or not tensor.is_floating_point():
            continue
        for secret in secrets:
            for matrix in (tensor.flatten(0, -2), tensor.flatten(1).T):
                if matrix.shape[1] == secret.shape[1] and bool((torch.cdist(matrix.double(), secret) < 1e-4).any()):
                    return True
    return False


def test_a_checkpoint_holds_nothing_private(tmp_path):
    made, data = module(principal(), count_share=0.1), Blobs()
    run = trainer(tmp_path, 6)
    run.fit(made, datamodule=data)
    run.save_checkpoint(tmp_path / "last.ckpt")
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=False)
    records = data.private.values
    rows = made.features(records)
    exact = rows @ made.released.projections.float()  # what the noise hides
    moment = (made.features.base(records).T @ made.features.base(records)).double()
    secrets = [secret.double() for secret in (records, records.T, rows, rows.T, exact, exact.T, moment)]
    assert not leaks(checkpoint, secrets)
    assert leaks({**checkpoint, "x": [records[7:9]]}, secrets)  # control: one record among many tensors is seen
    assert leaks({**checkpoint, "x": {"y": rows[7:9]}}, secrets)
    labels = data.private.labels
    integers = [t for t in tensors(checkpoint) if not t.is_floating_point() and t.numel() == len(labels)]
    assert not any(torch.equal(t.flatten(), labels) for t in integers)
    assert set(checkpoint["released"]) == {"values", "projections", "mechanism"}
    counts = torch.bincount(labels, minlength=3) / N
    assert not torch.allclose(checkpoint["state_dict"]["proportions"], counts, rtol=0, atol=1e-6)


# records without classes, and refusals


class Pictures(PrivateData):
    def load(self):
        values = torch.randint(0, 256, (80, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        return Records(values, torch.zeros(80, dtype=torch.int64)), None


def test_pictures_without_classes_from_fit_to_file(tmp_path):
    features = DCT((3, 8, 8), size=4, center=0.5, radius=5.0)
    generator = MLPGenerator((3, 8, 8), n_classes=0, latent_dim=48, hidden=32, bounded=True)
    made = FlowModule(generator, features, n_particles=50, flow_steps=2, n_quantiles=8, labels="none", generated=20)
    run = trainer(tmp_path, 5, SampleGrid(4, every_n_steps=2), SyntheticWriter())
    run.fit(made, datamodule=Pictures(n_synthetic=30))
    run.predict(made, datamodule=Pictures(n_synthetic=30), return_predictions=False)
    assert made.released.values.shape == (8, 48)
    assert made.criterion.mechanism.n_classes is None
    with np.load(tmp_path / "synthetic.npz", allow_pickle=False) as written:
        assert written["data"].shape == (30, 8, 8, 3)
        assert written["targets"].tolist() == [0] * 30
    assert (tmp_path / "samples.png").is_file()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: module(momentum=1.0), r"Expected 0 <= momentum < 1, got momentum=1\.0\."),
        (lambda: module(step_size=0.0), "Expected step_size to be finite and above 0"),
        (lambda: module(n_particles=0), "Expected n_particles >= 1, got n_particles=0"),
        (lambda: module(flow_steps=0), "Expected flow_steps >= 1, got flow_steps=0"),
        (
            lambda: FlowModule(MLPGenerator((D,), 3, 5), Flatten((D,))),
            r"Expected generator\.latent_dim to be the dimension of the rows \(6\), got 5; a particle starts",
        ),
        (lambda: module(n_classes=0), "Expected a generator with n_classes for private labels, got 0; or set labels"),
        (lambda: module(n_classes=0, labels="none", count_share=0.1), "Expected"),
    ],
)
def test_options_out_of_range(make, message):
    with pytest.raises(InputError, match=message):
        make()
