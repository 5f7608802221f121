"""Directions and products in float32 (docs/theory/sensitivity.md, Proposition 38)."""

import math

import numpy as np
import pytest
import torch

from dpswd import DPSlicedWassersteinLoss, InputError, PrivacyAccountant, ProjectionMechanism
from dpswd.audit import audit
from dpswd.clipping import unit_rows
from dpswd.mechanism import mechanism_from_dict
from dpswd.sensitivity import ConstantLaw, ProjectionLaw, RoundedLaw, product_error

QUANTILES = {"statistic": "quantiles", "n_quantiles": 3}


def mechanism(**changes):
    values = {"dim": 40, "n_projections": 60, "sigma": 0.5, "batch_size": 12}
    return ProjectionMechanism(**(values | {"precision": "single"} | changes))


def hard_rows(generator, trial, dim=40):
    """Rows (2, d) whose squares, products and sums are hard for float32."""
    rows = torch.randn(2, dim, generator=generator)
    scale = [1.0, 1e-30, 3e38 / 10, 1e18, 0.08][trial % 5]
    if trial % 2:
        rows = rows.sign()
    if trial % 3 == 0:
        rows[:, 1:] *= 1e-20
    return rows * scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("row_norm", [1e-45, 1e-10, 0.5, 1e10, 1e45])
def test_no_row_is_longer_than_one(dtype, row_norm):
    generator = torch.Generator().manual_seed(0)
    for trial in range(60):
        rows = hard_rows(generator, trial, 8192).to(dtype).nan_to_num()
        units = unit_rows(rows, row_norm)
        assert units.dtype == torch.float32
        assert float(units.double().norm(dim=1).max()) <= 1


def test_rows_are_those_of_the_clip_up_to_the_margin():
    rows = torch.randn(50, 784, generator=torch.Generator().manual_seed(0)) / 28
    for kind in (torch.float32, torch.float64):
        units = unit_rows(rows.to(kind), 1.0).double()
        exact = rows.double()
        exact *= (1 / exact.norm(dim=1, keepdim=True)).clamp(max=1)
        assert float((units - exact).norm(dim=1).max()) < 3 * (784 + 8) * 2**-24


class LowPrecision(DPSlicedWassersteinLoss):
    """A loss whose products are rounded away from zero to multiples of 1/64: broken."""

    def _projected(self, rows, projections, size):
        for part, factor in super()._projected(rows, projections, size):
            yield part.mul(64).abs().ceil().div(64) * part.sign(), factor


def largest_move(loss):
    """The largest move of the statistic over 400 neighbours, in units of its bound.

    The bound is that of the directions that were drawn.
    """
    made = loss.mechanism
    error = product_error(made.dim) * math.sqrt(made.n_projections)
    generator = torch.Generator().manual_seed(0)
    ratios = []
    for trial in range(400):
        first = torch.cat([hard_rows(generator, trial + i) for i in range(6)])
        if trial % 3 == 0:
            first[:] = first[0]
        second = first.clone()
        second[0] = -first[0] if trial % 2 else hard_rows(generator, trial + 1)[0]
        directions = loss.draw_projections()
        before = loss.exact_values(first, None, directions)
        moved = float((loss.exact_values(second, None, directions) - before).norm())
        step = unit_rows(first[:1], 0.5).double() - unit_rows(second[:1], 0.5).double()
        exact = float((step @ directions.double()).norm()) / 2
        ratios.append(moved / (made.unit_sensitivity * (exact + error)))
    return max(ratios)


@pytest.mark.parametrize("kind", ["iid", "orthogonal"])
@pytest.mark.parametrize("statistic", [{}, QUANTILES])
def test_release_moves_by_its_sensitivity_at_most(statistic, kind):
    """A control: products of lower precision move by more."""
    made = mechanism(**statistic, kind=kind)
    assert 0.999 < largest_move(DPSlicedWassersteinLoss(made)) <= 1
    assert largest_move(LowPrecision(made)) > 1.001


@pytest.mark.parametrize("threads", [1, 3], indirect=True)
@pytest.mark.parametrize("dim", [40, 784, 3000])
@pytest.mark.usefixtures("threads")
def test_error_of_products_is_below_its_bound(dim):
    """Rows of one sign are added up with the largest error."""
    made = mechanism(dim=dim, n_projections=50, kind="iid")
    loss = DPSlicedWassersteinLoss(made)
    rows = torch.rand(12, dim, generator=torch.Generator().manual_seed(0))
    directions = loss.draw_projections().abs()
    values = loss.exact_values(rows, None, directions)
    exact = unit_rows(rows, 0.5).double() @ directions.double() / 2
    largest = float((values - exact).abs().max())
    assert 0 < largest <= product_error(dim) / 2


@pytest.mark.parametrize("threads", [1, 3], indirect=True)
@pytest.mark.usefixtures("threads")
def test_private_values_are_those_of_double_precision():
    rows = torch.randn(12, 40, generator=torch.Generator().manual_seed(0))
    single = DPSlicedWassersteinLoss(mechanism())
    double = DPSlicedWassersteinLoss(mechanism(precision="double"))
    directions = single.draw_projections()
    assert directions.dtype == torch.float32
    values = single.exact_values(rows, None, directions)
    exact = double.exact_values(rows, None, directions.double())
    assert values.dtype == torch.float64
    assert float((values - exact).abs().max()) < 1e-5


@pytest.mark.parametrize("exact", [ProjectionLaw(20, 15), ProjectionLaw(20, 15, "orthogonal")])
def test_law_dominates_that_of_the_rounded_sensitivity(exact):
    law = RoundedLaw(exact, 0.05)
    generator = np.random.default_rng(0)
    directions = generator.standard_normal((20_000, 20, 15))
    if exact.kind == "orthogonal":
        directions = np.linalg.qr(directions)[0]
    else:
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    moved = (np.linalg.norm(directions[:, 0], axis=1) + 0.05) ** 2
    error = moved.std() / math.sqrt(len(moved))
    assert moved.mean() < law.mean + 5 * error
    atoms, weights = law.atoms()
    assert np.all(np.diff(atoms) > 0)
    assert weights.sum() == pytest.approx(1)
    for s in (0.6, 1.0, 1.4):
        beyond = (moved > s).mean()
        assert beyond - 5 * math.sqrt(beyond / len(moved)) <= weights[atoms > s].sum()
    for t in (0.5, 3.0):
        exponential = np.exp(t * moved)
        error = exponential.std() / math.sqrt(len(moved))
        assert math.log(exponential.mean() - 5 * error) <= float(law.log_mgf(t))
        assert float(law.log_mgf(t)) > float(exact.log_mgf(t))


def test_constant_law_stays_constant():
    law = mechanism(n_projections=80, kind="orthogonal").law
    assert law.is_constant
    assert law.mean == law.maximum
    assert law.mean == pytest.approx((math.sqrt(2) + product_error(40) * math.sqrt(80)) ** 2)
    assert float(law.log_mgf(2.0)) == pytest.approx(2 * law.mean)
    assert RoundedLaw(ConstantLaw(4.0), 1.0).mean == 9


@pytest.mark.parametrize(("dim", "k"), [(784, 100), (784, 1000), (8192, 2000)])
def test_epsilon_grows_by_less_than_one_percent(dim, k):
    single = ProjectionMechanism(dim, k, 1.0, 256, precision="single")
    numbers = []
    for made in (single.replace(precision="double"), single):
        accountant = PrivacyAccountant("rdp").step(made, sample_size=60_000, n_releases=1000)
        numbers.append(accountant.get_epsilon(1e-5))
    assert 1 < numbers[1] / numbers[0] < 1.01


def test_assumptions_and_ledger_name_single_precision():
    made = mechanism()
    accountant = PrivacyAccountant().step(made, sample_size=12)
    assert any("float32" in sentence for sentence in accountant.assumptions)
    assert "single precision" in made.description
    assert mechanism_from_dict(made.to_dict()) == made
    double = made.replace(precision="double")
    assert "precision" not in double.to_dict()
    assert mechanism_from_dict(double.to_dict()) == double


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "half"},
        {"kind": "structured", "n_projections": 64},
        {"n_classes": 2},
        {"dim": 2**16 + 1},
    ],
)
def test_mechanisms_without_a_bound_are_refused(changes):
    with pytest.raises(InputError, match="precision"):
        mechanism(**changes)


@pytest.mark.parametrize("changes", [{}, QUANTILES, QUANTILES | {"per_unit": 2}])
def test_audit_passes(changes):
    made = mechanism(kind="orthogonal", n_projections=40, **changes)
    sigma = made.unit_sensitivity * math.sqrt(made.law.mean) / 2
    result = audit(made.replace(sigma=sigma), 12, trials=600)
    assert result.passed
    assert result.mu_lower > 0.6 * result.mu_claimed  # the attack is strong
