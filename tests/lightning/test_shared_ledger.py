"""Runs that share a ledger: reservation of the plan, resume, statement, weights of earlier runs, command line."""

import json

import pytest
import torch
from factories import (
    MECHANISM,
    STEPS,
    Mine,
    N,
    account,
    agree,
    checkpoint_at,
    fit_arguments,
    loader,
    privacy,
    trainer,
    written,
)

from dpswd import BudgetExceededError, InputError, PrivacyBudget
from dpswd._provenance import seen_runs
from dpswd.accounting.ledger import Ledger, SharedLedger
from dpswd.commands.main import main
from dpswd.errors import DpswdError
from dpswd.report.render import write_report


@pytest.fixture
def shared(tmp_path):
    return SharedLedger.create(tmp_path / "all.jsonl", target_epsilon=4.0, target_delta=1e-5).path


def run(directory, shared, *, epsilon=2.0, module=None, data=None, checkpoint=None):
    made = trainer(directory, budget=PrivacyBudget(epsilon, 1e-5, shared_ledger=str(shared)))
    module = module or Mine()
    made.fit(module, data or loader(), ckpt_path=checkpoint)
    return made, module


def crash(directory, shared):
    with pytest.raises(RuntimeError, match="crash"):
        run(directory, shared, module=Mine(fail_at=3))
    return checkpoint_at(directory, 3)


def test_runs_with_different_plans(tmp_path, shared, tree):
    run(tmp_path / "a", shared)
    run(tmp_path / "b", shared, epsilon=3.0, data=loader(4))
    before, third = tree(tmp_path), Mine()
    with pytest.raises(BudgetExceededError, match="target_epsilon"):
        run(tmp_path / "c", shared, epsilon=3.0, module=third)
    assert third.criterion.n_releases == 0
    assert tree(tmp_path) == before
    ledger = Ledger.open_existing(shared)
    one, two = (Ledger.open_existing(tmp_path / name / "ledger.jsonl") for name in "ab")
    assert ledger.groups() == one.groups() + two.groups()
    assert list(ledger.runs) == [one.header["run"], two.header["run"]]
    facts, together = privacy(tmp_path / "b"), account(ledger.groups()).get_epsilon(1e-5)
    assert 3 < together <= 4
    assert facts["across_runs"]["epsilon"] == pytest.approx(together, rel=1e-12)
    assert facts["epsilon"] <= 3  # of this run
    assert not any(line.startswith("Other runs") for line in facts["not_covered"])


def test_an_interrupted_run_has_spent_its_plan(tmp_path, shared):
    checkpoint = crash(tmp_path / "a", shared)
    (made,), (planned,) = Ledger.open_existing(shared).groups(), Ledger.open_existing(shared).planned()
    assert (made[2], planned[2]) == (4, STEPS)
    assert account([made]).get_epsilon(1e-5) < 0.95 * account([planned]).get_epsilon(1e-5)  # the rest is not given back
    assert privacy(tmp_path / "a")["across_runs"]["epsilon"] == pytest.approx(account([planned]).get_epsilon(1e-5))
    run(tmp_path / "a", shared, checkpoint=checkpoint)
    ledger = Ledger.open_existing(shared)
    assert (len(ledger.runs), ledger.n_releases) == (1, STEPS)


def test_a_run_with_fixed_noise_voids_the_total(tmp_path, shared, capsys):
    run(tmp_path / "a", shared, module=Mine(MECHANISM.replace(noise_seed=7)))
    run(tmp_path / "b", shared)
    bad = Ledger.open_existing(tmp_path / "a" / "ledger.jsonl").header["run"]
    facts = privacy(tmp_path / "b")
    assert facts["private"] is True  # by itself
    assert facts["across_runs"]["private"] is facts["across_runs"]["sound"] is False
    start = f"NOT PRIVATE: run {bad}"
    assert any(caveat.startswith(start) for caveat in write_report(tmp_path / "b")["caveats"])
    assert main(["ledger", "show", str(shared), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sentence"].startswith(start)


def cut(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))


@pytest.mark.parametrize(
    ("damage", "match"), [(cut, "the ledger was cut"), (lambda path: path.unlink(), "dpswd ledger create")]
)
def test_resume_on_a_damaged_shared_ledger_is_refused(tmp_path, shared, damage, match):
    checkpoint = crash(tmp_path / "a", shared)
    damage(shared)
    before, module = (tmp_path / "a" / "ledger.jsonl").read_bytes(), Mine()
    with pytest.raises(DpswdError, match=match):
        run(tmp_path / "a", shared, module=module, checkpoint=checkpoint)
    assert module.criterion.n_releases == 0
    assert (tmp_path / "a" / "ledger.jsonl").read_bytes() == before


def test_a_resumed_run_keeps_its_shared_ledger(tmp_path, shared):
    inside = crash(tmp_path / "in", shared)
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path / "out", epsilon=2.0).fit(Mine(fail_at=3), loader())
    with pytest.raises(InputError, match="shared_ledger"):
        trainer(tmp_path / "in", epsilon=2.0).fit(Mine(), loader(), ckpt_path=inside)
    with pytest.raises(InputError, match="shared_ledger"):
        run(tmp_path / "out", shared, checkpoint=checkpoint_at(tmp_path / "out", 3))


def test_own_ledger_as_shared_ledger_is_refused(tmp_path):
    with pytest.raises(InputError, match="shared_ledger"):
        run(tmp_path, tmp_path / "ledger.jsonl")
    assert not list(tmp_path.iterdir())


def test_a_directory_without_releases_can_be_used_again(tmp_path):
    class Early(Mine):
        def on_train_start(self):
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path).fit(Early(), loader())
    first = Ledger.open_existing(tmp_path / "ledger.jsonl")
    assert first.n_releases == 0
    trainer(tmp_path).fit(Mine(), loader())
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == STEPS
    with pytest.raises(DpswdError, match="no release was made"):
        first.record(MECHANISM, N)  # by a process that had not started to release


def test_a_kill_between_the_two_ledgers_is_made_up_for(tmp_path, shared, monkeypatch):
    """The resumed run draws the release under the same line, and writes the missing line of the shared ledger."""
    record = SharedLedger.record

    def dies(ledger, *arguments):
        if ledger.n_releases == 3:
            raise RuntimeError("killed")
        record(ledger, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(SharedLedger, "record", dies)
        with pytest.raises(RuntimeError, match="killed"):
            run(tmp_path / "a", shared)
    assert (written(tmp_path / "a"), Ledger.open_existing(shared).n_releases) == (4, 3)
    run(tmp_path / "a", shared, checkpoint=checkpoint_at(tmp_path / "a", 3))
    assert Ledger.open_existing(shared).groups() == Ledger.open_existing(tmp_path / "a" / "ledger.jsonl").groups()
    agree(tmp_path / "a", STEPS)


# weights of earlier runs


def test_weights_of_an_earlier_run_are_refused_unless_the_shared_ledger_contains_it(tmp_path, shared):
    first = run(tmp_path / "a", shared)[1]
    torch.save(first.state_dict(), tmp_path / "weights.pt")
    (earlier,) = seen_runs(first)
    other = SharedLedger.create(tmp_path / "other.jsonl", target_epsilon=9.0, target_delta=1e-5).path
    for fit in (lambda m: trainer(tmp_path / "b").fit(m, loader()), lambda m: run(tmp_path / "c", other, module=m)):
        second = Mine()
        second.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
        with pytest.raises(InputError, match=earlier):
            fit(second)
        assert second.criterion.n_releases == 0
    third = Mine()
    third.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    made, _ = run(tmp_path / "d", shared, module=third, epsilon=1.0)
    facts = made.budget.statement()
    assert facts["weights_from_runs"] == sorted([earlier, facts["run"]])
    assert facts["across_runs"]["epsilon"] > facts["epsilon"]
    trainer(tmp_path / "e").fit(Mine(), loader())  # control: new weights


# command line


def test_command_line(tmp_path, capfd):
    shared = tmp_path / "all.jsonl"

    def fit(name):
        return main(fit_arguments(tmp_path / name, 2, "--privacy.shared_ledger", str(shared)))

    assert fit("a") == 2
    assert "dpswd ledger create" in capfd.readouterr().err
    assert main(["ledger", "create", str(shared), "--epsilon", "10.2", "--delta", "1e-5"]) == 0
    assert fit("a") == 0
    capfd.readouterr()
    assert fit("b") == 1
    assert capfd.readouterr().err.strip().splitlines()[-1].startswith("dpswd: Expected all runs in")
    assert not (tmp_path / "b").exists()
