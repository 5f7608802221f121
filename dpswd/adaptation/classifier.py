r"""Classifier of target records, trained on labelled source records and a synthetic target: post-processing.

Fallback. Let m be the mean of the synthetic target in the coordinates of :mod:`dpswd.adaptation.space`, :math:`\nu` the
norm of the noise of the released mean, and v the variance of the source within classes, summed over the coordinates.
The shift is :math:`s = \max(0, \|m\|^2 - \nu^2) / v`. The result is the classifier of the source, without adaptation,
where the forecast puts the signal-to-noise ratio of the mean below 2, or where :math:`s` is below ``min_shift``. The
second condition does not apply to the image map, whose few parameters stay near the identity where the target looks
like the source.
"""

import copy
import dataclasses
import inspect
import io
import math
from pathlib import Path
from typing import Any, TypeAlias

import lightning as L
import numpy as np
import ot.da
import torch
from lightning.pytorch.utilities import rank_zero_warn
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.linear_model import LogisticRegression

from dpswd import __version__
from dpswd._files import atomic_write
from dpswd._validate import at_least, nonnegative
from dpswd.adaptation.data import AdaptationData
from dpswd.adaptation.methods import ImageMap, class_shift, image_network
from dpswd.adaptation.space import SourceSpace, channels_first, channels_last
from dpswd.errors import InputError
from dpswd.generation.evaluation import write_evaluation
from dpswd.generation.export import read_file, stated_guarantee
from dpswd.generation.generators import MixtureGenerator
from dpswd.generation.structure import BETWEEN, ROW_NORM
from dpswd.training.callback import PrivacyBudget

__all__ = ["ClassifierFile", "SyntheticTarget", "TargetClassifier", "adapt"]

_LEAST_SIGNAL = 2.0  # signal-to-noise ratio of the mean below which nothing is adapted
_MASKED = -1  # label of target records in skada
_FORMAT = 1
_PART = 500  # images that a network maps at a time

Array = NDArray[Any]
Method: TypeAlias = str | ImageMap | BaseEstimator | ot.da.BaseTransport


@dataclasses.dataclass(frozen=True, eq=False)
class SyntheticTarget:
    """Synthetic target records and what is known of their noise.

    Args:
        records: (n, ...), in the layout of the source; vectors without the directions that were left out.
        rows: Their leading coordinates (n, p).
        signal: Signal-to-noise ratio of the mean, forecast.
        noise: Norm of the noise of the mean, in coordinates.

    Example:
        >>> X = np.random.default_rng(0).normal(size=(60, 5))
        >>> space = SourceSpace.of(X, n_target=100, mu=1.0, normalise=False)
        >>> SyntheticTarget(X, space.leading(X), signal=9.0, noise=0.1).rows.shape
        (60, 5)
    """

    records: Array
    rows: Array
    signal: float
    noise: float

    @classmethod
    def draw(
        cls, generator: MixtureGenerator, space: SourceSpace, signal: float, n: int, seed: int
    ) -> "SyntheticTarget":
        """Draws n records; the global random state stays as it is.

        Args:
            generator: Of coordinates for vectors, of images for images.
            space: The coordinates.
            signal: Signal-to-noise ratio of the mean.
            n: Number of records.
            seed: Seed of the latent codes.
        """
        images = len(space.shape) > 1
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(seed)
            parts = torch.zeros(n, dtype=torch.int64).split(_PART)
            drawn = torch.cat([generator(generator.latent(len(part)), part).cpu() for part in parts])
        records = channels_last(drawn.clamp(0, 1)) if images else space.vectors(drawn.double().numpy())
        rows = space.leading(records) if images else drawn.double().numpy()
        unit = float(generator.synthesis[0].norm()) / (space.radius if images else 1.0)
        return cls(records, rows, signal, unit * math.sqrt(BETWEEN) * ROW_NORM / signal)


@dataclasses.dataclass(frozen=True, eq=False)
class TargetClassifier:
    """Trained classifier with its preprocessing.

    Args:
        space: Coordinates of the records.
        classes: Class names (C,).
        model: Classifier of scikit-learn, or a network for images; both predict the numbers of the classes.
        directions: Directions (d, k) on which coordinates are projected; ``None`` for a network.
        adapted: Whether the method was used; ``False`` for the classifier of the source.
        shift: Shift s of the module's docstring.
        verdict: One sentence on what was done and why.

    Example:
        >>> X, y = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 3
        >>> space = SourceSpace.of(X, n_target=100, mu=1.0, normalise=False)
        >>> found = adapt(space, SyntheticTarget(X, space.leading(X), signal=1.0, noise=0.1), X, y)
        >>> found.verdict
        'Classifier of the source: the noise hides the mean of the target.'
    """

    space: SourceSpace
    classes: Array
    model: Any
    directions: Array | None
    adapted: bool
    shift: float
    verdict: str

    def predict(self, records: Array) -> Array:
        """Returns the classes (n,) of records (n, ...).

        Raises:
            InputError: If the records have another shape.
        """
        rows = self.space.coordinates(records)
        if self.directions is not None:
            numbers = np.asarray(self.model.predict(rows @ self.directions)).astype(int)
        else:
            with torch.no_grad():
                scores = [self.model(part) for part in channels_first(records).split(_PART)]
            numbers = torch.cat(scores).argmax(1).numpy()
        names: Array = self.classes[numbers]
        return names

    def save(self, path: str | Path, guarantee: dict[str, Any]) -> None:
        """Writes weights, preprocessing, classes and guarantee to one file, atomically.

        Raises:
            InputError: If the classifier is neither a logistic regression nor a network of this library, or the file
                cannot be written.
        """
        if self.directions is None:
            weights = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        elif type(self.model) is LogisticRegression:
            weights = {
                "weight": torch.from_numpy(self.model.coef_ @ self.directions.T),
                "bias": torch.from_numpy(self.model.intercept_),
            }
        else:
            raise InputError(
                f"Expected a logistic regression to save, got {type(self.model).__name__}; leave classifier at its "
                "default, and choose a transport or a method of this library."
            )
        content = {
            "format": _FORMAT,
            "version": __version__,
            "kind": "network" if self.directions is None else "linear",
            "shape": list(self.space.shape),
            "classes": self.classes.tolist(),
            "center": torch.from_numpy(self.space.center),
            "radius": self.space.radius,
            "normalise": self.space.normalise,
            "weights": weights,
            "adapted": bool(self.adapted),
            "shift": float(self.shift),
            "verdict": self.verdict,
            "guarantee": stated_guarantee(guarantee),
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        atomic_write(Path(path), buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> tuple["TargetClassifier", dict[str, Any]]:
        """Reads a file of :meth:`save`; no code of the file is run.

        Returns:
            The classifier and the guarantee of its run.

        Raises:
            InputError: If the file is missing or is not a classifier.
        """
        with read_file(path, "classifier", _FORMAT) as content:
            center, classes, weights = content["center"].numpy(), np.array(content["classes"]), content["weights"]
            directions: Array | None = None
            model: Any
            if content["kind"] == "network":
                shape = content["shape"]
                model = image_network(shape[2] if len(shape) == 3 else 1, len(classes))
                model.load_state_dict(weights)
                model.eval()
            else:
                model, directions = LogisticRegression(), np.eye(len(center))
                model.coef_, model.intercept_ = weights["weight"].numpy(), weights["bias"].numpy()
                model.classes_, model.n_features_in_ = np.arange(len(classes)), len(center)
            space = SourceSpace(
                tuple(content["shape"]), content["normalise"], center, content["radius"], np.eye(len(center))
            )
            facts = (content[name] for name in ("adapted", "shift", "verdict"))
            return cls(space, classes, model, directions, *facts), content["guarantee"]


def check_method(method: Any, *, images: bool) -> None:
    """Checks a method against the form of the records.

    Raises:
        InputError: If the method is neither a name, nor a transport of POT, nor a classifier, or needs images.
    """
    method = _copied(method)
    if isinstance(method, ImageMap) and not images:
        raise InputError("Expected images for method image_map, got vectors; choose class_shift.")


def _copied(method: Any) -> Any:
    """Returns a copy of the method; an :class:`ImageMap` or ``None`` (class shift) for a name."""
    if isinstance(method, str) and method in ("class_shift", "image_map"):
        return ImageMap() if method == "image_map" else None
    if not hasattr(method, "fit"):
        raise InputError(f"Expected method='class_shift', 'image_map' or an estimator, got {method!r}.")
    if isinstance(method, ImageMap) or _is_transport(method):
        return copy.deepcopy(method)
    if not hasattr(method, "predict"):
        raise InputError("Expected method with predict, got one without; append a classifier to the pipeline.")
    return clone(method)


def _is_transport(method: Any) -> bool:
    return "Xs" in inspect.signature(method.fit).parameters


def adapt(
    space: SourceSpace,
    target: SyntheticTarget,
    source: Array,
    labels: Array,
    *,
    method: Any = "class_shift",
    classifier: Any = None,
    min_shift: float = 0.3,
    seed: int = 0,
) -> TargetClassifier:
    """Trains a classifier of target records; spends nothing and reads no private record.

    Args:
        space: Coordinates of the records.
        target: Synthetic target.
        source: Source records (n, ...).
        labels: Their classes (n,).
        method: See :class:`dpswd.PrivateAdapter`.
        classifier: See :class:`dpswd.PrivateAdapter`.
        min_shift: See :class:`dpswd.PrivateAdapter`.
        seed: Seed of public randomness.

    Returns:
        The classifier, of the source where nothing is adapted.

    Raises:
        InputError: If the method or the records do not fit.

    Example:
        >>> X, y = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 3
        >>> space = SourceSpace.of(X, n_target=100, mu=1.0, normalise=False)
        >>> target = SyntheticTarget(X + 1, space.leading(X + 1), signal=9.0, noise=0.1)
        >>> adapt(space, target, X, y).predict(X[:4]).shape
        (4,)
    """
    check_method(method, images=len(space.shape) > 1)
    method = _copied(method)
    if np.shape(labels) != source.shape[:1]:
        raise InputError(f"Expected y of shape {source.shape[:1]}, as many as X, got {np.shape(labels)}.")
    classes, numbers = np.unique(np.asarray(labels), return_inverse=True)
    full = space.coordinates(source)
    rows = full @ space.basis
    shift = _shift(rows, numbers, target)
    least = 0.0 if isinstance(method, ImageMap) else min_shift
    adapted = target.signal >= _LEAST_SIGNAL and shift >= least
    linear = LogisticRegression(max_iter=300) if classifier is None else clone(classifier)
    directions = space.basis if adapted else np.eye(full.shape[1])
    if isinstance(method, ImageMap):
        aim = channels_first(target.records) if adapted else None
        model: Any = method.fit(channels_first(source), torch.from_numpy(numbers), aim, seed)
    elif not adapted:
        model = linear.fit(full, numbers)
    elif method is None:
        model = linear.fit(class_shift(rows, numbers, target.rows, seed), numbers)
    elif _is_transport(method):
        model = linear.fit(np.asarray(method.fit(Xs=rows, ys=numbers, Xt=target.rows).transform(Xs=rows)), numbers)
    else:
        domain = np.r_[np.ones(len(rows), dtype=int), np.full(len(target.rows), -2)]
        known = np.r_[numbers, np.full(len(target.rows), _MASKED)]
        model = method.fit(np.r_[rows, target.rows], known, sample_domain=domain)
    return TargetClassifier(
        space,
        classes,
        model,
        None if isinstance(method, ImageMap) else directions,
        adapted,
        shift,
        _verdict(adapted, shift, target.signal, least),
    )


def _shift(rows: Array, numbers: Array, target: SyntheticTarget) -> float:
    """Returns the shift s of the module's docstring."""
    means = np.stack([rows[numbers == c].mean(0) for c in range(numbers.max() + 1)])
    within = float(np.square(rows - means[numbers]).sum(1).mean())
    move = target.rows.mean(0) - rows.mean(0)
    return max(0.0, float(move @ move) - target.noise**2) / max(within, 1e-12)


def _verdict(adapted: bool, shift: float, signal: float, min_shift: float) -> str:
    if adapted:
        return f"Adapted: the mean of the target moved by {shift:.2f} variances within classes."
    if signal < _LEAST_SIGNAL:
        return "Classifier of the source: the noise hides the mean of the target."
    return (
        f"Classifier of the source: the mean of the target moved by {shift:.2f} variances within classes, less than "
        f"min_shift={min_shift:g}."
    )


class ClassifierFile(L.Callback):
    """Adapts a classifier at the end of a fit and writes ``classifier.pt`` with the guarantee of the run.

    The module is a :class:`~dpswd.generation.mixture_module.MixtureModule` without classes, the data module an
    :class:`~dpswd.adaptation.data.AdaptationData`. The options are those of :class:`dpswd.PrivateAdapter`. No file is
    written if the module made no release.

    An accuracy is an exact statistic of its records, which no budget covers. ``evaluation.json`` is written for public
    benchmarks, or where the user states that the test records are public and disjoint from the private ones.

    Args:
        method: Adaptation method.
        min_shift: Least shift of the mean for which the method is used.
        n_synthetic: Number of synthetic target records.
        seed: Seed of public randomness.
        synthetic: Write the synthetic target, too: ``synthetic_target.npz`` with ``features`` or ``data``.
        test_is_public: States that the test records are public and that none of them is among the private records.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> callback = ClassifierFile("class_shift")  # L.Trainer(callbacks=[budget, callback], ...)
        >>> callback.min_shift
        0.3
    """

    def __init__(
        self,
        method: Method = "class_shift",
        min_shift: float = 0.3,
        n_synthetic: int = 4000,
        seed: int = 0,
        synthetic: bool = False,
        test_is_public: bool = False,
    ) -> None:
        at_least(10, n_synthetic=n_synthetic)
        nonnegative(min_shift=min_shift)
        self.method, self.min_shift, self.n_synthetic, self.seed = method, min_shift, n_synthetic, seed
        self.synthetic, self.test_is_public = synthetic, test_is_public

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Refuses other data modules and missing test records, before anything is released.

        Raises:
            InputError: See above.
        """
        data: Any = getattr(trainer, "datamodule", None)
        if not isinstance(data, AdaptationData):
            raise InputError(f"Expected a data module of dpswd.adaptation.data, got {type(data).__name__}.")
        check_method(self.method, images=len(data.space.shape) > 1)
        if self.test_is_public and data.test is None:
            raise InputError(f"Expected test records for {data.name}, got none; set data.test.")

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes the files on rank 0."""
        module: Any = pl_module
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if trainer.fast_dev_run or not trainer.is_global_zero:  # type: ignore[attr-defined]
            return
        if not bool(module.fitted):
            rank_zero_warn("The module made no release, so that classifier.pt is not written.")
            return
        directory = Path(trainer.default_root_dir)
        signal = module.structure.signal_to_noise["means"]
        target = SyntheticTarget.draw(module.generator.eval(), data.space, signal, self.n_synthetic, self.seed)
        source, labels = channels_last(data.source.floats()), data.source.labels.numpy()
        found = adapt(data.space, target, source, labels, method=self.method, min_shift=self.min_shift, seed=self.seed)
        budgets = [each for each in trainer.callbacks if isinstance(each, PrivacyBudget)]  # type: ignore[attr-defined]
        found.save(directory / "classifier.pt", budgets[0].statement() if budgets else {"private": False})
        print(found.verdict)  # noqa: T201  (the result of the command)
        if self.synthetic:
            buffer = io.BytesIO()
            arrays: dict[str, Any] = {"features" if source.ndim == 2 else "data": target.records}
            np.savez_compressed(buffer, **arrays)
            atomic_write(directory / "synthetic_target.npz", buffer.getvalue())
        if data.test is not None and (data.public_benchmark or self.test_is_public):
            correct = found.predict(channels_last(data.test.floats())) == data.test.labels.numpy()
            row = {
                "dataset": data.name,
                "classifier": "adapted" if found.adapted else "of the source",
                "train": "source and synthetic target",
                "accuracy": round(100 * float(correct.mean()), 2),
                "n_train": len(source),
                "n_test": len(data.test),
            }
            write_evaluation(directory, [row], public=True)
