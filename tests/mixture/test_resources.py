"""Memory and time of a fit of wide rows, before anything is spent."""

import numpy as np
import pytest

from dpswd import PrivateGenerator
from dpswd.commands.main import main
from dpswd.errors import InputError
from dpswd.mixture.forecast import forecast
from dpswd.mixture.resources import check_memory, memory_of_fit


def test_memory_grows_with_the_square_of_the_dimensions():
    narrow = forecast(2000, (1000,), n_classes=2, mu=2.0, spread="moments")
    wide = forecast(2000, (4000,), n_classes=2, mu=2.0, spread="moments")
    assert memory_of_fit(wide) == pytest.approx(16 * memory_of_fit(narrow))


def test_memory_of_variances_grows_with_the_dimensions():
    narrow = forecast(2000, (10_000,), n_classes=2, mu=2.0)
    wide = forecast(2000, (40_000,), n_classes=2, mu=2.0)
    assert memory_of_fit(wide) == pytest.approx(4 * memory_of_fit(narrow))
    assert memory_of_fit(wide) < 1e8


def test_the_number_that_would_do_fits():
    structure = forecast(2000, (20_000,), n_classes=2, mu=2.0, spread="moments")
    with pytest.raises(InputError, match=r"at most 10,5.. numbers .* got 20,000") as error:
        check_memory(structure, memory=20e9)
    largest = int(str(error.value).split("at most ")[1].split(" ")[0].replace(",", ""))
    check_memory(forecast(2000, (largest,), 2, mu=2.0, spread="moments"), memory=20e9)


def test_large_images_are_refused_with_the_side_that_would_do():
    structure = forecast(2000, (1, 4096, 4096), n_classes=2, mu=2.0)
    with pytest.raises(
        InputError, match=r"at most 1,\d\d\d pixels a side .* got 4,096 x 4,096"
    ) as error:
        check_memory(structure, memory=8e9)
    side = int(str(error.value).split("at most ")[1].split(" ")[0].replace(",", ""))
    check_memory(forecast(2000, (1, side, side), n_classes=2, mu=2.0), memory=8e9)
    check_memory(forecast(2000, (3, 256, 256), n_classes=2, mu=2.0), memory=8e9)


def test_wide_rows_are_refused_before_anything_is_spent(tmp_path, monkeypatch):
    monkeypatch.setattr("os.sysconf", lambda name: {"SC_PAGE_SIZE": 4096}.get(name, 1000))
    generator = PrivateGenerator(10, 1e-3, run_dir=tmp_path / "run", verbose=False, radius=20.0)
    with pytest.raises(InputError, match="numbers on this machine"):
        generator.fit(np.zeros((50, 400), dtype=np.float32))
    assert not (tmp_path / "run").exists()


def test_wide_rows_that_would_be_noise_are_refused_before_anything_is_spent(tmp_path, capsys):
    generator = PrivateGenerator(10, 1e-3, run_dir=tmp_path / "run", verbose=False, radius=20.0)
    with pytest.raises(InputError, match=r"at least \d+ records of 5,000 numbers .* got 3:"):
        generator.fit(np.zeros((3, 5000), dtype=np.float32))
    assert not (tmp_path / "run").exists()
    assert main(["forecast", "--shape", "5000", "--n", "3"]) == 0
    assert "The fit refuses these records: Expected at least" in capsys.readouterr().out


def test_the_forecast_says_that_wide_rows_have_no_covariances(capsys):
    assert main(["forecast", "--shape", "20000", "--n", "2000", "--n-classes", "2"]) == 0
    text = capsys.readouterr().out
    assert "20,000 columns are too many for covariances" in text
    assert "Signal over noise: 2.37 of the mean of a class, 3.9 of the variance" in text
    assert "GB" not in text


def test_the_forecast_says_what_wide_rows_cost(capsys):
    assert main(["forecast", "--shape", "3000", "--n", "50000", "--n-classes", "2"]) == 0
    assert "GB of memory besides the records" in capsys.readouterr().out
    assert main(["forecast", "--shape", "50", "--n", "50000", "--n-classes", "2"]) == 0
    assert "GB of memory" not in capsys.readouterr().out
