r"""The conventions of Rakotomamonjy2021 and its code: to reproduce its Table 4, NOT to protect anybody.

The noise levels of Table 4 come from three conventions that differ from ours and are not a sound account
together:

1. Bernstein's deviation counts the number of projections twice, :math:`\sqrt{2k (kv) L}` for
   :math:`\sqrt{2kvL}`;
2. the tail of the bound is charged once for the whole training, although every step draws its own
   projections;
3. half of delta pays for that tail, but the Renyi curve is converted at the whole delta: 3/2 delta are spent.
   (The authors' repository says so, "used delta instead of delta2", and gives corrected values;
   ``corrected=True`` follows it.)

The first one errs towards privacy, by so much that the other two are hidden; without it, they would not be
sound.
"""

import math
from typing import NamedTuple

from scipy import optimize, stats

from dpswd._validate import choice, positive, probability
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.pld import Releases
from dpswd.accounting.rdp import MAX_ORDER, RenyiAccount
from dpswd.errors import InputError
from dpswd.mechanism import ProjectionMechanism
from dpswd.sensitivity import ConstantLaw

__all__ = ["ERRATA", "TABLE4", "Table4Row", "published_bound", "published_epsilon", "published_sigma"]

ERRATA = (
    "NOT SOUND: conventions of Rakotomamonjy2021 and its code, for comparison only (docs/errata.md).",
    "Erratum 1: the deviation in Bernstein's bound counts the number of projections twice.",
    "Erratum 2: the tail of the bound is charged once for the whole run; it must be charged at every release.",
    "Erratum 2b: half of delta pays for the tail, yet the Renyi curve is converted at the whole delta.",
)


class Table4Row(NamedTuple):
    """A row of Table 4: the setting, and the printed sigma for epsilon = 10 (``None`` where we have none)."""

    name: str
    dim: int
    n_projections: int
    sample_size: int
    batch_size: int
    n_releases: int
    delta: float
    sigma: float | None

    @property
    def mechanism(self) -> ProjectionMechanism:
        """The release, with sigma 1."""
        return ProjectionMechanism(
            dim=self.dim, n_projections=self.n_projections, sigma=1.0, batch_size=self.batch_size
        )


TABLE4 = (
    Table4Row("USPS-MNIST", 784, 200, 10_000, 128, 7_900, 1e-5, 4.74),
    Table4Row("MNIST (b)", 784, 1000, 60_000, 100, 60_100, 1e-5, 2.94),
    Table4Row("Office-31", 50, 100, 497, 32, 800, 1e-3, 8.05),
    Table4Row("VisDA", 100, 1000, 55_387, 128, 21_650, 1e-5, None),
    Table4Row("CelebA", 8192, 2000, 162_000, 256, 63_300, 1e-6, None),
)


def published_bound(dim: int, n_projections: int, tail: float, bound: str = "bernstein") -> float:
    """Computes the squared sensitivity that the paper's code uses at tail probability ``tail``."""
    choice(("bernstein", "clt"), bound=bound)
    k, d, log_inverse = n_projections, dim, -math.log(tail)
    variance = 2 * (d - 1) / (d**2 * (d + 2))
    if bound == "clt":
        return float(k / d + stats.norm.isf(tail) * math.sqrt(k * variance))
    return k / d + 2 / 3 * log_inverse + math.sqrt(2 * k * (k * variance) * log_inverse)


def published_epsilon(
    mechanism: ProjectionMechanism,
    sample_size: int,
    n_releases: int,
    delta: float,
    *,
    corrected: bool = False,
) -> float:
    """Computes the epsilon that the paper's code prints; not a guarantee.

    Args:
        mechanism: What is released; ``bound`` must be ``"bernstein"`` or ``"clt"``.
        sample_size: Number N of records.
        n_releases: Number T of releases.
        delta: The whole delta.
        corrected: Whether to convert the Renyi curve at delta / 2, as the authors' repository later does.
    """
    if mechanism.bound == "exact" or mechanism.statistic != "rows" or mechanism.kind != "iid":
        raise InputError(
            "Expected bound 'bernstein' or 'clt', statistic='rows' and kind='iid' for the published "
            "conventions, got "
            f"bound={mechanism.bound!r}, statistic={mechanism.statistic!r}, kind={mechanism.kind!r}; leave "
            "out the preset."
        )
    probability(delta=delta)
    PrivacyAccountant().step(mechanism, sample_size=sample_size, n_releases=n_releases)  # its checks
    value = published_bound(mechanism.dim, mechanism.n_projections, delta / 2, mechanism.bound)
    scale = mechanism.unit_sensitivity / mechanism.sigma
    part = Releases(ConstantLaw(value), scale, mechanism.batch_size / sample_size, n_releases)
    return RenyiAccount([part]).get_epsilon(delta / 2 if corrected else delta)


def published_sigma(
    mechanism: ProjectionMechanism,
    sample_size: int,
    n_releases: int,
    *,
    target_epsilon: float,
    target_delta: float,
    corrected: bool = False,
) -> float:
    """Computes the sigma at which the paper's code prints ``target_epsilon``, to 1e-4; see there."""
    positive(target_epsilon=target_epsilon)
    probability(target_delta=target_delta)
    least = -math.log(target_delta) / (MAX_ORDER - 1)  # what the conversion adds at the largest order
    if target_epsilon <= 1.01 * least:
        raise InputError(
            f"Expected target_epsilon > {1.01 * least:.2g}, the least that Renyi orders up to {MAX_ORDER} "
            "can show, "
            f"got target_epsilon={target_epsilon!r}; use a larger one."
        )

    def gap(log_sigma: float) -> float:
        candidate = mechanism.replace(sigma=math.exp(log_sigma))
        return published_epsilon(candidate, sample_size, n_releases, target_delta, corrected=corrected) - target_epsilon

    low = math.log(mechanism.unit_sensitivity)  # noise as large as the move of a row
    stride = 1.0 if gap(low) > 0 else -1.0
    while gap(low) * gap(low + stride) > 0:
        low += stride
    return math.exp(optimize.brentq(gap, low, low + stride, xtol=1e-4))
