"""The report of a run: mu-GDP, trade-off curve, (epsilon, delta), and everything that they rest on."""

from dpswd.report.collect import collect
from dpswd.report.publish import write_report

__all__ = ["collect", "write_report"]
