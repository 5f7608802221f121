r"""The default generator: a mixture of normal distributions, from sums over all records.

Releases of all N records, each with its share of the squared mu of the budget
(:func:`dpswd.generation.structure.forecast`):

1. the sum of the rows and of their squared norms, which centres and scales them; for images, the shares of pixels at
   each level of brightness;
2. counts and sums per class;
3. second moments about the released means, per class or of all classes together;
4. counts and sums per cell, where the forecast has several cells per class, three times: the means of one are the
   centres of the next (Lloyd's algorithm), except with a public reference;
5. second moments per cell, likewise, unless the cells are those of a public reference (``reference`` of the data).

Privacy. Scale, directions and cells are computed from earlier releases and public numbers, and the cell of a record
depends on this record besides. So each of 2 to 5 is a release of :mod:`dpswd.queries` under replace-one with
public parameters. All are Gaussian mechanisms of constant sensitivity that read all records, and compose adaptively,
as :math:`\mu^2 = \sum \mu_i^2` (docs/theory/accounting.md, Propositions 14 and 17). Everything else is post-processing.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import lightning as L
import torch
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor, nn

from dpswd._distributed import Processes
from dpswd._progress import passing
from dpswd._validate import at_least, positive
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.data.base import PrivateData
from dpswd.errors import InputError
from dpswd.generation import mixture
from dpswd.generation.features import Basis, FeatureMap, Flatten, Frequencies, Histogram, reference_spectrum
from dpswd.generation.generators import MixtureGenerator
from dpswd.generation.rows import private_rows
from dpswd.generation.structure import MOMENT_BOUND, RAW_NORM, ROW_NORM, SUM_BOUND, Structure, forecast
from dpswd.queries import ClassCovariances, ClassMeans, SumAndNorm
from dpswd.training.callback import PrivacyBudget

__all__ = ["MixtureModule"]

_CONTRAST = 0.3  # of photographs, standard deviation of its logarithm
_RESIDUAL = 0.6  # amplitude of the frequencies that are not released, over that of the reference spectrum
_PART = 4096  # records that are read at a time
_UNLIMITED_MU = 10.0  # the structure of a run without a budget
_DARK = 0.1  # a mean border darker than this is taken for black


class MixtureModule(L.LightningModule):
    """Releases moments of all records, which are those of a :class:`~dpswd.generation.generators.MixtureGenerator`.

    Sizes follow from the records' number, shape and classes and from the budget, which are public; the generator is
    built in ``setup``, or from a checkpoint. One training step makes all releases and ends the run: there is nothing
    to optimise.

    Args:
        n_classes: Number of classes; 0 ignores labels, ``None`` takes the number that the data module states.
        center: Public constant subtracted from every entry; ``None`` for 0.5 (pixels) or 0 (vectors).
        radius: Public guess of the norm of a centred vector; for vectors only.
        residual: Draw the frequencies that are not released from the spectrum of photographs, and vary the contrast;
            ``None`` for colour images only.
        shift: Jitter of the generated images; see :func:`dpswd.generation.jitter.jitter`. Public constants.
        rotation: As ``shift``.
        zoom: As ``shift``.
        shear: As ``shift``.
        elastic: As ``shift``.
        noise_seed: For tests only: NOT PRIVATE.

    Raises:
        InputError: If a number is out of range.

    Example:
        >>> module = MixtureModule(shift=1.0)  # L.Trainer(callbacks=[budget], max_epochs=1).fit(module, data)
        >>> module.structure is None  # chosen at the start of the fit, from the number of records and the budget
        True
    """

    generator: MixtureGenerator
    features: Basis
    proportions: Tensor
    fitted: Tensor

    def __init__(
        self,
        n_classes: int | None = None,
        center: float | None = None,
        radius: float = 1.0,
        residual: bool | None = None,
        shift: float = 0.0,
        rotation: float = 0.0,
        zoom: float = 0.0,
        shear: float = 0.0,
        elastic: float = 0.0,
        noise_seed: int | None = None,
    ) -> None:
        super().__init__()
        positive(radius=radius)
        if n_classes is not None:
            at_least(0, n_classes=n_classes)
        self.save_hyperparameters()
        self.n_classes, self.center, self.radius, self.residual = n_classes, center, radius, residual
        self.jitter = {"shift": shift, "rotation": rotation, "zoom": zoom, "shear": shear, "elastic": elastic}
        self.noise_seed = noise_seed
        self.automatic_optimization = False
        self.structure: Structure | None = None

    def setup(self, stage: str) -> None:
        """Builds the parts once the number, shape and classes of the records are known."""
        if stage != "fit":
            return
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, PrivateData):
            raise InputError("Expected a data module of dpswd.data, which holds the records, got none; pass --data.")
        records = data.private
        shape, n_reference = tuple(records.values.shape[1:]), 0 if data.reference is None else len(data.reference)
        structure = forecast(len(records), shape, self._classes(data), self._mu(), n_reference)
        (rank_zero_info if structure.signal_to_noise["means"] >= 1 else rank_zero_warn)(structure.verdict)
        self._build(structure)
        shares, seed = structure.shares, self.noise_seed
        classes, cells = max(1, structure.n_classes), max(1, structure.n_classes) * structure.n_cells
        dim, p = structure.dim, structure.n_components
        self.overall = SumAndNorm(dim, RAW_NORM, share=shares["overall"], noise_seed=seed)
        if structure.n_levels:
            self.histogram = ClassMeans(
                1, structure.n_levels, row_norm=ROW_NORM, share=shares["tones"], noise_seed=seed
            )
        self.class_sums = ClassMeans(classes, dim, row_norm=ROW_NORM, share=shares["means"], noise_seed=seed)
        n_moments = 1 if structure.pooled else classes
        self.class_moments = ClassCovariances(
            n_moments, dim, row_norm=structure.class_bound, share=shares["moments"], noise_seed=seed
        )
        if structure.n_cells > 1:
            self.cell_sums = nn.ModuleList(
                ClassMeans(
                    cells,
                    p,
                    row_norm=ROW_NORM,
                    share=shares["cell_means"] / structure.n_rounds,
                    noise_seed=None if seed is None else seed + i,
                )
                for i in range(structure.n_rounds)
            )
        if "cell_moments" in shares:
            self.cell_moments = ClassCovariances(
                cells, p, row_norm=ROW_NORM, share=shares["cell_moments"], noise_seed=seed
            )
        data.in_parts = True

    def _classes(self, data: Any) -> int:
        stated = getattr(data, "n_classes", None)
        classes = stated if self.n_classes is None else self.n_classes
        if classes is None:
            raise InputError("Expected n_classes, which the data do not state; set model.n_classes, 0 for no classes.")
        if classes and stated is not None and classes != stated:
            raise InputError(f"Expected n_classes={stated}, as many as the data have, got {classes}.")
        if classes and bool((data.private.labels >= classes).any()):
            raise InputError(f"Expected labels between 0 and {classes - 1}, got labels beyond; set model.n_classes.")
        return int(classes)

    def _mu(self) -> float:
        budgets = [each for each in self.trainer.callbacks if isinstance(each, PrivacyBudget)]  # type: ignore[attr-defined]
        if not budgets:
            return _UNLIMITED_MU
        return mu_of_epsilon(budgets[0].target_epsilon, budgets[0].target_delta)

    def _build(self, structure: Structure) -> None:
        """Makes features and generator; their values are set by releases or a checkpoint."""
        shape, p = structure.sample_shape, structure.n_components
        self.structure = structure
        images = len(shape) == 3
        residual = images and shape[0] == 3 if self.residual is None else self.residual
        base: FeatureMap
        if images:
            center = 0.5 if self.center is None else self.center
            base = Frequencies(shape, structure.size, structure.chroma_size, center)  # type: ignore[arg-type]
        else:
            base = Flatten(shape, self.center or 0.0, self.radius)
        self.features = Basis(base, p)
        self.generator = MixtureGenerator(
            shape,
            structure.n_classes,
            structure.n_cells,
            p,
            structure.dim,
            bounded=images,
            n_levels=structure.n_levels,
            residual=residual,
            contrast=_CONTRAST if residual else 0.0,
            **self.jitter,
        )
        self.register_buffer("proportions", torch.full((max(1, structure.n_classes),), 1 / max(1, structure.n_classes)))
        self.register_buffer("fitted", torch.tensor(False))

    def _parts(self, features: FeatureMap) -> Iterator[tuple[Tensor, Tensor]]:
        """Read the records of this rank in one pass: their rows under a map, and their classes.

        A rank has a share of all records, so that each record is on one rank.
        """
        private, processes = self.trainer.datamodule.private, Processes()  # type: ignore[attr-defined]
        index = processes.share(torch.arange(len(private)), len(private))
        shown = processes.rank == 0 and getattr(self.trainer, "progress_bar_callback", None) is not None
        for part in passing(index.split(_PART), "Reading records", shown=shown):
            rows = private_rows(features, private.floats(part).to(self.device)).cpu().double()
            labels = private.labels[part].cpu()
            yield rows, labels if self.generator.n_classes else torch.zeros_like(labels)

    def _rows(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The private rows along the released directions, and their classes, in one pass."""
        features = self.features
        mean, scale, directions = (each.cpu().double() for each in (features.mean, features.scale, features.directions))
        for rows, labels in self._parts(features.base):
            yield (rows - mean) * scale @ directions, labels

    @torch.no_grad()
    def _mix(self) -> None:
        """Releases sums and second moments, and gives the generator its mixture."""
        structure, generator, features = self.structure, self.generator, self.features
        assert structure is not None
        p, n, base = structure.n_components, len(self.trainer.datamodule.private), features.base  # type: ignore[attr-defined]
        total, squares = self.overall.release(self._rows())
        features.mean.copy_(total / n)
        noise_sq = structure.dim * (self.overall.mechanism.sigma / n) ** 2
        spread = squares / n - float((total / n).square().sum()) + noise_sq
        spread = min(max(spread, 0.1 * ROW_NORM**2), RAW_NORM**2)
        features.scale.fill_(ROW_NORM / (structure.headroom * math.sqrt(spread)))
        reference = base.reference if isinstance(base, Frequencies) else torch.full((base.dim,), 0.25 / base.dim)
        total_variance = (ROW_NORM / structure.headroom) ** 2  # of the scaled rows
        reference = reference.double() * (total_variance / reference.double().sum())

        pixels = self._release_histogram() if structure.n_levels else None
        counts, sums = self.class_sums.release(self._rows())
        counts = counts.clamp(min=0.2 * n / len(counts))
        means = mixture.class_means(counts, sums, reference, self.class_sums.mechanism.sigma)
        if structure.pooled:
            parts = ((rows - means[labels], torch.zeros_like(labels)) for rows, labels in self._rows())
            pooled = self.class_moments.release(parts, torch.zeros_like(means[:1]))[0] / n
        else:
            moments = self.class_moments.release(self._rows(), means)
            pooled = moments.sum(0) / counts.sum()
        pooled = mixture.nearest_spectrum(pooled)
        between = means - sums.sum(0) / counts.sum()
        between = (between * (counts / counts.sum())[:, None]).T @ between
        directions = torch.linalg.eigh(pooled + between).eigenvectors.flip(1)
        features.directions.copy_(directions)
        shared = directions.T @ pooled @ directions
        variances = shared.diagonal().clamp(min=1e-9)
        means = means @ directions
        if structure.pooled:
            covariances = shared.expand(len(means), -1, -1)
        else:
            covariances = mixture.positive_part(directions.T @ (moments / counts[:, None, None]) @ directions)
        generator.spread.copy_(variances[p:].sqrt())
        shares = (counts / counts.sum()).float()
        self.proportions.copy_(shares)
        if structure.n_cells == 1:
            generator.means.copy_(means)
            covariances = covariances[:, :p, :p]
            # back to the released total variance, which clipping made smaller and noise made larger
            wanted = total_variance - between.trace() - variances[p:].sum()
            found = (shares.double() * covariances.diagonal(dim1=1, dim2=2).sum(1)).sum()
            limit = ROW_NORM / structure.class_bound  # where all of them are clipped
            scale = float((wanted / found.clamp(min=1e-9)).clamp(1.0, limit**2).sqrt())
            generator.roots.copy_(scale * mixture.root(covariances))
        else:
            self._mix_cells(means, shared[:p, :p], covariances[:, :p, :p])
        decoded = features.decode(torch.eye(base.dim, device=self.device))
        offset = features.decode(torch.zeros(1, base.dim, device=self.device))
        generator.offset.copy_(offset.flatten())
        generator.synthesis.copy_((decoded - offset).flatten(1))
        if generator.residual:
            self._set_residual()
        if pixels is not None:
            self._set_tones(pixels)
        if generator.jittered:
            mean = (self.proportions @ generator.means.unflatten(0, (len(counts), -1)).mean(1))[None]
            picture = generator.linear(mean.to(self.device))[0].mean(0)
            border = torch.cat([picture[0], picture[-1], picture[:, 0], picture[:, -1]])
            generator.reflect.fill_(bool(border.mean() > _DARK))

    def _mix_cells(self, means: Tensor, pooled: Tensor, covariances: Tensor) -> None:
        """Releases counts, sums and, without a reference, second moments per cell in the leading directions.

        Args:
            means: (C, D), of classes.
            pooled: (p, p), covariance pooled over the classes.
            covariances: (C, p, p), of classes.
        """
        structure, generator = self.structure, self.generator
        assert structure is not None
        n_cells, p = structure.n_cells, structure.n_components
        if structure.by_reference:
            public = self.features(self.trainer.datamodule.reference.to(self.device)).cpu().double()  # type: ignore[attr-defined]
            centres, within = mixture.reference_cells(mixture.like_reference(public, means[0, :p], pooled), n_cells)
            found = centres
        else:
            found = mixture.centres(means[:, :p], pooled, n_cells).flatten(0, 1)
        variances = pooled.diagonal().clamp(min=1e-9)
        deviation = float(variances.sum().sqrt())
        bounds = {"sums": SUM_BOUND * deviation, "moments": MOMENT_BOUND * deviation}  # of rows, by clipping

        def parts(centres: Tensor, unit: float, about: Tensor | None) -> Iterator[tuple[Tensor, Tensor]]:
            for rows, labels in self._rows():
                leading = rows[:, :p]
                cells = mixture.cell_of(leading, labels, centres.unflatten(0, (-1, n_cells)))
                yield (leading if about is None else leading - about[cells]) / unit, cells

        unit = bounds["sums"] / ROW_NORM
        for query in self.cell_sums:
            assert isinstance(query, ClassMeans)
            centres = found
            counts, sums = query.release(parts(centres, unit, centres))
            counts = counts.clamp(min=0.1 * float(counts.mean()))  # small cells are mostly noise
            noise = query.mechanism.sigma * unit
            found = centres + mixture.cell_means(counts, sums * unit, variances, noise)
        weights = counts.unflatten(0, (-1, n_cells))
        weights = weights / weights.sum(1, keepdim=True)
        if not structure.by_reference:
            unit = bounds["moments"] / ROW_NORM
            moments = self.cell_moments.release(parts(centres, unit, None), found / unit) * unit**2
            noise = self.cell_moments.mechanism.sigma * unit**2
            within = mixture.cell_covariances(counts, moments, noise, weights, found, covariances)
        generator.weights.copy_(weights)
        generator.means.copy_(torch.cat([found, means[:, p:].repeat_interleave(n_cells, 0)], dim=1))
        generator.roots.copy_(mixture.root(within))

    def _set_residual(self) -> None:
        """Frequencies that are not released get a part of the reference spectrum, at the contrast of the records."""
        base = self.features.base
        assert isinstance(base, Frequencies)
        spectrum = reference_spectrum(base.sample_shape).flatten()
        spectrum[base.kept.cpu()] = 0
        contrast = min(1.0, 1 / float(self.features.scale))  # of the records, over that of the reference
        self.generator.residual_scale.copy_(_RESIDUAL * contrast * spectrum.unflatten(0, base.sample_shape))

    def _release_histogram(self) -> Tensor:
        """Releases the shares of pixels below the edges between levels, (n_levels - 1,)."""
        assert self.structure is not None
        levels = Histogram(self.structure.sample_shape, self.structure.n_levels)  # type: ignore[arg-type]
        parts = ((rows, torch.zeros_like(labels)) for rows, labels in self._parts(levels))
        released = self.histogram.release(parts)[1][0].clamp(min=0)
        return (released / released.sum().clamp(min=1e-9)).cumsum(0)[:-1]

    def _set_tones(self, below: Tensor) -> None:
        """Sets the tone curve so that generated pixels have the released shares ``below`` the edges between levels."""
        generator = self.generator
        labels = self._labels(1000)
        latent = Processes().broadcast(lambda: generator.latent(len(labels)))  # the same on every rank
        rows = generator.rows(latent, generator.cell(latent, labels))
        codes = latent[:, -generator.offset.numel() :] if generator.residual else None
        values = generator.linear(rows, codes).flatten().sort().values
        generator.tones.copy_(values[(below.to(values.device) * (len(values) - 1)).long()])

    def _labels(self, n: int) -> Tensor:
        """Returns n classes (n,) in the released proportions."""
        edges = (self.proportions.double().cumsum(0) * n).round().long()
        return torch.bucketize(torch.arange(n, device=edges.device), edges[:-1], right=True)

    def sample(self, labels: Tensor) -> Tensor:
        """Generates one record for each class in ``labels`` (n,)."""
        result: Tensor = self.generator(self.generator.latent(len(labels)), labels)
        return result

    def training_step(self, batch: Tensor, batch_idx: int) -> None:
        """Makes all releases, unless a checkpoint holds their results, and ends the run."""
        if not bool(self.fitted):
            if self.overall.recorder is None:
                raise InputError("Expected a PrivacyBudget among the trainer's callbacks, got none; it sets the noise.")
            self._mix()
            self.fitted.fill_(True)
        self.trainer.should_stop = True

    def teardown(self, stage: str) -> None:
        """Lets another module read batches of records."""
        if stage == "fit":
            self.trainer.datamodule.in_parts = False  # type: ignore[attr-defined]

    @property
    def public_buffers(self) -> list[str]:
        """Names of the buffers and weights that depend on released values only: all of them."""
        return list(self.state_dict())

    def predict_step(self, batch: Tensor, batch_idx: int) -> tuple[Tensor, Tensor]:
        """Generates a record for each class in the batch (n,)."""
        return self.sample(batch), batch

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        """No optimiser: the mixture follows from the releases."""
        return []

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keeps the structure, from which the parts are built."""
        assert self.structure is not None
        checkpoint["structure"] = dataclasses.asdict(self.structure)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Builds the parts as they were."""
        if self.structure is None:
            self._build(Structure(**checkpoint["structure"]))
