"""The accountant: tails, assumptions, mu, and every sentence about bad input."""

import math

import pytest

from dpswd.accounting import PrivacyAccountant, pld
from dpswd.accounting.rdp import RenyiAccount
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, ProjectionMechanism

ROWS = ProjectionMechanism(dim=50, n_projections=100, sigma=2.0, batch_size=32)
N, T, DELTA = 497, 800, 1e-3


def account(mechanism, kind="pld", releases=T, size=N):
    return PrivacyAccountant(kind).step(mechanism, sample_size=size, n_releases=releases)


def test_equal_neighbours_are_merged():
    accountant = account(ROWS).step(ROWS, sample_size=N).step(ROWS, sample_size=N + 1)
    assert accountant.history == [(ROWS, N, T + 1), (ROWS, N + 1, 1)]


def test_copy_is_independent():
    accountant = account(ROWS)
    accountant.copy().step(ROWS, sample_size=N)
    assert accountant.history == [(ROWS, N, T)]


@pytest.mark.parametrize("kind", ["pld", "rdp"])
def test_epsilon_and_delta_are_inverse(kind):
    accountant = account(ROWS, kind)
    for delta in (1e-3, 1e-6):
        epsilon = accountant.get_epsilon(delta)
        assert accountant.get_delta(epsilon) == pytest.approx(delta, rel=2e-3)
        assert accountant.profile([epsilon])[0] == pytest.approx(delta, rel=2e-3)
    assert accountant.get_epsilon(1e-3) < accountant.get_epsilon(1e-6)


def test_tail_is_charged_at_every_release():
    failure_prob = 1e-7
    fixed = ROWS.replace(bound="bernstein", failure_prob=failure_prob)
    bounded = account(fixed)
    assert bounded.tail == pytest.approx(T * failure_prob)
    expected = float(pld.compose(bounded._parts()).get_epsilon_for_delta(DELTA - T * failure_prob))
    assert bounded.get_epsilon(DELTA) == pytest.approx(expected)
    assert bounded.get_delta(expected) == pytest.approx(DELTA, rel=2e-3)
    assert bounded.pld()._pmf_remove._infinity_mass == pytest.approx(T * failure_prob, rel=1e-6)
    assert bounded.get_epsilon(DELTA) > account(ROWS).get_epsilon(DELTA)  # a bound costs more than the law


@pytest.mark.parametrize(("batch", "factor"), [(100, 1.0), (300, 3 * 300 / 497), (497, 1.0)])
def test_renyi_charges_the_tail_three_q_times_in_the_middle(batch, factor):
    mechanism = ROWS.replace(bound="bernstein", failure_prob=1e-8, batch_size=batch, sigma=50.0)
    accountant = account(mechanism, "rdp")
    assert accountant.tail == pytest.approx(T * 1e-8 * factor)
    expected = RenyiAccount(accountant._parts()).get_epsilon(DELTA - accountant.tail)
    assert accountant.get_epsilon(DELTA) == pytest.approx(expected)


def test_an_open_failure_prob_gets_half_of_delta():
    for kind, batch in [("pld", 300), ("rdp", 300), ("rdp", 32)]:
        open_bound = account(ROWS.replace(bound="bernstein", batch_size=batch, sigma=30.0), kind)
        resolved = open_bound.resolve(DELTA)
        assert resolved.tail == pytest.approx(DELTA / 2)
        assert open_bound.history[0][0].failure_prob is None
        assert open_bound.get_epsilon(DELTA) == pytest.approx(resolved.get_epsilon(DELTA))
        found = open_bound.get_delta(open_bound.get_epsilon(DELTA))
        assert found <= DELTA * 1.1  # another split than half and half may be better, and is as valid
        assert open_bound.profile([1.0])[0] == pytest.approx(open_bound.get_delta(1.0))


def test_mu_of_gaussians_is_the_closed_form():
    counts = GaussianMechanism(sensitivity=math.sqrt(2), sigma=2.0)
    accountant = PrivacyAccountant().step(counts, sample_size=10, n_releases=4)
    assert accountant.get_mu_and_regret() == (1.4143, 0.0)  # sqrt(2), rounded up


def test_mu_through_gdpnum():
    mu, regret = account(ROWS).get_mu_and_regret()
    assert account(ROWS, "rdp").get_mu_and_regret() == (mu, regret)
    assert 0 < regret < 0.02
    # mu-GDP at mu must be weaker than what was accounted for, near the deltas that mu covers
    for delta in (1e-3, 1e-6):
        epsilon = account(ROWS).get_epsilon(delta)
        assert float(pld.gaussian_delta(mu, epsilon)) >= delta * (1 - 1e-2)


def test_sound_and_assumptions():
    exact = account(ROWS)
    text = " ".join(exact.assumptions)
    assert exact.sound
    for words in ("replace-one", "without replacement", "afresh", "exact law", "L2 norm of at most 0.5"):
        assert words in text
    clt = account(ROWS.replace(bound="clt"))
    assert not clt.sound
    assert "NOT SOUND" in " ".join(clt.assumptions)
    assert "charged to delta at every release" in " ".join(clt.assumptions)
    seeded = account(ROWS.replace(noise_seed=1))
    assert not seeded.sound
    assert "NOT PRIVATE" in " ".join(seeded.assumptions)
    whole = account(ROWS.replace(kind="orthogonal", n_classes=10, batch_size=N))
    assert whole.sound
    text = " ".join(whole.assumptions)
    assert "whole orthonormal bases" in text
    assert "Labels are private" in text
    assert "without replacement" not in text


def test_classes_cost_nothing_with_whole_bases_and_little_without():
    whole = ROWS.replace(kind="orthogonal")
    assert account(whole).get_epsilon(DELTA) == account(whole.replace(n_classes=10)).get_epsilon(DELTA)
    plain, classes = account(ROWS).get_epsilon(DELTA), account(ROWS.replace(n_classes=10)).get_epsilon(DELTA)
    assert plain <= classes < 1.01 * plain


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: PrivacyAccountant("glw"),
            "Expected accountant to be one of pld, rdp, got accountant='glw'.",
        ),
        (
            lambda: account(ROWS, size=31),
            "Expected batch_size <= sample_size, got batch_size=32 and sample_size=31; use a smaller batch.",
        ),
        (lambda: account(ROWS, releases=0), "Expected n_releases >= 1, got n_releases=0."),
        (
            lambda: account("rows"),
            "Expected a ProjectionMechanism or a GaussianMechanism, got str; no other release can be accounted for.",
        ),
        (lambda: account(ROWS).get_epsilon(1.0), "Expected delta strictly between 0 and 1, got delta=1.0."),
        (lambda: account(ROWS).get_delta(0.0), "Expected epsilon to be finite and above 0, got epsilon=0.0."),
        (
            lambda: account(ROWS).profile([1.0, -1.0]),
            "Expected epsilons[1] to be finite and above 0, got epsilons[1]=-1.0.",
        ),
        (
            lambda: PrivacyAccountant().get_epsilon(1e-5),
            "Expected at least one release to account for, got none; call step() first.",
        ),
        (
            lambda: account(ROWS.replace(bound="bernstein", failure_prob=1e-5)).get_epsilon(1e-3),
            "Expected delta above what the tails of the bound spend, got delta=0.001 and 800 releases "
            "that spend 0.008; "
            "use failure_prob <= 6e-07 or bound='exact'.",
        ),
        (
            lambda: account(ROWS.replace(bound="bernstein")).pld(),
            "Expected failure_prob for a bound that spends a tail probability at every release, got "
            "none; give the "
            "mechanism one, or use resolve(delta).",
        ),
        (
            lambda: account(ROWS.replace(sigma=1e-3)).get_epsilon(1e-5),
            "Expected noise for which the privacy loss can be represented (mean below 250), got a mean "
            "loss of 5.32e+07 "
            "from a sigma of 0.001 times the sensitivity; use a larger sigma.",
        ),
        (
            lambda: account(ROWS.replace(sigma=0.1, batch_size=N), releases=1).get_mu_and_regret(),
            "Expected a trade-off curve with both error rates above 1e-10 somewhere, got none; use a larger sigma.",
        ),
    ],
)
def test_bad_input_is_one_sentence(call, sentence):
    with pytest.raises(InputError) as caught:
        call()
    assert str(caught.value) == sentence


def test_delta_below_the_resolution_is_refused():
    with pytest.raises(InputError, match=r"^Expected a delta for which epsilon is finite, got delta=1e-18"):
        account(ROWS).get_epsilon(1e-18)
