r"""Tangent differential privacy (Ying2024): how fast a Gibbs distribution moves with ONE data distribution.

A diagnostic, not a guarantee: its number belongs to this data set p and is itself a statistic of p.

Setting. Risk matrix :math:`r_{wx}` (m hypotheses, n records), data distribution p on the records, and

.. math:: q_w \propto e^{-\beta (r p)_w}, \qquad
   D A_p = -\beta\, (\mathrm{diag}\, q - q q^\top)\, r, \qquad
   D(\log A)_p = -\beta\, (I - \mathbf 1 q^\top)\, r ,

on perturbations :math:`\delta` of p with :math:`\mathbf 1^\top \delta = 0`. The paper's

- Definition 1, *differentiable at p*, bounds the operator norm of :math:`D A_p` (Theorems 3 and 5),
- Definition 2, *tangent differential privacy at p*, that of :math:`D(\log A)_p` (Theorems 4 and 6).

With :math:`c_{wx} = r_{wx} - E_q r_{\cdot x}`, B for beta, and TV as half of the L1 norm:

=======  ===  =======================  ==========================  ===========================  =======================
theorem  def  norms (in -> out)        exact                       centred bound                printed bound
=======  ===  =======================  ==========================  ===========================  =======================
3        1    TV -> TV                 max over pairs of records   ``B max_x E_q |c_wx|``       ``2 B max_x E_q |r|``
4        2    TV -> sup of ln q        ``B max_w range_x c_wx``    ``2 B max |c_wx|``           ``4 B max |r|``
5        1    H^-1(p) -> TV            max over signs (m <= 16)    ``B/2 E_q |c_w|_H1``         ``B |E_q r|_H1``: false
6        2    H^-1(p) -> sup of ln q   ``B max_w |c_w|_H1``        ``B max |r_w - r_w'|_H1``    ``2 B max_w |r_w|_H1``
=======  ===  =======================  ==========================  ===========================  =======================

The paper prints 2 B R for all four, with TV as the whole L1 norm. The norms are

.. math:: |\varphi|_{H^1(p)}^2 = \int |\nabla \varphi|^2 p, \qquad
   |\delta|_{H^{-1}(p)} = \min \{ |f|_{L^2(p)} : \mathrm{div}(f p) = \delta \} .

docs/notions.md has the proofs, and that Definition 2 bounds finite changes too.
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.spatial.distance import pdist

Array = NDArray[np.float64]

_MAX_SIGNS = 16  # at most 2^16 sign patterns for the exact norm of Theorem 5


def gibbs_distribution(risk: Array, beta: float, *, data: Array | None = None) -> Array:
    """Return q (m,) for a risk matrix (m, n), hypotheses by records, and weights ``data`` (n,), uniform by default."""
    return np.asarray(special.softmax(-beta * (risk.mean(axis=1) if data is None else risk @ data)))


@dataclass(frozen=True)
class TangentNorms:
    """Operator norms and bounds at one data set, by theorem number. Diagnostics."""

    exact: dict[int, float | None]  # that of Theorem 5 is None for more than 16 hypotheses
    centred: dict[int, float]  # bounds from centred risks, as in the module's table
    printed: dict[
        int, float
    ]  # the paper's, with TV as half of the L1 norm; that of Theorem 5 is no bound

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: Definition 2 as tangent DP, Definition 1 beside it."""

        def values(theorem: int) -> dict[str, float | None]:
            centred, printed = self.centred[theorem], self.printed[theorem]
            return {
                "exact": self.exact[theorem],
                "centred_bound": centred,
                "printed_bound": printed,
            }

        spaces = {"total_variation": 3} | ({"sobolev": 5} if 5 in self.exact else {})
        return {
            "tangent_dp": {space: values(theorem + 1) for space, theorem in spaces.items()},
            "differentiability": {space: values(theorem) for space, theorem in spaces.items()},
        }


def tangent_norms(
    risk: Array, beta: float, *, q: Array | None = None, gradients: Array | None = None
) -> TangentNorms:
    """Compute the exact norms and the bounds of the module's table from a risk matrix (m, n).

    ``q`` is the Gibbs distribution (m,), by default that of uniform weights. ``gradients`` are vectors (m, D) whose
    Euclidean norms are H1(p) norms of the risks, ``sqrt(p_i) * grad_x r(w, x_i)`` flattened; without them Theorems 5
    and 6 are left out.
    """
    r, q = risk, gibbs_distribution(risk, beta) if q is None else q
    c = r - q @ r  # (m, n)
    largest_pair = (
        float(pdist((q[:, None] * c).T, "cityblock").max(initial=0.0)) / 2
    )  # extreme points of the ball
    exact: dict[int, float | None] = {
        3: beta * largest_pair,
        4: beta * float(np.ptp(c, axis=1).max()),
    }
    centred = {3: beta * float((q @ np.abs(c)).max()), 4: 2 * beta * float(np.abs(c).max())}
    printed = {3: 2 * beta * float((q @ np.abs(r)).max()), 4: 4 * beta * float(np.abs(r).max())}
    if gradients is not None:
        g, mean = gradients, q @ gradients
        heights = np.linalg.norm(g - mean, axis=1)  # |c_w|_H1 (m,)
        exact |= {5: _largest_signed(q[:, None] * (g - mean), beta), 6: beta * float(heights.max())}
        centred |= {5: beta / 2 * float(q @ heights), 6: beta * float(pdist(g).max(initial=0.0))}
        printed |= {
            5: beta * float(np.linalg.norm(mean)),
            6: 2 * beta * float(np.linalg.norm(g, axis=1).max()),
        }
    return TangentNorms(exact, centred, printed)


def _largest_signed(weighted: Array, beta: float) -> float | None:
    """Return the largest norm of sum_w s_w q_w c_w over signs s, times beta / 2."""
    if len(weighted) > _MAX_SIGNS:
        return None
    signs = np.array([*itertools.product((1.0, -1.0), repeat=len(weighted))])
    return beta / 2 * float(np.linalg.norm(signs @ weighted, axis=1).max())


@dataclass(frozen=True)
class RemovalChanges:
    """Change of q when a record is removed, for every record (n,)."""

    total_variation: Array
    log_ratio: Array  # largest absolute change of ln q
    step: float  # TV norm of the perturbation that removes a record, 1 / n


def removal_changes(risk: Array, beta: float) -> RemovalChanges:
    """Recompute q for a risk matrix (m, n) and uniform weights, without each record in turn."""
    r, n = risk, risk.shape[1]
    log_q = special.log_softmax(-beta * r.mean(axis=1))[:, None]
    log_left = special.log_softmax(-beta * (r.sum(axis=1, keepdims=True) - r) / (n - 1), axis=0)
    tv = 0.5 * np.abs(np.exp(log_left) - np.exp(log_q)).sum(axis=0)
    return RemovalChanges(np.asarray(tv), np.asarray(np.abs(log_left - log_q).max(axis=0)), 1 / n)
