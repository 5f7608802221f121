"""Runs every block of docs/notions.md; then the statements of the page that need more than a block."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from dpswd.diagnostics.tangent import gibbs_distribution, removal_changes, tangent_norms
from dpswd.diagnostics.wasserstein import empirical_distance, group_privacy

PAGE = Path(__file__).parents[2] / "docs" / "notions.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


def test_the_page_has_its_counter_examples() -> None:
    assert len(BLOCKS) >= 10
    assert all("assert" in block for block in BLOCKS)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_block_holds(block: str) -> None:
    exec(compile(block, str(PAGE), "exec"), {})


def test_an_untrue_block_would_fail() -> None:
    block = BLOCKS[0].replace("pytest.approx(1.0)", "pytest.approx(1.0 / noise)")
    assert block != BLOCKS[0]
    with pytest.raises(AssertionError):
        exec(compile(block, str(PAGE), "exec"), {})


def test_wdp_is_a_metric_with_group_privacy() -> None:
    rng = np.random.default_rng(0)
    for order in (1, 2, 7):
        chain = [rng.normal(i, 1 + i, size=20 + i) for i in range(4)]
        steps = [empirical_distance(a, b, order) for a, b in itertools.pairwise(chain)]
        assert empirical_distance(chain[0], chain[3], order) <= group_privacy(max(steps), 3) * (1 + 1e-12)
        assert empirical_distance(chain[0], chain[3], order) <= sum(steps) * (1 + 1e-12)
        assert steps[0] == pytest.approx(empirical_distance(chain[1], chain[0], order), rel=1e-12)
        assert empirical_distance(chain[0], chain[0], order) == 0


def test_the_tangent_is_the_limit_of_small_steps_and_the_uniform_bound_covers_large_ones() -> None:
    rng = np.random.default_rng(1)
    beaten = 0
    for _ in range(200):
        risk = (rng.random((8, 12)) < 0.4).astype(float)
        beta = float(rng.uniform(1, 200))
        change = removal_changes(risk, beta).total_variation.max()
        norms = tangent_norms(risk, beta)
        assert change <= norms.bounds[3][1] / 12 * (1 + 1e-12)
        beaten += change > norms.exact[3] / 12
    assert beaten > 0  # the local norm alone is no bound of a removal


def test_a_gibbs_draw_among_public_candidates_is_differentially_private() -> None:
    from dpswd.diagnostics.gibbs import exponential_mechanism_epsilon

    rng = np.random.default_rng(2)
    worst = 0.0
    for _ in range(300):
        risk = (rng.random((6, 10)) < 0.5).astype(float)
        other = risk.copy()
        other[:, 3] = 1 - other[:, 3]
        gap = np.log(gibbs_distribution(risk, 5.0) / gibbs_distribution(other, 5.0))
        worst = max(worst, float(np.abs(gap).max()))
    bound = exponential_mechanism_epsilon(5.0, "zero_one", 10)
    assert 0.5 * bound < worst <= bound * (1 + 1e-12)
