"""Results that the documentation shows: of this minor version, or with the reason for an earlier one on a page."""

import json

import pytest

from experiments.cells import outdated
from experiments.tables import RESULTS, pages


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_is_of_this_version_or_says_why(path):
    result = json.loads(path.read_text())
    assert not outdated(result), "measure it again, or write a sentence into 'reason' of the file or the row"
    words = " ".join(" ".join(page.read_text().split()) for page in pages())
    assert result.get("reason", "") in words, "no table prints the reason: write it on the page"
