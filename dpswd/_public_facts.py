"""Public facts that are taken from records, in words."""

from typing import Any

# What neighbours differ in, where no units are stated.
ONE_RECORD = "one record"

# Why a record that cannot be read has to stay.
DO_NOT_REMOVE = (
    "Do not remove the record: the number of records is published, and removing one because of "
    "what it holds changes it."
)

_MAX_NAMES = 12  # names of classes or columns in one message

# Arguments of Python that have an option of the command line.
_OPTIONS = {
    "size": "--size",
    "channels": "--channels",
    "classes": "--classes",
    "kinds": "--bounds FILE with a column kind",
}


def taken_from_records(**facts: Any) -> str:
    """Return the line about public facts that were taken from the records.

    Example:
        >>> taken_from_records(size=28, classes=[0, 1])
        'taken from the records and treated as public: size=28, classes=[0, 1]; ...'
    """
    values = []
    for name, fact in facts.items():
        text = list_of_names(fact) if isinstance(fact, list) else str(fact)
        values.append(f"{name}={text}")
    arguments = ", ".join(_argument(name) for name in facts)
    return (
        f"taken from the records and treated as public: {', '.join(values)}; "
        f"pass {arguments} to state them."
    )


def _argument(name: str) -> str:
    """Return an argument as Python and the command line name it."""
    if name == "dtype":  # a fact of each column, and no argument
        return "columns= (--columns FILE) with the dtype of each"
    if name in _OPTIONS:
        return f"{name}= ({_OPTIONS[name]})"
    return f"{name}="


def list_of_names(names: list[Any]) -> str:
    """Return a list of names in one short text.

    Of more than twelve, the text is such as ``range(20)``, or has the first names and the number of
    all.
    """
    are_numbers = names == list(range(len(names))) and not any(
        isinstance(name, bool) for name in names
    )
    if are_numbers and len(names) > _MAX_NAMES:
        return f"range({len(names)})"
    text = ", ".join(map(repr, names[:_MAX_NAMES]))
    if len(names) > _MAX_NAMES:
        text += f", ... ({len(names)} in all)"
    return f"[{text}]"
