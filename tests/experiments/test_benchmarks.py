"""The benchmark runs, its contestants agree, its page is made from its results. Never timings."""

import json
import sys
from pathlib import Path

import pytest
import torch

from dpswd._sorting import sort_columns, sort_rows, sort_rows_with_order
from dpswd.sliced import sliced_wasserstein

sys.path.insert(0, str(Path(__file__).parents[2]))  # somebody else's wheel brings a top-level package of this name

from experiments.benchmarks import contestants, measure, page, picture
from experiments.benchmarks.__main__ import PAGE, RESULTS, main
from experiments.benchmarks.contestants import Problem


@pytest.mark.parametrize("size", [(30, 5, 40), (1, 3, 7), (257, 12, 33)])
def test_contestants_agree(size):
    found = {}
    for name in ("ours", "pot", "naive"):
        problem = Problem.make(*size)
        found[name] = float(contestants.DISTANCES[name](problem)), problem.y.grad
    for value, gradient in (found["pot"], found["naive"]):
        assert found["ours"][0] == pytest.approx(value, rel=1e-5)  # float32: sums of n k terms, pairwise
        torch.testing.assert_close(found["ours"][1], gradient, rtol=1e-3, atol=1e-6 / size[0])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("max_bytes", [1, 40 * 2 * 50 * 7, None], ids=["a direction", "seven", "all"])
def test_memory_does_not_change_results(max_bytes, threads):
    problem = Problem.make(50, 9, 61)
    torch.set_num_threads(threads)
    try:
        value = sliced_wasserstein(problem.x, problem.y, problem.u, max_bytes=max_bytes)
        value.backward()
    finally:
        torch.set_num_threads(1)
    gradient, problem.y.grad = problem.y.grad, None
    assert float(value.detach()) == pytest.approx(float(contestants.naive(problem)), rel=1e-6)
    torch.testing.assert_close(gradient, problem.y.grad, rtol=1e-4, atol=1e-8)


def test_autocast_does_not_reach_inside():
    problem = Problem.make(20, 4, 6)
    expected = contestants.ours(problem)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(contestants.ours(problem), expected)


VALUES = torch.randn(40, 1000, generator=torch.Generator().manual_seed(0))
EDGES = torch.tensor([[0.0, -0.0, 1e-45, -1e-45, 3e38, -3e38, 0.0, 1.0, -1.0, 1.0]])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rows", [VALUES, EDGES, VALUES[:, :1], VALUES[:, :0], VALUES.round()], ids=lambda r: r.shape)
def test_fast_sorts_are_torch_sorts(rows, dtype):
    rows = rows.to(dtype)
    values, order = sort_rows_with_order(rows)
    assert torch.equal(values, rows.sort(dim=1).values)
    assert torch.equal(rows.gather(1, order), values)
    assert torch.equal(order.sort(dim=1).values, torch.arange(rows.shape[1]).expand_as(order))  # a permutation
    assert torch.equal(sort_rows(rows), values)


def test_many_threads_sort_alike():
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


def test_the_order_survives_flushed_denormals():
    rows = torch.cat([torch.zeros(1, 500), VALUES[:1]], dim=1)
    torch.set_flush_denormal(True)
    try:
        _, order = sort_rows_with_order(rows)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(order.sort(dim=1).values[0], torch.arange(1500))


def test_not_finite_stays_not_finite_and_in_bounds():
    for bad in (float("nan"), float("inf"), -float("inf")):
        problem = Problem.make(20, 4, 6)
        with torch.no_grad():
            problem.y[3, 2] = bad
        assert not bool(torch.isfinite(sliced_wasserstein(problem.x, problem.y.detach(), problem.u)))
        assert not bool(torch.isfinite(contestants.ours(problem)))


def test_sorted_columns_have_the_gradient_of_a_permutation():
    values = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(ascending, values)
    assert torch.autograd.gradgradcheck(lambda v: sort_columns(v).square(), values)


def test_a_tiny_run_writes_results_and_a_page(tmp_path, capsys):
    out = tmp_path / "experiments.benchmarks.json"
    parts = ["sort", "distance", "step", "scaling", "cost"]
    assert main(["--tiny", "--rounds", "1", "--out", str(out), "--parts", *parts]) == 0
    content = json.loads(out.read_text())
    assert {row["part"] for row in content["rows"]} == set(parts)
    assert all(row["difference"] < 1e-5 for row in content["rows"] if row["part"] == "distance")
    assert capsys.readouterr().out == page.write(content)
    assert main(["--tiny", "--rounds", "1", "--out", str(out), "--parts", "sort"]) == 0  # the others stay
    assert len(json.loads(out.read_text())["rows"]) == len(content["rows"])


def test_the_picture_is_drawn_from_growth_and_cost(tmp_path):
    grown = [{"part": "scaling", "variable": v, "sizes": [1, 2], "seconds": [1, 2], "exponent": 1.0} for v in "ndkBT"]
    both = {"cpu_seconds": [1, 2], "above_bytes": [3, 4], "time_exponent": 1.0, "memory_exponent": 1.0}
    cost = [{"part": "cost", "variable": v, "sizes": [1, 2], **both} for v in "NBkdT"]
    path = tmp_path / "figures" / "scaling.png"
    assert not picture.draw(grown, path)
    assert not path.exists()
    assert picture.draw(grown + cost, path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_every_section_stands_what_it_can_say(monkeypatch):
    """Parts that take long: their sections, from made-up figures, and what is marked as missed."""
    rows = [
        {"part": "account", "what": "account", "seconds": 1.5},
        {"part": "account", "what": "calibrate", "seconds": 1.5},
        {
            "part": "compiled",
            "n": 3,
            "d": 2,
            "k": 1,
            "naive_s": 0.01,
            "compiled_s": 0.01,
            "ours_s": 0.001,
            "compile_s": 9.0,
        },
        {"part": "sketch", "n": 3, "d": 2, "k": 1, "seconds": 9.0, "peak_bytes": 1e9},
        {"part": "startup", "what": "import torch", "seconds": 2.0},
        {
            **{"part": "training", "config": "c.yaml", "steps": 10, "total_s": 10.0, "release_s": 1.0, "loss_s": 3.0},
            **{"epsilon_s": 1.0, "saving_s": 1.0, "rest_s": 0.1},
        },
    ]
    text = page.write(
        {"command": "c", "version": "0", "machine": {"processor": "p", "cores": 2, "python": "3"}, "rows": rows}
    )
    assert "epsilon takes 1.50 s **(missed)** (target: 1 s), the sigma for a given epsilon 1.50 s (target" in text
    assert "It does not pay" in text
    assert "peak memory of the whole process 1.00 GB" in text
    assert "| `c.yaml` | 10 | 700 | 43% **(missed)** | 1% | 1.00 | 1.00 | 1.00 |" in text  # of 7 s: 10 - 1 - 1 - 1


def test_page_is_made_from_the_results():
    assert PAGE.read_text() == page.write(json.loads(RESULTS.read_text())), (
        "run: python -m experiments.benchmarks --page"
    )


def test_rounds_are_interleaved(monkeypatch):
    calls = []
    found = measure.medians({name: lambda name=name: calls.append(name) for name in "ab"}, 3)
    assert calls == list("abababab")  # the warm-up too
    assert {name: rounds for name, (_, rounds) in found.items()} == {"a": 3, "b": 3}
    monkeypatch.setattr(measure, "SLOW", 0.0)
    assert measure.medians({"a": lambda: None}, 3)["a"][1] == 1


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux only")
def test_peak_memory_sees_what_is_allocated():
    code = "def before(): pass\ndef work(): bytearray(b'x') * 200_000_000"
    assert 1.95e8 < measure.peak_of(code)["above_bytes"] < 2.1e8  # what was free already may be taken first


def test_one_distance_fits_in_memory():
    code = """
import torch
from experiments.benchmarks import contestants
torch.set_num_threads(1)
def before():
    global problem
    contestants.ours(contestants.Problem.make(8, 20, 16))
    problem = contestants.Problem.make(60_000, 20, 200)
def work():
    contestants.ours(problem)
"""
    assert (
        measure.peak_of(code)["above_bytes"] < 4e8
    )  # 256 MiB and what the products take; 200 directions are 48 MB each
