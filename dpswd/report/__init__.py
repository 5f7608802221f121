"""Report of a run: mu-GDP, trade-off curve, (epsilon, delta), and what they rest on."""

from dpswd.report.collect import collect
from dpswd.report.render import write_report

__all__ = ["collect", "write_report"]
