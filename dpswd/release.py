"""What a release leaves behind: public values and directions, and the mechanism that made them."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpswd.errors import InputError
from dpswd.mechanism import ProjectionMechanism, mechanism_from_dict

__all__ = ["Release"]


@dataclass(frozen=True)
class Release:
    """All that left the private side in one release. Everything computed from it is post-processing.

    Attributes:
        values: Noisy values (m, k), or (C, m, k) where records carry a class; ascending per column for rows.
        projections: The directions (d, k), which are published too.
        mechanism: What made it.
    """

    values: Tensor
    projections: Tensor
    mechanism: ProjectionMechanism

    def state_dict(self) -> dict[str, Any]:
        """Tensors and plain values, to be kept in a checkpoint: they are public."""
        return {"values": self.values, "projections": self.projections, "mechanism": self.mechanism.to_dict()}

    @classmethod
    def from_state_dict(cls, state: dict[str, Any]) -> "Release":
        """Makes the release again from what :meth:`state_dict` gave."""
        mechanism = mechanism_from_dict(state["mechanism"])
        if not isinstance(mechanism, ProjectionMechanism):
            raise InputError(f"Expected a release of projections, got {state['mechanism'].get('mechanism')!r}.")
        return cls(state["values"], state["projections"], mechanism)

    def to(self, device: torch.device | str) -> "Release":
        """Moves the tensors."""
        return Release(self.values.to(device), self.projections.to(device), self.mechanism)
