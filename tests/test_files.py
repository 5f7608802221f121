"""Files written whole, and directories used by one run at a time."""

import json

import pytest

from dpswd import InputError
from dpswd._files import DirectoryLock, write_json


def test_one_run_at_a_time(tmp_path):
    first, second = DirectoryLock(), DirectoryLock()
    first.take(tmp_path)
    first.take(tmp_path)  # its own
    with pytest.raises(InputError, match="no other run"):
        second.take(tmp_path)
    first.free()
    second.take(tmp_path)
    second.free()
    second.free()
    second.take(tmp_path / "none")  # nothing to keep anybody out of
    assert list(tmp_path.iterdir()) == []


def test_json_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", {"x": 1})

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fails)
    with pytest.raises(
        InputError, match=r"Expected to write .*, got: No space left on device; choose a writable"
    ):
        write_json(tmp_path / "a.json", {"x": 2})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
