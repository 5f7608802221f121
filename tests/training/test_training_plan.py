"""A budget that pays for queries beside the projections: shares, composition, header, resume, report, crash."""

import json
import math

import lightning as L
import pytest
import torch
from factories import MECHANISM, STEPS, Mine, N, Records, WatchEpsilon, account, loader, privacy, trainer
from scipy import optimize, stats

from dpswd import InputError, PrivacyAccountant, ProjectionMechanism
from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main
from dpswd.queries import ClassCounts, SecondMoment
from dpswd.sampling import FixedSizeSampler, ReleaseLoader

WHOLE = ProjectionMechanism(3, 6, 1.0, N, kind="orthogonal")  # all records, whole bases: exactly Gaussian


class Queried(Mine):
    """Pays for class counts and a second moment before the projections; ``silent`` steps make no release."""

    def __init__(self, mechanism=MECHANISM, counts=0.05, moment=0.2, silent=0, fail=False, noise_seed=None, **options):
        super().__init__(mechanism, **options)
        self.counts = ClassCounts(3, share=counts, noise_seed=noise_seed)
        self.moment = SecondMoment(3, share=moment)
        self.silent, self.fail = silent, fail

    def on_train_start(self):
        if self.released is None:
            self.counts.release(torch.arange(N) % 3)
            self.moment.release(Records().__getitems__(torch.arange(N)))
        if self.fail:
            raise RuntimeError("crash")

    def training_step(self, batch, batch_idx):
        if self.global_step < self.silent:
            return self.net(torch.randn(16, 3)).square().mean()
        return super().training_step(batch, batch_idx)


def whole():
    return ReleaseLoader(Records(), FixedSizeSampler(N, N, n_steps=STEPS, every=STEPS))


def gaussian_mu(epsilon, delta):
    """The mu whose exact profile (Dong2022, Corollary 2.13) runs through the budget."""

    def excess(mu):
        first, second = (stats.norm.cdf(sign * mu / 2 - epsilon / mu) for sign in (1, -1))
        return first - math.exp(epsilon) * second - delta

    return optimize.brentq(excess, 1e-3, 50, xtol=1e-12)


def mus_sq(module):
    queries = [module.counts.mechanism, module.moment.mechanism]
    loss = module.criterion.mechanism
    return [
        *((query.unit_sensitivity / query.sigma) ** 2 for query in queries),
        loss.unit_sensitivity**2 * loss.law.mean / loss.sigma**2,
    ]


@pytest.mark.parametrize(("epsilon", "shares"), [(5.0, (0.05, 0.2)), (1.0, (0.3, 0.5))])
def test_shares_of_the_squared_mu_come_out_as_asked(tmp_path, epsilon, shares):
    module = Queried(WHOLE, *shares)
    trainer(tmp_path, epsilon=epsilon).fit(module, whole())
    whole_mu_sq = gaussian_mu(epsilon, 1e-5) ** 2
    wanted = [*shares, 1 - sum(shares)]
    assert [part / whole_mu_sq for part in mus_sq(module)] == pytest.approx(wanted, rel=0.01)
    assert privacy(tmp_path)["mu"] == pytest.approx(math.sqrt(whole_mu_sq), rel=0.005)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize("make", [lambda: (Queried(), loader()), lambda: (Queried(WHOLE), whole())])
def test_the_plan_is_within_the_budget_and_uses_it(tmp_path, accountant, make):
    module, data = make()
    run = trainer(tmp_path)
    run.budget.accountant = accountant
    run.fit(module, data)
    facts = privacy(tmp_path)
    assert 0.995 * 5 <= facts["epsilon"] <= 5
    ledger = Ledger.open_existing(tmp_path / "ledger.jsonl")
    fresh = account(ledger.groups()).get_epsilon(1e-5)
    if accountant == "pld":
        assert facts["epsilon"] == pytest.approx(fresh, rel=1e-9)
    assert fresh <= 5  # exact losses never exceed Renyi's bound
    assert facts["releases_made"] == facts["planned_releases"] == ledger.n_releases == 2 + module.criterion.n_releases
    # control: with the noise that the loss alone would need, the three together overrun
    alone = trainer(tmp_path / "alone")
    alone.budget.accountant = accountant
    alone.fit(Mine(module.criterion.mechanism), data)
    groups = [group for group in ledger.groups() if group[0] != module.criterion.mechanism]
    together = PrivacyAccountant(accountant)
    for mechanism, size, count in [*groups, (alone.budget.mechanism, N, module.criterion.n_releases)]:
        together.step(mechanism, sample_size=size, n_releases=count)
    assert together.get_epsilon(1e-5) > 5


def test_the_header_states_the_plan_in_the_order_of_the_releases(tmp_path):
    module = Queried()
    trainer(tmp_path).fit(module, loader())
    parts = [(module.counts.mechanism, 1), (module.moment.mechanism, 1), (module.criterion.mechanism, STEPS)]
    ledger = Ledger.open_existing(tmp_path / "ledger.jsonl")
    assert ledger.header["plan"] == [{"mechanism": m.to_dict(), "n_releases": count} for m, count in parts]
    assert ledger.header["planned_releases"] == STEPS + 2
    assert ledger.groups() == [(m, N, count) for m, count in parts]
    assert [m.name for m, _ in parts[:2]] == ["class counts", "second moment"]


def test_a_seed_in_one_query_marks_the_whole_run(tmp_path):
    trainer(tmp_path).fit(Queried(noise_seed=1), loader())
    assert privacy(tmp_path)["private"] is privacy(tmp_path)["sound"] is False
    assert Ledger.open_existing(tmp_path / "ledger.jsonl").header["private"] is False


def test_refuses_shares_that_leave_nothing(tmp_path, tree):
    module = Queried(counts=0.4, moment=0.6)
    with pytest.raises(InputError, match=r"Expected shares of the budget that add up to less than 1, got 1\."):
        trainer(tmp_path).fit(module, loader())
    assert tree(tmp_path) == {}
    assert module.counts.n_releases == module.moment.n_releases == 0


# resume


def test_a_resumed_run_takes_the_noise_from_the_ledger_and_asks_nothing_twice(tmp_path):
    first = Queried(fail_at=3)
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path).fit(first, loader())
    (checkpoint,) = (tmp_path / "ckpt").glob("*step=3.ckpt")
    second = Queried()
    trainer(tmp_path).fit(second, loader(), ckpt_path=checkpoint)
    for name in ("counts", "moment", "criterion"):
        assert getattr(second, name).mechanism == getattr(first, name).mechanism
        assert getattr(second, name).mechanism.sigma != 1  # control: what a module starts with
    assert second.counts.n_releases == second.moment.n_releases == 0
    ledger = Ledger.open_existing(tmp_path / "ledger.jsonl")
    assert [count for *_, count in ledger.groups()] == [1, 1, STEPS]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"counts": None}, "planned_releases"),
        ({"row_norm": 1.0}, "mechanisms of the resumed run"),
    ],
)
def test_refuses_to_resume_with_other_queries(tmp_path, tree, changes, message):
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path).fit(Queried(fail_at=3), loader())
    (checkpoint,) = (tmp_path / "ckpt").glob("*step=3.ckpt")
    before, other = tree(tmp_path), Queried()
    if "row_norm" in changes:
        other.moment = SecondMoment(3, share=0.2, **changes)
    else:
        other.counts = None
    with pytest.raises(InputError, match=message):
        trainer(tmp_path).fit(other, loader(), ckpt_path=checkpoint)
    assert tree(tmp_path) == before
    assert other.moment.n_releases == other.criterion.n_releases == 0


# report


def reported(directory, capsys):
    assert main(["report", str(directory), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    return shown, json.loads((directory / "report.json").read_text())


def test_the_report_is_complete_and_agrees(tmp_path, capsys):
    module = Queried()
    trainer(tmp_path).fit(module, loader())
    shown, report = reported(tmp_path, capsys)
    facts = privacy(tmp_path)
    assert shown["epsilon"] == pytest.approx(facts["epsilon"], rel=1e-9)
    assert 0 <= facts["mu"] - shown["mu"] < 1e-4  # gdpnum rounds mu up to four digits
    assert shown["regret"] == pytest.approx(facts["regret"], abs=1e-3)
    assert all(report["guarantee"][name] == shown[name] for name in ("epsilon", "mu", "regret"))
    assert shown["sound"] is shown["private"] is True
    assert shown["caveats"] == []
    assert report["releases"]["made"] == report["releases"]["planned"] == STEPS + 2
    assert [(group["description"].split(" (")[0], group["count"]) for group in report["releases"]["groups"]] == [
        ("class counts", 1),
        ("second moment", 1),
        (module.criterion.mechanism.description.split(" (")[0], STEPS),
    ]
    assert [group["sigma"] for group in report["releases"]["groups"]] == [m.sigma for m, _, _ in ledger_of(tmp_path)]
    text = (tmp_path / "report.md").read_text()
    assert "class counts" in text
    assert "second moment" in text


def ledger_of(directory):
    return Ledger.open_existing(directory / "ledger.jsonl").groups()


def test_a_crash_between_queries_and_projections_is_reported_as_planned_in_full(tmp_path, capsys):
    trainer(tmp_path / "whole").fit(Queried(), loader())
    with pytest.raises(RuntimeError, match="crash"):
        trainer(tmp_path / "crashed").fit(Queried(fail=True), loader())
    shown, report = reported(tmp_path / "crashed", capsys)
    assert (shown["releases_made"], shown["releases_planned"]) == (2, STEPS + 2)
    assert shown["epsilon"] == pytest.approx(privacy(tmp_path / "whole")["epsilon"], rel=1e-6)
    assert shown["epsilon"] == pytest.approx(privacy(tmp_path / "crashed")["epsilon"], rel=1e-9)
    assert "All planned releases are counted" in " ".join(shown["caveats"])
    assert [group["count"] for group in report["releases"]["groups"]] == [1, 1, STEPS]
    # control: what was made so far costs far less
    assert account(ledger_of(tmp_path / "crashed")).get_epsilon(1e-5) < 0.7 * shown["epsilon"]


# what is shown


@pytest.mark.parametrize("silent", [0, 2])
def test_epsilon_that_is_shown_is_never_below_the_real_one(tmp_path, silent):
    watch = WatchEpsilon()
    module = Queried(silent=silent)
    trainer(tmp_path, callbacks=[watch]).fit(module, loader())
    queries = [(query.mechanism, N, 1) for query in (module.counts, module.moment)]
    expected = [2 + max(0, step - silent) for step in range(1, STEPS + 1)]
    assert [count for count, _ in watch.seen] == expected
    for count, shown in watch.seen:
        loss = [(module.criterion.mechanism, N, count - 2)] if count > 2 else []
        real = account([*queries, *loss]).get_epsilon(1e-5)
        assert real * (1 - 1e-6) <= shown <= 5 * (1 + 1e-6)  # callback_metrics are float32
    assert watch.seen[0][1] > 0


def test_epsilon_counts_the_queries_before_the_first_step(tmp_path):
    class Ask(L.Callback):
        def on_train_batch_start(self, trainer, *_):
            self.spent = getattr(self, "spent", trainer.budget._spent())

    ask, module = Ask(), Queried()
    run = trainer(tmp_path, callbacks=[ask])

    run.fit(module, loader())
    real = account([(query.mechanism, N, 1) for query in (module.counts, module.moment)]).get_epsilon(1e-5)
    assert real <= ask.spent <= 5
