import json
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpswd.commands.diagnostics import COMMANDS
from dpswd.diagnostics.accountant import WassersteinAccountant, step_loss
from dpswd.diagnostics.appendix import NOTE, diagnostics_appendix, read_diagnostics, write_diagnostics
from dpswd.diagnostics.tangent import tangent_norms
from dpswd.errors import InputError


def call(name: str, *argv: str) -> dict[str, Any]:
    parser = ArgumentParser()
    COMMANDS[name].add_arguments(parser)
    result = COMMANDS[name].run(parser.parse_args(argv))
    COMMANDS[name].show(result)
    return json.loads(json.dumps(result))


def keys(value: Any) -> list[str]:
    return [] if not isinstance(value, dict) else [*value, *(k for v in value.values() for k in keys(v))]


def test_wdp_of_a_training_run(capsys: pytest.CaptureFixture[str]) -> None:
    result = call(
        "wdp",
        "--sigma",
        "0.2",
        "--distance",
        "1",
        "2",
        "--sampling-rate",
        "0.01",
        "--num-steps",
        "10",
        "--beta",
        "4",
    )
    expected = 10 * step_loss(16, [1, 2], 0.2, 0.01) - np.log(1e-5) / 4
    assert result["wdp_diagnostic"] == pytest.approx(expected, rel=1e-12)
    assert result["is_guarantee"] is False
    assert result["note"] == NOTE
    assert "not a privacy guarantee" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mechanism", "expected"), [("gaussian", 0.25), ("laplace", 0.5 * np.sqrt(2 * np.exp(-0.5) - 1))]
)
def test_wdp_of_one_release(mechanism: str, expected: float, capsys: pytest.CaptureFixture[str]) -> None:
    result = call("wdp", "--mechanism", mechanism, "--order", "1", "--sigma", "2")
    assert result["wdp_diagnostic"] == pytest.approx(expected)
    assert result["true_distance"] == 1
    assert "whatever the noise" in capsys.readouterr().out


@pytest.mark.parametrize("suffix", ["npy", "csv"])
def test_tangent_of_a_risk_matrix(tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]) -> None:
    risk = np.random.default_rng(0).random((5, 7))
    path = tmp_path / f"risk.{suffix}"
    np.save(path, risk) if suffix == "npy" else np.savetxt(path, risk, delimiter=",", fmt="%.18g")
    result = call("tangent", "--risk", str(path), "--beta", "3")
    norms = tangent_norms(risk, 3.0)
    assert result["tangent_diagnostics"]["tv_to_tv"]["exact"] == pytest.approx(norms.exact[3])
    assert result["tangent_diagnostics"]["tv_to_log"]["bound"] == pytest.approx(norms.bounds[4][0])
    assert result["hypotheses"] == 5
    assert result["records"] == 7
    assert 1 < result["effective_hypotheses"] <= 5
    assert result["largest_change_on_removal"]["total_variation"] > 0
    assert "not a privacy guarantee" in capsys.readouterr().out


def test_no_key_is_called_epsilon(tmp_path: Path) -> None:
    np.save(tmp_path / "risk.npy", np.eye(3))
    results = [
        call("wdp", "--sigma", "1"),
        call("wdp", "--sigma", "1", "--mechanism", "laplace"),
        call("tangent", "--risk", str(tmp_path / "risk.npy"), "--beta", "1"),
    ]
    assert not [key for result in results for key in keys(result) if "epsilon" in key]


def test_both_reach_the_appendix(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(InputError, match="got none; write it by dpswd wdp"):
        read_diagnostics(run)
    np.save(tmp_path / "risk.npy", np.eye(3))
    call("wdp", "--sigma", "1", "--run-dir", str(run))
    call("tangent", "--risk", str(tmp_path / "risk.npy"), "--beta", "1", "--run-dir", str(run))
    stored = read_diagnostics(run)
    assert set(stored) == {"wdp", "tangent"}
    assert all(entry["is_guarantee"] is False and entry["note"] == NOTE for entry in stored.values())
    titles = dict(diagnostics_appendix(stored))
    assert set(titles) == {"Wasserstein DP (Yang2024)", "Tangent DP (Ying2024)"}
    rows = dict(titles["Tangent DP (Ying2024)"])
    assert rows["tangent diagnostics, tv to tv, exact"] == stored["tangent"]["tangent_diagnostics"]["tv_to_tv"]["exact"]
    assert dict(titles["Wasserstein DP (Yang2024)"])["wdp diagnostic"] == stored["wdp"]["wdp_diagnostic"]


@pytest.mark.parametrize(
    "content",
    [
        "[1]",
        "{",
        '{"wdp": 1}',
        '{"other": {"is_guarantee": false}}',
        '{"wdp": {"is_guarantee": true}}',
        '{"wdp": {"is_guarantee": false, "epsilon": 1.0}}',
        '{"wdp": {"is_guarantee": false, "more": [{"Epsilon": 1.0}]}}',
        '{"wdp": {"is_guarantee": false, "wdp_diagnostic": Infinity}}',
    ],
)
def test_a_file_that_is_not_ours_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "diagnostics.json").write_text(content)
    with pytest.raises(InputError, match="got something else; remove it"):
        read_diagnostics(tmp_path)


def test_a_diagnostic_is_never_written_as_epsilon(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="name of its own"):
        write_diagnostics(tmp_path, "wdp", {"epsilon": 0.1})
    with pytest.raises(InputError, match="wdp, tangent"):
        write_diagnostics(tmp_path, "guarantee", {"value": 0.1})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("argv", "match"),
    [
        (["wdp", "--sigma", "0"], "sigma"),
        (["wdp", "--sigma", "1", "--order", "0.5"], "order >= 1"),
        (["wdp", "--sigma", "1", "--beta", "0"], "beta"),
        (["wdp", "--sigma", "1", "--sampling-rate", "2"], "sampling_rate"),
        (["wdp", "--sigma", "1", "--mechanism", "gaussian", "--distance", "1", "2"], "one --distance"),
        (["wdp", "--sigma", "1", "--order", "1001"], "order <= 1000"),
        (["wdp", "--sigma", "1e308"], "overflow"),
        (["wdp", "--sigma", "1", "--beta", "1e-320"], "overflow"),
        (["wdp", "--sigma", "1e-310", "--mechanism", "gaussian", "--order", "1"], "overflow"),
        (["tangent", "--risk", "/nowhere/risk.npy", "--beta", "1"], "Expected a matrix"),
    ],
)
def test_bad_input_is_one_sentence(argv: list[str], match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        call(*argv)
    assert "\n" not in str(caught.value)


def test_an_empty_or_extreme_matrix_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "risk.csv").write_text("")
    with pytest.raises(InputError, match="risk matrix"):
        call("tangent", "--risk", str(tmp_path / "risk.csv"), "--beta", "1")
    np.save(tmp_path / "risk.npy", np.eye(3))
    with pytest.raises(InputError, match="overflow"):
        call("tangent", "--risk", str(tmp_path / "risk.npy"), "--beta", "1e308")


def test_an_unbounded_risk_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "risk.npy", np.array([[0.0, np.inf]]))
    with pytest.raises(InputError, match="bounded risk"):
        call("tangent", "--risk", str(tmp_path / "risk.npy"), "--beta", "1")


@pytest.mark.filterwarnings("ignore::UserWarning")  # Lightning: few workers, no validation loop
@pytest.mark.filterwarnings("ignore::FutureWarning")  # Lightning 2.6 uses what torch 2.15 deprecates
def test_the_callback_runs_beside_training_and_resumes(tmp_path: Path) -> None:
    import lightning as L
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    from dpswd.diagnostics.callback import WassersteinDiagnostic

    class Line(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)

        def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    def fit(epochs: int, checkpoint: str | None = None, **extra: Any) -> tuple[WassersteinDiagnostic, L.Trainer]:
        callback = WassersteinDiagnostic(sigma=0.1, sampling_rate=0.1, max_distance=2.0, **extra)
        trainer = L.Trainer(
            max_epochs=epochs,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            accelerator="cpu",
            callbacks=[callback],
            default_root_dir=tmp_path,
        )
        trainer.fit(Line(), DataLoader(TensorDataset(torch.randn(12, 3)), batch_size=4), ckpt_path=checkpoint)
        return callback, trainer

    callback, trainer = fit(2, run_dir=str(tmp_path))
    expected = WassersteinAccountant(order=16, beta=32.0, sigma=0.1, sampling_rate=0.1)
    expected.step([2.0], n_steps=6)
    assert callback.accountant.state_dict() == pytest.approx(expected.state_dict())
    assert float(trainer.callback_metrics["wdp_diagnostic"]) == pytest.approx(expected.get_epsilon(1e-5), rel=1e-6)
    entry = json.loads((tmp_path / "diagnostics.json").read_text())["wdp"]
    assert entry["reads_private_gradients"] is False
    assert entry["n_steps"] == 6
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    resumed, _ = fit(3, checkpoint=str(tmp_path / "last.ckpt"))
    assert resumed.accountant.n_steps == 9

    private, trainer = fit(1, distances=lambda module: [float(module.layer.weight.norm())], run_dir=str(tmp_path))
    assert private.accountant.n_steps == 3
    assert "wdp_diagnostic" not in trainer.callback_metrics  # made from private gradients: not for the logs
    assert json.loads((tmp_path / "diagnostics.json").read_text())["wdp"]["reads_private_gradients"] is True
