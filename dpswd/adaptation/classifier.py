r"""Classifier of target records, trained on labelled source records and a synthetic target: post-processing.

Fallback. Let :math:`m_c` be the displacement of class c under ``class_shift`` (:mod:`dpswd.adaptation.methods`),
:math:`\mu_c - \mu` the distance of its mean from that of the source, :math:`\pi_c` its share of the source, W the
covariance of the source within classes, and :math:`\nu^2` the variance of the noise of the released mean, per
coordinate. The shift is

.. math:: s = \frac{\sum_c \pi_c \, m_c^\top W^{-1} m_c - \nu^2 \operatorname{tr} W^{-1}}
                   {\sum_c \pi_c \, (\mu_c - \mu)^\top W^{-1} (\mu_c - \mu)},

how far classes move, less what noise of the mean explains, relative to how far they lie apart. Where the forecast puts
the signal-to-noise ratio of the mean below 2, or s is below ``min_shift``, the result is the plain classifier of the
source, trained on its records as they came. The second condition does not apply to the image map, whose few parameters
stay near the identity where the target looks like the source. docs/adaptation.md has both kinds of error.
"""

import copy
import dataclasses
import inspect
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ot.da
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from dpswd import __version__
from dpswd._files import atomic_write
from dpswd._layout import Array
from dpswd.accounting.guarantee import stated_guarantee
from dpswd.adaptation.methods import N_HIDDEN, ImageMap, class_shift
from dpswd.adaptation.space import SourceSpace, flat
from dpswd.errors import InputError
from dpswd.files.archives import read_file
from dpswd.mixture.generator import MixtureGenerator
from dpswd.mixture.structure import BETWEEN, ROW_NORM
from dpswd.networks.classifiers import SmallCNN
from dpswd.networks.generator import draw, seeded
from dpswd.records import floats

__all__ = ["MIN_SHIFT", "SyntheticTarget", "TargetClassifier", "adapt", "resolved"]

MIN_SHIFT = 0.7
_LEAST_SIGNAL = 2.0  # signal-to-noise ratio of the mean below which nothing is adapted
_RIDGE = 1e-3  # share of the mean variance that is added to W
_MASKED = -1  # label of target records in skada
_FORMAT = 4
_FACTS, _LINEAR = ("adapted", "shift", "verdict"), ("coef_", "intercept_")  # in a file
_PART = 500  # images that a network maps at a time


@dataclasses.dataclass(frozen=True, eq=False)
class SyntheticTarget:
    """Synthetic target records and what is known of their noise."""

    records: Array  # (n, ...), of the shape of the source; vectors without the directions that were left out
    rows: Array  # their leading coordinates (n, p)
    signal: float  # forecast signal-to-noise ratio of the mean
    noise: float  # norm of the noise of the mean, in coordinates

    @classmethod
    def draw(
        cls, generator: MixtureGenerator, space: SourceSpace, n: int, seed: int
    ) -> "SyntheticTarget":
        """Draw n records of a generator of coordinates or of images; the global random state stays as it is."""
        assert generator.structure is not None  # set by the fit
        images, signal = len(space.shape) > 1, float(generator.structure.signal_to_noise["means"])
        with seeded(seed):
            drawn = draw(generator, torch.zeros(n, dtype=torch.int64))
        records = drawn.clamp(0, 1).numpy() if images else space.vectors(drawn.double().numpy())
        rows = space.leading(records) if images else drawn.double().numpy()
        unit = float(generator.synthesis[0].norm()) / (space.radius if images else 1.0)
        return cls(records, rows, signal, unit * math.sqrt(BETWEEN) * ROW_NORM / signal)


@dataclasses.dataclass(frozen=True, eq=False)
class TargetClassifier:
    """Trained classifier with its preprocessing."""

    space: SourceSpace
    classes: Array  # names (C,)
    model: Any  # of scikit-learn, in the directions of ``space``, or a network for images; predicts numbers of classes
    adapted: bool  # False for the classifier of the source
    shift: float  # s of the module's docstring
    verdict: str  # what was done and why

    def predict(self, records: Array) -> Array:
        """Return the classes (n,) of records (n, ...) of the shape of the source."""
        network = isinstance(self.model, torch.nn.Module)
        found = (
            self.predict_proba(records).argmax(1)
            if network
            else self.model.predict(self.space.leading(records))
        )
        names: Array = self.classes[np.asarray(found).astype(int)]
        return names

    @torch.no_grad()
    def predict_proba(self, records: Array) -> Array:
        """Return the probabilities (n, C) of the classes."""
        rows = self.space.leading(records)  # of the shape of the source
        if not isinstance(self.model, torch.nn.Module):
            return np.asarray(self.model.predict_proba(rows))
        scores = torch.cat(
            [self.model(part) for part in floats(torch.from_numpy(records)).split(_PART)]
        )
        return np.asarray(scores.double().softmax(1).numpy())

    def save(self, path: str | Path, guarantee: dict[str, Any]) -> None:
        """Write weights, preprocessing, classes and guarantee to one file; see :meth:`dpswd.PrivateAdapter.save`."""
        if isinstance(self.model, torch.nn.Module):
            weights = {
                name: value.detach().clone() for name, value in self.model.state_dict().items()
            }
        elif type(self.model) is LogisticRegression:
            weights = {name: torch.from_numpy(getattr(self.model, name)) for name in _LINEAR}
        else:
            remedy = "choose a transport or a method of this library"
            raise InputError(
                f"Expected a logistic regression to save, got {type(self.model).__name__}; {remedy}."
            )
        space = vars(self.space).items()
        content = {
            "format": _FORMAT,
            "version": __version__,
            "space": {
                name: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for name, v in space
            },
            "classes": self.classes.tolist(),
            "weights": weights,
            **{name: getattr(self, name) for name in _FACTS},
            "guarantee": stated_guarantee(guarantee),
        }
        atomic_write(path, partial(torch.save, content))

    @classmethod
    def load(cls, path: str | Path) -> tuple["TargetClassifier", dict[str, Any]]:
        """Read a file of :meth:`save`, and the guarantee of its run; no code of the file is run."""
        with read_file(path, "classifier", _FORMAT) as content:
            stored: dict[str, Any] = content["space"]
            arrays = {name: v.numpy() for name, v in stored.items() if isinstance(v, torch.Tensor)}
            space = SourceSpace(**stored | arrays)
            classes, weights, model = (
                np.array(content["classes"]),
                content["weights"],
                LogisticRegression(),
            )
            if set(weights) == set(_LINEAR):
                model.coef_, model.intercept_ = (weights[name].numpy() for name in _LINEAR)
                model.classes_, model.n_features_in_ = np.arange(len(classes)), model.coef_.shape[1]
            else:
                model = SmallCNN(space.shape[0], len(classes), N_HIDDEN)
                model.load_state_dict(weights)
                model.eval()
            return cls(space, classes, model, *(content[name] for name in _FACTS)), content[
                "guarantee"
            ]


def resolved(method: Any, images: bool) -> Any:
    """Return a copy of a method; an :class:`ImageMap`, or ``None`` (class shift), for a name."""
    if isinstance(method, str) and method == "class_shift":
        return None
    method = ImageMap() if isinstance(method, str) and method == "image_map" else method
    if not hasattr(method, "fit"):
        raise InputError(
            f"Expected method='class_shift', 'image_map' or an estimator, got {method!r}."
        )
    if isinstance(method, ImageMap) and not images:
        raise InputError("Expected images for method image_map, got vectors; choose class_shift.")
    if isinstance(method, ImageMap) or _is_transport(method):
        return copy.deepcopy(method)
    if not hasattr(method, "predict"):
        raise InputError(
            "Expected method with predict, got one without; append a classifier to the pipeline."
        )
    return clone(method)


def _is_transport(method: Any) -> bool:
    return (
        isinstance(method, ot.da.BaseTransport) or "Xs" in inspect.signature(method.fit).parameters
    )


def adapt(
    space: SourceSpace,
    target: SyntheticTarget,
    source: Array,
    labels: Array,
    *,
    method: Any = "class_shift",
    min_shift: float = MIN_SHIFT,
    seed: int = 0,
) -> TargetClassifier:
    """Train a classifier of target records from source records (n, ...) and their classes; reads no private record."""
    method = resolved(method, len(space.shape) > 1)
    if np.shape(labels) != source.shape[:1]:
        raise InputError(
            f"Expected y of shape {source.shape[:1]}, as many as X, got {np.shape(labels)}."
        )
    classes, numbers = np.unique(np.asarray(labels), return_inverse=True)
    rows = space.leading(source)
    moved = class_shift(rows, numbers, target.rows, seed)
    shift = _shift(rows, moved - rows, numbers, target.noise)
    least = 0.0 if isinstance(method, ImageMap) else min_shift
    adapted = target.signal >= _LEAST_SIGNAL and shift >= least
    plain = LogisticRegression(max_iter=300)
    if isinstance(method, ImageMap) or not adapted:
        space = SourceSpace(
            source.shape[1:], False, np.zeros(math.prod(source.shape[1:])), 1.0
        )  # records as they came
    if isinstance(method, ImageMap):
        aim = torch.from_numpy(target.records) if adapted else None
        model: Any = method.fit(
            floats(torch.from_numpy(source)), torch.from_numpy(numbers), aim, seed
        )
    elif not adapted:
        model = plain.fit(source if source.ndim == 2 else flat(source), numbers)
    elif method is None:
        model = plain.fit(moved, numbers)
    elif _is_transport(method):
        model = plain.fit(
            np.asarray(method.fit(Xs=rows, ys=numbers, Xt=target.rows).transform(Xs=rows)), numbers
        )
    else:
        domain = np.r_[np.ones(len(rows), dtype=int), np.full(len(target.rows), -2)]
        known = np.r_[numbers, np.full(len(target.rows), _MASKED)]
        model = method.fit(np.r_[rows, target.rows], known, sample_domain=domain)
    return TargetClassifier(
        space, classes, model, adapted, shift, _verdict(adapted, shift, target.signal, least)
    )


def _shift(rows: Array, displacements: Array, numbers: Array, noise: float) -> float:
    """Return the shift s of the module's docstring, at least 0."""
    means = np.stack([rows[numbers == c].mean(0) for c in range(numbers.max() + 1)])
    within = np.cov(rows - means[numbers], rowvar=False).reshape(rows.shape[1], -1)
    within += (_RIDGE * np.trace(within) / len(within) + 1e-12) * np.eye(len(within))
    precision = np.linalg.inv(within)
    moved, apart = (
        float(np.einsum("np,pq,nq->n", each, precision, each).mean())
        for each in (displacements, means[numbers] - rows.mean(0))
    )
    return max(0.0, moved - noise**2 / len(within) * float(np.trace(precision))) / max(apart, 1e-12)


def _verdict(adapted: bool, shift: float, signal: float, min_shift: float) -> str:
    moved = f"classes moved by {shift:.3g} of their distance (squared)"
    if adapted:
        return f"Adapted: {moved}."
    if signal < _LEAST_SIGNAL:
        return "Classifier of the source: the noise hides the mean of the target."
    return f"Classifier of the source: {moved}, less than min_shift={min_shift:g}."
