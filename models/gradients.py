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
# Numbers of the gradients that are in memory at a time: 16 MB, which a processor has in its cache.
_MAX_NUMBERS = 2**22


class GradientsOfRecords:
    """Computes the gradients of a loss for each record, on a copy of a network.

    Args:
        network: A network of layers that Opacus knows, without batch normalisation.
        loss: Maps the outputs of the network to the mean of the losses of the records.
    """

    def __init__(self, network: nn.Module, loss: Callable[[Tensor], Tensor]) -> None:
        # Opacus is an extra of the developers, and slow to import.
        from opacus import GradSampleModule

        self._loss = loss
        self._parameters: Sequence[nn.Parameter] = list(network.parameters())
        own = copy.deepcopy(network)
        for layer in own.modules():
            if list(layer.parameters(recurse=False)):
                layer.register_forward_pre_hook(_in_usual_layout)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._copy: Any = GradSampleModule(own, loss_reduction="mean")

    def copy_weights(self) -> None:
        """Give the copy the present weights of the network."""
        with torch.no_grad():
            for parameter, present in zip(self._copy.parameters(), self._parameters, strict=True):
                parameter.copy_(present)

    def __call__(self, records: Tensor) -> list[Tensor]:
        """Return the gradients of the losses of records (n, ...). PRIVATE.

        A part (n, p) is that of one parameter with p entries.
        """
        records = records.to(self._parameters[0].device)
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")  # of torch: records need no gradient
            self._loss(self._copy(records)).backward()
        parts = [parameter.grad_sample.flatten(1) for parameter in self._copy.parameters()]
        self._copy.zero_grad(set_to_none=True)
        return parts


def _in_usual_layout(layer: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the inputs of a layer with the strides that their shapes have by default.

    Opacus 1.6 reads the memory of the input of a convolution as if it had these strides; with those
    of ``torch.channels_last`` its gradients are wrong.
    """
    # flatten() and view() instead of contiguous(), which leaves strides of one channel as they are
    return tuple(
        part.flatten().view(part.shape) if isinstance(part, Tensor) else part for part in inputs
    )


class ClippedGradients(RecordSum):
    """Sum of the gradients of records, each clipped to a norm.

    Args:
        n_parameters: Number P of entries of a gradient.
        clip: Largest norm C of a gradient.
        batch_size: Number B of records in a release.

    Attributes:
        gradients_of: Computes the gradients. A module sets it at the start of a training and
            deletes it at the end.
    """

    gradients_of: GradientsOfRecords | None = None

    def __init__(self, n_parameters: int, clip: float, batch_size: int) -> None:
        mechanism = GaussianMechanism(
            sensitivity=2 * clip, name="target gradients", batch_size=batch_size
        )
        super().__init__(mechanism)
        self.clip = clip
        self.shape = (n_parameters,)

    def contribution(self, rows: Tensor, groups: Tensor, n_records: int) -> Tensor:
        """Return the sum of the clipped gradients of records (n, ...). PRIVATE."""
        assert self.gradients_of is not None
        self.gradients_of.copy_weights()
        chunk_size = max(1, _MAX_NUMBERS // self.shape[0])
        total = torch.zeros(self.shape, dtype=torch.float64)
        for records in rows.split(chunk_size):
            total += self._clipped_sum(self.gradients_of(records)).cpu()
        return total

    def _clipped_sum(self, gradients: list[Tensor]) -> Tensor:
        """Return the sum (P,) of gradients, each clipped to the norm.

        A gradient without a finite norm counts as zero: the sum would tell of its record.

        Args:
            gradients: Their parts (n, p), one for each parameter; they are changed in place.
        """
        norms_of_parts = [torch.linalg.vector_norm(part, dim=1) for part in gradients]
        norms = torch.linalg.vector_norm(torch.stack(norms_of_parts), dim=0)
        factors = (self.clip * (1 - _MARGIN) / norms).clamp(max=1.0)
        is_infinite = ~norms.isfinite()
        factors[is_infinite] = 0.0
        for part in gradients:
            part[is_infinite] = 0.0
        return torch.cat([factors @ part for part in gradients])

    def release(self, records: Tensor) -> Tensor:
        """Release the noisy sum (P,) of the clipped gradients of records (B, ...)."""
        return make_release(self, records)["values"]


def add_to_gradients(parameters: Sequence[nn.Parameter], gradient: Tensor) -> None:
    """Add a released gradient (P,) to those of the parameters, in their order."""
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, part in zip(parameters, gradient.split(sizes), strict=True):
        released = part.to(parameter).view_as(parameter)
        if parameter.grad is None:
            parameter.grad = released
        else:
            parameter.grad += released
