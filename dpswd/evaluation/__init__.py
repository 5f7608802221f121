"""Utility and fidelity of synthetic records.

They are measured against records that the user may look at. Every figure is an exact statistic of
these records. The guarantee of a run does not cover exact figures on private records.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpswd._layout import Array
from dpswd._progress import working
from dpswd.columns import Table
from dpswd.errors import InputError
from dpswd.evaluation.accuracy import (
    IMAGE_CLASSIFIERS,
    ROW_CLASSIFIERS,
    check_classifiers,
    scores,
    scores_of_halves,
)
from dpswd.evaluation.fidelity import check_numbers, fidelity
from dpswd.evaluation.images import image_features, random_convolutions
from dpswd.evaluation.in_words import verdict
from dpswd.evaluation.nearest import halves, nearest_real
from dpswd.evaluation.two_sample import propensity, two_sample_test
from dpswd.files.pictures import save_columns, save_grid
from dpswd.records import Records

__all__ = ["evaluate"]

WARNING = (
    "Exact numbers on private records are not covered by the guarantee of a run: keep them to "
    "yourself."
)
_MAX_CLASSES = 10  # rows of the figure
_N_IMAGES = 6  # of each class and side in the figure
_GREY = 0.5  # of places without an image


def evaluate(
    synthetic: Records,
    test: Records,
    *,
    train: Records | None = None,
    classes: bool = True,
    name: str = "records",
    classifiers: Sequence[str] | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Train classifiers on synthetic records, and test them on real records.

    The distributions of both are compared as well. The settings are fixed; nothing is tuned on the
    test records.

    Args:
        synthetic: Synthetic records with classes.
        test: Real records that the user may look at.
        train: Other real records, for comparison; ``None`` for halves of the test records.
        classes: Whether the records have classes, so that classifiers are trained.
        name: Name of the data set in the rows.
        classifiers: Names of the classifiers; by default all that suit the records.
        progress: Show the stages.

    Returns:
        ``"rows"``, one per classifier, with accuracy and balanced accuracy in percent and AUC;
        ``"real_rows"``, the same for training on real records: at most as many as there are
        synthetic ones of ``train``, or each half of the test records in turn, tested on the other
        half; empty if these have fewer than 20 records or a single class.
        ``"majority"``, the part of the most frequent class of the test records in percent, which
        an accuracy has to exceed; for tables ``"class_share"``, the number of the class whose share
        differs most, with its share of the synthetic and of the test records;
        ``"two_sample"`` of
        :func:`~dpswd.evaluation.two_sample.two_sample_test`; for tables ``"propensity"`` of
        :func:`~dpswd.evaluation.two_sample.propensity`; ``"nearest"`` of
        :func:`~dpswd.evaluation.nearest.nearest_real`, in ``train`` or in one half of the test
        records; ``"fidelity"``, of images in the features of
        :func:`~dpswd.evaluation.images.random_convolutions`; and ``"verdict"``, which says in
        words what these figures mean (:func:`~dpswd.evaluation.in_words.verdict`).

    Raises:
        InputError: If the shapes differ, a classifier is unknown or does not suit the records, or
            there are fewer than 2 synthetic or test records.

    Example:
        >>> import torch
        >>> labels = torch.arange(60) % 2
        >>> synthetic = Records(torch.rand(60, 3), labels)
        >>> real = Records(torch.rand(60, 3), labels)
        >>> [row["classifier"] for row in evaluate(synthetic, real)["rows"]]
        ['logreg', 'mlp', 'boosting']
    """
    real_shape = tuple(test.values.shape[1:])
    shape = tuple(synthetic.values.shape[1:])
    if shape != real_shape:
        raise InputError(
            f"Expected synthetic records of the shape {real_shape} of the test records, got "
            f"{shape}; evaluate records of one kind."
        )
    check_numbers(len(synthetic), len(test))
    # A file may have an order, such as men and women in turn, which its parts must not have.
    test = _shuffled(test, seed=0)
    synthetic = _shuffled(synthetic, seed=1)
    is_image = len(shape) == 3
    check_classifiers(classifiers, is_image=is_image)
    if not classes:
        classifiers = ()
    elif not classifiers:
        classifiers = IMAGE_CLASSIFIERS if is_image else ROW_CLASSIFIERS
    rows = []
    real_rows = []
    for classifier in classifiers:
        row: dict[str, Any] = {"dataset": name, "classifier": classifier, "train": "synthetic"}
        training = f"Training {classifier} on {len(synthetic):,} synthetic records"
        with working(training, shown=progress):
            row |= scores(classifier, synthetic, test)
        row |= {"n_train": len(synthetic), "n_test": len(test)}
        rows.append(row)
        with working(f"Training {classifier} on real records", shown=progress):
            real_scores = _real_scores(classifier, train, test, len(synthetic))
        if real_scores is not None:
            first = {"dataset": name, "classifier": classifier, "train": "real"}
            real_rows.append(first | real_scores | {"n_test": len(test)})
    majority = None
    if classes:
        counts = test.labels.bincount()
        majority = round(100 * float(counts.max() / counts.sum()), 2)
    reference, held_out = halves(test)
    if train is not None:
        reference = train
        held_out = test
    result: dict[str, Any] = {"rows": rows, "real_rows": real_rows, "majority": majority}
    if classes and not is_image:
        result["class_share"] = _class_share(synthetic.labels, test.labels)
    with working("Telling synthetic records from real ones", shown=progress):
        result["two_sample"] = two_sample_test(synthetic, test)
        if not is_image:
            result["propensity"] = propensity(synthetic, test)
    with working("Searching the nearest real record of each", shown=progress):
        result["nearest"] = nearest_real(synthetic, reference, held_out)
    with working("Comparing the distributions", shown=progress):
        compared = (_compared(synthetic), _compared(test))
        result["fidelity"] = fidelity(*compared, columns=not is_image)
    n_classes = 0
    if classes:
        n_classes = len(test.labels.unique())
    is_grey = is_image and shape[0] == 1
    result["verdict"] = verdict(result, n_classes=n_classes, is_image=is_image, is_grey=is_grey)
    return result


def _class_share(synthetic: Tensor, real: Tensor) -> dict[str, Any]:
    """Return the class whose share differs most, with both shares.

    Args:
        synthetic: Numbers (n,) of the classes of the synthetic records.
        real: Numbers (m,) of the classes of the real records.
    """
    n_classes = 1 + int(max(synthetic.max(), real.max()))
    synthetic_shares = synthetic.bincount(minlength=n_classes) / len(synthetic)
    real_shares = real.bincount(minlength=n_classes) / len(real)
    number = int((synthetic_shares - real_shares).abs().argmax())
    return {
        "class": number,
        "synthetic": round(float(synthetic_shares[number]), 4),
        "real": round(float(real_shares[number]), 4),
    }


def _shuffled(records: Records, seed: int) -> Records:
    """Return the records in a random order, the same at every call."""
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(seed))
    return records.select(order)


def _real_scores(
    classifier: str, train: Records | None, test: Records, n: int
) -> dict[str, Any] | None:
    """Return the scores of a classifier that is trained on real records.

    They are at most n of ``train``, or, without it, each half of the test records in turn.
    """
    if train is None:
        return scores_of_halves(classifier, *halves(test))
    part = train.evenly_spread(n)
    return scores(classifier, part, test) | {"n_train": len(part)}


def _compared(records: Records) -> Array:
    """Return the vectors whose distributions are compared.

    Images are compared by public features.
    """
    if records.values.ndim == 4:
        return image_features(random_convolutions, records.floats())
    return records.vectors()


def figure(
    path: Path,
    synthetic: Records,
    test: Records,
    names: Sequence[str] | None = None,
    classes: Sequence[Any] | None = None,
    table: Table | None = None,
) -> None:
    """Write a picture of real records and synthetic records.

    It shows a row of images per class, real ones on the left, or histograms of columns.

    Args:
        path: The PNG file.
        synthetic: Synthetic records.
        test: Real records.
        names: Names of the columns of rows.
        classes: Names of the classes of images, of which ten are shown at most; ``None`` for none.
        table: Facts of the columns, which name categories, dates and missing cells on the axes.
    """
    if test.values.ndim == 2:
        parts = {"real": test.vectors(), "synthetic": synthetic.vectors()}
        save_columns(path, parts, names, table)
        return
    image_shape = test.values.shape[1:]
    row_names = list(classes or ())[:_MAX_CLASSES]
    n_rows = max(1, len(row_names))
    grid = torch.full((n_rows, 2, _N_IMAGES + 1, *image_shape), _GREY)  # grey between the sides
    for side, records in enumerate((test, synthetic)):
        for number in range(n_rows):
            index = (records.labels == number).nonzero()[:_N_IMAGES, 0]
            grid[number, side, : len(index)] = records.floats(index)
    n_columns = 2 * (_N_IMAGES + 1) - 1
    images = grid.flatten(1, 2)[:, :n_columns]
    titles = {0: "real", _N_IMAGES + 1: "synthetic"}
    save_grid(images.flatten(0, 1), path, n_columns, row_names=row_names, titles=titles)
