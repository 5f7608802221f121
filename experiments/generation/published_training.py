"""The generator of Rakotomamonjy2021, trained as printed, for comparison only. NOT PRIVATE (docs/errata.md).

As printed: Table 3 generator with a code of 10, pixels divided by the largest norm of the private batch, both sides
projected on 1,000 fresh directions and noised with the sigma of Table 4 (2.94 by Bernstein's bound, 0.84 by the CLT's,
none for SWD), Adam with a learning rate of 1e-4, 100 epochs of shuffled batches of 100: 60,100 steps by the count of
the authors' code.

The generative code is not public, and the paper does not say how classes enter the distance (a distance of images
alone cannot tie an image to its class). Here a batch has 10 records of every class and each class is compared with its
own records; labels are not accounted for. No ledger is written, and the noise comes from torch's generator, so that
anyone who knows the seed can remove it.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dpswd._validate import at_least, choice
from dpswd.data.base import Records
from dpswd.generation.generators import Table3Generator
from experiments.accounting.published import TABLE4

__all__ = ["PUBLISHED_STEPS", "published_run", "published_sigma_of"]

Bound = Literal["none", "bernstein", "clt"]
ROWS = {row.bound: row for row in TABLE4 if row.name.startswith("MNIST (")}
SETTING = ROWS["bernstein"]
PUBLISHED_STEPS = SETTING.n_releases
LEARNING_RATE = 1e-4


def published_sigma_of(bound: Bound) -> float:
    """The printed noise, in units in which a row moves by at most 1; 0 for SWD."""
    choice(("none", "bernstein", "clt"), bound=bound)
    return 0.0 if bound == "none" else ROWS[bound].sigma


def published_run(private: Records, bound: Bound, steps: int = PUBLISHED_STEPS) -> tuple[Table3Generator, float]:
    """Trains the generator of Table 3; returns it with sigma.

    Args:
        private: Images of 28 x 28 pixels in 10 classes.
        bound: ``"none"`` (SWD), ``"bernstein"`` (DP-SWD-b) or ``"clt"`` (DP-SWD-c).
        steps: Training steps; the noise is that of ``PUBLISHED_STEPS`` in any case.
    """
    at_least(1, steps=steps)
    sigma, per_class = published_sigma_of(bound), SETTING.batch_size // 10
    generator = Table3Generator(latent_dim=10)
    optimizer = torch.optim.Adam(generator.parameters(), lr=LEARNING_RATE)
    orders = [_shuffled(torch.nonzero(private.labels == c)[:, 0], per_class * steps) for c in range(10)]
    classes = torch.arange(10).repeat_interleave(per_class)
    for step in range(steps):
        batch = torch.cat([order[step * per_class : (step + 1) * per_class] for order in orders])
        rows = private.floats(batch).flatten(1)
        largest = 2 * rows.norm(dim=1).max()  # erratum 4: a private number scales both sides
        directions = F.normalize(torch.randn(SETTING.dim, SETTING.n_projections), dim=0)
        generated = generator(generator.latent(len(classes)), classes).flatten(1)
        ours, theirs = (_noised(side / largest @ directions, per_class, sigma) for side in (generated, rows))
        optimizer.zero_grad()
        (ours - theirs).square().mean().backward()
        optimizer.step()
    return generator, sigma


def _shuffled(index: Tensor, wanted: int) -> Tensor:
    """Repeats ``index`` in random orders, one epoch after the other, up to ``wanted`` entries."""
    epochs = -(-wanted // len(index))
    return torch.cat([index[torch.randperm(len(index))] for _ in range(epochs)])


def _noised(projected: Tensor, per_class: int, sigma: float) -> Tensor:
    """Adds noise to (B, k) and sorts the columns of every class: (C, B / C, k)."""
    noisy = projected + sigma * torch.randn_like(projected)
    return noisy.view(-1, per_class, projected.shape[1]).sort(dim=1).values
