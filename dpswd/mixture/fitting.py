r"""Fit of the one-shot generator, from sums over all records.

The generator is a mixture of normal distributions.

Releases of all N records, each with its share of the squared mu of the budget
(:func:`dpswd.mixture.forecast.forecast`):

1. the sum of the rows and of their squared norms, which centres and scales them;
2. for images, the shares of pixels at each level of brightness;
3. counts and sums per class;
4. second moments about the released means, per class or of all classes together; of wide rows,
   whose second moment would be noise, their squares;
5. where the structure has several cells per class, counts and sums per cell in three rounds: the
   means of one are the centres of the next (Lloyd's algorithm);
6. second moments per cell, about the means of the last round.

With a public reference there is one round of 5, and no 6: the covariances of the cells are those of
the reference.

Of tables with public bounds and enough records, the distribution of every column is released in
place of 1, and of 3 where each class has its own. Rows are then normal scores
(:mod:`dpswd.mixture.columns`).

Privacy. Scale, directions and cells follow from earlier releases and public numbers, and the cell
of a record from this record besides. So each release is a Gaussian mechanism of constant
sensitivity on all records, and they compose adaptively (docs/theory/accounting.md, Propositions 16
and 19). Everything else is post-processing.

Each step takes released values and returns new ones; none changes a value that it was given. A step
``_release_...`` makes the release of one query, which draws the noise (:mod:`dpswd.queries`).

Terms: :mod:`dpswd.mixture.structure` defines row, cell, reference and reference spectrum. Shapes: C
classes (1 without labels), K cells of all classes, D dimensions of the rows, p leading ones.
"""

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from dpswd._progress import say
from dpswd._provenance import mark_runs
from dpswd._symmetric import principal_axes, root
from dpswd._validate import tensor
from dpswd.budget.budget import Budget
from dpswd.errors import InputError, UtilityWarning
from dpswd.features.frequencies import Frequencies, reference_spectrum
from dpswd.features.maps import Columns, FeatureMap, Flatten, histogram
from dpswd.features.shapes import LARGEST_DISTANCE
from dpswd.mixture import moments
from dpswd.mixture.columns import NormalScores, category_order, estimate
from dpswd.mixture.compensation import compensate_jitter
from dpswd.mixture.forecast import forecast
from dpswd.mixture.generator import MixtureGenerator
from dpswd.mixture.query_set import Queries
from dpswd.mixture.resources import check_memory
from dpswd.mixture.row_functions import AboutClassMeans, InCells, RowMap
from dpswd.mixture.structure import (
    LEAST_COUNT,
    MOMENT_BOUND,
    RAW_NORM,
    ROW_NORM,
    SUM_BOUND,
    Structure,
)
from dpswd.networks.generator import seeded
from dpswd.queries import ClassCovariances, ClassMeans
from dpswd.records import PrivateRecords
from dpswd.row_copy import LabelledRows

__all__ = ["CONTRAST", "RESIDUAL", "fit"]

# Standard deviation of the logarithm of the contrast of photographs.
CONTRAST = 0.3
# Frequencies that are not released are drawn with this amplitude, over that of photographs: without
# them, images are blurred.
RESIDUAL = 0.6
# Where the border of the mean image is darker than this, in [0, 1], the ground of the images is
# taken for black.
_BLACK_BORDER = 0.1
# Vectors whose mean squared norm after clipping exceeds this part of the squared bound were mostly
# clipped.
_MOSTLY_CLIPPED = 0.75
# Least variance of the rows in units of R^2: noise must not make it negative.
_LEAST_ROW_VARIANCE = 0.1
# A released count of a cell below this part of the mean count, of n records in K cells, is raised
# to it: it is mostly noise. The released counts may add up to zero or less.
_LEAST_CELL_COUNT = 0.1
# Least sum of the released sums of the histogram: noise may make all of them zero or negative.
_LEAST_HISTOGRAM = 1e-9
# Records that are drawn to find the tone curve.
_N_TONE_RECORDS = 1000
# Signal-to-noise ratio of the means of classes from which on smoothing by jitter is undone.
_CLEAR = 10.0


def fit(
    records: PrivateRecords,
    budget: Budget,
    *,
    structure: Structure | None = None,
    centre: float | None = None,
    radius: float | None = None,
    residual: bool | None = None,
    residual_amplitude: float = RESIDUAL,
    contrast: float = CONTRAST,
    rare: float = moments.RARE,
    reference: Tensor | None = None,
    noise_seed: int | None = None,
    progress: bool = False,
    **jitter: float,
) -> MixtureGenerator:
    """Release moments of all records, and return the generator that has them.

    Args:
        records: The private records; their number, shape, classes, bounds and kinds are public.
            Of :meth:`~dpswd.PrivateRecords.as_shapes`, the generator draws shapes.
        budget: The budget, before ``with budget:``, which this function enters. Its queries are
            set here, since they follow from the structure.
        structure: What is released and how the budget is shared, chosen from public numbers only;
            ``None`` for the :func:`~dpswd.mixture.forecast.forecast` of records and budget.
        centre: Public constant subtracted from every entry; ``None`` for 0.5 (pixels) or 0
            (vectors).
        radius: Public guess of the norm of a centred vector, for vectors without bounds.
        residual: Draw the frequencies that are not released from the spectrum of photographs, and
            vary the contrast; ``None`` for colour images only.
        residual_amplitude: Amplitude of these frequencies, over that of photographs.
        contrast: Standard deviation of the logarithm of the contrast; 0 does not vary it.
        rare: Part of the mean count below which a class is rare, and its covariance is pulled to
            that of all classes; 0 for no rare class.
        reference: Public vectors (n, d) like the private ones, for vectors without classes.
        noise_seed: For tests only: NOT PRIVATE.
        progress: Show what to expect.
        jitter: Public constants ``shift``, ``rotation``, ``zoom``, ``shear`` and ``elastic`` of
            generated images; see :func:`dpswd.features.jitter.jitter`.

    Returns:
        The generator; its ``structure`` is the :class:`~dpswd.mixture.structure.Structure`.

    Raises:
        InputError: If a number is out of range or the structure is not one of these records;
            nothing is released then.
        BudgetExceededError: If the shared ledger does not cover the run.

    Warns:
        UtilityWarning: If the forecast is noise, or most of the vectors were clipped.

    Example:
        >>> import tempfile
        >>> records = PrivateRecords(torch.rand(300, 8, 8), torch.arange(300) % 2, classes=[0, 1])
        >>> run_dir = tempfile.mkdtemp()
        >>> budget = Budget(records, target_epsilon=10, target_delta=1e-5, run_dir=run_dir)
        >>> generator = fit(records, budget)
        >>> generator(generator.latent(5), torch.tensor([0, 1, 1, 0, 0])).shape
        torch.Size([5, 1, 8, 8])
    """
    n_reference = 0
    if reference is not None:
        reference = _checked_reference(reference, records)
        n_reference = len(reference)
    if structure is None:
        structure = forecast(
            n=records.n_entries,
            shape=records.shape,
            n_classes=records.n_classes,
            # c records of a person that change together need c times the noise.
            mu=budget.mu / records.per_unit,
            n_reference=n_reference,
            bounded=records.bounds is not None,
        )
    _check_structure(structure, records, n_reference)
    check_memory(structure)
    refusal = structure.refusal(records.n_entries)
    if refusal is not None:
        raise InputError(refusal)
    feature_map = _feature_map(records, structure, centre, radius)
    if feature_map.dim != structure.dim:
        raise InputError(
            f"Expected a structure of {feature_map.dim} dimensions, got {structure.dim}; "
            "forecast the structure of these records."
        )
    queries = Queries.of(structure, records, noise_seed)
    setup = _Setup(records, structure, feature_map, queries, reference)
    if residual is None:
        residual = len(records.shape) == 3 and records.shape[0] == 3
    # Made before the releases, since it refuses wrong options: nothing is spent then.
    generator = _empty_generator(setup, residual, contrast, jitter)
    budget.queries = queries.in_order()
    if structure.is_noise:
        warnings.warn(structure.verdict, UtilityWarning, stacklevel=2)
    elif progress:
        say(structure.summary)

    # The releases, in their order.
    with budget:
        columns = _release_columns(setup)
        rows = _release_scale(setup, columns)
        tones = _release_tones(setup)
        classes = _release_means(setup, rows, columns)
        spread = _release_spread(setup, rows, classes, rare)
        if progress and structure.n_classes > 1:
            sizes = classes.counts.tolist()
            say(structure.rarest(sizes, released=True, counted=records.entry_noun))
        cells = _first_cells(setup, classes, spread)
        for query in queries.cell_means:
            cells = _release_cell_means(setup, query, spread, cells)
        if queries.cell_moments is not None:
            cells = _release_cell_moments(setup, queries.cell_moments, spread, cells)

    # Post-processing: the released values become the buffers of the generator.
    generator.proportions = classes.proportions.tolist()
    _set_cells(generator, spread, cells)
    _set_decoding(generator, spread.rows)
    if residual:
        _set_residual(generator, spread.rows, residual_amplitude)
    if tones is not None:
        _set_tones(generator, tones)
    if generator.jitter:
        _set_padding(generator)
    if generator.jitter and generator.shapes is not None:
        is_clear = structure.signal_to_noise["means"] >= _CLEAR
        compensate_jitter(generator, sharpens=is_clear)
    generator.class_names = records.classes
    generator.layout = records.layout
    generator.kinds = records.kinds
    generator.structure = structure
    # The weights carry the identifier of the run: a later run on the same records that starts from
    # them is refused unless both share a ledger.
    mark_runs(generator, budget.statement().guarantee.weights_from_runs)
    return generator.eval()


# Before the first release


@dataclass(frozen=True, eq=False)
class _Setup:
    """What is known before the first release.

    These are public numbers, and the handle of the records.
    """

    records: PrivateRecords
    structure: Structure
    feature_map: FeatureMap
    queries: Queries
    reference: Tensor | None  # public vectors (n, d)

    @property
    def n(self) -> int:
        """Number of entries of the records: N, or N c with c records of each person."""
        return self.records.n_entries

    @property
    def mean_norm(self) -> float:
        """Root mean square norm to which the rows are scaled, below the bound R."""
        return ROW_NORM / self.structure.headroom

    def reference_variances(self) -> Tensor:
        """Return the variances (D,) of scaled rows under the reference spectrum.

        They are public. Their sum is that of the private variances, as rows are scaled to it.
        """
        variances = torch.ones(self.feature_map.dim, dtype=torch.float64)
        if isinstance(self.feature_map, Frequencies):
            variances = self.feature_map.reference
        return variances * (self.mean_norm**2 / variances.sum())


def _checked_reference(reference: Tensor, records: PrivateRecords) -> Tensor:
    """Return public records without a graph; refuse those that the fit could not use."""
    tensor(reference=reference)
    shape = tuple(reference.shape[1:])
    if shape != tuple(records.shape) or not len(reference):
        raise InputError(
            f"Expected a reference of records of shape {tuple(records.shape)}, as the private "
            f"ones, got {len(reference)} of shape {shape}; pass such records, or none."
        )
    if not bool(torch.isfinite(reference).all()):
        raise InputError(
            "Expected finite numbers in reference, got NaN or inf; leave such public records out."
        )
    return reference.detach()


def _check_structure(structure: Structure, records: PrivateRecords, n_reference: int) -> None:
    """Refuse a structure that is not one of these records."""
    remedy = "forecast the structure of these records"
    if structure.sample_shape != tuple(records.shape):
        shape = tuple(records.shape)
        raise InputError(
            f"Expected a structure of records of shape {shape}, got one of "
            f"{structure.sample_shape}; {remedy}."
        )
    if structure.n_classes != records.n_classes:
        raise InputError(
            f"Expected a structure of {records.n_classes} classes, got one of "
            f"{structure.n_classes}; {remedy}."
        )
    if structure.n_bins and records.bounds is None:
        raise InputError(
            "Expected bounds of the columns for a structure that releases them, got none; "
            "pass bounds=[(low, high), ...]."
        )
    if structure.by_reference and n_reference < structure.n_cells:
        raise InputError(
            f"Expected a reference of at least {structure.n_cells} records for a structure that "
            f"has its cells, got {n_reference}; pass reference."
        )


def _feature_map(
    records: PrivateRecords, structure: Structure, centre: float | None, radius: float | None
) -> Frequencies | Flatten:
    """Return the public map from records to rows.

    Rows are frequencies, scaled columns, or the entries.
    """
    if len(records.shape) == 3:
        if radius is not None:
            raise InputError(
                f"Expected a radius of vectors only, got radius={radius:g} of images; leave it out."
            )
        grey = 0.5 if centre is None else centre
        return Frequencies(records.shape, structure.size, structure.chroma_size, grey)
    if records.bounds is not None:
        if radius is not None or centre is not None:
            raise InputError(
                "Expected bounds, or centre and radius, got both; leave centre and radius out."
            )
        return Columns(records.bounds)
    if radius is None:
        raise InputError(
            "Expected public limits of every column of the vectors, got none; pass "
            "bounds=[(low, high), ...] (--bounds FILE), or radius= (--radius), a guess of the "
            "norm of a vector."
        )
    return Flatten(records.shape, centre or 0.0, radius)


def _empty_generator(
    setup: _Setup, residual: bool, contrast: float, jitter: Mapping[str, float]
) -> MixtureGenerator:
    """Return a generator of the right sizes, whose buffers are set after the releases."""
    structure = setup.structure
    columns = setup.queries.columns
    is_image = len(structure.sample_shape) == 3
    return MixtureGenerator(
        structure.sample_shape,
        structure.n_classes,
        structure.n_cells,
        structure.n_components,
        structure.dim,
        bounded=is_image or isinstance(setup.feature_map, Columns),
        n_levels=structure.n_levels,
        residual=residual,
        contrast=contrast if residual else 0.0,
        jitter=jitter,
        n_bins=0 if columns is None else max(columns.bins.n_bins),
        own_columns=structure.own_columns,
        shapes=setup.records.shapes,
        largest_distance=LARGEST_DISTANCE,
    )


# The releases


@dataclass(frozen=True, eq=False)
class _ReleasedColumns:
    """Released distributions of the columns, and the sizes of the classes.

    The sizes follow from the distributions.
    """

    scores: NormalScores
    sizes: Tensor  # (C,), or (1,) where all classes have distributions in common


@dataclass(frozen=True, eq=False)
class _Classes:
    """Released counts and means of classes."""

    counts: Tensor  # (C,)
    means: Tensor  # (C, D)
    overall: Tensor  # (D,), mean of all rows

    @property
    def proportions(self) -> Tensor:
        """Proportions (C,) of the classes."""
        return self.counts / self.counts.sum()

    @property
    def between(self) -> float:
        """Trace of the covariance of the means."""
        squares = (self.means - self.overall).square().sum(1)
        return float(self.proportions @ squares)


@dataclass(frozen=True, eq=False)
class _Spread:
    """Released covariances of the rows.

    They are those in principal directions, where these are released.
    """

    rows: RowMap  # to coordinates in these directions
    means: Tensor  # (C, D), of classes
    covariances: Tensor  # (C, p, p), of classes
    pooled: Tensor  # (p, p), covariance within classes, of all classes together
    variances: Tensor  # (D,), the same in single directions; above zero
    between: float  # trace of the covariance of the means of classes

    def deviation(self, n_leading: int) -> float:
        """Return the root mean square distance of rows from the mean of their class.

        It is that in the leading directions.
        """
        return float(self.variances[:n_leading].sum().sqrt())


@dataclass(frozen=True, eq=False)
class _Cells:
    """Cells of all classes, in the leading directions."""

    centres: Tensor  # (K, p), a record is in the cell of the nearest centre of its class
    means: Tensor  # (K, p)
    counts: Tensor  # (K,), equal ones before their release
    roots: Tensor | None  # (K, p, p), of the covariances; None before their release


def _release_columns(setup: _Setup) -> _ReleasedColumns | None:
    """Release the distributions of the columns, if the structure has them."""
    query = setup.queries.columns
    if query is None:
        return None
    counts = query.release(setup.records)
    estimated = estimate(query.bins, counts, query.mechanism.sigma, setup.n)
    order = category_order(query.bins, estimated)
    scores = NormalScores.of(query.bins, estimated.masses, order)
    return _ReleasedColumns(scores, estimated.sizes)


def _release_scale(setup: _Setup, columns: _ReleasedColumns | None) -> RowMap:
    """Release centre and scale of the rows.

    The scaled rows have the root mean square norm of the structure. Normal scores of columns are
    centred and have norm sqrt(D), so that nothing is released for them.
    """
    feature_map = setup.feature_map
    if columns is not None:
        mean = torch.zeros(feature_map.dim, dtype=torch.float64)
        scale = setup.mean_norm / math.sqrt(feature_map.dim)
        return RowMap(feature_map, scale, mean, columns.scores)
    query = setup.queries.overall
    assert query is not None  # a structure without columns releases it
    total, squares = query.release(setup.records, rows=feature_map)
    mean_square = squares / setup.n
    has_radius = type(feature_map) is Flatten  # the other maps, its subclasses, need no guess
    if has_radius and mean_square > _MOSTLY_CLIPPED * RAW_NORM**2:
        problem = f"Most vectors are longer than twice radius={feature_map.radius:g}"
        effect = "were clipped, so that the synthetic ones are too short"
        remedy = (
            "state bounds of the columns or a larger radius, or, in an adaptation, bring "
            "the private records to the units of the source"
        )
        warnings.warn(f"{problem} and {effect}; {remedy}.", UtilityWarning, stacklevel=3)
    mean, variance = moments.mean_and_variance(total, squares, setup.n, query.mechanism.sigma)
    variance = min(max(variance, _LEAST_ROW_VARIANCE * ROW_NORM**2), RAW_NORM**2)
    # This is setup.mean_norm over the standard deviation, with one rounding fewer.
    scale = ROW_NORM / (setup.structure.headroom * math.sqrt(variance))
    return RowMap(feature_map, scale, mean)


def _release_tones(setup: _Setup) -> Tensor | None:
    """Release the shares of the pixels at each level of brightness.

    ``None`` stands for a structure without levels.

    Returns:
        Proportions (n_levels - 1,) of the pixels below each edge between two levels.
    """
    query = setup.queries.tones
    if query is None:
        return None
    levels = partial(histogram, n_levels=setup.structure.n_levels)
    _, sums = query.release(setup.records, rows=levels)
    sizes = sums[0].clamp(min=0)  # of the levels: all images are one class
    proportions = sizes / sizes.sum().clamp(min=_LEAST_HISTOGRAM)
    return proportions.cumsum(0)[:-1]


def _release_means(setup: _Setup, rows: RowMap, columns: _ReleasedColumns | None) -> _Classes:
    """Release counts and means of classes.

    Means are pulled towards the mean of all rows, the more the smaller the reference variance of a
    coordinate is beside its noise. Where each class has its own distributions of columns, the
    normal scores of a class have mean 0, and the counts follow from the columns.
    """
    query = setup.queries.means
    if query is None:
        assert columns is not None  # a structure without means releases columns
        means = torch.zeros(len(columns.sizes), rows.dim, dtype=torch.float64)
        return _Classes(columns.sizes, means, means[0])
    counts, sums = query.release(setup.records, rows=rows)
    counts = counts.clamp(min=LEAST_COUNT * setup.n / len(counts))
    variances = setup.reference_variances()
    means = moments.class_means(counts, sums, variances, query.mechanism.sigma)
    return _Classes(counts, means, sums.sum(0) / counts.sum())


def _release_spread(setup: _Setup, rows: RowMap, classes: _Classes, rare: float) -> _Spread:
    """Release how the rows of a class differ: second moments, or squares of wide rows.

    Both are about the means of classes.
    """
    query = setup.queries.moments
    if query is not None:
        return _release_moments(setup, query, rows, classes, rare)
    variances = _release_variances(setup, rows, classes)
    none = torch.zeros(0, 0, dtype=torch.float64)
    return _Spread(
        rows=rows,
        means=classes.means,
        covariances=none.expand(len(classes.counts), 0, 0),
        pooled=none,
        variances=variances,
        between=classes.between,
    )


def _release_variances(setup: _Setup, rows: RowMap, classes: _Classes) -> Tensor:
    """Release squares, and return variances (D,) of all classes together.

    Their sum is that of the scaled rows, less that between classes. Where each class has its own
    distributions of columns, the normal scores of a class have variance 1.
    """
    query = setup.queries.variances
    reference = setup.reference_variances()
    if query is None:
        return reference
    deviations = LabelledRows(AboutClassMeans(rows, classes.means))
    (squares,) = query.release(setup.records, rows=deviations) / setup.n
    noise = query.mechanism.sigma / setup.n
    total = float(reference.sum())
    within = max(total - classes.between, _LEAST_ROW_VARIANCE * total)
    return moments.column_variances(squares, noise, within)


def _release_moments(
    setup: _Setup, query: ClassCovariances, rows: RowMap, classes: _Classes, rare: float
) -> _Spread:
    """Release second moments about the means of classes, and return covariances.

    The covariance of all rows is the one within classes plus the one between them. Its principal
    directions, in descending order of their variances, become the coordinates.
    """
    p = setup.structure.n_components
    is_pooled = setup.structure.pooled
    deviations = LabelledRows(AboutClassMeans(rows, classes.means))
    released = query.release(setup.records, rows=deviations)
    # Over the sum of the released counts, the covariance within classes is the mean of those of the
    # classes below, weighted by their proportions.
    n = setup.n if is_pooled else classes.counts.sum()
    within = moments.nearest_spectrum(released.sum(0) / n)
    offsets = classes.means - classes.overall
    between = (offsets * classes.proportions[:, None]).T @ offsets
    _, directions = principal_axes(within + between)
    pooled = directions.T @ within @ directions
    if is_pooled:
        covariances = pooled.expand(len(classes.counts), -1, -1)
    else:
        unturned = released / classes.counts[:, None, None]
        covariances = moments.class_covariances(
            classes.counts,
            directions.T @ unturned @ directions,
            pooled,
            query.mechanism.sigma,
            setup.structure.n_cells,
            rare,
        )
    return _Spread(
        rows=rows.turned(directions),
        means=classes.means @ directions,
        covariances=covariances[:, :p, :p],
        pooled=pooled[:p, :p],
        variances=pooled.diagonal().clamp(min=moments.LEAST_VARIANCE),
        between=float(between.trace()),
    )


def _first_cells(setup: _Setup, classes: _Classes, spread: _Spread) -> _Cells:
    """Return the cells from which the releases of cells start.

    They follow from the released moments of classes, and are final where a class has one cell.
    """
    structure = setup.structure
    p = structure.n_components
    if structure.n_cells == 1:
        return _one_cell_per_class(setup, classes, spread)
    means = spread.means[:, :p]
    pooled = spread.pooled
    counts = torch.ones(structure.n_groups * structure.n_cells, dtype=torch.float64)
    if not structure.by_reference:
        centres = moments.first_centres(means, pooled, structure.n_cells).flatten(0, 1)
        return _Cells(centres, centres, counts, roots=None)
    assert setup.reference is not None  # checked with the structure
    reference_rows = spread.rows.leading(setup.reference, None, p)
    moved = moments.moved_to(reference_rows, means[0], pooled)
    centres, covariances = moments.reference_cells(moved, structure.n_cells)
    return _Cells(centres, centres, counts, root(covariances))


def _one_cell_per_class(setup: _Setup, classes: _Classes, spread: _Spread) -> _Cells:
    """Return one cell per class, with covariances of the right size.

    Clipping and noise have changed the variance of the rows, which were scaled to that of the
    reference. One factor restores it: all classes together get the reference variance, less that
    between classes and that of the remaining directions.
    """
    p = setup.structure.n_components
    means = spread.means[:, :p]
    covariances = spread.covariances
    traces = covariances.diagonal(dim1=1, dim2=2).sum(1)
    released = max(float(classes.proportions @ traces), moments.LEAST_VARIANCE)
    total = float(setup.reference_variances().sum())
    expected = total - spread.between - float(spread.variances[p:].sum())
    # Rows of norm R that are all clipped to the bound of classes shrink by this factor, no more.
    largest = ROW_NORM / setup.structure.class_bound
    scale = math.sqrt(min(max(expected / released, 1.0), largest**2))
    counts = torch.ones(len(means), dtype=torch.float64)
    return _Cells(means, means, counts, scale * root(covariances))


def _release_cell_means(setup: _Setup, query: ClassMeans, spread: _Spread, cells: _Cells) -> _Cells:
    """Release counts and sums of cells, and return cells with these counts and means.

    This is one round of Lloyd's algorithm: the means of the last round become the centres, and the
    sums are those of the deviations from the centres.
    """
    p = setup.structure.n_components
    centres = cells.means
    unit = SUM_BOUND * spread.deviation(p) / ROW_NORM  # a deviation at the bound gets norm R
    deviations = _in_cells(setup, spread, centres, centres, unit)
    counts, sums = query.release(setup.records, rows=deviations)
    counts = counts.clamp(min=_LEAST_CELL_COUNT * setup.n / len(counts))
    noise = query.mechanism.sigma * unit
    mean_deviations = moments.cell_means(counts, sums * unit, spread.variances[:p], noise)
    return replace(cells, centres=centres, means=centres + mean_deviations, counts=counts)


def _release_cell_moments(
    setup: _Setup, query: ClassCovariances, spread: _Spread, cells: _Cells
) -> _Cells:
    """Release second moments of cells, and return cells with covariances.

    The moments are about the means of the cells.
    """
    p = setup.structure.n_components
    unit = MOMENT_BOUND * spread.deviation(p) / ROW_NORM
    deviations = _in_cells(setup, spread, cells.centres, cells.means, unit)
    released = query.release(setup.records, rows=deviations)
    covariances = moments.cell_covariances(
        cells.counts,
        released * unit**2,
        query.mechanism.sigma * unit**2,
        _weights(cells, setup.structure.n_cells),
        cells.means,
        spread.covariances,
    )
    return replace(cells, roots=root(covariances))


def _in_cells(
    setup: _Setup, spread: _Spread, centres: Tensor, origins: Tensor, unit: float
) -> LabelledRows:
    """Return the row function of a release of cells.

    A record of the cell k is mapped to (leading coordinates - origins[k]) / unit, and to k.

    Args:
        setup: What is known before the first release.
        spread: The map to leading coordinates.
        centres: Centres (K, p) of the cells: a record is in the cell of the nearest one.
        origins: Points (K, p) that are subtracted.
        unit: Length that becomes 1.
    """
    centres_of_classes = centres.unflatten(0, (-1, setup.structure.n_cells))
    return LabelledRows(InCells(spread.rows, centres_of_classes, origins, unit))


def _weights(cells: _Cells, n_cells: int) -> Tensor:
    """Return the weights (C, n_cells) of the cells: their proportions in their class."""
    counts: Tensor = cells.counts.unflatten(0, (-1, n_cells))
    return counts / counts.sum(1, keepdim=True)


# After the last release


def _set_cells(generator: MixtureGenerator, spread: _Spread, cells: _Cells) -> None:
    """Set weights, means and covariances of the cells.

    The variances of the directions beyond the leading ones are set, too.
    """
    assert cells.roots is not None  # set by the reference, by one cell per class, or released
    p = generator.n_components
    n_cells = generator.n_cells
    remaining = spread.means[:, p:].repeat_interleave(n_cells, 0)
    generator.weights.copy_(_weights(cells, n_cells))
    generator.means.copy_(torch.cat([cells.means, remaining], dim=1))
    generator.roots.copy_(cells.roots)
    generator.tail.copy_(spread.variances[p:].sqrt())


def _set_decoding(generator: MixtureGenerator, rows: RowMap) -> None:
    """Set the map from rows to records.

    It has an affine part, the distributions of columns, and the bounds. The affine part is found
    from the images of zero and of the unit vectors. Without leading directions it maps every
    coordinate by itself, so that the vector of ones stands for all of them.
    """
    zero = torch.zeros(1, rows.dim, dtype=torch.float64)
    offset = rows.decode(zero)
    generator.offset.copy_(offset.flatten())
    if generator.n_components:
        units = torch.eye(rows.dim, dtype=torch.float64)
        generator.synthesis.copy_((rows.decode(units) - offset).flatten(1))
    else:
        generator.synthesis.copy_((rows.decode(zero + 1) - offset).flatten())
    if rows.scores is not None and generator.columns is not None:
        generator.columns.load_state_dict(rows.scores.state_dict())
    if isinstance(rows.feature_map, Columns):
        generator.low.copy_(rows.feature_map.low)
        generator.high.copy_(rows.feature_map.low + rows.feature_map.width)


def _set_residual(generator: MixtureGenerator, rows: RowMap, amplitude: float) -> None:
    """Set the standard deviations of the frequencies that are not released.

    They are those of the reference spectrum times ``amplitude``, and times the contrast of the
    records over that of the reference, where it is lower.
    """
    assert isinstance(rows.feature_map, Frequencies)  # of images
    spectrum = reference_spectrum(generator.sample_shape).flatten()
    spectrum[rows.feature_map.index] = 0  # released
    # Rows of the reference spectrum have norm R before they are scaled, and those of records with
    # less contrast a smaller one, so that their scale is larger.
    contrast = min(1.0, 1 / rows.scale)
    scale = amplitude * contrast * spectrum.unflatten(0, generator.sample_shape)
    generator.residual_scale.copy_(scale)


def _set_tones(generator: MixtureGenerator, below: Tensor) -> None:
    """Set the tone curve by the released proportions of pixels.

    Below each edge between levels, generated pixels get the released proportion.

    Args:
        generator: The generator, whose cells and decoding are set.
        below: Released proportions (n_levels - 1,) of the pixels below each edge between levels.
    """
    with seeded(0):  # the codes are public, and every process must draw the same
        labels = generator.labels(_N_TONE_RECORDS, "released")
        latent = generator.latent(len(labels))
    cells = generator.cells(latent, labels)
    images = generator.linear(generator.mixture_rows(latent, cells), latent)
    pixels = images.flatten().sort().values
    generator.tones.copy_(pixels[(below * (len(pixels) - 1)).long()])


def _set_padding(generator: MixtureGenerator) -> None:
    """Set what jitter moves in from beyond the border of an image.

    That is black where the border of the mean image is black, as around digits. Otherwise the image
    is reflected at its border.
    """
    n_classes = generator.weights.shape[0]
    proportions = generator.means.new_tensor(generator.proportions)
    class_means = generator.means.unflatten(0, (n_classes, -1)).mean(1)
    mean_image = generator.linear((proportions @ class_means)[None])[0].mean(0)
    border = torch.cat([mean_image[0], mean_image[-1], mean_image[:, 0], mean_image[:, -1]])
    generator.reflect.fill_(bool(border.mean() > _BLACK_BORDER))
