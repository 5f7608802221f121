"""Nearest real records of synthetic records.

They are compared with the nearest ones of real records that were held out.

The distance of two images is the root mean square difference of their entries; columns of tables
are divided by their standard deviations first. Blurred images are near to every image, so that a
small distance alone does not show a copy. The ratio of the distances to the nearest and to the
second nearest real record does: it is about 0 for a copy, and about 1 for a blurred image (Lowe,
Distinctive Image Features from Scale-Invariant Keypoints, IJCV 2004). Real records that are equal
count as one, since a copy of them is as near to both.

In a table of few values, many fresh records equal a real one. Therefore the part of the synthetic
records that are close is compared with the part that is expected of fresh real records, by the
held-out ones.
"""

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpswd._layout import Array
from dpswd.records import Records

__all__ = ["nearest_real"]

# Records among which the nearest one is sought, and records whose nearest one is sought.
_MOST_REFERENCES = 10_000
_MOST_SOUGHT = 2000
# Fewer records on a side say nothing.
_LEAST = 20
# Part of the held-out records below whose ratio a synthetic record counts as close to one record.
_PART = 0.01
_AT_ONCE = 200  # records whose distances are computed at a time
# Nearest records whose distances are computed again by differences: those by inner products have
# rounding errors, and are not 0 for copies.
_N_EXACT = 4
_DIGITS = 4


def nearest_real(
    synthetic: Records, reference: Records, held_out: Records
) -> dict[str, float] | None:
    """Compare the nearest reference records of synthetic and held-out real records.

    Args:
        synthetic: Synthetic records.
        reference: Real records of the same shape, of which the nearest one is sought.
        held_out: Other real records. At most 10,000 records of the reference and 2,000 of the
            others are used, evenly spread.

    Returns:
        ``"synthetic"`` and ``"real"``, median distances to the nearest record of the reference;
        ``"close"``, the part of the synthetic records whose ratio of the distances to the nearest
        and to the second nearest record is below that of 99 % of the held-out ones, or is 0, where
        it is 0 for more than 1 % of these; and ``"expected"``, the part that is expected of fresh
        real records: (k + 1) / (n + 1), if k of n held-out ones are close. ``None`` for fewer than
        20 records, or if all records of the reference are equal.

    Example:
        >>> rows = torch.rand(90, 3, generator=torch.Generator().manual_seed(0))
        >>> parts = [Records(part, torch.zeros(30).long()) for part in rows.split(30)]
        >>> nearest_real(*parts)["close"] < 0.2, nearest_real(parts[1], *parts[1:])["close"]
        (True, 1.0)
    """
    if min(len(synthetic), len(reference), len(held_out)) < _LEAST:
        return None
    references = _vectors(reference, _MOST_REFERENCES)
    scale = torch.ones(references.shape[1])
    if reference.values.ndim == 2:
        scale = references.std(0)
        scale = scale.where(scale > 0, 1.0)
    references = (references / scale).unique(dim=0)
    if len(references) < 2:
        return None
    distances, ratios = _nearest(_vectors(synthetic, _MOST_SOUGHT) / scale, references)
    real_distances, real_ratios = _nearest(_vectors(held_out, _MOST_SOUGHT) / scale, references)
    limit = np.quantile(real_ratios, _PART, method="lower")
    n_close = int(_is_close(real_ratios, limit).sum())
    return {
        "synthetic": round(float(np.median(distances)), _DIGITS),
        "real": round(float(np.median(real_distances)), _DIGITS),
        "close": round(float(np.mean(_is_close(ratios, limit))), _DIGITS),
        "expected": round((n_close + 1) / (len(real_ratios) + 1), _DIGITS),
    }


def _is_close(ratios: Array, limit: float) -> Array:
    """Return which ratios (n,) are below the limit; where it is 0, which are 0."""
    if limit == 0:
        return np.asarray(ratios == 0)
    return np.asarray(ratios < limit)


def halves(records: Records) -> tuple[Records, Records]:
    """Return two random halves of records, the same ones at every call."""
    order = torch.randperm(len(records), generator=torch.Generator().manual_seed(0))
    middle = len(records) // 2
    return records.select(order[:middle]), records.select(order[middle:])


def _nearest(rows: Tensor, references: Tensor) -> tuple[Array, Array]:
    """Return distances (n,) to the nearest reference, and ratios (n,).

    A ratio is that of the distances to the nearest and the second nearest reference.
    """
    n_candidates = min(_N_EXACT, len(references))
    smallest = []
    for part in rows.split(_AT_ONCE):
        candidates = torch.cdist(part, references).topk(n_candidates, largest=False).indices
        differences = references[candidates] - part[:, None]  # (n, candidates, d)
        exact = differences.double().square().sum(2).sqrt()
        smallest.append(exact.topk(2, largest=False).values)
    first, second = torch.cat(smallest).T / math.sqrt(rows.shape[1])
    return np.asarray(first.numpy()), np.asarray((first / second).numpy())


def _vectors(records: Records, n: int) -> Tensor:
    """Return at most n vectors, evenly spread."""
    return records.evenly_spread(n).floats().flatten(1)


def summary(figures: dict[str, Any], reference: str) -> str:
    """Return the figures in words, and what they show.

    Args:
        figures: Those of :func:`nearest_real`.
        reference: Name of the real records.
    """
    return (
        f"Copies: {100 * figures['close']:.1f} % of the synthetic records are much nearer to one "
        f"record of {reference} than to all others. About {100 * figures['expected']:.1f} % are, "
        "if none is a copy, as with real records that no generator has seen. Copies of other "
        "records, such as others that a generator was fitted to, cannot be seen here. A small "
        "number does not show privacy: only the guarantee of the run does.\n"
        f"Median distance to the nearest record: {figures['synthetic']:.3f} of synthetic records, "
        f"{figures['real']:.3f} of held-out real ones."
    )
