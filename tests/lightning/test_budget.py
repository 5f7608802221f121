"""Budget without Lightning: calibration over shares, ledger, stored releases, statement, refusals."""

import hashlib
import json
import math
import threading

import pytest
import torch

from dpswd import BudgetExceededError, InputError
from dpswd.accounting.ledger import Ledger
from dpswd.queries import ClassCounts, SecondMoment
from dpswd.report.render import write_report
from dpswd.training.budget import Budget

N = 1000
LABELS, ROWS = torch.arange(N) % 2, torch.zeros(N, 3)


def budget(queries, directory, epsilon=1.0, delta=1e-5, **options):
    return Budget(queries, N, target_epsilon=epsilon, target_delta=delta, run_dir=directory, **options)


def spend(directory, shares=(0.25, 0.5), epsilon=2.0, **options):
    counts, moment = ClassCounts(2, share=shares[0]), SecondMoment(3, share=shares[1])
    with budget([counts, moment], directory, epsilon, **options) as made:
        counts.release(LABELS)
        moment.release(ROWS)
    return made, counts, moment


def test_shares_split_the_squared_mu(tmp_path):
    made, counts, moment = spend(tmp_path)
    facts = made.statement()
    mus = [query.mechanism.sensitivity / query.mechanism.sigma for query in (counts, moment)]
    assert mus[0] ** 2 / (mus[0] ** 2 + mus[1] ** 2) == pytest.approx(0.25, rel=0.02)  # calibration errs by 1 %
    assert math.hypot(*mus) == pytest.approx(facts["mu"], rel=1e-4)
    assert 0.99 * 2.0 < facts["epsilon"] <= 2.0
    assert facts["covered_runs"] == facts["weights_from_runs"] == [facts["run"]]


def test_report_of_the_directory(tmp_path):
    spend(tmp_path, config={"method": "test"})
    report = write_report(tmp_path)
    assert report["sound"] is report["private"] is True
    assert report["guarantee"]["epsilon"] <= 2.0
    assert report["releases"]["made"] == report["releases"]["planned"] == 2
    config = (tmp_path / "config.yaml").read_bytes()
    assert config == b"method: test\n"
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").header["config_sha256"] == hashlib.sha256(config).hexdigest()


def test_stored_releases_are_the_returned_values(tmp_path):
    counts = ClassCounts(2)
    with budget([counts], tmp_path) as made:
        values = counts.release(LABELS)
    content = torch.load(tmp_path / "releases" / "0001.pt", weights_only=True)
    assert torch.equal(content["tensors"]["values"], values)
    assert (content["run"], content["ordinal"]) == (made.run, 1)


def test_unplanned_releases_are_refused(tmp_path):
    counts = ClassCounts(2)
    with budget([counts], tmp_path):
        counts.release(LABELS)
        with pytest.raises(BudgetExceededError, match="at most 1 releases"):
            counts.release(LABELS)
        with pytest.raises(InputError, match="recorder for every release"):
            SecondMoment(3, sigma=1.0).release(ROWS)
    with pytest.raises(BudgetExceededError, match="at most 1 releases"):
        counts.release(LABELS)
    assert json.loads((tmp_path / "privacy.json").read_text())["releases_made"] == 1
    SecondMoment(3, sigma=1.0).release(ROWS)  # control: no budget runs any more


def test_privacy_json_after_a_failure(tmp_path):
    counts, moment = ClassCounts(2), SecondMoment(3)

    def fail():
        with budget([counts, moment], tmp_path):
            counts.release(LABELS)
            moment.release(ROWS + math.inf)

    with pytest.raises(InputError, match="finite"):
        fail()
    facts = json.loads((tmp_path / "privacy.json").read_text())
    assert (facts["releases_made"], facts["planned_releases"]) == (1, 2)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"queries": []}, "queries"),
        ({"sample_size": 0}, "sample_size"),
        ({"target_epsilon": 0.0}, "target_epsilon"),
        ({"target_delta": 1e-3}, "target_delta"),
        ({"accountant": "gdp"}, "accountant"),
        ({"shared_ledger": "missing.jsonl"}, "dpswd ledger create"),
        ({"run_dir": "file/run"}, "Expected to write"),
    ],
)
def test_bad_input_leaves_no_file(tmp_path, tree, monkeypatch, change, match):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    arguments = {"queries": [ClassCounts(2)], "sample_size": N, "target_epsilon": 1.0, "target_delta": 1e-5}
    arguments |= {"run_dir": "run", "config": {"method": "test"}} | change
    with pytest.raises(InputError, match=match), Budget(**arguments):
        pass
    assert tree(tmp_path) == {"file": 0}


def test_threads_share_one_planned_release(tmp_path, monkeypatch):
    query = ClassCounts(2)
    made, done, refused, start = budget([query], tmp_path), [], [], threading.Barrier(8)
    check = made.check

    def slow(mechanism):
        check(mechanism)
        threading.Event().wait(0.02)  # other threads check meanwhile

    monkeypatch.setattr(made, "check", slow)

    def release():
        start.wait()
        try:
            done.append(query.release(LABELS))
        except BudgetExceededError:
            refused.append(True)

    with made:
        threads = [threading.Thread(target=release) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (len(done), len(refused)) == (1, 7)
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 1
