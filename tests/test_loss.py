"""The loss as a module: values, gradients, types, clipping, invalid input."""

import math

import pytest
import torch
from factories import booked

import dpswd.loss
from dpswd import DPSlicedWassersteinLoss, InputError, ProjectionMechanism, sliced_wasserstein
from dpswd.loss import Release
from dpswd.sliced import block_means

TINY = 1e-12  # noise so small that only float error of the comparison is left


def mechanism(**changes):
    values = {"dim": 3, "n_projections": 6, "sigma": 0.1, "batch_size": 8, "noise_seed": 0} | changes
    return ProjectionMechanism(**values)


def quantiles(**changes):
    return mechanism(**{"statistic": "quantiles", "n_quantiles": 4} | changes)


def rows(n, d=3, seed=0, norm=0.4):
    x = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return x * norm / x.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("n", [8, 5, 20], ids=["equal", "fewer", "more"])
def test_rows_without_noise_is_the_sliced_distance(n):
    loss = DPSlicedWassersteinLoss(mechanism(sigma=TINY))
    x, y = rows(8), rows(n, seed=1)
    release = loss.release(x)
    exact = sliced_wasserstein(x, y, release.projections)
    assert float(loss.distance(release, y)) == pytest.approx(float(exact), abs=1e-10)


@pytest.mark.parametrize("n", [8, 4, 5, 3, 20])
def test_quantiles_without_noise_compare_block_means(n):
    loss = DPSlicedWassersteinLoss(quantiles(sigma=TINY))
    x, y = rows(8), rows(n, seed=1)
    release = loss.release(x)
    assert release.values.shape == (4, 6)
    ours, theirs = (block_means((z @ release.projections).sort(dim=0).values, 4) for z in (y, x))
    assert float(loss.distance(release, y)) == pytest.approx(float((ours - theirs).square().mean()), abs=1e-10)


@pytest.mark.parametrize("release", ["rows", "quantiles"])
@pytest.mark.parametrize("n", [8, 5])
def test_class_blocks_are_the_embedding_times_one_hot(release, n):
    made = (mechanism if release == "rows" else quantiles)(sigma=TINY, n_classes=3)
    loss = DPSlicedWassersteinLoss(made)
    x, y = rows(8), rows(n, seed=1)
    of_x, of_y = torch.tensor([0, 0, 2, 2, 2, 0, 2, 0]), torch.arange(n) % 2  # class 1: no private row, 2: no public
    out = loss.release(x, of_x)
    exact = 0.0
    for c in range(3):
        ours, theirs = ((z * (of_z == c)[:, None]) for z, of_z in ((y, of_y), (x, of_x)))
        if release == "rows":
            exact += float(sliced_wasserstein(ours, theirs, out.projections)) / 3
        else:
            a, b = (block_means((z @ out.projections).sort(dim=0).values, 4) for z in (ours, theirs))
            exact += float((a - b).square().mean()) / 3
    assert float(loss.distance(out, y, of_y)) == pytest.approx(exact, abs=1e-10)


def test_chunks_of_projections_give_equal_values(monkeypatch):
    x = rows(8)
    whole = DPSlicedWassersteinLoss(quantiles()).release(x)
    monkeypatch.setattr("dpswd.loss._CHUNK_BYTES", 8 * 8 * 2)  # two columns at a time
    pieces = DPSlicedWassersteinLoss(quantiles()).release(x)
    torch.testing.assert_close(whole.values, pieces.values, rtol=0, atol=1e-14)


@pytest.mark.parametrize("made", [mechanism(), quantiles(), quantiles(n_classes=2)])
def test_values_do_not_depend_on_the_order_of_private_rows(made):
    x, order = rows(8), torch.tensor([3, 1, 7, 0, 2, 6, 5, 4])
    labels = None if made.n_classes is None else torch.arange(8) % 2
    first = DPSlicedWassersteinLoss(made.replace(sigma=TINY)).release(x, labels)
    second = DPSlicedWassersteinLoss(made.replace(sigma=TINY)).release(
        x[order], None if labels is None else labels[order]
    )
    torch.testing.assert_close(first.values, second.values, rtol=0, atol=1e-10)


def test_released_rows_are_sorted():
    values = DPSlicedWassersteinLoss(mechanism(sigma=3.0)).release(rows(8)).values
    assert bool((values.diff(dim=0) >= 0).all())
    by_class = DPSlicedWassersteinLoss(mechanism(sigma=3.0, n_classes=2)).release(rows(8), torch.arange(8) % 2).values
    assert by_class.shape == (2, 8, 6)
    assert bool((by_class.diff(dim=1) >= 0).all())


@pytest.mark.parametrize("made", [mechanism(), quantiles(), quantiles(n_classes=2), mechanism(n_classes=2)])
def test_gradient_reaches_public_rows_only(made):
    network, x, y = torch.nn.Linear(3, 3).double(), rows(8).requires_grad_(), rows(10, seed=1).requires_grad_()
    labels = () if made.n_classes is None else (torch.arange(8) % 2, torch.arange(10) % 2)
    DPSlicedWassersteinLoss(made)(network(x), y, *labels).backward()
    assert x.grad is None
    assert all(parameter.grad is None for parameter in network.parameters())
    assert y.grad is not None
    assert bool(y.grad.any())


def test_gradient_of_the_distance_against_finite_differences():
    loss = DPSlicedWassersteinLoss(quantiles(n_classes=2))
    release, labels = loss.release(rows(8), torch.arange(8) % 2), torch.arange(7) % 2
    assert torch.autograd.gradcheck(lambda y: loss.distance(release, y, labels), rows(7, seed=1).requires_grad_())


ZEROS, X, Y = torch.zeros(8).long(), rows(8), rows(5)


@pytest.mark.parametrize(
    ("made", "private", "public", "labels", "message"),
    [
        (quantiles(), rows(7), Y, (), r"private rows of shape \(8, 3\) .*got \(7, 3\)"),
        (quantiles(), X.long(), Y, (), r"private rows .*got torch\.int64"),
        (quantiles(), X * math.nan, Y, (), "finite"),
        (quantiles(), X, rows(5, 4), (), r"public rows .*\(5, 4\)"),
        (quantiles(), X, rows(0), (), "at least one row in public rows"),
        (quantiles(), X, Y, (ZEROS, None), "no private_labels"),
        (quantiles(), X, Y, (None, ZEROS[:5]), "no public_labels"),
        (quantiles(n_classes=2), X, Y, (None, ZEROS[:5]), r"private_labels .*NoneType"),
        (quantiles(n_classes=2), X, Y, (ZEROS, None), r"public_labels .*NoneType"),
        (quantiles(n_classes=2), X, Y, (ZEROS[:7], ZEROS[:5]), r"private_labels .*\(7,\)"),
        (quantiles(n_classes=2), X, Y, (ZEROS + 2, ZEROS[:5]), "private_labels .*outside"),
        (quantiles(n_classes=2), X, Y, (ZEROS, ZEROS[:5] - 1), "public_labels .*outside"),
    ],
)
def test_invalid_input_releases_nothing(made, private, public, labels, message):
    loss = booked(DPSlicedWassersteinLoss(made))
    with pytest.raises(InputError, match=message):
        loss(private, public, *labels)
    assert (loss.n_releases, loss.recorder) == (0, [])


def test_message_contains_no_private_value():
    secret = rows(8)
    secret[3, 1], secret[3, 2] = math.nan, 0.123456
    with pytest.raises(InputError) as caught:
        DPSlicedWassersteinLoss(quantiles()).release(secret)
    assert "0.1234" not in str(caught.value)


@pytest.mark.parametrize("made", [mechanism(), quantiles(n_classes=2)])
def test_release_in_a_checkpoint(made, tmp_path):
    loss = DPSlicedWassersteinLoss(made)
    labels = () if made.n_classes is None else (torch.arange(8) % 2,)
    release = loss.release(rows(8), *labels)
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
    labels = (None, None) if made.n_classes is None else (torch.arange(8) % 2, torch.arange(9) % 2)
    values = []
    for device in ("cpu", "cuda"):
        x, y = rows(8).to(device), rows(9, seed=1).to(device).requires_grad_()
        there = [None if part is None else part.to(device) for part in labels]
        loss = DPSlicedWassersteinLoss(made.replace(sigma=1e-9))
        value = loss(x, y, *there)
        value.backward()
        assert y.grad.device.type == value.device.type == device
        values.append(float(value))
    assert values[0] == pytest.approx(values[1], abs=1e-7)


@pytest.mark.parametrize("most_bytes", [1, 2**27], ids=["a direction at a time", "all"])
def test_classes_of_equal_size_in_one_pass_equal_one_by_one(most_bytes, monkeypatch):
    monkeypatch.setattr("dpswd.sliced._DEFAULT_BYTES", most_bytes)
    loss = DPSlicedWassersteinLoss(quantiles(n_classes=3))
    release = loss.release(rows(8), torch.arange(8) % 3)
    labels = torch.tensor([2, 0, 1, 1, 0, 2, 2, 1, 0, 0, 1, 2])
    y, z = (rows(12, seed=1).requires_grad_() for _ in range(2))
    together = loss.distance(release, y, labels)
    each = [
        dpswd.loss._block_distance(z[labels == c], release.projections, release.values[c], len(z))
        for c in range(len(labels) // 4)
    ]
    apart = torch.stack(each).mean()
    together.backward()
    apart.backward()
    assert together.item() == pytest.approx(apart.item(), rel=1e-12)
    torch.testing.assert_close(y.grad, z.grad, rtol=1e-12, atol=1e-15)
    assert loss.distance(release, y, labels.roll(1)).item() != pytest.approx(apart.item(), rel=1e-3)  # control


def test_smoothed_distance_has_the_law_of_noisy_projections():
    """One direction, one row: the loss is the square of a normal number about the projection."""
    made = mechanism(dim=2, n_projections=1, batch_size=1, sigma=0.3)
    loss = DPSlicedWassersteinLoss(made)
    release = loss.release(torch.zeros(1, 2))
    y = torch.tensor([[0.2, 0.1]], dtype=torch.float64)
    torch.manual_seed(0)
    draws = torch.stack([loss.distance(release, y) for _ in range(4000)])
    offset = float((y @ release.projections - release.values).square().squeeze())
    spread = (2 * 0.3**4 + 4 * 0.3**2 * offset) ** 0.5 / 4000**0.5  # of the mean of a non-central chi square
    assert abs(float(draws.mean()) - offset - 0.3**2) < 5 * spread  # 6e-7, for the seed alone
