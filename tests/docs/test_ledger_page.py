"""docs/ledger.md: every command on it is run, in order; the one that needs two processes is run by test_ddp_cli."""

import json
import re
import shlex
from pathlib import Path

import lightning.pytorch.cli  # noqa: F401  (at collection: its loggers keep the stderr that they find)
import pytest

from dpswd.commands.main import main

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ledger.md").read_text()
COMMANDS = [line.split("#")[0] for line in re.findall(r"^dpswd .*", PAGE, re.MULTILINE)]
QUICK = "--trainer.max_steps 4 --trainer.callbacks [] --model.generated 20 --trainer.enable_progress_bar false"


def test_commands_of_the_page(tmp_path, monkeypatch, capfd):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    several = [line for line in COMMANDS if "--trainer.devices" in line]
    assert len(several) == 1
    shows = []
    for line in sorted(set(COMMANDS) - set(several), key=lambda line: ("show runs/a/" in line, COMMANDS.index(line))):
        words = shlex.split(line)[1:]
        quick = f"{QUICK} --trainer.log_every_n_steps 1" if words[0] == "fit" else "--json"
        assert main([*words, *shlex.split(quick)]) == 0, line
        out = capfd.readouterr().out
        shows += [json.loads(out)] if words[0] == "ledger" else []
    together, merged, one = shows
    assert together["epsilon"] <= together["budget"]["epsilon"] == 14
    assert merged["epsilon"] == pytest.approx(together["epsilon"], rel=1e-12)  # the same two runs
    assert one["epsilon"] < together["epsilon"]
    assert [run["releases_made"] for run in together["runs"]] == [1, 1]
