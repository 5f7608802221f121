"""A second run on the same records in one process warns."""

import numpy as np
import pytest
import torch
from factories import BLOB_DIM, Mine, loader, records, trainer

from dpswd import Budget, PrivateGenerator
from dpswd.queries import ClassCounts


def spend(handle, directory, **options):
    query = ClassCounts(3)
    with Budget(
        handle, [query], target_epsilon=1, target_delta=1e-5, run_dir=directory, **options
    ) as budget:
        query.release(handle)
    return budget


def test_a_second_budget_on_the_same_records_warns(tmp_path, capsys):
    rows = torch.rand(30, 3)  # records of no other test
    spend(records(rows), tmp_path / "a")
    assert "shared_ledger" not in capsys.readouterr().err
    spend(records(rows.clone()), tmp_path / "b")  # equal records behind another handle
    said = capsys.readouterr().err
    assert all(word in said for word in ("Warning", str(tmp_path / "a"), "shared_ledger"))
    trainer(tmp_path / "c").fit(Mine(), loader(of=records(rows)))
    assert "shared_ledger" in capsys.readouterr().err
    rows[0] += 1
    spend(records(rows), tmp_path / "d")
    assert "shared_ledger" not in capsys.readouterr().err  # control: other records


def test_a_cloned_estimator_that_is_fitted_again_warns(tmp_path, monkeypatch, capsys):
    base = pytest.importorskip("sklearn.base")
    monkeypatch.chdir(tmp_path)
    made = PrivateGenerator(epsilon=20.0, delta=1e-3, bounds=[(0, 1)] * BLOB_DIM)
    rows, labels = torch.rand(300, BLOB_DIM).numpy(), np.arange(300) % 3
    made.fit(rows, labels)
    assert "shared_ledger" not in capsys.readouterr().err
    base.clone(made).fit(rows, labels)
    assert "shared_ledger" in capsys.readouterr().err
