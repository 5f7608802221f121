"""Batches of the target, digits as published, and the configs of the paper."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from factories import write_idx

from dpswd import InputError
from dpswd.commands.main import main
from models.domains import Domains, TargetLoader, usps

pytestmark = pytest.mark.filterwarnings("ignore:NOT PRIVATE")

ROOT = Path(__file__).parents[2]
ALL_CONFIGS = sorted((ROOT / "configs" / "paper").glob("*.yaml"))
CONFIGS = [path for path in ALL_CONFIGS if "models.domains" in path.read_text()]
OF_GENERATORS = [path for path in ALL_CONFIGS if "models.generation" in path.read_text()]
N_VECTORS = 144  # in files of features
FAST = {"dann_office31", "dp_dann_mnist_usps", "dp_swd_office31", "dp_swd_b_fashion"}


def named(paths):
    """Cases of a test, of which all but a few are slow."""
    marks = {True: (), False: (pytest.mark.slow,)}
    return [pytest.param(path, id=path.stem, marks=marks[path.stem in FAST]) for path in paths]


def test_epochs_of_the_target_end_with_a_short_batch():
    batches = iter(TargetLoader(torch.arange(10), 4))
    epoch = [next(batches) for _ in range(3)]
    assert [len(batch) for batch in epoch] == [4, 4, 2]
    assert len(set(torch.cat(epoch).tolist())) == 10


def test_fresh_batches_have_one_size_and_no_epochs():
    batches = iter(TargetLoader(torch.arange(10), 4, fresh=True))
    drawn = [next(batches) for _ in range(30)]
    assert {len(batch) for batch in drawn} == {4}
    assert all(len(set(batch.tolist())) == 4 for batch in drawn)
    # Control: batches of an epoch would be disjoint.
    assert any(set(drawn[i].tolist()) & set(drawn[i + 1].tolist()) for i in range(0, 30, 2))


def test_files_of_other_shapes_are_refused(tmp_path):
    for name, size in (("a.npz", 5), ("b.npz", 6)):
        np.savez(tmp_path / name, features=np.ones((4, size)), labels=np.arange(4) % 2)
    with pytest.raises(InputError, match="shape"):
        Domains("a.npz", "b.npz", root=str(tmp_path)).source  # noqa: B018


@pytest.mark.data
def test_usps_ends_where_its_box_does(data_root):
    """Enlarged to a box and padded to 28."""
    records = usps(data_root, 20)
    assert len(records) == 7438
    is_inked = (records.values > -1).any(0)[0]
    assert is_inked[4:24, 4:24].any()
    assert not is_inked[:4].any()
    assert not is_inked[:, 24:].any()


@pytest.fixture(scope="module")
def fake_root(tmp_path_factory):
    """Fashion-MNIST of 300 images, and files of features."""
    root = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    raw = root / "FashionMNIST" / "raw"
    for split in ("train", "t10k"):
        write_idx(raw / f"{split}-images-idx3-ubyte", rng.integers(0, 256, (300, 28, 28)))
        write_idx(raw / f"{split}-labels-idx1-ubyte", np.arange(300) % 10)
    for name, n_classes in {"dslr": 31, "webcam": 31, "train": 12, "validation": 12}.items():
        lines = [
            ",".join([*map(str, rng.random(2048).round(3)), str(number % n_classes)])
            for number in range(N_VECTORS)
        ]
        (root / f"{name}.csv").write_text("\n".join(lines) + "\n")
    return root


@pytest.mark.parametrize("path", named(CONFIGS))
def test_config_of_the_paper_runs(path, tmp_path, fake_root, capsys):
    """The run measures the target; DP-DANN states a conditional guarantee, the others none."""
    words = ["fit", "--config", str(path), "--data.root", str(fake_root)]
    if "usps" in path.stem:
        words += ["--data.source", "fashion", "--data.target", "fashion"]
    words += ["--trainer.default_root_dir", str(tmp_path), "--trainer.max_steps", "4"]
    words += ["--trainer.enable_progress_bar", "false", "--trainer.logger", "false"]
    if "source_only" not in path.stem:
        words += ["--model.first_step", "1"]
    if path.stem.startswith("dp_dann"):
        assert main(words) == 2
        assert "privacy.sample_size=" in capsys.readouterr().err
        assert main([*words, "--data.fresh", "false"]) == 2
        assert "data.fresh=true" in capsys.readouterr().err
        assert not (tmp_path / "ledger.jsonl").exists()
        n_target = 300 if "usps" in path.stem else N_VECTORS
        words += ["--privacy.n_releases", "3", "--privacy.sample_size", str(n_target)]
        assert main(words) == 0
        statement = json.loads((tmp_path / "privacy.json").read_text())
        assert statement["releases_made"] == 3
        assert not statement["sound"]
    else:
        assert main(words) == 0
        assert "NOT PRIVATE" in capsys.readouterr().err
        assert not (tmp_path / "privacy.json").exists()
    measured = json.loads((tmp_path / "target_accuracy.json").read_text())
    assert measured["steps"] == 4
    assert 0 <= measured["accuracy"] <= 100


@pytest.mark.parametrize("path", named(OF_GENERATORS))
def test_config_of_a_generator_runs(path, tmp_path, fake_root, capsys):
    words = ["fit", "--config", str(path), "--data.root", str(fake_root), "--data.name", "fashion"]
    words += ["--trainer.default_root_dir", str(tmp_path), "--trainer.max_steps", "2"]
    words += ["--trainer.enable_progress_bar", "false", "--trainer.logger", "false"]
    assert main(words) == 0
    assert "NOT PRIVATE" in capsys.readouterr().err
    assert (tmp_path / "checkpoints" / "last.ckpt").exists()


@pytest.mark.parametrize("path", [pytest.param(path, id=path.stem) for path in ALL_CONFIGS])
def test_config_of_the_paper_says_what_it_is(path):
    text = path.read_text()
    content = yaml.safe_load(text)
    is_private = path.stem.startswith("dp_dann")
    assert ("Conditional." in text) == is_private
    assert ("NOT PRIVATE." in text) == (not is_private)
    assert (content["privacy"]["target_epsilon"] == float("inf")) == (not is_private)
    assert f"configs/paper/{path.name}" in text
    assert set(re.findall(r"class_path: (\w+)", text)) <= {"dpswd", "models"}
    assert all(len(line) <= 100 for line in text.splitlines())


def test_there_is_a_config_for_every_method_and_problem():
    methods = ("source_only", "dann", "swd", "dp_dann", "dp_swd")
    problems = ("mnist_usps", "usps_mnist", "office31", "visda")
    assert {path.stem for path in CONFIGS} == {f"{m}_{p}" for m in methods for p in problems}
    methods = ("swd", "dp_swd_b", "dp_swd_c")
    assert {path.stem for path in OF_GENERATORS} == {
        f"{method}_{name}" for method in methods for name in ("mnist", "fashion")
    }
    of_faces = set(ALL_CONFIGS) - set(CONFIGS) - set(OF_GENERATORS)  # run by the test of Figure 6
    assert {path.stem for path in of_faces} == {f"{method}_celeba" for method in methods}
