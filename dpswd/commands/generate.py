"""``dpswd generate``: a private generator of the records in a folder, a file or a benchmark."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpswd.commands._options import (
    CONSTANTS,
    FACTS,
    JITTER,
    add_data,
    constants_of,
    join_processes,
    read_records,
    run_directory,
)

if TYPE_CHECKING:
    from dpswd.records import PrivateRecords

_MOST = 60_000  # synthetic records, unless -n says otherwise


def add_arguments(parser: ArgumentParser) -> None:
    add_data(parser)
    parser.add_argument("--epsilon", type=float, default=10.0, help="privacy budget (default: 10)")
    parser.add_argument(
        "--delta", type=float, default=1e-5, help="well below 1/N, N records (default: 1e-5)"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="run directory (default: runs/NAME of the data)"
    )
    parser.add_argument("--resume", action="store_true", help="finish the interrupted run in --out")
    parser.add_argument(
        "--shared-ledger", type=Path, metavar="FILE", help="of several runs (dpswd ledger create)"
    )
    parser.add_argument(
        "-n", type=int, metavar="N", help=f"synthetic records (default: as many, at most {_MOST:,})"
    )
    parser.add_argument(
        "--proportions", choices=["equal", "released"], default="equal", help="of the classes"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the synthetic records; noise has no seed"
    )
    parser.add_argument(
        "--device", default="cpu", help="where records are generated (default: cpu)"
    )
    how = parser.add_argument_group("public constants of the method")
    how.add_argument(
        "--config",
        metavar="NAME|FILE",
        help="file of constants; dpswd configs lists the shipped ones",
    )
    how.add_argument(
        "--radius", type=float, help="guess of the norm of a vector, instead of --bounds"
    )
    how.add_argument("--centre", type=float, help="typical pixel (default: 0.5)")
    for name in JITTER:
        how.add_argument(
            f"--{name}", type=float, help="jitter of generated images; dpswd configs mnist"
        )


def run(arguments: Namespace) -> dict[str, Any]:
    constants = constants_of(arguments.config)
    constants |= {
        name: value for name in CONSTANTS if (value := getattr(arguments, name)) is not None
    }
    directory = arguments.out = run_directory(
        arguments.out, arguments.data, vars(arguments), resume=arguments.resume
    )
    join_processes()
    records = read_records(arguments, constants)
    names = ("proportions", "epsilon", "delta", "device", "shared_ledger", "resume")
    options = {name: getattr(arguments, name) for name in names} | {"random_state": arguments.seed}
    constants = {name: value for name, value in constants.items() if name not in FACTS}
    n = min(len(records), _MOST) if arguments.n is None else arguments.n
    return generate(records, directory, constants, n=n, **options)


def generate(
    records: "PrivateRecords",
    directory: Path,
    constants: dict[str, Any],
    *,
    n: int,
    proportions: str,
    **options: Any,
) -> dict[str, Any]:
    """Fit a generator and write its files on rank 0; the report comes last, since it shows the pictures."""
    import numpy as np

    from dpswd._distributed import Processes
    from dpswd._validate import at_least
    from dpswd.accounting.guarantee import guarantee_line
    from dpswd.estimators.generator import PrivateGenerator
    from dpswd.files.export import export
    from dpswd.files.pictures import save_columns, save_samples
    from dpswd.report.render import write_report

    at_least(1, n=n)
    made = PrivateGenerator(**options, **constants, run_dir=directory, verbose=False).fit(records)

    def write() -> list[str]:
        made.save(directory / "generator.pt")
        synthetic, labels = made.sample(n, proportions=proportions)
        export(directory / "synthetic.npz", synthetic, labels, records.layout)
        files = ["generator.pt", "synthetic.npz"]
        if len(records.shape) == 3:
            save_samples(made.generator_, directory / "samples.png")
            files.append("samples.png")
        elif records.bounds is not None:
            save_columns(
                directory / "columns.png",
                {"synthetic": np.asarray(synthetic)},
                records.layout.columns,
            )
            files.append("columns.png")
        write_report(directory)
        return [*files, "report.html"]

    files = Processes().broadcast(write)
    expected = made.generator_.structure.verdict
    if records.n_classes:
        sizes = [share * len(records) for share in made.generator_.proportions]
        expected += f"\n{made.generator_.structure.rarest(sizes, released=True)}"
    return {
        "run_dir": str(directory),
        "files": [str(directory / name) for name in files],
        "n_records": len(records),
        "n_synthetic": n,
        "synthetic": describe(n, proportions if records.n_classes else ""),
        "expected": expected,
        "guarantee": made.guarantee_,
        "summary": guarantee_line(made.guarantee_),
        "next": f"dpswd sample {directory / 'generator.pt'} -n 10000 --out more.{'csv' if records.bounds else 'npz'}",
    }


def describe(n: int, proportions: str) -> str:
    """Return what was drawn, for the screen."""
    how = {
        "equal": ", of each class equally many",
        "released": ", classes in the released proportions",
    }
    return f"{n:,} synthetic records{how.get(proportions, '')}"


def show(result: dict[str, Any]) -> None:
    print(result["summary"])
    print(result["expected"])
    print(f"{result['synthetic']}.")
    print(f"Files:     {', '.join(result['files'])}")
    print(f"Next:      {result['next']}")
