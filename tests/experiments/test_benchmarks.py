"""Benchmarks: the contestants agree, and processes share the records. Never timings."""

import pytest
import torch

from experiments.benchmarks import benchmarks, parts
from experiments.benchmarks.benchmarks import Problem


@pytest.mark.parametrize("size", [(30, 5, 40), (1, 3, 7), (257, 12, 33)])
def test_contestants_agree(size):
    found = {}
    for name in ("ours", "pot", "naive"):
        problem = Problem.make(*size)
        found[name] = float(benchmarks.DISTANCES[name](problem)), problem.y.grad
    for value, gradient in (found["pot"], found["naive"]):
        assert found["ours"][0] == pytest.approx(
            value, rel=1e-5
        )  # float32: sums of n k terms, pairwise
        torch.testing.assert_close(found["ours"][1], gradient, rtol=1e-3, atol=1e-6 / size[0])
    assert found["ours"][0] == pytest.approx(benchmarks.exact(Problem.make(*size)), rel=1e-5)


@pytest.mark.slow
def test_parts_of_two_processes_read_half_each(monkeypatch, tmp_path):
    images = torch.randint(0, 256, (60, 32, 32, 3), dtype=torch.uint8).numpy()
    monkeypatch.setattr(parts, "cifar", lambda root: (images, torch.arange(60).numpy() % 10))
    one, two = (parts.measure(parts.Fit(200, n), None) for n in (1, 2))
    assert one["records_read"] == 2 * two["records_read"] > 0
    assert two["peak_bytes"] > 0
    assert parts.cost([one | {"n": 200}])["passes"] > 1
