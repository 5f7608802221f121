"""Row function of an encoder that is being trained.

Rows are its features, about a public centre.
"""

from typing import cast

import torch
from torch import Tensor, nn

__all__ = ["EncodedRows"]

# Part of the public features that lies within the radius; features beyond it are clipped.
_WITHIN_RADIUS = 0.99
# Least radius, for features that are all equal.
_LEAST_RADIUS = 1e-6


class EncodedRows(nn.Module):
    """Map records to the features of an encoder.

    The features are about a public centre, in units of a diameter.

    Args:
        encoder: Maps records to features (n, dim), each record by itself.
        dim: Number of features.

    Attributes:
        centre: Public centre (dim,) of the features.
        radius: Public L2 distance from the centre that is mapped to norm 1/2.

    Example:
        >>> rows = EncodedRows(nn.Identity(), 2)
        >>> rows.measure(torch.tensor([[0.0, 2.0], [0.0, 0.0]]))
        >>> rows(torch.tensor([[0.0, 2.0]])).tolist()
        [[0.0, 0.5]]
    """

    centre: Tensor
    radius: Tensor

    def __init__(self, encoder: nn.Module, dim: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.dim = dim
        self.register_buffer("centre", torch.zeros(dim))
        self.register_buffer("radius", torch.ones(()))

    @torch.no_grad()
    def measure(self, records: Tensor) -> None:
        """Set centre and radius from the present features of PUBLIC records (n, ...).

        The encoder runs in evaluation mode; each of its layers has its own mode again afterwards.
        """
        modes = [(layer, layer.training) for layer in self.encoder.modules()]
        self.encoder.eval()
        try:
            features = self.encoder(records)
        finally:
            for layer, is_training in modes:
                layer.training = is_training
        self.centre.copy_(features.mean(0))
        distances = torch.linalg.vector_norm(features - self.centre, dim=1)
        self.radius.copy_(distances.quantile(_WITHIN_RADIUS).clamp(min=_LEAST_RADIUS))

    def rows(self, features: Tensor) -> Tensor:
        """Map features (n, dim) to rows (n, dim)."""
        return (features - self.centre) / (2 * self.radius)

    def forward(self, records: Tensor) -> Tensor:
        """Map records (n, ...) to rows (n, dim)."""
        return self.rows(cast(Tensor, self.encoder(records)))
