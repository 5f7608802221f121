"""Benchmarks: the contestants agree, and processes share the records. Never timings."""

import pytest
import torch

from experiments.benchmarks import benchmarks, field, measure, parts, structured_slices
from experiments.benchmarks.benchmarks import Problem, Size
from experiments.benchmarks.measure import exponent, usage_of
from experiments.tables import performance


@pytest.mark.parametrize("size", [(30, 5, 40), (1, 3, 7), (257, 12, 33)])
def test_contestants_agree(size):
    values = {}
    gradients = {}
    for name in ("ours", "pot", "naive"):
        problem = Problem.make(*size)
        values[name] = float(benchmarks.DISTANCES[name](problem))
        gradients[name] = problem.y.grad
    tolerance = 1e-5  # float32: sums of n k terms, pairwise
    for name in ("pot", "naive"):
        assert values["ours"] == pytest.approx(values[name], rel=tolerance)
        torch.testing.assert_close(
            gradients["ours"], gradients[name], rtol=1e-3, atol=1e-6 / size[0]
        )
    exact = benchmarks.exact(Problem.make(*size))
    assert values["ours"] == pytest.approx(exact, rel=tolerance)


def test_structured_slices_are_measured(monkeypatch):
    """The rows have what the tables read."""
    monkeypatch.setattr(measure, "LEAST_ROUNDS", 1)
    monkeypatch.setattr(measure, "BUDGET", 0.0)
    size = structured_slices.StepSize(Size(6, 5, 10), "structured", 16)
    rows = structured_slices.steps((size,), "cpu", (1,))
    rows += structured_slices.distances((Size(6, 5, 8),), "cpu", (1,))
    monkeypatch.setattr(structured_slices, "CLASS_SIZES", ((20, 2, 8, 8),))
    rows += structured_slices.classes("cpu", (1,))
    result = {"rows": rows, "machine": {"processor": "none"}, "version": "0", "command": "none"}
    assert "16 structured" in performance.structured_steps(result)
    assert "(6, 5, 8)" in performance.structured_distances(result)
    assert "20, 2, 8, 8" in performance.structured_classes(result)


def test_exponent_of_a_power():
    sizes = (1, 2, 4)
    assert exponent(sizes, [3 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    assert exponent(sizes, [1.0, 2.0, 4.0], least=4.0) == pytest.approx(0.0, abs=1e-12)


def test_usage_of_counts_what_work_allocates():
    code = """
import numpy as np
def before():
    pass
def work():
    np.ones(4_000_000).sum()
"""
    usage = usage_of(code)
    assert 30e6 < usage.above_bytes < 60e6  # an array of 32 MB
    assert usage.peak_bytes > usage.above_bytes
    assert usage.cpu_seconds > 0


def test_field_has_every_method_of_the_results():
    rows = field.collect()
    assert {row["method"] for row in rows} == {
        *(method.label for method in field.MEASURED),
        *(method.label for method in field.PRINTED),
    }
    assert {row["unit"] for row in rows if row["hours"]} == {"core", "GPU"}


@pytest.mark.slow
def test_parts_of_two_processes_read_half_each(monkeypatch, tmp_path):
    images = torch.randint(0, 256, (60, 32, 32, 3), dtype=torch.uint8).numpy()
    original = parts.Cifar(images, torch.arange(60).numpy() % 10)
    monkeypatch.setattr(parts, "cifar", lambda root: original)
    one = parts.measure(parts.Fit(200, 1, side=8), None)
    two = parts.measure(parts.Fit(200, 2, side=8), None)
    assert one["records_read"] == 2 * two["records_read"] > 0
    assert two["peak_bytes"] > 0
    assert parts.cost([one | {"n": 200}])["passes"] > 1
