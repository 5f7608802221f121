import factories
import pytest


@pytest.fixture
def make_run(tmp_path):
    """Writes a run directory as a training run does."""
    return lambda *groups, name="run", **changes: factories.make_run(tmp_path / name, *groups, **changes)
