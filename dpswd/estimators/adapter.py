"""Adapted classifier with the interface of scikit-learn.

The target is released once, as a synthetic target: a generator without labels (:mod:`dpswd.mixture`). An adaptation
method then runs between the source and the synthetic target (:mod:`dpswd.adaptation.classifier`): post-processing
(docs/theory/private-side.md).
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dpswd._arrays import as_array, as_records, layout_of
from dpswd._layout import Array, Layout
from dpswd._progress import say
from dpswd._validate import at_least, nonnegative
from dpswd.adaptation.classifier import (
    MIN_SHIFT,
    SyntheticTarget,
    TargetClassifier,
    adapt,
    resolved,
)
from dpswd.adaptation.space import SourceSpace
from dpswd.errors import InputError
from dpswd.estimators.one_shot import OneShot
from dpswd.records import PrivateRecords

__all__ = ["PrivateAdapter"]

_RADIUS = 1.0  # root mean square norm of the source in its coordinates


class PrivateAdapter(ClassifierMixin, OneShot):  # type: ignore[misc]  # scikit-learn has no types
    """Adapts a classifier from labelled public records to unlabelled private ones.

    Formal guarantee:
        ``fit`` makes the releases of one generator without labels (:func:`dpswd.mixture.fit`) within a
        :class:`~dpswd.Budget`: (epsilon, delta) differential privacy of the target under replace-one. The classifier,
        predictions on public records, files and reports are post-processing. The source, its labels, and the shape and
        the number of target records are public.

    Args:
        epsilon: Budget epsilon of one fit.
        delta: Budget delta of one fit; well below 1 / N.
        method: ``"class_shift"`` moves each class of the source by its mean displacement under optimal transport onto
            the synthetic target. ``"image_map"``, for images, trains a network on source images that a fitted map makes
            look like the target's; pass :class:`dpswd.adaptation.methods.ImageMap` for its options. Otherwise a
            transport of ``ot.da`` or a classifier of skada.
        normalise: Scale every vector to norm 1 before it is adapted, as is usual for features of a network and for
            pixels.
        min_shift: Least shift of the classes for which the method is used; see :mod:`dpswd.adaptation.classifier`. 0
            always uses it, unless noise hides the mean.
        n_synthetic: Number of synthetic target records.
        run_dir: Directory of the ledger and the report; by default a new one below ``runs``.
        shared_ledger: Ledger of several runs on the same records, made by ``dpswd ledger create``.
        random_state: Seed of public randomness. Noise has no seed.
        resume: Finish an interrupted run in ``run_dir``.
        verbose: Print what to expect, the verdict and the guarantee.

    Attributes:
        classifier_: The trained :class:`~dpswd.adaptation.classifier.TargetClassifier`.
        classes_: Classes (C,) of the source.
        adapted_: Whether the method was used; ``False`` if the classifier is that of the source, trained on its
            records as they came.
        shift_: Squared displacement of classes, relative to their squared distance.
        verdict_: One sentence on what was done and why.
        synthetic_: Synthetic target records (n_synthetic, ...): images in [0, 1], or vectors without the directions
            that were left out.
        generator_: The fitted :class:`~dpswd.networks.generator.Generator` of the target.
        guarantee_: Facts of the guarantee: epsilon, delta, mu, regret, sound, ...
        run_dir_: The run directory.

    Example:
        >>> adapter = PrivateAdapter(epsilon=10, delta=1e-5)  # .fit(X, y, sample_domain).predict(new)
        >>> adapter.get_params()["method"]
        'class_shift'
    """

    _fitted_name = "classifier_"

    def __init__(
        self,
        epsilon: float = 10.0,
        delta: float = 1e-5,
        *,
        method: Any = "class_shift",
        normalise: bool = False,
        min_shift: float = MIN_SHIFT,
        n_synthetic: int = 4000,
        run_dir: str | Path | None = None,
        shared_ledger: str | Path | None = None,
        random_state: int = 0,
        resume: bool = False,
        verbose: bool = True,
    ) -> None:
        self.epsilon, self.delta, self.method, self.normalise = epsilon, delta, method, normalise
        self.min_shift, self.n_synthetic = min_shift, n_synthetic
        self.run_dir, self.shared_ledger, self.resume = run_dir, shared_ledger, resume
        self.random_state, self.verbose = random_state, verbose

    def fit(self, X: Any, y: Any, sample_domain: Any = None) -> "PrivateAdapter":
        """Release a synthetic target and train a classifier for it.

        Args:
            X: Source and target records: rows (N, d), or images (N, H, W), (N, H, W, C) or (N, C, H, W); NumPy, torch
                or pandas.
            y: Classes (N,). Those of target records are ignored.
            sample_domain: (N,), positive for source records and negative for target records.

        Raises:
            InputError: If the records do not fit; nothing is released or written then.
            BudgetExceededError: If the shared ledger does not cover the run.
        """
        at_least(10, n_synthetic=self.n_synthetic)
        nonnegative(min_shift=self.min_shift)
        mu, directory = self._mu(), self._start()
        source, labels, target = _split(X, y, sample_domain)
        images = source.ndim > 2
        resolved(self.method, images)  # refuses it before a release
        space = SourceSpace.of(source, len(target), mu, self.normalise)
        # of images the records are released, of vectors their leading coordinates
        values = torch.from_numpy(target) if images else space.target_rows(target)
        records = PrivateRecords.from_values(values, None, name="target")
        reference = torch.from_numpy(space.leading(source)).float()
        options: dict[str, Any] = {} if images else {"radius": _RADIUS, "reference": reference}
        names = ("method", "normalise", "min_shift", "n_synthetic", "random_state")
        stated = {name: getattr(self, name) for name in names} | {"n_source": len(source)}
        self._release(
            records,
            directory,
            {"title": "Classifier for private records", "adapter": stated},
            **options,
        )
        self._space = space
        self._target = SyntheticTarget.draw(
            self.generator_, space, self.n_synthetic, self.random_state
        )
        made = torch.from_numpy(self._target.records)
        self.synthetic_ = Layout.of(made).restore(made)
        return self.adapt(source, labels)

    def adapt(self, X: Any, y: Any) -> "PrivateAdapter":
        """Train a classifier on the synthetic target of the last fit; spends nothing and reads no private record.

        ``fit`` calls it. Call it after ``set_params(method=...)`` to compare methods on one synthetic target.

        Args:
            X: Source records, those of the fit.
            y: Their classes (N,).

        Raises:
            InputError: If the records do not fit.
        """
        check_is_fitted(self, "generator_")
        options = {"method": self.method, "min_shift": self.min_shift, "seed": self.random_state}
        self._set(adapt(self._space, self._target, _records(X), np.asarray(y), **options))
        if self.verbose:
            say(self.verdict_)
        return self

    def predict(self, X: Any) -> Array:
        """Return the classes (n,) of records in the layout of those that were fitted.

        Raises:
            NotFittedError: If the estimator is not fitted.
            InputError: If the records do not fit.
        """
        return np.asarray(self._fitted().predict(_records(X)))

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities (n, C) of the classes, as :meth:`predict`."""
        return np.asarray(self._fitted().predict_proba(_records(X)))

    def save(self, path: str | Path) -> None:
        """Write weights, preprocessing, classes and guarantee to one file, which :meth:`load` reads.

        Raises:
            InputError: If the classifier is neither a logistic regression nor a network of this library, or the file
                cannot be written.
        """
        self._fitted().save(path, self.guarantee_)

    @classmethod
    def load(cls, path: str | Path) -> "PrivateAdapter":
        """Read a file of :meth:`save`, or the ``classifier.pt`` of a run; no code of the file is run.

        Raises:
            InputError: If the file is missing or is not a classifier.
        """
        classifier, guarantee = TargetClassifier.load(path)
        result = cls(guarantee.get("epsilon") or 0.0, guarantee.get("delta") or 0.0)
        result._set(classifier)
        result.guarantee_ = guarantee
        return result

    def _set(self, found: TargetClassifier) -> None:
        self.classifier_, self.classes_ = found, found.classes
        self.adapted_, self.shift_, self.verdict_ = found.adapted, found.shift, found.verdict
        self.n_features_in_ = int(np.prod(found.space.shape))


def _records(X: Any) -> Array:
    """Return rows (N, d) as they came, or images (N, C, H, W)."""
    rows = as_array("X", X)
    if rows.ndim != 2 or hasattr(X, "columns"):
        return as_records(X)[0].numpy()
    layout_of(rows.shape, rows.dtype)  # refuses other types
    if not np.isfinite(rows).all():
        raise InputError("Expected finite numbers in X, got NaN or inf; set these records to zero.")
    return rows


def _split(X: Any, y: Any, sample_domain: Any) -> tuple[Array, Array, Array]:
    """Return source records, their classes, and target records."""
    if sample_domain is None:
        raise InputError(
            "Expected sample_domain, positive for source and negative for target records, got none."
        )
    records, labels, domain = _records(X), np.asarray(y), np.asarray(sample_domain)
    for name, given in (("y", labels), ("sample_domain", domain)):
        if given.shape != records.shape[:1]:
            raise InputError(
                f"Expected {name} of shape {records.shape[:1]}, as many as X, got {given.shape}."
            )
    if domain.dtype.kind not in "if" or bool((domain == 0).any()):
        raise InputError(
            "Expected sample_domain > 0 (source) or < 0 (target) for every record, got other values."
        )
    is_source = domain > 0
    if is_source.all() or not is_source.any():
        missing = "target (sample_domain < 0)" if is_source.all() else "source (sample_domain > 0)"
        raise InputError(
            f"Expected source and target records, got no {missing}; check sample_domain."
        )
    # one target label can change the dtype of the array; classes_ must not depend on it
    names = y if isinstance(y, list | tuple) else labels.tolist()
    classes = np.array([name for name, mine in zip(names, is_source, strict=True) if mine])
    if classes.dtype.kind == "f" and bool(
        ((classes == classes.round()) & (abs(classes) < 2**53)).all()
    ):
        classes = classes.astype(np.int64)
    if len(np.unique(classes)) < 2:
        raise InputError("Expected y with at least 2 classes in the source, got 1.")
    return records[is_source], classes, records[~is_source]
