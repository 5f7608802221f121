"""Runs every Python block of docs/notions.md."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "notions.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_block_of_the_page(block):
    assert "assert" in block
    exec(compile(block, str(PAGE), "exec"), {})


def test_named_tests_exist():
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", PAGE.read_text()))
    assert named
    assert [name for name in named if f"def {name}(" not in source] == []
