"""Every shipped config runs a step, on a small fake of its data, and on real data where they are found."""

import bz2
import json
import os
import re
import shutil
import struct
from pathlib import Path

import lightning.pytorch.cli  # noqa: F401  (at collection: its loggers keep the stderr that they find)
import numpy as np
import pytest
import yaml
from PIL import Image

from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main

ROOT = Path(__file__).parents[1]
CONFIGS = [*sorted((ROOT / "configs").glob("*.yaml")), *sorted((ROOT / "experiments" / "generation").glob("*.yaml"))]
FAKES = {
    "dpswd.data.MNIST": "MNIST",
    "dpswd.data.FashionMNIST": "FashionMNIST",
    "dpswd.data.USPS": "USPS",
    "dpswd.adaptation.data.DigitAdaptation": "MNIST",  # and USPS
}
OWN = {"dpswd.data.ImageFolder": "images", "dpswd.data.FeatureFile": "features.npz"}  # a user's own data
OWN["dpswd.data.CelebA"] = "celeba64"
OWN["dpswd.data.CIFAR10"] = "cifar10_images"
OWN["dpswd.adaptation.data.FeatureAdaptation"] = "source.npz"  # and target.npz


def idx(path, values):
    """Writes unsigned bytes in the IDX format of MNIST."""
    header = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
    path.write_bytes(header + values.astype(np.uint8).tobytes())


@pytest.fixture(scope="module")
def fake_root(tmp_path_factory):
    """MNIST in size and layout, with random pixels: the budget is planned for 60,000 records."""
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name in sorted(set(FAKES.values()) - {"USPS"}):
        (root / name / "raw").mkdir(parents=True)
        for split, count in (("train", 60_000), ("t10k", 100)):
            raw = root / name / "raw"
            images = np.broadcast_to(rng.integers(0, 256, (100, 28, 28)), (count // 100, 100, 28, 28))
            idx(raw / f"{split}-images-idx3-ubyte", images.reshape(count, 28, 28))
            idx(raw / f"{split}-labels-idx1-ubyte", rng.integers(0, 10, count))
    for split in ("usps", "usps.t"):
        pixels = rng.uniform(-1, 1, (400, 256)).round(2)
        lines = [f"{1 + i % 10} " + " ".join(f"{j + 1}:{v}" for j, v in enumerate(row)) for i, row in enumerate(pixels)]
        (root / "USPS").mkdir(exist_ok=True)
        (root / "USPS" / f"{split}.bz2").write_bytes(bz2.compress("\n".join(lines).encode()))
    return root


@pytest.fixture(scope="module")
def own_root(tmp_path_factory):
    """Small data of a user: 120 images in ten folders, 120 vectors in ten classes."""
    root, rng = tmp_path_factory.mktemp("own"), np.random.default_rng(0)
    for i in range(120):
        folder = root / "images" / f"class{i % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (30 + i % 7, 40, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    for copy in ("celeba64", "cifar10_images/train", "cifar10_images/test"):
        shutil.copytree(root / "images", root / copy)
    for name in ("features", "source", "target"):
        np.savez(root / f"{name}.npz", features=rng.normal(size=(120, 64)), labels=np.arange(120) % 10)
    return root


def run(path, directory, *more):
    arguments = ["fit", "--config", str(path), *more, "--trainer.default_root_dir", str(directory)]
    return main([*arguments, "--trainer.fast_dev_run", "true", "--trainer.enable_progress_bar", "false"])


def data_of(path):
    return yaml.safe_load(path.read_text())["data"]["class_path"]


def checked(directory):
    facts = json.loads((directory / "privacy.json").read_text())
    assert facts["sound"] is facts["private"] is True
    assert facts["epsilon"] <= facts["target_epsilon"]
    ledger = Ledger.open_existing(directory / "ledger.jsonl")
    planned = sum(part["n_releases"] for part in ledger.header["plan"])
    assert facts["releases_made"] == facts["planned_releases"] == ledger.n_releases == planned


@pytest.fixture(autouse=True)
def at_home(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_runs(path, tmp_path, request):
    needed = data_of(path)
    fixture = "fake_root" if needed in FAKES else "own_root" if needed in OWN else None
    assert fixture or needed == "dpswd.data.Digits", f"no small fake of {needed}"
    more = ["--data.init_args.root", str(request.getfixturevalue(fixture))] if fixture else []
    assert run(path, tmp_path, *more) == 0
    checked(tmp_path)


@pytest.mark.parametrize(("name", "needed"), [("images", "images"), ("features", "features.npz")])
def test_own_data_where_the_command_says(name, needed, tmp_path, own_root):
    """The option that the header names, with a zip in place of a folder."""
    path, given = ROOT / "configs" / f"{name}.yaml", own_root / needed
    if name == "images":
        given = Path(shutil.make_archive(str(tmp_path / "images"), "zip", given))
    assert run(path, tmp_path / "run", "--data.path", str(given)) == 0
    checked(tmp_path / "run")


@pytest.mark.parametrize("path", [path for path in CONFIGS if path.parent.name == "configs"], ids=lambda p: p.stem)
def test_shipped_configs_name_the_package_only_and_train_on_no_real_record(path):
    """The wheel carries neither models nor experiments. Issue 15, item 4: no accuracy of real training records."""
    text = path.read_text()
    assert set(re.findall(r"class_path: (\w+)", text)) == {"dpswd"}
    assert "real: true" not in text


def test_no_config_names_a_machine():
    for path in CONFIGS:
        assert os.path.expanduser("~") not in path.read_text()
        assert " /" not in path.read_text().replace("$DPSWD_DATA or ./data", "")
