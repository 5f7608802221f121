r"""Signed distances of shapes on an empty ground.

Such shapes are digits, letters, signatures and masks.

A mixture of normal distributions of pixels represents a stroke that moves by two strokes at half
brightness. Signed distances to the border of the shape move with the stroke instead.

An image x in [0, 1] is enlarged to twice its side. The shape is where it exceeds 1/2. Let s be the
signed distance to its border in pixels of x, positive outside, averaged back to the side of x, and
clipped to [-c, c] with c = 1.2: farther pixels say little about the border, and their large
distances would outweigh it. The image of distances is

.. math:: u = \frac12 - \frac{s}{2c} \in [0, 1],

and 0 everywhere where there is no shape. Each u is computed from one image, by public constants.
Backwards, a pixel is as bright as the part of it that lies inside of a straight border at its
distance, as in a shape that was scanned or shrunk. An edge of width w = 0.9 pixels is drawn:

.. math:: x = \min(\max(\tfrac12 + \tfrac{2c}{w} (u - \tfrac12), 0), 1).

The width is a little below 1 because distances of a mixture change less than those of a shape.

An image u of a mixture is not that of any shape. Its *inconsistency* is its squared distance from
the image of distances of the shape that is drawn from it. Where strokes break, it is large.
Generators of version 0.4.0, with c = 4, draw four images and use the most consistent one. The files
of these generators are still read.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from dpswd._validate import choice
from dpswd.errors import InputError

__all__ = [
    "EDGE_WIDTH",
    "INKS",
    "LARGEST_DISTANCE",
    "check_shapes",
    "from_distances",
    "inconsistency",
    "to_distances",
]

# How a shape differs from its ground: light strokes on dark, or dark ink on light.
INKS = ("light", "dark")
# Brightness above which a pixel belongs to a light shape.
_THRESHOLD = 0.5
# Largest distance c from the border, in pixels.
LARGEST_DISTANCE = 1.2
# Width w of the edge of a drawn shape, in pixels.
EDGE_WIDTH = 0.9
# Squared distance of a pixel that has no pixel of the shape within reach.
_FAR_SQ = 255
# Images that are mapped at a time. They nearly fit into the cache of a processor.
_PART = 128


def check_shapes(ink: str, sample_shape: tuple[int, ...]) -> None:
    """Raise an InputError unless ``ink`` is known and records are grey images."""
    choice(INKS, shapes=ink)
    if len(sample_shape) != 3 or sample_shape[0] != 1:
        raise InputError(
            f"Expected grey images for shapes={ink!r} (--shapes), got records of shape "
            f"{tuple(sample_shape)}; leave it out, or read images with channels=1 (--channels 1)."
        )


def to_distances(images: Tensor, ink: str = "light", largest: float = LARGEST_DISTANCE) -> Tensor:
    """Map images of shapes to images of distances, each by itself.

    Args:
        images: Grey images (n, 1, h, w) in [0, 1].
        ink: ``"light"``: light shapes on dark; ``"dark"``: dark shapes on light.
        largest: Largest distance c from the border, in pixels, at most 4.

    Returns:
        Images u (n, 1, h, w) of the module docstring, in bytes from 0 to 255.

    Example:
        >>> dot = torch.zeros(1, 1, 5, 5)
        >>> dot[0, 0, 2, 2] = 1
        >>> to_distances(dot)[0, 0, 2].tolist()
        [0, 74, 154, 74, 0]
    """
    parts = [_to_distances(part, ink, largest) for part in images.split(_PART)]
    return torch.cat(parts)


def from_distances(
    distances: Tensor, ink: str = "light", largest: float = LARGEST_DISTANCE
) -> Tensor:
    """Draw images of shapes from images of distances.

    Args:
        distances: Images u (n, 1, h, w) in [0, 1].
        ink: As in :func:`to_distances`.
        largest: Largest distance c from the border, in pixels.

    Returns:
        Images (n, 1, h, w) in [0, 1].
    """
    slope = 2 * largest / EDGE_WIDTH
    images = (0.5 + slope * (distances - 0.5)).clamp(0, 1)
    if ink == "dark":
        return 1 - images
    return images


def inconsistency(distances: Tensor, largest: float = LARGEST_DISTANCE) -> Tensor:
    """Return how far images of distances are from those of the shapes in them.

    Args:
        distances: Images u (n, 1, h, w) in [0, 1].
        largest: Largest distance c from the border, in pixels.

    Returns:
        Squared distances (n,) of the images from those of the shapes that are drawn from them.

    Example:
        >>> squares = torch.zeros(2, 1, 16, 16)
        >>> squares[0, 0, 2:7, 2:7] = 1
        >>> squares[1, 0, 8:13, 8:13] = 1
        >>> of_squares = to_distances(squares) / 255
        >>> of_no_shape = of_squares.mean(0, keepdim=True)
        >>> bool((inconsistency(of_squares) < inconsistency(of_no_shape)).all())
        True
    """
    shapes = from_distances(distances, largest=largest)
    of_shapes = to_distances(shapes, largest=largest).float() / 255
    return (distances - of_shapes).square().sum((1, 2, 3))


def _to_distances(images: Tensor, ink: str, largest: float) -> Tensor:
    """Map a part of the images."""
    light = images.nan_to_num()
    if ink == "dark":
        light = 1 - light
    enlarged = F.interpolate(light, scale_factor=2, mode="bilinear", align_corners=False)
    shape = enlarged[:, 0] > _THRESHOLD
    # One of the two is 0: a pixel is in the shape or not.
    # Distances of 2 x 2 enlarged pixels differ by at most sqrt(2). If their mean is below c, they
    # are below 2 c + 1/2 + sqrt(2).
    reach = math.ceil(2 * largest + 2)
    squared = _squared_distance_to(shape, reach) + _squared_distance_to(~shape, reach)
    # Half a pixel lies between the centre of the nearest pixel and the border.
    to_border = _roots(squared) - 0.5
    signed = torch.where(shape, -to_border, to_border)
    in_pixels = F.avg_pool2d(signed[:, None] / 2, 2)
    distances = 0.5 - in_pixels.clamp(-largest, largest) / (2 * largest)
    return (255 * distances).round().to(torch.uint8)


def _squared_distance_to(shape: Tensor, reach: int) -> Tensor:
    """Return the squared distance (n, h, w) of every pixel to a shape, in bytes.

    It is the Euclidean distance to the nearest pixel of the shape, exact up to ``reach``. The
    square is the least sum of the squares of two distances, along the row to a pixel of the shape
    in the same row, and along the column.
    """
    empty = torch.full(shape.shape, _FAR_SQ, dtype=torch.uint8, device=shape.device)
    in_shape = torch.where(shape, empty.new_zeros(()), empty)
    # Parts of the second axis lie together in memory, which makes this axis the faster one.
    along_row = _least_over_shifts(in_shape.mT.contiguous(), reach).mT.contiguous()
    return _least_over_shifts(along_row, reach)


def _roots(squared: Tensor) -> Tensor:
    """Return the square roots of bytes, from a list of all of them."""
    roots = torch.arange(_FAR_SQ + 1, device=squared.device).float().sqrt()
    return roots[squared.int()]


def _least_over_shifts(squared: Tensor, reach: int) -> Tensor:
    """Return the least of (value at distance k along the second axis) + k^2.

    The largest distance k is ``reach``. Values are squared distances, in bytes. A sum beyond a byte
    counts as ``_FAR_SQ``.
    """
    least = squared.clone()
    length = squared.shape[1]
    for k in range(1, min(reach, length - 1) + 1):
        # Saturated sum: a value above _FAR_SQ - k^2 becomes _FAR_SQ.
        added = squared.clamp(max=_FAR_SQ - k**2) + k**2
        before = added.narrow(1, 0, length - k)
        after = added.narrow(1, k, length - k)
        later = least.narrow(1, k, length - k)
        torch.minimum(later, before, out=later)
        earlier = least.narrow(1, 0, length - k)
        torch.minimum(earlier, after, out=earlier)
    return least
