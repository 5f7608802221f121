"""Public names, and heavy packages at run time,
which the import contracts (.importlinter) cannot see.
"""

import os
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
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return tuple(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "names", "loaded"),
    [
        ("import dpswd.release; from dpswd import Budget, ClassCovariances", HEAVY, ()),
        ("import dpswd.report", ("matplotlib", "lightning", "torchvision"), ()),
        ("import dpswd.sensitivity, dpswd.mechanism", ("torch", *HEAVY), ()),
        ("import dpswd.accounting.ledger, dpswd.accounting.calibrate", ("torch", *HEAVY), ()),
        ("import dpswd.estimators.adapter, dpswd.evaluation", ("lightning",), ()),
        ("import dpswd.lightning.budget", ("torch", *HEAVY[:1]), ("torch", "lightning")),  # control
    ],
)
def test_imports_at_run_time(statement, names, loaded):
    assert loaded_by(statement, names) == loaded


TRAINING = (
    *HEAVY,
    "pytorch_fid",
    "rich",
    "markdown_it",
)  # packages of the extra, which the plain installation lacks


@pytest.mark.parametrize(
    ("statement", "status", "printed"),
    [
        ("from dpswd import Budget, DPSlicedWassersteinLoss, ReleaseLoader", 0, ""),
        ("from dpswd import PrivacyBudget", 1, "pip install 'dpswd[train]'"),
        ("from dpswd.commands.main import main; sys.exit(main(['--version']))", 0, "dpswd 0.3"),
        (
            "from dpswd.commands.main import main; sys.exit(main(['demo']))",
            2,
            "pip install 'dpswd[train]'",
        ),
        (
            "from dpswd.commands.main import main; sys.exit(main(['fit']))",
            2,
            "pip install 'dpswd[train]'",
        ),
    ],
)
def test_without_the_packages_for_training(statement, status, printed, tmp_path):
    # None: importing it fails.
    code = f"import sys; sys.modules.update(dict.fromkeys({TRAINING})); {statement}"
    command, environment = [sys.executable, "-c", code], os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == status, done.stderr
    assert printed in done.stdout + done.stderr
    assert len(done.stderr.splitlines()) == 1 or status < 2


def test_public_names():
    namespace = {}
    exec("from dpswd import *", namespace)
    assert set(dpswd.__all__) <= set(namespace)
    assert sorted(dpswd.__all__) == dpswd.__all__
