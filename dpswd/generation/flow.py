r"""LightningModule that moves particles along the sliced Wasserstein flow of a release, then distils a generator.

A generator that chases a release directly sees it through batches of a few hundred samples, whose own sampling noise it
learns to hide by shrinking. The flow has no such noise: ``n_particles`` rows, all present at every step, move by

.. math:: z_i \leftarrow z_i - \eta \frac dk \sum_j r_{ij} u_j

with :math:`r_{ij}` the residual of particle i's block in direction j: one step of gradient descent on the same loss. It
fits the release almost exactly in seconds. Particle i starts at a latent code :math:`z_i`, so that the flow is a map
from codes to records, and the generator learns that map from the pairs: plain regression. All of it reads the release
only, hence is post-processing.

References:
    | Bonneel et al., Sliced and Radon Wasserstein Barycenters of Measures, 2015 (the flow of block residuals).
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._validate import at_least, positive
from dpswd.errors import InputError
from dpswd.generation.features import FeatureMap
from dpswd.generation.generators import Generator
from dpswd.generation.module import GeneratorModule

__all__ = ["FlowModule"]


class FlowModule(GeneratorModule):
    """One-shot release, then flow, then distillation.

    Args:
        generator: Its ``latent_dim`` must be the dimension of the rows; pixels are compared, not rows.
        features: Public map with a ``decode``.
        n_particles: Number of particles, spread evenly over the classes.
        flow_steps: Training steps given to the flow; the rest of ``max_steps`` distils.
        step_size: Step of the flow relative to the full correction; at most 1 is stable.
        momentum: Momentum of the flow.
        n_projections: Several bases (a multiple of the dimension): one leaves the covariance undetermined. Many
            dimensions are better cut down first (:class:`~dpswd.generation.principal.PrincipalDirections`).
        n_quantiles: Block means per column.
        statistic: ``"quantiles"`` or ``"rows"``.
        kind: Kind of directions.
        bound: How a random sensitivity is accounted for.
        labels: How classes enter a record.
        label_scale: Norm of the class part for ``labels="concat"``.
        generated: Pairs per distillation step.
        moment_share: Part of the budget for the second moment, see :class:`GeneratorModule`.
        count_share: Part of the budget for class counts, likewise.
        lr: Learning rate of Adam in the distillation.
        noise_seed: For tests only: NOT PRIVATE.
    """

    codes: Tensor
    classes: Tensor

    def __init__(
        self,
        generator: Generator,
        features: FeatureMap,
        n_particles: int = 10_000,
        flow_steps: int = 60,
        step_size: float = 1.0,
        momentum: float = 0.7,
        n_projections: int | None = None,
        n_quantiles: int | None = 100,
        statistic: Literal["rows", "quantiles"] = "quantiles",
        kind: Literal["iid", "orthogonal"] = "orthogonal",
        bound: Literal["exact", "bernstein", "clt"] = "exact",
        labels: Literal["blocks", "none"] = "blocks",
        generated: int = 500,
        moment_share: float = 0.2,
        count_share: float = 0.0,
        lr: float = 2e-3,
        noise_seed: int | None = None,
    ) -> None:
        super().__init__(
            generator,
            features,
            n_projections=n_projections,
            n_quantiles=n_quantiles,
            statistic=statistic,
            kind=kind,
            bound=bound,
            labels=labels,
            release_every=0,
            generated=generated,
            moment_share=moment_share,
            count_share=count_share,
            lr=lr,
            noise_seed=noise_seed,
        )
        at_least(1, n_particles=n_particles, flow_steps=flow_steps)
        positive(step_size=step_size)
        if not 0 <= momentum < 1:
            raise InputError(f"Expected 0 <= momentum < 1, got momentum={momentum!r}.")
        if generator.latent_dim != features.dim:
            raise InputError(
                f"Expected generator.latent_dim to be the dimension of the rows ({features.dim}), got "
                f"{generator.latent_dim}; a particle starts at its latent code."
            )
        self.flow_steps, self.step_size, self.momentum = flow_steps, step_size, momentum
        self.automatic_optimization = False
        codes = torch.randn(n_particles, features.dim)
        self.register_buffer("codes", codes)
        self.register_buffer("classes", self.classes_of(n_particles))
        self.particles = nn.Parameter(codes * (0.35 / features.dim**0.5))  # the norm of a row is at most 1/2

    def on_train_start(self) -> None:
        """As in the base class; the particles then take the released proportions of the classes."""
        super().on_train_start()
        self.classes.copy_(self.classes_of(len(self.classes)))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:  # type: ignore[override]  # manual optimization
        """A step of the flow at first, of the distillation later."""
        released = self.receive(batch)
        optimizers: Any = self.optimizers()
        flow, adam = optimizers
        optimizer = flow if self.global_step < self.flow_steps else adam
        optimizer.zero_grad()
        if optimizer is flow:
            loss = self.distance(released, self.particles, self.classes)
            self.log("flow_loss", loss, prog_bar=True, batch_size=1)
        else:
            pick = torch.randint(len(self.codes), (self.generated,), device=self.device)
            records = self.features.decode(self.particles.detach()[pick])
            if self.features.pixels:
                records = records.clamp(0, 1)
            loss = F.mse_loss(self.generator(self.codes[pick], self.classes[pick]), records)
            self.log("distil_loss", loss, prog_bar=True, batch_size=1)
        self.manual_backward(loss)
        optimizer.step()
        if optimizer is adam:
            schedulers: Any = self.lr_schedulers()
            schedulers.step()

    def configure_optimizers(self) -> Any:
        """Plain gradient descent for the flow, with the step that is a full correction; Adam for the generator."""
        classes = max(1, self.n_classes) if self.in_blocks else 1
        full = self.features.dim * classes * len(self.particles) / 2
        flow = torch.optim.SGD([self.particles], lr=self.step_size * full, momentum=self.momentum)
        adam = torch.optim.Adam(self.generator.parameters(), lr=self.lr)
        steps = max(1, self.trainer.max_steps - self.flow_steps)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps, eta_min=self.lr / 20)
        return [flow, adam], [schedule]
