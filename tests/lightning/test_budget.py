"""PrivacyBudget in a fit of a user's own module:
plan, calibration, statement, refusals, shared ledgers.
"""

import importlib.metadata
import shutil
import warnings
from types import SimpleNamespace

import pytest
import torch
from factories import (
    MECHANISM,
    STEPS,
    B,
    Calls,
    Mine,
    N,
    Queried,
    X,
    Y,
    account,
    agree,
    answer,
    checkpoint_at,
    ledger_of,
    loader,
    privacy,
    records,
    released,
    trainer,
    untouched,
    written,
)
from lightning.pytorch.callbacks import LearningRateFinder
from torch.utils.data import DataLoader, TensorDataset

from dpswd import (
    BudgetExceededError,
    ClassCounts,
    DPSlicedWassersteinLoss,
    InputError,
    PrivacyBudget,
    PrivateRecords,
    ProjectionMechanism,
)
from dpswd._provenance import seen_runs
from dpswd.accounting.ledger import Ledger
from dpswd.accounting.shared_ledger import SharedLedger
from dpswd.errors import DpswdError, LedgerError, UtilityWarning
from dpswd.report.render import write_report

WHOLE = ProjectionMechanism(
    3, 6, 1.0, N, row_norm=2.0, kind="orthogonal"
)  # all records, whole bases: exactly Gaussian


def refused(directory, module, match, *, data=None, **changes):
    """Fits, and expects a refusal that leaves no file."""
    run = trainer(directory, **changes)
    with pytest.raises(DpswdError, match=match) as caught:
        run.fit(module, data or loader())
    assert "\n" not in str(caught.value)
    assert not [path for path in directory.rglob("*") if path.is_file()]


def queried(**options):
    """The module and the loader of the same records."""
    of = options.setdefault("of", records())
    return Queried(**options), loader(
        of=of, batch_size=options.get("mechanism", MECHANISM).batch_size
    )


@pytest.mark.parametrize(
    ("every", "releases"), [(1, STEPS), (4, 2), (STEPS, 1)], ids=["per step", "some", "one shot"]
)
def test_a_users_own_module_stays_within_its_budget(tmp_path, every, releases):
    run, module = trainer(tmp_path), Mine()
    run.fit(module, loader(releases, every))
    ledger, facts, loss = ledger_of(tmp_path), privacy(tmp_path), module.criterion
    assert ledger.groups() == [(loss.mechanism, N, releases)]
    assert (run.global_step, loss.n_releases, run.budget.n_releases) == (
        releases * every,
        releases,
        releases,
    )
    assert ledger.header["versions"]["torch"] == importlib.metadata.version("torch")
    agree(tmp_path, releases)
    assert 0.99 * 5 < facts["epsilon"] <= 5  # the budget is used, and not exceeded
    assert (facts["mu"], facts["regret"]) == account(ledger.groups()).get_mu_and_regret()
    assert facts["sound"] is facts["private"] is True
    assert facts["mechanism"] == loss.mechanism.to_dict()
    assert module.encoder.training  # the modes of the user are back
    assert not list(tmp_path.rglob("*.part"))


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_subsampled_releases_show_the_epsilon_of_both_accountants(tmp_path, accountant):
    run = trainer(tmp_path, budget=PrivacyBudget(5.0, 1e-5, accountant))
    run.fit(Mine(), loader())
    metrics = run.callback_metrics
    assert metrics["epsilon"] == metrics[f"epsilon_{accountant}"] <= 5
    assert metrics["epsilon_pld"] < metrics["epsilon_rdp"]
    shown = set(run.progress_bar_metrics)
    assert {"epsilon_pld", "epsilon_rdp", "target_epsilon"} <= shown
    assert "epsilon" not in shown


def test_releases_of_all_records_show_one_epsilon(tmp_path):
    run = trainer(tmp_path)
    run.fit(Mine(MECHANISM.replace(batch_size=N)), loader(batch_size=N))
    assert "epsilon" in run.progress_bar_metrics
    assert "epsilon_rdp" not in run.callback_metrics


@pytest.mark.parametrize("seed", [7, None])
def test_a_fixed_noise_seed_is_said_first(tmp_path, seed):
    lines = []  # of the warnings, with the files that were there
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_: lines.append((str(message), written(tmp_path)))
        trainer(tmp_path).fit(Mine(MECHANISM.replace(noise_seed=seed)), loader())
    said = [(text, count) for text, count in lines if "fixed noise_seed" in text]
    if seed is None:  # control
        assert said == []
        return
    assert lines[0] == said[0]  # before any other warning, and before a release
    assert len(said) == 1
    assert said[0][1] is None  # before there is a ledger


def test_a_run_that_stops_early_costs_its_plan(tmp_path):
    with pytest.warns(UtilityWarning, match=f"after 2 of {STEPS} planned releases"):
        trainer(tmp_path, max_steps=2).fit(Mine(), loader())
    facts = privacy(tmp_path)
    assert (facts["releases_made"], facts["planned_releases"], written(tmp_path)) == (2, STEPS, 2)
    assert facts["epsilon"] > 0.99 * 5 > account(ledger_of(tmp_path).groups()).get_epsilon(1e-5)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_queries_and_loss_share_the_budget(tmp_path, accountant):
    seen, (module, data) = [], queried(mechanism=MECHANISM if accountant == "pld" else WHOLE)
    watch = Calls(
        "on_train_batch_end",
        lambda _: seen.append((written(tmp_path), run.callback_metrics["epsilon"])),
    )
    run = trainer(tmp_path, budget=PrivacyBudget(5.0, 1e-5, accountant), callbacks=[watch])
    run.fit(module, data)
    ledger, facts, parts = (
        ledger_of(tmp_path),
        privacy(tmp_path),
        (module.counts, module.moment, module.criterion),
    )
    assert ledger.groups() == [(part.mechanism, N, part.n_releases) for part in parts]
    assert [part.n_releases for part in parts] == [1, 1, STEPS]
    plan = [
        {"mechanism": part.mechanism.to_dict(), "n_releases": part.n_releases} for part in parts
    ]
    assert ledger.header["plan"] == plan
    assert 0.995 * 5 <= facts["epsilon"] <= 5
    assert (
        account(ledger.groups()).get_epsilon(1e-5) <= 5
    )  # the exact composition is below the Renyi bound
    mu_sq = [(part.mechanism.sensitivity / part.mechanism.sigma) ** 2 for part in parts[:2]]
    assert mu_sq[0] / mu_sq[1] == pytest.approx(0.05 / 0.2, rel=1e-9)
    # shown epsilon: an upper bound of what is in the ledger, up to the budget
    for step, (count, shown) in enumerate(seen, 1):
        made = [(part.mechanism, N, n) for part, n in zip(parts, (1, 1, step), strict=True)]
        assert count == 2 + step
        assert account(made).get_epsilon(1e-5) * (1 - 1e-6) <= shown <= 5 * (1 + 1e-6)


def test_plans_that_cannot_be_made(tmp_path):
    two, hidden = Mine(), Mine()
    two.another = DPSlicedWassersteinLoss(MECHANISM)
    hidden.losses = [hidden.criterion]
    del hidden.criterion
    for module, match, data in (
        (two, "got 2 losses", loader()),
        (hidden, "got 0 losses", loader()),
        (Mine(), "batch_size", loader(batch_size=B - 1)),
        (Mine(), "ReleaseLoader", DataLoader(TensorDataset(X), batch_size=B, shuffle=True)),
    ):
        refused(tmp_path, module, match, data=data)
        assert released(module) == 0


def moved(run, first):
    """Puts the budget before all other callbacks, or behind them."""
    others = [callback for callback in run.callbacks if callback is not run.budget]
    run.callbacks = [run.budget, *others] if first else [*others, run.budget]
    return run


EARLY = {
    "query": lambda module: module.counts.release(module.of),
    "loss": lambda module: module.criterion.release(X[:B]),
}


@pytest.mark.parametrize("what", EARLY)
@pytest.mark.parametrize("hook", ["setup", "on_fit_start", "on_sanity_check_start"])
@pytest.mark.parametrize("first", [True, False])
def test_a_callback_that_releases_early(tmp_path, hook, what, first):
    module, data = queried()
    module.counts.mechanism = ClassCounts(3, sigma=1.0).mechanism
    module.validation_step = lambda batch, batch_idx: None
    run = moved(trainer(tmp_path, callbacks=[Calls(hook, EARLY[what])]), first)
    with pytest.raises(
        DpswdError, match=r"outside|within a budget|without releases|training steps only"
    ):
        run.fit(module, data, DataLoader(X, batch_size=B))
    assert released(module) == (
        hook == "setup" and not first and what == "loss"
    )  # seen when the budget is set up
    assert written(tmp_path) is None


@pytest.mark.parametrize("first", [True, False])
def test_a_release_when_training_starts_is_charged(tmp_path, first):
    class Late(Queried):
        on_train_start = Mine.on_train_start

        def setup(self, stage):
            self.criterion = DPSlicedWassersteinLoss(MECHANISM)

    of = records()
    module, calls = Late(of), Calls("on_train_start", lambda m: Queried.on_train_start(m))
    run = moved(trainer(tmp_path, callbacks=[calls]), first)
    run.fit(module, loader(of=of))
    assert run.callbacks[0] is run.budget
    agree(tmp_path, STEPS + 2)


@pytest.mark.filterwarnings(
    "ignore:Be aware that when using `ckpt_path`, callbacks"
)  # the finder's own checkpoint
def test_a_learning_rate_finder_releases_nothing(tmp_path):
    module, finder = Mine(), LearningRateFinder(num_training_steps=20, early_stop_threshold=None)
    module.lr = 1e-2
    with pytest.raises(BudgetExceededError, match="outside"):
        moved(trainer(tmp_path, callbacks=[finder]), False).fit(module, loader())
    assert (released(module), written(tmp_path)) == (0, None)


def test_options_budgets_and_processes_that_do_not_fit():
    with pytest.raises(InputError, match="sample_size and n_releases together"):
        PrivacyBudget(1.0, 1e-5, sample_size=N)
    budget = PrivacyBudget(1.0, 1e-5)
    for callbacks, match in (
        ([budget], "trainer.strategy=ddp for 2"),
        ([budget] * 2 + [PrivacyBudget(9.0, 0.1)], "one"),
    ):
        trainer = SimpleNamespace(world_size=2, strategy=object(), callbacks=callbacks)
        with pytest.raises(InputError, match=match):
            budget.setup(trainer, Mine(), "fit")


def test_modules_with_releases(tmp_path):
    module = Mine()
    module.criterion.release(X[:B])
    refused(tmp_path / "a", module, "training steps only")
    module = Mine(fail_at=3)
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path / "b").fit(module, loader())
    module.fail_at = None
    refused(tmp_path / "c", module, "module that no run has trained.*make a new module")
    trainer(tmp_path / "b").fit(
        module, loader(), ckpt_path=checkpoint_at(tmp_path / "b", 3)
    )  # control: resumed
    agree(tmp_path / "b", STEPS)


def test_a_run_in_the_working_folder_says_so(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    trainer(tmp_path).fit(Mine(), loader())
    line = f"The run writes ledger.jsonl, privacy.json and releases to {tmp_path}"
    assert line in capfd.readouterr().err
    trainer(tmp_path / "run").fit(Mine(), loader(of=records(X[:-1])))  # control
    assert "The run writes" not in capfd.readouterr().err


def test_refusals_of_a_directory_with_a_run_are_in_the_words_of_a_trainer(tmp_path):
    trainer(tmp_path).fit(Mine(), loader())
    match = r"resume that run by ckpt_path= \(--ckpt_path\), with a checkpoint of it, or "
    with pytest.raises(InputError, match=match):
        trainer(tmp_path).fit(Mine(), loader())
    match = rf"Expected n_releases={STEPS} for .*, got n_releases=4; .*noise was set for these"
    with pytest.raises(InputError, match=match):
        trainer(tmp_path).fit(Mine(), loader(4), ckpt_path=checkpoint_at(tmp_path, 3))


def test_a_second_run_in_the_same_directory(tmp_path):
    one, other = trainer(tmp_path), trainer(tmp_path)
    other.callbacks[other.callbacks.index(other.budget)] = (
        one.budget
    )  # also with the same callback object
    one.fit(Mine(), loader())
    for run in (trainer(tmp_path), other):
        with untouched(tmp_path), pytest.raises(InputError, match="releases stay spent; resume"):
            run.fit(Mine(), loader())


def fail(*_):
    raise InputError("Expected room on the disk, got none.")


def test_a_refused_start_does_not_affect_the_next_run(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("dpswd.budget.run_directory.write_json", fail)
        with pytest.raises(InputError, match="disk"):
            trainer(tmp_path / "a").fit(Mine(), loader())
    first = ledger_of(tmp_path / "a")
    with pytest.raises(InputError, match="disk"):
        trainer(tmp_path / "c", callbacks=[Calls("on_train_end", fail)]).fit(Mine(), loader())
    agree(tmp_path / "c", STEPS)
    for name in "ba":  # without a release, the directory is free
        trainer(tmp_path / name).fit(Mine(), loader())
        agree(tmp_path / name, STEPS)
    with pytest.raises(DpswdError, match="no release was made"):
        first.record(MECHANISM, N)  # by a process that had not started to release


def test_labels_of_records_reach_a_loss_with_classes(tmp_path):
    module = Mine(MECHANISM.replace(n_classes=3))
    module.training_step = lambda batch, batch_idx: module.criterion(
        batch, module.net(X), public_labels=Y
    )
    trainer(tmp_path).fit(module, loader())
    agree(tmp_path, STEPS)
    with pytest.raises(InputError, match="n_classes"):
        trainer(tmp_path / "b").fit(Mine(MECHANISM.replace(n_classes=2)), loader())
    assert written(tmp_path / "b") == 0
    bare = loader(of=PrivateRecords(X))
    with pytest.raises(InputError, match="records without; pass their labels and classes"):
        trainer(tmp_path / "c").fit(Mine(MECHANISM.replace(n_classes=2)), bare)
    assert written(tmp_path / "c") == 0


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


def test_runs_with_different_plans(tmp_path, shared):
    run(tmp_path / "a", shared)
    run(tmp_path / "b", shared, epsilon=3.0, data=loader(4))
    third = Mine()
    with untouched(tmp_path), pytest.raises(BudgetExceededError, match="target_epsilon"):
        run(tmp_path / "c", shared, epsilon=3.0, module=third)
    assert third.criterion.n_releases == 0
    ledger = Ledger.open_existing(shared)
    one, two = (ledger_of(tmp_path / name) for name in "ab")
    assert ledger.groups() == one.groups() + two.groups()
    assert list(ledger.runs) == [one.header["run"], two.header["run"]]
    facts, together = privacy(tmp_path / "b"), account(ledger.groups()).get_epsilon(1e-5)
    assert 3 < together <= 4
    assert facts["across_runs"]["epsilon"] == pytest.approx(together, rel=1e-12)
    assert facts["epsilon"] <= 3  # of this run
    assert not any(line.startswith("Other runs") for line in facts["not_covered"])


def test_an_interrupted_run_has_spent_its_plan(tmp_path, shared):
    checkpoint = crash(tmp_path / "a", shared)
    (made,), (planned,) = (
        Ledger.open_existing(shared).groups(),
        Ledger.open_existing(shared).planned(),
    )
    assert (made[2], planned[2]) == (4, STEPS)
    assert account([made]).get_epsilon(1e-5) < 0.95 * account([planned]).get_epsilon(
        1e-5
    )  # the rest is not given back
    assert privacy(tmp_path / "a")["across_runs"]["epsilon"] == pytest.approx(
        account([planned]).get_epsilon(1e-5)
    )
    run(tmp_path / "a", shared, checkpoint=checkpoint)
    ledger = Ledger.open_existing(shared)
    assert (len(ledger.runs), ledger.n_releases) == (1, STEPS)


def test_a_run_with_fixed_noise_voids_the_total(tmp_path, shared, capsys):
    run(tmp_path / "a", shared, module=Mine(MECHANISM.replace(noise_seed=7)))
    run(tmp_path / "b", shared)
    bad, good = privacy(tmp_path / "a"), privacy(tmp_path / "b")
    assert bad["private"] is bad["sound"] is ledger_of(tmp_path / "a").header["private"] is False
    assert good["private"] is True  # by itself
    assert good["across_runs"]["private"] is good["across_runs"]["sound"] is False
    start = f"NOT PRIVATE: run {bad['run']}"
    assert any(caveat.startswith(start) for caveat in write_report(tmp_path / "b")["caveats"])
    assert answer(capsys, "ledger", "show", shared)["sentence"].startswith(start)


def test_a_resumed_run_keeps_its_shared_ledger(tmp_path, shared):
    inside = crash(tmp_path / "in", shared)
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path / "out", epsilon=2.0).fit(Mine(fail_at=3), loader())
    with pytest.raises(InputError, match="shared="):
        trainer(tmp_path / "in", epsilon=2.0).fit(Mine(), loader(), ckpt_path=inside)
    with pytest.raises(InputError, match="shared="):
        run(tmp_path / "out", shared, checkpoint=checkpoint_at(tmp_path / "out", 3))
    shared.write_bytes(b"".join(shared.read_bytes().splitlines(keepends=True)[:-4]))
    with untouched(tmp_path / "in"), pytest.raises(DpswdError, match="the ledger was cut"):
        run(tmp_path / "in", shared, checkpoint=inside)


def test_a_kill_between_the_two_ledgers_is_made_up_for(tmp_path, shared, monkeypatch):
    """The resumed run draws the release under the same line,
    and writes the missing line of the shared ledger.
    """
    check = SharedLedger.check_permitted

    def dies(ledger, draw, name):
        if ledger._file is not None and written(tmp_path / "a") > ledger.n_releases == 3:
            raise RuntimeError("killed")
        check(ledger, draw, name)

    with monkeypatch.context() as patched:
        patched.setattr(SharedLedger, "check_permitted", dies)
        with pytest.raises(RuntimeError, match="killed"):
            run(tmp_path / "a", shared)
    assert (written(tmp_path / "a"), Ledger.open_existing(shared).n_releases) == (4, 3)
    run(tmp_path / "a", shared, checkpoint=checkpoint_at(tmp_path / "a", 3))
    assert Ledger.open_existing(shared).groups() == ledger_of(tmp_path / "a").groups()
    agree(tmp_path / "a", STEPS)


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # of the checkpoint callback
def test_one_of_two_copies_is_resumed_from_its_checkpoint(tmp_path, shared):
    """On 0.3.0 both were, and made the remaining releases twice."""
    crash(tmp_path / "a", shared)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    run(tmp_path / "a", shared, checkpoint=checkpoint_at(tmp_path / "a", 3))
    module = Mine()
    with untouched(tmp_path / "b"), pytest.raises(LedgerError, match="a copy of this run"):
        run(tmp_path / "b", shared, module=module, checkpoint=checkpoint_at(tmp_path / "b", 3))
    assert module.criterion.n_releases == 0
    assert Ledger.open_existing(shared).n_releases == STEPS


def test_a_checkpoint_of_an_edited_ledger_states_no_smaller_epsilon(tmp_path):
    """Also where no step is left to train, and no ledger is opened."""
    trainer(tmp_path).fit(Mine(), loader())
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger.open_existing(path)
    plan = [{"mechanism": MECHANISM.replace(sigma=0.01).to_dict(), "n_releases": STEPS}]
    again = Ledger.create(tmp_path / "edited.jsonl", ledger.header | {"plan": plan})
    for mechanism in ledger.releases:
        again.record(mechanism, N)
    (tmp_path / "edited.jsonl").replace(path)
    checkpoint = torch.load(checkpoint_at(tmp_path, STEPS), weights_only=True)
    for state in checkpoint["callbacks"].values():
        if "ledger_head" in state:
            state["ledger_head"] = again.head
    torch.save(checkpoint, tmp_path / "edited.ckpt")
    with pytest.raises(LedgerError, match="target_epsilon=5"):
        trainer(tmp_path).fit(Mine(), loader(), ckpt_path=tmp_path / "edited.ckpt")


def test_weights_of_an_earlier_run_are_refused_unless_the_shared_ledger_contains_it(
    tmp_path, shared
):
    first = run(tmp_path / "a", shared)[1]
    torch.save(first.state_dict(), tmp_path / "weights.pt")
    (earlier,) = seen_runs(first)
    other = SharedLedger.create(
        tmp_path / "other.jsonl", target_epsilon=9.0, target_delta=1e-5
    ).path
    for fit in (
        lambda m: trainer(tmp_path / "b").fit(m, loader()),
        lambda m: run(tmp_path / "c", other, module=m),
    ):
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
