"""What the readers of all files share."""

import numpy as np
import pandas as pd
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


def test_the_name_of_a_benchmark_is_suggested(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("digit", "Digitss", "benchmark:digit"):
        with pytest.raises(InputError, match="did you mean the benchmark digits"):
            read(name)
    with pytest.raises(InputError, match="nothing at photos; check the path"):
        read("photos")


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_one_column_is_not_target_and_unit(tmp_path, ending):
    path = tmp_path / f"x{ending}"
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": ["x", "y"]})
    if ending == ".csv":
        frame.to_csv(path, index=False)
    else:
        pytest.importorskip("pyarrow")
        frame.to_parquet(path)
    for facts in (None, {"a": {"low": 0, "high": 9}}):
        with pytest.raises(InputError, match="'b' for both"):
            read(path, columns=facts, target="b", unit="b")
    facts = {name: {"low": 0, "high": 9} for name in ("a", "b")}
    for option in ("target", "unit"):
        with pytest.raises(InputError, match=f"than the {option} b, got facts of it"):
            read(path, columns=facts, **{option: "b"})
