"""Adaptation experiments on tiny settings: methods, published algorithm, fallback, frames."""

import json
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpswd import PrivateAdapter
from dpswd.data import benchmark
from dpswd.features.maps import Flatten
from dpswd.records import Records
from experiments import cells
from experiments.adaptation import adaptation_methods, fallback, pairs, table1, table1_published
from experiments.adaptation.adaptation_methods import PROBLEMS
from experiments.adaptation.framing import frame
from experiments.adaptation.table1_published import Change
from models.encoders import FeatureEncoder, ShiftAdapter

pytestmark = [
    pytest.mark.filterwarnings("ignore:Full backward hook is firing"),
    pytest.mark.filterwarnings("ignore:Secure RNG turned off"),
]


def features(n, d=8, seed=0):
    labels = torch.arange(n) % 10
    noise = torch.randn(n, d, generator=torch.Generator().manual_seed(seed))
    return Records(0.3 * noise + torch.eye(10, d)[labels], labels)


@pytest.fixture
def tiny(monkeypatch):
    """One problem of feature vectors that takes a second, in place of all."""
    target = features(60, seed=1)
    problem = replace(
        PROBLEMS["A-W"],
        name="a-b",
        data=lambda root: pairs.Pair(features(80), target, target),
        encoder=partial(FeatureEncoder, 8, 6),
        adapter=partial(ShiftAdapter, 8),
        space=partial(Flatten, (8,), radius=3.0),
        pretrain=10,
        steps=10,
        batch=16,
        private_batch=20,
    )
    monkeypatch.setitem(PROBLEMS, "a-b", problem)
    return problem


def test_every_method_and_its_guarantee(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "run_cells", partial(cells.run_cells, workers=0))
    keys = [key for key in table1.KEYS if not key[0].startswith("image map")]
    planned = [table1.Cell("a-b", 0, *key) for key in keys]
    results = table1.run_adaptation(planned, None, tmp_path)
    assert table1.run_adaptation(planned, None, tmp_path) == results  # read, not run again
    assert len(results) == len(planned)
    table = table1.summarise(results)
    sound = dict.fromkeys(["source only", "DANN", "SWD", "SWD, adapter"])  # no claim
    sound |= {"DP-DANN": False, "DP-SWD, features": True, "DP-SWD, adapter": True}
    assert {row["method"]: row["sound"] for row in table} == sound
    for row in table:
        assert 0 <= row["mean"] <= 100
        assert bool(row["conditions"]) == (row["method"] == "DP-DANN")
        if row["epsilon"]:
            assert row["mu"] > 0
    json.dumps(table)


def test_image_map_of_digits(monkeypatch):
    monkeypatch.setattr(adaptation_methods, "IMAGE_MAP_STEPS", 2)
    digits = benchmark("digits").train.select(torch.arange(200))
    small = Records(F.interpolate(digits.floats(), (28, 28)), digits.labels)
    problem = PROBLEMS["USPS-MNIST, as they are"]
    start = adaptation_methods.Start(problem, pairs.Pair(small, small, small), None, None, 0)
    for aim, epsilon in (("synthetic target", 10.0), ("source only", None), ("real target", None)):
        outcome = adaptation_methods.run_method(start, f"image map, {aim}", epsilon)
        assert outcome.get("sound") is (True if epsilon else None)
        assert 0 <= outcome["accuracy"] <= 100


def test_published_algorithm_as_printed(tmp_path, monkeypatch):
    """Cut short, on digits: noise of every row, kept cells, changed settings."""
    digits = benchmark("digits")
    small = [
        Records(F.interpolate(part.floats(), (28, 28)), part.labels)
        for part in (digits.train, digits.test)
    ]
    monkeypatch.setattr(table1_published, "domains", lambda name, root, box: (small[0], small[1]))
    monkeypatch.setattr(table1_published, "STEPS", 300)
    changes = [
        Change("USPS-MNIST", "source only"),
        Change("USPS-MNIST", "none"),
        Change("USPS-MNIST", "printed", {"initial": "normal", "dropout": True, "weight": 0.01}),
    ]
    monkeypatch.setattr(table1_published, "CHANGES", changes)
    rows = table1_published.table1_gap(tmp_path, seeds=2)["rows"]
    assert [(row["noise"], row["sigma"], row["sound"], row["printed"]) for row in rows] == [
        ("source only", 0.0, None, None),
        ("none", 0.0, None, 84.8),
        ("printed", 4.74, False, 83.4),
    ]
    assert rows[-1]["changed"] == {
        "steps": 15,
        "initial": "normal",
        "dropout": True,
        "weight": 0.01,
    }
    for row in rows:
        assert (row["seeds"], len(row["values"]), len(row["curve"]), row["steps"]) == (2, 2, 5, 15)
        assert 5 < row["mean"] <= 100
    monkeypatch.setattr(
        table1_published, "train", lambda *_, **__: pytest.fail("a finished cell was run again")
    )
    assert table1_published.table1_gap(tmp_path, seeds=2)["rows"] == rows


@pytest.mark.data
def test_published_domains(data_root):
    """Enlarged to a box and padded to 28, the ink of USPS ends where the box does."""
    usps, mnist = table1_published.domains("USPS-MNIST", data_root, 20)
    assert (len(usps), len(mnist)) == (7438, 10_000)
    inked = (usps.floats() > -1).any(0)[0]
    assert inked[4:24, 4:24].any()
    assert not inked[:4].any()
    assert not inked[:, 24:].any()


def test_errors_of_the_fallback():
    facts = {"group": "g", "epsilon": 10.0}
    choices = [(90, 80, 1), (90, 80, 0), (80, 90, 0), (80, 90, 1), (80, 80.5, 0)]
    rows = [
        facts | {"plain": p, "always": a, "adapted": c, "result": (p, a)[c]} for p, a, c in choices
    ]
    rows += [row | {"epsilon": 1.0} for row in rows]
    summary, _ = fallback.errors(rows)
    assert (summary["n_worse"], summary["wrongly_adapted"]) == (2, 1)
    assert (summary["n_better"], summary["wrongly_kept"]) == (2, 1)
    assert (summary["plain"], summary["best"]) == (84.0, 88.1)


def test_the_fallback_is_compared_with_both_results():
    adapter = PrivateAdapter(n_synthetic=200, verbose=False)
    results = fallback.compare(pairs.vectors("digits, reduced", 0), adapter)
    assert results["adapted"]
    assert results["result"] == results["always"] > results["plain"] + 20


def test_the_fallback_is_compared_with_the_method_that_it_refused():
    adapter = PrivateAdapter(n_synthetic=200, min_shift=100.0, verbose=False)
    results = fallback.compare(pairs.vectors("digits, reduced", 0), adapter)
    assert not results["adapted"]
    assert results["result"] == results["plain"] < results["always"] - 20


ROUNDING = 1e-5  # sums of a few hundred float32 of order 1


def test_frame_of_one_image():
    images = torch.rand(6, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    images[4] = 0
    together = frame(images)
    assert together.shape == (6, 1, 28, 28)
    assert torch.allclose(
        together, torch.cat([frame(image[None]) for image in images]), atol=ROUNDING
    )
    other = images.clone()
    other[2] = images[2].flip(2)
    moved = (frame(other) - together).abs().flatten(1).amax(1) > ROUNDING
    assert moved.tolist() == [False, False, True, False, False, False]
    assert not together[4].any()
    assert torch.isfinite(together).all()


def test_frame_undoes_shift_and_scale():
    digit = torch.zeros(2, 1, 40, 40)
    digit[0, 0, 4:24, 6:18] = 1
    digit[0, 0, 8:20, 10:14] = 0
    digit[1, 0, 12:32, 20:32] = 1
    digit[1, 0, 16:28, 24:28] = 0
    first, second = frame(digit)
    assert torch.allclose(first, second, atol=1e-5)
    large = nn.functional.interpolate(digit[:1], scale_factor=2, mode="nearest")
    assert (frame(large)[0] - first).abs().mean() < 0.03
