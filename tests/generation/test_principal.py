"""Principal directions: the subspace of a released moment, round trips, whitening, refusals."""

import numpy as np
import pytest
import torch
from factories import Blobs
from factories import blob_trainer as trainer
from factories import flow_module as flow
from lightning.pytorch.callbacks import ModelCheckpoint
from scipy import stats

from dpswd import InputError
from dpswd.generation.features import DCT, Flatten
from dpswd.generation.principal import PrincipalDirections, _spectrum
from dpswd.loss import clip_rows
from dpswd.queries import SecondMoment

D, K, N = 12, 3, 500


def basis(dim=D, rank=K, seed=0):
    return torch.linalg.qr(torch.randn(dim, rank, generator=torch.Generator().manual_seed(seed)).double()).Q


def low_rank(scales=(0.2, 0.1, 0.05), n=N):
    """Rows (n, D) in a subspace, of decreasing variance along its axes."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(n, len(scales), generator=generator).double() * torch.tensor(scales) @ basis(rank=len(scales)).T


def fitted(rows, **options):
    features = PrincipalDirections(Flatten((D,), radius=0.5), K, **options)  # rows of norm at most 1/2 stay as they are
    features.fit(rows.T @ rows, len(rows))
    return features


def test_fit_recovers_the_subspace_of_a_low_rank_moment():
    features = fitted(low_rank())
    ours = torch.linalg.qr(features.analysis.double()).Q
    gap = torch.linalg.matrix_norm(ours @ ours.T - basis() @ basis().T, 2)
    assert float(gap) < 1e-5  # float32 buffers
    assert features.dim == K


def test_fit_takes_the_leading_directions_in_order():
    rows = low_rank((0.4, 0.05, 0.2, 0.1, 0.01))
    features = fitted(rows, whitening=0.0)
    values = torch.linalg.eigvalsh(rows.T @ rows / N).flip(0)[:K]
    ours = (features(rows.float()).double().square().mean(0) / float(features.analysis[:, 0].norm()) ** 2).sort().values
    torch.testing.assert_close(ours.flip(0), values, rtol=1e-4, atol=0)


@pytest.mark.parametrize("whitening", [0.0, 0.6, 1.0])
def test_round_trips_inside_the_subspace(whitening):
    rows = low_rank()
    features = fitted(rows, whitening=whitening)
    records = rows.float()
    torch.testing.assert_close(features.decode(features(records)), records, rtol=0, atol=1e-5)
    codes = torch.randn(20, K, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(features(features.decode(codes)), codes, rtol=0, atol=1e-4)
    outside = torch.linalg.qr(torch.cat([basis(), torch.eye(D).double()], 1)).Q[:, K]  # orthogonal to the subspace
    assert float(features(outside.float()[None]).abs().max()) < 1e-4


def test_round_trip_through_images():
    images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    base = DCT((1, 8, 8), size=4, center=0.5, radius=3.0)
    rows = base(images).double()
    features = PrincipalDirections(base, base.dim)  # all directions: nothing is lost but the high frequencies
    features.fit(rows.T @ rows, 40)
    torch.testing.assert_close(features.decode(features(images)), base.decode(base(images)), rtol=0, atol=1e-4)


def test_whitening_1_gives_equal_variances_and_0_keeps_them():
    rows = low_rank()
    x = np.linalg.eigvalsh((rows.T @ rows / N).numpy())[::-1][:K]
    for whitening in (0.0, 0.5, 1.0):
        features = fitted(rows, whitening=whitening)
        variances = np.sort(features(rows.float()).double().square().mean(0).numpy())[::-1]
        np.testing.assert_allclose(variances / variances[0], (x / x[0]) ** (1 - whitening), rtol=1e-3)
        # a row of typical norm is mapped to 1 / (2 spread)
        assert variances.sum() ** 0.5 == pytest.approx(1 / (2 * features.spread), rel=1e-4)


def test_whitening_0_keeps_angles():
    rows = low_rank()
    mapped = fitted(rows, whitening=0.0)(rows.float()).double()
    scale = float(mapped.norm() / rows.norm())
    torch.testing.assert_close(mapped @ mapped.T, scale**2 * rows @ rows.T, rtol=0, atol=1e-5)


@pytest.mark.parametrize("spread", [0.5, 1.5, 4.0])
def test_rows_are_within_the_bound_after_clipping_and_spread_says_how_many_are_clipped(spread):
    rows = low_rank((0.1, 0.1, 0.1), n=4000)
    features = fitted(rows, spread=spread)
    norms = features(rows.float()).norm(dim=1)
    clipped = clip_rows(features(rows.float()), 0.5).norm(dim=1)
    assert float(clipped.max()) <= 0.5
    # rows of equal variance: |row| / typical is chi with 3 degrees of freedom over sqrt 3; clipped beyond spread
    share = float((norms > 0.5).double().mean())
    expected = stats.chi.sf(spread * 3**0.5, 3)
    assert abs(share - expected) < 5 * (expected * (1 - expected) / 4000) ** 0.5 + 0.01  # 1%: the moment is estimated


def test_noise_of_a_release_is_survived():
    """Noise far above the data makes eigenvalues negative; the map stays finite and invertible on its subspace."""
    rows = low_rank(n=50)
    moment = SecondMoment(D, sigma=20.0, noise_seed=0)
    features = PrincipalDirections(Flatten((D,), radius=0.5), D, whitening=1.0)
    released = moment.release(rows)
    assert float(torch.linalg.eigvalsh(released)[0]) < 0  # control
    features.fit(released, 50)
    assert bool(torch.isfinite(features.analysis).all() & torch.isfinite(features.synthesis).all())
    torch.testing.assert_close(features.synthesis @ features.analysis, torch.eye(D), rtol=0, atol=1e-3)


def test_unfitted_refuses_and_a_checkpoint_keeps_the_fit():
    features = PrincipalDirections(Flatten((D,)), K)
    with pytest.raises(InputError, match="Expected principal directions to be fitted to a release, got none; call fit"):
        features(torch.zeros(1, D))
    assert list(features.parameters()) == []
    other = fitted(low_rank())
    features.load_state_dict(other.state_dict())
    records = torch.rand(4, D)
    features.base.radius = other.base.radius  # a constant of the config
    assert torch.equal(features(records), other(records))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"components": 1}, r"Expected components >= 2, got components=1\."),
        ({"components": D + 1}, r"Expected components <= 12 \(dimension of the rows\), got 13\."),
        ({"whitening": -0.1}, r"Expected whitening between 0 and 1, got -0\.1\."),
        ({"whitening": 1.1}, r"Expected whitening between 0 and 1, got 1\.1\."),
        ({"whitening": float("nan")}, r"Expected whitening between 0 and 1, got nan\."),
        ({"spread": 0.0}, "Expected spread to be finite and above 0"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(InputError, match=message):
        PrincipalDirections(Flatten((D,)), **{"components": K} | options)


def test_a_clean_spectrum_is_left_alone():
    values = torch.tensor([0.0, 0.1, 0.5, 2.0], dtype=torch.float64)
    torch.testing.assert_close(_spectrum(values), values)


def test_the_sum_of_a_noisy_spectrum_is_kept_and_its_spread_taken_back():
    """Trace 1 in 2 of 100 directions; noise of spectral norm 0.28 spreads the others over [-0.28, 0.28]."""
    generator = torch.Generator().manual_seed(0)
    g = torch.randn(100, 100, generator=generator, dtype=torch.float64)
    truth = torch.zeros(100, 100, dtype=torch.float64)
    truth[0, 0], truth[1, 1] = 2.0, 1.0
    noisy = torch.linalg.eigvalsh(truth + 0.02 * (g + g.T) / 2)
    found = _spectrum(noisy)
    assert bool((found >= 0).all())
    torch.testing.assert_close(found.sum(), noisy.sum())
    exact = torch.linalg.eigvalsh(truth)
    assert (found - exact).norm() < 0.5 * (noisy.clamp(min=0) - exact).norm()


def test_a_spectrum_below_zero_is_nothing():
    assert not bool(_spectrum(torch.tensor([-2.0, -1.0, 0.5], dtype=torch.float64)).any())


class Around(Flatten):
    """Hides fitted directions within another map."""

    def __init__(self, inner):
        super().__init__(inner.sample_shape)
        self.inner = inner

    @property
    def dim(self):
        return self.inner.dim

    def forward(self, records):
        return self.inner(records)


@pytest.mark.filterwarnings("ignore:Using ModelCheckpoint with manual optimization")
def test_a_new_run_refuses_directions_that_are_fitted_and_a_resumed_one_has_its_own(tmp_path):
    rows = Blobs().load()[0].values.double()

    def made(fitted):
        features = PrincipalDirections(Flatten((6,)), 4)
        if fitted:
            features.fit(rows.T @ rows, len(rows))  # on the raw moment, which nobody paid for
        return flow(features)

    for module in (made(True), flow(Around(made(True).features))):
        with pytest.raises(InputError, match="Expected principal directions that are not fitted before a new run"):
            trainer(tmp_path, 6).fit(module, datamodule=Blobs())
        assert not any(tmp_path.iterdir())
    first, checkpoints = made(False), ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=2, save_top_k=-1)
    trainer(tmp_path, 6, checkpoints, enable_checkpointing=True).fit(first, datamodule=Blobs())
    paid = first.features.analysis.clone()
    assert first.moment.n_releases == 1
    (checkpoint,) = (tmp_path / "ckpt").glob("*step=2.ckpt")
    for again in (made(False), first.train()):
        same = ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=2, save_top_k=-1)
        trainer(tmp_path, 6, same, enable_checkpointing=True).fit(again, datamodule=Blobs(), ckpt_path=checkpoint)
        assert torch.equal(again.features.analysis, paid)
    assert first.moment.n_releases == 1
