"""Private adaptation: one release and many steps, no gradient through the private branch, refusals."""

import json

import lightning as L
import pytest
import torch
from factories import privacy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dpswd import FixedSizeSampler, InputError
from dpswd.accounting.ledger import Ledger
from dpswd.data import Records
from dpswd.generation.features import Flatten
from dpswd.rowwise import digest
from dpswd.sampling import ReleaseLoader
from dpswd.training.callback import PrivacyBudget
from models.adaptation import (
    AdaptationModule,
    AlignmentData,
    SourceBatches,
    TargetRecords,
    accuracy,
    fit_source,
    source_batches,
)
from models.encoders import FeatureEncoder, ShiftAdapter

D, CLASSES, N = 6, 3, 600


def blobs(n, seed, shift=0.0):
    """Three classes on a triangle in six dimensions, all moved alike."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    centres = 2 * torch.eye(CLASSES, D)
    values = centres[labels] + 0.4 * torch.randn(n, D, generator=generator)
    return Records(values + shift * torch.tensor([1.0, -1.0, 0.5, 1.0, 0.0, 0.0]), labels)


class Blobs(AlignmentData):
    def __init__(self):
        super().__init__(blobs(300, 0), blobs(N, 1, shift=1.6).values)
        self.test = blobs(900, 2, shift=1.6)


def module(**changes):
    torch.manual_seed(0)
    options = {"n_quantiles": 12, "release_every": 0, "pretrain_steps": 60, "lr": 5e-3}
    encoder = changes.pop("encoder", None) or FeatureEncoder(D, 5, normalise=False)
    return AdaptationModule(encoder, CLASSES, **(options | changes))


def trainer(directory, steps=40, epsilon=10.0, callbacks=None, **changes):
    options = {"max_steps": steps, "accelerator": "cpu", "logger": False, "enable_checkpointing": False} | changes
    return L.Trainer(
        default_root_dir=directory,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[PrivacyBudget(epsilon, 1e-5)] if callbacks is None else callbacks,
        **options,
    )


def loader(dataset, size=12, steps=3):
    return ReleaseLoader(dataset, FixedSizeSampler(len(dataset), size, n_steps=steps))


def in_space(**changes):
    return module(adapter=ShiftAdapter(D), space=Flatten((D,), radius=6.0), **changes)


def test_an_adapter_learns_the_target_from_one_release(tmp_path):
    data, made = Blobs(), in_space(adapter_lr=0.05)
    start = AdaptationModule(FeatureEncoder(D, 5, normalise=False), CLASSES)
    batches = source_batches(data.source_loader(), CLASSES)
    fit_source(start.encoder, start.classifier, lambda: next(batches), 100, 5e-3)
    before = accuracy(start, data.test)
    trainer(tmp_path, 120).fit(made, datamodule=data)
    after = accuracy(made, data.test)
    assert before < 80 < 95 < after  # the shift hides two classes; three normal errors of 900 rows are 2.2 points
    facts = privacy(tmp_path)
    assert facts["sound"] is facts["private"] is True
    assert facts["releases_made"] == facts["planned_releases"] == 1
    assert facts["sample_size"] == N


def test_features_are_aligned_through_the_source_branch_and_every_encoder_is_recorded(tmp_path):
    made = module(release_every=10, pretrain_steps=5)
    seen = []
    release = made.receive
    made.receive = lambda records: seen.append(digest(made.encoder)) or release(records)
    trainer(tmp_path, 30).fit(made, datamodule=Blobs())
    lines = [json.loads(line) for line in (tmp_path / "encoders.jsonl").read_text().splitlines()]
    assert [(line["release"], line["step"]) for line in lines] == [(1, 0), (2, 10), (3, 20)]
    assert [line["sha256"] for line in lines] == seen[3:]  # the first three calls check the rows and release nothing
    assert len(set(seen[3:])) == 3
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 3
    assert made.features(Blobs().test.values).shape == (900, 5)


def gradients(made, batch):
    """Of one training step, for every parameter that has one."""
    made.zero_grad()
    torch.manual_seed(0)
    made.training_step(batch, 0).backward()
    return [p.grad.clone() for p in made.parameters() if p.grad is not None]


@pytest.mark.parametrize("space", [False, True])
def test_no_gradient_reaches_the_private_branch(tmp_path, space):
    """With the release cached, gradients do not depend on the private records. models/test_published is the control."""
    made = in_space() if space else module()
    run = trainer(tmp_path, 1)
    run.fit(made, datamodule=Blobs())
    records, classes = blobs(50, 3).values, blobs(50, 3).labels
    made._batches = iter([(records, classes)] * 2)
    made.eval()  # no dropout

    made.receive = lambda batch: made.released
    made.log_dict = lambda *args, **kwargs: None
    private = torch.randn(12, D, requires_grad=True)
    first, second = gradients(made, private), gradients(made, torch.empty(0, D))
    assert private.grad is None
    assert len(first) == len(second) > 3
    for with_batch, without in zip(first, second, strict=True):
        assert torch.allclose(with_batch, without, rtol=1e-4, atol=1e-6)  # rounding alone


@pytest.mark.filterwarnings("ignore:Found 1 module")  # lightning's remark on what is meant here
def test_frozen_batch_normalisation_stays_frozen(tmp_path):
    norm = nn.BatchNorm1d(5).eval()
    made = module(encoder=nn.Sequential(nn.Linear(D, 5), norm), dim=5, pretrain_steps=3)
    trainer(tmp_path, 3).fit(made, datamodule=Blobs())
    assert not norm.training
    assert norm.running_mean.tolist() == [0.0] * 5


def test_nothing_of_the_records_is_in_a_checkpoint(tmp_path):
    made, run = in_space(), trainer(tmp_path, 3)
    run.fit(made, datamodule=Blobs())
    run.save_checkpoint(tmp_path / "last.ckpt")
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=False)
    parts = {name.split(".")[0] for name in checkpoint["state_dict"]}
    assert parts == {"encoder", "classifier", "adapter", "center", "spread"}  # space: constants, kept nowhere
    sizes = {tuple(value.shape) for value in checkpoint["released"].values() if hasattr(value, "shape")}
    assert sizes == {(12, D), (D, D)}  # block means and directions


def refused(tmp_path, made, message, loader=None, data=None, **changes):
    with pytest.raises(InputError, match=message):
        trainer(tmp_path, 3, **changes).fit(made, loader, datamodule=data)
    assert not list(tmp_path.rglob("encoders.jsonl"))


def test_bad_input_is_refused_in_one_sentence(tmp_path):
    source = DataLoader(TensorDataset(*vars(blobs(48, 0)).values()), batch_size=16)
    target = TargetRecords(blobs(30, 1).values)
    good = {"source": source, "release_size": 12, "pretrain_steps": 0}
    mixing = nn.Sequential(nn.Linear(D, 5), nn.BatchNorm1d(5))
    refused(tmp_path, module(encoder=mixing, dim=5, **good), "BatchNorm1d", loader(target))
    refused(tmp_path, module(dim=4, **good), "features of size 4", loader(target))
    refused(tmp_path, module(release_size=12), "labelled public records", loader(target))
    refused(tmp_path, module(source=source), "release_size", loader(target))
    assert not list(tmp_path.iterdir())
    one_class = DataLoader(TensorDataset(torch.randn(8, D), torch.zeros(8, dtype=torch.int64)), batch_size=4)
    refused(tmp_path, module(**good | {"source": one_class}), "none of class 1", loader(target))
    unlabelled = [torch.randn(4, D)]
    refused(tmp_path, module(**good | {"source": unlabelled}), "the source must be labelled", loader(target))
    with pytest.raises(InputError, match="batch_size=31"):
        loader(target, 31)
    with pytest.raises(InputError, match="TensorDataset"):
        TargetRecords(TensorDataset(torch.randn(4, D), torch.zeros(4)))
    assert not list(tmp_path.iterdir())


def test_target_labels_given_by_mistake_release_nothing(tmp_path):
    class Labelled(TargetRecords):
        def __getitems__(self, index):
            return self.records[index], torch.zeros(len(index))

    source = DataLoader(TensorDataset(*vars(blobs(48, 0)).values()), batch_size=16)
    made = module(source=source, release_size=12, pretrain_steps=0)
    refused(
        tmp_path,
        made,
        "labels of the target are private and not used: leave them out",
        loader(Labelled(torch.randn(30, D))),
    )
    assert made.criterion.n_releases == 0


def test_a_release_needs_a_budget(tmp_path):
    refused(
        tmp_path,
        module(pretrain_steps=0),
        "PrivacyBudget",
        data=Blobs(),
        callbacks=[],
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alignment": -1.0}, "alignment"),
        ({"encoder": nn.Linear(D, 5)}, "dim"),
    ],
)
def test_arguments_are_checked(changes, message):
    with pytest.raises(InputError, match=message):
        module(**changes)


def test_a_resumed_run_keeps_its_release(tmp_path):
    class Stop(L.Callback):
        def on_train_batch_end(self, trainer, *args):
            if trainer.global_step == 4:
                raise RuntimeError("crash")

    from lightning.pytorch.callbacks import ModelCheckpoint

    def run(*more):
        saver = ModelCheckpoint(tmp_path, every_n_train_steps=1, save_top_k=-1)
        return trainer(tmp_path, 8, callbacks=[PrivacyBudget(10.0, 1e-5), saver, *more], enable_checkpointing=True)

    first, second = in_space(), in_space()
    with pytest.raises(RuntimeError, match="crash"):
        run(Stop()).fit(first, datamodule=Blobs())
    made = run()
    made.fit(second, datamodule=Blobs(), ckpt_path=next(tmp_path.glob("*step=3.ckpt")), weights_only=False)
    assert made.global_step == 8
    assert second.criterion.n_releases == 0
    assert torch.equal(first.released.values, second.released.values)
    assert float(second.spread) == 6.0


def test_a_pass_over_the_source_has_every_record_at_most_once():
    batches = list(SourceBatches(Records(torch.arange(10.0)[:, None], torch.arange(10)), 4))
    assert [len(values) for values, _ in batches] == [4, 4]
    seen = torch.cat([values for values, _ in batches]).flatten()
    assert len(seen.unique()) == 8
