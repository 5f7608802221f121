"""Exceptions of the package. The command line prints them as one line on stderr."""

__all__ = ["BudgetExceededError", "DpswdError", "InputError", "LedgerError", "ProcessLostError"]


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
