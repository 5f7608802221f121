"""What a report states of a run: numbers, caveats, refusals of damaged files."""

import base64
import importlib.resources
import json
import math
from pathlib import Path

import jsonschema
import pytest
import torch
from factories import COUNTS, ROWS, make_run

from dpswd import Budget, ClassCounts, PrivateRecords
from dpswd._png import mark_picture
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.ledger import HANDED_OVER
from dpswd.budget.statement import NOT_COVERED
from dpswd.errors import DpswdError, InputError
from dpswd.report.collect import collect
from dpswd.report.sentences import summary

SCHEMA = json.loads(importlib.resources.files("dpswd.report").joinpath("schema.json").read_text())
SCHEMA_CHECKER = jsonschema.Draft202012Validator(SCHEMA)
PNG = b"\x89PNG\r\n\x1a\n" + b"not really"
ACCURACY = {
    "dataset": "digits",
    "classifier": "mlp",
    "train": "synthetic",
    "accuracy": 97.5,
    "n_train": 9,
    "n_test": 9,
}


def report_of(path):
    """The report of a run directory, as report.json has it, which must be valid."""
    report, _ = collect(path)
    content = json.loads(json.dumps(report.to_dict()))
    SCHEMA_CHECKER.validate(content)
    return content


def test_collect_one_shot_run(tmp_path):
    path = make_run(tmp_path / "run")
    report = report_of(path)
    assert report["private"]
    assert report["sound"]
    assert report["reasons"] == report["caveats"] == []
    assert report["not_covered"] == list(NOT_COVERED)
    guarantee = report["guarantee"]
    counts_mu = math.sqrt(2) / 50
    sketch_mu = 0.01 * math.sqrt(2) / 0.0175
    assert guarantee["mu"] == pytest.approx(math.hypot(counts_mu, sketch_mu))
    assert guarantee["exactly_gaussian"]
    assert guarantee["tier"] == 1
    assert [row["delta"] for row in guarantee["epsilon_delta"]] == [1e-4, 1e-5, 1e-6]
    assert all(row["epsilon_pld"] <= row["epsilon_rdp"] for row in guarantee["epsilon_delta"])
    assert [row["fpr"] for row in guarantee["trade_off"]] == [10.0**-n for n in range(10, 0, -1)]
    best = guarantee["advantage_rates"]
    assert best["tpr"] - best["fpr"] == pytest.approx(guarantee["advantage"], abs=1e-9)
    assert guarantee["profile"][0] == {"epsilon": 0.0, "delta": guarantee["advantage"]}
    assert report_of(path) == report


def test_collect_returns_the_curve(tmp_path):
    report, curve = collect(make_run(tmp_path / "run"))
    assert curve.mu == report.guarantee.mu
    tier = summary(report).tier
    assert tier.startswith("μ alone describes what an attacker can do at every false-positive rate")
    assert "are those of the run (the regret is 0)" in tier


def test_collect_pictures_and_accuracies(tmp_path):
    path = make_run(tmp_path / "run")
    (path / "samples.png").write_bytes(PNG)
    (path / "evaluation.json").write_text(json.dumps({"rows": [ACCURACY]}))
    report = report_of(path)
    assert report["evaluation"] == [ACCURACY]
    assert report["pictures"] == {"samples.png": base64.b64encode(PNG).decode()}


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_collect_subsampled_run(tmp_path, accountant):
    report = report_of(make_run(tmp_path / "run", (ROWS, 1000, 50), accountant=accountant))
    account = PrivacyAccountant(accountant).step(ROWS, sample_size=1000, n_releases=50)
    guarantee = report["guarantee"]
    assert guarantee["epsilon"] == pytest.approx(account.get_epsilon(1e-5), rel=1e-9)
    assert report["accountant"] == accountant
    assert not guarantee["exactly_gaussian"]
    deltas = [point["delta"] for point in guarantee["profile"]]
    assert deltas == sorted(deltas, reverse=True)


def test_planned_releases_count_where_a_run_stopped_early(tmp_path):
    groups = [(COUNTS, 1000, 1), (ROWS, 1000, 4)]
    report = report_of(make_run(tmp_path / "run", *groups, planned=201))
    assert report["releases"]["made"] == 5
    assert report["releases"]["planned"] == 201
    account = PrivacyAccountant()
    account.step(COUNTS, sample_size=1000)
    account.step(ROWS, sample_size=1000, n_releases=200)
    expected = account.get_epsilon(1e-5)
    assert report["guarantee"]["epsilon"] == pytest.approx(expected, rel=1e-9)
    assert "5 of 201" in report["caveats"][0]


def test_delta_that_tails_use_up_has_no_epsilon(tmp_path):
    mechanism = ROWS.replace(bound="bernstein", failure_prob=1e-6)
    report = report_of(make_run(tmp_path / "run", (mechanism, 1000, 100), delta=1e-3))
    by_delta = {row["delta"]: row["epsilon_pld"] for row in report["guarantee"]["epsilon_delta"]}
    assert by_delta[1e-3] > 0
    assert by_delta[1e-5] is None


# Caveats


def test_weights_of_this_run_only_have_no_caveat(tmp_path):
    path = make_run(tmp_path / "run", header={"run": "bb"}, weights_from_runs=["bb"])
    assert report_of(path)["caveats"] == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param(
            {"header": {"run": "bb"}, "weights_from_runs": ["aa", "bb"]},
            "releases of other runs (aa)",
            id="weights of another run",
        ),
        pytest.param(
            {"header": {"shared": True}, "across_runs": {"sentence": "NOT PRIVATE: run a."}},
            "NOT PRIVATE: run a.",
            id="shared ledger with a sentence",
        ),
        pytest.param({"header": {"shared": True}}, "dpswd ledger show", id="shared ledger"),
        pytest.param({"delta": 1e-3}, "not below 1 / N", id="large delta"),
        pytest.param({"config": "edited: true"}, "it was edited", id="edited config"),
    ],
)
def test_caveat_of_the_run(tmp_path, changes, words):
    (caveat,) = report_of(make_run(tmp_path / "run", **changes))["caveats"]
    assert words in caveat


@pytest.mark.parametrize(
    ("total", "is_stated"),
    [
        pytest.param({"epsilon": 2.0, "delta": 1e-2, "mu": 1.2}, True, id="another delta"),
        pytest.param({"epsilon": 9.0, "delta": 1e-9, "mu": 0.809}, False, id="only this run"),
        pytest.param({"epsilon": 12.5, "delta": 1e-5}, True, id="without mu"),
    ],
)
def test_total_over_runs_is_stated_where_it_is_above_this_run(tmp_path, total, is_stated):
    report = report_of(make_run(tmp_path / "run", across_runs=total))
    assert (report["guarantee"]["epsilon"] > total["epsilon"]) == (total["delta"] == 1e-2)
    assert ("together" in report) is is_stated


# Public facts

RECORDS = (
    "records: {name: lesions, n_records: 1000, shape: [1, 8, 8], classes: [a, b], "
    "taken: [size is taken.]}\n"
)
MANY_CLASSES = f"records: {{name: records, classes: {[*range(1000)]}}}"


@pytest.mark.parametrize(
    ("config", "title"),
    [
        (RECORDS, "Synthetic records of lesions"),
        (RECORDS + "title: Lesions", "Lesions"),
        ("records: {name: 3}", "Synthetic records of 3"),
        (MANY_CLASSES, "Privacy report: run"),
        ("a: [", "Privacy report: run"),
        (None, "Privacy report: run"),
    ],
)
def test_title(tmp_path, config, title):
    assert report_of(make_run(tmp_path / "run", config=config))["title"] == title


def test_title_that_is_passed_goes_first(tmp_path):
    report, _ = collect(make_run(tmp_path / "run", config=RECORDS), title="Mine")
    assert report.title == "Mine"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (RECORDS, "record: 1 x 8 x 8. The classes: a, b. size is taken. The settings"),
        (MANY_CLASSES, "The classes: 0, 1, 2"),
        ("records: {name: 3, classes: 7, taken: x}", "The classes: 7. x The settings"),
        ("a: [", "The number of records: 1,000. The settings"),
        (None, "The number of records: 1,000. The settings"),
    ],
)
def test_public_facts_of_the_records(tmp_path, config, words):
    report = report_of(make_run(tmp_path / "run", config=config))
    assert words in " ".join(report["public"])


@pytest.mark.parametrize(
    ("header", "public", "protected"),
    [
        ({"shape": [2, 3], "classes": ["a", "b"]}, "2 x 3. The classes: a, b. The", "its class"),
        ({"shape": [2, 3], "classes": []}, "2 x 3. The settings", "(classes were not read)"),
        ({}, "records: 1,000. The settings", "its class included"),
        ({"shape": [2], "classes": [], "taken": ["a fact."]}, "2. a fact. The", "not read"),
    ],
)
def test_facts_of_a_script_are_those_of_its_ledger(tmp_path, header, public, protected):
    report = report_of(make_run(tmp_path / "run", header=header, config=None))
    assert public in " ".join(report["public"])
    assert protected in report["protected"][0]


def test_the_report_says_what_may_be_published(tmp_path):
    publishing = report_of(make_run(tmp_path / "run"))["publishing"]
    may, _, may_not = publishing.partition("Keep to yourself: ")
    assert "ledger.jsonl" in may
    for word in ("records", "accuracy", "config.yaml"):
        assert word in may_not
    void = report_of(make_run(tmp_path / "void", private=False))["publishing"]
    assert void.startswith("Nothing")
    unproven = report_of(make_run(tmp_path / "unproven", sound=False))["publishing"]
    assert unproven.startswith("Nothing")
    tensors = make_run(tmp_path / "tensors", header={"records": HANDED_OVER}, sound=False)
    assert report_of(tensors)["publishing"].startswith("On the conditions")


def test_a_picture_of_unknown_origin_is_not_listed_without_a_condition(tmp_path):
    for name, of_releases in {"own": False, "library": True}.items():
        picture = make_run(tmp_path / name) / "samples.png"
        picture.write_bytes(PNG)
        mark_picture(picture, "", of_releases=of_releases)
    own = report_of(tmp_path / "own")
    library = report_of(tmp_path / "library")
    assert own["unchecked_pictures"] == ["samples.png"]
    assert library["unchecked_pictures"] == []
    may, _, condition = own["publishing"].partition("Code of your own")
    assert "samples.png" not in may
    assert "reports" not in may  # which contain the picture
    assert "drew samples.png: check that it shows no private record before" in condition
    assert "before you publish it or the reports." in condition
    assert "checkpoints (unless code of your own stores records in them)" in may
    assert "the reports" in library["publishing"]
    assert "synthetic records and samples.png. Keep" in library["publishing"]
    plain = report_of(make_run(tmp_path / "plain"))["publishing"]
    assert "samples.png" not in plain


# One person, several records


@pytest.fixture
def person_run(tmp_path):
    """A run on 60 records of 30 persons."""
    persons = [i // 2 for i in range(60)]
    labels = torch.arange(60) % 2
    records = PrivateRecords(torch.zeros(60, 2), labels, classes=[0, 1], unit=persons, per_unit=2)
    query = ClassCounts(2)
    budget = {"target_epsilon": 1.0, "target_delta": 1e-3, "run_dir": tmp_path / "run"}
    with Budget(records, [query], **budget):
        query.release(records)
    return tmp_path / "run"


def test_report_names_the_person_that_is_protected(person_run):
    report = report_of(person_run)
    assert report["records"]["unit"] == "one person, at most 2 records"
    assert report["records"]["size"] == 30
    assert "Each single person" in report["protected"][0]
    assert "at most 2 records" in report["protected"][0]
    assert "The number of persons: 30." in report["public"]
    assert not any("Several records" in line for line in report["not_covered"])
    assert report["guarantee"]["epsilon"] <= 1.0


def test_report_of_records_names_one_record(tmp_path):
    report = report_of(make_run(tmp_path / "run"))
    assert report["records"]["unit"] == "one record"
    assert "The number of records: 1,000." in report["public"]
    assert any("Several records" in line for line in report["not_covered"])


# Refusals


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"epsilon": 1.0}, "epsilon="),
        ({"epsilon": "1"}, "epsilon="),
        ({"mu": 0.1}, "mu="),
        ({"releases_made": 3}, "at least 3 releases"),
        ({"sound": "yes"}, "'sound' .* bool"),
    ],
)
def test_claims_that_contradict_the_ledger_are_refused(tmp_path, claims, message):
    with pytest.raises(InputError, match=message) as caught:
        collect(make_run(tmp_path / "run", **claims))
    assert "\n" not in str(caught.value)


def cut_last_line(path):
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))


def replace_sigma(path):
    path.write_text(path.read_text().replace("50.0", "60.0"))


def nest_deeply(path):
    path.write_text("[" * 100_000)


def write_empty_object(path):
    path.write_text("{}")


def write_cut_object(path):
    path.write_text('{"epsilon": NaN')


def write_list(path):
    path.write_text("[]")


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("ledger.jsonl", Path.unlink, "ledger"),
        ("ledger.jsonl", cut_last_line, "ledger"),
        ("ledger.jsonl", replace_sigma, "ledger"),
        ("privacy.json", Path.unlink, "privacy.json"),
        ("privacy.json", write_empty_object, "privacy.json"),
        ("privacy.json", nest_deeply, "privacy.json"),
        ("privacy.json", write_cut_object, "privacy.json"),
        ("evaluation.json", write_list, "evaluation.json"),
        ("evaluation.json", write_empty_object, "evaluation.json"),
    ],
)
def test_damaged_file_is_refused_by_its_name(tmp_path, name, damage, message):
    path = make_run(tmp_path / "run")
    damage(path / name)
    with pytest.raises(DpswdError, match=message) as caught:
        collect(path)
    assert "\n" not in str(caught.value)


def test_missing_directory_is_refused(tmp_path):
    with pytest.raises(DpswdError, match="nowhere"):
        collect(tmp_path / "nowhere")
