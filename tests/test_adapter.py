"""PrivateAdapter: any adaptation method between the source and one private synthetic target."""

import json
import subprocess
import sys
from typing import ClassVar

import numpy as np
import ot
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from dpswd import PrivateAdapter, PrivateGenerator
from dpswd.adaptation.methods import ImageMap
from dpswd.commands.main import main
from dpswd.data.features import ArrayData
from dpswd.errors import InputError
from dpswd.estimators import _split

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
        fixed = {"epsilon": 10.0, "delta": 1e-5, "n_synthetic": 200, "verbose": False, "run_dir": tmp_path / "run"}
        return PrivateAdapter(**{**fixed, **options})

    return make


class Spy(ot.da.EMDTransport):
    """Transport that keeps its target and overwrites the private records before it starts."""

    seen: ClassVar[list] = []
    private: ClassVar[np.ndarray | None] = None

    def fit(self, Xs=None, ys=None, Xt=None, yt=None):
        """See POT."""
        Spy.seen.append(Xt)
        if Spy.private is not None:
            Spy.private[:] = np.nan
        return super().fit(Xs=Xs, ys=ys, Xt=Xt)


def test_parameters_follow_scikit_learn(tmp_path):
    adapter = PrivateAdapter(epsilon=3.0, method=ot.da.SinkhornTransport(reg_e=0.5), run_dir=tmp_path)
    assert clone(adapter).get_params()["epsilon"] == 3.0
    assert adapter.set_params(n_synthetic=50).n_synthetic == 50


METHODS = [
    "class_shift",
    ot.da.EMDTransport(),
    ot.da.SinkhornTransport(reg_e=0.05, norm="max"),
    ot.da.LinearTransport(),
    skada.CORAL(base_estimator=LogisticRegression()),
    skada.OTMapping(base_estimator=LogisticRegression()),
]


@pytest.mark.parametrize("method", METHODS, ids=["ours", "EMD", "Sinkhorn", "linear", "CORAL", "OTMapping"])
def test_adaptation_with_each_method(adapter, method):
    X, y, domain = problem()
    fitted = adapter(method=method).fit(X, y, domain)
    source = LogisticRegression().fit(X[domain > 0], y[domain > 0])
    assert fitted.adapted_
    assert fitted.shift_ > fitted.min_shift
    assert fitted.score(X[domain < 0], y[domain < 0]) > source.score(X[domain < 0], y[domain < 0]) + 0.05


def test_method_reads_no_private_record(adapter):
    X, y, domain = problem()
    Spy.seen, Spy.private = [], X[N_SOURCE:]
    fitted = adapter(method=Spy()).fit(X, y, domain)
    target = fitted._space.leading(problem()[0][N_SOURCE:])
    gaps = np.abs(Spy.seen[0][:, None] - target).max(2)
    assert len(Spy.seen) == 1
    assert gaps.min() > 1e-6
    assert np.isfinite(fitted.synthetic_).all()
    assert np.abs(target[:, None] - target[:5]).max(2).min() == 0  # control: a copied record has gap 0


class Counted(ArrayData):
    """Records that count how often each one is read."""

    reads: ClassVar[dict] = {}

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        floats = self.private.floats

        def counted(index=slice(None)):
            chosen = np.zeros(len(self.private), dtype=int)
            np.add.at(chosen, np.arange(len(self.private))[index], 1)
            Counted.reads["records"] = Counted.reads.get("records", 0) + chosen
            Counted.reads["passes"] = Counted.reads.get("passes", 0) + 1
            return floats(index)

        object.__setattr__(self.private, "floats", counted)


def test_five_methods_share_one_release(adapter, monkeypatch):
    monkeypatch.setattr("dpswd.estimators.ArrayData", Counted)
    Counted.reads = {}
    X, y, domain = problem()
    fitted = adapter().fit(X, y, domain)
    passes = Counted.reads["passes"]
    facts = json.loads((fitted.run_dir_ / "privacy.json").read_text())
    reads = Counted.reads["records"]
    assert facts["releases_made"] == 4
    assert reads.min() == reads.max() == 5  # one check of all records, and one pass for each release
    source, labels = X[domain > 0].copy(), y[domain > 0]
    X[:] = np.nan
    scores = []
    for method in METHODS:
        fitted.set_params(method=method).adapt(source, labels)
        scores.append(fitted.score(problem()[0][N_SOURCE:], y[N_SOURCE:]))
    assert Counted.reads["passes"] == passes
    assert min(scores) > 0.8
    assert json.loads((fitted.run_dir_ / "privacy.json").read_text()) == facts


def test_private_records_pass_only_recorded_releases(adapter, monkeypatch):
    fits = []
    fit = PrivateGenerator.fit
    monkeypatch.setattr(PrivateGenerator, "fit", lambda self, X, y=None: fits.append((X.shape, y)) or fit(self, X, y))
    fitted = adapter().fit(*problem())
    assert fits == [((N_TARGET, DIM), None)]
    lines = [json.loads(line) for line in (fitted.run_dir_ / "ledger.jsonl").read_text().splitlines()]
    facts = json.loads((fitted.run_dir_ / "privacy.json").read_text())
    assert len(lines) - 1 >= facts["releases_made"] > 0
    assert facts["epsilon"] <= 10.0


def test_labels_of_the_target_are_ignored(adapter, tmp_path, monkeypatch):
    X, y, domain = problem()
    flipped = np.where(domain < 0, (y + 1) % 3, y)
    seen = []
    monkeypatch.setattr(PrivateGenerator, "fit", _stop(seen))
    for i, labels in enumerate((y, flipped, np.where(domain < 0, -1, y))):
        with pytest.raises(StopIteration):
            adapter(run_dir=tmp_path / str(i)).fit(X, labels, domain)
    for records, labels in seen:
        assert labels is None
        np.testing.assert_array_equal(records, seen[0][0])


def _stop(seen):
    def fit(self, X, y=None):
        seen.append((X, y))
        raise StopIteration

    return fit


@pytest.mark.filterwarnings("ignore:Expect noise")
def test_flipped_labels_of_the_target_change_no_prediction(adapter, tmp_path):
    X, y, domain = problem(shift=1.0)
    names = np.array(["a", "b", "c"])
    fitted = adapter(epsilon=0.001).fit(X, names[y], domain)
    other = adapter(epsilon=0.001, run_dir=tmp_path / "b").fit(X, np.where(domain < 0, "?", names[y]), domain)
    np.testing.assert_array_equal(fitted.predict(X), other.predict(X))
    assert list(fitted.classes_) == ["a", "b", "c"]


@pytest.mark.filterwarnings("ignore:Expect noise")
@pytest.mark.parametrize("method", ["class_shift", skada.CORAL(base_estimator=LogisticRegression())])
def test_tiny_epsilon_gives_the_source_classifier(adapter, method):
    X, y, domain = problem()
    fitted = adapter(epsilon=0.001, method=method).fit(X, y, domain)
    rows = fitted._space.coordinates(X)
    source = LogisticRegression(max_iter=300).fit(rows[domain > 0], y[domain > 0])
    assert not fitted.adapted_
    assert "noise hides" in fitted.verdict_
    np.testing.assert_array_equal(fitted.predict(X), source.predict(rows))


def test_target_like_the_source_gives_the_source_classifier(adapter):
    X, y, domain = problem(shift=0.0)
    fitted = adapter().fit(X, y, domain)
    assert not fitted.adapted_
    assert "min_shift" in fitted.verdict_
    fitted.set_params(min_shift=0.0).adapt(X[domain > 0], y[domain > 0])
    assert fitted.adapted_


def test_save_and_load(adapter, tmp_path):
    X, y, domain = problem()
    fitted = adapter().fit(X, np.array(["a", "b", "c"])[y], domain)
    fitted.save(tmp_path / "classifier.pt")
    loaded = PrivateAdapter.load(tmp_path / "classifier.pt")
    np.testing.assert_array_equal(loaded.predict(X), fitted.predict(X))
    assert loaded.guarantee_["epsilon"] == fitted.guarantee_["epsilon"]
    assert loaded.adapted_ == fitted.adapted_
    with pytest.raises(InputError, match="ledger"):
        loaded.report(tmp_path / "report.md")
    fitted.report(tmp_path / "report.md")
    assert (tmp_path / "report.md").stat().st_size > 0
    with pytest.raises(InputError, match="shape"):
        loaded.predict(X[:, :3])
    (tmp_path / "damaged.pt").write_bytes((tmp_path / "classifier.pt").read_bytes()[:-100])
    with pytest.raises(InputError):
        PrivateAdapter.load(tmp_path / "damaged.pt")


def test_predict_in_a_fresh_process(adapter, tmp_path):
    X, y, domain = problem()
    fitted = adapter(normalise=True).fit(X, np.array(["a", "b", "c"])[y], domain)
    fitted.save(tmp_path / "classifier.pt")
    np.savez(tmp_path / "new.npz", features=X)
    command = [sys.executable, "-m", "dpswd", "predict", "classifier.pt", "new.npz", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    facts = json.loads(done.stdout)
    with np.load(tmp_path / "predictions.npz") as written:
        np.testing.assert_array_equal(written["predictions"], fitted.predict(X))
        assert list(written["classes"]) == ["a", "b", "c"]
    assert facts["guarantee"]["epsilon"] == fitted.guarantee_["epsilon"]
    assert facts["guarantee"]["run"] == fitted.guarantee_["run"]


@pytest.mark.parametrize(
    ("arrays", "word"),
    [
        ({"features": np.zeros((2, DIM + 1))}, "shape"),
        ({"features": np.full((2, DIM), np.nan)}, "NaN"),
        ({"features": np.array([["a"] * DIM])}, "rows"),
        ({"other": np.zeros((2, DIM))}, "features"),
        (None, "npz"),
    ],
)
def test_predict_refuses_other_records(classifier_file, tmp_path, capsys, arrays, word):
    path = tmp_path / "new.npz"
    path.write_bytes(b"nothing") if arrays is None else np.savez(path, **arrays)
    out = tmp_path / "predictions.npz"
    assert main(["predict", str(classifier_file), str(path), "--out", str(out)]) == 2
    assert word in capsys.readouterr().err
    assert not out.exists()


def test_predict_refuses_other_classifiers(tmp_path, capsys):
    torch.save({"format": 1}, tmp_path / "classifier.pt")
    np.savez(tmp_path / "new.npz", features=np.zeros((2, DIM)))
    assert main(["predict", str(tmp_path / "classifier.pt"), str(tmp_path / "new.npz")]) == 2
    assert "classifier" in capsys.readouterr().err


@pytest.fixture(scope="module")
def classifier_file(tmp_path_factory):
    """A file of a classifier, from a short run."""
    directory = tmp_path_factory.mktemp("classifier")
    options = {"n_synthetic": 50, "verbose": False, "run_dir": directory / "run"}
    PrivateAdapter(10.0, 1e-5, **options).fit(*problem()).save(directory / "classifier.pt")
    return directory / "classifier.pt"


def test_other_classifiers_are_not_saved(adapter, tmp_path):
    fitted = adapter(classifier=DecisionTreeClassifier()).fit(*problem())
    with pytest.raises(InputError, match="logistic"):
        fitted.save(tmp_path / "classifier.pt")
    assert not (tmp_path / "classifier.pt").exists()


@pytest.mark.parametrize("kind", ["number", "name"])
@pytest.mark.parametrize("as_list", [True, False])
def test_the_type_of_a_target_label_does_not_change_the_classes(kind, as_list):
    """One label of another type turns all labels of an array into floats or strings."""
    X, y, domain = problem()
    other = [*y[:-1].tolist(), 0.5 if kind == "number" else "unknown"]
    given = other if as_list else np.array(other, dtype=float if kind == "number" else object)
    for labels in (y, given):
        classes = _split(X, labels, domain)[1]
        assert classes.dtype.kind == "i"
        np.testing.assert_array_equal(classes, y[domain > 0])


def test_a_fit_after_an_interrupted_one_is_refused(adapter, tmp_path, monkeypatch):
    """The releases of the first fit are on the disk: a second fit spends a second budget."""

    def interrupted(*arguments):
        raise KeyboardInterrupt

    first = adapter(run_dir=tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr("dpswd.estimators.SyntheticTarget.draw", interrupted)
        with pytest.raises(KeyboardInterrupt):
            first.fit(*problem())
    with pytest.raises(InputError, match="second"):
        first.set_params(run_dir=tmp_path / "b").fit(*problem())
    assert not (tmp_path / "b").exists()


def test_a_target_record_beyond_float32_counts_as_zero(adapter):
    X, y, domain = problem()
    first = np.flatnonzero(domain < 0)[0]
    X[first] = 1e42
    rows = adapter()
    assert np.isfinite(rows.fit(X, y, sample_domain=domain).predict(X[domain > 0])).all()


def test_second_fit_is_refused(adapter):
    fitted = adapter().fit(*problem())
    with pytest.raises(InputError, match="budget"):
        fitted.fit(*problem())


def _with_nan(X):
    X = X.copy()
    X[-1, 0] = np.nan
    return X


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda X, y, d: (X, y, np.abs(d)), "target"),
        (lambda X, y, d: (X, y, -np.abs(d)), "source"),
        (lambda X, y, d: (X, y, d * 0), "sample_domain"),
        (lambda X, y, d: (X, y[:-1], d), "y"),
        (lambda X, y, d: (X, y, d[:-1]), "sample_domain"),
        (lambda X, y, d: (_with_nan(X), y, d), "X"),
        (lambda X, y, d: (X[:, 0], y, d), "X"),
        (lambda X, y, d: (X, y * 0, d), "classes"),
    ],
)
def test_unfit_input_is_refused_before_anything_is_written(adapter, tmp_path, change, name):
    with pytest.raises(InputError, match=name):
        adapter().fit(*change(*problem()))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("options", [{"method": "nothing"}, {"method": 3}, {"n_synthetic": 0}, {"epsilon": -1.0}])
def test_unfit_options_are_refused(adapter, tmp_path, options):
    with pytest.raises(InputError):
        adapter(**options).fit(*problem())
    assert not (tmp_path / "run").exists()


def test_predict_before_fit_is_refused():
    with pytest.raises(InputError, match="fit"):
        PrivateAdapter().predict(np.zeros((2, 3)))


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
    fitted = adapter(method=ImageMap(n_steps=60, shift=1.0)).fit(X, np.r_[labels, truth * 0 - 1], domain)
    assert fitted.adapted_
    assert fitted.score(X[300:], truth) > 0.9
    fitted.save(tmp_path / "classifier.pt")
    np.testing.assert_array_equal(PrivateAdapter.load(tmp_path / "classifier.pt").predict(X), fitted.predict(X))
    with pytest.raises(InputError, match="shape"):
        fitted.predict(X[:, :8])


def test_image_map_needs_images(adapter, tmp_path):
    with pytest.raises(InputError, match="images"):
        adapter(method="image_map").fit(*problem())
    assert not (tmp_path / "run").exists()


def test_the_config_and_the_estimator_make_the_same_releases(adapter, tmp_path, monkeypatch):
    """``dpswd fit`` and ``PrivateAdapter`` plan the same mechanisms, and find the same target."""
    monkeypatch.chdir(tmp_path)
    X, y, domain = problem()
    np.savez("source.npz", features=X[domain > 0], labels=y[domain > 0])
    np.savez("target.npz", features=X[domain < 0])
    np.savez("test.npz", features=X[domain < 0], labels=y[domain < 0])
    options = ["--privacy.target_epsilon", "10", "--privacy.target_delta", "1e-5"]
    options += ["--data.normalise", "false", "--data.test", "test.npz"]
    options += ["--trainer.callbacks.test_is_public", "true", "--trainer.callbacks.synthetic", "true"]
    assert main(["fit", "--config", "adaptation_features", *options]) == 0
    run_dir = tmp_path / "runs" / "adaptation_features"
    fitted = adapter().fit(X, y, domain)
    plans = [
        json.loads((each / "ledger.jsonl").read_text().splitlines()[0])["plan"] for each in (run_dir, fitted.run_dir_)
    ]
    assert plans[0] == plans[1]
    loaded = PrivateAdapter.load(run_dir / "classifier.pt")
    assert loaded.adapted_
    assert loaded.guarantee_["epsilon"] <= 10
    (row,) = json.loads((run_dir / "evaluation.json").read_text())["rows"]
    assert row["accuracy"] == pytest.approx(100 * loaded.score(X[domain < 0], y[domain < 0]), abs=0.01)
    assert row["accuracy"] > 90
    with np.load(run_dir / "synthetic_target.npz") as written:
        assert written["features"].shape == (4000, DIM)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--trainer.callbacks.method", "image_map"], "images"),
        (["--trainer.callbacks.method", "nothing"], "method"),
        (["--trainer.callbacks.test_is_public", "true"], "test"),
    ],
)
def test_fit_refuses_before_anything_is_released(tmp_path, monkeypatch, capsys, options, word):
    monkeypatch.chdir(tmp_path)
    X, y, domain = problem()
    np.savez("source.npz", features=X[domain > 0], labels=y[domain > 0])
    np.savez("target.npz", features=X[domain < 0])
    assert main(["fit", "--config", "adaptation_features", *options]) == 2
    assert word in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_no_accuracy_without_a_statement(tmp_path, monkeypatch):
    """An exact accuracy on records of the target is no post-processing."""
    monkeypatch.chdir(tmp_path)
    X, y, domain = problem()
    np.savez("source.npz", features=X[domain > 0], labels=y[domain > 0])
    np.savez("target.npz", features=X[domain < 0], labels=y[domain < 0])
    options = ["--data.test", "target.npz"]
    options += ["--trainer.callbacks.method.class_path", "ot.da.LinearTransport"]
    assert main(["fit", "--config", "adaptation_features", *options]) == 0
    assert (tmp_path / "runs/adaptation_features/classifier.pt").is_file()
    assert not (tmp_path / "runs/adaptation_features/evaluation.json").exists()
