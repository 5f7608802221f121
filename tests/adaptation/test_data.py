"""Pairs of source and target: sizes, and labels that are not read."""

import numpy as np
import pytest

from dpswd import InputError
from dpswd.adaptation.data import DigitAdaptation, FeatureAdaptation, OfficeCaltech


def features(path, n, d=8, seed=0, **changes):
    rng = np.random.default_rng(seed)
    labels = np.arange(n) % 10
    values = rng.normal(size=(n, d)).astype(np.float32) * 0.3 + np.eye(10, d)[labels]
    np.savez(path, **({"features": values, "labels": labels} | changes))
    return str(path)


@pytest.fixture
def pair(tmp_path):
    return features(tmp_path / "a.npz", 80), features(tmp_path / "b.npz", 60, seed=1)


def test_feature_files_of_any_network(pair, tmp_path):
    """The data module of Office-31 and VisDA-2017, on small files that are made here."""
    data = FeatureAdaptation(*pair)
    assert (data.name, data.source.values.shape, data.target.values.shape) == ("a-b", (80, 8), (60, 8))
    assert not data.private.labels.any()
    assert data.private.values.shape == (60, 8)  # coordinates
    assert data.release_size(16) == 48
    assert data.reference.shape == (80, 8)
    assert np.abs(data.reference.mean(0).numpy()).max() < 1e-5  # the source in its own coordinates
    other = features(tmp_path / "c.npz", 60, d=9)
    with pytest.raises(InputError, match="one shape"):
        FeatureAdaptation(pair[0], other).setup("fit")
    with pytest.raises(InputError, match="one shape"):
        FeatureAdaptation(*pair, test=other).setup("fit")
    with pytest.raises(InputError, match="nothing there"):
        FeatureAdaptation(pair[0], "missing.npz").setup("fit")


def test_labels_of_a_private_target_are_not_read(pair, tmp_path):
    bare = features(tmp_path / "bare.npz", 60, seed=1, labels=np.zeros(0))
    for target in (pair[1], bare):
        data = FeatureAdaptation(pair[0], target)
        assert data.test is None
        assert len(data.private) == 60
        assert not data.target.labels.any()
    assert set(FeatureAdaptation(*pair, public_benchmark=True).test.labels.tolist()) == set(range(10))  # control
    with pytest.raises(InputError, match=r"bare\.npz"):
        FeatureAdaptation(bare, pair[1]).setup("fit")


def test_target_rows_with_nan_become_zeros(tmp_path, pair):
    values = np.load(pair[1])["features"].copy()
    values[7, 2] = np.nan
    broken = features(tmp_path / "nan.npz", 60, features=values)
    with pytest.raises(InputError, match="unreadable=zero"):
        FeatureAdaptation(pair[0], broken).setup("fit")
    target = FeatureAdaptation(pair[0], broken, unreadable="zero").target.values
    assert target.abs().sum(1).eq(0).nonzero().flatten().tolist() == [7]


def test_names_of_domains_are_checked():
    for make, source, target in (
        (OfficeCaltech, "A", "A"),
        (OfficeCaltech, "A", "C"),
        (DigitAdaptation, *["USPS"] * 2),
    ):
        with pytest.raises(InputError, match=r"domains|data sets|target"):
            make(source, target)


@pytest.mark.data
def test_real_pairs(data_root):
    digits = DigitAdaptation("MNIST", "USPS", "resized", root=str(data_root))
    assert (len(digits.source), len(digits.private), len(digits.test)) == (10_000, 7_291, 2_007)
    assert digits.private.values.shape[1:] == digits.source.values.shape[1:] == (1, 28, 28)
    assert digits.public_benchmark is True
    assert DigitAdaptation(root=str(data_root), public_benchmark=False).public_benchmark is False
    office = OfficeCaltech("A", "W", root=str(data_root))
    assert (len(office.source), len(office.private), len(office.test)) == (958, 295, 295)
