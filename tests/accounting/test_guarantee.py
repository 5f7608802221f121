"""Guarantee: one line, reading as a dictionary, round trip through a file."""

import dataclasses
import json

import pytest

from dpswd import PrivacyAccountant
from dpswd.accounting.guarantee import Guarantee
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism

SOUND = Guarantee(private=True, sound=True, epsilon=0.98765, delta=1e-5, mu=0.26456, run="a")


def test_line_is_rounded_up_and_names_conditions():
    numbers = "mu = 0.265, (epsilon, delta) = (0.988, 1e-05), replace-one"
    assert SOUND.line() == f"Guarantee: {numbers}."
    conditional = dataclasses.replace(SOUND, sound=False)
    assert conditional.line() == f"Guarantee: {numbers}, ON CONDITIONS (see privacy.json)."
    clt = ProjectionMechanism(dim=9, n_projections=40, sigma=1.0, batch_size=5, bound="clt")
    unproven = PrivacyAccountant().step(clt, sample_size=50).guarantee(1e-5, with_mu=False)
    assert not unproven.conditions
    assert unproven.line().endswith("replace-one, NOT PROVEN (see privacy.json).")
    without_curve = dataclasses.replace(SOUND, mu=None)
    assert without_curve.line() == "Guarantee: (epsilon, delta) = (0.988, 1e-05), replace-one."
    for change in ({"private": False}, {"epsilon": None}, {"delta": None}):
        nothing = dataclasses.replace(SOUND, **change)
        assert nothing.line() == "Guarantee: none. NOT PRIVATE."


def test_fields_are_read_as_in_a_dictionary():
    assert SOUND["epsilon"] == SOUND.epsilon == 0.98765
    assert SOUND["neighboring_relation"] == SOUND["relation"] == "replace-one"
    assert "epsilon {epsilon:.2f}, mu {mu:.4f}".format(**SOUND) == "epsilon 0.99, mu 0.2646"
    for name in ("epsilons", "line", "to_dict"):
        with pytest.raises(KeyError):
            SOUND[name]


def test_round_trip_through_json():
    guarantee = dataclasses.replace(
        SOUND, conditions=("fresh subsets",), assumptions=("a", "b"), weights_from_runs=("a", "c")
    )
    text = json.dumps(guarantee.to_dict())
    assert Guarantee.from_dict(json.loads(text)) == guarantee
    assert "neighboring_relation" in text
    assert Guarantee.from_dict({"sound": True, "more": 1}) == Guarantee(sound=True)


@pytest.mark.parametrize(
    "values",
    [
        {"epsilon": "1"},
        {"epsilon": True},
        {"sound": 1},
        {"run": 1},
        {"conditions": "fresh subsets"},
        {"assumptions": [1]},
    ],
    ids=str,
)
def test_values_of_another_type_are_refused(values):
    with pytest.raises(ValueError, match=next(iter(values))):
        Guarantee.from_dict(values)


def test_a_file_with_something_else_in_place_of_a_guarantee():
    for content in (None, [], "epsilon", 1.0):
        with pytest.raises(ValueError, match="guarantee"):
            Guarantee.from_dict(content)


@pytest.mark.parametrize("seed", [None, 7])
def test_guarantee_of_an_account(seed):
    mechanism = GaussianMechanism(sensitivity=1.0, sigma=4.0, noise_seed=seed)
    account = PrivacyAccountant().step(mechanism, sample_size=100)
    guarantee = account.guarantee(1e-5)
    assert guarantee.epsilon == account.get_epsilon(1e-5)
    assert (guarantee.mu, guarantee.regret) == account.get_mu_and_regret()
    assert guarantee.private == guarantee.sound == (seed is None)
    assert account.guarantee(None).epsilon is None
    assert PrivacyAccountant().guarantee(1e-5).epsilon == 0


@pytest.mark.parametrize(("mu", "warns"), [(2.0, False), (5.0, False), (5.6, True), (15.0, True)])
def test_a_budget_that_protects_hardly_anybody_is_named(mu, warns):
    text = dataclasses.replace(SOUND, mu=mu).in_words()
    assert ("Warning: this budget hardly protects anybody" in text) == warns
