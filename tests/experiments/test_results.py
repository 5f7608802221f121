"""Results of the documentation: which are of an earlier version, and why they are kept."""

import json

import pytest

from dpswd import __version__
from experiments import tables
from experiments.results import RESULTS, outdated

OLD = {"version": "0.0.1"}
NEW = {"version": __version__}
KEPT = OLD | {"reason": "It takes days."}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (NEW, False),
        (OLD, True),
        (KEPT, False),
        (NEW | {"rows": [{}, OLD]}, True),
        (NEW | {"other": [{}, KEPT]}, False),
        (KEPT | {"rows": [OLD]}, True),
    ],
)
def test_outdated(result, expected):
    assert outdated(result) == expected


def test_outdated_counts_entries_with_a_reason_on_demand():
    assert outdated(KEPT, with_reasons=True)
    assert not outdated(NEW, with_reasons=True)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_result_is_of_this_version_or_a_page_says_why(path):
    result = json.loads(path.read_text())
    remedy = "measure it again, or write a sentence into 'reason' of the file or the row"
    assert not outdated(result), remedy
    words = " ".join(" ".join(page.read_text().split()) for page in tables.pages())
    assert result.get("reason", "") in words, "no table prints the reason: write it on the page"
