"""Every private row within its public bound, by itself, in exact arithmetic."""

import math

import pytest
import torch

from dpswd.loss import clip_rows


@pytest.mark.parametrize("bound", [0.5, 1.0, 3e-7, 1e6])
@pytest.mark.parametrize("dim", [2, 3, 784, 12_288])
def test_no_row_is_longer_than_the_bound_in_exact_arithmetic(bound, dim):
    generator = torch.Generator().manual_seed(dim)
    x = torch.randn(6, dim, dtype=torch.float64, generator=generator)
    x[1] = 1  # equal entries: every rounding goes the same way
    x[2] = 0.1
    x = x / x.norm(dim=1, keepdim=True) * bound
    x[3] *= 1 + 1e-13  # above by less than float32 can see
    x[4] *= 1e200
    x[5] *= 1 - 1e-13
    for row in clip_rows(x, bound).tolist():
        scaled = [value / bound for value in row]
        assert math.fsum(value * value for value in scaled) <= 1  # the products round by 1e-16 of 1 - 2e-12


def test_rows_are_clipped_one_by_one():
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x *= 0.4 / x.norm(dim=1, keepdim=True)
    x[1] *= 1e30
    x[2] = 1e300  # the norm overflows
    x[3] = 0
    x[4] = 5e-324  # the norm underflows
    clipped = clip_rows(x, 0.5)
    assert clipped.dtype == torch.float64
    assert torch.equal(clipped[[0, 3, 5]], x[[0, 3, 5]])  # what is inside stays, bit by bit, whatever its neighbours
    assert float(clipped[1].norm()) == pytest.approx(0.5, rel=1e-11)
    assert bool(torch.isfinite(clipped).all())
    assert float(clipped[2].norm()) <= 0.5
    assert float(clipped[4].norm()) <= 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_clipping_comes_after_the_cast_to_float64(dtype):
    x = torch.full((4, 784), 60.0, dtype=dtype)
    for row in clip_rows(x, 0.5).tolist():
        assert math.fsum(value * value for value in row) <= 0.25
