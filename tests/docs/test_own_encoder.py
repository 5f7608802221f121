"""The example of docs/howto/own-encoder.md runs and prints what the page says."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "own-encoder.md").read_text()


def test_the_example_prints_what_is_promised(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(code.splitlines()) <= 30
    exec(compile(code, "own-encoder.md", "exec"), {})
    accuracy, epsilon = re.search(r"accuracy (\d+), epsilon (\S+)\n", capsys.readouterr().out).groups()
    assert epsilon == "2.00"
    promised = int(re.search(r"It prints about `accuracy (\d+)", PAGE)[1])
    assert abs(int(accuracy) - promised) <= 5  # fresh noise: within 1 point in three runs
    assert (tmp_path / "runs" / "mine" / "ledger.jsonl").exists()
