"""``dpswd evaluate``: figures of synthetic records, or of a classifier."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpswd._files import check_new, write_json
from dpswd._progress import working
from dpswd.columns import read_columns
from dpswd.commands._accuracy import classifier_path, evaluate_classifier, show_accuracies
from dpswd.commands._options import (
    add_columns,
    add_left_out_unit,
    add_reading,
    refuse_run_directory,
)
from dpswd.errors import InputError

if TYPE_CHECKING:
    from dpswd.columns import Table
    from dpswd.data import Benchmark
    from dpswd.records import Records

# Percentage of the real cells of a column at its bounds from which on the facts are doubtful.
_DOUBTFUL_PERCENT = 50.0


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "synthetic",
        metavar="SYNTHETIC",
        help="synthetic records (.npz, a table or a folder of images), or a classifier.pt of dpswd "
        "adapt or dpswd fit",
    )
    parser.add_argument(
        "test", metavar="TEST", help="real records that you may look at, or a benchmark"
    )
    add_reading(parser)
    add_columns(parser)
    add_left_out_unit(parser)
    parser.add_argument(
        "--classifiers",
        nargs="+",
        metavar="NAME",
        help="which classifiers to train: some of logreg, mlp, cnn, boosting (default: those that "
        "fit the records)",
    )
    parser.add_argument(
        "--fid", action="store_true", help="also compute the FID of images; needs --weights"
    )
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="the Inception weights of pytorch-fid, for --fid",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where the JSON file and the picture go (default: private/RUN; for a benchmark, the "
        "directory of SYNTHETIC)",
    )


def run(arguments: Namespace) -> dict[str, Any]:
    if arguments.fid and arguments.weights is None:
        raise InputError(
            "Expected --weights FILE with --fid, got none; fetch "
            "pt_inception-2015-12-05-6726825d.pth from the releases of mseitzer/pytorch-fid."
        )
    if arguments.weights is not None and not arguments.fid:
        raise InputError("Expected --fid with --weights, got none; add it, or leave --weights out.")
    # These modules import torch, which the help of the command does not need.
    from dpswd.data import benchmark, read_public
    from dpswd.data.benchmarks import benchmark_name, in_order_of
    from dpswd.data.tables import check_target, target_of
    from dpswd.evaluation.accuracy import check_classifiers

    root = arguments.root
    _refuse_synthetic(Path(arguments.test))
    public = benchmark_name(arguments.test) is not None and benchmark(arguments.test, root).public
    classifier = classifier_path(Path(arguments.synthetic))
    directory = arguments.out
    if directory is None:
        directory = _directory_of(Path(arguments.synthetic), classifier)
        if not public:
            directory = Path("private") / directory.resolve().name
    if classifier is not None:
        return evaluate_classifier(classifier, arguments, directory=directory, public=public)
    # Mistakes that need no records are refused before these are read.
    check_classifiers(arguments.classifiers)
    _new_files(directory, public=public)
    reading = {
        "root": root,
        "unreadable": arguments.unreadable,
        "missing_is_class": True,  # a stated class may have the name None or nan
    }
    if arguments.columns is not None:
        reading["columns"] = read_columns(arguments.columns)
    check_target(arguments.target, (arguments.synthetic, arguments.test), root)
    target_names = (arguments.target, "class")
    synthetic = read_public(
        arguments.synthetic, **reading, target=target_of(arguments.synthetic, root, *target_names)
    )
    if len(synthetic.shape) == 3:
        reading |= {"size": synthetic.shape[1], "channels": synthetic.shape[0]}
    real = read_public(
        arguments.test,
        **reading,
        target=target_of(arguments.test, root, *target_names),
        min_classes=1,
        unit=arguments.unit,
    )
    real = in_order_of(synthetic, real, arguments.test)
    result = evaluate_pair(
        synthetic,
        real,
        directory,
        public=public,
        classifiers=arguments.classifiers,
        weights=arguments.weights,
        table=reading.get("columns"),
        progress=not arguments.json,
    )
    result["by_person"] = arguments.unit is not None
    if arguments.columns is not None:
        result["at_bounds"] = _percent_at_bounds(reading["columns"], real)
    return result


def _directory_of(synthetic: Path, classifier: Path | None) -> Path:
    """Return the directory of synthetic records or of a classifier.

    SYNTHETIC may be the directory of a run itself, where the classifier is looked for.
    """
    if classifier == synthetic / "classifier.pt":
        return synthetic
    return synthetic.parent


def _percent_at_bounds(table: "Table", real: "Benchmark") -> dict[str, float]:
    """Return the percentage of real cells at a bound, by column, where it is large.

    Cells beyond the bounds were limited to them, so that wrong facts show here.
    """
    percentages = {}
    for column, numbers in zip(table.included, real.train.values.T, strict=True):
        percent = 100 * float(column.are_at_bounds(numbers.double().numpy()).mean())
        if percent > _DOUBTFUL_PERCENT:
            percentages[column.name] = round(percent, 1)
    return percentages


def _refuse_synthetic(test: Path) -> None:
    """Refuse synthetic records of a run or a bundle in place of real records."""
    is_of_run = test.stem == "synthetic" and (test.parent / "ledger.jsonl").is_file()
    is_of_bundle = test.parent.name == "data" and (test.parents[1] / "MANIFEST.json").is_file()
    if is_of_run or is_of_bundle:
        raise InputError(
            f"Expected real records as TEST, got {test}, the synthetic records of a run; swap "
            "SYNTHETIC and TEST, or pass real records."
        )


def evaluate_pair(
    synthetic: "Benchmark",
    real: "Benchmark",
    directory: Path,
    *,
    public: bool,
    classifiers: Sequence[str] | None = None,
    weights: Path | None = None,
    table: "Table | None" = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Evaluate synthetic records, and write the JSON file and the figure.

    Args:
        synthetic: Synthetic records.
        real: Real records; their test part is used if there is one.
        directory: Where the files are written.
        public: Whether the real records are public. Figures on private records are no part of a
            run.
        classifiers: Names of the classifiers; by default all that suit the records.
        weights: Weights of pytorch-fid for the FID of images; ``None`` for no FID.
        table: Facts of the columns, for the figure; ``None`` for none.
        progress: Show the stages.

    Raises:
        InputError: If the records or the weights do not fit, or the files exist, or figures on
            private records would lie in a run directory.
    """
    # These modules import scikit-learn, which the help of the command does not need.
    from dpswd.evaluation import WARNING, evaluate, figure
    from dpswd.evaluation.classes import renumbered

    path, picture = _new_files(directory, public=public)
    test = real.test or real.train
    train = None
    reference = f"one half of {real.name}"
    if real.test is not None:
        train = real.train
        reference = f"the training records of {real.name}"
    inception_distance = None
    if weights is not None:
        with working("Computing the FID", shown=progress):
            inception_distance = _fid(weights, test, synthetic.train)
    classes: list[Any] | None = None
    if real.classes is not None and synthetic.classes is not None:
        classes = synthetic.classes
        test = renumbered(test, real.classes, classes)
        if train is not None:
            train = renumbered(train, real.classes, classes)
    result = evaluate(
        synthetic.train,
        test,
        train=train,
        classes=classes is not None,
        name=real.name,
        classifiers=classifiers,
        progress=progress,
    )
    result["reference"] = reference
    if inception_distance is not None:
        result["fid"] = inception_distance
    pair = result["fidelity"].get("worst_pair")
    if pair is not None and real.columns is not None:
        pair["columns"] = [real.columns[number] for number in pair["columns"]]
    if real.columns is not None:
        _name_worst_column(result["fidelity"], real.columns)
    if "class_share" in result and classes is not None:
        share = result["class_share"]
        share["class"] = classes[share["class"]]
    write_json(path, result)
    figure(picture, synthetic.train, test, real.columns, classes, table)
    return {"note": WARNING, "public": public, **result, "files": [str(path), str(picture)]}


def _new_files(directory: Path, *, public: bool) -> tuple[Path, Path]:
    """Return the paths of the JSON file and of the picture, which must not exist."""
    path = directory / "evaluation.json"
    if not public:
        refuse_run_directory(directory)
        path = directory / "private_evaluation.json"
    picture = path.with_suffix(".png")
    check_new(path)
    check_new(picture)
    return path, picture


def _name_worst_column(fidelity: dict[str, Any], names: Sequence[str]) -> None:
    """Write names in place of the positions of the columns that differ most."""
    for figures in (fidelity, fidelity.get("halves", {})):
        if "worst_column" in figures:
            worst = figures["worst_column"]
            worst["column"] = names[worst["column"]]


def _fid(weights: Path, real: "Records", synthetic: "Records") -> float:
    """Return the FID of synthetic images."""
    from dpswd.evaluation.images import fid  # imports torch

    if real.values.ndim != 4:
        raise InputError("Expected images for --fid, got a table; leave it out.")
    return round(fid(weights, real.floats(), synthetic.floats()), 2)


def show(result: dict[str, Any]) -> None:
    if "classifier" in result:
        show_accuracies(result)
        return
    if not result["public"]:
        print(result["note"])
    if result["rows"]:
        _show_accuracies(result["rows"], result["real_rows"])
    else:
        print(
            "No classifier was trained, as the records have no classes; of tables, --target "
            "names their column."
        )
    if result["majority"] is not None:
        print(f"{'the most frequent class':<22}{result['majority']:>8.1f} %")
    _show_two_sample(result["two_sample"], result.get("propensity"))
    _show_fidelity(result["fidelity"], has_classes=result["majority"] is not None)
    if "class_share" in result:
        _show_class_share(result["class_share"], by_person=result.get("by_person", False))
    if result["nearest"] is not None:
        from dpswd.evaluation.nearest import summary

        print(summary(result["nearest"], result["reference"]))
    for name, percent in result.get("at_bounds", {}).items():
        print(
            f"Column {name}: {percent:g} % of the real cells are at a stated bound or beyond it. "
            "That is right if this value is frequent, such as a gain of 0; else, check its facts."
        )
    if "fid" in result:
        print(f"FID {result['fid']:.2f}")
    print(f"In words: {result['verdict']}")
    print(f"Files: {', '.join(result['files'])}")
    if not result["public"]:
        print(
            "If the generator was fitted to these records, its accuracies may be too good: hold "
            "some records out, and evaluate on them."
        )
        print(f"{result['files'][1]} shows real records: do not publish it.")


def _show_accuracies(rows: list[dict[str, Any]], real_rows: list[dict[str, Any]]) -> None:
    """Print the table of classifiers, beside the same ones trained on real records."""
    print(f"{'trained on synthetic':<22}{'accuracy':>10}{'balanced':>10}{'AUC':>8}", end="")
    n_real = ""
    heading = ""
    if real_rows:
        n_real = f"{real_rows[0]['n_train']:,} real"
        heading = f"{n_real:>14}{'balanced':>10}"
    print(heading)
    real_accuracies = {}
    for row in real_rows:
        accuracy = f"{row['accuracy']:.1f} %"
        balanced = f"{row['balanced_accuracy']:.1f} %"
        real_accuracies[row["classifier"]] = f"{accuracy:>14}{balanced:>10}"
    for row in rows:
        accuracy = f"{row['accuracy']:.1f} %"
        balanced = f"{row['balanced_accuracy']:.1f} %"
        area = _three_digits(row["auc"])
        real = real_accuracies.get(row["classifier"], "")
        print(f"{row['classifier']:<22}{accuracy:>10}{balanced:>10}{area:>8}{real}")
    if real_rows:
        print(
            f"On the right: accuracies of the same classifier, trained on {n_real} records instead "
            "of synthetic ones."
        )
    print("balanced: mean of the accuracies of all classes. AUC: 0.5 is guessing, 1 is perfect.")


def _show_two_sample(areas: dict[str, float | None], propensity: dict[str, float] | None) -> None:
    """Print how well classifiers tell synthetic records from real ones."""
    if areas:
        numbers = ", ".join(f"{name} {_three_digits(area)}" for name, area in areas.items())
        print(f"Synthetic or real, AUC (0.5: cannot be told apart, 1: always): {numbers}")
    if propensity is not None:
        print(
            "Synthetic or real, pMSE (0: cannot be told apart, 0.25: always): "
            f"{propensity['pmse']:.4f}, {propensity['ratio']:.1f} times that of two sets of real "
            "records"
        )


def _show_fidelity(fidelity: dict[str, Any], *, has_classes: bool) -> None:
    """Print the table of distances, beside those of the halves of the real records."""
    halves = fidelity.get("halves", {})
    print(f"{'fidelity':<26}{'synthetic':>10}{'real halves':>13}")
    for name in ("frechet", "precision", "recall", "correlation_difference"):
        if fidelity.get(name) is None:
            continue
        text = name.replace("frechet", "Frechet distance").replace("_", " ")
        half_distance = _three_digits(halves.get(name))
        print(f"{text:<26}{fidelity[name]:>10.3f}{half_distance:>13}")
    if fidelity.get("precision") is not None:
        print(
            "precision: part of the synthetic records that lie among real ones; recall: part of "
            "the real records that lie among synthetic ones."
        )
        print(
            "Real halves: the same numbers of one half of the real records beside the other half."
        )
    if "column_distances" in fidelity:
        distances = sorted(fidelity["column_distances"])
        median = distances[len(distances) // 2]
        print(f"{'columns, 1-Wasserstein':<26}median {median:.3f}, largest {distances[-1]:.3f} sd")
        _show_worst_column(fidelity["worst_column"], halves.get("worst_column"))
        _show_worst_pair(fidelity.get("worst_pair"))
    else:
        rows = "a row of images per class" if has_classes else "one row of images"
        print(f"The picture has {rows}: real ones on the left, synthetic ones on the right.")


def _show_worst_column(worst: dict[str, Any], of_halves: dict[str, Any] | None) -> None:
    """Print the column whose histograms differ most, beside that of the real halves."""
    halves = ""
    if of_halves is not None:
        halves = f"; of real halves {of_halves['column']}: {of_halves['total_variation']:.3f}"
    distance = f"total variation {worst['total_variation']:.3f}"
    print(f"{'column differs most':<26}{worst['column']}: {distance}{halves}")


def _show_worst_pair(pair: dict[str, Any] | None) -> None:
    """Print the two columns whose correlations differ most."""
    if pair is None:
        return
    first, second = pair["columns"]
    print(
        f"{'correlations differ most':<26}{first} and {second}: {pair['synthetic']:.2f}, real "
        f"{pair['real']:.2f}"
    )


def _show_class_share(share: dict[str, Any], *, by_person: bool) -> None:
    """Print the class whose share differs most."""
    shares = f"{share['class']}: {share['synthetic']:.2f}, real {share['real']:.2f}"
    print(f"{'shares of classes':<26}{shares}")
    if by_person:
        print(
            "With --unit, dpswd generate counts every person alike. In the real records, a person "
            "with many lines counts more, so that shares and distributions may differ."
        )


def _three_digits(value: float | None) -> str:
    """Return a number with three digits after the point, "-" for none."""
    if value is None:
        return "-"
    return f"{value:.3f}"
