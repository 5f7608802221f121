"""Attack on all releases of :class:`dpswd.PrivateAdapter`: is a given record among the private ones?

The attacker knows all private records but one (replace-one: a digit, or a vector that is white everywhere), sees all
releases of :func:`dpswd.mixture.fit` without classes and scores them by the likelihood ratio of the whole transcript.
Synthetic records, the method and the classifier are functions of the releases and public numbers, so that no attack on
them has more power. Records are vectors of digits in the coordinates of a source of other digits, which gives the cells
from mu = 1 on. Clopper-Pearson limits on the error rates, with 95 % confidence, give lower bounds on mu.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

from dpswd import mixture
from dpswd.adaptation.space import SourceSpace
from dpswd.audit.bounds import evaluate
from dpswd.audit.game import Unrecorded
from dpswd.queries import GaussianQuery
from dpswd.records import PrivateRecords

CONFIDENCE = 0.95
N_TARGET = 900  # records, all of them in every release


class Transcript(Unrecorded):
    """Stands in for a :class:`dpswd.Budget` of mu: makes all releases of a fit, or replays those of another fit."""

    def __init__(self, mu: float, replayed: list[Tensor] | None = None) -> None:
        self.mu, self.queries = mu, list[GaussianQuery]()
        self.seen: list[Tensor] = []
        self.replayed = replayed
        self.log_likelihood = 0.0  # of the replayed values, up to a constant

    def __enter__(self) -> Self:
        shares = [query.share for query in self.queries[:-1]]
        for query, share in zip(self.queries, [*shares, 1 - sum(shares)], strict=True):
            sigma = query.mechanism.sensitivity / (self.mu * math.sqrt(share))
            query.mechanism, query.recorder = (
                dataclasses.replace(query.mechanism, sigma=sigma),
                self,
            )
            query.add_noise = self._listener(query, query.add_noise)  # type: ignore[method-assign]
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    def statement(self) -> dict[str, Any]:
        """Return what the weights have seen: no run."""
        return {"weights_from_runs": []}

    def _listener(self, query: GaussianQuery, add_noise: Callable[[Tensor], Tensor]) -> Any:
        """Return ``add_noise`` of a query, which also keeps the noisy values, or replays them."""

        def listening(exact: Tensor) -> Tensor:
            if self.replayed is None:
                values = add_noise(exact)
            else:
                values = self.replayed[len(self.seen)]
                squares = ((values - exact) / query.mechanism.sigma).square().sum()
                self.log_likelihood -= float(squares) / 2
            self.seen.append(values)
            return values

        return listening


class Target:
    """Two neighbouring sets of target vectors in the coordinates of a source, and a reference out of the source."""

    def __init__(self, mu: float) -> None:
        digits = load_digits().data / 16
        first, source = digits[:N_TARGET], digits[N_TARGET:]
        second = first.copy()
        second[0] = 1.0
        space = SourceSpace.from_source(source, N_TARGET, mu, normalise=False)
        self.mu, self.reference = mu, torch.from_numpy(space.coordinates(source)).float()
        self.records = [PrivateRecords(space.target_rows(vectors)) for vectors in (first, second)]

    def fit(self, which: int, replayed: list[Tensor] | None = None) -> Transcript:
        """Fit the mixture to data set ``which``; return the transcript of its releases."""
        transcript: Any = Transcript(self.mu, replayed)
        mixture.fit(self.records[which], transcript, radius=1.0, reference=self.reference)
        return transcript  # type: ignore[no-any-return]

    def run(self, which: int) -> float:
        """Make all releases on data set ``which``; return the log-likelihood ratio of the second to the first."""
        seen = self.fit(which).seen
        return self.fit(1, seen).log_likelihood - self.fit(0, seen).log_likelihood


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Leak of all releases of an adaptation: lower bounds on mu (minutes)."""
    rows = []
    for mu in (1.0,) if quick else (0.25, 0.5, 1.0, 2.0, 4.0):
        target = Target(mu)
        scores = [
            np.array([target.run(which) for _ in range(100 if quick else 400)]) for which in (0, 1)
        ]
        found = evaluate(scores[0], scores[1], confidence=CONFIDENCE)
        row = {"seen": "all releases", "mu_claimed": mu, "mu_lower": round(found.mu_lower, 3)}
        rows.append(row | {"caught": bool(found.mu_lower > mu), "trials": len(scores[0])})
    return {"confidence": CONFIDENCE, "rows": rows}
