"""The command line: output, files, exit status, one line of error."""

import json
from pathlib import Path

import lightning.pytorch.cli  # noqa: F401  (at collection: its loggers keep the stderr that they find)
import numpy as np
import pytest
import torch

from dpswd import PrivacyAccountant, __version__
from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main
from dpswd.generation.mixture_module import MixtureModule

pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed")  # runs are copied here
CONFIGS = Path(__file__).parents[2] / "configs"
N_RELEASES = 4  # of the digits: overall sums, histogram, class sums, second moments
QUICK = {
    "--trainer.callbacks": "[]",
    "--trainer.enable_progress_bar": "false",
    "--data.init_args.n_synthetic": "15",
}
ACCOUNT = {
    "--dim": "4",
    "--n-projections": "8",
    "--sample-size": "64",
    "--batch-size": "16",
    "--n-releases": "3",
    "--sigma": "1",
    "--delta": "1e-5",
}


def flat(options):
    return [word for pair in options.items() for word in pair if word is not None]


def fit(directory, *more, command="fit", **changes):
    options = QUICK | {"--trainer.default_root_dir": str(directory)}
    return [command, "--config", str(CONFIGS / "digits.yaml"), *flat(options), *more]


@pytest.fixture(autouse=True)
def at_home(monkeypatch):
    monkeypatch.chdir(CONFIGS.parent)


def refused(capfd, arguments, *words, status=2):
    """Runs a command that must fail with one line on stderr that holds ``words``, and nothing on stdout."""
    assert main(arguments) == status
    out, err = capfd.readouterr()
    last = err.strip().splitlines()[-1]
    assert last.startswith("dpswd: Expected ")
    assert "Traceback" not in err + out
    assert not out.strip()
    for word in words:
        assert word in last, last
    return last


# Small commands


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["account", *flat(ACCOUNT | {"--sigma": "nan"})], ["sigma"]),
        (["account", *flat(ACCOUNT | {"--sigma": "much"})], ["--sigma", "much"]),
        (["account", *flat(ACCOUNT | {"--batch-size": "65"})], ["batch_size", "65"]),
        (["account", "--dim", "4"], ["--n-projections"]),
        ([], ["dpswd --help"]),
        (["nonsense"], ["dpswd --help"]),
        (["demo", "--epsilon", "nan"], ["target_epsilon"]),
    ],
)
def test_bad_input(capfd, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    refused(capfd, arguments, *words)
    assert not list(tmp_path.iterdir())


def test_version_and_help(capfd):
    for flag, word in (("--version", __version__), ("--help", "calibrate")):
        with pytest.raises(SystemExit) as left:
            main([flag])
        assert left.value.code == 0
        out = capfd.readouterr().out
        assert word in out
        assert len(out.splitlines()) <= 40  # one screen


def test_configs_by_name(capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["configs", "--json"]) == 0
    names = json.loads(capfd.readouterr().out)["configs"]
    assert {"digits", "mnist", "fashion", "images", "features", "adaptation"} <= set(names)
    assert all(len(line) <= 90 for line in names.values())
    assert main(["configs", "digits"]) == 0
    assert capfd.readouterr().out == (CONFIGS / "digits.yaml").read_text()
    refused(capfd, ["configs", "nothing"], "nothing", "digits")
    refused(capfd, ["configs", "../pyproject"], "pyproject")
    options = QUICK | {"--trainer.default_root_dir": str(tmp_path / "run")}
    assert main(["fit", "--config=digits", *flat(options), "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["privacy"]["releases_made"] == N_RELEASES


# fit


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--model.init_args.nonsense", "3"], ["nonsense"]),
        (["--model.class_path", "torch.nn.Linear"], ["torch.nn.Linear", "LightningModule"]),
        (["--config", "configs/none.yaml"], ["configs/none.yaml"]),
        (["--privacy.target_epsilon", "nan"], ["target_epsilon", "nan"]),
        (["--trainer.devices", "2"], ["trainer.devices"]),
        (["--ckpt_path", "none.ckpt"], ["none.ckpt"]),
        (["--data", "dpswd.data.MNIST", "--data.root", "no/such"], ["no/such", "DPSWD_DATA"]),
        (["--model.init_args.n_classes", "9"], ["n_classes"]),
    ],
)
def test_fit_refuses_and_leaves_nothing(capfd, tmp_path, more, words):
    run = tmp_path / "run"
    refused(capfd, fit(run, *more), *words)
    assert not list(tmp_path.iterdir())


def test_predict_needs_a_checkpoint(capfd, tmp_path):
    refused(capfd, fit(tmp_path / "run", command="predict"), "--ckpt_path for predict")
    assert not list(tmp_path.iterdir())


# A whole run


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of the default generator."""
    directory = tmp_path_factory.mktemp("finished") / "run"
    assert main(fit(directory)) == 0
    return directory


def test_files_of_a_run(finished, tree):
    names = {name for name in tree(finished) if not name.startswith("events.")}
    assert {"config.yaml", "ledger.jsonl", "privacy.json", "checkpoints", "checkpoints/last.ckpt"} <= names
    assert not [name for name in names if name.endswith(".part")]
    ledger = Ledger.open_existing(finished / "ledger.jsonl")
    assert ledger.n_releases == N_RELEASES
    assert len(ledger.header["config_sha256"]) == 64
    facts = json.loads((finished / "privacy.json").read_text())
    account = PrivacyAccountant.from_groups(ledger.groups())
    assert facts["epsilon"] == pytest.approx(account.get_epsilon(1e-5), rel=1e-12)
    assert facts["epsilon"] <= 10
    assert facts["releases_made"] == N_RELEASES


def test_saved_config_repeats_the_run(finished, tmp_path):
    assert (
        main(["fit", "--config", str(finished / "config.yaml"), "--trainer.default_root_dir", str(tmp_path / "a")]) == 0
    )
    ours, theirs = (json.loads((run / "privacy.json").read_text()) for run in (finished, tmp_path / "a"))
    runs = ("run", "covered_runs", "weights_from_runs")  # the identifiers of the runs differ
    assert {k: v for k, v in ours.items() if k not in runs} == {k: v for k, v in theirs.items() if k not in runs}
    weights = [torch.load(run / "checkpoints" / "last.ckpt", weights_only=True) for run in (finished, tmp_path / "a")]
    means = [each["state_dict"]["generator.means"] for each in weights]
    assert not torch.equal(*means)  # although seeded


@pytest.fixture
def interrupted(tmp_path, monkeypatch):
    """A run that failed after its releases."""

    def breaks(module, below):
        raise RuntimeError("crash")

    with monkeypatch.context() as patch:
        patch.setattr(MixtureModule, "_set_tones", breaks)
        with pytest.raises(RuntimeError, match="crash"):
            main(fit(tmp_path / "run"))
    return tmp_path / "run"


def test_resumed_run_makes_no_second_release(interrupted):
    checkpoint = interrupted / "checkpoints" / "last.ckpt"
    assert [path.name for path in checkpoint.parent.iterdir()] == ["last.ckpt"]
    assert not torch.load(checkpoint, weights_only=True)["state_dict"]["fitted"]
    config, ledger = (interrupted / "config.yaml").read_bytes(), (interrupted / "ledger.jsonl").read_bytes()
    assert main(fit(interrupted, "--ckpt_path", str(checkpoint))) == 0
    assert Ledger.open_existing(interrupted / "ledger.jsonl").n_releases == N_RELEASES
    assert (interrupted / "ledger.jsonl").read_bytes() == ledger
    assert (interrupted / "config.yaml").read_bytes() == config
    assert torch.load(checkpoint, weights_only=True)["state_dict"]["fitted"]


def test_predict_writes_a_labelled_data_set(capfd, finished, tmp_path):
    arguments = fit(tmp_path, "--ckpt_path", str(finished / "checkpoints" / "last.ckpt"), command="predict")
    writer = "[{class_path: dpswd.generation.export.SyntheticWriter}]"
    assert main([*arguments, "--trainer.callbacks", writer, "--return_predictions", "false"]) == 0
    with np.load(tmp_path / "synthetic.npz", allow_pickle=False) as made:
        assert made["data"].shape == (15, 8, 8)
        assert made["data"].dtype == np.uint8
        assert made["targets"].tolist() == [i % 10 for i in range(15)]
        assert made["targets"].dtype == np.int64
    assert [path.name for path in tmp_path.iterdir()] == ["synthetic.npz"]


def test_predict_refuses_the_checkpoint_of_another_run(capfd, finished, tmp_path):
    other = tmp_path / "other"
    assert main(fit(other)) == 0
    before = sorted(path.name for path in other.iterdir())
    writer = ["--trainer.callbacks", "[{class_path: dpswd.generation.export.SyntheticWriter}]"]
    for directory, wanted in ((finished, 2), (other, 0)):
        checkpoint = str(directory / "checkpoints" / "last.ckpt")
        arguments = fit(other, "--ckpt_path", checkpoint, *writer, "--return_predictions", "false", command="predict")
        if wanted == 2:
            refused(capfd, arguments, checkpoint)
            assert sorted(path.name for path in other.iterdir()) == before
        else:
            assert main(arguments) == 0


# The demo


@pytest.mark.slow
def test_demo_end_to_end(capfd, tmp_path):
    out = tmp_path / "demo"
    assert main(["demo", "--out", str(out), "--json"]) == 0
    printed = capfd.readouterr().out
    result = json.loads(printed)
    assert printed.count("\n") == 1
    assert result["run_dir"] == str(out)
    assert 9 < result["epsilon"] <= 10
    assert result["delta"] == 1e-5
    assert result["sound"] is True
    assert result["releases_made"] == N_RELEASES
    for name in ("samples.png", "report.md", "report.html", "report.json", "synthetic.npz", "evaluation.json"):
        assert (out / name).stat().st_size > 0
    with np.load(out / "synthetic.npz", allow_pickle=False) as made:
        assert made["data"].shape == (5000, 8, 8)
        assert np.bincount(made["targets"]).tolist() == [500] * 10
    accuracy = {(row["train"], row["classifier"]): row["accuracy"] for row in result["evaluation"]}
    assert min(accuracy["synthetic", name] for name in ("logreg", "mlp")) > 50  # chance is 10
    refused(capfd, ["demo", "--out", str(out)], "--out")


@pytest.mark.parametrize("options", [["--data.path", "missing"], ["--epsilon", "0"]], ids=["no data", "epsilon"])
def test_forecast_bad_input(options, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez("vectors.npz", features=np.zeros((300, 4), np.float32), labels=np.arange(300) % 2)
    assert main(["forecast", "--config", "features", "--data.path", "vectors.npz", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("dpswd: ")
    assert captured.err.count("\n") == 1
