"""PrivateAdapter: any adaptation method between the source and one private synthetic target."""

import json

import numpy as np
import ot
import pytest
from factories import FURTHER_RUNS
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

from dpswd import InputError, PrivateAdapter
from dpswd.adaptation.classifier import SyntheticTarget, adapt
from dpswd.adaptation.methods import ImageMap
from dpswd.adaptation.space import SourceSpace
from dpswd.files.classifiers import read_classifier, write_classifier
from dpswd.files.generators import write_generator
from dpswd.mixture.generator import MixtureGenerator
from dpswd.records import PrivateRecords

skada = pytest.importorskip("skada")

N_SOURCE, N_TARGET, DIM = 150, 600, 6


def problem(seed: int = 0, shift: float = 2.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three classes on an ellipse; the target is moved."""
    rng = np.random.default_rng(seed)
    centres = np.zeros((3, DIM))
    centres[:, :2] = [[0, 0], [4, 0], [0, 3]]
    y = rng.integers(0, 3, N_SOURCE + N_TARGET)
    domain = np.r_[np.ones(N_SOURCE, dtype=int), -np.ones(N_TARGET, dtype=int)]
    X = centres[y] + rng.normal(size=(len(y), DIM)) * 0.6
    X[domain < 0] += shift * np.array([1, 1, 0, 0, 0, 0])
    return X, y, domain


@pytest.fixture
def adapter(tmp_path):
    """Returns a function that makes adapters."""

    def make(**options):
        fixed = {
            "epsilon": 10.0,
            "delta": 1e-5,
            "n_synthetic": 200,
            "verbose": False,
            "run_dir": tmp_path / "run",
        }
        return PrivateAdapter(**{**fixed, **options})

    return make


@pytest.fixture
def read(monkeypatch):
    """Returns counts of how often each private record was read, per handle."""
    counts = {}
    opened = PrivateRecords.open_records

    def counted(self, index):
        counts.setdefault(id(self), np.zeros(len(self), dtype=int))[index.numpy()] += 1
        return opened(self, index)

    monkeypatch.setattr(PrivateRecords, "open_records", counted)
    return counts


METHODS = {
    "ours": "class_shift",
    "EMD": ot.da.EMDTransport(),
    "Sinkhorn": ot.da.SinkhornTransport(reg_e=0.05, norm="max"),
    "linear": ot.da.LinearTransport(),
    "CORAL": skada.CORAL(base_estimator=LogisticRegression()),
    "OTMapping": skada.OTMapping(base_estimator=LogisticRegression()),
}


def test_six_methods_share_one_release(adapter, read):
    X, y, domain = problem()
    target, truth = X[domain < 0].copy(), y[domain < 0]
    plain = LogisticRegression().fit(X[domain > 0], y[domain > 0]).score(target, truth)
    fitted = adapter().fit(X, y, domain)
    facts = json.loads((fitted.run_dir_ / "privacy.json").read_text())
    (counts,) = read.values()
    assert len(counts) == N_TARGET
    assert (
        counts.min() == counts.max() == facts["releases_made"] == 4
    )  # all records, once per release
    rows, made = (fitted._space.coordinates(each) for each in (target, fitted.synthetic_))
    assert np.abs(made[:, None] - rows).max(2).min() > 1e-6  # no record is copied
    source, labels = X[domain > 0].copy(), y[domain > 0]
    X[:] = np.nan
    for name, method in METHODS.items():
        fitted.set_params(method=method).adapt(source, labels)
        assert fitted.adapted_, name
        assert fitted.shift_ > fitted.min_shift, name
        assert fitted.score(target, truth) > plain + 0.05, name
    assert counts.max() == 4
    assert json.loads((fitted.run_dir_ / "privacy.json").read_text()) == facts


NOISY = {"epsilon": 0.001, "method": METHODS["CORAL"]}


@pytest.mark.parametrize(
    ("shift", "options", "verdict"), [(2.0, NOISY, "noise hides"), (0.0, {}, "min_shift")]
)
def test_noise_and_no_shift_give_the_plain_source_classifier(
    adapter, tmp_path, shift, options, verdict
):
    """On 0.2.0 the classifier of the source was trained on normalised, centred and scaled records."""
    X, y, domain = problem(shift=shift)
    X += 3.0
    fitted = adapter(normalise=True, **options).fit(X, y, domain)
    plain = LogisticRegression(max_iter=300).fit(X[domain > 0], y[domain > 0])
    assert not fitted.adapted_
    assert verdict in fitted.verdict_
    np.testing.assert_array_equal(fitted.predict_proba(X), plain.predict_proba(X))
    fitted.save(tmp_path / "classifier.pt")
    np.testing.assert_array_equal(
        PrivateAdapter.load(tmp_path / "classifier.pt").predict(X), plain.predict(X)
    )
    fitted.set_params(min_shift=0.0).adapt(X[domain > 0], y[domain > 0])
    assert fitted.adapted_ == (options is not NOISY)


@pytest.mark.parametrize(
    ("names", "other", "dtype"),
    [
        ([0, 1, 2], 0.5, float),
        ([0, 1, 2], "unknown", object),
        ([0, 1, 2], None, object),
        ([*"abc"], "?", str),
    ],
)
def test_labels_of_the_target_change_neither_predictions_nor_classes(
    adapter, tmp_path, names, other, dtype
):
    """One label of another type turns all labels of an array into floats or strings."""
    X, y, domain = problem(shift=1.0)
    labels = [names[number] for number in y]
    fitted = adapter(epsilon=0.001).fit(X, labels, domain)
    changed = [*labels[:-1], other]
    for i, given in enumerate((changed, np.array(changed, dtype=dtype))):
        again = adapter(epsilon=0.001, run_dir=tmp_path / str(i)).fit(X, given, domain)
        assert again.classes_.tolist() == names
        np.testing.assert_array_equal(fitted.predict(X), again.predict(X))


def test_save_and_load(adapter, tmp_path):
    X, y, domain = problem()
    fitted = adapter().fit(X, np.array(["a", "b", "c"])[y], domain)
    fitted.save(tmp_path / "classifier.pt")
    loaded = PrivateAdapter.load(tmp_path / "classifier.pt")
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    np.testing.assert_allclose(loaded.predict_proba(X), fitted.predict_proba(X), atol=1e-12)
    assert loaded.guarantee_ == fitted.guarantee_
    assert (loaded.adapted_, loaded.verdict_) == (True, fitted.verdict_)
    with pytest.raises(InputError, match="ledger"):
        loaded.report(tmp_path / "report.md")
    fitted.report(tmp_path / "report.md")
    assert (tmp_path / "report.md").stat().st_size > 0
    with pytest.raises(InputError, match="shape"):
        loaded.predict(X[:, :3])
    with pytest.raises(InputError, match="logistic"):
        fitted.set_params(method=METHODS["CORAL"]).adapt(X[domain > 0], y[domain > 0]).save(
            tmp_path / "d"
        )
    (tmp_path / "damaged.pt").write_bytes((tmp_path / "classifier.pt").read_bytes()[:-100])
    with pytest.raises(InputError, match="classifier"):
        PrivateAdapter.load(tmp_path / "damaged.pt")
    write_generator(MixtureGenerator((8,), n_classes=2), tmp_path / "generator.pt")
    with pytest.raises(InputError, match="another kind of file"):
        PrivateAdapter.load(tmp_path / "generator.pt")


def test_an_interrupted_fit_is_resumed(adapter, tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpswd.estimators.adapter.SyntheticTarget.draw", interrupted)
        with pytest.raises(KeyboardInterrupt):
            adapter().fit(*problem())
    with pytest.raises(InputError, match="ledger"):
        adapter().fit(*problem())
    assert adapter(resume=True).fit(*problem()).adapted_


def test_a_target_record_beyond_float32_counts_as_zero(adapter):
    X, y, domain = problem()
    X[np.flatnonzero(domain < 0)[0]] = 1e42
    assert np.isfinite(adapter().fit(X, y, sample_domain=domain).synthetic_).all()


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"method": "nothing"}, "method"),
        ({"method": 3}, "method"),
        ({"method": "image_map"}, "image"),
        ({"n_synthetic": 0}, "n_synthetic"),
        ({"epsilon": -1.0}, "epsilon"),
        (lambda X, y, d: (X, y, np.abs(d)), "target"),
        (lambda X, y, d: (X, y, -np.abs(d)), "source"),
        (lambda X, y, d: (X, y, d * 0), "sample_domain"),
        (lambda X, y, d: (X, y), "sample_domain, positive"),
        (lambda X, y, d: (X, y[:-1], d), "y"),
        (lambda X, y, d: (X, y, d[:-1]), "sample_domain"),
        (lambda X, y, d: (np.where(X == X[-1, 0], np.nan, X), y, d), "X"),
        (lambda X, y, d: (X[:, 0], y, d), r"rows \(N, d\)"),
        (lambda X, y, d: (X, y * 0, d), "classes"),
    ],
)
def test_unfit_input_is_refused_before_anything_is_written(adapter, tmp_path, change, name):
    options, data = (change, problem()) if isinstance(change, dict) else ({}, change(*problem()))
    with pytest.raises(InputError, match=name):
        adapter(**options).fit(*data)
    assert not (tmp_path / "run").exists()


def test_calls_before_fit_are_refused(tmp_path):
    made, X = PrivateAdapter(), np.zeros((2, 3))
    calls = (
        (made.predict, X),
        (made.predict_proba, X),
        (made.adapt, X, [0, 1]),
        (made.save, tmp_path / "c.pt"),
    )
    for call, *arguments in calls:
        with pytest.raises(NotFittedError, match="fit"):
            call(*arguments)


def pictures(n, seed, moved):
    """Upright or level strokes on 12 x 12 pixels; those of the target lie two pixels lower, with less contrast."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    X = np.zeros((n, 12, 12))
    for image, level, (row, column) in zip(X, y, rng.integers(3, 7, (n, 2)), strict=True):
        image[row + 2 * moved :, column : column + 2][: 2 if level else 6] = 1
        image[row + 2 * moved : row + 2 * moved + 2, column : column + (6 if level else 2)] = 1
    return (X * (0.6 if moved else 1) + rng.uniform(0, 0.05, X.shape)).clip(0, 1), y


@pytest.mark.parametrize("as_bytes", [False, True])
def test_image_map(adapter, tmp_path, as_bytes):
    (source, labels), (target, truth) = pictures(300, 0, False), pictures(2000, 1, True)
    X = np.concatenate([source, target])
    X = (255 * X).astype(np.uint8) if as_bytes else X
    domain = np.repeat([1, -1], [300, 2000])
    fitted = adapter(method=ImageMap(n_steps=60, shift=1.0)).fit(
        X, np.r_[labels, truth * 0 - 1], domain
    )
    assert fitted.adapted_
    assert fitted.score(X[300:], truth) > 0.9
    fitted.save(tmp_path / "classifier.pt")
    loaded = PrivateAdapter.load(tmp_path / "classifier.pt")
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    np.testing.assert_array_equal(
        loaded.predict_proba(X).argmax(1), np.searchsorted([0, 1], fitted.predict(X))
    )
    np.testing.assert_array_equal(fitted.predict(X[:, None]), fitted.predict(X))  # channels first
    with pytest.raises(InputError, match="shape"):
        fitted.predict(X[:, :8])


RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(600, 5)), np.arange(600) % 3
X[:, 0] += 3 * Y
SPACE = SourceSpace.from_source(X, n_target=100, mu=1.0, normalise=False)


def target(move, signal=9.0, noise=0.0):
    moved = X + np.asarray(move)
    return SyntheticTarget(moved, SPACE.coordinates(moved), signal, noise)


def test_weights_of_further_runs_get_the_guarantee_of_all_of_them(tmp_path):
    """A synthetic target trained in two runs does not state the second run's epsilon alone."""
    made = adapt(SPACE, target(0, signal=1.0), X, Y)
    for facts, expected in FURTHER_RUNS:
        write_classifier(made, tmp_path / "c.pt", facts)
        guarantee = read_classifier(tmp_path / "c.pt")[1]
        assert (guarantee["epsilon"], guarantee["sound"]) == expected


@pytest.mark.parametrize("move", [[0, 0, 0, 0, 0], [3, 0, 0, 0, 0], [0, 2, 2, 0, 1]])
def test_the_shift_is_relative_to_the_distance_of_the_classes(move):
    """Within classes all variances are 1, and the means of the classes lie at 0, 3 and 6: 6 from theirs, squared."""
    kept = np.square(
        SPACE.basis.T @ np.asarray(move, dtype=float)
    ).sum()  # in the leading directions
    found = adapt(SPACE, target(move), X, Y)
    assert found.shift == pytest.approx(kept / 6, rel=0.15, abs=0.01)
    for factor in (1e-3, 1e3):  # of no unit
        scaled = SourceSpace.from_source(factor * X, n_target=100, mu=1.0, normalise=False)
        moved = factor * (X + np.asarray(move))
        same = SyntheticTarget(moved, scaled.coordinates(moved), signal=9.0, noise=0.0)
        assert adapt(scaled, same, factor * X, Y).shift == pytest.approx(found.shift, abs=1e-4)
    assert (
        adapt(SPACE, target(move, noise=10.0), X, Y).shift == 0.0
    )  # noise of the mean is taken off
