"""Distances between real and generated images.

They are evaluation on real records and not part of a release. Distance, precision and recall are
those of :mod:`dpswd.evaluation.fidelity`, of features of the images. With the Inception weights of
pytorch-fid the distance is the FID. They are a download of 91 MB (``WEIGHTS``, from releases of the
repository mseitzer/pytorch-fid) for ``--weights PATH``.

Without them the features are those of :func:`dpswd.evaluation.images.random_convolutions`, a public
map that no record has trained. That distance is not the FID, and is comparable for one data set
only.
"""

from pathlib import Path

from torch import Tensor

from dpswd.evaluation.fidelity import covered, frechet
from dpswd.evaluation.images import fid, image_features, random_convolutions

_N_NEIGHBOURS_OF = 5000  # images for precision and recall, whose cost grows with the square


def fidelity(real: Tensor, generated: Tensor, weights: Path | None = None) -> dict[str, float]:
    """Return Frechet distance, precision and recall of generated images.

    Args:
        real: Images (n, channels, h, w) in [0, 1].
        generated: Images (m, channels, h, w) in [0, 1].
        weights: Weights of pytorch-fid; with them the result also has the ``fid``.

    Returns:
        Numbers in the space of random convolutions. Precision and recall use the first
        5,000 images of both.
    """
    generated_rows = image_features(random_convolutions, generated)
    real_rows = image_features(random_convolutions, real)
    few_generated = generated_rows[:_N_NEIGHBOURS_OF]
    few_real = real_rows[:_N_NEIGHBOURS_OF]
    numbers = {
        "frechet": frechet(real_rows, generated_rows),
        "precision": covered(few_generated, few_real),
        "recall": covered(few_real, few_generated),
    }
    if weights is not None:
        numbers["fid"] = fid(weights, real, generated)
    return numbers
