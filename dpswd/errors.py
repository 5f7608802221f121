"""The exceptions that a user meets; the command line turns them into one sentence, and exit status 2 (or 1)."""

__all__ = ["BudgetExceededError", "InputError", "ProcessLostError"]


class InputError(ValueError):
    """Says in one sentence what was got, what was wanted and what to do about it."""


class BudgetExceededError(InputError):
    """A release was refused because the privacy budget does not cover it; nothing has left the private side."""


class ProcessLostError(RuntimeError):
    """Another process of a run was killed or cannot be reached; nobody's input is at fault (exit status 1)."""
