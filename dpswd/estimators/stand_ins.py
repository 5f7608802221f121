r"""Pictures of what to expect, on public stand-ins of private images.

Grey images are the digits of scikit-learn, turned and moved at random; colour images are faces that
a program draws, whose classes differ in the colour of the hair. Expectations depend on the signal
:math:`\mu N / \sqrt C` of N records in C classes. A picture has at most :data:`MOST` records and
ten classes, and a budget for which the signal is that of the forecast.
"""

import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor

from dpswd.accounting.calibrate import planning_mu
from dpswd.estimators.generator import PrivateGenerator
from dpswd.features.jitter import N_CODES, jitter
from dpswd.files.pictures import save_grid
from dpswd.mixture.structure import Structure
from dpswd.networks.generator import Generator, draw, seeded
from dpswd.records import PrivateRecords, Records

__all__ = ["save_expectation", "stand_ins"]

# Records and classes of a stand-in, which bound the time to a few seconds.
MOST = 3000
_MOST_CLASSES = 10
# Largest side of an image of a stand-in, which has all of the details that are released.
_LARGEST_SIDE = 32
_N_SHOWN = 6  # images of each class and side in a picture
_N_WITHOUT_CLASSES = 4  # rows of a picture without classes
_DIGIT_JITTER: dict[str, Any] = {"shift": 0.5, "rotation": 8.0, "zoom": 0.08, "shear": 0.1}
_LEAST_EPSILON = 1e-4
_LARGEST_EPSILON = 1e6
_N_BISECTIONS = 60
# Colours of hair, of the classes of drawn faces.
_HAIR = (
    (0.10, 0.08, 0.06),
    (0.90, 0.78, 0.45),
    (0.55, 0.20, 0.10),
    (0.60, 0.60, 0.62),
    (0.35, 0.22, 0.12),
    (0.80, 0.25, 0.20),
    (0.15, 0.25, 0.55),
    (0.15, 0.50, 0.25),
    (0.55, 0.20, 0.55),
    (0.95, 0.95, 0.92),
)


def save_expectation(path: Path, structure: Structure, delta: float) -> str:
    """Write a picture of a public stand-in beside synthetic records of it.

    The synthetic records have the signal of ``structure``.

    Args:
        path: The PNG file.
        structure: A forecast of images.
        delta: Delta of the forecast; the signal has its epsilon.

    Returns:
        What the picture shows, in one sentence.
    """
    n_classes = min(structure.n_classes, _MOST_CLASSES)
    records = stand_ins(structure.sample_shape, MOST, n_classes)
    mu = structure.signal * math.sqrt(max(1, n_classes)) / MOST
    generator = _generator_of(records, n_classes, _epsilon_of(mu, delta), delta)
    rows = []
    for number in range(n_classes or _N_WITHOUT_CLASSES):
        index = torch.arange(number * _N_SHOWN, (number + 1) * _N_SHOWN)
        labels = torch.zeros(_N_SHOWN, dtype=torch.int64)
        if n_classes:
            index = (records.labels == number).nonzero()[:_N_SHOWN, 0]
            labels += number
        with seeded(number):
            rows += [records.floats(index), draw(generator, labels)]
    titles = {0: "public stand-in", _N_SHOWN: "synthetic, as noisy as yours would be"}
    save_grid(torch.cat(rows), path, 2 * _N_SHOWN, titles=titles)
    kind = "digits"
    if structure.sample_shape[0] == 3:
        kind = "faces that a program draws"
    return (
        f"public {kind} beside synthetic ones that are as noisy as yours would be (signal "
        f"{_in_words(structure)})"
    )


def _in_words(structure: Structure) -> str:
    """Return the signal with three digits, and how it is computed."""
    signal = float(f"{structure.signal:.3g}")
    if structure.n_classes > 1:
        return f"{signal:,g} = mu x records / sqrt(classes)"
    return f"{signal:,g} = mu x records"


def stand_ins(sample_shape: tuple[int, ...], n: int, n_classes: int) -> Records:
    """Return n public images, the same ones at every call.

    Args:
        sample_shape: (channels, height, width); images are smaller where a side exceeds 32.
        n: Number of images.
        n_classes: Number of classes, at most ten; 0 for none.

    Returns:
        Digits where there is one channel, drawn faces where there are three; the classes are
        equally frequent.
    """
    channels, height, width = sample_shape
    shrink = max(1.0, max(height, width) / _LARGEST_SIDE)
    size = (max(1, round(height / shrink)), max(1, round(width / shrink)))
    labels = torch.arange(n) % max(1, n_classes)
    with seeded(0):
        if channels == 3:
            images = _faces(labels, size)
        else:
            images = _digits(labels, size, n_classes)
    return Records((255 * images.clamp(0, 1)).round().to(torch.uint8), labels)


def _digits(labels: Tensor, size: tuple[int, int], n_classes: int) -> Tensor:
    """Return digits (n, 1, h, w) of their classes, turned and moved.

    Without classes, digits of all classes are returned.
    """
    loaded = load_digits()
    images = torch.from_numpy(loaded.images / 16).float()[:, None]
    truth = torch.from_numpy(loaded.target)
    if not n_classes:
        truth = torch.zeros_like(truth)
    chosen = torch.zeros(len(labels), dtype=torch.int64)
    for label in labels.unique():
        places = (labels == label).nonzero()[:, 0]
        class_indices = (truth == label).nonzero()[:, 0]
        chosen[places] = class_indices[torch.arange(len(places)) % len(class_indices)]
    moved = jitter(images[chosen], torch.randn(len(labels), N_CODES), **_DIGIT_JITTER)
    return F.interpolate(moved, size=size, mode="bilinear", align_corners=False)


def _faces(labels: Tensor, size: tuple[int, int]) -> Tensor:
    """Draw faces (n, 3, h, w): a ground, hair, a head, eyes and a mouth."""
    n = len(labels)
    vertical = torch.linspace(-1, 1, size[0])[None, :, None]
    horizontal = torch.linspace(-1, 1, size[1])[None, None]

    def number(low: float, high: float) -> Tensor:
        """Draw a number (n, 1, 1) for each face."""
        return low + (high - low) * torch.rand(n, 1, 1)

    def colour(mean: Tensor, deviation: float) -> Tensor:
        """Draw a colour (n, 3, 1, 1) for each face."""
        return (mean + deviation * torch.randn(n, 3))[:, :, None, None]

    def painted(images: Tensor, ink: Tensor, x: Tensor, y: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Paint an ellipse about (x, y) with semi-axes a and b, whose border is soft."""
        radius = (((horizontal - x) / a).square() + ((vertical - y) / b).square()).sqrt()
        inside = torch.sigmoid((1 - radius) * a * min(size))[:, None]
        return images * (1 - inside) + ink * inside

    x = number(-0.1, 0.1)
    y = number(-0.05, 0.15)
    wide = number(0.40, 0.52)
    high = number(0.55, 0.70)
    hair = torch.tensor(_HAIR)[labels]
    light = number(0.7, 1.2)[:, None]
    images = colour(torch.full((n, 3), 0.5), 0.22).expand(-1, -1, *size)
    images = painted(images, colour(hair, 0.04), x, y - 0.22, 1.25 * wide, 1.1 * high)
    skin = torch.tensor([0.85, 0.65, 0.52]) * number(0.6, 1.1)[:, 0]
    images = painted(images, colour(skin, 0.02), x, y, wide, high)
    dark = colour(torch.full((n, 3), 0.12), 0.03)
    gap = number(0.17, 0.23)
    for side in (-1, 1):
        eye = number(0.05, 0.08)
        images = painted(images, dark, x + side * gap, y - 0.12, 1.3 * eye, eye)
    red = colour(torch.tensor([0.65, 0.25, 0.25]).expand(n, 3), 0.05)
    images = painted(images, red, x, y + 0.33, number(0.12, 0.22), number(0.03, 0.08))
    return images * light


def _generator_of(records: Records, n_classes: int, epsilon: float, delta: float) -> Generator:
    """Fit a generator to a stand-in, without a trace of the run."""
    values = records.floats().movedim(1, 3).squeeze(3)
    labels = None
    classes = None
    if n_classes:
        labels = records.labels
        classes = list(range(n_classes))
    with tempfile.TemporaryDirectory() as directory, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of noise, which the picture is to show
        run_dir = Path(directory) / "run"
        estimator = PrivateGenerator(
            epsilon, delta, classes=classes, run_dir=run_dir, verbose=False
        )
        estimator.fit(PrivateRecords(values, labels, classes=classes))
    fitted: Generator = estimator.generator_
    return fitted


def _epsilon_of(mu: float, delta: float) -> float:
    """Return the epsilon whose mu is the next one below, by bisection of its log."""
    low = math.log(_LEAST_EPSILON)
    high = math.log(_LARGEST_EPSILON)
    for _ in range(_N_BISECTIONS):
        middle = (low + high) / 2
        if planning_mu(math.exp(middle), delta) > mu:
            high = middle
        else:
            low = middle
    return math.exp(low)
