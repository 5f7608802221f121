"""The README and the documentation pages: links lead somewhere, snippets and commands run."""

import importlib
import json
import re
import shlex
import sys
from pathlib import Path

import lightning.pytorch.cli  # noqa: F401  (at collection: its loggers keep the stderr that they find)
import numpy as np
import pytest
import yaml
from factories import write_images
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import dpswd
from dpswd._public_facts import DO_NOT_REMOVE
from dpswd.commands.main import main
from dpswd.data import read
from experiments.__main__ import available

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(DOCS.rglob("*.md")),
]
PAGES = [page for page in PAGES if not {"_build", "generated"} & set(page.parts)]
EXPERIMENTS = available()
PYTHON = [ROOT / "README.md", DOCS / "howto" / "own-loss.md", DOCS / "glossary.md"]


def blocks(page, language=""):
    found = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    return [code for name, code in found if name == language]


def commands(page):
    """Words of the commands in blocks that start with one; other blocks are screens."""
    listings = [block for block in blocks(page) if block.startswith("dpswd ")]
    lines = "".join(listings).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("dpswd ")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_cited_works_are_in_the_bibliography(page):
    listed = set(re.findall(r"^\| (\w+) \|", (DOCS / "references.md").read_text(), re.MULTILINE))
    cited = re.findall(r"\[((?:[A-Z][A-Za-z]+\d{4}(?:, [^\];]*)?(?:; )?)+)\]", page.read_text())
    keys = {re.match(r"\w+", part)[0] for group in cited for part in group.split("; ")}
    assert keys <= listed


@pytest.mark.parametrize("path", sorted((ROOT / "dpswd").rglob("*.py")), ids=lambda path: path.name)
def test_propositions_that_docstrings_cite_exist(path):
    for page, number in re.findall(
        r"docs/(theory/[\w-]+\.md), Proposition (\d+)", path.read_text()
    ):
        assert f"## Proposition {number} " in (DOCS / page).read_text(), (page, number)


@pytest.mark.parametrize("page", PYTHON, ids=lambda page: page.name)
def test_python_blocks_print_what_the_page_says(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pairs = list(zip(blocks(page, "python"), blocks(page, "text"), strict=True))
    for code, printed in pairs:
        exec(compile(code, page.name, "exec"), {})
        assert printed in capsys.readouterr().out


@pytest.mark.parametrize(
    "page",
    [
        DOCS / "tables.md",
        DOCS / "howto" / "own-data.md",
        DOCS / "howto" / "units.md",
        # Opacus warns that its noise is not that of a secure generator.
        pytest.param(
            DOCS / "from-other-tools.md", marks=pytest.mark.filterwarnings("ignore::UserWarning")
        ),
    ],
    ids=lambda page: page.name,
)
def test_python_blocks_with_an_output_can_be_pasted(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for facts in blocks(page, "yaml"):
        (tmp_path / "columns.yaml").write_text(facts)
    pattern = r"^```python\n((?:(?!```)[^\n]*\n)+)```\n\n```text\n(.*?)^```"
    pairs = re.findall(pattern, page.read_text(), re.DOTALL | re.MULTILINE)
    assert len(pairs) == len(blocks(page, "text"))
    for code, printed in pairs:
        exec(compile(code, page.name, "exec"), {})
        assert printed in capsys.readouterr().out


def test_commands_of_the_hospital_table_run(tmp_path, monkeypatch):
    page = DOCS / "howto" / "units.md"
    monkeypatch.chdir(tmp_path)
    (facts,) = blocks(page, "yaml")
    (tmp_path / "columns.yaml").write_text(facts)
    exec(compile(blocks(page, "python")[-1], page.name, "exec"), {})
    screen = "".join(blocks(page, "console"))
    lines = screen.replace("\\\n", " ").splitlines()
    listed = [shlex.split(line)[2:] for line in lines if line.startswith("$ dpswd ")]
    assert [words[0] for words in listed] == [
        "columns",
        "forecast",
        "generate",
        "evaluate",
        "report",
        "publish",
        "verify",
    ]
    for words in listed:
        assert main(words) == 0, words


def test_pictures_of_the_page_on_callbacks_are_in_tensorboard(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for code in blocks(DOCS / "howto" / "callbacks.md", "python"):
        exec(compile(code, "callbacks.md", "exec"), {})
    board = EventAccumulator("runs/pictures/lightning_logs/version_0").Reload()
    assert [picture.step for picture in board.Images("samples")] == [10, 20, 30, 40]
    assert Path("runs/pictures/samples.png").exists()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_experiments_and_tests_that_pages_name_exist(page):
    text = page.read_text()
    for name in re.findall(r"(?:-m experiments |`)run ([a-z]\w+)", text):
        assert name in EXPERIMENTS, name
    defined = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    assert [
        name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in defined
    ] == []
    named = re.findall(r"`test ([a-z][\w/]+(?:\.py)?)(?: -k (\w+|\"[^\"]+\"))?`", text)
    named += re.findall(r"pytest tests/([a-z][\w/]+(?:\.py)?)(?: -k (\w+|\"[^\"]+\"))?", text)
    for path, words in named:
        place = ROOT / "tests" / path
        assert place.exists(), path
        files = [place] if place.is_file() else sorted(place.rglob("test_*.py"))
        tests = [
            name
            for file in files
            for name in re.findall(r"^def (test_\w+)", file.read_text(), re.MULTILINE)
        ]
        for word in words.strip('"').split(" or "):
            assert any(word in name for name in tests), (path, word)


QUICK = [
    "--trainer.max_steps",
    "6",
    "--trainer.log_every_n_steps",
    "1",
    "--trainer.enable_progress_bar",
    "false",
]


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A directory with what the pages assume: photos in three classes, scans, vectors."""
    rng, people = np.random.default_rng(0), ["age,height,smokes,sick"]
    for i in range(120):
        people.append(
            f"{rng.integers(18, 90)},{rng.uniform(150, 200):.1f},{i % 2},{('no', 'yes')[i % 3 > 1]}"
        )
        photo, scan = (rng.integers(0, 256, shape) for shape in ((20 + i % 5, 24, 3), (30, 28)))
        write_images(
            tmp_path,
            {
                f"photos/{('birds', 'cats', 'dogs')[i % 3]}/{i}.png": photo,
                f"held_out/{('birds', 'cats', 'dogs')[i % 3]}/{i}.png": photo,
                f"public/{('left', 'right')[i % 2]}/{i}.png": scan,
                f"scans/{i}.png": scan,
            },
        )
    for name in ("people.csv", "held_out.csv"):
        (tmp_path / name).write_text("\n".join(people) + "\n")
    (tmp_path / "columns.yaml").write_text(
        "age: {kind: integer, low: 0, high: 120}\n"
        "height: {low: 100, high: 230, decimals: 1}\n"
        "smokes: {kind: binary}\n"
    )
    own_data = blocks(DOCS / "howto" / "own-data.md")
    (tmp_path / "bounds.csv").write_text(
        next(block for block in own_data if block.startswith("column,"))
    )
    np.savez(
        tmp_path / "vectors.npz", features=rng.normal(size=(120, 16)) / 4, labels=np.arange(120) % 4
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "page",
    [
        ROOT / "README.md",
        DOCS / "howto/own-data.md",
        DOCS / "howto/publish.md",
        DOCS / "howto/shared-budgets.md",
    ],
)
def test_commands_run(page, desk, capsys):
    lines = commands(page)
    assert lines
    for words in sorted(lines, key=lambda words: "show" in words):  # runs, then their ledgers
        assert main([*words, *(QUICK if words[0] == "fit" else [])]) == 0, words
    if page.name != "shared-budgets.md":
        files = {path.name for path in (desk / "runs" / "photos").iterdir()}
        assert {"generator.pt", "synthetic.npz", "samples.png", "report.html"} <= files


def test_own_classes_are_trained_from_their_files(tmp_path, monkeypatch, capsys):
    page = DOCS / "howto" / "own-class.md"
    generator, encoder, *load = blocks(page, "python")
    (tmp_path / "mynet.py").write_text(generator + encoder)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for config in blocks(page, "yaml"):
        (tmp_path / "my.yaml").write_text(config)
        assert main(["fit", "--config", "my.yaml", *QUICK]) == 0
    assert "Guarantee: mu = " in capsys.readouterr().err
    assert (tmp_path / "runs" / "mine" / "samples.png").exists()
    names = {}
    for block in load:
        exec(compile(block, page.name, "exec"), names)
    assert names["generator"].sample_shape == (1, 8, 8)
    assert read(tmp_path / "drawn.npz").shape == (1, 8, 8)
    assert names["scores"].shape == (5, 10)


def test_a_class_of_the_parent_folder_is_not_used(tmp_path, monkeypatch):
    page = DOCS / "howto" / "own-class.md"
    folder = tmp_path / "inner"
    folder.mkdir()
    (folder / "inner_net.py").write_text(blocks(page, "python")[0])
    (tmp_path / "inner_net.py").write_text("raise AssertionError('imported from the parent')")
    config = blocks(page, "yaml")[0].replace("mynet.Small", "inner_net.Small")
    (folder / "my.yaml").write_text(config)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path, ".."])  # as autodp does
    assert main(["fit", "--config", "my.yaml", *QUICK]) == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_accounting_commands_run(page, capsys):
    for words in commands(page):
        if words[0] in ("account", "calibrate"):
            assert main([*words, "--json"]) == 0, words
            json.loads(capsys.readouterr().out)


LISTED = re.findall(r"^- `dpswd\.([\w.]+)`$", (DOCS / "api" / "index.md").read_text(), re.MULTILINE)


def test_the_reference_lists_the_public_names():
    assert set(dpswd.__all__) - {"__version__"} <= set(LISTED)
    assert len(LISTED) <= 90


@pytest.mark.parametrize("name", LISTED)
def test_a_public_name_has_an_example(name):
    module, _, short = f"dpswd.{name}".rpartition(".")
    found = getattr(importlib.import_module(module), short)
    if not (isinstance(found, type) and issubclass(found, Exception)):
        assert ">>>" in (found.__doc__ or "")


@pytest.mark.parametrize("page", ["own-data.md", "what-is-read.md"])
def test_pages_on_unreadable_records_have_the_reason_of_the_message(page):
    text = " ".join((DOCS / "howto" / page).read_text().split())
    reason = DO_NOT_REMOVE.rstrip(".").partition(": ")[2]
    assert f": {reason}" in text


def test_one_version():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == dpswd.__version__
    assert f"## {dpswd.__version__}" in (ROOT / "CHANGELOG.md").read_text()
