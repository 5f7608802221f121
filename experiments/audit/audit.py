"""Audits of sound mechanisms, of broken ones, and of a generator."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.audit.bounds import Claim
from dpswd.audit.game import AuditResult, QueryGame, audit, run_game
from dpswd.mechanism import ProjectionMechanism
from dpswd.queries import ClassCounts, ClassCovariances, ClassMeans, SumAndNorm
from experiments.audit.canaries import audit_generator
from experiments.audit.zoo import ZOO, inspect
from experiments.results import Result, Row

DELTA = 1e-5
TRIALS = 20_000  # runs on each data set

BLOCKS = ProjectionMechanism(
    16, 32, sigma=0.03, batch_size=200, statistic="quantiles", n_quantiles=10, kind="orthogonal"
)
ROWS = ProjectionMechanism(16, 32, sigma=0.7, batch_size=20, kind="orthogonal")
IID = ProjectionMechanism(50, 100, sigma=0.7, batch_size=32)
HIGH = ProjectionMechanism(784, 200, sigma=0.25, batch_size=128)


@dataclass(frozen=True)
class Setting:
    """A sound mechanism to audit.

    The data set has ``n_subsets`` batches, so that the sampling rate is ``1 / n_subsets``. A
    setting whose runs take ``cost`` times as long as others has fewer of them.
    """

    name: str
    mechanism: ProjectionMechanism
    n_subsets: int = 1
    n_releases: int = 1
    cost: int = 1


def _four_releases(name: str, mechanism: ProjectionMechanism) -> Setting:
    """Return the setting of four releases, each of a quarter of the records."""
    return Setting(name, mechanism, n_subsets=4, n_releases=4, cost=4)


SETTINGS = (
    Setting("quantiles, orthogonal", BLOCKS),
    Setting("quantiles, orthogonal, 10 classes", BLOCKS.replace(n_classes=10)),
    Setting("quantiles, structured", BLOCKS.replace(kind="structured")),
    Setting("rows, orthogonal", ROWS),
    Setting("rows, iid, exact", IID),
    Setting("rows, iid, exact, d = 784", HIGH, cost=3),
    Setting("rows, iid, Bernstein", IID.replace(bound="bernstein")),
    Setting("rows, iid, CLT", IID.replace(bound="clt")),
    _four_releases("quantiles, orthogonal, 4 of 25 %", BLOCKS.replace(sigma=0.02)),
    _four_releases("rows, iid, exact, 4 of 25 %", IID.replace(sigma=0.4)),
    _four_releases("rows, iid, Bernstein, 4 of 25 %", IID.replace(sigma=0.4, bound="bernstein")),
)
QUERIES = (
    ClassCounts(10, sigma=0.6),
    ClassCovariances(1, 8, sigma=0.15),
    ClassMeans(10, 8, sigma=0.4),
    ClassCovariances(10, 8, sigma=0.15),
    SumAndNorm(8, row_norm=1.0, sigma=0.85),
)


def games(trials: int) -> Iterator[Row]:
    """Audit every setting and every query."""
    for setting in SETTINGS:
        result = audit(
            setting.mechanism,
            setting.mechanism.batch_size * setting.n_subsets,
            setting.n_releases,
            trials=trials // setting.cost,
        )
        yield {"setting": setting.name, "q": 1 / setting.n_subsets, **asdict(result)}
    for query in QUERIES:
        account = PrivacyAccountant().step(query.mechanism, sample_size=10)
        claim = Claim.of(account, DELTA)
        result = AuditResult.of(claim, run_game(QueryGame(query), trials))
        yield {"setting": query.mechanism.name, "q": 1.0, **asdict(result)}


def zoo(trials: int, runs: int) -> Iterator[Row]:
    """Audit every broken mechanism once and its sound twin ``runs`` times."""
    for specimen in ZOO:
        first = inspect(specimen, trials=trials)
        verdicts = [first["twin_passed"]]
        for seed in range(1, runs):
            row = inspect(specimen, trials=trials // 3, seed=seed)
            verdicts.append(row["twin_passed"])
        yield {**first, "twin_runs": runs, "twin_false_alarms": verdicts.count(False)}


def canaries(*, quick: bool) -> Iterator[Row]:
    """Audit generators, and controls that publish records and claim epsilon = 1."""
    slots = 400
    epsilons: tuple[float, ...] = (10.0, 1.0)
    if quick:
        slots = 100
        epsilons = (1.0,)
    for epsilon in epsilons:
        yield audit_generator(slots=slots, epsilon=epsilon)
    for published in (0.25, 1.0):
        yield audit_generator(slots=slots, epsilon=1.0, published=published)


def run(out: Path, *, quick: bool = False) -> Result:
    """Audits of sound mechanisms, broken ones and canaries (20 minutes; --quick: one)."""
    trials = TRIALS
    zoo_trials = 3000
    twin_runs = 20
    if quick:
        trials = 1000
        zoo_trials = 600
        twin_runs = 2
    return {
        "rows": _printed(games(trials), _line_of_game),
        "zoo": _printed(zoo(zoo_trials, twin_runs), _line_of_specimen),
        "canaries": _printed(canaries(quick=quick), _line_of_canaries),
    }


def _printed(rows: Iterator[Row], line: Callable[[Row], str]) -> list[Row]:
    """Return the rows; print a line for each as soon as it is known."""
    finished = []
    for row in rows:
        print(line(row), flush=True)
        finished.append(row)
    return finished


def _line_of_game(row: Row) -> str:
    bound = f"mu {row['mu_lower']:.3f} of {row['mu_claimed']:.3f}"
    return f"{row['setting']:<44} {bound}  passed {row['passed']}"


def _line_of_specimen(row: Row) -> str:
    bound = f"mu {row['mu_lower']:.3f} for {row['mu_claimed_at_fpr']:.3f}"
    alarms = f"{row['twin_false_alarms']} alarms in {row['twin_runs']}"
    twin = f"twin {row['twin_mu_lower']:.3f}, {alarms}"
    return f"{row['name']:<44} {bound}  caught {row['caught']}; {twin}"


def _line_of_canaries(row: Row) -> str:
    bound = f"epsilon {row['epsilon_lower']:.3f}"
    return f"{row['what']:<44} {bound}, right {row['guessed_right']:.3f}"
