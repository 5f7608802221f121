"""Public facts that are taken from records are named, once."""

import numpy as np
import pytest
from factories import write_images

from dpswd.data import read

STATED = {"size": 8, "channels": 1, "classes": ["a", "b"]}


@pytest.fixture
def folder(tmp_path):
    """Four images in two classes, of which one is larger."""
    sides = {"a/0.png": 8, "b/1.png": 8, "a/2.png": 8, "b/3.png": 12}
    images = {name: [[0] * side] * side for name, side in sides.items()}
    return write_images(tmp_path / "images", images)


@pytest.mark.parametrize("name", STATED)
def test_fact_of_images_that_is_not_stated_is_named(folder, capsys, name):
    others = {other: value for other, value in STATED.items() if other != name}
    handle = read(folder, **others)
    line = capsys.readouterr().err
    assert name in line
    assert "taken from" in line
    assert len(handle.taken) == 1


def test_facts_of_images_that_are_stated_are_not_named(folder, capsys):
    assert read(folder, **STATED).taken == ()
    assert "taken from" not in capsys.readouterr().err


def test_facts_of_images_are_named_by_the_first_rank(folder, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert read(folder).taken
    assert capsys.readouterr().err == ""


def test_classes_that_a_file_of_arrays_names_are_taken_from_the_records(tmp_path, capsys):
    """One record adds a class to ``classes=np.unique(labels)``."""
    labels = np.array(["flu", "cold", "flu", "hiv"])
    path = tmp_path / "x.npz"
    np.savez(path, features=np.eye(4), labels=labels, classes=np.unique(labels))
    stated = {"bounds": [(0, 1)] * 4, "kinds": ["numeric"] * 4}
    handle = read(path, **stated)
    assert handle.classes == ["cold", "flu", "hiv"]
    (line,) = handle.taken
    assert "hiv" in line
    assert line in capsys.readouterr().err
    assert read(path, classes=["cold", "flu", "hiv"], **stated).taken == ()
