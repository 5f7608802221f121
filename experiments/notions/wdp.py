r"""Yang2024 (Wasserstein DP): its tables and figures.

docs/notions.md has the settings. Figure 2 does not clip, so that the distance 2 C of the moments
accountant is no bound there. Theorem 2 as printed (components, infimum over pairs) is computed on
the pairs of the first three gradients. The program of the authors clips the mean gradient of a
network with batch normalisation, which no DP account covers; in Table 2 here the DP epsilon is that
of DP-SGD, as Opacus computes it. Bayesian DP and WDP read private gradients, so that their values
are private too.

Moments accountant and Bayesian accountant follow the log moment of the subsampled Gaussian's
privacy loss at one integer order :math:`\lambda`,

.. math:: c(d) = \ln E_{k \sim B(\lambda + 1, q)} \exp\!\Big(\frac{k (k-1)}{2}\,
\frac{d^2}{\sigma^2}\Big) .

The first takes the worst distance d that clipping allows. The second (Triastcyn and Faltings, 2020)
takes the distances of sampled pairs of gradients, and an upper confidence bound of the mean of
:math:`e^{T c(d_i)}` (Hoelder's inequality over T steps). Its guarantee covers records drawn from
the distribution of the sampled ones, not of an outlier; its confidence assumes independent normal
draws.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
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
from experiments.cells import Cell, run_cells
from experiments.plots import figure
from experiments.results import Result, Row

ORDER = 16  # of Figures 2 and 4, and of WDP in Table 2
# A budget holds at every order, so that the least one counts, as in Triastcyn and Faltings (2020).
ORDERS_TO_TRY = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


def log_moment(distances: ArrayLike, sigma: float, rate: float, order: int) -> NDArray[np.float64]:
    """Compute c(d) of the module docstring for every distance."""
    k = np.arange(order + 2)
    log_binomial = stats.binom.logpmf(k, order + 1, rate)
    squares = np.square(np.asarray(distances) / sigma)
    exponent = np.multiply.outer(squares, k * (k - 1) / 2)
    return np.asarray(special.logsumexp(log_binomial + exponent, axis=-1))


class BayesianAccountant:
    """The accountant of Triastcyn and Faltings (2020) at one order, for planned steps."""

    def __init__(self, order: int, n_steps: int, failure: float = 1e-16) -> None:
        self.order = order
        self.n_steps = n_steps
        self.failure = failure
        self.total = 0.0
        self.steps = 0

    def step(self, distances: ArrayLike, *, sigma: float, rate: float) -> None:
        """Charge one step with the distances (n,) of sampled pairs of gradients, n >= 3."""
        logs = self.n_steps * log_moment(distances, sigma, rate, self.order)
        top = logs.max()
        n = len(logs)
        scaled = np.exp(logs - top)
        quantile = float(stats.t.isf(self.failure, n - 1))
        bound = scaled.mean() + quantile * scaled.std() / math.sqrt(n - 1)
        self.total += float(top + math.log(bound)) / self.n_steps
        self.steps += 1

    def get_epsilon(self, delta: float) -> float:
        """Return the epsilon of Bayesian differential privacy at ``delta``."""
        return (self.total - math.log(delta - self.steps * self.failure)) / self.order


# Table 1 and Figure 1 -----------------------------------------------------------------------------

SCALES = (1.0, 2.0, 3.0, 5.0)
ORDERS = (1.0, 2.0, 5.0, 10.0)


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


@dataclass(frozen=True)
class Panel:
    """A panel of Figure 1: the budget of a mechanism, by order and scale."""

    budget: Callable[[float, float], float]
    is_wdp: bool


PANELS = {
    "(a) Laplace, RDP": Panel(laplace_rdp, is_wdp=False),
    "(b) Laplace, WDP": Panel(laplace_wdp, is_wdp=True),
    "(c) Gaussian, RDP": Panel(gaussian_rdp, is_wdp=False),
    "(d) Gaussian, WDP": Panel(gaussian_wdp, is_wdp=True),
}


def table_1() -> list[Row]:
    """Table 1 in numbers: sensitivity 1, scales 1 and 3, orders 1 and 2.

    ``None`` stands for infinity, and for the order of DP, which has none.
    """
    rows: list[Row] = []
    for scale in (1.0, 3.0):
        dp = {"notion": "DP", "order": None, "scale": scale}
        rows.append(dp | {"laplace": 1 / scale, "gaussian": None})
        for order in (1.0, 2.0):
            rdp = {"notion": "RDP", "order": order, "scale": scale}
            rdp["laplace"] = laplace_rdp(order, scale)
            rdp["gaussian"] = gaussian_rdp(order, scale)
            rows.append(rdp)
        for order in (1.0, 2.0):
            wdp = {"notion": "WDP", "order": order, "scale": scale}
            wdp["laplace"] = laplace_wdp(order, scale)
            wdp["gaussian"] = gaussian_wdp(order, scale)
            rows.append(wdp)
    return rows


def wdp_fig1(out: Path) -> Result:
    """Yang2024, Table 1 and Figure 1: budgets of Laplace and Gaussian noise."""
    orders = np.linspace(1, 10, 181)
    rows: list[Row] = []
    with figure(out / "wdp_fig1.png", 9, 6.5, 2, 2, dpi=70) as panels:
        for axes, (name, panel) in zip(panels.ravel(), PANELS.items(), strict=True):
            highest = None
            if panel.is_wdp:
                highest = 1.6
            for scale in SCALES:
                budgets = [panel.budget(order, scale) for order in orders]
                axes.plot(orders, budgets, label=f"noise scale {scale:g}")
                rows += [_row_of_panel(name, panel, scale, order) for order in ORDERS]
            if panel.is_wdp:
                label = "distance of Definition 3"
                axes.axhline(1, color="black", linestyle="--", label=label)
            axes.set(title=name, xlabel="order", xlim=(1, 10), ylim=(0, highest))
            axes.legend(fontsize=8)
    return {"table_1": table_1(), "rows": rows}


def _row_of_panel(name: str, panel: Panel, scale: float, order: float) -> Row:
    """Return the budget of a panel, and for WDP the distance that Definition 3 gives."""
    distance = None
    if panel.is_wdp:
        distance = gaussian_distance(1.0, scale, scale, order)  # 1, as for any shift by 1
    return {
        "panel": name,
        "scale": scale,
        "order": order,
        "value": panel.budget(order, scale),
        "true_distance": distance,
    }


# Figures 2 and 4 ----------------------------------------------------------------------------------

QUANTILES = (0.05, 0.50, 0.75, 0.99)
LABELS = {
    "dp_epsilon": "moments accountant, order 16",
    "least_dp_epsilon": "moments accountant, least of ten orders",
    "bdp_epsilon": "Bayesian accountant, order 16",
    "least_bdp_epsilon": "Bayesian accountant, least of ten orders",
    "wdp_diagnostic": "Wasserstein accountant, authors' program",
    "wdp_printed": "Wasserstein accountant, as printed",
}
RATE = 1e-3
NOISE = 0.2
DELTA = 1e-5


@dataclass(frozen=True)
class Run:
    """A run of the accountants on Weibull gradients.

    ``quantile`` of the norms is the bound C, and ``noise`` the noise in units of C. ``unit``
    rescales the gradients, which changes no likelihood ratio.
    """

    quantile: float
    clip: bool
    noise: float = NOISE
    unit: float = 1.0


def trace(run: Run, steps: int) -> dict[str, list[float]]:
    """Return the value of every accountant after each step.

    The moments accountant takes 2 C for the distance of two gradients. The Bayesian and the
    Wasserstein accountant see the distances of all pairs of 50 gradients, and Theorem 2 as printed
    the three pairs of the first three.
    """
    rng = np.random.default_rng(int(1000 * run.quantile))
    moments = dict.fromkeys(ORDERS_TO_TRY, 0.0)
    bayes = {order: BayesianAccountant(order, steps) for order in ORDERS_TO_TRY}
    wasserstein = WassersteinAccountant(order=ORDER, beta=1.0, sigma=1.0, sampling_rate=RATE)
    printed = WassersteinAccountant(order=ORDER, beta=1.0, sigma=1.0, sampling_rate=RATE)
    first, second = np.triu_indices(3, 1)
    curves: dict[str, list[float]] = {name: [] for name in LABELS}
    for _ in range(steps):
        gradients = run.unit * rng.weibull(0.5, (50, 1000))
        norms = np.linalg.norm(gradients, axis=1)
        bound = float(np.quantile(norms, run.quantile))
        if run.clip:
            gradients *= np.minimum(1, bound / norms)[:, None]
        distances = pdist(gradients)
        sigma = run.noise * bound
        for order in ORDERS_TO_TRY:
            moments[order] += float(log_moment(2 * bound, sigma, RATE, order))
            bayes[order].step(distances, sigma=sigma, rate=RATE)
        wasserstein.step(distances, sigma=sigma)
        differences = gradients[first] - gradients[second]
        printed.total_loss += theorem_2_loss(ORDER, differences, sigma, RATE)
        dp_epsilons = {order: (moments[order] - math.log(DELTA)) / order for order in moments}
        bdp_epsilons = {order: bayes[order].get_epsilon(DELTA) for order in bayes}
        curves["dp_epsilon"].append(dp_epsilons[ORDER])
        curves["least_dp_epsilon"].append(min(dp_epsilons.values()))
        curves["bdp_epsilon"].append(bdp_epsilons[ORDER])
        curves["least_bdp_epsilon"].append(min(bdp_epsilons.values()))
        curves["wdp_diagnostic"].append(wasserstein.get_wdp(DELTA))
        curves["wdp_printed"].append(printed.get_wdp(DELTA))
    return curves


def wdp_fig2(out: Path, *, quick: bool = False) -> Result:
    """Yang2024, Figures 2 and 4: three accountants on Weibull gradients."""
    steps = 100
    if quick:
        steps = 2
    rows = _draw_accountants(2, steps, out / "wdp_fig2.png", clip=False)
    rows += _draw_accountants(4, steps, out / "wdp_fig4.png", clip=True)
    others = (  # dependence on the noise and on the unit
        Run(0.5, clip=True, noise=2.0),
        Run(0.5, clip=True, noise=0.02),
        Run(0.5, clip=True, unit=1e-3),
    )
    rows += [_row_of_run(None, run, trace(run, steps)) for run in others]
    return {"rows": rows}


def _draw_accountants(number: int, steps: int, path: Path, *, clip: bool) -> list[Row]:
    """Draw a figure with a panel for each quantile; return the last values."""
    rows = []
    with figure(path, 9, 6.5, 2, 2, dpi=70) as panels:
        for letter, axes, quantile in zip("abcd", panels.ravel(), QUANTILES, strict=True):
            run = Run(quantile, clip)
            curves = trace(run, steps)
            for name, label in LABELS.items():
                axes.plot(range(1, steps + 1), curves[name], label=label)
            title = f"({letter}) C at the {quantile:.2f} quantile"
            axes.set(title=title, xlabel="step", ylabel="value", yscale="log")
            axes.legend(fontsize=8)
            rows.append(_row_of_run(number, run, curves))
    return rows


def _row_of_run(number: int | None, run: Run, curves: dict[str, list[float]]) -> Row:
    """Return the settings of a run, and the values after its last step."""
    row: Row = {
        "figure": number,
        "quantile": run.quantile,
        "clipped": run.clip,
        "noise": run.noise,
        "unit": run.unit,
        "steps": len(curves["dp_epsilon"]),
    }
    for name, values in curves.items():
        row[name] = values[-1]
    return row


# Figure 3 -----------------------------------------------------------------------------------------

LOSS = 10.0


def diagnostic(beta: float, delta: float) -> float:
    """Return Corollary 1 at a sum of losses of 10."""
    accountant = WassersteinAccountant(order=1, beta=beta, sigma=1.0, sampling_rate=0.0)
    accountant.total_loss = LOSS
    return accountant.get_wdp(delta)


def wdp_fig3(out: Path) -> Result:
    """Yang2024, Figure 3: the WDP diagnostic against beta, a free constant, and delta."""
    betas = np.arange(1.0, 51.0)
    deltas = np.geomspace(1e-10, 1e-5, 200)
    rows: list[Row] = []
    with figure(out / "wdp_fig3.png", 9, 3.6, 1, 2, dpi=70) as (left, right):
        for delta in (1e-10, 1e-8, 1e-5, 1e-3):
            values = [diagnostic(float(beta), delta) for beta in betas]
            left.plot(betas, values, label=f"delta = {delta:g}")
            rows += [_row_of_diagnostic("a", beta, delta) for beta in (1.0, 10.0, 50.0)]
        for beta in (1.0, 2.0, 5.0, 10.0):
            values = [diagnostic(beta, float(delta)) for delta in deltas]
            right.plot(deltas, values, label=f"beta = {beta:g}")
            rows += [_row_of_diagnostic("b", beta, delta) for delta in (1e-10, 1e-5)]
        left.set(title="(a)", xlabel="beta")
        right.set(title="(b)", xlabel="delta", xscale="log")
        for axes in (left, right):
            axes.set(ylabel="WDP diagnostic", ylim=(LOSS - 1, 35))
            axes.axhline(LOSS, color="black", linestyle="--", linewidth=1)
            axes.legend(fontsize=8)
    return {"rows": rows}


def _row_of_diagnostic(panel: str, beta: float, delta: float) -> Row:
    value = diagnostic(beta, delta)
    return {"panel": panel, "beta": beta, "delta": delta, "wdp_diagnostic": value}


# Table 2 ------------------------------------------------------------------------------------------

DELTAS = {"dp": 1e-5, "bdp": 1e-10, "wdp": 1e-10}


@dataclass(frozen=True)
class Printed:
    """A row of Table 2 as printed: accuracies, and value and P(A) of every notion."""

    dataset: str
    accuracy_non_private: int
    accuracy: int
    values: dict[str, float]
    p_attacks: dict[str, float]


PRINTED = (
    Printed(
        "MNIST",
        99,
        96,
        {"dp": 2.2, "bdp": 0.95, "wdp": 0.76},
        {"dp": 0.898, "bdp": 0.721, "wdp": 0.681},
    ),
    Printed(
        "CIFAR-10",
        86,
        73,
        {"dp": 8.0, "bdp": 0.76, "wdp": 0.52},
        {"dp": 0.999, "bdp": 0.681, "wdp": 0.627},
    ),
    Printed(
        "SVHN",
        93,
        92,
        {"dp": 5.0, "bdp": 0.87, "wdp": 0.40},
        {"dp": 0.999, "bdp": 0.705, "wdp": 0.599},
    ),
    Printed(
        "Fashion-MNIST",
        92,
        90,
        {"dp": 2.9, "bdp": 0.91, "wdp": 0.45},
        {"dp": 0.623, "bdp": 0.713, "wdp": 0.611},
    ),
)
BATCH = 1024
_FLAT_SIZES = {28: 512, 32: 800}  # values after the convolutions, by the side of an image
BETA = 32.0
PAIRED = 8  # gradients of a batch whose distances the accountants see
EPOCHS = 4
LONG_EPOCHS = 16  # after which the paper has 96 % on MNIST
PUBLIC_EPOCHS = 10  # without noise
LOW_NOISE = 0.1  # below it by RDP: the integrals of the PRV accountant of Opacus overflow


def printed_rows() -> list[Row]:
    """Return the printed table with P(A) recomputed.

    ``least_beta`` is the least beta at which Corollary 1 allows the printed WDP.
    """
    rows = []
    for printed in PRINTED:
        row: Row = {
            "dataset": printed.dataset,
            "accuracy_non_private": printed.accuracy_non_private,
            "accuracy": printed.accuracy,
        }
        for name, value in printed.values.items():
            row[name] = value
            row[f"p_attack_{name}"] = printed.p_attacks[name]
            row[f"p_attack_{name}_is"] = float(special.expit(value))
        row["least_beta"] = -math.log(DELTAS["wdp"]) / printed.values["wdp"]
        rows.append(row)
    return rows


def _network(n_channels: int, side: int) -> nn.Module:
    """Return a convolutional network for images (n, c, side, side), of side 28 or 32.

    It has 26,010 weights for grey images of side 28.
    """
    return nn.Sequential(
        nn.Conv2d(n_channels, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(_FLAT_SIZES[side], 32),
        nn.Tanh(),
        nn.Linear(32, 10),
    )


def _start(loaded: Benchmark, *, shuffle: bool) -> tuple[Any, Any]:
    """Return a network with the weights of seed 0, and a loader.

    The loader is that of the training images.
    """
    images = loaded.train.values.float() / 127.5 - 1
    torch.manual_seed(0)
    model = _network(images.shape[1], images.shape[-1])
    dataset = torch.utils.data.TensorDataset(images, loaded.train.labels)
    loader: Any = torch.utils.data.DataLoader(dataset, batch_size=BATCH, shuffle=shuffle)
    return model, loader


def train_publicly(loaded: Benchmark, *, epochs: int) -> dict[str, Any]:
    """Train by SGD without clipping and noise; return the accuracy. NOT PRIVATE.

    The seed is 0.
    """
    model, loader = _start(loaded, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.train()
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
    steps = epochs * len(loader)
    accuracy = 100 * _accuracy(model, loaded)
    return {"accuracy": accuracy, "noise_multiplier": 0.0, "epochs": epochs, "steps": steps}


def train(loaded: Benchmark, *, noise: float, epochs: int = EPOCHS) -> dict[str, float]:
    """Train by DP-SGD with seed 0; return accuracy and the values of Table 2."""
    from opacus import PrivacyEngine  # takes a second to import, and Table 2 alone needs it

    model, loader = _start(loaded, shuffle=False)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    accountant = "rdp"
    if noise > LOW_NOISE:
        accountant = "prv"
    engine = PrivacyEngine(accountant=accountant)
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=noise,
        max_grad_norm=1.0,
    )
    rate = 1 / len(loader)
    steps = epochs * len(loader)
    bayes = [BayesianAccountant(order, steps) for order in ORDERS_TO_TRY]
    wdp = WassersteinAccountant(order=ORDER, beta=BETA, sigma=noise, sampling_rate=rate)
    model.train()
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            distances = _gradient_distances(model)
            for bayesian_accountant in bayes:
                bayesian_accountant.step(distances, sigma=noise, rate=rate)
            wdp.step(distances)
            optimizer.step()

    additive = -math.log(DELTAS["wdp"]) / BETA
    values = {
        "dp": float(engine.get_epsilon(DELTAS["dp"])),
        "bdp": min(accountant.get_epsilon(DELTAS["bdp"]) for accountant in bayes),
        "wdp_sum": wdp.total_loss + additive,
        "wdp_mean": wdp.total_loss / BATCH + additive,  # the loss scales with the gradient's unit
    }
    result = {
        "accuracy": 100 * _accuracy(model, loaded),
        "noise_multiplier": noise,
        "epochs": epochs,
        "steps": steps,
        **values,
        "wdp_additive_term": additive,
    }
    for name, value in values.items():
        result[f"p_attack_{name}"] = float(special.expit(value))
    return result


def _gradient_distances(model: Any) -> NDArray[np.float64]:
    """Return the distances of the first clipped gradients of a batch."""
    gradients = [parameter.grad_sample[:PAIRED].flatten(1) for parameter in model.parameters()]
    samples = torch.cat(gradients, dim=1)
    samples = samples / samples.norm(dim=1, keepdim=True).clamp(min=1.0)
    return np.asarray(pdist(samples.double().numpy()))


@torch.no_grad()
def _accuracy(model: nn.Module, loaded: Benchmark) -> float:
    """Return the accuracy of a network on the test images."""
    assert loaded.test is not None
    images = loaded.test.values.float() / 127.5 - 1
    model.eval()
    return float((model(images).argmax(1) == loaded.test.labels).double().mean())


@dataclass(frozen=True)
class TrainingCell(Cell):
    """A run of Table 2; a noise of 0 trains without clipping and noise."""

    dataset: str
    noise: float
    epochs: int


def _run_cell(cell: TrainingCell, data: Path | None) -> Result:
    """Train the network of a cell; return its row."""
    loaded = benchmark(cell.dataset.replace("-", ""), data)
    row: Result = {"dataset": cell.dataset}
    if cell.noise == 0:
        return row | train_publicly(loaded, epochs=cell.epochs)
    with warnings.catch_warnings():
        # Opacus warns that its generator is not secure, and of orders at the end of its grid.
        warnings.simplefilter("ignore")
        return row | train(loaded, noise=cell.noise, epochs=cell.epochs)


def wdp_table2(
    out: Path, *, quick: bool = False, full: bool = False, data: Path | None = None
) -> Result:
    """Yang2024, Table 2: DP-SGD under DP, Bayesian DP and WDP (--full: longer).

    With ``--full`` CIFAR-10 is added.
    """
    settings = [(0.0, PUBLIC_EPOCHS), (1.0, EPOCHS), (0.01, EPOCHS)]
    datasets = ["MNIST", "Fashion-MNIST"]
    if full:
        settings.append((1.0, LONG_EPOCHS))
        datasets.append("CIFAR-10")
    if quick:
        settings = [(0.0, 1), (1.0, 1)]
        datasets = datasets[:1]
    planned = []
    for dataset in datasets:
        planned += [TrainingCell(dataset, noise, epochs) for noise, epochs in settings]
    work = partial(_run_cell, data=data)
    rows = run_cells(planned, work, out / "wdp_table2_cells", workers=0)
    return {"deltas": DELTAS, "rows": rows, "printed": printed_rows()}


EXPERIMENTS = (wdp_fig1, wdp_fig2, wdp_fig3, wdp_table2)
