"""Pairs of a labelled source and a target that plays the private one.

All of them are public. Digits: 10,000 and 7,291 training records of MNIST and USPS, 10,000 and
2,007 of the official test sets. The paper has other sizes: 60,000 MNIST and 7,438 USPS images, and
MNIST's test set as a target. Office-Caltech-10: GoogLeNet features (1,024) of Amazon (958), Webcam
(295) and DSLR (157), tested on the target itself. Vectors: 16 x 16 pixels, 2,000 source, 1,800
target and 2,000 test records; halves of the digits of scikit-learn (8 x 8); or Office-Caltech-10.
Pairs with the digits of scikit-learn have 8 x 8 pixels, and its 1,438 or 359 records.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor
from torchvision.transforms.functional import affine, gaussian_blur

from dpswd.data import Benchmark, benchmark, data_root, read_public
from dpswd.records import Records

OFFICE = {"A": "amazon", "W": "webcam", "D": "dslr"}
N_SOURCE = 2000
N_TARGET = 1800
N_TEST = 2000
_N_IMAGES = 10_000  # of MNIST as a source or a target: the first ones
_SIDE = 16  # of vectors of pixels
_DIGITS_SIDE = 8  # of the digits of scikit-learn
_N_DIGITS = 900  # source records among them; the others are the target

Root = str | Path | None


@dataclass(frozen=True)
class Pair:
    """Labelled source, target, and labelled test records of the target's kind."""

    source: Records
    target: Records
    test: Records


# Changes of the target ----------------------------------------------------------------------------


def _unchanged(images: Tensor) -> Tensor:
    return images


def _turned(
    images: Tensor, degrees: float = 0.0, shift: int = 0, scale: float = 1.0, shear: float = 0.0
) -> Tensor:
    turned: Tensor = affine(images, degrees, [shift, shift], scale, [shear, 0.0])
    return turned


def _grey(images: Tensor) -> Tensor:
    return 0.5 * images + 0.25


def _dim(images: Tensor) -> Tensor:
    return 0.5 * images


def _shadow(images: Tensor) -> Tensor:
    return 0.5 * images + torch.linspace(0, 0.5, images.shape[-1])


def _blurred(images: Tensor, kernel: int, sigma: float) -> Tensor:
    blurred: Tensor = gaussian_blur(images, [kernel, kernel], [sigma, sigma])
    return blurred


def _inverted(images: Tensor) -> Tensor:
    return 1 - images


def _noisy(images: Tensor) -> Tensor:
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(7))
    return (images + 0.2 * noise).clamp(0, 1)


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "same": _unchanged,
    "rotated": partial(_turned, degrees=15.0),
    "rotated more": partial(_turned, degrees=30.0),
    "reduced": partial(_turned, scale=0.8),
    "moved": partial(_turned, shift=1),
    "sheared": partial(_turned, shear=15.0),
    "grey": _grey,
    "dim": _dim,
    "shadow": _shadow,
    "blurred": partial(_blurred, kernel=5, sigma=1.5),
    "blurred less": partial(_blurred, kernel=3, sigma=0.7),
    "inverted": _inverted,
    "noisy": _noisy,
}


# Pairs --------------------------------------------------------------------------------------------


@lru_cache(maxsize=3)
def _benchmark(name: str, root: Root) -> Benchmark:
    return benchmark(name, root)


def digits(source: str, target: str, root: Root = None) -> Pair:
    """Return MNIST and USPS as images of 28 x 28."""
    first = _benchmark(source, root)
    second = _benchmark(target, root)
    assert second.test is not None
    return Pair(_first(first.train), _first(second.train), _enlarged(second.test))


def _first(records: Records) -> Records:
    """Return the first 10,000 images as 28 x 28 pixels."""
    return _enlarged(records.select(torch.arange(min(_N_IMAGES, len(records)))))


def _enlarged(records: Records) -> Records:
    """Return images as 28 x 28 pixels."""
    return Records(_scaled(records.floats(), 28), records.labels)


def office(source: str, target: str, root: Root = None) -> Pair:
    """Return two domains of Office-Caltech-10, by their first letters."""
    first = _read_office(source, root)
    second = _read_office(target, root)
    return Pair(first, second, second)


def _read_office(letter: str, root: Root) -> Records:
    directory = data_root(root) / "office_caltech10"
    return read_public(directory / f"{OFFICE[letter]}_GoogleNet1024.npz").train


def vectors(name: str, seed: int, root: Root = None) -> Pair:
    """Return a pair of vectors.

    ``name`` is that of two domains, ``"A-W"`` or ``"MNIST-USPS"``, or ``"DATA, CHANGE"`` with a
    change of :data:`CHANGES`.
    """
    kind, _, change = name.partition(", ")
    rng = np.random.default_rng(seed)
    if change and kind == "digits":
        return _changed_digits(CHANGES[change], rng)
    if change:
        return _changed_benchmark(_benchmark(kind, root), CHANGES[change], rng)
    source, target = kind.split("-")
    if source in OFFICE:
        return office(source, target, root)
    side = _SIDE
    if "digits" in (source, target):
        side = _DIGITS_SIDE
    first = _benchmark(source, root)
    second = _benchmark(target, root)
    assert second.test is not None
    return Pair(
        _flat(_subset(first.train, N_SOURCE, rng), side=side),
        _flat(_subset(second.train, N_TARGET, rng), side=side),
        _flat(_subset(second.test, N_TEST, rng), side=side),
    )


def _changed_digits(change: Callable[[Tensor], Tensor], rng: np.random.Generator) -> Pair:
    """Return two parts of the digits of scikit-learn, of which one is changed.

    The changed part is the target and its test.
    """
    data = load_digits()
    order = rng.permutation(len(data.target))
    images = torch.from_numpy(data.images[order] / 16).float()[:, None]
    records = Records(images, torch.from_numpy(data.target[order]))
    source = records.select(torch.arange(_N_DIGITS))
    target = records.select(torch.arange(_N_DIGITS, len(order)))
    return Pair(_flat(source), _flat(target, change), _flat(target, change))


def _changed_benchmark(
    loaded: Benchmark, change: Callable[[Tensor], Tensor], rng: np.random.Generator
) -> Pair:
    """Return two parts of the training records, and changed test records.

    The second part, the target, is changed, too.
    """
    assert loaded.test is not None
    order = torch.from_numpy(rng.permutation(len(loaded.train)))
    source = loaded.train.select(order[:N_SOURCE])
    target = loaded.train.select(order[N_SOURCE : N_SOURCE + N_TARGET])
    test = _subset(loaded.test, N_TEST, rng)
    return Pair(_flat(source), _flat(target, change), _flat(test, change))


def _subset(records: Records, size: int, rng: np.random.Generator) -> Records:
    """Return ``size`` random records, or all of them if there are fewer."""
    order = rng.permutation(len(records))
    return records.select(torch.from_numpy(order[:size]))


def _flat(
    records: Records, change: Callable[[Tensor], Tensor] = _unchanged, side: int = _SIDE
) -> Records:
    """Return pixel vectors of changed images, of at most ``side`` x ``side`` pixels."""
    images = records.floats()
    scaled = _scaled(images, min(side, images.shape[-1]))
    return Records(change(scaled).flatten(1), records.labels)


def _scaled(images: Tensor, side: int) -> Tensor:
    if images.shape[-1] == side:
        return images
    return F.interpolate(images, size=(side, side), mode="bilinear", antialias=True)
