"""Membership attack on all releases of :class:`dpswd.PrivateAdapter`.

The attacker knows all private records but one (replace-one: a digit, or a vector that is white
everywhere), sees all releases of :func:`dpswd.mixture.fit` without classes and scores them by the
likelihood ratio of the whole transcript. Synthetic records, the method and the classifier are
functions of the releases and public numbers, so that no attack on them has more power. Records are
vectors of digits in the coordinates of a source of other digits, which gives the cells from mu = 1
on. Clopper-Pearson limits on the error rates, with 95 % confidence, give lower bounds on mu.
"""

import dataclasses
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from dpswd import mixture
from dpswd.adaptation.space import SourceSpace
from dpswd.audit.bounds import evaluate
from dpswd.queries import GaussianQuery
from dpswd.records import PrivateRecords
from experiments.results import Result
from experiments.simulated import SimulatedBudget

CONFIDENCE = 0.95
N_TARGET = 900  # records, all of them in every release
MUS: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0, 4.0)


class Transcript(SimulatedBudget):
    """Budget of mu that keeps all releases of a fit, or replays those of another fit.

    It stands in for a :class:`dpswd.Budget`.

    Attributes:
        released: Noisy values of the releases so far.
        log_likelihood: Logarithm of the likelihood of the replayed values, up to a constant.
    """

    def __init__(self, mu: float, replayed: list[Tensor] | None = None) -> None:
        self.mu = mu
        self.queries: list[GaussianQuery] = []
        self.released: list[Tensor] = []
        self.replayed = replayed
        self.log_likelihood = 0.0

    def __enter__(self) -> Self:
        shares = [query.share for query in self.queries[:-1]]
        shares.append(1 - sum(shares))  # the last query gets the rest of the budget
        for query, share in zip(self.queries, shares, strict=True):
            sigma = query.mechanism.sensitivity / (self.mu * math.sqrt(share))
            query.mechanism = dataclasses.replace(query.mechanism, sigma=sigma)
            query.recorder = self
            add_noise = partial(self._add_noise, query, query.add_noise)
            query.add_noise = add_noise  # type: ignore[method-assign]
        return self

    def _add_noise(
        self, query: GaussianQuery, add_noise: Callable[[Tensor], Tensor], exact: Tensor
    ) -> Tensor:
        """Add noise to exact values, or replay noisy ones, and keep the values.

        The likelihood of replayed values is added up.
        """
        if self.replayed is None:
            values = add_noise(exact)
        else:
            values = self.replayed[len(self.released)]
            squares = ((values - exact) / query.mechanism.sigma).square().sum()
            self.log_likelihood -= float(squares) / 2
        self.released.append(values)
        return values


class Target:
    """Two neighbouring sets of target vectors in the coordinates of a source.

    The source, of other digits, is the public reference of the fit.
    """

    def __init__(self, mu: float) -> None:
        digits = load_digits().data / 16
        first = digits[:N_TARGET]
        source = digits[N_TARGET:]
        second = first.copy()
        second[0] = 1.0
        space = SourceSpace.from_source(source, N_TARGET, mu, normalise=False)
        self.mu = mu
        self.reference = torch.from_numpy(space.coordinates(source)).float()
        self.records = [PrivateRecords(space.target_rows(vectors)) for vectors in (first, second)]

    def fit(self, which: int, replayed: list[Tensor] | None = None) -> Transcript:
        """Fit the mixture to data set ``which``; return the transcript of its releases."""
        transcript = Transcript(self.mu, replayed)
        budget: Any = transcript  # it has the attributes of a Budget that a fit uses
        mixture.fit(self.records[which], budget, radius=1.0, reference=self.reference)
        return transcript

    def run(self, which: int) -> float:
        """Make all releases on data set ``which``; return the score of the transcript.

        The score is the log-likelihood ratio of the second data set to the first.
        """
        released = self.fit(which).released
        second = self.fit(1, released)
        first = self.fit(0, released)
        return second.log_likelihood - first.log_likelihood


def run(out: Path, *, quick: bool = False) -> Result:
    """Leak of all releases of an adaptation: lower bounds on mu (minutes)."""
    mus = MUS
    trials = 400
    if quick:
        mus = (1.0,)
        trials = 100
    rows = []
    for mu in mus:
        target = Target(mu)
        first = np.array([target.run(0) for _ in range(trials)])
        second = np.array([target.run(1) for _ in range(trials)])
        evidence = evaluate(first, second, confidence=CONFIDENCE)
        rows.append(
            {
                "seen": "all releases",
                "mu_claimed": mu,
                "mu_lower": round(evidence.mu_lower, 3),
                "caught": bool(evidence.mu_lower > mu),
                "trials": trials,
            }
        )
    return {"confidence": CONFIDENCE, "rows": rows}
