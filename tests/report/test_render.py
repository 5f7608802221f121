"""The report as HTML, Markdown and files: banner, escaping, order, snippet."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from factories import ROWS, SKETCH, make_run

from dpswd._png import mark_picture
from dpswd.accounting.ledger import CONDITIONS, HANDED_OVER
from dpswd.errors import InputError
from dpswd.report import write_report
from dpswd.report.collect import collect
from dpswd.report.snippet import snippet

PNG = b"\x89PNG"
NAMES = ("report.html", "report.json", "report.md")

# Text that a run may hold, and that Markdown and HTML interpret.
EVIL = '<script>alert(1)</script> ``` | [x](javascript:y) & "quoted"\n# heading'


def pages(path, title=None):
    """HTML and Markdown of a run directory."""
    write_report(path, title=title)
    return (path / "report.html").read_text(), (path / "report.md").read_text()


def test_html_is_self_contained(tmp_path):
    html, _ = pages(make_run(tmp_path / "run", (ROWS, 1000, 50)))
    assert not re.search(r"<(script|link|object|iframe)|\son\w+=", html)
    assert re.findall(r'(?:src|href)="([^;]*)', html) == ["data:image/svg+xml"]
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


def test_text_from_files_is_escaped(tmp_path):
    path = make_run(tmp_path / "a&b<i>", config=EVIL, header={"run": EVIL})
    row = {"dataset": EVIL, "classifier": EVIL, "train": EVIL, "accuracy": 50}
    (path / "evaluation.json").write_text(json.dumps({"rows": [row]}))
    html, markdown = pages(path, title=EVIL)
    assert not re.search("<(script|a|i)[ >]", html)
    assert html.count("&lt;script&gt;") >= 6
    outside = re.sub(r"(?s)(`{4,})yaml\n.*?\n\1\n", "", markdown)
    # The fence is longer than any run of backticks in the file.
    assert len(outside) < len(markdown)
    assert "<script>" not in outside
    assert not re.search(r"(?<!\\)\]\(javascript", outside)
    assert "# heading" not in outside.splitlines()


# The banner

FIXED_SEED = (SKETCH.replace(noise_seed=1), 1000, 1)
CLT = (ROWS.replace(bound="clt", failure_prob=1e-8), 1000, 5)
HANDED = {"header": {"records": HANDED_OVER}}


def test_a_directory_whose_name_is_not_utf8_can_be_reported(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/m\xe4rz"))
    html, markdown = pages(make_run(path))
    assert "Privacy report: m?rz" in html
    assert "Privacy report: m?rz" in markdown
    content = json.loads((path / "report.json").read_text())
    assert content["title"] == "Privacy report: m?rz"


def test_sound_run_has_no_banner(tmp_path):
    path = make_run(tmp_path / "run", header={"records": "behind a handle"})
    html, markdown = pages(path)
    assert "<blockquote>" not in html
    assert "NOT" not in markdown
    assert "**μ" in markdown
    assert "An attacker who" in markdown


def check_banner_comes_first(html, markdown, banner):
    """Checks that the banner precedes every number of the guarantee, and comes once."""
    assert html.count("<blockquote>") == 1
    assert html.index(f"<blockquote>\n<p><strong>{banner}.</strong>") < html.index("μ")
    assert markdown.index(f"> **{banner}.**") < markdown.index("μ")


def test_fixed_seed_is_not_private(tmp_path):
    """The claim in privacy.json cannot strengthen what the ledger gives."""
    path = make_run(tmp_path / "run", FIXED_SEED, private=True)
    html, markdown = pages(path)
    check_banner_comes_first(html, markdown, "NOT PRIVATE")
    assert "void: μ" in markdown
    assert "seed" in markdown
    report, _ = collect(path)
    assert not report.private
    assert not report.sound


def test_normal_approximation_is_not_sound(tmp_path):
    path = make_run(tmp_path / "run", CLT, sound=True)
    html, markdown = pages(path)
    check_banner_comes_first(html, markdown, "NOT SOUND")
    assert "If the account holds" in markdown
    assert "normal approximation" in markdown
    report, _ = collect(path)
    assert report.private
    assert not report.sound


def test_records_that_were_handed_over_are_conditional(tmp_path):
    path = make_run(tmp_path / "run", **HANDED)
    html, markdown = pages(path)
    check_banner_comes_first(html, markdown, "CONDITIONAL")
    assert "conditional: μ" in markdown
    assert "three conditions above, an attacker" in markdown
    assert all(condition in markdown for condition in CONDITIONS)
    report, _ = collect(path)
    assert list(report.conditions) == CONDITIONS
    assert not report.sound


def test_conditional_run_with_a_normal_approximation_has_both_warnings(tmp_path):
    html, markdown = pages(make_run(tmp_path / "run", CLT, **HANDED))
    check_banner_comes_first(html, markdown, "CONDITIONAL AND NOT SOUND")
    assert "normal approximation" in markdown
    assert all(condition in markdown for condition in CONDITIONS)


@pytest.mark.parametrize(
    ("claim", "banner"), [({"private": False}, "NOT PRIVATE"), ({"sound": False}, "NOT SOUND")]
)
def test_declaration_of_the_run_weakens_the_report(tmp_path, claim, banner):
    html, markdown = pages(make_run(tmp_path / "run", **claim))
    check_banner_comes_first(html, markdown, banner)
    assert "The run declares it so" in markdown


# Content


def test_pictures_and_table_of_facts_come_first(tmp_path):
    config = "records: {name: x, classes: [ham, egg]}\nmodel:\n  centre: null\n  scale: 2\n"
    path = make_run(tmp_path / "run", config=config)
    for name in ("samples.png", "columns.png"):
        (path / name).write_bytes(PNG)
        mark_picture(path / name, "", of_releases=True)
    html, markdown = pages(path)
    assert html.count('src="data:image/png;base64,') == 2
    words = ["Synthetic records of x", "samples.png", "columns.png", "| public", "μ"]
    positions = [markdown.index(word) for word in words]
    assert positions == sorted(positions)
    assert "One row per class: ham, egg. No picture shows a private record." in markdown
    assert "| protected | Each single record" in markdown
    assert "| not covered | Choices, evaluation, other runs" in markdown


def test_report_of_persons_speaks_of_persons(tmp_path):
    path = make_run(tmp_path / "run", header={"unit": "one person, at most 3 records"})
    _, markdown = pages(path)
    assert "even knowing the records of all other persons" in markdown
    assert "| persons read |" in markdown
    assert "| 1,000 (all) |" in markdown
    assert "(one person, at most 3 records)" in markdown
    assert "every other record" not in markdown


def test_releases_stand_in_one_table_without_repetition(tmp_path):
    _, markdown = pages(make_run(tmp_path / "run"))
    section = markdown.partition("### What was released")[2].partition("### Assumptions")[0]
    tables = [line for line in section.splitlines() if line.startswith("| ---")]
    assert len(tables) == 1
    assert section.count("sensitivity") == 2  # in the head of the table, and in the sum of μ²
    assert "noise_seed" not in section


def test_total_over_runs_stands_beside_the_numbers(tmp_path):
    total = {"epsilon": 12.5, "delta": 1e-5, "mu": 2.4, "sentence": "Two runs."}
    alone = make_run(tmp_path / "alone")
    shared = make_run(tmp_path / "shared", across_runs=total)
    _, markdown = pages(shared)
    numbers = markdown.index("**This run alone: μ = ")
    assert markdown.index("**All runs in the shared") < numbers < markdown.index("### What is guar")
    # The attacker has the releases of all runs: Phi(Phi^-1(0.001) + 2.4) = 0.24502, rounded up.
    assert "at most 24.6 % of the members (records that were read)" in markdown
    assert "The total above covers all runs" in markdown
    assert "The total above covers all runs" not in pages(alone)[1]
    assert "μ = 2.4; (ε, δ) = (12.5, 10⁻⁵)" in markdown
    assert json.loads((shared / "report.json").read_text())["together"]["epsilon"] == 12.5
    assert "All runs in the shared" not in pages(alone)[1]


@pytest.mark.parametrize("name", ["private", "sound"])
def test_total_that_another_run_voids_is_no_headline(tmp_path, name):
    total = {"epsilon": 12.5, "delta": 1e-5, "mu": 2.4, "sentence": "Run a voids it.", name: False}
    _, markdown = pages(make_run(tmp_path / "run", across_runs=total))
    assert "All runs in the shared" not in markdown
    assert "of all runs" not in markdown
    assert "at most 24.6 %" not in markdown


def test_report_of_a_table_has_a_line_for_each_column(tmp_path):
    config = (
        "records:\n  name: x\n  bounds:\n  - - 17.0\n    - 90.0\n  columns:\n  - name: age\n"
        "    low: 17\n  column_facts:\n  - 'age: integer from 17 to 90'\n  taken: []\nother: 3\n"
    )
    _, markdown = pages(make_run(tmp_path / "run", config=config))
    assert markdown.count("age: integer from 17 to 90") == 1
    assert "- age: integer from 17 to 90" in markdown
    settings = markdown.partition("#### Settings")[2]
    assert "low: 17" not in settings
    assert "90.0" not in settings
    assert "  taken: []\nother: 3\n" in settings


@pytest.mark.parametrize(
    "path",
    [
        "/home/jane/study/scans",
        "'/home/jane/my study/scans'",
        r"C:\jane\scans",
        "~/jane/scans",
        "file:///home/jane/scans",
        "/home/jane/a folder\n    of jane/scans",
    ],
)
def test_settings_have_the_last_part_of_a_path_only(tmp_path, path):
    config = f"data:\n  root: {path}\n  path: scans/a.npz\n  every: 1\n"
    directory = make_run(tmp_path / "run", config=config)
    html, markdown = pages(directory)
    assert "  root: '.../scans'\n  path: scans/a.npz\n  every: 1\n" in markdown
    for text in (html, markdown, (directory / "report.json").read_text()):
        assert "jane" not in text


@pytest.mark.parametrize(
    "config", ["data:\n- /home/jane/scans\n", "{root: [/home/jane/scans", "{/home/jane/a: b}"]
)
def test_settings_of_any_form_have_no_path(tmp_path, config):
    directory = make_run(tmp_path / "run", config=config)
    html, markdown = pages(directory)
    for text in (html, markdown, (directory / "report.json").read_text()):
        assert "jane" not in text


def test_a_config_with_an_impossible_date_is_reported(tmp_path):
    _, markdown = pages(make_run(tmp_path / "run", config="day: 2026-02-30\n"))
    assert "day: 2026-02-30" in markdown


def test_a_run_of_a_script_has_no_config(tmp_path):
    _, markdown = pages(make_run(tmp_path / "run", header={"config_sha256": None}, config=None))
    assert "| config, SHA-256 in the ledger | none: started from a script |" in markdown
    assert "| config.yaml, SHA-256 | none in this folder |" in markdown
    assert "| publishing | May be published: ledger.jsonl" in markdown


def test_picture_of_an_adaptation_stands_alone(tmp_path):
    path = make_run(tmp_path / "run")
    for name in ("samples.png", "adaptation.png"):
        (path / name).write_bytes(PNG)
        mark_picture(path / name, "", of_releases=True)
    html, _ = pages(path)
    assert html.count('src="data:image/png;base64,') == 1
    assert "synthetic records of the private target" in html


def test_a_picture_of_unknown_origin_is_to_be_checked(tmp_path):
    path = make_run(tmp_path / "run", config="records: {name: x, classes: [ham, egg]}\n")
    for name in ("samples.png", "columns.png"):
        (path / name).write_bytes(PNG)
    mark_picture(path / "columns.png", "", of_releases=True)
    html, markdown = pages(path)
    assert html.count('src="data:image/png;base64,') == 2
    assert "drew samples.png: check that no private record is shown." in markdown
    for words in ("No picture shows", "One row per class", "Synthetic records."):
        assert words not in markdown


def test_settings_that_are_not_set_are_left_out(tmp_path):
    path = make_run(tmp_path / "run", config="model:\n  centre: null\n  scale: 2\n")
    _, markdown = pages(path)
    assert "scale: 2" in markdown
    assert "null" not in markdown


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("groups", [(), ((ROWS, 1000, 50),)], ids=["one shot", "subsampled"])
def test_snippet_gives_the_numbers_of_the_report(tmp_path, capsys, groups, accountant):
    report, _ = collect(make_run(tmp_path / "run", *groups, accountant=accountant))
    exec(snippet(report), {})
    lines = capsys.readouterr().out.splitlines()
    numbers = [[float(part) for part in line.split()] for line in lines]
    guarantee = report.guarantee
    assert numbers[0] == pytest.approx([guarantee.mu, guarantee.regret], abs=1e-9)
    assert numbers[1] == pytest.approx([guarantee.epsilon], rel=1e-9)
    points = (*guarantee.trade_off, guarantee.advantage_rates)
    for rates, point in zip(numbers[2:], points, strict=True):
        assert rates == pytest.approx([point.fpr, point.fnr], rel=1e-12)


# Files


def test_write_report_twice_gives_the_same_files(tmp_path):
    path = make_run(tmp_path / "run")
    (path / "private_evaluation.json").write_text("{}")  # not read
    write_report(path)
    before = {name: (path / name).read_bytes() for name in NAMES}
    write_report(path)
    assert before == {name: (path / name).read_bytes() for name in NAMES}


def test_write_report_returns_the_content_of_the_file(tmp_path):
    path = make_run(tmp_path / "run")
    assert write_report(path) == json.loads((path / "report.json").read_text())


def test_write_report_without_matplotlib_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = make_run(tmp_path / "run")
    with pytest.raises(InputError, match=r"matplotlib .*dpswd\[train\]"):
        write_report(path)
    assert not list(path.glob("report.*"))
