"""Numbers of a report: three digits, rounded towards less privacy."""

import pytest

from dpswd.report.sentences import number, number_rounded_down, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.57201, "0.573"),
        (9.996, "10"),
        (1234.2, "1240"),
        (999.4, "1000"),
        (123456.0, "124000"),
        (1e6, "10⁶"),
        (1e-5, "10⁻⁵"),
        (3.212e-7, "3.22 × 10⁻⁷"),
        (0.0, "0"),
        (None, "—"),
    ],
)
def test_number_is_rounded_up(value, text):
    assert number(value) == text


def test_number_rounded_down():
    assert number_rounded_down(0.57299) == "0.572"


def test_percent_is_at_most_100():
    assert percent(0.04066) == "4.07 %"
    assert percent(1.0) == "100 %"
