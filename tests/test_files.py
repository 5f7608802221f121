"""Files written whole, new files, and directories used by one run at a time."""

import json

import pytest

from dpswd import InputError
from dpswd._files import DirectoryLock, check_new, write_json


def test_directory_lock_admits_one_run_at_a_time(tmp_path):
    first, second = DirectoryLock(), DirectoryLock()
    first.acquire(tmp_path)
    first.acquire(tmp_path)  # its own
    with pytest.raises(InputError, match="no other run"):
        second.acquire(tmp_path)
    first.release()
    second.acquire(tmp_path)
    second.release()
    second.release()
    assert list(tmp_path.iterdir()) == []


def test_directory_lock_of_a_missing_directory_has_no_effect(tmp_path):
    DirectoryLock().acquire(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


def test_write_json_is_whole_or_not_at_all(tmp_path, monkeypatch):
    write_json(tmp_path / "a.json", {"x": 1})

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fails)
    message = r"Expected to write .*, got: No space left on device; choose a writable"
    with pytest.raises(InputError, match=message):
        write_json(tmp_path / "a.json", {"x": 2})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_check_new(tmp_path):
    check_new(tmp_path)  # an empty folder
    check_new(tmp_path / "none")
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(InputError, match="--out"):
            check_new(path)
