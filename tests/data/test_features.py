"""Feature files, made here, and what may be wrong with them. No pickle is ever loaded."""

import pickle

import numpy as np
import pytest
import torch

from dpswd import InputError
from dpswd.data import FeatureFile

FEATURES, LABELS = np.arange(24, dtype=np.float32).reshape(12, 2), np.arange(12) % 3


def test_features(tmp_path):
    np.savez(tmp_path / "x.npz", features=FEATURES.astype(np.float64), labels=LABELS.astype(np.uint8))
    data = FeatureFile(str(tmp_path / "x.npz"))
    assert data.private.values.shape == (10, 2)
    assert data.test.values.tolist() == FEATURES[[4, 9]].tolist()
    assert data.private.labels.dtype == torch.int64
    assert len(FeatureFile("x.npz", root=str(tmp_path), test_split=False).private) == 12


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"features": FEATURES}, r"Expected arrays 'features' and 'labels' in .*, got no .*labels"),
        ({"x": FEATURES, "labels": LABELS}, r"Expected arrays 'features' and 'labels' in .*, got no .*features"),
        (
            {"features": FEATURES.astype(object), "labels": LABELS},
            r"Expected a readable \.npz file at .*, got: .*pickle",
        ),
        ({"features": FEATURES * np.nan, "labels": LABELS}, "Expected finite records, got nan or inf"),
        (
            {"features": np.where(FEATURES > 3, np.inf, FEATURES), "labels": LABELS},
            "Expected finite records, got nan or inf",
        ),
        (
            {"features": FEATURES.astype(np.float64) + 1e300, "labels": LABELS},
            "Expected finite records, got nan or inf",
        ),
        ({"features": FEATURES[0], "labels": LABELS}, r"Expected features \(N, d\) and integer labels \(N,\)"),
        ({"features": FEATURES, "labels": LABELS[:5]}, r"Expected features \(N, d\) and integer labels \(N,\)"),
        ({"features": FEATURES, "labels": LABELS / 2}, r"got float32 \(12, 2\) and float64 \(12,\)"),
        ({"features": FEATURES, "labels": LABELS - 1}, "Expected labels of at least 0, got others"),
        ({"features": FEATURES.astype(str), "labels": LABELS}, r"Expected features \(N, d\)"),
        ({"features": FEATURES + 1j, "labels": LABELS}, r"Expected features \(N, d\)"),
        ({"features": FEATURES[:0], "labels": LABELS[:0]}, "Expected at least one record, got none"),
    ],
)
def test_feature_files_that_do_not_fit(tmp_path, arrays, message):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError, match=message) as caught:
        FeatureFile(str(tmp_path / "x.npz")).load()
    assert "\n" not in str(caught.value)


class Trap:
    """Would run when unpickled."""

    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def test_no_pickle_is_ever_loaded(tmp_path):
    np.savez(tmp_path / "x.npz", features=np.array([Trap()], dtype=object), labels=LABELS)
    (tmp_path / "y.npz").write_bytes(pickle.dumps(Trap()))
    for name in ("x.npz", "y.npz"):
        with pytest.raises(InputError, match=r"Expected a readable \.npz file"):
            FeatureFile(str(tmp_path / name)).load()


def test_files_that_are_no_npz(tmp_path):
    np.save(tmp_path / "x.npy", FEATURES)
    (tmp_path / "x.npy").rename(tmp_path / "array.npz")
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "empty.npz").write_text("")
    np.savez_compressed(tmp_path / "good.npz", features=FEATURES, labels=LABELS)
    whole = (tmp_path / "good.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:100])
    (tmp_path / "stream.npz").write_bytes(whole[:60] + b"\xff" * 10 + whole[70:])
    for name in ("array", "text", "empty", "cut", "stream"):
        with pytest.raises(InputError, match=r"Expected a readable \.npz file at .*; write it again"):
            FeatureFile(str(tmp_path / f"{name}.npz")).load()
    with pytest.raises(InputError, match=r"Expected an \.npz file at none\.npz, got nothing there; check data\.path"):
        FeatureFile("none.npz").load()
