"""A second run on the same records warns, by whatever interface: a callback, an estimator."""

import numpy as np
import pytest
import torch
from factories import BLOB_DIM, Mine, X, loader, records, trainer

from dpswd import Budget, PrivateGenerator
from dpswd.errors import PrivacyWarning
from dpswd.queries import ClassCounts


def test_training_after_a_budget_warns(tmp_path):
    handle = records()
    query = ClassCounts(3)
    directory = tmp_path / "first" / "run"
    with Budget(handle, [query], target_epsilon=1, target_delta=1e-5, run_dir=directory):
        query.release(handle)
    with pytest.warns(PrivacyWarning, match=rf"{directory}.*shared_ledger"):
        trainer(tmp_path / "second").fit(Mine(), loader(of=records(X.clone())))


def test_cloned_estimator_that_is_fitted_again_warns(tmp_path, monkeypatch):
    base = pytest.importorskip("sklearn.base")
    monkeypatch.chdir(tmp_path)
    estimator = PrivateGenerator(epsilon=20.0, delta=1e-3, bounds=[(0, 1)] * BLOB_DIM)
    rows = torch.rand(300, BLOB_DIM).numpy()
    labels = np.arange(300) % 3
    estimator.fit(rows, labels)
    with pytest.warns(PrivacyWarning, match="shared_ledger"):
        base.clone(estimator).fit(rows, labels)
