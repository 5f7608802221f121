"""Files at the top of the repository: versions that are stated twice, pages that link."""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]


def hooks():
    """The release of every repository of hooks, by its name."""
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    return {
        entry["repo"].rpartition("/")[2]: entry["rev"]
        for entry in config["repos"]
        if entry["repo"] != "local"
    }


def test_hooks_are_pinned_to_releases():
    for name, release in hooks().items():
        assert re.fullmatch(r"v\d+\.\d+\.\d+", release), name


def test_ruff_of_the_hooks_is_that_of_the_constraints():
    constraints = (ROOT / "constraints.txt").read_text()
    (version,) = re.findall(r"^ruff==(.+)$", constraints, re.MULTILINE)
    assert hooks()["ruff-pre-commit"] == f"v{version}"


def test_authors_of_metadata_and_citation_agree():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    authors = [author["name"] for author in project["authors"]]
    assert authors == [author["name"] for author in citation["authors"]]


def test_metadata_are_complete_and_agree_with_the_citation():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    required = {"cff-version", "message", "title", "abstract", "type", "version", "license"}
    assert required <= citation.keys()
    assert sorted(project["keywords"]) == sorted(citation["keywords"])
    assert project["license"] == citation["license"]
    lowest = project["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {lowest}" in project["classifiers"]


def test_every_workflow_runs_scripts_that_exist():
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        jobs = yaml.safe_load(path.read_text())["jobs"]
        steps = [step for job in jobs.values() for step in job["steps"]]
        for step in steps:
            for script in re.findall(r"scripts/[\w-]+", step.get("run", "")):
                assert (ROOT / script).is_file(), (path.name, script)


def test_changelog_has_an_unreleased_heading_first():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased"
