"""Row functions: what maps private records to rows, each row from one record.

A row function is a public feature map, or an encoder that is being trained: a module, a function or
a method. Private records are mapped by a copy of it, in evaluation mode, without gradients and
loggers. The copy is then dropped, and with it what it keeps of the records. Before the first
release the function is called on public random records of the same shape, of which one is then
changed: the other rows must not change (:mod:`dpswd.row_check`).

Formal guarantee: docs/theory/private-side.md, Proposition 22.
"""

import copy
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from dpswd.errors import InputError
from dpswd.records import SharesHandles

__all__ = ["LabelledRows"]

# Functions of these libraries keep no record, so that they are neither copied nor examined.
_LIBRARIES = ("torch", "torchvision", "numpy", "scipy", "sklearn", "lightning", "dpswd")


@dataclasses.dataclass(frozen=True)
class LabelledRows:
    """Row function of a record and its class.

    Attributes:
        function: Maps records (n, ...) and classes (n,) to rows (n, d) and groups (n,); the row and
            the group of a record depend on this record and its class only.

    Example:
        >>> def halves(values, labels):
        ...     return values, (values[:, 0] > 0.5).long()
        >>> rows, groups = LabelledRows(halves).function(torch.tensor([[0.2], [0.7]]), None)
        >>> groups
        tensor([0, 1])
    """

    function: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


RowFunction = Callable[[Tensor], Tensor] | LabelledRows


@torch.no_grad()
def map_records(
    row_function: RowFunction | None, values: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """Map private records (n, ...) and classes (n,) to rows (n, d) and groups (n,).

    Without a row function, records are flattened, and the groups are the classes.

    Raises:
        InputError: If the row function fails. The message shows no record, so the one of the
            original error is left out.
    """
    if row_function is None:
        return _finite_rows(values.flatten(1)), labels
    copied = RowCopy(row_function)
    try:
        # A warning, such as that of a logarithm of zero, would tell of a record.
        with warnings.catch_warnings(action="ignore"):
            return copied(values, labels)
    except Exception as error:
        raise InputError(
            f"Expected a row for every record, got {type(error).__name__} on private records, "
            "whose message is not shown, since it may hold their values; "
            "try the function on public records."
        ) from None


class RowCopy:
    """Copy of a row function, which keeps nothing of the records.

    The copy is called in place of the function. The copy has its own modules, weights, attributes,
    default arguments, variables of a closure and global variables. Whatever a call writes into them
    goes when the copy is dropped.

    Args:
        row_function: A module, a method, or a function of modules, tensors and numbers.

    Attributes:
        modules: The copied modules.

    Raises:
        InputError: If it is no function, cannot be copied, or a module has forward hooks.

    Example:
        >>> class Remembers(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.inputs = []
        ...     def forward(self, values):
        ...         self.inputs.append(values)
        ...         return values
        >>> encoder = Remembers()
        >>> copied = RowCopy(encoder)
        >>> rows, groups = copied(torch.zeros(2, 3), torch.tensor([0, 1]))
        >>> len(copied.modules[0].inputs), len(encoder.inputs)
        (1, 0)
    """

    def __init__(self, row_function: RowFunction) -> None:
        if not callable(row_function) and not isinstance(row_function, LabelledRows):
            raise InputError(
                "Expected rows as a function of records or LabelledRows, got "
                f"{type(row_function).__name__}; pass a module or a function."
            )
        copies = SharesHandles()  # by the identity of the original
        try:
            with _WithoutGraph():
                self._row_function = _copy(row_function, copies)
        except Exception as error:
            raise InputError(
                "Expected a row function that copy.deepcopy can copy, got "
                f"{type(error).__name__} ({error}); pass a module, or a function of modules, "
                "tensors and numbers only."
            ) from None
        self.modules = [copied for copied in copies.values() if isinstance(copied, nn.Module)]
        self._device = _device_of(self.modules)
        _refuse_hooks("all modules", register_module_forward_hook)
        _refuse_hooks("all modules", register_module_forward_pre_hook)
        for module in self.modules:
            _prepare(module)

    def __call__(self, values: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Map records (n, ...) and classes (n,) to rows (n, d) and groups (n,).

        Records are moved to the device of the modules and to the default precision, which a trainer
        may have set. A row that is not finite becomes zero.

        Raises:
            InputError: If the function returns no row and no group for every record.
        """
        values = values.to(self._device or values.device, torch.get_default_dtype())
        if isinstance(self._row_function, LabelledRows):
            result = self._row_function.function(values, labels.to(values.device))
            rows, groups = _checked_pair(result, len(values))
        else:
            rows = self._row_function(values)
            groups = labels
        _check_rows(rows, len(values))
        return _finite_rows(rows), groups.detach()


def _check_rows(rows: Any, n_records: int) -> None:
    """Raise an :class:`InputError` unless rows are real, (n, d), one per record."""
    expected = f"Expected rows (n, d), one for each of {n_records} records"
    if not isinstance(rows, Tensor):
        raise InputError(f"{expected}, got {type(rows).__name__}; return a tensor.")
    if rows.ndim != 2 or len(rows) != n_records:
        raise InputError(f"{expected}, got {tuple(rows.shape)}; flatten them.")
    if rows.is_complex():
        raise InputError(f"{expected}, got complex numbers; return real and imaginary parts.")


def _checked_pair(result: Any, n_records: int) -> tuple[Any, Tensor]:
    """Return rows and groups (n,), which a :class:`LabelledRows` returned.

    The groups are int64. An :class:`InputError` is raised unless there is an integer, or a truth
    value, for each record.
    """
    expected = f"Expected rows and groups, one integer for each of {n_records} records"
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise InputError(f"{expected}, got {type(result).__name__}; return a pair (rows, groups).")
    rows, groups = result
    if not isinstance(groups, Tensor) or groups.is_floating_point() or groups.is_complex():
        kind = groups.dtype if isinstance(groups, Tensor) else type(groups).__name__
        raise InputError(f"{expected}, got groups as {kind}; return a tensor in int64.")
    if groups.shape != (n_records,):
        raise InputError(f"{expected}, got groups of shape {tuple(groups.shape)}; return (n,).")
    return rows, groups.long()


def _finite_rows(rows: Tensor) -> Tensor:
    """Return rows (n, d) without a graph.

    A row that is not finite becomes zero.
    """
    is_finite = torch.isfinite(rows).all(dim=1, keepdim=True)
    return torch.where(is_finite, rows, torch.zeros_like(rows)).detach()


def _device_of(modules: list[nn.Module]) -> torch.device | None:
    """Return the device of the first parameter or buffer; ``None`` without both."""
    for module in modules:
        for weight in (*module.parameters(), *module.buffers()):
            return weight.device
    return None


def _prepare(module: nn.Module) -> None:
    """Put a copied module into evaluation mode.

    Forward hooks, and calls of ``self.log``, are refused.
    """
    module.eval()
    if not isinstance(module, torch.jit.ScriptModule):  # a ScriptModule takes no hooks
        name = type(module).__name__
        _refuse_hooks(name, module.register_forward_hook)
        _refuse_hooks(name, module.register_forward_pre_hook)
    if hasattr(module, "log_dict"):  # of Lightning
        module.log = _refuse_log  # type: ignore[assignment]  # no parameter, buffer or module
        module.log_dict = _refuse_log  # type: ignore[assignment]


def _refuse_hooks(name: str, register: Callable[..., Any]) -> None:
    """Raise an :class:`InputError` if forward hooks are registered.

    Such hooks would see records.

    Args:
        name: What the hooks belong to, for the message.
        register: Method that registers a hook. It returns a handle that leads to all hooks.
    """
    with register(_refuse_log) as handle:
        hooks = [hook for hook in handle.hooks_dict_ref().values() if hook is not _refuse_log]
    for hook in hooks:
        if not is_of_library(getattr(hook, "__module__", None)):
            raise InputError(
                "Expected rows without forward hooks, which see private records, "
                f"got one on {name}; remove it."
            )


def _refuse_log(*_: Any, **__: Any) -> NoReturn:
    raise InputError(
        "Expected a row function that logs nothing of private records, got a call of self.log; "
        "remove it."
    )


def is_of_library(module: str | None) -> bool:
    """Return whether a name of a Python module is that of a library.

    The libraries are those in ``_LIBRARIES``.
    """
    return str(module).partition(".")[0] in _LIBRARIES


class _WithoutGraph(TorchFunctionMode):
    """Lets ``copy.deepcopy`` copy a tensor with a graph, as its values.

    ``copy.deepcopy`` refuses such a tensor otherwise.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Replace the deepcopy of a tensor; leave all other functions as they are."""
        if function is Tensor.__deepcopy__:
            return args[0].detach().clone()
        return function(*args, **(kwargs or {}))


def _copy(value: Any, copies: SharesHandles) -> Any:
    """Copy a row function, or a part of it.

    ``copy.deepcopy`` returns a function as it is, with all that it holds. Functions, methods and
    partial functions are therefore taken apart here, and put together from copies.

    Args:
        value: The row function, or a part of it.
        copies: Copies by the identity of the original, to which this one is added.
    """
    if id(value) in copies:
        return copies[id(value)]
    if isinstance(value, type | ModuleType):
        return value
    if isinstance(value, LabelledRows):
        return LabelledRows(_copy(value.function, copies))
    if isinstance(value, functools.partial):
        function = _copy(value.func, copies)
        arguments = _copy(value.args, copies)
        return functools.partial(function, *arguments, **_copy(value.keywords, copies))
    if inspect.ismethod(value):
        return MethodType(_copy(value.__func__, copies), _copy(value.__self__, copies))
    if inspect.isfunction(value):
        if is_of_library(value.__module__):
            return value
        return _copy_function(value, copies)
    return copy.deepcopy(value, copies)


def global_variables(function: FunctionType) -> dict[str, Any]:
    """Return the global variables that a function names, by their names.

    So may the functions, lambdas and comprehensions within it, whose names
    ``inspect.getclosurevars`` leaves out.

    Example:
        >>> SCALE = 2.0
        >>> def scaled(values):
        ...     return torch.stack([SCALE * value for value in values])
        >>> "SCALE" in global_variables(scaled)
        True
    """
    variables = function.__globals__
    return {name: variables[name] for name in names_in(function.__code__) if name in variables}


def names_in(code: CodeType) -> list[str]:
    """Return the names of variables and attributes in a code and those within it."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= dict.fromkeys(names_in(constant))
    return list(names)


def _copy_function(function: FunctionType, copies: SharesHandles) -> FunctionType:
    """Copy a function with its variables, default arguments and attributes.

    Its variables are global ones and those of its closure. Only the global variables that the
    function names are copied. The function refers to itself if it is recursive, so that its copy is
    added to ``copies`` before its variables are copied.
    """
    variables = dict(function.__globals__)
    closure = function.__closure__ or ()
    cells = tuple(CellType() for _ in closure)
    copied = FunctionType(function.__code__, variables, function.__name__, closure=cells)
    copies[id(function)] = copied
    for name, value in global_variables(function).items():
        variables[name] = _copy(value, copies)
    for cell, original in zip(cells, closure, strict=True):
        cell.cell_contents = _copy(original.cell_contents, copies)
    copied.__defaults__ = _copy(function.__defaults__, copies)
    copied.__kwdefaults__ = _copy(function.__kwdefaults__, copies)
    vars(copied).update(_copy(vars(function), copies))
    return copied
