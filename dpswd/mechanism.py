r"""Mechanisms: what a release computes, its noise and its sensitivity.

A *release* projects ``batch_size`` clipped rows on fresh random directions U, reduces every column
to ``n_values`` sorted numbers and adds ``N(0, sigma^2)`` to each. Its squared L2 sensitivity under
replace-one, given U, is ``unit_sensitivity**2 * S`` with S as in :mod:`dpswd.sensitivity`:

=============  ==========================================================  ====================
statistic      released values                                             ``unit_sensitivity``
=============  ==========================================================  ====================
``rows``       ``X U + V``, each column sorted after the noise             ``2 row_norm``
``quantiles``  sorted columns of ``X U``, means of blocks of b, and noise  ``2 row_norm / b``
=============  ==========================================================  ====================

With ``n_classes``, a record (x, c) is embedded as x times one-hot c: every class has a block of B
rows, zero where the record is of another class. Proofs: docs/theory/sensitivity.md, Propositions 2
(rows), 3 (block means) and 5 (labels).

With ``precision="single"``, directions and products are in float32, whose rounding makes S larger
by about 0.3 % at d = 784 (Proposition 38).

With ``noise_free``, nothing is added: the exact values leave, rounded to a grid of width about
``sigma`` / 1000. A budget with epsilon = inf sets it, for public stand-ins of records: NOT PRIVATE.

With ``per_unit`` = c, neighbours differ in the c records of one unit (one person), and
``batch_size`` counts units: a release reads ``batch_size`` c rows. The sensitivity of a sum, and of
block means, is c times that of one record, and that of rows sqrt(c) times. Proofs:
docs/theory/units.md.
"""

import dataclasses
import math
import numbers
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from dpswd._validate import at_least, choice, positive, probability, real, whole_frames
from dpswd.errors import InputError
from dpswd.sensitivity import (
    ConstantLaw,
    Law,
    ProjectionLaw,
    RoundedLaw,
    bernstein_bound,
    clt_bound,
    product_error,
)

__all__ = ["GaussianMechanism", "ProjectionMechanism"]

# Range of sigma, norms and sensitivities. No ratio or square of such numbers overflows.
_SMALLEST = 1e-50
_LARGEST = 1e50
# Largest dimension of rows in single precision, which bounds the error of their norms.
_LARGEST_SINGLE_DIM = 2**16

Statistic = Literal["rows", "quantiles"]
ProjectionKind = Literal["iid", "orthogonal", "structured"]
BoundKind = Literal["exact", "bernstein", "clt"]
Precision = Literal["double", "single"]


class _Noisy:
    """What the mechanisms have in common."""

    _name: ClassVar[str]  # in the dictionary of a mechanism
    sigma: Any  # a number, or None until the mechanism is calibrated
    per_unit: int
    noise_seed: int | None
    noise_free: bool

    def _check(self, **magnitudes: float) -> None:
        """Check what the mechanisms have in common, and further magnitudes."""
        at_least(1, per_unit=self.per_unit)
        if self.sigma is not None:
            magnitudes["sigma"] = self.sigma
        for name, value in magnitudes.items():
            positive(**{name: value})
            if not _SMALLEST <= real(name, value) <= _LARGEST:
                raise InputError(
                    f"Expected {name} in [{_SMALLEST:g}, {_LARGEST:g}], got {value!r}; "
                    "use other units."
                )
        if self.noise_seed is not None:
            at_least(0, noise_seed=self.noise_seed)
        self._convert_scalars()

    def _convert_scalars(self) -> None:
        """Replace NumPy scalars, which JSON cannot represent, by Python numbers."""
        for name, value in vars(self).items():
            if isinstance(value, bool):
                continue
            if isinstance(value, numbers.Integral):
                object.__setattr__(self, name, int(value))
            elif isinstance(value, numbers.Real):
                object.__setattr__(self, name, float(value))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the ledger and the report."""
        values = {"mechanism": self._name, **vars(self)}
        if not self.noise_free:
            del values["noise_free"]
        return values

    @property
    def _suffix_of_units(self) -> str:
        """End of the description for units of several records; empty otherwise."""
        if self.per_unit == 1:
            return ""
        return f", {self.per_unit} records of a unit at once"

    @property
    def is_private(self) -> bool:
        """Whether there is noise, and it is cryptographic; False with a fixed noise seed."""
        return self.noise_seed is None and not self.noise_free

    @property
    def why_not_private(self) -> str:
        """Why the releases are not private, in a few words; empty if they are."""
        if self.noise_free:
            return "no noise is added (epsilon = inf)"
        if self.noise_seed is not None:
            return "a fixed noise seed makes the noise repeatable"
        return ""

    def check_calibrated(self) -> None:
        """Raise an :class:`InputError` if ``sigma`` is not set."""
        if self.sigma is None:
            raise InputError(
                "Expected a mechanism with sigma, got none; use PrivacyBudget in a training, or "
                "Budget, or mechanism.calibrate(...)."
            )


@dataclass(frozen=True)
class ProjectionMechanism(_Noisy):
    """One release of noisy one-dimensional projections.

    Attributes:
        dim: Dimension d >= 2 of the rows.
        n_projections: Number k >= 1 of random directions.
        sigma: Standard deviation of the noise, in the units of the projected rows. ``None`` until
            the mechanism is calibrated, see :meth:`calibrate`. A budget sets it by its target,
            whatever it was before.
        batch_size: Number B >= 1 of rows that one release reads; required.
        statistic: ``"rows"`` (the paper) or ``"quantiles"`` (block means of sorted columns). The
            mean of b values moves by 1 / b of what one of them moves, so that block means of b rows
            have 1 / b of the noise of rows at the same budget.
        n_quantiles: Number m of blocks per column, a divisor of ``batch_size``; for ``"quantiles"``
            only.
        row_norm: Public bound on the L2 norm of a row, enforced by clipping.
        kind: ``"iid"``, ``"orthogonal"`` or ``"structured"`` directions. The sensitivity depends on
            S, the sum of the squared projections of a unit vector, which is random for iid
            directions. Orthogonal directions with k a multiple of d have S = k / d for every
            vector. So have structured ones (:class:`dpswd.StructuredProjections`), for which k must
            be a multiple of n, the least power of two that is not below d; they are faster from
            about d = 200 on.
        bound: Treatment of a random S: ``"exact"`` (its law), ``"bernstein"`` or ``"clt"`` (not
            rigorous).
        failure_prob: Tail probability per release of the Bernstein and CLT bounds. With ``None``
            the accountant chooses it and spends half of delta on the tails.
        n_classes: Number of classes if a record is embedded as row times one-hot label, else
            ``None``.
        per_unit: Number c of records of a unit that change together; a budget sets it to that of
            the records.
        precision: ``"double"``: directions and private products in float64. ``"single"``: in
            float32, for directions of kind ``"iid"`` or ``"orthogonal"`` and rows without classes.
            A release of many directions takes less time, and its sensitivity is larger by about
            0.13 % at d = 784 and 0.6 % at d = 8,192, which ``law`` includes.
        noise_seed: For tests only. A fixed seed makes noise, directions and batches repeatable: NOT
            PRIVATE.
        noise_free: Whether the exact values leave: NOT PRIVATE.

    Raises:
        InputError: If a value is out of range or inconsistent with another one.

    Example:
        >>> mechanism = ProjectionMechanism(
        ...     dim=64, n_projections=128, sigma=0.05, batch_size=1000, statistic="quantiles",
        ...     n_quantiles=50, kind="orthogonal")
        >>> mechanism.block_size, mechanism.law.mean, mechanism.unit_sensitivity
        (20, 2.0, 0.05)
    """

    _name = "projections"
    dim: int
    n_projections: int
    # None until calibrated, which check_calibrated() refuses
    sigma: float = None  # type: ignore[assignment]
    batch_size: int = 0  # required: 0 is refused
    statistic: Statistic = "rows"
    n_quantiles: int | None = None
    row_norm: float = 0.5
    kind: ProjectionKind = "iid"
    bound: BoundKind = "exact"
    failure_prob: float | None = field(default=None, kw_only=True)
    n_classes: int | None = field(default=None, kw_only=True)
    per_unit: int = field(default=1, kw_only=True)
    precision: Precision = field(default="double", kw_only=True)
    noise_seed: int | None = field(default=None, kw_only=True)
    noise_free: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        at_least(2, dim=self.dim)
        at_least(1, n_projections=self.n_projections, batch_size=self.batch_size)
        choice(("rows", "quantiles"), statistic=self.statistic)
        choice(("iid", "orthogonal", "structured"), kind=self.kind)
        if self.kind == "structured":
            whole_frames(self.dim, self.n_projections)
        choice(("exact", "bernstein", "clt"), bound=self.bound)
        if self.failure_prob is not None:
            probability(failure_prob=self.failure_prob)
        if self.n_classes is not None:
            at_least(2, n_classes=self.n_classes)
        self._check_blocks()
        self._check_precision()
        if self.spends_tail and self.kind != "iid":
            raise InputError(
                "Expected bound='exact' for orthogonal directions unless "
                f"n_projections={self.n_projections} is a multiple of dim={self.dim}, "
                f"got {self.bound!r}; leave bound out."
            )
        self._check(row_norm=self.row_norm)

    def _check_precision(self) -> None:
        """Check that single precision has a bound on its error."""
        choice(("double", "single"), precision=self.precision)
        if self.precision == "double":
            return
        if self.kind == "structured":
            raise InputError(
                "Expected precision='double' for kind='structured', whose sums in float32 are "
                "exact, got 'single'; leave it out."
            )
        if self.dim > _LARGEST_SINGLE_DIM:
            raise InputError(
                f"Expected dim <= {_LARGEST_SINGLE_DIM} with precision='single', got {self.dim}; "
                "use precision='double'."
            )
        if self.n_classes is not None:
            raise InputError(
                f"Expected precision='double' with n_classes={self.n_classes}, got 'single'; "
                "use kind='structured' for speed."
            )

    def _check_blocks(self) -> None:
        """Check that block means alone have blocks, whose number divides the batch."""
        if (self.statistic == "rows") != (self.n_quantiles is None):
            raise InputError(
                "Expected a number of blocks n_quantiles for statistic='quantiles' and none for "
                f"'rows', got n_quantiles={self.n_quantiles!r} for {self.statistic!r}; change one "
                "of them."
            )
        if self.n_quantiles is None:
            return
        at_least(1, n_quantiles=self.n_quantiles)
        if self.batch_size % self.n_quantiles == 0:
            return
        largest = self.batch_size // self.n_quantiles * self.n_quantiles
        remedy = f"use batch_size={largest}"
        if largest == 0:
            remedy = f"use n_quantiles <= {self.batch_size}"
        raise InputError(
            f"Expected n_quantiles to divide batch_size, got n_quantiles={self.n_quantiles} and "
            f"batch_size={self.batch_size}; {remedy}."
        )

    @property
    def n_rows(self) -> int:
        """Number B c of rows that one release reads."""
        return self.batch_size * self.per_unit

    @property
    def n_values(self) -> int:
        """Number of released values per column: B c for rows, m for quantiles."""
        if self.n_quantiles is None:
            return self.n_rows
        return self.n_quantiles

    @property
    def block_size(self) -> int:
        """Number b of neighbouring sorted projections that are averaged into one value."""
        return self.n_rows // self.n_values

    @property
    def unit_sensitivity(self) -> float:
        """L2 sensitivity at S = 1: ``2 row_norm / b``.

        For units it is c times as large (block means), or sqrt(c) times (rows).
        """
        record_sensitivity = 2 * self.row_norm / self.block_size
        if self.statistic == "rows":
            return math.sqrt(self.per_unit) * record_sensitivity
        return self.per_unit * record_sensitivity

    @property
    def exact_law(self) -> ProjectionLaw:
        """The law of S in real numbers, whatever the bound."""
        return ProjectionLaw(
            self.dim,
            self.n_projections,
            self.kind,
            labelled=self.n_classes is not None,
            n_replaced=self.per_unit,
        )

    @property
    def law(self) -> Law:
        """The law of S for accounting.

        It is a constant for the Bernstein and CLT bounds, which need ``failure_prob``. In single
        precision it includes the rounding.
        """
        if self.precision == "double":
            return self._law_in_real_numbers
        error = product_error(self.dim) * math.sqrt(self.n_projections)
        return RoundedLaw(self._law_in_real_numbers, error)

    @property
    def _law_in_real_numbers(self) -> ConstantLaw | ProjectionLaw:
        """The law of S, or its bound, without rounding."""
        if not self.spends_tail:
            return self.exact_law
        if self.failure_prob is None:
            raise InputError(
                f"Expected failure_prob, the tail per release, for bound={self.bound!r}, got none; "
                "state it, or use bound='exact'."
            )
        bound = clt_bound
        if self.bound == "bernstein":
            bound = bernstein_bound
        # by the union bound each of the records of a unit gets its part of the tail
        tail = self.failure_prob / self.per_unit
        if self.n_classes is not None:
            tail /= 2  # a change of class moves two blocks
        return ConstantLaw(bound(self.n_projections, self.dim, tail))

    @property
    def spends_tail(self) -> bool:
        """Whether every release spends ``failure_prob`` of delta on the law of S."""
        return self.bound != "exact" and not self.exact_law.is_constant

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for the ledger and the report."""
        values = super().to_dict()
        if self.precision == "double":
            del values["precision"]
        return values

    def replace(self, **changes: Any) -> "ProjectionMechanism":
        """Return a validated copy with some values changed."""
        return dataclasses.replace(self, **changes)

    def calibrate(self, **budget: Any) -> "ProjectionMechanism":
        """Return a copy with the smallest ``sigma`` that keeps a budget.

        Args:
            budget: ``sample_size``, ``n_releases`` and a target, as :func:`dpswd.calibrate_sigma`
                takes them.

        Raises:
            InputError: If the budget is missing, contradictory or out of range.

        Example:
            >>> mechanism = ProjectionMechanism(
            ...     64, 64, batch_size=1000, statistic="quantiles", n_quantiles=10,
            ...     kind="orthogonal")
            >>> round(mechanism.calibrate(sample_size=1000, n_releases=1, target_mu=1.0).sigma, 3)
            0.01
        """
        # upwards: an exception in .importlinter
        from dpswd.accounting.calibrate import calibrate_sigma

        return self.replace(sigma=calibrate_sigma(self, **budget))

    @property
    def released(self) -> str:
        """What is released, in a few words."""
        statistic = "rows" if self.statistic == "rows" else "block means"
        return f"{statistic} of {self.n_projections:,} projections"

    @property
    def description(self) -> str:
        """One-line description."""
        text = f"{self.n_projections} {self.kind} projections of {self.dim}-d rows, "
        if self.statistic == "quantiles":
            text += f"{self.n_values} block means each"
        else:
            text += f"{self.n_values} rows each"
        if self.n_classes is not None:
            text += f" for each of {self.n_classes} classes"
        if self.precision == "single":
            text += ", in single precision"
        return text + self._suffix_of_units


@dataclass(frozen=True, kw_only=True)
class GaussianMechanism(_Noisy):
    """A query of known L2 sensitivity under replace-one, plus Gaussian noise.

    Attributes:
        sensitivity: L2 sensitivity under replace-one, in the units of the query.
        sigma: Standard deviation of the noise, in the same units; ``None`` until it is calibrated.
        name: Name of the query in the ledger.
        batch_size: Number of rows, or of units, that one release reads; ``None`` for all records.
        per_unit: Number c of records of a unit that change together; a budget sets it to that of
            the records.
        noise_seed: For tests only: NOT PRIVATE.
        noise_free: Whether the exact values leave: NOT PRIVATE.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> GaussianMechanism(sensitivity=1.0, sigma=2.0).unit_sensitivity
        1.0
    """

    _name = "gaussian"
    law: ClassVar[Law] = ConstantLaw(1.0)  # of S
    bound: ClassVar[str] = "exact"
    spends_tail: ClassVar[bool] = False
    failure_prob: ClassVar[float | None] = None
    sensitivity: float
    sigma: float = None  # type: ignore[assignment]  # as in ProjectionMechanism
    name: str = "gaussian"
    batch_size: int | None = None
    per_unit: int = 1
    noise_seed: int | None = None
    noise_free: bool = False

    def __post_init__(self) -> None:
        if self.batch_size is not None:
            at_least(1, batch_size=self.batch_size)
        self._check(sensitivity=self.sensitivity)

    @property
    def unit_sensitivity(self) -> float:
        """The sensitivity, since S = 1; for units times c."""
        return self.per_unit * self.sensitivity

    @property
    def released(self) -> str:
        """What is released, in a few words."""
        return self.name

    @property
    def description(self) -> str:
        """One-line description."""
        text = f"{self.name} (Gaussian mechanism, sensitivity {self.unit_sensitivity:g})"
        return text + self._suffix_of_units


Mechanism = ProjectionMechanism | GaussianMechanism


def mechanism_from_dict(values: dict[str, Any]) -> Mechanism:
    """Restore a mechanism from the result of ``to_dict``.

    Raises:
        InputError: If the values are not those of a mechanism.
    """
    classes: dict[str, type[Mechanism]] = {
        ProjectionMechanism._name: ProjectionMechanism,
        GaussianMechanism._name: GaussianMechanism,
    }
    try:
        fields = {**values}
        mechanism_class = classes[fields.pop("mechanism")]
        return mechanism_class(**fields)
    except (KeyError, TypeError) as error:
        raise InputError(
            f"Expected the fields of a mechanism, as to_dict() returns them, got: {error}."
        ) from None
