"""Row functions: what maps private records to rows, each row from one record.

A row function is a public feature map, or an encoder that is being trained: a module, a function or a method. Private
records are mapped by a copy of it, in evaluation mode, without gradients and loggers. The copy is then dropped, and
with it what it keeps of them. Before the first release the function is called on public random records of the same
shape, of which one is then changed: the other rows must not change.

Formal guarantee: docs/theory/private-side.md, Proposition 22.
"""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from dpswd.errors import InputError
from dpswd.records import SharesHandles

__all__ = ["LabelledRows"]

_LIBRARIES = (
    "torch",
    "torchvision",
    "numpy",
    "scipy",
    "sklearn",
    "lightning",
    "dpswd",
)  # functions keep nothing


@dataclasses.dataclass(frozen=True)
class LabelledRows:
    """Row function of a record and its class.

    Attributes:
        function: Maps records (n, ...) and classes (n,) to rows (n, d) and groups (n,); the row and the group of a
            record depend on this record and its class only.

    Example:
        >>> halves = LabelledRows(lambda values, labels: (values, (values[:, 0] > 0.5).long()))
        >>> halves.function(torch.tensor([[0.2], [0.7]]), torch.tensor([0, 0]))[1]
        tensor([0, 1])
    """

    function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


RowFunction = Callable[[Tensor], Tensor] | LabelledRows


@torch.no_grad()
def map_records(rows: RowFunction | None, values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Map private records (n, ...) and classes (n,) to rows (n, d) and groups (n,); an error shows none of them."""
    if rows is None:
        return _finite(values.flatten(1)), labels
    copied = _Copy(rows)
    try:
        return copied(values, labels)
    except Exception as error:
        got = f"{type(error).__name__} on private records, whose message is not shown, since it may hold their values"
        raise InputError(
            f"Expected a row for every record, got {got}; try the function on public ones."
        ) from None


class _Copy:
    """Copy of a row function, which is called in its place and keeps nothing."""

    def __init__(self, rows: RowFunction) -> None:
        held = SharesHandles()
        try:
            with _WithoutGraph():
                self._rows = _copied(rows, held)
        except Exception as error:
            got = f"{type(error).__name__}: {error} Pass a module, or a function of modules, tensors and numbers only"
            raise InputError(
                f"Expected a row function that copy.deepcopy can copy, got {got}."
            ) from None
        self.modules = [each for each in held.values() if isinstance(each, nn.Module)]
        tensors = (
            each for module in self.modules for each in (*module.parameters(), *module.buffers())
        )
        self._device = next((each.device for each in tensors), None)
        _refuse_hooks("all modules", register_module_forward_hook, register_module_forward_pre_hook)
        for module in self.modules:
            module.eval()
            if not isinstance(module, torch.jit.ScriptModule):  # it takes no hooks
                _refuse_hooks(
                    type(module).__name__,
                    module.register_forward_hook,
                    module.register_forward_pre_hook,
                )
            if hasattr(module, "log_dict"):  # of Lightning
                module.log = module.log_dict = _refuse_log  # type: ignore[assignment]

    def __call__(self, values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Map records on the device of the modules, in the precision of a trainer. A row that is not finite is zero."""
        values, groups = values.to(self._device or values.device, torch.get_default_dtype()), labels
        if isinstance(self._rows, LabelledRows):
            mapped, groups = self._rows.function(values, labels.to(values.device))
        else:
            mapped = self._rows(values)
        if not isinstance(mapped, Tensor) or mapped.ndim != 2 or len(mapped) != len(values):
            got = tuple(mapped.shape) if isinstance(mapped, Tensor) else type(mapped).__name__
            raise InputError(
                f"Expected rows (n, d), one for each of {len(values)} records, got {got}; flatten them."
            )
        return _finite(mapped), groups.detach()


class _WithoutGraph(TorchFunctionMode):
    """Copies tensors with a graph, which deepcopy refuses, as their values."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Replace the deepcopy of a tensor."""
        return (
            args[0].detach().clone()
            if function is Tensor.__deepcopy__
            else function(*args, **(kwargs or {}))
        )


def _copied(each: Any, held: SharesHandles) -> Any:
    """Copy a row function with its modules, variables, defaults and attributes; ``held`` has the copies by id."""
    if id(each) in held:
        return held[id(each)]
    if isinstance(each, type | ModuleType):
        return each
    if isinstance(each, LabelledRows):
        return LabelledRows(_copied(each.function, held))
    if isinstance(each, functools.partial):
        function, arguments, named = (
            _copied(part, held) for part in (each.func, each.args, each.keywords)
        )
        return functools.partial(function, *arguments, **named)
    if inspect.ismethod(each):
        return MethodType(_copied(each.__func__, held), _copied(each.__self__, held))
    if inspect.isfunction(each):  # deepcopy returns it as it is
        return each if _of_library(each.__module__) else _copied_function(each, held)
    if isinstance(each, nn.Module):  # no call without gradients changes a weight
        held.update({id(weight): weight for weight in each.parameters()})
    return copy.deepcopy(each, held)


def _copied_function(function: FunctionType, held: SharesHandles) -> FunctionType:
    names = inspect.getclosurevars(function).globals
    variables, cells = dict(function.__globals__), [CellType() for _ in function.__closure__ or ()]
    made = FunctionType(function.__code__, variables, function.__name__, closure=tuple(cells))
    held[id(function)] = made  # it may refer to itself
    variables.update({name: _copied(value, held) for name, value in names.items()})
    for cell, original in zip(cells, function.__closure__ or (), strict=True):
        cell.cell_contents = _copied(original.cell_contents, held)
    made.__defaults__, made.__kwdefaults__ = _copied(
        (function.__defaults__, function.__kwdefaults__), held
    )
    vars(made).update(_copied(vars(function), held))
    return made


def _refuse_hooks(name: str, *registers: Callable[..., Any]) -> None:
    """Refuse forward hooks, of a module or of all modules, which would see private records."""
    for register in registers:
        with register(_refuse_log) as handle:  # its table holds the other hooks, too
            hooks = [hook for hook in handle.hooks_dict_ref().values() if hook is not _refuse_log]
        if any(not _of_library(getattr(hook, "__module__", None)) for hook in hooks):
            raise InputError(
                f"Expected rows without forward hooks, which see private records, got one on {name}."
            )


def _refuse_log(*_: Any, **__: Any) -> NoReturn:
    raise InputError(
        "Expected a row function that logs nothing of private records, got a call of self.log; remove it."
    )


def _of_library(module: str | None) -> bool:
    return str(module).partition(".")[0] in _LIBRARIES


def _finite(rows: Tensor) -> Tensor:
    return torch.where(
        torch.isfinite(rows).all(dim=1, keepdim=True), rows, torch.zeros_like(rows)
    ).detach()
