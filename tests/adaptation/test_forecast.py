"""Forecast of an adaptation, before anything is spent."""

import numpy as np
import pytest

from dpswd import PrivateAdapter
from dpswd.accounting.calibrate import planning_mu
from dpswd.adaptation.forecast import forecast_adaptation
from dpswd.commands.main import main


@pytest.mark.parametrize("n", [60, 1500])
@pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")
def test_the_forecast_is_that_of_the_fit(tmp_path, n):
    random = np.random.default_rng(0)
    X = random.normal(size=(2 * n, 6))
    y = np.arange(2 * n) % 2
    X[:, 0] += 3 * y
    adapter = PrivateAdapter(1.0, 1e-4, run_dir=tmp_path / "run", verbose=False)
    adapter.fit(X, y, np.repeat([1, -1], n))
    expected = forecast_adaptation(n, (6,), planning_mu(1.0, 1e-4))
    assert expected.signal == pytest.approx(adapter._target.signal)  # the fit shows it nowhere
    assert expected.can_be_seen == (n == 1500)
    assert expected.can_be_seen or "the noise hides the mean" in adapter.verdict_


@pytest.mark.parametrize("shape", [(50,), (1, 28, 28)])
def test_the_number_that_would_do_is_the_least_one(shape):
    expected = forecast_adaptation(100, shape, mu=0.3)
    assert not expected.can_be_seen
    assert forecast_adaptation(expected.n_needed, shape, mu=0.3).can_be_seen
    assert not forecast_adaptation(expected.n_needed - 1, shape, mu=0.3).can_be_seen


def test_the_command_says_what_would_do(capsys):
    command = ["forecast", "--adapt", "--shape", "28,28", "--n", "100", "--epsilon", "0.2"]
    assert main(command) == 0
    assert "records would do" in capsys.readouterr().out
