"""The audit: games on sound mechanisms, the zoo of broken ones, canaries in a trained generator."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.audit import Claim, audit, contest
from dpswd.audit.query_game import QueryGame
from dpswd.mechanism import ProjectionMechanism
from dpswd.queries import ClassCounts, ClassCovariances, ClassMeans, SecondMoment
from experiments.audit.canaries import audit_generator
from experiments.audit.zoo import ZOO, inspect

HELP = "audit: the game on sound mechanisms, nine broken ones and their twins, canaries (20 minutes; --quick: one)"

QUANTILES: dict[str, Any] = {"statistic": "quantiles", "n_quantiles": 10, "kind": "orthogonal"}
IID: dict[str, Any] = {"dim": 50, "n_projections": 100, "sigma": 0.7, "batch_size": 32}
# name, mechanism, records, releases, other options; q = 1 where the batch is the whole set
SETTINGS: tuple[tuple[str, dict[str, Any], int, int, dict[str, Any]], ...] = (
    (
        "quantiles, orthogonal",
        {"dim": 16, "n_projections": 32, "sigma": 0.03, "batch_size": 200, **QUANTILES},
        200,
        1,
        {},
    ),
    (
        "quantiles, orthogonal, 10 classes",
        {"dim": 16, "n_projections": 32, "sigma": 0.03, "batch_size": 200, "n_classes": 10, **QUANTILES},
        200,
        1,
        {},
    ),
    (
        "rows, orthogonal",
        {"dim": 16, "n_projections": 32, "sigma": 0.7, "batch_size": 20, "kind": "orthogonal"},
        20,
        1,
        {},
    ),
    ("rows, iid, exact", IID, 32, 1, {}),
    (
        "rows, iid, exact, d = 784",
        {"dim": 784, "n_projections": 200, "sigma": 0.25, "batch_size": 128},
        128,
        1,
        {"cost": 3},
    ),
    ("rows, iid, Bernstein", IID | {"bound": "bernstein"}, 32, 1, {}),
    ("rows, iid, CLT", IID | {"bound": "clt"}, 32, 1, {}),
    ("rows, iid, exact, after the last sort", IID, 32, 1, {"as_released": True}),
    (
        "quantiles, orthogonal, 4 of 25 %",
        {"dim": 16, "n_projections": 32, "sigma": 0.02, "batch_size": 200, **QUANTILES},
        800,
        4,
        {"cost": 4},
    ),
    ("rows, iid, exact, 4 of 25 %", IID | {"sigma": 0.4}, 128, 4, {"cost": 4}),
    ("rows, iid, Bernstein, 4 of 25 %", IID | {"sigma": 0.4, "bound": "bernstein"}, 128, 4, {"cost": 4}),
)
QUERIES = (
    ClassCounts(10, sigma=0.6),
    SecondMoment(8, sigma=0.15),
    ClassMeans(10, 8, sigma=0.4),
    ClassCovariances(10, 8, sigma=0.15),
)
TRIALS = 20_000


def games(trials: int) -> Iterator[dict[str, Any]]:
    """Plays every setting and every query."""
    for name, fields, size, releases, options in SETTINGS:
        cost = options.get("cost", 1)
        result = audit(
            ProjectionMechanism(**fields),
            size,
            releases,
            trials=trials // cost,
            as_released=options.get("as_released", False),
        )
        yield {"setting": name, "q": fields["batch_size"] / size, **result.to_dict()}
    for query in QUERIES:
        claim = Claim.of(PrivacyAccountant().step(query.mechanism, sample_size=10), 1e-5)
        evidence = contest(QueryGame(query), trials)
        yield {
            "setting": query.mechanism.name,
            "q": 1.0,
            "mu_lower": evidence.mu,
            "mu_claimed": claim.mu,
            "mu_claimed_at_fpr": claim.mu_at(evidence.for_mu.fpr),
            "passed": claim.stands(evidence),
            "confidence": evidence.confidence,
            "epsilon_lower": evidence.epsilon,
            "epsilon_claimed": claim.epsilon,
            "delta": evidence.delta,
            "trials": trials,
            "n_releases": 1,
        }


def zoo(trials: int, runs: int) -> Iterator[dict[str, Any]]:
    """Audits every specimen once and its twin ``runs`` times."""
    for kind in ZOO:
        first = inspect(kind, trials=trials)
        others = [inspect(kind, trials=trials // 3, seed=seed)["twin_passed"] for seed in range(1, runs)]
        alarms = [first["twin_passed"], *others].count(False)
        yield {**first, "twin_runs": runs, "twin_false_alarms": alarms}


def canaries(quick: bool) -> Iterator[dict[str, Any]]:
    """Generators, and controls that publish records; the controls are held against epsilon = 1."""
    slots, steps = (100, 60) if quick else (400, 1500)
    for epsilon in (1.0,) if quick else (10.0, 1.0):
        yield audit_generator(slots=slots, steps=steps, epsilon=epsilon)
    for published in (0.25, 1.0):
        yield audit_generator(slots=slots, epsilon=1.0, published=published)


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Plays everything and prints one line for each."""
    result: dict[str, list[dict[str, Any]]] = {"rows": [], "zoo": [], "canaries": []}
    for row in games(1000 if quick else TRIALS):
        result["rows"].append(row)
        print(
            f"{row['setting']:<40} mu {row['mu_lower']:.3f} of {row['mu_claimed']:.3f}  passed {row['passed']}",
            flush=True,
        )
    for row in zoo(600 if quick else 3000, 2 if quick else 20):
        result["zoo"].append(row)
        print(
            f"{row['name']:<44} mu {row['mu_lower']:.3f} for {row['mu_claimed_at_fpr']:.3f}  caught {row['caught']}; "
            f"twin {row['twin_mu_lower']:.3f}, {row['twin_false_alarms']} alarms in {row['twin_runs']}",
            flush=True,
        )
    for row in canaries(quick):
        result["canaries"].append(row)
        print(f"{row['what']:<40} epsilon {row['epsilon_lower']:.3f}, right {row['guessed_right']:.3f}", flush=True)
    return dict(result)
