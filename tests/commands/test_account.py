"""``dpswd account``, ``calibrate``, ``audit``, ``ledger`` and ``report``."""

import json
import warnings

import pytest
from factories import account, answer, ledger_of, make_run, refused, untouched

import dpswd.loss
from dpswd import GaussianMechanism
from dpswd.accounting.ledger import HANDED_OVER
from dpswd.accounting.rounding import round_up
from dpswd.commands.account import show
from dpswd.commands.main import main
from dpswd.errors import PrivacyWarning

MNIST = (
    "--dim 784 --n-projections 1000 --sample-size 60000 --batch-size 100 --n-releases 60100 "
    "--sigma 0.72"
).split()
OFFICE = "--dim 50 --n-projections 100 --sample-size 497 --batch-size 32 --n-releases 800".split()


def printed(capsys, *words, status=0):
    capsys.readouterr()
    assert main([str(word) for word in words]) == status
    return capsys.readouterr().out


def test_account(capsys):
    result = answer(capsys, "account", *MNIST, "--delta", "1e-5")
    assert set(result) >= {
        "epsilon",
        "delta",
        "mu",
        "regret",
        "accountant",
        "bound",
        "sound",
        "assumptions",
    }
    assert result["epsilon"] == pytest.approx(8.917, rel=5e-3)
    assert result["mu"] == pytest.approx(1.834, rel=5e-3)
    assert (result["sound"], result["accountant"], result["bound"]) == (True, "pld", "exact")
    by_rdp = answer(
        capsys,
        "account",
        *OFFICE,
        *"--sigma 8 --delta 1e-3 --accountant rdp --bound bernstein".split(),
    )
    assert (by_rdp["sound"], by_rdp["accountant"]) == (True, "rdp")
    assert 5 < by_rdp["epsilon"] < 10
    by_accountant = result["epsilon_by_accountant"]
    assert by_accountant["pld"] == result["epsilon"] < by_accountant["rdp"]
    assert by_rdp["epsilon_by_accountant"]["rdp"] == by_rdp["epsilon"]
    text = printed(capsys, "account", *MNIST, "--delta", "1e-5")
    assert f"{round_up(by_accountant['rdp'], 6):.6g} by rdp" in text
    clt = answer(
        capsys,
        "account",
        *OFFICE,
        *"--sigma 8 --delta 1e-3 --bound clt --failure-prob 1e-8".split(),
    )
    assert clt["sound"] is False


FULL_BATCH = "--dim 784 --n-projections 1000 --sample-size 60000 --batch-size 60000".split()


def test_account_without_a_trade_off_curve(capsys):
    """With little noise no test has both error rates above 1e-10:
    epsilon is printed all the same.
    """
    options = (*FULL_BATCH, "--sigma", "0.05", "--delta", "1e-5")
    result = answer(capsys, "account", *options)
    assert 300 < result["epsilon"] < 400
    assert (result["mu"], result["regret"]) == (None, None)
    (caveat,) = result["caveats"]
    assert "trade-off curve is empty" in caveat
    text = printed(capsys, "account", *options)
    assert "epsilon  36" in text
    assert "mu       none" in text
    assert f"warning  {caveat}" in text


def test_account_by_rdp_without_a_privacy_loss_distribution(capsys):
    options = (*OFFICE, "--sigma", "1e-4", "--delta", "1e-3", "--accountant", "rdp")
    result = answer(capsys, "account", *options)
    assert result["epsilon"] > 1e6
    assert result["mu"] is None
    assert "mu is not stated" in result["caveats"][0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--sigma 1e-4 --delta 1e-3", "use a larger sigma."),
        ("--sigma 1e-4 --delta 1e-3 --n-releases 1", "use a larger sigma or a larger delta."),
        ("--sigma 2 --delta 1e-17", "use a larger delta."),
    ],
)
def test_account_refuses_too_little_noise(capsys, options, words):
    assert refused(capsys, "account", *OFFICE, *options.split()).endswith(words)


def test_epochs_are_counted_as_in_the_code_of_the_paper(capsys):
    words = ["--dim", "784", "--n-projections", "1000", "--sample-size", "60000"]
    words += ["--batch-size", "100", "--sigma", "2.94", "--delta", "1e-5", "--accountant", "rdp"]
    by_epochs = answer(capsys, "account", *words, "--epochs", "100")
    by_releases = answer(capsys, "account", *words, "--n-releases", "60100")
    assert by_epochs["n_releases"] == 60_100
    assert by_epochs == by_releases


@pytest.mark.parametrize("epochs", [["0"], ["2", "--n-releases", "5"]])
def test_epochs_refused(capsys, epochs):
    words = ["--dim", "4", "--n-projections", "2", "--sample-size", "100", "--batch-size", "10"]
    words += ["--sigma", "1", "--delta", "1e-3"]
    assert main(["account", *words, "--epochs", *epochs]) == 2
    assert "epochs" in capsys.readouterr().err


def test_calibrate_to_a_budget_that_every_sigma_keeps(capsys, recwarn):
    options = "--n-releases 1 --epsilon 1 --delta 0.1".split()
    warnings.simplefilter("default", PrivacyWarning)  # which the command prints
    assert main(["calibrate", *OFFICE, *options]) == 0
    out, err = capsys.readouterr()
    assert "epsilon  0   at delta 0.1" in out
    assert err.startswith("Warning: Every sigma keeps --epsilon=1 at --delta=0.1,")


def test_calibrate_to_every_budget(capsys):
    by_epsilon = answer(capsys, "calibrate", *OFFICE, "--epsilon", "10", "--delta", "1e-3")
    assert by_epsilon["sigma"] == pytest.approx(1.567, rel=0.01)
    by_mu = answer(capsys, "calibrate", *OFFICE, "--mu", "1", "--delta", "1e-3")
    assert 0.995 <= by_mu["mu"] <= 1
    assert by_mu["epsilon"] > 0
    text = printed(capsys, "calibrate", *OFFICE, "--mu", "1")  # without delta
    assert "sigma" in text
    assert "replace-one" in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--epsilon 1", "(--epsilon, --delta) or --mu, got --epsilon."),
        ("--epsilon -1 --delta 1e-5", "got --epsilon=-1.0"),
        ("--mu 1 --batch-size 500", "--batch-size <= --sample-size, got --batch-size=500"),
        ("--mu 1 --n-projections 0", "--n-projections"),
    ],
)
def test_errors_speak_of_options(capsys, options, words):
    said = refused(capsys, "calibrate", *OFFICE, *options.split())
    assert words in said
    assert "_" not in said


def test_large_delta_is_warned_of(capsys):
    weak = ("account", *OFFICE, "--sigma", "2", "--delta", "0.1")
    assert "1 / N" in answer(capsys, *weak)["caveats"][0]
    assert "warning  delta = 0.1 is not below 1 / N" in printed(capsys, *weak)
    assert (
        answer(capsys, "account", *OFFICE, "--sigma", "2", "--delta", "1e-3")["caveats"] == []
    )  # control


SMALL = (
    "audit --dim 4 --n-projections 8 --kind orthogonal --sample-size 12 --batch-size 12 "
    "--delta 1e-5"
).split()
BLOCKS = [*SMALL, *"--statistic quantiles --n-quantiles 3 --sigma 0.15 --trials 300".split()]


def test_audit(capsys, monkeypatch):
    result = answer(capsys, *BLOCKS)
    assert (result["passed"], result["trials"], result["confidence"]) == (True, 300, 0.99)
    assert 0 < result["mu_lower"] <= result["mu_claimed"]
    assert result["epsilon_lower"] <= result["epsilon_claimed"]
    assert result["assumptions"]
    text = printed(capsys, *BLOCKS)
    assert "passed" in text
    assert "300 runs" in text
    assert "can prove no mu above" in printed(capsys, *SMALL, "--sigma", "0.1", "--trials", "60")
    monkeypatch.setattr(dpswd.loss, "clip_rows", lambda rows, bound: rows.detach().double())
    assert "REFUTED" in printed(capsys, *BLOCKS, status=1)


MECHANISM = GaussianMechanism(sensitivity=1.0, sigma=4.0, name="counts")


def epsilon(count):
    return pytest.approx(account([(MECHANISM, 100, count)]).get_epsilon(1e-5), rel=1e-12)


def test_ledger_show(tmp_path, capsys):
    run_dir = make_run(
        tmp_path / "run",
        (MECHANISM, 100, 1),
        planned=2,
        header={"run": "r1", "target_epsilon": 3.0},
    )
    path = run_dir / "ledger.jsonl"
    result = answer(capsys, "ledger", "show", path)
    assert (result["head"], result["torn"]) == (ledger_of(run_dir).head, False)
    assert result["runs"] == [{"run": "r1", "releases_made": 1, "releases_planned": 2}]
    assert (result["epsilon"], result["made"]["epsilon"]) == (epsilon(2), epsilon(1))
    assert result["mu"] == pytest.approx(2**0.5 / 4, rel=1e-4)
    assert result["sound"] is result["private"] is True
    assert result["header"]["target_epsilon"] == 3
    assert answer(capsys, "ledger", "show", run_dir) == result
    text = printed(capsys, "ledger", "show", path)
    for word in (
        "unchanged. Hash",
        "1 of 2 planned releases made",
        "made      epsilon",
        "planned   epsilon",
    ):
        assert word in text


def test_ledger_show_of_an_incomplete_line_and_a_fixed_seed(tmp_path, capsys):
    seeded = GaussianMechanism(sensitivity=1.0, sigma=4.0, noise_seed=1)
    path = make_run(tmp_path / "run", (seeded, 100, 2)) / "ledger.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    with untouched(tmp_path):
        found = answer(capsys, "ledger", "show", path)
        assert (found["torn"], found["private"]) == (True, False)
        text = printed(capsys, "ledger", "show", path)
    assert "incomplete" in text
    assert "NOT PRIVATE" in text


def test_ledger_create(tmp_path, capsys):
    path, create = tmp_path / "all", ("ledger", "create", "--delta", "1e-5")
    result = answer(capsys, *create, path, "--epsilon", "9")
    assert (result["header"]["scope"], result["runs"], result["epsilon"]) == ("shared", [], 0)
    assert answer(capsys, "ledger", "show", path) == result
    refused(capsys, *create, path, "--epsilon", "9")  # exists


REFUSED = ["", "show", "create x", "forget x", "show missing", "show ."]
REFUSED += ["create . --epsilon 1 --delta 1e-5", "create x --epsilon -1 --delta 1e-5"]


@pytest.mark.parametrize("words", REFUSED)
def test_ledger_refuses(capsys, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    with untouched(tmp_path):
        refused(capsys, "ledger", *words.split())


def test_report(tmp_path, capsys):
    run_dir = make_run(tmp_path / "run")
    result = answer(capsys, "report", run_dir)
    assert (
        result["epsilon"]
        == json.loads((run_dir / "report.json").read_text())["guarantee"]["epsilon"]
    )
    assert result["files"] == [
        str(run_dir / name) for name in ("report.html", "report.md", "report.json")
    ]
    assert result["conditions"] == []
    shown = printed(capsys, "report", run_dir, "--title", "Scans")
    assert "μ = 0.809" in shown
    assert "1 in 1,000" in shown
    assert "NOT" not in shown
    assert (run_dir / "report.md").read_text().startswith("## Scans")
    handed = make_run(tmp_path / "handed", header={"records": HANDED_OVER}, sound=False)
    assert printed(capsys, "report", handed).startswith(
        "CONDITIONAL: The records were handed over by the caller"
    )


def test_numbers_on_the_screen_are_rounded_up(capsys):
    result = {
        "sigma": 1.2345611,
        "epsilon": 0.98765411,
        "delta": 1e-5,
        "epsilon_by_accountant": {"pld": 0.98765411, "rdp": None},
        "mu": 2.00000001,
        "regret": 0.0,
        "sound": True,
        "accountant": "pld",
        "bound": "exact",
        "caveats": [],
        "assumptions": [],
    }
    show(result)
    out = capsys.readouterr().out
    assert "sigma    1.23457\n" in out
    assert "epsilon  0.987655   at delta 1e-05\n" in out
    assert "epsilon  0.987655 by pld\n" in out
    assert "mu       2.00001  " in out
