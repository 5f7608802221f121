"""PrivateAdapter: any adaptation method between the source and one private synthetic target."""

import io
import json

import numpy as np
import ot.da
import pytest
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression

from dpswd import InputError, PrivateAdapter
from dpswd.adaptation.methods import ImageMap
from dpswd.records import PrivateRecords

# These tests are of the classifier: the generator of their small targets is expected to be noise.
NOISE = "ignore::dpswd.errors.UtilityWarning"

skada = pytest.importorskip("skada")

N_SOURCE = 150
N_TARGET = 600
DIM = 6


def problem(shift=2.0):
    """Records (N, 6) of three classes, their classes and domains; the target is moved."""
    rng = np.random.default_rng(0)
    centres = np.zeros((3, DIM))
    centres[:, :2] = [[0, 0], [4, 0], [0, 3]]
    labels = rng.integers(0, 3, N_SOURCE + N_TARGET)
    domain = np.r_[np.ones(N_SOURCE, dtype=int), -np.ones(N_TARGET, dtype=int)]
    records = centres[labels] + rng.normal(size=(len(labels), DIM)) * 0.6
    records[domain < 0, :2] += shift
    return records, labels, domain


def plain_classifier(records, labels, domain):
    """The classifier of the source."""
    return LogisticRegression(max_iter=300).fit(records[domain > 0], labels[domain > 0])


@pytest.fixture
def new_adapter(tmp_path):
    """Returns a function that makes adapters."""

    def new(**options):
        fixed = {"n_synthetic": 200, "verbose": False, "run_dir": tmp_path / "run"}
        return PrivateAdapter(epsilon=options.pop("epsilon", 10.0), **{**fixed, **options})

    return new


@pytest.fixture
def reads(monkeypatch):
    """Returns counts of how often each private record was read, per handle."""
    counts = {}
    open_records = PrivateRecords.open_records

    def counted(self, index):
        counts.setdefault(id(self), np.zeros(len(self), dtype=int))[index.numpy()] += 1
        return open_records(self, index)

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


def test_six_methods_share_one_release(new_adapter, reads):
    records, labels, domain = problem()
    target = records[domain < 0].copy()
    truth = labels[domain < 0]
    plain_score = plain_classifier(records, labels, domain).score(target, truth)
    adapter = new_adapter().fit(records, labels, domain)
    statement = json.loads((adapter.run_dir_ / "privacy.json").read_text())
    (counts,) = reads.values()
    assert len(counts) == N_TARGET
    # Every release reads every record once.
    assert counts.min() == counts.max() == statement["releases_made"] == 4
    source = records[domain > 0].copy()
    records[:] = np.nan  # nothing reads the target again
    for name, method in METHODS.items():
        adapter.set_params(method=method).adapt(source, labels[domain > 0])
        assert adapter.adapted_, name
        assert adapter.shift_ > adapter.min_shift, name
        assert adapter.score(target, truth) > plain_score + 0.05, name
    assert counts.max() == 4
    assert json.loads((adapter.run_dir_ / "privacy.json").read_text()) == statement


def test_no_record_of_the_target_is_copied(new_adapter):
    records, labels, domain = problem()
    adapter = new_adapter().fit(records, labels, domain)
    space = adapter.classifier_.space
    target_rows = space.coordinates(records[domain < 0])
    synthetic_rows = space.coordinates(adapter.synthetic_)
    distances = np.abs(synthetic_rows[:, None] - target_rows).max(2)
    assert distances.min() > 1e-6


NOISY = {"epsilon": 0.001, "method": METHODS["CORAL"]}


@pytest.mark.filterwarnings(NOISE)
@pytest.mark.parametrize(
    ("shift", "options", "verdict"),
    [(2.0, NOISY, "noise hides"), (0.0, {}, "min_shift")],
    ids=["noise", "no shift"],
)
def test_noise_and_no_shift_give_the_plain_source_classifier(
    new_adapter, tmp_path, shift, options, verdict
):
    """Trained on records as they came, not on normalised, centred and scaled ones."""
    records, labels, domain = problem(shift=shift)
    records += 3.0
    adapter = new_adapter(normalise=True, **options).fit(records, labels, domain)
    plain = plain_classifier(records, labels, domain)
    assert not adapter.adapted_
    assert verdict in adapter.verdict_
    np.testing.assert_array_equal(adapter.predict_proba(records), plain.predict_proba(records))
    adapter.save(tmp_path / "classifier.pt")
    loaded = PrivateAdapter.load(tmp_path / "classifier.pt")
    np.testing.assert_array_equal(loaded.predict(records), plain.predict(records))


@pytest.mark.filterwarnings(NOISE)
@pytest.mark.parametrize(("epsilon", "adapted"), [(10.0, True), (0.001, False)])
def test_min_shift_of_zero_adapts_unless_noise_hides_the_mean(new_adapter, epsilon, adapted):
    records, labels, domain = problem(shift=0.0)
    adapter = new_adapter(epsilon=epsilon, min_shift=0.0).fit(records, labels, domain)
    assert adapter.adapted_ == adapted


@pytest.mark.filterwarnings(NOISE)
@pytest.mark.parametrize(
    ("names", "other", "dtype"),
    [
        ([0, 1, 2], 0.5, float),
        ([0, 1, 2], "unknown", object),
        ([0, 1, 2], None, object),
        (["a", "b", "c"], "?", str),
    ],
)
def test_labels_of_the_target_change_neither_predictions_nor_classes(
    new_adapter, tmp_path, names, other, dtype
):
    """One label of another type turns all labels of an array into floats or strings."""
    records, numbers, domain = problem(shift=1.0)
    labels = [names[number] for number in numbers]
    expected = new_adapter(epsilon=0.001).fit(records, labels, domain).predict(records)
    changed = [*labels[:-1], other]
    for kind, form in (("list", changed), ("array", np.array(changed, dtype=dtype))):
        adapter = new_adapter(epsilon=0.001, run_dir=tmp_path / kind).fit(records, form, domain)
        assert adapter.classes_.tolist() == names
        np.testing.assert_array_equal(adapter.predict(records), expected)


@pytest.mark.parametrize("names", [[0, 1, 2], [10, 20, 30]])
def test_a_label_of_the_target_does_not_change_the_type_of_classes(new_adapter, tmp_path, names):
    """In an array of strings, which one label of the target makes, integers stay integers."""
    X, y, domain = problem(shift=1.0)
    labels = np.array([str(names[number]) for number in y])
    labels[-1] = "unknown"
    fitted = new_adapter().fit(X, labels, domain)
    assert fitted.classes_.tolist() == names


@pytest.mark.parametrize("other", [float("nan"), -1, None, "unknown"])
def test_a_label_of_the_target_does_not_make_numbers_of_truth_values(new_adapter, tmp_path, other):
    X, y, domain = problem(shift=1.0)
    labels = np.array([*(y[:-1] > 0).tolist(), other])
    fitted = new_adapter().fit(X, labels, domain)
    plain = new_adapter(run_dir=tmp_path / "plain").fit(X, y > 0, domain)
    assert fitted.classes_.dtype == plain.classes_.dtype
    assert fitted.classes_.tolist() == plain.classes_.tolist()


def test_a_label_of_the_target_does_not_join_classes(new_adapter, tmp_path):
    X, y, domain = problem(shift=1.0)
    labels = y + 2**60
    assert len(new_adapter().fit(X, labels, domain).classes_) == 3
    as_floats = labels.astype(float)
    as_floats[-1] = float("nan")
    with pytest.raises(InputError, match="a float with a fraction or beyond 2\\^53"):
        new_adapter(run_dir=tmp_path / "floats").fit(X, as_floats, domain)
    assert not (tmp_path / "floats").exists()


@pytest.mark.parametrize("other", ["no", "unknown"])
def test_a_label_of_the_target_does_not_make_texts_of_truth_values(new_adapter, tmp_path, other):
    """A reader of tables holds TRUE and FALSE as truth values, and beside a text as texts."""
    pd = pytest.importorskip("pandas")
    X, y, domain = problem(shift=1.0)
    cells = ["TRUE" if number > 0 else "FALSE" for number in y]
    files = {"plain": cells, "changed": [*cells[:-1], other]}
    classes = []
    for name, column in files.items():
        read = pd.read_csv(io.StringIO("\n".join(["sick", *column])))["sick"]
        adapter = new_adapter(run_dir=tmp_path / name).fit(X, read, domain)
        classes.append(adapter.classes_.tolist())
    assert classes[0] == classes[1] == [False, True]


@pytest.mark.parametrize("precision", [np.float32, np.float64])
def test_fractions_as_classes_are_refused(new_adapter, tmp_path, precision):
    """The number 0.1 of float32 is another one in float64, which a label of the target decides."""
    X, y, domain = problem()
    with pytest.raises(InputError, match="a float with a fraction"):
        new_adapter(run_dir=tmp_path / "run").fit(X, (y + 0.1).astype(precision), domain)
    assert not (tmp_path / "run").exists()
    texts = [f"{number}.1" for number in y]
    new_adapter().fit(X, texts, domain)  # control: the remedy


def test_equal_source_records_are_refused_before_a_release(new_adapter, tmp_path):
    target = np.random.default_rng(0).normal(size=(60, 4))
    source = np.ones((30, 4))
    adapter = new_adapter(run_dir=tmp_path / "equal")
    with pytest.raises(InputError, match="got 30 equal ones"):
        adapter.fit(np.r_[source, target], np.arange(90) % 2, np.r_[np.ones(30), -np.ones(60)])
    assert not (tmp_path / "equal").exists()


def test_missing_labels_of_the_source_are_refused(new_adapter, tmp_path):
    X, y, domain = problem()
    for missing in (None, float("nan")):
        labels = [missing, *y[1:].tolist()]
        for given in (labels, np.array(labels, dtype=object), np.array(labels, dtype=float)):
            with pytest.raises(InputError, match="missing label"):
                new_adapter().fit(X, given, domain)
        fine = [*y[:-1].tolist(), missing]
        new_adapter(run_dir=tmp_path / str(missing)).fit(X, fine, domain)  # control: of the target


def test_columns_of_frames_are_matched_by_name(new_adapter, tmp_path):
    pd = pytest.importorskip("pandas")
    X, y, domain = problem()
    frame = pd.DataFrame(X, columns=[*"pqrstu"])
    new_adapter().fit(frame, y, domain).save(tmp_path / "classifier.pt")
    loaded = PrivateAdapter.load(tmp_path / "classifier.pt")
    right = loaded.predict(frame)
    np.testing.assert_array_equal(loaded.predict(frame[[*"utsrqp"]]), right)
    np.testing.assert_array_equal(loaded.predict(frame.to_numpy()), right)  # by position
    with pytest.raises(InputError, match="columns p, q, r, s, t, u in X, got"):
        loaded.predict(frame.rename(columns={"p": "income"}))


def test_adapt_matches_columns_by_name(new_adapter):
    pd = pytest.importorskip("pandas")
    X, y, domain = problem()
    frame = pd.DataFrame(X, columns=[*"pqrstu"])
    adapter = new_adapter().fit(frame, y, domain)
    expected = adapter.predict(frame)
    source = frame[domain > 0]
    labels = y[domain > 0]
    adapter.adapt(source[[*"utsrqp"]], labels)
    np.testing.assert_array_equal(adapter.predict(frame), expected)
    np.testing.assert_array_equal(adapter.predict(frame[[*"utsrqp"]]), expected)
    for other in (source.rename(columns={"p": "income"}), source.drop(columns="p")):
        with pytest.raises(InputError, match="columns p, q, r, s, t, u in X, got"):
            adapter.adapt(other, labels)


def test_adapt_and_score_read_labels_as_fit_does(new_adapter):
    X, y, domain = problem()
    adapter = new_adapter().fit(X, y, domain)
    source = X[domain > 0]
    labels = y[domain > 0]
    target = X[domain < 0]
    expected = adapter.score(target, y[domain < 0])
    texts = [str(label) for label in labels]
    for spelling in (labels.astype(float), labels.astype(str), texts, labels.astype(object)):
        adapter.adapt(source, spelling)
        assert adapter.classes_.tolist() == [0, 1, 2]
    for dtype in (float, str, object):
        assert adapter.score(target, y[domain < 0].astype(dtype)) == expected
    assert expected > 0.5
    with pytest.raises(InputError, match="missing label"):
        adapter.adapt(source, [None, *labels[1:]])
    with pytest.raises(InputError, match="at least 2 classes"):
        adapter.adapt(source, np.zeros(len(source), dtype=int))
    for method in (adapter.adapt, adapter.score):
        with pytest.raises(InputError, match="y of shape"):
            method(source, labels[1:])


def test_save_and_load(new_adapter, tmp_path):
    records, numbers, domain = problem()
    names = np.array(["a", "b", "c"])[numbers]
    adapter = new_adapter().fit(records, names, domain)
    adapter.save(tmp_path / "classifier.pt")
    loaded = PrivateAdapter.load(tmp_path / "classifier.pt")
    np.testing.assert_array_equal(loaded.predict(records), adapter.predict(records))
    np.testing.assert_allclose(
        loaded.predict_proba(records), adapter.predict_proba(records), atol=1e-12
    )
    assert loaded.guarantee_ == adapter.guarantee_
    assert loaded.adapted_
    assert loaded.verdict_ == adapter.verdict_
    with pytest.raises(InputError, match="shape"):
        loaded.predict(records[:, :3])
    loaded.set_params(run_dir=tmp_path / "again")
    with pytest.raises(InputError, match="got a second one"):
        loaded.fit(records, names, domain)


@pytest.mark.filterwarnings(NOISE)
def test_settings_of_the_report_name_a_method_and_no_address(new_adapter, tmp_path):
    adapter = new_adapter(method=ot.da.SinkhornTransport(reg_e=0.25)).fit(*problem())
    adapter.report(tmp_path / "report.md")
    text = (tmp_path / "report.md").read_text()
    assert "class: ot.da.SinkhornTransport" in text
    assert "reg_e: 0.25" in text
    assert "object at 0x" not in text


def test_report_needs_the_ledger_of_the_run(new_adapter, tmp_path):
    adapter = new_adapter().fit(*problem())
    adapter.report(tmp_path / "report.md")
    assert "columns.png" in (tmp_path / "report.md").read_text()
    adapter.save(tmp_path / "classifier.pt")
    with pytest.raises(InputError, match="ledger"):
        PrivateAdapter.load(tmp_path / "classifier.pt").report(tmp_path / "report.md")


def test_an_interrupted_fit_is_resumed(new_adapter, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("dpswd.estimators.adapter.SyntheticTarget.draw", interrupted)
        with pytest.raises(KeyboardInterrupt):
            new_adapter().fit(*problem())
    with pytest.raises(InputError, match="ledger"):
        new_adapter().fit(*problem())
    assert new_adapter(resume=True).fit(*problem()).adapted_


def test_a_target_record_beyond_float32_counts_as_zero(new_adapter):
    records, labels, domain = problem()
    records[np.flatnonzero(domain < 0)[0]] = 1e42
    adapter = new_adapter().fit(records, labels, domain)
    assert np.isfinite(adapter.synthetic_).all()


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"method": "nothing"}, "method"),
        ({"method": 3}, "method"),
        ({"method": "image_map"}, "image"),
        ({"n_synthetic": 0}, "n_synthetic"),
        ({"min_shift": -1.0}, "min_shift"),
        ({"epsilon": -1.0}, "epsilon"),
    ],
)
def test_options_out_of_range_are_refused_before_anything_is_written(
    new_adapter, tmp_path, options, name
):
    with pytest.raises(InputError, match=name):
        new_adapter(**options).fit(*problem())
    assert not (tmp_path / "run").exists()


RECORDS, LABELS, DOMAIN = problem()
WITH_NAN = np.where(RECORDS == RECORDS[-1, 0], np.nan, RECORDS)


@pytest.mark.parametrize(
    ("records", "labels", "domain", "message"),
    [
        (RECORDS, LABELS, abs(DOMAIN), "no target"),
        (RECORDS, LABELS, -abs(DOMAIN), "no source"),
        (RECORDS, LABELS, 0 * DOMAIN, "sample_domain"),
        (RECORDS, LABELS, np.where(DOMAIN < 0, np.nan, DOMAIN), "NaN"),
        (RECORDS, LABELS, None, "sample_domain, positive"),
        (RECORDS, LABELS[:-1], DOMAIN, "Expected y"),
        (RECORDS, LABELS, DOMAIN[:-1], "Expected sample_domain"),
        (WITH_NAN, LABELS, DOMAIN, "finite numbers in X"),
        (RECORDS[:, 0], LABELS, DOMAIN, r"rows \(N, d\)"),
        (RECORDS, 0 * LABELS, DOMAIN, "classes"),
    ],
)
def test_unfit_records_are_refused_before_anything_is_written(
    new_adapter, tmp_path, records, labels, domain, message
):
    with pytest.raises(InputError, match=message):
        new_adapter().fit(records, labels, domain)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("predict", (np.zeros((2, 3)),)),
        ("predict_proba", (np.zeros((2, 3)),)),
        ("adapt", (np.zeros((2, 3)), [0, 1])),
        ("save", ("classifier.pt",)),
    ],
)
def test_calls_before_fit_are_refused(method, arguments):
    with pytest.raises(NotFittedError, match="fit"):
        getattr(PrivateAdapter(), method)(*arguments)


def strokes(n, seed, is_target):
    """Upright or level strokes on 12 x 12 pixels, and their classes.

    Those of the target lie two pixels lower and have less contrast.
    """
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, n)
    corners = rng.integers(3, 7, (n, 2))
    images = np.zeros((n, 12, 12))
    for image, is_level, (row, column) in zip(images, labels, corners, strict=True):
        top = row + 2 * is_target
        if is_level:
            image[top : top + 2, column : column + 6] = 1
        else:
            image[top : top + 6, column : column + 2] = 1
    if is_target:
        images *= 0.6
    background = rng.uniform(0, 0.05, images.shape)
    return (images + background).clip(0, 1), labels


@pytest.mark.parametrize("as_bytes", [False, True])
def test_image_map(new_adapter, tmp_path, as_bytes):
    source, labels = strokes(300, 0, is_target=False)
    target, truth = strokes(2000, 1, is_target=True)
    records = np.concatenate([source, target])
    if as_bytes:
        records = (255 * records).astype(np.uint8)
    domain = np.repeat([1, -1], [len(source), len(target)])
    all_labels = np.concatenate([labels, np.full(len(target), -1)])
    method = ImageMap(n_steps=60, shift=1.0)
    adapter = new_adapter(method=method).fit(records, all_labels, domain)
    assert adapter.adapted_
    assert adapter.score(records[300:], truth) > 0.9
    predictions = adapter.predict(records)
    channels_first = records[:, None]
    np.testing.assert_array_equal(adapter.predict(channels_first), predictions)
    with pytest.raises(InputError, match="shape"):
        adapter.predict(records[:, :8])
    adapter.save(tmp_path / "classifier.pt")
    loaded = PrivateAdapter.load(tmp_path / "classifier.pt")
    np.testing.assert_array_equal(loaded.predict(records), predictions)
    np.testing.assert_array_equal(loaded.predict_proba(records).argmax(1), predictions)


@pytest.mark.filterwarnings(NOISE)
def test_a_directory_that_was_not_stated_is_named(new_adapter, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    adapter = new_adapter(run_dir=None, verbose=True).fit(*problem())
    lines = capfd.readouterr().err
    assert f"Files: {adapter.run_dir_}/ledger.jsonl" in lines
    assert "the adaptation needs synthetic ones" in lines
    new_adapter(verbose=True, run_dir=tmp_path / "stated").fit(*problem())
    assert "Files:" not in capfd.readouterr().err  # control: the user knows it
