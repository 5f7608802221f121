"""Noise and subsets are seeded in these tests."""

import json

import pytest

import dpswd.loss
import dpswd.release
from dpswd._random import SeededRandom
from dpswd.commands.main import main

SMALL = "audit --dim 4 --n-projections 8 --kind orthogonal --sample-size 12 --batch-size 12 --delta 1e-5".split()
BLOCKS = [*SMALL, "--statistic", "quantiles", "--n-quantiles", "3", "--sigma", "0.15"]


@pytest.fixture(autouse=True)
def seeded(monkeypatch):
    source = SeededRandom(5)
    monkeypatch.setattr(dpswd.release, "random_source", lambda _seed=None: source)


def printed(capsys, arguments, status=0):
    assert main(arguments) == status
    return capsys.readouterr().out


def test_audit_json(capsys):
    result = json.loads(printed(capsys, [*BLOCKS, "--trials", "400", "--json"]))
    assert result["passed"] is True
    assert 0 < result["mu_lower"] <= result["mu_claimed"]
    assert result["epsilon_lower"] <= result["epsilon_claimed"]
    assert result["trials"] == 400
    assert result["confidence"] == 0.99
    assert result["assumptions"]


def test_audit_text(capsys):
    text = printed(capsys, [*BLOCKS, "--trials", "300"])
    assert "passed" in text
    assert "300 runs" in text
    text = printed(capsys, [*SMALL, "--sigma", "0.1", "--trials", "60"])
    assert "can prove no mu above" in text


def test_audit_refuted_claim_is_exit_status_1(capsys, monkeypatch):
    monkeypatch.setattr(dpswd.loss, "clip_rows", lambda rows, bound: rows.detach().double())
    assert "REFUTED" in printed(capsys, [*BLOCKS, "--trials", "300"], status=1)
