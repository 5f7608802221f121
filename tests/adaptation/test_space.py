"""Coordinates of the source: leading directions, inverse, target rows, the identity."""

import numpy as np
import pytest

from dpswd import InputError
from dpswd.adaptation.space import SourceSpace, flat

RNG = np.random.default_rng(0)
SOURCE = RNG.normal(size=(50, 7)) * np.arange(1, 8)


def test_coordinates_have_mean_zero_and_unit_root_mean_square():
    space = SourceSpace.from_source(SOURCE, n_target=10_000, mu=1.0)
    rows = space.coordinates(SOURCE)
    assert rows.shape == (50, 7)
    np.testing.assert_allclose(rows.mean(0), 0, atol=1e-12)
    assert np.square(rows).sum(1).mean() == pytest.approx(1)
    np.testing.assert_allclose(space.vectors(rows), SOURCE, atol=1e-12)


@pytest.mark.parametrize(("n_target", "n_directions"), [(10, 2), (25, 4), (1000, 7)])
def test_few_target_records_have_few_directions(n_target, n_directions):
    """Half of (mu N)^(2/3): 4.3 directions for N = 25 and mu = 1."""
    space = SourceSpace.from_source(SOURCE, n_target, mu=1.0)
    assert space.coordinates(SOURCE).shape == (50, n_directions)


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("entry", [1e42, 1e160, 1e308])
def test_a_target_record_beyond_float32_changes_no_other_and_warns_of_nothing(entry, normalise):
    """A warning, which is an error in these tests, would tell of the record."""
    space = SourceSpace.from_source(SOURCE, n_target=1000, mu=1.0, normalise=normalise)
    target = SOURCE[:3].copy()
    target[1] = entry
    rows = space.target_rows(target)
    assert rows.isfinite().all()
    if not normalise:
        assert rows[1].abs().sum() == 0
    expected = space.coordinates(SOURCE[:3])
    np.testing.assert_allclose(rows[[0, 2]], expected[[0, 2]], rtol=1e-5)


def test_the_identity_returns_records_as_they_came():
    images = RNG.random((4, 1, 3, 2))
    space = SourceSpace.identity((1, 3, 2))
    np.testing.assert_array_equal(space.coordinates(images), images.reshape(4, 6))
    with pytest.raises(InputError, match=r"shape.*dpswd predict"):
        space.coordinates(images[:, :, :2])
    with pytest.raises(InputError, match=r"shape.*pass such records"):
        SourceSpace.identity((6,)).coordinates(images[:, 0, 0])


def test_flat_normalises_vectors_and_scales_bytes():
    vectors = np.array([[3.0, 4.0], [0.0, 0.0]])
    np.testing.assert_allclose(flat(vectors, normalise=True), [[0.6, 0.8], [0, 0]])
    images = np.full((2, 1, 2, 2), 51, dtype=np.uint8)
    np.testing.assert_allclose(flat(images, normalise=True), np.full((2, 4), 0.2))
