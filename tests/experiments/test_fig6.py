"""Figure 6 from end to end on a few fake faces."""

import json

import numpy as np
import pytest
from PIL import Image

from dpswd import InputError
from experiments.generation import fig6


@pytest.fixture
def faces(tmp_path):
    """Fifty pictures in the layout of the folder of cropped faces."""
    rng = np.random.default_rng(0)
    (tmp_path / "celeba64").mkdir()
    for i in range(50):
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "celeba64" / f"{i:06}.png")
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:release", "ignore:Number of distinct clusters")  # forty faces
def test_figure_6(faces, tmp_path, monkeypatch):
    monkeypatch.setattr(fig6, "STEPS", {False: 2, True: 2})
    monkeypatch.setattr(fig6, "N_GENERATED", 20)
    result = fig6.run(tmp_path / "out", data=faces)
    rows = {row["method"]: row for row in result["rows"]}
    assert list(rows) == ["real training records", "no privacy", "exact", "Bernstein"]
    assert rows["exact"]["sound"] is rows["Bernstein"]["sound"] is True
    assert rows["no privacy"]["sound"] is None
    assert rows["Bernstein"]["sigma"] > 1.2 * rows["exact"]["sigma"]  # the price of the bound
    assert rows["real training records"]["small_cnn_frechet"] < rows["exact"]["small_cnn_frechet"]
    assert not any("fid" in row for row in result["rows"])
    assert (tmp_path / "out" / "fig6.png").exists()
    before = sorted((tmp_path / "out").iterdir())
    reports = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("fig6-*/*/report.json")]
    assert len(reports) == 2
    assert all(report["sound"] and report["releases"]["made"] > 2 for report in reports)
    with pytest.raises(InputError, match="Expected the weights of pytorch-fid at"):
        fig6.run(tmp_path / "out", data=faces, weights=tmp_path / "none.pth")
    assert sorted((tmp_path / "out").iterdir()) == before  # refused before anything is trained
