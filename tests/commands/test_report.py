import json

import factories
import pytest

from dpswd.commands.main import main
from dpswd.diagnostics.appendix import NOTE, write_diagnostics


@pytest.fixture
def run_dir(tmp_path):
    return factories.make_run(tmp_path / "run")


def test_report_writes_three_files(run_dir, capsys):
    assert main(["report", str(run_dir), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["epsilon"] == json.loads((run_dir / "report.json").read_text())["guarantee"]["epsilon"]
    assert result["files"] == [str(run_dir / name) for name in ("report.html", "report.md", "report.json")]
    assert result["outside_guarantee"] == []
    assert main(["report", str(run_dir)]) == 0
    shown = capsys.readouterr().out
    assert "μ = 0.809" in shown
    assert "1 in 1,000" in shown
    assert "NOT" not in shown


def test_report_options_add_what_the_guarantee_does_not_cover(run_dir, capsys):
    write_diagnostics(run_dir, "wdp", {"n_steps": 50})
    row = {"dataset": "own", "classifier": "mlp", "train": "synthetic", "accuracy": 74.0}
    (run_dir / "private_evaluation.json").write_text(json.dumps({"rows": [row]}))
    options = ["report", str(run_dir), "--diagnostics", "--include-private-evaluation"]
    assert main([*options, "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["outside_guarantee"] == ["private_evaluation", "diagnostics"]
    assert "private records" in result["caveats"][0]
    assert main(options) == 0
    assert NOTE in capsys.readouterr().out
