"""What the readers of all files share."""

import numpy as np
import pytest

from dpswd import InputError
from dpswd.data import read

FEATURES = np.arange(24, dtype=np.float32).reshape(12, 2)
LABELS = np.arange(12) % 3


def test_classes_that_are_left_out(tmp_path, capsys):
    """They are not even read, so that none of them can be refused."""
    (tmp_path / "x.csv").write_text("a,b\n1,\n2,x\n")
    np.savez(tmp_path / "x.npz", features=FEATURES, labels=LABELS * 0)
    for path, options in (
        (tmp_path / "x.npz", {}),
        (tmp_path / "x.csv", {"target": "b"}),
    ):
        with pytest.raises(InputError, match="class"):
            read(path, **options)
        assert read(path, labelled=False, **options).n_classes == 0
    assert read("digits", labelled=False).n_classes == 0
    assert not capsys.readouterr().err
