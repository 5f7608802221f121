"""What an import pulls in, and which way the arrows point."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dpswd

ROOT = Path(__file__).parents[1]
HEAVY = ("lightning", "torchvision", "matplotlib", "sklearn", "jsonargparse", "tensorboard")


def imported_by(statement):
    code = f"import sys; {statement}; print(*[name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return done.stdout.split()


def test_the_core_imports_nothing_heavy():
    assert imported_by("import dpswd") == []
    assert imported_by("import dpswd.training.callback") == [*HEAVY[:3]]  # control: the test can see them


def test_every_public_name_is_there():
    namespace = {}
    exec("from dpswd import *", namespace)
    assert set(dpswd.__all__) <= set(namespace)
    assert sorted(dpswd.__all__) == dpswd.__all__


def imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


LIGHTNING = {"checkpoints.py", "training.py", "fit.py", "cli.py", "diagnostics_callback.py"}


@pytest.mark.parametrize("path", sorted((ROOT / "dpswd").rglob("*.py")), ids=lambda path: path.name)
def test_arrows_point_down(path):
    names = set(imports_of(path))
    assert not [name for name in names if name.split(".")[0] in ("models", "experiments", "tests")]
    if path.name not in LIGHTNING:
        assert not [name for name in names if name.split(".")[0] == "lightning"]
    if path.parent.name == "accounting" or path.name in ("sensitivity.py", "mechanism.py"):
        assert not [name for name in names if name.split(".")[0] in ("torch", "ot")]
