"""Tables of the statements of the four papers: complete, and every row names a test or command."""

import os
import re
from pathlib import Path

import pytest
import yaml

from dpswd.commands.main import COMMANDS
from experiments.__main__ import available

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
STATEMENTS = yaml.safe_load((Path(__file__).parent / "statements.yaml").read_text())
EXPERIMENTS = available()
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE)
}
# Sections of the docs that list every statement of a paper.
LISTS = {
    "Rakotomamonjy2021": ("reproductions.md", "## Rakotomamonjy2021"),
    "Gomez2025": ("reproductions.md", "## Gomez2025"),
    "Yang2024": ("notions.md", "## Wasserstein DP: every statement of Yang2024"),
    "Ying2024": ("notions.md", "## Tangent DP: every statement of Ying2024"),
}
# Sections that quote statements of one paper.
QUOTING = {
    **LISTS,
    "Rakotomamonjy2021, errata": ("errata.md", "## 9. Inconsistencies of the text"),
    "Gomez2025, figures": ("gdp.md", "# Reporting by mu: the figures of Gomez2025"),
    "Yang2024, figures": ("notions.md", "## Tables and figures of Yang2024"),
}
KINDS = {
    "Definition": "Definitions?|Defs?\\.",
    "Remark": "Remarks?",
    "Proposition": "Propositions?|Props?\\.",
    "Equation": "[Ee]quations?|Eqs?\\.|eqs?\\.",
    "Lemma": "Lemmas?",
    "Property": "Property|Properties",
    "Algorithm": "Algorithms?|Alg\\.",
    "Figure": "Figures?",
    "Table": "Tables?",
    "Theorem": "Theorems?|Thms?",
    "Corollary": "Corollary|Cor\\.",
    "Example": "Examples?",
    "Section": "Sections?",
    "Appendix": "[Aa]ppendix",
}
NUMBER = r"\(?(?:[A-D]\.)?\d+(?:\.\d+)*[a-c]?\)?|\(?[A-D]\b\)?"
NUMBERS = rf"(?:{NUMBER})(?:(?:, | to | and )(?:{NUMBER}))*"


def numbers_of(words):
    """Return the set of the numbers in words such as ``1 to 3, A.5``, without their letters."""
    numbers = set()
    for part in re.split(r", | and ", str(words)):
        first, _, last = re.sub(r"[()]|(?<=\d)[a-c]\b", "", part).partition(" to ")
        if not last:
            numbers.add(first)
            continue
        prefix, start = first.rpartition(".")[::2]
        end = last.rpartition(".")[2]
        chapter = prefix + "." if prefix else ""
        numbers |= {f"{chapter}{i}" for i in range(int(start), int(end) + 1)}
    return numbers


def quoted(text):
    """Return the pairs of kind and number that a text quotes;
    remarks in brackets are passed over.
    """
    brackets = r" ?\((?!\d+\))([^()]*)\)"
    parts = [re.sub(brackets, "", text), *re.findall(brackets, text)]
    pairs = set()
    for part in parts:
        for kind, words in KINDS.items():
            for numbers in re.findall(rf"\b(?:{words}) ({NUMBERS})", part):
                pairs |= {(kind, number) for number in numbers_of(numbers)}
    return pairs


def listed(paper, *sources):
    """Return the pairs of kind and number that the committed list has of a paper."""
    pairs = set()
    for source in sources:
        for kind, words in STATEMENTS[paper].get(source, {}).items():
            pairs |= {(kind, number) for number in numbers_of(words)}
    return pairs


def section(page, heading):
    """Return the lines of a page from a heading to the next one of its level or above."""
    level = len(heading) - len(heading.lstrip("#"))
    lines = page.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(heading))
    for end in range(start + 1, len(lines)):
        if re.match(rf"#{{1,{level}}} ", lines[end]):
            return lines[start:end]
    return lines[start:]


def rows_of(lines, *headers):
    """Return the rows, lists of cells, of the tables whose first header is one of ``headers``."""
    rows, is_inside = [], False
    for line in lines:
        if not line.startswith("|"):
            is_inside = False
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if cells[0] in headers:
            is_inside = True
        elif is_inside and not line.startswith("|-"):
            rows.append(cells)
    return rows


def names_of(cell):
    """Return the tests, experiments and commands that a cell names,
    and of these the missing ones.
    """
    tests = re.findall(r"`(test_\w+)`", cell)
    experiments = re.findall(r"`run (\w+)", cell)
    commands = re.findall(r"`dpswd (\w+)", cell)
    missing = [name for name in tests if name not in TESTS]
    missing += [name for name in experiments if name not in EXPERIMENTS]
    missing += [name for name in commands if name not in COMMANDS]
    return [*tests, *experiments, *commands], missing


def faults(rows):
    """Yield the rows of a table of completeness that name nothing, without a reason."""
    for item, names, verdict in rows:
        present, missing = names_of(names)
        is_left_out = names == "-" and re.search(r"\bnot\b", verdict)
        if missing or not (present or is_left_out):
            yield item


@pytest.mark.parametrize("paper", LISTS)
def test_every_row_names_a_test_or_command_that_exists(paper):
    page, heading = LISTS[paper]
    rows = rows_of(section(DOCS / page, heading), "item", "statement")
    assert len(rows) >= 10
    assert list(faults(rows)) == []


def test_every_row_of_the_errata_names_a_test_or_command_or_compares_the_text():
    rows = rows_of(section(DOCS / "errata.md", "## 9."), "where")
    assert len(rows) > 10
    without = [where for where, _, names in rows if names != "text" and not names_of(names)[0]]
    assert without == []
    assert [where for where, _, names in rows if names_of(names)[1]] == []


@pytest.mark.parametrize(
    "row",
    [
        ["Lemma 1", "`test_that_nobody_wrote`", "holds"],
        ["Lemma 1", "`run nothing`", "holds"],
        ["Lemma 1", "`dpswd nothing`", "holds"],
        ["Lemma 1", "{doc}`theory/sensitivity`", "holds"],
        ["Lemma 1", "-", "holds"],
    ],
)
def test_control_a_row_that_names_nothing(row):
    assert list(faults([row]))


@pytest.mark.parametrize("name", QUOTING)
def test_numbers_that_pages_quote_are_those_of_the_paper(name):
    paper = name.partition(",")[0]
    page, heading = QUOTING[name]
    numbers = quoted("\n".join(section(DOCS / page, heading)))
    assert numbers
    if paper == "Yang2024":  # equations 1 to 131, most of them of proofs
        numbers = {pair for pair in numbers if pair[0] != "Equation"}
    assert numbers - listed(paper, "sheet", "text") == set()


@pytest.mark.parametrize("paper", LISTS)
def test_every_statement_of_a_paper_has_a_row(paper):
    page, heading = LISTS[paper]
    rows = rows_of(section(DOCS / page, heading), "item", "statement")
    rows += [["Theorem " + cells[0]] for cells in rows_of(section(DOCS / page, heading), "theorem")]
    numbers = quoted("; ".join(cells[0] for cells in rows))
    needed = {pair for pair in listed(paper, "sheet", "text") if pair[0] != "Section"}
    assert needed - numbers == set()


def test_control_numbers_of_no_statement():
    text = "Lemma 1 (Beta law), Remarks 3, 9a; Equations 5 to 7 (Eq. 99); Theorem A.6"
    assert quoted(text) - listed("Rakotomamonjy2021", "sheet", "text") == {
        ("Remark", "9"),
        ("Equation", "99"),
        ("Theorem", "A.6"),
    }


SOURCES = [
    path
    for name in ("dpswd", "models", "experiments", "docs", "tests")
    for path in sorted((ROOT / name).rglob("*"))
    if path.suffix in (".py", ".md", ".yaml") and "_build" not in path.parts
]


def cited(text):
    """Return the citations of a text, as pairs of a paper and the statements cited of it."""
    for paper in LISTS:
        kinds = "|".join(KINDS.values())
        for words in re.findall(rf"{paper}, ((?:{kinds}) \(?{NUMBERS})", text):
            yield paper, quoted(words)


def test_citations_name_statements_of_the_paper():
    wrong = []
    for path in SOURCES:
        for paper, statements in cited(path.read_text()):
            numbers = {pair for pair in statements if pair[0] != "Equation" or paper != "Yang2024"}
            if numbers - listed(paper, "sheet", "text"):
                wrong.append((path.name, paper, statements))
    assert wrong == []


def test_control_a_citation_of_no_statement():
    (paper, statements), *_ = cited("See Rakotomamonjy2021, Section " + "3.3.")
    assert statements - listed(paper, "sheet", "text") == {("Section", "3.3")}


def quoted_of_sheet(lines):
    """Return the pairs of kind and number in a fact sheet, whose tables have headers for kinds."""
    pairs, kind, heading = quoted("\n".join(lines)), "", ""
    singular = {f"{name.lower()}s": name for name in KINDS} | {name.lower(): name for name in KINDS}
    for before, line in zip(["", *lines], lines, strict=False):
        if line.startswith("#"):
            heading = line.strip("# ").partition(" ")[0].lower()
        if line.startswith("|") and not before.startswith("|"):
            header = line.strip("| ").partition(" |")[0]
            kind = singular.get(heading if header == "no." else header, "")
        match = re.match(rf"\| ({NUMBERS})", line)
        if kind and match:
            pairs |= {(kind, number) for number in numbers_of(match[1])}
    return pairs


@pytest.mark.parametrize("paper", LISTS)
def test_listed_statements_occur_in_the_fact_sheet(paper):
    folder = os.environ.get("DPSWD_PAPERS")
    if not folder:
        pytest.skip("the fact sheets are not here; DPSWD_PAPERS is not set")
    entry = STATEMENTS[paper]
    lines = section(Path(folder) / entry["file"], entry["heading"])
    assert listed(paper, "sheet") - quoted_of_sheet(lines) == set()
