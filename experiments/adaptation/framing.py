"""Framing of digits: each image by itself is made upright, centred and of one size."""

import torch
from torch import Tensor, nn


@torch.no_grad()
def frame(
    images: Tensor, size: int = 28, *, ink: float = 0.2, inner: int = 20, stretch: float = 0.5
) -> Tensor:
    """Frame each digit by itself: upright, centred and of one size.

    A digit is sheared such that its second moments are uncorrelated. Its bounding box (pixels above ``ink``) is centred
    and scaled to ``inner`` pixels along the longer side; the shorter side is stretched by the power ``stretch``, 0 for
    its proportions and 1 for the square. An image without ink stays empty. Images (n, 1, h, w) in [0, 1] become
    (n, 1, size, size). The result is a function of one image alone, so that it is part of the public map from record to
    row.
    """
    n, _, h, w = images.shape
    mass = images[:, 0].double().clamp(min=0)  # (n, h, w)
    total = mass.sum((1, 2)).clamp(min=1e-6)
    rows, columns = torch.arange(h).double(), torch.arange(w).double()
    y = rows - ((mass.sum(2) @ rows) / total)[:, None]  # (n, h), relative to the centre of mass
    x = columns - ((mass.sum(1) @ columns) / total)[:, None]  # (n, w)
    spread = ((mass.sum(2) * y**2).sum(1) / total).clamp(min=1e-3)
    mixed = torch.einsum("nhw,nh,nw->n", mass, y, x) / total
    shear = (mixed / spread).clamp(-1, 1)
    upright = x[:, None, :] - shear[:, None, None] * y[:, :, None]  # (n, h, w)
    across, down = _box(upright, mass > ink), _box(y[:, :, None].expand(n, h, w), mass > ink)
    longer = torch.maximum(across[1], down[1])
    grid = torch.arange(size).double() - (size - 1) / 2
    lines = [
        grid * ((side / inner) ** stretch * (longer / inner) ** (1 - stretch))[:, None]
        + middle[:, None]
        for middle, side in (across, down)
    ]
    down_at = lines[1][:, :, None].expand(n, size, size)
    across_at = lines[0][:, None, :] + shear[:, None, None] * down_at
    centre_x, centre_y = -x[:, :1, None], -y[:, :1, None]
    where = torch.stack(
        [2 * (across_at + centre_x + 0.5) / w - 1, 2 * (down_at + centre_y + 0.5) / h - 1], -1
    )
    return nn.functional.grid_sample(images.float(), where.float(), align_corners=False)


def _box(position: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Return middle and length (n,) of the interval of the positions (n, h, w) inside; (0, 1) without one."""
    low = torch.where(inside, position, torch.inf).amin((1, 2))
    high = torch.where(inside, position, -torch.inf).amax((1, 2))
    empty = ~inside.any(2).any(1)
    low, high = low.masked_fill(empty, 0.0), high.masked_fill(empty, 0.0)
    return (low + high) / 2, high - low + 1
