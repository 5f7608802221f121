"""Public maps from records to rows, of which sums or projections are released.

The guarantee requires that a map is fixed before the private records are read and computes each row from one record.
Rows are scaled so that a record at L2 distance at most ``radius`` from ``centre`` (pixels in [0, 1]) has norm at most
1/2; losses and queries clip longer rows.
"""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from dpswd._validate import at_least, positive, real
from dpswd.errors import InputError

__all__ = [
    "DCT",
    "Columns",
    "FeatureMap",
    "Flatten",
    "Frequencies",
    "dct_matrix",
    "histogram",
    "reference_spectrum",
]


def dct_matrix(size: int) -> Tensor:
    """Return the orthonormal DCT-II matrix (size, size) in float64; row i is the i-th frequency."""
    k, n = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    matrix = torch.cos(math.pi * (2 * n + 1).double() * k / (2 * size)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix


class FeatureMap(nn.Module):
    """Differentiable map from records ``(n, *sample_shape)`` to rows (n, dim), row by row.

    Args:
        sample_shape: Shape of one record.
        centre: Public constant subtracted from every entry.
        radius: Public L2 distance from the centre that is mapped to norm 1/2.

    Attributes:
        dim: Dimension of the rows, which a subclass sets.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> class Mean(FeatureMap):
        ...     dim = 1
        ...     def rows(self, centred):
        ...         return centred.flatten(1).mean(1, keepdim=True)
        >>> Mean((1, 2, 2))(torch.ones(3, 1, 2, 2)).flatten()
        tensor([0.5000, 0.5000, 0.5000])
    """

    dim: int

    def __init__(
        self, sample_shape: tuple[int, ...], centre: float = 0.0, radius: float = 1.0
    ) -> None:
        super().__init__()
        at_least(1, **{f"sample_shape_{i}": side for i, side in enumerate(sample_shape)})
        positive(radius=radius)
        self.sample_shape = tuple(sample_shape)
        self.centre, self.radius = real("centre", centre), radius

    def forward(self, records: Tensor) -> Tensor:
        """Map ``(n, *sample_shape)`` to (n, dim)."""
        if tuple(records.shape[1:]) != self.sample_shape:
            got = tuple(records.shape[1:])
            raise InputError(
                f"Expected records of shape {self.sample_shape}, got {got}; set sample_shape to theirs."
            )
        return self.rows(records - self.centre) / (2 * self.radius)

    def decode(self, rows: Tensor) -> Tensor:
        """Map rows (n, dim) to their preimages of least norm ``(n, *sample_shape)``."""
        return self.records(rows * (2 * self.radius)) + self.centre

    def rows(self, centred: Tensor) -> Tensor:
        """Map centred records to unscaled rows."""
        raise NotImplementedError

    def records(self, rows: Tensor) -> Tensor:
        """Map unscaled rows to centred records."""
        raise NotImplementedError


class Flatten(FeatureMap):
    """The entries of the record; for feature vectors and small images.

    Example:
        >>> features = Flatten((3,), radius=2.0)
        >>> features(torch.tensor([[2.0, 0.0, 0.0]]))
        tensor([[0.5000, 0.0000, 0.0000]])
    """

    def __init__(
        self, sample_shape: tuple[int, ...], centre: float = 0.0, radius: float = 1.0
    ) -> None:
        super().__init__(sample_shape, centre, radius)
        self.dim = math.prod(sample_shape)

    def rows(self, centred: Tensor) -> Tensor:
        """Flatten."""
        return centred.flatten(1)

    def records(self, rows: Tensor) -> Tensor:
        """Restore the shape of the records."""
        return cast(Tensor, rows.unflatten(1, self.sample_shape))


class Columns(Flatten):
    """The columns of a vector, scaled by public bounds (low, high) to [0, 1] and clipped; no row is longer than 1."""

    def __init__(self, bounds: Sequence[tuple[float, float]]) -> None:
        super().__init__((len(bounds),), centre=0.5, radius=math.sqrt(len(bounds)) / 4)
        low, high = torch.tensor(bounds, dtype=torch.float64).unbind(1)
        self.low = nn.Buffer(low, persistent=False)
        self.width = nn.Buffer(high - low, persistent=False)

    def forward(self, records: Tensor) -> Tensor:
        """Map (n, d) to (n, d)."""
        return super().forward(((records - self.low) / self.width).clamp(0, 1))

    def decode(self, rows: Tensor) -> Tensor:
        """Map rows (n, d) to records (n, d)."""
        return super().decode(rows) * self.width + self.low


class DCT(FeatureMap):
    """The lowest ``size`` x ``size`` frequencies of every channel of an image.

    Args:
        sample_shape: (channels, height, width).
        size: Frequencies kept per axis.
        centre: Public constant subtracted from every pixel.
        radius: Public L2 distance from the centre that is mapped to norm 1/2.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> features = DCT((1, 28, 28), size=12)
        >>> features.dim, features.decode(features(torch.rand(2, 1, 28, 28))).shape
        (144, torch.Size([2, 1, 28, 28]))
    """

    def __init__(
        self,
        sample_shape: tuple[int, ...],
        size: int = 12,
        centre: float = 0.0,
        radius: float = 1.0,
    ) -> None:
        super().__init__(sample_shape, centre, radius)
        _, height, width = sample_shape
        if not 1 <= size <= min(height, width):
            raise InputError(
                f"Expected 1 <= size <= {min(height, width)} (side of the image), got size={size}."
            )
        self.size, self.dim = size, sample_shape[0] * size**2
        self.basis_h = nn.Buffer(dct_matrix(height)[:size].float(), persistent=False)
        self.basis_w = nn.Buffer(dct_matrix(width)[:size].float(), persistent=False)

    def rows(self, centred: Tensor) -> Tensor:
        """Return the low frequencies."""
        return (self.basis_h @ centred @ self.basis_w.T).flatten(1)

    def records(self, rows: Tensor) -> Tensor:
        """Reconstruct images from the low frequencies."""
        frequencies = rows.unflatten(1, (self.sample_shape[0], self.size, self.size))
        return cast(Tensor, self.basis_h.T @ frequencies @ self.basis_w)


def reference_spectrum(sample_shape: tuple[int, ...]) -> Tensor:
    """Public standard deviations (channels, height, width) of the frequencies of a photograph.

    Amplitudes fall as 1 / f. Of the opponent colours, red-blue has a quarter and green-magenta an eighth of the
    amplitude of luma. The standard deviation of a pixel is 1/4.
    """
    channels, height, width = sample_shape
    i, j = torch.arange(height).double()[:, None], torch.arange(width).double()
    amplitude = 1 / (1 + i.square() + j.square()).sqrt()
    relative = torch.tensor(
        [1.0, 0.25, 0.125] if channels == 3 else [1.0] * channels, dtype=torch.float64
    )
    spectrum = relative[:, None, None] * amplitude
    return cast(
        Tensor, (spectrum * (0.25 * math.sqrt(channels * height * width) / spectrum.norm())).float()
    )


class Frequencies(FeatureMap):
    """The lowest frequencies of an image in opponent colours, half whitened by the reference spectrum.

    Frequency f is divided by the square root of its public standard deviation (:func:`reference_spectrum`), and all by
    a constant, so that the root mean square of the norm under the reference spectrum is 1/2.

    Args:
        sample_shape: (channels, height, width).
        size: Frequencies per axis of luma, or of every channel where the channels are not three.
        chroma_size: Frequencies per axis of the two other opponent colours.
        centre: Public constant subtracted from every pixel.

    Attributes:
        reference: Variances (dim,) of the rows under the reference spectrum; they sum to 1/4.

    Raises:
        InputError: If a value is out of range.

    Example:
        >>> features = Frequencies((3, 32, 32), size=8, chroma_size=4)
        >>> features.dim, round(float(features.reference.sum()), 4)
        (96, 0.25)
    """

    def __init__(
        self,
        sample_shape: tuple[int, ...],
        size: int,
        chroma_size: int | None = None,
        centre: float = 0.5,
    ) -> None:
        super().__init__(sample_shape, centre, radius=1.0)
        channels, height, width = sample_shape
        self.size, self.chroma_size = size, chroma_size or size
        for name, value in (("size", self.size), ("chroma_size", self.chroma_size)):
            if not 1 <= value <= min(height, width):
                raise InputError(
                    f"Expected 1 <= {name} <= {min(height, width)} (the image's side), got {value}."
                )
        i, j = torch.arange(height)[:, None], torch.arange(width)
        sizes = [self.size] + [self.chroma_size if channels == 3 else self.size] * (channels - 1)
        kept = torch.stack([(i < each) & (j < each) for each in sizes]).flatten().nonzero()[:, 0]
        reference = reference_spectrum(sample_shape).flatten()[kept]
        weight, self.dim = reference.rsqrt(), len(kept)
        opponent = torch.tensor([[1.0, 1.0, 1.0], [1.0, 0.0, -1.0], [1.0, -2.0, 1.0]])
        colours = (
            opponent / opponent.norm(dim=1, keepdim=True) if channels == 3 else torch.eye(channels)
        )
        self.basis_h = nn.Buffer(dct_matrix(height).float(), persistent=False)
        self.basis_w = nn.Buffer(dct_matrix(width).float(), persistent=False)
        self.colours = nn.Buffer(colours, persistent=False)
        self.kept = nn.Buffer(kept, persistent=False)
        self.weight = nn.Buffer(weight / (weight * reference).norm(), persistent=False)
        self.reference = (reference * self.weight / 2).double().square()

    def rows(self, centred: Tensor) -> Tensor:
        """Return the weighted frequencies that are kept."""
        mixed = torch.einsum("kc,nchw->nkhw", self.colours, centred)
        return (self.basis_h @ mixed @ self.basis_w.T).flatten(1)[:, self.kept] * self.weight

    def records(self, rows: Tensor) -> Tensor:
        """Reconstruct images from the frequencies that are kept."""
        frequencies = rows.new_zeros(len(rows), math.prod(self.sample_shape))
        frequencies[:, self.kept] = rows / self.weight
        return self.from_frequencies(frequencies.unflatten(1, self.sample_shape))

    def from_frequencies(self, frequencies: Tensor) -> Tensor:
        """Map all frequencies in opponent colours (n, channels, height, width) to centred images."""
        return torch.einsum(
            "kc,nkhw->nchw", self.colours, self.basis_h.T @ frequencies @ self.basis_w
        )


def histogram(images: Tensor, n_levels: int) -> Tensor:
    """Return half of the shares of pixels at equidistant levels from 0 to 1: rows (n, n_levels) of norm at most 1/2."""
    levels = (images.flatten(1).nan_to_num() * (n_levels - 1)).round().clamp(0, n_levels - 1).long()
    shares = torch.full(levels.shape, 0.5 / levels.shape[1], device=levels.device)
    return shares.new_zeros(len(levels), n_levels).scatter_add_(1, levels, shares)
