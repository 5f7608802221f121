"""Low frequencies of images: the DCT is orthonormal and that of scipy, and sizes are checked."""

import pytest
import torch
from scipy.fft import dctn

from dpswd import InputError
from dpswd.features.frequencies import DCT, Frequencies, dct_matrix, reference_spectrum


@pytest.mark.parametrize("size", [1, 2, 8, 28])
def test_dct_matrix_is_orthonormal(size):
    matrix = dct_matrix(size)
    identity = torch.eye(size, dtype=torch.float64)
    torch.testing.assert_close(matrix @ matrix.T, identity, rtol=0, atol=1e-13)


def test_dct_is_that_of_scipy():
    images = torch.rand(2, 1, 9, 13, generator=torch.Generator().manual_seed(0))
    rows = DCT((1, 9, 13), size=5)(images).reshape(2, 5, 5)
    frequencies = dctn(images[:, 0].double().numpy(), axes=(1, 2), norm="ortho")
    expected = torch.from_numpy(frequencies[:, :5, :5]) / 2  # a radius of 1 is mapped to 1/2
    torch.testing.assert_close(rows.double(), expected, rtol=0, atol=1e-5)


def test_frequencies_decode_to_the_image_if_all_are_rows():
    features = Frequencies((3, 6, 6), size=6)
    images = torch.rand(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(features.decode(features(images)), images, rtol=0, atol=1e-5)


def test_reference_spectrum_has_pixels_of_standard_deviation_one_quarter():
    spectrum = reference_spectrum((3, 8, 8))
    assert float(spectrum.square().mean().sqrt()) == pytest.approx(0.25)
    torch.testing.assert_close(spectrum[1], spectrum[0] / 4)
    torch.testing.assert_close(spectrum[2], spectrum[0] / 8)


@pytest.mark.parametrize("size", [0, 9])
def test_sizes_beyond_the_side_are_refused(size):
    with pytest.raises(InputError, match=rf"size.*, got size={size}"):
        DCT((1, 8, 8), size=size)


@pytest.mark.parametrize("make", [DCT, Frequencies])
def test_shapes_without_channels_are_refused(make):
    with pytest.raises(InputError, match=r"\(channels, height, width\).*got \(16, 16\)"):
        make((16, 16), size=4)


def test_frequencies_refuse_chroma_beyond_the_side():
    with pytest.raises(InputError, match="Expected 1 <= chroma_size <= 8"):
        Frequencies((3, 8, 8), size=4, chroma_size=9)
