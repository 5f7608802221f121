import json
import os
import subprocess
import sys

import jsonschema
import pytest

from dpswd.errors import InputError
from dpswd.report import write_report
from dpswd.report.publish import write_all

NAMES = ("report.html", "report.json", "report.md")


def test_three_files_the_same_every_time(make_run):
    path = make_run()
    write_report(path)
    first = {name: (path / name).read_bytes() for name in NAMES}
    write_report(path)
    assert first == {name: (path / name).read_bytes() for name in NAMES}
    assert sorted(p.name for p in path.iterdir()) == ["config.yaml", "ledger.jsonl", "privacy.json", *NAMES]
    assert (path / "report.html").stat().st_mode & 0o777 == 0o644


def test_shipped_schema_accepts_the_written_file(make_run):
    import dpswd.report.publish

    path = make_run()
    write_report(path)
    schema = os.path.join(os.path.dirname(dpswd.report.publish.__file__), "schema.json")
    with open(schema) as file:
        jsonschema.Draft202012Validator(json.load(file)).validate(json.loads((path / "report.json").read_text()))


def test_target_that_cannot_be_replaced_leaves_everything_as_it_was(tmp_path):
    (tmp_path / "a").write_text("old")
    (tmp_path / "c").mkdir()  # neither readable as a file nor replaceable by one
    with pytest.raises(InputError, match="nothing was written"):
        write_all(tmp_path, {"a": "new", "b": "new", "c": "new"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "c"]
    assert (tmp_path / "a").read_text() == "old"


def test_failure_half_way_is_rolled_back(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")
    replace, calls = os.replace, []

    def fail_third(source, target):
        calls.append(target)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", fail_third)
    with pytest.raises(InputError, match="No space left on device; nothing was written"):
        write_all(tmp_path, {"a": "new", "b": "new", "c": "new"})
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "old"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_directory_is_one_sentence(make_run):
    path = make_run()
    path.chmod(0o555)
    try:
        with pytest.raises(InputError, match="Permission denied; nothing was written"):
            write_report(path)
    finally:
        path.chmod(0o755)
    assert not list(path.glob("report.*"))


def test_import_needs_neither_matplotlib_nor_lightning():
    heavy = ("matplotlib", "lightning", "torchvision")
    code = f"import sys, dpswd.report; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
