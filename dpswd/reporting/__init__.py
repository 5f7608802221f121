"""The report of a run: mu-GDP, trade-off curve, (epsilon, delta), and everything that they rest on."""

from dpswd.reporting.publish import write_report
from dpswd.reporting.report import collect

__all__ = ["collect", "write_report"]
