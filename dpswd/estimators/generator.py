"""PrivateGenerator: synthetic records, in the manner of scikit-learn."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse

from dpswd._labels import class_array
from dpswd._layout import Layout
from dpswd._memory import check_drawing, check_record_size
from dpswd._png import mark_picture
from dpswd._progress import say
from dpswd._validate import at_least, choice, positive, real
from dpswd.budget.plan import Target
from dpswd.errors import InputError
from dpswd.estimators.one_shot import OneShot
from dpswd.features.jitter import AMOUNTS as JITTER
from dpswd.features.jitter import check_amounts
from dpswd.features.shapes import INKS
from dpswd.files.generators import read_generator, write_generator
from dpswd.files.pictures import save_columns, save_samples
from dpswd.mixture.forecast import forecast
from dpswd.mixture.structure import Structure
from dpswd.networks.generator import (
    Generator,
    draw_in_layout,
    seeded,
    with_training_noise,
)
from dpswd.records import PrivateRecords

__all__ = ["PrivateGenerator"]


# Synthetic rows of the picture in the report.
_N_IN_PICTURE = 2000

# Centre of pixels, which lie in [0, 1], unless the user states another one.
_PIXEL_CENTRE = 0.5


class PrivateGenerator(OneShot):
    """Makes synthetic records from private ones.

    A mixture of normal distributions, from noisy sums over all records; no network is trained.

    Formal guarantee:
        ``fit`` makes the releases of :func:`dpswd.mixture.fit` within a :class:`~dpswd.Budget`:
        (epsilon, delta) differential privacy under replace-one, labels included. Samples, files
        and reports are post-processing. The shape, the number, the classes and the bounds of the
        records are public.

    Args:
        epsilon: Budget epsilon of one fit; infinity for no noise, on public stand-ins: NOT PRIVATE.
        delta: Budget delta of one fit; well below 1 / N.
        classes: Public list of classes. Without it, they are taken from the labels, with a line
            on the screen.
        bounds: Public bounds (low, high) of every column, for vectors. Entries beyond them are
            clipped. With enough records (:meth:`forecast` says it) every class gets its own
            distributions of the columns.
        kinds: Public kind of every column: ``"numeric"``, ``"integer"``, ``"binary"``, or
            ``"nominal"`` for numbers of categories.
        columns: Public facts of the columns of a DataFrame with categories, dates or missing
            cells, instead of bounds and kinds: a dictionary by names, or a file
            (:mod:`dpswd.columns`).
        unit: The person of each record: an array (N,), or the name of a column of a DataFrame. The
            guarantee then protects a person with all records (docs/theory/units.md).
        per_unit: Number of records of a person that enter at most.
        shapes: ``"light"`` where images show light shapes on a dark ground, such as scanned digits,
            ``"dark"`` for dark ink on a light ground. Signed distances to the border of the shape
            then take the place of pixels (:mod:`dpswd.features.shapes`). ``None`` for pixels.
        structure: What is released and how the budget is shared, from public numbers only;
            ``None`` for the :func:`~dpswd.mixture.forecast.forecast` of records and budget.
        centre: Public constant subtracted from every entry; ``None`` for 0.5 (images) or 0
            (vectors without bounds).
        radius: Public guess of the norm of a vector, instead of ``bounds``.
        shift: Random shift of generated images, in pixels; public knowledge of what leaves a
            class unchanged.
        rotation: As ``shift``, in degrees.
        zoom: As ``shift``, relative size.
        shear: As ``shift``, relative slant.
        elastic: As ``shift``, standard deviation of smooth displacements, in pixels.
        device: Device on which records are generated.
        run_dir: Directory of the ledger and the report; by default a new one below ``runs``.
        shared_ledger: Ledger of several runs on the same records, made by
            ``dpswd ledger create``.
        random_state: Seed of public randomness (latent codes). Every call of :meth:`sample` draws
            other records; the same calls after a fit draw the same ones with a seed, and other
            ones with ``None``. Noise has no seed.
        resume: Finish an interrupted run in ``run_dir``.
        verbose: Print what to expect, the guarantee and the files.

    Attributes:
        guarantee_: The guarantee: ``guarantee_.epsilon``, delta, mu, regret, sound, ...
        summary_: The guarantee in words, with the total of a shared ledger; after ``fit`` only.
        generator_: The fitted :class:`~dpswd.networks.generator.Generator`.
        classes_: Classes (C,), or ``None`` without labels.
        run_dir_: The run directory.

    Example:
        >>> generator = PrivateGenerator(epsilon=10, delta=1e-5)
        >>> generator.get_params()["epsilon"]  # then .fit(images, labels).sample(10_000)
        10
    """

    def __init__(
        self,
        epsilon: float = 10.0,
        delta: float = 1e-5,
        *,
        classes: Sequence[Any] | None = None,
        bounds: Sequence[tuple[float, float]] | None = None,
        kinds: Sequence[str] | None = None,
        columns: Any = None,
        unit: Any = None,
        per_unit: int = 1,
        shapes: str | None = None,
        structure: Structure | None = None,
        centre: float | None = None,
        radius: float | None = None,
        shift: float = 0.0,
        rotation: float = 0.0,
        zoom: float = 0.0,
        shear: float = 0.0,
        elastic: float = 0.0,
        device: str = "cpu",
        run_dir: str | Path | None = None,
        shared_ledger: str | Path | None = None,
        random_state: int | None = 0,
        resume: bool = False,
        verbose: bool = True,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.classes = classes
        self.bounds = bounds
        self.kinds = kinds
        self.columns = columns
        self.unit = unit
        self.per_unit = per_unit
        self.shapes = shapes
        self.structure = structure
        self.centre = centre
        self.radius = radius
        self.shift = shift
        self.rotation = rotation
        self.zoom = zoom
        self.shear = shear
        self.elastic = elastic
        self.device = device
        self.run_dir = run_dir
        self.shared_ledger = shared_ledger
        self.random_state = random_state
        self.resume = resume
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None) -> "PrivateGenerator":
        """Release noisy statistics of the records and fit a generator to them.

        Args:
            X: Images or rows in the forms of :class:`~dpswd.PrivateRecords`, or such a handle.
            y: Classes (N,), or ``None``. A handle has its own classes, bounds, kinds and units;
                those of this call and of the estimator are then not used.

        Raises:
            InputError: If the records do not fit; nothing is released then.
            BudgetExceededError: If the shared ledger does not cover the run.
        """
        # wrong arguments are refused before a directory is made or a release is paid for
        self._mu()
        self._public_seed()
        constants = self._constants()
        if self.shapes is not None:
            choice(INKS, shapes=self.shapes)
        directory = self._checked_run_directory()
        records = self._handle(X, y)
        if self.shapes is not None:
            records = records.as_shapes(self.shapes)
        _check_device(self.device)
        if self.centre is not None and len(records.shape) == 3 and not 0 <= self.centre <= 1:
            raise InputError(
                f"Expected centre in [0, 1], as the pixels of images, got centre={self.centre}; "
                "0.5 is the default."
            )
        public_constants: dict[str, Any] = {**_effective_constants(constants, records.shape)}
        if self.shapes is not None:
            public_constants["shapes"] = self.shapes
        if self.structure is not None:
            public_constants["structure"] = dataclasses.asdict(self.structure)
        if self.verbose:
            announce_clouds(self, records)
        self._fit_generator(
            records,
            directory,
            {"generator": public_constants},
            structure=self.structure,
            **constants,
        )
        self.generator_ = self.generator_.to(self.device)
        self._n_draws = 0
        self.classes_ = None
        if records.classes is not None:
            self.classes_ = class_array(records.classes)
        if len(records.shape) == 1:
            self.n_features_in_ = records.shape[0]
        if self.verbose:
            say(
                f"Files: {directory}/ledger.jsonl, privacy.json. "
                "Next: .sample(n), .save(path), .report(path)."
            )
        return self

    def sample(
        self,
        n: int,
        y: Any = None,
        *,
        proportions: str | None = None,
        spread: float = 1.0,
        for_training: bool = False,
    ) -> tuple[Any, Any]:
        """Generate records.

        Args:
            n: Number of records.
            y: Classes (n,) to generate for, instead of ``proportions``.
            proportions: ``"equal"``: every class equally often. ``"released"``: as among the
                private records, up to noise. By default ``"released"`` for tables and other
                vectors, ``"equal"`` for images.
            spread: Factor on the noise about the means of cells; 0.8 draws nearer to them.
            for_training: Whether to add noise to the pixels of images, which are then in float32:
                :func:`~dpswd.networks.generator.with_training_noise`. At a large ε it makes linear
                classifiers of rare classes more accurate (the page on generation, "Rare classes").

        Returns:
            Records and their classes (n,), in the format of those that were fitted; ``None``
            without labels.

        Raises:
            NotFittedError: If the estimator is not fitted.
            InputError: If a class is unknown, a number is out of range, or ``for_training`` is set
                and the records are not images.
        """
        generator: Generator = self._fitted()
        at_least(1, n=n)
        check_drawing(n, generator.sample_shape)
        if for_training and len(generator.sample_shape) != 3:
            raise InputError(
                "Expected images for for_training=True, which adds noise to pixels, got records of "
                f"{generator.sample_shape[0]} numbers; leave it out."
            )
        if proportions is None:
            proportions = default_proportions(generator.sample_shape)
        with seeded(self._sample_seed()):
            if y is None:
                labels = generator.labels(n, proportions)
            else:
                labels = generator.numbers(y)
            if len(labels) != n:
                raise InputError(f"Expected y with n={n} classes, got {len(labels)}; pass as many.")
            records = draw_in_layout(generator, labels, spread)
            if for_training:
                records = with_training_noise(torch.from_numpy(records)).numpy()
        self._n_draws += 1
        if self.classes_ is None:
            return records, None
        layout = generator.layout or Layout()
        return records, layout.restore_labels(self.classes_[labels.numpy()])

    def _save_picture(self, directory: Path) -> None:
        """Write a picture of images, or of columns with bounds, for the report."""
        generator: Generator = self._fitted()
        notice = self.guarantee_.notice
        with seeded(0):
            if len(generator.sample_shape) == 3:
                save_samples(generator, directory / "samples.png")
                mark_picture(directory / "samples.png", notice, of_releases=True)
                return
            layout = generator.layout
            if layout is None or (layout.table is None and self.bounds is None):
                return
            labels = generator.labels(_N_IN_PICTURE, "released")
            records = draw_in_layout(generator, labels, 1.0)
        path = directory / "columns.png"
        save_columns(path, {"synthetic": layout.numbers(records)}, layout.columns, layout.table)
        mark_picture(path, notice, of_releases=True)

    def save(self, path: str | Path) -> None:
        """Write the generator to one file, which :meth:`load` reads.

        The file has weights, format of the records, classes and guarantee.

        Raises:
            NotFittedError: If the estimator is not fitted.
            InputError: If the file cannot be written.
        """
        write_generator(self._fitted(), path, self.guarantee_)

    @classmethod
    def load(cls, path: str | Path) -> "PrivateGenerator":
        """Read a file of :meth:`save`, or the ``generator.pt`` of a run.

        No code of the file is run.

        Raises:
            InputError: If the file is missing or is not a generator.
        """
        generator, guarantee = read_generator(path)
        result = cls(
            epsilon=guarantee.epsilon or 0.0,
            delta=guarantee.delta or 0.0,
            random_state=None,  # a seed would repeat the records of an earlier load
        )
        result.generator_ = generator
        result.guarantee_ = guarantee
        result.classes_ = None
        if generator.n_classes:
            names = generator.class_names or list(range(generator.n_classes))
            result.classes_ = class_array(names)
        result._n_draws = 0
        return result

    def forecast(self, shape: tuple[int, ...], n: int, n_classes: int = 0) -> Structure:
        """Forecast the signal-to-noise ratios of the releases from public numbers.

        No record is read, and no budget is spent. A ``structure`` that was passed to the
        constructor is returned as it is.

        Args:
            shape: Shape of a record: (H, W), (H, W, C), (C, H, W) or (d,).
            n: Number N of records; with ``per_unit`` = c the number N c for N persons.
            n_classes: Number of classes; 0 for none.

        Returns:
            The structure of the generator, with the signal-to-noise ratio of every release;
            ``print`` describes it.

        Raises:
            InputError: If a number is out of range.
        """
        if self.structure is not None:
            return self.structure
        at_least(1, per_unit=self.per_unit)
        record_shape = channels_first(shape)
        check_record_size(record_shape, "map every record to fewer numbers first")
        has_bounds = self.bounds is not None or self.columns is not None
        # c records of a person that change together need c times the noise.
        mu = self._mu() / self.per_unit
        return forecast(n, record_shape, n_classes, mu, bounded=has_bounds)

    def _handle(self, X: Any, y: Any) -> PrivateRecords:
        """Return the records behind a handle, which X may be already."""
        if isinstance(X, PrivateRecords):
            if self.unit is not None and not X.has_units:
                raise InputError(
                    "Expected a handle with units for a generator with unit, got one without; pass "
                    "unit= to PrivateRecords."
                )
            return X
        _check_array(X)
        return PrivateRecords(
            X,
            y,
            classes=self.classes,
            bounds=self.bounds,
            kinds=self.kinds,
            columns=self.columns,
            unit=self.unit,
            per_unit=self.per_unit,
        )

    def _constants(self) -> dict[str, Any]:
        """Return the public constants of the fit by name, as the user set them.

        Raises:
            InputError: If one is out of range.
        """
        constants = {name: getattr(self, name) for name in ("centre", "radius", *JITTER)}
        check_amounts({name: constants[name] for name in JITTER})
        if self.centre is not None and not math.isfinite(real("centre", self.centre)):
            raise InputError(f"Expected centre to be finite, got centre={self.centre}.")
        if self.radius is not None:
            positive(radius=self.radius)
        return constants

    def _sample_seed(self) -> int:
        """Return the seed of the next sample, another one for each call."""
        sequence = np.random.SeedSequence([self._public_seed(), self._n_draws])
        return int(sequence.generate_state(1)[0])


def default_proportions(sample_shape: tuple[int, ...]) -> str:
    """Return the proportions of the classes if none are stated.

    They are the released ones for tables, and equal ones for images.
    """
    if len(sample_shape) == 1:
        return "released"
    return "equal"


def _effective_constants(
    constants: dict[str, float | None], shape: tuple[int, ...]
) -> dict[str, float]:
    """Return the constants that a fit of records of this shape uses, for the report."""
    effective = {}
    for name, value in constants.items():
        if name == "centre" and value is None and len(shape) == 3:
            effective[name] = _PIXEL_CENTRE
        elif value is not None:
            effective[name] = value
    return effective


def announce_clouds(estimator: PrivateGenerator, records: PrivateRecords, remedy: str = "") -> None:
    """Say so where photographs are so few that clouds are to be expected.

    A delta that is too large for the number of records is refused before.

    Args:
        estimator: An estimator, which need not be fitted.
        records: The records that it will be fitted to.
        remedy: A further line that is said then; empty for none.
    """
    Target(estimator.epsilon, estimator.delta).check_sample_size(len(records))
    if len(records.shape) != 3:
        return
    structure = estimator.forecast(records.shape, records.n_entries, records.n_classes)
    clouds = structure.clouds(records.n_entries)
    if clouds is None:
        return
    say(clouds)
    if remedy:
        say(remedy)


def channels_first(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape with the channels of an image first; (d,) as it is."""
    if len(shape) == 2:
        return (1, *shape)
    if len(shape) == 3 and shape[0] not in (1, 3):
        height, width, channels = shape
        return (channels, height, width)
    return tuple(shape)


def _check_array(X: Any) -> None:
    """Refuse what is no dense array of real numbers, in the words of scikit-learn."""
    if issparse(X):
        raise InputError(
            "Expected a dense array X, got a sparse one; sparse input is not supported: "
            "pass X.toarray()."
        )
    dtype = getattr(X, "dtype", None)
    if getattr(dtype, "kind", "") == "c":
        raise InputError(
            "Complex data not supported: expected real numbers in X, got complex ones; "
            "pass real and imaginary parts as columns."
        )
    shape = tuple(getattr(X, "shape", ()))
    if len(shape) == 2 and shape[1] == 0:
        raise InputError(
            f"Expected columns in X, got 0 feature(s) (shape={shape}) while a minimum of 1 is "
            "required."
        )


def _check_device(device: Any) -> None:
    """Refuse a device that this machine does not have, before anything is released."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"Expected a device of this machine, got device={device!r}; use 'cpu'."
        ) from error
