r"""Accuracies of the default generator on public data sets that were cut to N records.

The signal of a run is :math:`\mu N / \sqrt{C}`, with N records, C classes and a budget of mu-GDP. A forecast names the
measured accuracies (rows of the table) whose signal is closest to that of the planned run.
``python -m experiments run stand_ins`` and ``run generation`` measure them; ``python -m experiments tables`` writes
them to ``stand_ins.json``.
"""

import json
import math
from functools import cache
from importlib.resources import files
from typing import Any

_FAR = 2.0  # ratio of signals beyond which a row is not comparable


def nearest(channels: int, signal: float) -> list[str]:
    """Describe the row of each data set with these channels that is closest to a signal, within a factor of 2."""
    closest: dict[str, tuple[float, dict[str, Any]]] = {}
    for row in _table():
        distance = abs(math.log(row["signal"] / signal))
        if row["channels"] == channels and distance < closest.get(row["dataset"], (math.log(_FAR), row))[0]:
            closest[row["dataset"]] = distance, row
    return [
        f"{row['dataset']} ({row['n_records']:,} records, epsilon {row['epsilon']:g}) {row['accuracy']:.0f} %"
        for _, row in closest.values()
    ]


@cache
def _table() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads((files("dpswd.mixture") / "stand_ins.json").read_text())["rows"]
    return rows
