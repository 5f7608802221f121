"""Ying2024: tangent DP of a Gibbs head on digits, against beta, loss and accuracy.

The paper has no experiment; this one is ours. The 1,797 digits of scikit-learn (8 x 8) are split
into public (700), private (600) and test (497) rows. The public rows train a small encoder and 256
candidate heads (bootstraps of 10 to 200 public rows). The private rows give the candidates weights
through a bounded loss: q is proportional to exp(-beta mean loss).

Every loss and beta has a row with the norms of Definitions 2 (tangent DP) and 1
(differentiability), the centred and the printed bounds, the estimates of Remarks 3c and 5b from
2,000 draws, what removing each private record changes, the expected accuracy of one draw, and the
pure epsilon of one draw as an exponential mechanism, a guarantee.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor, nn

from dpswd.diagnostics.tangent import gibbs_distribution, removal_changes, tangent_norms
from experiments.cells import grouped
from experiments.notions.gibbs import (
    LOSS_BOUNDS,
    Estimate,
    estimate_sobolev_bound,
    estimate_tv_bound,
    exponential_mechanism_epsilon,
    linear_margins,
    margin_loss,
)
from experiments.plots import figure
from experiments.results import Result, Row

CLASSES = 10
FEATURES = 16
N_PUBLIC = 700
N_PRIVATE = 600
N_CANDIDATES = 256
N_DRAWS = 2000
BETAS: tuple[float, ...] = (1.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)
QUICK_BETAS = (1.0, 100.0)

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Part:
    """Rows (n, d) with classes (n,)."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True)
class Digits:
    """Public, private and test rows."""

    public: Part
    private: Part
    test: Part

    def encoded(self, encode: nn.Module) -> "Digits":
        """Return the parts with the features (n, ``FEATURES``) of an encoder."""
        parts = []
        for part in (self.public, self.private, self.test):
            with torch.no_grad():
                parts.append(Part(encode(part.x), part.y))
        return Digits(*parts)


def digits() -> Digits:
    """Return the digits with pixels in [0, 1] (n, 64), in random order."""
    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    x = torch.as_tensor(bunch.data[order] / 16, dtype=torch.float64)
    y = torch.as_tensor(bunch.target[order], dtype=torch.int64)
    end = N_PUBLIC + N_PRIVATE
    return Digits(
        public=Part(x[:N_PUBLIC], y[:N_PUBLIC]),
        private=Part(x[N_PUBLIC:end], y[N_PUBLIC:end]),
        test=Part(x[end:], y[end:]),
    )


def encoder(part: Part, generator: torch.Generator) -> nn.Module:
    """Make a public encoder: 64 -> 16 features in [-1, 1].

    It is trained with a linear head that is dropped.
    """
    first = nn.Linear(64, FEATURES, dtype=torch.float64)
    last = nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
    with torch.no_grad():
        for parameter in (*first.parameters(), *last.parameters()):
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.2 * noise)
    network = nn.Sequential(first, nn.Tanh(), last)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-3)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(part.x), part.y).backward()
        optimizer.step()
    return network[:2]


def candidates(part: Part, number: int, generator: torch.Generator) -> Tensor:
    """Return heads (number, d + 1, c) trained on bootstraps of public rows.

    A bootstrap has 10 to 200 rows.
    """
    heads = []
    for _ in range(number):
        size = int(torch.randint(10, 201, (1,), generator=generator))
        index = torch.randint(0, len(part.x), (size,), generator=generator)
        head = torch.zeros(FEATURES + 1, CLASSES, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([head], lr=0.1, weight_decay=1e-3)
        for _ in range(40):
            optimizer.zero_grad()
            scores = part.x[index] @ head[:-1] + head[-1:]
            nn.functional.cross_entropy(scores, part.y[index], reduction="sum").backward()
            optimizer.step()
        heads.append(head.detach())
    return torch.stack(heads)


def risk_gradients(heads: Tensor, private: Part, loss: str) -> Array | None:
    """Return vectors sqrt(p_i) grad_x r(w, x_i) (heads, n d).

    The zero-one loss has no gradient: ``None``.
    """
    if loss == "zero_one":
        return None
    x = private.x.expand(len(heads), -1, -1).clone().requires_grad_(True)
    risk = margin_loss(loss, linear_margins(heads, x, private.y)).sum()
    (gradient,) = torch.autograd.grad(risk, x)
    return np.asarray(gradient.flatten(1).numpy() / math.sqrt(len(private.x)))


def run(out: Path, *, quick: bool = False) -> Result:
    """Ying2024: tangent DP of a Gibbs head on digits, against beta, loss and accuracy."""
    betas = BETAS
    n_candidates = N_CANDIDATES
    if quick:
        betas = QUICK_BETAS
        n_candidates = 24
    generator = torch.Generator().manual_seed(0)
    pixels = digits()
    features = pixels.encoded(encoder(pixels.public, generator))
    heads = candidates(features.public, n_candidates, generator)
    margins = linear_margins(heads, features.private.x, features.private.y)
    test_margins = linear_margins(heads, features.test.x, features.test.y)
    accuracies = (test_margins > 0).double().mean(-1).numpy()  # (heads,)
    rng = np.random.default_rng(1)
    rows = []
    for loss in LOSS_BOUNDS:
        risk = margin_loss(loss, margins).numpy()
        gradients = risk_gradients(heads, features.private, loss)
        for beta in betas:
            row: Row = {"loss": loss, "beta": beta, "n_private": risk.shape[1]}
            rows.append(row | _norms(risk, gradients, accuracies, beta, loss, rng))
    _draw(rows, out / "tangent.png")
    return {"best_candidate": 100 * float(accuracies.max()), "rows": rows}


def _norms(
    risk: Array,
    gradients: Array | None,
    accuracies: Array,
    beta: float,
    loss: str,
    rng: np.random.Generator,
) -> Row:
    """Return accuracy, norms, estimates and changes of a Gibbs distribution.

    Args:
        risk: loss (heads, n) of every head on every private record.
        gradients: vectors of :func:`risk_gradients`.
        accuracies: accuracy of each head on the test rows (heads,).
        beta: inverse temperature.
        loss: name of the loss.
        rng: generator of the draws from which bounds are estimated.
    """
    q = gibbs_distribution(risk, beta)
    norms = tangent_norms(risk, beta, q=q, gradients=gradients)
    change = removal_changes(risk, beta)
    draws = rng.choice(len(q), N_DRAWS, p=q)
    estimates = {"remark_3c": _entry(estimate_tv_bound(risk[draws], beta))}
    if gradients is not None:
        estimates["remark_5b"] = _entry(estimate_sobolev_bound(gradients[draws], beta))
    norm_entries = norms.to_dict()
    tangent_dp = norm_entries["tangent_dp"]["total_variation"]["exact"]
    return {
        "accuracy": 100 * float(q @ accuracies),
        "tangent_dp": norm_entries["tangent_dp"],
        "differentiability": norm_entries["differentiability"],
        "estimates": estimates,
        "removal_log": float(change.log_ratio.max()),
        "removal_log_bound": 2 * tangent_dp * change.step,
        "removal_tv": float(change.total_variation.max()),
        "dp_epsilon_of_one_draw": exponential_mechanism_epsilon(beta, loss, risk.shape[1]),
    }


def _entry(estimate: Estimate) -> Row:
    """Return an estimate as JSON values.

    The centred bound stands between the ends of its interval.
    """
    centred = [estimate.lower, estimate.value, estimate.upper]
    return {"printed": estimate.printed, "centred": centred}


def _draw(rows: list[Row], path: Path) -> None:
    """Draw both norms against beta, and the accuracy against tangent DP."""
    with figure(path, 12, 3.8, 1, 3, dpi=70) as (left, middle, right):
        for loss, of_loss in grouped(rows, lambda row: row["loss"]).items():
            _draw_norm(left, of_loss, "tangent_dp", "removal_log")
            _draw_norm(middle, of_loss, "differentiability", "removal_tv")
            exact = [row["tangent_dp"]["total_variation"]["exact"] for row in of_loss]
            right.plot(exact, [row["accuracy"] for row in of_loss], "o-", label=loss)
        left.set(xscale="log", yscale="log", xlabel="beta", title="Definition 2: tangent DP")
        left.set_ylabel("exact (line), printed bound (dots), removal x n (x)", fontsize=8)
        middle.set(xscale="log", yscale="log", xlabel="beta", ylim=(1e-3, 2e5))
        middle.set_title("Definition 1: differentiability")
        right.set(xscale="log", xlabel="tangent DP, exact", title="accuracy")
        right.set_ylabel("expected accuracy of a draw, %")
        for axes in (left, middle, right):
            axes.legend(fontsize=8)


def _draw_norm(axes: Any, rows: list[Row], name: str, removal: str) -> None:
    """Draw a norm of one loss against beta, its printed bound and true changes."""
    betas = [row["beta"] for row in rows]
    norms = [row[name]["total_variation"] for row in rows]
    exact = [norm["exact"] for norm in norms]
    bounds = [norm["printed_bound"] for norm in norms]
    changes = [row["n_private"] * row[removal] for row in rows]
    (line,) = axes.plot(betas, exact, label=rows[0]["loss"])
    axes.plot(betas, bounds, color=line.get_color(), linestyle=":")
    axes.plot(betas, changes, "x", color=line.get_color())
