"""``dpswd generate``: a private generator of the records in a folder, a file or a benchmark."""

import atexit
import csv
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpswd._validate import positive, probability
from dpswd.commands.configs import config_path
from dpswd.errors import InputError

if TYPE_CHECKING:
    from dpswd.records import PrivateRecords

JITTER = ("shift", "rotation", "zoom", "shear", "elastic")
FACTS = ("size", "channels", "classes")
CONSTANTS = (
    "centre",
    "radius",
    *JITTER,
    *FACTS,
)  # keys of a config, which are options of generate, too
_MOST = 60_000  # synthetic records, unless -n says otherwise


def add_reading(parser: ArgumentParser) -> None:
    """Add the options of every command that reads records."""
    parser.add_argument(
        "--root", metavar="DIR", help="directory of benchmarks (default: $DPSWD_DATA or ./data)"
    )
    parser.add_argument("--target", metavar="COLUMN", help="column of the classes in .csv files")
    text = "records with NaN and images that cannot be decoded: refuse them, or read zeros (default: refuse)"
    parser.add_argument("--unreadable", choices=["refuse", "zero"], default="refuse", help=text)


def add_data(parser: ArgumentParser, nargs: str | None = None) -> None:
    """Add the options of :func:`read_records`."""
    text = "folder of class folders of images, .npz, .npy, .csv of numbers, or a benchmark"
    parser.add_argument("data", metavar="DATA", nargs=nargs, help=text)
    add_reading(parser)
    what = parser.add_argument_group("public facts, stated without looking at the records")
    what.add_argument("--classes", nargs="+", metavar="NAME", help="all classes")
    what.add_argument("--size", type=int, help="side of images of a folder, in pixels")
    what.add_argument("--channels", type=int, choices=[1, 3], help="1 for grey, 3 for colour")
    text = ".csv of column, low, high and perhaps kind (numeric, integer, binary)"
    what.add_argument("--bounds", type=Path, metavar="FILE", help=text)


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


def read_records(
    arguments: Namespace, constants: dict[str, Any], *, in_memory: bool | None = None
) -> "PrivateRecords":
    """Read private records as the options say; options go before constants."""
    from dpswd.data import read

    bounds, kinds = (None, None) if arguments.bounds is None else read_bounds(arguments)
    stated: dict[str, Any] = {
        name: getattr(arguments, name) or constants.get(name) for name in FACTS
    }
    stated |= {name: getattr(arguments, name) for name in ("root", "target", "unreadable")}
    return read(arguments.data, **stated, bounds=bounds, kinds=kinds, in_memory=in_memory)


def read_bounds(arguments: Namespace) -> tuple[list[tuple[float, float]], list[str] | None]:
    """Return bounds and kinds of columns from a file, whose names must be those of the records if they have names."""
    from dpswd.data.files import TARGET, column_names

    path = arguments.bounds
    try:
        lines = list(
            csv.DictReader(
                path.read_text(encoding="utf-8").splitlines(), skipinitialspace=True, strict=True
            )
        )
        bounds = [(float(line["low"]), float(line["high"])) for line in lines]
        kinds = [line["kind"].strip() for line in lines] if "kind" in lines[0] else None
        names = [line["column"].strip() for line in lines]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, csv.Error):
        wanted = "starts with column,low,high,kind (or column,low,high) and has a line per column"
        raise InputError(
            f"Expected a file at {path} that {wanted}, got none, or one of a different form."
        ) from None
    columns = [] if arguments.data is None else column_names(arguments.data, arguments.root)
    known = (
        arguments.target in (None, *columns) and "" not in columns
    )  # otherwise the records are refused
    for wanted, got in zip_longest(
        [name for name in columns if name != arguments.target], names if columns else ()
    ):
        if wanted != got and known:
            raise InputError(
                f"Expected a line for each column of {arguments.data}, in its order, in {path}, got {got or 'no line'} "
                f"in place of {wanted or 'the end'}; mend the file, or {TARGET}."
            )
    return bounds, kinds


def constants_of(
    name: str | None, command: str = "generate", known: Sequence[str] = CONSTANTS
) -> dict[str, Any]:
    """Return the constants of a config, whose keys are ``known``."""
    if name is None:
        return {}
    import yaml  # type: ignore[import-untyped]

    path = config_path(name)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise InputError(
            f"Expected YAML in {path}, got: {' '.join(str(error).split())[:120]}."
        ) from None
    if isinstance(content, dict) and "model" in content:
        raise InputError(
            f"Expected constants of dpswd {command} in {name}, got a config of dpswd fit; run that."
        )
    unknown = (
        sorted(set(content) - set(known)) if isinstance(content, dict) else [type(content).__name__]
    )
    if unknown:
        raise InputError(
            f"Expected keys out of {', '.join(known)} in {path}, got {', '.join(map(str, unknown))}."
        )
    return dict(content)


def run_directory(
    out: Path | None, name: str, budget: dict[str, Any], *, resume: bool = False
) -> Path:
    """Return the run directory; refuse one with a ledger, and a wrong budget, before a record is read."""
    positive(epsilon=budget.get("epsilon", 10.0))
    probability(delta=budget.get("delta", 1e-5))
    out = Path("runs") / (Path(name).stem or "records") if out is None else out
    if resume and not (out / "ledger.jsonl").exists():
        raise InputError(
            f"Expected a run to resume in {out}, got no ledger there; leave --resume out, or check --out."
        )
    if (out / "ledger.jsonl").exists() and not resume:
        raise InputError(
            f"Expected a directory without a run, got {out}; pass another one as --out, or --resume."
        )
    return out


def join_processes() -> None:
    """Join the other processes of ``torchrun``, if there are any."""
    import torch.distributed as dist

    if int(os.environ.get("WORLD_SIZE") or 1) > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
        atexit.register(dist.destroy_process_group)  # its threads would abort the process at exit


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
