import numpy as np
import pytest
import torch

from dpswd.data.benchmarks import benchmark
from experiments.audit.canaries import Canaries, audit_generator
from experiments.audit.leak import Target


def test_canaries_replace_the_slots_only():
    data, plain = Canaries.of(50, 3), benchmark("digits").train
    assert 10 < int(data.coins.sum()) < 40
    assert torch.equal(data.pairs[:, 0], 1 - data.pairs[:, 1])
    assert torch.equal(data.records.values[:50], data.pairs[torch.arange(50), data.coins])
    assert torch.equal(data.records.labels[:50], data.classes)
    assert torch.equal(data.records.values[50:], plain.floats()[50:])
    assert not torch.equal(Canaries.of(50, 4).coins, data.coins)


def test_audit_of_a_generator():
    row = audit_generator(slots=100, epsilon=1.0)
    assert row["passed"]
    assert 0.3 < row["guessed_right"] < 0.7  # 4 standard deviations around 1/2


@pytest.mark.parametrize("published", [0.25, 1.0])
def test_audit_generator_of_published_records(published):
    row = audit_generator(slots=400, epsilon=1.0, published=published)
    assert not row["passed"]
    assert 1 < row["epsilon_lower"] <= row["best_provable_epsilon"]
    if published == 1:
        assert row["guessed_right"] == 1
        assert row["epsilon_lower"] == row["best_provable_epsilon"]


def test_leak_of_the_synthetic_target_scores_have_the_law_of_the_claim():
    """The ratio is normal with mean -m^2/2 and variance m^2 for the mu of this record, m <= 1."""
    target = Target(1.0)
    scores = np.array([target.run(0) for _ in range(30)])
    assert scores.mean() < 0
    assert 0.3 < scores.std() < 1 + 4 / 58**0.5  # 4 standard deviations above the claim
