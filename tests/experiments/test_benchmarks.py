"""The benchmark: contestants agree, parts run at tiny sizes, measurements are what they say. Never timings."""

import pytest
import torch

from experiments.benchmarks import benchmarks
from experiments.benchmarks.benchmarks import Problem


@pytest.mark.parametrize("size", [(30, 5, 40), (1, 3, 7), (257, 12, 33)])
def test_contestants_agree(size):
    found = {}
    for name in ("ours", "pot", "naive"):
        problem = Problem.make(*size)
        found[name] = float(benchmarks.DISTANCES[name](problem)), problem.y.grad
    for value, gradient in (found["pot"], found["naive"]):
        assert found["ours"][0] == pytest.approx(value, rel=1e-5)  # float32: sums of n k terms, pairwise
        torch.testing.assert_close(found["ours"][1], gradient, rtol=1e-3, atol=1e-6 / size[0])
    assert found["ours"][0] == pytest.approx(benchmarks.exact(Problem.make(*size)), rel=1e-5)
