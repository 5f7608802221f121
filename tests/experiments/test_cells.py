"""Resumable cells: results in order, kept, made again when their version changes; a stopped run goes on."""

from dataclasses import dataclass
from functools import partial

import pytest

from experiments.cells import run_cells


@dataclass(frozen=True)
class Number:
    """A cell."""

    value: int

    @property
    def name(self):
        """Path of the result."""
        return f"folder/{self.value}"


def square(cell, calls, broken=None):
    """Squares a number; raises for one of them."""
    if cell.value == broken:
        raise KeyboardInterrupt
    calls.append(cell.value)
    return {"square": cell.value**2}


CELLS = [Number(3), Number(1), Number(2)]


def test_results_are_in_order_and_kept(tmp_path):
    calls = []
    results = run_cells(CELLS, partial(square, calls=calls), tmp_path, workers=0)
    assert [result["square"] for result in results] == [9, 1, 4]
    assert run_cells([*CELLS, Number(5)], partial(square, calls=calls), tmp_path, workers=0)[:3] == results
    assert calls == [3, 1, 2, 5]


def test_stopped_run_goes_on(tmp_path):
    calls = []
    with pytest.raises(KeyboardInterrupt):
        run_cells(CELLS, partial(square, calls=calls, broken=2), tmp_path, workers=0)
    run_cells(CELLS, partial(square, calls=calls), tmp_path, workers=0)
    assert calls == [3, 1, 2]
