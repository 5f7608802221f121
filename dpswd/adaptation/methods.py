r"""Adaptation methods of this library. They read the source and a synthetic target, and no private record.

The image map T of few parameters minimises :math:`d \, SW_2^2(\phi(T x_s), \phi(\tilde x_t))`, with :math:`\phi` the d
lowest frequencies; a network is then trained on images :math:`T x_s` with the labels of the source.
"""

from typing import Any

import numpy as np
import ot
import torch
import torch.nn.functional as F
from torch import Tensor

from dpswd._layout import Array
from dpswd._validate import at_least
from dpswd.features.frequencies import DCT
from dpswd.features.jitter import N_CODES, check_amounts, jitter
from dpswd.networks.adapters import ImageAdapter
from dpswd.networks.classifiers import SmallCNN
from dpswd.networks.generator import seeded
from dpswd.sliced import sliced_wasserstein
from dpswd.slices import random_projections

__all__ = ["ImageMap", "class_shift"]

_MOST_MATCHED = 4000  # source records in the optimal transport
_EMD_ITERATIONS = 1_000_000
_FREQUENCIES = 10  # per axis, in the comparison of images
_MAP_STEPS, _MAP_BATCH, _MAP_LR = 300, 256, 2e-2
_BATCH, _PEAK_LR = 128, 4e-3
N_HIDDEN = 128  # of the network
_PART = 1000  # images that are mapped at a time


def class_shift(rows: Array, numbers: Array, target: Array, seed: int) -> Array:
    """Move each class of rows (n, p) by its mean displacement under optimal transport onto a target (m, p).

    The mean averages over the errors of single matches, and keeps the shape of the class.
    """
    pick = np.random.default_rng(seed).permutation(len(rows))[:_MOST_MATCHED]
    transport = ot.da.EMDTransport(max_iter=_EMD_ITERATIONS).fit(Xs=rows[pick], Xt=target)
    move = np.asarray(transport.transform(Xs=rows[pick])) - rows[pick]
    moved = rows.copy()
    for c in np.unique(numbers):
        of_class = numbers[pick] == c
        moved[numbers == c] += (move[of_class] if of_class.any() else move).mean(0)
    return moved


class ImageMap:
    """Train a convolutional network on source images that a fitted map makes look like the target's.

    Args:
        n_steps: Training steps of the network, of 128 images.
        amounts: Jitter of the mapped images, public constants: ``shift``, ``rotation``, ``zoom``, ``shear`` and
            ``elastic``, as in :func:`dpswd.features.jitter.jitter`.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> method = ImageMap(n_steps=500, shift=2.0, rotation=10.0)  # dpswd.PrivateAdapter(method=method, ...)
        >>> method.amounts["rotation"]
        10.0
    """

    def __init__(self, n_steps: int = 1500, **amounts: float) -> None:
        at_least(1, n_steps=n_steps)
        check_amounts(amounts)
        self.n_steps = n_steps
        self.amounts: dict[str, Any] = amounts

    def fit(self, images: Tensor, numbers: Tensor, target: Tensor | None, seed: int) -> SmallCNN:
        """Train the network on images (n, channels, h, w) in [0, 1]; the global random state stays as it is.

        ``target=None`` trains on the source as it is.
        """
        with seeded(seed), torch.enable_grad():
            if target is not None:
                adapter = fit_adapter(images, target, seed)
                with torch.no_grad():
                    images = torch.cat([adapter(part) for part in images.split(_PART)])
            network = SmallCNN(images.shape[1], int(numbers.max()) + 1, N_HIDDEN)
            optimiser = torch.optim.Adam(network.parameters(), lr=_PEAK_LR)
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimiser, _PEAK_LR, max(2, self.n_steps)
            )
            for _ in range(self.n_steps):
                pick = torch.randint(len(images), (_BATCH,))
                shown = images[pick]
                if any(self.amounts.values()):
                    shown = jitter(shown, torch.randn(len(shown), N_CODES), **self.amounts)
                optimiser.zero_grad()
                F.cross_entropy(network(shown), numbers[pick]).backward()
                optimiser.step()
                schedule.step()
        return network.eval()


def fit_adapter(images: Tensor, target: Tensor, seed: int) -> ImageAdapter:
    """Fit the map to images (m, channels, h, w) by Adam, with fresh directions at every step."""
    channels, height, width = images.shape[1:]
    space = DCT((channels, height, width), min(_FREQUENCIES, height, width))
    adapter, generator = ImageAdapter(), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.Adam(adapter.parameters(), lr=_MAP_LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimiser, _MAP_STEPS, eta_min=_MAP_LR / 20
    )
    with torch.no_grad():
        aim = torch.cat([space(part) for part in target.split(_PART)])
    for _ in range(_MAP_STEPS):
        source = images[torch.randint(len(images), (_MAP_BATCH,))]
        wanted = aim[torch.randint(len(aim), (_MAP_BATCH,))]
        directions = random_projections(
            space.dim, space.dim, kind="orthogonal", generator=generator
        ).float()
        loss = space.dim * sliced_wasserstein(space(adapter(source)), wanted, directions)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return adapter
