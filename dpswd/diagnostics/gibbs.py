r"""Gibbs classifiers for tangent DP: bounded losses, exact and Langevin draws, estimators from draws.

A *Gibbs head* is one linear classifier drawn from :math:`q_w \propto \pi_w e^{-\beta \bar R(w)}`, where
:math:`\bar R` is the mean of a BOUNDED loss over the private records. Two kinds:

- finite: the candidates w are public (trained elsewhere); q is known exactly. One exact draw is also an
exponential
  mechanism, hence :math:`\varepsilon`-DP with :math:`\varepsilon = 2 \beta B / n` for losses in an interval
  of length B (replace-one). That is a guarantee and :func:`exponential_mechanism_epsilon` gives it; the
  tangent number is not.
- continuous: w is a vector and Langevin dynamics draws it. The draw is approximate: until the chain has mixed
its law
  is not q, and neither number applies. Mixing cannot be proved from a run; split R-hat and the effective
  sample size of :class:`Chains` can only refute it. A network's posterior has more modes than any chain here
  visits.

Estimators. With samples of q (Ying2024, Remarks 3c and 5b) the bounds of Theorems 3 and 5 are means over q;
the error bars hold at once for all records (Bonferroni) and treat the plug-in mean by the triangle
inequality, so they are wide rather than wrong; they are normal approximations in the number of samples.

References:
    | Ying2024. Savage loss: Masnadi-Shirazi and Vasconcelos, NeurIPS 2008. Tangent loss: Masnadi-Shirazi,
    Mahadevan
    | and Vasconcelos, CVPR 2010.
"""

import copy
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from torch import Tensor

from dpswd._validate import at_least, choice, positive, probability
from dpswd.errors import InputError

__all__ = [
    "LOSS_BOUNDS",
    "Chains",
    "Estimate",
    "estimate_sobolev_bound",
    "estimate_tv_bound",
    "exponential_mechanism_epsilon",
    "langevin",
    "linear_margins",
    "margin_loss",
    "network_risk",
    "sample_hypotheses",
]

Array = NDArray[np.float64]

LOSS_BOUNDS = {"savage": 1.0, "tangent": (math.pi + 1) ** 2, "zero_one": 1.0}  # every loss starts at 0


def margin_loss(loss: str, margins: Tensor) -> Tensor:
    r"""A bounded loss of classification margins v (positive where the class is right), any shape.

    Savage: :math:`(1 + e^{2v})^{-2}`. Tangent: :math:`(2 \arctan v - 1)^2`. Zero-one: 1 where v <= 0.

    Raises:
        InputError: For any other loss; hinge, logistic and squared loss have no finite bound.
    """
    if loss not in LOSS_BOUNDS:
        raise InputError(
            f"Expected a bounded loss, one of {', '.join(LOSS_BOUNDS)}, got loss={loss!r}; "
            "an unbounded risk has no bound."
        )
    if loss == "savage":
        return torch.sigmoid(-2 * margins).square()
    if loss == "tangent":
        return (2 * torch.arctan(margins) - 1).square()
    return (margins <= 0).to(margins.dtype)


def linear_margins(weights: Tensor, features: Tensor, labels: Tensor) -> Tensor:
    """Margins of linear classifiers: score of the right class less the best other score.

    Args:
        weights: Classifiers (..., d + 1, c); the last row is the bias.
        features: Rows (n, d).
        labels: Classes (n,), integers in [0, c).

    Returns:
        Margins (..., n).
    """
    return _margins(features @ weights[..., :-1, :] + weights[..., -1:, :], labels)


def _margins(scores: Tensor, labels: Tensor) -> Tensor:
    index = labels.expand(scores.shape[:-1])[..., None]
    right = scores.gather(-1, index)[..., 0]
    return right - scores.scatter(-1, index, -math.inf).amax(-1)


def network_risk(
    network: torch.nn.Module, inputs: Tensor, labels: Tensor, loss: str
) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """The mean bounded loss of a network as a function of its flat parameters, for :func:`langevin`.

    Args:
        network: Maps inputs to scores (n, c); no dropout, no batch statistics (it is called in eval mode).
        inputs: Private inputs (n, ...).
        labels: Classes (n,).
        loss: A bounded loss that is differentiable: ``"savage"`` or ``"tangent"``.

    Returns:
        The risk (chains, dim) -> (chains,), and the network's own parameters (dim,) as a starting point.
    """
    choice(("savage", "tangent"), loss=loss)
    network = copy.deepcopy(network).eval()
    shapes = {name: p.shape for name, p in network.named_parameters()}
    buffers = dict(network.named_buffers())

    def one(flat: Tensor) -> Tensor:
        parts = torch.split(flat, [shape.numel() for shape in shapes.values()])
        parameters = {name: part.view(shapes[name]) for name, part in zip(shapes, parts, strict=True)}
        scores = torch.func.functional_call(network, parameters | buffers, (inputs,))
        return margin_loss(loss, _margins(scores, labels)).mean()

    start = torch.cat([p.detach().flatten() for p in network.parameters()])
    return torch.vmap(one), start


def exponential_mechanism_epsilon(beta: float, loss: str, n_records: int) -> float:
    r"""The pure epsilon of ONE exact draw from a Gibbs distribution over public candidates (replace-one).

    The mean risk of every candidate moves by at most B / n, hence :math:`|\ln q - \ln q'| \le 2 \beta B / n`.
    B is the public bound of the loss, not what the data happen to show. A second draw costs as much again.
    """
    positive(beta=beta)
    choice(tuple(LOSS_BOUNDS), loss=loss)
    at_least(1, n_records=n_records)
    return 2 * beta * LOSS_BOUNDS[loss] / n_records


def sample_hypotheses(q: ArrayLike, size: int, *, rng: np.random.Generator | None = None) -> NDArray[np.int64]:
    """Draws indices (size,) from a finite Gibbs distribution exactly.

    Every draw is a release. ``rng`` is for tests; without it the operating system's generator is used.
    """
    at_least(1, size=size)
    weights = np.asarray(q, dtype=np.float64)
    if rng is None:
        system = secrets.SystemRandom()
        uniform = np.array([system.random() for _ in range(size)])
    else:
        uniform = rng.random(size)
    cumulative = np.cumsum(weights)
    return np.searchsorted(cumulative / cumulative[-1], uniform, side="right").astype(np.int64)


@dataclass(frozen=True)
class Chains:
    """Draws of parallel chains and what can refute their mixing.

    Attributes:
        samples: Draws (chains, draws, dim).
        acceptance: Share of accepted moves (1 without the Metropolis test).
        r_hat: Split R-hat of the potential; above 1.01 the chains disagree, and so do the numbers made from
        them. effective_size: Effective number of draws of the potential, all chains together.
    """

    samples: Tensor
    acceptance: float
    r_hat: float
    effective_size: float


def langevin(
    risk: Callable[[Tensor], Tensor],
    initial: Tensor,
    beta: float,
    *,
    step_size: float,
    n_samples: int,
    burn_in: int,
    thin: int = 1,
    prior_precision: float = 1.0,
    adjust: bool = True,
    generator: torch.Generator | None = None,
) -> Chains:
    r"""Draws from :math:`e^{-\beta \bar R(w) - \lambda |w|^2 / 2}` by Langevin dynamics, in several chains.

    Args:
        risk: Mean risk of parameters (chains, dim) -> (chains,), differentiable.
        initial: Starting points (chains, dim), at least 2 chains, scattered.
        beta: Inverse temperature, above 0.
        step_size: Step h of ``w - h grad + sqrt(2 h) noise``.
        n_samples: Kept draws per chain, at least 4.
        burn_in: Steps dropped at the start.
        thin: Steps per kept draw.
        prior_precision: Precision :math:`\lambda` of the Gaussian prior, which makes the law proper.
        adjust: Whether a Metropolis test makes q exactly stationary. Without it there is a bias of order h.
        generator: For tests; by default torch's global stream.

    Returns:
        The draws and their diagnostics. They are APPROXIMATE draws of q: see the module's text.
    """
    positive(beta=beta, step_size=step_size, prior_precision=prior_precision)
    at_least(4, n_samples=n_samples)
    at_least(0, burn_in=burn_in)
    at_least(1, thin=thin)
    if initial.dim() != 2 or len(initial) < 2:
        raise InputError(f"Expected starting points (chains >= 2, dim), got shape {tuple(initial.shape)}.")

    def potential(w: Tensor) -> tuple[Tensor, Tensor]:
        w = w.detach().requires_grad_(True)
        value = beta * risk(w) + prior_precision / 2 * w.square().sum(-1)
        (gradient,) = torch.autograd.grad(value.sum(), w)
        return value.detach(), gradient

    w = initial.detach().clone()
    energy, gradient = potential(w)
    draws, energies, accepted, steps = [], [], 0.0, burn_in + n_samples * thin
    for step in range(steps):
        noise = torch.randn(w.shape, generator=generator, dtype=w.dtype, device=w.device)
        proposal = w - step_size * gradient + math.sqrt(2 * step_size) * noise
        new_energy, new_gradient = potential(proposal)
        if adjust:
            back = (w - proposal + step_size * new_gradient).square().sum(-1) / (4 * step_size)
            log_ratio = energy - new_energy - back + noise.square().sum(-1) / 2
            uniform = torch.rand(len(w), generator=generator, dtype=w.dtype, device=w.device)
            take = uniform.log() < log_ratio
        else:
            take = torch.ones(len(w), dtype=torch.bool, device=w.device)
        accepted += float(take.double().mean())
        w = torch.where(take[:, None], proposal, w)
        gradient = torch.where(take[:, None], new_gradient, gradient)
        energy = torch.where(take, new_energy, energy)
        if step >= burn_in and (step - burn_in + 1) % thin == 0:
            draws.append(w.clone())
            energies.append(energy.clone())
    r_hat, size = _mixing(torch.stack(energies, dim=1).double().cpu().numpy())
    return Chains(torch.stack(draws, dim=1), accepted / steps, r_hat, size)


def _mixing(trace: Array) -> tuple[float, float]:
    """Split R-hat and effective size (Geyer's initial positive sequence) of a trace (chains, draws)."""
    half = trace.shape[1] // 2
    split = np.concatenate([trace[:, :half], trace[:, half : 2 * half]])  # (2 chains, half)
    within = float(split.var(axis=1, ddof=1).mean())
    if within == 0:
        return math.inf, 1.0
    between = float(split.mean(axis=1).var(ddof=1))
    total = (half - 1) / half * within + between
    centred = split - split.mean(axis=1, keepdims=True)
    spectrum = np.fft.rfft(centred, 2 * half, axis=1)
    covariance = np.fft.irfft(np.abs(spectrum) ** 2, axis=1)[:, :half].mean(axis=0) / half
    rho = 1 - (within * (half - 1) / half - covariance) / total
    pairs = rho[: half // 2 * 2].reshape(-1, 2).sum(axis=1)
    stop = int(np.argmax(pairs <= 0)) if (pairs <= 0).any() else len(pairs)
    tau = max(2 * float(pairs[:stop].sum()) - 1, 1.0)
    return math.sqrt(total / within), split.size / tau


@dataclass(frozen=True)
class Estimate:
    """A bound estimated from samples of q, with an interval. A diagnostic.

    Attributes:
        value: The plug-in estimate.
        lower: Lower end of the interval, at least 0.
        upper: Upper end; the number to quote.
        confidence: Probability with which the interval holds the exact value, to first order in the sample
        size.
    """

    value: float
    lower: float
    upper: float
    confidence: float


def estimate_tv_bound(
    risks: ArrayLike, beta: float, *, confidence: float = 0.95, effective_size: float | None = None
) -> Estimate:
    r"""Estimates Theorem 3's bound :math:`\beta \max_x E_q |r_{wx} - E_q r_{\cdot x}|` (Remark 3c).

    Args:
        risks: Risks (samples, n) of sampled hypotheses on the records.
        beta: Inverse temperature.
        confidence: Of the interval, for all records together.
        effective_size: Effective number of samples where they are correlated (``Chains.effective_size``).
    """
    r, size = _samples(risks, beta, confidence, effective_size)
    deviation = np.abs(r - r.mean(axis=0))  # (S, n)
    mean = deviation.mean(axis=0)
    z = float(stats.norm.isf((1 - confidence) / (4 * r.shape[1])))  # two means per record, two sides each
    error = z * (deviation.std(axis=0, ddof=1) + r.std(axis=0, ddof=1)) / math.sqrt(size)
    lower, upper = max(float((mean - error).max()), 0.0), float((mean + error).max())
    return Estimate(beta * float(mean.max()), beta * lower, beta * upper, confidence)


def estimate_sobolev_bound(
    vectors: ArrayLike, beta: float, *, confidence: float = 0.95, effective_size: float | None = None
) -> Estimate:
    r"""Estimates Theorem 5's bound :math:`\frac\beta2 E_q |c_w|_{H^1(p)}` from samples (Remark 5b).

    Args:
        vectors: Vectors (samples, D) whose Euclidean distances are H^1(p) norms of differences of risks: the
            gradients ``sqrt(p_i) * grad_x r(w, x_i)``, flattened, or ``r @ K^(1/2)`` on a graph.
        beta: Inverse temperature.
        confidence: Of the interval.
        effective_size: Effective number of samples where they are correlated.
    """
    g, size = _samples(vectors, beta, confidence, effective_size)
    centred = g - g.mean(axis=0)
    height = np.sqrt(np.square(centred).sum(axis=1))
    z = float(stats.norm.isf((1 - confidence) / 4))
    # the mean vector is off by at most (1 + z) of its root mean square error: |.| is 1-Lipschitz
    offset = (1 + z) * math.sqrt(float(np.square(height).mean()) / size)
    error = z * float(height.std(ddof=1)) / math.sqrt(size) + offset
    value = float(height.mean())
    lower, upper = max(value - error, 0.0), value + error
    return Estimate(beta / 2 * value, beta / 2 * lower, beta / 2 * upper, confidence)


def _samples(values: ArrayLike, beta: float, confidence: float, effective_size: float | None) -> tuple[Array, float]:
    positive(beta=beta)
    probability(confidence=confidence)
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or len(rows) < 100 or not rows.shape[1]:
        raise InputError(f"Expected at least 100 samples (samples, values), got {rows.shape}; draw more.")
    if not np.isfinite(rows).all():
        raise InputError("Expected bounded risks, got nan or inf in the samples; use a bounded loss.")
    size = float(len(rows)) if effective_size is None else min(float(effective_size), float(len(rows)))
    positive(effective_size=size)
    return rows, size
