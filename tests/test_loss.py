"""The loss: values, gradients, invalid input; the law of its noise, sensitivity, bias and secrecy."""

import itertools
import math

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
from dpswd.loss import Release
from dpswd.release import clip_rows

TINY = 1e-12  # noise so small that only float error of the comparison is left


def mechanism(**changes):
    values = {
        "dim": 3,
        "n_projections": 6,
        "sigma": 0.1,
        "batch_size": 8,
        "noise_seed": 0,
    } | changes
    return ProjectionMechanism(**values)


def quantiles(**changes):
    return mechanism(**{"statistic": "quantiles", "n_quantiles": 4} | changes)


def rows(n, d=3, seed=0, norm=0.4):
    x = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return (x * norm / x.norm(dim=1, keepdim=True)).float().double()


def given(loss, x, labels=None):
    """What the loss gets: the rows, or a batch of all of them with their classes."""
    if labels is None:
        return x
    handle = PrivateRecords(x, labels, classes=range(booked(loss).mechanism.n_classes))
    return PrivateBatch(handle, len(x))


@pytest.mark.parametrize("n_classes", [None, 3])
@pytest.mark.parametrize("n", [8, 5, 4, 3, 20])
@pytest.mark.parametrize("statistic", ["rows", "quantiles"])
@pytest.mark.parametrize("most_bytes", [1, 2**27], ids=["a direction at a time", "all"])
def test_without_noise_the_distance_is_the_exact_one(
    statistic, n, n_classes, most_bytes, monkeypatch
):
    """With classes, of the embedding times one-hot: a row of another class is zero."""
    monkeypatch.setattr("dpswd.loss._MAX_SORTED_BYTES", most_bytes)
    monkeypatch.setattr("dpswd._kernels._MAX_BYTES", most_bytes)
    made = (mechanism if statistic == "rows" else quantiles)(sigma=TINY, n_classes=n_classes)
    loss, x, y = DPSlicedWassersteinLoss(made), rows(8), rows(n, seed=1)
    of_x, of_y = (
        torch.tensor([0, 0, 2, 2, 2, 0, 2, 0]),
        torch.arange(n) % 2,
    )  # class 1: no private row, 2: no public
    of_y = of_y if n > 3 else torch.tensor([2, 0, 1])  # classes of equal size
    out = loss.release(given(loss, x, None if n_classes is None else of_x))
    assert out.values.shape[-2:] == (8 if statistic == "rows" else 4, 6)
    exact = 0.0
    for c in range(n_classes or 1):
        ours, theirs = (
            z if n_classes is None else z * (of_z == c)[:, None]
            for z, of_z in ((y, of_y), (x, of_x))
        )
        if statistic == "rows":
            exact += float(sliced_wasserstein(ours, theirs, out.projections)) / (n_classes or 1)
        else:
            a, b = (
                block_means((z @ out.projections).sort(dim=0).values, 4) for z in (ours, theirs)
            )
            exact += float((a - b).square().mean()) / (n_classes or 1)
    assert float(loss.distance(out, y, None if n_classes is None else of_y)) == pytest.approx(
        exact, abs=1e-10
    )


def test_released_rows_are_sorted():
    values = DPSlicedWassersteinLoss(mechanism(sigma=3.0)).release(rows(8)).values
    assert bool((values.diff(dim=0) >= 0).all())
    loss = DPSlicedWassersteinLoss(mechanism(sigma=3.0, n_classes=2))
    by_class = loss.release(given(loss, rows(8), torch.arange(8) % 2)).values
    assert by_class.shape == (2, 8, 6)
    assert bool((by_class.diff(dim=1) >= 0).all())


@pytest.mark.parametrize(
    "made", [mechanism(), quantiles(), quantiles(n_classes=2), mechanism(n_classes=2)]
)
def test_gradient_reaches_public_rows_only(made):
    network, x, y = (
        torch.nn.Linear(3, 3).double(),
        rows(8).requires_grad_(),
        rows(10, seed=1).requires_grad_(),
    )
    loss = DPSlicedWassersteinLoss(made)
    if made.n_classes is None:
        loss(network(x), y).backward()
    else:
        batch = given(loss, x.detach(), torch.arange(8) % 2)
        loss(
            batch, y, torch.arange(10) % 2, rows=lambda values: network(values.double())
        ).backward()
    assert x.grad is None
    assert all(parameter.grad is None for parameter in network.parameters())
    assert y.grad is not None
    assert bool(y.grad.any())


@pytest.mark.parametrize("n", [6, 7], ids=["classes of equal size", "classes of 4 and 3"])
def test_gradient_of_the_distance_against_finite_differences(n):
    loss = DPSlicedWassersteinLoss(quantiles(n_classes=2))
    release, labels = loss.release(given(loss, rows(8), torch.arange(8) % 2)), torch.arange(n) % 2
    assert torch.autograd.gradcheck(
        lambda y: loss.distance(release, y, labels), rows(n, seed=1).requires_grad_()
    )


ZEROS, X, Y = torch.zeros(8).long(), rows(8), rows(5)


@pytest.mark.parametrize(
    ("made", "private", "public", "labels", "message"),
    [
        (quantiles(), rows(7), Y, (), "batch_size=8 private rows, got 7"),
        (quantiles(), X.long(), Y, (), r"private rows .*got torch\.int64"),
        (quantiles(), X.where(X != X[3, 1], math.nan), Y, (), "finite"),
        (quantiles(), X, rows(5, 4), (), r"public rows .*\(5, 4\)"),
        (quantiles(), X, rows(0), (), "at least one row in public rows"),
        (quantiles(), X, Y, (ZEROS[:5],), "no public_labels"),
        (quantiles(n_classes=2), X, Y, (ZEROS[:5],), "n_classes, got a tensor"),
        (quantiles(n_classes=2), X, Y, (), r"public_labels .*NoneType"),
        (quantiles(n_classes=2), X, Y, (ZEROS[:4],), r"public_labels .*\(4,\)"),
        (quantiles(n_classes=2), X, Y, (ZEROS[:5] - 1,), "public_labels .*outside"),
    ],
)
def test_invalid_input_releases_nothing(made, private, public, labels, message):
    loss = booked(DPSlicedWassersteinLoss(made))
    with pytest.raises(InputError, match=message) as caught:
        loss(private, public, *labels)
    assert (loss.n_releases, loss.recorder) == (0, [])
    assert not any(f"{float(value):.3f}" in str(caught.value) for value in X.flatten())


def test_classes_of_a_row_function_outside_release_nothing():
    loss = DPSlicedWassersteinLoss(quantiles(n_classes=2))
    batch = given(loss, X, ZEROS)
    with pytest.raises(InputError, match=r"classes of a row function .*outside"):
        loss(batch, Y, ZEROS[:5], rows=LabelledRows(lambda values, labels: (values, labels + 2)))
    assert (loss.n_releases, loss.recorder) == (0, [])


@pytest.mark.parametrize("made", [mechanism(), quantiles(n_classes=2)])
def test_release_in_a_checkpoint(made, tmp_path):
    loss = DPSlicedWassersteinLoss(made)
    release = loss.release(
        given(loss, rows(8), None if made.n_classes is None else torch.arange(8) % 2)
    )
    torch.save(release.state_dict(), tmp_path / "release.pt")
    again = Release.from_state_dict(torch.load(tmp_path / "release.pt", weights_only=True))
    assert again.mechanism == release.mechanism
    assert torch.equal(again.values, release.values)
    assert torch.equal(again.to("cpu").projections, release.projections)


def test_public_noise_has_the_sigma_of_the_release():
    loss = DPSlicedWassersteinLoss(mechanism(sigma=TINY))
    release, y = loss.release(rows(8)), rows(8, seed=1)
    before = float(loss.distance(release, y))
    loss.mechanism = mechanism(sigma=50.0)  # the release keeps its own
    assert float(loss.distance(release, y)) == pytest.approx(before, abs=1e-10)
    assert loss.n_releases == 1  # distances are free


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("made", [mechanism(), quantiles(), quantiles(n_classes=2)])
def test_cuda(made):
    labels = (
        (None, None)
        if made.n_classes is None
        else (torch.arange(8) % 2, (torch.arange(9) % 2).cuda())
    )
    values = []
    for device in ("cpu", "cuda"):
        x, y = rows(8).to(device), rows(9, seed=1).to(device).requires_grad_()
        loss = DPSlicedWassersteinLoss(made.replace(sigma=1e-9))
        value = loss(
            given(loss, x, labels[0]), y, None if labels[1] is None else labels[1].to(device)
        )
        value.backward()
        assert y.grad.device.type == value.device.type == device
        values.append(float(value))
    assert values[0] == pytest.approx(values[1], abs=1e-7)


def test_smoothed_distance_has_the_law_of_noisy_projections():
    """One direction, one row: the loss is the square of a normal number about the projection."""
    made = mechanism(dim=2, n_projections=1, batch_size=1, sigma=0.3)
    loss = DPSlicedWassersteinLoss(made)
    release = loss.release(torch.zeros(1, 2))
    y = torch.tensor([[0.2, 0.1]], dtype=torch.float64)
    torch.manual_seed(0)
    draws = torch.stack([loss.distance(release, y) for _ in range(4000)])
    offset = float((y @ release.projections - release.values).square().squeeze())
    spread = (
        2 * 0.3**4 + 4 * 0.3**2 * offset
    ) ** 0.5 / 4000**0.5  # of the mean of a non-central chi square
    assert abs(float(draws.mean()) - offset - 0.3**2) < 5 * spread  # 6e-7, for the seed alone


FALSE_ALARM = 1e-6  # chance that a correct mechanism fails a test here, over the choice of the seed


def noisy(**changes):
    """Three blocks in four dimensions, without a noise seed."""
    values = {
        "dim": 4,
        "n_projections": 8,
        "sigma": 0.3,
        "batch_size": 12,
        "n_quantiles": 3,
        "noise_seed": None,
    }
    return quantiles(**(values | changes))


def has_the_law_of(drawn, sigma):
    """Whether numbers are normal with this deviation, and not with two thirds or one and a half of it."""
    p_values = [
        stats.kstest(drawn / (factor * sigma), "norm").pvalue for factor in (2 / 3, 1, 3 / 2)
    ]
    return p_values[1] > FALSE_ALARM > max(p_values[::2])


@pytest.mark.parametrize("n_classes", [None, 3])
def test_noise_has_the_law_that_is_claimed_and_is_fresh(n_classes):
    """Given the directions the noise is seen by itself: noise that repeats hides behind fresh directions otherwise."""
    loss = DPSlicedWassersteinLoss(noisy(n_classes=n_classes, noise_seed=1))
    x, labels = (
        rows(12, 4, norm=0.5),
        None if n_classes is None else torch.arange(12) % 2,
    )  # no record of class 2
    made = [loss.release(given(loss, x, labels)) for _ in range(200)]
    noise = torch.stack(
        [(out.values - loss.exact_values(x, labels, out.projections)).flatten() for out in made]
    )
    drawn = noise.flatten().numpy()  # 4,800 or 14,400 numbers
    assert has_the_law_of(drawn, 0.3)
    for lag in (1, 24, noise.shape[1]):  # an entry, a class, a release later
        r = np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1]
        assert abs(r) * math.sqrt(len(drawn)) < stats.norm.isf(FALSE_ALARM / 2)
    assert not any(
        torch.any(one.projections == two.projections) for one, two in itertools.pairwise(made)
    )


def test_noise_of_rows_has_the_law_that_is_claimed():
    loss, x = (
        DPSlicedWassersteinLoss(ProjectionMechanism(4, 8, 0.3, 12, noise_seed=1)),
        torch.zeros(12, 4),
    )
    drawn = torch.cat([loss.release(x).values.flatten() for _ in range(100)]).numpy()
    assert has_the_law_of(drawn, 0.3)  # sorted noise alone: as a set, normal numbers


@pytest.mark.parametrize("release", [{}, {"statistic": "rows", "n_quantiles": None}])
@pytest.mark.parametrize("seed", [torch.manual_seed, lambda s: L.seed_everything(s, verbose=False)])
def test_seeds_neither_change_nor_repeat_what_is_secret(release, seed):
    releases = []
    for _ in range(2):
        seed(0)
        loss = DPSlicedWassersteinLoss(noisy(**release))
        releases += [loss.release(rows(12, 4, norm=0.5)) for _ in range(2)]
    for one, other in itertools.combinations(releases, 2):
        assert (one.values == other.values).float().mean() < 0.1  # on a grid of sigma / 1024
        assert not torch.any(one.projections == other.projections)


def test_a_noise_seed_repeats_everything_and_says_so():
    made = noisy(noise_seed=5)
    x = rows(12, 4, norm=0.5)
    first, second = (DPSlicedWassersteinLoss(made).release(x) for _ in range(2))
    assert torch.equal(first.values, second.values)
    assert torch.equal(first.projections, second.projections)
    loss = DPSlicedWassersteinLoss(made)
    assert not torch.equal(
        loss.release(x).values, loss.release(x).values
    )  # from call to call it goes on
    assert "NOT PRIVATE" in repr(loss)
    assert "NOT PRIVATE" not in repr(DPSlicedWassersteinLoss(noisy()))


# sensitivity, by search over neighbouring batches, through the code that releases


def neighbours(generator, trial, size=6, dim=3):
    """A batch and its neighbour; every third one is the extreme case, all rows equal and one jumps across."""
    x = torch.randn(size, dim, dtype=torch.float64, generator=generator)
    x[0] *= 10 / x[0].norm()
    if trial % 3 == 0:
        x[:] = x[0]
    y = x.clone()
    y[0] = -x[0] if trial % 3 < 2 else torch.randn(dim, dtype=torch.float64, generator=generator)
    return x, y


BOTH = pytest.mark.parametrize(
    "made", [mechanism(batch_size=6), quantiles(batch_size=6, n_quantiles=2)]
)


@BOTH
@pytest.mark.parametrize("n_classes", [None, 2])
def test_same_class_sensitivity(n_classes, made):
    made = made.replace(kind="orthogonal", n_classes=n_classes)
    loss, generator = DPSlicedWassersteinLoss(made), torch.Generator().manual_seed(0)
    claimed, ratios = made.unit_sensitivity * math.sqrt(made.law.maximum), []
    for trial in range(400):
        x, y = neighbours(generator, trial)
        u = loss.draw_projections()
        labels = (
            torch.randint(2 if trial % 6 else 1, (6,), generator=generator) if n_classes else None
        )
        moved = loss.exact_values(x, labels, u) - loss.exact_values(y, labels, u)
        ratios.append(float(moved.norm()) / claimed)
    assert max(ratios) <= 1
    assert max(ratios) == pytest.approx(
        1, abs=1e-9
    )  # reached: what jumps stays at its end of every column's order


@BOTH
@pytest.mark.parametrize("kind", ["orthogonal", "iid"])
def test_other_class_sensitivity(kind, made):
    made = made.replace(kind=kind, n_classes=3)
    loss, generator = DPSlicedWassersteinLoss(made), torch.Generator().manual_seed(1)
    claimed, ratios = made.unit_sensitivity * math.sqrt(made.law.maximum / 2), []
    for trial in range(400):
        x, y = neighbours(generator, trial)
        u, before = loss.draw_projections(), torch.randint(3, (6,), generator=generator)
        after = before.clone()
        after[0] = (before[0] + 1 + trial % 2) % 3
        moved = (loss.exact_values(x, before, u) - loss.exact_values(y, after, u)).norm()
        z, w = (clip_rows(rows_[:1], 0.5)[0] for rows_ in (x, y))
        of_two = (
            (z @ u).square().sum() + (w @ u).square().sum()
        ).sqrt() / made.block_size  # two class blocks
        ratios.append(float(moved / of_two))
        if kind == "orthogonal":  # covered by the same-class case, a factor sqrt(2) below it
            assert float(moved) <= claimed * (1 + 1e-12)
    assert 0.99 < max(ratios) <= 1 + 1e-12


def test_the_gradient_of_quantiles_is_unbiased_and_sorting_them_again_is_not(monkeypatch):
    made = noisy(sigma=0.4, n_projections=6, noise_seed=3)
    u = DPSlicedWassersteinLoss(made).release(rows(12, 4, norm=0.5)).projections
    monkeypatch.setattr("dpswd.loss.random_projections", lambda *_, **__: u)  # given the directions
    loss, x, y = (
        DPSlicedWassersteinLoss(made),
        rows(12, 4, norm=0.5),
        rows(9, 4, 1, norm=0.5).requires_grad_(),
    )

    def gradient(target):
        (grad,) = torch.autograd.grad(
            (block_means((y @ u).sort(dim=0).values, 3) - target).square().mean(), y
        )
        return grad

    exact = gradient(loss.exact_values(x, None, u))
    ours, resorted = [], []
    for _ in range(3000):
        out = loss.release(x)
        (grad,) = torch.autograd.grad(loss.distance(out, y), y)
        ours.append(grad)
        resorted.append(gradient(out.values.sort(dim=0).values))

    def largest_z(grads):
        stack = torch.stack(grads)
        return float(((stack.mean(0) - exact).abs() / (stack.std(0) / math.sqrt(len(stack)))).max())

    assert largest_z(ours) < 5  # 36 entries: a false alarm in 50,000 seeds
    assert largest_z(resorted) > 10  # control: what POT's solver would do
