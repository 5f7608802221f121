"""ClassifierFile and the classifier's file: what they state of runs and releases."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from factories import FURTHER_RUNS

from dpswd.adaptation.classifier import ClassifierFile, SyntheticTarget, TargetClassifier, adapt
from dpswd.adaptation.data import AdaptationData
from dpswd.adaptation.space import SourceSpace
from dpswd.data.base import Records


def test_weights_of_further_runs_get_the_guarantee_of_all_of_them(tmp_path):
    """Issue 15, item 3: a synthetic target trained in two runs does not state the second run's epsilon alone."""
    X, y = np.random.default_rng(0).normal(size=(60, 5)), np.arange(60) % 3
    space = SourceSpace.of(X, n_target=100, mu=1.0, normalise=False)
    made = adapt(space, SyntheticTarget(X, space.leading(X), signal=1.0, noise=0.1), X, y)
    for facts, expected in FURTHER_RUNS:
        made.save(tmp_path / "c.pt", facts)
        guarantee = TargetClassifier.load(tmp_path / "c.pt")[1]
        assert (guarantee["epsilon"], guarantee["sound"]) == expected


class Vectors(AdaptationData):
    """Small source and target."""

    def domains(self):
        source = Records(torch.rand(60, 4), torch.arange(60) % 2)
        return source, Records(torch.rand(80, 4), torch.zeros(80, dtype=torch.int64)), None


def test_no_file_without_a_release(tmp_path):
    data = Vectors()
    module = SimpleNamespace(fitted=torch.tensor(False))
    run = SimpleNamespace(
        fast_dev_run=False, is_global_zero=True, default_root_dir=str(tmp_path), callbacks=[], datamodule=data
    )
    with pytest.warns(UserWarning, match="no release"):
        ClassifierFile().on_fit_end(run, module)
    assert not list(tmp_path.iterdir())
    module.fitted = torch.tensor(True)
    with pytest.raises(AttributeError):  # control: with a release it goes on to draw the synthetic target
        ClassifierFile().on_fit_end(run, module)
