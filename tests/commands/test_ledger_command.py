"""``dpswd ledger``."""

import json

import pytest
from factories import command, untouched

from dpswd import GaussianMechanism, PrivacyAccountant
from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main

MECHANISM = GaussianMechanism(sensitivity=1.0, sigma=4.0, name="counts")


def of_run(path, run, made=1, planned=2, mechanism=MECHANISM):
    plan = [{"mechanism": mechanism.to_dict(), "n_releases": planned}]
    header = {"run": run, "version": "1", "config_sha256": "ab" * 32, "sample_size": 100, "plan": plan}
    header |= {"target_epsilon": 3.0, "target_delta": 1e-5, "private": mechanism.is_private}
    ledger = Ledger.create(path, header)
    for _ in range(made):
        ledger.record(mechanism, 100)
    return str(path)


def shown(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert not err
    return json.loads(out)


def epsilon(count):
    return PrivacyAccountant.from_groups([(MECHANISM, 100, count)]).get_epsilon(1e-5)


def test_show(tmp_path, capsys):
    path = of_run(tmp_path / "ledger.jsonl", "r1")
    result = shown(capsys, "ledger", "show", path)
    assert result["head"] == Ledger.open_existing(path).head
    assert (result["torn"], result["scope"]) == (False, "run")
    assert (result["releases_made"], result["releases_planned"]) == (1, 2)
    assert result["epsilon"] == pytest.approx(epsilon(2), rel=1e-12)
    assert result["made"]["epsilon"] == pytest.approx(epsilon(1), rel=1e-12)
    assert result["mu"] == pytest.approx(2**0.5 / 4, rel=1e-4)
    assert result["sound"] is result["private"] is True
    assert result["budget"] == {"epsilon": 3.0, "delta": 1e-5}
    assert shown(capsys, "ledger", "show", path, "--delta", "1e-3")["epsilon"] < result["epsilon"]
    assert shown(capsys, "ledger", "show", str(tmp_path)) == result  # the run directory
    assert main(["ledger", "show", path]) == 0
    text = capsys.readouterr().out
    for word in ("chain ok", "1 of 2 planned releases made", "2 x counts", "replace-one"):
        assert word in text


def test_show_incomplete_line_and_fixed_seed(tmp_path, capsys):
    path = of_run(tmp_path / "l", "r1", made=2, mechanism=GaussianMechanism(sensitivity=1.0, sigma=4.0, noise_seed=1))
    content = (tmp_path / "l").read_bytes()[:-5]
    (tmp_path / "l").write_bytes(content)
    found = shown(capsys, "ledger", "show", path)
    assert (found["torn"], found["private"]) == (True, False)
    assert main(["ledger", "show", path]) == 0
    text = capsys.readouterr().out
    assert "incomplete" in text
    assert "NOT PRIVATE" in text
    assert (tmp_path / "l").read_bytes() == content


def test_create_with_earlier_runs(tmp_path, capsys):
    paths = [of_run(tmp_path / name, name) for name in ("a", "b")]
    path, budget = str(tmp_path / "all"), ["--epsilon", "9", "--delta", "1e-5"]
    result = shown(capsys, "ledger", "create", path, *budget, "--include", *paths)
    assert result["scope"] == "shared"
    assert [run["run"] for run in result["runs"]] == ["a", "b"]
    assert result["epsilon"] == pytest.approx(epsilon(4), rel=1e-12)
    assert shown(capsys, "ledger", "show", path) == result
    assert main(["ledger", "create", path, *budget]) == 2  # exists
    assert (
        main(["ledger", "create", str(tmp_path / "new"), "--epsilon", "0.1", "--delta", "1e-5", "--include", path]) == 1
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["ledger"],
        ["ledger", "show"],
        ["ledger", "create", "x"],
        ["ledger", "forget", "x"],
        ["ledger", "show", "missing"],
        ["ledger", "show", "."],
        ["ledger", "create", ".", "--epsilon", "1", "--delta", "1e-5"],
        ["ledger", "create", "x", "--epsilon", "-1", "--delta", "1e-5"],
    ],
)
def test_refusals(capfd, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    with untouched(tmp_path):
        assert command(capfd, arguments) == 2
