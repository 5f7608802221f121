"""Pictures of generated records."""

import numpy as np
import torch
from PIL import Image

from dpswd.files.pictures import save_grid


def test_save_grid_enlarges_small_images(tmp_path):
    images = torch.rand(6, 3, 10, 20)
    save_grid(images, tmp_path / "grid.png", 3)
    with Image.open(tmp_path / "grid.png") as image:
        pixels = np.asarray(image)
    # Two rows of three images with a border of one pixel, all enlarged three times.
    assert pixels.shape == (3 * (2 * 11 + 1), 3 * (3 * 21 + 1), 3)
    corner = pixels[3 * 12 + 1, 3 * 22 + 1] / 255.0
    assert np.abs(corner - images[4, :, 0, 0].numpy()).max() < 0.01
