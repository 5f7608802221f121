"""Files of adapted classifiers: written and read without code."""

import dataclasses
import inspect
import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression

from dpswd import __version__
from dpswd._files import atomic_write
from dpswd._labels import as_classes, class_array
from dpswd.accounting.guarantee import Guarantee
from dpswd.adaptation.classifier import TargetClassifier
from dpswd.adaptation.methods import N_HIDDEN
from dpswd.adaptation.space import SourceSpace
from dpswd.columns import Coding, Column, Table
from dpswd.errors import InputError
from dpswd.files.archives import read_file
from dpswd.networks.classifiers import EncodedClassifier, Head, SmallCNN
from dpswd.networks.encoders import ConvEncoder, VectorEncoder

__all__ = ["read_classifier", "write_classifier"]

# Version of the file format; it changes with the keys of a file or their meaning.
FORMAT = 5
# Version of files without a coding, which earlier versions of dpswd read.
_FORMAT_WITHOUT_CODING = 4

# Networks that a file may name; reading a file makes an instance of no other class.
_NETWORKS: dict[str, type[torch.nn.Module]] = {
    "ConvEncoder": ConvEncoder,
    "Head": Head,
    "VectorEncoder": VectorEncoder,
}

# Attributes of a logistic regression that are written.
_LINEAR = ("coef_", "intercept_")


def write_classifier(classifier: TargetClassifier, path: str | Path, guarantee: Guarantee) -> None:
    """Write weights, preprocessing, classes and guarantee to one file, atomically.

    Args:
        classifier: A classifier whose model is a logistic regression or a network of this library.
        path: The file.
        guarantee: Guarantee of the weights.

    Raises:
        InputError: If the model is another one, or the file cannot be written.
    """
    content: dict[str, Any] = {
        "format": _FORMAT_WITHOUT_CODING,
        "version": __version__,
        "space": _tensors_of_space(classifier.space),
        "classes": classifier.classes.tolist(),
        "networks": _networks(classifier.model),
        "weights": _weights(classifier.model),
        "adapted": classifier.adapted,
        "shift": classifier.shift,
        "verdict": classifier.verdict,
        "columns": classifier.columns,
        "guarantee": guarantee.to_dict(),
    }
    if classifier.coding is not None:
        content["format"] = FORMAT
        content["coding"] = {
            "table": dataclasses.asdict(classifier.coding.table),
            "fills": torch.from_numpy(classifier.coding.fills),
        }
    atomic_write(path, partial(torch.save, content))


def read_classifier(path: str | Path) -> tuple[TargetClassifier, Guarantee]:
    """Read a classifier and the guarantee of its run; no code of the file is run.

    Raises:
        InputError: If the file is missing or is not a classifier.
    """
    with read_file(path, "classifier", _FORMAT_WITHOUT_CODING, FORMAT) as content:
        space = _space_of_tensors(content["space"])
        classes = class_array(as_classes(content["classes"]))
        columns = content.get("columns")
        if columns is not None:
            columns = tuple(map(str, columns))
        classifier = TargetClassifier(
            space,
            classes,
            _model(content["weights"], content.get("networks"), space, len(classes)),
            adapted=bool(content["adapted"]),
            shift=float(content["shift"]),
            verdict=str(content["verdict"]),
            columns=columns,
            coding=_coding(content.get("coding"), columns),
        )
        _check_sizes(classifier)
        guarantee = Guarantee.from_dict(content["guarantee"])
    return classifier, guarantee


def _check_sizes(classifier: TargetClassifier) -> None:
    """Predict the class of one record of zeros; an error means parts that do not fit."""
    shape = classifier.space.shape
    if classifier.columns is not None and len(classifier.columns) != math.prod(shape):
        raise ValueError("names of other columns than those of the records")
    probabilities = classifier.predict_proba(np.zeros((1, *shape), dtype=np.float32))
    if probabilities.shape != (1, len(classifier.classes)):
        raise ValueError("weights of other classes")


def _coding(content: dict[str, Any] | None, columns: tuple[str, ...] | None) -> Coding | None:
    """Return the coding of a table, which a file may lack."""
    if content is None:
        return None
    entries = content["table"]["columns"]
    coding = Coding(
        Table(tuple(Column(**entry) for entry in entries)),
        content["fills"].numpy(),
    )
    if coding.fills.shape != (len(coding.table.names),) or coding.names != columns:
        raise ValueError("a coding of other columns")
    return coding


def _tensors_of_space(space: SourceSpace) -> dict[str, Any]:
    """Return the fields of a space, with tensors in place of arrays."""
    fields = {}
    for field in dataclasses.fields(space):
        value = getattr(space, field.name)
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        fields[field.name] = value
    return fields


def _space_of_tensors(fields: dict[str, Any]) -> SourceSpace:
    """Return the space of fields that :func:`_tensors_of_space` returned."""
    arrays = {}
    for name, value in fields.items():
        if isinstance(value, torch.Tensor):
            value = value.numpy()
        arrays[name] = value
    space = SourceSpace(**arrays)
    if space.centre.shape != (math.prod(space.shape),):  # the file holds the centre, not the shape
        raise ValueError("a centre of another size than the records")
    return space


def _weights(model: Any) -> dict[str, torch.Tensor]:
    """Return the weights of a model by name."""
    if isinstance(model, torch.nn.Module):
        state = model.state_dict()
        return {name: value.detach().clone() for name, value in state.items()}
    if type(model) is LogisticRegression:
        return {name: torch.from_numpy(getattr(model, name)) for name in _LINEAR}
    raise InputError(
        f"Expected a logistic regression to save, got {type(model).__name__}; "
        "choose a transport or a method of this library."
    )


def check_networks(encoder: torch.nn.Module, classifier: torch.nn.Module) -> None:
    """Raise an InputError unless a file can hold the networks."""
    for part, network in (("encoder", encoder), ("classifier", classifier)):
        kind = type(network)
        if _NETWORKS.get(kind.__name__) is not kind:
            raise InputError(
                f"Expected an {part} out of {', '.join(_NETWORKS)} in a classifier's file, got "
                f"{kind.__name__}; save its state_dict instead."
            )


def _networks(model: Any) -> dict[str, Any] | None:
    """Return names and options of encoder and classifier; ``None`` for another model."""
    if not isinstance(model, EncodedClassifier):
        return None
    check_networks(model.encoder, model.classifier)
    networks = {}
    for part, network in model.named_children():
        kind = type(network)
        names = inspect.signature(kind).parameters
        options = {name: getattr(network, name) for name in names}
        networks[part] = {"network": kind.__name__, "options": options}
    return networks


def _model(
    weights: dict[str, torch.Tensor],
    networks: dict[str, Any] | None,
    space: SourceSpace,
    n_classes: int,
) -> Any:
    """Return the logistic regression or the network that has these weights."""
    if networks is not None:
        return _encoded_classifier(weights, networks)
    if set(weights) != set(_LINEAR):
        network = SmallCNN(space.shape[0], n_classes, N_HIDDEN)
        network.load_state_dict(weights)
        return network.eval()
    model = LogisticRegression()
    model.coef_ = weights["coef_"].numpy()
    model.intercept_ = weights["intercept_"].numpy()
    model.classes_ = np.arange(n_classes)
    model.n_features_in_ = model.coef_.shape[1]
    return model


def _encoded_classifier(
    weights: dict[str, torch.Tensor], networks: dict[str, Any]
) -> EncodedClassifier:
    """Return encoder and classifier with these weights.

    Options of another size than the weights are refused before memory is allocated for them.
    """
    with torch.device("meta"):
        shapes = _build(networks)
    expected = {name: weight.shape for name, weight in shapes.state_dict().items()}
    if {name: weight.shape for name, weight in weights.items()} != expected:
        raise ValueError("weights of other shapes than the options state")
    model = _build(networks)
    model.load_state_dict(weights)
    return model.eval()


def _build(networks: dict[str, Any]) -> EncodedClassifier:
    """Return encoder and classifier with random weights.

    A KeyError means an unknown network.
    """
    parts = {}
    for part in ("encoder", "classifier"):
        kind = _NETWORKS[networks[part]["network"]]
        parts[part] = kind(**networks[part]["options"])
    return EncodedClassifier(**parts)
