"""Figure 6: repeated faces, and the published algorithm cut short."""

import numpy as np
import pytest
import torch
from PIL import Image

from dpswd.data import benchmark
from dpswd.errors import InputError
from experiments.generation import fig6


@pytest.fixture
def faces(tmp_path):
    """A data directory with 25 random pictures of 64 x 64: 20 private ones and 5 for testing."""
    rng = np.random.default_rng(0)
    (tmp_path / "celeba64").mkdir()
    for i in range(25):
        Image.fromarray(rng.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "celeba64" / f"{i:02}.png")
    return tmp_path


def test_repeated_faces_have_the_number_of_the_paper(faces):
    records = fig6.repeated(benchmark("celeba", faces).train)
    assert len(records) == 162_000
    rows, _ = records.open_records(torch.tensor([3, 23, 161_983, 4]))
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])
    assert not torch.equal(rows[0], rows[3])


def test_published_algorithm_on_faces(faces, tmp_path, monkeypatch):
    monkeypatch.setattr(fig6, "STEPS", {False: 2})
    (row,) = fig6.published(tmp_path / "out", data=faces, only="DP-SWD-c")["rows"]
    assert (row["sigma"], row["sound"], row["sample_size"], row["steps"]) == (0.37, False, 20, 2)
    assert row["frechet"] > 0
    assert (tmp_path / "out" / "fig6_published.png").exists()
    (again,) = fig6.published(tmp_path / "out", data=faces, only="DP-SWD-c")["rows"]  # from the checkpoint
    assert again == row
    with pytest.raises(InputError, match="--only"):
        fig6.published(tmp_path, data=faces, only="ours")


def test_generator_and_discriminator_are_trained_on_faces(faces):
    private = benchmark("celeba", faces).train
    weights = []
    for steps in (1, 2):
        torch.manual_seed(0)
        generator, _ = fig6.train(private, 0.37, steps, None)
        weights.append([parameter.detach() for parameter in generator.parameters()])
    assert all(not torch.equal(first, second) for first, second in zip(*weights, strict=True))
