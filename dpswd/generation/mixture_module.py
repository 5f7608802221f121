r"""LightningModule that starts from a private mixture, moves it along the flow of a release, and distils a generator.

Five releases, each with its share of the squared mu of the budget, all of them of all N records:

1. a second moment, for principal directions (:mod:`dpswd.generation.principal`);
2. counts and sums per class; 3. the same per cell, classes cut by :func:`dpswd.generation.mixture.cell_of`;
4. second moments per cell about its released mean;
5. block means of projections, class by class: DP-SWD.

Moments say cheaply what a covariance is, for which many slices would be needed; the slices say what is not normal.
Particles are drawn from the mixture and moved to the slices as in :mod:`dpswd.generation.flow`, seen through the limits of
pixels: what is sliced is the cut record. The generator then learns how far each particle was moved; its jitter comes
after that.

Privacy. Which cell a record is in depends on itself and on released values; so each of 2 to 4 is a release of
:mod:`dpswd.queries` under replace-one with public parameters. All five are Gaussian mechanisms with
q = 1, and compose adaptively as :math:`\mu^2 = \sum \mu_i^2` (Dong2022, Corollary 3.3). The rest is post-processing.
"""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._validate import at_least, positive
from dpswd.errors import InputError
from dpswd.generation import mixture
from dpswd.generation.generators import MixtureGenerator
from dpswd.generation.module import GeneratorModule
from dpswd.generation.principal import PrincipalDirections
from dpswd.generation.rows import private_rows
from dpswd.queries import ClassCovariances, ClassMeans

__all__ = ["MixtureModule"]

_PART = 4096  # records whose rows are held at a time


class MixtureModule(GeneratorModule):
    """Mixture, then flow, then the generator.

    Args:
        generator: Its ``components`` are those of ``features``.
        features: Principal directions of a public map.
        n_particles: Number of particles.
        flow_steps: Training steps given to the flow; the rest of ``max_steps`` goes to the generator.
        step_size: Step of the flow relative to the full correction; at most 1 is stable.
        n_projections: Slices; a multiple of the components.
        n_quantiles: Block means per slice, over all classes.
        moment_share: Share of the second moment.
        mean_share: Share of counts and sums per class.
        cell_share: Share of counts and sums per cell.
        covariance_share: Share of second moments per cell. What is left goes to the slices.
        cell_radius: Public bound on the distance of a row (norm at most 1/2) from the mean of its cell.
        shrink: Pull covariances of cells towards those of their class and of all records. Without it what the noise
            adds to the variances stays in, which makes classifiers of the particles robust.
        inflation: Multiplies the deviations of cells: makes up for what the clip took.
        generated: Particles per step of the generator.
        lr: Learning rate of Adam.
        noise_seed: For tests only: NOT PRIVATE.
    """

    generator: MixtureGenerator
    features: PrincipalDirections

    def __init__(
        self,
        generator: MixtureGenerator,
        features: PrincipalDirections,
        n_particles: int = 20_000,
        flow_steps: int = 15,
        step_size: float = 0.5,
        n_projections: int | None = None,
        n_quantiles: int = 100,
        moment_share: float = 0.12,
        mean_share: float = 0.1,
        cell_share: float = 0.1,
        covariance_share: float = 0.42,
        cell_radius: float = 0.35,
        shrink: bool = False,
        inflation: float = 1.0,
        generated: int = 500,
        lr: float = 2e-3,
        noise_seed: int | None = None,
    ) -> None:
        if not isinstance(generator, MixtureGenerator) or not isinstance(features, PrincipalDirections):
            raise InputError(
                "Expected a MixtureGenerator and PrincipalDirections, got "
                f"{type(generator).__name__} and {type(features).__name__}; for others take FlowModule."
            )
        if generator.components != features.dim:
            raise InputError(
                f"Expected components={features.dim} of the generator, as of the features, got {generator.components}."
            )
        super().__init__(
            generator,
            features,
            n_projections=n_projections,
            n_quantiles=n_quantiles,
            generated=generated,
            moment_share=moment_share,
            lr=lr,
            noise_seed=noise_seed,
        )
        at_least(1, n_particles=n_particles, flow_steps=flow_steps)
        positive(step_size=step_size, cell_radius=cell_radius, inflation=inflation)
        self.flow_steps, self.step_size = flow_steps, step_size
        self.shrink, self.inflation = shrink, inflation
        classes, cells, dim = generator.n_classes, generator.n_classes * generator.n_cells, features.dim
        self.class_means = ClassMeans(classes, dim, share=mean_share, noise_seed=noise_seed)
        self.cell_sums = ClassMeans(cells, dim, share=cell_share, noise_seed=noise_seed)
        self.cell_moments = ClassCovariances(
            cells, dim, row_norm=cell_radius, share=covariance_share, noise_seed=noise_seed
        )
        self.automatic_optimization = False
        self.register_buffer("codes", generator.latent(n_particles))
        self.register_buffer("classes", self.classes_of(n_particles))
        self.register_buffer("mixed", torch.tensor(False))
        self.moved = nn.Parameter(torch.zeros(n_particles, dim))
        self._seen: tuple[Tensor, Tensor] | None = None

    def on_train_start(self) -> None:
        """Makes the releases that come before the slices, unless a checkpoint has what came of them."""
        super().on_train_start()
        if not bool(self.mixed):
            self._mix()
            self.mixed.fill_(True)
        self._seen = None

    def _rows(self, centres: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Private rows and their classes, or cells where centres are given, a part at a time."""
        private = self.trainer.datamodule.private
        for part in torch.arange(len(private)).split(_PART):
            rows = private_rows(self.features, private.floats(part).to(self.device)).cpu()
            labels = private.labels[part].cpu()
            yield rows, labels if centres is None else mixture.cell_of(rows, labels, centres)

    @torch.no_grad()
    def _mix(self) -> None:
        """Releases counts, sums and second moments, and gives the generator its mixture."""
        generator, n_cells = self.generator, self.generator.n_cells
        counts, sums = self.class_means.release(self._rows())
        counts = counts.clamp(min=1)
        means = sums / counts[:, None]
        variances = self.features.variances.cpu().double()
        floor = 1e-3 * float(variances.max())
        within = mixture.within_covariance(variances, counts, means, floor)
        centres = mixture.centres(means, within, n_cells)
        n, sums = self.cell_sums.release(self._rows(centres))
        n = n.clamp(min=0.1 * float(counts.mean()) / n_cells)  # small cells are mostly noise
        means = mixture.cell_means(n, sums, centres.flatten(0, 1), within.diagonal(), self.cell_sums.mechanism.sigma)
        moments = self.cell_moments.release(self._rows(centres), means)
        shared = mixture.within_covariance(variances, n, means, floor)
        if self.shrink:
            covariances = mixture.covariances(n, moments, shared, n_cells, self.cell_moments.mechanism.sigma)
        else:
            covariances = moments / n[:, None, None]  # the root takes the positive part
        generator.weights.copy_((n / n.sum()).unflatten(0, (-1, n_cells)))
        self.proportions.copy_(generator.weights.sum(1))
        generator.weights.div_(generator.weights.sum(1, keepdim=True))
        generator.means.copy_(means)
        generator.roots.copy_(self.inflation * mixture.root(covariances))
        zero = torch.zeros(1, self.features.dim, device=self.device)
        offset = self.features.decode(zero).flatten()
        generator.offset.copy_(offset)
        generator.synthesis.copy_(
            self.features.decode(torch.eye(self.features.dim, device=self.device)).flatten(1) - offset
        )
        self.classes.copy_(self.classes_of(len(self.classes)))

    def _start(self) -> tuple[Tensor, Tensor]:
        """Rows and cells of the particles before they move; kept for the run."""
        if self._seen is None:
            with torch.no_grad():
                cells = self.generator.cell(self.codes, self.classes)
                self._seen = self.generator.straight(self.codes, cells), cells
        return self._seen

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """A step of the flow at first, of the generator later."""
        released = self.receive(batch)
        rows, cells = self._start()
        flow, adam = self.optimizers()
        optimizer = flow if self.global_step < self.flow_steps else adam
        optimizer.zero_grad()
        if optimizer is flow:
            now = rows + self.moved
            with torch.no_grad():
                seen = self.features(self.generator.render(now))
            # the gradient takes no notice of the cut: a particle beyond the limits goes on moving
            loss = self.distance(released, seen + (now - now.detach()), self.classes)
            self.log("flow_loss", loss, prog_bar=True, batch_size=1)
        else:
            pick = torch.randint(len(self.codes), (self.generated,), device=self.device)
            wanted = self.moved.detach()[pick]
            scale = self.moved.detach().square().mean().clamp(min=1e-12)
            loss = F.mse_loss(self.generator.correction(self.codes[pick], cells[pick]), wanted) / scale
            self.log("distil_loss", loss, prog_bar=True, batch_size=1)
        self.manual_backward(loss)
        optimizer.step()
        if optimizer is adam:
            self.lr_schedulers().step()

    def configure_optimizers(self) -> Any:
        """Plain gradient descent for the flow, with the step that is a full correction; Adam for the network."""
        full = self.features.dim * self.n_classes * len(self.codes) / 2
        flow = torch.optim.SGD([self.moved], lr=self.step_size * full)
        adam = torch.optim.Adam(self.generator.bend.parameters(), lr=self.lr)
        steps = max(1, self.trainer.max_steps - self.flow_steps)
        return [flow, adam], [torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps, eta_min=self.lr / 20)]
