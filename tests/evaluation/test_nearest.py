"""Nearest real records: copies are found, blurred images and fresh records are not."""

import numpy as np
import pytest
import torch

from dpswd.commands.main import main
from dpswd.data import benchmark
from dpswd.evaluation import evaluate
from dpswd.evaluation.accuracy import scores, scores_of_halves
from dpswd.evaluation.nearest import halves, nearest_real
from dpswd.evaluation.two_sample import propensity
from dpswd.records import Records

DIGITS = benchmark("digits")


def rows(n, seed, d=5):
    generator = torch.Generator().manual_seed(seed)
    return Records(torch.randn(n, d, generator=generator), torch.arange(n) % 2)


def test_copies_are_found_and_fresh_records_are_not():
    reference, held_out = rows(1000, 0), rows(1000, 1)
    noise = 0.05 * rows(1000, 2).values
    copies = Records(reference.values + noise, reference.labels)
    assert nearest_real(copies, reference, held_out)["close"] > 0.3
    # 1 % of 1,000 are 10, with a standard deviation of at most 4.5 for two samples
    assert nearest_real(rows(1000, 3), reference, held_out)["close"] < 0.035
    # copies of other records are not copies of these
    others = Records(rows(1000, 4).values + noise, reference.labels)
    assert nearest_real(others, reference, held_out)["close"] < 0.035


def test_blurred_digits_are_near_and_are_no_copies():
    train, test = DIGITS.train, DIGITS.test
    means = torch.stack([train.floats()[train.labels == k].mean(0) for k in range(10)])
    blurred = 0.7 * means[train.labels] + 0.3 * train.floats()[torch.randperm(len(train))]
    figures = nearest_real(Records(blurred, train.labels), train, test)
    assert figures["synthetic"] < 1.3 * figures["real"]
    assert figures["close"] < 0.03
    copies = nearest_real(train, train, test)
    assert (copies["synthetic"], copies["close"]) == (0.0, 1.0)


def test_distances_of_tables_do_not_depend_on_units():
    wide = torch.tensor([1.0, 1000.0, 1.0, 0.01, 1.0])
    parts = [rows(200, seed) for seed in range(3)]
    scaled = [Records(part.values * wide, part.labels) for part in parts]
    one, other = nearest_real(*parts), nearest_real(*scaled)
    assert one == pytest.approx(other, abs=2e-4)
    assert nearest_real(rows(19, 0), *parts[1:]) is None


def test_halves_test_every_record_once():
    one, other = halves(DIGITS.test)
    assert len(one) + len(other) == len(DIGITS.test)
    result = scores_of_halves("logreg", one, other)
    assert result["n_train"] == len(one) == 179
    directions = [scores("logreg", *pair)["accuracy"] for pair in ((one, other), (other, one))]
    mean = (directions[0] * len(other) + directions[1] * len(one)) / len(DIGITS.test)
    assert result["accuracy"] == pytest.approx(mean, abs=0.02)
    single = Records(one.values, torch.zeros_like(one.labels))
    assert scores_of_halves("logreg", one, single) is None


def test_training_on_real_records_is_compared():
    result = evaluate(DIGITS.train, DIGITS.test, train=DIGITS.train, classifiers=["logreg"])
    (synthetic,), (real,) = result["rows"], result["real_rows"]
    assert real["train"] == "real"
    assert real["accuracy"] == synthetic["accuracy"]  # the same records
    assert result["nearest"]["close"] == 1.0
    few = DIGITS.train.select(torch.arange(100))
    assert evaluate(few, DIGITS.test, train=DIGITS.train)["real_rows"][0]["n_train"] == 100


def test_propensity_of_equal_laws_is_as_expected_and_of_other_correlations_is_not():
    """The ratio is a chi-squared number of 20 terms over 20: five deviations are 1.6."""
    assert propensity(rows(4000, 101), rows(4000, 201))["ratio"] < 2.6
    mixed = rows(4000, 2).values
    mixed[:, 1] = 0.8 * mixed[:, 0] + 0.6 * mixed[:, 1]  # the same columns, correlated
    found = propensity(Records(mixed, rows(4000, 2).labels), rows(4000, 1))
    assert found["ratio"] > 20
    far = propensity(Records(mixed + 10, rows(4000, 2).labels), rows(4000, 1))
    assert far["pmse"] == pytest.approx(0.25, abs=0.01)
    constant = Records(torch.ones(50, 2), torch.zeros(50, dtype=torch.int64))
    assert propensity(constant, constant) is None


def test_the_worst_pair_has_its_names(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, part in (("made", 0.0), ("real", 0.9)):
        table = rng.normal(size=(200, 3))
        table[:, 2] = part * table[:, 0] + (1 - part) * table[:, 2]
        lines = [f"{a:g},{b:g},{c:g},{i % 2}" for i, (a, b, c) in enumerate(table)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["age,size,weight,class", *lines]))
    assert main(["evaluate", "made.csv", "real.csv", "--classifiers", "logreg"]) == 0
    text = capfd.readouterr().out
    assert "age and weight: " in text
    assert "About 1.0 % are, if none is a copy" in text  # 1 of 101
    assert "100 real" in text  # training on one half
    assert "times that of two sets of real records" in text
    assert "does not show privacy" in text


def cells(n, seed, n_values):
    """Return a table of five columns with few values each."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(n_values, (n, 5), generator=generator).float()
    return Records(values, torch.zeros(n, dtype=torch.int64))


@pytest.mark.parametrize("factor", [1.0, 1.001])
def test_copies_of_a_record_that_occurs_twice_are_found(factor):
    one = rows(500, 0)
    reference = Records(one.values.repeat(2, 1), one.labels.repeat(2))
    copies = Records(factor * one.values, one.labels)
    assert nearest_real(copies, reference, rows(500, 1))["close"] > 0.95
    assert nearest_real(rows(500, 2), reference, rows(500, 1))["close"] < 0.04  # the control


def test_tables_of_few_values_are_compared_with_the_part_of_fresh_records():
    """Of 6^5 cells, about 2,000 / 6^5 = 23 % of fresh records equal one of the reference."""
    reference, held_out = cells(2000, 0, 6), cells(2000, 1, 6)
    copies = nearest_real(reference, reference, held_out)
    fresh = nearest_real(cells(2000, 2, 6), reference, held_out)
    assert copies["close"] == 1.0
    assert copies["expected"] == fresh["expected"] == pytest.approx(0.23, abs=0.05)
    assert fresh["close"] == pytest.approx(fresh["expected"], abs=0.04)  # three deviations
    single = cells(30, 0, 1)
    assert nearest_real(single, single, single) is None


@pytest.mark.parametrize("n", [20, 50, 100, 1000])
def test_the_expected_part_is_that_of_fresh_records(n):
    """Of few held-out records it is more than 1 %: the least of 20 is exceeded by 20 of 21."""
    parts = []
    for seed in range(20):
        figures = nearest_real(rows(400, seed), rows(500, 100 + seed), rows(n, 200 + seed))
        parts.append(figures["close"])
    expected = figures["expected"]
    assert expected == pytest.approx((np.floor(0.01 * (n - 1)) + 1) / (n + 1), abs=1e-4)
    # the part is about exponential for the smallest of n; 20 trials, four deviations
    assert np.mean(parts) == pytest.approx(expected, abs=4 * expected / np.sqrt(20))
