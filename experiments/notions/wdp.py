r"""Yang2024 (Wasserstein DP): its tables and figures. docs/notions.md has the settings, printed and ours.

Figure 2 does not clip, so that the distance 2 C of the moments accountant is no bound there. Theorem 2 as printed
(components, infimum over pairs) is computed on the pairs of the first three gradients. The program of the authors clips
the mean gradient of a network with batch normalisation, which no DP account covers; in Table 2 here the DP epsilon is
that of DP-SGD, as Opacus computes it. Bayesian DP and WDP read private gradients, so that their values are private too.

Moments accountant and Bayesian accountant follow the log moment of the subsampled Gaussian's privacy loss at one
integer order :math:`\lambda`,

.. math:: c(d) = \ln E_{k \sim B(\lambda + 1, q)} \exp\!\Big(\frac{k (k-1)}{2}\, \frac{d^2}{\sigma^2}\Big) .

The first takes the worst distance d that clipping allows. The second (Triastcyn and Faltings, 2020) takes the distances
of sampled pairs of gradients, and an upper confidence bound of the mean of :math:`e^{T c(d_i)}` (Hoelder's inequality
over T steps). Its guarantee covers records drawn from the distribution of the sampled ones, not of an outlier; its
confidence assumes independent normal draws.
"""

import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats
from scipy.spatial.distance import pdist
from torch import nn

from dpswd.data import Benchmark, benchmark
from dpswd.diagnostics.wasserstein import (
    WassersteinAccountant,
    gaussian_distance,
    gaussian_wdp,
    laplace_wdp,
    theorem_2_loss,
)
from experiments.plots import figure

ORDER = 16  # of Figures 2 and 4 and Table 2


def log_moment(distances: ArrayLike, sigma: float, rate: float, order: int) -> NDArray[np.float64]:
    """Compute c(d) of the module docstring for every distance."""
    k = np.arange(order + 2)
    log_binomial = stats.binom.logpmf(k, order + 1, rate)
    exponent = np.multiply.outer(np.square(np.asarray(distances) / sigma), k * (k - 1) / 2)
    return np.asarray(special.logsumexp(log_binomial + exponent, axis=-1))


class BayesianAccountant:
    """The accountant of Triastcyn and Faltings (2020) at one order, for ``n_steps`` planned steps."""

    def __init__(self, order: int, n_steps: int, failure: float = 1e-16) -> None:
        self.order, self.n_steps, self.failure = order, n_steps, failure
        self.total, self.steps = 0.0, 0

    def step(self, distances: ArrayLike, *, sigma: float, rate: float) -> None:
        """Charge one step with the distances (n,) of sampled pairs of gradients, n >= 3."""
        logs = self.n_steps * log_moment(distances, sigma, rate, self.order)
        top, n = logs.max(), len(logs)
        scaled = np.exp(logs - top)
        quantile = float(stats.t.isf(self.failure, n - 1))
        bound = scaled.mean() + quantile * scaled.std() / math.sqrt(n - 1)
        self.total += float(top + math.log(bound)) / self.n_steps
        self.steps += 1

    def get_epsilon(self, delta: float) -> float:
        """Return the epsilon of Bayesian differential privacy at ``delta``."""
        return (self.total - math.log(delta - self.steps * self.failure)) / self.order


# Table 1 and Figure 1

SCALES, ORDERS = (1.0, 2.0, 3.0, 5.0), (1.0, 2.0, 5.0, 10.0)


def laplace_rdp(order: float, scale: float) -> float:
    """Renyi divergence of two Laplace laws 1 apart (Mironov2017, Table II)."""
    if order == 1:
        return 1 / scale + math.expm1(-1 / scale)
    up = order / (2 * order - 1) * math.exp((order - 1) / scale)
    down = (order - 1) / (2 * order - 1) * math.exp(-order / scale)
    return math.log(up + down) / (order - 1)


def gaussian_rdp(order: float, scale: float) -> float:
    """Renyi divergence of two Gaussian laws 1 apart."""
    return order / (2 * scale**2)


PANELS = {
    "(a) Laplace, RDP": laplace_rdp,
    "(b) Laplace, WDP": laplace_wdp,
    "(c) Gaussian, RDP": gaussian_rdp,
    "(d) Gaussian, WDP": gaussian_wdp,
}


def table_1() -> list[dict[str, Any]]:
    """Table 1 in numbers: sensitivity 1, scales 1 and 3, orders 1 and 2; ``None`` stands for infinity."""
    rows: list[dict[str, Any]] = []
    for scale in (1.0, 3.0):
        rows.append(
            {"notion": "DP", "order": None, "scale": scale, "laplace": 1 / scale, "gaussian": None}
        )
        for notion, laplace, gaussian in (
            ("RDP", laplace_rdp, gaussian_rdp),
            ("WDP", laplace_wdp, gaussian_wdp),
        ):
            for order in (1.0, 2.0):
                values = {"laplace": laplace(order, scale), "gaussian": gaussian(order, scale)}
                rows.append({"notion": notion, "order": order, "scale": scale} | values)
    return rows


def wdp_fig1(out: Path) -> dict[str, Any]:
    """Yang2024, Table 1 and Figure 1: budgets of Laplace and Gaussian noise under DP, RDP and WDP."""
    orders = np.linspace(1, 10, 181)
    rows: list[dict[str, Any]] = []
    with figure(out / "wdp_fig1.png", 9, 6.5, 2, 2, dpi=70) as panels:
        for axes, (name, curve) in zip(panels.ravel(), PANELS.items(), strict=True):
            wdp = name.endswith("WDP")
            for scale in SCALES:
                axes.plot(
                    orders,
                    [curve(order, scale) for order in orders],
                    label=f"noise scale {scale:g}",
                )
                for order in ORDERS:
                    true = (
                        gaussian_distance(1.0, scale, scale, order) if wdp else None
                    )  # equal to 1: any shift by 1
                    values = {"value": curve(order, scale), "true_distance": true}
                    rows.append({"panel": name, "scale": scale, "order": order} | values)
            if wdp:
                axes.axhline(1, color="black", linestyle="--", label="distance of Definition 3")
            axes.set(title=name, xlabel="order", xlim=(1, 10), ylim=(0, 1.6 if wdp else None))
            axes.legend(fontsize=8)
    return {"table_1": table_1(), "rows": rows}


# Figures 2 and 4

QUANTILES = (0.05, 0.50, 0.75, 0.99)
LABELS = {
    "dp_epsilon": "moments accountant, distance 2 C",
    "bdp_epsilon": "Bayesian accountant",
    "wdp_diagnostic": "Wasserstein accountant, authors' program",
    "wdp_printed": "Wasserstein accountant, as printed",
}
RATE, NOISE, DELTA = 1e-3, 0.2, 1e-5


def trace(
    quantile: float, *, clip: bool, steps: int, noise: float = NOISE, unit: float = 1.0
) -> dict[str, list[float]]:
    """Run the accountants; ``unit`` rescales the gradients, which changes no likelihood ratio."""
    rng = np.random.default_rng(int(1000 * quantile))
    moments, bayes = 0.0, BayesianAccountant(ORDER, steps)
    wasserstein, printed = (
        WassersteinAccountant(order=ORDER, beta=1.0, sigma=1.0, sampling_rate=RATE)
        for _ in range(2)
    )
    first, second = np.triu_indices(3, 1)
    curves: dict[str, list[float]] = {name: [] for name in LABELS}
    for _ in range(steps):
        gradients = unit * rng.weibull(0.5, (50, 1000))
        norms = np.linalg.norm(gradients, axis=1)
        bound = float(np.quantile(norms, quantile))
        if clip:
            gradients *= np.minimum(1, bound / norms)[:, None]
        distances, sigma = pdist(gradients), noise * bound
        moments += float(log_moment(2 * bound, sigma, RATE, ORDER))
        bayes.step(distances, sigma=sigma, rate=RATE)
        wasserstein.step(distances, sigma=sigma)
        printed.total_loss += theorem_2_loss(
            ORDER, gradients[first] - gradients[second], sigma, RATE
        )
        values = {
            "dp_epsilon": (moments - math.log(DELTA)) / ORDER,
            "bdp_epsilon": bayes.get_epsilon(DELTA),
            "wdp_diagnostic": wasserstein.get_wdp(DELTA),
            "wdp_printed": printed.get_wdp(DELTA),
        }
        for name, value in values.items():
            curves[name].append(value)
    return curves


def wdp_fig2(out: Path, *, quick: bool = False) -> dict[str, Any]:
    """Yang2024, Figures 2 and 4: moments, Bayesian and Wasserstein accountants on Weibull gradients."""
    steps = 2 if quick else 100
    rows: list[dict[str, Any]] = []

    def row(
        number: int | None, quantile: float, clip: bool, noise: float, unit: float, curves: Any
    ) -> dict[str, Any]:
        settings = {
            "figure": number,
            "quantile": quantile,
            "clipped": clip,
            "noise": noise,
            "unit": unit,
        }
        return settings | {"steps": steps} | {name: values[-1] for name, values in curves.items()}

    for number, clip in ((2, False), (4, True)):
        with figure(out / f"wdp_fig{number}.png", 9, 6.5, 2, 2, dpi=70) as panels:
            for letter, axes, quantile in zip("abcd", panels.ravel(), QUANTILES, strict=True):
                curves = trace(quantile, clip=clip, steps=steps)
                for name, label in LABELS.items():
                    axes.plot(range(1, steps + 1), curves[name], label=label)
                title = f"({letter}) C at the {quantile:.2f} quantile"
                axes.set(title=title, xlabel="step", ylabel="value", yscale="log")
                axes.legend(fontsize=8)
                rows.append(row(number, quantile, clip, NOISE, 1.0, curves))
    for noise, unit in (
        (2.0, 1.0),
        (0.02, 1.0),
        (NOISE, 1e-3),
    ):  # dependence on the noise and on the unit
        rows.append(
            row(
                None,
                0.5,
                True,
                noise,
                unit,
                trace(0.5, clip=True, steps=steps, noise=noise, unit=unit),
            )
        )
    return {"rows": rows}


# Figure 3

LOSS = 10.0


def diagnostic(beta: float, delta: float) -> float:
    """Return Corollary 1 at a sum of losses of 10."""
    accountant = WassersteinAccountant(order=1, beta=beta, sigma=1.0, sampling_rate=0.0)
    accountant.total_loss = LOSS
    return accountant.get_wdp(delta)


def wdp_fig3(out: Path) -> dict[str, Any]:
    """Yang2024, Figure 3: the WDP diagnostic against the free constant beta and against delta."""
    betas, deltas = np.arange(1.0, 51.0), np.geomspace(1e-10, 1e-5, 200)
    rows = []
    with figure(out / "wdp_fig3.png", 9, 3.6, 1, 2, dpi=70) as (left, right):
        for delta in (1e-10, 1e-8, 1e-5, 1e-3):
            left.plot(
                betas,
                [diagnostic(float(beta), delta) for beta in betas],
                label=f"delta = {delta:g}",
            )
            rows += [{"panel": "a", "beta": beta, "delta": delta} for beta in (1.0, 10.0, 50.0)]
        for beta in (1.0, 2.0, 5.0, 10.0):
            right.plot(
                deltas,
                [diagnostic(beta, float(delta)) for delta in deltas],
                label=f"beta = {beta:g}",
            )
            rows += [{"panel": "b", "beta": beta, "delta": delta} for delta in (1e-10, 1e-5)]
        left.set(title="(a)", xlabel="beta", ylabel="WDP diagnostic", ylim=(LOSS - 1, 35))
        right.set(
            title="(b)", xlabel="delta", ylabel="WDP diagnostic", xscale="log", ylim=(LOSS - 1, 35)
        )
        for axes in (left, right):
            axes.axhline(LOSS, color="black", linestyle="--", linewidth=1)
            axes.legend(fontsize=8)
    return {
        "rows": [row | {"wdp_diagnostic": diagnostic(row["beta"], row["delta"])} for row in rows]
    }


# Table 2

DELTAS = {"dp": 1e-5, "bdp": 1e-10, "wdp": 1e-10}
PRINTED = [  # accuracy without and with privacy, then value and P(A) of DP, Bayesian DP and WDP
    ("MNIST", 99, 96, (2.2, 0.898), (0.95, 0.721), (0.76, 0.681)),
    ("CIFAR-10", 86, 73, (8.0, 0.999), (0.76, 0.681), (0.52, 0.627)),
    ("SVHN", 93, 92, (5.0, 0.999), (0.87, 0.705), (0.40, 0.599)),
    ("Fashion-MNIST", 92, 90, (2.9, 0.623), (0.91, 0.713), (0.45, 0.611)),
]
BATCH, BETA, PAIRED, EPOCHS = 1024, 32.0, 8, 4
BAYES_ORDERS = (
    1,
    2,
    3,
    4,
    6,
    8,
    12,
    16,
    24,
    32,
)  # the smallest value counts, as in Triastcyn and Faltings (2020)


def printed_rows() -> list[dict[str, Any]]:
    """Compare the printed table, P(A) recomputed, and the least beta at which Corollary 1 allows the printed WDP."""
    rows = []
    for dataset, plain, private, *notions in PRINTED:
        row: dict[str, Any] = {
            "dataset": dataset,
            "accuracy_non_private": plain,
            "accuracy": private,
        }
        for name, (value, p_attack) in zip(DELTAS, notions, strict=True):
            row |= {
                name: value,
                f"p_attack_{name}": p_attack,
                f"p_attack_{name}_is": float(special.expit(value)),
            }
        rows.append(row | {"least_beta": -math.log(DELTAS["wdp"]) / row["wdp"]})
    return rows


def train(loaded: Benchmark, *, noise: float) -> dict[str, float]:
    """Train once; return accuracy and the three values."""
    from opacus import PrivacyEngine

    assert loaded.test is not None
    x, x_test = (part.values.float() / 127.5 - 1 for part in (loaded.train, loaded.test))
    y, y_test = loaded.train.labels, loaded.test.labels
    torch.manual_seed(0)  # a demonstration on public data
    first, second = nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Conv2d(16, 32, 4, stride=2)
    head = (nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10))
    model: nn.Module = nn.Sequential(
        first, nn.Tanh(), nn.MaxPool2d(2, 1), second, nn.Tanh(), nn.MaxPool2d(2, 1), *head
    )
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    loader: Any = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, y), batch_size=BATCH
    )
    engine = PrivacyEngine(accountant="prv" if noise > 0.1 else "rdp")
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=noise,
        max_grad_norm=1.0,
    )
    rate, steps = 1 / len(loader), EPOCHS * len(loader)
    bayes = [BayesianAccountant(order, steps) for order in BAYES_ORDERS]
    wdp = WassersteinAccountant(order=ORDER, beta=BETA, sigma=noise, sampling_rate=rate)
    model.train()
    for _ in range(EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            samples = torch.cat(
                [p.grad_sample[:PAIRED].flatten(1) for p in model.parameters()], dim=1
            )
            samples = samples / samples.norm(dim=1, keepdim=True).clamp(min=1.0)
            distances = pdist(samples.double().numpy())  # of clipped gradients, in units of the sum
            for accountant in bayes:
                accountant.step(distances, sigma=noise, rate=rate)
            wdp.step(distances)
            optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = float((model(x_test).argmax(1) == y_test).double().mean())
    additive = -math.log(DELTAS["wdp"]) / BETA
    values = {
        "dp": float(engine.get_epsilon(DELTAS["dp"])),
        "bdp": min(each.get_epsilon(DELTAS["bdp"]) for each in bayes),
        "wdp_sum": wdp.total_loss + additive,
        "wdp_mean": wdp.total_loss / BATCH
        + additive,  # the loss scales with the unit of the gradient
    }
    settings = {
        "accuracy": 100 * accuracy,
        "noise_multiplier": noise,
        "epochs": EPOCHS,
        "steps": steps,
    }
    p_attack = {f"p_attack_{name}": float(special.expit(value)) for name, value in values.items()}
    return settings | values | {"wdp_additive_term": additive} | p_attack


def wdp_table2(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Yang2024, Table 2: DP-SGD on MNIST and Fashion-MNIST under DP, Bayesian DP and WDP (minutes)."""
    settings = [(dataset, noise) for dataset in ("MNIST", "Fashion-MNIST") for noise in (1.0, 0.01)]
    rows = []
    for dataset, noise in settings[: 1 if quick else None]:
        loaded = benchmark(dataset.replace("-", ""), data)
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # Opacus: no secure generator, order at the edge of its grid
            rows.append({"dataset": dataset} | train(loaded, noise=noise))
    return {"deltas": DELTAS, "rows": rows, "printed": printed_rows()}


EXPERIMENTS = (wdp_fig1, wdp_fig2, wdp_fig3, wdp_table2)
