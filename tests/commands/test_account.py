"""``dpswd account`` and ``calibrate``."""

import argparse
import json

import pytest

from dpswd.commands import account, calibrate
from dpswd.errors import InputError

MNIST = "--dim 784 --n-projections 1000 --sample-size 60000 --batch-size 100 --n-releases 60100".split()
OFFICE = "--dim 50 --n-projections 100 --sample-size 497 --batch-size 32 --n-releases 800".split()
KEYS = {"epsilon", "delta", "mu", "regret", "accountant", "bound", "sound", "assumptions"}


def run(name, *arguments):
    parser = argparse.ArgumentParser()
    command = {"account": account, "calibrate": calibrate}[name]
    command.add_arguments(parser)
    result = command.run(parser.parse_args(list(arguments)))
    return json.loads(json.dumps(result, allow_nan=False))


def test_account():
    result = run("account", *MNIST, "--sigma", "0.72", "--delta", "1e-5")
    assert set(result) >= KEYS
    assert result["epsilon"] == pytest.approx(8.917, rel=5e-3)
    assert result["mu"] == pytest.approx(1.834, rel=5e-3)
    assert result["sound"] is True
    assert result["accountant"] == "pld"
    assert result["bound"] == "exact"


def test_account_by_rdp_and_bernstein():
    result = run("account", *OFFICE, "--sigma", "8", "--delta", "1e-3", "--accountant", "rdp", "--bound", "bernstein")
    assert result["accountant"] == "rdp"
    assert result["sound"] is True
    assert 5 < result["epsilon"] < 10
    clt = run("account", *OFFICE, "--sigma", "8", "--delta", "1e-3", "--bound", "clt", "--failure-prob", "1e-8")
    assert clt["sound"] is False


def test_calibrate_to_every_budget():
    assert run("calibrate", *OFFICE, "--epsilon", "10", "--delta", "1e-3")["sigma"] == pytest.approx(1.567, rel=0.01)
    by_mu = run("calibrate", *OFFICE, "--mu", "1", "--delta", "1e-3")
    assert 0.995 <= by_mu["mu"] <= 1
    assert by_mu["epsilon"] > 0
    by_attack = run("calibrate", *OFFICE, "--tpr", "0.05", "--fpr", "0.001")
    assert by_attack["epsilon"] is None
    assert 1.3 < by_attack["mu"] < 1.6  # a Gaussian's: 3.09 - 1.645 = 1.445


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--epsilon", "1"], "(--epsilon, --delta) or --mu or (--tpr, --fpr), got --epsilon."),
        (["--epsilon", "-1", "--delta", "1e-5"], "got --epsilon=-1.0"),
        (["--mu", "1", "--batch-size", "500"], "--batch-size <= --sample-size, got --batch-size=500"),
        (["--mu", "1", "--n-projections", "0"], "--n-projections"),
    ],
)
def test_errors_speak_of_options(options, words):
    with pytest.raises(InputError) as caught:
        run("calibrate", *OFFICE, *options)
    assert words in str(caught.value)
    assert "_" not in str(caught.value)


def test_large_delta_is_warned_of(capsys):
    weak = run("account", *OFFICE, "--sigma", "2", "--delta", "0.1")
    assert "1 / N" in weak["caveats"][0]
    account.show(weak)
    assert "warning  delta = 0.1 is not below 1 / N" in capsys.readouterr().out
    assert run("account", *OFFICE, "--sigma", "2", "--delta", "1e-3")["caveats"] == []  # control


def test_show_without_delta(capsys):
    calibrate.show(run("calibrate", *OFFICE, "--mu", "1"))
    printed = capsys.readouterr().out
    assert "sigma" in printed
    assert "replace-one" in printed
