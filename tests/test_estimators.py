"""PrivateGenerator: scikit-learn's conventions, formats there and back, one fit one budget, refusals."""

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

DIGITS = load_digits()
TEN = range(10)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    place = tmp_path_factory.mktemp("generator")
    records = PrivateRecords(
        (DIGITS.images * 15).astype(np.uint8), DIGITS.target, classes=TEN, name="scans"
    )
    return PrivateGenerator(epsilon=10, run_dir=place / "run", verbose=False).fit(records), place


def test_samples_have_the_layout_of_the_records(fitted):
    generator, _ = fitted
    images, labels = generator.sample(50)
    assert (images.shape, images.dtype) == ((50, 8, 8), np.uint8)
    assert np.bincount(labels).tolist() == [5] * 10
    _, wanted = generator.sample(4, y=[3, 3, 7, 7])
    assert wanted.tolist() == [3, 3, 7, 7]
    assert not np.array_equal(generator.sample(5)[0], generator.sample(5)[0])
    with pytest.raises(InputError, match="proportions"):
        generator.sample(5, proportions="real")


def test_file_and_report(fitted):
    generator, place = fitted
    generator.save(place / "generator.pt")
    again, other = (PrivateGenerator.load(place / "generator.pt") for _ in range(2))
    torch.manual_seed(3)
    state = torch.random.get_rng_state()
    assert np.array_equal(again.sample(20)[0], other.sample(20)[0])  # by one seed
    assert torch.equal(torch.random.get_rng_state(), state)
    ledger, stated = Ledger.open_existing(place / "run" / "ledger.jsonl"), generator.guarantee_
    assert ledger.n_releases == sum(part["n_releases"] for part in ledger.header["plan"])
    assert (stated["sound"], stated["epsilon"] <= 10, stated["delta"]) == (True, True, 1e-5)
    assert again.guarantee_["epsilon"] == stated["epsilon"]
    assert again.sample(3)[0].shape == (3, 8, 8)
    generator.report(place / "report.json")
    assert json.loads((place / "report.json").read_text())["sound"] is True
    assert "scans" in (place / "run" / "config.yaml").read_text()  # a handle brings its own facts
    with pytest.raises(InputError, match="html"):
        generator.report(place / "report.pdf")
    with pytest.raises(InputError, match="ledger"):
        again.report(place / "again.html")


def test_a_second_fit_is_refused(fitted):
    generator, place = fitted
    before = (place / "run" / "ledger.jsonl").read_bytes()
    with pytest.raises(InputError, match="budget"):
        generator.fit(DIGITS.images / 16, DIGITS.target)
    with pytest.raises(InputError, match="ledger"):
        PrivateGenerator(run_dir=place / "run").fit(object())  # refused before records are read
    for budget in ({"epsilon": 0}, {"delta": 1}):
        with pytest.raises(InputError, match=f"Expected {next(iter(budget))} "):
            PrivateGenerator(**budget).fit(object())
    with pytest.raises(NotFittedError, match="fit"):
        clone(generator).sample(3)
    assert (place / "run" / "ledger.jsonl").read_bytes() == before


def test_a_fit_after_an_interrupted_one(tmp_path, monkeypatch):
    """Noisy values of the first fit are on the disk: a second one spends a second budget, a resumed one does not."""
    X, y = np.random.default_rng(0).random((600, 5)), np.arange(600) % 2
    options = {"epsilon": 5, "classes": [0, 1], "delta": 1e-4, "radius": 1.0, "verbose": False}
    generator = PrivateGenerator(run_dir=tmp_path / "a", **options)
    with pytest.raises(InputError):
        generator.fit(X, y + 1)  # refused records release nothing, so that the next fit may start
    monkeypatch.setattr("dpswd.mixture.fitting._Fit.set_map", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        generator.fit(X, y)
    monkeypatch.undo()
    with pytest.raises(InputError, match="second"):
        generator.set_params(run_dir=tmp_path / "b").fit(X, y)
    assert not (tmp_path / "b").exists()
    ledger = (tmp_path / "a" / "ledger.jsonl").read_bytes()
    again = PrivateGenerator(run_dir=tmp_path / "a", resume=True, **options).fit(X, y)
    assert (tmp_path / "a" / "ledger.jsonl").read_bytes() == ledger
    assert again.sample(5)[0].shape == (5, 5)


@pytest.mark.parametrize("estimator", [PrivateGenerator, PrivateAdapter])
def test_resume_needs_the_directory_of_a_run(estimator, tmp_path, monkeypatch):
    """On 0.3.0 every fit with resume=True and without run_dir was a new run with a full budget."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="run_dir"):
        estimator(resume=True).fit(np.zeros((60, 5)), np.arange(60) % 2)
    assert not list(tmp_path.iterdir())


def test_resume_in_a_new_directory_is_a_second_fit(tmp_path):
    X, y = np.random.default_rng(0).random((600, 5)), np.arange(600) % 2
    options = {"epsilon": 5, "classes": [0, 1], "delta": 1e-4, "radius": 1.0, "verbose": False}
    generator = PrivateGenerator(run_dir=tmp_path / "a", resume=True, **options)
    generator.fit(X, y)
    ledger = (tmp_path / "a" / "ledger.jsonl").read_bytes()
    generator.fit(X, y)  # reads the released values of the finished run
    assert (tmp_path / "a" / "ledger.jsonl").read_bytes() == ledger
    with pytest.raises(InputError, match="a second one"):
        generator.set_params(run_dir=tmp_path / "b").fit(X, y)
    assert not (tmp_path / "b").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_check_estimator(tmp_path, monkeypatch):
    """Issue 31: what fails fits one estimator twice, or passes numbers as Python objects."""
    monkeypatch.chdir(tmp_path)
    found = check_estimator(PrivateGenerator(delta=1e-4, radius=1.0, verbose=False), on_fail=None)
    failed = {
        each["check_name"]: str(each["exception"]) for each in found if each["status"] == "failed"
    }
    assert "array of object" in failed.pop("check_dtype_object")
    assert {name: said for name, said in failed.items() if "got a second one" not in said} == {}


@pytest.mark.parametrize(
    ("X", "y"),
    [
        ((DIGITS.images / 16).astype(np.float32), None),
        (torch.rand(60, 3, 8, 8), np.arange(60) % 2),
        (
            np.random.default_rng(0).integers(0, 256, (60, 8, 8, 3), dtype=np.uint8),
            ["cat", "dog"] * 30,
        ),
        (
            np.random.default_rng(0).random((60, 5)),
            np.array([[0.0], [1.0]] * 30),
        ),  # labels of MATLAB
        (
            pd.DataFrame({"age": np.arange(60) % 90, "fee": np.linspace(0, 1, 60)}),
            pd.Series(np.arange(60) % 2, name="sick"),
        ),
    ],
    ids=["images", "channels first", "colour", "rows", "table"],
)
def test_every_format_there_and_back(X, y, tmp_path):
    """Issue 31: bytes, axes, names and types survive fit, save and load."""
    classes = None if y is None else ["cat", "dog"] if isinstance(y, list) else [0, 1]
    bounds = [(0, 100)] * X.shape[1] if X.ndim == 2 else None
    made = PrivateGenerator(
        delta=1e-4, classes=classes, bounds=bounds, run_dir=tmp_path / "run", verbose=False
    )
    made.fit(X, y).save(tmp_path / "g.pt")
    for each in (made, PrivateGenerator.load(tmp_path / "g.pt")):
        drawn, labels = each.sample(7)
        assert type(drawn) is (np.ndarray if isinstance(X, torch.Tensor) else type(X))
        assert drawn.shape == (7, *X.shape[1:])
        if isinstance(X, pd.DataFrame):
            assert drawn.dtypes.equals(X.dtypes)
            assert drawn.columns.equals(X.columns)
        else:
            assert str(drawn.dtype) == str(X.dtype).removeprefix("torch.")
        assert labels is None if y is None else set(labels) == set(classes)
        assert not isinstance(y, pd.Series) or (type(labels), labels.name) == (pd.Series, "sick")


def test_what_a_fit_prints(tmp_path, capsys):
    """Issue 31: the guarantee in one line, the files, the next command; facts that were taken, also if quiet."""
    for verbose in (True, False):
        made = PrivateGenerator(run_dir=tmp_path / str(verbose), verbose=verbose)
        made.fit(DIGITS.images / 16 * (1 if verbose else 0.5), DIGITS.target)
        assert made.classes_.tolist() == list(TEN)
        said = capsys.readouterr()
        assert said.out == ""
        assert "taken from the records and treated as public: classes=range(10)" in said.err
        for words in ("Guarantee: mu = ", "Files: ", "Next: ", "Expect "):
            assert (words in said.err) == verbose


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_records_are_generated_on_the_device(tmp_path):
    made = PrivateGenerator(device="cuda", shift=1.0, run_dir=tmp_path / "run").fit(
        DIGITS.images / 16
    )
    assert made.generator_.means.is_cuda
    assert made.sample(5)[0].shape == (5, 8, 8)


def test_a_shared_ledger_allows_further_fits(tmp_path):
    SharedLedger.create(tmp_path / "shared.jsonl", target_epsilon=10.0, target_delta=1e-4)
    X = np.random.default_rng(0).random((300, 8, 8))
    options = {
        "epsilon": 3,
        "delta": 1e-5,
        "shared_ledger": tmp_path / "shared.jsonl",
        "verbose": False,
    }
    made = PrivateGenerator(run_dir=tmp_path / "a", **options).fit(X)
    made.set_params(run_dir=tmp_path / "b").fit(X)
    assert not Budget.is_free(tmp_path / "b")
    with pytest.raises(DpswdError):
        made.set_params(run_dir=tmp_path / "c", epsilon=9.9).fit(X)
