"""Synthetic tables by MST and AIM of ``dpmm``, in an environment of its own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpswd.errors import InputError

Array = NDArray[Any]

MODEL_SIZE = 80.0  # the default of the authors of AIM


def run_dpmm(
    method: str,
    rows: Array,
    labels: Array,
    *,
    bounds: Sequence[tuple[float, float]],
    bins: Sequence[int],
    epsilon: float,
    delta: float,
    seed: int,
    time_limit: float | None = None,
    model_size: float = MODEL_SIZE,
) -> tuple[Array, Array]:
    """Return synthetic rows (n, d) and labels (n,).

    Args:
        method: ``"mst"`` or ``"aim"``.
        rows: Whole numbers (n, d).
        labels: Labels (n,), 0 or 1.
        bounds: Bounds of the d columns.
        bins: Largest number of bins of each column.
        epsilon: Under replace-one, as dpswd states it.
        delta: Of the budget.
        seed: Of the method.
        time_limit: Seconds after which the fit is stopped.
        model_size: Largest size of the model in MB.

    Raises:
        InputError: If ``DPMM_PYTHON`` is no interpreter with ``dpmm``.
        TimeoutError: If the fit takes longer than the limit.
    """
    with tempfile.TemporaryDirectory() as directory:
        source = Path(directory) / "in.npz"
        target = Path(directory) / "out.npz"
        np.savez(
            source,
            method=method,
            rows=rows,
            labels=labels,
            bounds=np.array(bounds),
            bins=np.array(bins),
            epsilon=epsilon,
            delta=delta,
            seed=seed,
            model_size=model_size,
        )
        python = os.environ.get("DPMM_PYTHON", sys.executable)
        program = Path(__file__).with_name("dpmm_program.py")
        environment = {name: os.environ[name] for name in os.environ if name != "PYTHONPATH"}
        try:
            finished = subprocess.run(
                [python, program, source, target],
                check=False,
                stdout=subprocess.DEVNULL,
                env=environment,
                timeout=time_limit,
            )
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        if finished.returncode:
            raise InputError(
                f"Expected DPMM_PYTHON as an interpreter with dpmm, got none that runs {method}."
            )
        output = np.load(target)
        return output["rows"], output["labels"]
