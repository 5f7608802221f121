"""Accuracies of classifiers that are trained on synthetic tables."""

import numpy as np
import pytest
import torch

from dpswd.evaluation.accuracy import scores, scores_of_halves
from dpswd.records import Records


def test_categories_have_no_order():
    random = torch.Generator().manual_seed(0)
    ward = torch.randint(6, (3000, 1), generator=random).float()
    values = torch.cat([ward, torch.randn(3000, 1, generator=random)], dim=1)
    labels = (ward[:, 0] % 2).long()  # wards 1, 3 and 5: no line separates them
    train = Records(values[:2000], labels[:2000], nominal=(0,))
    test = Records(values[2000:], labels[2000:], nominal=(0,))
    assert scores("logreg", train, test)["accuracy"] > 99
    as_numbers = Records(train.values, labels[:2000])
    assert scores("logreg", as_numbers, test)["accuracy"] < 75  # the control


def classes_on_a_line(numbers, n=30, shape=()):
    """Return records of the classes ``numbers``, those of class k near k / 10."""
    labels = torch.tensor(numbers).repeat_interleave(n)
    noise = torch.rand(len(labels), generator=torch.Generator().manual_seed(len(numbers))) / 20
    values = (labels / 10 + noise).reshape(-1, *[1] * max(1, len(shape)))
    return Records(values.expand(-1, *(shape or (2,))).contiguous(), labels)


@pytest.mark.parametrize(("name", "shape"), [("logreg", ()), ("boosting", ()), ("cnn", (1, 8, 8))])
def test_a_class_without_training_records_counts_as_guessing(name, shape):
    test = classes_on_a_line([0, 1, 2], shape=shape)
    areas = []
    for missing in (1, 2):
        train = classes_on_a_line([number for number in range(3) if number != missing], shape=shape)
        figures = scores(name, train, test)
        assert figures["balanced_accuracy"] <= 66.7
        areas.append(figures["auc"])
        assert figures["auc"] <= (1 + 1 + 0.5) / 3 + 1e-4
    assert areas[0] > 0.5  # the other classes count as well
    if name != "cnn":  # which learns nothing from so few images
        assert scores(name, test, test)["auc"] > 0.99  # the control


def test_halves_count_a_class_of_one_half_as_scores_do():
    one, other = classes_on_a_line([0, 1, 2]), classes_on_a_line([0, 1])
    result = scores_of_halves("logreg", one, other)
    assert np.isfinite(result["auc"])
    assert result["accuracy"] <= 100 * (60 + 60) / 150  # the third class is never right
