"""``dpswd evaluate``: utility and fidelity of synthetic records."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpswd.commands.generate import add_reading
from dpswd.errors import InputError

if TYPE_CHECKING:
    from dpswd.data import Benchmark
    from dpswd.records import Records


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("synthetic", metavar="SYNTHETIC", help="synthetic records: .npz, .csv or a folder of images")
    parser.add_argument("test", metavar="TEST", help="real records that you may look at, or a benchmark")
    add_reading(parser)
    parser.add_argument("--classifiers", nargs="+", metavar="NAME", help="out of logreg, mlp, cnn, boosting")
    text = "of JSON file and figure (default: private/RUN; for a benchmark, that of SYNTHETIC)"
    parser.add_argument("--out", type=Path, metavar="DIR", help=text)


def run(arguments: Namespace) -> dict[str, Any]:
    from dpswd.data import read_public
    from dpswd.data.files import TARGET, column_names

    def options_of(path: str) -> dict[str, Any]:
        names, target = column_names(path, arguments.root), arguments.target
        return {
            "unreadable": arguments.unreadable,
            "target": next((each for each in (target, "class") if each in names), None),
        }

    made = read_public(arguments.synthetic, **options_of(arguments.synthetic))
    options = options_of(arguments.test)
    if len(made.shape) == 3:
        options |= {"size": made.shape[1], "channels": made.shape[0]}
    found = read_public(arguments.test, root=arguments.root, **options)
    names = [name for name in column_names(arguments.test, arguments.root) if name != options["target"]]
    if names and made.classes is not None and found.shape != made.shape and options["target"] is None:
        raise InputError(f"Expected the columns of {arguments.synthetic} in {arguments.test}, got others; {TARGET}.")
    public, run_dir = _is_benchmark(arguments.test, arguments.root), Path(arguments.synthetic).resolve().parent
    return evaluate_pair(
        made,
        found,
        arguments.out or (run_dir if public else Path("private") / run_dir.name),
        public=public,
        classifiers=None if arguments.classifiers is None else tuple(arguments.classifiers),
        columns=names,
    )


def evaluate_pair(
    made: "Benchmark",
    real: "Benchmark",
    directory: Path,
    *,
    public: bool,
    classifiers: tuple[str, ...] | None = None,
    columns: list[str] | None = None,
) -> dict[str, Any]:
    """Evaluate, and write the JSON file and the figure; a report may show those of ``public`` records."""
    from dpswd.evaluation.evaluate import WARNING, evaluate, figure, write_evaluation

    test, labelled = real.test or real.train, made.classes is not None and real.classes is not None
    if labelled:
        test = _same_classes(test, made.classes or [], real.classes or [])
    result = evaluate(made.train, test, classes=labelled, name=real.name, classifiers=classifiers)
    path = write_evaluation(directory, result["rows"], public=public, fidelity=result["fidelity"])
    picture = path.with_suffix(".png")
    figure(picture, made.train, test, columns, made.classes if labelled else None)
    return {"note": WARNING, "public": public, **result, "files": [str(path), str(picture)]}


def _same_classes(test: "Records", ours: list[Any], theirs: list[Any]) -> "Records":
    """Number the classes of the test records as those of the synthetic ones."""
    import torch

    from dpswd.records import Records

    known = {str(name): i for i, name in enumerate(ours)}
    if unknown := [str(name) for name in theirs if str(name) not in known]:
        raise InputError(f"Expected test records of the classes {', '.join(known)}, got {', '.join(unknown[:5])}.")
    numbers = torch.tensor([known[str(name)] for name in theirs])
    return Records(test.values, numbers[test.labels])


def _is_benchmark(test: str, root: str | None) -> bool:
    from dpswd.data import benchmark
    from dpswd.data.benchmarks import benchmark_name

    return benchmark_name(test) is not None and benchmark(test, root).public


def show(result: dict[str, Any]) -> None:
    print(result["note"])
    if result["rows"]:
        print(f"{'trained on synthetic':<22}{'accuracy':>10}{'balanced':>10}{'AUC':>8}")
        for row in result["rows"]:
            area = "-" if row["auc"] is None else f"{row['auc']:.3f}"
            print(f"{row['classifier']:<22}{row['accuracy']:>8.1f} %{row['balanced_accuracy']:>8.1f} %{area:>8}")
    else:
        print("No classifier was trained, as the records have no classes; of .csv files, --target names their column.")
    found = result["fidelity"]
    halves = found.get("halves", {})
    print(f"{'fidelity':<26}{'synthetic':>10}{'real halves':>13}")
    for name in ("frechet", "precision", "recall", "correlation_difference"):
        if name in found:
            text = name.replace("frechet", "Frechet distance").replace("_", " ")
            print(f"{text:<26}{found[name]:>10.3f}{halves.get(name, float('nan')):>13.3f}")
    if "column_distances" in found:
        ordered = sorted(found["column_distances"])
        print(f"{'columns, 1-Wasserstein':<26}median {ordered[len(ordered) // 2]:.3f}, largest {ordered[-1]:.3f} sd")
    print(f"Files: {', '.join(result['files'])}")
    if not result["public"]:
        print(f"{result['files'][1]} shows real records: do not publish it.")
