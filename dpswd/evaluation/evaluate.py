"""Evaluation of synthetic records: accuracies, fidelity, one figure, and the files that hold them."""

import io
from pathlib import Path
from typing import Any

import numpy as np

from dpswd._files import atomic_write, write_json
from dpswd.errors import InputError
from dpswd.evaluation.accuracy import IMAGE_CLASSIFIERS, ROW_CLASSIFIERS, flat, scores
from dpswd.evaluation.fidelity import fidelity
from dpswd.records import Records

__all__ = ["evaluate", "figure", "write_evaluation"]

WARNING = "Exact figures on private records are not covered by the guarantee of a run: keep them to yourself."
_SHOWN_CLASSES, _SHOWN_IMAGES, _SHOWN_COLUMNS = 10, 6, 12  # in the figure


def evaluate(
    synthetic: Records,
    test: Records,
    *,
    classes: bool = True,
    name: str = "records",
    source: str = "synthetic",
    classifiers: tuple[str, ...] | None = None,
) -> dict[str, Any]:
    """Train classifiers on synthetic records, test them on real ones, and compare the distributions.

    The settings are fixed; nothing is tuned on the test records.

    Args:
        synthetic: Synthetic records with classes.
        test: Real records that the user may look at.
        classes: Whether the records have classes, so that classifiers are trained.
        name: Name of the data set in the rows.
        source: What the classifiers were trained on, for the rows.
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
    shape = tuple(test.values.shape[1:])
    if tuple(synthetic.values.shape[1:]) != shape:
        raise InputError(
            f"Expected synthetic records of the shape {shape} of the test records, got "
            f"{tuple(synthetic.values.shape[1:])}; state the same size and channels."
        )
    images = len(shape) == 3
    train_rows, test_rows = flat(synthetic.floats()), flat(test.floats())
    rows = []
    if classes:
        pairs = (train_rows, synthetic.labels.numpy()), (test_rows, test.labels.numpy())
        for classifier in classifiers or (IMAGE_CLASSIFIERS if images else ROW_CLASSIFIERS):
            facts = {"dataset": name, "classifier": classifier, "train": source}
            sizes = {"n_train": len(synthetic), "n_test": len(test)}
            rows.append(facts | scores(classifier, *pairs, images, shape) | sizes)
    return {"rows": rows, "fidelity": fidelity(train_rows, test_rows, columns=not images)}


def write_evaluation(directory: str | Path, rows: list[dict[str, Any]], *, public: bool, **facts: Any) -> Path:
    """Write accuracies to ``evaluation.json``, or to ``private_evaluation.json`` unless the test records are public.

    The report reads the first file. It ignores the second by default, since an exact accuracy on private records is not
    covered by the guarantee.

    Args:
        directory: Where to write.
        rows: Rows of :func:`evaluate`.
        public: Whether the test records are a public benchmark.
        facts: Further plain values for the file.

    Example:
        >>> import tempfile
        >>> write_evaluation(tempfile.mkdtemp(), [], public=False).name
        'private_evaluation.json'
    """
    path = Path(directory) / ("evaluation.json" if public else "private_evaluation.json")
    write_json(path, {"rows": rows, **facts})
    return path


def figure(path: Path, synthetic: Records, test: Records, names: list[str] | None = None) -> None:
    """Write a picture: real and synthetic images side by side, or histograms of columns on top of each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if test.values.ndim == 4:
        made = Figure(figsize=(9, 5), layout="constrained")
        for axes, records, title in zip(made.subplots(1, 2), (test, synthetic), ("real", "synthetic"), strict=True):
            axes.imshow(_grid(records), cmap="gray", vmin=0, vmax=1)
            axes.set_title(title)
            axes.set_axis_off()
    else:
        count = min(_SHOWN_COLUMNS, test.values.shape[1])
        made = Figure(figsize=(9, 2.2 * -(-count // 4)), layout="constrained")
        every = made.subplots(-(-count // 4), min(4, count), squeeze=False).flatten()
        for column, axes in enumerate(every):
            if column >= count:
                axes.set_axis_off()
                continue
            both = [records.floats()[:, column].numpy() for records in (test, synthetic)]
            edges = np.histogram_bin_edges(np.concatenate(both), 30)
            for values, label in zip(both, ("real", "synthetic"), strict=True):
                axes.hist(values, edges, density=True, alpha=0.5, label=label)
            axes.set_title(names[column] if names else f"column {column}", fontsize=9)
            axes.tick_params(labelsize=7)
        every[0].legend(fontsize=7)
    buffer = io.BytesIO()
    FigureCanvasAgg(made).print_png(buffer)
    atomic_write(path, buffer.getvalue())


def _grid(records: Records) -> Any:
    """Return the first images of each class as one array."""
    numbers = records.labels.unique()[:_SHOWN_CLASSES].tolist()
    rows = []
    for number in numbers:
        index = (records.labels == number).nonzero()[:, 0]
        rows.append(index[: _SHOWN_IMAGES if len(numbers) > 1 else _SHOWN_IMAGES**2])
    index = np.concatenate([row.numpy() for row in rows if len(row) == len(rows[0])])
    columns = _SHOWN_IMAGES if len(index) >= _SHOWN_IMAGES else len(index)
    index = index[: len(index) // columns * columns]
    images = records.values[index]
    pixels = images.float().numpy() / (255 if images.dtype.itemsize == 1 else 1)
    pixels = np.pad(pixels, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=0.5)
    n, channels, height, width = pixels.shape
    tiled = pixels.reshape(n // columns, columns, channels, height, width).transpose(0, 3, 1, 4, 2)
    whole = tiled.reshape(n // columns * height, columns * width, channels)
    return whole[:, :, 0] if channels == 1 else whole
