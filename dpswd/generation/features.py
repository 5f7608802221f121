"""Public, data-independent maps from records to the space that is sliced.

Everything here is a constant fixed before the private records are seen, and treats rows one by one: a requirement of
the guarantee, since the map is applied to private rows before they are clipped. Rows are scaled so that a record
within ``radius`` of ``center`` (in L2, pixels in [0, 1]) has norm at most 1/2; farther ones are clipped by the loss.
"""

import copy
import math

import torch
from torch import Tensor, nn

from dpswd._validate import at_least, positive, real
from dpswd.errors import InputError
from dpswd.rowwise import digest

__all__ = ["DCT", "FeatureMap", "Flatten", "check_rowwise", "dct_matrix"]


def dct_matrix(size: int) -> Tensor:
    """Returns the orthonormal DCT-II matrix (size, size) in float64; row i is the i-th frequency."""
    k, n = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    matrix = torch.cos(math.pi * (2 * n + 1).double() * k / (2 * size)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix


def check_rowwise(features: "FeatureMap") -> None:
    """Refuses a map that learns, keeps statistics of a batch, or lets rows depend on each other.

    A courtesy: it says before the run what is wrong, on random public input within [0, 1] and beyond. What makes a
    release sound is :func:`dpswd.generation.rows.private_rows`, which keeps rows apart whatever the map is.

    Raises:
        InputError: Naming the layer, or saying that rows mix or that the map changes.
    """
    for name, layer in features.named_modules():
        if isinstance(layer, nn.modules.batchnorm._NormBase):
            raise InputError(
                f"Expected features that treat rows one by one, got {type(layer).__name__} in {name or 'features'}; "
                "use GroupNorm or LayerNorm."
            )
    if any(parameter.requires_grad for parameter in features.parameters()):
        raise InputError("Expected features that are fixed beforehand, got trainable parameters; freeze them.")
    probe = features.probed()
    state, some = digest(probe), torch.rand(3, *features.sample_shape)
    records = torch.cat([some, torch.zeros_like(some[:1]), 300 * some[:1], 4 * some[:1] - 2])
    with torch.no_grad():
        batches = [probe(records[:3]), probe(records)]
        alone = torch.cat([probe(record[None]) for record in records])
    if any(_differ(rows, alone[: len(rows)]) for rows in batches):
        raise InputError("Expected features that treat rows one by one, got rows that depend on the rest of the batch.")
    if digest(probe) != state:
        raise InputError(
            f"Expected features that keep nothing of what they read, got {type(features).__name__}, whose buffers "
            "change; compute every row from its record and from constants."
        )


def _differ(rows: Tensor, others: Tensor) -> bool:
    scale = others.abs().nan_to_num().amax(1, keepdim=True).clamp(min=1)
    near = (rows - others).abs() <= 1e-5 * scale + 1e-3 * others.abs()
    return not bool((near | (rows.isnan() & others.isnan())).all())


class FeatureMap(nn.Module):
    """Maps records (n, *sample_shape) to rows (n, dim), differentiably, row by row.

    Args:
        sample_shape: Shape of one record.
        center: Public constant subtracted from every entry.
        radius: Public L2 distance from the centre that is mapped to norm 1/2.
    """

    def __init__(self, sample_shape: tuple[int, ...], center: float = 0.0, radius: float = 1.0) -> None:
        super().__init__()
        at_least(1, **{f"sample_shape_{i}": side for i, side in enumerate(sample_shape)})
        positive(radius=radius)
        self.sample_shape = tuple(sample_shape)
        self.center, self.radius = real("center", center), radius
        self.pixels = len(self.sample_shape) == 3  # images: entries are in [0, 1]

    @property
    def dim(self) -> int:
        """Dimension of the rows."""
        raise NotImplementedError

    def probed(self) -> "FeatureMap":
        """A copy that can be tried out before there are releases."""
        return copy.deepcopy(self).eval()

    def forward(self, records: Tensor) -> Tensor:
        """Maps (n, *sample_shape) to (n, dim)."""
        if tuple(records.shape[1:]) != self.sample_shape:
            raise InputError(
                f"Expected records of shape {self.sample_shape}, got {tuple(records.shape[1:])}; "
                "set sample_shape of the features and the generator to that of the data."
            )
        return self.rows(records - self.center) / (2 * self.radius)

    def decode(self, rows: Tensor) -> Tensor:
        """Maps rows (n, dim) to the records of least norm that have them: (n, *sample_shape)."""
        return self.records(rows * (2 * self.radius)) + self.center

    def rows(self, centered: Tensor) -> Tensor:
        """Maps centred records to unscaled rows."""
        raise NotImplementedError

    def records(self, rows: Tensor) -> Tensor:
        """Maps unscaled rows to centred records."""
        raise NotImplementedError


class Flatten(FeatureMap):
    """The entries themselves. Default for feature vectors and tiny images."""

    @property
    def dim(self) -> int:
        """Number of entries of a record."""
        return math.prod(self.sample_shape)

    def rows(self, centered: Tensor) -> Tensor:
        """Flattens."""
        return centered.flatten(1)

    def records(self, rows: Tensor) -> Tensor:
        """Gives the rows their shape back."""
        return rows.unflatten(1, self.sample_shape)


class DCT(FeatureMap):
    """The lowest ``size`` x ``size`` frequencies of every channel of an image.

    Args:
        sample_shape: (channels, height, width).
        size: Frequencies kept per axis.
        center: Public constant subtracted from every pixel.
        radius: Public L2 distance from the centre, in weighted frequencies, that is mapped to norm 1/2.
        emphasis: Frequency (i, j) is multiplied by ``(1 + sqrt(i^2 + j^2)) ** emphasis``. Natural images fade with
            frequency; a little emphasis lets the slices see the fine strokes that tell classes apart.
    """

    basis_h: Tensor
    basis_w: Tensor
    weight: Tensor

    def __init__(
        self,
        sample_shape: tuple[int, int, int],
        size: int = 12,
        center: float = 0.0,
        radius: float = 1.0,
        emphasis: float = 0.0,
    ) -> None:
        super().__init__(sample_shape, center, radius)
        _, height, width = sample_shape
        if not 1 <= size <= min(height, width):
            raise InputError(f"Expected 1 <= size <= {min(height, width)} (the image's side), got size={size}.")
        self.size, self.emphasis = size, emphasis
        index = torch.arange(size, dtype=torch.float64)
        frequency = (index[:, None].square() + index.square()).sqrt()
        self.register_buffer("basis_h", dct_matrix(height)[:size].float(), persistent=False)
        self.register_buffer("basis_w", dct_matrix(width)[:size].float(), persistent=False)
        self.register_buffer("weight", ((1 + frequency) ** emphasis).float(), persistent=False)

    @property
    def dim(self) -> int:
        """Channels times size squared."""
        return self.sample_shape[0] * self.size**2

    def rows(self, centered: Tensor) -> Tensor:
        """Projects on the low frequencies and weighs them."""
        return (self.basis_h @ centered @ self.basis_w.T * self.weight).flatten(1)

    def records(self, rows: Tensor) -> Tensor:
        """Builds images from the low frequencies."""
        frequencies = rows.unflatten(1, (self.sample_shape[0], self.size, self.size)) / self.weight
        return self.basis_h.T @ frequencies @ self.basis_w
