"""Pairs of a labelled source and a target that plays the private one, with test records; all of them are public.

Digits: 10,000 and 7,291 training records of MNIST and USPS, 10,000 and 2,007 of the official test sets. The paper has
other sizes: 60,000 MNIST and 7,438 USPS images, and MNIST's test set as a target. Office-Caltech-10: GoogLeNet features
(1,024) of Amazon (958), Webcam (295) and DSLR (157), tested on the target itself. Vectors: 16 x 16 pixels, 2,000
source, 1,800 target and 2,000 test records; halves of the digits of scikit-learn (8 x 8); or Office-Caltech-10.
Pairs with the digits of scikit-learn have 8 x 8 pixels, and its 1,438 or 359 records.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor
from torchvision.transforms.functional import affine, gaussian_blur

from dpswd.data import Benchmark, benchmark, data_root, read_public
from dpswd.records import Records
from experiments.adaptation.framing import frame

OFFICE = {"A": "amazon", "W": "webcam", "D": "dslr"}
N_SOURCE, N_TARGET, N_TEST = 2000, 1800, 2000
_FIRST = 10_000  # images of MNIST that are used: the first ones
_SIDE = 16

Root = str | Path | None


def _turned(
    degrees: float = 0.0, by: int = 0, scale: float = 1.0, shear: float = 0.0
) -> Callable[[Tensor], Tensor]:
    return lambda images: affine(images, degrees, [by, by], scale, [shear, 0.0])


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {  # of the target
    "same": lambda images: images,
    "rotated": _turned(15.0),
    "rotated more": _turned(30.0),
    "reduced": _turned(scale=0.8),
    "moved": _turned(by=1),
    "sheared": _turned(shear=15.0),
    "grey": lambda images: 0.5 * images + 0.25,
    "dim": lambda images: 0.5 * images,
    "shadow": lambda images: 0.5 * images + torch.linspace(0, 0.5, images.shape[-1]),
    "blurred": lambda images: gaussian_blur(images, [5, 5], [1.5, 1.5]),
    "blurred less": lambda images: gaussian_blur(images, [3, 3], [0.7, 0.7]),
    "inverted": lambda images: 1 - images,
    "noisy": lambda images: (images + 0.2 * torch.randn(images.shape, generator=_seeded(7))).clamp(
        0, 1
    ),
}


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Pair:
    """Labelled source, target, and labelled test records of the target's kind."""

    source: Records
    target: Records
    test: Records


@lru_cache(maxsize=3)
def _benchmark(name: str, root: Root) -> Benchmark:
    return benchmark(name, root)


def digits(source: str, target: str, framing: str, root: Root = None) -> Pair:
    """Return MNIST and USPS as images of 28 x 28, ``"framed"`` by :func:`frame` or ``"resized"``."""
    first, second = _benchmark(source, root), _benchmark(target, root)
    assert second.test is not None

    def framed(records: Records, limit: int | None) -> Records:
        images = records.floats(slice(limit))
        if framing == "framed":
            images = torch.cat([frame(part) for part in images.split(2000)])
        return Records(_scaled(images, 28), records.labels[:limit])

    return Pair(
        framed(first.train, _FIRST), framed(second.train, _FIRST), framed(second.test, None)
    )


def office(source: str, target: str, root: Root = None) -> Pair:
    """Return two domains of Office-Caltech-10, by their first letters."""
    first, second = (
        read_public(data_root(root) / f"office_caltech10/{OFFICE[letter]}_GoogleNet1024.npz").train
        for letter in (source, target)
    )
    return Pair(first, second, second)


def vectors(name: str, seed: int, root: Root = None) -> Pair:
    """Return a pair of vectors: ``"A-W"``, ``"MNIST-USPS"``, or ``"DATA, CHANGE"`` with a change of :data:`CHANGES`."""
    kind, _, change = name.partition(", ")
    rng = np.random.default_rng(seed)
    if not change and kind[1:2] == "-":
        return office(kind[0], kind[2], root)
    if not change:
        names = kind.split("-")
        side = 8 if "digits" in names else _SIDE
        first, second = (_benchmark(each, root) for each in names)
        assert second.test is not None
        parts = ((first.train, N_SOURCE), (second.train, N_TARGET), (second.test, N_TEST))
        chosen = (
            records.select(torch.from_numpy(rng.permutation(len(records))[:size]))
            for records, size in parts
        )
        return Pair(*(_flat(each, side=side) for each in chosen))
    if kind == "digits":
        data = load_digits()
        order = rng.permutation(len(data.target))
        records = Records(
            torch.from_numpy(data.images[order] / 16).float()[:, None],
            torch.from_numpy(data.target[order]),
        )
        target = test = records.select(torch.arange(900, len(order)))
        source = records.select(torch.arange(900))
    else:
        both = _benchmark(kind, root)
        assert both.test is not None
        order = rng.permutation(len(both.train))[: N_SOURCE + N_TARGET]
        source, target = (
            both.train.select(torch.from_numpy(each)) for each in np.split(order, [N_SOURCE])
        )
        test = both.test.select(torch.from_numpy(rng.permutation(len(both.test))[:N_TEST]))
    return Pair(_flat(source), *(_flat(each, CHANGES[change]) for each in (target, test)))


def _flat(
    records: Records, change: Callable[[Tensor], Tensor] = CHANGES["same"], side: int = _SIDE
) -> Records:
    """Return pixel vectors of changed images, of at most ``side`` x ``side`` pixels."""
    images = records.floats()
    return Records(change(_scaled(images, min(side, images.shape[-1]))).flatten(1), records.labels)


def _scaled(images: Tensor, side: int) -> Tensor:
    if images.shape[-1] == side:
        return images
    return F.interpolate(images, size=(side, side), mode="bilinear", antialias=True)
