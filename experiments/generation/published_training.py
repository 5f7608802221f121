"""Training as in Rakotomamonjy2021, for comparison only: NOT a guarantee (docs/errata.md).

The paper's generative code is not public; this is our reading of its text and of the code that it builds on. Noise as
in Table 4 (sigma for epsilon = 10 and 60,100 steps of 100 records, by Bernstein's bound or the CLT's, with the
published conventions); rows divided by the largest norm of the private batch; shuffled records instead of fresh
subsets; every class compared with its own records, although labels are not accounted for. Nothing is written to a
ledger, and noise comes from torch's generator: whoever knows the seed can take it off.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from dpswd._validate import at_least, choice
from dpswd.data import Records
from dpswd.generation.generators import Table3Generator
from experiments.accounting.published import TABLE4, published_sigma

__all__ = ["published_noise", "published_run"]

EPSILON = 10.0
ROW = next(row for row in TABLE4 if row.name == "MNIST (b)")


def published_noise(bound: Literal["bernstein", "clt"]) -> float:
    """Returns sigma in units where a row moves by at most 1: as printed for Bernstein, by the same rule for the CLT."""
    choice(("bernstein", "clt"), bound=bound)
    if bound == "bernstein":
        assert ROW.sigma is not None
        return ROW.sigma
    mechanism = ROW.mechanism.replace(bound="clt")
    return published_sigma(mechanism, ROW.sample_size, ROW.n_releases, target_epsilon=EPSILON, target_delta=ROW.delta)


def published_run(
    private: Records, bound: Literal["bernstein", "clt"], steps: int, lr: float = 2e-3
) -> tuple[Table3Generator, float]:
    """Trains the generator of Table 3 for ``steps`` of the 60,100 steps that the noise is meant for.

    Args:
        private: Images of 28 x 28 pixels in 10 classes.
        bound: ``"bernstein"`` (DP-SWD-b) or ``"clt"`` (DP-SWD-c).
        steps: Training steps.
        lr: Learning rate of Adam, falling to a tenth by a cosine.

    Returns:
        The generator and sigma.
    """
    at_least(1, steps=steps)
    sigma, per_class = published_noise(bound), ROW.batch_size // 10
    generator = Table3Generator()
    optimizer = torch.optim.Adam(generator.parameters(), lr=lr, betas=(0.5, 0.99))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=lr / 10)
    shuffled = [_shuffled(torch.nonzero(private.labels == c)[:, 0], per_class * steps) for c in range(10)]
    classes = torch.arange(10).repeat_interleave(per_class)
    for step in range(steps):
        batch = torch.cat([order[step * per_class : (step + 1) * per_class] for order in shuffled])
        rows = private.floats(batch).flatten(1)
        largest = 2 * rows.norm(dim=1).max()  # erratum 4: a private number scales everything
        directions = F.normalize(torch.randn(ROW.dim, ROW.n_projections), dim=0)
        generated = generator(generator.latent(len(classes)), classes).flatten(1)
        ours, theirs = (_blurred(side / largest @ directions, per_class, sigma) for side in (generated, rows))
        optimizer.zero_grad()
        (ours - theirs).square().mean().backward()
        optimizer.step()
        schedule.step()
    return generator, sigma


def _shuffled(index: Tensor, wanted: int) -> Tensor:
    """Goes through ``index`` in random order again and again until ``wanted`` entries are there."""
    epochs = -(-wanted // len(index))
    return torch.cat([index[torch.randperm(len(index))] for _ in range(epochs)])


def _blurred(projected: Tensor, per_class: int, sigma: float) -> Tensor:
    """Adds noise to (B, k) and sorts the columns of every class: (C, B / C, k)."""
    noisy = projected + sigma * torch.randn_like(projected)
    return noisy.view(-1, per_class, projected.shape[1]).sort(dim=1).values
