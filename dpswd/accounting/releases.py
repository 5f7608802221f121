"""What an accountant needs to know of equal consecutive releases, and nothing else of a mechanism."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from dpswd.sensitivity import ConstantLaw, Law

__all__ = ["Releases", "merge_gaussians"]


class Releases(NamedTuple):
    r"""``times`` releases, each on a fresh subset of fixed size, drawn without replacement.

    Given the directions, one release is a Gaussian mechanism with :math:`\mu = \mathtt{scale} \sqrt S`.

    Attributes:
        law: The law of S.
        scale: ``unit_sensitivity / sigma``, without unit.
        rate: Sampling rate q = B / N in (0, 1].
        times: Number T of releases.
    """

    law: Law
    scale: float
    rate: float
    times: int


def merge_gaussians(parts: Iterable[Releases]) -> list[Releases]:
    r"""Replaces all unsampled releases with constant S by the Gaussian mechanism they compose to, exactly.

    :math:`\mu^2 = \sum_i T_i \mathtt{scale}_i^2 S_i` (Dong2022, Corollary 3.3).
    """
    kept, mu_sq = [], 0.0
    for part in parts:
        if part.rate == 1 and part.law.is_constant:
            mu_sq += part.times * part.scale**2 * part.law.mean
        else:
            kept.append(part)
    if mu_sq:
        kept.append(Releases(ConstantLaw(1.0), math.sqrt(mu_sq), 1.0, 1))
    return kept
