"""The picture of the README: real and synthetic images with the guarantee of the generator that made them."""

import json

from PIL import Image

from dpswd.estimators import PrivateGenerator
from experiments.generation import readme_picture


def test_picture_of_digits(tmp_path, monkeypatch):
    result = readme_picture.run(tmp_path, quick=True)
    (row,) = json.loads(json.dumps(result))["rows"]
    assert row["sound"]
    assert 9.9 < row["epsilon"] <= readme_picture.EPSILON
    with Image.open(tmp_path / "readme.png") as picture:
        assert picture.width > 900

    monkeypatch.setattr(PrivateGenerator, "fit", None)  # a second picture is drawn with the same generator
    assert readme_picture.run(tmp_path, quick=True) == result
