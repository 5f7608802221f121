"""The exceptions that a user can cause; the command line turns them into one sentence and exit status 2."""

__all__ = ["BudgetExceededError", "InputError"]


class InputError(ValueError):
    """Says in one sentence what was got, what was wanted and what to do about it."""


class BudgetExceededError(InputError):
    """A release was refused because the privacy budget does not cover it; nothing has left the private side."""
