"""The benchmark: contestants agree, parts run at tiny sizes, measurements are what they say. Never timings."""

import pytest
import torch

from dpswd.sliced import sliced_wasserstein
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


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_distance_of_values_that_are_not_finite(bad):
    problem = Problem.make(20, 4, 6)
    with torch.no_grad():
        problem.y[3, 2] = bad
    assert not bool(torch.isfinite(sliced_wasserstein(problem.x, problem.y.detach(), problem.u)))
    assert not bool(torch.isfinite(benchmarks.ours(problem)))
