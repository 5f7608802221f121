"""Products of float32 matrices: equal to exact ones up to rounding, whatever the layout; plain where they must be."""

import pytest
import torch

from dpswd import products
from dpswd.products import product

SIZES = [
    (256, 1000, 40),
    (1, 3000, 400),
    (1001, 783, 9),
    (5000, 2, 300),
    (3, 4, 5),
    (4, 0, 3),
    (0, 4, 3),
    (2000, 700, 1),
]


def layouts(rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    yield torch.randn(rows, columns, generator=generator)
    yield torch.randn(columns, rows, generator=generator).T
    yield torch.randn(2 * rows, 2 * columns, generator=generator)[::2, ::2]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_equals_the_exact_product(size):
    n, inner, m = size
    for a in layouts(n, inner, 0):
        for b in layouts(inner, m, 1):
            exact = a.double() @ b.double()
            # a sum of l terms in float32 is within l 2^-24 of exact, relative to the sum of the absolute values
            bound = inner * 2.0**-24 * (a.abs().double() @ b.abs().double())
            found = product(a, b)
            assert found.shape == (n, m)
            assert found.dtype == torch.float32
            assert bool(((found - exact).abs() <= bound).all())


def test_is_float32_and_no_less():
    a, b = (next(layouts(1200, 1200, seed)) for seed in (0, 1))
    exact = a.double() @ b.double()
    error = (product(a, b) - exact).square().mean().sqrt()
    coarse = (a.bfloat16().float() @ b.bfloat16().float() - exact).square().mean().sqrt()
    assert float(error) < 1e-2 * float(coarse)  # control: operands in bfloat16 are 2^16 times as coarse


def test_not_finite_is_seen():
    a = torch.ones(1100, 1000)
    a[3, 7] = float("nan")
    found = product(a, torch.ones(1000, 3))
    assert bool(found[3].isnan().all())
    assert bool((found[:3] == 1000).all())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_go_to_torch(dtype, monkeypatch):
    monkeypatch.setattr(products, "_linear", lambda: pytest.fail("not float32"))
    a = torch.ones(1100, 1000, dtype=dtype)
    assert torch.equal(product(a, a.T), a @ a.T)


@pytest.mark.parametrize("broken", ["missing", "refused", "wrong"])
def test_an_operator_that_is_not_what_it_was_is_left_alone(broken, monkeypatch):
    def refuse(*_):
        raise RuntimeError("signature")

    operators = {"refused": refuse, "wrong": lambda a, b, *_: a @ b.T + 1}
    monkeypatch.setattr(torch.ops, "mkldnn", type("Namespace", (), {"_linear_pointwise": operators.get(broken)}))
    products._linear.cache_clear()
    try:
        assert products._linear() is None
        a = torch.ones(1100, 1000)
        assert torch.equal(product(a, a.T), a @ a.T)
    finally:
        products._linear.cache_clear()


def test_without_onednn(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    products._linear.cache_clear()
    try:
        assert products._linear() is None
    finally:
        products._linear.cache_clear()
