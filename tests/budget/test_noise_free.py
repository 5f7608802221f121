"""Runs without noise, by epsilon = inf: for public stand-ins, and marked NOT PRIVATE everywhere."""

import json
import math
from importlib import resources

import jsonschema
import numpy as np
import pytest
import torch

from dpswd import (
    Budget,
    ClassCounts,
    ClassMeans,
    GaussianMechanism,
    PrivacyAccountant,
    PrivateRecords,
    ProjectionMechanism,
)
from dpswd.accounting.guarantee import Guarantee
from dpswd.accounting.ledger import Ledger
from dpswd.accounting.recompute import recompute
from dpswd.accounting.shared_ledger import SharedLedger
from dpswd.commands.main import main
from dpswd.errors import BudgetExceededError, InputError, PrivacyWarning
from dpswd.mechanism import mechanism_from_dict

N = 60
LABELS = torch.arange(N) % 3
ROWS = torch.rand(N, 4, generator=torch.Generator().manual_seed(0)) / 4

NOISE_FREE = GaussianMechanism(sensitivity=1.0, sigma=1e-3, noise_free=True)
MARK = b"NOT PRIVATE"

says_so = pytest.mark.filterwarnings(
    "ignore:NOT PRIVATE:dpswd.errors.PrivacyWarning",
    "ignore::dpswd.errors.UtilityWarning",
)


def records():
    return PrivateRecords(ROWS, LABELS, classes=range(3))


def budget_of(run_dir, queries, epsilon=math.inf, **options):
    return Budget(
        records() if "of" not in options else options.pop("of"),
        queries,
        target_epsilon=epsilon,
        target_delta=1e-4,
        run_dir=run_dir,
        **options,
    )


@says_so
def test_exact_values_leave(tmp_path):
    counts = ClassCounts(3, share=0.5)
    means = ClassMeans(3, 4)
    of = records()
    with budget_of(tmp_path, [counts, means], of=of):
        released = counts.release(of)
        _, sums = means.release(of)
    exact_sums = torch.stack([ROWS[LABELS == label].double().sum(0) for label in range(3)])
    torch.testing.assert_close(released, torch.full((3,), N / 3.0).double(), atol=1e-3, rtol=0)
    torch.testing.assert_close(sums, exact_sums, atol=1e-3, rtol=0)


def test_a_warning_says_so(tmp_path):
    with pytest.warns(PrivacyWarning, match="NOT PRIVATE"), budget_of(tmp_path, [ClassCounts(3)]):
        pass


def test_control_a_finite_budget_adds_noise(tmp_path):
    query = ClassCounts(3)
    of = records()
    with budget_of(tmp_path, [query], 1.0, of=of):
        released = query.release(of)
    assert (released - N / 3).abs().min() > 1e-6
    assert not query.mechanism.noise_free


def test_a_finite_budget_refuses_a_mechanism_without_noise(tmp_path):
    query = ClassCounts(3)
    query.mechanism = NOISE_FREE
    with pytest.raises(InputError, match="noise_free"), budget_of(tmp_path, [query], 1.0):
        pass
    assert not (tmp_path / "ledger.jsonl").exists()


@says_so
def test_an_interrupted_run_is_resumed(tmp_path):
    of = records()
    query = ClassCounts(3)
    with budget_of(tmp_path, [query], of=of):
        released = query.release(of)
    again = ClassCounts(3)
    with budget_of(tmp_path, [again], of=of, resume=True):
        assert torch.equal(again.release(of), released)


@says_so
def test_a_shared_ledger_refuses_it(tmp_path):
    shared = tmp_path / "all.jsonl"
    SharedLedger.create(shared, target_epsilon=10.0, target_delta=1e-4)
    with pytest.raises(BudgetExceededError, match="inf"):
        with budget_of(tmp_path / "run", [ClassCounts(3)], shared_ledger=shared):
            pass


# Accounting


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(
    "mechanism",
    [NOISE_FREE, ProjectionMechanism(8, 5, 1e-3, 4, bound="bernstein", noise_free=True)],
)
def test_epsilon_is_infinite(accountant, mechanism):
    account = PrivacyAccountant(accountant).step(mechanism, sample_size=100, n_releases=3)
    account.step(GaussianMechanism(sensitivity=1.0, sigma=5.0), sample_size=100)
    guarantee = account.guarantee(1e-4)
    assert guarantee.epsilon == math.inf
    assert guarantee.mu == math.inf
    assert not guarantee.private
    assert not guarantee.sound
    assert any(sentence.startswith("NOT PRIVATE") for sentence in guarantee.assumptions)
    assert account.profile([0.5, 3.0]).tolist() == [1.0, 1.0]


def test_guarantee_in_files():
    guarantee = Guarantee(epsilon=math.inf, mu=math.inf, delta=1e-5)
    plain = json.loads(json.dumps(guarantee.to_dict(), allow_nan=False))
    assert plain["epsilon"] == "inf"
    assert Guarantee.from_dict(plain) == guarantee
    assert guarantee.line().startswith("Guarantee: none. NOT PRIVATE")


def test_the_ledger_says_so_where_it_is_true():
    assert mechanism_from_dict(NOISE_FREE.to_dict()) == NOISE_FREE
    with_noise = GaussianMechanism(sensitivity=1.0, sigma=1.0)
    assert "noise_free" not in with_noise.to_dict()
    assert mechanism_from_dict(with_noise.to_dict()) == with_noise


@says_so
def test_verification_finds_no_bound(tmp_path):
    with budget_of(tmp_path, [ClassCounts(3)]):
        pass
    assert recompute(Ledger.open_existing(tmp_path / "ledger.jsonl")).epsilon == math.inf


# Commands


def check_marked(directory, capsys):
    """Every file of a run has the words; so have the screen and the report."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert [path for path in files if MARK not in path.read_bytes()] == []
    screen = "".join(capsys.readouterr())
    assert "NOT PRIVATE" in screen
    report = json.loads((directory / "report.json").read_text())
    schema = json.loads((resources.files("dpswd.report") / "schema.json").read_text())
    jsonschema.validate(report, schema)
    assert report["guarantee"]["epsilon"] == "inf"
    assert not report["private"]


@says_so
def test_generate_and_publish(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).random((N, 8, 8))
    np.savez("images.npz", data=images.astype(np.float32), targets=LABELS.numpy())
    facts = ["--classes", "0", "1", "2", "--out", "run", "-n", "20"]
    assert main(["generate", "images.npz", "--epsilon", "inf", "--delta", "1e-4", *facts]) == 0
    check_marked(tmp_path / "run", capsys)
    assert main(["publish", "run", "--out", "bundle"]) == 2
    message = capsys.readouterr().err
    assert "NOT PRIVATE" in message
    assert len(message.strip().splitlines()) == 1
    assert not (tmp_path / "bundle").exists()
    assert main(["sample", "run/generator.pt", "-n", "5", "--out", "more.npz"]) == 0
    assert MARK in (tmp_path / "more.npz").read_bytes()
    assert "NOT PRIVATE" in capsys.readouterr().out
    assert main(["ledger", "show", "run"]) == 0
    assert "NOT PRIVATE" in capsys.readouterr().out


@says_so
def test_adapt(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 80)
    source = generator.normal(size=(80, 4)) + 3 * labels[:, None]
    np.savez("source.npz", data=source, targets=labels)
    np.savez("target.npz", data=source + 1)
    options = ["--epsilon", "inf", "--delta", "1e-4", "--out", "run"]
    assert main(["adapt", "source.npz", "target.npz", *options]) == 0
    check_marked(tmp_path / "run", capsys)
    assert main(["predict", "run/classifier.pt", "target.npz"]) == 0
    assert "NOT PRIVATE" in capsys.readouterr().out


FIT = {
    "seed_everything": 0,
    "trainer": {
        "default_root_dir": "run",
        "max_steps": 2,
        "accelerator": "cpu",
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "logger": False,
        "callbacks": [
            {"class_path": "dpswd.lightning.callbacks.GeneratorFile"},
            {"class_path": "dpswd.lightning.callbacks.SampleGrid"},
        ],
    },
    "privacy": {"target_epsilon": 1.0, "target_delta": 1e-4},
    "model": {
        "class_path": "dpswd.lightning.module.GeneratorModule",
        "init_args": {
            "generator": {
                "class_path": "dpswd.networks.image_generators.ConvGenerator",
                "init_args": {"sample_shape": [1, 8, 8], "latent_dim": 4, "hidden": 8},
            },
            "features": {
                "class_path": "dpswd.features.maps.Flatten",
                "init_args": {"sample_shape": [1, 8, 8], "radius": 3.2},
            },
            "batch_size": 40,
            "n_projections": 64,
            "n_quantiles": 4,
            "labels": "none",
            "generated": 8,
        },
    },
    "data": {
        "class_path": "dpswd.lightning.data.PrivateDataModule",
        "init_args": {"path": "digits"},
    },
}


@says_so
@pytest.mark.parametrize("spelling", [["--privacy.target_epsilon", "inf"], []])
def test_fit(spelling, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = json.loads(json.dumps(FIT))
    text = json.dumps(config)
    if not spelling:
        text = text.replace('"target_epsilon": 1.0', '"target_epsilon": .inf')
    (tmp_path / "fit.yaml").write_text(text)
    assert main(["fit", "--config", "fit.yaml", *spelling]) == 0
    assert main(["report", "run"]) == 0
    check_marked(tmp_path / "run", capsys)
    assert main(["publish", "run", "--out", "bundle"]) == 2
