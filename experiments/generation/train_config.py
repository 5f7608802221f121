"""Training of a shipped config as in ``dpswd fit``, without its evaluations and, if wanted, without noise."""

import dataclasses
import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
import yaml

from dpswd.data import PrivateData
from dpswd.generation.evaluation import DownstreamEvaluation
from dpswd.generation.export import SampleGrid
from dpswd.loss import DPSlicedWassersteinLoss, Recorder
from dpswd.mechanism import Mechanism
from dpswd.queries import GaussianQuery
from dpswd.training.callback import PrivacyBudget

__all__ = ["CONFIGS", "ConfigRun", "configs_digest", "train_config"]

CONFIGS = Path(__file__).parents[2] / "configs"


@dataclass(frozen=True)
class ConfigRun:
    """A trained module, its data, the facts sound, mu, delta and statistic of privacy.json, and the training time."""

    module: Any
    data: PrivateData
    facts: dict[str, Any]
    seconds: float


class _Unprotected(Recorder, L.Callback):
    """Replace the budget of a run without noise: sigma 1e-12 and a fixed seed, hence NOT PRIVATE."""

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Turn off the noise."""
        for part in pl_module.modules():
            if isinstance(part, DPSlicedWassersteinLoss | GaussianQuery):
                part.mechanism = dataclasses.replace(part.mechanism, sigma=1e-12, noise_seed=0)
                part.recorder = self

    def record(self, mechanism: Mechanism) -> None:
        """Keep no ledger."""


def configs_digest(configs: Sequence[str]) -> str:
    """Digest of the values in files below ``configs/``: a cell is run again when they change."""
    values = [yaml.safe_load((CONFIGS / name).read_text()) for name in configs]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]


def train_config(
    configs: Sequence[str],
    directory: Path,
    *,
    epsilon: float | None,
    delta: float,
    seed: int,
    data: Path | None = None,
    more: Sequence[str] = (),
) -> ConfigRun:
    """Train a file below ``configs/`` through the class behind the command line.

    Args:
        configs: Names of files; a later one overrides an earlier one.
        directory: The run directory; new.
        epsilon: Budget, together with ``delta``; ``None`` for a run without noise, which keeps no ledger.
        delta: See ``epsilon``.
        seed: Of weights and latent codes; noise and directions are fresh in any case.
        data: Root of the data sets.
        more: Further options of ``dpswd fit``.
    """
    from dpswd.commands.main import _quiet
    from dpswd.training.cli import PrivateCLI

    _quiet()
    arguments = [part for config in configs for part in ("--config", str(CONFIGS / config))]
    arguments += ["--trainer.default_root_dir", str(directory)]
    arguments += ["--seed_everything", str(seed), "--privacy.target_delta", str(delta)]
    arguments += ["--privacy.target_epsilon", str(epsilon or 1.0)]
    for quiet in ("enable_progress_bar", "logger", "enable_checkpointing"):
        arguments += [f"--trainer.{quiet}", "false"]
    if data is not None:
        arguments += ["--data.root", str(data)]
    cli = PrivateCLI([*arguments, *more], run=False)
    skipped: tuple[type, ...] = (DownstreamEvaluation, SampleGrid)  # the caller evaluates
    if epsilon is None:
        skipped = (*skipped, PrivacyBudget)
    cli.trainer.callbacks = [each for each in cli.trainer.callbacks if not isinstance(each, skipped)]
    if epsilon is None:
        cli.trainer.callbacks.append(_Unprotected())
    started = time.monotonic()
    cli.trainer.fit(cli.model, cli.datamodule)
    seconds = time.monotonic() - started
    facts: dict[str, Any] = dict.fromkeys(("sound", "mu", "delta", "statistic"))
    if epsilon is not None:
        privacy = json.loads((directory / "privacy.json").read_text())
        facts = {name: privacy[name] for name in ("sound", "mu", "delta")}
        facts["statistic"] = privacy["mechanism"].get("statistic", "moments")
    return ConfigRun(cli.model, cli.datamodule, facts, seconds)
