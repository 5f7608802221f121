"""A twin's bound exceeds its claim with probability at most 1e-3 per verdict.

Both error rates must be observed more than 3.3 standard deviations low at once, about 1e-6 for a Gaussian.
"""

import pytest

from experiments.audit.zoo import ZOO, inspect


@pytest.mark.parametrize("specimen", ZOO, ids=lambda specimen: specimen.name)
def test_specimen_is_caught_and_its_twin_passes(specimen):
    row = inspect(specimen, trials=500, seed=1)
    assert row["caught"]
    assert row["mu_lower"] > row["mu_claimed_at_fpr"]
    assert row["twin_passed"]
    assert row["twin_mu_lower"] > 0.1  # control: a blind attack gives 0
