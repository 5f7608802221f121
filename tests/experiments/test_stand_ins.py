"""Benchmarks cut to N records: plan, one cell, and what the package is given."""

import math

import pytest

from dpswd import InputError
from dpswd.accounting.calibrate import mu_of_epsilon
from experiments.generation import stand_ins
from experiments.generation.stand_ins import run


@pytest.mark.filterwarnings("ignore:Expect noise")
def test_one_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(stand_ins, "_N_SYNTHETIC", 500)
    (row,) = run(tmp_path, quick=True, workers=0)["rows"]
    assert (row["dataset"], row["n_records"], row["epsilon"], row["channels"]) == ("digits", 300, 10.0, 1)
    assert row["signal"] == pytest.approx(mu_of_epsilon(10.0, 1e-5) * 300 / math.sqrt(10), abs=0.01)
    assert row["accuracy"] > 50
    monkeypatch.setattr(stand_ins, "measure", lambda *_, **__: pytest.fail("a finished cell was run again"))
    assert run(tmp_path, quick=True, dataset="digits", workers=0)["rows"] == [row]
    with pytest.raises(InputError, match="data set"):
        run(tmp_path, quick=True, dataset="USPS", workers=0)
