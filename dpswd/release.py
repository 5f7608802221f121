r"""The one place where private records are opened, and where a noisy statistic of them is made.

A release takes these steps, all of them here::

    recorder asked -> indices drawn (or all records) -> records opened -> row function -> statistic of clipped rows
    -> ledger -> noise -> value stored -> value returned

A row function maps records to rows, each row from one record: a public feature map, or an encoder that is being
trained. The library calls it, in evaluation mode, without gradients, in chunks. Before the first release it is called
on public random records of the same shape, of which one is then changed: the other rows must not change, and the
modules must keep nothing of what they read.

Several processes (``torch.distributed``) make one release together: each rank opens its share of the records, rank 0
computes the statistic, writes the ledger and draws the noise, and broadcasts the value.

Formal guarantee: docs/theory/private-side.md.
"""

import collections
import contextlib
import functools
import inspect
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, Generic, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from dpswd._distributed import Processes
from dpswd._progress import passing
from dpswd._provenance import track_runs
from dpswd._random import random_source, subset
from dpswd.errors import InputError
from dpswd.mechanism import GaussianMechanism, Mechanism, ProjectionMechanism
from dpswd.records import PrivateBatch, PrivateRecords

__all__ = ["LabelledRows", "Recorder"]

_CHUNK_BYTES = 2**26  # of records that are mapped at a time
_MOST_RECORDS = 4096  # of them
_N_PUBLIC = 36  # random records on which a row function is checked
_SCALES = ((1.0, 1.0), (1.0, 1e2), (1.0, 1e5), (1e-2, 1.0), (1e-2, 1e2), (1e2, 1.0))  # of vectors; of the one changed
_RANGES = ((0.0, 1.0), (0.0, 0.01), (0.5, 0.6))  # of pixels
# whose functions keep nothing
_LIBRARIES = ("torch", "numpy", "builtins", "lightning", "dpswd", "collections", "functools")


class LabelledRows:
    """Row function of a record and its class.

    Args:
        function: Maps records (n, ...) and classes (n,) to rows (n, d) and groups (n,); the row and the group of a
            record depend on this record and its class only.

    Example:
        >>> halves = LabelledRows(lambda values, labels: (values, (values[:, 0] > 0.5).long()))
        >>> halves.function(torch.tensor([[0.2], [0.7]]), torch.tensor([0, 0]))[1]
        tensor([0, 1])
    """

    def __init__(self, function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]) -> None:
        self.function = function


RowFunction = Callable[[Tensor], Tensor] | LabelledRows


class Recorder:
    """Base of the objects that record releases. Its methods are called on every rank, ``store`` on rank 0.

    Example:
        >>> class Counter(Recorder):
        ...     count = 0
        ...     def record(self, mechanism):
        ...         self.count += 1
        >>> from dpswd.queries import ClassCounts
        >>> query = ClassCounts(2, sigma=1.0)
        >>> query.recorder = Counter()
        >>> released = query.release(PrivateRecords(torch.zeros(4, 3), [0, 1, 1, 0], classes=[0, 1]))
        >>> query.recorder.count
        1
    """

    def before_release(self, mechanism: Mechanism, records: PrivateRecords | None) -> dict[str, Tensor] | None:
        """Return the tensors of a stored release to use, or ``None``; raise to refuse (``records=None``: a tensor)."""
        return None

    def record(self, mechanism: Mechanism) -> None:
        """Write one release to stable storage before its noise is drawn; raise to refuse it."""
        raise NotImplementedError

    def store(self, mechanism: Mechanism, tensors: dict[str, Tensor]) -> None:
        """Store the noisy values of a release before they are returned."""


M = TypeVar("M", bound=ProjectionMechanism | GaussianMechanism)


class Releasing(nn.Module, Generic[M]):
    """Base of the loss and of the queries: a mechanism, its source of noise, and a count of releases."""

    share: float = 0.2  # part of the squared mu of a budget over several queries

    def __init__(self, mechanism: M, recorder: Recorder | None = None) -> None:
        super().__init__()
        track_runs(self)
        self.mechanism, self.recorder, self.n_releases = mechanism, recorder, 0
        self._checked: list[Any] = []  # row functions that were checked on public records

    @property
    def mechanism(self) -> M:
        """The mechanism of a release."""
        return self._mechanism

    @mechanism.setter
    def mechanism(self, mechanism: M) -> None:
        self._mechanism: M = mechanism
        self._source = random_source(mechanism.noise_seed)

    def extra_repr(self) -> str:
        """Describe the mechanism for ``print(module)``; a fixed noise seed is named there, too."""
        status = "" if self.mechanism.is_private else "NOT PRIVATE: fixed noise seed; "
        sigma = "not calibrated" if self.mechanism.sigma is None else f"{self.mechanism.sigma:.4g}"
        return f"{status}{self.mechanism.description}, sigma={sigma}"

    def _ask(self, records: PrivateRecords | None) -> dict[str, Tensor] | None:
        """Announce a release to the recorder; return the tensors of a stored release if it has one."""
        if records is not None and self.recorder is None:
            name = type(self).__name__
            raise InputError(f"Expected {name} within a budget, got none; use 'with Budget(...)' or PrivacyBudget.")
        return None if self.recorder is None else self.recorder.before_release(self.mechanism, records)

    def _publish(self, exact: Any, add_noise: Callable[[Any], Tensor], **published: Tensor) -> Tensor:
        """Record a release on every rank, then draw noise for ``exact`` on rank 0, store the values, broadcast them."""

        def record() -> None:
            self.mechanism.check_calibrated()
            if self.recorder is not None:
                self.recorder.record(self.mechanism)
            self.n_releases += 1

        def draw() -> Tensor:
            released = add_noise(exact).cpu()
            if self.recorder is not None:
                self.recorder.store(self.mechanism, {"values": released, **published})
            return released

        processes = Processes()
        processes.run_on_all(record)
        values: Tensor = processes.broadcast(draw)
        return values

    def _open_all(self, records: PrivateRecords, rows: RowFunction | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows and groups of this rank's share of all records, chunk by chunk, on the CPU."""
        self._check_rows(records, rows)
        processes = Processes()
        index = processes.share(torch.arange(len(records)), len(records))
        for part in passing(index.split(_chunk(records)), "Reading records", shown=processes.rank == 0):
            values, labels = records.open_records(part)
            mapped, groups = _apply(rows, values, labels)
            yield mapped.cpu(), groups.cpu()

    def _open_batch(
        self, records: PrivateRecords, size: int, rows: RowFunction | None
    ) -> tuple[Tensor | None, Tensor | None]:
        """Draw ``size`` of the records, and return their rows (B, d) and groups (B,) on rank 0."""
        self._check_rows(records, rows)
        processes = Processes()
        drawn = processes.broadcast(lambda: subset(self._source, len(records), size))
        own = torch.tensor_split(torch.from_numpy(drawn), processes.world_size)[processes.rank]

        def mapped() -> tuple[Tensor, Tensor]:
            parts = [_apply(rows, *records.open_records(part)) for part in own.split(_chunk(records))]
            found, groups = zip(*parts, strict=True)
            return torch.cat(found).double(), torch.cat(groups)

        found, groups = processes.run_on_all(mapped)
        return processes.gather(found), processes.gather(groups)

    def _check_rows(self, records: PrivateRecords, rows: RowFunction | None) -> None:
        """Check a row function on public random records, the first time that it is used."""
        if rows is None:
            return
        _refuse_hooks(rows)
        if not any(each == rows if inspect.ismethod(rows) else each is rows for each in self._checked):
            check_row_function(rows, records.shape, max(1, records.n_classes))
            self._checked.append(rows)


def check_same_records(records: PrivateRecords) -> str:
    """Return the digest of the records, after comparing it between ranks."""
    processes = Processes()
    digest = str(processes.run_on_all(records.digest))
    if len(set(processes.all_gather(digest))) > 1:
        raise InputError("Expected the same list of records on every rank, in one order, got different ones.")
    return digest


def clip_rows(rows: Tensor, row_norm: float) -> Tensor:
    """Scale every row with an L2 norm above ``row_norm`` down to it, row by row, in float64.

    The target is ``row_norm (1 - 1e-12 - d u)`` with u = 2^-53, so that rounding cannot leave a row above the bound
    (docs/theory/sensitivity.md, Proposition 1). A row whose norm overflows becomes zero.
    """
    exact = rows.detach().to(torch.float64, copy=True)
    norms: Tensor = torch.linalg.vector_norm(exact, dim=1, keepdim=True)
    margin = 1e-12 + rows.shape[1] * 2.0**-53
    return exact.mul_((row_norm * (1 - margin) / norms).clamp(max=1.0))


def _chunk(records: PrivateRecords) -> int:
    return max(1, min(_MOST_RECORDS, _CHUNK_BYTES // (4 * math.prod(records.shape))))


@torch.no_grad()
def _apply(rows: RowFunction | None, values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Map private records (n, ...) and classes (n,) to rows (n, d) and groups (n,); an error shows none of them."""
    if rows is None:
        return _finite(values.flatten(1)), labels
    try:
        with _isolated(_modules(rows)):
            return _mapped(rows, values, labels)
    except Exception as error:
        raise InputError(
            f"Expected a row for every record, got {type(error).__name__} of the row function on private ones (its "
            "message is not shown, since it may hold their values); try the function on public records."
        ) from None


def _mapped(rows: RowFunction, values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Call a row function on the device of its modules. A row that is not finite becomes zero."""
    held = (each for root in _modules(rows) for each in itertools.chain(root.parameters(), root.buffers()))
    device = next((each.device for each in held), values.device)
    values, groups = values.to(device), labels
    if isinstance(rows, LabelledRows):
        mapped, groups = rows.function(values, labels.to(device))
    else:
        mapped = rows(values)
    if not isinstance(mapped, Tensor) or mapped.ndim != 2 or len(mapped) != len(values):
        got = tuple(mapped.shape) if isinstance(mapped, Tensor) else type(mapped).__name__
        raise InputError(f"Expected rows (n, d), one for each of {len(values)} records, got {got}; flatten them.")
    return _finite(mapped), groups.detach()


def _finite(rows: Tensor) -> Tensor:
    return torch.where(torch.isfinite(rows).all(dim=1, keepdim=True), rows, torch.zeros_like(rows)).detach()


@contextlib.contextmanager
def _isolated(roots: list[nn.Module]) -> Iterator[None]:
    """Set modules to evaluation mode, without loggers; then restore their attributes, so that they keep nothing."""
    modules = [module for root in roots for module in root.modules()]
    held = [(module, module.training, dict(vars(module))) for module in modules]
    buffers = [(each, name, value, value.clone()) for each in modules for name, value in each.named_buffers("", False)]
    loggers = [(each, each.loggers) for each in map(_trainer, modules) if hasattr(each, "loggers")]
    try:
        for root in roots:
            root.eval()
        for trainer, _ in loggers:
            trainer.loggers = []
        for module, *_ in held:
            vars(module).update({name: _refuse_log for name in ("log", "log_dict") if hasattr(type(module), name)})
        yield
    finally:
        for module, mode, attributes in held:
            vars(module).clear()
            vars(module).update(attributes)
            module.training = mode  # of a scripted module: not among its attributes
        for module, name, buffer, value in buffers:
            if not torch.equal(buffer, value):
                buffer.copy_(value)
            if getattr(module, name) is not buffer:
                setattr(module, name, buffer)
        for trainer, given in loggers:
            trainer.loggers = given


def _trainer(module: nn.Module) -> Any:
    """Return the trainer of a Lightning module in a fit, which has loggers, or ``None``."""
    with contextlib.suppress(RuntimeError):  # of a Lightning module without a trainer
        return getattr(module, "trainer", None)
    return None


def _refuse_log(*_: Any, **__: Any) -> NoReturn:
    raise InputError("Expected a row function that logs nothing of private records, got a call of self.log; remove it.")


@torch.no_grad()
def check_row_function(rows: RowFunction, shape: tuple[int, ...], n_classes: int = 1) -> None:
    """Check on public random records of a shape that every row depends on one record, and that nothing is kept."""
    modules = _modules(rows)
    name = type(modules[0]).__name__ if modules else getattr(rows, "__name__", type(rows).__name__)
    with torch.random.fork_rng(devices=[]), _isolated(modules):
        torch.manual_seed(0)
        before = _state(rows)
        for values, changed in _public_pairs(shape):
            labels = torch.arange(_N_PUBLIC) % min(n_classes, _N_PUBLIC // 6)  # every class several times
            moved = torch.cat([labels[:1] + 1, labels[1:]]) % n_classes
            calls = (values, labels), (values, labels), (changed, moved), (values[1:3], labels[1:3])
            found = (_mapped(rows, *arguments) for arguments in calls)
            first, again, other, part = (torch.cat([row.double(), group.double()[:, None]], 1) for row, group in found)
            if not _same(first, again):
                got = f"{name}, whose rows change between two calls in evaluation mode"
                raise InputError(f"Expected rows that are a function of the record, got {got}; remove the randomness.")
            if not _same(first[1:], other[1:]) or not _same(first[1:3], part):
                raise InputError(
                    f"Expected rows that are computed from one record each, got {name}, whose rows change with another "
                    "record of the batch; remove the statistic of the batch or class (mean, maximum, attention, "
                    "BatchNorm without running statistics), or use a public constant."
                )
        kept = [name for name, value in _state(rows).items() if before.get(name) != value]
    if kept:
        raise InputError(f"Expected a row function that keeps nothing of what it reads, got {kept[0]}, which changed.")


def _public_pairs(shape: tuple[int, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield pairs of data sets that differ in the first record, whose scale exposes extremes of the batch."""
    if len(shape) == 3:
        for low, high in _RANGES:
            values = low + (high - low) * torch.rand(_N_PUBLIC, *shape)
            for first in (torch.rand(*shape), torch.zeros(shape), torch.ones(shape)):
                yield values, torch.cat([first[None], values[1:]])
        return
    for scale, other in _SCALES:
        values = scale * torch.randn(_N_PUBLIC, *shape)
        far = other * (1 + torch.randn(1, *shape).abs())
        for first in (far, -far):
            yield values, torch.cat([first, values[1:]])


def _same(one: Tensor, other: Tensor) -> bool:
    """Compare rows up to rounding, which may differ between batches of another size."""
    scale = float(one.abs().max()) if one.numel() else 0.0
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-4 * scale)


def _modules(rows: Any) -> list[nn.Module]:
    """Return the modules that a row function uses."""
    return [each for each in _reached(rows) if isinstance(each, nn.Module)]


def _reached(rows: Any) -> list[Any]:
    """Return what a row function uses: itself, the object of a method and what it holds, the variables of a closure."""
    found: dict[int, Any] = {}
    queue = [rows]
    while queue:
        each = queue.pop()
        if id(each) in found:
            continue
        found[id(each)] = each
        if isinstance(each, nn.Module):
            held = [value for module in each.modules() for value in vars(module).values()]
            lists = [value for value in held if isinstance(value, list | tuple)]
            queue += [part for value in lists for part in value if isinstance(part, nn.Module)]
            continue
        if isinstance(each, LabelledRows):
            queue.append(each.function)
        elif isinstance(each, functools.partial):
            queue += [each.func, *each.args, *each.keywords.values()]
        elif inspect.ismethod(each):
            attributes = {} if isinstance(each.__self__, nn.Module) else getattr(each.__self__, "__dict__", {})
            queue += [each.__self__, each.__func__, attributes, *attributes.values()]
        elif inspect.isfunction(each):
            if not _of_library(each.__module__):
                with contextlib.suppress(ValueError):  # of a variable that is not bound yet
                    variables = inspect.getclosurevars(each)
                    queue += [*variables.nonlocals.values(), *variables.globals.values()]
                queue += [*(each.__defaults__ or ()), vars(each)]
        elif callable(each) and not inspect.isclass(each) and not _of_library(type(each).__module__):
            queue += [each.__call__]
    return list(found.values())


def _of_library(module: str | None) -> bool:
    return any(module == name or str(module).startswith(f"{name}.") for name in _LIBRARIES)


def _refuse_hooks(rows: RowFunction) -> None:
    """Refuse forward hooks, of a module or of all modules, which would see private records."""
    owners: list[Any] = [("all modules", register_module_forward_hook, register_module_forward_pre_hook)]
    for root in _modules(rows):
        for name, module in root.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):  # it takes none
                name = name or type(root).__name__
                owners.append((name, module.register_forward_hook, module.register_forward_pre_hook))
    for name, *registers in owners:
        for register in registers:
            with register(_refuse_log) as handle:  # its table holds the other hooks, too
                hooks = [hook for hook in handle.hooks_dict_ref().values() if hook is not _refuse_log]
            if any(not _of_library(getattr(hook, "__module__", None)) for hook in hooks):
                raise InputError(f"Expected rows without forward hooks, which see private records, got one on {name}.")


def _state(rows: Any) -> dict[str, Any]:
    """Return what a row function and its modules hold, to see whether a call changes it."""
    reached = _reached(rows)
    held = {f"variable {i}": _held(each) for i, each in enumerate(reached) if not callable(each)}
    return held | {
        f"attribute {attribute} of {name or type(root).__name__}": _held(value)
        for root in reached
        if isinstance(root, nn.Module)
        for name, module in root.named_modules()
        for attribute, value in vars(module).items()
        if attribute != "training"
    }


def _held(value: Any, depth: int = 3) -> Any:
    """Return what a value holds in tensors, arrays, numbers and text, containers and the user's objects included."""
    if isinstance(value, Tensor):
        return id(value), tuple(value.shape), float(value.detach().double().sum().nan_to_num())
    if isinstance(value, float | int | str) or hasattr(value, "__array__"):
        return repr(value)
    if not depth or isinstance(value, nn.Module | PrivateRecords | PrivateBatch):
        return None
    if isinstance(value, dict):
        return {str(key): _held(each, depth - 1) for key, each in value.items() if not isinstance(each, nn.Module)}
    if isinstance(value, list | tuple | set | collections.deque):
        return [_held(each, depth - 1) for each in value]
    return None if _of_library(type(value).__module__) else _held(getattr(value, "__dict__", None), depth - 1)
