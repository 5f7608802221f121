"""The canary audit end to end, with controls that give records away; and the experiment's settings."""

import pytest
import torch

from dpswd import InputError, ProjectionMechanism
from dpswd.data import Digits
from dpswd.queries import GaussianQuery
from experiments.audit.audit import QUERIES, SETTINGS
from experiments.audit.canaries import CanaryDigits, audit_generator, scores_of


def test_slots_hold_what_the_coins_say_and_the_rest_is_untouched():
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


def test_scores():
    pairs = torch.tensor([[[0.0, 0.0], [1.0, 1.0]]]).expand(2, 2, 2)
    records, labels = torch.tensor([[0.9, 1.0], [0.0, 0.2]]), torch.tensor([0, 1])
    scores = scores_of(pairs, torch.tensor([0, 1]), records, labels)
    assert scores[0] > 1
    assert scores[1] < -1


def test_a_private_generator_is_not_accused():
    row = audit_generator(slots=60, steps=25, epsilon=1.0, confidence=0.999)
    assert row["passed"]
    assert 0.2 < row["guessed_right"] < 0.8


@pytest.mark.parametrize("published", [0.25, 1.0])
def test_records_that_are_published_are_noticed(published):
    row = audit_generator(slots=400, epsilon=1.0, published=published)
    assert not row["passed"]
    assert 1 < row["epsilon_lower"] <= row["best_provable_epsilon"]
    if published == 1:
        assert row["guessed_right"] == 1
        assert row["epsilon_lower"] == row["best_provable_epsilon"]


def test_bad_input():
    with pytest.raises(InputError, match="Expected slots <= 1438"):
        CanaryDigits(2000).load()
    with pytest.raises(InputError, match=r"Expected slots >= 0, got slots=-1\."):
        CanaryDigits(-1)


def test_settings_cover_what_the_page_promises():
    made = [ProjectionMechanism(**fields) for _, fields, _, _, _ in SETTINGS]
    assert {m.statistic for m in made} == {"rows", "quantiles"}
    assert {m.kind for m in made} == {"iid", "orthogonal"}
    assert {m.bound for m in made} == {"exact", "bernstein", "clt"}
    assert {releases for _, _, _, releases, _ in SETTINGS} == {1, 4}
    import dpswd.generation.mixture_module  # noqa: F401  (with its queries)

    assert {type(query) for query in QUERIES} == set(GaussianQuery.__subclasses__())  # every kind that is shipped
