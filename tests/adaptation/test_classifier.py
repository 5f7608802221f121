"""The file of a classifier, and the decision between it and the classifier of the source."""

import numpy as np
import pytest
from factories import FURTHER_RUNS

from dpswd.adaptation.classifier import SyntheticTarget, TargetClassifier, adapt
from dpswd.adaptation.space import SourceSpace

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(600, 5)), np.arange(600) % 3
X[:, 0] += 3 * Y
SPACE = SourceSpace.of(X, n_target=100, mu=1.0, normalise=False)


def target(move, signal=9.0, noise=0.0):
    moved = X + np.asarray(move)
    return SyntheticTarget(moved, SPACE.leading(moved), signal, noise)


def test_weights_of_further_runs_get_the_guarantee_of_all_of_them(tmp_path):
    """A synthetic target trained in two runs does not state the second run's epsilon alone."""
    made = adapt(SPACE, target(0, signal=1.0), X, Y)
    for facts, expected in FURTHER_RUNS:
        made.save(tmp_path / "c.pt", facts)
        guarantee = TargetClassifier.load(tmp_path / "c.pt")[1]
        assert (guarantee["epsilon"], guarantee["sound"]) == expected


@pytest.mark.parametrize("move", [[0, 0, 0, 0, 0], [3, 0, 0, 0, 0], [0, 2, 2, 0, 1]])
def test_the_shift_is_relative_to_the_distance_of_the_classes(move):
    """Within classes all variances are 1, and the means of the classes lie at 0, 3 and 6: 6 from theirs, squared."""
    kept = np.square(SPACE.basis.T @ np.asarray(move, dtype=float)).sum()  # in the leading directions
    found = adapt(SPACE, target(move), X, Y)
    assert found.shift == pytest.approx(kept / 6, rel=0.15, abs=0.01)
    for factor in (1e-3, 1e3):  # of no unit
        scaled = SourceSpace.of(factor * X, n_target=100, mu=1.0, normalise=False)
        moved = factor * (X + np.asarray(move))
        same = SyntheticTarget(moved, scaled.leading(moved), signal=9.0, noise=0.0)
        assert adapt(scaled, same, factor * X, Y).shift == pytest.approx(found.shift, abs=1e-4)


def test_noise_of_the_mean_is_taken_off_the_shift():
    noisy = adapt(SPACE, target([3, 0, 0, 0, 0], noise=10.0), X, Y)
    assert noisy.shift == 0.0


def test_the_choice():
    for shift, signal, least, adapted in ((5, 9, 0.7, True), (5, 1.9, 0.7, False), (1, 9, 0.7, False), (1, 9, 0, True)):
        found = adapt(SPACE, target([0, shift, 0, 0, 0], signal=signal), X, Y, min_shift=least)
        assert found.adapted == adapted
        assert (found.space.basis is None) is not adapted  # the plain classifier has no coordinates
