"""Ying2024: tangent DP of a Gibbs head on digits, against beta, loss and accuracy.

The paper has no experiment; this one is ours. The 1,797 digits of scikit-learn (8 x 8) are split into public (700),
private (600) and test (497) rows. The public rows train a small encoder and 256 candidate heads (bootstraps of 10 to
200 public rows). The private rows give the candidates weights through a bounded loss: q is proportional to
exp(-beta mean loss). Per loss and beta: the norms of Definitions 2 (tangent DP) and 1 (differentiability), the centred
and the printed bounds, the estimates of Remarks 3c and 5b from 2,000 draws, what removing each private record changes,
the expected accuracy of one draw, and the pure epsilon of one draw as an exponential mechanism, a guarantee.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpswd.diagnostics.tangent import gibbs_distribution, removal_changes, tangent_norms
from experiments.cells import grouped
from experiments.notions.gibbs import (
    LOSS_BOUNDS,
    estimate_sobolev_bound,
    estimate_tv_bound,
    exponential_mechanism_epsilon,
    linear_margins,
    margin_loss,
)
from experiments.plots import figure

CLASSES, FEATURES = 10, 16

Rows = tuple[Tensor, Tensor]


def digits() -> dict[str, Rows]:
    """Pixels in [0, 1] (n, 64) and classes of the public, private and test rows."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    x = torch.as_tensor(bunch.data[order] / 16, dtype=torch.float64)
    y = torch.as_tensor(bunch.target[order], dtype=torch.int64)
    return {
        "public": (x[:700], y[:700]),
        "private": (x[700:1300], y[700:1300]),
        "test": (x[1300:], y[1300:]),
    }


def encoder(x: Tensor, y: Tensor, generator: torch.Generator) -> torch.nn.Module:
    """Make a public encoder: 64 -> 16 features in [-1, 1], trained with a linear head that is dropped."""
    first = torch.nn.Linear(64, FEATURES, dtype=torch.float64)
    last = torch.nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
    with torch.no_grad():
        for parameter in (*first.parameters(), *last.parameters()):
            parameter.copy_(
                0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            )
    network = torch.nn.Sequential(first, torch.nn.Tanh(), last)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-3)
    for _ in range(300):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(x), y).backward()
        optimizer.step()
    return network[:2]


def candidates(x: Tensor, y: Tensor, number: int, generator: torch.Generator) -> Tensor:
    """Public candidate heads (number, d + 1, c), each trained on a bootstrap of 10 to 200 public rows."""
    heads = []
    for _ in range(number):
        size = int(torch.randint(10, 201, (1,), generator=generator))
        rows = torch.randint(0, len(x), (size,), generator=generator)
        head = torch.zeros(FEATURES + 1, CLASSES, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.Adam([head], lr=0.1, weight_decay=1e-3)
        for _ in range(40):
            optimizer.zero_grad()
            scores = x[rows] @ head[:-1] + head[-1:]
            torch.nn.functional.cross_entropy(scores, y[rows], reduction="sum").backward()
            optimizer.step()
        heads.append(head.detach())
    return torch.stack(heads)


def risk_gradients(heads: Tensor, private: Rows, loss: str) -> Any:
    """Vectors sqrt(p_i) grad_x r(w, x_i) (heads, n d); ``None`` for the zero-one loss, which has no gradient."""
    if loss == "zero_one":
        return None
    x = private[0].expand(len(heads), -1, -1).clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(
        margin_loss(loss, linear_margins(heads, x, private[1])).sum(), x
    )
    return gradient.flatten(1).numpy() / math.sqrt(len(private[0]))


def run(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Ying2024: tangent DP of a Gibbs head on digits, against beta, loss and accuracy."""
    generator = torch.Generator().manual_seed(0)
    parts = digits()
    encode = encoder(*parts["public"], generator)
    with torch.no_grad():
        split = {name: (encode(x), y) for name, (x, y) in parts.items()}
    heads = candidates(*split["public"], 24 if quick else 256, generator)
    margins = linear_margins(heads, *split["private"])
    right = (linear_margins(heads, *split["test"]) > 0).double().mean(-1).numpy()
    rng, rows = np.random.default_rng(1), []
    for loss in LOSS_BOUNDS:
        risk, gradients = (
            margin_loss(loss, margins).numpy(),
            risk_gradients(heads, split["private"], loss),
        )
        n = risk.shape[1]
        for beta in [1.0, 100.0] if quick else [1.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0]:
            q = gibbs_distribution(risk, beta)
            norms, change = (
                tangent_norms(risk, beta, q=q, gradients=gradients),
                removal_changes(risk, beta),
            )
            drawn = rng.choice(len(q), 2000, p=q)
            estimates = {"remark_3c": estimate_tv_bound(risk[drawn], beta)}
            if gradients is not None:
                estimates["remark_5b"] = estimate_sobolev_bound(gradients[drawn], beta)
            entry = norms.to_dict()
            row = {
                "loss": loss,
                "beta": beta,
                "n_private": n,
                "accuracy": 100 * float(q @ right),
                "tangent_dp": entry["tangent_dp"],
                "differentiability": entry["differentiability"],
                "estimates": {
                    name: {"printed": each.printed, "centred": [each.lower, each.value, each.upper]}
                    for name, each in estimates.items()
                },
                "removal_log": float(change.log_ratio.max()),
                "removal_log_bound": 2 * (norms.exact[4] or 0.0) * change.step,
                "removal_tv": float(change.total_variation.max()),
                "dp_epsilon_of_one_draw": exponential_mechanism_epsilon(beta, loss, n),
            }
            rows.append(row)
    _draw(rows, out / "tangent.png")
    return {"best_candidate": 100 * float(right.max()), "rows": rows}


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    with figure(path, 12, 3.8, 1, 3, dpi=70) as (left, middle, right):
        for loss, part in grouped(rows, lambda row: row["loss"]).items():
            betas, n = [row["beta"] for row in part], part[0]["n_private"]
            panels = (
                (left, "tangent_dp", "removal_log"),
                (middle, "differentiability", "removal_tv"),
            )
            for axes, name, removal in panels:
                norms = [row[name]["total_variation"] for row in part]
                line = axes.plot(betas, [norm["exact"] for norm in norms], label=loss)[0]
                axes.plot(
                    betas,
                    [norm["printed_bound"] for norm in norms],
                    color=line.get_color(),
                    linestyle=":",
                )
                axes.plot(betas, [n * row[removal] for row in part], "x", color=line.get_color())
            exact = [row["tangent_dp"]["total_variation"]["exact"] for row in part]
            right.plot(exact, [row["accuracy"] for row in part], "o-", label=loss)
        left.set(xscale="log", yscale="log", xlabel="beta", title="Definition 2: tangent DP")
        left.set_ylabel("exact (line), printed bound (dots), removal x n (x)", fontsize=8)
        middle.set(
            xscale="log",
            yscale="log",
            ylim=(1e-3, 2e5),
            xlabel="beta",
            title="Definition 1: differentiability",
        )
        right.set(
            xscale="log",
            xlabel="tangent DP, exact",
            ylabel="expected accuracy of a draw, %",
            title="accuracy",
        )
        for axes in (left, middle, right):
            axes.legend(fontsize=8)
