import argparse
import json

import pytest

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.ledger import Ledger
from dpswd.commands.report import COMMANDS
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism


@pytest.fixture
def run_dir(tmp_path):
    mechanism = GaussianMechanism(sensitivity=1.0, sigma=4.0)
    path = tmp_path / "run"
    Ledger.create(path / "ledger.jsonl", {"target_delta": 1e-5}).record(mechanism, 1000)
    account = PrivacyAccountant().step(mechanism, sample_size=1000)
    facts = {
        "sound": True,
        "private": True,
        "epsilon": account.get_epsilon(1e-5),
        "delta": 1e-5,
        "sample_size": 1000,
    }
    facts |= {"planned_releases": 1, "releases_made": 1, "assumptions": [], "not_covered": []}
    (path / "privacy.json").write_text(json.dumps(facts))
    return path


def call(*argv):
    parser = argparse.ArgumentParser()
    COMMANDS["report"].add_arguments(parser)
    return COMMANDS["report"].run(parser.parse_args([str(part) for part in argv]))


def test_report_writes_three_files_and_says_so(run_dir, capsys):
    result = call(run_dir)
    json.dumps(result, allow_nan=False)
    assert result["mu"] == pytest.approx(0.25)
    assert result["epsilon"] == json.loads((run_dir / "report.json").read_text())["guarantee"]["epsilon"]
    for name in ("report.html", "report.md", "report.json"):
        assert (run_dir / name).is_file()
        assert str(run_dir / name) in result["files"]
    assert capsys.readouterr().out == ""
    COMMANDS["report"].show(result)
    shown = capsys.readouterr().out
    assert "μ = 0.25" in shown
    assert "1 in 1,000" in shown
    assert "NOT" not in shown


def test_banner_comes_first(run_dir, capsys):
    facts = json.loads((run_dir / "privacy.json").read_text()) | {"private": False, "sound": False}
    (run_dir / "privacy.json").write_text(json.dumps(facts))
    COMMANDS["report"].show(call(run_dir))
    assert capsys.readouterr().out.startswith("NOT PRIVATE: ")


def test_missing_directory_and_missing_ledger(tmp_path):
    with pytest.raises(InputError, match="run directory"):
        call(tmp_path / "nowhere")
    with pytest.raises(InputError, match="Expected a ledger"):
        call(tmp_path)
    assert not list(tmp_path.iterdir())
