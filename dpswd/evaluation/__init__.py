"""Utility and fidelity of synthetic records, against records that the user may look at.

Every figure is an exact statistic of these records. The guarantee of a run does not cover exact figures on private
records.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from dpswd.errors import InputError
from dpswd.evaluation.accuracy import IMAGE_CLASSIFIERS, ROW_CLASSIFIERS, scores
from dpswd.evaluation.fidelity import fidelity
from dpswd.files.pictures import save_columns, save_grid
from dpswd.records import Records

__all__ = ["evaluate"]

WARNING = "Exact figures on private records are not covered by the guarantee of a run: keep them to yourself."
_SHOWN_CLASSES, _SHOWN_IMAGES = 10, 6  # in the figure, images of each class and side


def evaluate(
    synthetic: Records,
    test: Records,
    *,
    classes: bool = True,
    name: str = "records",
    classifiers: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Train classifiers on synthetic records, test them on real ones, and compare the distributions.

    The settings are fixed; nothing is tuned on the test records.

    Args:
        synthetic: Synthetic records with classes.
        test: Real records that the user may look at.
        classes: Whether the records have classes, so that classifiers are trained.
        name: Name of the data set in the rows.
        classifiers: Names of the classifiers; by default all that suit the records.

    Returns:
        ``"rows"``, one per classifier, with accuracy and balanced accuracy in percent and AUC, and ``"fidelity"``.

    Raises:
        InputError: If the shapes differ or a classifier is unknown.

    Example:
        >>> import torch
        >>> made, real = (Records(torch.rand(60, 3), torch.arange(60) % 2) for _ in range(2))
        >>> [row["classifier"] for row in evaluate(made, real)["rows"]]
        ['logreg', 'mlp', 'boosting']
    """
    shape, got = tuple(test.values.shape[1:]), tuple(synthetic.values.shape[1:])
    if got != shape:
        raise InputError(
            f"Expected synthetic records of the shape {shape} of the test records, got {got}."
        )
    images = len(shape) == 3
    rows = []
    for classifier in (
        (classifiers or (IMAGE_CLASSIFIERS if images else ROW_CLASSIFIERS)) if classes else ()
    ):
        facts = {"dataset": name, "classifier": classifier, "train": "synthetic"}
        sizes = {"n_train": len(synthetic), "n_test": len(test)}
        rows.append(facts | scores(classifier, synthetic, test) | sizes)
    return {
        "rows": rows,
        "fidelity": fidelity(synthetic.vectors(), test.vectors(), columns=not images),
    }


def figure(
    path: Path,
    synthetic: Records,
    test: Records,
    names: Sequence[str] | None = None,
    n_classes: int = 1,
) -> None:
    """Write a picture: a row of images per class, real ones on the left, or histograms of columns."""
    if test.values.ndim == 2:
        save_columns(path, {"real": test.vectors(), "synthetic": synthetic.vectors()}, names)
        return
    # a grey column ends each side
    picture = torch.full(
        (min(n_classes, _SHOWN_CLASSES), 2, _SHOWN_IMAGES + 1, *test.values.shape[1:]), 0.5
    )
    for side, records in enumerate((test, synthetic)):
        for number, row in enumerate(picture[:, side]):
            found = (records.labels == number).nonzero()[:_SHOWN_IMAGES, 0]
            row[: len(found)] = records.floats(found)
    save_grid(picture.flatten(1, 2)[:, :-1].flatten(0, 1), path, 2 * _SHOWN_IMAGES + 1)
