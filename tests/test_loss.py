"""The loss: values, gradients, invalid input;
the law of its noise, sensitivity, bias and secrecy.
"""

import itertools
import math
from functools import partial

import lightning as L
import numpy as np
import pytest
import torch
from factories import booked
from scipy import stats

from dpswd import (
    DPSlicedWassersteinLoss,
    InputError,
    LabelledRows,
    PrivateBatch,
    PrivateRecords,
    ProjectionMechanism,
    sliced_wasserstein,
)
from dpswd._kernels import block_means
from dpswd.clipping import clip_rows
from dpswd.errors import UtilityWarning
from dpswd.loss import Release

# Noise so small that only float error of the comparison is left.
TINY = 1e-12

# Chance that a correct mechanism fails a statistical test here, over the choice of the seed.
FALSE_ALARM = 1e-6


def rows_mechanism(**changes):
    """Noisy rows: eight rows of three dimensions."""
    values = {"dim": 3, "n_projections": 6, "sigma": 0.1, "batch_size": 8, "noise_seed": 0}
    return ProjectionMechanism(**(values | changes))


def quantiles_mechanism(**changes):
    """Means of four blocks of the same rows."""
    return rows_mechanism(**({"statistic": "quantiles", "n_quantiles": 4} | changes))


def wide_mechanism(**changes):
    """Three block means of twelve rows of four dimensions, without a noise seed."""
    values = {
        "dim": 4,
        "n_projections": 8,
        "sigma": 0.3,
        "batch_size": 12,
        "n_quantiles": 3,
        "noise_seed": None,
    }
    return quantiles_mechanism(**(values | changes))


def sample(n, d=3, seed=0, norm=0.4):
    """Rows (n, d) of one norm, which are the same in float32 and float64."""
    x = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (x * norm / x.norm(dim=1, keepdim=True)).float().double()


def batch_of(loss, x, labels):
    """What the loss releases: rows, or with labels a batch of all of them behind a handle."""
    if labels is None:
        return x
    booked(loss)
    handle = PrivateRecords(x, labels, classes=range(loss.mechanism.n_classes))
    return PrivateBatch(handle, len(x))


def exact_distance(mechanism, private, public, projections):
    """The distance of public rows to private ones of a class, as the paper defines it."""
    if mechanism.statistic == "rows":
        return float(sliced_wasserstein(public, private, projections))
    means = []
    for rows in (public, private):
        columns = (rows @ projections).sort(dim=0).values
        means.append(block_means(columns, mechanism.n_values))
    return float((means[0] - means[1]).square().mean())


STATISTICS = pytest.mark.parametrize("make", [rows_mechanism, quantiles_mechanism])
SIZES = pytest.mark.parametrize("n", [8, 5, 4, 3, 20])


@pytest.fixture(params=[1, 2**27], ids=["a direction at a time", "all directions"])
def memory(request, monkeypatch):
    """Memory of the kernels, which no public option sets."""
    monkeypatch.setattr("dpswd.loss._MAX_SORTED_BYTES", request.param)
    monkeypatch.setattr("dpswd._kernels._MAX_BYTES", request.param)


@STATISTICS
@SIZES
@pytest.mark.usefixtures("memory")
def test_distance_without_noise_is_exact(make, n):
    loss = DPSlicedWassersteinLoss(make(sigma=TINY))
    private = sample(8)
    public = sample(n, seed=1)
    release = loss.release(private)
    expected = exact_distance(loss.mechanism, private, public, release.projections)
    assert release.values.shape == (loss.mechanism.n_values, 6)
    assert float(loss.distance(release, public)) == pytest.approx(expected, abs=1e-10)


@STATISTICS
@SIZES
@pytest.mark.usefixtures("memory")
def test_distance_with_classes_is_exact(make, n):
    """Of rows times one-hot classes. Class 1 has no private row, and class 2 no public one."""
    loss = DPSlicedWassersteinLoss(make(sigma=TINY, n_classes=3))
    private = sample(8)
    private_labels = torch.tensor([0, 0, 2, 2, 2, 0, 2, 0])
    public = sample(n, seed=1)
    public_labels = torch.arange(n) % 2
    if n == 3:  # classes of equal size
        public_labels = torch.tensor([2, 0, 1])
    release = loss.release(batch_of(loss, private, private_labels))
    expected = 0.0
    for c in range(3):
        private_rows = private * (private_labels == c)[:, None]
        public_rows = public * (public_labels == c)[:, None]
        expected += exact_distance(loss.mechanism, private_rows, public_rows, release.projections)
    assert release.values.shape == (3, loss.mechanism.n_values, 6)
    distance = float(loss.distance(release, public, public_labels))
    assert distance == pytest.approx(expected / 3, abs=1e-10)


@STATISTICS
@pytest.mark.parametrize("p", [1, 3])
def test_order_of_the_distance(make, p):
    """With equal numbers of values the p-th power is the mean over their differences."""
    loss = DPSlicedWassersteinLoss(make(sigma=TINY), p=p)
    private = sample(8)
    public = sample(8, seed=1)
    release = loss.release(private)
    projected = (public @ release.projections).sort(dim=0).values
    values = release.values
    means = projected.view(len(values), -1, projected.shape[1]).mean(1)
    expected = float((means - values).abs().pow(p).mean())
    assert float(loss.distance(release, public)) == pytest.approx(expected, abs=1e-10)
    square = DPSlicedWassersteinLoss(loss.mechanism).distance(release, public)
    assert float(square) != pytest.approx(expected, rel=0.01)


@STATISTICS
def test_root_of_the_distance(make):
    mechanism = make(sigma=0.1)
    release = DPSlicedWassersteinLoss(mechanism).release(sample(8))
    public = sample(5, seed=1).requires_grad_()
    for p in (1, 2):
        torch.manual_seed(0)
        power = DPSlicedWassersteinLoss(mechanism, p=p).distance(release, public)
        torch.manual_seed(0)
        root = DPSlicedWassersteinLoss(mechanism, p=p, root=True).distance(release, public)
        assert root.item() == pytest.approx(power.item() ** (1 / p))
        root.backward()
        assert bool(public.grad.isfinite().all())


# Private estimate of a distance


def all_directions_distance(loss, private, public, labels=None, public_labels=None):
    """The squared distance of exact block means, over many more directions than a release has."""
    wide = DPSlicedWassersteinLoss(loss.mechanism.replace(n_projections=20_000, sigma=TINY))
    batch = private
    if labels is not None:
        batch = batch_of(wide, private, labels)
    return wide.estimate(wide.release(batch), public, public_labels).value


@pytest.mark.parametrize("kind", ["iid", "orthogonal"])
def test_estimate_is_unbiased_and_knows_its_error(kind):
    mechanism = quantiles_mechanism(kind=kind, n_projections=24, sigma=0.3)
    loss = DPSlicedWassersteinLoss(mechanism)
    private = sample(8)
    public = sample(16, seed=1)
    exact = all_directions_distance(loss, private, public)
    estimates = [loss.estimate(loss.release(private), public) for _ in range(400)]
    values = torch.tensor([estimate.value for estimate in estimates], dtype=torch.float64)
    spread = float(values.std())
    assert abs(float(values.mean()) - exact) < 4 * spread / math.sqrt(len(values))
    squared_errors = torch.tensor([estimate.standard_error**2 for estimate in estimates])
    assert 0.8 < math.sqrt(float(squared_errors.mean())) / spread < 1.25
    noisy = float(loss.distance(loss.release(private), public))
    assert noisy > exact + 0.5 * mechanism.sigma**2  # control: the loss has the offset


def test_estimate_with_classes_is_the_mean_over_classes():
    mechanism = quantiles_mechanism(n_projections=24, sigma=0.3, n_classes=2)
    loss = DPSlicedWassersteinLoss(mechanism)
    private = sample(8)
    public = sample(16, seed=1)
    labels = torch.arange(8) % 2
    public_labels = torch.arange(16) % 2
    exact = all_directions_distance(loss, private, public, labels, public_labels)
    values = []
    for _ in range(300):
        release = loss.release(batch_of(loss, private, labels))
        values.append(loss.estimate(release, public, public_labels).value)
    values = torch.tensor(values, dtype=torch.float64)
    assert abs(float(values.mean()) - exact) < 4 * float(values.std()) / math.sqrt(len(values))


@pytest.mark.parametrize("make", [rows_mechanism, partial(quantiles_mechanism, n_projections=1)])
def test_estimate_needs_block_means_along_several_directions(make):
    loss = DPSlicedWassersteinLoss(make(sigma=0.1))
    release = loss.release(sample(8))
    with pytest.raises(InputError, match="quantiles"):
        loss.estimate(release, sample(8))


@STATISTICS
@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("labelled", [False, True])
def test_slices_have_the_distance_as_their_mean(make, p, labelled):
    labels = torch.arange(8) % 2 if labelled else None
    loss = DPSlicedWassersteinLoss(make(sigma=TINY, n_classes=2 if labelled else None), p=p)
    release = loss.release(batch_of(loss, sample(8), labels))
    public = sample(8, seed=1)
    slices = loss.slice_distances(release, public, labels)
    assert slices.shape == (6,)
    assert float(slices.mean()) == pytest.approx(
        float(loss.distance(release, public, labels)), abs=1e-9
    )


@STATISTICS
def test_reductions_lie_between_the_mean_and_the_largest_slice(make):
    private, public = sample(8), sample(12, seed=1).requires_grad_()
    losses = {
        name: DPSlicedWassersteinLoss(make(sigma=TINY), reduction=name)
        for name in ("mean", "energy", "max")
    }
    release = losses["mean"].release(private)  # which does not depend on the reduction
    slices = losses["mean"].slice_distances(release, public)
    values = {name: loss.distance(release, public) for name, loss in losses.items()}
    assert values["max"].item() == pytest.approx(slices.max().item(), rel=1e-6)
    weighted = (slices / slices.sum()) @ slices
    assert values["energy"].item() == pytest.approx(weighted.item(), rel=1e-6)
    assert values["mean"] < values["energy"] < values["max"]  # control: they differ
    for value in values.values():
        (gradient,) = torch.autograd.grad(value, public, retain_graph=True)
        assert bool(gradient.any())


def test_equal_slices_have_one_value_for_every_reduction():
    mechanism = quantiles_mechanism(dim=2, n_projections=2, kind="orthogonal", sigma=TINY)
    private = torch.zeros(8, 2, dtype=torch.float64)
    loss = DPSlicedWassersteinLoss(mechanism, reduction="energy")
    release = loss.release(private)
    # along (1, 1) / sqrt(2) in the directions' own frame, both slices are equal
    public = (release.projections.sum(1) / 4).expand(8, 2)
    slices = loss.slice_distances(release, public)
    assert float(slices.max()) == pytest.approx(float(slices.min()), rel=1e-6)
    assert float(loss.distance(release, public)) == pytest.approx(float(slices.mean()), rel=1e-6)


@pytest.mark.parametrize("state", [None, {}, {"values": torch.zeros(8, 4)}])
def test_a_state_of_another_object_is_refused(state):
    with pytest.raises(InputError, match="state of a release"):
        Release.from_state_dict(state)


def test_a_batch_that_was_refused_is_released_later():
    handle = PrivateRecords(sample(12).float())
    batch = PrivateBatch(handle, 12)
    with pytest.raises(InputError, match="batch_size=8"):
        booked(DPSlicedWassersteinLoss(rows_mechanism(sigma=0.1))).release(batch)
    assert batch.consume() is handle


def test_an_unknown_reduction_is_refused():
    with pytest.raises(InputError, match="reduction"):
        DPSlicedWassersteinLoss(wide_mechanism(), reduction="median")


def test_order_below_one_is_refused():
    with pytest.raises(InputError, match="order p"):
        DPSlicedWassersteinLoss(wide_mechanism(), p=0.5)


def test_released_rows_are_sorted():
    loss = DPSlicedWassersteinLoss(rows_mechanism(sigma=3.0))
    values = loss.release(sample(8)).values
    assert bool((values.diff(dim=0) >= 0).all())


def test_released_rows_of_every_class_are_sorted():
    loss = DPSlicedWassersteinLoss(rows_mechanism(sigma=3.0, n_classes=2))
    values = loss.release(batch_of(loss, sample(8), torch.arange(8) % 2)).values
    assert values.shape == (2, 8, 6)
    assert bool((values.diff(dim=1) >= 0).all())


@STATISTICS
def test_gradient_does_not_reach_rows_that_are_handed_over(make):
    network = torch.nn.Linear(3, 3).double()
    private = sample(8).requires_grad_()
    public = sample(10, seed=1).requires_grad_()
    loss = DPSlicedWassersteinLoss(make())
    loss(network(private), public).backward()
    assert private.grad is None
    assert all(weight.grad is None for weight in network.parameters())
    assert bool(public.grad.any())


@STATISTICS
def test_gradient_does_not_reach_the_row_function(make):
    network = torch.nn.Linear(3, 3).double()

    def encode(values):
        return network(values.double())

    public = sample(10, seed=1).requires_grad_()
    loss = DPSlicedWassersteinLoss(make(n_classes=2))
    batch = batch_of(loss, sample(8), torch.arange(8) % 2)
    loss(batch, public, torch.arange(10) % 2, rows=encode).backward()
    assert all(weight.grad is None for weight in network.parameters())
    assert bool(public.grad.any())


@pytest.mark.parametrize("n", [6, 7], ids=["classes of equal size", "classes of 4 and 3"])
def test_gradient_of_the_distance_equals_finite_differences(n):
    loss = DPSlicedWassersteinLoss(quantiles_mechanism(n_classes=2))
    release = loss.release(batch_of(loss, sample(8), torch.arange(8) % 2))
    labels = torch.arange(n) % 2
    public = sample(n, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda rows: loss.distance(release, rows, labels), public)


@pytest.mark.parametrize("make", [quantiles_mechanism, rows_mechanism])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_of_a_diverged_network_is_nan(make, dtype):
    loss = DPSlicedWassersteinLoss(make())
    release = loss.release(batch_of(loss, sample(8), None))
    public = torch.full_like(sample(5), math.nan, dtype=dtype).requires_grad_()
    assert loss.distance(release, public).isnan()


PRIVATE = sample(8)
PUBLIC = sample(5)
ZEROS = torch.zeros(5, dtype=torch.int64)


def refusal(mechanism, private, public, *labels):
    """The message of the error that a call raises, which releases nothing and shows no record."""
    loss = booked(DPSlicedWassersteinLoss(mechanism))
    with pytest.raises(InputError) as error:
        loss(private, public, *labels)
    message = str(error.value)
    assert loss.n_releases == 0
    assert loss.recorder == []
    assert not any(f"{float(value):.3f}" in message for value in PRIVATE.flatten())
    return message


def test_private_rows_of_another_number_are_refused():
    message = refusal(quantiles_mechanism(), sample(7), PUBLIC)
    assert "batch_size=8 private rows, got 7" in message


def test_private_rows_of_integers_are_refused():
    message = refusal(quantiles_mechanism(), PRIVATE.long(), PUBLIC)
    assert "private rows" in message
    assert "got torch.int64" in message


def test_private_rows_that_are_no_tensor_are_refused():
    assert "private rows to be a tensor" in refusal(quantiles_mechanism(), [[0.1]], PUBLIC)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_private_rows_that_are_not_finite_are_refused(value):
    rows = PRIVATE.clone()
    rows[3, 1] = value
    assert "finite" in refusal(quantiles_mechanism(), rows, PUBLIC)


def test_private_rows_of_a_mechanism_with_classes_are_refused():
    message = refusal(quantiles_mechanism(n_classes=2), PRIVATE, PUBLIC, ZEROS)
    assert "n_classes, got Tensor; pass PrivateBatch(records, batch_size)" in message


def test_handles_and_releases_in_place_of_a_batch_are_refused():
    mechanism = quantiles_mechanism()
    records = PrivateRecords(PRIVATE)
    message = refusal(mechanism, records, PUBLIC)
    assert "got PrivateRecords; pass PrivateBatch(records, batch_size)" in message
    release = DPSlicedWassersteinLoss(mechanism).release(PRIVATE)
    message = refusal(mechanism, release, PUBLIC)
    assert "got a Release; its distance to public rows is loss.distance(release, rows)" in message


def test_public_rows_of_another_dimension_are_refused():
    message = refusal(quantiles_mechanism(), PRIVATE, sample(5, 4))
    assert "public rows" in message
    assert "(5, 4); map public records by the same function as rows=" in message


def test_private_rows_of_another_dimension_are_refused():
    loss = DPSlicedWassersteinLoss(quantiles_mechanism())
    booked(loss)
    batch = PrivateBatch(PrivateRecords(sample(8, 4)), 8)
    with pytest.raises(InputError, match=r"private rows .*\(n, 3\).*\(8, 4\); pass rows=, the map"):
        loss(batch, PUBLIC, rows=torch.nn.Identity())
    assert loss.n_releases == 0


@pytest.mark.parametrize("method", ["distance", "slice_distances", "estimate"])
def test_public_rows_of_other_units_are_named_once(method):
    """The rows have norm 1.1, and private rows at most 0.5."""
    loss = DPSlicedWassersteinLoss(quantiles_mechanism())
    release = loss.release(PRIVATE)
    compare = getattr(loss, method)
    with pytest.warns(UtilityWarning, match=r"norm 1\.1 .*clipped to row_norm=0\.5"):
        compare(release, sample(5, norm=1.1))
    compare(release, sample(5, norm=1.1))  # a warning is an error in the tests


def test_public_rows_of_the_same_units_are_not_named():
    """Nor are rows that training has made longer: the first ones are the evidence."""
    loss = DPSlicedWassersteinLoss(quantiles_mechanism())
    release = loss.release(PRIVATE)
    loss.distance(release, sample(5, norm=0.9))
    loss.distance(release, sample(5, norm=1.1))
    wider = DPSlicedWassersteinLoss(quantiles_mechanism(row_norm=1.0))
    wider.distance(release, sample(5, norm=1.1))


def test_no_public_rows_are_refused():
    assert "at least one row in public rows" in refusal(quantiles_mechanism(), PRIVATE, sample(0))


@pytest.mark.parametrize(
    ("n_classes", "labels", "word"),
    [
        (None, ZEROS, "no public_labels"),
        (2, None, "pass public_labels="),
        (2, ZEROS[:4], "(4,)"),
        (2, ZEROS - 1, "outside"),
    ],
)
def test_public_labels_that_do_not_fit_are_refused(n_classes, labels, word):
    message = refusal(quantiles_mechanism(n_classes=n_classes), PRIVATE, PUBLIC, labels)
    assert "public_labels" in message
    assert word in message


def test_classes_of_a_row_function_outside_are_refused():
    def two_classes_more(values, labels):
        return values, labels + 2

    loss = DPSlicedWassersteinLoss(quantiles_mechanism(n_classes=2))
    batch = batch_of(loss, PRIVATE, torch.zeros(8, dtype=torch.int64))
    with pytest.raises(InputError, match="groups from 0 to 1, got groups outside"):
        loss(batch, PUBLIC, ZEROS, rows=LabelledRows(two_classes_more))
    assert loss.n_releases == 0
    assert loss.recorder == []


@pytest.mark.parametrize("mechanism", [rows_mechanism(), quantiles_mechanism(n_classes=2)])
def test_release_returns_from_a_checkpoint(mechanism, tmp_path):
    loss = DPSlicedWassersteinLoss(mechanism)
    labels = None
    if mechanism.n_classes is not None:
        labels = torch.arange(8) % 2
    release = loss.release(batch_of(loss, sample(8), labels))
    torch.save(release.state_dict(), tmp_path / "release.pt")
    state = torch.load(tmp_path / "release.pt", weights_only=True)
    restored = Release.from_state_dict(state)
    assert restored.mechanism == release.mechanism
    assert torch.equal(restored.values, release.values)
    assert torch.equal(restored.to("cpu").projections, release.projections)


def test_distance_uses_the_sigma_of_the_release():
    loss = DPSlicedWassersteinLoss(rows_mechanism(sigma=TINY))
    release = loss.release(sample(8))
    public = sample(8, seed=1)
    before = float(loss.distance(release, public))
    loss.mechanism = rows_mechanism(sigma=50.0)
    assert float(loss.distance(release, public)) == pytest.approx(before, abs=1e-10)
    assert loss.n_releases == 1  # distances are free


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@STATISTICS
@pytest.mark.parametrize("n_classes", [None, 2])
def test_loss_on_a_gpu_equals_that_on_the_cpu(make, n_classes):
    values = []
    for device in ("cpu", "cuda"):
        encoder = torch.nn.Linear(3, 3).double()
        torch.nn.init.eye_(encoder.weight)
        torch.nn.init.zeros_(encoder.bias)
        encoder.to(device)
        private_labels = None
        public_labels = None
        options = {}
        if n_classes is not None:
            private_labels = torch.arange(8) % 2
            public_labels = (torch.arange(9) % 2).to(device)
            options["rows"] = lambda values, encoder=encoder: encoder(values.double())
        public = sample(9, seed=1).to(device).requires_grad_()
        loss = DPSlicedWassersteinLoss(make(sigma=1e-9, n_classes=n_classes))
        private = batch_of(loss, sample(8).to(device), private_labels)
        torch.manual_seed(0)
        value = loss(private, public, public_labels, **options)
        value.backward()
        assert public.grad.device.type == device
        assert value.device.type == device
        values.append(float(value))
    assert values[0] == pytest.approx(values[1], abs=1e-7)


def test_smoothed_distance_has_the_law_of_noisy_projections():
    """One direction, one row: the loss is the square of a normal number about the projection."""
    mechanism = rows_mechanism(dim=2, n_projections=1, batch_size=1, sigma=0.3)
    loss = DPSlicedWassersteinLoss(mechanism)
    release = loss.release(torch.zeros(1, 2))
    public = torch.tensor([[0.2, 0.1]], dtype=torch.float64)
    torch.manual_seed(0)
    draws = torch.stack([loss.distance(release, public) for _ in range(4000)])
    offset = float((public @ release.projections - release.values).square().squeeze())
    # the standard deviation of a non-central chi square, and of the mean of 4,000 of them
    deviation = math.sqrt(2 * 0.3**4 + 4 * 0.3**2 * offset)
    error = abs(float(draws.mean()) - offset - 0.3**2)
    assert error < 5 * deviation / math.sqrt(4000)  # false alarm 6e-7, for the seed alone


def check_law(noise, sigma):
    """Check that numbers are normal with this standard deviation, and with no other."""
    assert stats.kstest(noise / sigma, "norm").pvalue > FALSE_ALARM
    for factor in (2 / 3, 3 / 2):  # controls
        assert stats.kstest(noise / (sigma * factor), "norm").pvalue < FALSE_ALARM


@pytest.mark.parametrize("n_classes", [None, 3])
def test_noise_of_block_means_is_normal_and_fresh(n_classes):
    """Given the directions, since noise that repeats would hide behind fresh directions."""
    loss = DPSlicedWassersteinLoss(wide_mechanism(n_classes=n_classes, noise_seed=1))
    rows = sample(12, 4, norm=0.5)
    labels = None
    if n_classes is not None:
        labels = torch.arange(12) % 2  # no record of class 2
    releases = [loss.release(batch_of(loss, rows, labels)) for _ in range(200)]
    noise = []
    for release in releases:
        exact = loss.exact_values(rows, labels, release.projections)
        noise.append((release.values - exact).flatten().numpy())
    size = len(noise[0])
    numbers = np.concatenate(noise)  # 4,800, or 14,400 with classes
    check_law(numbers, 0.3)
    for lag in (1, 24, size):  # an entry, a class, a release later
        correlation = np.corrcoef(numbers[:-lag], numbers[lag:])[0, 1]
        assert abs(correlation) * math.sqrt(len(numbers)) < stats.norm.isf(FALSE_ALARM / 2)
    for one, other in itertools.pairwise(releases):
        assert not torch.any(one.projections == other.projections)


def test_noise_of_rows_is_normal():
    mechanism = ProjectionMechanism(4, 8, 0.3, 12, noise_seed=1)
    loss = DPSlicedWassersteinLoss(mechanism)
    values = [loss.release(torch.zeros(12, 4)).values.flatten() for _ in range(100)]
    check_law(torch.cat(values).numpy(), 0.3)  # sorted noise alone: as a set, normal numbers


def seed_torch(seed):
    torch.manual_seed(seed)


def seed_everything(seed):
    L.seed_everything(seed, verbose=False)


@pytest.mark.parametrize("statistic", [{}, {"statistic": "rows", "n_quantiles": None}], ids=str)
@pytest.mark.parametrize("seed", [seed_torch, seed_everything])
def test_noise_is_fresh_whatever_the_seed(statistic, seed):
    releases = []
    for _ in range(2):
        seed(0)
        loss = DPSlicedWassersteinLoss(wide_mechanism(**statistic))
        releases += [loss.release(sample(12, 4, norm=0.5)) for _ in range(2)]
    for one, other in itertools.combinations(releases, 2):
        assert (one.values == other.values).float().mean() < 0.1  # on a grid of sigma / 1024
        assert not torch.any(one.projections == other.projections)


def test_noise_seed_repeats_a_loss_and_is_named():
    mechanism = wide_mechanism(noise_seed=5)
    rows = sample(12, 4, norm=0.5)
    first = DPSlicedWassersteinLoss(mechanism).release(rows)
    loss = DPSlicedWassersteinLoss(mechanism)
    again = loss.release(rows)
    assert torch.equal(first.values, again.values)
    assert torch.equal(first.projections, again.projections)
    assert not torch.equal(first.values, loss.release(rows).values)  # the source goes on
    assert "NOT PRIVATE" in repr(loss)
    assert "NOT PRIVATE" not in repr(DPSlicedWassersteinLoss(wide_mechanism()))


def neighbours(generator, trial):
    """A batch (6, 3) and its neighbour, whose first row is another one.

    Every third pair is the extreme case, in which all rows are equal and one of them becomes its
    negative.
    """
    first = torch.randn(6, 3, dtype=torch.float64, generator=generator)
    first[0] *= 10 / first[0].norm()
    if trial % 3 == 0:
        first[:] = first[0]
    second = first.clone()
    second[0] = -first[0]
    if trial % 3 == 2:
        second[0] = torch.randn(3, dtype=torch.float64, generator=generator)
    return first, second


BATCHES_OF_SIX = pytest.mark.parametrize(
    "mechanism", [rows_mechanism(batch_size=6), quantiles_mechanism(batch_size=6, n_quantiles=2)]
)


@BATCHES_OF_SIX
@pytest.mark.parametrize("n_classes", [None, 2])
def test_release_moves_by_its_sensitivity_at_most(n_classes, mechanism):
    """The class of the record stays. The bound is reached by a row that jumps across all others."""
    mechanism = mechanism.replace(kind="orthogonal", n_classes=n_classes)
    loss = DPSlicedWassersteinLoss(mechanism)
    generator = torch.Generator().manual_seed(0)
    claimed = mechanism.unit_sensitivity * math.sqrt(mechanism.law.maximum)
    ratios = []
    for trial in range(400):
        first, second = neighbours(generator, trial)
        projections = loss.draw_projections()
        labels = None
        if n_classes is not None:
            n_used = 1
            if trial % 6:
                n_used = 2
            labels = torch.randint(n_used, (6,), generator=generator)
        values = loss.exact_values(first, labels, projections)
        moved = values - loss.exact_values(second, labels, projections)
        ratios.append(float(moved.norm()) / claimed)
    assert max(ratios) <= 1
    assert max(ratios) == pytest.approx(1, abs=1e-9)


@BATCHES_OF_SIX
@pytest.mark.parametrize("kind", ["orthogonal", "iid"])
def test_change_of_class_moves_two_blocks(kind, mechanism):
    """With orthogonal directions that is covered by the same class, a factor sqrt(2) below it."""
    mechanism = mechanism.replace(kind=kind, n_classes=3)
    loss = DPSlicedWassersteinLoss(mechanism)
    generator = torch.Generator().manual_seed(1)
    claimed = mechanism.unit_sensitivity * math.sqrt(mechanism.law.maximum / 2)
    ratios = []
    for trial in range(400):
        first, second = neighbours(generator, trial)
        projections = loss.draw_projections()
        labels = torch.randint(3, (6,), generator=generator)
        changed_labels = labels.clone()
        changed_labels[0] = (labels[0] + 1 + trial % 2) % 3
        values = loss.exact_values(first, labels, projections)
        moved = (values - loss.exact_values(second, changed_labels, projections)).norm()
        two_rows = torch.cat([clip_rows(first[:1], 0.5), clip_rows(second[:1], 0.5)])
        two_blocks = (two_rows @ projections).norm() / mechanism.block_size
        ratios.append(float(moved / two_blocks))
        if kind == "orthogonal":
            assert float(moved) <= claimed * (1 + 1e-12)
    assert 0.99 < max(ratios) <= 1 + 1e-12


class FixedDirections(DPSlicedWassersteinLoss):
    """A loss whose directions are those of its first release."""

    def draw_projections(self):
        if not hasattr(self, "projections"):
            self.projections = super().draw_projections()
        return self.projections


def gradient_of(value, public):
    (gradient,) = torch.autograd.grad(value, public)
    return gradient


def largest_z(gradients, exact):
    """Largest error of a mean of gradients, in standard errors."""
    stack = torch.stack(gradients)
    error = (stack.mean(0) - exact).abs()
    return float((error / (stack.std(0) / math.sqrt(len(stack)))).max())


def test_gradient_of_block_means_is_unbiased():
    """Control: sorting the noisy values again, as POT's solver does, gives a biased one."""
    mechanism = wide_mechanism(sigma=0.4, n_projections=6, noise_seed=3)
    loss = FixedDirections(mechanism)
    private = sample(12, 4, norm=0.5)
    public = sample(9, 4, 1, norm=0.5).requires_grad_()
    directions = loss.draw_projections()

    def to_values(values):
        """The gradient of the distance of the public block means to some values."""
        means = block_means((public @ directions).sort(dim=0).values, 3)
        return gradient_of((means - values).square().mean(), public)

    exact = to_values(loss.exact_values(private, None, directions))
    ours = []
    sorted_again = []
    for _ in range(3000):
        release = loss.release(private)
        ours.append(gradient_of(loss.distance(release, public), public))
        sorted_again.append(to_values(release.values.sort(dim=0).values))
    assert largest_z(ours, exact) < 5  # 36 entries: a false alarm in 50,000 seeds
    assert largest_z(sorted_again, exact) > 10
