"""Lightning callbacks that write files of networks and pictures of samples.

The networks are generators and classifiers.
"""

import copy
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import lightning as L
import numpy as np
from PIL import Image
from torch import Tensor

from dpswd._png import mark_picture
from dpswd._progress import say
from dpswd._validate import at_least
from dpswd.accounting.guarantee import Guarantee
from dpswd.adaptation.classifier import TargetClassifier
from dpswd.adaptation.space import SourceSpace
from dpswd.errors import InputError
from dpswd.files.classifiers import check_networks, write_classifier
from dpswd.files.generators import check_writable, write_generator
from dpswd.files.pictures import save_grid, save_rows, save_samples
from dpswd.lightning._plan import records_of
from dpswd.lightning._trial import in_evaluation
from dpswd.lightning.adaptation import AdaptationModule
from dpswd.lightning.adaptation_data import AdaptationData
from dpswd.lightning.budget import budget_of
from dpswd.networks.classifiers import EncodedClassifier
from dpswd.networks.generator import Generator

__all__ = ["ClassifierFile", "GeneratorFile", "SampleGrid"]

_IMAGES_PER_ROW = 10  # of a module of your own
# Where the weights are that no file of this library holds.
_OWN_WEIGHTS = (
    "A network of your own is in checkpoints/last.ckpt of dpswd fit, and in the checkpoints of a "
    "Trainer"
)


class GeneratorFile(L.Callback):
    """Writes ``generator.pt`` at the end of a fit, with the guarantee of the run.

    ``dpswd sample`` reads the file. It is for networks of this library only, since a file cannot
    name code. A network of your own is in ``checkpoints/last.ckpt`` of ``dpswd fit``, and
    :class:`SampleGrid` shows its images. No file is written if the module holds no release, as
    after a crash between the ledger's line and the noise.

    Raises:
        InputError: Before the records are read, if the module has no generator of this library.
    """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse a module without a generator of this library, before records are read."""
        if stage != "fit":
            return
        try:
            check_writable(getattr(pl_module, "generator", None))
        except InputError as error:
            raise InputError(
                f"{error} The callback GeneratorFile is for networks of this library only; leave "
                f"it out. {_OWN_WEIGHTS}; SampleGrid shows its images."
            ) from None

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the file on rank 0."""
        any_trainer: Any = trainer
        module: Any = pl_module
        if any_trainer.fast_dev_run or not trainer.is_global_zero:
            return
        if hasattr(module, "released") and module.released is None:
            return
        records = records_of(trainer)
        if records is not None:
            module.generator.class_names = records.classes
            module.generator.layout = records.layout
        path = Path(trainer.default_root_dir) / "generator.pt"
        write_generator(module.generator, path, _guarantee(trainer))
        say(f"Generator: {path}; {shlex.join(['dpswd', 'sample', str(path)])} draws records.")


def _guarantee(trainer: L.Trainer) -> Guarantee:
    """Return the guarantee that the budget of a run states, if there is a budget."""
    budget = budget_of(trainer)
    if budget is None or budget.is_unprotected:
        return Guarantee()
    return budget.statement().guarantee_of_weights()


def _notice(trainer: L.Trainer) -> str:
    """Return ``NOT PRIVATE`` and why; empty unless the budget of a run says so."""
    budget = budget_of(trainer)
    if budget is None:
        return ""
    return budget.notice


class ClassifierFile(L.Callback):
    """Writes ``classifier.pt`` at the end of a fit, with the guarantee of the run.

    ``dpswd predict`` and :meth:`dpswd.PrivateAdapter.load` read the file. It is for networks of
    this library only, since a file cannot name code. Networks of your own are in
    ``checkpoints/last.ckpt`` of ``dpswd fit``.

    Raises:
        InputError: Before the records are read, if the module is another one, or has an encoder or
            a classifier that is not of this library.
    """

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        """Refuse another module, and networks of your own, before records are read."""
        if stage != "fit":
            return
        data = getattr(trainer, "datamodule", None)
        if not isinstance(pl_module, AdaptationModule) or not isinstance(data, AdaptationData):
            raise InputError(
                "Expected an AdaptationModule with AdaptationData for the callback ClassifierFile, "
                f"got {type(pl_module).__name__} with {type(data).__name__}; leave it out."
            )
        try:
            check_networks(pl_module.encoder, pl_module.classifier)
        except InputError as error:
            raise InputError(
                f"{error} The callback ClassifierFile is for networks of this library only; leave "
                f"it out. {_OWN_WEIGHTS}."
            ) from None

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write the file on rank 0."""
        any_trainer: Any = trainer
        module: Any = pl_module
        if any_trainer.fast_dev_run or not trainer.is_global_zero or module.released is None:
            return
        directory = Path(trainer.default_root_dir)
        classifier = _target_classifier(module, any_trainer.datamodule)
        path = directory / "classifier.pt"
        write_classifier(classifier, path, _guarantee(trainer))
        command = shlex.join(["dpswd", "predict", str(path), "DATA"])
        say(f"Classifier: {path}; {command} gives the classes of records.")


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
    """Writes ``samples.png`` during the training, and shows it in TensorBoard.

    The picture has ten images of each class that ``generator`` of the module draws, a
    :class:`~dpswd.networks.generator.Generator`. A module of your own may have the method
    ``sample_images()`` instead. It takes no argument and returns images (n, channels, h, w) in
    [0, 1], or a dictionary of such images by the names of the rows of the picture. It is called in
    evaluation mode and without gradients, and leaves the random state of torch as it is.
    ``AdaptationModule`` has one, of source images before and after the adapter. The report of the
    run asks its reader to check a picture of ``sample_images()``, or of a generator of your own,
    for private records.

    Every logger whose ``experiment`` has ``add_image``, as that of ``TensorBoardLogger``, receives
    the picture as ``samples``. The file is written with any logger, and without one.

    Args:
        every_n_steps: Training steps between pictures; 0 for one at the end of training only.

    Raises:
        InputError: If ``every_n_steps`` is negative; before the first release, if the module draws
            no images.

    Example:
        >>> trainer = L.Trainer(callbacks=[SampleGrid(every_n_steps=100)], logger=False)
    """

    def __init__(self, every_n_steps: int = 500) -> None:
        at_least(0, every_n_steps=every_n_steps)
        self.every_n_steps = every_n_steps

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuse a module that draws no images, before the first release."""
        if _draws_images(pl_module):
            _sampled_images(pl_module)
            return
        generator = getattr(pl_module, "generator", None)
        if not isinstance(generator, Generator):
            raise InputError(
                "Expected a module with the method sample_images, or with a dpswd Generator as its "
                f"attribute generator, for the callback SampleGrid, got {type(pl_module).__name__} "
                "with neither; add the method, or leave the callback out."
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
        """Write a picture on rank 0, unless the records are not images."""
        if not trainer.is_global_zero:
            return
        path = Path(trainer.default_root_dir) / "samples.png"
        _name_classes(trainer, module)
        has_picture = _save_picture(module, path)
        if not has_picture:
            return
        mark_picture(path, _notice(trainer), of_releases=_is_drawn_by_library(module))
        for logger in trainer.loggers:
            _show_picture(logger, path, trainer.global_step)


def _name_classes(trainer: L.Trainer, module: Any) -> None:
    """Give a generator the public names of the classes of the records, if it has none."""
    generator = getattr(module, "generator", None)
    if not isinstance(generator, Generator) or generator.class_names is not None:
        return
    records = records_of(trainer)
    if records is None or records.classes is None:
        return
    if len(records.classes) == generator.n_classes:
        generator.class_names = records.classes


def _draws_images(module: L.LightningModule) -> bool:
    """Return whether a module has the method ``sample_images``."""
    return callable(getattr(module, "sample_images", None))


def _is_drawn_by_library(module: Any) -> bool:
    """Return whether only code of this library draws the picture of a module.

    A module's own ``sample_images`` may return anything, private records included, and so may a
    network of a user.
    """
    if _draws_images(module):
        return False
    kinds = {type(part).__module__.partition(".")[0] for part in module.generator.modules()}
    return kinds <= {"dpswd", "torch"}


def _save_picture(module: Any, path: Path) -> bool:
    """Write the picture of a module; return whether there is one."""
    if not _draws_images(module):
        has_images = len(module.generator.sample_shape) == 3
        if has_images:
            save_samples(module.generator, path)
        return has_images
    images = _sampled_images(module)
    if isinstance(images, Tensor):
        save_grid(images.cpu(), path, _IMAGES_PER_ROW)
    elif images:
        save_rows(images, path)
    return len(images) > 0


def _sampled_images(module: Any) -> Tensor | dict[str, Tensor]:
    """Return what ``sample_images`` of a module draws.

    Raises:
        InputError: If that is not images of one size.
    """
    with in_evaluation(module):
        images = module.sample_images()
    if not isinstance(images, Mapping):
        _check_images([images], module)
        return cast(Tensor, images)
    rows = {str(name): row for name, row in images.items()}
    _check_images(list(rows.values()), module)
    return rows


def _check_images(all_images: list[Any], module: L.LightningModule) -> None:
    """Refuse what is not images of one size, in grey or in colour."""
    expected = (
        f"Expected images (n, 1 or 3, h, w) of one size from {type(module).__name__}.sample_images"
    )
    sizes = set()
    for images in all_images:
        if not isinstance(images, Tensor):
            raise InputError(f"{expected}, got {type(images).__name__}; return a tensor.")
        shape = tuple(images.shape)
        if len(shape) != 4 or shape[1] not in (1, 3) or not len(images):
            raise InputError(f"{expected}, got shape {shape}; change what it returns.")
        sizes.add(shape[2:])
    if len(sizes) > 1:
        raise InputError(f"{expected}, got the sizes {sorted(sizes)}; scale them to one.")


def _show_picture(logger: Any, path: Path, step: int) -> None:
    """Show a picture in TensorBoard; another logger is left as it is."""
    board: Any = getattr(logger, "experiment", None)
    if not hasattr(board, "add_image"):
        return
    with Image.open(path) as picture:
        pixels = np.asarray(picture.convert("RGB"))
    board.add_image("samples", pixels, step, dataformats="HWC")
