import pytest
import reporting_runs


@pytest.fixture
def make_run(tmp_path):
    """Writes a run directory as a training run does."""
    return lambda *groups, name="run", **changes: reporting_runs.make_run(tmp_path / name, *groups, **changes)
