"""Rendered reports: HTML, Markdown, the written files, and the layout in headless Chromium."""

import json
import re
import sys
from html.parser import HTMLParser

import pytest
from factories import ROWS, SKETCH

from dpswd.accounting.ledger import CONDITIONS, HANDED_OVER
from dpswd.errors import InputError
from dpswd.report import write_report
from dpswd.report.collect import collect
from dpswd.report.plots import draw
from dpswd.report.render import html, markdown, number, percent, snippet

EVIL = '<script>alert(1)</script> ``` | [x](javascript:y) & "quoted"\n# heading'
NAMES = ("report.html", "report.json", "report.md")


class Checker(HTMLParser):
    """Asserts that tags nest; collects tags, attributes and ids."""

    VOID = ("meta", "img", "br", "path", "use", "rect")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.ids = [], set(), [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def render(path, **options):
    report, curve = collect(path, **options)
    return report, html(report, draw(report, curve)), markdown(report)


@pytest.fixture
def page(make_run):
    return lambda *groups, **changes: render(make_run(*groups, **changes))


def test_html_is_self_contained(page):
    _, text, _ = page((ROWS, 1000, 50))
    checker = Checker(text)
    assert not {"script", "link"} & checker.tags
    assert not [name for name, _ in checker.attributes if name.startswith("on")]
    links = [value for name, value in checker.attributes if name in ("src", "href", "xlink:href")]
    assert all(value.startswith(("data:", "#")) for value in links)
    assert len(checker.ids) == len(set(checker.ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]+)', text)) <= set(checker.ids)
    assert text.count("<svg") == 3
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_text_from_files_is_escaped(make_run):
    path = make_run(config=EVIL, header={"run": EVIL}, name="a&b<i>")
    rows = [{"dataset": EVIL, "classifier": EVIL, "train": EVIL, "accuracy": 50}]
    (path / "evaluation.json").write_text(json.dumps({"rows": rows}))
    _, text, short = render(path, title=EVIL)
    assert not {"script", "a", "i"} & Checker(text).tags
    assert text.count("&lt;script&gt;") >= 6
    outside = re.sub(r"(?s)(`{4,})yaml\n.*?\n\1\n", "", short)
    assert len(outside) < len(short)  # the fence is longer than any run of backticks in the file
    assert "<script>" not in outside
    assert not re.search(r"(?<!\\)\]\(javascript", outside)
    assert "# heading" not in outside.splitlines()


def test_banner_comes_before_any_number(page):
    _, text, short = page((SKETCH.replace(noise_seed=1), 1000, 1), name="seeded")
    assert text.index("<strong>NOT PRIVATE") < text.index("μ")
    assert short.index("NOT PRIVATE") < short.index("μ")
    assert "void: μ" in short
    _, text, short = page((ROWS.replace(bound="clt", failure_prob=1e-8), 1000, 5), name="clt")
    assert "<strong>NOT SOUND" in text
    assert "If the account holds" in short
    handed = {"header": {"records": HANDED_OVER}, "sound": False}
    _, text, short = page(name="conditional", **handed)
    assert text.index("<strong>CONDITIONAL.") < text.index("μ")
    assert all(line in short for line in CONDITIONS)
    assert "NOT SOUND" not in short
    assert "conditional: μ" in short
    assert "On the three conditions above, an attacker" in short
    _, text, short = page((ROWS.replace(bound="clt", failure_prob=1e-8), 1000, 5), name="both", **handed)
    assert "<strong>CONDITIONAL AND NOT SOUND." in text
    _, text, short = page(name="sound")
    assert "<blockquote>" not in text
    assert "NOT" not in short


def test_pictures_and_box_come_first(make_run):
    path = make_run(config="records: {name: x}\nmodel:\n  centre: null\n  scale: 2\n")
    for name in ("samples.png", "columns.png"):
        (path / name).write_bytes(b"\x89PNG")
    _, text, short = render(path)
    assert text.count('src="data:image/png;base64,') == 2
    order = [short.index(word) for word in ("Synthetic records of x", "samples.png", "columns.png", "| public", "μ")]
    assert order == sorted(order)
    assert "| protected | Each single record" in short
    assert "| not covered | Choices, evaluation, other runs" in short
    assert "scale: 2" in short
    assert "null" not in short


@pytest.mark.parametrize("groups", [(), ((ROWS, 1000, 50),)])
def test_snippet_gives_the_numbers_of_the_report(make_run, capsys, groups):
    report, _ = collect(make_run(*groups))
    exec(snippet(report), {})
    lines = capsys.readouterr().out.splitlines()
    guarantee = report["guarantee"]
    assert [float(part) for part in lines[0].split()] == pytest.approx([guarantee["mu"], guarantee["regret"]], abs=1e-9)
    assert float(lines[1]) == pytest.approx(guarantee["epsilon"], rel=1e-9)
    for line, row in zip(lines[2:], guarantee["trade_off"], strict=True):
        assert [float(part) for part in line.split()] == pytest.approx([row["fpr"], row["fnr"]], rel=1e-12)


def test_numbers_are_rounded_towards_less_privacy():
    assert number(0.57201) == "0.573"
    assert number(9.996) == "10"
    assert number(1234.2) == "1240"
    assert number(1e-5) == "10⁻⁵"
    assert number(3.212e-7) == "3.22 × 10⁻⁷"
    assert number(0.57299, down=True) == "0.572"
    assert number(0.0) == "0"
    assert number(None) == "—"
    assert percent(0.04066) == "4.07 %"
    assert percent(1.0) == "100 %"


def test_write_report_twice_gives_the_same_files(make_run):
    path = make_run()
    (path / "private_evaluation.json").write_text("{}")  # of any program: not read
    write_report(path)
    before = {name: (path / name).read_bytes() for name in NAMES}
    write_report(path)
    assert before == {name: (path / name).read_bytes() for name in NAMES}


def test_write_report_without_matplotlib_writes_nothing(make_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = make_run()
    with pytest.raises(InputError, match=r"matplotlib .*dpswd\[train\]"):
        write_report(path)
    assert not list(path.glob("report.*"))
