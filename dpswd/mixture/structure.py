r"""Structure of the default generator, from public numbers only: nothing private is read, so it is the forecast.

The rules and their reasons are those of docs/generation.md and docs/tables.md. Rows are centred and scaled to a root
mean square norm equal to their bound R = 1/2 (to R / 1.2 where there are several cells per class). Of the squared norm
the reference model gives the share 0.15 to differences between classes and 0.85 to differences within them; within
classes coordinates vary as in the public reference spectrum.
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import torch

from dpswd._validate import at_least, positive
from dpswd.features.frequencies import Frequencies

__all__ = ["Structure", "forecast"]

LEAST_COUNT = (
    0.2  # of the mean number of records of a class: a smaller released count is raised to it
)
ROW_NORM = 0.5  # bound on the norm of a centred, scaled row
RAW_NORM = 1.0  # bound on the norm of a row of the public map, twice its root mean square under the reference spectrum
BETWEEN = 0.15  # share of the squared norm that differs between classes, in the reference model
MAX_COMPONENTS = 120  # directions that have cells
MAX_CELLS = 12
ROUNDS = 3  # releases of the sums of cells
SUM_BOUND = (
    1.3  # bound on the distance of a row from its centre in a cell sum, in root mean square norms
)
MOMENT_BOUND = 0.7  # the same in a second moment of a cell
_MAX_REFERENCE_CELLS, _LEAST_REFERENCE_CELLS = 64, 12
_MAX_LEVELS = 32
_TONE_SHARE = 0.02
_MEANS_SIGNAL, _VARIETY_SIGNAL = (
    80.0,
    2000.0,
)  # signals from which on means, and directions about them, stand out
_COLUMN_SIGNAL, _OWN_SIGNAL = (
    90.0,
    140.0,
)  # from which on columns are released, of all classes or of each
_COLUMN_SHARE, _OWN_SHARE = 0.3, 0.5
_BINS = (8, 64, 256)
_FAR = 2.0  # ratio of signals beyond which a public data set is not comparable
_TERMS = {  # of the table
    "columns": "distribution of every column",
    "overall": "mean and size of all records",
    "tones": "shares of pixels at each level of brightness",
    "means": "mean of every class",
    "moments": "variety within classes",
    "cell_means": "means of cells, into which a class is cut",
    "cell_moments": "variety within cells",
}


@dataclasses.dataclass(frozen=True)
class Structure:
    """What is released and how the budget is shared; see :func:`forecast`."""

    sample_shape: tuple[int, ...]
    n_classes: int  # C; 0 for none
    size: int  # frequencies per axis of luma; 0 for vectors
    chroma_size: int  # those of the other opponent colours
    dim: int  # D, of the rows
    n_components: int  # leading directions p with covariances of their own, per cell or class
    n_cells: int  # per class
    pooled: bool  # one second moment is released for all classes together
    headroom: float  # row bound over the root mean square norm of a row
    class_bound: float  # on the distance of a row from the mean of its class, enforced by clipping
    n_levels: int  # of brightness, of the histogram of pixels; 0 for none
    shares: dict[str, float]  # of the squared mu, of each release; they add up to 1
    signal_to_noise: dict[
        str, float
    ]  # forecast for each release under the reference spectrum, a ratio of norms
    n_surviving: (
        int  # forecast number of directions above the noise edge of the pooled second moment
    )
    signal: float  # mu N / sqrt(C), on which all of this depends
    by_reference: bool = False  # the cells are those of a public reference
    n_rounds: int = 0  # releases of the sums of cells; the means of one are the centres of the next
    n_bins: int = 0  # most bins of a column; 0 where the distributions of columns are not released
    own_columns: bool = False  # each class has its own distributions of columns
    column_signal: float | None = None  # s, of columns with public bounds

    def __str__(self) -> str:
        """Return a table of the releases, what public data sets gave, and what to expect."""
        lines = [f"{'release':<14}{'share of mu^2':>14}{'signal / noise':>16}"]
        lines += [
            f"{name:<14}{share:>13.0%} {self.signal_to_noise[name]:>15.2f}   {_TERMS[name]}"
            for name, share in self.shares.items()
        ]
        lines.append(
            "signal / noise: of one number of the release, on average; leading ones are far better."
        )
        lines.append(f"Directions of variety above the noise: {self.n_surviving} of {self.dim}.")
        if self.size:
            size, side = self.size, min(self.sample_shape[1:])
            lines.append(
                f"Detail: {size} of {side} frequencies per axis, the detail of {size} x {size} pixels."
            )
        if self.column_signal is not None:
            of = "each class" if self.own_columns else "all classes together"
            how = (
                f"distributions of {of}, of at most {self.n_bins} bins"
                if self.n_bins
                else "scaled only"
            )
            own = _OWN_SIGNAL * max(1, self.n_classes)
            needed = f"{_COLUMN_SIGNAL:g} needed for all classes together, {own:g} for each class its own"
            lines.append(f"Columns: {how} (signal {self.column_signal:.3g}; {needed}).")
        if (
            self.size
            and self.n_classes > 1
            and (found := _nearest(self.sample_shape[0], self.signal))
        ):
            lines.append(
                "With as strong a signal, logistic regression on synthetic records of public data sets (cut to"
            )
            lines.append(f"so many records, 10 classes) reaches: {', '.join(found)}.")
        return "\n".join([*lines, self.verdict])

    @property
    def n_releases(self) -> int:
        """Number of releases."""
        return len(self.shares) + max(0, self.n_rounds - 1)

    @property
    def is_noise(self) -> bool:
        """Whether even the means are expected to be hidden by the noise."""
        return self.signal < _MEANS_SIGNAL

    @property
    def verdict(self) -> str:
        """What to expect of the generated records, in one sentence; monotone in the number of records."""
        kind = (
            f"{self.n_releases} releases, {self.n_cells} cell{'s' * (self.n_cells > 1)} per class"
        )
        kind += f", columns in {self.n_bins} bins" if self.n_bins else ""
        if self.is_noise:
            times = math.ceil(_MEANS_SIGNAL / self.signal)
            return f"Expect noise: class means need {times:,} times as many records, or a larger budget."
        variety = "and variety" if self.signal >= _VARIETY_SIGNAL else "with little variety"
        return f"Expect class means {variety} ({kind})."

    def rarest(self, sizes: Sequence[float], *, released: bool = False) -> str:
        """Say what to expect of the rarest class, in one line, from stated or released sizes (C,) of the classes."""
        share = min(sizes) / sum(sizes)
        signal = self.signal * len(sizes) * share  # of as many classes of its size
        found = "noise in place of its mean"
        if signal >= _MEANS_SIGNAL:
            found = (
                "its mean and variety"
                if signal >= _VARIETY_SIGNAL
                else "its mean with little variety of its own"
            )
        most, less = (
            ("at most ", " or less") if released and share * len(sizes) <= LEAST_COUNT else ("", "")
        )
        return f"Rarest class ({most}{round(min(sizes)):,} records, {share:.0%}): expect {found}{less}."


def forecast(
    n: int,
    shape: tuple[int, ...],
    n_classes: int,
    mu: float,
    n_reference: int = 0,
    bounded: bool = False,
) -> Structure:
    """Choose the structure for a budget and forecast the signal-to-noise ratio of each release.

    Args:
        n: Number N of records.
        shape: Shape of a record: (channels, height, width) or (d,).
        n_classes: Number C of classes; 0 for none.
        mu: Budget of Gaussian differential privacy.
        n_reference: Number of public records that look like the private ones; of vectors without classes only.
        bounded: Whether the columns of vectors have public bounds.

    Returns:
        The structure, whose text is a table of the releases.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> structure = forecast(60_000, (1, 28, 28), n_classes=10, mu=1.0)
        >>> structure.dim, structure.n_cells
        (400, 5)
    """
    at_least(1, n=n, **{f"shape_{i}": side for i, side in enumerate(shape)})
    at_least(0, n_classes=n_classes)
    positive(mu=mu)
    classes = max(1, n_classes)
    if bounded and len(shape) == 1 and not n_reference:
        return _with_columns(n, shape[0], n_classes, mu)
    signal = mu * n / math.sqrt(classes)
    # the edge of all classes pooled is at most twice the average variance of a coordinate: D <= signal^(2/3)
    size, chroma_size, spectrum = _frequencies(shape, signal ** (2 / 3))
    dim = len(spectrum)
    per_class = mu * n / classes
    p = min(dim, MAX_COMPONENTS)
    # the edge of one cell is at most 2.5 times the average variance: 2 p^1.5 n_cells / (mu n / C) <= 2.5
    n_cells = int(min(MAX_CELLS, max(1.0, 1.25 * per_class / p**1.5)))
    # pooled where the edge of a single class hides the leading coordinate
    leading = float(spectrum.max() / spectrum.sum()) * (1 - BETWEEN) * ROW_NORM**2
    pooled = classes > 1 and leading < 0.6 * 2 * ROW_NORM**2 * math.sqrt(dim) / per_class
    shares = {"overall": 0.04, "means": 0.05, "moments": 0.16, "cell_means": 0.75}
    # noise of the mean of a cell of the reference at most R / 2: 2.6 n_cells sqrt(p) / (mu_cells n) <= 1/4
    found = min(
        mu * math.sqrt(shares["cell_means"]) * n / (8 * SUM_BOUND * math.sqrt(p)), n_reference / 10
    )
    by_reference = len(shape) == 1 and not n_classes and found >= _LEAST_REFERENCE_CELLS
    if by_reference:
        n_cells, n_rounds = int(min(_MAX_REFERENCE_CELLS, found)), 1
        class_bound, headroom = ROW_NORM, 1.2
    elif n_cells > 1:
        shares = {
            "overall": 0.04,
            "means": 0.05,
            "moments": 0.16,
            "cell_means": 0.12,
            "cell_moments": 0.63,
        }
        n_rounds, class_bound, headroom = ROUNDS, ROW_NORM, 1.2
    else:
        n_rounds, p = 0, min(dim, 2 * MAX_COMPONENTS)
        shares = {"overall": 0.04, "means": 0.75} if pooled else {"overall": 0.02, "means": 0.1}
        shares["moments"] = 1 - sum(shares.values())
        class_bound, headroom = 0.35, 1.0
    # pixels of n / n_levels images are four times the noise of a level
    n_levels = min(_MAX_LEVELS, int(n * mu * math.sqrt(_TONE_SHARE) / 8)) if len(shape) == 3 else 0
    n_levels = n_levels if n_levels >= 4 else 0
    if n_levels:
        shares = {"overall": shares.pop("overall"), "tones": _TONE_SHARE, **shares}
        shares["cell_moments" if n_cells > 1 else "moments"] -= _TONE_SHARE
    within = (1 - BETWEEN) * (ROW_NORM / headroom) ** 2
    clipped = min(within, class_bound**2)

    n_moments = 1 if pooled else classes
    pooled_edge = (
        moment_edge(class_bound, dim, mu * math.sqrt(shares["moments"])) * math.sqrt(n_moments) / n
    )
    ratios = {
        "overall": ROW_NORM * mu * math.sqrt(shares["overall"] / dim) * n / (2 * RAW_NORM),
        "means": math.sqrt(BETWEEN / dim) / headroom * per_class * math.sqrt(shares["means"]) / 2,
        "moments": clipped / dim / pooled_edge,
    }
    if n_levels:
        ratios["tones"] = n * mu * math.sqrt(_TONE_SHARE) / (2 * n_levels)
    if n_cells > 1:
        per_cell = per_class / n_cells
        ratios["cell_means"] = (
            0.5 * per_cell * math.sqrt(shares["cell_means"] / n_rounds / p) / (2 * SUM_BOUND)
        )
    if "cell_moments" in shares:
        ratios["cell_moments"] = 1 / (
            p * moment_edge(1.0, p, per_cell * math.sqrt(shares["cell_moments"]))
        )
    return Structure(
        sample_shape=tuple(shape),
        n_classes=n_classes,
        size=size,
        chroma_size=chroma_size,
        dim=dim,
        n_components=p,
        n_cells=n_cells,
        pooled=pooled,
        headroom=headroom,
        class_bound=class_bound,
        n_levels=n_levels,
        shares=shares,
        signal_to_noise=ratios,
        n_surviving=int((spectrum / spectrum.sum() * clipped > pooled_edge).sum()),
        signal=signal,
        by_reference=by_reference,
        n_rounds=n_rounds,
    )


def _with_columns(n: int, dim: int, n_classes: int, mu: float) -> Structure:
    """Return the structure for ``dim`` columns with bounds."""
    classes, signal = max(1, n_classes), n * mu / math.sqrt(2 * dim)
    scaled = dataclasses.replace(forecast(n, (dim,), n_classes, mu), column_signal=signal)
    of = _distributions(signal, classes, scaled.pooled)
    if not of:
        return scaled
    share = _OWN_SHARE if of == classes else _COLUMN_SHARE
    rest = forecast(n, (dim,), n_classes, mu * math.sqrt(1 - share))
    n_bins = max(
        (size for size in _BINS if size <= 2 * signal * math.sqrt(share) / of), default=_BINS[0]
    )
    centred = (
        ("overall", "means") if of == classes else ("overall",)
    )  # scores are centred and scaled
    released = [name for name in rest.shares if name not in centred]
    kept = sum(rest.shares[name] for name in released)
    return dataclasses.replace(
        rest,
        shares={"columns": share}
        | {name: rest.shares[name] * (1 - share) / kept for name in released},
        signal_to_noise={"columns": signal * math.sqrt(share) / of / n_bins}
        | {name: rest.signal_to_noise[name] / math.sqrt(kept) for name in released},
        signal=scaled.signal,
        n_bins=n_bins,
        own_columns=of == classes,
        column_signal=signal,
    )


def _distributions(signal: float, n_classes: int, pooled: bool) -> int:
    """Return for how many groups of classes columns are released: each class, one for all, or 0 if not at all."""
    if signal >= _OWN_SIGNAL * n_classes:
        return n_classes
    return int(signal >= _COLUMN_SIGNAL and not pooled)


def moment_edge(bound: float, dim: int, mu: float) -> float:
    """Largest eigenvalue of the noise of a second moment (dim, dim) of rows of norm at most ``bound``."""
    return 2 * bound**2 * math.sqrt(dim) / mu  # semicircle law


def _frequencies(shape: tuple[int, ...], wanted: float) -> tuple[int, int, torch.Tensor]:
    """Frequencies per axis of luma and chroma, and the reference variances (D,) of the rows, which sum to 1/4."""
    if len(shape) != 3:
        dim = math.prod(shape)
        return 0, 0, torch.full((dim,), 0.25 / dim, dtype=torch.float64)
    channels, height, width = shape
    side = min(height, width)
    per_square = 1.5 if channels == 3 else channels
    largest = side if side < 20 else round((0.25 if channels == 3 else 0.72) * side)
    size = max(min(2, side), min(round(math.sqrt(wanted / per_square)), largest))
    features = Frequencies((channels, height, width), size, max(1, size // 2))
    return size, features.chroma_size, features.reference


def _nearest(channels: int, signal: float) -> list[str]:
    """Describe the row of each data set with these channels that is closest to a signal, within a factor of 2.

    The rows are accuracies on public data sets cut to few records, which ``python -m experiments tables`` writes.
    """
    closest: dict[str, tuple[float, dict[str, Any]]] = {}
    for row in json.loads((files("dpswd.mixture") / "stand_ins.json").read_text())["rows"]:
        distance = abs(math.log(row["signal"] / signal))
        if (
            row["channels"] == channels
            and distance < closest.get(row["dataset"], (math.log(_FAR), row))[0]
        ):
            closest[row["dataset"]] = distance, row
    return [
        f"{row['dataset']} ({row['n_records']:,} records, epsilon {row['epsilon']:g}) {row['accuracy']:.0f} %"
        for _, row in closest.values()
    ]
