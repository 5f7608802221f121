"""``dpswd generate``: a private generator of records.

The records are those in a folder, a file or a benchmark.
"""

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpswd._memory import MAX_SYNTHETIC, check_drawing
from dpswd._validate import at_least
from dpswd.commands._options import (
    FINISHED_BEFORE,
    add_data,
    check_outside,
    constants_of,
    join_processes,
    n_releases_in,
    read_records,
    run_directory,
    synthetic_line,
    table_ending,
)
from dpswd.commands.configs import FACTS, JITTER, KEYS

if TYPE_CHECKING:
    from dpswd._layout import Array
    from dpswd.columns import Table
    from dpswd.estimators.generator import PrivateGenerator
    from dpswd.records import PrivateRecords

_N_NEXT = 10_000  # records in the command that is shown as the next one
# Synthetic records in which a column with many cells of `other`, or at a bound, is noticed, and the
# parts of them from which on it is.
_N_EXAMINED = 1000
_MANY_OTHER = 0.2
_MOSTLY = 0.5
# The same part for a column of two values, where one of them may be rare.
_NEARLY_ALL = 0.99
_JITTER_HELP = {
    "shift": "each synthetic image is shifted at random by at most this many pixels, from 0 to "
    "half of the shorter side (default: 0); dpswd configs mnist prints values that suit digits",
    "rotation": "it is turned by at most this many degrees, from 0 to 180 (default: 0)",
    "zoom": "width and height change by at most this part, from 0 to 0.9 (default: 0)",
    "shear": "it is slanted by at most this many pixels per pixel, from 0 to 1 (default: 0)",
    "elastic": "it is bent at random, by about this many pixels, from 0 to half of the shorter "
    "side (default: 0)",
}
_REMEDY = "dpswd forecast draws a picture of what to expect, and spends nothing."


def add_arguments(parser: ArgumentParser) -> None:
    add_data(parser)
    parser.add_argument(
        "--epsilon",
        type=float,
        default=10.0,
        help="privacy budget (default: 10); inf adds no noise: NOT PRIVATE, for public stand-ins",
    )
    parser.add_argument(
        "--delta",
        type=float,
        default=1e-5,
        help="choose it well below 1 / N for N records (default: 1e-5)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="directory of the run (default: runs/NAME, where NAME is that of DATA)",
    )
    parser.add_argument("--resume", action="store_true", help="finish the interrupted run in --out")
    parser.add_argument(
        "--shared-ledger",
        type=Path,
        metavar="FILE",
        help="ledger with one budget for several runs; dpswd ledger create makes it",
    )
    parser.add_argument(
        "-n",
        type=int,
        metavar="N",
        help="number of synthetic records (default: as many as private ones, or with --unit as "
        f"many as persons times --per-unit; at most {MAX_SYNTHETIC:,})",
    )
    parser.add_argument(
        "--proportions",
        choices=["equal", "released"],
        help="draw all classes equally often, or as often as the noisy counts say (default: "
        "released for tables, equal for images)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the synthetic records (default: 0); the noise has no seed",
    )
    parser.add_argument(
        "--device",
        default="cpu",
        help="where synthetic records are computed: cpu or cuda (default: cpu)",
    )
    group = parser.add_argument_group("public constants of the method")
    group.add_argument(
        "--config",
        metavar="NAME|FILE",
        help="file with values of the options below; dpswd configs lists the shipped ones",
    )
    group.add_argument(
        "--radius",
        type=float,
        help="guess of the length (L2 norm) of a vector, instead of --bounds",
    )
    group.add_argument(
        "--shapes",
        choices=["light", "dark"],
        help="the images are light shapes on a dark ground, or dark ones on a light ground, such "
        "as digits or masks",
    )
    group.add_argument(
        "--centre", type=float, help="brightness of a typical pixel, from 0 to 1 (default: 0.5)"
    )
    for name in JITTER:
        group.add_argument(f"--{name}", type=float, help=_JITTER_HELP[name])


def run(arguments: Namespace) -> dict[str, Any]:
    # These modules import torch, which the help of the command does not need.
    from dpswd.data.benchmarks import benchmark_name
    from dpswd.data.folders import check_class_names

    at_least(0, seed=arguments.seed)
    if arguments.n is not None:
        at_least(1, n=arguments.n)
    constants = constants_of(arguments.config)
    for name in KEYS["generate"]:
        value = getattr(arguments, name)
        if value is not None:
            constants[name] = value
    if benchmark_name(arguments.data) is None:
        check_class_names(arguments.data, constants.get("classes"), arguments.root)
    directory = run_directory(
        arguments.out, arguments.data, vars(arguments), resume=arguments.resume
    )
    arguments.out = directory  # where an interrupted run can be resumed
    check_outside(directory, arguments.data)
    join_processes()
    records = read_records(arguments, constants)
    n = arguments.n
    if n is None:
        n = min(records.n_entries, MAX_SYNTHETIC)
    result = generate(
        records,
        directory,
        {name: value for name, value in constants.items() if name not in FACTS},
        n=n,
        proportions=arguments.proportions,
        ending=table_ending(arguments.data),
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        device=arguments.device,
        shared_ledger=arguments.shared_ledger,
        resume=arguments.resume,
        random_state=arguments.seed,
    )
    result["compare"] = shlex.join(_evaluation(result["synthetic_file"], arguments))
    if benchmark_name(arguments.data) is None:  # a benchmark has test records of its own
        result["held_out"] = (
            f"Better in place of {arguments.data}: records of the same kind that generate did not "
            "read. On records that it read, accuracies may be too good."
        )
    return result


def _evaluation(synthetic: str, arguments: Namespace) -> list[str]:
    """Return the command that compares the synthetic records with the private ones."""
    command = ["dpswd", "evaluate", synthetic, str(arguments.data)]
    for name in ("columns", "target", "unit", "root"):
        value = getattr(arguments, name)
        if value is not None:
            command += [f"--{name}", str(value)]
    if arguments.unreadable != "refuse":
        command += ["--unreadable", arguments.unreadable]
    return command


def generate(
    records: "PrivateRecords",
    directory: Path,
    constants: dict[str, Any],
    *,
    n: int,
    proportions: str | None,
    ending: str = ".csv",
    **options: Any,
) -> dict[str, Any]:
    """Fit a generator, and write its files on rank 0.

    Args:
        records: Private records.
        directory: The run directory.
        constants: Public constants of the method.
        n: Number of synthetic records.
        proportions: ``"equal"`` or ``"released"``, of the classes of synthetic records; ``None``
            for those of :meth:`dpswd.PrivateGenerator.sample`.
        ending: Ending of the file of a synthetic table whose columns have facts.
        options: Further options of :class:`~dpswd.PrivateGenerator`.
    """
    # These modules import torch, which the help of the command does not need.
    from dpswd._distributed import Processes
    from dpswd.estimators.generator import (
        PrivateGenerator,
        announce_clouds,
        default_proportions,
    )

    at_least(1, n=n)
    check_drawing(n, records.shape)  # before a release is paid for
    if proportions is None:
        proportions = default_proportions(records.shape)
    estimator = PrivateGenerator(
        **options, **constants, per_unit=records.per_unit, run_dir=directory, verbose=False
    )
    announce_clouds(estimator, records, _REMEDY)
    n_before = n_releases_in(directory)
    estimator.fit(records)
    is_finished_before = n_before > 0 and n_releases_in(directory) == n_before
    table = records.layout.table
    synthetic_file = directory / "synthetic.npz"
    if table is not None:
        synthetic_file = directory / f"synthetic{ending}"
    files = Processes().run_on_rank_0(
        lambda: _write(estimator, records, synthetic_file, n, proportions)
    )
    structure = estimator.generator_.structure
    expectation = structure.summary
    clouds = structure.clouds(records.n_entries)
    if clouds is not None:
        expectation = f"{clouds}\n{expectation}"
    drawn = synthetic_line(n, "")
    if records.n_classes:
        drawn = synthetic_line(n, proportions)
        sizes = [part * records.n_entries for part in estimator.generator_.proportions]
        rarest = structure.rarest(sizes, released=True, counted=records.entry_noun)
        expectation += f"\n{rarest}"
    notices = []
    if table is not None:
        synthetic, _ = estimator.sample(_N_EXAMINED, proportions="released")
        numbers = estimator.generator_.layout.numbers(synthetic)
        notices = _of_other(table) + _many_other(numbers, table) + _at_bounds(numbers, table)
    if records.has_units:
        notices.append(
            "Every person counts alike: shares of classes and distributions are those of persons, "
            "not of lines."
        )
    example = "more.npz"
    if table is not None:
        example = f"more{ending}"
    elif records.bounds is not None:
        example = "more.csv"
    next_command = ["dpswd", "sample", str(directory / "generator.pt")]
    next_command += ["-n", str(_N_NEXT), "--out", example]
    pictures = [str(directory / file) for file in files if file.endswith(".png")]
    return {
        "run_dir": str(directory),
        "files": [str(directory / name) for name in files],
        "synthetic_file": str(synthetic_file),
        "pictures": pictures,
        "finished_before": is_finished_before,
        "n_records": records.n_entries,
        "n_synthetic": n,
        "synthetic": drawn,
        "clouds": clouds,
        "expected": expectation,
        "notices": notices,
        "released": structure.releases_in_words,
        "guarantee": estimator.guarantee_.to_dict(),
        "summary": estimator.guarantee_.line(),
        "in_words": estimator.summary_,
        "next": shlex.join(next_command),
    }


def _of_other(table: "Table") -> list[str]:
    """Return a line on cells that are no stated category, if a column may have them."""
    if not any(column.kind == "nominal" and column.other for column in table.included):
        return []
    return ["A cell outside the stated categories counts as other, and is drawn as other."]


def _many_other(numbers: "Array", table: "Table") -> list[str]:
    """Return a line for each column of which many cells are no stated category."""
    notices = []
    for position, column in enumerate(table.included):
        part = column.are_other(numbers[:, position]).mean()
        if part > _MANY_OTHER:
            notices.append(
                f"Column {column.name}: {part:.0%} of the synthetic cells are other, which stands "
                "for every cell that is no stated category; check how the categories are spelled, "
                "and whether the budget is large enough (dpswd forecast)."
            )
    return notices


def _at_bounds(numbers: "Array", table: "Table") -> list[str]:
    """Return a line for each bound at which most synthetic cells of a column are.

    Cells beyond a bound were limited to it, so that wrong bounds show in the synthetic records. A
    column of two values is named only if nearly all of its cells are equal.
    """
    notices = []
    for position, column in enumerate(table.included):
        most = _NEARLY_ALL if column.has_two_values else _MOSTLY
        for side, part in column.parts_at_bounds(numbers[:, position]).items():
            if part > most:
                notices.append(
                    f"Column {column.name}: {part:.0%} of the synthetic cells are at the bound "
                    f"{side}: {getattr(column, side)}. Unless this value is frequent, check the "
                    "bounds: every cell beyond them counts as the bound."
                )
    return notices


def _write(
    estimator: "PrivateGenerator",
    records: "PrivateRecords",
    path: Path,
    n: int,
    proportions: str,
) -> list[str]:
    """Write generator, synthetic records, pictures and report.

    Return the names of the files.

    Args:
        estimator: The fitted estimator.
        records: The private records.
        path: File of the synthetic records, in the run directory.
        n: Number of synthetic records.
        proportions: Of their classes.
    """
    from dpswd._png import mark_picture
    from dpswd.files.export import export
    from dpswd.files.pictures import save_columns, save_samples
    from dpswd.report.render import write_report

    directory = path.parent
    estimator.save(directory / "generator.pt")
    synthetic, labels = estimator.sample(n, proportions=proportions)
    notice = estimator.guarantee_.notice
    export(path, synthetic, labels, records.layout, notice=notice)
    files = ["generator.pt", path.name]
    if len(records.shape) == 3:
        save_samples(estimator.generator_, directory / "samples.png")
        mark_picture(directory / "samples.png", notice, of_releases=True)
        files.append("samples.png")
    elif records.bounds is not None:
        parts = {"synthetic": records.layout.numbers(synthetic)}
        layout = records.layout
        save_columns(directory / "columns.png", parts, layout.columns, layout.table)
        mark_picture(directory / "columns.png", notice, of_releases=True)
        files.append("columns.png")
    write_report(directory)  # last, since it shows the pictures
    return [*files, "report.html"]


def show(result: dict[str, Any]) -> None:
    if result["finished_before"]:
        print(FINISHED_BEFORE)
    print(result["in_words"])
    expectation = result["expected"]
    if result["clouds"] is not None:  # printed before the fit
        expectation = expectation.removeprefix(f"{result['clouds']}\n")
    print(expectation)
    for notice in result["notices"]:
        print(notice)
    print(result["released"])
    print(f"{result['synthetic']}.")
    print(f"Files:     {', '.join(result['files'])}")
    if result["pictures"]:
        print(f"Look at:   {', '.join(result['pictures'])}")
    if "compare" in result:
        print(f"How good:  {result['compare']}")
    if "held_out" in result:
        print(f"           {result['held_out']}")
    print(f"Next:      {result['next']}")
    print(f"Publish:   {shlex.join(['dpswd', 'publish', result['run_dir'], '--out', 'bundle'])}")
