"""Lightning callback that runs the Wasserstein accountant (Yang2024) beside the real one."""

from pathlib import Path
from typing import Any

import lightning as L

from dpswd._validate import positive, probability
from dpswd.diagnostics.appendix import write_diagnostics
from dpswd.diagnostics.wasserstein import WassersteinAccountant

__all__ = ["WassersteinDiagnostic"]


class WassersteinDiagnostic(L.Callback):
    """Adds every training step to a :class:`WassersteinAccountant`. It spends no budget and stops nothing.

    A step counts with the largest distance that clipping allows, a public number, and ``wdp_diagnostic`` is logged.
    (The distances between gradients that the paper takes are private.)

    Args:
        sigma: Standard deviation of the step's noise, in gradient units.
        sampling_rate: The rate q in [0, 1].
        max_distance: Largest distance of neighbouring gradients, in gradient units (twice the clipping norm).
        order: The order mu >= 1.
        beta: The free constant of Theorem 1, above 0.
        delta: The probability of Corollary 1.
        run_dir: Directory that receives ``diagnostics.json`` when training ends, or ``None``.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> callback = WassersteinDiagnostic(sigma=1.0, sampling_rate=0.01, max_distance=2.0)
        >>> callback.accountant.n_steps  # L.Trainer(callbacks=[callback], ...) adds every step
        0
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
        run_dir: str | None = None,
    ) -> None:
        positive(max_distance=max_distance)
        probability(delta=delta)
        self.accountant = WassersteinAccountant(order=order, beta=beta, sigma=sigma, sampling_rate=sampling_rate)
        self.max_distance, self.delta, self.run_dir = max_distance, delta, run_dir

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Add the step."""
        self.accountant.step([self.max_distance])
        pl_module.log("wdp_diagnostic", self.accountant.get_wdp(self.delta))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Write ``diagnostics.json`` if ``run_dir`` was given."""
        if self.run_dir is not None and trainer.is_global_zero:
            write_diagnostics(Path(self.run_dir), "wdp", self.accountant.to_dict(self.delta))

    def state_dict(self) -> dict[str, Any]:
        """Return the accountant's state for the checkpoint."""
        return self.accountant.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the accountant's state."""
        self.accountant.load_state_dict(state_dict)
