"""What scikit-learn does around a fit of an estimator."""

import math

import numpy as np
import pytest
import sklearn
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, StandardScaler

from dpswd import InputError, PrivateAdapter, PrivateGenerator

X = np.random.default_rng(0).normal(size=(40, 3))
Y = np.arange(40) % 2
DOMAIN = np.where(np.arange(40) < 20, 1, -1)
# A fit that passes the check is refused by this sentence, before records are read.
NEXT_CHECK = "Expected run_dir"


@pytest.fixture(autouse=True)
def without_metadata_routing():
    """Packages of other tests turn the routing on, which asks for requests of every argument."""
    with sklearn.config_context(enable_metadata_routing=False):
        yield


def estimator(kind, epsilon=10.0):
    """An estimator whose fit ends at the check after that of its callers."""
    return kind(epsilon=epsilon, delta=1e-5, resume=True, verbose=False)


def fit_after(step, kind, epsilon=10.0):
    """Fits an estimator as the last step of a pipeline."""
    pipeline = make_pipeline(step, estimator(kind, epsilon))
    options = {}
    if kind is PrivateAdapter:
        options["privateadapter__sample_domain"] = DOMAIN
    pipeline.fit(X, Y, **options)


@pytest.mark.parametrize("kind", [PrivateGenerator, PrivateAdapter])
@pytest.mark.parametrize("step", [StandardScaler(), PCA(2), make_pipeline(PCA(2))])
def test_a_step_that_learns_from_private_records_is_refused(kind, step):
    name = type(step).__name__
    with pytest.raises(InputError, match=rf"learns nothing before {kind.__name__}.*{name}"):
        fit_after(step, kind)


@pytest.mark.parametrize("kind", [PrivateGenerator, PrivateAdapter])
@pytest.mark.parametrize("step", ["passthrough", Normalizer(), FunctionTransformer()])
def test_a_step_that_learns_nothing_is_allowed(kind, step):
    with pytest.raises(InputError, match=NEXT_CHECK):
        fit_after(step, kind)


def test_a_step_that_has_learned_from_public_records_is_allowed():
    frozen = FrozenEstimator(StandardScaler().fit(X[:20]))
    with pytest.raises(InputError, match=NEXT_CHECK):
        fit_after(frozen, PrivateAdapter)


def test_without_noise_every_step_is_allowed():
    with pytest.raises(InputError, match=NEXT_CHECK):
        fit_after(StandardScaler(), PrivateGenerator, math.inf)


def test_searches_and_cross_validations_are_refused():
    adapter = estimator(PrivateAdapter)
    sentence = "one fit of PrivateAdapter of its own"
    with pytest.raises(InputError, match=sentence):
        cross_val_score(adapter, X, Y, params={"sample_domain": DOMAIN}, cv=2, error_score="raise")
    grid = {"min_shift": [0.0, 0.7]}
    with pytest.raises(InputError, match=sentence):
        GridSearchCV(adapter, grid, cv=2, error_score="raise").fit(X, Y, sample_domain=DOMAIN)
