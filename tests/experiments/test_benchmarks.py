"""The benchmark: contestants agree, parts run at tiny sizes, measurements are what they say. Never timings."""

import json
from pathlib import Path

import pytest
import torch

from dpswd._sorting import sort_columns, sort_rows, sort_rows_with_order
from dpswd.sliced import sliced_wasserstein
from experiments.benchmarks import benchmarks, measure
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


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("max_bytes", [1, 40 * 2 * 50 * 7, None], ids=["a direction", "seven", "all"])
def test_memory_limit_keeps_result(max_bytes, threads):
    problem = Problem.make(50, 9, 61)
    torch.set_num_threads(threads)
    try:
        value = sliced_wasserstein(problem.x, problem.y, problem.u, max_bytes=max_bytes)
        value.backward()
    finally:
        torch.set_num_threads(1)
    gradient, problem.y.grad = problem.y.grad, None
    assert float(value.detach()) == pytest.approx(float(benchmarks.naive(problem)), rel=1e-6)
    torch.testing.assert_close(gradient, problem.y.grad, rtol=1e-4, atol=1e-8)


def test_autocast_keeps_result():
    problem = Problem.make(20, 4, 6)
    expected = benchmarks.ours(problem)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(benchmarks.ours(problem), expected)


VALUES = torch.randn(40, 1000, generator=torch.Generator().manual_seed(0))
EDGES = torch.tensor([[0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 0.0, 1.0, -1.0, 1.0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [VALUES, EDGES, VALUES[:, :1], VALUES[:, :0], VALUES.round()], ids=lambda r: r.shape)
def test_sorts_equal_torch(rows, dtype):
    rows = rows.to(dtype)
    values, order = sort_rows_with_order(rows)
    assert torch.equal(values, rows.sort(dim=1).values)
    assert torch.equal(rows.gather(1, order), values)
    assert torch.equal(order.sort(dim=1).values, torch.arange(rows.shape[1]).expand_as(order))  # a permutation
    assert torch.equal(sort_rows(rows), values)


def test_sorts_on_threads():
    rows = torch.randn(300, 1000, generator=torch.Generator().manual_seed(1))
    expected = rows.sort(dim=1).values
    torch.set_num_threads(3)
    try:
        found, order = sort_rows_with_order(rows)
        doubles, _ = sort_rows_with_order(rows.double())
        alone = sort_rows(rows)
    finally:
        torch.set_num_threads(1)
    assert torch.equal(found, expected)
    assert torch.equal(rows.gather(1, order), expected)
    assert torch.equal(doubles.float(), expected)
    assert torch.equal(alone, expected)


def test_order_with_flushed_denormals():
    rows = torch.cat([torch.zeros(1, 500), VALUES[:1]], dim=1)
    torch.set_flush_denormal(True)
    try:
        _, order = sort_rows_with_order(rows)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(order.sort(dim=1).values[0], torch.arange(1500))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_distance_of_values_that_are_not_finite(bad):
    problem = Problem.make(20, 4, 6)
    with torch.no_grad():
        problem.y[3, 2] = bad
    assert not bool(torch.isfinite(sliced_wasserstein(problem.x, problem.y.detach(), problem.u)))
    assert not bool(torch.isfinite(benchmarks.ours(problem)))


def test_gradient_of_sorted_columns():
    values = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(sort_columns, values)
    assert torch.autograd.gradgradcheck(lambda v: sort_columns(v).square(), values)


def test_run_measures_missing_parts_and_draws(tmp_path, monkeypatch):
    parts = (benchmarks.sort, benchmarks.distance, benchmarks.step, benchmarks.scaling, benchmarks.cost)
    monkeypatch.setattr(benchmarks, "PARTS", parts)
    rows = benchmarks.run(tmp_path, quick=True)["rows"]
    json.dumps(rows, allow_nan=False)
    assert {row["part"] for row in rows} == {part.__name__ for part in parts}
    assert all(row["difference"] < 1e-5 for row in rows if row["part"] == "distance")
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert benchmarks.run(tmp_path, quick=True)["rows"] == rows  # nothing is measured twice


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", ["startup", "training", "sketch"])
def test_tiny_part(part):
    rows = benchmarks.measure(benchmarks.Part(part, True, 1))["rows"]
    assert rows
    if part == "training":
        assert rows[0]["steps"] == 12
        assert 0 < rows[0]["loss_s"] < rows[0]["total_s"]


def test_rounds_are_interleaved(monkeypatch):
    calls = []
    found = measure.medians({name: lambda name=name: calls.append(name) for name in "ab"}, 3)
    assert calls == list("abababab")  # the warm-up too
    assert {name: rounds for name, (_, rounds) in found.items()} == {"a": 3, "b": 3}
    monkeypatch.setattr(measure, "SLOW", 0.0)
    assert measure.medians({"a": lambda: None}, 3)["a"][1] == 1


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux only")
def test_peak_memory():
    code = "def before(): pass\ndef work(): bytearray(b'x') * 200_000_000"
    assert 1.95e8 < measure.peak_of(code)["above_bytes"] < 2.1e8  # free memory of the process may be used first


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux only")
def test_distance_fits_in_memory():
    code = """
import torch
from experiments.benchmarks.benchmarks import Problem, ours
torch.set_num_threads(1)
def before():
    global problem
    ours(Problem.make(8, 20, 16))
    problem = Problem.make(60_000, 20, 200)
def work():
    ours(problem)
"""
    assert measure.peak_of(code)["above_bytes"] < 4e8  # 256 MiB and the products; 200 directions are 48 MB each
