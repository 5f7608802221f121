"""Lightning callbacks that write files of networks and pictures of samples.

The networks are generators and classifiers.
"""

import copy
from pathlib import Path
from typing import Any

import lightning as L

from dpswd._progress import say
from dpswd._validate import at_least
from dpswd.accounting.guarantee import Guarantee
from dpswd.adaptation.classifier import TargetClassifier
from dpswd.adaptation.space import SourceSpace
from dpswd.errors import InputError
from dpswd.files.classifiers import write_classifier
from dpswd.files.generators import check_writable, write_generator
from dpswd.files.pictures import mark_picture, save_samples
from dpswd.lightning.adaptation import AdaptationModule
from dpswd.lightning.adaptation_data import AdaptationData
from dpswd.lightning.budget import PrivacyBudget
from dpswd.networks.classifiers import EncodedClassifier
from dpswd.networks.generator import Generator

__all__ = ["ClassifierFile", "GeneratorFile", "SampleGrid"]

_IMAGES_PER_ROW = 10  # as save_samples draws them: one row per class


class GeneratorFile(L.Callback):
    """Writes ``generator.pt`` at the end of a fit, with the guarantee of the run.

    ``dpswd sample`` reads the file. None is written if the module holds no release, as after a
    crash between the ledger's line and the noise.
    """

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuse a module without a generator of this library, before the first release."""
        try:
            check_writable(getattr(pl_module, "generator", None))
        except InputError as error:
            raise InputError(
                f"{error} Leave the callback GeneratorFile out for networks of your own."
            ) from None

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the file on rank 0."""
        any_trainer: Any = trainer
        module: Any = pl_module
        if any_trainer.fast_dev_run or not trainer.is_global_zero:
            return
        if hasattr(module, "released") and module.released is None:
            return
        records = getattr(getattr(trainer, "datamodule", None), "records", None)
        if records is not None:
            module.generator.class_names = records.classes
            module.generator.layout = records.layout
        path = Path(trainer.default_root_dir) / "generator.pt"
        write_generator(module.generator, path, _guarantee(any_trainer.callbacks))
        say(f"Generator: {path}; dpswd sample {path} draws records.")


def _guarantee(callbacks: list[L.Callback]) -> Guarantee:
    """Return the guarantee that the budget among the callbacks states.

    Without a budget there is no guarantee.
    """
    for callback in callbacks:
        if isinstance(callback, PrivacyBudget) and not callback.is_unprotected:
            return callback.statement().guarantee_of_weights()
    return Guarantee()


def _notice(callbacks: list[L.Callback]) -> str:
    """Return ``NOT PRIVATE`` and why, if the budget among the callbacks says so."""
    for callback in callbacks:
        if isinstance(callback, PrivacyBudget):
            return callback.notice
    return ""


class ClassifierFile(L.Callback):
    """Writes ``classifier.pt`` at the end of a fit, with the guarantee of the run.

    ``dpswd predict`` and :meth:`dpswd.PrivateAdapter.load` read the file. Networks of your own
    classes are not written to it, since a file cannot name code: their weights are in
    ``checkpoints/last.ckpt``.
    """

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuse another module before the first release."""
        data = getattr(trainer, "datamodule", None)
        if not isinstance(pl_module, AdaptationModule) or not isinstance(data, AdaptationData):
            raise InputError(
                "Expected an AdaptationModule with AdaptationData for the callback ClassifierFile, "
                f"got {type(pl_module).__name__} with {type(data).__name__}; leave it out."
            )

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the file on rank 0."""
        any_trainer: Any = trainer
        module: Any = pl_module
        if any_trainer.fast_dev_run or not trainer.is_global_zero or module.released is None:
            return
        directory = Path(trainer.default_root_dir)
        classifier = _target_classifier(module, any_trainer.datamodule)
        path = directory / "classifier.pt"
        try:
            write_classifier(classifier, path, _guarantee(any_trainer.callbacks))
        except InputError as error:
            say(f"No classifier.pt was written. {error}")
            return
        say(f"Classifier: {path}; dpswd predict {path} DATA gives the classes of records.")


def _target_classifier(module: AdaptationModule, data: AdaptationData) -> TargetClassifier:
    """Return the trained networks as a classifier of target records, on the CPU."""
    networks = EncodedClassifier(module.encoder, module.classifier)
    network = copy.deepcopy(networks).cpu().eval()
    verdict = (
        f"Trained on {len(data.source_records):,} source records, aligned with the target by its "
        f"{module.align}."
    )
    return TargetClassifier(
        space=SourceSpace.identity(data.sample_shape),
        classes=data.class_names,
        model=network,
        adapted=True,
        shift=0.0,
        verdict=verdict,
        columns=data.columns,
    )


class SampleGrid(L.Callback):
    """Writes ``samples.png``, with ten images per class, and shows it in TensorBoard.

    Args:
        every_n_steps: Training steps between pictures; 0 for one at the end of training only.

    Raises:
        InputError: If ``every_n_steps`` is negative.
    """

    def __init__(self, every_n_steps: int = 500) -> None:
        at_least(0, every_n_steps=every_n_steps)
        self.every_n_steps = every_n_steps

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuse a module without a generator of records, before the first release."""
        generator = getattr(pl_module, "generator", None)
        if not isinstance(generator, Generator):
            raise InputError(
                "Expected a module whose attribute generator is a dpswd Generator for the callback "
                f"SampleGrid, got {type(generator).__name__}; leave the callback out."
            )

    def on_train_batch_end(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Write a picture every ``every_n_steps`` steps."""
        step = trainer.global_step
        if self.every_n_steps and step and step % self.every_n_steps == 0:
            self._write(trainer, pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the last picture."""
        self._write(trainer, pl_module)

    def _write(self, trainer: L.Trainer, module: Any) -> None:
        generator = module.generator
        is_image = len(generator.sample_shape) == 3
        if not is_image or not trainer.is_global_zero:
            return
        any_trainer: Any = trainer
        path = Path(trainer.default_root_dir) / "samples.png"
        images = save_samples(generator, path)
        mark_picture(path, _notice(any_trainer.callbacks))
        board = getattr(trainer.logger, "experiment", None)
        if board is None or not hasattr(board, "add_image"):
            return
        from torchvision.utils import make_grid  # slow to import, and needed for TensorBoard only

        grid = make_grid(images.clamp(0, 1), nrow=_IMAGES_PER_ROW)
        board.add_image("samples", grid, trainer.global_step)
