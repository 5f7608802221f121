"""Docstrings, comments and names: British spelling, and first lines that fit an index.

The linter checks the mood of docstrings.
"""

import ast
import io
import re
import tokenize
from pathlib import Path

import dpswd

FIRST_LINE = 80  # characters, without the indent and the quotation marks
ROOT = Path(dpswd.__file__).parents[1]
FILES = [
    path
    for folder in ("dpswd", "models", "experiments")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
AMERICAN = re.compile(
    r"\b(?:(?:un)?(?:re)?center(?:s|ed|ing)?|colors?|colored|gray(?:scale|s)?|behaviors?|favors?|favorites?|neighborhoods?"
    r"|(?:un|re|de)?(?:normaliz|optimiz|standardiz|initializ|generaliz|quantiz|randomiz|regulariz|summariz|minimiz"
    r"|maximiz|parametriz|reparametriz|vectoriz|serializ|synchroniz|visualiz|recogniz|realiz|organiz|discretiz"
    r"|orthonormaliz|symmetriz|utiliz|categoriz|finaliz|characteriz|penaliz|factoriz)(?:e[sdr]?|ers?|ing|ations?)"
    r"|analyz(?:e[sd]?|ing)|modeling|modeled|labeling|labeled|unlabeled|canceled|catalogs?|artifacts?)\b"
)
# code, titles and arguments of libraries
QUOTED = re.compile(r"`+[^`]*`+|https?://\S+|\"[^\"]*\"|'[^']*'|:\w+:`[^`]*`")
FOREIGN = {
    "optimizer",
    "optimizers",
    "configure_optimizers",
    "color",
    "finalize",
}  # prescribed by other libraries


def docstrings(tree):
    """Pairs (line, docstring) of a module, its classes and its functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (
            text := ast.get_docstring(node)
        ):
            yield getattr(node, "lineno", 1), text


def names(tree):
    """Pairs (line, name) of the functions, classes and arguments that the file defines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def prose(text):
    """Text without code, titles of papers and examples."""
    text = re.split(r"\n\s*(?:References|Example):\n", text)[0].replace(
        "generalized WDP", ""
    )  # a name in Yang2024
    return QUOTED.sub(" ", text)


def found_spellings(path):
    source = path.read_text()
    tree, tokens = ast.parse(source), tokenize.generate_tokens(io.StringIO(source).readline)
    texts = [(line, prose(text)) for line, text in docstrings(tree)]
    texts += [
        (token.start[0], prose(token.string)) for token in tokens if token.type == tokenize.COMMENT
    ]
    texts += [(line, name.replace("_", " ")) for line, name in names(tree) if name not in FOREIGN]
    for line, text in texts:
        for word in AMERICAN.findall(text.lower()):
            yield f"{path.relative_to(ROOT)}:{line}: {word}"


def long_first_lines(path):
    """Yield place, length and text of the first lines of docstrings that are too long."""
    tree = ast.parse(path.read_text())
    for line, text in docstrings(tree):
        first = text.splitlines()[0]
        if len(first) > FIRST_LINE:
            yield f"{path}:{line}: {len(first)} characters: {first}"


def test_spelling_is_british():
    assert [each for path in FILES for each in found_spellings(path)] == []


def test_controls(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tests.test_lint.ROOT" if "tests" in __name__ else f"{__name__}.ROOT", tmp_path
    )
    path = tmp_path / "x.py"
    path.write_text(
        'def f(colors):\n    """Returns the normalized center."""\n    return colors  # optimizes\n'
    )
    assert len(list(found_spellings(path))) == 4
    path.write_text('def f(colour):\n    """Return ``color`` of a matrix in `normalize(x)`."""\n')
    assert not list(found_spellings(path))


def test_first_lines_of_docstrings_are_short():
    problems = []
    for path in FILES:
        problems.extend(long_first_lines(path))
    assert problems == []


def test_a_first_line_of_81_characters_is_too_long(tmp_path):
    path = tmp_path / "x.py"
    for place in ("", "def f():\n    ", "class A:\n    "):
        for length, count in ((FIRST_LINE, 0), (FIRST_LINE + 1, 1)):
            path.write_text(f'{place}"""{"x" * length}\n\nMore.\n"""\n')
            assert len(list(long_first_lines(path))) == count
