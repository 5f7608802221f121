"""Generators of Tables 2 and 3 of Rakotomamonjy2021. NOT PRIVATE.

They are trained by SWD or by the published DP-SWD.

A step reads a raw batch of labelled images, and the distance divides rows by the largest norm of
that batch (docs/errata.md, item 4). The labels are not accounted for. The generative code of the
paper is not public; ``grouping`` says how classes enter the distance:

- ``"ten"``: a batch has equal numbers of records of ten classes, and each class is compared with
  its own records.
- ``"one"``: a batch has records of one class.
- ``"label"``: the one-hot class times 10 is appended to the pixels.
"""

from collections.abc import Iterator
from typing import Any, Literal, cast

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._validate import at_least, choice, nonnegative, positive
from dpswd.data import benchmark
from dpswd.errors import InputError
from dpswd.records import Records
from models.published import published_loss

GROUPINGS = ("ten", "one", "label")
N_CLASSES = 10
# Factor of the class that is appended, about the norm of an image.
LABEL = 10.0


class ClassLoader:
    """Endless loader of raw images and their classes. NOT PRIVATE.

    Args:
        records: Labelled images of ten classes.
        batch_size: Images of a batch, a multiple of ten.
        grouping: Which classes a batch has; see the module docstring.
    """

    def __init__(self, records: Records, batch_size: int, grouping: str) -> None:
        choice(GROUPINGS, grouping=grouping)
        at_least(1, batch_size=batch_size)
        if batch_size % N_CLASSES:
            raise InputError(
                f"Expected batch_size as a multiple of {N_CLASSES}, got {batch_size}; round it."
            )
        self.records = records
        self.batch_size = batch_size
        self.grouping = grouping

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for indices in self._indices():
            yield self.records.floats(indices), self.records.labels[indices]

    def _indices(self) -> Iterator[Tensor]:
        """Return the endless iterator over the numbers (B,) of the images of a batch."""
        if self.grouping == "label":
            return _endless(torch.arange(len(self.records)), self.batch_size)
        return self._indices_by_class()

    def _indices_by_class(self) -> Iterator[Tensor]:
        """Yield the numbers (B,) of the images of a batch of ten classes, or of one class."""
        labels = self.records.labels
        size = self.batch_size
        if self.grouping == "ten":
            size = self.batch_size // N_CLASSES
        class_batches = [
            _endless(torch.nonzero(labels == number)[:, 0], size) for number in range(N_CLASSES)
        ]
        while True:
            batches = [next(batch) for batch in class_batches]
            if self.grouping == "ten":
                yield torch.cat(batches)
            else:
                yield from batches


def _endless(indices: Tensor, size: int) -> Iterator[Tensor]:
    """Yield pieces of equal size of ``indices`` in random orders, one after another."""
    order = torch.empty(0, dtype=torch.int64)
    while True:
        while len(order) < size:
            order = torch.cat([order, indices[torch.randperm(len(indices))]])
        yield order[:size]
        order = order[size:]


class LabelledImages(L.LightningDataModule):
    """Raw batches of the training images of MNIST or Fashion-MNIST. NOT PRIVATE.

    Args:
        name: ``"mnist"`` or ``"fashion"``.
        root: Directory of the data sets; ``DPSWD_DATA`` or ``./data`` if not given.
        batch_size: Images of a batch, a multiple of ten.
        grouping: Which classes a batch has; see the module docstring.

    Raises:
        InputError: If an option is out of range, or the images cannot be read.
    """

    def __init__(
        self,
        name: str,
        root: str | None = None,
        batch_size: int = 100,
        grouping: Literal["ten", "one", "label"] = "ten",
    ) -> None:
        super().__init__()
        choice(("mnist", "fashion"), name=name)
        choice(GROUPINGS, grouping=grouping)
        self.name = name
        self.root = root
        self.batch_size = batch_size
        self.grouping = grouping

    def train_dataloader(self) -> ClassLoader:
        """Return the loader."""
        records = benchmark(self.name, self.root).train
        return ClassLoader(records, self.batch_size, self.grouping)


class PublishedGenerator(L.LightningModule):
    """Trains a generator by the distance of its images to raw images. NOT PRIVATE.

    Args:
        generator: Maps codes and classes to images; ``latent(n)`` draws codes.
        sigma: Standard deviation of the noise on the projections; 0 is SWD, Table 4 has those of
            DP-SWD.
        n_projections: Number of directions, which are new at every step.
        grouping: How classes enter the distance; see the module docstring. The data module has the
            same.
        lr: Learning rate of Adam.

    Raises:
        InputError: If an option is out of range.
    """

    def __init__(
        self,
        generator: nn.Module,
        sigma: float = 0.0,
        n_projections: int = 1000,
        grouping: Literal["ten", "one", "label"] = "ten",
        lr: float = 1e-4,
    ) -> None:
        super().__init__()
        nonnegative(sigma=sigma)
        positive(lr=lr)
        at_least(1, n_projections=n_projections)
        choice(GROUPINGS, grouping=grouping)
        # The order of channels halves the time on a CPU.
        self.generator = generator.to(memory_format=torch.channels_last)
        self.sigma = sigma
        self.n_projections = n_projections
        self.grouping = grouping
        self.lr = lr

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the published loss of generated images of the classes of a batch."""
        images, classes = batch
        codes = cast(Any, self.generator).latent(len(classes))
        rows = images.flatten(1)
        generated = self.generator(codes, classes).flatten(1)
        if self.grouping == "label":
            marks = LABEL * F.one_hot(classes, N_CLASSES)
            rows = torch.cat([rows, marks], dim=1)
            generated = torch.cat([generated, marks], dim=1)
        n_groups = 1
        if self.grouping == "ten":  # the rows of a class are next to each other
            n_groups = N_CLASSES
        loss = published_loss(generated, rows, self.sigma, self.n_projections, groups=n_groups)
        self.log("distance", loss, prog_bar=True, batch_size=len(classes))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with a constant learning rate."""
        return torch.optim.Adam(self.generator.parameters(), lr=self.lr)
