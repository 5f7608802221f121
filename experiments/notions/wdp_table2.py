"""Yang2024, Table 2: a CNN trained with DP-SGD under DP, Bayesian DP and WDP, beside the printed values.

Not printed in the paper: noise, clipping norm, batch size, order, beta, learning rate, seeds. Order 16, beta 32, 28
pairs of gradients and the noise 0.01 are defaults of the authors' program; the rest is ours. The network is the small
CNN of the Opacus examples with tanh (which reaches 96% on MNIST in few epochs), clipping norm 1, Poisson batches of
1,024. The authors' program clips the mean gradient of a network with batch normalisation, which no DP account covers;
here the DP epsilon is that of the run, as Opacus computes it.

WDP is given for the summed gradient and for the mean gradient (the sum divided by the batch size), because the number
depends on the unit. Bayesian DP and WDP read private gradients, so that their values are private too.
"""

import math
import os
import warnings
from pathlib import Path
from typing import Any

import torch
from scipy.spatial.distance import pdist
from torch import Tensor, nn

from dpswd.diagnostics.wasserstein import WassersteinAccountant, attack_probability
from dpswd.errors import InputError
from experiments.notions.wdp_comparators import BayesianAccountant

HELP = "Yang2024, Table 2: DP-SGD on MNIST and Fashion-MNIST under DP, Bayesian DP and WDP (minutes)"

DELTAS = {"dp": 1e-5, "bdp": 1e-10, "wdp": 1e-10}
PRINTED = [  # accuracy without and with privacy, then value and P(A) of DP, Bayesian DP and WDP
    ("MNIST", 99, 96, (2.2, 0.898), (0.95, 0.721), (0.76, 0.681)),
    ("CIFAR-10", 86, 73, (8.0, 0.999), (0.76, 0.681), (0.52, 0.627)),
    ("SVHN", 93, 92, (5.0, 0.999), (0.87, 0.705), (0.40, 0.599)),
    ("Fashion-MNIST", 92, 90, (2.9, 0.623), (0.91, 0.713), (0.45, 0.611)),
]
BATCH, ORDER, BETA, PAIRED, EPOCHS = 1024, 16, 32.0, 8, 4
BAYES_ORDERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # the smallest value counts, as in Triastcyn and Faltings (2020)


def printed_rows() -> list[dict[str, Any]]:
    """The printed table, P(A) recomputed, and the least beta at which Corollary 1 allows the printed WDP."""
    rows = []
    for dataset, plain, private, *notions in PRINTED:
        row: dict[str, Any] = {"dataset": dataset, "accuracy_non_private": plain, "accuracy": private}
        for name, (value, p_attack) in zip(DELTAS, notions, strict=True):
            row |= {name: value, f"p_attack_{name}": p_attack, f"p_attack_{name}_is": attack_probability(value)}
        rows.append(row | {"least_beta": -math.log(DELTAS["wdp"]) / row["wdp"]})
    return rows


def load(name: str, root: Path) -> list[Tensor] | None:
    """Return images in [-1, 1] and classes, training and test; ``None`` where the files are missing."""
    from torchvision import datasets

    parts: list[Tensor] = []
    for train in (True, False):
        try:
            images = getattr(datasets, name.replace("-", ""))(str(root), train=train)
        except RuntimeError:
            return None
        parts += [images.data[:, None].float() / 127.5 - 1, images.targets.long()]
    return parts


def train(tensors: list[Tensor], *, noise: float, epochs: int) -> dict[str, float]:
    """Train once; return accuracy and the three values."""
    from opacus import PrivacyEngine

    x, y, x_test, y_test = tensors
    torch.manual_seed(0)  # a demonstration on public data
    first, second = nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.Conv2d(16, 32, 4, stride=2)
    head = (nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10))
    model: nn.Module = nn.Sequential(first, nn.Tanh(), nn.MaxPool2d(2, 1), second, nn.Tanh(), nn.MaxPool2d(2, 1), *head)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
    batch = min(BATCH, len(x) // 4)
    loader: Any = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=batch)
    engine = PrivacyEngine(accountant="prv" if noise > 0.1 else "rdp")
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=noise, max_grad_norm=1.0
    )
    rate, steps = 1 / len(loader), epochs * len(loader)
    bayes = [BayesianAccountant(order, steps) for order in BAYES_ORDERS]
    wdp = WassersteinAccountant(order=ORDER, beta=BETA, sigma=noise, sampling_rate=rate)
    model.train()
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            samples = torch.cat([p.grad_sample[:PAIRED].flatten(1) for p in model.parameters()], dim=1)
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
        "wdp_mean": wdp.total_loss / batch + additive,  # the loss scales with the unit of the gradient
    }
    settings = {"accuracy": 100 * accuracy, "noise_multiplier": noise, "epochs": epochs, "steps": steps}
    p_attack = {f"p_attack_{name}": attack_probability(value) for name, value in values.items()}
    return settings | values | {"wdp_additive_term": additive} | p_attack


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Train with noise 1.0 and with 0.01, the default of the authors' program."""
    root = Path(data or os.environ.get("DPSWD_DATA", "data"))
    rows: list[dict[str, Any]] = []
    for dataset in ("MNIST", "Fashion-MNIST"):
        tensors = load(dataset, root)
        if tensors is None:
            print(f"{dataset}: not under {root}, skipped")
            continue
        if quick:
            tensors = [part[: 2048 if i < 2 else 500] for i, part in enumerate(tensors)]
        for noise in (1.0, 0.01):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Opacus: no secure generator, order at the edge of its grid
                rows.append({"dataset": dataset} | train(tensors, noise=noise, epochs=1 if quick else EPOCHS))
    if not rows:
        raise InputError(f"Expected MNIST or FashionMNIST under {root}, got neither; give --data or DPSWD_DATA.")
    return {"deltas": DELTAS, "rows": rows, "printed": printed_rows()}
