"""Structure of the one-shot generator.

It says what is released, how the budget is shared, and what to expect. A structure has public
numbers only. :func:`dpswd.mixture.forecast.forecast` chooses it, and :func:`dpswd.mixture.fit`
makes its releases. ``dpswd forecast`` prints its text. The constants of this module are those that
forecast and fit have in common.

Terms of this package:

- A *row* is the vector of a record after the public feature map, centred and scaled. It is clipped
  to norm R = 1/2, so that one record changes a sum of rows by at most 2 R.
- A *cell* is a part of a class that has a normal distribution of its own. The generator is the
  mixture of all cells. With one cell per class, the cell is the class.
- The *reference spectrum* has the variances of the frequencies of photographs
  (:mod:`dpswd.features.frequencies`). It stands for the private variances before these are
  released. Coordinates of vectors get equal variances.
- A *reference* is a set of public records that look like the private ones.
- The *edge* of a second moment is the largest eigenvalue of its noise. A direction whose variance
  is below the edge is hidden by the noise.
- The *signal* is mu N / sqrt(C), for N records in C classes. The noise of the second moments of all
  classes together, over N, falls as one over the signal.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

from dpswd.errors import InputError

__all__ = ["PublicResult", "Structure", "nearest_results", "squares_bound"]

# Bound R on the norm of a centred, scaled row; the queries of classes and cells clip to it.
ROW_NORM = 0.5
# Bound on the norm of a row before it is centred: twice its root mean square under the reference
# spectrum, so that few rows are clipped.
RAW_NORM = 1.0
# Part of the mean squared norm of the rows that is between classes: that of the means of classes.
# The forecast assumes it, since the part of the private rows is not known. It was chosen on public
# data sets.
BETWEEN_PART = 0.15
# A released count of a class below this part of the mean count is raised to it: a mean is a
# quotient by the count, and noise must not make it large.
LEAST_COUNT = 0.2
# Sums of cells clip rows to this distance from the centre of their cell. Unit: the root mean square
# distance of rows from the mean of their class. Few rows are farther from a centre.
SUM_BOUND = 1.3
# Second moments of cells clip rows to this distance from the mean of their cell, in the same unit.
# The bound is lower than that of sums, since the noise of a second moment grows with its square.
# Clipping makes the variances too small; post-processing multiplies them by one factor. 0.5, 0.6
# and 0.85 are as good (docs/negative-results.md).
MOMENT_BOUND = 0.7

# Signal (mu N / sqrt C) from which on the means of classes stand out of the noise.
_MEANS_SIGNAL = 80.0
# Signal from which on directions of variety within classes do.
_VARIETY_SIGNAL = 2000.0
# Signal from which on synthetic photographs show a subject that is centred in all of them: faces do
# (docs/howto/photographs.md).
_SUBJECT_SIGNAL = 5000.0
# Signal of columns, N mu / sqrt(2 d), from which on the distributions of all classes together are
# released. Both figures were chosen on tables of 124 to 25,000 records (docs/tables-results.md).
COLUMN_SIGNAL = 90.0
# The same per class, for the distributions of each class.
OWN_COLUMN_SIGNAL = 140.0
# Bound on the squares of a row, over the norm that they have if all are equal.
SQUARES_BOUND = 2.0
# Ratio of the mean of a class of wide rows to its noise, from which on it stands out of the noise.
# The ratio of a variance is the same. At half of it, synthetic records had nothing of the classes
# (docs/negative-results.md).
_WIDE_SIGNAL = 1.0
# Ratio of two signals beyond which a public data set is not comparable.
_FARTHEST_RATIO = 2.0

# Number of classes of the public images of the forecast.
_PUBLIC_CLASSES = 10

# What each release has, for the table of the forecast.
_DESCRIPTIONS = {
    "columns": "distribution of every column",
    "overall": "mean and spread of all records",
    "tones": "shares of pixels at each level of brightness",
    "means": "mean of every class",
    "moments": "variety within classes",
    "variances": "variance of every column, within classes",
    "cell_means": "means of groups of similar records in every class",
    "cell_moments": "variety within these groups",
}
_DESCRIPTIONS_WITHOUT_CLASSES = {
    "means": "mean",
    "moments": "variety",
    "variances": "variance of every column",
    "cell_means": "means of groups of similar records",
}


@dataclass(frozen=True, kw_only=True)
class Structure:
    """What is released and how the budget is shared.

    See :func:`dpswd.mixture.forecast.forecast`.

    Attributes:
        sample_shape: Shape of a record.
        n_classes: Number C of classes; 0 for none.
        size: Frequencies per axis of luma; 0 for vectors.
        chroma_size: Frequencies per axis of each of the two chroma channels; 0 for vectors.
        dim: Dimension D of the rows.
        n_components: Number p of leading principal directions. Within a cell, rows have a full
            covariance in these directions, and in all others the variances of all classes together.
            With 0, no second moment is released: coordinates are those of the rows, and vary
            independently of each other.
        n_cells: Cells per class.
        pooled: Whether one second moment is released for all classes together.
        headroom: Bound R on the norm of a row divided by the root mean square norm of the rows.
            With more headroom fewer rows are clipped, and noise is larger in comparison with rows.
        class_bound: Bound on the distance of a row from the mean of its class, to which second
            moments of classes clip, in the unit of R.
        n_levels: Levels of brightness in the histogram of the pixels; 0 for no histogram.
        shares: Parts of the squared mu that the releases get, in their order; they add up to 1.
            The names are those of :attr:`releases`. The rounds of ``cell_means`` divide their
            share.
        signal_to_noise: Forecast for each release under the reference spectrum, a ratio of norms.
        n_surviving: Forecast number of directions above the edge of the second moment of all
            classes.
        signal: The signal mu N / sqrt(C).
        by_reference: Whether cells and their covariances are those of a public reference.
        n_rounds: Releases of the sums of cells; the means of one are the centres of the next.
        n_bins: Most bins of a column; 0 where the distributions of columns are not released.
        own_columns: Whether each class has its own distributions of columns.
        column_signal: The signal N mu / sqrt(2 d) of d columns with bounds; ``None`` without.

    Raises:
        InputError: If the shares are not those of the releases that the sizes ask for.
    """

    sample_shape: tuple[int, ...]
    n_classes: int
    size: int
    chroma_size: int
    dim: int
    n_components: int
    n_cells: int
    pooled: bool
    headroom: float
    class_bound: float
    n_levels: int
    shares: Mapping[str, float]
    signal_to_noise: Mapping[str, float] = field(default_factory=dict)
    n_surviving: int = 0
    signal: float
    by_reference: bool = False
    n_rounds: int = 0
    n_bins: int = 0
    own_columns: bool = False
    column_signal: float | None = None

    def __post_init__(self) -> None:
        """Refuse shares of other releases than the sizes ask for."""
        if set(self.shares) != set(self.releases):
            raise InputError(
                f"Expected shares for the releases {', '.join(self.releases)}, got shares for "
                f"{', '.join(self.shares)}; let dpswd.mixture.forecast.forecast choose them."
            )

    @property
    def releases(self) -> tuple[str, ...]:
        """Names of the releases that follow from the sizes, in their order."""
        names = []
        if self.n_bins:
            names.append("columns")  # centre and scale follow from the distributions
        else:
            names.append("overall")
        if self.n_levels:
            names.append("tones")
        if not self.own_columns:  # else the mean of a class follows from its distributions
            names.append("means")
        if self.n_components:
            names.append("moments")
        elif not self.own_columns:  # normal scores of a class have variance 1
            names.append("variances")
        if self.n_cells > 1:
            names.append("cell_means")
        if self.n_cells > 1 and not self.by_reference:  # a reference has its covariances
            names.append("cell_moments")
        return tuple(names)

    @property
    def n_groups(self) -> int:
        """Number of classes, or 1 where the records have none."""
        return max(1, self.n_classes)

    @property
    def n_releases(self) -> int:
        """Number of releases; each round of ``cell_means`` is one."""
        n_further_rounds = max(0, self.n_rounds - 1)
        return len(self.shares) + n_further_rounds

    @property
    def is_diagonal(self) -> bool:
        """Whether columns vary independently of each other within a cell.

        They do where rows are too wide for a second moment.
        """
        return self.n_components == 0

    @property
    def is_noise(self) -> bool:
        """Whether even the means are expected to be hidden by the noise."""
        return self._noise_over_means > 1

    @property
    def _noise_over_means(self) -> float:
        """How many times as many records the means need."""
        times = _MEANS_SIGNAL / self.signal
        if self.is_diagonal and "means" in self.signal_to_noise:
            return max(times, _WIDE_SIGNAL / self.signal_to_noise["means"])
        return times

    def refusal(self, n: int) -> str | None:
        """Return why a fit of wide rows is refused, and how many records would do.

        Return ``None`` where the means of classes or the variances of columns stand out of the
        noise.

        Args:
            n: Number of records of the forecast.
        """
        if not self.is_diagonal or not self.is_noise:
            return None
        if self.signal_to_noise.get("variances", 0.0) >= _WIDE_SIGNAL:
            return None
        # The ratios are proportional to the number of records.
        enough = math.ceil(n * self._noise_over_means)
        return (
            f"Expected at least {enough:,} records of {self.dim:,} numbers at this budget, got "
            f"{n:,}: means and variances would be noise; use more records, a larger budget, or "
            "fewer columns."
        )

    @property
    def verdict(self) -> str:
        """What to expect of the generated records, in one sentence.

        It is monotone in the number of records: more records are never promised less.
        """
        if self.is_noise:
            times = math.ceil(self._noise_over_means)
            remedy = f"class means need {times:,} times as many records, or a larger budget"
            return f"Expect noise: {remedy}."
        if self.is_diagonal:
            return "Expect class means and variances of single columns."
        return f"{self._kind_of_records()}."

    @property
    def summary(self) -> str:
        """The verdict, and in a second line what to expect of single columns."""
        if self.columns_in_words is None:
            return self.verdict
        return f"{self.verdict}\n{self.columns_in_words}"

    @property
    def releases_in_words(self) -> str:
        """What is released, in one line."""
        descriptions = []
        for name in self.releases:
            description = self._description(name)
            if name == "cell_means" and self.n_rounds > 1:
                description += f" (in {self.n_rounds} rounds)"
            descriptions.append(description)
        return f"Released with noise: {'; '.join(descriptions)}."

    def _description(self, release: str) -> str:
        """Return what a release has, in the words of records with classes or without."""
        if self.n_classes > 1:
            return _DESCRIPTIONS[release]
        return _DESCRIPTIONS_WITHOUT_CLASSES.get(release, _DESCRIPTIONS[release])

    @property
    def expectation(self) -> str:
        """What to expect of the generated records, in words without numbers of the method."""
        first = f"{self._kind_of_records()}: their mean is right, "
        if self.is_noise:
            first = self.verdict
        elif self.is_diagonal:
            kind = (
                "synthetic records whose columns have the right mean and spread, and vary "
                f"independently of each other: {self.dim:,} columns are too many for covariances."
            )
            first = self._expect(kind)
        elif self.signal < _VARIETY_SIGNAL and self._is_colour:
            first = f"{self._kind_of_records()}; their mean is right."
        elif self.signal < _VARIETY_SIGNAL:
            first += "and the differences between them are mostly noise."
        elif self.size:
            first += "and so are the largest differences between them; fine details are lost."
        else:
            first += "and so are the strongest relations between columns; weak ones are lost."
        lines = [first]
        if self.is_diagonal and not self.own_columns:
            lines.append(self._ratio_line())
        if self.size and not self.is_noise:
            lines.append(self._sharpness_line())
        if self.columns_in_words is not None:
            lines.append(self.columns_in_words)
        if self.size and self.n_classes > 1:
            lines += self._result_lines()
        return "\n".join(lines)

    def _ratio_line(self) -> str:
        """Say how strong means and variances of columns are beside their noise."""
        means = self.signal_to_noise["means"]
        variances = self.signal_to_noise["variances"]
        owner = "a class" if self.n_classes > 1 else "all records"
        return (
            f"Signal over noise: {means:.3g} of the mean of {owner}, {variances:.3g} of the "
            "variance of a column."
        )

    def _kind_of_records(self) -> str:
        """Say whether the generated records of a class differ from each other."""
        if self.signal < _VARIETY_SIGNAL and self._is_colour:
            # Their contrast and their fine structure are random.
            return self._expect("synthetic records that differ mostly by noise")
        if self.signal < _VARIETY_SIGNAL:
            return self._expect("synthetic records that look much alike")
        return self._expect("varied synthetic records")

    def _expect(self, kind: str) -> str:
        """Say what to expect, within each class where there are classes."""
        if self.n_classes > 1:
            return f"Within each class, expect {kind}"
        return f"Expect {kind}"

    @property
    def has_columns_of_classes(self) -> bool:
        """Whether each of several classes has its own distributions of columns."""
        return bool(self.own_columns) and self.n_classes > 1

    @property
    def columns_in_words(self) -> str | None:
        """What to expect of single columns; ``None`` without bounds, and for noise."""
        if self.column_signal is None or self.is_noise:
            return None
        if not self.n_bins:
            return (
                "Single columns have the right mean and spread, and no more: do not rely on their "
                "categories and limits."
            )
        if self.has_columns_of_classes:
            return "Single columns have the right distribution in every class."
        return "Single columns have the right distribution over all records."

    def _sharpness_line(self) -> str:
        """Say how sharp the images are, as a smaller image that is enlarged."""
        height, width = self.sample_shape[1:]
        line = "They are as sharp as the records"
        if self.size < max(height, width):
            line = (
                f"They are as sharp as images of {self.size} x {self.size} pixels that are "
                f"enlarged to {height} x {width}"
            )
        if self._is_colour:
            return f"{line}; the finer grain is random."
        return f"{line}."

    def clouds(self, n: int) -> str | None:
        """Return a warning that photographs will be clouds, and how many would do.

        Return ``None`` if they will not be, and for grey images and vectors.

        Args:
            n: Number of records of the forecast.
        """
        if not self._is_colour or self.signal >= _SUBJECT_SIGNAL:
            return None
        # The signal is proportional to the number of records.
        least = n * _SUBJECT_SIGNAL / self.signal
        # The number is rounded up to two significant digits: 12,345 becomes 13,000.
        second_digit = 10 ** max(0, math.floor(math.log10(least)) - 1)
        enough = math.ceil(least / second_digit) * second_digit
        return (
            f"Expect clouds of colour in place of photographs: {n:,} records are too few at this "
            f"budget. About {enough:,} would show a subject that is centred in every photograph, "
            "such as a face. Scenes of all kinds stay clouds."
        )

    @property
    def scenes(self) -> str | None:
        """What photographs show where they are enough.

        ``None`` where :meth:`clouds` warns, and for grey images and vectors.
        """
        if not self._is_colour or self.signal < _SUBJECT_SIGNAL:
            return None
        return (
            "Of photographs, a subject that is centred in every one, such as a face, shows as a "
            "blur. Scenes of all kinds stay clouds of colour, however many there are."
        )

    @property
    def _is_colour(self) -> bool:
        """Whether the records are images in colour, which may be photographs."""
        return bool(self.size) and self.sample_shape[0] == 3

    def rarest(
        self, sizes: Sequence[float], *, released: bool = False, counted: str = "records"
    ) -> str:
        """Return one line on what to expect of the rarest class.

        Args:
            sizes: Numbers of records (C,) of the classes, public or released ones.
            released: Whether the sizes are released ones, which may have been raised to the least
                count of a class.
            counted: What the sizes count: ``"records"``, or ``"entries"`` where a person has
                several (:attr:`dpswd.PrivateRecords.n_entries`).

        Example:
            >>> from dpswd.mixture.forecast import forecast
            >>> forecast(800, (1, 28, 28), n_classes=2, mu=2.0).rarest([720, 80])
            'Rarest class (80 records, 10 %): expect its mean with little variety of its own.'
        """
        smallest = min(sizes)
        fraction = smallest / sum(sizes)
        # The signal of as many classes as there are, all of the size of the rarest one.
        signal = self.signal * len(sizes) * fraction
        if signal < _MEANS_SIGNAL:
            expected = "noise in place of its mean"
        elif signal < _VARIETY_SIGNAL:
            expected = "its mean with little variety of its own"
            if self.has_columns_of_classes:
                expected += " in combinations of columns"
        else:
            expected = "its mean and variety"
        count = f"{round(smallest):,} {counted}"
        if released and fraction * len(sizes) <= LEAST_COUNT:
            # The count may have been raised to the least one, which is then an upper bound.
            count = f"at most {count} by the noisy counts"
            expected = f"{expected} or less"
        elif released:
            count = f"about {count} by the noisy counts"
        return f"Rarest class ({count}, {100 * fraction:.0f} %): expect {expected}."

    def __str__(self) -> str:
        """Return a table of the releases, what public data sets gave, and what to expect."""
        lines = self._table_lines()
        if self.size:
            lines.append(self._detail_line())
        if self.column_signal is not None:
            lines.append(self._column_line(self.column_signal))
        if self.size and self.n_classes > 1:
            lines += self._result_lines()
        lines += [*self._cell_lines(), self.verdict]
        return "\n".join(lines)

    def _cell_lines(self) -> list[str]:
        """Return the number of cells, called groups, where there are several."""
        if self.n_cells == 1:
            return []
        divided = "Each class is" if self.n_classes > 1 else "The records are"
        return [f"{divided} divided into {self.n_cells} groups of similar records."]

    def _table_lines(self) -> list[str]:
        """Return a line for each release, and one on the surviving directions.

        A direction survives if its variance is above the noise.
        """
        lines = [f"{'release':<14}{'share':>7}{'signal / noise':>16}"]
        for name, share in self.shares.items():
            ratio = self.signal_to_noise[name]
            lines.append(f"{name:<14}{share:>7.0%}{ratio:>16.2f}   {self._description(name)}")
        lines.append(
            "share: part of the squared mu of the budget, which adds up over the releases."
        )
        lines.append(
            "signal / noise: of an average number of the release; the largest ones have far more."
        )
        survival = f"Directions of variety above the noise: {self.n_surviving} of {self.dim}."
        if self.is_diagonal:
            survival = f"No covariances: {self.dim:,} columns are too many."
        lines.append(survival)
        return lines

    def _detail_line(self) -> str:
        """Say how much detail the generated images have."""
        side = min(self.sample_shape[1:])
        detail = f"the detail of {self.size} x {self.size} pixels"
        return f"Detail: {self.size} of {side} frequencies per axis, {detail}."

    def _column_line(self, signal: float) -> str:
        """Say how the columns are released, and which signals the other ways need."""
        method = "scaled only"
        if self.n_bins:
            owner = "each class" if self.own_columns else "all classes together"
            method = f"distributions of {owner}, of at most {self.n_bins} bins"
        own = OWN_COLUMN_SIGNAL * self.n_groups
        limits = (
            f"{COLUMN_SIGNAL:g} needed for all classes together, {own:g} for each class its own"
        )
        return f"Columns: {method} (signal {signal:.3g}; {limits})."

    def _result_lines(self) -> list[str]:
        """Say what was reached on public images whose signal is as strong."""
        results = nearest_results(_public_results(), self.sample_shape[0], self.signal)
        if not results:
            return []
        reached = ", ".join(str(result) for result in results)
        guessing = f"{100 / _PUBLIC_CLASSES:.0f} %"
        if self.n_classes != _PUBLIC_CLASSES:
            guessing += f", and with {self.n_classes} classes for {100 / self.n_classes:.0f} %"
        line = (
            f"On public images of {_PUBLIC_CLASSES} classes with a similar signal, a logistic "
            f"regression that was trained on synthetic images is right for {reached}. Guessing is "
            f"right for {guessing}."
        )
        if self.sample_shape[0] == 1:
            line += " All of these have a plain ground: of photographs expect less."
        return [line]


@dataclass(frozen=True)
class PublicResult:
    """Accuracy that was reached on a public data set, cut to a number of records."""

    dataset: str
    channels: int
    n_records: int
    epsilon: float
    signal: float  # mu N / sqrt(C)
    accuracy: float  # of logistic regression, in percent

    def __str__(self) -> str:
        size = f"{self.n_records:,} records, epsilon {self.epsilon:g}"
        return f"{self.accuracy:.0f} % of {self.dataset} ({size})"


def squares_bound(dim: int) -> float:
    """Return the bound on the norm of the squares of a row of this dimension.

    The squares of a row of norm R whose entries are all of the same size have norm R^2 / sqrt(D).
    """
    return SQUARES_BOUND * ROW_NORM**2 / math.sqrt(dim)


def nearest_results(
    results: Iterable[PublicResult], channels: int, signal: float
) -> list[PublicResult]:
    """Return the result of each data set whose signal is the closest.

    Signals beyond a factor of 2 do not count.

    Args:
        results: Results on public data sets; those with another number of channels do not count.
        channels: Channels of the images.
        signal: The signal mu N / sqrt(C) of the forecast.
    """
    nearest: dict[str, PublicResult] = {}
    distances: dict[str, float] = {}
    for result in results:
        if result.channels != channels:
            continue
        distance = abs(math.log(result.signal / signal))
        if distance < distances.get(result.dataset, math.log(_FARTHEST_RATIO)):
            nearest[result.dataset] = result
            distances[result.dataset] = distance
    return list(nearest.values())


@cache
def _public_results() -> tuple[PublicResult, ...]:
    """Read the results on public data sets.

    ``python -m experiments tables`` writes them.
    """
    content = json.loads((files("dpswd.mixture") / "stand_ins.json").read_text())
    results = []
    for row in content["rows"]:
        result = PublicResult(
            dataset=row["dataset"],
            channels=row["channels"],
            n_records=row["n_records"],
            epsilon=row["epsilon"],
            signal=row["signal"],
            accuracy=row["accuracy"],
        )
        results.append(result)
    return tuple(results)
