"""Generator network in principal coordinates.

It draws from a normal law per class, and adds a correction.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._validate import at_least
from dpswd.features.frequencies import Frequencies
from dpswd.features.jitter import N_CODES, check_amounts, jitter
from dpswd.networks.generator import Generator, affine_by_class

__all__ = ["PrincipalGenerator"]


class PrincipalGenerator(Generator):
    """Image generator in the principal coordinates of a release of slices.

    Every class has an affine map from the code to r scaled principal coordinates; a network of two
    layers, conditioned on the class, corrects them. The correction starts at zero, so that a
    generator starts at normal distributions (:meth:`start_at`). Low frequencies follow from the
    coordinates; those outside of the principal directions are drawn from their released covariance,
    or left at the mean of the class, which makes images smoother. Jitter is applied in evaluation
    mode only.

    Args:
        sample_shape: (channels, height, width).
        n_classes: Number C of classes; 0 for none.
        size: Number of frequencies along each axis, not of pixels: 12 x 12 with ``size=12``; see
            :class:`dpswd.features.frequencies.Frequencies`.
        chroma_size: Frequencies per axis of the two other opponent colours; ``None`` for ``size``.
        n_directions: Number r of principal directions.
        hidden: Size of the hidden layer of the correction.
        jitter: Public amounts of jitter; see :func:`dpswd.features.jitter.jitter`.
        outside: Whether frequencies outside of the principal directions are drawn: for classifiers
            they are, for pictures of few records they are mostly noise.

    Attributes:
        features: The map to the low frequencies.

    Raises:
        InputError: If a number or an amount is out of range.

    Example:
        >>> generator = PrincipalGenerator((1, 8, 8), n_classes=10, size=6, n_directions=12)
        >>> generator(generator.latent(5), torch.arange(5)).shape
        torch.Size([5, 1, 8, 8])
    """

    def __init__(
        self,
        sample_shape: tuple[int, int, int] = (1, 28, 28),
        n_classes: int = 10,
        size: int = 12,
        chroma_size: int | None = None,
        n_directions: int = 40,
        hidden: int = 256,
        jitter: dict[str, float] | None = None,
        outside: bool = True,
    ) -> None:
        amounts: dict[str, Any] = jitter or {}
        check_amounts(amounts, sample_shape)
        _, height, width = sample_shape
        features = Frequencies(sample_shape, min(size, height, width), chroma_size)
        dim = features.dim
        at_least(1, n_directions=n_directions, hidden=hidden)
        n_directions = min(n_directions, dim)
        n_moves = 0
        if amounts:
            n_moves = N_CODES
        latent_dim = n_directions + dim + n_moves
        super().__init__(sample_shape, n_classes, latent_dim)
        self.size = size
        self.chroma_size = chroma_size
        self.n_directions = n_directions
        self.hidden = hidden
        self.jitter = amounts
        self.outside = outside
        self.features = features
        groups = max(1, n_classes)
        identity = torch.eye(n_directions).expand(groups, -1, -1)
        self.linear = nn.Parameter(identity.clone())
        self.offset = nn.Parameter(torch.zeros(groups, n_directions))
        self.first = nn.Linear(n_directions + n_classes, hidden)
        self.second = nn.Linear(hidden, n_directions)
        nn.init.zeros_(self.second.weight)
        nn.init.zeros_(self.second.bias)
        self.means = nn.Buffer(torch.zeros(groups, dim))
        self.basis = nn.Buffer(torch.zeros(dim, n_directions))
        self.deviations = nn.Buffer(torch.ones(n_directions))
        self.rest = nn.Buffer(torch.zeros(dim, dim))

    def with_directions(self, n_directions: int) -> "PrincipalGenerator":
        """Return a new generator with another number of principal directions."""
        channels, height, width = self.sample_shape
        return PrincipalGenerator(
            (channels, height, width),
            self.n_classes,
            self.size,
            self.chroma_size,
            n_directions,
            self.hidden,
            dict(self.jitter),
            self.outside,
        )

    @torch.no_grad()
    def start_at(self, means: Tensor, basis: Tensor, deviations: Tensor, rest: Tensor) -> None:
        """Start at normal distributions of the rows of ``features``.

        Args:
            means: Means (C, d) of the rows of each class.
            basis: Matrix (d, r) from coordinates to differences from the means.
            deviations: Standard deviations (r,) of the coordinates.
            rest: Square root (d, d) of the covariance outside of the principal directions.
        """
        self.means.copy_(means)
        self.basis.copy_(basis)
        self.deviations.copy_(deviations)
        if self.outside:  # otherwise it stays zero
            self.rest.copy_(rest)

    def coordinates(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Map codes (n, latent_dim) and classes (n,) to principal coordinates (n, r)."""
        codes = latent[:, : self.n_directions]
        membership = F.one_hot(labels, len(self.linear)).to(codes.dtype)
        affine = affine_by_class(self.linear, self.offset, codes, membership)
        hidden = F.relu(self.first(self.code(codes, labels)))
        correction: Tensor = self.second(hidden)
        return (affine + correction) * self.deviations

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """See :class:`~dpswd.networks.generator.Generator`."""
        r = self.n_directions
        dim = self.features.dim
        coordinates = self.coordinates(latent, labels)
        outside = latent[:, r : r + dim] @ self.rest
        inside = coordinates @ self.basis.T
        rows = self.means[labels] + inside + outside
        images = self.features.decode(rows).clamp(0, 1)
        if self.training or not self.jitter:
            return images
        return jitter(images, latent[:, r + dim :], **self.jitter)
