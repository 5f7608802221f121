"""Features of images for evaluation.

They are those of public random convolutions and of the network of the FID.
"""

import contextlib
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dpswd._layout import Array
from dpswd.errors import InputError
from dpswd.evaluation.fidelity import frechet

__all__ = ["WEIGHTS", "check_weights", "fid", "image_features", "random_convolutions"]

# Name of the file of weights among the releases of pytorch-fid, and the first digits of its
# SHA-256, as the hub of torch checks them.
WEIGHTS = "pt_inception-2015-12-05-6726825d.pth"
DIGEST = "6726825d"
# Images that a network maps at a time.
_AT_ONCE = 100


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


@torch.no_grad()
def image_features(network: Callable[[Tensor], Tensor], images: Tensor) -> Array:
    """Return the features (n, d) of images in float64, computed in parts."""
    parts = [network(part) for part in images.split(_AT_ONCE)]
    return np.asarray(torch.cat(parts).double().numpy())


def fid(weights: Path, real: Tensor, generated: Tensor) -> float:
    """Return the FID of images by pytorch-fid.

    Args:
        weights: Its weights in a file.
        real: Real images (n, channels, h, w) in [0, 1]; grey ones become three equal channels.
        generated: Generated images (m, channels, h, w).

    Raises:
        InputError: If the weights are missing or others, or pytorch-fid is not installed.
    """
    check_weights(weights)
    try:
        from pytorch_fid.inception import InceptionV3  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise InputError(
            "Expected the package pytorch-fid for the FID, got none; pip install pytorch-fid."
        ) from None
    with _hub_with(weights):
        network = InceptionV3([InceptionV3.BLOCK_INDEX_BY_DIM[2048]]).eval()

    def pooled(images: Tensor) -> Tensor:
        features: Tensor = network(images.expand(-1, 3, -1, -1))[0]
        return features.flatten(1)

    return frechet(image_features(pooled, real), image_features(pooled, generated))


@contextlib.contextmanager
def _hub_with(weights: Path) -> Iterator[None]:
    """Let torch's hub have the weights already, so that pytorch-fid downloads nothing."""
    before = torch.hub.get_dir()
    with tempfile.TemporaryDirectory() as directory:
        checkpoints = Path(directory) / "checkpoints"
        checkpoints.mkdir()
        (checkpoints / WEIGHTS).symlink_to(weights.resolve())
        torch.hub.set_dir(directory)
        try:
            yield
        finally:
            torch.hub.set_dir(before)


def check_weights(weights: Path) -> None:
    """Refuse a file that is not the one that pytorch-fid downloads."""
    if not weights.is_file():
        raise InputError(
            f"Expected the weights of pytorch-fid at {weights} (--weights), got no file; fetch "
            f"{WEIGHTS} from the releases of mseitzer/pytorch-fid."
        )
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    if not digest.startswith(DIGEST):
        raise InputError(
            f"Expected {WEIGHTS} (SHA-256 {DIGEST}...) at {weights}, got another file; "
            "fetch it again."
        )
