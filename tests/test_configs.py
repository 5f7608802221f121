"""Every shipped config is executed: those of ``dpswd fit`` on a small fake of their data."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from factories import write_idx, write_images

from dpswd import Budget, InputError, PrivateRecords
from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main
from dpswd.queries import ClassMeans

ROOT = Path(__file__).parents[1]
CONFIGS = [
    *sorted((ROOT / "configs").glob("*.yaml")),
    *sorted((ROOT / "experiments" / "generation").glob("*.yaml")),
]
QUICK = [
    *("--trainer.max_steps", "3"),
    *("--trainer.log_every_n_steps", "1"),
    *("--trainer.enable_progress_bar", "false"),
]


def content(path):
    return yaml.safe_load(path.read_text()) or {}


def is_of_fit(path):
    return "model" in content(path)


def is_of_adapt(path):
    return "method" in content(path)


def is_of_folders(path):
    return "size" in content(path)


def named(paths):
    return [pytest.param(path, id=path.stem) for path in paths]


OF_FIT = [path for path in CONFIGS if is_of_fit(path)]
OF_GENERATE = [path for path in CONFIGS if not is_of_fit(path) and not is_of_adapt(path)]


# Files of features of the configs of adaptation, and their numbers of classes.
FEATURES = {"amazon": 31, "webcam": 31, "train": 12, "validation": 12}
# The fake data sets have no USPS.
OTHER_DATA = {"digits_adaptation": ["--data.target", "fashion"]}


@pytest.fixture(scope="module")
def fake_root(tmp_path_factory):
    """MNIST, Fashion-MNIST and faces in their layouts, with random pixels."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for name in ("MNIST", "FashionMNIST"):
        raw = root / name / "raw"
        raw.mkdir(parents=True)
        for split, count in (("train", 60_000), ("t10k", 100)):
            # A hundred images, repeated without a copy in memory.
            images = rng.integers(0, 256, (100, 28, 28))
            repeated = np.broadcast_to(images, (count // 100, 100, 28, 28))
            write_idx(raw / f"{split}-images-idx3-ubyte", repeated.reshape(count, 28, 28))
            write_idx(raw / f"{split}-labels-idx1-ubyte", rng.integers(0, 10, count))
    for name, n_classes in FEATURES.items():
        lines = [
            ",".join([*map(str, rng.random(2048).round(3)), str(number % n_classes)])
            for number in range(2 * n_classes)
        ]
        (root / f"{name}.csv").write_text("\n".join(lines) + "\n")
    faces = {f"celeba64/{i:03}.png": rng.integers(0, 256, (64, 64, 3)) for i in range(340)}
    return write_images(root, faces)


@pytest.mark.parametrize("path", named(OF_FIT))
def test_config_of_fit_runs(path, tmp_path, fake_root):
    arguments = ["fit", "--config", str(path), "--data.root", str(fake_root)]
    arguments += OTHER_DATA.get(path.stem, [])
    assert main([*arguments, "--trainer.default_root_dir", str(tmp_path), *QUICK]) == 0
    privacy = json.loads((tmp_path / "privacy.json").read_text())
    assert privacy["sound"]
    assert privacy["private"]
    assert privacy["epsilon"] <= privacy["target_epsilon"]
    ledger = Ledger.open_existing(tmp_path / "ledger.jsonl")
    assert privacy["releases_made"] == privacy["planned_releases"] == ledger.n_releases


@pytest.mark.parametrize("path", named(path for path in OF_GENERATE if not is_of_folders(path)))
def test_config_of_generate_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    if "radius" in content(path):
        # Vectors of norm 1, which is the radius of the config.
        vectors = rng.normal(size=(60, 9))
        values = {"features": vectors / np.linalg.norm(vectors, axis=1, keepdims=True)}
    else:
        values = {"images": rng.random((60, 28, 28))}
    np.savez("records.npz", **values, labels=np.arange(60) % 3)
    options = ["--config", str(path), "--delta", "1e-3", "--out", "run"]
    assert main(["generate", "records.npz", *options]) == 0


@pytest.mark.parametrize("path", named(path for path in OF_GENERATE if is_of_folders(path)))
def test_config_of_generate_for_folders_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    images = {f"photos/{'ab'[i % 2]}/{i}.png": rng.integers(0, 256, (40, 40, 3)) for i in range(60)}
    write_images(tmp_path, images)
    options = ["--config", str(path), "--classes", "a", "b", "--delta", "1e-3", "--out", "run"]
    assert main(["generate", "photos", *options]) == 0


@pytest.mark.parametrize("path", named(CONFIGS))
def test_config_names_classes_of_the_package_only(path):
    """The wheel carries neither models nor experiments."""
    assert set(re.findall(r"class_path: (\w+)", path.read_text())) <= {"dpswd"}


@pytest.mark.parametrize("path", named(CONFIGS))
def test_config_starts_with_a_comment_and_names_no_machine(path):
    text = path.read_text()
    assert text.startswith("# ")
    assert " /" not in text
    assert all(len(line) <= 100 for line in text.splitlines())


@pytest.mark.parametrize("path", named(path for path in OF_FIT if "celeba" in path.stem))
def test_delta_of_a_config_of_faces_admits_all_records_of_celeba(path, tmp_path):
    """A control: the delta of the other configs is refused."""
    records = PrivateRecords(torch.zeros(162_000, 1))
    stated = content(path)["privacy"]
    with Budget(records, [ClassMeans(1, 1)], **stated, run_dir=tmp_path / "run") as budget:
        assert budget.plan.sample_size == 162_000
    not_run = tmp_path / "not"
    with pytest.raises(InputError, match="target_delta"):
        Budget(records, [ClassMeans(1, 1)], target_epsilon=10, target_delta=1e-5, run_dir=not_run)
    assert not not_run.exists()
