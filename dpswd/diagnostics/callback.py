"""Lightning callback that runs the Wasserstein accountant beside the real one. It spends and stops nothing.

Only this module imports Lightning; the core does not import it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning as L
from numpy.typing import ArrayLike

from dpswd._validate import positive, probability
from dpswd.diagnostics.accountant import WassersteinAccountant
from dpswd.diagnostics.appendix import write_diagnostics
from dpswd.errors import InputError

__all__ = ["WassersteinDiagnostic"]


class WassersteinDiagnostic(L.Callback):
    """Charges every training step to a :class:`WassersteinAccountant` and logs ``wdp_diagnostic``.

    By default every step is charged the largest distance that clipping allows, a public number. A function of
    the module may supply distances between the gradients of neighbours instead, as the paper does. They are
    PRIVATE statistics, and so is the number made from them: it is then kept out of the logs, and marked.

    Args:
        sigma: Standard deviation of the step's noise, absolute, in gradient units.
        sampling_rate: The rate q in [0, 1].
        max_distance: Largest distance of neighbouring gradients, in gradient units: twice the clipping norm
            under replace-one, or a mechanism's sensitivity.
        order: The order mu >= 1.
        beta: The free constant of Theorem 1, above 0.
        delta: The probability at which the diagnostic is stated.
        distances: Function of the module that returns this step's distances (n,), or ``None``.
        run_dir: Where ``diagnostics.json`` goes at the end, for the report's appendix; nowhere by default.

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
        if distances is not None and not callable(distances):
            raise InputError(f"Expected distances to be a function of the module, got {distances!r}.")
        self.accountant = WassersteinAccountant(order=order, beta=beta, sigma=sigma, sampling_rate=sampling_rate)
        self.max_distance, self.delta, self.distances, self.run_dir = max_distance, delta, distances, run_dir

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Charges the step."""
        if self.distances is None:
            self.accountant.step([self.max_distance])
            pl_module.log("wdp_diagnostic", self.accountant.get_epsilon(self.delta))
        else:
            self.accountant.step(self.distances(pl_module))

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Writes ``diagnostics.json`` where a directory was given."""
        if self.run_dir is not None and trainer.is_global_zero:
            entry = self.accountant.to_dict(self.delta) | {"reads_private_gradients": self.distances is not None}
            write_diagnostics(Path(self.run_dir), "wdp", entry)

    def state_dict(self) -> dict[str, Any]:
        """The accountant's state, for the checkpoint."""
        return self.accountant.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues the accountant's sums."""
        self.accountant.load_state_dict(state_dict)
