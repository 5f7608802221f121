"""Maps of records of one domain to records that look like those of another."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._validate import at_least

__all__ = ["ImageAdapter", "VectorAdapter"]


class ImageAdapter(nn.Module):
    """Map images by one affine map, one filter and one gain; starts as the identity.

    The affine map has 6 parameters, the 5 x 5 filter 25, the gain one. So few parameters describe
    how the target was framed and scanned, but not what its images show. Pixels stay in [0, 1].

    Example:
        >>> images = torch.rand(2, 1, 8, 8)
        >>> bool(torch.allclose(ImageAdapter()(images), images, atol=1e-6))
        True
    """

    def __init__(self) -> None:
        super().__init__()
        self.plane = nn.Parameter(torch.eye(2, 3))
        self.filter = nn.Parameter(torch.zeros(1, 1, 5, 5))
        self.log_gain = nn.Parameter(torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        """Map images (n, channels, height, width) in [0, 1] to the same shape."""
        plane = self.plane.expand(len(images), 2, 3)
        grid = F.affine_grid(plane, list(images.shape), align_corners=False)
        moved = F.grid_sample(images, grid, align_corners=False)
        channels = moved.flatten(0, 1).unsqueeze(1)
        filtered = channels + F.conv2d(channels, self.filter, padding=2)
        brightened = filtered.reshape(moved.shape) * self.log_gain.exp()
        return brightened.clamp(0, 1)


class VectorAdapter(nn.Module):
    """Scale and shift every entry of a vector; starts as the identity.

    Args:
        dim: Length d of a vector.

    Example:
        >>> VectorAdapter(3)(torch.ones(1, 3)).tolist()
        [[1.0, 1.0, 1.0]]
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        at_least(1, dim=dim)
        self.log_scale = nn.Parameter(torch.zeros(dim))
        self.shift = nn.Parameter(torch.zeros(dim))

    def forward(self, vectors: Tensor) -> Tensor:
        """Map vectors (n, d) to vectors (n, d)."""
        return vectors * self.log_scale.exp() + self.shift
