"""Structured slices: tight frames, exact sums of private rows, sensitivity, gradients, files."""

import math

import numpy as np
import pytest
import torch

from dpswd import (
    Budget,
    DPSlicedWassersteinLoss,
    PrivateBatch,
    PrivateRecords,
    ProjectionMechanism,
    Release,
    StructuredProjections,
    random_projections,
    sliced_wasserstein,
)
from dpswd._hadamard import products_are_exact
from dpswd._random import SeededRandom
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.audit.game import audit
from dpswd.clipping import clip_rows
from dpswd.errors import InputError
from dpswd.sliced import smoothed_sliced_wasserstein
from dpswd.structured import apply_frame, fixed_point_frame

SIZES = pytest.mark.parametrize(
    ("d", "k"), [(2, 2), (5, 8), (8, 24), (33, 128), (100, 256), (784, 1024)]
)


def draw(d, k, seed=0):
    return StructuredProjections.draw(d, k, generator=SeededRandom(seed))


def sample(n, d, seed=0, dtype=torch.float64):
    return torch.randn(n, d, dtype=dtype, generator=torch.Generator().manual_seed(seed))


# Tight frames


@SIZES
def test_frames_are_tight(d, k):
    directions = draw(d, k).dense()
    assert directions.shape == draw(d, k).shape == (d, k)
    gram = directions @ directions.T
    torch.testing.assert_close(gram, k / d * torch.eye(d).double(), rtol=0, atol=1e-13 * k / d)
    assert float(directions.square().sum(0).mean()) == pytest.approx(1)
    independent = random_projections(d, k, generator=SeededRandom(0))  # a control
    assert not torch.allclose(independent @ independent.T, gram, atol=1e-3)


def test_a_frame_is_signs_and_hadamard_matrices():
    """Against the product of matrices."""
    hadamard = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(3):
        upper = torch.cat([hadamard, hadamard], dim=1)
        lower = torch.cat([hadamard, -hadamard], dim=1)
        hadamard = torch.cat([upper, lower])
    projections = draw(6, 8)
    matrix = torch.eye(8, dtype=torch.float64)
    for signs in projections.signs[0].double():
        matrix = hadamard @ (signs[:, None] * matrix)
    torch.testing.assert_close(projections.dense().T, matrix[:, :6] / (8 * math.sqrt(6)))


@SIZES
def test_projections_and_gradient_equal_those_of_the_matrix(d, k):
    projections = draw(d, k)
    rows = sample(7, d).requires_grad_()
    torch.testing.assert_close(projections.project(rows), rows @ projections.dense())
    weights = sample(7, k, 1)
    (ours,) = torch.autograd.grad((projections.project(rows) * weights).sum(), rows)
    torch.testing.assert_close(ours, weights @ projections.dense().T)


def test_many_rows_are_projected_in_parts():
    projections = draw(500, 512)
    rows = sample(2500, 500, dtype=torch.float32)
    torch.testing.assert_close(
        projections.project(rows), rows @ projections.dense().float(), rtol=1e-4, atol=1e-4
    )


def test_no_rows_have_no_projections():
    assert draw(5, 16).project(torch.zeros(0, 5)).shape == (0, 16)


def test_squared_norms_of_slices_vary_as_stated():
    d, n = 300, 512
    squares = draw(d, 40 * n).dense().square().sum(0)
    assert float(squares.std()) == pytest.approx(math.sqrt(2 * (1 / d - 1 / n)), rel=0.05)


def test_signs_are_fresh_and_repeat_with_a_generator_only():
    torch.manual_seed(0)
    first = StructuredProjections.draw(5, 16).signs
    torch.manual_seed(0)
    assert not torch.equal(first, StructuredProjections.draw(5, 16).signs)
    assert torch.equal(draw(5, 16, 3).signs, draw(5, 16, 3).signs)
    seeded = [
        StructuredProjections.draw(5, 16, generator=torch.Generator().manual_seed(1)).signs
        for _ in range(2)
    ]
    assert torch.equal(*seeded)
    signs = StructuredProjections.draw(512, 2**14).signs.double()
    assert abs(float(signs.mean())) < 5 / math.sqrt(signs.numel())


# Input that is refused


@pytest.mark.parametrize(
    ("d", "k", "word"),
    [(1, 8, "dim"), (5, 0, "n_projections"), (5, 12, "multiple of 8"), (784, 784, "use 1024")],
)
def test_sizes_that_do_not_fit_are_refused(d, k, word):
    with pytest.raises(InputError, match=word):
        StructuredProjections.draw(d, k)


def test_a_source_that_is_none_is_refused():
    with pytest.raises(InputError, match="generator"):
        StructuredProjections.draw(5, 8, generator=3)


@pytest.mark.parametrize(
    "signs",
    [
        torch.ones(1, 3, 4, dtype=torch.int8),
        torch.ones(1, 3, 8),
        torch.zeros(1, 3, 8, dtype=torch.int8),
        torch.ones(0, 3, 8, dtype=torch.int8),
    ],
)
def test_signs_that_are_none_are_refused(signs):
    with pytest.raises(InputError, match="signs"):
        StructuredProjections(signs, 5)


@pytest.mark.parametrize("rows", [torch.zeros(3, 4), torch.zeros(5), torch.zeros(3, 5).int()])
def test_rows_that_do_not_fit_are_refused(rows):
    with pytest.raises(InputError, match="rows"):
        draw(5, 8).project(rows)


def test_a_mechanism_of_parts_of_frames_is_refused():
    with pytest.raises(InputError, match="multiple of 1024"):
        ProjectionMechanism(784, 784, 1.0, 10, kind="structured")


# Exact sums of private rows


def exact_frame(signs, rows, bound):
    """The definition of Proposition 33 in Python's integers, for float32."""
    size = signs.shape[-1]
    half = math.ceil(math.log2(size) / 2)
    largest = 2 ** (24 - half)
    columns = []
    for row in rows.tolist():
        values = [int(entry * (largest / bound)) for entry in row] + [0] * (size - len(row))
        for number, of_round in enumerate(signs.tolist()):
            if number:
                values = [int(math.copysign(abs(v) // 2**half, v)) for v in values]
            values = [sign * v for sign, v in zip(of_round, values, strict=True)]
            width = 1
            while width < size:  # in another order than the library
                for start in range(0, size, 2 * width):
                    for i in range(start, start + width):
                        pair = values[i], values[i + width]
                        values[i] = pair[0] + pair[1]
                        values[i + width] = pair[0] - pair[1]
                width *= 2
        columns.append(values)
    return torch.tensor(columns, dtype=torch.float64).T


@pytest.mark.parametrize(("d", "n"), [(5, 8), (64, 64), (100, 128)])
def test_sums_are_exact(d, n):
    bound = 0.7
    rows = clip_rows(10 * sample(9, d), bound)
    rows[0] = 0
    rows[0, 0] = bound  # all of the norm in one entry
    rows[1] = bound * (1 - 1e-12) / math.sqrt(d)
    signs = draw(d, n).signs[0]
    integers, factor = fixed_point_frame(signs, rows, bound)
    assert torch.equal(integers.double(), exact_frame(signs, rows, bound))
    exact = apply_frame(signs, rows)
    torch.testing.assert_close(integers.double() * factor, exact, rtol=0, atol=1e-5)


def hardest_rows(d, generator, trial):
    """A row at the limits: spread, sparse, huge, tiny, or aligned with a slice."""
    row = torch.randn(d, dtype=torch.float64, generator=generator)
    if trial % 5 == 1:
        row = torch.zeros(d, dtype=torch.float64)
        row[trial % d] = 1e300
    elif trial % 5 == 2:
        row *= 1e160  # its norm overflows
    elif trial % 5 == 3:
        row = row.sign()
    elif trial % 5 == 4:
        row *= 5e-324
    return row


@pytest.mark.parametrize("d", [3, 100, 1000, 2**14 + 1])
def test_no_row_is_lengthened(d):
    """A control: rows that are rounded to the nearest float32 are longer than the bound."""
    n_trials = 400 if d < 10**4 else 40
    bound = 0.5
    projections = draw(d, 2 ** math.ceil(math.log2(d)))
    generator = torch.Generator().manual_seed(0)
    rows = torch.stack([hardest_rows(d, generator, trial) for trial in range(n_trials)])
    rows = clip_rows(rows, bound)
    integers, factor = fixed_point_frame(projections.signs[0], rows, bound)
    limit = bound * math.sqrt(projections.shape[1] / d)
    assert float((integers.double() * factor).norm(dim=0).max()) <= limit
    rounded = apply_frame(projections.signs[0], rows.float().double()).norm(dim=0)
    assert float(rounded.max()) > limit


def test_a_row_does_not_depend_on_the_others():
    rows = clip_rows(sample(1200, 300), 0.5)
    signs = draw(300, 512).signs[0]
    together, _ = fixed_point_frame(signs, rows, 0.5)
    for part in (slice(1, 2), slice(3, 900)):
        alone, _ = fixed_point_frame(signs, rows[part], 0.5)
        assert torch.equal(alone, together[:, part])


# Sensitivity


def mechanism(**changes):
    values = {
        "dim": 11,
        "n_projections": 32,
        "sigma": 0.5,
        "batch_size": 12,
        "kind": "structured",
    }
    return ProjectionMechanism(**(values | changes))


QUANTILES = {"statistic": "quantiles", "n_quantiles": 3}


class RepeatedSlice(DPSlicedWassersteinLoss):
    """A loss whose frames repeat their first slice in place of all others: broken."""

    def _projected(self, rows, projections, size):
        for part, factor in super()._projected(rows, projections, size):
            yield part[:1].expand_as(part).clone(), factor


def largest_move(loss, n_classes):
    """The largest move of the statistic over 400 neighbours, in units of the claim."""
    made = loss.mechanism
    claimed = made.unit_sensitivity * math.sqrt(made.law.maximum)
    generator = torch.Generator().manual_seed(0)
    ratios = []
    for trial in range(400):
        first = torch.stack([hardest_rows(11, generator, trial + i) for i in range(12)])
        if trial % 3 == 0:
            first[:] = first[0]
        second = first.clone()
        second[0] = -first[0] if trial % 3 < 2 else hardest_rows(11, generator, trial + 1)
        labels = None
        changed = None
        if n_classes is not None:
            labels = torch.randint(1 if trial % 3 == 0 else 3, (12,), generator=generator)
            changed = labels.clone()
            if trial % 4 == 1:
                changed[0] = (labels[0] + 1) % 3
        signs = loss.draw_projections()
        before = loss.exact_values(first, labels, signs)
        after = loss.exact_values(second, changed, signs)
        ratios.append(float((after - before).norm()) / claimed)
    return max(ratios)


@pytest.mark.parametrize("n_classes", [None, 3])
@pytest.mark.parametrize("statistic", [{}, QUANTILES])
def test_release_moves_by_its_sensitivity_at_most(statistic, n_classes):
    """A control: repeated slices move by more."""
    made = mechanism(**statistic, n_classes=n_classes)
    assert 0.999 < largest_move(DPSlicedWassersteinLoss(made), n_classes) <= 1
    assert largest_move(RepeatedSlice(made), n_classes) > 1.01


def test_sensitivity_is_constant_and_that_of_whole_bases():
    law = mechanism().law
    assert law.is_constant
    assert law.mean == law.maximum == 32 / 11
    assert float(law.log_mgf(2.0)) == pytest.approx(2 * 32 / 11)
    assert law.survival([1.0, 4.0]).tolist() == [1, 0]
    assert law.atoms()[0].tolist() == [32 / 11]
    ours = PrivacyAccountant().step(mechanism(), sample_size=12)
    whole = ProjectionMechanism(
        11, 33, 0.5 * math.sqrt(33 / 32), 12, kind="orthogonal"
    )  # as much in units of sigma
    bases = PrivacyAccountant().step(whole, sample_size=12)
    assert any("structured slices" in each for each in ours.assumptions)
    assert not any("structured slices" in each for each in bases.assumptions)
    assert ours.get_epsilon(1e-5) == pytest.approx(bases.get_epsilon(1e-5), rel=1e-9)


@pytest.mark.parametrize("changes", [QUANTILES, {"n_classes": 2}, QUANTILES | {"per_unit": 2}])
def test_audit_passes(changes):
    made = mechanism(**changes)
    sigma = made.unit_sensitivity * math.sqrt(made.law.mean) / 2
    result = audit(made.replace(sigma=sigma), 12, trials=600)
    assert result.passed
    assert result.mu_lower > 0.6 * result.mu_claimed  # the attack is strong


# Distances


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("m", [23, 40])
def test_distance_and_gradient_equal_those_of_the_matrix(p, m):
    projections = draw(33, 128)
    x = sample(40, 33)
    y = sample(m, 33, 1).requires_grad_()
    ours = sliced_wasserstein(x, y, projections, p)
    dense = sliced_wasserstein(x, y, projections.dense(), p)
    torch.testing.assert_close(ours, dense)
    torch.testing.assert_close(*(torch.autograd.grad(value, y)[0] for value in (ours, dense)))


def test_distance_in_half_precision_is_computed_in_float32():
    x, y = sample(9, 5, dtype=torch.bfloat16), sample(9, 5, 1, dtype=torch.bfloat16)
    projections = draw(5, 8)
    distance = sliced_wasserstein(x, y, projections)
    assert distance.dtype == torch.float32
    torch.testing.assert_close(distance, sliced_wasserstein(x.float(), y.float(), projections))


def test_smoothed_distance_takes_structured_slices():
    x, y = sample(200, 5), sample(200, 5, 1) + 1
    projections = draw(5, 64)
    exact = sliced_wasserstein(x, y, projections)
    assert float(smoothed_sliced_wasserstein(x, y, projections, 0.0)) == float(exact)
    assert float(smoothed_sliced_wasserstein(x, y, projections, 0.1)) == pytest.approx(
        float(exact), rel=0.1
    )


def test_distance_varies_less_than_that_of_independent_directions():
    x, y = sample(50, 60), sample(50, 60, 1) + 0.3
    ours = [float(sliced_wasserstein(x, y, draw(60, 64, seed))) for seed in range(40)]
    independent = [
        float(sliced_wasserstein(x, y, random_projections(60, 64, generator=SeededRandom(seed))))
        for seed in range(40)
    ]
    ours, independent = torch.tensor(ours), torch.tensor(independent)
    assert float(ours.std()) < float(independent.std()) / 1.5
    assert abs(float(ours.mean() - independent.mean())) < 4 * float(independent.std()) / 40**0.5


@pytest.mark.parametrize(
    ("statistic", "n_classes"), [({}, None), (QUANTILES, None), (QUANTILES, 3), ({}, 3)]
)
@pytest.mark.parametrize("n", [12, 14])
def test_loss_equals_that_of_the_matrix(statistic, n_classes, n):
    made = mechanism(**statistic, n_classes=n_classes, noise_seed=0, sigma=1e-9)
    loss = DPSlicedWassersteinLoss(made)
    dense_loss = DPSlicedWassersteinLoss(made.replace(kind="iid"))
    private = clip_rows(sample(12, 11), 0.5)
    labels = public_labels = None
    if n_classes:
        labels = torch.arange(12) % n_classes
        public_labels = torch.arange(n) % n_classes
    projections = draw(11, 32)
    values = loss.exact_values(private, labels, projections.signs)
    expected = dense_loss.exact_values(private, labels, projections.dense())
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-5)
    public = (0.2 * sample(n, 11, 2)).requires_grad_()
    gradients = []
    for of_loss, directions in ((loss, projections), (dense_loss, projections.dense())):
        value = of_loss.distance(Release(values, directions, made), public, public_labels)
        gradients.append(torch.autograd.grad(value, public)[0])
    torch.testing.assert_close(*gradients, rtol=1e-5, atol=1e-7)


def test_estimate_is_that_of_the_exact_distance():
    made = mechanism(**QUANTILES, sigma=0.02, noise_seed=1, n_projections=320)
    loss = DPSlicedWassersteinLoss(made)
    private = clip_rows(sample(12, 11), 0.5)
    public = clip_rows(sample(12, 11, 1) + 0.5, 0.5)
    estimates = [loss.estimate(loss.release(private), public) for _ in range(30)]
    directions = draw(11, 20_000 // 16 * 16).dense()
    blocks = []
    for rows in (private, public):
        blocks.append((rows @ directions).sort(dim=0).values.view(3, 4, -1).mean(1))
    exact = float((blocks[0] - blocks[1]).square().mean())
    errors = torch.tensor([(each.value - exact) / each.standard_error for each in estimates])
    assert abs(float(errors.mean())) < 1
    assert float(errors.abs().max()) < 6


# Files and budgets


def test_state_of_a_release_holds_the_signs_alone(tmp_path):
    loss = DPSlicedWassersteinLoss(mechanism(**QUANTILES))
    release = loss.release(sample(12, 11))
    path = tmp_path / "release.pt"
    torch.save(release.state_dict(), path)
    state = torch.load(path, weights_only=True)
    assert state["projections"].dtype == torch.int8
    assert state["projections"].shape == (2, 3, 16)
    restored = Release.from_state_dict(state)
    public = 0.2 * sample(9, 11, 3)
    assert torch.equal(loss.distance(restored, public), loss.distance(release, public))
    assert restored.to("cpu").projections.shape == (11, 32)
    rows = sample(4, 11)
    torch.testing.assert_close(restored.project(rows), rows @ release.projections.dense())
    state["projections"] = state["projections"][:1]
    with pytest.raises(InputError, match="32 slices"):
        Release.from_state_dict(state)


def test_budget_states_and_resumes_a_release(tmp_path):
    records = PrivateRecords(
        sample(12, 11, dtype=torch.float32), torch.arange(12) % 2, classes=[0, 1]
    )
    made = mechanism(**QUANTILES, n_classes=2)

    def spend(resume):
        loss = DPSlicedWassersteinLoss(made)
        options = {"target_epsilon": 4.0, "target_delta": 1e-5, "run_dir": tmp_path}
        budget = Budget(records, [loss], resume=resume, **options)
        with budget:
            release = loss.release(PrivateBatch(records, 12))
        return release, budget.statement()

    first, statement = spend(resume=False)
    again, _ = spend(resume=True)
    assert statement["sound"]
    assert statement["epsilon"] <= 4
    assert torch.equal(first.values, again.values)
    assert torch.equal(first.projections.signs, again.projections.signs)
    s = 32 / 11
    sensitivity = 2 * 0.5 / 4 * math.sqrt(s)
    assert statement["mu"] == pytest.approx(sensitivity / first.mechanism.sigma, rel=1e-3)


def test_inexact_products_are_replaced_by_additions(monkeypatch):
    """Products of a library that is set to bfloat16 would be lengthened."""
    rows = clip_rows(sample(9, 100), 0.5)
    signs = draw(100, 128).signs[0]
    expected, _ = fixed_point_frame(signs, rows, 0.5)
    multiply = np.matmul

    def imprecise(left, right, **options):
        right = torch.from_numpy(right.copy()).bfloat16().to(torch.float32).numpy()
        return multiply(left, right, **options)

    monkeypatch.setattr(np, "matmul", imprecise)
    products_are_exact.cache_clear()
    try:
        values, _ = fixed_point_frame(signs, rows, 0.5)
    finally:
        products_are_exact.cache_clear()
    assert torch.equal(values, expected)
