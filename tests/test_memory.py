"""Sizes that the memory of a machine does not hold."""

import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from dpswd._memory import check_drawing, check_record_size
from dpswd.errors import InputError

MEMORY = st.floats(1e6, 1e13)
SHAPES = st.lists(st.integers(1, 64), min_size=1, max_size=3).map(tuple)


@given(memory=MEMORY, shape=SHAPES)
def test_the_number_in_the_message_can_be_drawn_and_no_more(memory, shape):
    with pytest.raises(InputError, match="n of at most") as caught:
        check_drawing(2**53 + 1, shape, memory)
    largest = int(str(caught.value).split("at most ")[1].split(" ")[0].replace(",", ""))
    check_drawing(largest, shape, memory)
    with pytest.raises(InputError, match="draw fewer"):
        check_drawing(largest + 1, shape, memory)


@given(memory=MEMORY, shape=SHAPES)
def test_a_record_is_refused_exactly_if_none_can_be_drawn(memory, shape):
    fits = 32 * math.prod(shape) <= 0.8 * memory
    if fits:
        check_record_size(shape, "shrink it", memory)
    else:
        with pytest.raises(InputError, match="shrink it"):
            check_record_size(shape, "shrink it", memory)


def test_an_unknown_memory_refuses_nothing():
    check_drawing(10**9, (3, 64, 64), math.inf)
    check_record_size((10**6, 10**6), "shrink it", math.inf)
