"""The forecast against the exact statistics of public benchmarks."""

import os
from pathlib import Path

import pytest
import torch

from dpswd.data import benchmark
from dpswd.mixture.structure import forecast
from dpswd.records import Records
from experiments.generation.forecast import Cell, measure, realised

FOLDERS = {"MNIST": "MNIST", "FashionMNIST": "FashionMNIST", "USPS": "USPS", "CIFAR10": "cifar10_images"}


SLOW = [pytest.param(name, 10.0, marks=pytest.mark.slow) for name in FOLDERS]


@pytest.mark.parametrize(("dataset", "epsilon"), [("digits", 10.0), ("digits", 1.0), *SLOW])
def test_forecast_is_within_a_factor_of_two(dataset, epsilon):
    root = Path(os.environ.get("DPSWD_DATA") or "data")
    if dataset != "digits" and not (root / FOLDERS[dataset]).is_dir():
        pytest.skip(f"no {dataset} below {root}")
    for row in measure(Cell(dataset, epsilon), root)["rows"]:
        assert 0.5 <= row["realised"] / row["forecast"] <= 2, row


def test_records_without_classes_are_not_as_forecast():
    records = benchmark("digits").train
    made = forecast(len(records), (1, 8, 8), 10, 2.0)
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(0))
    shuffled = Records(records.values, records.labels[order])
    assert realised(shuffled, made, 2.0)["means"] < 0.5 * made.signal_to_noise["means"]
