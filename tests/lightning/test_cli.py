"""The LightningCLI: help, progress, damaged checkpoints and configs."""

import contextlib
import io

import lightning.pytorch.cli  # noqa: F401  (at collection: its loggers keep the stderr that they find)
import pytest
import torch
from factories import Trap, fit_arguments

from dpswd.commands.main import fit, main

pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed")
QUICK = ("--trainer.log_every_n_steps", "1")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """Directory and checkpoint of a finished run."""
    directory = tmp_path_factory.mktemp("fitted")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        fit(fit_arguments(directory, 2, *QUICK))
    return directory, (directory / "checkpoints" / "last.ckpt").read_bytes()


def test_help_is_one_screen(capsys):
    with pytest.raises(SystemExit) as caught:
        main(["fit", "--help"])
    text = capsys.readouterr().out
    assert caught.value.code == 0
    assert len(text.splitlines()) <= 40
    assert all(word in text for word in ("--privacy.target_epsilon", "--privacy.shared_ledger", "--help all"))


def test_progress_has_one_line(tmp_path, capfd):
    assert main(fit_arguments(tmp_path, 5, *QUICK, "--trainer.enable_progress_bar", "true")) == 0
    out, err = capfd.readouterr()
    lines = [line for line in (out + err).splitlines() if line.startswith("training")]
    assert len(lines) == 1
    assert "5/5" in lines[0]
    assert not any(word in out + err for word in ("Epoch", "GPU available", "litlogger"))


@pytest.mark.parametrize("goal", ["predict", "fit"])
@pytest.mark.parametrize(("at", "cut"), [(0.3, False), (0.7, True)])
def test_commands_refuse_damaged_checkpoints(fitted, at, cut, goal, tmp_path, capfd):
    directory, whole = fitted
    path, byte = tmp_path / "x.ckpt", int(at * len(whole))
    path.write_bytes(whole[:byte] + (b"" if cut else bytes([whole[byte] ^ 1]) + whole[byte + 1 :]))
    before, ledger = path.read_bytes(), (directory / "ledger.jsonl").read_bytes()
    words = fit_arguments(directory if goal == "fit" else tmp_path / "out", 2, *QUICK, "--ckpt_path", str(path))
    assert main([goal, *words[1:]]) == 2
    assert capfd.readouterr().err.strip().splitlines()[-1].startswith("dpswd: Expected a checkpoint")
    assert path.read_bytes() == before
    assert (directory / "ledger.jsonl").read_bytes() == ledger


def test_no_code_of_a_checkpoint_is_run(tmp_path, capfd):
    path = tmp_path / "x.ckpt"
    words = fit_arguments(tmp_path / "out", 2, *QUICK, "--ckpt_path", str(path))
    for content in ({"state_dict": Trap()}, Trap(), [1], {"state_dict": 3}, {}):
        torch.save(content, path)
        assert main(["predict", *words[1:]]) == 2
    assert not Trap.sprung
