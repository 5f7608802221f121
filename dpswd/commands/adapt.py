"""``dpswd adapt SOURCE TARGET``: a classifier for unlabelled private records, from labelled public ones."""

from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from pathlib import Path
from typing import Any

from dpswd.commands._options import JITTER, add_reading, constants_of, run_directory

_OPTIONS = (
    "epsilon",
    "delta",
    "method",
    "normalise",
    "min_shift",
    "size",
    "channels",
    "target",
    "n_steps",
    *JITTER,
)


def add_arguments(parser: ArgumentParser) -> None:
    text = (
        "folder of class folders of images, .npz, .npy, .csv of numbers, or the name of a benchmark"
    )
    parser.add_argument("source", metavar="SOURCE", help=f"labelled public records: {text}")
    parser.add_argument(
        "private", metavar="TARGET", help="private records, in the same forms; labels are ignored"
    )
    add_reading(parser)
    parser.add_argument("--epsilon", type=float, help="budget of the target (default: 10)")
    parser.add_argument(
        "--delta", type=float, help="budget of the target, well below 1 / N (default: 1e-5)"
    )
    parser.add_argument(
        "--method", choices=("class_shift", "image_map"), help="default: class_shift"
    )
    parser.add_argument(
        "--normalise", action=BooleanOptionalAction, help="scale every vector to norm 1 first"
    )
    parser.add_argument(
        "--min-shift", type=float, help="least shift for which the classifier is adapted; 0: always"
    )
    parser.add_argument(
        "--size", type=int, help="side to which images are scaled (default: that of the source)"
    )
    parser.add_argument(
        "--channels", type=int, choices=(1, 3), help="channels of images of a folder"
    )
    parser.add_argument(
        "--config", help="YAML file of these options and those of the image map, or a shipped one"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/adapted"), help="directory (default: runs/adapted)"
    )
    parser.add_argument("--resume", action="store_true", help="finish an interrupted run in --out")


def run(arguments: Namespace) -> dict[str, Any]:
    stated = {
        name: value
        for name, value in vars(arguments).items()
        if name in _OPTIONS and value is not None
    }
    options = constants_of(arguments.config, "adapt", _OPTIONS) | stated
    run_directory(arguments.out, "adapted", options, resume=arguments.resume)
    import numpy as np

    from dpswd._arrays import as_records
    from dpswd._distributed import Processes
    from dpswd.adaptation.methods import ImageMap
    from dpswd.adaptation.reading import read_records, read_source
    from dpswd.estimators.adapter import PrivateAdapter
    from dpswd.files.pictures import save_grid

    reading = {
        "root": arguments.root,
        "target": options.pop("target", None),
        "unreadable": arguments.unreadable,
    }
    form = {name: options.pop(name, None) for name in ("size", "channels")}
    source, labels = read_source(arguments.source, **form, **reading)
    target, _ = read_records(arguments.private, source.shape[1:], **reading)
    of_map = {name: options.pop(name) for name in ("n_steps", *JITTER) if name in options}
    if options.get("method") == "image_map":
        options["method"] = ImageMap(**of_map)
    adapter = PrivateAdapter(
        **options, run_dir=arguments.out, resume=arguments.resume, verbose=not arguments.json
    )
    adapter.fit(
        np.concatenate([source, target]),
        [*labels.tolist(), *[None] * len(target)],
        np.repeat([1, -1], [len(source), len(target)]),
    )
    files = [str(arguments.out / name) for name in ("classifier.pt", "report.html")]
    if Processes().rank == 0:
        adapter.save(files[0])
        if source.ndim > 2:  # in the report
            save_grid(as_records(adapter.synthetic_[:40])[0], arguments.out / "samples.png", 10)
        adapter.report(files[1])
    return {
        "out": str(arguments.out),
        "files": files,
        "n_source": len(source),
        "n_target": len(target),
        "adapted": adapter.adapted_,
        "shift": adapter.shift_,
        "verdict": adapter.verdict_,
        "guarantee": adapter.guarantee_,
    }


def show(result: dict[str, Any]) -> None:
    print(f"Files: {', '.join(result['files'])}")
    print(f"Next: dpswd predict {result['files'][0]} DATA")
