"""Configs of ``dpswd fit`` run some steps on a small fake of their data; those of generate are constants."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from factories import write_idx, write_images

from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main

ROOT = Path(__file__).parents[1]
CONFIGS = [
    *sorted((ROOT / "configs").glob("*.yaml")),
    *sorted((ROOT / "experiments" / "generation").glob("*.yaml")),
]
TRAINED = [path for path in CONFIGS if "model" in (yaml.safe_load(path.read_text()) or {})]
CONSTANTS = [path for path in CONFIGS if path not in TRAINED and not path.stem.startswith("adapt")]


@pytest.fixture(scope="module")
def fake_root(tmp_path_factory):
    """MNIST, Fashion-MNIST and faces in their layouts, with random pixels."""
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name in ("MNIST", "FashionMNIST"):
        raw = root / name / "raw"
        raw.mkdir(parents=True)
        for split, count in (("train", 60_000), ("t10k", 100)):
            images = np.broadcast_to(
                rng.integers(0, 256, (100, 28, 28)), (count // 100, 100, 28, 28)
            )
            write_idx(raw / f"{split}-images-idx3-ubyte", images.reshape(count, 28, 28))
            write_idx(raw / f"{split}-labels-idx1-ubyte", rng.integers(0, 10, count))
    return write_images(
        root, {f"celeba64/{i:03}.png": rng.integers(0, 256, (64, 64, 3)) for i in range(120)}
    )


@pytest.mark.parametrize("path", TRAINED, ids=lambda path: path.stem)
def test_every_config_of_fit_runs(path, tmp_path, fake_root):
    words = [
        "fit",
        "--config",
        str(path),
        "--data.root",
        str(fake_root),
        "--trainer.default_root_dir",
        str(tmp_path),
    ]
    few = [
        "--trainer.max_steps",
        "3",
        "--trainer.log_every_n_steps",
        "1",
        "--trainer.enable_progress_bar",
        "false",
    ]
    assert main([*words, *few]) == 0
    facts = json.loads((tmp_path / "privacy.json").read_text())
    assert facts["sound"] is facts["private"] is True
    assert facts["epsilon"] <= facts["target_epsilon"]
    ledger = Ledger.open_existing(tmp_path / "ledger.jsonl")
    assert facts["releases_made"] == facts["planned_releases"] == ledger.n_releases


@pytest.mark.parametrize("path", CONSTANTS, ids=lambda path: path.stem)
def test_every_config_of_generate_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    constants = yaml.safe_load(path.read_text()) or {}
    if {"size", "channels"} & set(constants):
        return  # constants of folders of images
    values = (
        {"features": rng.random((60, 9))}
        if "radius" in constants
        else {"images": rng.random((60, 28, 28))}
    )
    np.savez("records.npz", **values, labels=np.arange(60) % 3)
    assert (
        main(["generate", "records.npz", "--config", str(path), "--delta", "1e-3", "--out", "run"])
        == 0
    )


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_configs_name_the_package_only(path):
    """The wheel carries neither models nor experiments, and no config names a machine."""
    text = path.read_text()
    assert set(re.findall(r"class_path: (\w+)", text)) <= {"dpswd"}
    assert text.startswith("# ")
    assert " /" not in text.replace("$DPSWD_DATA or ./data", "")
