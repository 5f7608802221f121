r"""Classifier of target records, trained on a source and a synthetic target.

The source is labelled and public, and the synthetic target is drawn from a released generator, so
that everything here is post-processing.

Fallback. Let :math:`m_c` be the displacement of class c under ``class_shift``
(:mod:`dpswd.adaptation.methods`), :math:`\mu_c - \mu` the distance of its mean from that of the
source, :math:`\pi_c` its share of the source, W the covariance of the source within classes, and
:math:`\nu^2` the variance of the noise of the released mean, per coordinate. The shift is

.. math:: s = \frac{\sum_c \pi_c \, m_c^\top W^{-1} m_c - \nu^2 \operatorname{tr} W^{-1}}
                   {\sum_c \pi_c \, (\mu_c - \mu)^\top W^{-1} (\mu_c - \mu)},

how far classes move, less what noise of the mean explains, relative to how far they lie apart.
Where the forecast puts the signal-to-noise ratio of the mean below 2, or s is below ``min_shift``,
the result is the plain classifier of the source, trained on its records as they came. The second
condition does not apply to the image map, whose few parameters stay near the identity where the
target looks like the source. docs/adaptation.md has both kinds of error.

Tables. A device with another offset moves the columns of all records alike: means move, covariances
stay. Other people have other covariances, too, and nothing without labels shows then whether it is
right to move the classes: a class may have become rare. A table is therefore adapted only where the
displacement of its mean is at least 20 times the divergence of the covariances
(:func:`_move_ratio`).
"""

import dataclasses
import math
import warnings
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from dpswd._layout import Array
from dpswd._progress import working
from dpswd.adaptation.methods import ImageMap, class_shift, is_transport, resolve_method
from dpswd.adaptation.space import SourceSpace
from dpswd.columns import Coding
from dpswd.errors import InputError, UtilityWarning
from dpswd.mixture.generator import MixtureGenerator
from dpswd.mixture.structure import BETWEEN_PART, ROW_NORM
from dpswd.networks.generator import draw, seeded
from dpswd.records import floats

__all__ = ["MIN_SHIFT", "SyntheticTarget", "TargetClassifier", "adapt"]

# Least shift for which the method is used, from the errors that docs/adaptation.md measures.
MIN_SHIFT = 0.7
# Least displacement of the mean of a table over the divergence of its covariance, chosen on the
# pairs of ``python -m experiments run table_pairs``.
_LEAST_MOVE = 20.0
# Share of the synthetic target beyond which one class takes nearly all, and its least growth.
_NEARLY_ALL = 0.95
_NEARLY_ALL_GROWTH = 0.1
# Most classes of which the shares are said.
_MOST_CLASSES = 5
_NO_LABELS = (
    "No label of the private records was read, so the accuracy is not known; test the classifier "
    "on some labelled records before you use it."
)
# What the shift s of the module's docstring measures.
_SHIFT_IN_WORDS = (
    "With a shift of 1, the classes have moved as far as they lie from the mean of all records."
)
# Part of the source on which its classifier is tested.
_HELD_OUT = 0.25
# Nothing is adapted where the signal-to-noise ratio of the mean is below this.
LEAST_SIGNAL = 2.0
# Part of the mean variance that is added to W, and a floor, so that W can be inverted.
_RIDGE = 1e-3
_LEAST_VARIANCE = 1e-12
_LEAST_DISTANCE = 1e-12
# Label of target records in skada.
_MASKED = -1
# Domain of target records in skada: negative.
_TARGET_DOMAIN = -2
_MAX_ITERATIONS = 300  # of the logistic regression
# A network maps images in parts of this size, which bounds the memory.
_PART = 500


@dataclasses.dataclass(frozen=True, eq=False)
class SyntheticTarget:
    """Synthetic target records and their noise.

    Attributes:
        records: Records (n, ...) of the shape of the source; vectors have no component along the
            directions that were left out.
        rows: Their coordinates (n, p).
        signal: Forecast signal-to-noise ratio of the mean.
        noise: Norm of the noise of the mean, in coordinates.
    """

    records: Array
    rows: Array
    signal: float
    noise: float

    @classmethod
    def draw(
        cls, generator: MixtureGenerator, space: SourceSpace, n: int, seed: int
    ) -> "SyntheticTarget":
        """Draw n records; the global random state stays as it is.

        Args:
            generator: Fitted generator without classes, of images or of coordinates.
            space: Coordinates of the source.
            n: Number of records.
            seed: Seed of the latent codes.
        """
        assert generator.structure is not None  # set by the fit
        with seeded(seed):
            drawn = draw(generator, torch.zeros(n, dtype=torch.int64))
        # Length, in coordinates, of a released row of norm 1.
        unit = float(generator.synthesis[0].norm())
        if len(space.shape) > 1:
            records = drawn.clamp(0, 1).numpy()
            rows = space.coordinates(records)
            unit = unit / space.radius
        else:
            rows = drawn.double().numpy()
            records = space.vectors(rows)
        signal = float(generator.structure.signal_to_noise["means"])
        noise = unit * math.sqrt(BETWEEN_PART) * ROW_NORM / signal
        return cls(records, rows, signal, noise)


@dataclasses.dataclass(frozen=True, eq=False)
class TargetClassifier:
    """Trained classifier with its preprocessing.

    Attributes:
        space: Coordinates that a model of scikit-learn reads.
        classes: Names (C,) of the classes.
        model: A classifier of scikit-learn of coordinates, or a network of images; both predict
            numbers of classes.
        adapted: Whether the method was used; ``False`` for the classifier of the source.
        shift: The shift s of the module's docstring.
        verdict: What was done and why, in words.
        columns: Names of the columns of a table, by which those of further records are matched;
            of coded columns, where there is a coding.
        examples: First source images as an image map mapped them, for pictures; ``None`` without.
        notes: What is known without labels of the target, a sentence each. Files do not have them.
        coding: Coding of the columns of a table with facts, by which cells become records;
            ``None`` for other records.
    """

    space: SourceSpace
    classes: Array
    model: Any
    adapted: bool
    shift: float
    verdict: str
    columns: tuple[str, ...] | None = None
    examples: Array | None = None
    notes: tuple[str, ...] = ()
    coding: Coding | None = None

    def predict(self, records: Array) -> Array:
        """Return the classes (n,) of records (n, ...) of the shape of the source.

        Raises:
            InputError: If the records have another shape.
        """
        if isinstance(self.model, torch.nn.Module):
            numbers = self.predict_proba(records).argmax(1)
        else:
            numbers = np.asarray(self.model.predict(self.space.coordinates(records)))
        names: Array = self.classes[numbers.astype(int)]
        return names

    @torch.no_grad()
    def predict_proba(self, records: Array) -> Array:
        """Return the probabilities (n, C) of the classes, as :meth:`predict`."""
        rows = self.space.coordinates(records)  # refuses records of another shape
        if not isinstance(self.model, torch.nn.Module):
            return np.asarray(self.model.predict_proba(rows))
        images = floats(torch.from_numpy(records))
        scores = torch.cat([self.model(part) for part in images.split(_PART)])
        return np.asarray(scores.double().softmax(1).numpy())


def adapt(
    space: SourceSpace,
    target: SyntheticTarget,
    source: Array,
    labels: Array,
    *,
    method: Any = "class_shift",
    min_shift: float = MIN_SHIFT,
    seed: int = 0,
    progress: bool = False,
) -> TargetClassifier:
    """Train a classifier of target records; reads no private record.

    Args:
        space: Coordinates of the source.
        target: The synthetic target.
        source: Source records (n, ...).
        labels: Their classes (n,).
        method: See :class:`dpswd.PrivateAdapter`.
        min_shift: Least shift for which the method is used.
        seed: Seed of the method.
        progress: Show the stages, and the steps of an image map.

    Raises:
        InputError: If the method is unknown, or the labels do not fit the records.
    """
    method = resolve_method(method, has_images=len(space.shape) > 1)
    classes, numbers = _numbered(labels, len(source))
    rows = space.coordinates(source)
    matching = f"Matching {len(rows):,} source records with {len(target.rows):,} synthetic ones"
    with working(matching, shown=progress):
        moved = class_shift(rows, numbers, target.rows, seed)
    shift = _relative_shift(rows, moved, numbers, target.noise)
    least_shift = min_shift
    if isinstance(method, ImageMap):
        least_shift = 0.0
    adapted, verdict = _decide(space, target, rows, shift, least_shift)
    if isinstance(method, ImageMap):
        target_records = None
        if adapted:
            target_records = target.records
        model = _image_network(method, source, numbers, target_records, seed, progress)
        space = SourceSpace.identity(source.shape[1:])
    elif adapted:
        with working(f"Training a classifier on {len(rows):,} adapted records", shown=progress):
            model = _adapted_classifier(method, rows, moved, numbers, target.rows)
    else:
        space = space.of_records
        with working(f"Training a classifier on {len(rows):,} source records", shown=progress):
            model = _logistic_regression().fit(space.coordinates(source), numbers)
    examples = None
    if isinstance(method, ImageMap) and method.examples is not None:
        examples = np.asarray(method.examples.detach().numpy())
    classifier = TargetClassifier(space, classes, model, adapted, shift, verdict, examples=examples)
    if len(source.shape) > 2:  # a logistic regression of pixels takes minutes
        return classifier
    with working("Comparing with the classifier of the source", shown=progress):
        notes = _notes(classifier, target.records, source, numbers, seed)
    return dataclasses.replace(classifier, notes=notes)


def _decide(
    space: SourceSpace, target: SyntheticTarget, rows: Array, shift: float, least_shift: float
) -> tuple[bool, str]:
    """Return whether the method is used, and what is done and why, in words.

    Args:
        space: Coordinates of the source.
        target: The synthetic target.
        rows: Source rows (n, p).
        shift: The shift s of the module's docstring.
        least_shift: Least shift for which the method is used.
    """
    adapted = target.signal >= LEAST_SIGNAL and shift >= least_shift
    verdict = _verdict(adapted, shift, target.signal, least_shift)
    is_table = space.weights is not None
    if not adapted or not is_table or least_shift == 0:
        return adapted, verdict
    ratio = _move_ratio(rows, target.rows)
    if ratio >= _LEAST_MOVE:
        return True, verdict
    return False, (
        "Classifier of the source: the target differs from it by more than an offset of its "
        f"columns (ratio {ratio:.2g}, expected {_LEAST_MOVE:g}); without labels, nothing shows "
        "whether adaptation helps (min_shift=0 adapts all the same)."
    )


def _notes(
    classifier: TargetClassifier, target: Array, source: Array, numbers: Array, seed: int
) -> tuple[str, ...]:
    """Return what is known of a result without labels of the target.

    Warn if one class takes nearly all records.

    Args:
        classifier: The trained classifier.
        target: Synthetic target records (m, ...).
        source: Source records (n, ...).
        numbers: Numbers (n,) of their classes.
        seed: Seed of the split of the source.
    """
    space = classifier.space.of_records
    rows = space.coordinates(source)
    is_test = np.random.default_rng(seed).random(len(rows)) < _HELD_OUT
    if len(np.unique(numbers[~is_test])) < 2 or not is_test.any():
        return ()
    of_source = _logistic_regression().fit(rows[~is_test], numbers[~is_test])
    accuracy = of_source.score(rows[is_test], numbers[is_test])
    n_classes = len(classifier.classes)
    shares = np.bincount(numbers, minlength=n_classes) / len(numbers)
    before = of_source.predict(space.coordinates(target))
    shares_before = np.bincount(before, minlength=n_classes) / len(before)
    after = np.searchsorted(classifier.classes, classifier.predict(target))
    shares_after = np.bincount(after, minlength=n_classes) / len(after)
    notes = [f"On held-out records of the source, its classifier is right for {accuracy:.1%}."]
    largest = np.argsort(-shares_after)[:_MOST_CLASSES]
    notes.append(
        "These classes are predicted most often for the synthetic target; a share that is far from "
        "that of the source may be wrong:"
    )
    for number in largest:
        notes.append(
            f"Class {classifier.classes[number]}: {shares[number]:.0%} of the source; of the "
            f"synthetic target {shares_before[number]:.0%} by the classifier of the source, "
            f"{shares_after[number]:.0%} by this one."
        )
    top = int(largest[0])
    if shares_after[top] > max(_NEARLY_ALL, shares[top] + _NEARLY_ALL_GROWTH):
        warnings.warn(
            f"Class {classifier.classes[top]} takes {shares_after[top]:.0%} of the synthetic "
            f"target, and {shares[top]:.0%} of the source; test the classifier on some labelled "
            "records of the target before you use it.",
            UtilityWarning,
            stacklevel=2,
        )
    return tuple(notes)


def _move_ratio(rows: Array, target_rows: Array) -> float:
    r"""Return how much more the mean of a target moves than its covariance.

    Both move from the source to the target. With means m and covariances S of the source and T of
    the target, the result is the quotient of :math:`|m_T - m_S|^2` in the metric of S and of the
    divergence of Kullback and Leibler of the centred normal distributions,
    :math:`(\operatorname{tr} S^{-1} T - p - \log \det S^{-1} T) / 2`.

    Args:
        rows: Source rows (n, p).
        target_rows: Synthetic target rows (m, p).
    """
    dim = rows.shape[1]
    precision = _inverse_covariance(rows)
    covariance = np.linalg.inv(_inverse_covariance(target_rows))
    relative = precision @ covariance
    _, log_determinant = np.linalg.slogdet(relative)
    divergence = max(0.0, float(np.trace(relative)) - dim - float(log_determinant)) / 2
    move = target_rows.mean(0) - rows.mean(0)
    distance_sq = float(move @ precision @ move)
    ratio: float = distance_sq / max(divergence, _LEAST_DISTANCE)
    return ratio


def _numbered(labels: Array, n_records: int) -> tuple[Array, Array]:
    """Return the classes (C,) of labels, and the number (n,) of each label among them."""
    if np.shape(labels) != (n_records,):
        raise InputError(
            f"Expected y of shape {(n_records,)}, as many as X, got {np.shape(labels)}; pass a "
            "class for every record."
        )
    classes, numbers = np.unique(np.asarray(labels), return_inverse=True)
    return classes, numbers


def _relative_shift(rows: Array, moved: Array, numbers: Array, noise: float) -> float:
    """Return the shift s of the module's docstring, at least 0.

    Args:
        rows: Source rows (n, p).
        moved: The rows after ``class_shift``.
        numbers: Numbers (n,) of their classes.
        noise: Norm of the noise of the released mean.
    """
    n_classes = numbers.max() + 1
    means = np.stack([rows[numbers == number].mean(0) for number in range(n_classes)])
    precision = _inverse_covariance(rows - means[numbers])
    displacement = _mean_square(moved - rows, precision)
    explained = noise**2 / len(precision) * float(np.trace(precision))
    distance = _mean_square(means[numbers] - rows.mean(0), precision)
    return max(0.0, displacement - explained) / max(distance, _LEAST_DISTANCE)


def _inverse_covariance(rows: Array) -> Array:
    """Return the inverse (p, p) of the covariance of rows (n, p), with a ridge."""
    dim = rows.shape[1]
    covariance = np.cov(rows, rowvar=False).reshape(dim, dim)
    ridge = _RIDGE * np.trace(covariance) / dim + _LEAST_VARIANCE
    return np.linalg.inv(covariance + ridge * np.eye(dim))


def _mean_square(rows: Array, precision: Array) -> float:
    """Return the mean of x^T P x over rows x (n, p), for P (p, p)."""
    return float(np.einsum("np,pq,nq->n", rows, precision, rows).mean())


def _verdict(adapted: bool, shift: float, signal: float, least_shift: float) -> str:
    """Return what was done and why, in words."""
    if signal < LEAST_SIGNAL:
        return "Classifier of the source: the noise hides the mean of the target."
    difference = f"the private records differ from the source by a shift of {shift:.3g}"
    limit = f"min_shift={least_shift:g}"
    if not adapted:
        return f"Classifier of the source: {difference}, less than {limit}. {_SHIFT_IN_WORDS}"
    reason = f"{difference}, at least {limit}"
    if least_shift == 0:
        reason = f"{difference}, and the noise does not hide their mean"
    return f"Adapted: {reason}. {_SHIFT_IN_WORDS} {_NO_LABELS}"


def _image_network(
    method: ImageMap,
    source: Array,
    numbers: Array,
    target: Array | None,
    seed: int,
    progress: bool,
) -> Any:
    """Train the network of an image map; without a target, on the source as it is."""
    images = floats(torch.from_numpy(source))
    target_images = None
    if target is not None:
        target_images = torch.from_numpy(target)
    labels = torch.from_numpy(numbers)
    return method.fit(images, labels, target_images, seed, progress=progress)


def _adapted_classifier(
    method: Any, rows: Array, moved: Array, numbers: Array, target_rows: Array
) -> Any:
    """Train a classifier of rows by a method between source and synthetic target.

    Args:
        method: The result of :func:`~dpswd.adaptation.methods.resolve_method`.
        rows: Source rows (n, p).
        moved: The rows after ``class_shift``.
        numbers: Numbers (n,) of their classes.
        target_rows: Synthetic target rows (m, p).
    """
    if isinstance(method, str):  # "class_shift"
        return _logistic_regression().fit(moved, numbers)
    if is_transport(method):
        fitted = method.fit(Xs=rows, ys=numbers, Xt=target_rows)
        transported = np.asarray(fitted.transform(Xs=rows))
        return _logistic_regression().fit(transported, numbers)
    all_rows = np.concatenate([rows, target_rows])
    all_numbers = np.concatenate([numbers, np.full(len(target_rows), _MASKED)])
    source_domain = np.ones(len(rows), dtype=int)
    domain = np.concatenate([source_domain, np.full(len(target_rows), _TARGET_DOMAIN)])
    return method.fit(all_rows, all_numbers, sample_domain=domain)


def _logistic_regression() -> Any:
    """Return the classifier of vectors, not fitted."""
    return LogisticRegression(max_iter=_MAX_ITERATIONS)
