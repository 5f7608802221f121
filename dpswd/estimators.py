"""Private generators and adapted classifiers with the interface of scikit-learn.

They run what ``dpswd fit`` runs: the same module, budget and ledger. Each fit is a run of its own and spends its
budget; a second fit of one estimator is refused unless a shared ledger adds the budgets up.

:class:`PrivateAdapter` releases the target once, as a synthetic target (:class:`PrivateGenerator` without labels). An
adaptation method then runs between the source and the synthetic target (:mod:`dpswd.adaptation.classifier`). It reads
no private record, so everything after the release is post-processing (docs/theory/private-side.md, Proposition 25).
"""

import datetime
import json
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
import yaml  # type: ignore[import-untyped]
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.seed import isolate_rng
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor

from dpswd._files import atomic_write
from dpswd._validate import at_least, nonnegative, positive, probability
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.adaptation.classifier import SyntheticTarget, TargetClassifier, adapt, check_method
from dpswd.adaptation.space import SourceSpace
from dpswd.data.features import ArrayData
from dpswd.errors import InputError
from dpswd.generation.export import GUARANTEE, read_generator, to_bytes, write_generator
from dpswd.generation.mixture_module import MixtureModule
from dpswd.generation.structure import Structure, forecast
from dpswd.report.render import write_report
from dpswd.training.callback import PrivacyBudget
from dpswd.training.cli import StepProgressBar

__all__ = ["PrivateAdapter", "PrivateGenerator"]

_CONSTANTS = ("center", "radius", "shift", "rotation", "zoom", "shear", "elastic")
_FORMATS = {".html": "report.html", ".md": "report.md", ".json": "report.json"}

Array = NDArray[Any]


class PrivateGenerator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Makes synthetic records from private ones.

    A mixture of normal distributions, from noisy sums over all records; no network is trained.

    Formal guarantee:
        ``fit`` is one run of :class:`dpswd.generation.mixture_module.MixtureModule` under a
        :class:`~dpswd.PrivacyBudget`: (epsilon, delta) differential privacy under replace-one, labels included.
        Samples, files and reports are post-processing. The shape, the number and the classes of the records are
        public.

    Args:
        epsilon: Budget epsilon of one fit.
        delta: Budget delta of one fit; well below 1 / N.
        classes: Public list of classes. Without it, integer labels range from 0 to the largest one.
        center: Public constant subtracted from every entry; ``None`` for 0.5 (images) or 0 (vectors).
        radius: Public guess of the norm of a centred vector; for vectors only.
        shift: Random shift of generated images, in pixels; public knowledge of what leaves a class unchanged.
        rotation: As ``shift``, in degrees.
        zoom: As ``shift``, relative size.
        shear: As ``shift``, relative slant.
        elastic: As ``shift``, standard deviation of smooth displacements, in pixels.
        run_dir: Directory of the ledger and the report; by default a new one below ``runs``.
        shared_ledger: Ledger of several runs on the same records, made by ``dpswd ledger create``.
        random_state: Seed of public randomness (weights, latent codes). Noise has no seed.
        verbose: Show progress.

    Attributes:
        guarantee_: Facts of the guarantee: epsilon, delta, mu, regret, sound, ...
        generator_: The fitted :class:`~dpswd.generation.generators.Generator`.
        classes_: Classes (C,), or ``None`` without labels.
        run_dir_: The run directory.

    Example:
        >>> generator = PrivateGenerator(epsilon=10, delta=1e-5)  # .fit(images, labels).sample(10_000)
        >>> generator.get_params()["epsilon"]
        10
    """

    _reference: torch.Tensor | None = None  # public vectors like the private ones, of PrivateAdapter

    def __init__(
        self,
        epsilon: float = 10.0,
        delta: float = 1e-5,
        *,
        classes: Sequence[Any] | None = None,
        center: float | None = None,
        radius: float = 1.0,
        shift: float = 0.0,
        rotation: float = 0.0,
        zoom: float = 0.0,
        shear: float = 0.0,
        elastic: float = 0.0,
        run_dir: str | Path | None = None,
        shared_ledger: str | Path | None = None,
        random_state: int = 0,
        verbose: bool = True,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.center = center
        self.radius = radius
        self.shift = shift
        self.rotation = rotation
        self.zoom = zoom
        self.shear = shear
        self.elastic = elastic
        self.run_dir = run_dir
        self.shared_ledger = shared_ledger
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> "PrivateGenerator":
        """Releases noisy statistics of the records and fits a generator to them.

        Args:
            X: Images (N, H, W) or (N, H, W, C), bytes or floats in [0, 1], or rows (N, d); NumPy, torch or pandas.
            y: Classes (N,), or ``None``.

        Returns:
            The estimator.

        Raises:
            InputError: If the records do not fit; nothing is released then.
            BudgetExceededError: If the shared ledger does not cover the run.
        """
        _check_first_fit(self)
        with isolate_rng(), _quiet(self.verbose):
            L.seed_everything(self.random_state, verbose=False)
            data = ArrayData(X, y, classes=self.classes)
            data.reference = self._reference
            module = MixtureModule(**{name: getattr(self, name) for name in _CONSTANTS})
            directory = _new_run_dir(self.run_dir)
            ledger = None if self.shared_ledger is None else str(self.shared_ledger)
            budget = PrivacyBudget(self.epsilon, self.delta, shared_ledger=ledger)
            budget.before_ledger = lambda: _write_config(self, data, directory)
            trainer = L.Trainer(
                default_root_dir=directory,
                max_epochs=1,
                accelerator="cpu",
                logger=False,
                enable_checkpointing=False,
                enable_model_summary=False,
                enable_progress_bar=self.verbose,
                callbacks=[budget, *([StepProgressBar()] if self.verbose else [])],
            )
            try:
                trainer.fit(module, datamodule=data)
            finally:
                self._released = getattr(self, "_released", False) or budget.n_releases > 0
        self.run_dir_ = directory
        self.guarantee_ = {key: value for key, value in budget.statement().items() if key in GUARANTEE}
        self.generator_: Any = module.generator.eval()
        self._structure: Any = module.structure
        self.classes_ = (
            None if y is None else np.arange(data.n_classes or 0) if self.classes is None else np.array(self.classes)
        )
        self.generator_.class_names = None if self.classes_ is None else self.classes_.tolist()
        self._bytes = data.private.values.dtype == torch.uint8
        return self

    def sample(self, n_samples: int, y: Any = None) -> tuple[NDArray[Any], NDArray[Any] | None]:
        """Generates records.

        Args:
            n_samples: Number n of records.
            y: Classes (n,) to generate for; by default every class equally often.

        Returns:
            Records in the layout and number format (bytes or floats) of those that were fitted, and their classes (n,),
            or ``None`` without labels.

        Raises:
            InputError: If the estimator is not fitted or a class is unknown.
        """
        at_least(1, n_samples=n_samples)
        generator = self._fitted()
        labels = torch.arange(n_samples) % max(1, generator.n_classes)
        if y is not None:
            labels = self._numbers(y, n_samples)
        with torch.no_grad():
            parts = [generator(generator.latent(len(part)), part) for part in labels.split(500)]
        records = _layout(torch.cat(parts), self._bytes)
        return records, None if self.classes_ is None else self.classes_[labels.numpy()]

    def save(self, path: str | Path) -> None:
        """Writes weights, class names and guarantee to one file, which :meth:`load` reads.

        Raises:
            InputError: If the estimator is not fitted or the file cannot be written.
        """
        write_generator(self._fitted(), path, self.guarantee_)

    @classmethod
    def load(cls, path: str | Path) -> "PrivateGenerator":
        """Reads a file of :meth:`save`, or the ``generator.pt`` of a run; no code of the file is run.

        Raises:
            InputError: If the file is missing or is not a generator.
        """
        generator, guarantee = read_generator(path)
        result = cls(epsilon=guarantee.get("epsilon", 0.0), delta=guarantee.get("delta", 0.0))
        result.generator_, result.guarantee_, result._bytes = generator, guarantee, False
        names = generator.class_names or list(range(generator.n_classes))
        result.classes_ = np.array(names) if generator.n_classes else None
        return result

    def report(self, path: str | Path) -> None:
        """Writes the report of the run.

        Args:
            path: File ending in ``.html``, ``.md`` or ``.json``.

        Raises:
            InputError: If the estimator was loaded from a file, which holds no ledger, or the ending is unknown.
        """
        self._fitted()
        path = Path(path)
        if path.suffix not in _FORMATS:
            raise InputError(f"Expected a path ending in .html, .md or .json, got {path.name!r}.")
        if not hasattr(self, "run_dir_"):
            raise InputError("Expected an estimator with the ledger of its run, got one read from a file.")
        write_report(self.run_dir_)
        atomic_write(path, (self.run_dir_ / _FORMATS[path.suffix]).read_bytes())

    def forecast(self, shape: tuple[int, ...], n: int, classes: int = 0) -> Structure:
        """Forecasts the signal-to-noise ratios of the releases from public numbers; spends no budget.

        Args:
            shape: Shape of a record: (H, W), (H, W, C) or (d,).
            n: Number N of records.
            classes: Number of classes; 0 for none.

        Returns:
            The structure of the generator, with the signal-to-noise ratio of every release; ``print`` describes it.

        Raises:
            InputError: If a number is out of range.
        """
        shape = tuple(shape)
        channels_first = (shape[2], *shape[:2]) if len(shape) == 3 else (1, *shape) if len(shape) == 2 else shape
        return forecast(n, channels_first, classes, mu_of_epsilon(self.epsilon, self.delta))

    def _fitted(self) -> Any:
        if not hasattr(self, "generator_"):
            raise InputError("Expected a fitted PrivateGenerator, got one before fit; call fit or load first.")
        return self.generator_

    def _numbers(self, y: Any, n_samples: int) -> Tensor:
        known = {} if self.classes_ is None else {name: i for i, name in enumerate(self.classes_.tolist())}
        names = np.asarray(y).tolist()
        if len(names) != n_samples or any(name not in known for name in names):
            raise InputError(f"Expected {n_samples} classes out of {list(known)} in y, got {len(names)}; check them.")
        return torch.tensor([known[name] for name in names])


class PrivateAdapter(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Adapts a classifier from labelled public records to unlabelled private ones.

    Formal guarantee:
        ``fit`` makes the releases of one :class:`~dpswd.PrivateGenerator` without labels: (epsilon, delta)
        differential privacy of the target under replace-one. The classifier, predictions on public records, files and
        reports are post-processing. The source, its labels, and the shape and the number of target records are public.

    Args:
        epsilon: Budget epsilon of one fit.
        delta: Budget delta of one fit; well below 1 / N.
        method: ``"class_shift"`` moves each class of the source by its mean displacement under optimal transport onto
            the synthetic target. ``"image_map"``, for images, trains a network on source images that a fitted map makes
            look like the target's; pass :class:`dpswd.adaptation.methods.ImageMap` for its options. Otherwise a
            transport of ``ot.da`` or a classifier of skada.
        classifier: Classifier trained on the transported source; ``None`` for logistic regression. An estimator of
            skada contains its own; the classifier is then used for the source alone. ``image_map`` ignores it.
        normalise: Scale every vector to norm 1 first, as is usual for features of a network and for pixels.
        min_shift: Least shift of the mean for which the method is used, in variances within classes; see
            :mod:`dpswd.adaptation.classifier`.
        n_synthetic: Number of synthetic target records.
        run_dir: Directory of the ledger and the report; by default a new one below ``runs``.
        shared_ledger: Ledger of several runs on the same records, made by ``dpswd ledger create``.
        random_state: Seed of public randomness. Noise has no seed.
        verbose: Show progress.

    Attributes:
        classifier_: The trained :class:`~dpswd.adaptation.classifier.TargetClassifier`.
        classes_: Classes (C,) of the source.
        adapted_: Whether the method was used; ``False`` if the classifier is that of the source.
        shift_: Shift of the mean in variances within classes, less what its noise explains.
        verdict_: One sentence on what was done and why.
        synthetic_: Synthetic target records (n_synthetic, ...): images in [0, 1], or vectors without the directions
            that were left out.
        generator_: The fitted :class:`~dpswd.PrivateGenerator`.
        guarantee_: Facts of the guarantee: epsilon, delta, mu, regret, sound, ...
        run_dir_: The run directory.

    Example:
        >>> adapter = PrivateAdapter(epsilon=10, delta=1e-5)  # .fit(X, y, sample_domain).predict(new)
        >>> adapter.get_params()["method"]
        'class_shift'
    """

    def __init__(
        self,
        epsilon: float = 10.0,
        delta: float = 1e-5,
        *,
        method: Any = "class_shift",
        classifier: Any = None,
        normalise: bool = False,
        min_shift: float = 0.3,
        n_synthetic: int = 4000,
        run_dir: str | Path | None = None,
        shared_ledger: str | Path | None = None,
        random_state: int = 0,
        verbose: bool = True,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.classifier = classifier
        self.normalise = normalise
        self.min_shift = min_shift
        self.n_synthetic = n_synthetic
        self.run_dir = run_dir
        self.shared_ledger = shared_ledger
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_domain: Any) -> "PrivateAdapter":
        """Releases a synthetic target and trains a classifier for it.

        Args:
            X: Source and target records: rows (N, d), or images (N, H, W) or (N, H, W, C).
            y: Classes (N,). Those of target records are ignored.
            sample_domain: (N,), positive for source records and negative for target records.

        Returns:
            The estimator.

        Raises:
            InputError: If the records do not fit; nothing is released or written then.
            BudgetExceededError: If the shared ledger does not cover the run.
        """
        at_least(10, n_synthetic=self.n_synthetic)
        nonnegative(min_shift=self.min_shift)
        positive(epsilon=self.epsilon)
        probability(delta=self.delta)
        _check_first_fit(self)
        source, labels, target = _split(X, y, sample_domain)
        check_method(self.method, images=source.ndim > 2)
        generator = PrivateGenerator(
            self.epsilon,
            self.delta,
            run_dir=self.run_dir,
            shared_ledger=self.shared_ledger,
            random_state=self.random_state,
            verbose=self.verbose,
        )
        mu = mu_of_epsilon(self.epsilon, self.delta)
        space = SourceSpace.of(source, len(target), mu, self.normalise)
        released = target
        if source.ndim == 2:
            released = space.target_rows(target)
            generator._reference = torch.from_numpy(space.leading(source)).float()
        try:
            generator.fit(released)
        finally:
            self._released = getattr(self, "_released", False) or getattr(generator, "_released", False)
        signal = generator._structure.signal_to_noise["means"]
        self._target = SyntheticTarget.draw(generator.generator_, space, signal, self.n_synthetic, self.random_state)
        self._space, self.synthetic_ = space, self._target.records
        self.generator_, self.guarantee_, self.run_dir_ = generator, generator.guarantee_, generator.run_dir_
        return self.adapt(source, labels)

    def adapt(self, X: Any, y: Any) -> "PrivateAdapter":
        """Trains a classifier on the synthetic target of the last fit; spends nothing and reads no private record.

        ``fit`` calls it. Call it after ``set_params(method=...)`` to compare methods on one synthetic target.

        Args:
            X: Source records, those of the fit.
            y: Their classes (N,).

        Returns:
            The estimator.

        Raises:
            InputError: If the estimator was not fitted, or the records do not fit.
        """
        if not hasattr(self, "generator_"):
            raise InputError("Expected an estimator with a synthetic target, got none; call fit first.")
        self.classifier_ = adapt(
            self._space,
            self._target,
            _records(X),
            np.asarray(y),
            method=self.method,
            classifier=self.classifier,
            min_shift=self.min_shift,
            seed=self.random_state,
        )
        self._set_facts()
        if self.verbose:
            rank_zero_info(self.verdict_)
        return self

    def predict(self, X: Any) -> Array:
        """Returns the classes (n,) of records in the layout of those that were fitted.

        Raises:
            InputError: If the estimator is not fitted or the records do not fit.
        """
        return self._fitted().predict(_records(X))

    def report(self, path: str | Path) -> None:
        """Writes the report of the run; see :meth:`dpswd.PrivateGenerator.report`."""
        self._fitted()
        if not hasattr(self, "generator_"):
            raise InputError("Expected an estimator with the ledger of its run, got one read from a file.")
        self.generator_.report(path)

    def save(self, path: str | Path) -> None:
        """Writes weights, preprocessing, classes and guarantee to one file, which :meth:`load` reads.

        Raises:
            InputError: If the estimator is not fitted, its classifier is neither a logistic regression nor a network of
                this library, or the file cannot be written.
        """
        self._fitted().save(path, self.guarantee_)

    @classmethod
    def load(cls, path: str | Path) -> "PrivateAdapter":
        """Reads a file of :meth:`save`, or the ``classifier.pt`` of a run; no code of the file is run.

        Raises:
            InputError: If the file is missing or is not a classifier.
        """
        classifier, guarantee = TargetClassifier.load(path)
        result = cls(guarantee.get("epsilon", 0.0), guarantee.get("delta", 0.0), normalise=classifier.space.normalise)
        result.classifier_, result.guarantee_ = classifier, guarantee
        result._set_facts()
        return result

    def _set_facts(self) -> None:
        found = self.classifier_
        self.classes_, self.adapted_ = found.classes, found.adapted
        self.shift_, self.verdict_ = found.shift, found.verdict

    def _fitted(self) -> TargetClassifier:
        if not hasattr(self, "classifier_"):
            raise InputError("Expected a fitted PrivateAdapter, got one before fit; call fit or load first.")
        found: TargetClassifier = self.classifier_
        return found


def _records(X: Any) -> Array:
    records = np.asarray(X)
    if records.ndim not in (2, 3, 4) or records.dtype.kind not in "biuf":
        raise InputError(f"Expected X as rows (N, d) or images (N, H, W[, C]), got {records.dtype} {records.shape}.")
    if records.dtype.kind == "f" and not np.isfinite(records).all():
        raise InputError("Expected finite numbers in X, got NaN or inf; set these records to zero.")
    return records


def _split(X: Any, y: Any, sample_domain: Any) -> tuple[Array, Array, Array]:
    """Returns source records, their classes, and target records."""
    records, labels, domain = _records(X), np.asarray(y), np.asarray(sample_domain)
    for name, given in (("y", labels), ("sample_domain", domain)):
        if given.shape != records.shape[:1]:
            raise InputError(f"Expected {name} of shape {records.shape[:1]}, as many as X, got {given.shape}.")
    if domain.dtype.kind not in "if" or bool((domain == 0).any()):
        raise InputError("Expected sample_domain > 0 (source) or < 0 (target) for every record, got other values.")
    is_source = domain > 0
    if is_source.all() or not is_source.any():
        missing = "target (sample_domain < 0)" if is_source.all() else "source (sample_domain > 0)"
        raise InputError(f"Expected source and target records, got no {missing}; check sample_domain.")
    # one target label can change the dtype of the array; classes_ must not depend on it
    names = y if isinstance(y, list | tuple) else labels.tolist()
    classes = np.array([name for name, mine in zip(names, is_source, strict=True) if mine])
    if classes.dtype.kind == "f" and bool(((classes == classes.round()) & (abs(classes) < 2**53)).all()):
        classes = classes.astype(np.int64)
    if len(np.unique(classes)) < 2:
        raise InputError("Expected y with at least 2 classes in the source, got 1.")
    return records[is_source], classes, records[~is_source]


def _check_first_fit(estimator: Any) -> None:
    spent = hasattr(estimator, "generator_") or getattr(estimator, "_released", False)
    if spent and estimator.shared_ledger is None:
        raise InputError(
            f"Expected one fit of a {type(estimator).__name__}, got a second one, which would spend a further budget "
            "(an interrupted fit counts if it made a release); pass shared_ledger, or make a new estimator and add the "
            "budgets up."
        )


def _layout(records: Tensor, as_bytes: bool) -> NDArray[Any]:
    """Converts records to rows (n, d), or images (n, H, W) or (n, H, W, 3)."""
    if records.ndim != 4:
        return records.numpy()
    if as_bytes:
        return to_bytes(records)
    images = records.clamp(0, 1).numpy()
    return images[:, 0] if images.shape[1] == 1 else images.transpose(0, 2, 3, 1)


def _new_run_dir(run_dir: str | Path | None) -> Path:
    if run_dir is not None:
        return Path(run_dir)
    now = datetime.datetime.now(tz=datetime.UTC).strftime("%Y%m%d-%H%M%S-%f")
    return Path("runs") / f"generator-{now}"


def _write_config(estimator: PrivateGenerator, data: ArrayData, directory: Path) -> None:
    """Writes the public constants of the run, which the report shows."""
    parameters = json.loads(json.dumps(estimator.get_params(), default=str))
    public = {"n_records": len(data.private), "sample_shape": list(data.sample_shape), "n_classes": data.n_classes}
    atomic_write(directory / "config.yaml", yaml.safe_dump({"estimator": parameters, "records": public}).encode())


@contextmanager
def _quiet(verbose: bool) -> Iterator[None]:
    """Silences Lightning's remarks on hardware and loaders, and its progress unless wanted."""
    logger = logging.getLogger("lightning.pytorch.utilities.rank_zero")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*does not have many workers.*")
            warnings.filterwarnings("ignore", ".*isinstance.treespec, LeafSpec.. is deprecated.*")
            yield
    finally:
        logger.setLevel(level)
