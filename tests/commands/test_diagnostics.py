import json
import math
from argparse import ArgumentParser

import lightning as L
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from dpswd.commands.diagnostics import COMMANDS
from dpswd.diagnostics.appendix import NOTE, diagnostics_appendix, read_diagnostics
from dpswd.diagnostics.callback import WassersteinDiagnostic
from dpswd.diagnostics.tangent import tangent_norms
from dpswd.diagnostics.wasserstein import WassersteinAccountant, step_loss
from dpswd.errors import InputError


def call(name, *argv):
    parser = ArgumentParser()
    COMMANDS[name].add_arguments(parser)
    result = COMMANDS[name].run(parser.parse_args([str(word) for word in argv]))
    COMMANDS[name].show(result)
    return json.loads(json.dumps(result))


@pytest.fixture
def risk_file(tmp_path):
    np.save(tmp_path / "risk.npy", np.eye(3))
    return tmp_path / "risk.npy"


def test_wdp_training(capsys):
    argv = ["--sigma", 0.2, "--distance", 1, 2, "--sampling-rate", 0.01, "--n-steps", 10, "--beta", 4]
    result = call("wdp", *argv)
    assert result["wdp_diagnostic"] == pytest.approx(10 * step_loss(16, [1, 2], 0.2, 0.01) - math.log(1e-5) / 4)
    assert result["is_guarantee"] is False
    assert NOTE in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mechanism", "expected"), [("gaussian", 0.25), ("laplace", 0.5 * math.sqrt(2 * math.exp(-0.5) - 1))]
)
def test_wdp_one_release(mechanism, expected):
    result = call("wdp", "--mechanism", mechanism, "--order", 1, "--sigma", 2)
    assert result["wdp_diagnostic"] == pytest.approx(expected)
    assert result["true_distance"] == 1


def test_tangent_reports_definition_2(tmp_path, capsys):
    risk = np.random.default_rng(0).random((5, 7))
    path = tmp_path / "risk.npy"
    np.save(path, risk)
    result = call("tangent", "--risk", path, "--beta", 3)
    norms, change = tangent_norms(risk, 3.0), result["largest_change_on_removal"]
    assert result["tangent_dp"]["total_variation"]["exact"] == pytest.approx(norms.exact[4])
    assert result["differentiability"]["total_variation"]["printed_bound"] == pytest.approx(norms.printed[3])
    assert (result["hypotheses"], result["records"]) == (5, 7)
    assert 1 < result["effective_hypotheses"] <= 5
    assert 0 < change["log_ratio"] <= change["log_ratio_bound"]
    assert NOTE in capsys.readouterr().out


def test_appendix_round_trip(tmp_path, risk_file):
    run = tmp_path / "run"
    with pytest.raises(InputError, match="diagnostics"):
        read_diagnostics(run)
    call("wdp", "--sigma", 1, "--run-dir", run)
    call("tangent", "--risk", risk_file, "--beta", 1, "--run-dir", run)
    stored = read_diagnostics(run)
    assert set(stored) == {"wdp", "tangent"}
    assert all(entry["is_guarantee"] is False and entry["note"] == NOTE for entry in stored.values())
    titles = dict(diagnostics_appendix(stored))
    exact = stored["tangent"]["tangent_dp"]["total_variation"]["exact"]
    assert dict(titles["Tangent DP (Ying2024)"])["tangent dp, total variation, exact"] == exact
    assert dict(titles["Wasserstein DP (Yang2024)"])["wdp diagnostic"] == stored["wdp"]["wdp_diagnostic"]


@pytest.mark.parametrize(
    "content",
    [
        "[" * 100_000,
        '{"wdp": 1}',
        '{"wdp": {"is_guarantee": true}}',
        '{"wdp": {"is_guarantee": false, "wdp_diagnostic": Infinity}}',
    ],
)
def test_read_diagnostics_refuses_other_files(tmp_path, content):
    (tmp_path / "diagnostics.json").write_text(content)
    with pytest.raises(InputError, match="diagnostics"):
        read_diagnostics(tmp_path)


class Line(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def training_step(self, batch, _):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")  # Lightning: few workers, no validation
def test_callback_counts_steps_and_resumes(tmp_path):
    def fit(epochs, checkpoint=None):
        callback = WassersteinDiagnostic(sigma=0.1, sampling_rate=0.1, max_distance=2.0, run_dir=str(tmp_path))
        quiet = dict.fromkeys(("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing"), False)
        trainer = L.Trainer(max_epochs=epochs, accelerator="cpu", callbacks=[callback], **quiet)
        trainer.fit(Line(), DataLoader(TensorDataset(torch.randn(12, 3)), batch_size=4), ckpt_path=checkpoint)
        return callback, trainer

    callback, trainer = fit(2)
    written = json.loads((tmp_path / "diagnostics.json").read_text())["wdp"]
    assert written["n_steps"] == 6
    expected = WassersteinAccountant(order=16, beta=32.0, sigma=0.1, sampling_rate=0.1)
    expected.step([2.0], n_steps=6)
    assert callback.accountant.state_dict() == pytest.approx(expected.state_dict())
    assert float(trainer.callback_metrics["wdp_diagnostic"]) == pytest.approx(expected.get_wdp(1e-5), rel=1e-6)
    trainer.save_checkpoint(tmp_path / "last.ckpt")
    assert fit(3, checkpoint=str(tmp_path / "last.ckpt"))[0].accountant.n_steps == 9
