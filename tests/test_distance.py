"""Distance of two private sets: guarantee of each, shared directions, bias, refusals, resume."""

import math
import shutil

import pytest
import torch

from dpswd import InputError, PrivateRecords, ProjectionMechanism, private_distance
from dpswd._kernels import block_means
from dpswd.accounting.ledger import Ledger
from dpswd.loss import DPSlicedWassersteinLoss
from dpswd.slices import random_projections

N_QUANTILES = 5
OPTIONS = {"target_epsilon": 4.0, "target_delta": 1e-4, "n_quantiles": N_QUANTILES, "n_bases": 4}


def rows(n, shift, seed, d=3):
    """Rows (n, d) within the bound on their norm, around a shift."""
    generator = torch.Generator().manual_seed(seed)
    return 0.05 * torch.randn(n, d, generator=generator).clamp(-2, 2) + shift


# The noise is not seeded. The control lies 1.3 sqrt(N_RUNS) = 11 standard errors away, and must be
# more than 5 away: it fails by chance only beyond 6 standard errors.
N_RUNS = 72

A, B = rows(400, 0.05, 0), rows(603, -0.05, 1)


def exact_distance(x, y):
    """Squared distance of block means, averaged over many directions."""
    directions = random_projections(3, 3000, kind="orthogonal")
    means = [
        block_means((part @ directions).sort(dim=0).values, N_QUANTILES)
        for part in (x.double(), y.double())
    ]
    return float((means[0] - means[1]).square().mean())


def measure(path, x=A, y=B, **options):
    return private_distance(
        PrivateRecords(x), PrivateRecords(y), run_dir=path, **(OPTIONS | options)
    )


def test_private_distance_is_unbiased_and_knows_its_error(tmp_path):
    results = [measure(tmp_path / str(i), n_bases=6) for i in range(N_RUNS)]
    exact = exact_distance(A, B)
    values = torch.tensor([result.value for result in results])
    error = float(values.std()) / math.sqrt(len(values))
    # B has 603 records, of which 600 are read: a shift far below the error.
    assert abs(float(values.mean()) - exact) < 5 * error
    stated = sum(result.standard_error for result in results) / len(results)
    assert 0.5 < stated / float(values.std()) < 2
    # control: without the subtraction the noise of both sides is left
    noise = sum(release.mechanism.sigma**2 for release in results[0].releases)
    assert abs(float(values.mean()) + noise - exact) > 5 * error


def test_each_set_has_its_own_budget(tmp_path):
    result = measure(tmp_path, target_epsilon=(1.0, 8.0), target_delta=(1e-4, 1e-5))
    epsilons = [guarantee.epsilon for guarantee in result.guarantees]
    assert 0.99 < epsilons[0] <= 1.0
    assert 7.9 < epsilons[1] <= 8.0
    assert [guarantee.delta for guarantee in result.guarantees] == [1e-4, 1e-5]
    of_a, of_b = (release.mechanism for release in result.releases)
    assert of_a.batch_size == 400
    assert of_b.batch_size == 600
    for name in "ab":
        assert Ledger.open_existing(tmp_path / name / "ledger.jsonl").n_releases == 1


def test_both_releases_have_the_same_fresh_directions(tmp_path):
    first, second = measure(tmp_path / "1"), measure(tmp_path / "2")
    for result in (first, second):
        of_a, of_b = result.releases
        assert torch.equal(of_a.projections, of_b.projections)
        assert not torch.equal(of_a.values, of_b.values)
    assert not torch.equal(first.releases[0].projections, second.releases[0].projections)


@pytest.mark.parametrize("kind", ["orthogonal", "iid"])
def test_sensitivity_along_directions_that_are_chosen_after_the_data(kind):
    """Along whole bases it holds for every U; along others it does not, which is the control."""
    mechanism = ProjectionMechanism(
        3, 6, sigma=1.0, batch_size=20, statistic="quantiles", n_quantiles=5, kind=kind
    )
    loss = DPSlicedWassersteinLoss(mechanism)
    x = rows(20, 0.0, 2).double()
    neighbour = x.clone()
    x[0] = torch.tensor([0.5, 0.0, 0.0])
    neighbour[0] = torch.tensor([-0.5, 0.0, 0.0])
    if kind == "orthogonal":
        directions = torch.eye(3).repeat(1, 2).double()
    else:
        directions = torch.eye(3)[:, :1].repeat(1, 6).double()
    values = [loss.exact_values(part, None, directions) for part in (x, neighbour)]
    moved = float((values[0] - values[1]).norm())
    bound = mechanism.unit_sensitivity * math.sqrt(6 / 3)
    assert (moved <= bound * (1 + 1e-12)) == (kind == "orthogonal")
    assert moved > 0.9 * mechanism.unit_sensitivity


def test_rows_of_the_caller(tmp_path):
    result = measure(tmp_path, rows=lambda values: values[:, :2] / 2, dim=2)
    assert result.releases[0].projections.shape == (2, 8)


@pytest.mark.parametrize(
    ("other", "options", "word"),
    [
        (rows(50, 0.0, 3, d=4), {}, "one shape"),
        (B, {"n_quantiles": 401}, "n_quantiles"),
        (B, {"rows": torch.nn.Identity()}, "dim"),
        (B, {"dim": 2}, "dim=3"),
        (B, {"target_delta": 0.5}, "delta"),
        (B, {"target_epsilon": (1.0, 2.0, 3.0)}, "pair"),
        (B, {"n_bases": 0}, "n_bases"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_release(tmp_path, other, options, word):
    with pytest.raises(InputError, match=word):
        measure(tmp_path, y=other, **options)
    assert not list(tmp_path.rglob("*.pt"))


def test_one_handle_twice_is_refused(tmp_path):
    records = PrivateRecords(A)
    with pytest.raises(InputError, match="twice"):
        private_distance(records, records, run_dir=tmp_path, **OPTIONS)


def test_a_tensor_is_refused(tmp_path):
    with pytest.raises(InputError, match="records_b"):
        private_distance(PrivateRecords(A), B, run_dir=tmp_path, **OPTIONS)


def test_a_run_that_ended_between_the_releases_is_finished(tmp_path):
    whole = measure(tmp_path)
    shutil.rmtree(tmp_path / "b")
    finished = measure(tmp_path, resume=True)
    assert torch.equal(finished.releases[0].values, whole.releases[0].values)
    assert torch.equal(finished.releases[1].projections, whole.releases[0].projections)
    again = measure(tmp_path, resume=True)  # nothing is released a third time
    assert again.value == finished.value
    shutil.rmtree(tmp_path / "a")
    with pytest.raises(InputError, match="same directions"):
        measure(tmp_path, resume=True)
