"""Mechanisms: sensitivities by random search, calibration, records in JSON, invalid values."""

import json
import math

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from factories import REFUSED, fuzz, likely_mechanisms, outcome

from dpswd import DPSlicedWassersteinLoss, PrivacyAccountant
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism, mechanism_from_dict
from dpswd.sensitivity import ConstantLaw

GOOD = {"dim": 5, "n_projections": 40, "sigma": 1.0, "batch_size": 10}


def quantiles(d, k, m, b, **changes):
    values = {"sigma": 1, "batch_size": m * b, "statistic": "quantiles", "n_quantiles": m} | changes
    return ProjectionMechanism(d, k, **values)


def test_bound_selects_the_law():
    exact = ProjectionMechanism(dim=50, n_projections=100, sigma=1, batch_size=10)
    assert exact.law.mean == 2
    assert not exact.spends_tail
    with pytest.raises(InputError, match="failure_prob"):
        _ = exact.replace(bound="bernstein").law
    bernstein = exact.replace(bound="bernstein", failure_prob=1e-6)
    assert isinstance(bernstein.law, ConstantLaw)
    assert bernstein.law.mean > 2
    assert bernstein.spends_tail
    assert bernstein.replace(n_classes=3).law.mean > bernstein.law.mean  # the union bound over two blocks
    whole = exact.replace(kind="orthogonal", bound="bernstein")
    assert not whole.spends_tail
    assert whole.law.is_constant


@fuzz(60, values=likely_mechanisms, cast=st.sampled_from([int, float, np.int64, np.float32, np.float64]))
def test_mechanism_survives_json(values, cast):
    """NumPy scalars are accepted and stored as Python numbers."""
    values = values | {"sigma": cast(3), "dim": np.int64(values["dim"])}
    if (made := outcome(ProjectionMechanism, **values)) is REFUSED:
        return
    again = mechanism_from_dict(json.loads(json.dumps(made.to_dict(), allow_nan=False)))
    assert again == made
    assert hash(again) == hash(made)
    assert made.n_values * made.block_size == made.batch_size
    query = GaussianMechanism(sensitivity=cast(2), sigma=cast(3), name="x", batch_size=values["batch_size"])
    assert mechanism_from_dict(json.loads(json.dumps(query.to_dict()))) == query


@pytest.mark.parametrize(
    "changes",
    [{"mechanism": "laplace"}, {"mechanism": None}, {"x": 1}, {"dim": None}, {"sigma": math.nan}, {"kind": ["iid"]}],
)
def test_damaged_dict_is_refused(changes):
    values = ProjectionMechanism(**GOOD).to_dict()
    for damaged in (values | changes, {}, [values], None):
        with pytest.raises(InputError):
            mechanism_from_dict(damaged)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"dim": 1}, "dim"),
        ({"sigma": math.nan}, "sigma"),
        ({"sigma": 1e60}, "sigma"),
        ({"batch_size": 0}, "batch_size"),
        ({"row_norm": -1}, "row_norm"),
        ({"statistic": "means"}, "statistic"),
        ({"bound": "markov"}, "bound"),
        ({"noise_seed": True}, "noise_seed"),
        ({"statistic": "quantiles"}, "n_quantiles"),
        ({"statistic": "quantiles", "n_quantiles": 3}, "use batch_size=9"),
        ({"statistic": "quantiles", "n_quantiles": 12}, "use n_quantiles <= 10"),
        ({"kind": "orthogonal", "n_projections": 7, "bound": "bernstein"}, "bound"),
    ],
)
def test_invalid_value_is_named(changes, name):
    with pytest.raises(InputError, match=name):
        ProjectionMechanism(**{**GOOD, **changes})


def test_calibrate_returns_a_copy_that_keeps_the_budget():
    uncalibrated = quantiles(4, 8, 5, 2, sigma=None, kind="orthogonal", noise_seed=1)
    made = uncalibrated.calibrate(sample_size=10, n_releases=4, target_mu=1.0)
    assert uncalibrated.sigma is None
    assert made == uncalibrated.replace(sigma=made.sigma)
    # T Gaussian releases with constant S = k / d: mu = sensitivity sqrt(S T) / sigma
    assert 0.995 <= made.unit_sensitivity * math.sqrt(2 * 4) / made.sigma <= 1 + 1e-15
    plan = {"sample_size": 50, "n_releases": 3}
    spent = PrivacyAccountant().step(uncalibrated.calibrate(**plan, target_epsilon=2.0, target_delta=1e-5), **plan)
    assert 1.99 <= spent.get_epsilon(1e-5) <= 2.0


@pytest.mark.parametrize(
    "use",
    [
        lambda made: PrivacyAccountant().step(made, sample_size=10, n_releases=1),
        lambda made: DPSlicedWassersteinLoss(made).release(torch.zeros(10, 5)),
        lambda made: DPSlicedWassersteinLoss(made)(torch.zeros(10, 5), torch.zeros(3, 5)),
    ],
)
def test_mechanism_without_sigma_is_refused(use):
    with pytest.raises(InputError, match="calibrate"):
        use(ProjectionMechanism(**{**GOOD, "sigma": None}))
