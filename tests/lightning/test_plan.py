"""Queries beside the loss: shares of the budget, composition, header, resume, report."""

import lightning as L
import pytest
import torch
from factories import MECHANISM, STEPS, Mine, N, Records, WatchEpsilon, account, loader, privacy, trainer
from lightning.pytorch.tuner import Tuner
from torch.utils.data import DataLoader

from dpswd import BudgetExceededError, InputError, ProjectionMechanism
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.ledger import Ledger
from dpswd.queries import ClassCounts, SecondMoment
from dpswd.sampling import FixedSizeSampler, ReleaseLoader

WHOLE = ProjectionMechanism(3, 6, 1.0, N, kind="orthogonal")  # all records, whole bases: exactly Gaussian


class Queried(Mine):
    """Releases class counts and a second moment before the projections; ``silent`` steps make no release."""

    def __init__(self, mechanism=MECHANISM, counts=0.05, moment=0.2, silent=0, **options):
        super().__init__(mechanism, **options)
        self.counts = ClassCounts(3, share=counts)
        self.moment = SecondMoment(3, share=moment)
        self.silent = silent

    def on_train_start(self):
        if self.released is None:
            self.counts.release(torch.arange(N) % 3)
            self.moment.release(Records().__getitems__(torch.arange(N)))

    def training_step(self, batch, batch_idx):
        if self.global_step < self.silent:
            return self.net(torch.randn(16, 3)).square().mean()
        return super().training_step(batch, batch_idx)


class Queries(L.LightningModule):
    """Releases class counts and a second moment of all records in its only step; has no loss."""

    def __init__(self, counts=0.05):
        super().__init__()
        self.automatic_optimization = False
        self.counts, self.moment = ClassCounts(3, share=counts), SecondMoment(3, share=0.5)

    def training_step(self, batch, batch_idx):
        self.counts.release(torch.arange(N) % 3)
        self.moment.release(Records().__getitems__(torch.arange(N)))

    def configure_optimizers(self):
        return []


def all_records():
    return DataLoader(Records(), batch_size=N, collate_fn=list)


def whole():
    return ReleaseLoader(Records(), FixedSizeSampler(N, N, n_steps=STEPS, every=STEPS))


def ledger_of(directory):
    return Ledger.open_existing(directory / "ledger.jsonl")


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_plan_uses_the_budget_and_keeps_it(tmp_path, accountant):
    module, data = (Queried(), loader()) if accountant == "pld" else (Queried(WHOLE), whole())
    run = trainer(tmp_path)
    run.budget.accountant = accountant
    run.fit(module, data)
    facts, groups = privacy(tmp_path), ledger_of(tmp_path).groups()
    assert 0.995 * 5 <= facts["epsilon"] <= 5
    fresh = account(groups).get_epsilon(1e-5)
    if accountant == "pld":
        assert facts["epsilon"] == pytest.approx(fresh, rel=1e-9)
    assert fresh <= 5  # the exact composition is below the Renyi bound
    assert facts["releases_made"] == facts["planned_releases"] == 2 + module.criterion.n_releases
    # control: with the noise that the loss alone needs, the three together exceed the budget
    alone = trainer(tmp_path / "alone")
    alone.budget.accountant = accountant
    alone.fit(Mine(module.criterion.mechanism), data)
    queries = [group for group in groups if group[0] != module.criterion.mechanism]
    together = [*queries, (alone.budget.mechanism, N, module.criterion.n_releases)]
    assert PrivacyAccountant.from_groups(together, accountant).get_epsilon(1e-5) > 5


def test_the_last_of_some_queries_has_what_the_others_leave(tmp_path):
    module, data = Queries(), all_records()
    trainer(tmp_path, max_epochs=1).fit(module, data)
    facts, ledger = privacy(tmp_path), ledger_of(tmp_path)
    assert ledger.groups() == [(module.counts.mechanism, N, 1), (module.moment.mechanism, N, 1)]
    assert facts["releases_made"] == facts["planned_releases"] == 2
    assert 0.995 * 5 <= account(ledger.groups()).get_epsilon(1e-5) <= facts["epsilon"] * (1 + 1e-9) <= 5 * (1 + 1e-9)
    mu_sq = [(each.mechanism.sensitivity / each.mechanism.sigma) ** 2 for each in (module.counts, module.moment)]
    assert mu_sq[0] / sum(mu_sq) == pytest.approx(0.05, rel=0.01)
    with pytest.raises(BudgetExceededError):  # a second step
        trainer(tmp_path / "twice", max_epochs=2).fit(Queries(), data)
    assert ledger_of(tmp_path / "twice").n_releases == 2


def test_an_optimiser_needs_a_loss(tmp_path):
    class Trained(Queries):
        lr = 0.1

        def configure_optimizers(self):
            return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

    with pytest.raises(InputError, match="optimiser"):
        trainer(tmp_path, max_epochs=1).fit(Trained(), all_records())
    with pytest.raises(InputError, match="optimiser"):
        Tuner(trainer(tmp_path)).lr_find(Trained(), all_records())
    assert not (tmp_path / "ledger.jsonl").exists()


class WithNorm(Queries):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)

    def training_step(self, batch, batch_idx):
        self.counts.release(torch.arange(N) % 3)
        self.moment.release(self.norm(Records().__getitems__(torch.arange(N))).detach())


class WithWeight(Queries):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3))

    def training_step(self, batch, batch_idx):
        self.weight.data.copy_(Records().__getitems__(torch.arange(N)).mean(0))
        super().training_step(batch, batch_idx)


@pytest.mark.parametrize(("kind", "name"), [(WithNorm, "norm.running_mean"), (WithWeight, "weight")])
def test_private_statistics_in_a_module_without_a_loss(tmp_path, kind, name):
    with pytest.raises(InputError, match=f"no buffer to change .* {name}"):
        trainer(tmp_path, max_epochs=1).fit(kind(), all_records())
    assert ledger_of(tmp_path).n_releases == (kind is WithNorm)
    kind.public_buffers = ["norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "weight"]  # control
    trainer(tmp_path / "named", max_epochs=1).fit(kind(), all_records())


def test_the_header_states_the_plan_in_order(tmp_path):
    module = Queried()
    trainer(tmp_path).fit(module, loader())
    parts = [(module.counts.mechanism, 1), (module.moment.mechanism, 1), (module.criterion.mechanism, STEPS)]
    ledger = ledger_of(tmp_path)
    assert ledger.header["plan"] == [{"mechanism": m.to_dict(), "n_releases": count} for m, count in parts]
    assert ledger.header["planned_releases"] == STEPS + 2
    assert ledger.groups() == [(m, N, count) for m, count in parts]


def test_shares_that_leave_nothing(tmp_path, tree):
    module = Queried(counts=0.4, moment=0.6)
    with pytest.raises(InputError, match="shares"):
        trainer(tmp_path).fit(module, loader())
    assert tree(tmp_path) == {}
    assert module.counts.n_releases == module.moment.n_releases == 0


def crash(directory):
    module = Queried(fail_at=3)
    with pytest.raises(RuntimeError, match="crash"):
        trainer(directory).fit(module, loader())
    (checkpoint,) = (directory / "ckpt").glob("*step=3.ckpt")
    return module, checkpoint


def test_a_resumed_run_keeps_its_noise_and_repeats_no_query(tmp_path):
    first, checkpoint = crash(tmp_path)
    second = Queried()
    trainer(tmp_path).fit(second, loader(), ckpt_path=checkpoint)
    for name in ("counts", "moment", "criterion"):
        assert getattr(second, name).mechanism == getattr(first, name).mechanism
        assert getattr(second, name).mechanism.sigma not in (None, 1)  # control: as constructed
    assert second.counts.n_releases == second.moment.n_releases == 0
    assert [count for *_, count in ledger_of(tmp_path).groups()] == [1, 1, STEPS]


def test_shown_epsilon_is_an_upper_bound(tmp_path):
    silent = 2
    watch, module = WatchEpsilon(), Queried(silent=silent)
    trainer(tmp_path, callbacks=[watch]).fit(module, loader())
    queries = [(query.mechanism, N, 1) for query in (module.counts, module.moment)]
    assert [count for count, _ in watch.seen] == [2 + max(0, step - silent) for step in range(1, STEPS + 1)]
    for count, shown in watch.seen:
        loss = [(module.criterion.mechanism, N, count - 2)] if count > 2 else []
        assert account([*queries, *loss]).get_epsilon(1e-5) * (1 - 1e-6) <= shown <= 5 * (1 + 1e-6)
    assert watch.seen[0][1] > 0
