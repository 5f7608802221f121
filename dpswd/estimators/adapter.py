"""PrivateAdapter: a classifier for private records, in the manner of scikit-learn.

The target is released once, as a synthetic target: a generator without labels
(:mod:`dpswd.mixture`). An adaptation method then runs between the source and the synthetic target
(:mod:`dpswd.adaptation.classifier`): post-processing (docs/theory/private-side.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from dpswd._arrays import as_array, as_records, layout_of
from dpswd._cells import frame_numbers, say_left_out
from dpswd._frames import as_pandas
from dpswd._keys import is_rounded, label_key
from dpswd._labels import is_missing
from dpswd._layout import Array, Layout, column_order
from dpswd._png import mark_picture
from dpswd._progress import say, working
from dpswd._validate import at_least, nonnegative
from dpswd.adaptation.classifier import MIN_SHIFT, SyntheticTarget, TargetClassifier, adapt
from dpswd.adaptation.methods import resolve_method
from dpswd.adaptation.space import SourceSpace
from dpswd.columns import Coding, Table
from dpswd.errors import InputError
from dpswd.estimators.one_shot import OneShot
from dpswd.files.classifiers import read_classifier, write_classifier
from dpswd.files.pictures import save_columns, save_grid
from dpswd.records import PrivateRecords
from dpswd.units import Units, without_units

__all__ = ["PrivateAdapter"]

# Guess of the norm of a target row: the root mean square norm of the source in its coordinates.
_RADIUS = 1.0

# Fewer synthetic records than this show no distribution.
_LEAST_SYNTHETIC = 10

# Synthetic images of the picture in the report, and images beside each other.
_N_IN_PICTURE = 40
_N_ACROSS = 10

# Arguments of the estimator that the report shows.
_REPORTED = ("method", "normalise", "standardise", "min_shift", "n_synthetic", "random_state")


class PrivateAdapter(ClassifierMixin, OneShot):  # type: ignore[misc]  # scikit-learn has no types
    """Adapts a classifier from labelled public records to unlabelled private ones.

    Formal guarantee:
        ``fit`` makes the releases of one generator without labels (:func:`dpswd.mixture.fit`)
        within a :class:`~dpswd.Budget`: (epsilon, delta) differential privacy of the target under
        replace-one. The classifier, predictions on public records, files and reports are
        post-processing. The source, its labels, and the shape and the number of target records
        are public.

    Args:
        epsilon: Budget epsilon of one fit; infinity for no noise, on public stand-ins: NOT PRIVATE.
        delta: Budget delta of one fit; well below 1 / N.
        method: ``"class_shift"`` moves each class of the source by its mean displacement under
            optimal transport onto the synthetic target. ``"image_map"``, for images, trains a
            network on source images that a fitted map makes look like the target's; pass
            :class:`dpswd.adaptation.methods.ImageMap` for its options. Otherwise a transport of
            ``ot.da`` or a classifier of skada.
        normalise: Scale every vector to norm 1 before it is adapted, as is usual for features of
            a network and for pixels.
        standardise: Divide every column by its standard deviation in the source, which is public.
            By default, columns with names: those of a DataFrame or of a table in a file.
        columns: Public facts of the columns of a DataFrame with categories, dates or missing
            cells: a dictionary by names, or a file (:mod:`dpswd.columns`). Cells are limited to
            their bounds, and categories become indicators, each record by itself
            (:class:`dpswd.columns.Coding`).
        min_shift: Least shift of the classes for which the method is used; see
            :mod:`dpswd.adaptation.classifier`. 0 always uses it, unless noise hides the mean.
        n_synthetic: Number of synthetic target records, at least 10.
        unit: The person of each record: an array (N,) with an entry for every record of ``fit``, of
            which those of the source are not used, or the name of a column of a DataFrame. The
            guarantee then protects a person with all records (docs/theory/units.md).
        per_unit: Number of records of a person that enter at most.
        run_dir: Directory of the ledger and the report; by default a new one below ``runs``.
        shared_ledger: Ledger of several runs on the same records, made by
            ``dpswd ledger create``.
        random_state: Seed of public randomness; ``None`` draws one. Noise has no seed.
        resume: Finish an interrupted run in ``run_dir``.
        verbose: Print what to expect, the verdict and the guarantee.

    Attributes:
        classifier_: The trained :class:`~dpswd.adaptation.classifier.TargetClassifier`.
        classes_: Classes (C,) of the source.
        adapted_: Whether the method was used; ``False`` if the classifier is that of the source,
            trained on its records as they came.
        shift_: Squared displacement of classes, relative to their squared distance.
        verdict_: What was done and why, in words.
        synthetic_: Synthetic target records (n_synthetic, ...): images in [0, 1], or vectors
            without the directions that were left out; of a table with facts, coded columns.
        generator_: The fitted :class:`~dpswd.networks.generator.Generator` of the target.
        n_target_: Number of target records; of persons, where ``unit`` names them.
        guarantee_: The guarantee: ``guarantee_.epsilon``, delta, mu, regret, sound, ...
        summary_: The guarantee in words, with the total of a shared ledger; after ``fit`` only.
        run_dir_: The run directory.

    Example:
        >>> adapter = PrivateAdapter(epsilon=10, delta=1e-5)
        >>> adapter.get_params()["method"]  # then .fit(X, y, sample_domain).predict(new)
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
        standardise: bool | None = None,
        columns: Any = None,
        min_shift: float = MIN_SHIFT,
        n_synthetic: int = 4000,
        unit: Any = None,
        per_unit: int = 1,
        run_dir: str | Path | None = None,
        shared_ledger: str | Path | None = None,
        random_state: int | None = 0,
        resume: bool = False,
        verbose: bool = True,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.normalise = normalise
        self.standardise = standardise
        self.columns = columns
        self.min_shift = min_shift
        self.n_synthetic = n_synthetic
        self.unit = unit
        self.per_unit = per_unit
        self.run_dir = run_dir
        self.shared_ledger = shared_ledger
        self.random_state = random_state
        self.resume = resume
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        sample_domain: Any = None,
        *,
        columns: Sequence[str] | None = None,
        coding: Coding | None = None,
    ) -> "PrivateAdapter":
        """Release a synthetic target and train a classifier for it.

        Args:
            X: Source and target records: rows (N, d), or images (N, H, W), (N, H, W, C) or
                (N, C, H, W); NumPy, torch or pandas.
            y: Classes (N,). Those of target records are ignored.
            sample_domain: (N,), positive for source records and negative for target records.
            columns: Names of the columns of rows, by which those of a DataFrame are matched in
                :meth:`predict`. Those of X if it is a DataFrame.
            coding: Coding of which X has the rows, for a table that was read from files;
                ``None`` where the estimator has facts of columns, or none are needed.

        Raises:
            InputError: If the records do not fit; nothing is released or written then.
            BudgetExceededError: If the shared ledger does not cover the run.
        """
        at_least(_LEAST_SYNTHETIC, n_synthetic=self.n_synthetic)
        nonnegative(min_shift=self.min_shift)
        mu = self._mu()
        seed = self._public_seed()
        directory = self._checked_run_directory()
        X, unit_names = without_units(as_pandas(X), self.unit, self.per_unit)
        self._coding = coding
        self._columns = _column_names(X)
        if columns is not None:
            self._columns = tuple(columns)
        if self.columns is None:
            domains = _split(_as_values(X), y, sample_domain, unit_names)
        else:
            table = Table.of(self.columns)
            domains = _split(frame_numbers(X, table), y, sample_domain, unit_names)
            self._coding = Coding.of(table, domains.source)
            domains = domains.coded(self._coding)
        if self._coding is not None:
            self._columns = self._coding.names
        if (domains.source == domains.source[0]).all():
            raise InputError(
                f"Expected source records that differ from each other, got {len(domains.source):,} "
                "equal ones; check the source."
            )
        # A method that does not fit the records is refused before a release.
        resolve_method(self.method, has_images=domains.has_images)
        units = None
        # The number of records of all persons is private; that of persons is public.
        self.n_target_ = len(domains.target)
        if domains.target_units is not None:
            units = Units.draw(domains.target_units, self.per_unit)
            self.n_target_ = len(units)
        measuring = f"Measuring {len(domains.source):,} source records"
        with working(measuring, shown=self.verbose, line=False):
            space = SourceSpace.from_source(
                domains.source, self.n_target_, mu, self.normalise, self._standardises()
            )
        self._release_target(domains, space, directory, units)
        self._space = space
        drawing = f"Drawing {self.n_synthetic:,} synthetic target records"
        with working(drawing, shown=self.verbose):
            self._target = SyntheticTarget.draw(self.generator_, space, self.n_synthetic, seed)
        synthetic = torch.from_numpy(self._target.records)
        self.synthetic_ = Layout.of(synthetic).restore(synthetic)
        self._train(domains.source, domains.labels)
        if self.verbose and self.run_dir is None:
            say(
                f"Files: {directory}/ledger.jsonl, privacy.json. "
                "Next: .predict(X), .save(path), .report(path)."
            )
        return self

    def adapt(self, X: Any, y: Any) -> "PrivateAdapter":
        """Train a classifier on the synthetic target of the last fit.

        Spends nothing and reads no private record. ``fit`` calls it. Call it after
        ``set_params(method=...)`` to compare methods on one synthetic target.

        Args:
            X: Source records, those of the fit. Columns of a DataFrame are matched by name.
            y: Their classes (N,), read as those of the fit.

        Raises:
            NotFittedError: If the estimator is not fitted, or was read from a file.
            InputError: If the records do not fit.
        """
        check_is_fitted(self, "generator_")
        source = self._values_of(X, self._columns, self._coding)
        _check_length("y", np.asarray(y), len(source))
        return self._train(source, _source_labels(y, np.ones(len(source), dtype=bool)))

    def _train(self, source: Array, labels: Array) -> "PrivateAdapter":
        """Train a classifier on source records (n, ...) and their classes (n,)."""
        classifier = adapt(
            self._space,
            self._target,
            source,
            labels,
            method=self.method,
            min_shift=self.min_shift,
            seed=self._public_seed(),
            progress=self.verbose,
        )
        classifier = replace(classifier, columns=self._columns, coding=self._coding)
        self._set_classifier(classifier)
        if self.verbose:
            for line in (*classifier.notes, self.verdict_):
                say(line)
        return self

    def predict(self, X: Any) -> Array:
        """Return the classes (n,) of records in the layout of those that were fitted.

        Raises:
            NotFittedError: If the estimator is not fitted.
            InputError: If the records do not fit.
        """
        classifier: TargetClassifier = self._fitted()
        return classifier.predict(self._values_of(X, classifier.columns, classifier.coding))

    def predict_proba(self, X: Any) -> Array:
        """Return the probabilities (n, C) of the classes, as :meth:`predict`."""
        classifier: TargetClassifier = self._fitted()
        return classifier.predict_proba(self._values_of(X, classifier.columns, classifier.coding))

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the share of records whose class is predicted.

        On private records this is a release without noise, which no budget counts: keep it to
        yourself, and choose nothing by it.

        Args:
            X: Records, as in :meth:`predict`.
            y: Their classes (n,), read as those of the fit: 1, 1.0 and "1" are one class.
            sample_weight: Weights (n,) of the records; ``None`` for equal ones.

        Raises:
            NotFittedError: If the estimator is not fitted.
            InputError: If the records do not fit.
        """
        predicted = self.predict(X).tolist()
        _check_length("y", np.asarray(y), len(predicted))
        is_right = []
        for label, name in zip(_as_list(y), predicted, strict=True):
            is_right.append(_own_label(label) == _own_label(name))
        return float(np.average(is_right, weights=sample_weight))

    def _save_picture(self, directory: Path) -> None:
        """Write a picture of the synthetic target for the report."""
        if self._target.records.ndim > 2:
            images, _ = as_records(self.synthetic_[:_N_IN_PICTURE])
            path = directory / "samples.png"
            save_grid(images, path, _N_ACROSS)
        else:
            path = directory / "columns.png"
            rows = self._target.records
            save_columns(path, {"synthetic target": rows}, self._columns)
        mark_picture(path, self.guarantee_.notice, of_releases=True)

    def save(self, path: str | Path) -> None:
        """Write the classifier to one file, which :meth:`load` reads.

        The file has weights, preprocessing, classes and guarantee.

        Raises:
            NotFittedError: If the estimator is not fitted.
            InputError: If the classifier is neither a logistic regression nor a network of this
                library, or the file cannot be written.
        """
        write_classifier(self._fitted(), path, self.guarantee_)

    @classmethod
    def load(cls, path: str | Path) -> "PrivateAdapter":
        """Read a file of :meth:`save`, or the ``classifier.pt`` of a run.

        No code of the file is run.

        Raises:
            InputError: If the file is missing or is not a classifier.
        """
        classifier, guarantee = read_classifier(path)
        result = cls(
            epsilon=guarantee.epsilon or 0.0,
            delta=guarantee.delta or 0.0,
        )
        result._set_classifier(classifier)
        result.guarantee_ = guarantee
        return result

    def _values_of(self, X: Any, columns: tuple[str, ...] | None, coding: Coding | None) -> Array:
        """Return the values of records, of a DataFrame by the names of its columns.

        Args:
            X: Records, as in :meth:`predict`.
            columns: Names of the columns of the fit; ``None`` without names.
            coding: Coding of a table with facts, by which cells become rows.
        """
        records = self._without_unit_column(as_pandas(X))
        if coding is not None and hasattr(records, "columns"):
            return coding.rows(frame_numbers(records, coding.table))
        return _as_values(_in_order(records, columns))

    def _standardises(self) -> bool:
        """Return whether columns are divided by their deviations.

        ``standardise`` decides. By default, columns of a table are divided unless ``normalise`` is
        set.
        """
        if self.standardise is not None:
            return self.standardise
        return self._columns is not None and not self.normalise

    def _without_unit_column(self, X: Any) -> Any:
        """Return a DataFrame without the column that names persons.

        Other records are returned unchanged.
        """
        if isinstance(self.unit, str) and self.unit in getattr(X, "columns", ()):
            return X.drop(columns=[self.unit])
        return X

    def _release_target(
        self, domains: "_Domains", space: SourceSpace, directory: Path, units: Units | None
    ) -> None:
        """Fit ``generator_`` to the target: to images, or to the coordinates of vectors."""
        config: dict[str, Any] = {name: getattr(self, name) for name in _REPORTED}
        config["n_source"] = len(domains.source)
        if self._columns is not None:
            config["columns"] = [str(name) for name in self._columns]
        options: dict[str, Any] = {}
        table = None
        if self._coding is not None:
            table = self._coding.table
            say_left_out(table, has_units=units is not None)
        if domains.has_images:
            values = torch.from_numpy(domains.target)
        else:
            values = space.target_rows(domains.target)
            options["radius"] = _RADIUS
            options["reference"] = torch.from_numpy(space.coordinates(domains.source)).float()
        if self.verbose:
            say(
                "Releasing noisy statistics of the private records; the adaptation needs synthetic "
                "ones, which are drawn from them."
            )
        self._fit_generator(
            PrivateRecords.from_values(values, None, name="target", units=units),
            directory,
            {"title": "Classifier for private records", "adapter": config},
            table=table,
            **options,
        )

    def _set_classifier(self, classifier: TargetClassifier) -> None:
        """Set the attributes of a trained classifier."""
        self.classifier_ = classifier
        self.classes_ = classifier.classes
        self.adapted_ = classifier.adapted
        self.shift_ = classifier.shift
        self.verdict_ = classifier.verdict
        self.n_features_in_ = int(np.prod(classifier.space.shape))
        if classifier.coding is not None:
            self.n_features_in_ = len(classifier.coding.table.names)


@dataclass(frozen=True, eq=False)
class _Domains:
    """Records of both domains.

    Attributes:
        source: Source records (n, ...).
        labels: Their classes (n,).
        target: Target records (m, ...). PRIVATE.
        target_units: Name of the person of each target record, or ``None``. PRIVATE.
    """

    source: Array
    labels: Array
    target: Array
    target_units: list[Any] | None = None

    @property
    def has_images(self) -> bool:
        """Whether the records are images (n, C, H, W) rather than vectors (n, d)."""
        return self.source.ndim > 2

    def coded(self, coding: Coding) -> "_Domains":
        """Return the domains of numbers of cells with coded rows in place of numbers."""
        return replace(self, source=coding.rows(self.source), target=coding.rows(self.target))


def _split(records: Array, y: Any, sample_domain: Any, unit_names: list[Any] | None) -> _Domains:
    """Separate source and target by the sign of ``sample_domain``."""
    if sample_domain is None:
        raise InputError(
            "Expected sample_domain, positive for source and negative for target records, "
            "got none; pass it to fit."
        )
    domain = np.asarray(sample_domain)
    _check_length("y", np.asarray(y), len(records))
    _check_length("sample_domain", domain, len(records))
    is_number = domain.dtype.kind in "iuf"
    if not is_number or not bool(((domain > 0) | (domain < 0)).all()):
        raise InputError(
            "Expected sample_domain > 0 (source) or < 0 (target) for every record, "
            "got 0, NaN or no number; use 1 and -1."
        )
    is_source = domain > 0
    if is_source.all():
        raise InputError(
            "Expected source and target records, got no target (sample_domain < 0); "
            "check sample_domain."
        )
    if not is_source.any():
        raise InputError(
            "Expected source and target records, got no source (sample_domain > 0); "
            "check sample_domain."
        )
    labels = _source_labels(y, is_source)
    target_units = None
    if unit_names is not None:
        if len(unit_names) != len(records):
            raise InputError(
                f"Expected unit with an entry for each of the {len(records)} records of X, got "
                f"{len(unit_names)}; pass as many."
            )
        target_units = [
            name for name, of_source in zip(unit_names, is_source, strict=True) if not of_source
        ]
    return _Domains(records[is_source], labels, records[~is_source], target_units)


def _source_labels(y: Any, is_source: Array) -> Array:
    """Return the classes of the source records, whose type no target label decides.

    One target label can change the type of an array: in NumPy the labels 0, 1 and ``"unknown"``
    become strings. So the array is made from the source labels alone, each of which is read by
    itself (:func:`_own_label`), in an array of any type.
    """
    labels = _as_list(y)
    for label, chosen in zip(labels, is_source, strict=True):
        if chosen and _depends_on_precision(label):
            raise InputError(
                "Expected classes of the source as text or integers, got a float with a fraction "
                "or beyond 2^53, which is another number in another precision; pass y as text."
            )
    labels = [_own_label(label) for label in labels]
    if isinstance(y, np.ndarray | torch.Tensor):
        # One number among truth values makes numbers of all of them.
        labels = [int(label) if isinstance(label, bool) else label for label in labels]
    of_source = [label for label, chosen in zip(labels, is_source, strict=True) if chosen]
    if any(is_missing(label) for label in of_source):
        raise InputError(
            "Expected a class for every source record, got a missing label; give such records a "
            "class of their own, or leave them out."
        )
    classes = np.array(of_source)
    if len(np.unique(classes)) < 2:
        raise InputError(
            "Expected y with at least 2 classes in the source, got 1; a classifier needs two."
        )
    return classes


def _as_list(y: Any) -> list[Any]:
    """Return labels as a list, in which each label of a list keeps its type."""
    if isinstance(y, list | tuple):
        return list(y)
    labels: list[Any] = np.asarray(y).tolist()
    return labels


def _depends_on_precision(label: Any) -> bool:
    """Return whether a label is a float that another precision holds differently.

    For example, 0.1 of float32 is 0.10000000149 in float64.
    """
    if not isinstance(label, float | np.floating):
        return False
    return is_rounded(label) or isinstance(label_key(label), float)


def _own_label(label: Any) -> Any:
    """Return a label as text, a number or a truth value.

    The result does not depend on other labels. NumPy turns labels into text or into floats where
    another label of the array is of that type. The text of a number or of a truth value is
    therefore read as such, and a whole float as an integer: 1, 1.0, "1" and "1.0" are the label 1.
    Readers of tables make truth values of ``TRUE`` and ``true`` unless another label of the column
    is a text, so these texts are truth values, too. The text "01" is a name.
    """
    if isinstance(label, np.generic):
        label = label.item()
    if isinstance(label, bytes):
        label = label.decode(errors="backslashreplace")
    if isinstance(label, str):
        text = label.strip()
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        key = label_key(text)
        if isinstance(key, str) or text not in (str(key), str(float(key))):
            return label
        return key
    if isinstance(label, bool | int) or is_missing(label):
        return label
    return label_key(label)


def _check_length(name: str, array: Array, n_records: int) -> None:
    """Refuse an array that has not one entry for each record."""
    if array.shape != (n_records,):
        raise InputError(
            f"Expected {name} of shape {(n_records,)}, as many as X, got {array.shape}; pass one "
            "entry for every record."
        )


def _column_names(X: Any) -> tuple[str, ...] | None:
    """Return the names of the columns of a DataFrame, ``None`` of an array."""
    if not hasattr(X, "columns"):
        return None
    return tuple(str(name) for name in X.columns)


def _in_order(X: Any, expected: tuple[str, ...] | None) -> Any:
    """Return a DataFrame with the columns in the order of the source.

    An array is returned unchanged.
    """
    columns = _column_names(X)
    if columns is None or expected is None:
        return X
    return X.iloc[:, column_order(columns, expected, "X")]


def _as_values(X: Any) -> Array:
    """Return rows (N, d) as they came, or images (N, C, H, W)."""
    array = as_array("X", X)
    if array.ndim != 2 or hasattr(X, "columns"):
        records, _ = as_records(X)
        return records.numpy()
    layout_of(array.shape, array.dtype)  # refuses other types
    if not np.isfinite(array).all():
        raise InputError("Expected finite numbers in X, got NaN or inf; set these records to zero.")
    return array
