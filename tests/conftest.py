"""What every test shares: repeatable draws, one torch thread, real data, a server of processes."""

import multiprocessing
import os
import random
import secrets
import sys
from pathlib import Path

import coverage
import pytest
import torch
from hypothesis import HealthCheck, settings

from dpswd._random import SecureRandom, SeededRandom

torch.set_num_threads(
    1
)  # results do not depend on the machine's cores, and workers do not fight for them

FUZZ = {
    "derandomize": True,
    "database": None,
    "deadline": None,
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.function_scoped_fixture,
        HealthCheck.data_too_large,
    ],
}
settings.register_profile("few", **FUZZ, max_examples=10)
settings.register_profile("quick", **FUZZ, max_examples=100)
settings.register_profile("thorough", **FUZZ, max_examples=800)
settings.load_profile("quick")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run files with slow tests first, so that no worker ends alone with a long test."""
    slow_files = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow_files)


@pytest.fixture
def data_root() -> Path:
    """Directory of the real data sets (tests that use it carry the marker ``data``)."""
    root = Path(os.environ.get("DPSWD_DATA") or Path(__file__).parents[1] / "data")
    if not (root / "MNIST" / "raw").is_dir():
        pytest.skip("no real data: DPSWD_DATA names no directory that holds MNIST")
    return root


@pytest.fixture(scope="session")
def server():
    """A context whose processes are forked from one that has imported everything,
    and start within milliseconds.
    """
    context = multiprocessing.get_context("forkserver")
    modules = [
        "dpswd.lightning.cli",
        "dpswd.commands.main",
        "dpswd.data",
        "dpswd.lightning.module",
        "factories",
    ]
    context.set_forkserver_preload(modules)
    return context


@pytest.fixture(autouse=True)
def no_coverage_of_repetitions(request):
    """Pauses the measurement of coverage in tests that repeat the same lines many times."""
    measurement = coverage.Coverage.current()
    if measurement is None or request.node.get_closest_marker("repetitions") is None:
        yield
        return
    measurement.stop()
    yield
    measurement.start()


@pytest.fixture(autouse=True)
def repeatable_draws(request, monkeypatch):
    """Lets the cryptographic source repeat its draws in every run of a test.

    An audit refutes a true claim with a probability of 1 %, so that a test of it would fail now and
    then. A process that a test starts draws from the system's entropy.
    """
    if request.node.get_closest_marker("system_entropy") is not None:
        return
    source = SeededRandom(0)
    monkeypatch.setattr(SecureRandom, "words", lambda _self, count: source.words(count))
    bits = random.Random(0)
    monkeypatch.setattr(secrets, "randbits", bits.getrandbits)


@pytest.fixture(autouse=True)
def no_earlier_releases(monkeypatch):
    """Hides the runs of earlier tests and of the developer, of which a budget would warn."""
    module = sys.modules.get("dpswd.budget.earlier_runs")
    if module is not None:
        monkeypatch.setattr(module, "_runs_of_process", {})
        monkeypatch.setattr(module, "_RUNS", Path("no_runs"))


@pytest.fixture
def threads(request):
    """A number of torch's threads for one test."""
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(1)
