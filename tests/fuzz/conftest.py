"""Counts the cases of every fuzz test, also across the workers of pytest-xdist, and prints how many there were."""

import pytest
from harness import COUNTS


@pytest.fixture(autouse=True)
def counted(request):
    """Hands the number of cases of a test to the report, by the properties of the test."""
    COUNTS.clear()
    yield
    request.node.user_properties.append(("fuzz cases", sum(COUNTS.values())))
