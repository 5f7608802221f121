"""Public facts of the columns of a table, and the conversion of cells to numbers.

A :class:`Table` states for every column its kind and what a cell of it can be. Each cell becomes a
number by itself, from these facts alone, so that the conversion costs no privacy. Generated numbers
become cells again.

=============  ===============================  ==================================================
kind           facts                            number
=============  ===============================  ==================================================
``numeric``    low, high, decimals              the number itself, limited to its bounds
``integer``    low, high                        the same, as a whole number
``binary``     two categories; 0 and 1 if none  0 or 1, the position of the category
``nominal``    categories, other                the position; a cell that is not listed is ``other``
``date``       low, high, format                days after low, limited to its bounds
``datetime``   low, high, format                seconds after low, limited to its bounds
``identifier`` none                             left out
=============  ===============================  ==================================================

Columns of all kinds but ``identifier`` may have ``missing`` and ``dtype``. With ``missing``, cells
may be empty. Their number lies below all others, at the lower bound, so that the share of missing
cells is released like that of any value.

Shapes: n records, d columns that are not left out.
"""

from dpswd.columns.coding import Coding
from dpswd.columns.column import COLUMN_KINDS, Column, is_missing_cell
from dpswd.columns.table import Table, read_columns

__all__ = ["COLUMN_KINDS", "Coding", "Column", "Table", "is_missing_cell", "read_columns"]
