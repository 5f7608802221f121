r"""Private generators and adapted classifiers with the interface of scikit-learn.

They run what ``dpswd fit`` runs: the same module, budget and ledger. Each fit is a run of its own and spends its
budget; a second fit of one estimator is refused unless a shared ledger adds the budgets up.

:class:`PrivateAdapter` releases the target once, as a synthetic target (:class:`PrivateGenerator` without labels). An
adaptation method then runs between the source and the synthetic target. It reads no private record, so everything
after the release is post-processing (docs/theory/private-side.md, Proposition 25).

Coordinates. Records are centred at the mean of the source and scaled by its root mean square. Vectors are then
projected on the first p principal directions of the source, which are public. p is at most
:math:`(\mu N)^{2/3} / 2`, a half of the number of directions whose second moment can be released
(:mod:`dpswd.generation.structure`), and at most 32.

Fallback. Let m be the released mean of the target in these coordinates, :math:`\nu` the norm of its noise, and v the
variance of the source within classes, summed over the coordinates. The shift is
:math:`s = \max(0, \|m\|^2 - \nu^2) / v`. The result is the classifier of the source, without adaptation, where
:math:`s` is below ``min_shift``, or where the forecast puts the signal-to-noise ratio of the mean below 2.
"""

import copy
import datetime
import inspect
import io
import json
import logging
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import ot
import torch
import yaml  # type: ignore[import-untyped]
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.seed import isolate_rng
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from torch import Tensor

from dpswd import __version__
from dpswd._files import atomic_write
from dpswd._validate import at_least, nonnegative, positive, probability
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.data.features import ArrayData
from dpswd.errors import InputError
from dpswd.generation.export import GUARANTEE, SCOPE, read_file, read_generator, to_bytes, write_generator
from dpswd.generation.generators import MixtureGenerator
from dpswd.generation.mixture_module import MixtureModule
from dpswd.generation.structure import BETWEEN, ROW_NORM, Structure, forecast
from dpswd.report.render import write_report
from dpswd.rowwise import finite_or_zero
from dpswd.training.callback import PrivacyBudget
from dpswd.training.cli import StageProgressBar

__all__ = ["PrivateAdapter", "PrivateGenerator"]

_GENERATOR_STEPS = 800  # training steps after the flow, as in the shipped configs
_CONSTANTS = ("center", "radius", "shift", "rotation", "zoom", "shear", "elastic")
_ADAPTER_STEPS = 100  # for PrivateAdapter, whose particles hardly move
MAX_DIRECTIONS = 32  # of PrivateAdapter
_LEAST_SIGNAL = 2.0  # signal-to-noise ratio of the mean below which nothing is adapted
_MOST_MATCHED = 4000  # source records in the optimal transport
_EMD_ITERATIONS = 1_000_000
_MASKED = -1  # label of target records in skada
_FORMAT = 1  # of classifier.pt
_FORMATS = {".html": "report.html", ".md": "report.md", ".json": "report.json"}

Array = NDArray[Any]


class PrivateGenerator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Makes synthetic records from private ones.

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
        n_steps: Training steps of the generator's network, which cost no privacy; ``None`` for 800.
        run_dir: Directory of the ledger and the report; by default a new one below ``runs``.
        shared_ledger: Ledger of several runs on the same records, made by ``dpswd ledger create``.
        random_state: Seed of public randomness (weights, latent codes). Noise has no seed.
        verbose: Show progress.

    Attributes:
        guarantee_: Facts of the guarantee: epsilon, delta, mu, regret, sound, ...
        generator_: The trained :class:`~dpswd.generation.generators.Generator`.
        classes_: Classes (C,), or ``None`` without labels.
        run_dir_: The run directory.

    Example:
        >>> generator = PrivateGenerator(epsilon=10, delta=1e-5)  # .fit(images, labels).sample(10_000)
        >>> generator.get_params()["epsilon"]
        10
    """

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
        n_steps: int | None = None,
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
        self.n_steps = n_steps
        self.run_dir = run_dir
        self.shared_ledger = shared_ledger
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> "PrivateGenerator":
        """Releases noisy statistics of the records and trains a generator on them.

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
            if self.n_steps is not None:
                at_least(1, n_steps=self.n_steps)
            module = MixtureModule(**{name: getattr(self, name) for name in _CONSTANTS})
            directory = _new_run_dir(self.run_dir)
            ledger = None if self.shared_ledger is None else str(self.shared_ledger)
            budget = PrivacyBudget(self.epsilon, self.delta, shared_ledger=ledger)
            budget.before_ledger = lambda: _write_config(self, data, directory)
            trainer = L.Trainer(
                default_root_dir=directory,
                max_steps=module.flow_steps + (_GENERATOR_STEPS if self.n_steps is None else self.n_steps),
                accelerator="cpu",
                logger=False,
                enable_checkpointing=False,
                enable_model_summary=False,
                enable_progress_bar=self.verbose,
                callbacks=[budget, *([StageProgressBar()] if self.verbose else [])],
            )
            try:
                trainer.fit(module, datamodule=data)
            finally:
                self._released = getattr(self, "_released", False) or budget.n_releases > 0
        self.run_dir_ = directory
        self.guarantee_ = {key: value for key, value in budget.statement().items() if key in GUARANTEE}
        self.generator_: Any = module.generator.eval()
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
            Records in the layout of those that were fitted, images as bytes or floats likewise, and their classes
            (n,), or ``None`` without labels.

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
        """Says what the budget allows, from public numbers only; spends nothing.

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
            the synthetic target. Otherwise a transport of ``ot.da`` or a classifier of skada.
        classifier: Classifier trained on the transported source; ``None`` for logistic regression. An estimator of
            skada contains its own; the classifier is then used for the source alone.
        normalise: Scale every vector to norm 1 first, as is usual for features of a network and for pixels.
        min_shift: Least shift of the mean for which the method is used, in variances within classes; see the module.
        n_synthetic: Number of synthetic target records.
        run_dir: Directory of the ledger and the report; by default a new one below ``runs``.
        shared_ledger: Ledger of several runs on the same records, made by ``dpswd ledger create``.
        random_state: Seed of public randomness. Noise has no seed.
        verbose: Show progress.

    Attributes:
        classes_: Classes (C,) of the source.
        adapted_: Whether the method was used; ``False`` if the classifier is that of the source.
        shift_: Shift of the mean in variances within classes, less what its noise explains.
        verdict_: One sentence on what was done and why.
        synthetic_: Synthetic target records (n_synthetic, ...); vectors without the directions that were left out.
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
        n_synthetic: int = 2000,
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
        self._method()
        generator = PrivateGenerator(
            self.epsilon,
            self.delta,
            n_steps=_ADAPTER_STEPS,
            run_dir=self.run_dir,
            shared_ledger=self.shared_ledger,
            random_state=self.random_state,
            verbose=self.verbose,
        )
        images = source.ndim > 2
        self._set_map(source, len(target))
        try:
            generator.fit(target if images else self._target_rows(target))
        finally:
            self._released = getattr(self, "_released", False) or getattr(generator, "_released", False)
        with isolate_rng():
            torch.manual_seed(self.random_state)
            synthetic, _ = generator.sample(self.n_synthetic)
        self.generator_, self.guarantee_, self.run_dir_ = generator, generator.guarantee_, generator.run_dir_
        self.synthetic_ = synthetic if images else synthetic @ self._basis.T * self._radius + self._center
        self._aim = self._flat_rows(synthetic) @ self._basis if images else synthetic.astype(np.float64)
        shape = target.shape[1:] if images else self._aim.shape[1:]
        self._signal = generator.forecast(shape, len(target)).signal_to_noise["means"]
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
        method, source = self._method(), self._checked(X)
        if np.shape(y) != source.shape[:1]:
            raise InputError(f"Expected y of shape {source.shape[:1]}, as many as X, got {np.shape(y)}.")
        self.classes_, numbers = np.unique(np.asarray(y), return_inverse=True)
        full = self._flat_rows(source)
        rows = full @ self._basis
        self.shift_ = self._shift(rows, numbers)
        self.adapted_ = self._signal >= _LEAST_SIGNAL and self.shift_ >= self.min_shift
        self._write_verdict()
        self._directions = self._basis if self.adapted_ else np.eye(full.shape[1])
        if not self.adapted_:
            self.classifier_ = self._new_classifier().fit(full, numbers)
        elif method is None:
            moved = class_shift(rows, numbers, self._aim, self.random_state)
            self.classifier_ = self._new_classifier().fit(moved, numbers)
        elif _is_transport(method):
            moved = np.asarray(method.fit(Xs=rows, ys=numbers, Xt=self._aim).transform(Xs=rows))
            self.classifier_ = self._new_classifier().fit(moved, numbers)
        else:
            domain = np.r_[np.ones(len(rows), dtype=int), np.full(len(self._aim), -2)]
            known = np.r_[numbers, np.full(len(self._aim), _MASKED)]
            self.classifier_ = method.fit(np.r_[rows, self._aim], known, sample_domain=domain)
        return self

    def predict(self, X: Any) -> Array:
        """Returns the classes (n,) of records in the layout of those that were fitted.

        Raises:
            InputError: If the estimator is not fitted or the records do not fit.
        """
        self._check_fitted()
        rows = self._flat_rows(self._checked(X)) @ self._directions
        numbers = np.asarray(self.classifier_.predict(rows)).astype(int)
        names: Array = self.classes_[numbers]
        return names

    def report(self, path: str | Path) -> None:
        """Writes the report of the run; see :meth:`dpswd.PrivateGenerator.report`."""
        self._check_fitted()
        if not hasattr(self, "generator_"):
            raise InputError("Expected an estimator with the ledger of its run, got one read from a file.")
        self.generator_.report(path)

    def save(self, path: str | Path) -> None:
        """Writes weights, preprocessing, classes and guarantee to one file, which :meth:`load` reads.

        Raises:
            InputError: If the estimator is not fitted, its classifier is not a logistic regression, or the file cannot
                be written.
        """
        self._check_fitted()
        if type(self.classifier_) is not LogisticRegression:
            raise InputError(
                f"Expected a logistic regression to save, got {type(self.classifier_).__name__}; leave classifier and "
                "method at their defaults."
            )
        guarantee = {key: value for key, value in self.guarantee_.items() if key in GUARANTEE}
        content = {
            "format": _FORMAT,
            "version": __version__,
            "shape": list(self.shape_),
            "classes": self.classes_.tolist(),
            "center": torch.from_numpy(np.asarray(self._center, dtype=np.float64)),
            "radius": float(self._radius),
            "normalise": bool(self.normalise),
            "weight": torch.from_numpy(self.classifier_.coef_ @ self._directions.T),
            "bias": torch.from_numpy(self.classifier_.intercept_),
            "adapted": bool(self.adapted_),
            "shift": float(self.shift_),
            "verdict": self.verdict_,
            "guarantee": {**guarantee, "scope": SCOPE},
        }
        buffer = io.BytesIO()
        torch.save(content, buffer)
        atomic_write(Path(path), buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> "PrivateAdapter":
        """Reads a file of :meth:`save`; no code of the file is run.

        Raises:
            InputError: If the file is missing or is not a classifier.
        """
        with read_file(path, "classifier", _FORMAT) as content:
            guarantee = content["guarantee"]
            result = cls(epsilon=guarantee["epsilon"], delta=guarantee["delta"], normalise=content["normalise"])
            classifier = LogisticRegression()
            classifier.coef_, classifier.intercept_ = content["weight"].numpy(), content["bias"].numpy()
            classifier.classes_ = np.arange(len(content["classes"]))
            classifier.n_features_in_ = classifier.coef_.shape[1]
            result._center, result._radius = content["center"].numpy(), content["radius"]
            result.shape_, result.classes_ = tuple(content["shape"]), np.array(content["classes"])
            result._directions = np.eye(len(result._center))
            result.adapted_, result.shift_, result.verdict_ = (content[key] for key in ("adapted", "shift", "verdict"))
            result.classifier_, result.guarantee_ = classifier, guarantee
        return result

    def _method(self) -> Any:
        """Returns a copy of the method; ``None`` for ours."""
        if isinstance(self.method, str) and self.method == "class_shift":
            return None
        if not hasattr(self.method, "fit"):
            raise InputError(f"Expected method='class_shift' or an estimator, got {self.method!r}.")
        if _is_transport(self.method):
            return copy.deepcopy(self.method)
        if not hasattr(self.method, "predict"):
            raise InputError("Expected method with predict, got one without; append a classifier to the pipeline.")
        return clone(self.method)

    def _new_classifier(self) -> Any:
        return LogisticRegression(max_iter=300) if self.classifier is None else clone(self.classifier)

    def _set_map(self, source: Array, n: int) -> None:
        """Sets centre, radius and directions from the source and public numbers."""
        rows = self._flat(source)
        self.shape_ = source.shape[1:]
        self._center = rows.mean(0)
        self._radius = float(np.sqrt(np.square(rows - self._center).sum(1).mean())) or 1.0
        mu = mu_of_epsilon(self.epsilon, self.delta)
        p = int(min(MAX_DIRECTIONS, max(2.0, (mu * n) ** (2 / 3) / 2)))
        spread = np.cov((rows - self._center) / self._radius, rowvar=False).reshape(rows.shape[1], -1)
        self._basis = np.linalg.eigh(spread)[1][:, ::-1][:, :p]

    def _target_rows(self, target: Array) -> Array:
        """Returns rows (N, p) in float32; a record that overflows becomes the zero row (Proposition 22)."""
        rows: Array = finite_or_zero(torch.from_numpy(self._flat_rows(target) @ self._basis).float()).numpy()
        return rows

    def _flat(self, records: Array) -> Array:
        rows: Array = records.reshape(len(records), -1).astype(np.float64)
        if records.ndim > 2 and records.dtype == np.uint8:
            return rows / 255
        if self.normalise and records.ndim == 2:
            rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return rows

    def _flat_rows(self, records: Array) -> Array:
        rows: Array = (self._flat(records) - self._center) / self._radius
        return rows

    def _checked(self, X: Any) -> Array:
        records = _records(X)
        if records.shape[1:] != self.shape_:
            raise InputError(f"Expected X with records of shape {self.shape_}, got {records.shape[1:]}.")
        return records

    def _shift(self, rows: Array, numbers: Array) -> float:
        """Returns the shift s of the module's docstring."""
        means = np.stack([rows[numbers == c].mean(0) for c in range(len(self.classes_))])
        within = float(np.square(rows - means[numbers]).sum(1).mean())
        generator: MixtureGenerator = self.generator_.generator_
        unit = float(generator.synthesis[0].norm()) / (self._radius if len(self.shape_) > 1 else 1.0)
        noise = unit * math.sqrt(BETWEEN) * ROW_NORM / self._signal
        move = self._aim.mean(0) - rows.mean(0)
        return max(0.0, float(move @ move) - noise**2) / max(within, 1e-12)

    def _write_verdict(self) -> None:
        if self.adapted_:
            self.verdict_ = f"Adapted: the mean of the target moved by {self.shift_:.2f} variances within classes."
        elif self._signal < _LEAST_SIGNAL:
            self.verdict_ = "Classifier of the source: the noise hides the mean of the target."
        else:
            self.verdict_ = (
                f"Classifier of the source: the mean of the target moved by {self.shift_:.2f} variances within "
                f"classes, less than min_shift={self.min_shift:g}."
            )
        if self.verbose:
            rank_zero_info(self.verdict_)

    def _check_fitted(self) -> None:
        if not hasattr(self, "classifier_"):
            raise InputError("Expected a fitted PrivateAdapter, got one before fit; call fit or load first.")


def _records(X: Any) -> Array:
    records = np.asarray(X)
    if records.ndim not in (2, 3, 4) or records.dtype.kind not in "biuf":
        raise InputError(f"Expected X as rows (N, d) or images (N, H, W[, C]), got {records.dtype} {records.shape}.")
    if records.dtype.kind == "f" and not np.isfinite(records).all():
        raise InputError("Expected finite numbers in X, got NaN or inf; remove or replace these records.")
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
    # a label of one target record decides the type of the array; the classes must not tell it
    names = y if isinstance(y, list | tuple) else labels.tolist()
    classes = np.array([name for name, mine in zip(names, is_source, strict=True) if mine])
    if classes.dtype.kind == "f" and bool(((classes == classes.round()) & (abs(classes) < 2**53)).all()):
        classes = classes.astype(np.int64)
    if len(np.unique(classes)) < 2:
        raise InputError("Expected y with at least 2 classes in the source, got 1.")
    return records[is_source], classes, records[~is_source]


def _is_transport(method: Any) -> bool:
    return "Xs" in inspect.signature(method.fit).parameters


def class_shift(rows: Array, numbers: Array, target: Array, seed: int) -> Array:
    """Moves each class by the mean displacement of its rows under optimal transport onto the target.

    The mean of a class averages over the errors of single matches, and it keeps the shape of the class.
    """
    pick = np.random.default_rng(seed).permutation(len(rows))[:_MOST_MATCHED]
    transport = ot.da.EMDTransport(max_iter=_EMD_ITERATIONS).fit(Xs=rows[pick], Xt=target)
    move = np.asarray(transport.transform(Xs=rows[pick])) - rows[pick]
    moved = rows.copy()
    for c in np.unique(numbers):
        of_class = numbers[pick] == c
        moved[numbers == c] += (move[of_class] if of_class.any() else move).mean(0)
    return moved


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
