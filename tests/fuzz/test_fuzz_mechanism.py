"""Mechanisms, laws and bounds from any arguments: what can be written down and read again, or a sentence."""

import json
import math

import hypothesis.strategies as st
import numpy as np
from factories import REFUSED, fuzz, likely_mechanisms, near, odd, outcome, plain_floats

from dpswd import GaussianMechanism, ProjectionMechanism
from dpswd.mechanism import mechanism_from_dict
from dpswd.sensitivity import ConstantLaw, ProjectionLaw, bernstein_bound, clt_bound

sizes = st.integers(-1, 70)
WORDS = ["rows", "quantiles", "iid", "orthogonal", "exact", "bernstein", "clt", "Rows", ""]
words = st.sampled_from(WORDS)
FIELDS = {
    "dim": near(sizes),
    "n_projections": near(sizes),
    "sigma": near(plain_floats),
    "batch_size": near(sizes),
    "statistic": near(words, odds=0.05),
    "n_quantiles": near(st.one_of(st.none(), sizes), odds=0.1),
    "row_norm": near(plain_floats, odds=0.1),
    "kind": near(words, odds=0.05),
    "bound": near(words, odds=0.05),
    "failure_prob": near(st.one_of(st.none(), st.floats(-1, 2)), odds=0.1),
    "n_classes": near(st.one_of(st.none(), sizes), odds=0.1),
    "noise_seed": near(st.none(), odds=0.2),
}
NEEDED = ("dim", "n_projections", "sigma", "batch_size")
fields = st.fixed_dictionaries(
    {name: FIELDS[name] for name in NEEDED},
    optional={name: strategy for name, strategy in FIELDS.items() if name not in NEEDED},
)


@st.composite
def one_odd(draw):
    """Fields that fit, but for one."""
    values = draw(likely_mechanisms)
    name = draw(st.sampled_from(sorted(FIELDS)))
    return values | {name: draw(FIELDS[name])}


@fuzz(250, values=st.one_of(fields, one_odd()))
def test_projection_mechanism(values):
    made = outcome(ProjectionMechanism, **values)
    if made is REFUSED:
        return
    again = mechanism_from_dict(json.loads(json.dumps(made.to_dict(), allow_nan=False)))
    assert again == made
    assert hash(again) == hash(made)
    assert 0 < made.unit_sensitivity < math.inf
    assert made.n_values * made.block_size == made.batch_size
    law = outcome(lambda: made.law)
    if law is not REFUSED:
        assert 0 < law.mean <= law.maximum <= max(made.n_projections, law.mean)
        assert 0 < made.noise_multiplier < math.inf
    assert isinstance(made.description, str)


@fuzz(80, sensitivity=near(plain_floats), sigma=near(plain_floats), name=near(st.text()), size=near(sizes), seed=odd)
def test_gaussian_mechanism(sensitivity, sigma, name, size, seed):
    made = outcome(GaussianMechanism, sensitivity=sensitivity, sigma=sigma, name=name, batch_size=size, noise_seed=seed)
    if made is not REFUSED:
        assert mechanism_from_dict(json.loads(json.dumps(made.to_dict()))) == made
        assert made.is_private is (seed is None)


junk = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.text(max_size=5)),
    lambda each: st.one_of(
        st.lists(each, max_size=3), st.dictionaries(st.sampled_from([*FIELDS, "mechanism", "x"]), each, max_size=4)
    ),
)


@fuzz(80, values=junk, kind=st.sampled_from(["projections", "gaussian", "x", None]))
def test_mechanism_from_dict(values, kind):
    values = values | {"mechanism": kind} if isinstance(values, dict) else values
    assert outcome(mechanism_from_dict, values) is REFUSED


@fuzz(60, k=near(st.integers(1, 3000), odds=0.4), d=near(st.integers(2, 900), odds=0.4), eta=near(st.floats(1e-300, 1)))
def test_bounds(k, d, eta):
    for bound in (bernstein_bound, clt_bound):
        value = outcome(bound, k, d, eta)
        assert value is REFUSED or 0 <= value <= k


@fuzz(
    60,
    k=near(st.integers(1, 200), odds=0.2),
    d=near(st.integers(2, 900), odds=0.2),
    kind=near(st.sampled_from(["iid", "orthogonal"]), odds=0.1),
    classes=st.booleans(),
)
def test_law(k, d, kind, classes):
    law = outcome(ProjectionLaw, d, k, kind, classes)
    if law is REFUSED:
        return
    made = outcome(law.atoms)
    if made is REFUSED:
        return
    atoms, weights = made
    assert (np.diff(atoms) > 0).all()
    assert (weights > 0).all()
    assert abs(weights.sum() - 1) < 1e-9
    assert float(atoms @ weights) >= law.mean * (1 - 1e-9)  # rounded up
    values = law.log_mgf(np.array([0.0, 1e-12, 1.0, 1e4, 1e20, 1e200]))
    assert np.isfinite(values).all()
    assert (np.diff(values) >= 0).all()


@fuzz(20, value=odd)
def test_constant_law(value):
    law = outcome(ConstantLaw, value)
    assert law is REFUSED or law.mean == law.maximum > 0
