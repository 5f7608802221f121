"""Distances between real and generated images.

They are evaluation on real records and not part of a release. Distance, precision and recall are
those of :mod:`dpswd.evaluation.fidelity`, of features of the images. With the Inception weights of
pytorch-fid the distance is the FID. They are a download of 91 MB (``WEIGHTS``, from releases of the
repository mseitzer/pytorch-fid) for ``--weights PATH``.

Without them the features are those of :func:`random_convolutions`, a public map that no record has
trained. That distance is not the FID, and is comparable for one data set only.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from dpswd.errors import InputError
from dpswd.evaluation.fidelity import covered, frechet

WEIGHTS = "pt_inception-2015-12-05-6726825d.pth"
DIGEST = "6726825d"  # first digits of the file's SHA-256, as torch's hub checks them
_N_NEIGHBOURS_OF = 5000  # images for precision and recall, whose cost grows with the square
_AT_ONCE = 100  # images that a network maps at a time

Array = NDArray[np.float64]


def fidelity(real: Tensor, generated: Tensor, weights: Path | None = None) -> dict[str, float]:
    """Return Frechet distance, precision and recall of generated images.

    Args:
        real: Images (n, channels, h, w) in [0, 1].
        generated: Images (m, channels, h, w) in [0, 1].
        weights: Weights of pytorch-fid; with them the result also has the ``fid``.

    Returns:
        Numbers in the space of :func:`random_convolutions`. Precision and recall use the first
        5,000 images of both.
    """
    generated_rows = _features(random_convolutions, generated)
    real_rows = _features(random_convolutions, real)
    few_generated = generated_rows[:_N_NEIGHBOURS_OF]
    few_real = real_rows[:_N_NEIGHBOURS_OF]
    numbers = {
        "frechet": frechet(real_rows, generated_rows),
        "precision": covered(few_generated, few_real),
        "recall": covered(few_real, few_generated),
    }
    if weights is not None:
        numbers["fid"] = fid(weights, _in_colour(real), _in_colour(generated))
    return numbers


def _in_colour(images: Tensor) -> Tensor:
    """Return grey images with three equal channels, and images in colour as they are."""
    return images.expand(-1, 3, -1, -1)


def random_convolutions(images: Tensor) -> Tensor:
    """Return public features (n, 256) of images (n, channels, h, w) in [0, 1].

    A convolution with 32 filters of 5 x 5, whose weights sum to zero, and one with 64 filters of 3
    x 3, both with stride 2, zero padding and ReLU, then averages over the four quarters of the
    image. Filters are standard normal numbers of NumPy's ``default_rng(0)``, scaled to norm 1.
    """
    rng = np.random.default_rng(0)
    first = rng.standard_normal((32, images.shape[1], 5, 5))
    first = first - first.mean((1, 2, 3), keepdims=True)
    second = rng.standard_normal((64, 32, 3, 3))
    maps = F.conv2d(images, _filters(first), stride=2, padding=2).relu()
    maps = F.conv2d(maps, _filters(second), stride=2, padding=1).relu()
    return F.adaptive_avg_pool2d(maps, 2).flatten(1)


def _filters(weights: Array) -> Tensor:
    """Return filters of norm 1."""
    norms = np.sqrt(np.square(weights).sum((1, 2, 3), keepdims=True))
    return torch.from_numpy(weights / norms).float()


def fid(weights: Path, real: Tensor, generated: Tensor) -> float:
    """Return the FID of images (n, 3, h, w) in [0, 1] by pytorch-fid.

    Args:
        weights: Its weights in a file.
        real: Real images.
        generated: Generated images.
    """
    from pytorch_fid.inception import InceptionV3  # an optional package

    check_weights(weights)
    state = torch.load(weights, map_location="cpu", weights_only=True)
    with mock.patch("pytorch_fid.inception.load_state_dict_from_url", return_value=state):
        network = InceptionV3([InceptionV3.BLOCK_INDEX_BY_DIM[2048]]).eval()

    def pooled(images: Tensor) -> Tensor:
        features: Tensor = network(images)[0]
        return features.flatten(1)

    return frechet(_features(pooled, real), _features(pooled, generated))


def check_weights(weights: Path) -> None:
    """Refuse a file that is not the one that pytorch-fid downloads."""
    if not weights.is_file():
        raise InputError(
            f"Expected the weights of pytorch-fid at {weights}, got no file; fetch {WEIGHTS} from "
            "the releases of mseitzer/pytorch-fid, or leave out --weights for the distance of "
            "random convolutions."
        )
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    if not digest.startswith(DIGEST):
        raise InputError(
            f"Expected {WEIGHTS} (SHA-256 {DIGEST}...) at {weights}, got another file; "
            "fetch it again."
        )


@torch.no_grad()
def _features(network: Callable[[Tensor], Tensor], images: Tensor) -> Array:
    """Return the features (n, d) of images in float64."""
    parts = [network(part) for part in images.split(_AT_ONCE)]
    return torch.cat(parts).double().numpy()
