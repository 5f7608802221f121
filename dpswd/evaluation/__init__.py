"""Utility and fidelity of synthetic records, against records that the user may look at.

Every figure is an exact statistic of these records. The guarantee of a run does not cover exact figures on private
records.
"""

from dpswd.evaluation.evaluate import evaluate

__all__ = ["evaluate"]
