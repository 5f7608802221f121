"""A budget that spans runs, through training: admission, resume, the statement of every run, the command line."""

import json

import pytest
from factories import MECHANISM, STEPS, Mine, N, account, loader, privacy, trainer

from dpswd import BudgetExceededError, InputError, calibrate_sigma
from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main
from dpswd.report.render import write_report
from dpswd.training.callback import PrivacyBudget
from dpswd.training.cli import _long_spellings


def run(directory, shared, *, total=None, epsilon=2.0, module=None, data=None, checkpoint=None, steps=STEPS):
    made = trainer(directory, epsilon=epsilon, steps=steps)
    budget = PrivacyBudget(epsilon, 1e-5, ledger=str(shared), ledger_epsilon=total)
    made.callbacks[made.callbacks.index(made.budget)] = made.budget = budget
    module = module or Mine()
    made.fit(module, data or loader(steps), ckpt_path=checkpoint)
    return made, module


def test_runs_with_different_plans_share_a_budget(tmp_path, tree):
    shared = tmp_path / "all.jsonl"
    run(tmp_path / "a", shared, total=4.0)
    _, other = run(tmp_path / "b", shared, epsilon=3.0, data=loader(4), steps=4)
    before = tree(tmp_path)
    third = Mine()
    with pytest.raises(BudgetExceededError, match=r"to cost at most epsilon=4 at delta=1e-05, got .* with this one"):
        run(tmp_path / "c", shared, epsilon=3.0, module=third)
    assert third.criterion.n_releases == 0
    assert {name for name in tree(tmp_path) if name.startswith("c")} == set()
    assert tree(tmp_path) == before
    ledger = Ledger.open_existing(shared)
    assert ledger.n_releases == STEPS + 4
    one, two = (Ledger.open_existing(tmp_path / name / "ledger.jsonl") for name in "ab")
    assert ledger.groups() == one.groups() + two.groups()
    assert list(ledger.runs) == [one.header["run"], two.header["run"]]
    facts = privacy(tmp_path / "b")
    together = account(ledger).get_epsilon(1e-5)
    assert 3 < together <= 4
    assert facts["across_runs"]["epsilon"] == pytest.approx(together, rel=1e-12)
    assert facts["epsilon"] <= 3  # its own
    assert not any(line.startswith("Other runs") for line in facts["not_covered"])
    assert other.criterion.n_releases == 4


def test_a_run_asks_for_no_more_than_there_is(tmp_path):
    made, _ = run(tmp_path / "a", tmp_path / "all.jsonl", total=1.0, epsilon=9.0)
    assert made.budget.target_epsilon == 1
    assert 0.99 < privacy(tmp_path / "a")["epsilon"] <= 1
    with pytest.raises(BudgetExceededError):
        run(tmp_path / "b", tmp_path / "all.jsonl", epsilon=0.1)


def test_a_crashed_run_has_spent_its_plan_and_can_be_resumed(tmp_path):
    shared = tmp_path / "all.jsonl"
    with pytest.raises(RuntimeError, match="crash"):
        run(tmp_path / "a", shared, total=9.0, module=Mine(fail_at=3))
    ledger, sigma = (
        Ledger.open_existing(shared),
        calibrate_sigma(MECHANISM, N, 6, target_epsilon=1.0, target_delta=1e-5),
    )
    (made,), (planned,), another = ledger.groups(), ledger.planned(), (MECHANISM.replace(sigma=sigma), N, 6)
    assert (made[2], planned[2]) == (4, STEPS)
    least, most = (account([group, another]).get_epsilon(1e-5) for group in (made, planned))
    assert least < 0.95 * most
    with pytest.raises(BudgetExceededError):  # there would be room if the rest of the plan were given back
        run(tmp_path / "b", shared, total=(least + most) / 2, epsilon=1.0)
    run(tmp_path / "c", shared, total=most * 1.001, epsilon=1.0)  # control
    (checkpoint,) = (tmp_path / "a" / "ckpt").glob("*step=3.ckpt")
    run(tmp_path / "a", shared, checkpoint=checkpoint)
    ledger = Ledger.open_existing(shared)
    assert (len(ledger.runs), ledger.n_releases) == (2, 2 * STEPS)


def test_a_run_that_is_not_private_voids_the_number_for_all_wherever_it_is_said(tmp_path, capsys):
    shared = tmp_path / "all.jsonl"
    run(tmp_path / "a", shared, total=9.0, module=Mine(MECHANISM.replace(noise_seed=7)))
    run(tmp_path / "b", shared)
    bad = Ledger.open_existing(tmp_path / "a" / "ledger.jsonl").header["run"]
    beginning = f"NOT PRIVATE: run {bad}: a fixed noise seed makes the noise repeatable"
    facts = privacy(tmp_path / "b")
    assert facts["private"] is True  # by itself
    assert facts["across_runs"]["private"] is facts["across_runs"]["sound"] is False
    sentence = facts["across_runs"]["sentence"]
    assert sentence.startswith(beginning)
    assert write_report(tmp_path / "b")["caveats"] == [sentence]
    assert json.loads((tmp_path / "b" / "report.json").read_text())["caveats"] == [sentence]
    assert f"\n{beginning}" in (tmp_path / "b" / "report.md").read_text()
    assert f"<p>{beginning}" in (tmp_path / "b" / "report.html").read_text()
    assert main(["ledger", "show", str(shared), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["sentence"].startswith(beginning)
    assert [entry["run"] for entry in shown["shortcomings"]] == [bad]
    assert main(["ledger", "show", str(shared)]) == 0
    text = capsys.readouterr().out
    assert 0 < text.index(f"\n{beginning}") < text.index("planned   epsilon")  # before any number


def cut(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (cut, "the ledger was cut or is another one, so the run cannot go on"),
        (lambda path: path.unlink(), r"Expected the run that is resumed in .*, got none"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b'"n": 2', b'"n": 3')), "the ledger was edited"),
    ],
    ids=["cut", "gone", "edited"],
)
def test_refuses_to_resume_on_a_damaged_shared_ledger(tmp_path, damage, match):
    shared = tmp_path / "all.jsonl"
    with pytest.raises(RuntimeError, match="crash"):
        run(tmp_path / "a", shared, total=3.0, module=Mine(fail_at=3))
    (checkpoint,) = (tmp_path / "a" / "ckpt").glob("*step=3.ckpt")
    damage(shared)
    before, module = (tmp_path / "a" / "ledger.jsonl").read_bytes(), Mine()
    with pytest.raises(InputError, match=match):
        run(tmp_path / "a", shared, total=3.0, module=module, checkpoint=checkpoint)
    assert module.criterion.n_releases == 0
    assert (tmp_path / "a" / "ledger.jsonl").read_bytes() == before


def test_refuses_to_leave_or_enter_a_shared_ledger_by_resuming(tmp_path):
    shared = tmp_path / "all.jsonl"
    with pytest.raises(RuntimeError, match="crash"):
        run(tmp_path / "in", shared, total=3.0, module=Mine(fail_at=3))
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path / "out", epsilon=2.0).fit(Mine(fail_at=3), loader())
    (checkpoint,) = (tmp_path / "in" / "ckpt").glob("*step=3.ckpt")
    with pytest.raises(
        InputError, match=r"Expected the ledger of several runs as in the run that is resumed, got none"
    ):
        trainer(tmp_path / "in", epsilon=2.0).fit(Mine(), loader(), ckpt_path=checkpoint)
    (checkpoint,) = (tmp_path / "out" / "ckpt").glob("*step=3.ckpt")
    with pytest.raises(InputError, match=r"Expected no ledger of several runs as in the run that is resumed, got one"):
        run(tmp_path / "out", shared, checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"ledger_epsilon": 1.0}, "Expected a ledger for ledger_epsilon, got none"),
        ({"ledger": "x", "ledger_epsilon": 0.0}, "Expected ledger_epsilon to be finite and above 0"),
    ],
)
def test_budgets_that_make_no_sense(arguments, match):
    with pytest.raises(InputError, match=match):
        PrivacyBudget(1.0, 1e-5, **arguments)


def test_a_runs_own_ledger_is_not_shared(tmp_path):
    with pytest.raises(InputError, match="Expected another file for the ledger of several runs, got this run's own"):
        run(tmp_path, tmp_path / "ledger.jsonl", total=1.0)
    assert not list(tmp_path.iterdir())


def test_a_run_broken_off_before_its_first_release_leaves_its_directory_free(tmp_path):
    class Early(Mine):
        def on_train_start(self):
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path).fit(Early(), loader())
    first = Ledger.open_existing(tmp_path / "ledger.jsonl")
    assert first.n_releases == 0
    trainer(tmp_path).fit(Mine(), loader())
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == STEPS
    with pytest.raises(InputError, match="got another file: it was replaced, cut or edited; no release was made"):
        first.record(MECHANISM, N)  # a process that was still about to begin


# the command line


def test_short_spellings():
    assert _long_spellings(["fit", "--ledger", "x", "--target-epsilon=3", "--target-delta", "1e-5"]) == [
        *("fit", "--privacy.ledger", "x", "--privacy.ledger_epsilon=3", "--privacy.target_delta", "1e-5")
    ]
    for other in (["fit", "--target-epsilon", "3"], ["test", "--ledger", "x"], []):
        assert _long_spellings(other) == other


def test_command_line(tmp_path, capfd):
    options = {"--trainer.callbacks": "[]", "--trainer.max_steps": "2", "--trainer.enable_progress_bar": "false"}
    options |= {"--model.init_args.generated": "20", "--trainer.log_every_n_steps": "1"}
    words = [word for pair in options.items() for word in pair]
    start = ["fit", "--config", "configs/digits.yaml", *words, "--ledger", str(tmp_path / "all.jsonl")]
    again = [*start, "--trainer.default_root_dir", str(tmp_path / "a"), "--target-epsilon", "12"]
    assert main(again) == 0
    capfd.readouterr()
    assert main([*start, "--trainer.default_root_dir", str(tmp_path / "b"), "--target-epsilon", "12"]) == 2
    err = capfd.readouterr().err
    assert err.strip().splitlines()[-1].startswith("dpswd: Expected all runs in")
    assert not (tmp_path / "b").exists()
    assert main(["report", str(tmp_path / "a"), "--json"]) == 0
    (caveat,) = json.loads(capfd.readouterr().out)["caveats"]
    assert "All runs in the ledger that this one shares (1 so far)" in caveat
    assert "is not chosen by looking" in caveat  # 1,400 of the 1,438 records are read: not exactly Gaussian
