"""Yang2024, Table 2: a CNN trained with DP-SGD, judged by DP, Bayesian DP and WDP, P(A) = 1/(1 + e^-eps).

What is trained: Opacus's small CNN (no normalisation layers, which DP-SGD does not allow) with per-example
clipping at 1, Poisson batches of 1,024, delta 1e-5, order 16 and beta 32 as in the authors' program. Theirs
clips the MEAN gradient of a shuffled batch, of a network with batch normalisation; that is no differentially
private run, and an epsilon beside it bounds nothing. Here the DP epsilon is Opacus's account of what was run.

WDP is reported in two units, that of the summed gradient (noise multiplier times C) and that of the mean
gradient (the same divided by the batch size), because the number depends on it. Bayesian DP and WDP read
private gradients: their values are themselves unprotected statistics of the training data.
"""

import os
import warnings
from pathlib import Path
from typing import Any

import torch
from scipy.spatial.distance import pdist
from torch import Tensor, nn

from dpswd.diagnostics.accountant import WassersteinAccountant
from dpswd.diagnostics.wasserstein import attack_probability
from dpswd.errors import InputError
from experiments.notions.wdp_comparators import BayesianAccountant

HELP = "Yang2024, Table 2: DP-SGD on MNIST and Fashion-MNIST under DP, Bayesian DP and WDP (minutes)"

DATASETS = {"MNIST": "MNIST", "Fashion-MNIST": "FashionMNIST", "CIFAR-10": "CIFAR10", "SVHN": "SVHN"}
BATCH, DELTA, ORDER, BETA, PAIRED = 1024, 1e-5, 16, 32.0, 8
BAYES_ORDERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # the best one counts, as its authors do


class SmallCNN(nn.Sequential):
    """Opacus's example network: two strided convolutions and two linear layers."""

    def __init__(self, channels: int, side: int) -> None:
        first = (side + 2 * 3 - 8) // 2 + 1 - 1
        second = (first - 4) // 2 + 1 - 1
        super().__init__(
            nn.Conv2d(channels, 16, 8, stride=2, padding=3),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.ReLU(),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(32 * second * second, 32),
            nn.ReLU(),
            nn.Linear(32, 10),
        )


def load(name: str, root: Path) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Images (n, c, h, w) in [-1, 1] and classes, training and test; ``None`` where the data is missing."""
    from torchvision import datasets

    parts: list[Tensor] = []
    for train in (True, False):
        try:
            if name == "SVHN":
                pytorch_set = datasets.SVHN(str(root / "SVHN"), split="train" if train else "test")
                images, labels = torch.as_tensor(pytorch_set.data), torch.as_tensor(pytorch_set.labels)
            else:
                place = root / name if name == "CIFAR10" else root
                pytorch_set = getattr(datasets, name)(str(place), train=train)
                images, labels = torch.as_tensor(pytorch_set.data), torch.as_tensor(pytorch_set.targets)
                images = images[:, None] if images.dim() == 3 else images.permute(0, 3, 1, 2)
        except RuntimeError:
            return None
        parts += [images.float() / 127.5 - 1, labels.long()]
    return parts[0], parts[1], parts[2], parts[3]


def train(tensors: tuple[Tensor, Tensor, Tensor, Tensor], *, noise: float, epochs: int) -> dict[str, float]:
    """Trains once and returns accuracy and the three judgements."""
    from opacus import PrivacyEngine

    x, y, x_test, y_test = tensors
    torch.manual_seed(0)  # weights only in effect: a demonstration on public data, not a private run
    model: nn.Module = SmallCNN(x.shape[1], x.shape[2])
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    batch = min(BATCH, len(x) // 4)
    loader: Any = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=batch)
    engine = PrivacyEngine(accountant="prv" if noise > 0.1 else "rdp")
    model, optimizer, loader = engine.make_private(
        module=model, optimizer=optimizer, data_loader=loader, noise_multiplier=noise, max_grad_norm=1.0
    )
    rate, steps = 1 / len(loader), epochs * len(loader)
    bayes = [BayesianAccountant(order, steps) for order in BAYES_ORDERS]
    wdp = {
        "sum": WassersteinAccountant(order=ORDER, beta=BETA, sigma=noise, sampling_rate=rate),
        "mean": WassersteinAccountant(order=ORDER, beta=BETA, sigma=noise / batch, sampling_rate=rate),
    }
    model.train()
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            samples = torch.cat([p.grad_sample[:PAIRED].flatten(1) for p in model.parameters()], dim=1)
            samples = samples / samples.norm(dim=1, keepdim=True).clamp(min=1.0)
            distances = pdist(samples.double().numpy())  # clipped per-example gradients, in units of the sum
            for accountant in bayes:
                accountant.step(distances, sigma=noise, rate=rate)
            wdp["sum"].step(distances)
            wdp["mean"].step(distances / batch)
            optimizer.step()
    model.eval()
    with torch.no_grad():
        accuracy = float((model(x_test).argmax(1) == y_test).double().mean())
    result = {"accuracy": 100 * accuracy, "noise_multiplier": noise, "epochs": epochs, "steps": steps}
    judged = {
        "dp_epsilon": float(engine.get_epsilon(DELTA)),
        "bdp_epsilon": min(each.get_epsilon(DELTA) for each in bayes),
    }
    judged |= {f"wdp_diagnostic_{unit}": accountant.get_epsilon(DELTA) for unit, accountant in wdp.items()}
    return result | judged | {f"p_attack_{name}": attack_probability(value) for name, value in judged.items()}


def run(out: Path, *, quick: bool = False, data: Path | None = None, full: bool = False) -> dict[str, Any]:
    """Trains with a noise that protects (1.0) and the authors' default (0.01); 10 epochs, ``full``: 25."""
    root = Path(data or os.environ.get("DPSWD_DATA", "data"))
    epochs = 1 if quick else 25 if full else 10
    rows: list[dict[str, Any]] = []
    for title, name in DATASETS.items():
        tensors = load(name, root)
        if tensors is None:
            print(f"{title}: not under {root}, left out")
            continue
        if quick:
            tensors = (tensors[0][:2048], tensors[1][:2048], tensors[2][:500], tensors[3][:500])
        for noise in (1.0, 0.01):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Opacus: no secure generator, order at the edge of its grid
                rows.append({"dataset": title} | train(tensors, noise=noise, epochs=epochs))
    if not rows:
        raise InputError(f"Expected MNIST or FashionMNIST under {root}, got neither; give --data or DPSWD_DATA.")
    print("data set        noise  acc %     DP eps    BDP eps    WDP sum   WDP mean")
    names = ("dp_epsilon", "bdp_epsilon", "wdp_diagnostic_sum", "wdp_diagnostic_mean")
    for row in rows:
        settings = f"{row['dataset']:14} {row['noise_multiplier']:6g} {row['accuracy']:6.2f}"
        print(settings + " " + " ".join(f"{row[name]:10.4g}" for name in names))
        print(f"{'P(A)':>28} " + " ".join(f"{row['p_attack_' + name]:10.4f}" for name in names))
    return {"rows": rows, "columns": "epsilon at delta 1e-5; wdp_diagnostic in gradient units (sum, mean)"}
