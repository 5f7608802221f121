"""The README and the pages are run: code blocks, commands, tables, links."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

import dpswd
from dpswd.commands.main import main
from experiments import tables

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
COMMANDS = [line for language, block in BLOCKS if not language for line in block.splitlines()]
ACCOUNTING = [line for line in COMMANDS if re.match(r"dpswd (account|calibrate|plan) ", line)]


def test_drop_in_example_prints_what_is_promised(capsys):
    (code,) = [block for language, block in BLOCKS if language == "python"]
    exec(compile(code, "README.md", "exec"), {})
    loss, epsilon = map(
        float, re.fullmatch(r"loss (\S+), epsilon (\S+) at delta 1e-5\n", capsys.readouterr().out).groups()
    )
    assert epsilon == pytest.approx(4.0, rel=0.005)
    assert epsilon <= 4.0
    # 50 x 32 squared noises of variance sigma^2 = 0.00468: standard error 0.00468 sqrt(2 / 1600), 8 of them allowed
    assert 0.00468 * 0.72 < loss < 0.00468 * 1.28


@pytest.mark.parametrize("line", ACCOUNTING)
def test_accounting_commands(line, capsys):
    assert main([*shlex.split(line, comments=True)[1:], "--json"]) == 0
    json.loads(capsys.readouterr().out)


def test_all_three_accounting_commands_are_shown():
    assert [line.split()[1] for line in ACCOUNTING] == ["account", "calibrate", "plan"]


def test_configs_that_the_readme_names_are_there_and_say_their_own_command():
    assert set(re.findall(r"configs/\w+\.yaml", README)) <= {f"configs/{p.name}" for p in (ROOT / "configs").glob("*")}
    for path in (ROOT / "configs").glob("*.yaml"):
        assert f"dpswd fit --config configs/{path.name}" in path.read_text().splitlines()[0]
        yaml.safe_load(path.read_text())


@pytest.mark.parametrize("page", tables.pages(), ids=lambda page: page.name)
def test_links_and_pictures_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_one_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == dpswd.__version__
    results = [json.loads(path.read_text()) for path in (ROOT / "docs" / "results").glob("*.json")]
    assert all({"command", "version", "machine", "rows"} <= set(result) for result in results)
