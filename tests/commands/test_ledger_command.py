"""``dpswd ledger``: what it shows, what it joins, one sentence where it refuses."""

import json

import pytest

from dpswd import GaussianMechanism, PrivacyAccountant
from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main

MECHANISM = GaussianMechanism(sensitivity=1.0, sigma=4.0, name="counts")


def of_run(path, run, made=1, planned=2, size=100, mechanism=MECHANISM):
    plan = [{"mechanism": mechanism.to_dict(), "n_releases": planned}]
    header = {"run": run, "version": "1", "config_sha256": "ab" * 32, "sample_size": size, "plan": plan}
    ledger = Ledger.create(
        path, header | {"target_epsilon": 3.0, "target_delta": 1e-5, "private": mechanism.is_private}
    )
    for _ in range(made):
        ledger.record(mechanism, size)
    return str(path)


def shown(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") == 1
    assert not err
    return json.loads(out)


def epsilon(count):
    return PrivacyAccountant().step(MECHANISM, sample_size=100, n_releases=count).get_epsilon(1e-5)


def test_show(tmp_path, capsys):
    path = of_run(tmp_path / "ledger.jsonl", "r1")
    result = shown(capsys, "ledger", "show", path)
    assert result["chain"] == "ok"
    assert result["torn"] is False
    assert result["head"] == Ledger.open_existing(path).head
    assert result["header"]["config_sha256"] == "ab" * 32
    assert (result["releases_made"], result["releases_planned"]) == (1, 2)
    assert result["epsilon"] == pytest.approx(epsilon(2), rel=1e-12)
    assert result["made"]["epsilon"] == pytest.approx(epsilon(1), rel=1e-12)
    assert result["mu"] == pytest.approx(2**0.5 / 4, rel=1e-4)
    assert result["sound"] is result["private"] is True
    assert result["budget"] == {"epsilon": 3.0, "delta": 1e-5}
    assert shown(capsys, "ledger", "show", path, "--delta", "1e-3")["epsilon"] < result["epsilon"]
    assert main(["ledger", "show", path]) == 0
    text = capsys.readouterr().out
    for word in ("chain ok", "1 of 2 planned releases made", "2 x counts", "this is what counts", "replace-one"):
        assert word in text


def test_a_torn_line_is_named(tmp_path, capsys):
    path = of_run(tmp_path / "ledger.jsonl", "r1", made=2)
    content = (tmp_path / "ledger.jsonl").read_bytes()
    (tmp_path / "ledger.jsonl").write_bytes(content[:-5])
    assert shown(capsys, "ledger", "show", path)["torn"] is True
    assert main(["ledger", "show", path]) == 0
    assert "The last line is torn" in capsys.readouterr().out
    assert (tmp_path / "ledger.jsonl").read_bytes() == content[:-5]  # looking changes nothing


def test_a_fixed_seed_is_named(tmp_path, capsys):
    path = of_run(tmp_path / "l", "r1", mechanism=GaussianMechanism(sensitivity=1.0, sigma=4.0, noise_seed=1))
    assert shown(capsys, "ledger", "show", path)["private"] is False
    assert main(["ledger", "show", path]) == 0
    assert "NOT PRIVATE" in capsys.readouterr().out


def test_merge(tmp_path, capsys):
    paths = [of_run(tmp_path / name, name) for name in ("a", "b")]
    result = shown(capsys, "ledger", "merge", *paths, "--out", str(tmp_path / "all"), "--epsilon", "9")
    assert result["scope"] == "shared"
    assert [run["run"] for run in result["runs"]] == ["a", "b"]
    assert result["epsilon"] == pytest.approx(epsilon(4), rel=1e-12)
    again = shown(capsys, "ledger", "show", str(tmp_path / "all"))
    assert again == result


def edited(path):
    path.write_bytes(path.read_bytes().replace(b'"target_epsilon": 3.0', b'"target_epsilon": 4.0'))


def cut(path):
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (edited, "the ledger was edited or a line is missing"),
        (cut, "the ledger was edited or a line is missing"),
        (lambda path: path.write_bytes(b"\x00\x01\n"), "corrupt"),
        (lambda path: path.unlink(), "got none"),
    ],
)
@pytest.mark.parametrize("action", [["show"], ["merge", "--out", "OUT"]])
def test_damaged(tmp_path, capsys, damage, word, action):
    path = of_run(tmp_path / "ledger.jsonl", "r1")
    damage(tmp_path / "ledger.jsonl")
    out = str(tmp_path / "all")
    assert main(["ledger", *[out if part == "OUT" else part for part in action], path]) == 2
    stdout, stderr = capsys.readouterr()
    assert not stdout
    assert stderr.count("\n") == 1
    assert stderr.startswith("dpswd: Expected")
    assert word in stderr
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize(
    "arguments", [["ledger"], ["ledger", "show"], ["ledger", "merge", "x"], ["ledger", "forget", "x"]]
)
def test_unfinished_commands(capsys, arguments):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("dpswd: Expected valid options")


def test_a_device_is_no_ledger(capsys):
    assert main(["ledger", "show", "/dev/zero"]) == 2
    assert "Expected a plain file" in capsys.readouterr().err
