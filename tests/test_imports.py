"""Public names, and heavy packages at run time,
which the import contracts (.importlinter) cannot see.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import dpswd

ROOT = Path(__file__).parents[1]
HEAVY = ("lightning", "torchvision", "matplotlib", "sklearn", "jsonargparse", "tensorboard")


# Statements in the order of what they may load, and packages that are not loaded after each. One
# interpreter executes all of them: what a statement loads is loaded after the later ones, too.
NOT_LOADED = {
    "import dpswd.sensitivity, dpswd.mechanism": ("torch", *HEAVY),
    "import dpswd.accounting.ledger, dpswd.accounting.calibrate": ("torch", *HEAVY),
    "import dpswd.release; from dpswd import Budget, ClassCovariances": HEAVY,
    "import dpswd.report": ("matplotlib", "lightning", "torchvision"),
    "import dpswd.estimators.adapter, dpswd.evaluation": ("lightning",),
}
CONTROL = "import dpswd.lightning.budget"


def test_imports_at_run_time():
    lines = ["import json, sys", "names = []"]
    for statement in [*NOT_LOADED, CONTROL]:
        lines += [statement, "names.append(list(sys.modules))"]
    lines.append("print(json.dumps(names))")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    *modules, of_control = json.loads(done.stdout)
    for (statement, names), of_statement in zip(NOT_LOADED.items(), modules, strict=True):
        assert not set(names) & set(of_statement), statement
    assert {"torch", "lightning"} <= set(of_control)


TRAINING = (
    *HEAVY,
    "pytorch_fid",
    "rich",
    "markdown_it",
)  # packages of the extra, which the plain installation lacks

# Executes each statement of its first argument; prints status and output as JSON.
EXECUTE = """
import contextlib, io, json, sys, traceback
results = []
for statement in json.loads(sys.argv[1]):
    text = io.StringIO()
    status = 0
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            exec(statement, {"sys": sys})
        except SystemExit as error:
            status = error.code
        except Exception:  # of any type: the test compares what is printed
            traceback.print_exc()
            status = 1
    results.append([status, text.getvalue()])
print(json.dumps(results))
"""
HINT = "pip install 'dpswd[train]'"
# Status and a part of the output, by statement.
WITHOUT_TRAINING = {
    "from dpswd import Budget, DPSlicedWassersteinLoss, ReleaseLoader": (0, ""),
    "from dpswd import PrivacyBudget": (1, HINT),
    "from dpswd.commands.main import main; sys.exit(main(['--version']))": (
        0,
        f"dpswd {dpswd.__version__}",
    ),
    "from dpswd.commands.main import main; sys.exit(main(['demo']))": (2, HINT),
    "from dpswd.commands.main import main; sys.exit(main(['fit']))": (2, HINT),
}


def test_without_the_packages_for_training(tmp_path):
    # None: importing it fails.
    block = f"import sys; sys.modules.update(dict.fromkeys({TRAINING}))"
    command = [sys.executable, "-c", block + EXECUTE, json.dumps([*WITHOUT_TRAINING])]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    for (statement, (status, printed)), (actual_status, text) in zip(
        WITHOUT_TRAINING.items(), results, strict=True
    ):
        assert actual_status == status, (statement, text)
        assert printed in text, statement
        assert len(text.splitlines()) == 1 or status < 2, statement


def test_public_names():
    namespace = {}
    exec("from dpswd import *", namespace)
    assert set(dpswd.__all__) <= set(namespace)
    assert sorted(dpswd.__all__) == dpswd.__all__
