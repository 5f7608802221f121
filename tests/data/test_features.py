"""Files of features: what is read, and what is refused by one sentence."""

import numpy as np
import pytest
from scipy import sparse
from scipy.io import savemat

from dpswd import InputError
from dpswd._public_facts import DO_NOT_REMOVE
from dpswd.data.features import read_features

FEATURES = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
CLASSES = np.array([0, 1, 1])
CELLS = np.empty((3, 2), dtype=object)
CELLS[:] = "text"


def test_a_record_with_nan_is_refused_or_zero(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("1,2,0\n3,nan,1\n")
    with pytest.raises(InputError, match=f"finite records.*{DO_NOT_REMOVE}"):
        read_features(path, labelled=True)
    file = read_features(path, labelled=True, unreadable="zero")
    assert file.values.tolist() == [[1, 2], [0, 0]]
    assert file.labels.tolist() == ["0", "1"]


@pytest.mark.parametrize("labelled", [True, False])
def test_matrices_of_matlab(tmp_path, labelled):
    savemat(tmp_path / "x.mat", {"fts": FEATURES, "labels": CLASSES.astype(float)})
    file = read_features(tmp_path / "x.mat", labelled=labelled)
    assert file.values.dtype == np.float32
    assert np.array_equal(file.values, FEATURES)
    if labelled:
        assert np.array_equal(file.labels, CLASSES)
    else:
        assert file.labels is None


@pytest.mark.parametrize(
    ("matrices", "message"),
    [
        ({"fts": sparse.csc_matrix(FEATURES), "labels": CLASSES}, "full matrix"),
        ({"fts": CELLS, "labels": CLASSES}, "full matrix"),
        ({"fts": FEATURES[:0], "labels": CLASSES[:0]}, "Expected records"),
        ({"fts": FEATURES, "labels": CLASSES / 2}, "whole numbers"),
        ({"fts": FEATURES, "labels": CELLS[:, 0]}, "whole numbers"),
        ({"fts": FEATURES, "labels": CLASSES[:2]}, "a class for each"),
        ({"fts": FEATURES}, "labels or"),
    ],
)
def test_matrices_that_do_not_fit_are_refused(tmp_path, matrices, message):
    savemat(tmp_path / "x.mat", matrices)
    with pytest.raises(InputError, match=message):
        read_features(tmp_path / "x.mat", labelled=True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.mat", b""),
        ("x.mat", b"MATLAB"),
        ("x.mat", 500 * b"x"),
        ("x.csv", b""),
        ("x.csv", "1,2,\u00e4\n".encode("utf-16")),
        ("x.csv", b"1,2," + 200_000 * b"x"),
        ("x.csv", b"1,2,0\n1,1\n"),
        ("x.csv", b"a,b,c\n1,2,0\n"),
    ],
)
def test_damaged_files_are_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        read_features(tmp_path / name, labelled=True)
