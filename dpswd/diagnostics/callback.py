"""Lightning callback that runs the Wasserstein accountant (Yang2024) beside the real one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
from numpy.typing import ArrayLike

from dpswd._validate import positive, probability
from dpswd.diagnostics.appendix import write_diagnostics
from dpswd.diagnostics.wasserstein import WassersteinAccountant

__all__ = ["WassersteinDiagnostic"]


class WassersteinDiagnostic(L.Callback):
    """Adds every training step to a :class:`WassersteinAccountant`. It spends no budget and stops nothing.

    By default a step counts with the largest distance that clipping allows, a public number, and ``wdp_diagnostic``
    is logged. Distances between gradients of neighbours, as in the paper, are private: with ``distances`` nothing is
    logged, and ``diagnostics.json`` marks the number.

    Args:
        sigma: Standard deviation of the step's noise, in gradient units.
        sampling_rate: The rate q in [0, 1].
        max_distance: Largest distance of neighbouring gradients, in gradient units (twice the clipping norm).
        order: The order mu >= 1.
        beta: The free constant of Theorem 1, above 0.
        delta: The probability of Corollary 1.
        distances: Function of the module that returns the distances (n,) of the step, or ``None``.
        run_dir: Directory that receives ``diagnostics.json`` when training ends, or ``None``.

    Raises:
        InputError: If a value is out of range.
    """

    def __init__(
        self,
        *,
        sigma: float,
        sampling_rate: float,
        max_distance: float,
        order: float = 16,
        beta: float = 32.0,
        delta: float = 1e-5,
        distances: Callable[[L.LightningModule], ArrayLike] | None = None,
        run_dir: str | None = None,
    ) -> None:
        positive(max_distance=max_distance)
        probability(delta=delta)
        self.accountant = WassersteinAccountant(order=order, beta=beta, sigma=sigma, sampling_rate=sampling_rate)
        self.max_distance, self.delta, self.distances, self.run_dir = max_distance, delta, distances, run_dir

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the step."""
        if self.distances is None:
            self.accountant.step([self.max_distance])
            pl_module.log("wdp_diagnostic", self.accountant.get_wdp(self.delta))
        else:
            self.accountant.step(self.distances(pl_module))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write ``diagnostics.json`` if ``run_dir`` was given."""
        if self.run_dir is not None and trainer.is_global_zero:
            entry = self.accountant.to_dict(self.delta) | {"reads_private_gradients": self.distances is not None}
            write_diagnostics(Path(self.run_dir), "wdp", entry)

    def state_dict(self) -> dict[str, Any]:
        """Return the accountant's state for the checkpoint."""
        return self.accountant.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the accountant's state."""
        self.accountant.load_state_dict(state_dict)
