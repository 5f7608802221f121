"""Numbers of the cells of a table as rows for linear classifiers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpswd.columns.column import Column
from dpswd.columns.table import Table

# A number stands for a category if it is this near to the number of the category.
_HALF = 0.5


@dataclass(frozen=True, eq=False)
class Coding:
    """Coding of a table by indicators of its categories.

    A nominal column has an indicator of every category, a binary one that of its second category,
    and all other columns keep their number. Where cells may be missing, an indicator says so, and
    the number of a missing cell is a public constant. Each record is coded by itself.

    Args:
        table: Public facts of the d columns.
        fills: Numbers (d,) of missing cells of columns without categories.

    Example:
        >>> facts = {"age": {"low": 0, "high": 120, "missing": True}}
        >>> facts["ward"] = {"kind": "nominal", "categories": ["heart", "lung"], "other": False}
        >>> table = Table.of(facts)
        >>> numbers = table.numbers({"age": [40, 60, None], "ward": ["lung", "heart", "lung"]}, "X")
        >>> coding = Coding.of(table, numbers)
        >>> coding.names
        ('age', 'age missing', 'ward heart', 'ward lung')
        >>> coding.rows(numbers).tolist()[2]
        [50.0, 1.0, 0.0, 1.0]
    """

    table: Table
    fills: NDArray[np.float64]

    @classmethod
    def of(cls, table: Table, source: NDArray[np.float64]) -> "Coding":
        """Return the coding whose constants are means over public numbers (n, d)."""
        fills = []
        for column, numbers in zip(table.included, source.T, strict=True):
            known = numbers[~column.are_missing(numbers)]
            if not len(known):
                known = np.array(column.number_bounds)
            fills.append(known.mean())
        return cls(table, np.array(fills, dtype=np.float64))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the p coded columns: a column, and what an indicator stands for."""
        names: list[str] = []
        for column in self.table.included:
            if column.has_categories:
                names += [f"{column.name} {text}" for _, text in _indicators(column)]
                continue
            names.append(column.name)
            if column.missing:
                names.append(f"{column.name} missing")
        return tuple(names)

    def rows(self, numbers: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return the rows (n, p) of numbers (n, d) of cells."""
        coded: list[NDArray[np.float64]] = []
        for column, fill, values in zip(self.table.included, self.fills, numbers.T, strict=True):
            if column.has_categories:
                for number, _ in _indicators(column):
                    coded.append((np.abs(values - number) < _HALF).astype(np.float64))
                continue
            are_missing = column.are_missing(values)
            coded.append(np.where(are_missing, fill, values.astype(np.float64)))
            if column.missing:
                coded.append(are_missing.astype(np.float64))
        return np.stack(coded, axis=1)


def _indicators(column: Column) -> list[tuple[float, str]]:
    """Return the numbers that have an indicator, and what they stand for."""
    ticks = column.ticks
    if column.kind == "binary":
        # One indicator will do: it is 0 for the first category, whose tick follows that of missing
        # cells.
        position = 1 if column.missing else 0
        del ticks[position]
    return ticks
