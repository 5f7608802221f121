"""Public facts that are taken from records, in words."""

from typing import Any

_SHOWN = 12  # names of classes in a message


def taken_from_records(**facts: Any) -> str:
    """Return the line for the screen about public facts that were taken from the records."""
    stated = [
        f"{name}={shown(fact) if isinstance(fact, list) else fact}" for name, fact in facts.items()
    ]
    options = ", ".join(f"{name}=" for name in facts)
    return f"taken from the records and treated as public: {', '.join(stated)}; pass {options} to state them."


def shown(names: list[Any]) -> str:
    if names == list(range(len(names))):
        return f"range({len(names)})"
    more = f", ... ({len(names)} in all)" if len(names) > _SHOWN else ""
    return f"[{', '.join(map(repr, names[:_SHOWN]))}{more}]"
