"""Framing of digits: each image becomes upright, centred and of one size."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Interval:
    """Middle and length (n,) of an interval in each of n images, in pixels."""

    middle: Tensor
    length: Tensor


@torch.no_grad()
def frame(
    images: Tensor, size: int = 28, *, ink: float = 0.2, inner: int = 20, stretch: float = 0.5
) -> Tensor:
    """Frame each digit by itself: upright, centred and of one size.

    A digit is sheared such that its second moments are uncorrelated. Its bounding box is centred
    and scaled. An image without ink stays empty. The result is a function of one image alone, so
    that it is part of the public map from record to row.

    Args:
        images: Images (n, 1, h, w) in [0, 1].
        size: Side of the result in pixels.
        ink: Pixels above it are ink.
        inner: Length of the longer side of the bounding box of the ink, in pixels of the result.
        stretch: Power by which the shorter side is stretched: 0 keeps the proportions of the box, 1
            makes it square.

    Returns:
        Images (n, 1, size, size).
    """
    n, _, h, w = images.shape
    mass = images[:, 0].double().clamp(min=0)  # (n, h, w)
    total = mass.sum((1, 2)).clamp(min=1e-6)
    mass_of_lines = mass.sum(2)  # (n, h)
    mass_of_columns = mass.sum(1)  # (n, w)
    lines = torch.arange(h).double()
    columns = torch.arange(w).double()
    y = lines - ((mass_of_lines @ lines) / total)[:, None]  # (n, h), from the centre of mass
    x = columns - ((mass_of_columns @ columns) / total)[:, None]  # (n, w)

    variance = ((mass_of_lines * y**2).sum(1) / total).clamp(min=1e-3)
    covariance = torch.einsum("nhw,nh,nw->n", mass, y, x) / total
    shear = (covariance / variance).clamp(-1, 1)
    upright = x[:, None, :] - shear[:, None, None] * y[:, :, None]  # (n, h, w)

    across = _extent(upright, mass > ink)
    down = _extent(y[:, :, None].expand(n, h, w), mass > ink)
    longer = torch.maximum(across.length, down.length)
    pixels = torch.arange(size).double() - (size - 1) / 2
    x_of_result = _positions(pixels, across, longer, inner, stretch)  # (n, size)
    y_of_result = _positions(pixels, down, longer, inner, stretch)

    y_source = y_of_result[:, :, None].expand(n, size, size)
    x_source = x_of_result[:, None, :] + shear[:, None, None] * y_source
    centre_x = -x[:, :1, None]
    centre_y = -y[:, :1, None]
    grid_x = 2 * (x_source + centre_x + 0.5) / w - 1  # in [-1, 1], as grid_sample expects
    grid_y = 2 * (y_source + centre_y + 0.5) / h - 1
    grid = torch.stack([grid_x, grid_y], -1)
    return nn.functional.grid_sample(images.float(), grid.float(), align_corners=False)


def _extent(position: Tensor, is_inside: Tensor) -> Interval:
    """Return the interval of the positions (n, h, w) of pixels inside.

    Without a pixel inside the middle is 0 and the length 1.
    """
    low = torch.where(is_inside, position, torch.inf).amin((1, 2))
    high = torch.where(is_inside, position, -torch.inf).amax((1, 2))
    is_empty = ~is_inside.any(2).any(1)
    low = low.masked_fill(is_empty, 0.0)
    high = high.masked_fill(is_empty, 0.0)
    return Interval((low + high) / 2, high - low + 1)


def _positions(
    pixels: Tensor, extent: Interval, longer: Tensor, inner: int, stretch: float
) -> Tensor:
    """Return the positions (n, size) in the source of the pixels of the result."""
    scale = (extent.length / inner) ** stretch * (longer / inner) ** (1 - stretch)
    return pixels * scale[:, None] + extent.middle[:, None]
