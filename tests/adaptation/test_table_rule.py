"""Adaptation of tables: scales of columns, and when the source is kept."""

import warnings

import numpy as np
import pytest

from dpswd import PrivateAdapter
from dpswd.adaptation.space import SourceSpace
from dpswd.errors import UtilityWarning

pd = pytest.importorskip("pandas")
pytestmark = pytest.mark.filterwarnings("ignore::dpswd.errors.PrivacyWarning")

SCALES = np.array([1.0, 1e5, 1e-3, 1.0])
NAMES = ["age", "income", "dose", "constant"]


def people(n, seed, offset=0.0):
    """Two classes that differ in age and dose; columns of very different units."""
    random = np.random.default_rng(seed)
    labels = np.arange(n) % 2
    rows = random.normal(size=(n, 4))
    rows[:, 0] += 3 * labels
    rows[:, 2] -= 2 * labels
    rows += offset
    rows[:, 3] = 7.0
    return pd.DataFrame(rows * SCALES, columns=NAMES), labels


def fitted(tmp_path, target, **options):
    source, labels = people(1500, seed=0)
    records = pd.concat([source, target])
    domain = np.repeat([1, -1], [len(source), len(target)])
    classes = np.concatenate([labels, np.zeros(len(target), dtype=int)])
    adapter = PrivateAdapter(10, 1e-5, run_dir=tmp_path / "run", verbose=False, **options)
    return adapter.fit(records, classes, domain)


def test_offsets_of_columns_are_undone(tmp_path):
    target, truth = people(1500, seed=1)
    target["age"] += 2.0
    adapter = fitted(tmp_path, target)
    assert adapter.adapted_
    assert (adapter.predict(target) == truth).mean() > 0.93
    kept = fitted(tmp_path / "kept", target, min_shift=1e9)
    assert (kept.predict(target) == truth).mean() < 0.85  # the control
    assert len(adapter.classifier_.notes) == 4
    assert "predicted most often" in adapter.classifier_.notes[1]
    adapter.save(tmp_path / "classifier.pt")
    loaded = PrivateAdapter.load(tmp_path / "classifier.pt")
    assert (loaded.predict(target[NAMES[::-1]]) == adapter.predict(target)).all()


def test_units_of_columns_do_not_matter(tmp_path):
    target, _ = people(1500, seed=1, offset=1.0)
    source = people(100, seed=0)[0]
    space = SourceSpace.from_source(source.to_numpy(), 1500, 2.0, standardise=True)
    other_units = source.to_numpy() * [1e3, 1e-4, 10, 1e6]
    other = SourceSpace.from_source(other_units, 1500, 2.0, standardise=True)
    np.testing.assert_allclose(
        space.coordinates(source.to_numpy()), other.coordinates(other_units), atol=1e-9
    )
    assert space.weights[3] == 0
    restored = space.vectors(space.coordinates(target.to_numpy()))
    np.testing.assert_allclose(restored[:, :3], target.to_numpy()[:, :3], rtol=1e-9)


def test_another_population_keeps_the_source(tmp_path):
    target, truth = people(6000, seed=1)
    chosen = (truth == 0) | (np.arange(len(truth)) % 20 == 1)  # class 1 is rare
    target, truth = target[chosen], truth[chosen]
    adapter = fitted(tmp_path, target)
    assert not adapter.adapted_
    kept = (adapter.predict(target) == truth).mean()
    assert kept > 0.93
    always = fitted(tmp_path / "always", target, min_shift=0.0)
    assert (always.predict(target) == truth).mean() < kept - 0.02  # the control


def test_a_class_that_takes_nearly_all_is_named(tmp_path):
    target, _ = people(1500, seed=1)
    target["age"] += 100
    with warnings.catch_warnings(record=True) as log:
        warnings.simplefilter("always")
        fitted(tmp_path, target, min_shift=1e9)
    messages = [str(entry.message) for entry in log if entry.category is UtilityWarning]
    assert any("Class 1 takes 100%" in message for message in messages)
