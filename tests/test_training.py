"""The budget callback: a user's own module, and what a crash, a resume or a forged ledger can do to it."""

import json
import math
import shutil

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from dpswd import (
    BudgetExceededError,
    DPSlicedWassersteinLoss,
    FixedSizeSampler,
    InputError,
    PrivacyAccountant,
    ProjectionMechanism,
)
from dpswd.accounting.ledger import Ledger
from dpswd.training import PrivacyBudget, ReleaseLoader

N, B, STEPS = 40, 8, 6
MECHANISM = ProjectionMechanism(3, 6, 1.0, B, kind="orthogonal")


class Records(torch.utils.data.Dataset):
    """Forty private rows, batched by index tensor."""

    def __len__(self):
        return N

    def __getitems__(self, index):
        rows = torch.randn(N, 3, generator=torch.Generator().manual_seed(0))
        return rows[index]


class Mine(L.LightningModule):
    """A user's own module; ``fail_at`` crashes a step after its release."""

    def __init__(self, mechanism=MECHANISM, fail_at=None):
        super().__init__()
        self.net, self.fail_at, self.released = torch.nn.Linear(3, 3), fail_at, None
        self.criterion = DPSlicedWassersteinLoss(mechanism)

    def training_step(self, batch, batch_idx):
        if len(batch):
            self.released = self.criterion.release(batch)
        if self.global_step == self.fail_at:
            raise RuntimeError("crash")
        return self.criterion.distance(self.released, self.net(torch.randn(16, 3)))

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)

    def on_save_checkpoint(self, checkpoint):
        if self.released is not None:
            checkpoint["released"] = self.released.state_dict()

    def on_load_checkpoint(self, checkpoint):
        from dpswd.loss import Release

        self.released = Release.from_state_dict(checkpoint["released"])


def loader(steps=STEPS, every=1, **changes):
    return ReleaseLoader(Records(), FixedSizeSampler(N, B, num_steps=steps, every=every, **changes))


def trainer(directory, *, steps=STEPS, epsilon=5.0, callbacks=(), **changes):
    budget = PrivacyBudget(epsilon, 1e-5)
    options = {"max_steps": steps, "accelerator": "cpu", "logger": False, "log_every_n_steps": 1} | changes
    made = L.Trainer(
        default_root_dir=directory,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[budget, ModelCheckpoint(directory / "ckpt", every_n_train_steps=1, save_top_k=-1), *callbacks],
        **options,
    )
    made.budget = budget
    return made


def privacy(directory):
    return json.loads((directory / "privacy.json").read_text())


def account(groups):
    made = PrivacyAccountant("pld")
    for mechanism, size, count in groups:
        made.step(mechanism, sample_size=size, num_releases=count)
    return made


@pytest.mark.parametrize(("every", "releases"), [(1, 6), (4, 2), (STEPS, 1)], ids=["per step", "some", "one shot"])
def test_a_users_own_module_stays_within_its_budget(tmp_path, every, releases):
    run, module = trainer(tmp_path), Mine()
    run.fit(module, loader(every=every))
    assert run.global_step == STEPS
    ledger = Ledger.open_existing(tmp_path / "ledger.jsonl")
    assert ledger.n_releases == module.criterion.releases == releases
    assert ledger.header["target_epsilon"] == 5
    assert ledger.header["planned_releases"] == releases
    (group,) = ledger
    assert group == (module.criterion.mechanism, N, releases)
    facts, fresh = privacy(tmp_path), account(ledger)
    assert facts["epsilon"] == pytest.approx(fresh.get_epsilon(1e-5), rel=1e-12)
    assert (facts["mu"], facts["regret"]) == fresh.get_mu_and_regret()
    assert 0.99 * 5 < facts["epsilon"] <= 5  # the budget is used, and not overrun
    assert facts["releases_made"] == facts["planned_releases"] == releases
    assert facts["sound"] is facts["private"] is True
    assert facts["mechanism"] == module.criterion.mechanism.to_dict()
    assert not list(tmp_path.glob("*.part"))


class Watch(L.Callback):
    """Keeps what is shown, and what is in the file, after every step."""

    def on_train_batch_end(self, trainer, *_):
        releases = Ledger.open_existing(trainer.budget._ledger.path).n_releases
        self.seen = [*getattr(self, "seen", []), (releases, float(trainer.callback_metrics["epsilon"]))]


def test_epsilon_that_is_shown_is_never_below_the_real_one(tmp_path):
    watch = Watch()
    run = trainer(tmp_path, steps=11, callbacks=[watch])
    run.fit(Mine(), loader(11))
    assert [count for count, _ in watch.seen] == list(range(1, 12))
    mechanism = run.budget.mechanism
    for count, shown in watch.seen:
        real = account([(mechanism, N, count)]).get_epsilon(1e-5)
        assert shown >= real * (1 - 1e-6)  # callback_metrics are float32
        assert shown <= 5 * (1 + 1e-6)
    assert watch.seen[-1][1] == pytest.approx(privacy(tmp_path)["epsilon"], rel=1e-6)


def test_seed_everything_repeats_weights_and_nothing_else(tmp_path):
    seen = []
    for name in ("a", "b"):
        L.seed_everything(0, verbose=False)
        module = Mine()
        weights = module.net.weight.detach().clone()
        trainer(tmp_path / name, steps=2).fit(module, loader(2))
        seen.append((weights, module.released, module.net.weight.detach()))
    (w1, r1, t1), (w2, r2, t2) = seen
    assert torch.equal(w1, w2)
    assert not torch.any(r1.values == r2.values)
    assert not torch.any(r1.projections == r2.projections)
    assert not torch.equal(t1, t2)


def test_a_fixed_noise_seed_marks_everything(tmp_path):
    trainer(tmp_path).fit(Mine(MECHANISM.replace(noise_seed=1)), loader(noise_seed=1))
    assert privacy(tmp_path)["private"] is privacy(tmp_path)["sound"] is False
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").header["private"] is False


@pytest.mark.parametrize("bound", ["bernstein", "clt"])
def test_bounds_that_spend_a_tail(tmp_path, bound):
    made = ProjectionMechanism(3, 40, 1.0, B, bound=bound)
    trainer(tmp_path).fit(Mine(made), loader())
    facts = privacy(tmp_path)
    assert facts["epsilon"] <= 5
    assert facts["sound"] is (bound == "bernstein")
    assert facts["epsilon"] == pytest.approx(account(Ledger.open_existing(tmp_path / "ledger.jsonl")).get_epsilon(1e-5))


def test_nothing_secret_is_in_the_checkpoint(tmp_path):
    module = Mine()
    trainer(tmp_path).fit(module, loader())
    (path,) = (tmp_path / "ckpt").glob("*step=6.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    assert set(checkpoint["state_dict"]) == {"net.weight", "net.bias"}
    released = checkpoint.pop("released")
    assert set(released) == {"values", "projections", "mechanism"}
    flat = json.dumps(checkpoint, default=lambda value: str(getattr(value, "shape", type(value))))
    assert '"start": 6' in flat  # the step, and no indices
    assert "indices" not in flat


# refusals


def refused(directory, module, data, match, tree, error=InputError, **changes):
    before = tree(directory)
    with pytest.raises(error, match=match) as caught:
        trainer(directory, **changes).fit(module, data)
    assert "\n" not in str(caught.value)
    assert tree(directory) == before
    assert module.criterion.releases == 0 if hasattr(module, "criterion") else True


def test_refuses_shuffled_epochs(tmp_path, tree):
    data = DataLoader(TensorDataset(torch.zeros(N, 3)), batch_size=B, shuffle=True)
    refused(tmp_path, Mine(), data, r"fixed-size subsets .*, got BatchSampler; shuffled epochs", tree)


def test_refuses_a_loader_of_another_batch_size(tmp_path, tree):
    data = ReleaseLoader(Records(), FixedSizeSampler(N, B - 1, num_steps=STEPS))
    refused(tmp_path, Mine(), data, r"batch_size to be the mechanism's, got 7 and 8; make them equal", tree)


def test_refuses_seeded_batches_for_a_private_mechanism(tmp_path, tree):
    refused(tmp_path, Mine(), loader(noise_seed=0), "Expected secret batches, got a sampler with noise_seed", tree)


def test_refuses_a_repeated_batch(tmp_path, tree):
    refused(tmp_path, Mine(), loader(), "Expected overfit_batches=0, got a repeated batch", tree, overfit_batches=1)


class Two(Mine):
    def __init__(self):
        super().__init__()
        self.another = DPSlicedWassersteinLoss(MECHANISM)


class Hidden(Mine):
    def __init__(self):
        super().__init__()
        self.hidden = [self.criterion]
        del self.criterion


@pytest.mark.parametrize(("kind", "count"), [(Two, 2), (Hidden, 0)])
def test_refuses_any_number_of_losses_but_one(tmp_path, tree, kind, count):
    message = f"Expected exactly one DPSlicedWassersteinLoss in {kind.__name__}, got {count}; make it an attribute"
    refused(tmp_path, kind(), loader(), message, tree)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1e-5), "Expected target_epsilon to be finite and above 0, got target_epsilon=0"),
        ((math.nan, 1e-5), "Expected target_epsilon to be finite and above 0, got target_epsilon=nan"),
        ((1.0, 0), "Expected target_delta strictly between 0 and 1, got target_delta=0"),
        ((1.0, 1.0), "Expected target_delta strictly between 0 and 1, got target_delta=1"),
        ((1.0, 1e-5, "gdp"), "Expected accountant to be one of"),
    ],
)
def test_budgets_out_of_range(arguments, message):
    with pytest.raises(InputError, match=message):
        PrivacyBudget(*arguments)


def test_refuses_a_second_run_in_the_same_directory(tmp_path, tree):
    trainer(tmp_path).fit(Mine(), loader())
    refused(tmp_path, Mine(), loader(), r"Expected no ledger at .* for a new run, got one; resume that run", tree)


class Greedy(Mine):
    """Makes two releases a step."""

    def training_step(self, batch, batch_idx):
        self.criterion.release(batch)
        return super().training_step(batch, batch_idx)


def test_refuses_a_release_that_the_budget_does_not_cover(tmp_path):
    module = Greedy()
    with pytest.raises(BudgetExceededError, match="Expected at most 5 releases within epsilon=5, got one more"):
        trainer(tmp_path, steps=5).fit(module, loader(5))
    assert module.criterion.releases == Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 5
    assert privacy(tmp_path)["releases_made"] == 5


def test_more_epochs_than_were_planned_stop_at_the_budget(tmp_path):
    module = Mine()
    run = trainer(tmp_path, steps=3 * STEPS)
    run.fit(module, loader())  # a loader for a third of the steps: what it plans is what is paid for
    assert run.global_step == module.criterion.releases == STEPS


class Louder(Mine):
    def training_step(self, batch, batch_idx):
        self.criterion.mechanism = self.criterion.mechanism.replace(sigma=1e-3)
        return super().training_step(batch, batch_idx)


def test_refuses_another_mechanism_in_the_middle(tmp_path):
    module = Louder()
    with pytest.raises(BudgetExceededError, match="Expected the mechanism that the budget was calibrated for"):
        trainer(tmp_path).fit(module, loader())
    assert module.criterion.releases == 0


class Early(Mine):
    """Releases before training: in Lightning's sanity check of the validation loop."""

    def validation_step(self, batch, batch_idx):
        self.criterion.release(batch)


def test_refuses_a_release_before_the_budget_is_open(tmp_path):
    module = Early()
    data = DataLoader(torch.zeros(B, 3), batch_size=B)
    with pytest.raises(BudgetExceededError, match="Expected no release before training starts, got one"):
        trainer(tmp_path, num_sanity_val_steps=1).fit(module, loader(), data)
    assert module.criterion.releases == 0


class Copied(Mine):
    """Another writer beside the run: a second process, or a copy of the loss."""

    def training_step(self, batch, batch_idx):
        Ledger.open_existing(self.criterion.ledger._ledger.path).record(self.criterion.mechanism, N)
        return super().training_step(batch, batch_idx)


def test_a_second_writer_hides_no_release(tmp_path):
    module = Copied()
    with pytest.raises(InputError, match=r"Expected to be the only writer of .*; no release was made"):
        trainer(tmp_path).fit(module, loader())
    assert module.criterion.releases == 0
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 1


# crash and resume


@pytest.fixture
def crashed(tmp_path):
    """A run that crashed in step 3 (its fourth), after the release of that step."""
    module = Mine(fail_at=3)
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path).fit(module, loader())
    assert module.criterion.releases == Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 4
    assert privacy(tmp_path)["releases_made"] == 4
    (checkpoint,) = (tmp_path / "ckpt").glob("*step=3.ckpt")
    return checkpoint


def resume(checkpoint, module=None, data=None, directory=None, **changes):
    directory = directory or checkpoint.parents[1]
    run, module = trainer(directory, **changes), module or Mine()
    run.fit(module, data or loader(), ckpt_path=checkpoint)
    return run, module


def test_a_crash_wastes_budget_and_hides_no_release(tmp_path, crashed):
    before = Ledger.open_existing(tmp_path / "ledger.jsonl").groups()[0][0]
    run, module = resume(crashed)
    ledger = Ledger.open_existing(tmp_path / "ledger.jsonl")
    assert module.criterion.mechanism == before  # the noise of the run that is resumed
    assert module.criterion.releases == 2
    assert ledger.n_releases == 4 + 2 == privacy(tmp_path)["releases_made"]
    assert run.global_step == 5  # one step short of the plan: its release was spent in the crash
    assert privacy(tmp_path)["epsilon"] == pytest.approx(account(ledger).get_epsilon(1e-5), rel=1e-12)


@pytest.mark.filterwarnings("ignore:Total length of .CombinedLoader. across ranks is zero")  # nothing is left to do
def test_a_resumed_run_without_a_crash_makes_exactly_the_planned_releases(tmp_path):
    trainer(tmp_path).fit(Mine(), loader())
    (checkpoint,) = (tmp_path / "ckpt").glob("*step=6.ckpt")
    run, module = resume(checkpoint)
    assert (run.global_step, module.criterion.releases) == (6, 0)
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 6


def test_an_old_checkpoint_cannot_spend_the_budget_twice(tmp_path):
    trainer(tmp_path).fit(Mine(), loader())
    (checkpoint,) = (tmp_path / "ckpt").glob("*step=2.ckpt")
    run, module = resume(checkpoint)
    assert (run.global_step, module.criterion.releases) == (2, 0)
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 6


def test_a_resumed_one_shot_run_makes_no_second_release(tmp_path):
    first = Mine(fail_at=4)
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path).fit(first, loader(every=STEPS))
    (checkpoint,) = (tmp_path / "ckpt").glob("*step=4.ckpt")
    run, module = resume(checkpoint, data=loader(every=STEPS))
    assert (run.global_step, module.criterion.releases) == (6, 0)
    assert torch.equal(module.released.values, first.released.values)
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").n_releases == 1 == privacy(tmp_path)["releases_made"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 6.0}, r"Expected target_epsilon=5\.0 as in the ledger .*, got target_epsilon=6\.0; start a new"),
        ({"data": "longer"}, "Expected planned_releases=6 as in the ledger .*, got planned_releases=7"),
        ({"module": "other"}, "Expected the mechanism of the run that is resumed, got another one; keep its config"),
    ],
)
def test_refuses_to_resume_with_another_plan(tmp_path, crashed, tree, changes, message):
    before = tree(tmp_path)
    if "data" in changes:
        changes = {"data": loader(7), "steps": 7}
    if "module" in changes:
        changes = {"module": Mine(MECHANISM.replace(row_norm=1.0))}
    with pytest.raises(InputError, match=message):
        resume(crashed, **changes)
    assert tree(tmp_path) == before


def cut(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))


def edited(path):
    path.write_bytes(path.read_bytes().replace(b'"target_epsilon": 5.0', b'"target_epsilon": 9.0'))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, r"Expected at least 3 releases in .*, got 2; the ledger was cut, so the run cannot go on"),
        (edited, "the ledger was edited or a line is missing; do not rely on it"),
        (lambda path: path.unlink(), r"Expected a ledger at .*, got none; check the run directory"),
    ],
    ids=["cut", "edited", "missing"],
)
def test_refuses_to_resume_on_a_damaged_ledger(tmp_path, crashed, tree, damage, message):
    damage(tmp_path / "ledger.jsonl")
    before, module = tree(tmp_path), Mine()
    with pytest.raises(InputError, match=message):
        resume(crashed, module)
    assert module.criterion.releases == 0
    assert tree(tmp_path) == before


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # of the checkpoint callback
def test_refuses_the_ledger_of_another_run(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for directory in (one, other):
        trainer(directory).fit(Mine(), loader())
    (checkpoint,) = (one / "ckpt").glob("*step=3.ckpt")
    module = Mine()
    with pytest.raises(InputError, match=r"Expected the ledger of the run that is resumed at .*, got another run's"):
        resume(checkpoint, module, directory=other)
    assert module.criterion.releases == 0


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # of the checkpoint callback
def test_a_run_directory_may_be_moved(tmp_path, crashed):
    shutil.move(tmp_path, moved := tmp_path.with_name(tmp_path.name + "_moved"))
    resume(moved / "ckpt" / crashed.name)
    assert Ledger.open_existing(moved / "ledger.jsonl").n_releases == 6
