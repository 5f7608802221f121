"""Looks at the page in headless Chromium: nothing may stick out, on a phone or on a desk.

On a desk the row of plots is wider than the column of text (MAIN), by design.
"""

import html
import json
import re
import shutil
import subprocess

import pytest
from factories import COARSE, COUNTS, SKETCH

from dpswd.diagnostics.appendix import write_diagnostics
from dpswd.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=3000"
).split()
PROBE = """
<pre id="result"></pre>
<script>
const result = {};
let waiting = 0;
for (const frame of document.querySelectorAll("iframe")) {
  waiting += 1;
  frame.onload = () => {
    const inner = frame.contentDocument, width = frame.clientWidth, out = [];
    for (const element of inner.body.querySelectorAll("*:not(svg *)")) {
      const box = element.getBoundingClientRect();
      if (box.width && (box.right > width + 0.5 || box.left < -0.5 || element.scrollWidth >
      element.clientWidth + 1
          && getComputedStyle(element).display !== "inline" && !["svg", "MAIN"].includes(element.tagName)))
          out.push(element.tagName);
    }
    const fonts = [...inner.querySelectorAll("svg text")].map(t => t.getBoundingClientRect().height);
    result[frame.title] = {out, scroll: inner.documentElement.scrollWidth, width,
                           text: Math.min(...fonts), plots: inner.querySelectorAll("svg").length};
    waiting -= 1;
    if (!waiting) document.getElementById("result").textContent = JSON.stringify(result);
  };
  frame.srcdoc = frame.dataset.page;
}
</script>
"""


def look(tmp_path, pages):
    """Lays out pages at 390 and 1280 px, each in a frame of that width, and measures."""
    frames = "".join(
        f'<iframe title="{name} {width}" style="border:0;width:{width}px;height:900px" '
        f'data-page="{html.escape(page)}"></iframe>'
        for name, page in pages.items()
        for width in (390, 1280)
    )
    probe = tmp_path / "probe.html"
    probe.write_text(f"<!doctype html><meta charset=utf-8><body>{frames}{PROBE}")
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", probe.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    found = re.search(r'<pre id="result">(\{.*?\})</pre>', done.stdout, re.DOTALL)
    if not found:
        pytest.skip("Chromium did not lay the page out here")
    return json.loads(html.unescape(found[1]))


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here to lay the page out")
def test_nothing_overflows_on_a_phone_or_a_desk(make_run, tmp_path):
    long = "x" * 300
    runs = {
        "plain": make_run((COUNTS, 1000, 1), (SKETCH, 1000, 1), name="plain", config=f"key: {long}\n"),
        "two": make_run((COARSE, 2000, 6), name="two" + "-very-long-name" * 8, assumptions=[long]),
        "seeded": make_run((SKETCH.replace(noise_seed=1), 1000, 1), name="seeded"),
    }
    rows = [
        {
            "dataset": "FashionMNIST",
            "classifier": "logistic regression",
            "train": "synthetic",
            "accuracy": 81.9,
        }
    ]
    (runs["plain"] / "downstream.json").write_text(json.dumps({"rows": rows}))
    pages = {}
    tables = {"tangent_diagnostics": {"sobolev_to_log": {"bound": 1e-5}}, "key_" * 60: long}
    write_diagnostics(runs["plain"], "tangent", tables)
    for name, path in runs.items():
        write_report(path, diagnostics=name == "plain")
        pages[name] = (path / "report.html").read_text()
    pages["control"] = pages["plain"].replace("<main>", '<main><div style="width:1300px">wide</div>')
    found = look(tmp_path, pages)
    for name in runs:
        for width in (390, 1280):
            seen = found[f"{name} {width}"]
            assert seen["width"] == width
            assert seen["scroll"] <= width
            assert seen["out"] == []
            assert seen["plots"] == 3
            assert seen["text"] >= 10  # px: the smallest label of a plot
    assert found["control 390"]["out"]
    assert found["control 1280"]["scroll"] > 1280
