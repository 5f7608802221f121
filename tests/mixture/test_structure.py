"""Text of a structure: the table, results on public data sets, the verdict, the rarest class."""

import dataclasses
import math
import re

import pytest

from dpswd import InputError
from dpswd.mixture.forecast import forecast
from dpswd.mixture.structure import PublicResult, nearest_results

SHAPES = [(1, 28, 28), (3, 32, 32), (1, 8, 8), (64,)]
IMAGE = (1, 28, 28)
MU = 0.5


def result(dataset, signal, channels=1):
    return PublicResult(
        dataset, channels, n_records=1100, epsilon=1.0, signal=signal, accuracy=50.4
    )


@pytest.mark.parametrize("shape", SHAPES)
def test_str_has_a_line_with_an_explanation_for_each_release(shape):
    structure = forecast(60_000, shape, 10, 2.0)
    lines = str(structure).splitlines()[1 : 1 + len(structure.shares)]
    names = [line.split()[0] for line in lines]
    assert names == list(structure.shares)
    assert min(len(line.split()) for line in lines) > 5


def test_str_names_results_for_images_with_classes_only():
    assert "is right for 86 % of MNIST" in str(forecast(3000, IMAGE, 10, 2.0))
    assert "is right for" not in str(forecast(3000, IMAGE, 0, 2.0))
    assert "is right for" not in str(forecast(3000, (64,), 10, 2.0))


def test_nearest_results_has_the_closest_of_each_data_set_within_a_factor_of_two():
    closest = result("A", 1.1)
    only = result("B", 1.8)
    results = [
        result("A", 0.6),
        closest,
        only,
        result("B", 2.1),
        result("C", 2.1),
        result("D", 1.0, channels=3),
    ]
    assert nearest_results(results, channels=1, signal=1.0) == [closest, only]
    assert str(closest) == "50 % of A (1,100 records, epsilon 1)"


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("n_classes", [0, 2, 10])
def test_verdict_is_monotone_in_the_number_of_records(shape, n_classes):
    """More records never promise less."""
    levels = []
    for tenth in range(10, 61):
        n = round(10 ** (tenth / 10))
        structure = forecast(n, shape, n_classes, MU)
        if structure.is_noise:
            levels.append(0)
        elif "varied" in structure.verdict:
            levels.append(2)
        else:
            levels.append(1)
    assert levels == sorted(levels)
    assert (levels[0], levels[-1]) == (0, 2)


@pytest.mark.parametrize("shape", SHAPES)
def test_verdict_asks_for_as_many_records_as_are_needed(shape):
    few = forecast(7, shape, 10, MU)
    times = int(re.search(r"need ([\d,]+) times", few.verdict)[1].replace(",", ""))
    assert not forecast(7 * times, shape, 10, MU).is_noise
    assert forecast(7 * (times - 1), shape, 10, MU).is_noise


def test_rarest_promises_what_balanced_classes_of_its_size_are_promised():
    """Chest X-rays, 388 and 3,494 records, at epsilon 10."""
    structure = forecast(3882, IMAGE, 2, 2.0)
    line = "Rarest class (388 records, 10 %): expect its mean with little variety of its own."
    assert structure.rarest([388, 3494]) == line
    assert structure.rarest([1941, 1941]).endswith("expect its mean and variety.")
    assert "noise" in structure.rarest([3877, 5])


def test_rarest_says_that_counts_are_noisy_and_what_it_limits_in_a_table():
    line = forecast(3882, IMAGE, 2, 2.0).rarest([776, 3106], released=True)
    assert "(about 776 records by the noisy counts, 20 %)" in line
    columns = forecast(560, (6,), 2, 2.0, bounded=True)
    assert columns.columns_in_words.endswith("right distribution in every class.")
    assert columns.rarest([220, 340]).endswith("of its own in combinations of columns.")


def test_releases_of_records_without_classes_do_not_speak_of_classes():
    for shape in (IMAGE, (6,), (3, 16, 16)):
        for n in (200, 60_000):
            assert "class" not in forecast(n, shape, 0, 2.0).releases_in_words
    assert "mean of every class" in forecast(200, IMAGE, 2, 2.0).releases_in_words  # the control


def test_rarest_is_monotone_in_the_size_of_the_class():
    structure = forecast(3882, IMAGE, 2, 2.0)
    words = ["noise", "little", "mean and"]
    levels = []
    for size in range(1, 1942, 20):
        line = structure.rarest([3882 - size, size])
        levels.append([word in line for word in words].index(True))
    assert levels == sorted(levels)


def test_rarest_says_that_a_released_count_may_have_been_raised():
    structure = forecast(3630, IMAGE, 2, 2.0)
    raised = structure.rarest([3300, 330], released=True)
    assert "at most 330 records" in raised
    assert raised.endswith("or less.")
    assert "at most" not in structure.rarest([3300, 330])
    assert "330 entries" in structure.rarest([3300, 330], counted="entries")
    counted = structure.rarest([3200, 430], released=True)
    assert "at most" not in counted
    assert "(about 430 records by the noisy counts, 12 %)" in counted
    assert "about" not in structure.rarest([3200, 430])


def test_structure_is_frozen_and_counts_its_releases():
    structure = forecast(5000, (10,), 2, 2.0)
    assert structure.n_releases == 7  # five kinds, and two further rounds
    assert math.isclose(sum(structure.shares.values()), 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        structure.n_cells = 1


def test_structure_refuses_shares_of_other_releases_than_its_sizes_ask_for():
    structure = forecast(5000, (10,), 2, 2.0)
    with pytest.raises(InputError, match="cell_moments"):
        dataclasses.replace(structure, n_cells=1)


def test_few_photographs_are_said_to_become_clouds_and_enough_are_not():
    photograph = (3, 64, 64)
    few = forecast(1000, photograph, 2, MU)

    def number(line):
        return int(re.search(r"About ([\d,]+) would", line)[1].replace(",", ""))

    enough = number(few.clouds(1000))
    assert forecast(enough, photograph, 2, MU).clouds(enough) is None
    assert forecast(enough * 8 // 10, photograph, 2, MU).clouds(enough * 8 // 10) is not None
    # half of the budget needs twice as many
    more = number(forecast(1000, photograph, 2, MU / 2).clouds(1000))
    assert more == pytest.approx(2 * enough, rel=0.1)
    for shape in (IMAGE, (64,)):
        assert forecast(1000, shape, 2, MU).clouds(1000) is None


@pytest.mark.parametrize(
    ("n", "mu", "words"),
    [
        (500, 0.27, "Expect noise"),
        (2500, 0.27, "look much alike"),
        (60_000, 2.0, "Within each class, expect varied"),
    ],
)
def test_expectation_of_images_in_words(n, mu, words):
    text = forecast(n, IMAGE, 10, mu).expectation
    assert words in text
    assert ("as sharp as images of" in text) == (words != "Expect noise")
    assert "signal / noise" not in text


def test_noisy_photographs_are_not_promised_to_look_alike_or_smooth():
    photographs = forecast(1185, (3, 32, 32), 3, 2.0)
    assert "differ mostly by noise" in photographs.verdict
    assert "look much alike" not in photographs.expectation
    assert "the finer grain is random" in photographs.expectation
    grey = forecast(1185, (1, 32, 32), 3, 2.0)
    assert "look much alike" in grey.expectation
    assert "grain" not in grey.expectation


@pytest.mark.parametrize(("n", "words"), [(100, "mean and spread"), (5000, "in every class")])
def test_expectation_of_columns_in_words(n, words):
    assert words in forecast(n, (6,), 2, 2.0, bounded=True).expectation


@pytest.mark.parametrize(
    ("channels", "n_classes", "sentence"),
    [
        (3, 3, "Guessing is right for 10 %, and with 3 classes for 33 %."),
        (3, 10, "Guessing is right for 10 %."),
        (1, 10, "All of these have a plain ground: of photographs expect less."),
    ],
)
def test_the_forecast_compares_with_the_own_number_of_classes(channels, n_classes, sentence):
    structure = forecast(3000, (channels, 32, 32), n_classes, 2.0)
    (line,) = [line for line in structure.expectation.splitlines() if "Guessing" in line]
    assert line.endswith(sentence)
