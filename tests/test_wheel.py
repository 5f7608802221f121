"""The built wheel, installed into an environment of its own,
works from an empty directory outside the repository.
"""

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def run(*words, cwd, **more):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
    done = subprocess.run(
        [*map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def build(place, address):
    """Build the wheel for a repository at an address, which may be empty; return its path."""
    words = (sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", place)
    run(*words, ROOT, cwd=place, DPSWD_REPOSITORY=address, GITHUB_REPOSITORY="")
    (wheel,) = place.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of a repository whose address is not known."""
    return build(tmp_path_factory.mktemp("wheel"), address="")


@pytest.fixture(scope="module")
def installed(wheel):
    """Environment with the wheel; its dependencies are those of the environment that
    runs the tests.
    """
    place = wheel.parent
    run(sys.executable, "-m", "venv", "--without-pip", place / "venv", cwd=place)
    python = place / "venv" / "bin" / "python"
    words = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps")
    run(*words, wheel, cwd=place)
    site = Path(
        run(
            python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=place
        ).strip()
    )
    # a path in a .pth file is searched, but the .pth files there (that of the editable install) are
    # not read
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place / "venv" / "bin"


@pytest.mark.parametrize("address", ["", "https://example.org/dpswd"])
def test_readme_of_the_wheel_has_no_relative_link(tmp_path, wheel, address):
    if address:
        wheel = build(tmp_path, address)
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith("METADATA"))
        metadata = archive.read(name).decode()
    assert "## 1. Synthetic data" in metadata
    targets = re.findall(r"\]\(([^)]+)\)", metadata)
    assert [target for target in targets if not target.startswith("https://")] == []
    assert ("Project-URL: Source" in metadata) == bool(address)
    assert (f"{address}/raw/main/docs/figures/readme.png" in metadata) == bool(address)


@pytest.fixture
def empty(tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")
    return tmp_path


def test_the_wheel_holds_the_package_and_its_configs_only(installed, empty):
    code = (
        "import dpswd, importlib.util as u; "
        "print(dpswd.__file__, *map(u.find_spec, ('models', 'experiments')))"
    )
    path, *others = run(installed / "python", "-c", code, cwd=empty).split()
    assert str(installed.parent) in path
    assert others == ["None", "None"]
    # Configs that need models/ stay in the clone, and the message says so.
    configs = {path.name for path in (Path(path).parent / "configs").iterdir()}
    assert configs == {path.name for path in (ROOT / "configs").glob("*.yaml")}
    words = [installed / "dpswd", "fit", "--config", "paper/dp_swd_b_mnist"]
    refused = subprocess.run(words, cwd=empty, capture_output=True, text=True)
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "which only a clone has" in refused.stderr
    assert "images" in run(installed / "dpswd", "configs", cwd=empty)
    run(installed / "python", "-m", "dpswd", "--version", cwd=empty)


def test_demo(installed, empty):
    run(installed / "dpswd", "demo", cwd=empty)
    assert {"generator.pt", "synthetic.npz", "report.html"} <= {
        path.name for path in (empty / "runs/demo").iterdir()
    }


@pytest.mark.data
def test_fit_and_sample(installed, empty, data_root):
    options = ["--trainer.max_steps", "20"]
    run(
        installed / "dpswd",
        "fit",
        "--config",
        "mnist_moments",
        *options,
        cwd=empty,
        DPSWD_DATA=str(data_root),
    )
    out = empty / "runs" / "mnist_moments"
    run(installed / "dpswd", "report", out, cwd=empty)
    run(
        installed / "dpswd",
        "sample",
        out / "generator.pt",
        "-n",
        "30",
        "--out",
        "more.npz",
        cwd=empty,
    )
    with np.load(empty / "more.npz") as written:
        assert written["data"].shape == (30, 28, 28)
