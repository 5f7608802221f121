r"""Sliced Wasserstein distances: pure functions of public values.

axes: n, m sample sizes, d dimension, k directions, b blocks.

.. math:: W_p^p(x, y) = \int_0^1 |Q_x(t) - Q_y(t)|^p dt, \qquad
          SW_p^p(x, y) = \frac1k \sum_{j=1}^k W_p^p(x u_j, y u_j)

with Q the quantile function. For samples of equal size, :math:`W_p^p` is the mean of the p-th
powers of the differences of the sorted values.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dpswd._kernels import Projections, power_cost, project, sum_over_projections
from dpswd._validate import floating, nonnegative, real
from dpswd.errors import InputError
from dpswd.structured import StructuredProjections

__all__ = ["sliced_wasserstein", "smoothed_sliced_wasserstein"]


def sliced_wasserstein(x: Tensor, y: Tensor, projections: Projections, p: float = 2) -> Tensor:
    """Compute the p-th power of the sliced p-Wasserstein distance of two samples.

    Args:
        x: Sample (n, d).
        y: Sample (m, d); m may differ from n.
        projections: Unit directions (d, k), shared by both; or :class:`StructuredProjections`,
            which take less time and memory, and vary less. Their mean squared norm is one, which
            fits order 2.
        p: Order, at least 1.

    Returns:
        Scalar tensor, differentiable once in ``x`` and ``y``. Equals POT's
        ``sliced_wasserstein_distance(...) ** p``.

    Raises:
        InputError: If shapes do not fit or p < 1.

    References:
        | Rakotomamonjy2021, Equation (4).

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
        >>> round(float(sliced_wasserstein(x, x + torch.tensor([3.0, 0.0]), torch.eye(2))), 4)
        4.5
    """
    _check_samples(x, y, projections)
    check_order(p)
    x, y, directions = _converted(x, y, projections)
    needs_gradient = isinstance(directions, Tensor) and directions.requires_grad
    if needs_gradient or len(x) != len(y):  # which the kernels do not compute
        with torch.autocast(x.device.type, enabled=False):
            return wasserstein_1d(project(x, directions), project(y, directions), p).mean()
    mean_cost = _MeanCost(p, directions.shape[1])
    return sum_over_projections(mean_cost, directions, x, y)


def smoothed_sliced_wasserstein(
    x: Tensor, y: Tensor, projections: Projections, sigma: float, p: float = 2
) -> Tensor:
    r"""Compute the p-th power of the smoothed sliced p-Wasserstein distance.

    The distance is that of two samples.

    Independent :math:`N(0, \sigma^2)` noise is added to every projection of both samples: the
    distance is that of the two laws of projections after a convolution with a normal law. It is
    what :class:`dpswd.DPSlicedWassersteinLoss` with ``statistic="rows"`` estimates. The noise here
    is that of torch's global generator: it gives no privacy.

    Args:
        x: Sample (n, d).
        y: Sample (m, d); m may differ from n.
        projections: Unit directions (d, k), shared by both; or :class:`StructuredProjections`.
        sigma: Standard deviation of the noise of a projection, at least 0.
        p: Order, at least 1.

    Returns:
        Scalar tensor, differentiable once in ``x`` and ``y``.

    Raises:
        InputError: If shapes do not fit, p < 1 or sigma is negative.

    References:
        | Rakotomamonjy2021, the smoothed distance.

    Example:
        >>> x = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
        >>> y = x + torch.tensor([3.0, 0.0])
        >>> round(float(smoothed_sliced_wasserstein(x, y, torch.eye(2), sigma=0.0)), 4)
        4.5
    """
    nonnegative(sigma=sigma)
    _check_samples(x, y, projections)
    check_order(p)
    if sigma == 0:
        return sliced_wasserstein(x, y, projections, p)
    x, y, directions = _converted(x, y, projections)
    with torch.autocast(x.device.type, enabled=False):
        ours = project(x, directions)
        theirs = project(y, directions)
        noisy_ours = ours + sigma * torch.randn_like(ours)
        noisy_theirs = theirs + sigma * torch.randn_like(theirs)
        return wasserstein_1d(noisy_ours, noisy_theirs, p).mean()


def check_order(p: float) -> None:
    """Raise an InputError unless p is a finite order of at least 1."""
    if not 1 <= real("p", p) < math.inf:
        raise InputError(f"Expected order p >= 1, got p={p!r}; use a finite order.")


def _check_samples(x: Tensor, y: Tensor, projections: Projections) -> None:
    """Raise an InputError if the samples or the projections do not fit.

    The shapes must be (n, d), (m, d) and (d, k), and the numbers floating.
    """
    floating(x=x, y=y)
    if not isinstance(projections, StructuredProjections):
        floating(projections=projections)
    shapes = [tuple(values.shape) for values in (x, y, projections)]
    are_matrices = all(len(shape) == 2 and 0 not in shape for shape in shapes)
    if not are_matrices or not x.shape[1] == y.shape[1] == projections.shape[0]:
        raise InputError(
            f"Expected non-empty x (n, d), y (m, d) and projections (d, k), got shapes {shapes}; "
            "make d equal."
        )


def _converted(
    x: Tensor, y: Tensor, projections: Projections
) -> tuple[Tensor, Tensor, Projections]:
    """Return samples and directions of one type, which both samples fit in.

    Directions are moved to the device of ``x``. Structured slices need at least float32.
    """
    dtype = torch.promote_types(x.dtype, y.dtype)
    if isinstance(projections, StructuredProjections):
        dtype = torch.promote_types(dtype, torch.float32)
        return x.to(dtype), y.to(dtype), projections.to(x.device)
    return x.to(dtype), y.to(dtype), projections.to(device=x.device, dtype=dtype)


@dataclass(frozen=True)
class _MeanCost:
    """The part of some columns in the mean of W_p^p over all directions."""

    p: float
    n_projections: int

    def __call__(self, columns: slice, x: Tensor, y: Tensor) -> Tensor:
        """Return the part of sorted projections (n, columns); ``x`` may be overwritten."""
        return power_cost(x, y, self.p, x.shape[1] / self.n_projections)


def wasserstein_1d(x: Tensor, y: Tensor, p: float = 2) -> Tensor:
    """Compute ``W_p^p`` (k,) between the columns of samples (n, k) and (m, k) by POT."""
    from ot.lp import wasserstein_1d as transport  # slow to import, and seldom needed

    return torch.as_tensor(transport(x, y, p=p))
