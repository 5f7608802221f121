"""Progress on stderr: what a terminal shows, and what a file or pipe does."""

import io
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from dpswd import InputError, PrivateAdapter
from dpswd._progress import steps, with_progress_bar, working
from dpswd.data import read
from dpswd.evaluation import evaluate
from dpswd.records import Records


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self):
        return True


def terminal_of(monkeypatch):
    """Make stderr a terminal; pytest sets it anew after the fixtures of a test."""
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def test_a_terminal_shows_what_is_computed_and_for_how_long(monkeypatch):
    terminal = terminal_of(monkeypatch)
    with working("Matching records"):
        pass
    assert "Matching records" in terminal.getvalue()
    assert "0:00:00" in terminal.getvalue()


@pytest.mark.parametrize("unit", [None, "folder"])
def test_a_bar_of_images_shows_their_number_where_it_is_public(monkeypatch, tmp_path, unit):
    """The number of records of all persons is private, and so whether there is a bar."""
    for number in range(2000):
        folder = tmp_path / "ill" / str(number % 20)
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4)).save(folder / f"{number}.bmp")
    terminal = terminal_of(monkeypatch)
    read(tmp_path, size=4, channels=1, unit=unit, labelled=False)
    assert ("Reading images" in terminal.getvalue()) == (unit is None)


def test_without_a_terminal_one_line_names_it(capfd):
    with working("Matching records"):
        pass
    with working("Reading", line=False):
        pass
    with working("Hidden", shown=False):
        pass
    assert capfd.readouterr().err == "Matching records.\n"


def test_bars_within_are_not_shown_and_come_back_after_an_error(monkeypatch):
    terminal = terminal_of(monkeypatch)
    parts = [torch.arange(3000)]
    with working("Outer"):
        assert len(list(with_progress_bar(parts, "Inner pass"))) == 1
        assert list(steps(2, "Inner steps")) == [0, 1]
        with working("Inner work"):
            pass
    with pytest.raises(InputError), working("Failing"):
        raise InputError("stop")
    assert "Inner" not in terminal.getvalue()
    list(with_progress_bar(parts, "Later pass"))
    assert "Later pass" in terminal.getvalue()


def domains():
    generator = np.random.default_rng(0)
    labels = np.arange(400) % 2
    records = generator.normal(size=(400, 4)) + 4.0 * labels[:, None]
    domain = np.repeat([1, -1], 200)
    records[200:, 0] += 3
    return records, labels, domain


def test_an_adaptation_names_its_stages_on_a_terminal(monkeypatch, tmp_path):
    terminal = terminal_of(monkeypatch)
    adapter = PrivateAdapter(epsilon=100.0, delta=1e-3, n_synthetic=200, run_dir=tmp_path / "run")
    adapter.fit(*domains())
    output = terminal.getvalue()
    for stage in ("Measuring", "Drawing 200", "Matching 200", "Training a classifier"):
        assert stage in output


@pytest.mark.parametrize("progress", [True, False])
def test_an_evaluation_names_its_stages(capfd, progress):
    records, labels, _ = domains()
    both = Records(torch.from_numpy(records).float(), torch.from_numpy(labels))
    evaluate(both, both, classifiers=["logreg"], progress=progress)
    lines = capfd.readouterr().err.splitlines()
    stages = [
        "Training logreg on 400 synthetic records.",
        "Training logreg on real records.",
        "Telling synthetic records from real ones.",
        "Searching the nearest real record of each.",
        "Comparing the distributions.",
    ]
    assert lines == (stages if progress else [])
