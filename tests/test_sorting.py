"""Sorts of many columns: equal to torch.sort for all values, types and thread counts."""

import pytest
import torch

from dpswd._sorting import sort_columns, sort_rows, sort_rows_with_order

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


def test_order_with_flushed_denormals():
    rows = torch.cat([torch.zeros(1, 500), VALUES[:1]], dim=1)
    torch.set_flush_denormal(True)
    try:
        _, order = sort_rows_with_order(rows)
    finally:
        torch.set_flush_denormal(False)
    assert torch.equal(order.sort(dim=1).values[0], torch.arange(1500))


def test_gradient_of_sorted_columns():
    values = torch.randn(9, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(sort_columns, values)
    assert torch.autograd.gradgradcheck(lambda v: sort_columns(v).square(), values)


def test_sorts_on_threads():
    rows = torch.randn(300, 1000, generator=torch.Generator().manual_seed(1))
    expected = rows.sort(dim=1).values
    torch.set_num_threads(3)
    try:
        found, order = sort_rows_with_order(rows)
        alone = sort_rows(rows.double())
    finally:
        torch.set_num_threads(1)
    assert torch.equal(found, expected)
    assert torch.equal(rows.gather(1, order), expected)
    assert torch.equal(alone.float(), expected)
