r"""Tangent differential privacy (Ying2024).

It measures how fast a Gibbs distribution moves with ONE data distribution.

A diagnostic, not a guarantee: its number belongs to this data set p and is itself a statistic of p.

Setting. Risk matrix :math:`r_{wx}` (m hypotheses, n records), data distribution p on the records,
and

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

docs/notions.md derives the bounds of Theorems 3 and 5 for centred losses, and shows that Definition 2
bounds finite changes too.
"""  # noqa: E501 - the table has six columns

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.spatial.distance import pdist

Array = NDArray[np.float64]

# The exact norm of Theorem 5 is a maximum over 2^m patterns of signs, for m hypotheses up to this.
_MAX_SIGNS = 16


def gibbs_distribution(risk: Array, beta: float, *, data: Array | None = None) -> Array:
    """Return the Gibbs distribution q (m,).

    Args:
        risk: Risk matrix (m, n), hypotheses by records.
        beta: Inverse temperature.
        data: Weights (n,) of the records; uniform by default.
    """
    if data is None:
        mean_risk = risk.mean(axis=1)
    else:
        mean_risk = risk @ data
    return np.asarray(special.softmax(-beta * mean_risk))


@dataclass(frozen=True)
class TangentNorms:
    """Operator norms and bounds at one data set, by theorem number. Diagnostics.

    Attributes:
        exact: Exact norms; that of Theorem 5 is ``None`` for more than 16 hypotheses.
        centred: Bounds from centred risks, as in the module's table.
        printed: Bounds of the paper, with TV as half of the L1 norm; that of Theorem 5 is no bound.
    """

    exact: dict[int, float | None]
    centred: dict[int, float]
    printed: dict[int, float]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values: Definition 2 as tangent DP, Definition 1 beside it."""
        theorems = {"total_variation": 3}
        if 5 in self.exact:
            theorems["sobolev"] = 5
        tangent_dp = {}
        differentiability = {}
        for space, theorem in theorems.items():
            differentiability[space] = self._of_theorem(theorem)
            tangent_dp[space] = self._of_theorem(theorem + 1)
        return {"tangent_dp": tangent_dp, "differentiability": differentiability}

    def _of_theorem(self, theorem: int) -> dict[str, float | None]:
        """Return the norm and the two bounds of one theorem."""
        return {
            "exact": self.exact[theorem],
            "centred_bound": self.centred[theorem],
            "printed_bound": self.printed[theorem],
        }


def tangent_norms(
    risk: Array, beta: float, *, q: Array | None = None, gradients: Array | None = None
) -> TangentNorms:
    """Compute the exact norms and the bounds of the module's table.

    Args:
        risk: Risk matrix (m, n), hypotheses by records.
        beta: Inverse temperature.
        q: The Gibbs distribution (m,); that of uniform weights by default.
        gradients: Vectors (m, D) whose Euclidean norms are H1(p) norms of the risks:
            ``sqrt(p_i) * grad_x r(w, x_i)``, flattened. Without them Theorems 5 and 6 are left out.
    """
    if q is None:
        q = gibbs_distribution(risk, beta)
    norms = _total_variation_norms(risk, beta, q)
    if gradients is None:
        return norms
    sobolev = _sobolev_norms(gradients, beta, q)
    return TangentNorms(
        exact=norms.exact | sobolev.exact,
        centred=norms.centred | sobolev.centred,
        printed=norms.printed | sobolev.printed,
    )


def _total_variation_norms(r: Array, beta: float, q: Array) -> TangentNorms:
    """Return norms and bounds of Theorems 3 and 4, for risks r (m, n)."""
    c = r - q @ r  # centred risks (m, n)
    # The extreme points of the unit ball of TV are differences of two records, each with weight 1.
    largest_difference = float(pdist((q[:, None] * c).T, "cityblock").max(initial=0.0))
    largest_range = float(np.ptp(c, axis=1).max())
    return TangentNorms(
        exact={3: beta * (largest_difference / 2), 4: beta * largest_range},
        centred={
            3: beta * float((q @ np.abs(c)).max()),
            4: 2 * beta * float(np.abs(c).max()),
        },
        printed={
            3: 2 * beta * float((q @ np.abs(r)).max()),
            4: 4 * beta * float(np.abs(r).max()),
        },
    )


def _sobolev_norms(g: Array, beta: float, q: Array) -> TangentNorms:
    """Return norms and bounds of Theorems 5 and 6.

    ``g`` (m, D) are the gradients of the risks.
    """
    mean = q @ g
    heights = np.linalg.norm(g - mean, axis=1)  # |c_w|_H1 (m,)
    largest_height = float(heights.max())
    largest_norm = float(np.linalg.norm(g, axis=1).max())
    return TangentNorms(
        exact={
            5: _largest_signed(q[:, None] * (g - mean), beta),
            6: beta * largest_height,
        },
        centred={
            5: beta / 2 * float(q @ heights),
            6: beta * float(pdist(g).max(initial=0.0)),
        },
        printed={
            5: beta * float(np.linalg.norm(mean)),
            6: 2 * beta * largest_norm,
        },
    )


def _largest_signed(weighted: Array, beta: float) -> float | None:
    """Return the largest norm of sum_w s_w q_w c_w over signs s, times beta / 2.

    ``weighted`` has the rows q_w c_w (m, D); ``None`` for more than 16 hypotheses.
    """
    if len(weighted) > _MAX_SIGNS:
        return None
    signs = np.array([*itertools.product((1.0, -1.0), repeat=len(weighted))])
    norms = np.linalg.norm(signs @ weighted, axis=1)
    return beta / 2 * float(norms.max())


@dataclass(frozen=True)
class RemovalChanges:
    """Change of q when a record is removed, for every record.

    Attributes:
        total_variation: Change (n,) in total variation.
        log_ratio: Largest absolute change (n,) of ln q.
        step: TV norm of the perturbation that removes a record, 1 / n.
    """

    total_variation: Array
    log_ratio: Array
    step: float


def removal_changes(risk: Array, beta: float) -> RemovalChanges:
    """Recompute q without each record in turn.

    The risk matrix is (m, n), and the weights are uniform.
    """
    n = risk.shape[1]
    mean_risk = risk.mean(axis=1)
    mean_risk_without = (risk.sum(axis=1, keepdims=True) - risk) / (n - 1)  # (m, n)
    log_q = special.log_softmax(-beta * mean_risk)[:, None]
    log_q_without = special.log_softmax(-beta * mean_risk_without, axis=0)
    total_variation = 0.5 * np.abs(np.exp(log_q_without) - np.exp(log_q)).sum(axis=0)
    log_ratio = np.abs(log_q_without - log_q).max(axis=0)
    return RemovalChanges(np.asarray(total_variation), np.asarray(log_ratio), 1 / n)
