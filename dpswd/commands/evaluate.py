"""``dpswd evaluate``: utility and fidelity of synthetic records."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpswd._files import write_json
from dpswd.commands._options import add_reading
from dpswd.errors import InputError

if TYPE_CHECKING:
    from dpswd.data import Benchmark


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "synthetic", metavar="SYNTHETIC", help="synthetic records: .npz, .csv or a folder of images"
    )
    parser.add_argument(
        "test", metavar="TEST", help="real records that you may look at, or a benchmark"
    )
    add_reading(parser)
    parser.add_argument(
        "--classifiers", nargs="+", metavar="NAME", help="out of logreg, mlp, cnn, boosting"
    )
    text = "of JSON file and figure (default: private/RUN; for a benchmark, that of SYNTHETIC)"
    parser.add_argument("--out", type=Path, metavar="DIR", help=text)


def run(arguments: Namespace) -> dict[str, Any]:
    from dpswd.data import benchmark, read_public
    from dpswd.data.benchmarks import benchmark_name
    from dpswd.data.tables import TARGET, column_names, target_of

    root, wanted, unreadable = arguments.root, (arguments.target, "class"), arguments.unreadable
    target = target_of(arguments.synthetic, root, *wanted)
    made = read_public(arguments.synthetic, root=root, target=target, unreadable=unreadable)
    options: dict[str, Any] = {
        "target": target_of(arguments.test, root, *wanted),
        "unreadable": unreadable,
    }
    if len(made.shape) == 3:
        options |= {"size": made.shape[1], "channels": made.shape[0]}
    found = read_public(arguments.test, root=root, **options)
    names = [name for name in column_names(arguments.test, root) if name != options["target"]]
    if (
        names
        and made.classes is not None
        and found.shape != made.shape
        and options["target"] is None
    ):
        raise InputError(
            f"Expected columns of {arguments.synthetic} in {arguments.test}, got different ones; {TARGET}."
        )
    public = benchmark_name(arguments.test) is not None and benchmark(arguments.test, root).public
    run_dir = Path(arguments.synthetic).resolve().parent
    directory = arguments.out or (run_dir if public else Path("private") / run_dir.name)
    return evaluate_pair(
        made, found, directory, public=public, columns=names, classifiers=arguments.classifiers
    )


def evaluate_pair(
    made: "Benchmark",
    real: "Benchmark",
    directory: Path,
    *,
    public: bool,
    columns: Any = None,
    classifiers: Any = None,
) -> dict[str, Any]:
    """Evaluate, and write the JSON file and the figure; figures on private records are no part of a run directory."""
    import torch

    from dpswd.evaluation import WARNING, evaluate, figure
    from dpswd.records import Records

    test, classes = real.test or real.train, made.classes if real.classes is not None else None
    if classes is not None:  # number the classes of the test records as those of the synthetic ones
        known = {str(name): i for i, name in enumerate(classes)}
        if unknown := [str(name) for name in real.classes or () if str(name) not in known]:
            raise InputError(
                f"Expected test records of the classes {', '.join(known)}, got {', '.join(unknown[:5])}."
            )
        numbers = torch.tensor([known[str(name)] for name in real.classes or ()])
        test = Records(test.values, numbers[test.labels])
    result = evaluate(
        made.train, test, classes=classes is not None, name=real.name, classifiers=classifiers
    )
    path = directory / (
        "evaluation.json" if public else "private_evaluation.json"
    )  # a report shows the first one
    write_json(path, result)
    picture = path.with_suffix(".png")
    figure(picture, made.train, test, columns, len(classes or [""]))
    return {"note": WARNING, "public": public, **result, "files": [str(path), str(picture)]}


def show(result: dict[str, Any]) -> None:
    print(result["note"])
    if result["rows"]:
        print(f"{'trained on synthetic':<22}{'accuracy':>10}{'balanced':>10}{'AUC':>8}")
        for row in result["rows"]:
            area = "-" if row["auc"] is None else f"{row['auc']:.3f}"
            print(
                f"{row['classifier']:<22}{row['accuracy']:>8.1f} %{row['balanced_accuracy']:>8.1f} %{area:>8}"
            )
    else:
        print(
            "No classifier was trained, as the records have no classes; of .csv files, --target names their column."
        )
    found = result["fidelity"]
    halves = found.get("halves", {})
    print(f"{'fidelity':<26}{'synthetic':>10}{'real halves':>13}")
    for name in ("frechet", "precision", "recall", "correlation_difference"):
        if name in found:
            text = name.replace("frechet", "Frechet distance").replace("_", " ")
            print(f"{text:<26}{found[name]:>10.3f}{halves.get(name, float('nan')):>13.3f}")
    if "column_distances" in found:
        ordered = sorted(found["column_distances"])
        print(
            f"{'columns, 1-Wasserstein':<26}median {ordered[len(ordered) // 2]:.3f}, largest {ordered[-1]:.3f} sd"
        )
    else:
        print(
            "The picture has a row of images per class: real ones on the left, synthetic ones on the right."
        )
    print(f"Files: {', '.join(result['files'])}")
    if not result["public"]:
        print(f"{result['files'][1]} shows real records: do not publish it.")
