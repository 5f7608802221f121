"""Pipelines and searches of scikit-learn around a fit."""

import inspect
from types import FrameType
from typing import Any

from sklearn.frozen import FrozenEstimator

from dpswd.errors import InputError

__all__ = ["check_callers"]


def check_callers(name: str) -> None:
    """Refuse a fit where scikit-learn reads private records around it.

    No budget counts that. Only frames of scikit-learn are looked at.

    Args:
        name: Name of the estimator, for the message.

    Raises:
        InputError: If an earlier step of a pipeline has learned from the records, or if a
            cross-validation or a search fits the estimator.
    """
    frame: FrameType | None = inspect.currentframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module == "sklearn.pipeline":
            _check_pipeline(frame.f_locals.get("self"), name)
        if module.startswith("sklearn.model_selection"):
            raise InputError(
                f"Expected one fit of {name} of its own, got one within a cross-validation or a "
                "search: every fit would spend a further budget, and every score on private "
                "records is a release without noise. Choose on public stand-ins of the records "
                "with epsilon=inf, then fit once."
            )
        frame = frame.f_back


def _check_pipeline(pipeline: Any, name: str) -> None:
    """Refuse a pipeline with a step before its last one that learns from the records."""
    steps = getattr(pipeline, "steps", [])
    for _, step in steps[:-1]:
        if _learns(step):
            raise InputError(
                f"Expected a pipeline that learns nothing before {name}, got the step "
                f"{type(step).__name__}, which was fitted to the private records: what it has "
                "learned is a release without noise. Fit it to public records alone and wrap it in "
                "sklearn.frozen.FrozenEstimator, or use a step without a fit, as Normalizer or "
                "FunctionTransformer."
            )


def _learns(step: Any) -> bool:
    """Return whether a step of a pipeline learns from its records."""
    if step is None or isinstance(step, str) or isinstance(step, FrozenEstimator):
        return False
    if hasattr(step, "__sklearn_tags__"):
        return bool(step.__sklearn_tags__().requires_fit)
    return True
