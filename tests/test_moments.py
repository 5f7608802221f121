"""Moment matching: the loss against a direct computation, training on one, files,
budgets, refusals.
"""

import math

import pytest
import torch
from torch import nn

from dpswd import InputError, PrivateRecords
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.clipping import clip_rows
from dpswd.features.frequencies import DCT
from dpswd.features.maps import Flatten
from dpswd.moments import MomentMatcher, plan_moments

N = 600
C = 3
SHAPE = (1, 4, 4)
Y = torch.arange(N) % C


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


def release_matcher(directory, *, epsilon=100.0, records=None, maps=None, n_classes=C, **options):
    """Moments of the images, or of other records, that was released in a directory."""
    if records is None:
        records = PrivateRecords(make_images(), Y, classes=range(C))
    matcher = MomentMatcher(maps or flatten(), n_classes, **options)
    matcher.release(records, target_epsilon=epsilon, target_delta=1e-5, run_dir=directory)
    return matcher


@pytest.fixture(scope="module")
def matcher(tmp_path_factory):
    return release_matcher(tmp_path_factory.mktemp("moments") / "run")


def distance_of_class(part, rows, c):
    """The weighted squared distance of rows from the released moments of a class, by its pairs."""
    n = len(rows)
    mean = part.mean[c].double()
    moment = part.moment[c].double()
    about = clip_rows(rows - mean, 0.4)
    rows = clip_rows(rows, 0.5)
    first = 0.0
    second = 0.0
    for i in range(n):
        for j in range(n):
            if i != j:
                first += rows[i] @ rows[j] / (n * (n - 1))
                second += (about[i] @ about[j]) ** 2 / (n * (n - 1))
    of_means = first - 2 * rows.mean(0) @ mean + mean @ mean
    average = (about[:, :, None] * about[:, None, :]).mean(0)
    of_moments = second - 2 * (average * moment).sum() + moment.square().sum()
    return part.weights[0] * of_means + part.weights[1] * of_moments


@pytest.mark.parametrize(
    "labels", [Y[:12], torch.tensor([2, 0, 0, 2, 2, 0, 2])], ids=["balanced", "classes of 0, 3, 4"]
)
def test_loss_is_the_mean_over_pairs(matcher, labels):
    """Products of a record with itself are left out."""
    images = make_images(labels, seed=1)
    (part,) = matcher.parts
    distances = []
    for c in labels.unique():
        rows = part(images)[labels == c].double()
        distances.append(distance_of_class(part, rows, c))
    expected = sum(distances) / (part.weights.sum() * len(distances))
    loss = matcher.loss(images, labels).item()
    assert loss == pytest.approx(float(expected), rel=1e-3, abs=1e-6)


def test_loss_is_least_for_images_of_the_same_law(matcher):
    images = make_images(seed=2)
    without_variety = make_images(seed=2)
    without_variety[:, :, 0] = without_variety[:, :, 0].mean()  # means of classes stay, almost
    same = float(matcher.loss(images, Y))
    uniform = float(matcher.loss(without_variety, Y))
    other_classes = float(matcher.loss(images, (Y + 1) % C))
    assert same < 0.1 * uniform < 0.1 * other_classes


def test_pooled_moments_are_about_those_of_the_classes(tmp_path):
    """All classes have one covariance here. Clipping moves both estimates."""
    (own,) = release_matcher(tmp_path / "own", epsilon=300.0).parts
    (pooled,) = release_matcher(tmp_path / "pooled", epsilon=300.0, pooled=True).parts
    assert own.moments.n_classes == C
    assert pooled.moments.n_classes == 1
    covariances = own.moment * own.scale**2
    difference = covariances - pooled.moment * pooled.scale**2
    assert float(difference.norm() / covariances.norm()) < 0.5


def test_network_with_batch_normalisation_is_trained(matcher):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(8 + C, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 16),
        nn.Unflatten(1, SHAPE),
    )
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    labels = torch.arange(60) % C
    losses = []
    for _ in range(200):
        codes = torch.cat([torch.randn(60, 8), torch.eye(C)[labels]], 1)
        loss = matcher.loss(network(codes), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-20:]) < 0.05 * sum(losses[:20])


@pytest.mark.parametrize("options", [{}, {"moments": False}, {"pooled": True}], ids=str)
def test_releases_spend_the_budget(tmp_path, options):
    maps = [flatten(), DCT(SHAPE, 2, centre=0.4, radius=1.5)]
    made = release_matcher(tmp_path / "run", maps=maps, epsilon=3.0, **options)
    assert made.guarantee["sound"]
    assert made.guarantee["epsilon"] <= 3.0
    assert made.guarantee["mu"] == pytest.approx(mu_of_epsilon(3.0, 1e-5), rel=1e-3)
    squared_mu = 0.0
    for query in made.queries():
        squared_mu += (query.mechanism.sensitivity / query.mechanism.sigma) ** 2
    assert math.sqrt(squared_mu) == pytest.approx(made.guarantee["mu"], rel=1e-3)
    values = list((tmp_path / "run" / "releases").glob("*.pt"))
    assert len(values) == len(made.queries())
    images = make_images(seed=3)
    assert float(made.loss(images, Y)) < float(made.loss(images, (Y + 1) % C))


@pytest.mark.parametrize(
    ("n_records", "n_classes", "mu", "shape", "plan"),
    [
        (60_000, 10, 2.0, (1, 28, 28), (14, False)),
        (60_000, 10, 0.0543, (1, 28, 28), (8, False)),  # MNIST, epsilon 0.2
        (7291, 10, 0.26, (1, 16, 16), (7, False)),
        (7291, 10, 0.06, (1, 16, 16), (5, True)),
        (4000, 0, 2.0, (3, 64, 64), (14, False)),
        (10, 2, 0.1, (1, 4, 4), (2, True)),
    ],
)
def test_plan_of_few_records_has_few_frequencies(n_records, n_classes, mu, shape, plan):
    assert plan_moments(n_records, n_classes, mu, shape) == plan


def test_matcher_without_classes_takes_no_labels(tmp_path):
    made = release_matcher(tmp_path / "run", records=PrivateRecords(make_images()), n_classes=0)
    images = make_images(seed=4)
    assert float(made.loss(images)) < float(made.loss(1 - images))
    with pytest.raises(InputError, match="no labels"):
        made.loss(images, Y)


@pytest.fixture
def saved(matcher, tmp_path):
    """The path of a file of the matcher."""
    matcher.save(tmp_path / "moments.pt")
    return tmp_path / "moments.pt"


def test_matcher_returns_from_its_file(matcher, saved):
    read = MomentMatcher(flatten(), C).load(saved)
    images = make_images(seed=5)
    assert read.guarantee == matcher.guarantee
    assert read.guarantee["epsilon"] <= 100
    torch.testing.assert_close(read.loss(images, Y), matcher.loss(images, Y))


@pytest.mark.parametrize(
    "features",
    [
        DCT(SHAPE, 3),
        DCT(SHAPE, 4, centre=0.4, radius=1.5),
        Flatten(SHAPE, centre=0.3, radius=1.5),
    ],
    ids=["another size", "another map", "another centre"],
)
def test_file_of_other_feature_maps_is_refused(saved, features):
    with pytest.raises(InputError, match=r"moments\.pt"):
        MomentMatcher(features, C).load(saved)


def test_damaged_file_is_refused(saved):
    saved.write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"moments\.pt"):
        MomentMatcher(flatten(), C).load(saved)


def test_matcher_before_its_release_has_no_loss_and_no_file(tmp_path):
    made = MomentMatcher(flatten(), C)
    with pytest.raises(InputError, match="release"):
        made.loss(make_images(), Y)
    with pytest.raises(InputError, match="release"):
        made.save(tmp_path / "x.pt")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "labels"),
        (Y + 1, "labels"),
        (Y[1:], "integers"),
        (Y.float(), "integers"),
        (Y.tolist(), "tensor"),
        (
            torch.cat([torch.zeros(N - 1, dtype=torch.int64), torch.ones(1, dtype=torch.int64)]),
            "two",
        ),
    ],
    ids=["none", "outside", "one less", "floats", "list", "one record of a class"],
)
def test_labels_that_do_not_fit_are_refused(matcher, labels, message):
    with pytest.raises(InputError, match=message):
        matcher.loss(make_images(), labels)


def test_options_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="moments"):
        MomentMatcher([flatten(), flatten()], C, moments=[True])
    with pytest.raises(InputError, match="n_classes"):
        MomentMatcher(flatten(), -1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_classes": 4}, "n_classes"),
        ({"n_classes": 0}, "n_classes"),
        ({"maps": Flatten((1, 5, 5))}, "records of"),
    ],
    ids=["more classes", "no classes", "another shape"],
)
def test_records_that_do_not_fit_release_nothing(tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        release_matcher(tmp_path / "run", **options)
    assert not list(tmp_path.iterdir())


def test_loss_of_images_in_double_precision_has_their_gradient(matcher):
    images = make_images().double().requires_grad_()
    matcher.loss(images, Y).backward()
    assert images.grad.dtype == torch.float64
    assert bool(images.grad.any())


@pytest.mark.parametrize(
    ("arguments", "name"), [((0, 2, 1.0, SHAPE), "n_records"), ((60, 2, math.inf, SHAPE), "mu")]
)
def test_plan_of_numbers_out_of_range_is_refused(arguments, name):
    with pytest.raises(InputError, match=name):
        plan_moments(*arguments)
