"""Gradients of private records by Opacus, and their clipped, noisy sum.

A module that trains on released gradients computes the gradient of its loss for each record, on a
copy of its networks. Opacus's hooks stay off the networks themselves, so that no parameter keeps
the gradient of a record. Batches are fresh uniform subsets of fixed size B: under replace-one the
clipped sum moves by at most 2 C.

Whatever Opacus computes for a record is clipped, so that a wrong gradient costs accuracy and no
privacy. It must depend on this record alone, which is checked on public random records. Norms and
sums are in float64, also under autocast. The margin of the clip covers the rounding of a product.
"""

import copy
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpswd._distributed import Processes
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism
from dpswd.release import RecordSum, make_release

# Part by which gradients are clipped below C, since their products are rounded to float32.
_MARGIN = 1e-5
# Norms above count as infinite: their factors would be float32 numbers of few digits.
_LARGEST_NORM = 1e30
# Number of public random records on which gradients are checked.
_N_CHECKED = 4
# Relative change of a gradient that may come from rounding.
_ROUNDING = 1e-3
# Numbers of the gradients that are in memory at a time: 8 MB, which a processor has in its cache.
_MAX_NUMBERS = 2**21


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
            try:
                self._loss(self._copy(records)).backward()
            except BaseException:
                del self._copy  # Opacus keeps the inputs of its layers
                raise
        parts = [parameter.grad_sample.flatten(1) for parameter in self._copy.parameters()]
        self._copy.zero_grad(set_to_none=True)
        return parts

    def check(self, shape: torch.Size) -> None:
        """Check on public random records that a gradient depends on its record alone.

        Args:
            shape: Shape of a record.

        Raises:
            InputError: If the gradients of other records change with one record.
        """
        records = torch.rand(_N_CHECKED, *shape)
        changed = records.clone()
        changed[0] = 10 * torch.rand(shape)
        gradients = []
        for batch in (records, changed):
            with torch.random.fork_rng():  # the same dropout both times
                torch.manual_seed(0)
                gradients.append(torch.cat(self(batch), dim=1)[1:])
        change = torch.linalg.vector_norm(gradients[1] - gradients[0])
        if change > _ROUNDING * torch.linalg.vector_norm(gradients[0]):
            raise InputError(
                "Expected layers that treat each record by itself, got gradients that change with "
                "another record of the batch; replace batch normalisation by GroupNorm."
            )


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

    A module calls :meth:`start` before a training and :meth:`stop` after it.
    """

    def __init__(self, n_parameters: int, clip: float, batch_size: int) -> None:
        mechanism = GaussianMechanism(
            sensitivity=2 * clip, name="target gradients", batch_size=batch_size
        )
        super().__init__(mechanism)
        self.clip = clip
        self.shape = (n_parameters,)
        self.gradients_of: GradientsOfRecords | None = None
        self._is_checked = False

    def start(self, network: nn.Module, loss: Callable[[Tensor], Tensor]) -> None:
        """Copy a network, at whose weights :class:`GradientsOfRecords` computes gradients.

        Raises:
            InputError: If there are several processes: each would draw a batch of its own, in which
                a record of another one can be.
        """
        n_processes = Processes().world_size
        if n_processes > 1:
            raise InputError(
                f"Expected one process, got {n_processes}, each of which would draw a batch of its "
                "own; set trainer.devices=1."
            )
        self.gradients_of = GradientsOfRecords(network, loss)
        self._is_checked = False

    def stop(self) -> None:
        """Delete the copy."""
        self.gradients_of = None

    def contribution(self, rows: Tensor, groups: Tensor, n_records: int) -> Tensor:
        """Return the sum of the clipped gradients of records (n, ...). PRIVATE."""
        assert self.gradients_of is not None
        self.gradients_of.copy_weights()
        if not self._is_checked:
            self.gradients_of.check(rows.shape[1:])
            self._is_checked = True
        chunk_size = max(1, _MAX_NUMBERS // self.shape[0])
        total = torch.zeros(self.shape, dtype=torch.float64)
        for records in rows.split(chunk_size):
            total += self._clipped_sum(self.gradients_of(records)).cpu()
        return total

    def _clipped_sum(self, gradients: list[Tensor]) -> Tensor:
        """Return the sum (P,) of gradients, each clipped to the norm.

        A gradient whose norm is nan, infinite or huge counts as zero: the sum would tell of its
        record.

        Args:
            gradients: Their parts (n, p), one for each parameter; they are changed in place.
        """
        double = torch.float64
        norms_of_parts = [torch.linalg.vector_norm(part, dim=1, dtype=double) for part in gradients]
        norms = torch.linalg.vector_norm(torch.stack(norms_of_parts), dim=0)
        factors = (self.clip * (1 - _MARGIN) / norms).clamp(max=1.0)
        is_refused = ~(norms <= _LARGEST_NORM)  # also nan
        factors[is_refused] = 0.0
        sums = []
        for part in gradients:
            part[is_refused] = 0.0
            part.mul_(factors.to(part)[:, None])
            sums.append(part.sum(0, dtype=double))
        return torch.cat(sums)

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
