r"""Adaptation of a classifier to private records with the interface of scikit-learn.

The target is released once, as a synthetic target (:class:`dpswd.estimators.PrivateGenerator` without labels). An
adaptation method then runs between the source and the synthetic target. It reads no private record, so everything
after the release is post-processing (docs/theory/private-side.md, Proposition 25).

Bound on the move. All numbers are public or released. A shift m of the mean whose noise has the norm :math:`\nu` is
multiplied by :math:`\kappa = \max(0, 1 - \nu^2 / \|m\|^2)` (positive-part James-Stein). With :math:`\lambda` the
largest variance of the synthetic target over all directions and :math:`\lambda_0` the noise edge of the released
second moment (:mod:`dpswd.generation.structure`), the shape counts with weight

.. math:: w = \min(1, \max(0, 2 (1 - \lambda_0 / \lambda))).

The target of the method is :math:`(1 - w) (x_i + \kappa m) + w (s_j - (1 - \kappa) m)`, with source records
:math:`x_i` and synthetic ones :math:`s_j` matched by optimal transport. Where the forecast
puts the signal-to-noise ratio of means below 1, both weights are 0. If they are, the result is the source classifier.
"""

import copy
import inspect
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import ot
import torch
from lightning.pytorch.utilities import rank_zero_info
from lightning.pytorch.utilities.seed import isolate_rng
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression

from dpswd import __version__
from dpswd._files import atomic_write, verified_archive
from dpswd._validate import at_least
from dpswd.errors import InputError
from dpswd.estimators import PrivateGenerator
from dpswd.generation.export import GUARANTEE, SCOPE
from dpswd.generation.generators import MixtureGenerator
from dpswd.generation.structure import BETWEEN, ROW_NORM

__all__ = ["PrivateAdapter"]

FORMAT = 1
_MASKED = -1  # label of target records in skada
_EMD_ITERATIONS = 1_000_000

Array = NDArray[Any]


class PrivateAdapter(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Adapts a classifier from labelled public records to unlabelled private ones.

    Formal guarantee:
        ``fit`` makes the releases of one :class:`~dpswd.PrivateGenerator` without labels: (epsilon, delta)
        differential privacy of the target under replace-one. The classifier, predictions on public records, files and
        reports are post-processing. The source, its labels, and the shape and the number of target records are public.

    Args:
        epsilon: Budget epsilon of one fit.
        delta: Budget delta of one fit; well below 1 / N.
        method: ``"transport"`` for optimal transport of the source onto the synthetic target, an object of ``ot.da``,
            or a classifier of skada.
        classifier: Classifier trained on the transported source; ``None`` for logistic regression. An estimator of
            skada contains its own; the classifier is then used for the source alone.
        n_synthetic: Number of synthetic target records.
        center: Public constant subtracted from every entry; ``None`` for the mean of the source (vectors) or 0.5
            (images).
        radius: Public guess of the norm of a centred vector; ``None`` for the root mean square of the source.
        run_dir: Directory of the ledger and the report; by default a new one below ``runs``.
        shared_ledger: Ledger of several runs on the same records, made by ``dpswd ledger create``.
        random_state: Seed of public randomness. Noise has no seed.
        verbose: Show progress.

    Attributes:
        classes_: Classes (C,) of the source.
        adapted_: Whether the method was used; ``False`` if the classifier is that of the source.
        shift_: Weight of the released shift of the mean.
        strength_: Weight of the released shape of the target.
        synthetic_: Synthetic target records (n_synthetic, ...).
        generator_: The fitted :class:`~dpswd.PrivateGenerator`.
        guarantee_: Facts of the guarantee: epsilon, delta, mu, regret, sound, ...
        run_dir_: The run directory.

    Example:
        >>> adapter = PrivateAdapter(epsilon=10, delta=1e-5)  # .fit(X, y, sample_domain).predict(new)
        >>> adapter.get_params()["method"]
        'transport'
    """

    def __init__(
        self,
        epsilon: float = 10.0,
        delta: float = 1e-5,
        *,
        method: Any = "transport",
        classifier: Any = None,
        n_synthetic: int = 2000,
        center: float | None = None,
        radius: float | None = None,
        run_dir: str | Path | None = None,
        shared_ledger: str | Path | None = None,
        random_state: int = 0,
        verbose: bool = True,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.classifier = classifier
        self.n_synthetic = n_synthetic
        self.center = center
        self.radius = radius
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
        if hasattr(self, "generator_") and self.shared_ledger is None:
            raise InputError(
                "Expected one fit of a PrivateAdapter, got a second one, which would spend a further budget; pass "
                "shared_ledger, or make a new estimator and add the budgets up."
            )
        source, labels, target = _split(X, y, sample_domain)
        method, is_transport = self._method()
        self._set_scale(source)
        images = target.ndim > 2
        generator = PrivateGenerator(
            self.epsilon,
            self.delta,
            center=self.center if images else None,
            run_dir=self.run_dir,
            shared_ledger=self.shared_ledger,
            random_state=self.random_state,
            verbose=self.verbose,
        )
        generator.fit(target if images else self._rows(target).astype(np.float32))
        with isolate_rng():
            torch.manual_seed(self.random_state)
            synthetic, _ = generator.sample(self.n_synthetic)
        self.generator_, self.guarantee_, self.run_dir_ = generator, generator.guarantee_, generator.run_dir_
        self.shape_ = source.shape[1:]
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        rows, synthetic_rows = self._rows(source), self._rows(synthetic) if images else synthetic
        self.synthetic_ = synthetic if images else synthetic * self._radius + self._center
        bounded = self._bound(rows, synthetic_rows.astype(np.float64), target.shape[1:], len(target))
        self.adapted_ = max(self.strength_, self.shift_) > 0
        if self.adapted_:
            rank_zero_info(f"Weight of the target: mean {self.shift_:.2f}, shape {self.strength_:.2f}.")
            if is_transport:
                self.classifier_ = self._new_classifier().fit(_transport(method, rows, numbers, bounded), numbers)
            else:
                domain = np.r_[np.ones(len(rows), dtype=int), np.full(len(bounded), -2)]
                known = np.r_[numbers, np.full(len(bounded), _MASKED)]
                self.classifier_ = method.fit(np.r_[rows, bounded], known, sample_domain=domain)
        else:
            rank_zero_info("The noise hides the target: the classifier is that of the source.")
            self.classifier_ = self._new_classifier().fit(rows, numbers)
        return self

    def predict(self, X: Any) -> Array:
        """Returns the classes (n,) of records in the layout of those that were fitted.

        Raises:
            InputError: If the estimator is not fitted or the records do not fit.
        """
        self._check_fitted()
        records = _records(X)
        if records.shape[1:] != self.shape_:
            raise InputError(f"Expected X with records of shape {self.shape_}, got {records.shape[1:]}.")
        numbers = np.asarray(self.classifier_.predict(self._rows(records))).astype(int)
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
            "format": FORMAT,
            "version": __version__,
            "shape": list(self.shape_),
            "classes": self.classes_.tolist(),
            "center": torch.from_numpy(np.asarray(self._center, dtype=np.float64)),
            "radius": float(self._radius),
            "weight": torch.from_numpy(self.classifier_.coef_),
            "bias": torch.from_numpy(self.classifier_.intercept_),
            "adapted": bool(self.adapted_),
            "weights": [float(self.shift_), float(self.strength_)],
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
        try:
            content = torch.load(verified_archive(path), map_location="cpu", weights_only=True)
            if content["format"] != FORMAT:
                raise InputError(f"Expected format {FORMAT} in {path}, got {content['format']!r}.")
            guarantee = content["guarantee"]
            result = cls(epsilon=guarantee["epsilon"], delta=guarantee["delta"])
            classifier = LogisticRegression()
            classifier.coef_, classifier.intercept_ = content["weight"].numpy(), content["bias"].numpy()
            classifier.classes_ = np.arange(len(content["classes"]))
            classifier.n_features_in_ = classifier.coef_.shape[1]
            result._center, result._radius = content["center"].numpy(), content["radius"]
            result.shape_, result.classes_ = tuple(content["shape"]), np.array(content["classes"])
            result.adapted_ = content["adapted"]
            result.shift_, result.strength_ = content["weights"]
            result.classifier_, result.guarantee_ = classifier, guarantee
        except OSError as error:
            raise InputError(f"Expected a classifier at {path}, got: {error.strerror}.") from None
        except InputError:
            raise
        except Exception:  # torch.load raises many types on damaged files
            raise InputError(f"Expected a classifier written by dpswd at {path}, got another file.") from None
        return result

    def _method(self) -> tuple[Any, bool]:
        """Returns a copy of the method, and whether it is a transport."""
        if isinstance(self.method, str):
            if self.method != "transport":
                raise InputError(f"Expected method='transport' or an estimator, got {self.method!r}.")
            return ot.da.EMDTransport(max_iter=_EMD_ITERATIONS), True
        if not hasattr(self.method, "fit"):
            raise InputError(f"Expected method='transport' or an estimator, got {type(self.method).__name__}.")
        is_transport = "Xs" in inspect.signature(self.method.fit).parameters
        if is_transport:
            return copy.deepcopy(self.method), True
        if not hasattr(self.method, "predict"):
            raise InputError("Expected method with predict, got one without; append a classifier to the pipeline.")
        return clone(self.method), False

    def _new_classifier(self) -> Any:
        return LogisticRegression(max_iter=300) if self.classifier is None else clone(self.classifier)

    def _set_scale(self, source: Array) -> None:
        """Sets centre and radius of the rows from public numbers and the source."""
        rows = source.reshape(len(source), -1).astype(np.float64)
        if source.ndim > 2:
            self._center, self._radius = np.zeros(rows.shape[1]), 255.0 if source.dtype == np.uint8 else 1.0
            return
        self._center = rows.mean(0) if self.center is None else np.full(rows.shape[1], float(self.center))
        spread = float(np.sqrt(np.square(rows - self._center).sum(1).mean()))
        self._radius = (spread or 1.0) if self.radius is None else float(self.radius)

    def _rows(self, records: Array) -> Array:
        rows: Array = (records.reshape(len(records), -1).astype(np.float64) - self._center) / self._radius
        return rows

    def _bound(self, rows: Array, synthetic: Array, shape: tuple[int, ...], n: int) -> Array:
        """Sets the weights of mean and shape; returns the target of the method. See the module's docstring."""
        mixture: MixtureGenerator = self.generator_.generator_
        signal = self.generator_.forecast(shape, n).signal_to_noise
        move = synthetic.mean(0) - rows.mean(0)
        unit = float(mixture.synthesis[0].norm()) / (self._radius if len(shape) > 1 else 1.0)  # of the scaled rows
        # doubled, because rows are clipped about a noisy centre; clipping hides what exceeds half the bound
        noise = 2 * unit * math.sqrt(BETWEEN) * ROW_NORM / signal["means"]
        centre = 2 * ROW_NORM * max(0.0, 1 / signal["overall"] - 0.5)
        noise_sq = noise**2 + centre**2 + synthetic.var(0).sum() / len(synthetic) + rows.var(0).sum() / len(rows)
        self.shift_ = max(0.0, 1 - float(noise_sq) / max(float(move @ move), 1e-12))
        self.strength_ = _strength(mixture, signal)
        if signal["means"] < 1:  # forecast from public numbers: the mean is hidden, and so is everything about it
            self.shift_ = self.strength_ = 0.0
        coarse: Array = rows + self.shift_ * move
        if self.strength_ == 0:
            return coarse
        synthetic = synthetic - (1 - self.shift_) * move
        if self.strength_ == 1:
            return np.asarray(synthetic)
        masses = (np.full(len(each), 1 / len(each)) for each in (coarse, synthetic))
        plan = ot.emd(*masses, ot.dist(coarse, synthetic), numItermax=_EMD_ITERATIONS)
        matched = plan.T @ coarse * len(synthetic)
        bounded: Array = self.strength_ * synthetic + (1 - self.strength_) * matched
        return bounded

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
    classes = np.array(labels[is_source].tolist())  # the type of the source's labels alone
    if len(np.unique(classes)) < 2:
        raise InputError("Expected y with at least 2 classes in the source, got 1.")
    return records[is_source], classes, records[~is_source]


def _strength(mixture: MixtureGenerator, signal: dict[str, float]) -> float:
    """Returns the weight w of the released shape."""
    p = mixture.n_components
    weights = mixture.weights.double().flatten() / mixture.weights.sum()
    means, roots = mixture.means.double()[:, :p], mixture.roots.double()
    means = means - weights @ means
    covariance = (weights[:, None, None] * (roots @ roots.mT + means[:, :, None] * means[:, None, :])).sum(0)
    largest = float(torch.linalg.eigvalsh(covariance)[-1])
    average = (1 - BETWEEN) * ROW_NORM**2 / mixture.dim  # variance of a coordinate in the forecast
    # the mean's noise is a direction of its own; the edge is doubled because the generator undoes the clipping
    edge = 2 * average / signal["moments"] + BETWEEN * (ROW_NORM / signal["means"]) ** 2
    return min(1.0, max(0.0, 2 * (1 - edge / max(largest, 1e-12))))


def _transport(method: Any, rows: Array, numbers: Array, target: Array) -> Array:
    return np.asarray(method.fit(Xs=rows, ys=numbers, Xt=target).transform(Xs=rows))
