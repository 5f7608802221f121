"""Encoders, classifiers and adapters for adaptation, augmentation and framing of digits.

Every network maps each record by itself: there is no batch normalisation.
"""

import torch
from torch import Tensor, nn

from dpswd._validate import at_least, positive
from dpswd.errors import InputError

__all__ = ["DigitEncoder", "FeatureEncoder", "ImageAdapter", "ShiftAdapter", "classifier", "frame", "jitter"]


class DigitEncoder(nn.Sequential):
    """Maps grey images (n, 1, 28, 28) to 320 features by two 5 x 5 convolutions with 10 and 20 maps.

    The encoder of Rakotomamonjy2021 has 32 and 20 maps and a sigmoid: ``models.networks.PublishedDigitEncoder``.
    """

    dim = 320

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 10, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(10, 20, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )

    def forward(self, records: Tensor) -> Tensor:
        """Maps (n, 1, 28, 28) to (n, 320)."""
        if tuple(records.shape[1:]) != (1, 28, 28):
            raise InputError(f"Expected images (n, 1, 28, 28), got {tuple(records.shape)}; frame or resize them.")
        for layer in self:
            records = layer(records)
        return records


class FeatureEncoder(nn.Sequential):
    """Maps feature vectors (n, d) of a pre-trained network to ``dim`` features by one layer and a tanh.

    Args:
        input_dim: d: 1,024 for GoogLeNet, 2,048 for ResNet-50.
        dim: Size of the features that are aligned.
        normalise: Scale every vector to norm sqrt(d) first.
    """

    def __init__(self, input_dim: int, dim: int = 50, normalise: bool = True) -> None:
        at_least(2, input_dim=input_dim, dim=dim)
        super().__init__(nn.Linear(input_dim, dim), nn.Tanh())
        self.input_dim, self.dim, self.normalise = input_dim, dim, normalise

    def forward(self, records: Tensor) -> Tensor:
        """Maps (n, d) to (n, dim)."""
        if records.ndim != 2 or records.shape[1] != self.input_dim:
            raise InputError(
                f"Expected feature vectors (n, {self.input_dim}), got {tuple(records.shape)}; set input_dim."
            )
        if self.normalise:
            records = nn.functional.normalize(records, dim=1) * self.input_dim**0.5
        for layer in self:
            records = layer(records)
        return records


class ImageAdapter(nn.Module):
    """Maps images (n, channels, h, w) by one affine map, one filter and one gain; starts as the identity.

    The affine map has 6 parameters, the 5 x 5 filter 25, the gain one. So few parameters describe how the target was
    framed and scanned, but not what its images show. Pixels stay in [0, 1].
    """

    def __init__(self) -> None:
        super().__init__()
        self.plane = nn.Parameter(torch.eye(2, 3))
        self.filter = nn.Parameter(torch.zeros(1, 1, 5, 5))
        self.log_gain = nn.Parameter(torch.zeros(()))

    def forward(self, images: Tensor) -> Tensor:
        """Maps (n, channels, h, w) to the same shape."""
        grid = nn.functional.affine_grid(self.plane.expand(len(images), 2, 3), list(images.shape), align_corners=False)
        moved = nn.functional.grid_sample(images, grid, align_corners=False)
        channels = moved.flatten(0, 1).unsqueeze(1)
        filtered = channels + nn.functional.conv2d(channels, self.filter, padding=2)
        return (filtered.reshape(moved.shape) * self.log_gain.exp()).clamp(0, 1)


class ShiftAdapter(nn.Module):
    """Scales and shifts every entry of feature vectors (n, d); starts as the identity.

    Args:
        dim: Size d of the vectors.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        at_least(1, dim=dim)
        self.log_scale, self.shift = nn.Parameter(torch.zeros(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, rows: Tensor) -> Tensor:
        """Maps (n, d) to (n, d)."""
        return rows * self.log_scale.exp() + self.shift


def jitter(images: Tensor) -> Tensor:
    """Augments public images (n, 1, h, w) by random rotation, scale, shear, shift and stroke width.

    Rotations reach 10 degrees, scale and shear 10%, shifts 1.5 pixels of 28, either way. A quarter of the images is
    dilated, a quarter eroded, a quarter blurred, mixed with the original at a random weight.
    """
    n = len(images)
    angle, wide, high, shear, right, down = 2 * torch.rand(6, n) - 1
    cosine, sine = torch.cos(angle * torch.pi / 18), torch.sin(angle * torch.pi / 18)
    rows = [
        torch.stack([(1 + wide / 10) * cosine, shear / 10 - (1 + wide / 10) * sine, right * 3 / 28], 1),
        torch.stack([sine, (1 + high / 10) * cosine, down * 3 / 28], 1),
    ]
    grid = nn.functional.affine_grid(torch.stack(rows, 1).to(images), list(images.shape), align_corners=False)
    images = nn.functional.grid_sample(images, grid, align_corners=False)
    thick = nn.functional.max_pool2d(images, 3, 1, 1)
    thin = -nn.functional.max_pool2d(-images, 3, 1, 1)
    soft = nn.functional.avg_pool2d(images, 3, 1, 1)
    kind, part = torch.randint(4, (n, 1, 1, 1)), torch.rand(n, 1, 1, 1).to(images)
    other = torch.where(kind == 0, thick, torch.where(kind == 1, thin, torch.where(kind == 2, soft, images)))
    return part * other + (1 - part) * images


def classifier(dim: int, n_classes: int, hidden: int = 100) -> nn.Module:
    """Returns a classifier of two layers with dropout between them, or of one layer if ``hidden`` is 0."""
    at_least(1, dim=dim)
    at_least(2, n_classes=n_classes)
    at_least(0, hidden=hidden)
    if not hidden:
        return nn.Linear(dim, n_classes)
    return nn.Sequential(nn.Linear(dim, hidden), nn.ReLU(), nn.Dropout(0.5), nn.Linear(hidden, n_classes))


@torch.no_grad()
def frame(images: Tensor, size: int = 28, *, ink: float = 0.2, inner: int = 20, stretch: float = 0.5) -> Tensor:
    """Frames each digit by itself: upright, centred and of one size.

    A digit is sheared such that its second moments are uncorrelated. Its bounding box (pixels above ``ink``) is centred
    and scaled to ``inner`` pixels along the longer side; the shorter side is stretched by the power ``stretch``. An
    image without ink stays empty. The result is a function of one image alone, so that it is part of the public map
    from record to row.

    Args:
        images: (n, 1, h, w) in [0, 1].
        size: Side of the result.
        ink: Pixels above it belong to the digit.
        inner: Longer side of the digit afterwards.
        stretch: 0 keeps the proportions, 1 fills the square.

    Returns:
        (n, 1, size, size), float32.

    Raises:
        InputError: If the images have another shape.
    """
    positive(ink=ink)
    at_least(1, size=size, inner=inner)
    if images.ndim != 4 or images.shape[1] != 1:
        raise InputError(f"Expected grey images (n, 1, h, w), got {tuple(images.shape)}.")
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
        grid * ((side / inner) ** stretch * (longer / inner) ** (1 - stretch))[:, None] + middle[:, None]
        for middle, side in (across, down)
    ]
    down_at = lines[1][:, :, None].expand(n, size, size)
    across_at = lines[0][:, None, :] + shear[:, None, None] * down_at
    centre_x, centre_y = -x[:, :1, None], -y[:, :1, None]
    where = torch.stack([2 * (across_at + centre_x + 0.5) / w - 1, 2 * (down_at + centre_y + 0.5) / h - 1], -1)
    return nn.functional.grid_sample(images.float(), where.float(), align_corners=False)


def _box(position: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """Returns middle and length (n,) of the interval of the positions (n, h, w) inside; (0, 1) without one."""
    low = torch.where(inside, position, torch.inf).amin((1, 2))
    high = torch.where(inside, position, -torch.inf).amax((1, 2))
    empty = ~inside.any(2).any(1)
    low, high = low.masked_fill(empty, 0.0), high.masked_fill(empty, 0.0)
    return (low + high) / 2, high - low + 1
