import json
import re
import sys
import xml.etree.ElementTree
from html.parser import HTMLParser

import pytest
from factories import COARSE, ROWS, SKETCH

from dpswd.errors import InputError
from dpswd.report import write_report
from dpswd.report.collect import collect
from dpswd.report.plots import draw
from dpswd.report.render_html import html
from dpswd.report.render_markdown import markdown
from dpswd.report.words import headline, innocents, number, percent, snippet, tier_sentence

EVIL = '<script>alert(1)</script> ``` | [x](javascript:y) & "quoted"\n# heading'
VOID = {"meta", "img", "br", "path", "use", "rect"}


class Checker(HTMLParser):
    """Tags must nest; collects every tag and attribute."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.attributes, self.ids = [], set(), [], []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture
def page(make_run):
    def make(*groups, **changes):
        report, curve = collect(make_run(*groups, **changes))
        return report, html(report, draw(report, curve)), markdown(report)

    return make


def check(text):
    checker = Checker()
    checker.feed(text)
    assert not checker.open
    return checker


def test_page_is_self_contained_and_well_formed(page):
    _, text, _ = page((ROWS, 1000, 50))
    checker = check(text)
    assert "script" not in checker.tags
    assert "link" not in checker.tags
    assert not [name for name, _ in checker.attributes if name.startswith("on")]
    links = [value for name, value in checker.attributes if name in ("src", "href", "xlink:href")]
    assert all(value.startswith(("data:", "#")) for value in links)
    assert len(checker.ids) == len(set(checker.ids))
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))
    assert used <= set(checker.ids)
    assert text.count("<svg") == 3
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_everything_from_files_is_escaped(page, make_run):
    path = make_run(config=EVIL, assumptions=[EVIL], not_covered=[EVIL], neighboring_relation=EVIL, name="a&b<i>")
    rows = [{"dataset": EVIL, "classifier": EVIL, "train": EVIL, "accuracy": 50}]
    (path / "downstream.json").write_text(json.dumps({"rows": rows}))
    report, curve = collect(path)
    text = html(report, draw(report, curve))
    checker = check(text)
    assert "script" not in checker.tags
    assert "a" not in checker.tags
    assert "i" not in checker.tags
    assert text.count("&lt;script&gt;") >= 6
    lines = markdown(report).splitlines()
    fence = next(line for line in lines if line.startswith("````"))
    outside = "\n".join(lines[: lines.index(fence)])
    assert "<script>" not in outside
    assert not re.search(r"(?<!\\)\]\(javascript", outside)
    assert lines.count("# heading") == 1  # inside the fence that is longer than any run of backticks in it


def test_plots_take_their_colours_from_the_page(page, make_run):
    report, curve = collect(make_run((ROWS, 1000, 50)))
    first, second = draw(report, curve), draw(report, curve)
    assert first == second
    for svg in first.values():
        xml.etree.ElementTree.fromstring(svg)
        assert "var(--curve)" in svg
        assert not re.search(r"#0[0-9]0[0-9]0[0-9]", svg)


def test_tier_two_shows_the_table_and_tier_one_does_not(page):
    _, text, short = page((COARSE, 2000, 6), name="two")
    assert "Tier II: the trade-off curve" in text
    assert "### Trade-off curve (Tier II)" in short
    _, text, short = page(name="one")
    assert "Tier II" not in text
    assert "Tier II" not in short
    assert "the two curves below coincide" in text


def test_banner_is_conspicuous_where_the_numbers_are_void(page):
    _, text, short = page((SKETCH.replace(noise_seed=1), 1000, 1), name="seeded")
    assert '<div class="banner" role="alert"><strong>NOT PRIVATE' in text
    assert "> **NOT PRIVATE.**" in short
    assert "finds at most" not in text.replace("an attacker finds at most.", "")
    _, text, short = page((ROWS.replace(bound="clt", failure_prob=1e-8), 1000, 5), name="clt")
    assert "<strong>NOT SOUND" in text
    assert "If the account held" in short
    _, text, short = page(name="sound")
    assert 'class="banner"' not in text
    assert "NOT" not in short


def test_every_number_of_a_model_card_is_there(page):
    report, _, short = page((ROWS, 1000, 50))
    guarantee = report["guarantee"]
    for row in guarantee["epsilon_delta"]:
        assert f"| {number(row['epsilon_pld'])} | {number(row['epsilon_rdp'])} |" in short
    for fact in (
        number(guarantee["mu"]),
        "replace-one",
        "without replacement",
        report["ledger"]["head"],
        "gdpnum 0.",
    ):
        assert fact in short
    for line in (*report["assumptions"], *report["not_covered"]):
        assert line.split(":")[0].replace("_", "\\_") in short
    width = max(len(line) for line in short.splitlines() if line.startswith("|"))
    assert width < 250


@pytest.mark.parametrize("groups", [(), ((ROWS, 1000, 50),)])
def test_printed_code_gives_the_printed_numbers(make_run, capsys, groups):
    report, _ = collect(make_run(*groups))
    exec(snippet(report), {})
    lines = capsys.readouterr().out.splitlines()
    mu, regret = map(float, lines[0].split())
    guarantee = report["guarantee"]
    assert mu == pytest.approx(guarantee["mu"], rel=1e-12)
    assert regret == pytest.approx(guarantee["regret"], abs=1e-9)
    assert float(lines[1]) == pytest.approx(guarantee["epsilon"], rel=1e-9)
    for line, row in zip(lines[2:], guarantee["trade_off"], strict=True):
        assert [float(part) for part in line.split()] == pytest.approx([row["fpr"], row["fnr"]], rel=1e-12)


def test_mu_says_where_it_holds(page):
    floor = "at error rates above 10⁻¹⁰"
    for groups, name in (((ROWS, 1000, 50), "subsampled"), ((COARSE, 2000, 6), "coarse")):
        report, text, _ = page(groups, name=name)
        assert floor in headline(report)
        assert floor in tier_sentence(report["guarantee"])
        assert floor in text
    exact, _, _ = page(name="exact")  # exactly Gaussian: everywhere, by theorem
    assert floor not in headline(exact) + tier_sentence(exact["guarantee"])
    assert "at every false-positive rate" in tier_sentence(exact["guarantee"])


def test_words_round_towards_less_privacy():
    assert number(0.57201) == "0.573"
    assert number(9.996) == "10"
    assert number(1234.2) == "1240"
    assert number(1e-5) == "10⁻⁵"
    assert number(3.21e-7, 2) == "3.3 × 10⁻⁷"
    assert number(0.0) == "0"
    assert number(None) == "—"
    assert percent(0.04066) == "4.07 %"
    assert percent(1.0) == "100 %"
    assert innocents(1e-3) == "1 in 1,000"


def test_without_matplotlib_nothing_is_written(make_run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = make_run()
    with pytest.raises(InputError, match=r"matplotlib .*dpswd\[train\]"):
        write_report(path)
    assert not list(path.glob("report.*"))
