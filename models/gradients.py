"""Gradients of private records by Opacus, and their clipped, noisy sum.

A module that trains on released gradients computes the gradient of its loss for each record, on a
copy of its networks. Opacus's hooks stay off the networks themselves, so that no parameter keeps
the gradient of a record. Batches are fresh uniform subsets of fixed size B: under replace-one the
clipped sum moves by at most 2 C.
"""

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.mechanism import GaussianMechanism
from dpswd.release import RecordSum, make_release

# Part by which gradients are clipped below C, since norms and sums are rounded to float32.
_MARGIN = 1e-4


class ClippedGradients(RecordSum):
    """Sum of gradients of records (n, P), each clipped to a norm.

    Args:
        n_parameters: Number P of entries of a gradient.
        clip: Largest norm C of a gradient.
        batch_size: Number B of records in a release.
    """

    def __init__(self, n_parameters: int, clip: float, batch_size: int) -> None:
        mechanism = GaussianMechanism(
            sensitivity=2 * clip, name="target gradients", batch_size=batch_size
        )
        super().__init__(mechanism)
        self.clip = clip
        self.shape = (n_parameters,)

    def contribution(self, rows: Tensor, groups: Tensor, n_records: int) -> Tensor:
        """Return the sum of clipped gradients. PRIVATE."""
        norms = torch.linalg.vector_norm(rows, dim=1)
        factors = (self.clip * (1 - _MARGIN) / norms).clamp(max=1.0)
        return (factors @ rows).double()

    def release(self, gradients: Tensor) -> Tensor:
        """Release the noisy sum (P,) of gradients (B, P)."""
        return make_release(self, gradients)["values"]


class GradientsOfRecords:
    """Computes the gradients of a loss for each record, on a copy of a network.

    Args:
        network: A network of layers that Opacus knows, without batch normalisation.
    """

    def __init__(self, network: nn.Module) -> None:
        # Opacus is an extra of the developers, and slow to import.
        from opacus import GradSampleModule

        self.parameters: Sequence[nn.Parameter] = list(network.parameters())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._copy: Any = GradSampleModule(copy.deepcopy(network), loss_reduction="mean")

    def __call__(self, records: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the gradients (n, P) of a loss, one for each record. PRIVATE.

        The loss is the mean over the outputs of records (n, ...).

        The copy gets the present weights of the network first.
        """
        copies = list(self._copy.parameters())
        with torch.no_grad():
            for parameter, present in zip(copies, self.parameters, strict=True):
                parameter.copy_(present)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch: records need no gradient
            loss(self._copy(records)).backward()
        rows = torch.cat([part.grad_sample.flatten(1) for part in copies], dim=1)
        self._copy.zero_grad(set_to_none=True)
        return rows


def add_to_gradients(parameters: Sequence[nn.Parameter], gradient: Tensor) -> None:
    """Add a released gradient (P,) to those of the parameters, in their order."""
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, gradient.split(sizes), strict=True):
        released = part.to(parameter).view_as(parameter)
        if parameter.grad is None:
            parameter.grad = released
        else:
            parameter.grad += released
