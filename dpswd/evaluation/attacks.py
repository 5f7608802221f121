r"""Membership attacks on a released file of synthetic records.

The results are compared with the bound of the guarantee.

An attack gives every candidate record a score, which should be larger for members (private records)
than for non-members (records of the same population that were not used):

- ``nearest``: the negative distance to the nearest synthetic record. Finds copies.
- ``density_ratio``: the logarithm of the distance to the nearest record of a reference sample, less
  that to the nearest synthetic record: nearest neighbours as estimates of both densities
  (vanBreugel2023). Finds places where synthetic records are denser than the population.
- ``classifier``: the probability that a random forest, trained to tell synthetic records from the
  reference sample, calls the candidate synthetic (Hayes2019).

The reference sample is one half of the non-members; the scores of the other half are compared with
those of members.

Bound. Under :math:`\mu`-GDP, no attack has :math:`TPR > G(FPR)`, :math:`G(a) = \Phi(\Phi^{-1}(a) +
\mu)`, nor an AUC above :math:`\Phi(\mu / \sqrt 2)`, on average over the population
(docs/theory/accounting.md, Proposition 34).

An attack that finds nothing proves nothing: another one may find more. An attack that exceeds the
bound, by more than chance, shows a mistake: in the mechanism, in the account, or in what was given
to it as members and non-members.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats
from sklearn.ensemble import RandomForestClassifier
from sklearn.neighbors import NearestNeighbors

from dpswd._files import atomic_write
from dpswd._layout import Array
from dpswd._validate import at_least, nonnegative
from dpswd.errors import InputError
from dpswd.records import Records

__all__ = ["ATTACKS", "AttackResult", "attack"]

FPR = 0.01  # of the stated true-positive rate
CONFIDENCE = 0.95

_LEAST_CANDIDATES = 20  # of each side; fewer show nothing
_MAX_CANDIDATES = 2000  # of each side
_N_TREES = 200
_MANY_COLUMNS = 50  # from so many on, records are images or features, of one scale
_LEAST_DISTANCE = 1e-9  # a copy has distance 0, which has no logarithm
_CURVE_FPR = np.union1d(np.linspace(0, 1, 101), np.geomspace(1e-3, 1.0, 61))

PROVES = (
    "A low number proves nothing: another attack may find more. A number above the bound shows a "
    "mistake, or members and non-members of different kinds."
)


@dataclass(frozen=True)
class AttackResult:
    """Success of one attack.

    Attributes:
        name: Name of the attack.
        auc: Probability that a member has a larger score than a non-member, ties counted half.
        auc_interval: Confidence interval of it at 95 % (DeLong1988).
        tpr: Part of the members that is found where at most 1 % of the non-members are accused.
        tpr_interval: Confidence interval of it (Clopper-Pearson).
        exceeds_bound: Whether AUC or TPR exceed the bound by more than chance; ``None`` without a
            bound.
        curve: True-positive rates at :data:`_CURVE_FPR`.
    """

    name: str
    auc: float
    auc_interval: tuple[float, float]
    tpr: float
    tpr_interval: tuple[float, float]
    exceeds_bound: bool | None
    curve: tuple[float, ...]


def attack(
    synthetic: Records,
    members: Records,
    non_members: Records,
    *,
    mu: float | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Attack a released file by three membership attacks.

    Args:
        synthetic: The released records.
        members: Private records that the release was computed from, at least 20.
        non_members: Records of the same population that were not used, at least 40.
        mu: The mu of the guarantee, which bounds every attack; ``None`` for no bound.
        seed: Seed of subsets and of the forest.

    Returns:
        ``"attacks"``, one row per attack with the fields of :class:`AttackResult`; ``"bound"`` with
        mu, AUC, TPR and curve, or ``None``; ``"passed"``, whether no attack exceeds the bound; and
        numbers of records.

    Raises:
        InputError: If the shapes differ, there are too few records, or mu is negative.

    Example:
        >>> import torch
        >>> draw = lambda n, seed: torch.rand(n, 4, generator=torch.Generator().manual_seed(seed))
        >>> labels = torch.zeros(100, dtype=torch.int64)
        >>> members, others = (Records(draw(100, i), labels) for i in range(2))
        >>> copied = attack(members, members, others, mu=1.0)
        >>> copied["passed"], copied["attacks"][0]["auc"]
        (False, 1.0)
    """
    at_least(0, seed=seed)
    if mu is not None:
        nonnegative(mu=mu)
    _check_shapes(synthetic, members, non_members)
    generator = np.random.default_rng(seed)
    others = _some(non_members.vectors(), 2 * _MAX_CANDIDATES, generator)
    n_reference = len(others) // 2
    sides = _Sides(
        synthetic=synthetic.vectors(),
        reference=others[:n_reference],
        members=_some(members.vectors(), _MAX_CANDIDATES, generator),
        non_members=others[n_reference:],
        seed=seed,
    ).scaled()
    # by Bonferroni, for all attacks and both figures together
    strict = 1 - (1 - CONFIDENCE) / (2 * len(ATTACKS))
    results = []
    for name, score in ATTACKS.items():
        candidates = np.concatenate([sides.members, sides.non_members])
        scores = score(sides, candidates)
        n_members = len(sides.members)
        results.append(_result(name, scores[:n_members], scores[n_members:], mu, strict))
    return {
        "attacks": [asdict(result) for result in results],
        "bound": None if mu is None else _bound(mu),
        "passed": not any(result.exceeds_bound for result in results),
        "fpr": FPR,
        "confidence": CONFIDENCE,
        "curve_fpr": _CURVE_FPR.tolist(),
        "n_synthetic": len(synthetic),
        "n_members": len(sides.members),
        "n_non_members": len(sides.non_members),
        "n_reference": len(sides.reference),
    }


def _check_shapes(synthetic: Records, members: Records, non_members: Records) -> None:
    """Refuse records of different shapes, and too few of them."""
    shape = tuple(synthetic.values.shape[1:])
    for name, records in (("members", members), ("non-members", non_members)):
        other = tuple(records.values.shape[1:])
        if other != shape:
            raise InputError(
                f"Expected {name} of the shape {shape} of the synthetic records, got {other}; "
                "attack records of one kind."
            )
    if len(members) < _LEAST_CANDIDATES or len(non_members) < 2 * _LEAST_CANDIDATES:
        raise InputError(
            f"Expected at least {_LEAST_CANDIDATES} members and {2 * _LEAST_CANDIDATES} "
            f"non-members, got {len(members)} and {len(non_members)}; fewer show nothing."
        )


def _some(rows: Array, n: int, generator: np.random.Generator) -> Array:
    """Return at most n of the rows, in random order."""
    return rows[generator.permutation(len(rows))[:n]]


# Attacks


@dataclass(frozen=True, eq=False)
class _Sides:
    """What an attacker has, as rows (n, d).

    Attributes:
        synthetic: The released records.
        reference: A sample of the population.
        members: Candidates that are members.
        non_members: Candidates that are not.
        seed: Seed of the forest.
    """

    synthetic: Array
    reference: Array
    members: Array
    non_members: Array
    seed: int

    def scaled(self) -> "_Sides":
        """Return the same with columns in standard deviations of the reference sample.

        All pixels have one scale, and equal columns are left out of the scale.
        """
        deviations = self.reference.std(0)
        scale = np.where(deviations > 0, deviations, 1.0)
        if self.reference.shape[1] > _MANY_COLUMNS:
            scale = np.full_like(scale, math.sqrt(np.square(deviations).mean()) or 1.0)
        return _Sides(
            synthetic=self.synthetic / scale,
            reference=self.reference / scale,
            members=self.members / scale,
            non_members=self.non_members / scale,
            seed=self.seed,
        )


def _nearest(sides: _Sides, candidates: Array) -> Array:
    """Score by the negative distance to the nearest synthetic record."""
    return -_distances(sides.synthetic, candidates)


def _density_ratio(sides: _Sides, candidates: Array) -> Array:
    """Score by the log ratio of distances to reference and synthetic records."""
    to_reference = np.log(_distances(sides.reference, candidates) + _LEAST_DISTANCE)
    to_synthetic = np.log(_distances(sides.synthetic, candidates) + _LEAST_DISTANCE)
    return np.asarray(to_reference - to_synthetic)


def _classifier(sides: _Sides, candidates: Array) -> Array:
    """Score by the probability of being synthetic, of a forest.

    Of the synthetic records, those that are nearest to a candidate are used: copies are among them.
    """
    neighbours = NearestNeighbors(n_neighbors=1).fit(sides.synthetic)
    nearest = np.unique(neighbours.kneighbors(candidates, return_distance=False))
    rows = np.concatenate([sides.synthetic[nearest], sides.reference])
    is_synthetic = np.arange(len(rows)) < len(nearest)
    forest = RandomForestClassifier(
        _N_TREES, class_weight="balanced", bootstrap=False, random_state=sides.seed
    )
    forest.fit(rows, is_synthetic)
    return np.asarray(forest.predict_proba(candidates)[:, 1])


ATTACKS: dict[str, Callable[[_Sides, Array], Array]] = {
    "nearest": _nearest,
    "density_ratio": _density_ratio,
    "classifier": _classifier,
}


def _distances(rows: Array, candidates: Array) -> Array:
    """Return the distance (n,) of every candidate to the nearest row."""
    distances, _ = NearestNeighbors(n_neighbors=1).fit(rows).kneighbors(candidates)
    return np.asarray(distances[:, 0])


# Figures


def _result(
    name: str, members: Array, non_members: Array, mu: float | None, strict: float
) -> AttackResult:
    """Return the success of an attack with these scores of members and non-members.

    Args:
        name: Name of the attack.
        members: Scores (m,).
        non_members: Scores (n,).
        mu: The mu of the guarantee, or ``None``.
        strict: Confidence at which the bound must be exceeded.
    """
    area, deviation = auc(members, non_members)
    n_found = _n_found(members, non_members, FPR)
    exceeds = None
    if mu is not None:
        least_area = _interval(area, deviation, strict)[0]
        least_tpr = clopper_pearson(n_found, len(members), strict)[0]
        n_accused = math.floor(FPR * len(non_members))
        largest_fpr = clopper_pearson(n_accused, len(non_members), strict)[1]
        exceeds = least_area > _auc_bound(mu) or least_tpr > _tpr_bound(largest_fpr, mu)
    return AttackResult(
        name=name,
        auc=area,
        auc_interval=_interval(area, deviation, CONFIDENCE),
        tpr=n_found / len(members),
        tpr_interval=clopper_pearson(n_found, len(members), CONFIDENCE),
        exceeds_bound=exceeds,
        curve=tuple(_n_found(members, non_members, rate) / len(members) for rate in _CURVE_FPR),
    )


def auc(members: Array, non_members: Array) -> tuple[float, float]:
    """Return the area under the ROC curve and its standard error (DeLong1988).

    Args:
        members: Scores (m,) of members.
        non_members: Scores (n,) of non-members.
    """
    # For each member the part of the non-members below its score, and for each non-member the part
    # of the members above its score; ties count half.
    sorted_others = np.sort(non_members)
    below = np.searchsorted(sorted_others, members, side="left")
    upto = np.searchsorted(sorted_others, members, side="right")
    members_above = (below + upto) / 2 / len(non_members)
    sorted_members = np.sort(members)
    below = np.searchsorted(sorted_members, non_members, side="left")
    upto = np.searchsorted(sorted_members, non_members, side="right")
    others_below = 1 - (below + upto) / 2 / len(members)
    member_variance = members_above.var(ddof=1) / len(members)
    other_variance = others_below.var(ddof=1) / len(non_members)
    return float(members_above.mean()), math.sqrt(member_variance + other_variance)


def clopper_pearson(n_hits: int, n: int, confidence: float) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a probability.

    ``n_hits`` of n trials were hits.
    """
    tail = (1 - confidence) / 2
    low = 0.0
    high = 1.0
    if n_hits > 0:
        low = float(stats.beta.ppf(tail, n_hits, n - n_hits + 1))
    if n_hits < n:
        high = float(stats.beta.isf(tail, n_hits + 1, n - n_hits))
    return low, high


def _interval(area: float, deviation: float, confidence: float) -> tuple[float, float]:
    """Return the interval of an area under a ROC curve."""
    reach = float(stats.norm.isf((1 - confidence) / 2)) * deviation
    return max(0.0, area - reach), min(1.0, area + reach)


def _n_found(members: Array, non_members: Array, fpr: float) -> int:
    """Return how many members are found at a false-positive rate.

    At most ``fpr`` of the non-members are accused.
    """
    n_accused = math.floor(fpr * len(non_members))
    if n_accused == len(non_members):
        return len(members)
    threshold = np.sort(non_members)[::-1][n_accused]
    return int((members > threshold).sum())


# The bound


def _auc_bound(mu: float) -> float:
    """Return the largest area under the ROC curve that mu permits."""
    return float(stats.norm.cdf(mu / math.sqrt(2)))


def _tpr_bound(fpr: float, mu: float) -> float:
    """Return the largest true-positive rate that mu permits."""
    return float(stats.norm.cdf(stats.norm.ppf(fpr) + mu))


def _bound(mu: float) -> dict[str, Any]:
    """Return what mu permits, in the form of the rows of attacks."""
    return {
        "mu": mu,
        "auc": _auc_bound(mu),
        "tpr": _tpr_bound(FPR, mu),
        "curve": [_tpr_bound(fpr, mu) for fpr in _CURVE_FPR],
    }


# The picture


def figure(path: Path, result: dict[str, Any]) -> None:
    """Write a picture of the ROC curves and the bound.

    It shows all rates, and small false-positive rates.

    Args:
        path: The PNG file.
        result: The result of :func:`attack`.
    """
    # slow to import: needed for pictures alone
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    picture = Figure(figsize=(9, 4.2), dpi=150, layout="constrained")
    whole, small = picture.subplots(1, 2)
    fpr = np.array(result["curve_fpr"])
    for axes in (whole, small):
        bound = result["bound"]
        if bound is not None:
            axes.fill_between(fpr, bound["curve"], 1.0, color="0.88")
            label = f"bound of mu = {bound['mu']:.3g}: AUC {bound['auc']:.3f}"
            axes.plot(fpr, bound["curve"], color="0.3", linestyle="--", label=label)
        for row in result["attacks"]:
            label = f"{row['name'].replace('_', ' ')}: AUC {row['auc']:.3f}"
            axes.step(fpr, row["curve"], where="post", label=label)
        axes.plot(fpr, fpr, color="0.6", linestyle=":", label="guessing")
        axes.set_xlabel("non-members accused (FPR)")
        axes.set_ylabel("members found (TPR)")
    whole.set(xlim=(0, 1), ylim=(0, 1.01))
    whole.legend(loc="lower right", fontsize=9)
    small.set(xscale="log", yscale="log", xlim=(1e-3, 1), ylim=(1e-3, 1.1))
    atomic_write(path, FigureCanvasAgg(picture).print_png)
