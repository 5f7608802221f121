"""Empirical lower bounds on the privacy loss of a mechanism.

They are compared with the claim of the accountant. An audit can refute a claim. It cannot prove
one: the attack may have been weak.
"""

from dpswd.audit.bounds import evaluate
from dpswd.audit.game import AuditResult, ProjectionGame, QueryGame, audit, run_game

__all__ = ["AuditResult", "ProjectionGame", "QueryGame", "audit", "evaluate", "run_game"]
