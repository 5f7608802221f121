import json

import factories

from dpswd.accounting.ledger import HANDED_OVER
from dpswd.commands.main import main


def test_report_writes_three_files(tmp_path, capsys):
    run_dir = factories.make_run(tmp_path / "run")
    assert main(["report", str(run_dir), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["epsilon"] == json.loads((run_dir / "report.json").read_text())["guarantee"]["epsilon"]
    assert result["files"] == [str(run_dir / name) for name in ("report.html", "report.md", "report.json")]
    assert result["conditions"] == []
    assert main(["report", str(run_dir), "--title", "Scans"]) == 0
    shown = capsys.readouterr().out
    assert "μ = 0.809" in shown
    assert "1 in 1,000" in shown
    assert "NOT" not in shown
    assert (run_dir / "report.md").read_text().startswith("## Scans")


def test_report_of_a_conditional_run(tmp_path, capsys):
    run_dir = factories.make_run(tmp_path / "run", header={"records": HANDED_OVER}, sound=False)
    assert main(["report", str(run_dir)]) == 0
    assert capsys.readouterr().out.startswith("CONDITIONAL: The records were handed over by the caller")
