"""Report of a run: mu-GDP, trade-off curve, (epsilon, delta), their assumptions."""

from dpswd.report.collect import collect
from dpswd.report.render import write_report

__all__ = ["collect", "write_report"]
