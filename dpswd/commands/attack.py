"""``dpswd attack``: membership attacks on a released file.

The command is ``dpswd attack SYNTHETIC MEMBERS NON_MEMBERS``.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpswd._files import check_new, write_json
from dpswd._validate import at_least, nonnegative
from dpswd.columns import read_columns
from dpswd.commands._options import (
    FORMATS,
    add_columns,
    add_left_out_unit,
    add_reading,
    refuse_run_directory,
    run_around,
)
from dpswd.errors import InputError

if TYPE_CHECKING:
    from dpswd.data import Benchmark

# Where the synthetic records of a run directory or of a bundle are.
_RECORDS = (
    "data/train",
    "data/train.csv",
    "synthetic.npz",
    "synthetic.csv",
    "synthetic.parquet",
    "synthetic.feather",
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "synthetic",
        metavar="SYNTHETIC",
        help="synthetic records: a file, the directory of a run, or a bundle of dpswd publish",
    )
    parser.add_argument(
        "members", metavar="MEMBERS", help=f"private records that were used: {FORMATS}"
    )
    parser.add_argument(
        "non_members",
        metavar="NON_MEMBERS",
        help="records of the same kind that were not used; for a benchmark, its test part",
    )
    add_reading(parser)
    add_columns(parser)
    add_left_out_unit(parser)
    parser.add_argument(
        "--mu",
        type=float,
        help="mu of the guarantee (default: read from the ledger beside SYNTHETIC)",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of the random subsets of records that are compared (default: 0)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where attack.json and attack.png go (default: private/NAME, where NAME is that of "
        "the run or file)",
    )


def run(arguments: Namespace) -> dict[str, Any]:
    at_least(0, seed=arguments.seed)
    if arguments.mu is not None:
        nonnegative(mu=arguments.mu)
    # These modules import torch and scikit-learn, which the help of the command does not need.
    from dpswd.data import read_public
    from dpswd.data.benchmarks import in_order_of
    from dpswd.data.tables import check_target, target_of
    from dpswd.evaluation import WARNING
    from dpswd.evaluation.attacks import PROVES, attack, figure

    data = _records_of(arguments.synthetic)
    mu = arguments.mu
    if mu is None:
        mu = _mu_beside(Path(data))
    directory = arguments.out or Path("private") / _name_of(Path(arguments.synthetic))
    refuse_run_directory(directory)
    path = directory / "attack.json"
    picture = directory / "attack.png"
    check_new(path)
    check_new(picture)
    reading: dict[str, Any] = {
        "root": arguments.root,
        "unreadable": arguments.unreadable,
        "min_classes": 1,
        "missing_is_class": True,  # a stated class may have the name None or nan
    }
    if arguments.columns is not None:
        reading["columns"] = read_columns(arguments.columns)

    def read(source: str) -> "Benchmark":
        target = target_of(source, arguments.root, arguments.target, "class")
        return read_public(source, **reading, target=target)

    sources = (data, arguments.members, arguments.non_members)
    check_target(arguments.target, sources, arguments.root)
    synthetic = read(data)
    if len(synthetic.shape) == 3:
        reading |= {"size": synthetic.shape[1], "channels": synthetic.shape[0]}
    reading |= {"unit": arguments.unit}
    members = in_order_of(synthetic, read(arguments.members), arguments.members)
    non_members = in_order_of(synthetic, read(arguments.non_members), arguments.non_members)
    unused = non_members.test or non_members.train
    if arguments.members == arguments.non_members and non_members.test is None:
        raise InputError(
            f"Expected non-members other than the members, got {arguments.members} for both; pass "
            "records that were not used."
        )
    figures = attack(synthetic.train, members.train, unused, mu=mu, seed=arguments.seed)
    result = {"note": WARNING, "proves": PROVES, **figures}
    write_json(path, result)
    figure(picture, result)
    return {**result, "files": [str(path), str(picture)]}


def _name_of(synthetic: Path) -> str:
    """Return the name of the run or bundle of the records, else that of their file."""
    path = synthetic.resolve()
    directory = run_around(path)
    if directory is not None:
        return directory.name
    if path.is_dir():
        return path.name
    return path.stem


def _records_of(synthetic: str) -> str:
    """Return the records of a run directory or a bundle; another path as it is."""
    for name in _RECORDS:
        path = Path(synthetic) / name
        if path.exists():
            return str(path)
    return synthetic


def _mu_beside(path: Path) -> float | None:
    """Return the mu of the ledger around a path, if there is one.

    The ledger is that of the run directory or bundle that contains the path.
    """
    from dpswd.accounting.ledger import Ledger
    from dpswd.accounting.recompute import recompute

    directory = run_around(path)
    if directory is None or not (directory / "ledger.jsonl").is_file():
        return None
    mu = recompute(Ledger.open_existing(directory / "ledger.jsonl")).mu
    if mu == float("inf"):
        return None
    return mu


def show(result: dict[str, Any]) -> None:
    from dpswd.accounting.rounding import round_up

    print(result["note"])
    print(
        f"{result['n_members']:,} members (records of the run), {result['n_non_members']:,} "
        f"non-members and {result['n_reference']:,} others to compare with, "
        f"{result['n_synthetic']:,} synthetic records"
    )
    print(f"{'attack':<16}{'AUC':>7}{'95 % interval':>18}{'members found':>17}{'interval':>18}")
    for row in result["attacks"]:
        print(
            f"{row['name'].replace('_', ' '):<16}{row['auc']:>7.3f}"
            f"{_interval(row['auc_interval']):>18}{row['tpr']:>17.3f}"
            f"{_interval(row['tpr_interval']):>18}"
        )
    bound = result["bound"]
    if bound is not None:
        name = f"bound, mu {round_up(bound['mu'], 3):.3g}"
        auc = round_up(bound["auc"], 3)
        print(f"{name:<16}{auc:>7.3f}{'':>18}{round_up(bound['tpr'], 3):>17.3f}")
    print("Members found: their share, where 1 % of the non-members are wrongly accused.")
    if bound is None:
        print("No bound: there is no ledger with noise beside SYNTHETIC; pass --mu.")
    elif result["passed"]:
        print("No attack exceeds the bound.")
    else:
        print("EXCEEDED: an attack finds more than the guarantee permits. Look for a mistake.")
    print(result["proves"])
    print(f"Files: {', '.join(result['files'])}")


def _interval(interval: tuple[float, float]) -> str:
    """Return an interval with three digits after the point."""
    low, high = interval
    return f"{low:.3f} ... {high:.3f}"
