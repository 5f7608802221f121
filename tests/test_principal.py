"""Slices along principal directions: sensitivity by search, the loss, training, files, refusals."""

import math

import pytest
import torch

from dpswd import InputError, PrivateRecords
from dpswd._kernels import padded_block_means
from dpswd.clipping import clip_rows
from dpswd.features.maps import Flatten
from dpswd.principal import PrincipalSlices, SlicePlan, plan_slices

N = 600
C = 3
SHAPE = (1, 4, 4)
Y = torch.arange(N) % C
PLAN = SlicePlan(n_directions=4, n_bases=5, n_quantiles=60, batch_size=N)


def make_images(labels=Y, seed=0):
    """Images whose class moves their mean, and whose first row of pixels varies as one."""
    n = len(labels)
    source = torch.Generator().manual_seed(seed)
    images = 0.2 + 0.2 * labels.float().view(-1, 1, 1, 1)
    images = images + 0.02 * torch.randn(n, *SHAPE, generator=source)
    images[:, :, 0] += 0.1 * torch.randn(n, 1, 1, generator=source)
    return images.clamp(0, 1)


def flatten():
    return Flatten(SHAPE, centre=0.4, radius=1.5)


def release_slices(directory, *, epsilon=100.0, records=None, n_classes=C, plan=PLAN, **options):
    """Slices of the images, or of other records, that were released in a directory."""
    if records is None:
        records = PrivateRecords(make_images(), Y, classes=range(C))
    slices = PrincipalSlices(flatten(), n_classes, plan, **options)
    statement = slices.release(
        records, target_epsilon=epsilon, target_delta=1e-5, run_dir=directory
    )
    assert statement["sound"]
    return slices


@pytest.fixture(scope="module")
def slices(tmp_path_factory):
    return release_slices(tmp_path_factory.mktemp("slices") / "run")


def test_entries_of_units_are_counted_as_entries(tmp_path, slices):
    """Three records of each person: counts, directions and their variances are those
    of the records.
    """
    n_persons = N // 3
    records = PrivateRecords(
        make_images(), Y, classes=range(C), unit=torch.arange(N) % n_persons, per_unit=3
    )
    plan = PLAN._replace(n_quantiles=50, batch_size=n_persons)
    of_units = release_slices(tmp_path / "run", epsilon=1_000.0, records=records, plan=plan)
    parts = of_units.counts / n_persons
    torch.testing.assert_close(parts, torch.full((C,), 1 / C), atol=0.02, rtol=0)
    # Over 12 pairs of runs, the ratio of a leading deviation has a standard deviation of at most
    # 0.1. Sums of three times as many records would change it by a factor of 1.7.
    torch.testing.assert_close(of_units.deviations[:3], slices.deviations[:3], atol=0, rtol=0.45)


# Sensitivity


def small_slices(tmp_path):
    """Slices in blocks of two of 600 records, whose directions are released."""
    records = PrivateRecords(make_images(), Y, classes=range(C))
    small = PrincipalSlices(flatten(), C, SlicePlan(3, 2, 300, N))
    small.release(records, target_epsilon=50.0, target_delta=1e-5, run_dir=tmp_path)
    return small


def random_neighbours(source, trial):
    """Two data sets of six records; the first record is another one, often of another class."""
    scale = 10.0 ** (trial % 4 - 2)
    images = 0.4 + scale * torch.randn(6, *SHAPE, generator=source)
    labels = torch.randint(C, (6,), generator=source)
    other = images.clone()
    other_labels = labels.clone()
    if trial % 3 == 0:
        other[0] = 0.8 - images[0]
    else:
        other[0] = 0.4 + 10 * scale * torch.randn(SHAPE, generator=source)
    if trial % 2:
        other_labels[0] = torch.randint(C, (), generator=source)
    if trial % 5 == 0:  # all records of one point, and the first one opposite to it
        labels[:] = 0
        other_labels[:] = 0
        images[:] = images[0]
        other[1:] = images[1:]
        other[0] = 0.8 - images[0]
    return images, labels, other, other_labels


def padded_values(slices, images, labels, directions, n_blocks):
    """The statistic of the mechanism: every class is filled up with zeros."""
    rows = clip_rows(slices.coordinates(images, labels), 0.5)
    values = []
    for c in range(C):
        columns = (rows[labels == c] @ directions).sort(dim=0).values
        values.append(padded_block_means(columns, len(images), n_blocks))
    return torch.stack(values)


def unpadded_values(slices, images, labels, directions, n_blocks):
    """The statistic of a class alone, cut into a fixed number of equal blocks."""
    rows = clip_rows(slices.coordinates(images, labels), 0.5)
    values = torch.zeros(C, n_blocks, directions.shape[1], dtype=rows.dtype)
    for c in range(C):
        columns = (rows[labels == c] @ directions).sort(dim=0).values
        for part, block in enumerate(columns.tensor_split(n_blocks)):
            if len(block):
                values[c, part] = block.mean(0)
    return values


def test_slices_move_by_their_sensitivity_at_most(tmp_path):
    slices = small_slices(tmp_path)
    mechanism = slices.criterion.mechanism.replace(batch_size=6, n_quantiles=3)
    claimed = mechanism.unit_sensitivity * math.sqrt(mechanism.law.mean)
    source = torch.Generator().manual_seed(0)
    padded = []
    unpadded = []
    for trial in range(600):
        images, labels, other, other_labels = random_neighbours(source, trial)
        directions = slices.criterion.draw_projections()
        for moves, statistic in ((padded, padded_values), (unpadded, unpadded_values)):
            before = statistic(slices, images, labels, directions, 3)
            after = statistic(slices, other, other_labels, directions, 3)
            moves.append(float((before - after).norm()) / claimed)
    assert 0.99 < max(padded) <= 1 + 1e-9
    assert max(unpadded) > 1.2  # control: without zeros the sizes of the classes matter


def test_statistic_of_the_mechanism_is_the_padded_one(slices):
    images = make_images()
    rows = slices.coordinates(images, Y)
    directions = slices.projections.double()
    exact = slices.criterion.exact_values(rows.double(), Y, directions)
    padded = padded_values(slices, images, Y, directions, PLAN.n_quantiles)
    torch.testing.assert_close(exact, padded, atol=1e-6, rtol=1e-5)
    error = (slices.values.double() - exact).std() / slices.sigma
    assert 0.97 < float(error) < 1.03


def test_releases_compose_within_the_budget(tmp_path):
    slices = release_slices(tmp_path, epsilon=1.0)
    mus = []
    for query in slices.queries():
        sensitivity = query.mechanism.unit_sensitivity * math.sqrt(query.mechanism.law.mean)
        mus.append(sensitivity / query.mechanism.sigma)
    assert slices.guarantee["epsilon"] <= 1.0
    assert slices.guarantee["mu"] == pytest.approx(math.hypot(*mus), rel=1e-3)


# Loss


def coordinates_of(slices, n, seed, spread=1.0):
    """Coordinates of n images of every class, from new draws of their law; and the classes."""
    labels = torch.arange(n * C) % C
    rows = slices.coordinates(make_images(labels, seed), labels)
    means = torch.stack([rows[labels == c].mean(0) for c in range(C)])
    return means[labels] + spread * (rows - means[labels]), labels


def mean_loss(slices, spread, n=400):
    losses = []
    for seed in range(20):
        rows, labels = coordinates_of(slices, n, seed + 1, spread)
        losses.append(float(slices.distance(rows, labels, n_bases=None)))
    return sum(losses) / len(losses)


def test_loss_is_least_for_records_of_the_same_law(slices):
    same = mean_loss(slices, 1.0)
    assert same < mean_loss(slices, 0.7)
    assert same < mean_loss(slices, 1.3)


def test_expected_loss_does_not_depend_on_the_size_of_a_batch(slices):
    """The square of one difference has the variance of a batch in it, and falls with its size."""
    small = mean_loss(slices, 1.0, n=200)
    large = mean_loss(slices, 1.0, n=800)
    assert small == pytest.approx(large, rel=0.15)


def test_blocks_of_generated_rows_are_those_of_padded_columns(slices):
    lower, upper = slices._block_weights(20)  # no public name: a part of the loss
    torch.testing.assert_close(lower.sum((1, 2)), 20 / rows_per_block(slices, 20))
    torch.testing.assert_close(upper, lower.flip((1, 2)))


def rows_per_block(slices, n):
    return n * (PLAN.batch_size / PLAN.n_quantiles) / slices.counts


def test_images_are_trained_towards_the_slices(slices):
    labels = torch.arange(60) % C
    images = make_images(labels, seed=3).mul(0.8).requires_grad_()
    optimiser = torch.optim.Adam([images], lr=0.01)
    losses = []
    for _ in range(60):
        loss = slices.loss(images, labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])


def test_slices_without_classes_take_no_labels(tmp_path):
    records = PrivateRecords(make_images())
    slices = release_slices(tmp_path / "run", records=records, n_classes=0)
    assert slices.loss(make_images(seed=2)).shape == ()
    with pytest.raises(InputError, match="no labels"):
        slices.loss(make_images(), Y)


@pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")
@pytest.mark.parametrize(
    "options",
    [
        {"kind": "iid"},
        {"kind": "iid", "bound": "bernstein"},
        {"kind": "iid", "bound": "bernstein", "failure_prob": 1e-7},
    ],
)
def test_random_sensitivity_needs_more_noise(tmp_path, options):
    constant = release_slices(tmp_path / "constant", epsilon=1.0)
    random = release_slices(tmp_path / "random", epsilon=1.0, **options)
    assert float(random.sigma) > float(constant.sigma)


# Plans


@pytest.mark.parametrize(
    ("arguments", "plan"),
    [
        ((60_000, 10, 2.0, 144), (60, 30, 200, 60_000)),
        ((60_000, 10, 0.268, 144), (36, 30, 100, 60_000)),
        ((7_291, 10, 2.0, 144), (35, 30, 101, 7_272)),
        ((162_000, 0, 1.0, 384), (115, 30, 48, 162_000)),
        ((6, 2, 0.1, 3), (3, 30, 6, 6)),
    ],
)
def test_plan_follows_from_public_numbers(arguments, plan):
    assert plan_slices(*arguments) == plan


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((0, 2, 1.0, 3), "n_records"), ((60, 2, -1.0, 3), "mu"), ((60, 2, math.inf, 3), "mu")],
)
def test_plan_of_numbers_out_of_range_is_refused(arguments, name):
    with pytest.raises(InputError, match=name):
        plan_slices(*arguments)


def test_plan_of_more_directions_than_the_map_has_is_refused_before_a_release():
    """Otherwise two releases would be paid for before the third one failed."""
    with pytest.raises(InputError, match="at most 16 directions"):
        PrincipalSlices(flatten(), C, PLAN._replace(n_directions=17))


# Files


def test_slices_return_from_their_file(slices, tmp_path):
    slices.save(tmp_path / "slices.pt")
    read = PrincipalSlices(flatten(), C, PLAN).load(tmp_path / "slices.pt")
    assert read.guarantee == slices.guarantee
    rows, labels = coordinates_of(slices, 20, seed=5)
    torch.testing.assert_close(
        read.distance(rows, labels, n_bases=None), slices.distance(rows, labels, n_bases=None)
    )


@pytest.mark.parametrize(
    ("features", "plan"),
    [(Flatten(SHAPE), PLAN), (flatten(), PLAN._replace(n_bases=6))],
)
def test_file_of_another_map_or_plan_is_refused(slices, tmp_path, features, plan):
    slices.save(tmp_path / "slices.pt")
    with pytest.raises(InputError, match=r"slices\.pt"):
        PrincipalSlices(features, C, plan).load(tmp_path / "slices.pt")


def test_nothing_is_computed_before_the_release(tmp_path):
    slices = PrincipalSlices(flatten(), C, PLAN)
    with pytest.raises(InputError, match="released"):
        slices.loss(make_images(), Y)
    with pytest.raises(InputError, match="released"):
        slices.save(tmp_path / "slices.pt")
    with pytest.raises(InputError, match="released"):
        slices.start()


# Refusals


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "labels"),
        (torch.zeros(3, dtype=torch.int64), f"{N} integers"),
        (Y.float(), "integers"),
        (Y.tolist(), "tensor"),
        (torch.full((N,), C), "n_classes"),
        (torch.zeros(N, dtype=torch.int64), "equally often"),
    ],
)
def test_labels_that_do_not_fit_are_refused(slices, labels, message):
    with pytest.raises(InputError, match=message):
        slices.loss(make_images(), labels)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (PrivateRecords(make_images()), "n_classes"),
        (PrivateRecords(torch.rand(N, 1, 5, 5), Y, classes=range(C)), "shape|records of"),
        (PrivateRecords(make_images()[:90], Y[:90], classes=range(C)), "batch_size"),
        (make_images(), "PrivateRecords"),
    ],
)
def test_records_that_do_not_fit_are_refused_before_a_release(tmp_path, records, message):
    slices = PrincipalSlices(flatten(), C, PLAN)
    with pytest.raises(InputError, match=message):
        slices.release(records, target_epsilon=1, target_delta=1e-5, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32])
def test_loss_reads_labels_of_any_type_of_integers(slices, dtype):
    images = make_images()
    expected = slices.loss(images, Y, n_bases=None)
    torch.testing.assert_close(slices.loss(images, Y.to(dtype), n_bases=None), expected)


def test_loss_of_images_in_double_precision_has_their_gradient(slices):
    images = make_images().double().requires_grad_()
    slices.loss(images, Y).backward()
    assert images.grad.dtype == torch.float64
    assert bool(images.grad.any())
