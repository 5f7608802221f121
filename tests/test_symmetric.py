"""Principal axes that are equal on every machine."""

import pytest
import torch

from dpswd._symmetric import principal_axes, with_fixed_signs


def disturbed(matrix, seed):
    """Return the matrix with rounding errors, as another processor makes them."""
    generator = torch.Generator().manual_seed(seed)
    errors = torch.randn(matrix.shape, generator=generator, dtype=matrix.dtype)
    return matrix + 1e-16 * matrix.abs().max() * (errors + errors.T)


@pytest.mark.parametrize("rank", [0, 3, 12])
def test_axes_do_not_depend_on_rounding_errors(rank):
    generator = torch.Generator().manual_seed(rank)
    factor = torch.randn(12, rank, generator=generator, dtype=torch.float64)
    matrix = factor @ factor.T + torch.eye(12, dtype=torch.float64)  # 12 - rank equal eigenvalues
    values, axes = principal_axes(matrix)
    for seed in range(20):
        _, others = principal_axes(disturbed(matrix, seed))
        # Rounding errors of some 1e-16 over gaps of at least 1e-9 / 144.
        assert (axes - others).abs().max() < 1e-4
    torch.testing.assert_close(axes @ torch.diag(values) @ axes.T, matrix, atol=1e-7, rtol=1e-7)


def test_eigenvectors_without_a_rule_do_depend_on_them():
    matrix = torch.eye(12, dtype=torch.float64)
    axes = torch.linalg.eigh(disturbed(matrix, 0)).eigenvectors
    others = torch.linalg.eigh(disturbed(matrix, 1)).eigenvectors
    assert (axes - others).abs().max() > 0.1


def test_signs_do_not_depend_on_those_of_the_argument():
    axes = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    assert torch.equal(with_fixed_signs(axes), with_fixed_signs(-axes))
