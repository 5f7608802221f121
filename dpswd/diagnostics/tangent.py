r"""Tangent differential privacy: how fast a Gibbs distribution moves when ONE data distribution is perturbed.

A diagnostic, not a guarantee: it speaks of a derivative at this data set p, and says nothing of its
neighbours' neighbours, of a finite step (:func:`removal_changes` measures that), or of any other data set.

Setting (Ying2024). Risk matrix :math:`r_{wx}` (m hypotheses, n records), data distribution p on the records,
and

.. math:: q_w \propto \pi_w e^{-\beta (r p)_w}, \qquad
   \delta q = -\beta\, (\mathrm{diag}\, q - q q^\top)\, r\, \delta p, \qquad
   \delta \ln q = -\beta\, (I - \mathbf 1 q^\top)\, r\, \delta p ,

for perturbations with :math:`\mathbf 1^\top \delta p = 0`. The diagnostic is the operator norm. Write
:math:`c_{wx} = r_{wx} - E_q r_{\cdot x}` (all that the operators see of r). Norms and bounds:

=======  =======================  ==========================  ===============================================
theorem  norms (in -> out)        exact                       bounds, tight and simple
=======  =======================  ==========================  ===============================================
3        TV -> TV                 max over pairs of records   B max_x E_q |c_wx| <= B osc / 2
4        TV -> sup of ln q        B max_w range_x c_wx        2 B max |c_wx| <= 2 B osc
5        H^-1(p) -> TV            max over signs (m <= 16)    B/2 E_q |c_w|_H1 <= B/2 (E_q |c_w|_H1^2)^(1/2)
6        H^-1(p) -> sup of ln q   B max_w |c_w|_H1            B max |r_w - r_w'|_H1 <= 2 B max_w |r_w|_H1
=======  =======================  ==========================  ===============================================

Here B is beta, osc the largest range of a record's risk over the hypotheses, TV half of the L1 norm, and

.. math:: |\varphi|_{H^1(p)}^2 = \int |\nabla \varphi|^2 p, \qquad
   |\delta p|_{H^{-1}(p)} = \sup \{ \textstyle\int \varphi\, \delta p : |\varphi|_{H^1(p)} \le 1 \}

(the latter is W2 to first order: moving record i by v_i costs :math:`(\sum_i p_i |v_i|^2)^{1/2}`). On finite
X the gradient is that of a weighted graph (:func:`graph_stiffness`); for records in R^d it is the gradient of
the risk.

Proofs. 3: the unit ball of zero-sum measures has the extreme points :math:`e_x - e_{x'}`; the triangle
inequality gives the first bound, and a variable in an interval of length l has mean absolute deviation at
most l / 2. 4: the same extreme points; :math:`|c_{wx}|` is at most a record's range. 5: :math:`\|\delta
q\|_{TV} = \frac\beta2 E_q |\int c_w \delta p| \le \frac\beta2 E_q |c_w|_{H^1} |\delta p|_{H^{-1}}`, then
Jensen; exactly, the supremum over signs s of :math:`\frac\beta2 |\sum_w s_w q_w c_w|_{H^1}`. 6: duality;
:math:`c_w` is a mean of differences of risks.

Only the abstract and the introduction of the paper could be consulted while this was written: the operators, the
norms and the numbering are the paper's, the bounds are derived here and may differ from the printed ones by
constants.

References:
    | Ying2024: Ying. Tangent Differential Privacy. arXiv:2406.04535; Journal of Machine Learning 4 (2025), 157-165.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from dpswd._validate import array, positive
from dpswd.errors import InputError

__all__ = [
    "RemovalChanges",
    "TangentNorms",
    "gibbs_distribution",
    "graph_stiffness",
    "h1_norm",
    "h_minus1_norm",
    "removal_changes",
    "tangent_norms",
    "tangent_operator",
    "total_variation",
]

Array = NDArray[np.float64]

_MAX_SIGNS = 16  # 2^15 sign patterns at most for the exact norm of Theorem 5
_PAIR_CHUNK = 256  # records per block of pairs, bounds the memory of Theorem 3's exact norm


def _risk_matrix(risk: ArrayLike) -> Array:
    r = array("a risk matrix of numbers (hypotheses, records)", risk)
    if r.ndim != 2 or not r.size:
        raise InputError(f"Expected a risk matrix (hypotheses, records), got shape {r.shape}.")
    if not np.isfinite(r).all():
        raise InputError("Expected a bounded risk, got nan or inf in the matrix; use a bounded loss such as savage.")
    return r


def _distribution(name: str, values: ArrayLike | None, size: int) -> Array:
    if values is None:
        return np.full(size, 1 / size)
    p = array(name, values)
    if p.shape != (size,) or not (p >= 0).all() or not abs(p.sum() - 1) <= 1e-9:
        got = f"shape {p.shape}, sum {p.sum():g}"
        raise InputError(f"Expected {name} to be {size} weights in [0, 1] that sum to 1, got {got}.")
    return p


def _log_prior(prior: ArrayLike | None, size: int) -> Array:
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(_distribution("prior", prior, size)))


def gibbs_distribution(
    risk: ArrayLike, beta: float, *, data: ArrayLike | None = None, prior: ArrayLike | None = None
) -> Array:
    r"""The Gibbs distribution :math:`q_w \propto \pi_w e^{-\beta (r p)_w}`, the regularised minimiser.

    Args:
        risk: Risk matrix (m, n): hypotheses by records.
        beta: Inverse temperature, above 0, in one over units of risk.
        data: Weights p of the records (n,); uniform by default.
        prior: Public prior :math:`\pi` over hypotheses (m,); uniform by default.

    Returns:
        Probabilities (m,).
    """
    r = _risk_matrix(risk)
    positive(beta=beta)
    p, log_prior = _distribution("data", data, r.shape[1]), _log_prior(prior, r.shape[0])
    return np.asarray(special.softmax(log_prior - beta * (r @ p)))


def tangent_operator(risk: ArrayLike, beta: float, q: ArrayLike, *, log: bool = False) -> Array:
    r"""The derivative of the Gibbs map as a matrix (m, n); it acts on zero-sum perturbations of the data.

    Args:
        risk: Risk matrix (m, n).
        beta: Inverse temperature, above 0.
        q: The Gibbs distribution (m,).
        log: ``False`` for :math:`-\beta (\mathrm{diag}\,q - q q^\top) r`, ``True`` for
            :math:`-\beta (I - \mathbf 1 q^\top) r`, the derivative of :math:`\ln q`.
    """
    r = _risk_matrix(risk)
    positive(beta=beta)
    q = _distribution("q", q, r.shape[0])
    derivative = -beta * (r - q @ r)
    return derivative if log else q[:, None] * derivative


def total_variation(q: ArrayLike, other: ArrayLike) -> float:
    """Half of the L1 distance of two distributions on the same points."""
    return 0.5 * float(np.abs(np.asarray(q, dtype=np.float64) - np.asarray(other, dtype=np.float64)).sum())


def graph_stiffness(data: ArrayLike, edges: ArrayLike, lengths: ArrayLike) -> Array:
    r"""The matrix K of :math:`|\varphi|_{H^1(p)}^2 = \varphi^\top K \varphi` on a graph of records.

    Every edge (i, j) of length l counts :math:`\frac{p_i + p_j}{2} \big(\frac{\varphi_i -
    \varphi_j}{l}\big)^2`.

    Args:
        data: Weights p of the records (n,).
        edges: Pairs of record indices (e, 2).
        lengths: Lengths of the edges (e,), above 0, in the unit of the records.

    Returns:
        A symmetric positive semidefinite matrix (n, n) whose rows sum to zero.
    """
    size = np.asarray(data, dtype=np.float64).size
    p = _distribution("data", data, size)
    pairs, length = np.asarray(edges, dtype=np.int64), np.asarray(lengths, dtype=np.float64)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or length.shape != (len(pairs),) or not (length > 0).all():
        raise InputError(f"Expected edges (e, 2) and e lengths above 0, got shapes {pairs.shape} and {length.shape}.")
    i, j = pairs.T
    difference = np.zeros((len(pairs), size))
    difference[np.arange(len(pairs)), i] = 1 / length
    difference[np.arange(len(pairs)), j] = -1 / length
    return np.asarray((difference * ((p[i] + p[j]) / 2)[:, None]).T @ difference)


def h1_norm(functions: ArrayLike, stiffness: ArrayLike) -> Array:
    """The weighted H^1 seminorms (...,) of functions (..., n) on the records."""
    f, k = np.asarray(functions, dtype=np.float64), np.asarray(stiffness, dtype=np.float64)
    squares: Array = ((f @ k) * f).sum(axis=-1)
    return np.sqrt(np.maximum(squares, 0.0))


def h_minus1_norm(perturbation: ArrayLike, stiffness: ArrayLike) -> float:
    """The dual norm of a zero-sum perturbation (n,); infinite where mass would cross between components."""
    v, k = np.asarray(perturbation, dtype=np.float64), np.asarray(stiffness, dtype=np.float64)
    potential: Array = np.linalg.pinv(k, hermitian=True) @ v
    if np.abs(k @ potential - v).max() > 1e-8 * max(np.abs(v).max(), 1e-300):
        return float("inf")
    return math.sqrt(max(float(v @ potential), 0.0))


@dataclass(frozen=True)
class TangentNorms:
    """Exact operator norms and the bounds of Theorems 3 to 6, at one data set. Diagnostics.

    Attributes:
        beta: Inverse temperature.
        exact: Norm by theorem number; ``None`` where it is too large to enumerate.
        bounds: Pairs (tight, simple) by theorem number; 5 and 6 only where a stiffness matrix was given.
    """

    beta: float
    exact: dict[int, float | None]
    bounds: dict[int, tuple[float, float]]

    is_guarantee = False

    def to_dict(self) -> dict[str, Any]:
        """What the command line and a report's appendix print."""
        names = {3: "tv_to_tv", 4: "tv_to_log", 5: "sobolev_to_tv", 6: "sobolev_to_log"}
        return {
            "beta": self.beta,
            "is_guarantee": self.is_guarantee,
            "tangent_diagnostics": {
                names[k]: {
                    "exact": self.exact[k],
                    "bound": self.bounds[k][0],
                    "simple_bound": self.bounds[k][1],
                }
                for k in sorted(self.bounds)
            },
        }


def tangent_norms(
    risk: ArrayLike, beta: float, *, q: ArrayLike | None = None, stiffness: ArrayLike | None = None
) -> TangentNorms:
    """Computes the exact norms and the bounds of the module's table.

    Args:
        risk: Risk matrix (m, n), finite.
        beta: Inverse temperature, above 0.
        q: The Gibbs distribution (m,); that of uniform data weights and prior by default.
        stiffness: Matrix (n, n) from :func:`graph_stiffness`; without it Theorems 5 and 6 are left out.
    """
    r = _risk_matrix(risk)
    positive(beta=beta)
    q = gibbs_distribution(r, beta) if q is None else _distribution("q", q, r.shape[0])
    c = r - q @ r  # (m, n)
    osc = float(np.ptp(r, axis=0).max())
    exact: dict[int, float | None] = {3: beta * _largest_pair(c, q), 4: beta * float(np.ptp(c, axis=1).max())}
    bounds = {
        3: (beta * float((q @ np.abs(c)).max()), beta * osc / 2),
        4: (2 * beta * float(np.abs(c).max()), 2 * beta * osc),
    }
    if stiffness is not None:
        k = array("stiffness", stiffness)
        if k.shape != (r.shape[1],) * 2:
            raise InputError(f"Expected a stiffness matrix of shape {(r.shape[1],) * 2}, got {k.shape}.")
        heights, risks = h1_norm(c, k), h1_norm(r, k)
        exact[5] = _largest_signed(c, q, k, beta)
        exact[6] = beta * float(heights.max())
        bounds[5] = (beta / 2 * float(q @ heights), beta / 2 * float(np.sqrt(q @ heights**2)))
        gram = r @ k @ r.T
        gaps = np.sqrt(np.maximum(np.add.outer(np.diag(gram), np.diag(gram)) - 2 * gram, 0.0))
        bounds[6] = (beta * float(gaps.max()), 2 * beta * float(risks.max()))
    return TangentNorms(beta, exact, bounds)


def _largest_pair(c: Array, q: Array) -> float:
    """The largest TV norm of q (c_x - c_x') over pairs of records."""
    best = 0.0
    for start in range(0, c.shape[1], _PAIR_CHUNK):
        block = c[:, start : start + _PAIR_CHUNK]
        for x in range(c.shape[1]):
            best = max(best, 0.5 * float((q @ np.abs(block - c[:, x : x + 1])).max()))
    return best


def _largest_signed(c: Array, q: Array, k: Array, beta: float) -> float | None:
    if len(q) > _MAX_SIGNS:
        return None
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(q) - 1))).reshape(-1, len(q) - 1)
    signs = np.hstack([np.ones((len(signs), 1)), signs])
    return beta / 2 * float(h1_norm(signs @ (q[:, None] * c), k).max())


@dataclass(frozen=True)
class RemovalChanges:
    """What really happens to q when a record is removed.

    Attributes:
        total_variation: TV distance for every record (n,).
        log_ratio: Largest change of ln q for every record (n,).
        step: TV norm of the perturbation that removes a record, 1 / n.
    """

    total_variation: Array
    log_ratio: Array
    step: float


def removal_changes(risk: ArrayLike, beta: float, *, prior: ArrayLike | None = None) -> RemovalChanges:
    """Recomputes q without each record in turn (uniform weights); TV and the largest change of ln q."""
    r = _risk_matrix(risk)
    n = r.shape[1]
    if n < 2:
        raise InputError("Expected at least 2 records to remove one, got 1.")
    q = gibbs_distribution(r, beta, prior=prior)
    log_prior = _log_prior(prior, r.shape[0])
    log_q = special.log_softmax(log_prior[:, None] - beta * (r.sum(axis=1, keepdims=True) - r) / (n - 1), axis=0)
    keep = q > 0
    tv = 0.5 * np.abs(np.exp(log_q) - q[:, None]).sum(axis=0)
    ratio = np.abs(log_q[keep] - special.log_softmax(log_prior - beta * r.mean(axis=1))[keep, None]).max(axis=0)
    return RemovalChanges(np.asarray(tv), np.asarray(ratio), 1 / n)
