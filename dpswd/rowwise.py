r"""Encoders on the private side: every row by itself, or not at all (in the spirit of Opacus's ModuleValidator).

Why. A release is proved private for rows :math:`z_i = \phi(x_i)` with a map :math:`\phi` that is fixed before the
records are read: then a record that is replaced moves one row, which is clipped. Where an encoder lets rows of a batch
depend on each other (BatchNorm in train mode, attention over the batch, centring), one record moves ALL rows, and the
sensitivity is B times as large. Where it keeps a statistic of what it read (running means, memory banks), the encoder
itself carries the private batch out, without noise.

:func:`rowwise` is row by row by construction. Let s be what :func:`copy.deepcopy` copies of an encoder: parameters,
buffers, and plain attributes of every submodule. Row i is :math:`f_s(x_i)`: a copy of the encoder as it came maps one
record, either inside :func:`torch.func.vmap`, where operations see no other record of their chunk, or, if it cannot be
traced, in a call of its own. Whatever a copy keeps (a running maximum, a list of batches) is thrown away with it,
and the encoder stays as it was. Not covered is what ``deepcopy`` does not copy: globals, attributes of the CLASS, a
function's closure, files; an encoder that writes its input there is not caught.

:func:`check_encoder` finds the usual culprits beforehand, on public rows only, and names the layer and the remedy.
"""

import copy
import functools
import hashlib
import warnings

import torch
from torch import Tensor, nn

from dpswd.errors import InputError

__all__ = ["check_encoder", "digest", "frozen_norms", "rowwise"]

_CHUNK = 512  # records that vmap maps at a time


@torch.no_grad()
def rowwise(encoder: nn.Module, records: Tensor) -> Tensor:
    """Maps records (n, ...) to rows (n, d), each by itself, in evaluation mode, without gradients.

    Args:
        encoder: Maps (n, ...) to (n, d). It is copied and stays as it is.
        records: At least one.

    Raises:
        InputError: If the result is no row per record, or the encoder cannot be copied or changed all the same.
    """
    before = digest(encoder)
    try:
        rows = _traced(encoder, records)
    except InputError:
        raise
    except (RuntimeError, ValueError, TypeError):  # something vmap cannot trace: a copy and a call per record
        rows = torch.stack([_one(_copied(encoder), record) for record in records])
    if digest(encoder) != before:
        raise InputError(
            f"Expected an encoder that keeps nothing of what it reads, got {type(encoder).__name__}, whose copies "
            "share buffers or parameters with it and change them; remove the layer that updates them."
        )
    return rows.detach()


def _traced(encoder: nn.Module, records: Tensor) -> Tensor:
    parts = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)  # slow, but right
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
    """A copy in evaluation mode."""
    try:
        return copy.deepcopy(encoder).eval()
    except Exception as error:  # whatever an attribute's own way of copying raises
        reason = str(error).split(". ")[0].splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"Expected an encoder that copy.deepcopy can copy, got {type(encoder).__name__} ({reason}); keep no "
            "results, files or locks in its attributes."
        ) from None


def check_encoder(encoder: nn.Module, records: Tensor, dim: int | None = None) -> None:
    """Refuses an encoder that mixes rows or keeps statistics of a batch. Reads public records only.

    Args:
        encoder: Maps (n, ...) to (n, d).
        records: Public records (n, ...), n >= 2.
        dim: The d that is wanted, if it is known.

    Raises:
        InputError: Naming the layer and the remedy.
    """
    for name, layer in encoder.named_modules():
        where = f"{type(layer).__name__} ({name})" if name else type(layer).__name__
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            if layer.running_mean is None:
                raise InputError(
                    f"Expected an encoder that treats rows one by one, got {where} without running statistics; "
                    "replace it by GroupNorm or LayerNorm."
                )
            if layer.training:
                raise InputError(
                    f"Expected an encoder that treats rows one by one, got {where} in train mode; call .eval() on that "
                    "layer (its statistics stay those of the public data), or replace it by GroupNorm or LayerNorm."
                )
        elif isinstance(layer, nn.modules.instancenorm._InstanceNorm) and layer.track_running_stats and layer.training:
            raise InputError(
                f"Expected an encoder that keeps nothing of what it reads, got {where} with running statistics in "
                "train mode; set track_running_stats=False."
            )
    alone = rowwise(encoder, records)
    if dim is not None and alone.shape[1] != dim:
        raise InputError(f"Expected features of size {dim}, got {alone.shape[1]}; set dim to that of the encoder.")
    _check_together(encoder, records, alone)


@torch.no_grad()
def _check_together(encoder: nn.Module, records: Tensor, alone: Tensor) -> None:
    """Compares a whole batch with its rows one by one: what is trained on should be what is released."""
    copied = _copied(encoder)
    together = copied(records)
    scale = float(alone.abs().max())
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-4 * (scale or 1.0)):
        raise InputError(
            f"Expected an encoder that treats rows one by one, got {type(encoder).__name__}, whose rows depend on the "
            "rest of the batch; remove what mixes them (attention or centring over the batch)."
        )
    if digest(copied) != digest(encoder):
        raise InputError(
            f"Expected an encoder that keeps nothing of what it reads, got {type(encoder).__name__}, whose buffers or "
            "parameters changed in evaluation mode; remove the layer that updates them."
        )


def frozen_norms(encoder: nn.Module) -> list[nn.Module]:
    """Returns the layers of batch normalisation that are in evaluation mode; they are to stay there."""
    kinds = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
    return [layer for layer in encoder.modules() if isinstance(layer, kinds) and not layer.training]


def digest(module: nn.Module) -> str:
    """SHA-256 of a module's parameters and buffers: which encoder was used at a release."""
    total = hashlib.sha256()
    for name, value in sorted([*module.named_parameters(), *module.named_buffers()]):
        total.update(name.encode())
        total.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
