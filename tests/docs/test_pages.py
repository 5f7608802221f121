"""Pages that go through a user's work: every command on them is run, in order, on tiny data made here."""

import json
import re
import shlex
from pathlib import Path

import lightning.pytorch.cli  # noqa: F401  (at collection: its loggers keep the stderr that they find)
import numpy as np
import pytest
from PIL import Image

from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "your-data.md").read_text()
COMMANDS = re.findall(r"^dpswd .*", PAGE, re.MULTILINE)
QUICK = "--trainer.max_steps 4 --model.flow_steps 2 --model.n_particles 200 --trainer.log_every_n_steps 1"
ROUND = ["fit", "predict", "report"]
QUIET = "--trainer.enable_progress_bar false"


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """What the page says lies there: photos in three folders, scans in one, vectors; beside the configs."""
    rng = np.random.default_rng(0)
    for i in range(120):
        for folder, shape in ((f"photos/{('birds', 'cats', 'dogs')[i % 3]}", (20 + i % 5, 24, 3)), ("scans", (30, 28))):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(tmp_path / folder / f"{i:04}.png")
    np.savez(tmp_path / "vectors.npz", features=rng.normal(size=(120, 16)) / 4, labels=np.arange(120) % 4)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(lines):
    for line in lines:
        words = shlex.split(line)[1:]
        words += {"fit": shlex.split(f"{QUICK} {QUIET}"), "predict": shlex.split(QUIET)}.get(words[0], ["--json"])
        assert main(words) == 0, line


ROUNDS = {
    "images": (COMMANDS[:3], (10_000, 32, 32, 3), 3, 2),
    "scans": (COMMANDS[3:6], (10_000, 28, 28), 1, 2),
    "features": (COMMANDS[7:], (10_000, 16), 4, 1),
}


def test_all_commands_of_the_page_are_run_below(capsys):
    assert [line.split()[1] for line in COMMANDS] == [*ROUND, *ROUND, "plan", *ROUND]
    run(COMMANDS[6:7])
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", ROUNDS)
def test_from_data_to_report(desk, capsys, name):
    lines, shape, classes, releases = ROUNDS[name]
    run(lines)
    directory = desk / "runs" / name
    with np.load(directory / "synthetic.npz", allow_pickle=False) as made:
        assert made["data"].shape == shape
        assert sorted(set(made["targets"].tolist())) == list(range(classes))
    ledger = Ledger.open_existing(directory / "ledger.jsonl")
    report = json.loads((directory / "report.json").read_text())
    assert ledger.n_releases == report["releases"]["made"] == report["releases"]["planned"] == releases
    assert report["sound"] is report["private"] is True
    assert report["guarantee"]["epsilon"] <= 10
    assert report["releases"]["sample_size"] == 120
    assert report["config"]["matches_ledger"] is True
    files = {path.name for path in directory.iterdir()}
    named = {"synthetic.npz", "report.html", "report.md", "report.json", "ledger.jsonl", "privacy.json"}
    assert named | {"config.yaml", "checkpoints"} <= files
    assert ("samples.png" in files) == (name != "features")
    assert "10000 synthetic records" in capsys.readouterr().out


@pytest.mark.parametrize(("side", "channels"), [(8, 1), (8, 3), (64, 1), (128, 3)])
def test_the_sizes_of_the_table(desk, side, channels):
    shape = f"[{channels}, {side}, {side}]"
    radius = next(line for line in PAGE.splitlines() if line.startswith(f"| {side} |")).split("|")[2].split("/")
    words = shlex.split(
        f"fit --config configs/images.yaml --data.path photos --data.size {side} --data.channels {channels} "
        f"--model.generator.sample_shape '{shape}' --model.features.base.sample_shape '{shape}' "
        f"--model.features.base.radius {radius[channels == 3]} --model.generator.n_classes 3 "
        f"--model.generator.hidden 16 --trainer.default_root_dir runs/x {QUICK} {QUIET}"
    )
    assert float(radius[channels == 3]) == pytest.approx(0.25 * (channels * side**2) ** 0.5, rel=0.02)  # as it says
    assert main(words) == 0
    assert Ledger.open_existing(desk / "runs" / "x" / "ledger.jsonl").n_releases == 2


@pytest.mark.parametrize("name", ["your-data.md", "pitfalls.md"])
def test_what_the_pages_name_is_there(name):
    text = (ROOT / "docs" / name).read_text()
    for module, attribute in re.findall(r"`((?:dpswd|models|experiments)(?:\.[a-z_]+)*)\.([A-Z]\w+)", text):
        assert hasattr(__import__(module, fromlist=[attribute]), attribute), (module, attribute)
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        assert target.startswith("http") or (ROOT / "docs" / target).exists(), target
