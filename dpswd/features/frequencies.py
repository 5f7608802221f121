"""Low frequencies of images as rows: the plain ones, and half whitened ones in opponent colours."""

import math
from typing import cast

import torch
from torch import Tensor, nn

from dpswd.errors import InputError
from dpswd.features.maps import FeatureMap

__all__ = ["DCT", "Frequencies", "dct_matrix", "reference_spectrum"]


def dct_matrix(size: int) -> Tensor:
    """Return the orthonormal DCT-II matrix (size, size) in float64; row i is the i-th frequency."""
    k, n = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    matrix = torch.cos(math.pi * (2 * n + 1).double() * k / (2 * size)) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix


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
