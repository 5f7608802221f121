"""Tables of numbers: one data set both ways, the measures, and Adult without its file."""

import numpy as np
import pytest

from dpswd import InputError
from experiments.generation import tables_adult
from experiments.generation.tables_adult import judge, run


def test_a_small_set_both_ways(tmp_path, monkeypatch):
    monkeypatch.setattr(tables_adult, "LOOKED_AT", {"breast_cancer": "constants"})
    monkeypatch.setattr(tables_adult, "BUDGETS", (10.0,))
    rows = run(tmp_path, quick=True, only="small")["small"]
    assert [(row["method"], row.get("chosen")) for row in rows[:2]] == [
        ("released columns", True),
        ("scaled columns", False),
    ]
    assert rows[2]["version"] == "0.2.0"
    assert "reason" in rows[2]
    assert min(rows[0][name] for name in ("logreg", "neighbours", "bayes", "svm")) > 75


def test_distances_of_equal_rows_are_zero():
    rng = np.random.default_rng(0)
    rows, labels = rng.normal(size=(300, 8)), np.arange(300) % 2
    found = judge(rows, labels, rows, rows, labels)
    assert max(found["distances"]) == found["correlations"] == 0
    assert min(found["auc"].values()) > 0.5
    moved = judge(rows + rows.std(0), labels, rows, rows, labels)
    assert moved["distances"] == pytest.approx([1] * 8)


def test_adult_without_its_file(tmp_path):
    with pytest.raises(InputError, match=r"adult\.csv"):
        run(tmp_path, data=tmp_path, only="adult")
