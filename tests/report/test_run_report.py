import importlib.resources
import json
import math
from pathlib import Path

import jsonschema
import pytest
from factories import COARSE, COUNTS, ROWS, SKETCH

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.errors import InputError
from dpswd.report.collect import NOT_COVERED, collect

SCHEMA = json.loads(importlib.resources.files("dpswd.report").joinpath("schema.json").read_text())
PNG = b"\x89PNG\r\n\x1a\n" + b"not really"


def test_report_of_a_one_shot_run(make_run):
    path = make_run()
    (path / "samples.png").write_bytes(PNG)
    rows = [
        {
            "dataset": "digits",
            "classifier": "MLP",
            "train": "real",
            "accuracy": 97.5,
            "n_train": 9,
            "n_test": 9,
        }
    ]
    (path / "downstream.json").write_text(json.dumps({"rows": rows}))
    report, curve = collect(path)
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    guarantee = report["guarantee"]
    assert report["private"]
    assert report["sound"]
    assert not report["reasons"]
    assert not report["caveats"]
    mu = math.sqrt(2 / 50**2 + (0.01**2 * 2 / 0.0175**2))
    assert guarantee["mu"] == pytest.approx(mu)
    assert guarantee["exactly_gaussian"]
    assert guarantee["tier"] == 1
    assert [row["delta"] for row in guarantee["epsilon_delta"]] == [1e-4, 1e-5, 1e-6, 1e-7]
    assert all(row["epsilon_pld"] <= row["epsilon_rdp"] for row in guarantee["epsilon_delta"])
    assert [row["fpr"] for row in guarantee["trade_off"]] == [10.0**-n for n in range(10, 0, -1)]
    assert guarantee["profile"][0] == {"epsilon": 0.0, "delta": guarantee["advantage"]}
    assert report["config"]["matches_ledger"]
    assert report["downstream"] == rows
    assert set(NOT_COVERED) == set(report["not_covered"])  # the run's words on evaluation are not repeated
    assert curve["fpr"] == sorted(curve["fpr"])
    assert all(0 <= fnr <= 1 for fnr in curve["fnr"])
    assert report == collect(path)[0]


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_report_of_a_subsampled_run(make_run, accountant):
    report, _ = collect(make_run((ROWS, 1000, 50), accountant=accountant))
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    expected = PrivacyAccountant(accountant).step(ROWS, sample_size=1000, n_releases=50).get_epsilon(1e-5)
    assert report["guarantee"]["epsilon"] == pytest.approx(expected, rel=1e-9)
    assert report["accountant"] == accountant
    assert not report["guarantee"]["exactly_gaussian"]
    deltas = [point["delta"] for point in report["guarantee"]["profile"]]
    assert deltas == sorted(deltas, reverse=True)


def test_planned_releases_count_where_a_run_stopped_early(make_run):
    report, _ = collect(make_run((COUNTS, 1000, 1), (ROWS, 1000, 4), planned=201))
    assert report["releases"]["made"] == 5
    assert report["releases"]["planned"] == 201
    whole = PrivacyAccountant().step(COUNTS, sample_size=1000).step(ROWS, sample_size=1000, n_releases=200)
    assert report["guarantee"]["epsilon"] == pytest.approx(whole.get_epsilon(1e-5), rel=1e-9)
    assert "5 of 201" in report["caveats"][0]


def test_crash_that_left_an_old_privacy_json_is_reported_from_the_ledger(make_run):
    report, _ = collect(make_run((ROWS, 1000, 4), planned=50, releases_made=0))
    assert report["releases"]["made"] == 4


def test_fixed_seed_is_not_private(make_run):
    report, _ = collect(make_run((SKETCH.replace(noise_seed=1), 1000, 1)))
    assert not report["private"]
    assert not report["sound"]
    assert "seed" in report["reasons"][0]


def test_clt_is_private_but_not_sound(make_run):
    report, _ = collect(make_run((ROWS.replace(bound="clt", failure_prob=1e-8), 1000, 5)))
    assert report["private"]
    assert not report["sound"]
    assert "CLT" in report["reasons"][0]
    jsonschema.Draft202012Validator(SCHEMA).validate(report)


@pytest.mark.parametrize(("claims", "header"), [({"private": False}, {}), ({}, {"private": False})])
def test_run_may_declare_itself_not_private(make_run, claims, header):
    report, _ = collect(make_run(header=header, **({"private": False} | claims)))
    assert not report["private"]
    assert not report["sound"]
    assert report["reasons"]


def test_delta_that_tails_spend_has_no_epsilon(make_run):
    mechanism = ROWS.replace(bound="bernstein", failure_prob=1e-6)
    report, _ = collect(make_run((mechanism, 1000, 100), delta=1e-3))
    jsonschema.Draft202012Validator(SCHEMA).validate(report)
    by_delta = {row["delta"]: row["epsilon"] for row in report["guarantee"]["epsilon_delta"]}
    assert by_delta[1e-3] > 0
    assert by_delta[1e-5] is None
    assert any("1/N" in caveat for caveat in report["caveats"])


def test_edited_config_is_said(make_run):
    report, _ = collect(make_run(config="model: {target_epsilon: 1.0}\n"))
    assert report["config"]["matches_ledger"] is False
    assert "config.yaml" in report["caveats"][0]


def test_high_regret_is_tier_two(make_run):
    assert collect(make_run((COARSE, 2000, 6)))[0]["guarantee"]["tier"] == 2


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        ({"epsilon": 1.0}, "epsilon=.* got 1.0"),
        ({"mu": 0.1}, "mu=.* got 0.1"),
        ({"releases_made": 3}, "at least 3 releases"),
        ({"planned_releases": 1}, "at most 1 releases"),
        ({"sample_size": 999}, "sample_size=1000"),
        ({"target_epsilon": 8.0}, "target_epsilon=10.0"),
        ({"sound": "yes"}, "'sound' .* to be bool, got 'yes'"),
        ({"sample_size": True}, "'sample_size' .* to be int, got True"),
        ({"target_delta": 7}, "target_delta=1e-05"),
        ({"mu": "small"}, "'mu' .* to be int or float or null, got 'small'"),
        ({"header": {"planned_releases": 7}}, "planned_releases=7"),
    ],
)
def test_claims_that_contradict_the_ledger_are_refused(make_run, claims, message):
    with pytest.raises(InputError, match=message) as caught:
        collect(make_run(**claims))
    assert "\n" not in str(caught.value)


def test_claim_of_privacy_or_soundness_against_the_ledger_is_refused(make_run):
    with pytest.raises(InputError, match="fixed noise seed"):
        collect(make_run((SKETCH.replace(noise_seed=1), 1000, 1), name="a", private=True, sound=True))
    with pytest.raises(InputError, match="not a proof"):
        collect(make_run((ROWS.replace(bound="clt", failure_prob=1e-8), 1000, 5), name="b", sound=True))


def _break(path: Path, what: str) -> None:
    ledger = path / "ledger.jsonl"
    if what == "no directory":
        path.rename(path.with_name("elsewhere"))
    elif what == "no ledger":
        ledger.unlink()
    elif what == "edited ledger":
        ledger.write_text(ledger.read_text().replace("50.0", "60.0"))
    elif what == "cut ledger":
        ledger.write_text("".join(ledger.read_text().splitlines(keepends=True)[:-1]))
    elif what == "no privacy.json":
        (path / "privacy.json").unlink()
    elif what == "half a privacy.json":
        (path / "privacy.json").write_text((path / "privacy.json").read_text()[:50])
    elif what == "list":
        (path / "privacy.json").write_text("[]")
    elif what == "missing key":
        (path / "privacy.json").write_text("{}")
    elif what == "picture":
        (path / "samples.png").write_bytes(b"GIF89a")
    elif what == "accuracy":
        row = {"dataset": "d", "classifier": "c", "train": "real", "accuracy": 197.5}
        (path / "downstream.json").write_text(json.dumps({"rows": [row]}))
    elif what == "rows":
        (path / "downstream.json").write_text("{}")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no directory", "run directory, got .*nothing there"),
        ("no ledger", "Expected a ledger"),
        ("edited ledger", "chain"),
        ("cut ledger", "the ledger was cut"),
        ("no privacy.json", "privacy.json, got none"),
        ("half a privacy.json", "JSON in .*corrupt"),
        ("list", "JSON object"),
        ("missing key", "'sound'"),
        ("picture", "PNG"),
        ("accuracy", "0 to 100 percent"),
        ("rows", "list 'rows'"),
    ],
)
def test_broken_run_gives_one_sentence_and_no_file(make_run, what, message):
    path = make_run()
    _break(path, what)
    with pytest.raises(InputError, match=message) as caught:
        collect(path)
    assert "\n" not in str(caught.value)
    assert not list(path.glob("report.*"))


def test_schema_is_itself_valid_and_rejects_what_is_missing(make_run):
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    report, _ = collect(make_run())
    del report["guarantee"]["mu"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SCHEMA).validate(report)


@pytest.mark.parametrize(
    ("together", "beginning"),
    [
        ({"sound": True, "sentence": "All runs together."}, "All runs together."),
        ({"sound": False, "sentence": "All runs together."}, "NOT SOUND: a run in its ledger is not; see dpswd ledger"),
        ({"private": False, "sentence": "All runs together."}, "NOT PRIVATE: a run in its ledger is not; see dpswd"),
        ({"sound": False, "sentence": "NOT PRIVATE: run a. All runs"}, "NOT PRIVATE: run a. All runs"),
        (None, "Other runs share its ledger, and their costs add up. See dpswd ledger show."),
        ({"sound": False}, "NOT SOUND: a run in its ledger is not; see dpswd ledger show. Other runs share"),
    ],
)
def test_runs_that_share_a_ledger(make_run, together, beginning):
    report, _ = collect(make_run(header={"shared": True}, across_runs=together))
    (caveat,) = report["caveats"]
    assert caveat.startswith(beginning)
