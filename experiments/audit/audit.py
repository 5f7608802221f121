"""Audits of sound mechanisms, of broken ones (``zoo.py``), and of a generator (canaries)."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.audit.bounds import Claim
from dpswd.audit.game import AuditResult, QueryGame, audit, run_game
from dpswd.mechanism import ProjectionMechanism
from dpswd.queries import ClassCounts, ClassCovariances, ClassMeans, SumAndNorm
from experiments.audit.canaries import audit_generator
from experiments.audit.zoo import ZOO, inspect

BLOCKS: dict[str, Any] = {
    "dim": 16,
    "n_projections": 32,
    "batch_size": 200,
    "statistic": "quantiles",
}
BLOCKS |= {"n_quantiles": 10, "kind": "orthogonal"}
ROWS: dict[str, Any] = {
    "dim": 16,
    "n_projections": 32,
    "sigma": 0.7,
    "batch_size": 20,
    "kind": "orthogonal",
}
IID: dict[str, Any] = {"dim": 50, "n_projections": 100, "sigma": 0.7, "batch_size": 32}
HIGH: dict[str, Any] = {"dim": 784, "n_projections": 200, "sigma": 0.25, "batch_size": 128}
QUARTER: dict[str, Any] = {"subsets": 4, "n_releases": 4, "cost": 4}
# name, mechanism, options: subsets = N / B, n_releases = T, cost divides the number of runs
SETTINGS: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
    ("quantiles, orthogonal", BLOCKS | {"sigma": 0.03}, {}),
    ("quantiles, orthogonal, 10 classes", BLOCKS | {"sigma": 0.03, "n_classes": 10}, {}),
    ("rows, orthogonal", ROWS, {}),
    ("rows, iid, exact", IID, {}),
    ("rows, iid, exact, d = 784", HIGH, {"cost": 3}),
    ("rows, iid, Bernstein", IID | {"bound": "bernstein"}, {}),
    ("rows, iid, CLT", IID | {"bound": "clt"}, {}),
    ("quantiles, orthogonal, 4 of 25 %", BLOCKS | {"sigma": 0.02}, QUARTER),
    ("rows, iid, exact, 4 of 25 %", IID | {"sigma": 0.4}, QUARTER),
    ("rows, iid, Bernstein, 4 of 25 %", IID | {"sigma": 0.4, "bound": "bernstein"}, QUARTER),
)
QUERIES = (
    ClassCounts(10, sigma=0.6),
    ClassCovariances(1, 8, sigma=0.15),
    ClassMeans(10, 8, sigma=0.4),
    ClassCovariances(10, 8, sigma=0.15),
    SumAndNorm(8, row_norm=1.0, sigma=0.85),
)
TRIALS = 20_000


def games(trials: int) -> Iterator[dict[str, Any]]:
    """Audit every setting and every query."""
    for name, fields, options in SETTINGS:
        result = audit(
            ProjectionMechanism(**fields),
            fields["batch_size"] * options.get("subsets", 1),
            options.get("n_releases", 1),
            trials=trials // options.get("cost", 1),
        )
        yield {"setting": name, "q": 1 / options.get("subsets", 1), **asdict(result)}
    for query in QUERIES:
        claim = Claim.of(PrivacyAccountant().step(query.mechanism, sample_size=10), 1e-5)
        result = AuditResult.of(claim, run_game(QueryGame(query), trials))
        yield {"setting": query.mechanism.name, "q": 1.0, **asdict(result)}


def zoo(trials: int, runs: int) -> Iterator[dict[str, Any]]:
    """Audit every broken mechanism once and its sound version, the twin, ``runs`` times."""
    for specimen in ZOO:
        first = inspect(specimen, trials=trials)
        others = [
            inspect(specimen, trials=trials // 3, seed=seed)["twin_passed"]
            for seed in range(1, runs)
        ]
        alarms = [first["twin_passed"], *others].count(False)
        yield {**first, "twin_runs": runs, "twin_false_alarms": alarms}


def canaries(*, quick: bool) -> Iterator[dict[str, Any]]:
    """Audit generators, and controls that publish records and claim epsilon = 1."""
    slots = 100 if quick else 400
    for epsilon in (1.0,) if quick else (10.0, 1.0):
        yield audit_generator(slots=slots, epsilon=epsilon)
    for published in (0.25, 1.0):
        yield audit_generator(slots=slots, epsilon=1.0, published=published)


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Audits: sound mechanisms, nine broken ones and their twins, canaries (20 minutes; --quick: one)."""
    parts = {
        "rows": (
            games(1000 if quick else TRIALS),
            "{setting:<44} mu {mu_lower:.3f} of {mu_claimed:.3f}  passed {passed}",
        ),
        "zoo": (
            zoo(600 if quick else 3000, 2 if quick else 20),
            "{name:<44} mu {mu_lower:.3f} for {mu_claimed_at_fpr:.3f}  caught {caught}; "
            "twin {twin_mu_lower:.3f}, {twin_false_alarms} alarms in {twin_runs}",
        ),
        "canaries": (
            canaries(quick=quick),
            "{what:<44} epsilon {epsilon_lower:.3f}, right {guessed_right:.3f}",
        ),
    }
    result: dict[str, Any] = {name: [] for name in parts}
    for name, (rows, line) in parts.items():
        for row in rows:
            result[name].append(row)
            print(line.format(**row), flush=True)
    return result
