"""Public names, and heavy packages at run time, which the import contracts (.importlinter) cannot see."""

import subprocess
import sys
from pathlib import Path

import pytest

import dpswd

ROOT = Path(__file__).parents[1]
HEAVY = ("lightning", "torchvision", "matplotlib", "sklearn", "jsonargparse", "tensorboard")


def loaded_by(statement, names):
    """The packages of ``names`` that a new interpreter has loaded after a statement."""
    code = f"import sys; {statement}; print(*[name for name in {names} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return tuple(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "names", "loaded"),
    [
        ("import dpswd.sketch, dpswd.rowwise; from dpswd import DPSlicedWassersteinLoss, SecondMoment", HEAVY, ()),
        ("import dpswd.report", ("matplotlib", "lightning", "torchvision"), ()),
        ("import dpswd.sensitivity, dpswd.mechanism", ("torch", *HEAVY), ()),
        ("import dpswd.training.callback", ("torch", *HEAVY[:1]), ("torch", "lightning")),  # control
    ],
)
def test_imports_at_run_time(statement, names, loaded):
    assert loaded_by(statement, names) == loaded


def test_public_names():
    namespace = {}
    exec("from dpswd import *", namespace)
    assert set(dpswd.__all__) <= set(namespace)
    assert sorted(dpswd.__all__) == dpswd.__all__
