"""How the code is written: one thought per statement, names that say what they hold."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = [
    path for name in ("dpswd", "models", "experiments") for path in (ROOT / name).rglob("*.py")
]
# Names that say nothing about what a variable holds.
FILLER = {"found", "made", "given", "each", "said", "got", "wanted", "shown", "stated", "facts"}
FILLER |= {"taken", "kept", "asked"}
LIMIT = 100  # characters of a line of code


def dense_places(source):
    """Yield the line and the kind of everything in a file that is to be read twice."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.NamedExpr):
            yield node.lineno, "assignment within an expression"
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in FILLER:
            yield node.lineno, f"variable {node.id}"
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            if isinstance(node.value, ast.GeneratorExp):
                yield node.lineno, "unpacking of a generator"
        if isinstance(node, ast.IfExp):
            inner = [child for child in ast.walk(node) if child is not node]
            if any(isinstance(child, ast.IfExp) for child in inner):
                yield node.lineno, "nested conditional expression"
    documentation = set(docstring_lines(tree))
    for number, line in enumerate(source.splitlines(), 1):
        if len(line) > LIMIT and number not in documentation:
            yield number, f"line beyond {LIMIT} characters"


def docstring_lines(tree):
    """Yield the numbers of the lines of docstrings."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
            continue
        if isinstance(body[0].value, ast.Constant) and isinstance(body[0].value.value, str):
            yield from range(body[0].lineno, body[0].end_lineno + 1)


def test_code_is_read_once():
    places = []
    for path in FILES:
        for line, kind in dense_places(path.read_text()):
            places.append(f"{path.relative_to(ROOT)}:{line}: {kind}")
    assert places == []


@pytest.mark.parametrize(
    "source",
    [
        "if (size := 3): pass",
        "found = 3",
        "a, b = (i for i in range(2))",
        "a = 1 if b else 2 if c else 3",
        f"a = {'1' * LIMIT}",
    ],
)
def test_control_dense_code_is_found(source):
    assert list(dense_places(source))
