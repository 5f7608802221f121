"""``dpswd evaluate CLASSIFIER TEST``: accuracy on labelled records."""

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpswd._files import check_new, write_json
from dpswd.commands._options import refuse_run_directory
from dpswd.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NAME = "classifier.pt"
# Options of the command that synthetic records have and a classifier has not.
_OF_RECORDS = ("classifiers", "columns", "fid", "weights")


def classifier_path(path: Path) -> Path | None:
    """Return the path of a classifier, from its file or run; ``None`` for records."""
    if path.suffix == ".pt" and path.name.startswith("classifier"):
        return path
    if path.is_dir() and (path / _NAME).is_file() and not (path / "synthetic.npz").exists():
        return path / _NAME
    return None


def evaluate_classifier(
    path: Path, arguments: Namespace, *, directory: Path, public: bool
) -> dict[str, Any]:
    """Compare predictions with the classes of the test records, and write a JSON file.

    Args:
        path: File of the classifier.
        arguments: Options of ``dpswd evaluate``.
        directory: Directory of the JSON file.
        public: Whether the test records are public. Figures on private records are no part of a
            run.

    Raises:
        InputError: If an option is one of synthetic records, or the test records do not fit.
    """
    for name in _OF_RECORDS:
        if getattr(arguments, name):
            raise InputError(
                f"Expected synthetic records with --{name}, got the classifier {path}; leave the "
                "option out."
            )
    out = directory / "accuracy.json"
    if not public:
        refuse_run_directory(directory)
        out = directory / "private_accuracy.json"
    check_new(out)
    # These modules import torch, which the help of the command does not need.
    from dpswd.adaptation.reading import read_test
    from dpswd.data.tables import check_target, target_of
    from dpswd.estimators.adapter import PrivateAdapter
    from dpswd.evaluation import WARNING
    from dpswd.evaluation.classes import renumbered

    check_target(arguments.target, [arguments.test], arguments.root)
    adapter = PrivateAdapter.load(path)
    classifier = adapter.classifier_
    test = read_test(
        arguments.test,
        classifier.space.shape,
        classifier.columns,
        classifier.coding,
        root=arguments.root,
        target=target_of(arguments.test, arguments.root, arguments.target, "class"),
        unit=arguments.unit,
        unreadable=arguments.unreadable,
        min_classes=1,
        missing_is_class=True,
    )
    names = list(adapter.classes_)
    labels = renumbered(test.records, test.classes, names).labels.numpy()
    predicted = adapter.predict_proba(test.values).argmax(axis=1)
    figures = accuracies(predicted, labels, [str(name) for name in names])
    result = {"classifier": str(path), "test": arguments.test, **figures}
    write_json(out, result)
    return {"note": WARNING, "public": public, **result, "files": [str(out)]}


def accuracies(
    predicted: "NDArray[np.int64]", labels: "NDArray[np.int64]", names: list[str]
) -> dict[str, Any]:
    """Return accuracies in percent.

    The balanced one is the mean over the classes that the test records have.

    Args:
        predicted: Predicted classes (n,), as positions in ``names``.
        labels: Classes (n,), as positions in ``names``.
        names: Names of the classes of the classifier.
    """
    import numpy as np

    is_right = predicted == labels
    of_class = {}
    counts = {}
    for label in np.unique(labels):
        is_of_class = labels == label
        of_class[names[label]] = round(100 * float(is_right[is_of_class].mean()), 2)
        counts[names[label]] = int(is_of_class.sum())
    return {
        "n_test": len(labels),
        "accuracy": round(100 * float(is_right.mean()), 2),
        "balanced_accuracy": round(sum(of_class.values()) / len(of_class), 2),
        "majority": round(100 * max(counts.values()) / len(labels), 2),
        "accuracy_of_class": of_class,
        "count_of_class": counts,
    }


def show_accuracies(result: dict[str, Any]) -> None:
    """Print accuracies, and that of the most frequent class."""
    if not result["public"]:
        print(result["note"])
    print(
        f"Accuracy {result['accuracy']:.1f} % on {result['n_test']:,} records of {result['test']}; "
        f"balanced (mean of the classes) {result['balanced_accuracy']:.1f} %."
    )
    print(f"Always the most frequent class: {result['majority']:.1f} %.")
    parts = []
    for name, accuracy in result["accuracy_of_class"].items():
        parts.append(f"{name}: {accuracy:.1f} %")
    print(f"Of each class: {', '.join(parts)}.")
    print(f"Files: {', '.join(result['files'])}")
