r"""Moments of a mixture before jitter, for the released ones after it.

Jitter moves, rotates and bends images at random, and resamples them. Afterwards the images of a
cell differ more in the directions of these moves, and they are smoother. Let m and S be the
released mean and covariance of a cell in its leading directions, and :math:`m_J` and :math:`S_J`
those of jittered images of :math:`N(m, S)`. The cell gets

.. math:: m' = m - (m_J - m), \qquad S' = (S - (S_J - S))_+,

where :math:`(\cdot)_+` sets negative eigenvalues to zero. To first order, jittered images of
:math:`N(m', S')` have the released moments. For example, if a class varies by a pixel to the right
and left, and jitter moves by a pixel, then the drawn images hardly vary in this direction, and the
jittered ones vary as the records do.

Smoothing takes a part of S and of the details of m, and this gives it back, with the noise in it.
Where the noise is large (``sharpens=False``), only the variance that jitter adds is subtracted: m
stays, and only the positive part of :math:`S_J - S` counts. Directions beyond the leading ones are
left as they are.

Both moments are estimated from draws. They depend on released values and public constants only, so
that this is post-processing.
"""

import torch
from torch import Tensor

from dpswd.mixture.generator import MixtureGenerator

__all__ = ["compensate_jitter"]

# Codes of rows, and of jitter, for each cell. Each code of rows and its negative meet each code of
# jitter and its negative, so that all have the mean zero. The same draws before and after jitter
# give a difference of little variance.
_N_CODES = 250
_SEED = 0  # of the draws, which are public


@torch.no_grad()
def compensate_jitter(generator: MixtureGenerator, *, sharpens: bool) -> None:
    """Change the cells such that jittered images have the moments of before.

    The random state of torch is as before at the end.

    Args:
        generator: The generator, whose jitter is set.
        sharpens: Whether the cells are given back what smoothing takes from them.
    """
    to_rows = torch.linalg.pinv(generator.synthesis.double()).to(generator.synthesis)
    means = []
    roots = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        for cell in range(len(generator.means)):
            mean, root = _compensated(generator, cell, to_rows, sharpens)
            means.append(mean)
            roots.append(root)
    generator.means.copy_(torch.stack(means))
    generator.roots.copy_(torch.stack(roots))


def _compensated(
    generator: MixtureGenerator, cell: int, to_rows: Tensor, sharpens: bool
) -> tuple[Tensor, Tensor]:
    """Return the mean (D,) of a cell, and the root (p, p) of its covariance.

    Args:
        generator: The generator.
        cell: Number of the cell.
        to_rows: Matrix (entries, D) from records to rows.
        sharpens: As for :func:`compensate_jitter`.
    """
    p = generator.n_components
    of_rows = generator.latent(_N_CODES)
    of_jitter = generator.latent(_N_CODES)
    codes = torch.cat([of_rows, -of_rows, of_rows, -of_rows])
    rows = generator.mixture_rows(codes, torch.full((len(codes),), cell))
    moves = torch.cat([of_jitter, of_jitter, -of_jitter, -of_jitter])
    images = generator.jittered(generator.linear(rows), moves)
    rows_after = (images.flatten(1) - generator.offset) @ to_rows
    mean = generator.means[cell]
    added = _covariance(rows_after[:, :p]) - _covariance(rows[:, :p])
    if sharpens:
        mean = mean - (rows_after.mean(0) - rows.mean(0))
    else:
        values, vectors = torch.linalg.eigh(added)
        added = (vectors * values.clamp(min=0)) @ vectors.T
    root = generator.roots[cell].double()
    variances, axes = torch.linalg.eigh(root @ root.T - added)
    return mean, (axes * variances.clamp(min=0).sqrt()).to(generator.roots)


def _covariance(rows: Tensor) -> Tensor:
    """Return the covariance (p, p) of rows (n, p)."""
    return torch.cov(rows.double().T)
