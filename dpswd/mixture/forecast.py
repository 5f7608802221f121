r"""Choice of the structure of the one-shot generator, from public numbers only.

Nothing private is read, so that the structure is known before anything is spent: it is a forecast.

Reference model. Rows are centred, and scaled to a root mean square norm of their bound R = 1/2 (of
R / 1.2 where there are several cells per class). Of the squared norm, 0.15 differs between classes
and 0.85 within them. Within classes, coordinates vary as in the public reference spectrum.

Edge. A second moment of rows of norm at most R in dimension D, released with budget :math:`\mu`,
has noise of scale :math:`\tau = \sqrt2 R^2 / \mu`. Its largest eigenvalue, the edge, is about
:math:`\tau \sqrt{2 D}` by the semicircle law. Sizes are chosen by comparing edges with variances.

A plan is one of five: one cell per class, several cells per class, the cells of a public
reference, variances of single columns of wide rows, and columns with public bounds. Constants
without another reason were chosen on public data sets (docs/generation.md, docs/tables.md;
docs/negative-results.md has what was tried besides).
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dpswd._validate import at_least, choice, positive
from dpswd.features.frequencies import Frequencies
from dpswd.mixture.structure import (
    BETWEEN_PART,
    COLUMN_SIGNAL,
    OWN_COLUMN_SIGNAL,
    RAW_NORM,
    ROW_NORM,
    SUM_BOUND,
    Structure,
    squares_bound,
)

__all__ = ["COLUMN_CHOICES", "MAX_CELLS", "MAX_LEVELS", "ROUNDS", "forecast", "moment_edge"]

# Sensitivity of a sum of rows, over the bound on their norm: a record is replaced by another.
_SUM_SENSITIVITY = 2
# Counts that differ in every column where a record is replaced: one is lower, one is higher.
_CHANGED_COUNTS = 2
# The edge of a second moment is this factor times R^2 sqrt(D) / mu: sqrt(2) of the sensitivity
# times sqrt(2) of the semicircle law.
_EDGE_FACTOR = 2
# Power of p in the edge over the mean variance R^2 / p of the p directions.
_EDGE_POWER = 1.5
# Power of the signal that is the largest number of frequencies (see _model).
_FREQUENCY_POWER = 2 / 3

# Most cells per class: 18 or 20 were no better (docs/negative-results.md).
MAX_CELLS = 12
# Releases of the sums of cells; each moves the centres nearer to the rows.
ROUNDS = 3
# Leading directions that have covariances of cells; the noise of p directions grows as p^1.5.
MAX_COMPONENTS = 120
# Where a class has one cell, twice as many have covariances of their own.
_MAX_CLASS_COMPONENTS = 2 * MAX_COMPONENTS
# Most cells of a public reference. It has no classes, and may have many modes.
_MAX_REFERENCE_CELLS = 64
# Fewer cells than this are not worth a reference: a class may have as many without one.
_LEAST_REFERENCE_CELLS = 12
# Records of the reference per cell, on average, from which its covariance is computed.
_REFERENCE_PER_CELL = 10
# Largest noise of the mean of a cell of a reference, in root mean square norms of a row.
_REFERENCE_NOISE = 1 / 4
# Distance of the mean of a cell from its centre, in root mean square deviations of rows. It is an
# assumption of the forecast, and no size depends on it.
_CELL_DISTANCE = 0.5
# Largest edge of a cell, in mean variances of its p directions.
_CELL_EDGE = 2.5
# Fewest cells of a class of images, if there are several. For grey faces, a few cells are much
# worse than one. For digits and clothes, a CNN gains at most 4 points by them, and a logistic
# regression loses up to 5 (docs/negative-results.md).
_LEAST_GREY_CELLS = 8
_LEAST_COLOUR_CELLS = 4
# All classes have one second moment where the variance of the leading coordinate is below this part
# of the edge of one class.
_HIDING_PART = 0.6

# Vectors of more dimensions have no second moment: that of 4,000 takes 100 s of a core and 2.3 GB,
# and one of twice as many eight times as long. Below, covariances are better than variances
# where columns have factors in common (docs/negative-results.md).
_MOST_DIMENSIONS = 4000
# Ways to release how the rows of a class differ: their second moment, or the variances of single
# columns.
SPREAD_CHOICES = ("moments", "variances")

# Most levels of brightness in the histogram of the pixels.
MAX_LEVELS = 32
# With fewer levels, no histogram is released.
_LEAST_LEVELS = 4
# Expected count of a level, in standard deviations of its noise.
_LEVEL_SIGNAL = 4

# Bound on a row over its root mean square norm, with several cells: few rows are clipped.
_CELL_HEADROOM = 1.2
# The same with one cell per class: longer rows are clipped, and the noise is smaller in comparison.
_CLASS_HEADROOM = 1.0
# Bound on rows about the mean of their class, with one cell. The noise of a second moment grows
# with the square of the bound; the variance that clipping takes is given back by one factor.
_CLASS_BOUND = 0.35

# Parts of the squared mu with one cell per class; second moments get the rest.
_CLASS_SHARES = {"overall": 0.02, "means": 0.1}
# The same with one second moment for all classes, which has less noise than one for each of them.
_POOLED_SHARES = {"overall": 0.04, "means": 0.75}
# Parts of the squared mu with several cells, whose second moments have the most numbers.
_CELL_SHARES = {
    "overall": 0.04,
    "means": 0.05,
    "moments": 0.16,
    "cell_means": 0.12,
    "cell_moments": 0.63,
}
# Parts of the squared mu with the cells of a reference, which have no second moments of their own.
_REFERENCE_SHARES = {"overall": 0.04, "means": 0.05, "moments": 0.16, "cell_means": 0.75}
# That of the histogram of the pixels.
_TONE_SHARE = 0.02
# That of the columns, where all classes have their distributions in common.
_COLUMN_SHARE = 0.3
# That of the columns, where each class has its own.
_OWN_COLUMN_SHARE = 0.5

# Numbers of bins of a column to choose from.
_BINS = (8, 64, 256)
# Least mean count of a bin, in standard deviations of its noise; groups of bins have less noise.
_BIN_SIGNAL = 0.5

# Ways to release columns with bounds: distributions of each class, or of all classes together, or
# no distributions.
COLUMN_CHOICES = ("own", "common", "scaled")

# Images of a smaller side may have all of their frequencies.
_SMALL_SIDE = 20
# Most frequencies per axis of a grey image, over its side: 20 of 28 for MNIST.
_GREY_PART = 0.72
# The same for luma of a colour image: 8 of 32 for CIFAR-10.
_COLOUR_PART = 0.25
# Frequencies of a colour image, over those of luma: each of the two chroma channels has half as
# many per axis, a quarter in all.
_COLOUR_SQUARES = 1.5
# Frequencies per axis of luma over those of chroma, whose amplitudes are smaller
# (dpswd/features/frequencies.py).
_LUMA_PER_CHROMA = 2
# Fewest frequencies per axis: with one, an image has one brightness.
_LEAST_FREQUENCIES = 2


@dataclass(frozen=True)
class _Limits:
    """Limits of the plans, which experiments lower."""

    max_cells: int
    n_rounds: int
    max_levels: int
    spread: str | None


@dataclass(frozen=True)
class _Model:
    """Public numbers of a fit, and the reference model of its rows."""

    n: int  # records, or N c where N units have c records each
    shape: tuple[int, ...]
    n_classes: int
    mu: float
    size: int  # frequencies per axis of luma; 0 for vectors
    chroma_size: int  # those of the two other opponent colours
    spectrum: Tensor  # (D,), reference variances of the coordinates, which sum to 1/4

    @property
    def dim(self) -> int:
        """Dimension D of the rows."""
        return len(self.spectrum)

    @property
    def n_groups(self) -> int:
        """Number of classes, or 1 without labels."""
        return max(1, self.n_classes)

    @property
    def signal(self) -> float:
        """The signal mu N / sqrt(C)."""
        return _signal(self.n, self.n_classes, self.mu)

    @property
    def class_signal(self) -> float:
        """Records of a class times mu."""
        return self.mu * self.n / self.n_groups


def forecast(
    n: int,
    shape: tuple[int, ...],
    n_classes: int,
    mu: float,
    n_reference: int = 0,
    bounded: bool = False,
    *,
    max_cells: int = MAX_CELLS,
    n_rounds: int = ROUNDS,
    max_levels: int = MAX_LEVELS,
    columns: str | None = None,
    spread: str | None = None,
) -> Structure:
    """Choose the structure for a budget and forecast each release.

    The forecast of a release is its signal-to-noise ratio.

    Args:
        n: Number N of records; where N units have c records each, their number N c.
        shape: Shape of a record: (channels, height, width) or (d,).
        n_classes: Number C of classes; 0 for none.
        mu: Budget of Gaussian differential privacy.
        n_reference: Number of public records that look like the private ones; of vectors without
            classes only.
        bounded: Whether the columns of vectors have public bounds.
        max_cells: Most cells per class; 1 for one normal distribution per class.
        n_rounds: Releases of the sums of cells.
        max_levels: Most levels of brightness; 0 releases no histogram.
        columns: How columns with bounds are released: ``"own"``, distributions of each class;
            ``"common"``, of all classes together; ``"scaled"``, means and second moments only.
            ``None`` decides by the signal.
        spread: How the rows of a class differ: ``"moments"``, by a second moment;
            ``"variances"``, by the variance of every column, of vectors only. ``None`` decides by
            the dimension.

    Returns:
        The structure, whose text is a table of the releases.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> structure = forecast(60_000, (1, 28, 28), n_classes=10, mu=2.0)
        >>> structure.dim, structure.n_cells
        (400, 11)
    """
    at_least(1, n=n, **{f"shape_{i}": side for i, side in enumerate(shape)})
    at_least(0, n_classes=n_classes, max_levels=max_levels)
    at_least(1, max_cells=max_cells, n_rounds=n_rounds)
    positive(mu=mu)
    if spread is not None:
        choice(SPREAD_CHOICES, spread=spread)
    limits = _Limits(max_cells, n_rounds, max_levels, spread)
    model = _model(n, tuple(shape), n_classes, mu)
    if bounded and len(shape) == 1 and not n_reference:
        return _structure_of_columns(model, columns, limits)
    return _structure_of_rows(model, n_reference, limits)


def _structure_of_rows(model: _Model, n_reference: int, limits: _Limits) -> Structure:
    """Choose among the plans that release moments of rows."""
    if _is_wide(model, limits):
        return _structure_of_variances(model)
    n_reference_cells = _n_reference_cells(model, n_reference)
    if n_reference_cells >= _LEAST_REFERENCE_CELLS:
        return _structure_of_reference_cells(model, n_reference_cells)
    n_cells = _n_cells(model, limits)
    if n_cells > 1:
        return _structure_of_several_cells_per_class(model, n_cells, limits)
    return _structure_of_one_cell_per_class(model, limits)


# The plans.


def _structure_of_one_cell_per_class(model: _Model, limits: _Limits) -> Structure:
    """Give each class one normal distribution.

    Means are those of the classes. Covariances are, too, or they are the same for all classes where
    the second moment of a class would be mostly noise. In that case the means get most of the
    budget.
    """
    pooled = _is_pooled(model)
    shares = dict(_POOLED_SHARES if pooled else _CLASS_SHARES)
    shares["moments"] = 1 - sum(shares.values())
    n_levels = _n_levels(model, limits)
    if n_levels:
        shares = _with_tones(shares, payer="moments")
    structure = Structure(
        sample_shape=model.shape,
        n_classes=model.n_classes,
        size=model.size,
        chroma_size=model.chroma_size,
        dim=model.dim,
        n_components=min(model.dim, _MAX_CLASS_COMPONENTS),
        n_cells=1,
        pooled=pooled,
        headroom=_CLASS_HEADROOM,
        class_bound=_CLASS_BOUND,
        n_levels=n_levels,
        shares=shares,
        signal=model.signal,
    )
    return _with_forecast(structure, model)


def _structure_of_several_cells_per_class(
    model: _Model, n_cells: int, limits: _Limits
) -> Structure:
    """Cut each class into cells, which have means and covariances of their own.

    Means and second moments of classes place the first cells. Three rounds of counts and sums move
    them to the rows. Most of the budget goes to the second moments of the cells.
    """
    shares = dict(_CELL_SHARES)
    n_levels = _n_levels(model, limits)
    if n_levels:
        shares = _with_tones(shares, payer="cell_moments")
    structure = Structure(
        sample_shape=model.shape,
        n_classes=model.n_classes,
        size=model.size,
        chroma_size=model.chroma_size,
        dim=model.dim,
        n_components=min(model.dim, MAX_COMPONENTS),
        n_cells=n_cells,
        pooled=_is_pooled(model),
        headroom=_CELL_HEADROOM,
        class_bound=ROW_NORM,
        n_levels=n_levels,
        shares=shares,
        signal=model.signal,
        n_rounds=limits.n_rounds,
    )
    return _with_forecast(structure, model)


def _structure_of_reference_cells(model: _Model, n_cells: int) -> Structure:
    """Take the cells of public records, and release their means.

    The public records look like the private ones. The covariances of the cells are those of the
    reference, so that their sums, released once, get most of the budget.
    """
    structure = Structure(
        sample_shape=model.shape,
        n_classes=model.n_classes,
        size=model.size,
        chroma_size=model.chroma_size,
        dim=model.dim,
        n_components=min(model.dim, MAX_COMPONENTS),
        n_cells=n_cells,
        pooled=False,
        headroom=_CELL_HEADROOM,
        class_bound=ROW_NORM,
        n_levels=0,
        shares=dict(_REFERENCE_SHARES),
        signal=model.signal,
        by_reference=True,
        n_rounds=1,
    )
    return _with_forecast(structure, model)


def _structure_of_variances(model: _Model) -> Structure:
    """Give each class its means, and all classes one variance of every column.

    The rows are too wide for a second moment.
    """
    shares = dict(_POOLED_SHARES)
    shares["variances"] = 1 - sum(shares.values())
    structure = Structure(
        sample_shape=model.shape,
        n_classes=model.n_classes,
        size=0,
        chroma_size=0,
        dim=model.dim,
        n_components=0,
        n_cells=1,
        pooled=True,
        headroom=_CLASS_HEADROOM,
        class_bound=ROW_NORM,
        n_levels=0,
        shares=shares,
        signal=model.signal,
    )
    return _with_forecast(structure, model)


def _structure_of_columns(model: _Model, columns: str | None, limits: _Limits) -> Structure:
    """Release the distribution of every column, and moments of normal scores.

    Normal scores are centred and scaled, so that the sum of all rows is not released, nor are the
    means of classes where each class has its own distributions. Where the signal is too weak for
    distributions, the columns are scaled by their bounds and have moments like other vectors.
    """
    without_distributions = _structure_of_rows(model, 0, limits)
    is_pooled = without_distributions.pooled
    # Counts of all N records in a bin of each of the d columns, over the noise of a count.
    signal = model.n * model.mu / math.sqrt(_CHANGED_COUNTS * model.dim)
    n_distributions = _n_distributions(signal, model.n_groups, is_pooled, columns)
    if not n_distributions:
        return replace(without_distributions, column_signal=signal)
    own_columns = n_distributions == model.n_groups
    column_share = _OWN_COLUMN_SHARE if own_columns else _COLUMN_SHARE

    # The moments of normal scores have the budget that the columns leave.
    mu_of_moments = model.mu * math.sqrt(1 - column_share)
    score_model = _model(model.n, model.shape, model.n_classes, mu_of_moments)
    score_structure = _structure_of_rows(score_model, 0, limits)
    not_released = ["overall"]
    if own_columns:
        not_released += ["means", "variances"]
    names = [name for name in score_structure.shares if name not in not_released]
    if not names:  # of wide rows
        column_share = 1.0
    # Counts in one of several distributions over their noise, with the share of the columns.
    bin_signal = signal * math.sqrt(column_share) / n_distributions
    n_bins = _n_bins(bin_signal)
    # The other releases get the shares of those that are not made, in proportion to their own.
    total_share = sum(score_structure.shares[name] for name in names)
    shares = {"columns": column_share}
    ratios = {"columns": bin_signal / n_bins}
    for name in names:
        shares[name] = score_structure.shares[name] * (1 - column_share) / total_share
        ratios[name] = score_structure.signal_to_noise[name] / math.sqrt(total_share)
    return replace(
        score_structure,
        shares=shares,
        signal_to_noise=ratios,
        signal=model.signal,
        n_bins=n_bins,
        own_columns=own_columns,
        column_signal=signal,
    )


# Numbers that the plans have in common.


def _signal(n: int, n_classes: int, mu: float) -> float:
    """Return the signal mu N / sqrt(C)."""
    return mu * n / math.sqrt(max(1, n_classes))


def _model(n: int, shape: tuple[int, ...], n_classes: int, mu: float) -> _Model:
    r"""Return the reference model of the rows.

    Rows are the entries of vectors, or the low frequencies of images. The number D of frequencies
    is the largest for which the edge of the second moments of all C classes together is at most
    twice the mean variance of a coordinate, :math:`\sqrt2 R^2 \sqrt{2 D C} / (\mu N) \le 2 R^2 /
    D`, that is D <= signal^(2/3).
    """
    if len(shape) != 3:
        dim = math.prod(shape)
        spectrum = torch.full((dim,), ROW_NORM**2 / dim, dtype=torch.float64)
        return _Model(n, shape, n_classes, mu, 0, 0, spectrum)
    n_signal = _signal(n, n_classes, mu) ** _FREQUENCY_POWER
    size = _n_frequencies(shape, n_signal)
    features = Frequencies(shape, size, max(1, size // _LUMA_PER_CHROMA))
    return _Model(n, shape, n_classes, mu, size, features.chroma_size, features.reference)


def _n_frequencies(shape: tuple[int, ...], total: float) -> int:
    """Return the number of frequencies per axis.

    Within limits, the number of frequencies of all channels is the nearest one to ``total``.
    """
    channels, height, width = shape
    side = min(height, width)
    # All channels together have ``squares`` times size^2 frequencies.
    squares: float = channels
    part = _GREY_PART
    if channels == 3:
        squares = _COLOUR_SQUARES
        part = _COLOUR_PART
    largest = round(part * side)
    if side < _SMALL_SIDE:
        largest = side
    size = min(round(math.sqrt(total / squares)), largest)
    return max(min(_LEAST_FREQUENCIES, side), size)


def _is_wide(model: _Model, limits: _Limits) -> bool:
    """Return whether vectors have variances in place of a second moment."""
    if len(model.shape) == 3:
        return False
    if limits.spread is None:
        return model.dim > _MOST_DIMENSIONS
    return limits.spread == "variances"


def _n_cells(model: _Model, limits: _Limits) -> int:
    """Return the number of cells per class.

    It is the largest for which the edge of the second moment of a cell is at most 2.5 times the
    mean variance of its p directions: 2 p^1.5 n_cells / (mu N / C) <= 2.5. Images have one cell
    where that gives only a few.
    """
    p = min(model.dim, MAX_COMPONENTS)
    by_edge = _CELL_EDGE / _EDGE_FACTOR * model.class_signal / p**_EDGE_POWER
    if len(model.shape) == 3:
        least = _LEAST_COLOUR_CELLS if model.shape[0] == 3 else _LEAST_GREY_CELLS
        if by_edge < least:
            return 1
    return int(min(limits.max_cells, max(1.0, by_edge)))


def _n_reference_cells(model: _Model, n_reference: int) -> int:
    """Return the number of cells of a public reference.

    It is 0 for images and for records with classes. It is the largest for which the noise of the
    mean of a cell is at most a quarter of the root mean square norm of a row, 2.6 n_cells sqrt(p) /
    (mu_sums N) <= 1/4, where mu_sums is the budget of the sums of the cells.
    """
    if len(model.shape) != 1 or model.n_classes:
        return 0
    p = min(model.dim, MAX_COMPONENTS)
    mu_sums = model.mu * math.sqrt(_REFERENCE_SHARES["cell_means"])
    noise = _SUM_SENSITIVITY * SUM_BOUND * math.sqrt(p)
    by_noise = _REFERENCE_NOISE * mu_sums * model.n / noise
    return int(min(_MAX_REFERENCE_CELLS, by_noise, n_reference / _REFERENCE_PER_CELL))


def _is_pooled(model: _Model) -> bool:
    """Return whether all classes have one second moment together.

    They do where the edge of the second moment of one class would hide the leading coordinate.
    """
    leading_part = float(model.spectrum.max() / model.spectrum.sum())
    leading_variance = leading_part * (1 - BETWEEN_PART) * ROW_NORM**2
    edge = moment_edge(ROW_NORM, model.dim, model.class_signal)
    return model.n_groups > 1 and leading_variance < _HIDING_PART * edge


def _n_levels(model: _Model, limits: _Limits) -> int:
    """Return the number of levels of the histogram of the pixels; 0 for none.

    The histogram gets as many levels as keep the expected count of a level at four times the
    standard deviation of its noise.
    """
    if len(model.shape) != 3:
        return 0
    mu_tones = model.mu * math.sqrt(_TONE_SHARE)
    n_levels = min(limits.max_levels, int(model.n * mu_tones / (_SUM_SENSITIVITY * _LEVEL_SIGNAL)))
    if n_levels < _LEAST_LEVELS:
        return 0
    return n_levels


def _with_tones(shares: dict[str, float], payer: str) -> dict[str, float]:
    """Return the shares with that of the histogram of the pixels.

    It stands after the first share, and is taken from that of the ``payer``.
    """
    shared: dict[str, float] = {}
    for name, share in shares.items():
        shared[name] = share
        if name == "overall":
            shared["tones"] = _TONE_SHARE
    shared[payer] -= _TONE_SHARE
    return shared


def _n_distributions(signal: float, n_groups: int, pooled: bool, columns: str | None) -> int:
    """Return of how many groups of classes the columns are released.

    That is the number of classes where each class has its own distributions, 1 where all classes
    have one in common, and 0 where columns are scaled only.
    """
    if columns is not None:
        choice(COLUMN_CHOICES, columns=columns)
        n_distributions = {"own": n_groups, "common": 1, "scaled": 0}
        return n_distributions[columns]
    if signal >= OWN_COLUMN_SIGNAL * n_groups:
        return n_groups
    if signal >= COLUMN_SIGNAL and not pooled:
        return 1
    return 0


def _n_bins(bin_signal: float) -> int:
    """Return the number of bins of a column.

    It is the largest out of 8, 64 and 256 for which the mean count of a bin is at least half of the
    standard deviation of its noise, and 8 if none is.
    """
    n_bins = _BINS[0]
    for size in _BINS:
        if bin_signal / size >= _BIN_SIGNAL:
            n_bins = size
    return n_bins


# The forecast.


def moment_edge(bound: float, dim: int, mu: float) -> float:
    """Return the largest eigenvalue of the noise of a second moment.

    It follows from the semicircle law.

    Args:
        bound: Bound on the norm of a row.
        dim: Dimension of the rows.
        mu: Budget of the release.
    """
    return _EDGE_FACTOR * bound**2 * math.sqrt(dim) / mu


def _with_forecast(structure: Structure, model: _Model) -> Structure:
    """Return the structure with the signal-to-noise ratios of its releases.

    The ratios are those of the reference model.
    """
    shares = structure.shares
    dim = structure.dim
    within = (1 - BETWEEN_PART) * (ROW_NORM / structure.headroom) ** 2
    variance = min(within, structure.class_bound**2)  # within classes, after clipping
    ratios = {
        "overall": _ratio_of_overall(shares["overall"], model),
        "means": _ratio_of_means(shares["means"], structure.headroom, model),
    }
    n_surviving = 0
    if "moments" in shares:
        edge = _edge_of_all_classes(structure, model)
        ratios["moments"] = variance / dim / edge
        variances = model.spectrum / model.spectrum.sum() * variance
        n_surviving = int((variances > edge).sum())
    else:
        ratios["variances"] = _ratio_of_variances(shares["variances"], variance, model)
    if "tones" in shares:
        tone_noise = _SUM_SENSITIVITY * structure.n_levels
        ratios["tones"] = model.n * model.mu * math.sqrt(_TONE_SHARE) / tone_noise
    cell_signal = model.class_signal / structure.n_cells
    p = structure.n_components
    if "cell_means" in shares:
        share = shares["cell_means"] / structure.n_rounds
        cell_noise = _SUM_SENSITIVITY * SUM_BOUND
        ratios["cell_means"] = _CELL_DISTANCE * cell_signal * math.sqrt(share / p) / cell_noise
    if "cell_moments" in shares:
        mu_cell = cell_signal * math.sqrt(shares["cell_moments"])
        ratios["cell_moments"] = 1 / (p * moment_edge(1.0, p, mu_cell))
    return replace(structure, signal_to_noise=ratios, n_surviving=n_surviving)


def _edge_of_all_classes(structure: Structure, model: _Model) -> float:
    """Return the edge of the second moment of all classes, per record."""
    n_moments = 1 if structure.pooled else model.n_groups
    mu = model.mu * math.sqrt(structure.shares["moments"])
    edge = moment_edge(structure.class_bound, structure.dim, mu)
    return edge * math.sqrt(n_moments) / model.n


def _ratio_of_overall(share: float, model: _Model) -> float:
    """Return the norm R n of the sum of all rows over that of its noise."""
    noise = _SUM_SENSITIVITY * RAW_NORM
    return ROW_NORM * model.mu * math.sqrt(share / model.dim) * model.n / noise


def _ratio_of_variances(share: float, variance: float, model: _Model) -> float:
    """Return the mean variance of a column over its noise.

    Args:
        share: Part of the squared mu.
        variance: Sum of the variances within classes.
        model: The reference model.
    """
    noise = math.sqrt(2) * squares_bound(model.dim) / (model.mu * math.sqrt(share))
    return variance / model.dim * model.n / noise


def _ratio_of_means(share: float, headroom: float, model: _Model) -> float:
    """Return the norm of the sum of a class over that of its noise.

    The sum is about the mean of all rows.
    """
    distance = math.sqrt(BETWEEN_PART / model.dim) / headroom
    return distance * model.class_signal * math.sqrt(share) / _SUM_SENSITIVITY
