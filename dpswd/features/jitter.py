"""Random transformations of generated images: affine maps and elastic distortions.

A normal distribution of pixels represents a shift only to first order. The amounts are public
constants, and the transformations are functions of latent codes: post-processing.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from dpswd._validate import nonnegative
from dpswd.errors import InputError

__all__ = ["AMOUNTS", "N_CODES", "check_amounts", "jitter"]

# Names of the amounts, which are arguments of jitter.
AMOUNTS = ("shift", "rotation", "zoom", "shear", "elastic")
# Largest amounts. At the largest zoom an image may shrink to a tenth, and the largest slant is
# 45 degrees. Pixels are limited by half of the shorter side, where it is known.
_LARGEST = {"shift": 1000.0, "rotation": 180.0, "zoom": 0.9, "shear": 1.0, "elastic": 1000.0}
_IN_PIXELS = ("shift", "elastic")
# Codes of the affine map: right, down, angle, width, height and slant.
_N_AFFINE = 6
# Control points of the elastic distortion along each axis.
_N_CONTROL = 5
# Latent coordinates per image: those of the affine map, and two displacements per control point.
N_CODES = _N_AFFINE + 2 * _N_CONTROL**2


def check_amounts(amounts: Mapping[str, float], sample_shape: tuple[int, ...] = ()) -> None:
    """Raise an InputError if an amount of :func:`jitter` is unknown or out of range.

    Args:
        amounts: Amounts by name.
        sample_shape: Shape (channels, height, width) of the images, where it is known.
    """
    unknown = set(amounts) - set(AMOUNTS)
    if unknown:
        names = ", ".join(sorted(unknown))
        raise InputError(f"Expected amounts of jitter among {', '.join(AMOUNTS)}, got {names}.")
    nonnegative(**amounts)
    for name, amount in amounts.items():
        largest = _LARGEST[name]
        limit = f"{largest:g}"
        if name in _IN_PIXELS and len(sample_shape) == 3:
            largest = min(sample_shape[1:]) / 2
            limit = f"{largest:g} pixels, half of the shorter side of the images"
        if amount > largest:
            raise InputError(f"Expected {name} of at most {limit}, got {name}={amount:g}.")


def jitter(
    images: Tensor,
    codes: Tensor,
    *,
    shift: float = 0.0,
    rotation: float = 0.0,
    zoom: float = 0.0,
    shear: float = 0.0,
    elastic: float = 0.0,
    padding: str = "zeros",
    resampling: str = "bilinear",
) -> Tensor:
    """Transform images at random.

    Draws of the affine map are uniform.

    Args:
        images: Images (n, channels, height, width).
        codes: Standard normal numbers (n, N_CODES).
        shift: Largest shift along either axis, in pixels.
        rotation: Largest angle, in degrees.
        zoom: Largest relative change of width and of height.
        shear: Largest slant, in pixels per pixel.
        elastic: Standard deviation of the displacements of 5 x 5 control points, in pixels.
        padding: What lies beyond the border: ``"zeros"``, or ``"reflection"`` for images whose
            border is not black.
        resampling: ``"bilinear"``, which stays within the range of the pixels; or ``"bicubic"``,
            which keeps the slopes of images of distances.

    Returns:
        Images of the same shape.
    """
    height, width = images.shape[2:]
    uniform = 2 * torch.special.ndtr(codes[:, :_N_AFFINE]) - 1
    right, down, angle, wide, high, slant = uniform.unbind(1)
    angle = angle * rotation * math.pi / 180
    slope = -angle.sin() + slant * shear
    move_x = 2 * shift / width * right
    move_y = 2 * shift / height * down
    cosine = angle.cos()
    scale_x = (1 + wide * zoom) * cosine
    scale_y = (1 + high * zoom) * cosine
    horizontal = torch.stack([scale_x, slope, move_x], dim=1)
    vertical = torch.stack([angle.sin(), scale_y, move_y], dim=1)
    maps = torch.stack([horizontal, vertical], dim=1).to(images.dtype)
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    if elastic:
        bends = codes[:, _N_AFFINE:].to(images.dtype)
        grid = grid + _displacements(bends, elastic, height, width)
    return F.grid_sample(images, grid, mode=resampling, padding_mode=padding, align_corners=False)


def _displacements(codes: Tensor, elastic: float, height: int, width: int) -> Tensor:
    """Return displacements (n, height, width, 2) of pixels.

    They are in half sides of the image. Those of the control points are the codes (n, 2 * 5 * 5)
    times ``elastic`` pixels; those of the other pixels are interpolated.
    """
    points = codes.unflatten(1, (2, _N_CONTROL, _N_CONTROL))
    smooth = F.interpolate(points, (height, width), mode="bicubic", align_corners=True)
    sides = codes.new_tensor([width, height])
    return 2 * elastic * smooth.permute(0, 2, 3, 1) / sides
