"""Low frequencies of images as rows.

Rows are the plain frequencies, or half whitened ones in opponent colours.
"""

import math
from typing import cast

import torch
from torch import Tensor, nn

from dpswd._validate import at_least
from dpswd.errors import InputError
from dpswd.features.maps import FeatureMap, image_sides

__all__ = ["DCT", "Frequencies", "dct_matrix", "reference_spectrum"]

# Standard deviation of a pixel in [0, 1] under the reference spectrum.
PIXEL_DEVIATION = 0.25
# Amplitudes of luma, red-blue and green-magenta in photographs, over that of luma.
OPPONENT_AMPLITUDES = (1.0, 0.25, 0.125)
# Luma, red-blue and green-magenta as combinations of red, green and blue.
OPPONENT_COLOURS = ((1.0, 1.0, 1.0), (1.0, 0.0, -1.0), (1.0, -2.0, 1.0))


def dct_matrix(size: int) -> Tensor:
    """Return the orthonormal DCT-II matrix (size, size) in float64.

    Row i is the i-th frequency.
    """
    positions = torch.arange(size)
    frequency, position = torch.meshgrid(positions, positions, indexing="ij")
    angle = math.pi * (2 * position + 1).double() * frequency / (2 * size)
    matrix = torch.cos(angle) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix


class DCT(FeatureMap):
    """The lowest ``size`` x ``size`` frequencies of every channel of an image.

    Args:
        sample_shape: (channels, height, width).
        size: Number of frequencies along each axis, at most the side in pixels: of an image of
            28 x 28 pixels, ``size=12`` keeps 12 x 12 numbers, which have details of about 2.5
            pixels and more.
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
        channels, height, width = image_sides(sample_shape)
        side = min(height, width)
        at_least(1, size=size)
        if size > side:
            raise InputError(f"Expected 1 <= size <= {side} (side of the image), got size={size}.")
        self.size = size
        self.dim = channels * size**2
        self.basis_h = nn.Buffer(dct_matrix(height)[:size].float(), persistent=False)
        self.basis_w = nn.Buffer(dct_matrix(width)[:size].float(), persistent=False)

    def transform(self, centred: Tensor) -> Tensor:
        """Return the low frequencies."""
        frequencies = self.basis_h @ centred @ self.basis_w.T
        return frequencies.flatten(1)

    def inverse(self, rows: Tensor) -> Tensor:
        """Reconstruct images from the low frequencies."""
        channels = self.sample_shape[0]
        frequencies = rows.unflatten(1, (channels, self.size, self.size))
        return cast(Tensor, self.basis_h.T @ frequencies @ self.basis_w)


def reference_spectrum(sample_shape: tuple[int, ...]) -> Tensor:
    """Public standard deviations of the frequencies of a photograph.

    Their shape is (channels, height, width). Amplitudes fall as 1 / f. Of the opponent colours,
    red-blue has a quarter and green-magenta an eighth of the amplitude of luma. The standard
    deviation of a pixel is 1/4.
    """
    channels, height, width = sample_shape
    vertical = torch.arange(height).double()[:, None]
    horizontal = torch.arange(width).double()
    amplitudes = 1 / (1 + vertical.square() + horizontal.square()).sqrt()
    relative = torch.ones(channels, dtype=torch.float64)
    if channels == 3:
        relative = torch.tensor(OPPONENT_AMPLITUDES, dtype=torch.float64)
    spectrum = relative[:, None, None] * amplitudes
    norm = PIXEL_DEVIATION * math.sqrt(channels * height * width)
    return cast(Tensor, (spectrum * (norm / spectrum.norm())).float())


class Frequencies(FeatureMap):
    """The lowest frequencies of an image in opponent colours, half whitened.

    Frequency f is divided by the square root of its public standard deviation
    (:func:`reference_spectrum`), and all by a constant, so that the root mean square of the norm
    under the reference spectrum is 1/2.

    Args:
        sample_shape: (channels, height, width).
        size: Number of frequencies along each axis, at most the side in pixels, of luma, or of
            every channel where the channels are not three: of a grey image of 28 x 28 pixels,
            ``size=12`` keeps 12 x 12 numbers, which have details of about 2.5 pixels and more.
        chroma_size: Frequencies per axis of the two other opponent colours; ``None`` for ``size``.
        centre: Public constant subtracted from every pixel.

    Attributes:
        index: Positions (dim,) of the frequencies of the rows among all of the flattened image.
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
        channels, height, width = image_sides(sample_shape)
        self.size = size
        self.chroma_size = chroma_size or size
        side = min(height, width)
        for name, value in (("size", self.size), ("chroma_size", self.chroma_size)):
            at_least(1, **{name: value})
            if value > side:
                raise InputError(f"Expected 1 <= {name} <= {side} (the image's side), got {value}.")
        # The sizes alone decide on the index. It is made on the CPU where a caller asks for the
        # shapes of all tensors by torch.device("meta"), which cannot count frequencies.
        with torch.device("cpu"):
            index = _low_frequencies(sample_shape, self.size, self.chroma_size)
        self.dim = len(index)
        deviations = reference_spectrum(sample_shape).flatten()[index]
        weight = deviations.rsqrt()
        weight = weight / (weight * deviations).norm()
        self.basis_h = nn.Buffer(dct_matrix(height).float(), persistent=False)
        self.basis_w = nn.Buffer(dct_matrix(width).float(), persistent=False)
        self.colours = nn.Buffer(_colours(channels), persistent=False)
        self.index = nn.Buffer(index, persistent=False)
        self.weight = nn.Buffer(weight, persistent=False)
        self.reference = (deviations * weight / 2).double().square()

    @property
    def remedy_of_long_rows(self) -> str:
        """What to do if rows are much longer than 1/2, for a warning."""
        return "divide the pixels by a public constant, such that they lie in [0, 1]"

    def transform(self, centred: Tensor) -> Tensor:
        """Return the weighted low frequencies."""
        mixed = torch.einsum("kc,nchw->nkhw", self.colours, centred)
        frequencies = (self.basis_h @ mixed @ self.basis_w.T).flatten(1)
        return frequencies[:, self.index] * self.weight

    def inverse(self, rows: Tensor) -> Tensor:
        """Reconstruct images from the weighted low frequencies."""
        n_frequencies = math.prod(self.sample_shape)
        frequencies = rows.new_zeros(len(rows), n_frequencies)
        frequencies[:, self.index] = rows / self.weight
        return self.from_frequencies(frequencies.unflatten(1, self.sample_shape))

    def from_frequencies(self, frequencies: Tensor) -> Tensor:
        """Map all frequencies in opponent colours (n, channels, h, w) to centred images."""
        mixed = self.basis_h.T @ frequencies @ self.basis_w
        return torch.einsum("kc,nkhw->nchw", self.colours, mixed)


def _low_frequencies(sample_shape: tuple[int, ...], size: int, chroma_size: int) -> Tensor:
    """Return the positions (dim,) of the low frequencies of a flattened image."""
    channels, height, width = sample_shape
    vertical = torch.arange(height)[:, None]
    horizontal = torch.arange(width)
    sizes = [size] * channels
    if channels == 3:
        sizes = [size, chroma_size, chroma_size]
    low = [(vertical < size) & (horizontal < size) for size in sizes]
    return torch.stack(low).flatten().nonzero()[:, 0]


def _colours(channels: int) -> Tensor:
    """Return the orthonormal matrix from channels to opponent colours.

    Its shape is (channels, channels).
    """
    if channels != 3:
        return torch.eye(channels)
    opponent = torch.tensor(OPPONENT_COLOURS)
    norms: Tensor = opponent.norm(dim=1, keepdim=True)
    return opponent / norms
