"""How private is a Gibbs head with respect to THESE records: tangent DP against beta, loss and accuracy.

The embedded digits (1,797 images of 8 x 8) are split into public (700), private (600) and test (497) rows.
The public rows train a small encoder, the stand-in of an adapted model, and 256 candidate heads on top of it
(bootstraps of 10 to 200 public rows). The private rows decide between them through a bounded loss: q is
proportional to exp(-beta mean loss). Reported per loss and beta: the exact tangent norms, their bounds, the
estimate from 2,000 draws, what really happens when each private record is removed, the expected accuracy of
one draw, and the pure epsilon of one draw as an exponential mechanism: a guarantee, which needs no tangent.

A continuous linear head by Langevin dynamics follows; its law is known only as far as its chains have mixed.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpswd.diagnostics.gibbs import (
    LOSS_BOUNDS,
    estimate_sobolev_bound,
    estimate_tv_bound,
    exponential_mechanism_epsilon,
    langevin,
    linear_margins,
    margin_loss,
    sample_hypotheses,
)
from dpswd.diagnostics.tangent import gibbs_distribution, removal_changes, tangent_norms

HELP = "Ying2024: tangent DP of a Gibbs head on digits, against beta, loss and accuracy"

CLASSES, FEATURES = 10, 16


def digits() -> dict[str, tuple[Tensor, Tensor]]:
    """Features in [0, 1] (n, 64) and classes of the public, private and test rows."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    x = torch.as_tensor(bunch.data[order] / 16, dtype=torch.float64)
    y = torch.as_tensor(bunch.target[order], dtype=torch.int64)
    return {"public": (x[:700], y[:700]), "private": (x[700:1300], y[700:1300]), "test": (x[1300:], y[1300:])}


def fit(x: Tensor, y: Tensor, weights: Tensor, *, steps: int, decay: float = 1e-3) -> Tensor:
    """Minimises the cross-entropy of linear heads (..., d + 1, c) by full-batch Adam."""
    weights = weights.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([weights], lr=0.1, weight_decay=decay)
    for _ in range(steps):
        optimizer.zero_grad()
        scores = x @ weights[..., :-1, :] + weights[..., -1:, :]
        torch.nn.functional.cross_entropy(scores.flatten(0, -2), y.flatten(), reduction="sum").backward()
        optimizer.step()
    return weights.detach()


def encoder(x: Tensor, y: Tensor, generator: torch.Generator) -> torch.nn.Module:
    """A public encoder: 64 -> 16 features in [-1, 1], trained with a linear head that is thrown away."""
    first = torch.nn.Linear(64, FEATURES, dtype=torch.float64)
    last = torch.nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
    with torch.no_grad():
        for parameter in (*first.parameters(), *last.parameters()):
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
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
        heads.append(fit(x[rows], y[rows], torch.zeros(FEATURES + 1, CLASSES, dtype=torch.float64), steps=40))
    return torch.stack(heads)


def finite_rows(
    heads: Tensor, private: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], betas: list[float]
) -> list[dict[str, Any]]:
    """One row per loss and beta for the finite Gibbs head."""
    margins, test_margins = linear_margins(heads, *private), linear_margins(heads, *test)
    right = (test_margins > 0).double().mean(-1).numpy()
    rng, rows = np.random.default_rng(1), []
    for loss in LOSS_BOUNDS:
        risk = margin_loss(loss, margins).numpy()
        for beta in betas:
            q = gibbs_distribution(risk, beta)
            norms, change = tangent_norms(risk, beta, q=q), removal_changes(risk, beta)
            estimate = estimate_tv_bound(risk[sample_hypotheses(q, 2000, rng=rng)], beta)
            exact_tv, exact_log = norms.exact[3], norms.exact[4]
            assert exact_tv is not None
            assert exact_log is not None
            rows.append(
                {
                    "head": "finite",
                    "loss": loss,
                    "beta": beta,
                    "n_private": risk.shape[1],
                    "accuracy": 100 * float(q @ right),
                    "best_candidate": 100 * float(right.max()),
                    "effective_candidates": math.exp(-float(np.sum(q[q > 0] * np.log(q[q > 0])))),
                    "tangent_tv_exact": exact_tv,
                    "tangent_tv_bound": norms.bounds[3][0],
                    "tangent_tv_simple": norms.bounds[3][1],
                    "tangent_tv_estimate": [estimate.lower, estimate.value, estimate.upper],
                    "tangent_log_exact": exact_log,
                    "tangent_log_bound": norms.bounds[4][0],
                    "removal_tv": float(change.total_variation.max()),
                    "removal_tv_predicted": exact_tv * change.step,
                    "removal_log": float(change.log_ratio.max()),
                    "removal_log_predicted": exact_log * change.step,
                    "dp_epsilon_of_one_draw": exponential_mechanism_epsilon(beta, loss, risk.shape[1]),
                }
            )
    return rows


def langevin_row(
    private: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], beta: float, *, quick: bool
) -> dict[str, Any]:
    """The continuous head, Savage loss: Theorems 3 and 5 estimated from four chains."""
    x, y = private
    shape = (FEATURES + 1, CLASSES)
    generator = torch.Generator().manual_seed(2)
    start = 0.3 * torch.randn(4, math.prod(shape), generator=generator, dtype=torch.float64)

    def risk(w: Tensor) -> Tensor:
        return margin_loss("savage", linear_margins(w.unflatten(-1, shape), x, y)).mean(-1)

    draws = 30 if quick else 1500
    chains = langevin(
        risk, start, beta, step_size=4 / beta, n_samples=draws, burn_in=draws, thin=4, generator=generator
    )
    heads = chains.samples.flatten(0, 1).unflatten(-1, shape)
    with torch.no_grad():
        risks = margin_loss("savage", linear_margins(heads, x, y)).numpy()
        accuracy = float((linear_margins(heads, *test) > 0).double().mean())
    inputs = x.clone().requires_grad_(True)
    vectors = []
    for head in heads[:: max(len(heads) // 400, 1)]:
        total = margin_loss("savage", linear_margins(head, inputs, y)).sum()
        (gradient,) = torch.autograd.grad(total, inputs)
        vectors.append(gradient.flatten().numpy() / math.sqrt(len(x)))
    tv = estimate_tv_bound(risks, beta, effective_size=chains.effective_size)
    sobolev = estimate_sobolev_bound(np.array(vectors), beta, effective_size=min(chains.effective_size, len(vectors)))
    return {
        "head": "langevin",
        "loss": "savage",
        "beta": beta,
        "accuracy": 100 * accuracy,
        "tangent_tv_estimate": [tv.lower, tv.value, tv.upper],
        "tangent_sobolev_estimate": [sobolev.lower, sobolev.value, sobolev.upper],
        "r_hat": chains.r_hat,
        "effective_size": chains.effective_size,
        "acceptance": chains.acceptance,
        "mixed": chains.r_hat < 1.01 and chains.effective_size > 400,
    }


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Draws ``tangent.png`` and returns the rows."""
    generator = torch.Generator().manual_seed(0)
    parts = digits()
    encode = encoder(*parts["public"], generator)
    with torch.no_grad():
        split = {name: (encode(x), y) for name, (x, y) in parts.items()}
    heads = candidates(*split["public"], 24 if quick else 256, generator)
    betas = [1.0, 100.0] if quick else [1.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0]
    rows = finite_rows(heads, split["private"], split["test"], betas)
    rows += [
        langevin_row(split["private"], split["test"], beta, quick=quick)
        for beta in ([100.0] if quick else [100.0, 1000.0])
    ]
    out.mkdir(parents=True, exist_ok=True)
    _draw(rows, out / "tangent.png")
    print("head     loss       beta   acc % |  TV exact  bound  simple removal*n | ln q exact removal*n | eps")
    for row in rows:
        start = f"{row['head']:8} {row['loss']:8} {row['beta']:6g} {row['accuracy']:7.2f} | "
        if row["head"] == "finite":
            n = row["n_private"]
            tv = (
                row["tangent_tv_exact"],
                row["tangent_tv_bound"],
                row["tangent_tv_simple"],
                row["removal_tv"] * n,
            )
            log = (row["tangent_log_exact"], row["removal_log"] * n)
            columns = [" ".join(f"{value:9.4g}" for value in part) for part in (tv, log)]
            print(f"{start}{columns[0]} | {columns[1]} | {row['dp_epsilon_of_one_draw']:.4g}")
        else:
            low, value, high = row["tangent_tv_estimate"]
            mixing = f"R-hat {row['r_hat']:.3f}, effective size {row['effective_size']:.0f}"
            print(f"{start}estimated bound {value:.4g} in [{low:.4g}, {high:.4g}] | {mixing}")
    return {"rows": rows}


def _draw(rows: list[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for loss in LOSS_BOUNDS:
        part = [row for row in rows if row["head"] == "finite" and row["loss"] == loss]
        betas = [row["beta"] for row in part]
        line = left.plot(betas, [row["tangent_tv_exact"] for row in part], label=f"{loss}: exact")[0]
        left.plot(betas, [row["tangent_tv_simple"] for row in part], color=line.get_color(), linestyle=":")
        scale = [row["removal_tv"] * row["n_private"] for row in part]
        left.plot(betas, scale, "x", color=line.get_color())
        right.plot([row["tangent_tv_exact"] for row in part], [row["accuracy"] for row in part], "o-", label=loss)
    left.set(xscale="log", yscale="log", ylim=(1e-3, 5e4), xlabel="beta", ylabel="tangent diagnostic, TV to TV")
    left.set_title("exact (line), simple bound (dotted), removal x n (crosses)", fontsize=9)
    right.set(xscale="log", xlim=(0.1, 3e3), xlabel="exact diagnostic (below 0.1 left out)")
    right.set(ylabel="expected test accuracy of a draw, %")
    for axes in (left, right):
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=70)
