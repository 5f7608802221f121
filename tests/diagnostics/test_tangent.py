import numpy as np
import pytest
import torch

from dpswd.diagnostics.gibbs import (
    LOSS_BOUNDS,
    estimate_sobolev_bound,
    estimate_tv_bound,
    exponential_mechanism_epsilon,
    langevin,
    linear_margins,
    margin_loss,
    network_risk,
    sample_hypotheses,
)
from dpswd.diagnostics.tangent import (
    gibbs_distribution,
    graph_stiffness,
    h1_norm,
    h_minus1_norm,
    removal_changes,
    tangent_norms,
    tangent_operator,
    total_variation,
)
from dpswd.errors import InputError


def instance(seed: int) -> tuple[np.ndarray, float, np.ndarray, np.ndarray]:
    """A random risk (m, n), beta, data weights and stiffness of a path with chords."""
    rng = np.random.default_rng(seed)
    m, n = int(rng.integers(2, 8)), int(rng.integers(2, 11))
    risk = rng.random((m, n)) ** rng.uniform(0.2, 5)
    data = rng.dirichlet(np.ones(n))
    edges = [(i, i + 1) for i in range(n - 1)] + [(0, n - 1)] * (n > 2)
    stiffness = graph_stiffness(data, edges, rng.uniform(0.2, 2, len(edges)))
    return risk, float(rng.uniform(0.1, 20)), data, stiffness


def root(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return vectors * np.sqrt(np.maximum(values, 0.0))


@pytest.mark.parametrize("seed", range(20))
def test_operators_equal_finite_differences(seed: int) -> None:
    risk, beta, data, _ = instance(seed)
    rng = np.random.default_rng(seed + 1000)
    direction = rng.normal(size=len(data)) * data  # stays inside the simplex, however small a weight is
    direction -= data * direction.sum()
    h = 1e-5
    q = gibbs_distribution(risk, beta, data=data)
    up, down = (gibbs_distribution(risk, beta, data=data + s * h * direction) for s in (1, -1))
    np.testing.assert_allclose(tangent_operator(risk, beta, q) @ direction, (up - down) / (2 * h), atol=1e-6)
    slope = (np.log(up) - np.log(down)) / (2 * h)
    np.testing.assert_allclose(tangent_operator(risk, beta, q, log=True) @ direction, slope, atol=1e-6)


def test_operators_are_the_published_matrices() -> None:
    risk, beta, data, _ = instance(3)
    q = gibbs_distribution(risk, beta, data=data)
    np.testing.assert_allclose(
        tangent_operator(risk, beta, q), -beta * (np.diag(q) - np.outer(q, q)) @ risk, atol=1e-12
    )
    projection = np.eye(len(q)) - np.outer(np.ones(len(q)), q)
    np.testing.assert_allclose(tangent_operator(risk, beta, q, log=True), -beta * projection @ risk, atol=1e-12)


def test_every_bound_holds_on_1000_instances_and_no_direction_beats_the_exact_norm() -> None:
    tightness: dict[int, list[float]] = {3: [], 4: [], 5: [], 6: []}
    for seed in range(1000):
        risk, beta, data, stiffness = instance(seed)
        q = gibbs_distribution(risk, beta, data=data)
        norms = tangent_norms(risk, beta, q=q, stiffness=stiffness)
        direction = np.random.default_rng(seed).normal(size=len(data))
        direction -= direction.mean()
        move = tangent_operator(risk, beta, q) @ direction
        log_move = tangent_operator(risk, beta, q, log=True) @ direction
        sizes = {3: np.abs(direction).sum() / 2, 5: h_minus1_norm(direction, stiffness)}
        seen = {3: np.abs(move).sum() / 2 / sizes[3], 4: np.abs(log_move).max() / sizes[3]}
        seen |= {5: np.abs(move).sum() / 2 / sizes[5], 6: np.abs(log_move).max() / sizes[5]}
        for theorem, (tight, simple) in norms.bounds.items():
            exact = norms.exact[theorem]
            slack = 1 + 1e-7  # the pseudo-inverse of a badly scaled path
            assert seen[theorem] <= exact * slack
            assert exact <= tight * slack <= simple * slack**2
            tightness[theorem].append(exact / tight)
    worst = {theorem: (min(values), float(np.median(values)), max(values)) for theorem, values in tightness.items()}
    # the typical instance loses less than a factor of 2, and every bound comes within 1% somewhere
    assert all(median > 0.5 for _, median, _ in worst.values()), worst
    assert all(best > 0.99 for _, _, best in worst.values()), worst


def test_exact_norms_are_attained() -> None:
    risk, beta, data, stiffness = instance(17)
    q = gibbs_distribution(risk, beta, data=data)
    norms = tangent_norms(risk, beta, q=q, stiffness=stiffness)
    n = len(data)
    pairs = [np.eye(n)[i] - np.eye(n)[j] for i in range(n) for j in range(n) if i != j]
    operator, log_operator = tangent_operator(risk, beta, q), tangent_operator(risk, beta, q, log=True)
    assert norms.exact[3] == pytest.approx(max(np.abs(operator @ v).sum() / 2 for v in pairs), rel=1e-12)
    assert norms.exact[4] == pytest.approx(max(np.abs(log_operator @ v).max() for v in pairs), rel=1e-12)
    best = stiffness @ log_operator.T  # the maximising perturbation of row w is K c_w
    assert norms.exact[6] == pytest.approx(
        max(np.abs(log_operator @ v).max() / h_minus1_norm(v, stiffness) for v in best.T), rel=1e-7
    )
    assert norms.to_dict()["is_guarantee"] is False


def test_sobolev_norms_are_dual() -> None:
    _, _, data, stiffness = instance(5)
    rng = np.random.default_rng(0)
    v = rng.normal(size=len(data))
    v -= v.mean()
    functions = rng.normal(size=(500, len(data)))
    ratios = np.abs(functions @ v) / h1_norm(functions, stiffness)
    dual = h_minus1_norm(v, stiffness)
    assert ratios.max() <= dual * (1 + 1e-9)
    best = np.linalg.pinv(stiffness) @ v
    assert abs(best @ v) / h1_norm(best, stiffness) == pytest.approx(dual, rel=1e-8)
    # the line: moving weight 1/2 by 3 costs 3 / sqrt(2 * ...) with one edge of length 3 and weight 1/2
    two = graph_stiffness([0.5, 0.5], [(0, 1)], [3.0])
    assert h_minus1_norm([0.1, -0.1], two) == pytest.approx(0.1 * 3 / np.sqrt(0.5), rel=1e-12)
    apart = graph_stiffness([0.25] * 4, [(0, 1), (2, 3)], [1.0, 1.0])
    assert h_minus1_norm([1, 0, -1, 0], apart) == np.inf


def test_removal_is_a_finite_step_that_the_uniform_bound_covers() -> None:
    rng = np.random.default_rng(4)
    risk = rng.random((30, 40))
    for beta in (0.5, 5.0, 50.0):
        change = removal_changes(risk, beta)
        q = gibbs_distribution(risk, beta)
        left = gibbs_distribution(np.delete(risk, 7, axis=1), beta)
        assert change.total_variation[7] == pytest.approx(total_variation(q, left), rel=1e-9)
        assert change.log_ratio[7] == pytest.approx(np.abs(np.log(q / left)).max(), rel=1e-9)
        # beta osc / 2 bounds the slope everywhere along the way; the local norm does so to first order only
        assert change.total_variation.max() <= tangent_norms(risk, beta).bounds[3][1] * change.step
        assert change.log_ratio.max() <= tangent_norms(risk, beta).bounds[4][1] * change.step
    small = removal_changes(risk, 1e-3)
    assert small.total_variation.max() <= tangent_norms(risk, 1e-3).exact[3] * small.step * 1.001


@pytest.mark.parametrize("samples", [200, 2000])
def test_estimators_cover_the_exact_value_95_times_of_100(samples: int) -> None:
    inside = {"tv": 0, "sobolev": 0, "narrow": 0}
    for seed in range(100):
        risk, beta, data, stiffness = instance(seed)
        q = gibbs_distribution(risk, beta, data=data)
        exact = tangent_norms(risk, beta, q=q, stiffness=stiffness).bounds
        drawn = sample_hypotheses(q, samples, rng=np.random.default_rng(seed))
        tv = estimate_tv_bound(risk[drawn], beta)
        sobolev = estimate_sobolev_bound(risk[drawn] @ root(stiffness), beta)
        inside["tv"] += tv.lower <= exact[3][0] <= tv.upper
        inside["sobolev"] += sobolev.lower <= exact[5][0] <= sobolev.upper
        half = (tv.upper - tv.value) / 20  # control: bars of a twentieth of the width must fail
        inside["narrow"] += abs(tv.value - exact[3][0]) <= half
    assert inside["tv"] >= 95, inside
    assert inside["sobolev"] >= 95, inside
    assert inside["narrow"] < 95, inside


def test_exact_sampler_draws_from_q_and_the_test_has_power() -> None:
    from scipy import stats

    q = gibbs_distribution(np.random.default_rng(0).random((5, 4)), 6.0)
    counts = np.bincount(sample_hypotheses(q, 20_000, rng=np.random.default_rng(1)), minlength=5)
    assert stats.chisquare(counts, 20_000 * q).pvalue > 1e-6
    assert stats.chisquare(counts, 20_000 * np.roll(q, 1)).pvalue < 1e-6
    assert set(sample_hypotheses(q, 10)) <= set(range(5))


def test_losses_are_bounded_and_by_hand() -> None:
    margins = torch.linspace(-1e4, 1e4, 20_001, dtype=torch.float64)
    for loss, bound in LOSS_BOUNDS.items():
        values = margin_loss(loss, margins)
        assert 0 <= values.min()
        assert bound * 0.99 < values.max() <= bound
    zero = torch.zeros(1, dtype=torch.float64)
    assert [float(margin_loss(loss, zero)) for loss in ("savage", "tangent", "zero_one")] == [0.25, 1.0, 1.0]


def test_margins_by_hand() -> None:
    weights = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.5]]])  # identity and a bias of 1/2
    margins = linear_margins(weights, torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([0, 2]))
    torch.testing.assert_close(margins, torch.tensor([[1.0, -2.5]]))


def test_exponential_mechanism_epsilon_bounds_every_replacement() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        risk = (rng.random((6, 12)) < 0.5).astype(float)
        other = risk.copy()
        other[:, 0] = rng.random(6) < 0.5
        ratio = np.abs(np.log(gibbs_distribution(risk, 9.0) / gibbs_distribution(other, 9.0))).max()
        assert ratio <= exponential_mechanism_epsilon(9.0, "zero_one", 12) * (1 + 1e-12)


def test_langevin_reaches_a_gaussian_and_a_stuck_chain_is_seen() -> None:
    # risk |w|^2 / 2 at beta 3 and prior precision 1: N(0, 1/4) in every coordinate
    start = torch.randn(8, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)

    def bowl(w: torch.Tensor) -> torch.Tensor:
        return w.square().sum(-1) / 2

    chains = langevin(bowl, start, 3.0, step_size=0.2, n_samples=600, burn_in=50, generator=generator)
    variance = float(chains.samples.var())
    error = 0.25 * (2 / (2 * chains.effective_size)) ** 0.5
    assert abs(variance - 0.25) < 5 * error
    assert chains.r_hat < 1.02
    assert 0.3 < chains.acceptance <= 1

    def two_wells(w: torch.Tensor) -> torch.Tensor:
        return (w[:, 0].square() - 1).square() - 0.2 * w[:, 0]

    start = torch.tensor([[-1.0, 0.0], [1.0, 0.0]] * 4, dtype=torch.float64)
    stuck = langevin(two_wells, start, 50.0, step_size=1e-3, n_samples=200, burn_in=50, generator=generator)
    assert stuck.r_hat > 1.1


def test_langevin_runs_on_a_network_whose_risk_agrees_with_the_network() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 4, generator=generator, dtype=torch.float64)
    y = (x[:, 0] > 0).long()
    network = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()
    risk, start = network_risk(network, x, y, "savage")
    scores = network(x)
    others = scores.masked_fill(torch.nn.functional.one_hot(y, 3).bool(), -torch.inf).amax(1)
    expected = margin_loss("savage", scores[torch.arange(30), y] - others).mean()
    torch.testing.assert_close(risk(start[None])[0], expected)
    scattered = start + 0.5 * torch.randn(4, len(start), generator=generator, dtype=torch.float64)
    chains = langevin(risk, scattered, 300.0, step_size=3e-3, n_samples=100, burn_in=200, generator=generator)
    assert chains.samples.shape == (4, 100, len(start))
    assert risk(chains.samples[:, -1]).mean() < risk(scattered).mean()
    with pytest.raises(InputError, match="savage, tangent"):
        network_risk(network, x, y, "zero_one")


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: gibbs_distribution([[0.0, np.inf]], 1.0), "bounded risk"),
        (lambda: tangent_norms([[0.0, np.nan]], 1.0), "bounded risk"),
        (lambda: gibbs_distribution([[0.0, 1.0]], 0.0), "beta"),
        (lambda: tangent_operator([[0.0], [1.0]], -1.0, [0.5, 0.5]), "beta"),
        (lambda: tangent_operator([[0.0], [1.0]], 1.0, [1.5, -0.5]), r"q to be 2 weights in \[0, 1\]"),
        (lambda: tangent_norms([[0.0], [1.0]], 1.0, q=[0.2, 0.2]), "sum to 1"),
        (lambda: gibbs_distribution([], 1.0), "risk matrix"),
        (lambda: graph_stiffness([0.5, 0.5], [(0, 1)], [0.0]), "lengths above 0"),
        (lambda: margin_loss("logistic", torch.zeros(1)), "unbounded risk"),
        (lambda: estimate_tv_bound(np.zeros((99, 2)), 1.0), "at least 100 samples"),
        (lambda: estimate_tv_bound(np.full((200, 2), np.inf), 1.0), "bounded risks"),
        (lambda: estimate_sobolev_bound(np.zeros((200, 2)), 1.0, confidence=1.0), "confidence"),
        (lambda: removal_changes([[1.0], [2.0]], 1.0), "at least 2 records"),
        (
            lambda: langevin(torch.sum, torch.zeros(1, 2), 1.0, step_size=0.1, n_samples=5, burn_in=0),
            "chains >= 2",
        ),
    ],
)
def test_bad_input_is_one_sentence(call, match: str) -> None:
    with pytest.raises(InputError, match=match) as caught:
        call()
    assert "\n" not in str(caught.value)
