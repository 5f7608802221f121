"""Empirical lower bounds on what a mechanism leaks, to be held against what is claimed.

=====================  ====================================================================================
module                 what it has
=====================  ====================================================================================
:mod:`.bounds`         from the scores of an attack to lower bounds with a stated confidence
:mod:`.claim`          the trade-off curve that an accountant claims
:mod:`.game`           the distinguishing game on the library's own loss and sampler; :func:`audit`
:mod:`.query_game`     the same on class counts and second moments
:mod:`.canaries`       one training run, many canaries
:mod:`.zoo`            broken mechanisms that the game must catch, and their sound twins
=====================  ====================================================================================

An audit can refute a claim. It can never prove one: an attack that finds nothing may have been a weak attack.
"""

from dpswd.audit.bounds import Attack, Evidence, weigh
from dpswd.audit.canaries import one_run_epsilon
from dpswd.audit.claim import Claim
from dpswd.audit.game import AuditResult, Game, audit, contest

__all__ = ["Attack", "AuditResult", "Claim", "Evidence", "Game", "audit", "contest", "one_run_epsilon", "weigh"]
