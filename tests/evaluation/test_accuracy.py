"""Accuracies of classifiers that are trained on synthetic tables."""

import torch

from dpswd.evaluation.accuracy import scores
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
