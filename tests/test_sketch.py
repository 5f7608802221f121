"""Sketches: the loss against a direct computation, what training on one reaches, files, budgets, refusals."""

import math

import pytest
import torch
from torch import nn

from dpswd import InputError, PrivateRecords
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.features.frequencies import DCT
from dpswd.features.maps import Flatten
from dpswd.release import clip_rows
from dpswd.sketch import Sketch, plan_sketch

N, C, SHAPE = 600, 3, (1, 4, 4)
Y = torch.arange(N) % C


def images(n=N, labels=Y, seed=0):
    """Images whose class moves their mean, and whose first row varies as one."""
    source = torch.Generator().manual_seed(seed)
    base = (
        0.2
        + 0.2 * labels.float().view(-1, 1, 1, 1)
        + 0.02 * torch.randn(n, *SHAPE, generator=source)
    )
    base[:, :, 0] += 0.1 * torch.randn(n, 1, 1, generator=source)
    return base.clamp(0, 1)


def handle():
    return PrivateRecords(images(), Y, classes=range(C))


def released(directory, *, epsilon=100.0, records=None, maps=None, n_classes=C, **options):
    sketch = Sketch(maps or Flatten(SHAPE, centre=0.4, radius=1.5), n_classes, **options)
    sketch.release(
        records or handle(), target_epsilon=epsilon, target_delta=1e-5, run_dir=directory
    )
    return sketch


@pytest.fixture(scope="module")
def sketch(tmp_path_factory):
    return released(tmp_path_factory.mktemp("sketch") / "run")


@pytest.mark.parametrize(
    "labels", [Y[:12], torch.tensor([2, 0, 0, 2, 2, 0, 2])], ids=["balanced", "classes of 0, 3, 4"]
)
def test_loss_is_the_mean_over_pairs(sketch, labels):
    """The squared distance to released moments, of which products of a record with itself are left out."""
    records = images(len(labels), labels, seed=1)
    (part,), wanted = sketch.parts, []
    for c in labels.unique():
        mean, moment = part.mean[c].double(), part.moment[c].double()
        rows = part(records)[labels == c].double()
        rows, about = clip_rows(rows, 0.5), clip_rows(rows - mean, 0.4)
        n = len(rows)
        first = sum(rows[i] @ rows[j] for i in range(n) for j in range(n) if i != j) / (n * (n - 1))
        second = sum((about[i] @ about[j]) ** 2 for i in range(n) for j in range(n) if i != j) / (
            n * (n - 1)
        )
        outer = (about[:, :, None] * about[:, None, :]).mean(0)
        wanted.append(
            part.weights[0] * (first - 2 * rows.mean(0) @ mean + mean @ mean)
            + part.weights[1] * (second - 2 * (outer * moment).sum() + moment.square().sum())
        )
    expected = sum(wanted) / (part.weights.sum() * len(wanted))
    assert sketch.loss(records, labels).item() == pytest.approx(float(expected), rel=1e-3, abs=1e-6)


def test_records_of_the_same_law_are_nearest(sketch):
    same, moved = images(seed=2), images(seed=2)
    moved[:, :, 0] = moved[
        :, :, 0
    ].mean()  # the same means of classes, almost, without the variety of the first row
    losses = [
        float(sketch.loss(each, y)) for each, y in ((same, Y), (moved, Y), (same, (Y + 1) % C))
    ]
    assert losses[0] < 0.1 * losses[1] < 0.1 * losses[2]


def test_pooled_moments_of_classes_of_equal_covariance(tmp_path):
    """Pooled or not, covariances are about the same, noise and clipping apart; one is released, or C."""
    inside = []
    for pooled in (False, True):
        (part,) = released(tmp_path / str(pooled), epsilon=300.0, pooled=pooled).parts
        assert part.moments.n_classes == (1 if pooled else C)
        inside.append(part.moment * part.scale**2)
    assert float((inside[0] - inside[1]).norm() / inside[0].norm()) < 0.5  # clipping moves both


def test_training_of_a_network_with_batch_normalisation(sketch):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(8 + C, 32),
        nn.BatchNorm1d(32),
        nn.ReLU(),
        nn.Linear(32, 16),
        nn.Unflatten(1, SHAPE),
    )
    optimiser, labels, losses = (
        torch.optim.Adam(network.parameters(), 1e-2),
        torch.arange(60) % C,
        [],
    )
    for _ in range(200):
        loss = sketch.loss(
            network(torch.cat([torch.randn(60, 8), torch.eye(C)[labels]], 1)), labels
        )
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert sum(losses[-20:]) < 0.05 * sum(losses[:20]), (
        losses[::20],
        float(sketch.loss(images(seed=9), Y)),
    )


@pytest.mark.parametrize("options", [{}, {"moments": False}, {"pooled": True}], ids=str)
def test_budget(tmp_path, options):
    maps = [Flatten(SHAPE, centre=0.4, radius=1.5), DCT(SHAPE, 2, centre=0.4, radius=1.5)]
    made = released(tmp_path / "run", maps=maps, epsilon=3.0, **options)
    guarantee, planned = made.guarantee, made.queries()
    assert guarantee["sound"]
    assert guarantee["epsilon"] <= 3.0
    assert guarantee["mu"] == pytest.approx(mu_of_epsilon(3.0, 1e-5), rel=1e-3)
    spent = sum(1 / query.mechanism.sigma**2 * query.mechanism.sensitivity**2 for query in planned)
    assert math.sqrt(spent) == pytest.approx(guarantee["mu"], rel=1e-3)
    assert len(list((tmp_path / "run" / "releases").iterdir())) == len(planned)
    assert float(made.loss(images(seed=3), Y)) < float(made.loss(images(seed=3), (Y + 1) % C))


@pytest.mark.parametrize(
    ("facts", "wanted"),
    [
        ((60_000, 10, 2.0, (1, 28, 28)), (14, False)),
        ((60_000, 10, 0.0543, (1, 28, 28)), (8, False)),  # MNIST, epsilon 0.2
        ((7291, 10, 0.26, (1, 16, 16)), (7, False)),
        ((7291, 10, 0.06, (1, 16, 16)), (5, True)),
        ((4000, 0, 2.0, (3, 64, 64)), (14, False)),
        ((10, 2, 0.1, (1, 4, 4)), (2, True)),
    ],
)
def test_few_records_have_few_frequencies_or_one_second_moment(facts, wanted):
    assert plan_sketch(*facts) == wanted


def test_without_classes(tmp_path):
    made = released(tmp_path / "run", records=PrivateRecords(images()), n_classes=0)
    assert float(made.loss(images(seed=4))) < float(made.loss(1 - images(seed=4)))
    with pytest.raises(InputError, match="labels"):
        made.loss(images(), Y)


def test_files(tmp_path):
    made = released(tmp_path / "run")
    made.save(tmp_path / "sketch.pt")
    again = Sketch(Flatten(SHAPE, centre=0.4, radius=1.5), C).load(tmp_path / "sketch.pt")
    assert again.guarantee == made.guarantee
    assert again.guarantee["epsilon"] <= 100
    torch.testing.assert_close(again.loss(images(seed=5), Y), made.loss(images(seed=5), Y))
    for other in (
        DCT(SHAPE, 3),
        DCT(SHAPE, 4, centre=0.4, radius=1.5),
        Flatten(SHAPE, centre=0.3, radius=1.5),
    ):
        with pytest.raises(InputError, match=r"sketch\.pt"):
            Sketch(other, C).load(tmp_path / "sketch.pt")
    (tmp_path / "sketch.pt").write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"sketch\.pt"):
        again.load(tmp_path / "sketch.pt")


def test_refusals(tmp_path, sketch):
    flat = Flatten(SHAPE)
    for call, said in (
        (lambda: Sketch(flat, C).loss(images(), Y), "release"),
        (lambda: sketch.loss(images()), "labels"),
        (lambda: sketch.loss(images(), Y + 1), "labels"),
        (lambda: sketch.loss(images(3, Y[:3]), torch.tensor([0, 0, 1])), "two"),
        (lambda: Sketch([flat, flat], C, moments=[True]), "moments"),
        (lambda: Sketch(flat, -1), "n_classes"),
        (lambda: sketch.loss(images(), Y[1:]), "label per record"),
        (lambda: Sketch(flat, C).save(tmp_path / "x.pt"), "release"),
        (lambda: released(tmp_path / "run", n_classes=4), "n_classes"),
        (lambda: released(tmp_path / "run", n_classes=0), "n_classes"),
        (lambda: released(tmp_path / "run", maps=Flatten((1, 5, 5))), "records of"),
    ):
        with pytest.raises(InputError, match=said):
            call()
    assert not list(tmp_path.iterdir())  # nothing was released or written
