"""Absolute paths of every system are recognised, and nothing else is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpswd._paths import has_absolute_path, mask_lines, mask_paths

NAMES = st.text("abcXYZ019 ._-é", min_size=1, max_size=8).filter(
    lambda name: name.strip() == name and name.strip(".")
)
FOLDERS = st.lists(NAMES, min_size=1, max_size=4)
STARTS = {
    "/": "/",
    "~/": "/",
    "~jane/": "/",
    "file:///": "/",
    "FILE:/": "/",
    "C:\\": "\\",
    "d:/": "/",
    "\\\\server\\": "\\",
}


@given(st.sampled_from(sorted(STARTS)), FOLDERS, NAMES, st.sampled_from(["", " "]))
def test_the_last_part_of_an_absolute_path_is_left(start, folders, name, space):
    folders = [f"jane{folder}" for folder in folders]
    path = space + start + STARTS[start].join([*folders, name])
    assert has_absolute_path(path)
    assert mask_paths({"files": [path]}) == {"files": [f".../{name}"]}
    assert mask_paths({path: 1}) == {f".../{name}": 1}
    for line in (f"root: {path}", f"root: '{path}'", f"- {path}", f"[{path}]", f"{{root: {path}}}"):
        assert "jane" not in mask_lines(line)


@given(st.lists(NAMES.filter(lambda name: "~" not in name), min_size=1, max_size=4))
def test_a_relative_path_is_left_as_it_is(folders):
    path = "/".join(folders)
    assert not has_absolute_path(path)
    assert mask_paths([path, {"a": path}]) == [path, {"a": path}]
    assert mask_lines(f"root: {path}") == f"root: {path}"


@given(st.dates(), st.times())
def test_dates_are_no_paths(date, time):
    formats = (f"{date}", f"{date:%d/%m/%Y}", f"{date}T{time}", f"{time:%H:%M}")
    for text in formats:
        assert not has_absolute_path(text)
        assert mask_lines(f"day: {text}") == f"day: {text}"


@pytest.mark.parametrize(
    "value",
    ["", "a/b", "../a", "./a", "1/255", "~0.5", "a: b", "C:", "https://example.org/a", "a\\b", "é"],
)
def test_other_values_are_no_paths(value):
    assert not has_absolute_path(value)
    assert mask_paths(value) == value


def test_numbers_and_nothing_stay():
    values = {"a": None, "b": 1.5, "c": [True, 3]}
    assert mask_paths(values) == values


def test_a_home_directory_alone_is_masked():
    assert mask_paths("~jane") == "..."
    assert mask_paths("notes\n/home/jane/x") == "notes\n.../x"
