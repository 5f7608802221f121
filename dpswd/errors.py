"""Exceptions and warning categories of the package.

The command line prints an exception as one line on stderr, and a warning as a line that starts with
``Warning:``. In Python, warnings can be filtered by their category with :mod:`warnings`.
"""

__all__ = [
    "BudgetExceededError",
    "DpswdError",
    "DpswdWarning",
    "InputError",
    "LedgerError",
    "PrivacyWarning",
    "ProcessLostError",
    "UtilityWarning",
]


class DpswdError(Exception):
    """Base class of the exceptions that this package defines and raises."""


class InputError(DpswdError, ValueError):
    """An argument, an option or an input file is not valid."""


class BudgetExceededError(DpswdError):
    """The privacy budget does not cover a release; nothing was released."""


class LedgerError(DpswdError):
    """A ledger is damaged, was changed by another program, or cannot be written."""


class ProcessLostError(DpswdError, RuntimeError):
    """Another process of a distributed run was killed or cannot be reached."""


class DpswdWarning(UserWarning):
    """Base class of the warnings of this package."""


class PrivacyWarning(DpswdWarning):
    """A guarantee is not what a user may expect.

    For example, facts were taken from records, a noise seed is fixed, or this is a second run.
    """


class UtilityWarning(DpswdWarning):
    """The released values are expected to be of little use.

    The reasons are too few records or clipped rows.
    """
