"""Pictures of what to expect: public stand-ins, at the signal of a forecast."""

import numpy as np
import pytest
import torch
from PIL import Image

from dpswd.accounting.calibrate import planning_mu
from dpswd.commands.main import main
from dpswd.estimators.stand_ins import save_expectation, stand_ins
from dpswd.mixture.forecast import forecast


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 20), (3, 16, 16)])
@pytest.mark.parametrize("n_classes", [0, 3])
def test_stand_ins_have_the_shape_and_equal_classes(shape, n_classes):
    records = stand_ins(shape, 60, n_classes)
    assert (records.values.shape, records.values.dtype) == ((60, *shape), torch.uint8)
    counts = records.labels.bincount().tolist()
    assert counts == [60 // max(1, n_classes)] * max(1, n_classes)
    assert torch.equal(stand_ins(shape, 60, n_classes).values, records.values)
    # images of a class differ from each other
    assert records.floats().std(0).mean() > 0.05


def test_large_images_are_made_small():
    assert stand_ins((3, 256, 128), 2, 0).values.shape == (2, 3, 32, 16)


def test_pictures_depend_on_the_signal(tmp_path):
    mu = planning_mu(10, 1e-5)
    for name, n in (("few", 100), ("many", 100_000)):
        line = save_expectation(tmp_path / f"{name}.png", forecast(n, (1, 8, 8), 2, mu), 1e-5)
        assert line.startswith("public digits beside synthetic ones")
    with Image.open(tmp_path / "few.png") as few, Image.open(tmp_path / "many.png") as many:
        assert few.size == many.size
        assert np.asarray(few)[30:].std() > 10
    assert (tmp_path / "few.png").read_bytes() != (tmp_path / "many.png").read_bytes()


def test_the_command_writes_a_new_picture_and_names_it(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    words = ["forecast", "--shape", "8,8", "--n", "500", "--n-classes", "2"]
    for name in ("forecast.png", "forecast-2.png"):
        assert main(words) == 0
        assert f"Picture: {name}, public digits" in capfd.readouterr().out
        assert (tmp_path / name).exists()
    assert main([*words, "--picture", "forecast.png"]) == 2
    assert main([*words, "--json"]) == 0
    # tables have none, and no run is left behind
    assert main(["forecast", "--shape", "5", "--n", "500"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["forecast-2.png", "forecast.png"]
