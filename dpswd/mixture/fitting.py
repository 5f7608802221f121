r"""Fit of the one-shot generator: a mixture of normal distributions, from sums over all records.

Releases of all N records, each with its share of the squared mu of the budget
(:func:`dpswd.mixture.structure.forecast`):

1. the sum of the rows and of their squared norms, which centres and scales them;
2. for images, the shares of pixels at each level of brightness;
3. counts and sums per class;
4. second moments about the released means, per class or of all classes together;
5. counts and sums per cell, where the forecast has several cells per class, three times: the means of one are the
   centres of the next (Lloyd's algorithm), except with a public reference;
6. second moments per cell, likewise, unless the cells are those of a public reference.

Of tables with public bounds and enough records, the distribution of every column is released in place of 1, and of 3
where each class has its own. Rows are then normal scores (:mod:`dpswd.mixture.columns`).

Privacy. Scale, directions and cells follow from earlier releases and public numbers, and the cell of a record from this
record besides. So each release is a Gaussian mechanism of constant sensitivity on all records, and they compose
adaptively (docs/theory/accounting.md, Propositions 16 and 19). Everything else is post-processing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dpswd._progress import say
from dpswd._provenance import mark_runs
from dpswd._symmetric import root
from dpswd.budget.budget import Budget
from dpswd.errors import InputError
from dpswd.features.frequencies import Frequencies, reference_spectrum
from dpswd.features.maps import Columns, FeatureMap, Flatten, histogram
from dpswd.mixture import moments
from dpswd.mixture.columns import NormalScores, estimate
from dpswd.mixture.forecast import forecast
from dpswd.mixture.generator import MixtureGenerator
from dpswd.mixture.structure import (
    LEAST_COUNT,
    MOMENT_BOUND,
    RAW_NORM,
    ROW_NORM,
    SUM_BOUND,
    Structure,
)
from dpswd.networks.generator import seeded
from dpswd.queries import ClassCovariances, ClassMeans, ColumnCounts, SumAndNorm
from dpswd.records import PrivateRecords
from dpswd.row_copy import LabelledRows

__all__ = ["fit"]

_CONTRAST = 0.3  # of photographs, standard deviation of its logarithm
_RESIDUAL = (
    0.6  # amplitude of the frequencies that are not released, over that of the reference spectrum
)
_DARK = 0.1  # a mean border darker than this is taken for black
_LEAST_VARIANCE = 1e-9
_MOSTLY_CLIPPED = (
    0.75  # mean squared norm of clipped rows, over the bound, from which most of them were clipped
)


def fit(
    records: PrivateRecords,
    budget: Budget,
    *,
    centre: float | None = None,
    radius: float | None = None,
    residual: bool | None = None,
    reference: Tensor | None = None,
    noise_seed: int | None = None,
    progress: bool = False,
    **jitter: float,
) -> MixtureGenerator:
    """Release moments of all records, and return the generator that has them.

    Args:
        records: The private records; their number, shape, classes, bounds and kinds are public.
        budget: The budget, not entered; its queries are set here.
        centre: Public constant subtracted from every entry; ``None`` for 0.5 (pixels) or 0 (vectors).
        radius: Public guess of the norm of a centred vector, for vectors without bounds.
        residual: Draw the frequencies that are not released from the spectrum of photographs, and vary the contrast;
            ``None`` for colour images only.
        reference: Public vectors (n, d) like the private ones, for vectors without classes.
        noise_seed: For tests only: NOT PRIVATE.
        progress: Show what to expect.
        jitter: Public constants ``shift``, ``rotation``, ``zoom``, ``shear`` and ``elastic`` of generated images; see
            :func:`dpswd.features.jitter.jitter`.

    Returns:
        The generator; its ``structure`` is the :class:`~dpswd.mixture.structure.Structure`.

    Raises:
        InputError: If a number is out of range; nothing is released then.
        BudgetExceededError: If the shared ledger does not cover the run.

    Example:
        >>> import tempfile
        >>> records = PrivateRecords(torch.rand(300, 8, 8), torch.arange(300) % 2, classes=[0, 1])
        >>> budget = Budget(records, target_epsilon=10, target_delta=1e-5, run_dir=tempfile.mkdtemp())
        >>> generator = fit(records, budget)
        >>> generator(generator.latent(5), torch.tensor([0, 1, 1, 0, 0])).shape
        torch.Size([5, 1, 8, 8])
    """
    n, shape, n_reference = len(records), records.shape, 0 if reference is None else len(reference)
    structure = forecast(
        n, shape, records.n_classes, budget.mu, n_reference, records.bounds is not None
    )
    base = _public_map(records, structure, centre, radius)
    queries = _queries(structure, records, noise_seed)
    generator = _generator(structure, residual, base, jitter, queries.get("columns"))
    budget.queries = list(queries.values())
    if structure.is_noise or progress:
        say(f"{'Warning: ' if structure.is_noise else ''}{structure.verdict}")

    steps = _Fit(records, structure, base, queries, generator)
    with budget:
        steps.release_rows()
        steps.release_classes()
        if progress and structure.n_classes > 1:
            say(structure.rarest(steps.counts.tolist(), released=True))
        if structure.n_cells == 1:
            steps.set_classes()
        else:
            steps.release_cells(reference)
    steps.set_map()
    generator.class_names, generator.layout, generator.kinds = (
        records.classes,
        records.layout,
        records.kinds,
    )
    generator.structure = structure
    mark_runs(generator, budget.statement()["weights_from_runs"])
    return generator.eval()


def _public_map(
    records: PrivateRecords, structure: Structure, centre: float | None, radius: float | None
) -> Frequencies | Flatten:
    """Return the map from records to rows."""
    if len(records.shape) == 3:
        if radius is not None:
            raise InputError(
                f"Expected a radius of vectors only, got radius={radius:g} of images; leave it out."
            )
        return Frequencies(
            records.shape, structure.size, structure.chroma_size, 0.5 if centre is None else centre
        )
    if records.bounds is not None:
        if radius is not None or centre is not None:
            raise InputError(
                "Expected bounds, or centre and radius, got both; leave centre and radius out."
            )
        return Columns(records.bounds)
    if radius is None:
        remedy = "pass bounds=[(low, high), ...] (--bounds FILE), or radius, a guess of the norm of a vector"
        raise InputError(
            f"Expected public limits of every column of the vectors, got none; {remedy}."
        )
    return Flatten(records.shape, centre or 0.0, radius)


def _generator(
    structure: Structure,
    residual: bool | None,
    base: FeatureMap,
    jitter: dict[str, float],
    columns: Any,
) -> MixtureGenerator:
    shape = structure.sample_shape
    residual = len(shape) == 3 and shape[0] == 3 if residual is None else residual
    generator = MixtureGenerator(
        shape,
        structure.n_classes,
        structure.n_cells,
        structure.n_components,
        structure.dim,
        bounded=len(shape) == 3 or isinstance(base, Columns),
        n_levels=structure.n_levels,
        residual=residual,
        contrast=_CONTRAST if residual else 0.0,
        jitter=jitter,
        n_bins=0 if columns is None else max(columns.bins.n_bins),
        own_columns=structure.own_columns,
    )
    if isinstance(base, Columns):
        generator.low.copy_(base.low)
        generator.high.copy_(base.low + base.width)
    return generator


def _queries(structure: Structure, records: PrivateRecords, seed: int | None) -> dict[str, Any]:
    """Return the queries in the order of their releases, each with its share of the budget."""
    bounds: Any = records.bounds
    dim, p, classes = structure.dim, structure.n_components, max(1, structure.n_classes)
    cells, groups = classes * structure.n_cells, classes if structure.own_columns else 1
    kinds: dict[str, Callable[..., Any]] = {
        "columns": partial(ColumnCounts, groups, bounds, records.kinds, structure.n_bins),
        "overall": partial(SumAndNorm, dim, RAW_NORM),
        "tones": partial(ClassMeans, 1, structure.n_levels, ROW_NORM),
        "means": partial(ClassMeans, classes, dim, ROW_NORM),
        "moments": partial(
            ClassCovariances, 1 if structure.pooled else classes, dim, structure.class_bound
        ),
        "cell_means": partial(ClassMeans, cells, p, ROW_NORM),
        "cell_moments": partial(ClassCovariances, cells, p, ROW_NORM),
    }
    made: dict[str, Any] = {}
    for name, share in structure.shares.items():
        rounds = (
            [f"cell_means_{i}" for i in range(structure.n_rounds)]
            if name == "cell_means"
            else [name]
        )
        for i, each in enumerate(rounds):  # with noise of their own
            made[each] = kinds[name](
                share=share / len(rounds), noise_seed=None if seed is None else seed + i
            )
    return made


class _Rows:
    """Row function: a public map, centred, scaled and rotated by released values; or normal scores in its place."""

    def __init__(
        self, base: FeatureMap, scale: float, mean: Tensor, columns: NormalScores | None = None
    ) -> None:
        self.base, self.scale, self.mean, self.columns = base, scale, mean, columns
        self.directions: Tensor | None = None  # columns (D, D)

    def __call__(
        self, values: Tensor, labels: Tensor | None = None, n_leading: int | None = None
    ) -> Tensor:
        """Map records (n, ...) to their coordinates in the leading directions; all of them unless ``n_leading``."""
        found = (
            self.base(values).double() - self.mean
            if self.columns is None
            else self.columns.scores(values, labels)
        )
        rows: Tensor = found * self.scale
        return rows if self.directions is None else rows @ self.directions[:, :n_leading]

    def decode(self, rows: Tensor) -> Tensor:
        """Map rows (n, D) to records, or to normal scores."""
        unturned = rows if self.directions is None else rows @ self.directions.T
        unscaled = (unturned / self.scale + self.mean).float()
        return unscaled if self.columns is not None else self.base.decode(unscaled)


@dataclass(eq=False)
class _Fit:
    """Releases of one fit, and what follows from them for the generator; see the module's docstring for the numbers."""

    records: PrivateRecords
    structure: Structure
    base: FeatureMap
    queries: dict[str, Any]
    generator: MixtureGenerator
    rows: _Rows = field(init=False)
    counts: Tensor = field(init=False)  # (C,) records of classes
    means: Tensor = field(init=False)  # (C, D) of classes
    covariances: Tensor = field(init=False)  # (C, D, D) of classes
    pooled: Tensor = field(init=False)  # (D, D), within all classes together
    overall: Tensor = field(init=False)  # (D,) mean of all rows
    between: float = field(init=False)  # variance of the means of classes
    variances: Tensor = field(init=False)  # (D,), the diagonal of ``pooled``, not too small
    below: Tensor | None = None  # shares of pixels below each level of brightness

    def release_rows(self) -> None:
        """Release centre and scale, brightness, and counts and means of classes (1. to 3.), or columns."""
        n, queries, structure = len(self.records), self.queries, self.structure
        if "columns" in queries:
            self._release_columns(queries["columns"])
        else:
            self._release_overall(queries["overall"])
        if "tones" in queries:
            shares = partial(histogram, n_levels=structure.n_levels)
            levels = queries["tones"].release(self.records, rows=shares)[1][0].clamp(min=0)
            self.below = (levels / levels.sum().clamp(min=1e-9)).cumsum(0)[:-1]
        if "means" in queries:
            counts, sums = queries["means"].release(self.records, rows=self.rows)
            self.counts = counts.clamp(min=LEAST_COUNT * n / len(counts))
            noise = queries["means"].mechanism.sigma
            self.means = moments.class_means(self.counts, sums, self.reference_variances(), noise)
            self.overall = sums.sum(0) / self.counts.sum()
        self.generator.proportions = (self.counts / self.counts.sum()).tolist()

    def _release_columns(self, query: ColumnCounts) -> None:
        """Release the columns, of which the rows are the normal scores."""
        dim, columns = self.base.dim, self.generator.columns
        assert columns is not None
        released = query.release(self.records)
        masses, self.counts = estimate(
            query.bins, released, query.mechanism.sigma, len(self.records)
        )
        self.means = torch.zeros(len(self.counts), dim, dtype=torch.float64)
        self.overall = self.means[0]
        scale = ROW_NORM / (self.structure.headroom * math.sqrt(dim))
        self.rows = _Rows(self.base, scale, self.overall, columns.set(query.bins, masses))

    def _release_overall(self, query: SumAndNorm) -> None:
        """Release centre and scale of the rows, which get the root mean square norm of the structure."""
        n, base = len(self.records), self.base
        total, squares = query.release(self.records, rows=base)
        if squares / n > _MOSTLY_CLIPPED * RAW_NORM**2 and type(base) is Flatten:
            so = "so that the synthetic ones are too short; state bounds of the columns, or a larger radius"
            say(
                f"Warning: most vectors are longer than twice radius={base.radius:g} and were clipped, {so}."
            )
        mean, spread = moments.mean_and_spread(total, squares, n, query.mechanism.sigma)
        spread = min(max(spread, 0.1 * ROW_NORM**2), RAW_NORM**2)
        self.rows = _Rows(base, ROW_NORM / (self.structure.headroom * math.sqrt(spread)), mean)

    def reference_variances(self) -> Tensor:
        """Return public variances (D,) of the scaled rows."""
        base = self.base
        variances = (
            base.reference
            if isinstance(base, Frequencies)
            else torch.ones(base.dim, dtype=torch.float64)
        )
        return variances * ((ROW_NORM / self.structure.headroom) ** 2 / variances.sum())

    def release_classes(self) -> None:
        """Release second moments about the means (4.) and turn all to the principal directions."""
        rows, means, counts, query = self.rows, self.means, self.counts, self.queries["moments"]
        about = LabelledRows(lambda values, labels: (rows(values, labels) - means[labels], labels))
        released = query.release(self.records, rows=about)
        n = len(self.records) if self.structure.pooled else counts.sum()
        pooled = moments.nearest_spectrum(released.sum(0) / n)
        apart = means - self.overall
        between = (apart * (counts / counts.sum())[:, None]).T @ apart
        rows.directions = directions = torch.linalg.eigh(pooled + between).eigenvectors.flip(1)
        self.pooled, self.between = directions.T @ pooled @ directions, float(between.trace())
        self.means = means @ directions
        self.covariances = self.pooled.expand(len(means), -1, -1)
        if not self.structure.pooled:
            turned = directions.T @ (released / counts[:, None, None]) @ directions
            noise, n_cells = query.mechanism.sigma, self.structure.n_cells
            self.covariances = moments.class_covariances(
                counts, turned, self.pooled, noise, n_cells
            )
        self.variances = self.pooled.diagonal().clamp(min=_LEAST_VARIANCE)
        self.generator.tail.copy_(self.variances[self.structure.n_components :].sqrt())

    def set_classes(self) -> None:
        """Set one cell per class, with the reference variance of the rows, which clipping and noise have changed."""
        p = self.structure.n_components
        covariances, tail = self.covariances[:, :p, :p], self.variances[p:]
        found = float(
            (self.counts / self.counts.sum()) @ covariances.diagonal(dim1=1, dim2=2).sum(1)
        )
        wanted = float(self.reference_variances().sum()) - self.between - float(tail.sum())
        limit = ROW_NORM / self.structure.class_bound  # where all of them are clipped
        scale = math.sqrt(min(max(wanted / max(found, _LEAST_VARIANCE), 1.0), limit**2))
        self.generator.means.copy_(self.means)
        self.generator.roots.copy_(scale * root(covariances))

    def release_cells(self, reference: Tensor | None) -> None:
        """Release counts, sums and, without a reference, second moments of cells (5. and 6.)."""
        n_cells, p = self.structure.n_cells, self.structure.n_components
        pooled, variances = self.pooled[:p, :p], self.variances[:p]
        deviation = float(variances.sum().sqrt())
        if self.structure.by_reference:
            assert reference is not None
            public = self.rows(reference, n_leading=p)
            like = moments.like_reference(public, self.means[0, :p], pooled)
            means, covariances = moments.reference_cells(like, n_cells)
        else:
            means = moments.centres(self.means[:, :p], pooled, n_cells).flatten(0, 1)
        unit = SUM_BOUND * deviation / ROW_NORM  # a row at the bound gets norm R
        for query in (self.queries[f"cell_means_{i}"] for i in range(self.structure.n_rounds)):
            centres = means
            counts, sums = query.release(self.records, rows=self._in_cells(centres, centres, unit))
            counts = counts.clamp(min=0.1 * float(counts.mean()))  # small cells are mostly noise
            means = centres + moments.cell_means(
                counts, sums * unit, variances, query.mechanism.sigma * unit
            )
        weights = counts.unflatten(0, (-1, n_cells))
        weights = weights / weights.sum(1, keepdim=True)
        if (query := self.queries.get("cell_moments")) is not None:
            unit, of_classes = MOMENT_BOUND * deviation / ROW_NORM, self.covariances[:, :p, :p]
            scaled = (
                query.release(self.records, rows=self._in_cells(centres, means, unit)) * unit**2
            )
            noise = query.mechanism.sigma * unit**2
            covariances = moments.cell_covariances(
                counts, scaled, noise, weights, means, of_classes
            )
        self.generator.weights.copy_(weights)
        self.generator.means.copy_(
            torch.cat([means, self.means[:, p:].repeat_interleave(n_cells, 0)], dim=1)
        )
        self.generator.roots.copy_(root(covariances))

    def _in_cells(self, centres: Tensor, about: Tensor, unit: float) -> LabelledRows:
        """Return leading coordinates about those of the cell, which is that of the nearest centre."""
        rows, n_cells, p = self.rows, self.structure.n_cells, self.structure.n_components

        def cells(values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
            leading = rows(values, labels, p)
            found = moments.cell_of(leading, labels, centres.unflatten(0, (-1, n_cells)))
            return (leading - about[found]) / unit, found

        return LabelledRows(cells)

    def set_map(self) -> None:
        """Set the map from rows to records: decoding, frequencies that are not released, tones, border."""
        generator, rows = self.generator, self.rows
        identity = torch.eye(self.base.dim, dtype=torch.float64)
        offset = rows.decode(torch.zeros_like(identity[:1]))
        generator.offset.copy_(offset.flatten())
        generator.synthesis.copy_((rows.decode(identity) - offset).flatten(1))
        if generator.residual:
            assert isinstance(self.base, Frequencies)
            spectrum = reference_spectrum(generator.sample_shape).flatten()
            spectrum[self.base.index] = 0
            contrast = min(1.0, 1 / rows.scale)  # of the records, over that of the reference
            generator.residual_scale.copy_(
                _RESIDUAL * contrast * spectrum.unflatten(0, generator.sample_shape)
            )
        if (
            self.below is not None
        ):  # generated pixels have the released shares below the edges between levels
            with seeded(0):  # the codes hide nothing, and every process must draw the same
                labels = generator.labels(1000, "released")
                latent = generator.latent(len(labels))
            made = generator.linear(generator.rows(latent, generator.cell(latent, labels)), latent)
            values = made.flatten().sort().values
            generator.tones.copy_(values[(self.below * (len(values) - 1)).long()])
        if generator.jitter:
            proportions = generator.means.new_tensor(generator.proportions)
            mean = proportions @ generator.means.unflatten(0, (len(proportions), -1)).mean(1)
            picture = generator.linear(mean[None])[0].mean(0)
            border = torch.cat([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
            generator.reflect.fill_(bool(border.mean() > _DARK))
