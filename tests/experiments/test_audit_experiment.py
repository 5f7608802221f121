import pytest
import torch

import dpswd.queries
from dpswd.data.benchmarks import Digits
from dpswd.mechanism import ProjectionMechanism
from dpswd.queries import GaussianQuery
from experiments.audit.audit import QUERIES, SETTINGS
from experiments.audit.canaries import CanaryDigits, audit_generator


def test_canary_digits_replaces_the_slots_only():
    data, plain = CanaryDigits(50, 3), Digits()
    pairs, classes, coins = data.canaries()
    assert 10 < int(coins.sum()) < 40
    assert torch.equal(pairs[:, 0], 1 - pairs[:, 1])
    for i in range(50):
        assert torch.equal(data.private.values[i], pairs[i, coins[i]])
    assert torch.equal(data.private.labels[:50], classes)
    assert torch.equal(data.private.values[50:], plain.private.values[50:])
    assert torch.equal(data.test.values, plain.test.values)
    assert not torch.equal(CanaryDigits(50, 4).canaries()[2], coins)


@pytest.mark.parametrize("published", [0.25, 1.0])
def test_audit_generator_of_published_records(published):
    row = audit_generator(slots=400, epsilon=1.0, published=published)
    assert not row["passed"]
    assert 1 < row["epsilon_lower"] <= row["best_provable_epsilon"]
    if published == 1:
        assert row["guessed_right"] == 1
        assert row["epsilon_lower"] == row["best_provable_epsilon"]


def test_settings_cover_every_mechanism_and_query():
    made = [ProjectionMechanism(**fields) for _, fields, _ in SETTINGS]
    assert {m.statistic for m in made} == {"rows", "quantiles"}
    assert {m.kind for m in made} == {"iid", "orthogonal"}
    assert {m.bound for m in made} == {"exact", "bernstein", "clt"}
    assert {options.get("n_releases", 1) for *_, options in SETTINGS} == {1, 4}
    public = {value for name, value in vars(dpswd.queries).items() if not name.startswith("_")}
    queries = {value for value in public if isinstance(value, type) and issubclass(value, GaussianQuery)}
    assert {type(query) for query in QUERIES} == queries - {GaussianQuery}
