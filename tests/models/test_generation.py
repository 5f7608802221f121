"""Baselines of Table 2: batches by class, and a generator that comes closer."""

import json

import lightning as L
import pytest
import torch
import torch.nn.functional as F

from dpswd import InputError
from dpswd.data import benchmark
from dpswd.records import Records
from models.generation import ClassLoader, PublishedGenerator
from models.networks import Table3Generator


@pytest.fixture(scope="module")
def images():
    digits = benchmark("digits").train
    return Records(F.interpolate(digits.floats(), (28, 28)), digits.labels)


@pytest.mark.parametrize(
    ("grouping", "n_classes"), [("ten", [10, 10]), ("one", [1, 1]), ("label", [10, 10])]
)
def test_classes_of_a_batch(images, grouping, n_classes):
    batches = iter(ClassLoader(images, 100, grouping))
    drawn = [next(batches) for _ in range(2)]
    assert [len(set(labels.tolist())) for _, labels in drawn] == n_classes
    assert [values.shape for values, _ in drawn] == [(100, 1, 28, 28)] * 2
    if grouping == "ten":
        assert drawn[0][1].bincount().tolist() == [10] * 10


def test_batch_of_other_size_is_refused(images):
    with pytest.raises(InputError, match="multiple of 10"):
        ClassLoader(images, 95, "ten")


@pytest.mark.parametrize("grouping", ["ten", "label"])
def test_generator_comes_closer(images, grouping):
    torch.manual_seed(0)
    module = PublishedGenerator(Table3Generator(), n_projections=100, grouping=grouping, lr=1e-3)
    distances = []

    class Watch(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
            distances.append(float(outputs["loss"]))

    trainer = L.Trainer(
        max_steps=30,
        accelerator="cpu",
        callbacks=[Watch()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, ClassLoader(images, 100, grouping))
    assert sum(distances[-5:]) < 0.8 * sum(distances[:5])
    json.dumps(dict(module.hparams))  # no record among the hyperparameters
