r"""What is released, and with which noise: frozen objects that answer for their own sensitivity.

A *release* projects ``batch_size`` clipped rows on fresh random directions U, reduces every column to
``n_values`` sorted numbers, and adds ``N(0, sigma^2)`` to each. Neighbouring data sets have the same size and
differ in one record (replace-one), so that a row moves by at most ``2 * row_norm``. The squared L2
sensitivity of a release, given U, is ``unit_sensitivity**2 * S`` with S from :mod:`dpswd.sensitivity`:

=============  ==============================================================  ==========================
statistic      what leaves                                                     ``unit_sensitivity``
=============  ==============================================================  ==========================
``rows``       ``X U + V``, each column sorted after the noise                  ``2 row_norm``
``quantiles``  sorted columns of ``X U``, means of blocks of b, plus noise      ``2 row_norm / b``
=============  ==============================================================  ==========================

Proof for quantiles. Let one entry of a list move from u to v > u. In sorted order every rank statistic moves
up or stays, and the total movement is exactly v - u (the sum of the list is what it was plus v - u). A block
mean is 1/b times the movement inside the block, so the vector of block means moves by at most (v - u) / b in
L1, hence in L2. Over the k columns the squares add up to
``|| (x - x')^T U ||^2 / b^2 <= (2 row_norm)^2 S / b^2``. It is attained when every entry moves within one
block.

Proof for labels (``n_classes``: a record (x, c) is embedded as x times one-hot c; every class block has B
rows, zero where the record is of another class). Same class: one block sees what is proved above. Another
class: block c sees x replaced by 0, block c' sees 0 replaced by x'; squares add up to
``(||U^T x||^2 + ||U^T x'||^2) / b^2``, at most ``2 row_norm^2 S / b^2`` when S is constant: half of the
same-class case. Random S: see ``ProjectionLaw.class_blocks``.

References:
    | Rakotomamonjy2021, Section 3 (rows). The block means and the label embedding are ours.
"""

import dataclasses
import numbers
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from dpswd._validate import at_least, choice, positive, probability
from dpswd.errors import InputError
from dpswd.sensitivity import ConstantLaw, Law, ProjectionLaw, bernstein_bound, clt_bound

__all__ = ["GaussianMechanism", "Mechanism", "ProjectionMechanism", "mechanism_from_dict"]

_LEAST, _MOST = 1e-50, 1e50  # of sigma, norms and sensitivities: their ratios and squares are then floats, too

Statistic = Literal["rows", "quantiles"]
ProjectionKind = Literal["iid", "orthogonal"]
BoundKind = Literal["exact", "bernstein", "clt"]


@runtime_checkable
class Mechanism(Protocol):
    """What an accountant needs to know: noise, the law of the sensitivity, and what voids the guarantee."""

    @property
    def sigma(self) -> float:
        """Standard deviation of the Gaussian noise, in the units of what is released."""

    @property
    def unit_sensitivity(self) -> float:
        """Sensitivity where S = 1, in the same units."""

    @property
    def law(self) -> Law:
        """The law of S."""

    @property
    def batch_size(self) -> int | None:
        """Rows that one release reads; ``None`` where it reads all of them."""

    @property
    def is_private(self) -> bool:
        """False where a fixed noise seed voids the guarantee."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the ledger and the report."""


@dataclass(frozen=True)
class ProjectionMechanism:
    """One release of noisy one-dimensional projections.

    Attributes:
        dim: Dimension d >= 2 of the rows.
        n_projections: Number k >= 1 of random directions.
        sigma: Standard deviation of the noise, in the units of the projected rows (absolute).
        batch_size: Number B of rows that one release reads.
        statistic: ``"rows"`` (the paper) or ``"quantiles"`` (block means of sorted columns).
        n_quantiles: Number m of blocks per column; divides ``batch_size``. Wanted for ``"quantiles"`` only.
        row_norm: Public bound on the L2 norm of a row, enforced by clipping.
        kind: ``"iid"`` or ``"orthogonal"`` directions; the latter, with k a multiple of d, has the constant
            S = k / d.
        bound: How a random S is accounted for: ``"exact"`` (its law), ``"bernstein"`` or ``"clt"`` (not
            rigorous).
        failure_prob: Tail probability per release of the Bernstein and CLT bounds. ``None`` leaves the choice
            to the accountant, which then spends half of delta on the tails.
        n_classes: Number of classes where records are embedded as row times one-hot label, else ``None``.
        noise_seed: For tests only. A fixed seed makes noise, directions and batches repeatable: NOT PRIVATE.

    Raises:
        InputError: If a value is out of range or does not fit the others.

    Example:
        >>> mechanism = ProjectionMechanism(
        ...     dim=64, n_projections=128, sigma=0.05, batch_size=1000, statistic="quantiles", n_quantiles=50,
        ...     kind="orthogonal")
        >>> mechanism.block_size, mechanism.law.mean, mechanism.unit_sensitivity
        (20, 2.0, 0.05)
    """

    dim: int
    n_projections: int
    sigma: float
    batch_size: int
    statistic: Statistic = "rows"
    n_quantiles: int | None = None
    row_norm: float = 0.5
    kind: ProjectionKind = "iid"
    bound: BoundKind = "exact"
    failure_prob: float | None = field(default=None, kw_only=True)
    n_classes: int | None = field(default=None, kw_only=True)
    noise_seed: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        at_least(2, dim=self.dim)
        at_least(1, n_projections=self.n_projections, batch_size=self.batch_size)
        _magnitude(sigma=self.sigma, row_norm=self.row_norm)
        choice(("rows", "quantiles"), statistic=self.statistic)
        choice(("iid", "orthogonal"), kind=self.kind)
        choice(("exact", "bernstein", "clt"), bound=self.bound)
        if self.failure_prob is not None:
            probability(failure_prob=self.failure_prob)
        if self.n_classes is not None:
            at_least(2, n_classes=self.n_classes)
        if self.noise_seed is not None:
            at_least(0, noise_seed=self.noise_seed)
        self._check_blocks()
        if self.bound != "exact" and not self._free_law.is_constant and self.kind != "iid":
            raise InputError(
                f"Expected bound='exact' for orthogonal directions that are no whole bases (n_projections="
                f"{self.n_projections}, dim={self.dim}), got bound={self.bound!r}."
            )
        _make_plain(self)

    def _check_blocks(self) -> None:
        if self.statistic == "rows":
            if self.n_quantiles is not None:
                raise InputError(
                    f"Expected no n_quantiles for statistic='rows', got n_quantiles={self.n_quantiles!r}; "
                    "use statistic='quantiles' or leave it out."
                )
            return
        if self.n_quantiles is None:
            raise InputError("Expected n_quantiles for statistic='quantiles', got none; give the number of blocks.")
        at_least(1, n_quantiles=self.n_quantiles)
        if self.batch_size % self.n_quantiles:
            lower = self.batch_size // self.n_quantiles * self.n_quantiles
            remedy = f"use batch_size={lower}" if lower else f"use n_quantiles <= {self.batch_size}"
            raise InputError(
                f"Expected n_quantiles to divide batch_size, got n_quantiles={self.n_quantiles} and "
                f"batch_size={self.batch_size}; {remedy}."
            )

    @property
    def n_values(self) -> int:
        """Number of values that leave per column: B for rows, m for quantiles."""
        return self.batch_size if self.n_quantiles is None else self.n_quantiles

    @property
    def block_size(self) -> int:
        """Number b of rows whose sorted projections are averaged into one value."""
        return self.batch_size // self.n_values

    @property
    def unit_sensitivity(self) -> float:
        """L2 sensitivity where S = 1: ``2 row_norm / b``."""
        return 2 * self.row_norm / self.block_size

    @property
    def _free_law(self) -> ProjectionLaw:
        return ProjectionLaw(self.dim, self.n_projections, self.kind, class_blocks=self.n_classes is not None)

    @property
    def law(self) -> Law:
        """The law of S that is accounted for; a constant where the bound is Bernstein's or the CLT's.

        Raises:
            InputError: If the bound spends a tail and ``failure_prob`` has not been chosen.
        """
        if not self.spends_tail:
            return self._free_law
        if self.failure_prob is None:
            raise InputError(
                f"Expected failure_prob for bound={self.bound!r}, got none; give the tail probability per release."
            )
        bound = bernstein_bound if self.bound == "bernstein" else clt_bound
        # two blocks may fail where classes change: the union bound halves the tail of each
        tail = self.failure_prob / 2 if self.n_classes is not None else self.failure_prob
        return ConstantLaw(bound(self.n_projections, self.dim, tail))

    @property
    def spends_tail(self) -> bool:
        """Whether every release spends ``failure_prob`` of delta on the law of S."""
        return self.bound != "exact" and not self._free_law.is_constant

    @property
    def is_private(self) -> bool:
        """False where a fixed noise seed voids the guarantee."""
        return self.noise_seed is None

    @property
    def noise_multiplier(self) -> float:
        """Noise relative to the sensitivity, ``sigma / (unit_sensitivity sqrt(mean of S))``."""
        return float(self.sigma / (self.unit_sensitivity * self.law.mean**0.5))

    def replace(self, **changes: Any) -> "ProjectionMechanism":
        """Returns a copy with some values changed, checked again."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the ledger and the report."""
        return {"mechanism": "projections", **dataclasses.asdict(self)}

    @property
    def description(self) -> str:
        """One line for a person."""
        values = f"{self.n_values} {'block means' if self.statistic == 'quantiles' else 'rows'}"
        classes = f" for each of {self.n_classes} classes" if self.n_classes else ""
        return f"{self.n_projections} {self.kind} projections of {self.dim}-d rows, {values} each{classes}"


@dataclass(frozen=True, kw_only=True)
class GaussianMechanism:
    """A release of a query with known L2 sensitivity under replace-one, plus Gaussian noise.

    Class counts (sensitivity ``sqrt(2)``), a second moment (``sqrt(2) R^2`` in Frobenius norm), and the like.

    Attributes:
        sensitivity: L2 sensitivity under replace-one, in the units of the query.
        sigma: Standard deviation of the noise, in the same units.
        name: What is released, for the ledger.
        batch_size: Rows that one release reads; ``None`` for all of them.
        noise_seed: For tests only: NOT PRIVATE.
    """

    sensitivity: float
    sigma: float
    name: str = "gaussian"
    batch_size: int | None = None
    noise_seed: int | None = None

    def __post_init__(self) -> None:
        _magnitude(sensitivity=self.sensitivity, sigma=self.sigma)
        if not isinstance(self.name, str):
            raise InputError(f"Expected name to be a string, got {type(self.name).__name__}; say what is released.")
        if self.batch_size is not None:
            at_least(1, batch_size=self.batch_size)
        if self.noise_seed is not None:
            at_least(0, noise_seed=self.noise_seed)
        _make_plain(self)

    @property
    def unit_sensitivity(self) -> float:
        """The sensitivity itself: S is the constant 1."""
        return self.sensitivity

    @property
    def law(self) -> Law:
        """The constant 1."""
        return ConstantLaw(1.0)

    @property
    def is_private(self) -> bool:
        """False where a fixed noise seed voids the guarantee."""
        return self.noise_seed is None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for the ledger and the report."""
        return {"mechanism": "gaussian", **dataclasses.asdict(self)}

    @property
    def description(self) -> str:
        """One line for a person."""
        return f"{self.name} (Gaussian mechanism, sensitivity {self.sensitivity:g})"


def mechanism_from_dict(values: dict[str, Any]) -> ProjectionMechanism | GaussianMechanism:
    """Makes the mechanism again from what ``to_dict`` gave.

    Raises:
        InputError: If the kind is unknown or the fields do not fit (refused rather than guessed).
    """
    kinds = ("projections", "gaussian")
    if not isinstance(values, dict):
        raise InputError(f"Expected a mechanism as to_dict() gives it, got {type(values).__name__}.")
    kind = values.get("mechanism")
    if kind not in kinds:
        raise InputError(f"Expected mechanism to be one of {', '.join(kinds)}, got {kind!r}.")
    fields = {name: value for name, value in values.items() if name != "mechanism"}
    try:
        return ProjectionMechanism(**fields) if kind == "projections" else GaussianMechanism(**fields)
    except TypeError as error:
        raise InputError(f"Expected the fields of a {kind} mechanism, got {sorted(fields)}: {error}.") from None


def _magnitude(**named: Any) -> None:
    """Raises unless every value is a positive number of a size that means anything."""
    positive(**named)
    for name, value in named.items():
        if not _LEAST <= float(value) <= _MOST:
            raise InputError(f"Expected {name} between {_LEAST:g} and {_MOST:g}, got {value!r}; use other units.")


def _make_plain(mechanism: Any) -> None:
    """Turns NumPy's numbers, which the ledger's JSON does not know, into Python's."""
    for each in dataclasses.fields(mechanism):
        value = getattr(mechanism, each.name)
        if isinstance(value, numbers.Integral):
            object.__setattr__(mechanism, each.name, int(value))
        elif isinstance(value, numbers.Real):
            object.__setattr__(mechanism, each.name, float(value))
