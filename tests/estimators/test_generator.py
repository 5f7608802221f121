"""PrivateGenerator: conventions of scikit-learn, formats there and back, one fit one budget."""

import fractions
import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

from dpswd import (
    Budget,
    DpswdError,
    InputError,
    PrivateAdapter,
    PrivateGenerator,
    PrivateRecords,
)
from dpswd.accounting.ledger import Ledger
from dpswd.accounting.shared_ledger import SharedLedger
from dpswd.queries import ClassMeans

DIGITS = load_digits()
TEN = range(10)
ROWS = np.random.default_rng(0).random((600, 5))
TWO_CLASSES = np.arange(600) % 2
OPTIONS = {"epsilon": 5, "classes": [0, 1], "delta": 1e-4, "radius": 1.0, "verbose": False}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("generator")


@pytest.fixture(scope="module")
def fitted(directory):
    """A generator of digits, whose run is in ``directory / "run"``."""
    images = (DIGITS.images * 15).astype(np.uint8)
    records = PrivateRecords(images, DIGITS.target, classes=TEN, name="scans")
    return PrivateGenerator(epsilon=10, run_dir=directory / "run", verbose=False).fit(records)


def test_samples_have_the_layout_of_the_records(fitted):
    images, labels = fitted.sample(50)
    assert images.shape == (50, 8, 8)
    assert images.dtype == np.uint8
    assert np.bincount(labels).tolist() == [5] * 10


def test_samples_of_stated_classes(fitted):
    _, labels = fitted.sample(4, y=[3, 3, 7, 7])
    assert labels.tolist() == [3, 3, 7, 7]
    with pytest.raises(InputError, match="n=3"):
        fitted.sample(3, y=[3, 3, 7, 7])
    with pytest.raises(InputError, match="proportions"):
        fitted.sample(5, proportions="real")


def test_samples_for_training_are_noisy_images(fitted, directory):
    fitted.save(directory / "for_training.pt")
    draws = []
    for for_training in (False, True):
        generator = PrivateGenerator.load(directory / "for_training.pt")
        generator.set_params(random_state=0)
        draws.append(generator.sample(500, for_training=for_training))
    (clean, labels), (noisy, noisy_labels) = draws
    assert np.array_equal(labels, noisy_labels)
    assert noisy.dtype == np.float32
    noise = noisy - clean
    # five standard errors of a deviation of normal numbers
    assert noise.std() == pytest.approx(51, abs=5 * 51 / np.sqrt(2 * noise.size))


def test_noise_for_training_is_refused_for_rows(directory):
    rows = np.random.default_rng(0).normal(size=(600, 3)) / 4
    generator = PrivateGenerator(**OPTIONS, run_dir=directory / "rows").fit(rows, TWO_CLASSES)
    with pytest.raises(InputError, match="for_training=True, which adds noise to pixels, got rec"):
        generator.sample(3, for_training=True)


def test_every_call_draws_new_records(fitted):
    assert not np.array_equal(fitted.sample(5)[0], fitted.sample(5)[0])


def test_loaded_generators_draw_new_records_and_leave_the_global_state(fitted, directory):
    fitted.save(directory / "generator.pt")
    first = PrivateGenerator.load(directory / "generator.pt")
    second = PrivateGenerator.load(directory / "generator.pt")
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    assert not np.array_equal(first.sample(20)[0], second.sample(20)[0])
    for loaded in (first, second):
        loaded.set_params(random_state=5)
    assert np.array_equal(first.sample(20)[0], second.sample(20)[0])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first.guarantee_["epsilon"] == fitted.guarantee_["epsilon"]
    assert first.sample(3)[0].shape == (3, 8, 8)


def test_the_guarantee_is_that_of_the_ledger(fitted, directory):
    ledger = Ledger.open_existing(directory / "run" / "ledger.jsonl")
    assert ledger.n_releases == sum(part["n_releases"] for part in ledger.header["plan"])
    assert fitted.guarantee_["sound"]
    assert fitted.guarantee_["epsilon"] <= 10
    assert fitted.guarantee_["delta"] == 1e-5


def test_report(fitted, directory):
    fitted.report(directory / "report.json")
    report = json.loads((directory / "report.json").read_text())
    assert report["sound"] is True
    assert list(report["pictures"]) == ["samples.png"]
    assert report["unchecked_pictures"] == []
    # A handle brings its own name.
    assert "scans" in (directory / "run" / "config.yaml").read_text()
    with pytest.raises(InputError, match="html"):
        fitted.report(directory / "report.pdf")
    fitted.save(directory / "generator.pt")
    loaded = PrivateGenerator.load(directory / "generator.pt")
    with pytest.raises(InputError, match="ledger"):
        loaded.report(directory / "loaded.html")


def test_a_second_fit_is_refused(fitted, directory):
    ledger = (directory / "run" / "ledger.jsonl").read_bytes()
    with pytest.raises(InputError, match="budget"):
        fitted.fit(DIGITS.images / 16, DIGITS.target)
    with pytest.raises(NotFittedError, match="fit"):
        clone(fitted).sample(3)
    assert (directory / "run" / "ledger.jsonl").read_bytes() == ledger


@pytest.mark.parametrize(("option", "value"), [("epsilon", 0), ("delta", 1)])
def test_a_budget_out_of_range_is_refused_before_records_are_read(option, value):
    unreadable = object()
    with pytest.raises(InputError, match=f"Expected {option} "):
        PrivateGenerator(**{option: value}).fit(unreadable)


def test_a_used_directory_is_refused_before_records_are_read(fitted, directory):
    unreadable = object()
    with pytest.raises(InputError, match="ledger"):
        PrivateGenerator(run_dir=directory / "run").fit(unreadable)


def test_a_fit_after_an_interrupted_one(tmp_path, monkeypatch):
    """Noisy values of the first fit are on the disk.

    A second fit would spend a second budget; a resumed one does not.
    """
    generator = PrivateGenerator(run_dir=tmp_path / "a", **OPTIONS)

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ClassMeans, "release", interrupted)
        with pytest.raises(KeyboardInterrupt):
            generator.fit(ROWS, TWO_CLASSES)
    assert Ledger.open_existing(tmp_path / "a" / "ledger.jsonl").n_releases == 1
    with pytest.raises(InputError, match="second"):
        generator.set_params(run_dir=tmp_path / "b").fit(ROWS, TWO_CLASSES)
    assert not (tmp_path / "b").exists()
    resumed = PrivateGenerator(run_dir=tmp_path / "a", resume=True, **OPTIONS)
    resumed.fit(ROWS, TWO_CLASSES)
    assert resumed.sample(5)[0].shape == (5, 5)
    ledger = Ledger.open_existing(tmp_path / "a" / "ledger.jsonl")
    assert ledger.n_releases == ledger.header["planned_releases"]


def test_refused_records_leave_the_next_fit_free(tmp_path):
    generator = PrivateGenerator(run_dir=tmp_path / "a", **OPTIONS)
    with pytest.raises(InputError):
        generator.fit(ROWS, TWO_CLASSES + 1)
    assert generator.fit(ROWS, TWO_CLASSES).sample(5)[0].shape == (5, 5)


@pytest.mark.parametrize("estimator", [PrivateGenerator, PrivateAdapter])
def test_resume_needs_the_directory_of_a_run(estimator, tmp_path, monkeypatch):
    """On 0.3.0 every fit with resume=True and without run_dir was a run with a full budget."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="run_dir"):
        estimator(resume=True).fit(np.zeros((60, 5)), np.arange(60) % 2)
    assert not list(tmp_path.iterdir())


def test_resume_in_a_new_directory_is_a_second_fit(tmp_path):
    generator = PrivateGenerator(run_dir=tmp_path / "a", resume=True, **OPTIONS)
    generator.fit(ROWS, TWO_CLASSES)
    ledger = (tmp_path / "a" / "ledger.jsonl").read_bytes()
    generator.fit(ROWS, TWO_CLASSES)  # reads the released values of the finished run
    assert (tmp_path / "a" / "ledger.jsonl").read_bytes() == ledger
    with pytest.raises(InputError, match="a second one"):
        generator.set_params(run_dir=tmp_path / "b").fit(ROWS, TWO_CLASSES)
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")  # the checks have few records
def test_check_estimator(tmp_path, monkeypatch):
    """The checks that fail fit one estimator twice, or pass numbers as Python objects."""
    monkeypatch.chdir(tmp_path)
    generator = PrivateGenerator(delta=1e-4, radius=1.0, verbose=False)
    failures = {}
    for check in check_estimator(generator, on_fail=None):
        if check["status"] == "failed":
            failures[check["check_name"]] = str(check["exception"])
    assert "array of object" in failures.pop("check_dtype_object")
    unexpected = {
        name: message for name, message in failures.items() if "got a second one" not in message
    }
    assert unexpected == {}


def fit_and_load(directory, X, y, **options):
    """The fitted generator, and the same one read from its file."""
    generator = PrivateGenerator(delta=1e-4, run_dir=directory / "run", verbose=False, **options)
    generator.fit(X, y).save(directory / "g.pt")
    return generator, PrivateGenerator.load(directory / "g.pt")


@pytest.mark.parametrize(
    ("X", "y", "classes"),
    [
        ((DIGITS.images / 16).astype(np.float32), None, None),
        (
            np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8),
            ["cat", "dog"] * 30,
            ["cat", "dog"],
        ),
        (torch.rand(60, 3, 8, 8), np.arange(60) % 2, [0, 1]),
        # Labels (N, 1) as MATLAB writes them.
        (ROWS, np.arange(600.0)[:, None] % 2, [0, 1]),
    ],
    ids=["images", "colour", "channels first", "rows"],
)
def test_every_array_there_and_back(X, y, classes, tmp_path):
    """Bytes, axes and types survive fit, save and load."""
    bounds = [(0, 1)] * 5 if len(X.shape) == 2 else None
    for generator in fit_and_load(tmp_path, X, y, classes=classes, bounds=bounds):
        records, labels = generator.sample(7)
        assert type(records) is np.ndarray
        assert records.shape == (7, *X.shape[1:])
        assert str(records.dtype) == str(X.dtype).removeprefix("torch.")
        if y is None:
            assert labels is None
        else:
            assert set(labels) == set(classes)


def test_a_table_there_and_back(tmp_path):
    """Names and types of columns survive fit, save and load."""
    X = pd.DataFrame({"age": np.arange(60) % 90, "fee": np.linspace(0, 1, 60)})
    y = pd.Series(np.arange(60) % 2, name="sick")
    bounds = [(0, 100), (0, 100)]
    for generator in fit_and_load(tmp_path, X, y, classes=[0, 1], bounds=bounds):
        records, labels = generator.sample(7)
        assert records.dtypes.equals(X.dtypes)
        assert records.columns.equals(X.columns)
        assert type(labels) is pd.Series
        assert labels.name == "sick"
        assert set(labels) == {0, 1}


@pytest.mark.parametrize(("channels", "verbose"), [(3, True), (3, False), (1, True)])
def test_clouds_of_few_photographs_are_announced_first(channels, verbose, tmp_path, capsys):
    images = np.random.default_rng(0).random((300, channels, 12, 12)).astype(np.float32)
    generator = PrivateGenerator(10, 1e-4, run_dir=tmp_path / "run", verbose=verbose)
    generator.fit(images)
    lines = capsys.readouterr().err.splitlines()
    is_announced = channels == 3 and verbose
    assert any("Expect clouds of colour" in line for line in lines) == is_announced
    if is_announced:
        assert "300 records are too few" in lines[0]


@pytest.mark.parametrize("verbose", [True, False])
def test_a_fit_prints_the_guarantee_and_the_next_step(verbose, tmp_path, capsys):
    """Facts that were taken from the records are printed in any case."""
    generator = PrivateGenerator(run_dir=tmp_path / "run", verbose=verbose)
    generator.fit(DIGITS.images / (16 if verbose else 32), DIGITS.target)
    assert generator.classes_.tolist() == list(TEN)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert (
        "taken from the records and treated as public: classes=[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
        in printed.err
    )
    for words in ("Guarantee: mu = ", "Files: ", "Next: ", "expect "):
        assert (words in printed.err) == verbose


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_records_are_generated_on_the_device(tmp_path):
    generator = PrivateGenerator(device="cuda", shift=1.0, run_dir=tmp_path / "run")
    generator.fit(DIGITS.images / 16)
    assert generator.generator_.means.is_cuda
    assert generator.sample(5)[0].shape == (5, 8, 8)


def test_a_device_that_is_not_there_is_refused_before_a_release(tmp_path):
    with pytest.raises(InputError, match="device"):
        PrivateGenerator(device="abacus", run_dir=tmp_path / "run").fit(ROWS)
    assert Budget.is_free(tmp_path / "run")


def test_a_shared_ledger_allows_further_fits(tmp_path):
    shared = tmp_path / "shared.jsonl"
    SharedLedger.create(shared, target_epsilon=10.0, target_delta=1e-4)
    images = np.random.default_rng(0).random((300, 8, 8))
    generator = PrivateGenerator(3, run_dir=tmp_path / "a", shared_ledger=shared, verbose=False)
    generator.fit(images)
    generator.set_params(run_dir=tmp_path / "b").fit(images)
    assert not Budget.is_free(tmp_path / "b")
    with pytest.raises(DpswdError):
        generator.set_params(run_dir=tmp_path / "c", epsilon=9.9).fit(images)


@pytest.mark.parametrize("shape", [(28, 28), (28, 28, 1), (1, 28, 28)])
def test_forecast_reads_every_layout_of_images(shape):
    structure = PrivateGenerator().forecast(shape, 60_000, n_classes=10)
    assert structure.sample_shape == (1, 28, 28)


@pytest.mark.parametrize("epsilon", [np.int64(10), np.float32(10), fractions.Fraction(10)])
def test_numbers_of_other_types_are_accepted(tmp_path, epsilon):
    """They once ended in a traceback and half a run directory."""
    options = {"radius": 1.0, "classes": [0, 1], "verbose": False, "run_dir": tmp_path / "run"}
    X, y = np.random.default_rng(0).random((60, 5)), np.arange(60) % 2
    generator = PrivateGenerator(epsilon, delta=1e-4, **options).fit(X, y)
    assert generator.guarantee_["epsilon"] <= 10


@pytest.mark.parametrize(
    "wrong",
    [
        {"random_state": -1},
        {"random_state": 1.5},
        {"random_state": np.random.RandomState(0)},
        {"centre": float("nan")},
        {"centre": "bright"},
        {"radius": 0.0},
        {"radius": float("inf")},
        {"shift": -1.0},
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_spent(tmp_path, wrong):
    options = {"radius": 1.0, "verbose": False, "run_dir": tmp_path / "run"} | wrong
    X, y = np.random.default_rng(0).random((60, 5)), np.arange(60) % 2
    with pytest.raises(InputError, match=next(iter(wrong))):
        PrivateGenerator(delta=1e-4, **options).fit(X, y)
    if "random_state" in wrong:
        domain = np.where(np.arange(60) < 30, 1, -1)
        with pytest.raises(InputError, match="random_state"):
            PrivateAdapter(run_dir=tmp_path / "run", **wrong).fit(X, y, domain)
    assert not list(tmp_path.iterdir())


def test_without_a_seed_every_sample_is_new(tmp_path):
    options = {"radius": 1.0, "classes": [0, 1], "verbose": False, "run_dir": tmp_path / "run"}
    X, y = np.random.default_rng(0).random((60, 5)), np.arange(60) % 2
    generator = PrivateGenerator(delta=1e-4, random_state=None, **options).fit(X, y)
    assert not np.array_equal(generator.sample(5)[0], generator.sample(5)[0])
