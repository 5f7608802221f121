"""Issue 30: what voided the guarantee of 0.2.0 by ordinary idioms. Each test failed there."""

import collections
import copy
import io
import itertools
import pickle
import threading
import traceback
from functools import partial
from typing import ClassVar

import lightning as L
import numpy as np
import pandas as pd
import pytest
import torch
from factories import (
    BLOB_DIM,
    MECHANISM,
    STEPS,
    B,
    Mine,
    N,
    X,
    Y,
    agree,
    blobs,
    booked,
    exact,
    loader,
    privacy,
    records,
    released,
    trainer,
    written,
)
from lightning.pytorch.loggers import CSVLogger
from PIL import Image
from torch.nn.modules.module import register_module_forward_hook
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import dpswd.release
from dpswd import (
    Budget,
    BudgetExceededError,
    DPSlicedWassersteinLoss,
    FixedSizeSampler,
    InputError,
    LabelledRows,
    PrivacyBudget,
    PrivateGenerator,
    PrivateRecords,
    ReleaseLoader,
)
from dpswd.data import read
from dpswd.queries import ClassCounts, ClassMeans
from dpswd.report.render import write_report
from dpswd.row_check import check_row_function

# 1. a balanced sampler repeats records


def test_a_sampler_has_no_part_in_a_query(tmp_path):
    """On 0.2.0 the exact sums of two neighbours differed by 98 at sensitivity 1."""
    rows = torch.zeros(100, 3)
    rows[:, 0], labels = 0.5, torch.zeros(100, dtype=torch.int64)
    other, labels[0] = rows.clone(), 1
    other[0] *= -1
    first, second = (exact(ClassMeans(2, 3), each, labels)[:, 1:] for each in (rows, other))
    assert float((first - second).norm()) == pytest.approx(1, abs=1e-9)
    sampler = WeightedRandomSampler([1.0, *[0.01] * 99], 100)  # draws record 0 half of the time
    balanced, query = (
        DataLoader(TensorDataset(rows, labels), 10, sampler=sampler),
        booked(ClassMeans(2, 3, sigma=1.0)),
    )
    for given in (balanced, balanced.dataset, rows):
        with pytest.raises(InputError, match="PrivateRecords"):
            query.release(given)
        with pytest.raises(InputError, match="PrivateRecords"):
            ReleaseLoader(given, batch_size=4, n_releases=1)
    assert query.n_releases == 0
    data = DataLoader(
        TensorDataset(rows, labels), batch_sampler=FixedSizeSampler(100, B, n_steps=STEPS)
    )
    with pytest.raises(InputError, match="ReleaseLoader"):
        trainer(tmp_path).fit(Mine(), data)
    assert written(tmp_path) is None


# 2. statistics of a batch in hooks of Lightning or in a collate function


@pytest.mark.parametrize("hook", ["on_before_batch_transfer", "on_after_batch_transfer"])
@pytest.mark.parametrize("kind", ["norm", "scale"])
def test_hooks_on_a_batch_see_no_record(tmp_path, hook, kind):
    class Hooked(Mine):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(3)

    def changed(module, batch, index):
        return module.norm(batch) if kind == "norm" else (batch - batch.mean(0)) / batch.std(0)

    setattr(Hooked, hook, changed)
    with pytest.raises((TypeError, AttributeError)):
        trainer(tmp_path).fit(module := Hooked(), loader())
    assert written(tmp_path) == released(module) == 0
    assert torch.equal(module.norm.running_mean, torch.zeros(3))


# 3. two ranks that read the same half: test_a_query_equals_that_of_one_process in tests/lightning/test_ddp.py


# 4. records in checkpoints


@pytest.mark.parametrize(
    "what", [records, lambda: next(iter(loader())), loader], ids=["records", "batch", "loader"]
)
def test_handles_are_neither_pickled_nor_copied(what):
    for copied in (
        pickle.dumps,
        copy.copy,
        copy.deepcopy,
        lambda each: torch.save(each, io.BytesIO()),
    ):
        if what is loader and copied is copy.copy:
            continue  # a second loader of the same handle
        with pytest.raises(InputError, match="save_hyperparameters"):
            copied(what())


class Saves(Mine):
    def __init__(self, given):
        super().__init__()
        self.save_hyperparameters()


class Data(L.LightningDataModule):
    def __init__(self, given):
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self):
        return loader()


@pytest.mark.parametrize("kind", [Saves, Data])
def test_save_hyperparameters_takes_no_handle(kind):
    for given in (records(), [records()], {"records": records()}):
        with pytest.raises(InputError, match="save_hyperparameters"):
            kind(given)


SETS = [
    X,
    X.numpy(),
    pd.DataFrame(X.numpy()),
    pd.Series(Y.numpy()),
    {"train": X},
    X.tolist() * 20,
    TensorDataset(X),
]


@pytest.mark.parametrize(
    "given", [*SETS, DataLoader(SETS[-1])], ids=lambda given: type(given).__name__
)
@pytest.mark.parametrize("kind", [Saves, Data])
def test_records_among_hyperparameters_are_refused(tmp_path, kind, given):
    module, data = (Saves(given), loader()) if kind is Saves else (Mine(), Data(given))
    with pytest.raises(InputError, match=r"got given, .*hparams of (Saves|Data)"):
        trainer(tmp_path).fit(module, data)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    trainer(tmp_path).fit(Saves({"lr": 1e-3, "sizes": [8, 8], "name": "x"}), loader())  # control


# 5. further uses of a private batch


class Uses(Mine):
    """Uses the private batch again in the step of its release."""

    def __init__(self, use):
        super().__init__()
        self.use = use

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.use(self, batch)
        return loss


class Closure(Mine):
    def configure_optimizers(self):
        return torch.optim.LBFGS(self.net.parameters(), max_iter=4)


class Between(Mine):
    def on_train_batch_end(self, outputs, batch, batch_idx):
        self.criterion.release(batch)


def keeps(module, batch):
    module.kept = getattr(module, "kept", batch)
    if module.kept is not batch:
        module.criterion.release(module.kept)


def louder(module, batch):
    module.criterion.mechanism = module.criterion.mechanism.replace(sigma=1e-3)


NO_RECORD = (TypeError, AttributeError)
USES = {  # what is done, the error, words of its message, and the releases before it
    "reconstruction": (
        lambda module, batch: (module.net(batch) - batch).square().mean(),
        NO_RECORD,
        None,
        1,
    ),
    "buffer": (
        lambda module, batch: module.encoder[0].running_mean.copy_(batch.mean(0)),
        NO_RECORD,
        None,
        1,
    ),
    "log": (lambda module, batch: module.log("mean", batch.mean()), NO_RECORD, None, 1),
    "count": (
        lambda module, batch: module.log("n", float(sum(len(row) for row in batch))),
        NO_RECORD,
        None,
        1,
    ),
    "again": (
        lambda module, batch: module.criterion(batch, module.net(X)),
        InputError,
        "one release",
        1,
    ),
    "optimiser": (Closure, InputError, "one release", 1),
    "hook": (Between, InputError, "one release", 1),
    "kept": (keeps, InputError, "one release", 2),
    "foreign": (
        lambda module, batch: module.criterion.release(next(iter(loader()))),
        InputError,
        "another handle",
        1,
    ),
    "tensor": (
        lambda module, batch: module.criterion.release(X[:B]),
        InputError,
        "got a tensor",
        1,
    ),
    "hidden": (
        lambda module, batch: DPSlicedWassersteinLoss(MECHANISM).release(next(iter(loader()))),
        InputError,
        "within a budget",
        1,
    ),
    "louder": (louder, BudgetExceededError, "plan of this budget", 1),
}


@pytest.mark.parametrize("name", USES)
def test_a_batch_serves_nothing_but_its_release(tmp_path, name):
    use, error, match, releases = USES[name]
    module = use() if isinstance(use, type) else Uses(use)
    with pytest.raises(error, match=match):
        trainer(tmp_path).fit(module, loader())
    assert written(tmp_path) == privacy(tmp_path)["releases_made"] == released(module) == releases


class HandsOver(L.LightningModule):
    """Hands tensors of its own loader to the loss, and uses them besides."""

    def __init__(self):
        super().__init__()
        self.net, self.criterion = torch.nn.Linear(3, 3), DPSlicedWassersteinLoss(MECHANISM)

    def training_step(self, batch, batch_idx):
        loss = self.criterion(batch[0], self.net(torch.randn(16, 3)))
        self.log("mean", batch[0].mean())
        return loss + (self.net(batch[0]) - batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-2)


def test_tensors_are_conditional_everywhere(tmp_path):
    data = DataLoader(TensorDataset(X), batch_sampler=FixedSizeSampler(N, B, n_steps=STEPS))
    budget = PrivacyBudget(5.0, 1e-5, sample_size=N, n_releases=STEPS)
    trainer(tmp_path, budget=budget).fit(HandsOver(), data)
    agree(tmp_path, STEPS)
    facts, report = privacy(tmp_path), write_report(tmp_path)
    assert (facts["sound"], facts["private"], facts["records"]) == (
        False,
        True,
        "handed over by the caller",
    )
    assert (len(facts["conditions"]), report["sound"]) == (3, False)
    page = (tmp_path / "report.html").read_text()
    assert "handed over by the caller" in page
    assert all(condition.split(",")[0] in page for condition in facts["conditions"])
    trainer(tmp_path / "handle").fit(Mine(), loader())  # control
    facts, report = privacy(tmp_path / "handle"), write_report(tmp_path / "handle")
    assert (facts["sound"], facts["conditions"], facts["records"]) == (True, [], "behind a handle")
    assert report["sound"] is True


# 6. facts that are taken from the records


def test_sizes_and_channels_taken_from_images_are_named(tmp_path, capsys, monkeypatch):
    for i, side in enumerate([8, 8, 8, 12]):
        (tmp_path / "ab"[i % 2]).mkdir(exist_ok=True)
        Image.fromarray(np.zeros((side, side), dtype=np.uint8)).save(
            tmp_path / "ab"[i % 2] / f"{i}.png"
        )
    stated = {"size": 8, "channels": 1, "classes": ["a", "b"]}
    for left_out in stated:
        handle = read(
            tmp_path, **{name: value for name, value in stated.items() if name != left_out}
        )
        said = capsys.readouterr().err
        assert left_out in said
        assert "taken from" in said
        assert len(handle.taken) == 1
    assert read(tmp_path, **stated).taken == ()
    assert "taken from" not in capsys.readouterr().err  # control
    monkeypatch.setenv("RANK", "1")
    assert read(tmp_path).taken
    assert not capsys.readouterr().err  # rank 0 says it


# 7. a second fit on the same records


def spend(handle, directory, **options):
    query = ClassCounts(3)
    with Budget(
        handle, [query], target_epsilon=1, target_delta=1e-5, run_dir=directory, **options
    ) as budget:
        query.release(handle)
    return budget


def test_a_second_budget_on_the_same_records_warns(tmp_path, capsys):
    rows = torch.rand(30, 3)  # records of no other test
    spend(records(rows), tmp_path / "a")
    assert "shared_ledger" not in capsys.readouterr().err
    spend(records(rows.clone()), tmp_path / "b")  # equal records behind another handle
    said = capsys.readouterr().err
    assert all(word in said for word in ("Warning", str(tmp_path / "a"), "shared_ledger"))
    trainer(tmp_path / "c").fit(Mine(), loader(of=records(rows)))
    assert "shared_ledger" in capsys.readouterr().err
    rows[0] += 1
    spend(records(rows), tmp_path / "d")
    assert "shared_ledger" not in capsys.readouterr().err  # control: other records


def test_a_cloned_estimator_that_is_fitted_again_warns(tmp_path, monkeypatch, capsys):
    base = pytest.importorskip("sklearn.base")
    monkeypatch.chdir(tmp_path)
    made = PrivateGenerator(epsilon=20.0, delta=1e-3, bounds=[(0, 1)] * BLOB_DIM)
    rows, labels = torch.rand(300, BLOB_DIM).numpy(), np.arange(300) % 3
    made.fit(rows, labels)
    assert "shared_ledger" not in capsys.readouterr().err
    base.clone(made).fit(rows, labels)
    assert "shared_ledger" in capsys.readouterr().err


# 8. a kill between the ledger's line and the stored value: tests/lightning/test_resume.py and tests/test_budget.py


# row functions: what an encoder does with private records


class LogsRows(Mine):
    """Logs a statistic of its features."""

    def encode(self, values):
        self.log("features", values.mean())
        return values

    def training_step(self, batch, batch_idx):
        return self.criterion(batch, self.net(torch.randn(16, 3)), rows=self.encode)


def standardised(values):
    return (values - values.mean(0)) / values.std(0)


def centred(values, labels):
    """Takes off the mean of the class."""
    return values - torch.stack([values[labels == c].mean(0) for c in labels.tolist()]), labels


def hooked(hook):
    encoder = torch.nn.Linear(3, 3)
    encoder.register_forward_hook(hook)
    return torch.nn.Sequential(encoder)


OF_A_FILE = []
IMAGES, ROWS = [(1, 8, 8), (1, 28, 28), (3, 64, 64)], [(1,), (3,), (4,), (5,)]
OF_BATCH = {  # functions of all rows, and the shapes of records
    "statistic": (standardised, [(3,)]),
    "statistic in BatchNorm": (torch.nn.BatchNorm1d(3, track_running_stats=False), [(3,)]),
    "largest row": (lambda x: x / x.norm(dim=1).max(), [(3,)]),
    "attention": (lambda x: torch.softmax(x @ x.T, 1) @ x, [(3,)]),
    "largest pixel": (lambda x: x / x.max(), IMAGES),
    "range": (lambda x: (x - x.min()) / (x.max() - x.min()), IMAGES),
    "largest pixel of a channel": (lambda x: x / x.amax((0, 2, 3), keepdim=True), IMAGES),
    "smallest pixel": (lambda x: x - x.min(), IMAGES),
    "above 1": (lambda x: x / 255 if x.max() > 1 else x, ROWS),
    "above 30": (lambda x: x / 255 if x.max() > 30 else x, ROWS),
}


@pytest.mark.parametrize("name", OF_BATCH)
def test_a_function_of_the_batch_is_refused(name):
    function, shapes = OF_BATCH[name]
    for shape in shapes:
        with pytest.raises(InputError, match="one record each"):
            check_row_function(lambda x: function(x).flatten(1), shape)


class KeepsInItsClass(torch.nn.Module):
    rows: ClassVar[list[torch.Tensor]] = []

    def forward(self, values):
        self.rows.append(values)
        return values


class KeepsInAGlobal(torch.nn.Module):
    def forward(self, values):
        OF_A_FILE.append(values)
        return values


def rows_of(function, rows=X, labels=Y):
    """Counts and sums of mapped rows, almost without noise."""
    return exact(ClassMeans(3, 3, row_norm=100.0), rows, labels, function=function)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: standardised, "one record each"),
        (lambda: LabelledRows(lambda x, y: (x - x.mean(0), y)), "one record each"),
        (lambda: LabelledRows(centred), "one record each"),
        (lambda: lambda x: x + torch.randn_like(x), "function of the record"),
        (lambda: hooked(lambda module, inputs, output: None), "hooks"),
        (lambda: hooked(partial(print)), "hooks"),
        (KeepsInItsClass, "keeps nothing"),  # its copy shares the class
        (KeepsInAGlobal, "keeps nothing"),  # and the variables of its file
    ],
    ids=[
        "of the batch",
        "of the batch, labels",
        "of the class",
        "noise",
        "hook",
        "hook of no module",
        "class",
        "file",
    ],
)
def test_row_functions_that_are_refused(make, why):
    with pytest.raises(InputError, match=why):
        rows_of(make())


TOTAL, SEEN = torch.zeros(3), []


def kept_in_globals(values, last=torch.zeros(3)):  # noqa: B008
    TOTAL.add_(values.sum(0))
    SEEN.append(values)
    last += values.sum(0)
    kept_in_globals.last = values
    return values


class Cache:
    """Keeps what it read, and is not a module."""

    kept = None

    def __call__(self, values):
        self.kept = values
        return values

    encode = __call__


class Keeps(torch.nn.Module):
    """Keeps what it read as attributes and in a buffer, as encoders with skip connections or a cache do."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(3))
        self.last, self.seen, self.clipped = torch.zeros(3), collections.deque([0]), 0

    def forward(self, values):
        self.average += values.mean(0)
        self.average = 0.9 * self.average
        self.last = self.last + values.sum(0)
        self.seen.append(values)
        self.clipped += int((values.norm(dim=1) > 1).sum())
        return values


def test_nothing_that_a_row_function_keeps_stays():
    module, cache, seen, n = Keeps(), Cache(), [], 0

    def closure(values):
        nonlocal n
        n += len(values)
        seen.append(values)
        return module(cache(values))

    def gone():
        """Whether everything is as before."""
        attributes = (
            n,
            seen,
            SEEN,
            cache.kept,
            module.clipped,
            [*module.seen],
            "last" in vars(kept_in_globals),
        )
        tensors = (TOTAL, kept_in_globals.__defaults__[0], module.last, module.average)
        return attributes == (0, [], [], None, 0, [0], False) and not any(
            each.any() for each in tensors
        )

    bound = partial(lambda held, values: held(values), module)
    for function in (module, closure, cache, cache.encode, kept_in_globals, bound):
        rows_of(function)
        assert gone(), function
    kept_in_globals(closure(X + 1))  # control: without the library everything is kept
    assert not gone()
    public = Keeps()  # features of public rows may be kept, with their graph
    public(X.clone().requires_grad_() * 2)
    assert public.last.grad_fn is not None
    rows_of(public)
    assert len(public.seen) == 2


def test_a_row_function_that_cannot_be_copied_is_refused():
    lock = threading.Lock()

    def rows(values):
        with lock:
            return values

    with pytest.raises(InputError, match=r"deepcopy.*lock.*modules, tensors"):
        rows_of(rows)


def test_an_encoder_that_logs_is_refused_and_what_it_keeps_or_logs_later_is_gone(tmp_path):
    """The check on public records does not see what happens in the third step only."""

    class Later(LogsRows):
        kept, at = None, 0

        def encode(self, values):
            if self.at == 2:
                self.kept = values
                for each in self.loggers:
                    each.log_metrics({"features": float(values.mean())})
            return values

        def on_train_batch_start(self, batch, batch_idx):
            self.at = batch_idx

    with pytest.raises(InputError, match="log"):
        trainer(tmp_path / "from the first step").fit(LogsRows(), loader())
    assert written(tmp_path / "from the first step") == 0
    module = Later()
    trainer(tmp_path, logger=CSVLogger(tmp_path)).fit(module, loader())
    assert (module.at, module.kept, released(module)) == (STEPS - 1, None, STEPS)
    assert "features" not in (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()


def test_an_error_on_a_private_record_shows_no_value():
    rows = X.exp()
    value = float(rows[7, 0])

    def checked(values):
        if bool((values == value).any()):
            raise ValueError(f"bad row {values}")
        return values

    with pytest.raises(InputError, match="got ValueError") as caught:
        rows_of(checked, rows)
    shown = "".join(traceback.format_exception(caught.value))
    assert "bad row tensor" not in shown
    assert f"{value:.4f}" not in shown


@pytest.mark.parametrize(
    "wrap", [lambda net: net, lambda net: lambda values: net(values), lambda net: net.forward]
)
def test_encoders_in_training_mode_are_evaluated(wrap):
    """BatchNorm with public statistics, and dropout, are then functions of one record."""
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 3))
    with torch.no_grad():
        net(torch.randn(50, 3))  # public
        expected = net.eval()(X).double()
    net.train()
    net[1].eval()  # stays as the user has set it
    before = copy.deepcopy(net.state_dict())
    sums = rows_of(wrap(net))[:, 1:]
    torch.testing.assert_close(
        sums / 100, torch.stack([expected[Y == c].sum(0) for c in range(3)]) / 100
    )
    assert [each.training for each in (net, *net)] == [True, True, False, True]
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


def test_a_row_that_is_not_finite_becomes_zero():
    expected = torch.where((X > 0).all(1, keepdim=True), X.log(), 0.0).double()
    sums = rows_of(lambda values: values.log())[:, 1:]  # nan where a value is negative
    torch.testing.assert_close(sums, torch.stack([expected[Y == c].sum(0) for c in range(3)]))


def test_hooks_on_all_modules_and_later_hooks_are_refused(tmp_path):
    with (
        register_module_forward_hook(lambda *_: None),
        pytest.raises(InputError, match="all modules"),
    ):
        rows_of(torch.nn.Identity())
    rows_of(torch.nn.Identity())  # control

    class Later(Mine):
        def training_step(self, batch, batch_idx):
            if batch_idx == 2:
                self.encoder.register_forward_hook(lambda *_: None)
            return super().training_step(batch, batch_idx)

    with pytest.raises(InputError, match="hooks"):
        trainer(tmp_path).fit(Later(), loader())
    assert written(tmp_path) == 2


def test_torch_compile_traces_no_noise(monkeypatch):
    """A compiled module traced the noise, whose random words then stood in guards and messages of the compiler."""
    traced, draw = [], dpswd.release.normal

    def noise(*arguments):
        traced.append(torch.compiler.is_compiling())
        return draw(*arguments)

    class Compiled(torch.nn.Module):
        criterion = booked(DPSlicedWassersteinLoss(MECHANISM))

        def forward(self, batch):
            return self.criterion(batch, torch.zeros(4, 3))

    monkeypatch.setattr(dpswd.release, "normal", noise)
    torch.compile(Compiled(), backend="eager")(next(iter(loader())))
    assert traced == [False]


# batches, handles and stages


class Validates(Mine):
    """Releases in validation, test and prediction."""

    def validation_step(self, batch, batch_idx):
        self.criterion.release(batch)

    test_step = predict_step = validation_step


@pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no")
@pytest.mark.parametrize("stage", ["validate", "test", "predict"])
def test_other_stages_release_nothing(tmp_path, stage):
    module, run, handle = Validates(), trainer(tmp_path), records()
    run.fit(module, loader(of=handle))
    with pytest.raises(BudgetExceededError, match=f"training steps only, got one in {stage[:5]}"):
        getattr(run, stage)(module, loader(of=handle))
    assert released(module) == written(tmp_path) == STEPS


@pytest.mark.parametrize(("sanity", "releases"), [(0, 2), (1, None)])
def test_validation_during_a_fit_releases_nothing(tmp_path, sanity, releases):
    module, handle = (
        Validates(MECHANISM.replace(sigma=None)),
        records(),
    )  # not calibrated in the sanity check
    run = trainer(tmp_path, num_sanity_val_steps=sanity, val_check_interval=2)
    with pytest.raises(
        BudgetExceededError, match=r"training steps only, got one in (validate|sanity_check)"
    ):
        run.fit(module, loader(of=handle), loader(of=handle))
    assert written(tmp_path) == releases


def test_handles_need_a_budget(tmp_path):
    handle, query, loss = blobs(), ClassCounts(3, sigma=1.0), DPSlicedWassersteinLoss(MECHANISM)
    with pytest.raises(InputError, match="within a budget"):
        query.release(handle)
    with pytest.raises(InputError, match="within a budget"):
        loss.release(next(iter(loader())))
    query = ClassCounts(3)
    with Budget(handle, [query], target_epsilon=1, target_delta=1e-4, run_dir=tmp_path):
        with pytest.raises(InputError, match="another handle"):
            query.release(blobs())
        query.release(handle)
        with pytest.raises(BudgetExceededError, match="at most 1"):
            query.release(handle)
        with pytest.raises(InputError, match="within a budget"):
            ClassMeans(3, BLOB_DIM, sigma=1.0).release(handle)
    with pytest.raises(BudgetExceededError, match="outside"):
        query.release(handle)
    loss.release(X[:B])  # control: the paper's drop-in, which no statement covers
    assert (query.n_releases, written(tmp_path)) == (1, 1)


def test_batches_are_drawn_afresh(monkeypatch):
    """Every batch is a uniform subset without replacement: neither seeded nor the batch of another step."""
    batches, opened = [], PrivateRecords.open_records
    monkeypatch.setattr(
        PrivateRecords,
        "open_records",
        lambda self, i: batches.append(i.tolist()) or opened(self, i),
    )
    for _ in range(300):
        torch.manual_seed(0)
        booked(DPSlicedWassersteinLoss(MECHANISM)).release(next(iter(loader())))
    assert {len(set(batch)) for batch in batches} == {B}
    seen = collections.Counter(itertools.chain(*batches))
    expected = 300 * B / N
    assert set(seen) == set(range(N))
    statistic = (
        sum((count - expected) ** 2 / expected for count in seen.values()) * (N - 1) / (N - B)
    )
    assert statistic < 110  # chi square of 39 degrees of freedom: false alarm 1e-8


def test_the_bound_of_a_query_cannot_be_changed():
    with pytest.raises(AttributeError):
        ClassMeans(1, 4).row_norm = 2.0


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_encoders_in_the_precision_of_the_trainer(tmp_path, precision):
    """Records stayed in float32, which the encoder then refused."""
    module = Mine()
    module.encoder = torch.nn.Linear(3, 3)
    trainer(tmp_path, precision=precision).fit(module, loader())
    assert written(tmp_path) == STEPS
