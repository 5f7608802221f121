"""Commands on damaged files: exit status 0 or 2, one line of error, no file left half-written."""

import json
import math

import hypothesis.strategies as st
import pytest
from factories import ROWS, command, damage, fuzz, make_run, untouched


def finite(value):
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


@pytest.fixture(scope="module")
def run_files(tmp_path_factory):
    """The files of a run, as the report reads them."""
    directory = make_run(tmp_path_factory.mktemp("run") / "run", (ROWS.replace(batch_size=64), 64, 2))
    rows = [{"dataset": "digits", "classifier": "linear", "train": "synthetic", "accuracy": 80.0}]
    (directory / "evaluation.json").write_text(json.dumps({"rows": rows}))
    (directory / "samples.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(40))
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def test_report_of_an_intact_run(run_files, tmp_path, capfd):
    for name, content in run_files.items():
        (tmp_path / name).write_bytes(content)
    assert command(capfd, ["report", tmp_path]) == 0


JUNK = st.sampled_from([None, True, -1, 0, 2.5, math.nan, math.inf, 10**400, "x", [], {}, [[]], "<script>"])


@fuzz(20, name=st.sampled_from(["ledger.jsonl", "privacy.json", "evaluation.json", "samples.png"]), data=st.data())
def test_report_of_a_damaged_run(name, data, run_files, tmp_path, capfd):
    for old in tmp_path.iterdir():
        old.unlink()
    for other, content in run_files.items():
        (tmp_path / other).write_bytes(content)
    if name == "privacy.json" and data.draw(st.booleans()):
        facts = json.loads(run_files[name])
        facts[data.draw(st.sampled_from(sorted(facts)))] = data.draw(JUNK)
        (tmp_path / name).write_text(json.dumps(facts))
    else:
        (tmp_path / name).write_bytes(data.draw(damage(run_files[name])))
    with untouched(tmp_path):
        if command(capfd, ["report", tmp_path]) == 0:
            report = json.loads((tmp_path / "report.json").read_text())
            assert finite(report)
            for made in ("report.json", "report.md", "report.html"):
                (tmp_path / made).unlink()


def test_json_that_is_too_deep(run_files, tmp_path, capfd):
    for name, content in run_files.items():
        (tmp_path / name).write_bytes(content)
    for name in ("privacy.json", "evaluation.json", "diagnostics.json"):
        (tmp_path / name).write_text("[" * 100_000)
        with untouched(tmp_path):
            assert command(capfd, ["report", tmp_path, "--diagnostics"]) == 2
        (tmp_path / name).write_bytes(run_files.get(name, b"{}"))
