"""Reports: what is collected from a run directory, and its HTML, Markdown and files."""

import base64
import importlib.resources
import json
import math
import re
import sys
from pathlib import Path

import factories
import jsonschema
import pytest
from factories import COUNTS, ROWS, SKETCH

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.ledger import CONDITIONS, HANDED_OVER
from dpswd.budget.budget import NOT_COVERED
from dpswd.errors import DpswdError, InputError
from dpswd.report import write_report
from dpswd.report.collect import collect
from dpswd.report.plots import draw
from dpswd.report.render import html, markdown, number, percent, snippet

SCHEMA = json.loads(importlib.resources.files("dpswd.report").joinpath("schema.json").read_text())
CHECKER = jsonschema.Draft202012Validator(SCHEMA)
PNG = b"\x89PNG\r\n\x1a\n" + b"not really"
ROW = {
    "dataset": "digits",
    "classifier": "mlp",
    "train": "synthetic",
    "accuracy": 97.5,
    "n_train": 9,
    "n_test": 9,
}


@pytest.fixture
def make_run(tmp_path):
    """Writes a run directory as a training run does."""
    return lambda *groups, name="run", **changes: factories.make_run(
        tmp_path / name, *groups, **changes
    )


def facts(path, **options):
    report, _ = collect(path, **options)
    CHECKER.validate(report)
    return report


def test_collect_one_shot_run(make_run):
    path = make_run()
    (path / "samples.png").write_bytes(PNG)
    (path / "evaluation.json").write_text(json.dumps({"rows": [ROW]}))
    report, curve = collect(path)
    CHECKER.validate(report)
    guarantee = report["guarantee"]
    assert (report["private"], report["sound"], report["reasons"], report["caveats"]) == (
        True,
        True,
        [],
        [],
    )
    assert guarantee["mu"] == pytest.approx(math.sqrt(2 / 50**2 + (0.01**2 * 2 / 0.0175**2)))
    assert (guarantee["exactly_gaussian"], guarantee["tier"]) == (True, 1)
    assert [row["delta"] for row in guarantee["epsilon_delta"]] == [1e-4, 1e-5, 1e-6]
    assert all(row["epsilon_pld"] <= row["epsilon_rdp"] for row in guarantee["epsilon_delta"])
    assert [row["fpr"] for row in guarantee["trade_off"]] == [10.0**-n for n in range(10, 0, -1)]
    assert guarantee["profile"][0] == {"epsilon": 0.0, "delta": guarantee["advantage"]}
    assert (report["evaluation"], report["not_covered"]) == ([ROW], NOT_COVERED)
    assert report["pictures"] == {"samples.png": base64.b64encode(PNG).decode()}
    assert (curve.mu, collect(path)[0]) == (guarantee["mu"], report)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_collect_subsampled_run(make_run, accountant):
    report = facts(make_run((ROWS, 1000, 50), accountant=accountant))
    expected = (
        PrivacyAccountant(accountant).step(ROWS, sample_size=1000, n_releases=50).get_epsilon(1e-5)
    )
    assert report["guarantee"]["epsilon"] == pytest.approx(expected, rel=1e-9)
    assert report["accountant"] == accountant
    assert not report["guarantee"]["exactly_gaussian"]
    deltas = [point["delta"] for point in report["guarantee"]["profile"]]
    assert deltas == sorted(deltas, reverse=True)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"header": {"run": "bb"}, "weights_from_runs": ["bb"]}, None),
        (
            {"header": {"run": "bb"}, "weights_from_runs": ["aa", "bb"]},
            "releases of other runs (aa)",
        ),
        (
            {"header": {"shared": True}, "across_runs": {"sentence": "NOT PRIVATE: run a."}},
            "NOT PRIVATE: run a.",
        ),
        ({"header": {"shared": True}}, "dpswd ledger show"),
        ({"delta": 1e-3}, "not below 1 / N"),
        ({"config": "edited: true"}, "it was edited"),
    ],
)
def test_caveats(make_run, changes, words):
    caveats = facts(make_run(**changes))["caveats"]
    assert len(caveats) == (words is not None)
    assert (words or "") in "".join(caveats)


RECORDS = "records: {name: lesions, n_records: 1000, shape: [1, 8, 8], classes: [a, b], taken: [size is taken.]}\n"


@pytest.mark.parametrize(
    ("config", "title", "words"),
    [
        (
            RECORDS,
            "Synthetic records of lesions",
            "record: 1, 8, 8. The classes: a, b. size is taken.",
        ),
        (RECORDS + "title: Lesions", "Lesions", "size is taken."),
        (f"records: {{name: records, classes: {[*range(1000)]}}}", None, "The classes: 0, 1, 2"),
        (
            "records: {name: 3, classes: 7, taken: x}",
            "Synthetic records of 3",
            "The classes: 7. x The settings",
        ),
        ("a: [", None, "The number of records: 1,000. The settings"),
        (None, None, "The number of records: 1,000. The settings"),
    ],
)
def test_public_facts_of_the_records(make_run, config, title, words):
    report = facts(make_run(config=config))
    assert report["title"] == (title or "Privacy report: run")
    assert words in " ".join(report["public"])


def test_planned_releases_count_where_a_run_stopped_early(make_run):
    report = facts(make_run((COUNTS, 1000, 1), (ROWS, 1000, 4), planned=201))
    assert (report["releases"]["made"], report["releases"]["planned"]) == (5, 201)
    whole = (
        PrivacyAccountant()
        .step(COUNTS, sample_size=1000)
        .step(ROWS, sample_size=1000, n_releases=200)
    )
    assert report["guarantee"]["epsilon"] == pytest.approx(whole.get_epsilon(1e-5), rel=1e-9)
    assert "5 of 201" in report["caveats"][0]


def test_delta_that_tails_use_up_has_no_epsilon(make_run):
    mechanism = ROWS.replace(bound="bernstein", failure_prob=1e-6)
    report = facts(make_run((mechanism, 1000, 100), delta=1e-3))
    by_delta = {row["delta"]: row["epsilon_pld"] for row in report["guarantee"]["epsilon_delta"]}
    assert by_delta[1e-3] > 0
    assert by_delta[1e-5] is None


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"epsilon": 1.0}, "epsilon="),
        ({"mu": 0.1}, "mu="),
        ({"releases_made": 3}, "at least 3 releases"),
        ({"sound": "yes"}, "'sound' .* bool"),
    ],
)
def test_claims_that_contradict_the_ledger_are_refused(make_run, claims, message):
    with pytest.raises(InputError, match=message) as caught:
        collect(make_run(**claims))
    assert "\n" not in str(caught.value)


def cut_last_line(path):
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("ledger.jsonl", Path.unlink),
        ("ledger.jsonl", cut_last_line),
        ("ledger.jsonl", lambda path: path.write_text(path.read_text().replace("50.0", "60.0"))),
        ("privacy.json", Path.unlink),
        ("privacy.json", lambda path: path.write_text("{}")),
        ("privacy.json", lambda path: path.write_text("[" * 100_000)),
        ("privacy.json", lambda path: path.write_text('{"epsilon": NaN')),
        ("evaluation.json", lambda path: path.write_text("[]")),
        ("", lambda path: path.rename(path.with_name("elsewhere"))),
    ],
)
def test_damaged_run_is_refused(make_run, name, damage):
    path = make_run()
    damage(path / name if name else path)
    with pytest.raises(
        DpswdError, match="run" if not name else "ledger" if "ledger" in name else name
    ) as caught:
        collect(path)
    assert "\n" not in str(caught.value)


EVIL = '<script>alert(1)</script> ``` | [x](javascript:y) & "quoted"\n# heading'
NAMES = ("report.html", "report.json", "report.md")


def render(path, **options):
    report, curve = collect(path, **options)
    return report, html(report, draw(curve)), markdown(report)


def test_html_is_self_contained(make_run):
    _, text, _ = render(make_run((ROWS, 1000, 50)))
    assert not re.search(r"<(script|link|object|iframe)|\son\w+=", text)
    assert re.findall(r'(?:src|href)="([^;]*)', text) == ["data:image/svg+xml"]
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_text_from_files_is_escaped(make_run):
    path = make_run(config=EVIL, header={"run": EVIL}, name="a&b<i>")
    rows = [{"dataset": EVIL, "classifier": EVIL, "train": EVIL, "accuracy": 50}]
    (path / "evaluation.json").write_text(json.dumps({"rows": rows}))
    _, text, short = render(path, title=EVIL)
    assert not re.search("<(script|a|i)[ >]", text)
    assert text.count("&lt;script&gt;") >= 6
    outside = re.sub(r"(?s)(`{4,})yaml\n.*?\n\1\n", "", short)
    assert len(outside) < len(short)  # the fence is longer than any run of backticks in the file
    assert "<script>" not in outside
    assert not re.search(r"(?<!\\)\]\(javascript", outside)
    assert "# heading" not in outside.splitlines()


CLT = ((ROWS.replace(bound="clt", failure_prob=1e-8), 1000, 5),)
HANDED = {"header": {"records": HANDED_OVER}}  # whatever privacy.json says of it


@pytest.mark.parametrize(
    ("groups", "changes", "private", "banner", "words"),
    [
        ((), {"header": {"records": "behind a handle"}}, True, "", ("**μ", "An attacker who")),
        (
            ((SKETCH.replace(noise_seed=1), 1000, 1),),
            {"private": True},
            False,
            "NOT PRIVATE.",
            ("void: μ", "seed"),
        ),
        (
            CLT,
            {"sound": True},
            True,
            "NOT SOUND.",
            ("If the account holds", "normal approximation"),
        ),
        (
            (),
            HANDED,
            True,
            "CONDITIONAL.",
            ("conditional: μ", "three conditions above, an attacker", *CONDITIONS),
        ),
        (CLT, HANDED, True, "CONDITIONAL AND NOT SOUND.", ("normal approximation", *CONDITIONS)),
    ],
)
def test_banner_comes_before_any_number(make_run, groups, changes, private, banner, words):
    """No claim of privacy.json, which changes say, strengthens what the ledger gives."""
    report, text, short = render(make_run(*groups, **changes))
    CHECKER.validate(report)
    assert (report["private"], report["sound"]) == (private, not banner)
    assert report["conditions"] == (CONDITIONS if changes == HANDED else [])
    if banner:
        assert text.index(f"<blockquote>\n<p><strong>{banner}</strong>") < text.index("μ")
        assert short.index(f"> **{banner}**") < short.index("μ")
    else:
        assert "<blockquote>" not in text
        assert "NOT" not in short
    assert all(word in short for word in words)


def test_pictures_and_box_come_first(make_run):
    path = make_run(
        config="records: {name: x, classes: [ham, egg]}\nmodel:\n  centre: null\n  scale: 2\n"
    )
    for name in ("samples.png", "columns.png"):
        (path / name).write_bytes(b"\x89PNG")
    _, text, short = render(path)
    assert text.count('src="data:image/png;base64,') == 2
    order = [
        short.index(word)
        for word in ("Synthetic records of x", "samples.png", "columns.png", "| public", "μ")
    ]
    assert order == sorted(order)
    assert "One row per class: ham, egg." in short
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
    assert [float(part) for part in lines[0].split()] == pytest.approx(
        [guarantee["mu"], guarantee["regret"]], abs=1e-9
    )
    assert float(lines[1]) == pytest.approx(guarantee["epsilon"], rel=1e-9)
    for line, row in zip(lines[2:], guarantee["trade_off"], strict=True):
        assert [float(part) for part in line.split()] == pytest.approx(
            [row["fpr"], row["fnr"]], rel=1e-12
        )


def test_numbers_are_rounded_towards_less_privacy():
    shown = {
        0.57201: "0.573",
        9.996: "10",
        1234.2: "1240",
        1e-5: "10⁻⁵",
        3.212e-7: "3.22 × 10⁻⁷",
        0.0: "0",
        None: "—",
    }
    assert {value: number(value) for value in shown} == shown
    assert number(0.57299, down=True) == "0.572"
    assert [percent(0.04066), percent(1.0)] == ["4.07 %", "100 %"]


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
