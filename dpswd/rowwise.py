r"""Row-wise maps of private records: validation and evaluation, in the spirit of Opacus's ModuleValidator.

A release is proved private for rows :math:`z_i = \phi(x_i)` with a map :math:`\phi` fixed before the records are
read: replacing one record then moves one row, which is clipped. An encoder whose rows depend on each other (BatchNorm
in train mode, attention over the batch, centring) lets one record move ALL rows. An encoder that keeps a statistic of
its input (running means, memory banks) releases the private batch without noise.

:func:`rowwise` is row-wise by construction: a copy of the encoder maps one record at a time, inside
:func:`torch.func.vmap` or, if it cannot be traced, in a call of its own. The copy is discarded with every attribute
that it changed. State that :func:`copy.deepcopy` does not copy is not covered: globals, class attributes, closures,
files. Proof: docs/theory/private-side.md, Proposition 20.

:func:`check_module` finds layers that mix rows by their type; :func:`check_encoder` also compares outputs on public
records. Both name the layer and the remedy.
"""

import copy
import functools
import hashlib
import warnings

import torch
from torch import Tensor, nn

from dpswd.errors import InputError

__all__ = ["check_encoder", "check_module", "rowwise"]

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
INSTANCE_NORMS = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
_CHUNK = 512  # records that vmap maps at a time


@torch.no_grad()
def rowwise(encoder: nn.Module, records: Tensor) -> Tensor:
    """Map records (n, ...) to rows (n, d) one by one, in evaluation mode, without gradients.

    Args:
        encoder: Module that maps (n, ...) to (n, d). A copy of it is used.
        records: At least one record.

    Returns:
        Rows (n, d), detached.

    Raises:
        InputError: If the result is not one row per record, or if the encoder cannot be copied or was changed.

    Example:
        >>> encoder = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
        >>> rowwise(encoder, torch.rand(5, 4, 4)).shape
        torch.Size([5, 3])
    """
    before = digest(encoder)
    try:
        rows = _traced(encoder, records)
    except InputError:
        raise
    except (RuntimeError, ValueError, TypeError):  # vmap cannot trace the encoder
        rows = torch.stack([_one(_copied(encoder), record) for record in records])
    if digest(encoder) != before:
        raise InputError(
            f"Expected an encoder without state that depends on its input, got {type(encoder).__name__}, whose copies "
            "change buffers or parameters that they share with it; remove the layer that updates them."
        )
    return rows.detach()


def finite_or_zero(rows: Tensor) -> Tensor:
    """Replace rows (n, d) that are not finite by zero rows, each by itself.

    A finite record may overflow in float32, and an error at a release would tell that such a record exists
    (docs/theory/private-side.md, Proposition 22).
    """
    return torch.where(torch.isfinite(rows).all(dim=1, keepdim=True), rows, torch.zeros_like(rows))


def _traced(encoder: nn.Module, records: Tensor) -> Tensor:
    parts = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)  # slow, but correct
        for part in records.split(_CHUNK):
            mine = functools.partial(_one, _copied(encoder))
            parts.append(torch.func.vmap(mine, randomness="error")(part))
    return torch.cat(parts)


def _one(encoder: nn.Module, record: Tensor) -> Tensor:
    row: Tensor = encoder(record.unsqueeze(0))
    if row.ndim != 2 or row.shape[0] != 1:
        raise InputError(f"Expected the encoder to map one record to rows (1, d), got {tuple(row.shape)}.")
    return row.squeeze(0)


def _copied(encoder: nn.Module) -> nn.Module:
    """Return a copy in evaluation mode."""
    try:
        return copy.deepcopy(encoder).eval()
    except Exception as error:  # __deepcopy__ of an attribute may raise any exception
        reason = str(error).split(". ")[0].splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"Expected an encoder that copy.deepcopy can copy, got {type(encoder).__name__} ({reason}); do not "
            "keep results, files or locks in its attributes."
        ) from None


def check_module(module: nn.Module) -> None:
    """Refuse a module with a layer that mixes rows or keeps batch statistics, recognised by layer type.

    Args:
        module: Any module; its layers are checked in their present mode.

    Raises:
        InputError: Naming the layer and the remedy.

    Example:
        >>> check_module(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2).eval()))
    """
    for name, layer in module.named_modules():
        where = f"{type(layer).__name__} ({name})" if name else type(layer).__name__
        if isinstance(layer, BATCH_NORMS):
            if layer.running_mean is None:
                raise InputError(
                    f"Expected a row-wise module, got {where} without running statistics; replace it by GroupNorm or "
                    "LayerNorm."
                )
            if layer.training:
                raise InputError(
                    f"Expected a row-wise module, got {where} in train mode; call .eval() on that layer (it then uses "
                    "the statistics of public data), or replace it by GroupNorm or LayerNorm."
                )
        elif isinstance(layer, INSTANCE_NORMS) and layer.track_running_stats and layer.training:
            raise InputError(
                f"Expected a module without statistics of its input, got {where} with running statistics in train "
                "mode; set track_running_stats=False."
            )


def check_encoder(encoder: nn.Module, records: Tensor, dim: int | None = None) -> None:
    """Refuse an encoder that mixes rows or keeps batch statistics. Reads public records only.

    Args:
        encoder: Module that maps (n, ...) to (n, d).
        records: Public records (n, ...), n >= 2.
        dim: Expected d, if known.

    Raises:
        InputError: Naming the layer and the remedy.

    Example:
        >>> check_encoder(nn.Linear(3, 2), torch.rand(4, 3), dim=2)
    """
    check_module(encoder)
    alone = rowwise(encoder, records)
    if dim is not None and alone.shape[1] != dim:
        raise InputError(f"Expected features of size {dim}, got {alone.shape[1]}; set dim to that of the encoder.")
    _check_together(encoder, records, alone)


@torch.no_grad()
def _check_together(encoder: nn.Module, records: Tensor, alone: Tensor) -> None:
    """Raise if the encoder maps a batch and its records one by one to different rows."""
    copied = _copied(encoder)
    together = copied(records)
    scale = float(alone.abs().max())
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4 * (scale or 1.0)):
        raise InputError(
            f"Expected a row-wise encoder, got {type(encoder).__name__}, whose rows depend on the rest of the batch; "
            "remove attention, centring or normalisation over the batch."
        )
    if digest(copied) != digest(encoder):
        raise InputError(
            f"Expected an encoder without state that depends on its input, got {type(encoder).__name__}, whose "
            "buffers or parameters changed in evaluation mode; remove the layer that updates them."
        )


def digest(module: nn.Module) -> str:
    """Return the SHA-256 digest of a module's parameters and buffers, which identifies an encoder."""
    total = hashlib.sha256()
    for name, value in sorted([*module.named_parameters(), *module.named_buffers()]):
        total.update(name.encode())
        total.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
