"""``dpswd columns``: a draft of the public facts of the columns of a table.

The user edits and confirms the draft.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dpswd._files import atomic_write, check_new
from dpswd._frames import ARROW_FORMATS
from dpswd.columns import COLUMN_KINDS
from dpswd.columns.draft import draft_of
from dpswd.errors import InputError

# Comment at the top of a draft.
_HEADER = f"""\
# Facts of the columns, for dpswd generate --columns. A column with draft: true has facts that were
# read from the records: they are PRIVATE. Correct them by what you know without the records, then
# delete the line draft: true. Facts are the bounds low and high, the categories of a cell (another
# cell counts as other in a nominal column, and is refused in a binary one), whether it may be
# missing, its decimals, and the kind:
# {", ".join(COLUMN_KINDS)}.
"""

_ABOVE_REMARKS = "# The lines below quote cells: they are PRIVATE. Delete them, too.\n"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "table",
        metavar="TABLE",
        type=Path,
        help="the private table: a .csv file whose first line names the columns, or a .parquet or "
        ".feather file",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="the .yaml file to write"
    )
    parser.add_argument(
        "--target", metavar="COLUMN", help="column that has the classes; it needs no facts"
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        default=[],
        metavar="COLUMN=KIND",
        help=f"kinds that you know, as in patient=identifier; one of: {', '.join(COLUMN_KINDS)}",
    )


def run(arguments: Namespace) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]  # needed for this command alone

    from dpswd.data.names import check_column  # imports torch, which the help does without

    out: Path = arguments.out
    if out.suffix not in (".yaml", ".yml"):
        raise InputError(f"Expected FILE.yaml as --out, got {out.name}; pass {out.stem}.yaml.")
    check_new(out)
    columns, kinds_of_types = _cells_of(arguments.table)
    check_column("target", arguments.target, list(columns), arguments.table)
    if arguments.target is not None:
        del columns[arguments.target]
    kinds = kinds_of_types | _stated_kinds(arguments.kinds, list(columns))
    drafts = {}
    remarks = []
    for name, cells in columns.items():
        draft = draft_of(name, cells, kinds.get(name))
        drafts[name] = draft.entry
        remarks += draft.remarks
    comment = _HEADER
    if remarks:
        comment += _ABOVE_REMARKS + "".join(f"# {remark}\n" for remark in remarks)
    text = yaml.safe_dump(drafts, sort_keys=False, allow_unicode=True)
    atomic_write(out, (comment + text).encode())
    to_confirm = [name for name, column_facts in drafts.items() if "draft" in column_facts]
    return {
        "out": str(out),
        "columns": list(drafts),
        "to_confirm": to_confirm,
        "remarks": remarks,
        "target": arguments.target,
    }


def _cells_of(path: Path) -> tuple[dict[str, tuple[str, ...]], dict[str, str]]:
    """Return the cells of each column as text, and the kinds that its type states."""
    # These modules import torch, which the help does without.
    from dpswd.data.arrow_files import arrow_cells
    from dpswd.data.tables import text_columns

    if path.suffix.lower() in ARROW_FORMATS:
        return arrow_cells(path)
    return text_columns(path), {}


def show(result: dict[str, Any]) -> None:
    print(
        f"{result['out']}: {len(result['columns'])} columns, of which {len(result['to_confirm'])} "
        "have facts that were read from the records. The file is private until you have corrected "
        "and confirmed them."
    )
    for remark in result["remarks"]:
        print(remark)
    print(
        "Next: correct the facts, delete each line draft: true, then pass the file to generate as "
        "--columns."
    )
    if result["target"] is None:
        print(
            "If a column has the classes, make the draft with --target COLUMN, which leaves it out."
        )


def _stated_kinds(pairs: Sequence[str], names: Sequence[str]) -> dict[str, str]:
    """Return the kinds that the user states, by the names of the columns."""
    kinds = {}
    for pair in pairs:
        name, _, kind = pair.rpartition("=")
        if name not in names:
            raise InputError(
                f"Expected --kinds COLUMN=KIND with a column of the table ({', '.join(names)}), "
                f"got {pair}; correct the name."
            )
        if kind not in COLUMN_KINDS:
            raise InputError(
                f"Expected --kinds COLUMN=KIND with a kind out of {', '.join(COLUMN_KINDS)}, got "
                f"{pair}; correct the kind."
            )
        kinds[name] = kind
    return kinds
