"""Random transformations of generated images: affine maps and elastic distortions.

A normal distribution of pixels represents a shift only to first order. The amounts are public constants, and the
transformations are functions of latent codes: post-processing.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from dpswd._validate import nonnegative
from dpswd.errors import InputError

__all__ = ["N_CODES", "jitter"]

AMOUNTS = ("shift", "rotation", "zoom", "shear", "elastic")
_CONTROL = 5  # control points of the elastic distortion along each axis
N_CODES = 6 + 2 * _CONTROL**2  # latent coordinates per image


def check_amounts(amounts: Mapping[str, float]) -> None:
    """Raise an InputError if an amount has another name than the arguments of :func:`jitter`, or is negative."""
    if unknown := set(amounts) - set(AMOUNTS):
        raise InputError(
            f"Expected amounts of jitter among {', '.join(AMOUNTS)}, got {', '.join(sorted(unknown))}."
        )
    nonnegative(**amounts)


def jitter(
    images: Tensor,
    codes: Tensor,  # (n, N_CODES), standard normal
    *,
    shift: float = 0.0,  # largest, along either axis, in pixels
    rotation: float = 0.0,  # largest angle, in degrees
    zoom: float = 0.0,  # largest relative change of width and of height
    shear: float = 0.0,  # largest, in pixels per pixel
    elastic: float = 0.0,  # standard deviation of the displacements of 5 x 5 control points, in pixels
    padding: str = "zeros",  # "reflection" for images whose border is not black
) -> Tensor:
    """Transform images (n, channels, height, width); draws of the affine map are uniform, resampling is bilinear."""
    right, down, angle, wide, high, slant = (2 * torch.special.ndtr(codes[:, :6]) - 1).unbind(1)
    height, width = images.shape[2:]
    angle = angle * rotation * math.pi / 180
    wide, high = 1 + wide * zoom, 1 + high * zoom
    rows = [
        [wide * angle.cos(), -angle.sin() + slant * shear, 2 * shift / width * right],
        [angle.sin(), high * angle.cos(), 2 * shift / height * down],
    ]
    maps = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1).to(images.dtype)
    grid = F.affine_grid(maps, list(images.shape), align_corners=False)
    if elastic:
        points = codes[:, 6:].to(images.dtype).unflatten(1, (2, _CONTROL, _CONTROL))
        bends = F.interpolate(points, (height, width), mode="bicubic", align_corners=True)
        grid = grid + 2 * elastic * bends.permute(0, 2, 3, 1) / grid.new_tensor([width, height])
    return F.grid_sample(images, grid, padding_mode=padding, align_corners=False)
