r"""Adaptation methods of this library.

They read the source and a synthetic target, and no private record.

The image map T of few parameters minimises
:math:`d \, SW_2^2(\phi(T x_s), \phi(\tilde x_t))`, with :math:`\phi` the d lowest frequencies; a
network is then trained on images :math:`T x_s` with the labels of the source.
"""

import copy
import inspect
from typing import Any

import numpy as np
import ot.da
import torch
import torch.nn.functional as F
from sklearn.base import clone
from torch import Tensor

from dpswd._layout import Array
from dpswd._progress import steps
from dpswd._validate import at_least
from dpswd.errors import InputError
from dpswd.features.frequencies import DCT
from dpswd.features.jitter import N_CODES, check_amounts, jitter
from dpswd.networks.adapters import ImageAdapter
from dpswd.networks.classifiers import SmallCNN
from dpswd.networks.generator import seeded
from dpswd.sliced import sliced_wasserstein
from dpswd.slices import random_projections

__all__ = ["CLASS_SHIFT", "IMAGE_MAP", "ImageMap", "class_shift", "is_transport", "resolve_method"]

# Names of the methods of this library.
CLASS_SHIFT = "class_shift"
IMAGE_MAP = "image_map"

# Source records that the optimal transport reads. It takes about ten seconds for as many target
# records, on one core.
_MOST_MATCHED = 4000
# With the default of POT, 100,000, the transport of 4,000 records ends before the optimum.
_EMD_ITERATIONS = 1_000_000

# Images are compared by their lowest frequencies, so many per axis.
_FREQUENCIES = 10
_MAP_STEPS = 300
_MAP_BATCH = 256
_MAP_LR = 2e-2

# Mapped source images for pictures.
N_EXAMPLES = 10
N_HIDDEN = 128  # size of the hidden layer of the network
_NETWORK_BATCH = 128
_NETWORK_PEAK_LR = 4e-3

# Images are mapped in parts of this size, which bounds the memory.
_PART = 1000


def class_shift(rows: Array, numbers: Array, target: Array, seed: int) -> Array:
    """Move each class by its mean displacement under optimal transport onto a target.

    The mean averages over the errors of single matches, and keeps the shape of the class.

    Args:
        rows: Source rows (n, p); the transport reads at most 4,000 of them.
        numbers: Numbers (n,) of their classes.
        target: Synthetic target rows (m, p).
        seed: Seed of the choice of source rows.

    Returns:
        The moved rows (n, p).
    """
    order = np.random.default_rng(seed).permutation(len(rows))
    matched = order[:_MOST_MATCHED]
    transport = ot.da.EMDTransport(max_iter=_EMD_ITERATIONS)
    transport.fit(Xs=rows[matched], Xt=target)
    displacements = np.asarray(transport.transform(Xs=rows[matched])) - rows[matched]
    moved = rows.copy()
    for number in np.unique(numbers):
        in_class = numbers[matched] == number
        if in_class.any():
            displacement = displacements[in_class].mean(0)
        else:  # no record of the class was matched
            displacement = displacements.mean(0)
        moved[numbers == number] += displacement
    return moved


class ImageMap:
    """Train a network on source images that are mapped to look like the target's.

    Args:
        n_steps: Training steps of the network, of 128 images.
        amounts: Jitter of the mapped images, public constants: ``shift``, ``rotation``, ``zoom``,
            ``shear`` and ``elastic``, as in :func:`dpswd.features.jitter.jitter`.

    Attributes:
        examples: The first ten source images as they were mapped; ``None`` before a fit.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> method = ImageMap(n_steps=500, shift=2.0, rotation=10.0)
        >>> method.amounts["rotation"]  # then dpswd.PrivateAdapter(method=method, ...)
        10.0
    """

    def __init__(self, n_steps: int = 1500, **amounts: float) -> None:
        at_least(1, n_steps=n_steps)
        check_amounts(amounts)
        self.n_steps = n_steps
        self.amounts: dict[str, Any] = amounts
        self.examples: Tensor | None = None

    def fit(
        self,
        images: Tensor,
        numbers: Tensor,
        target: Tensor | None,
        seed: int,
        *,
        progress: bool = False,
    ) -> SmallCNN:
        """Train the network; the global random state stays as it is.

        Args:
            images: Source images (n, channels, height, width) in [0, 1].
            numbers: Numbers (n,) of their classes.
            target: Synthetic target images (m, channels, height, width) in [0, 1]; ``None`` trains
                on the source as it is.
            seed: Seed of the map, of the weights and of the batches.
            progress: Show the steps.

        Returns:
            The network, in evaluation mode.
        """
        with seeded(seed), torch.enable_grad():
            if target is not None:
                adapter = fit_adapter(images, target, seed, progress=progress)
                images = _map_in_parts(adapter, images)
                self.examples = images[:N_EXAMPLES]
            network = self._train(images, numbers, progress)
        return network.eval()

    def _train(self, images: Tensor, numbers: Tensor, progress: bool) -> SmallCNN:
        """Train a network on jittered images by Adam with one cycle of the step size."""
        network = SmallCNN(images.shape[1], int(numbers.max()) + 1, N_HIDDEN)
        optimiser = torch.optim.Adam(network.parameters(), lr=_NETWORK_PEAK_LR)
        # The schedule needs two steps at least.
        total_steps = max(2, self.n_steps)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, _NETWORK_PEAK_LR, total_steps)
        has_jitter = any(self.amounts.values())
        for _ in steps(self.n_steps, "Classifier", shown=progress):
            index = torch.randint(len(images), (_NETWORK_BATCH,))
            batch = images[index]
            if has_jitter:
                codes = torch.randn(len(batch), N_CODES)
                batch = jitter(batch, codes, **self.amounts)
            loss = F.cross_entropy(network(batch), numbers[index])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
        return network


def fit_adapter(
    images: Tensor, target: Tensor, seed: int, *, progress: bool = False
) -> ImageAdapter:
    """Fit the image map by Adam, with fresh directions at every step.

    Batches are drawn from the global random state of torch.

    Args:
        images: Source images (n, channels, height, width) in [0, 1].
        target: Synthetic target images (m, channels, height, width) in [0, 1].
        seed: Seed of the directions.
        progress: Show the steps.
    """
    channels, height, width = images.shape[1:]
    n_frequencies = min(_FREQUENCIES, height, width)
    features = DCT((channels, height, width), n_frequencies)
    generator = torch.Generator().manual_seed(seed)
    adapter = ImageAdapter()
    optimiser = torch.optim.Adam(adapter.parameters(), lr=_MAP_LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimiser, _MAP_STEPS, eta_min=_MAP_LR / 20
    )
    target_rows = _map_in_parts(features, target)
    for _ in steps(_MAP_STEPS, "Image map", shown=progress):
        source_batch = images[torch.randint(len(images), (_MAP_BATCH,))]
        target_batch = target_rows[torch.randint(len(target_rows), (_MAP_BATCH,))]
        directions = random_projections(
            features.dim, features.dim, kind="orthogonal", generator=generator
        ).float()
        rows = features(adapter(source_batch))
        loss = features.dim * sliced_wasserstein(rows, target_batch, directions)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return adapter


@torch.no_grad()
def _map_in_parts(network: torch.nn.Module, images: Tensor) -> Tensor:
    """Apply a network to images (n, ...) in parts, without gradients."""
    return torch.cat([network(part) for part in images.split(_PART)])


def resolve_method(method: Any, *, has_images: bool) -> Any:
    """Return a copy of an adaptation method that a fit may change.

    Args:
        method: ``"class_shift"``, ``"image_map"``, an :class:`ImageMap`, a transport of ``ot.da``,
            or a classifier of skada.
        has_images: Whether the records are images.

    Returns:
        ``"class_shift"`` as it is; otherwise an object with ``fit``.

    Raises:
        InputError: If the method is unknown, or does not fit the records.
    """
    if isinstance(method, str) and method == CLASS_SHIFT:
        return method
    if isinstance(method, str) and method == IMAGE_MAP:
        method = ImageMap()
    if not hasattr(method, "fit"):
        raise InputError(
            f"Expected method='class_shift', 'image_map' or an estimator, got {method!r}; choose "
            "one of them."
        )
    if isinstance(method, ImageMap) and not has_images:
        raise InputError("Expected images for method image_map, got vectors; choose class_shift.")
    if isinstance(method, ImageMap) or is_transport(method):
        return copy.deepcopy(method)
    if not hasattr(method, "predict"):
        raise InputError(
            "Expected method with predict, got one without; append a classifier to the pipeline."
        )
    try:
        return clone(method)
    except TypeError:
        raise InputError(
            f"Expected method to be an estimator of scikit-learn, got {type(method).__name__}, "
            "which has no get_params; derive it from sklearn.base.BaseEstimator."
        ) from None


def is_transport(method: Any) -> bool:
    """Return whether a method maps source records, as those of ``ot.da``."""
    if isinstance(method, ot.da.BaseTransport):
        return True
    return "Xs" in inspect.signature(method.fit).parameters
