"""Shift of the classes, and the fallback to the classifier of the source."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dpswd import InputError
from dpswd.adaptation.classifier import SyntheticTarget, adapt
from dpswd.adaptation.space import SourceSpace

# Within classes all variances are 1, and the means of the classes lie at 0, 3 and 6: their mean
# squared distance from the mean of all is 6.
RNG = np.random.default_rng(0)
LABELS = np.arange(600) % 3
SOURCE = RNG.normal(size=(600, 5))
SOURCE[:, 0] += 3 * LABELS
SQUARED_DISTANCE = 6
SPACE = SourceSpace.from_source(SOURCE, n_target=100, mu=1.0)


def synthetic_target(move, space=SPACE, factor=1.0, signal=9.0, noise=0.0):
    """A synthetic target that is the source, moved and scaled."""
    records = factor * (SOURCE + np.asarray(move))
    return SyntheticTarget(records, space.coordinates(records), signal, noise)


MOVES = pytest.mark.parametrize("move", [[0, 0, 0, 0, 0], [3, 0, 0, 0, 0], [0, 2, 2, 0, 1]])


@MOVES
def test_the_shift_is_relative_to_the_distance_of_the_classes(move):
    along_directions = SPACE.basis.T @ np.asarray(move, dtype=float)
    expected = np.square(along_directions).sum() / SQUARED_DISTANCE
    shift = adapt(SPACE, synthetic_target(move), SOURCE, LABELS).shift
    assert shift == pytest.approx(expected, rel=0.15, abs=0.01)


@MOVES
@pytest.mark.parametrize("factor", [1e-3, 1e3])
def test_the_shift_has_no_unit(move, factor):
    shift = adapt(SPACE, synthetic_target(move), SOURCE, LABELS).shift
    space = SourceSpace.from_source(factor * SOURCE, n_target=100, mu=1.0)
    target = synthetic_target(move, space, factor)
    assert adapt(space, target, factor * SOURCE, LABELS).shift == pytest.approx(shift, abs=1e-4)


@MOVES
def test_noise_of_the_mean_is_subtracted_from_the_shift(move):
    target = synthetic_target(move, noise=10.0)
    assert adapt(SPACE, target, SOURCE, LABELS).shift == 0.0


@pytest.mark.parametrize(
    ("signal", "min_shift", "verdict"),
    [
        (9.0, 0.7, "at least min_shift=0.7. With a shift of 1, the classes"),
        (9.0, 0.0, "noise does not hide their mean"),
        (1.9, 0.7, "noise hides the mean"),
        (9.0, 100.0, "less than min_shift=100"),
    ],
)
def test_the_verdict_names_the_reason(signal, min_shift, verdict):
    target = synthetic_target([0, 3, 3, 0, 0], signal=signal)
    classifier = adapt(SPACE, target, SOURCE, LABELS, min_shift=min_shift)
    assert verdict in classifier.verdict
    assert classifier.verdict.startswith("Adapted") == classifier.adapted
    assert ("the accuracy is not known" in classifier.verdict) == classifier.adapted
    assert classifier.adapted == (signal > 2 and classifier.shift >= min_shift)
    plain = LogisticRegression(max_iter=300).fit(SOURCE, LABELS)
    is_plain = np.array_equal(classifier.predict_proba(SOURCE), plain.predict_proba(SOURCE))
    assert is_plain != classifier.adapted


def test_labels_of_another_length_are_refused():
    with pytest.raises(InputError, match="y of shape"):
        adapt(SPACE, synthetic_target([0] * 5), SOURCE, LABELS[:-1])
