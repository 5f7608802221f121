"""The command audit: what it prints, its exit status, what it refuses. Noise and subsets are seeded here."""

import json

import pytest

import dpswd.loss
import dpswd.sampling
from dpswd._random import SeededRandom
from dpswd.audit import zoo
from dpswd.commands.main import main

SMALL = "audit --dim 4 --n-projections 8 --kind orthogonal --sample-size 12 --batch-size 12 --delta 1e-5".split()
BLOCKS = [*SMALL, "--statistic", "quantiles", "--n-quantiles", "3", "--sigma", "0.15"]
KEYS = {"mu_lower", "mu_claimed", "passed", "confidence", "epsilon_lower", "epsilon_claimed", "trials", "assumptions"}


@pytest.fixture(autouse=True)
def seeded(monkeypatch):
    source = SeededRandom(5)
    for module in (dpswd.loss, dpswd.sampling):
        monkeypatch.setattr(module, "random_source", lambda _seed=None: source)


def printed(capsys, arguments, status=0):
    assert main(arguments) == status
    return capsys.readouterr().out


def test_the_claim_stands_and_the_bound_is_close(capsys):
    result = json.loads(printed(capsys, [*BLOCKS, "--trials", "4000", "--json"]))
    assert set(result) >= KEYS
    assert result["passed"] is True
    assert 0.85 <= result["mu_lower"] / result["mu_claimed"] <= 1
    assert result["trials"] == 4000
    assert result["confidence"] == 0.99


def test_every_flag_of_account_reaches_the_game(capsys):
    flags = "--n-classes 2 --n-releases 2 --accountant rdp --bound clt --failure-prob 1e-8 --row-norm 0.25".split()
    arguments = "audit --dim 4 --n-projections 60 --sample-size 16 --batch-size 8 --sigma 1 --delta 1e-4".split()
    result = json.loads(printed(capsys, [*arguments, *flags, "--trials", "60", "--seed", "3", "--json"]))
    assert result["releases_audited"] == 2
    assert result["attacked"] == "noisy rows before the last sort"
    assert any("Labels are private" in line for line in result["assumptions"])
    assert result["delta"] == 1e-4


def test_what_a_person_reads(capsys):
    text = printed(capsys, [*BLOCKS, "--trials", "300"])
    assert "the claim stands" in text
    assert "never prove it" in text
    assert "300 runs" in text
    loud = [*SMALL, "--sigma", "0.1", "--trials", "60", "--as-released"]
    text = printed(capsys, loud)
    assert "so many runs can prove no mu above" in text
    assert "sorted, as they leave" in text


def test_a_refuted_claim_is_exit_status_1(capsys, monkeypatch):
    monkeypatch.setattr(dpswd.loss, "clip_rows", lambda rows, bound: rows.detach().double())
    assert "REFUTED" in printed(capsys, [*BLOCKS, "--trials", "300"], status=1)


def test_the_zoo(capsys, monkeypatch):
    monkeypatch.setattr(zoo, "ZOO", zoo.ZOO[:2])
    result = json.loads(printed(capsys, ["audit", "--zoo", "--trials", "1000", "--json"]))
    assert result["passed"] is True
    assert result["caught"] == result["twins_passed"] == 2
    text = printed(capsys, ["audit", "--zoo", "--trials", "60"], status=1)  # too few runs to catch everything
    assert "MISSED" in text
    assert "passed" in text


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["audit"], "Expected --dim, --n-projections, --sample-size, --batch-size, --sigma for an audit, got none"),
        (SMALL, "Expected --sigma for an audit, got none"),
        ([*BLOCKS, "--trials", "5"], "Expected trials >= 50, got trials=5"),
        ([*BLOCKS, "--trials", "many"], "Expected valid options"),
        ([*BLOCKS, "--seed", "-1"], "Expected seed >= 0, got seed=-1"),
        ([*BLOCKS, "--preset", "as_published"], "Expected a claim in mu to audit, got --preset as_published"),
        ([*BLOCKS, "--zoo"], "Expected no mechanism beside --zoo, got --dim"),
        (["audit", "--zoo", "--trials", "3"], "Expected trials >= 50, got trials=3"),
        ([*BLOCKS, "--delta", "0"], "Expected delta strictly between 0 and 1"),
        ([*SMALL, "--sigma", "-1"], "Expected sigma to be finite and above 0"),
        ([*SMALL, "--sigma", "1e-6", "--trials", "50"], "Expected"),
    ],
)
def test_bad_input(capsys, arguments, sentence):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert err.startswith(f"dpswd: {sentence}")
