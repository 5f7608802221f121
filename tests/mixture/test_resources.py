"""Memory and time of a fit of wide rows, before anything is spent."""

import numpy as np
import pytest

from dpswd import PrivateGenerator
from dpswd.commands.main import main
from dpswd.errors import InputError
from dpswd.mixture.forecast import forecast
from dpswd.mixture.resources import check_memory, memory_of_fit


def test_memory_grows_with_the_square_of_the_dimensions():
    narrow = forecast(2000, (1000,), n_classes=2, mu=2.0)
    wide = forecast(2000, (4000,), n_classes=2, mu=2.0)
    assert memory_of_fit(wide) == pytest.approx(16 * memory_of_fit(narrow))


def test_the_number_that_would_do_fits():
    structure = forecast(2000, (20_000,), n_classes=2, mu=2.0)
    with pytest.raises(InputError, match=r"at most 10,5.. numbers .* got 20,000") as error:
        check_memory(structure, memory=20e9)
    largest = int(str(error.value).split("at most ")[1].split(" ")[0].replace(",", ""))
    check_memory(forecast(2000, (largest,), n_classes=2, mu=2.0), memory=20e9)


def test_wide_rows_are_refused_before_anything_is_spent(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4096}.get(name, 1000))
    generator = PrivateGenerator(10, 1e-3, run_dir=tmp_path / "run", verbose=False, radius=20.0)
    with pytest.raises(InputError, match="numbers on this machine"):
        generator.fit(np.zeros((50, 400), dtype=np.float32))
    assert not (tmp_path / "run").exists()


def test_the_forecast_says_what_wide_rows_cost(capsys):
    assert main(["forecast", "--shape", "3000", "--n", "50000", "--n-classes", "2"]) == 0
    assert "GB of memory besides the records" in capsys.readouterr().out
    assert main(["forecast", "--shape", "50", "--n", "50000", "--n-classes", "2"]) == 0
    assert "GB of memory" not in capsys.readouterr().out
