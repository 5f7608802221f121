"""Pictures of generated records."""

import numpy as np
import torch
from PIL import Image

from dpswd.files.pictures import save_columns, save_grid


def test_save_grid_enlarges_small_images(tmp_path):
    images = torch.rand(6, 3, 10, 20)
    save_grid(images, tmp_path / "grid.png", 3)
    with Image.open(tmp_path / "grid.png") as image:
        pixels = np.asarray(image)
    # Two rows of three images with a border of one pixel, all enlarged three times.
    assert pixels.shape == (3 * (2 * 11 + 1), 3 * (3 * 21 + 1), 3)
    corner = pixels[3 * 12 + 1, 3 * 22 + 1] / 255.0
    assert np.abs(corner - images[4, :, 0, 0].numpy()).max() < 0.01
    is_image = np.zeros(pixels.shape[:2], dtype=bool)
    for number in range(6):
        top = 3 + 33 * (number // 3)
        left = 3 + 63 * (number % 3)
        is_image[top : top + 30, left : left + 60] = True
    assert (pixels[~is_image] == 128).all()  # grey lines between and around the images


def test_save_grid_of_fewer_images_than_columns_and_of_an_incomplete_row(tmp_path):
    images = torch.rand(5, 1, 56, 56)
    save_grid(images[:2], tmp_path / "row.png", 10)
    save_grid(images, tmp_path / "rows.png", 3)
    with Image.open(tmp_path / "row.png") as image:
        assert image.size == (2 * 57 + 1, 57 + 1)
    with Image.open(tmp_path / "rows.png") as image:
        pixels = np.asarray(image)
    assert pixels.shape == (2 * 57 + 1, 3 * 57 + 1, 3)
    assert (pixels[58:, 2 * 57 + 1 :] == 128).all()  # the missing image
    assert (pixels[..., 0] == pixels[..., 2]).all()  # grey images have three equal channels


def test_names_and_titles_surround_the_grid(tmp_path):
    images = torch.rand(4, 1, 56, 56)
    save_grid(images, tmp_path / "grid.png", 2)
    names = ["cats", "a name of a class that has no end"]
    save_grid(images, tmp_path / "named.png", 2, row_names=names, titles={1: "synthetic"})
    with Image.open(tmp_path / "grid.png") as image:
        grid = np.asarray(image)
    with Image.open(tmp_path / "named.png") as image:
        named = np.asarray(image)
    height, width = grid.shape[:2]
    top = named.shape[0] - height
    left = next(x for x in range(named.shape[1]) if np.array_equal(named[top:, x], grid[:, 0]))
    assert np.array_equal(named[top:, left : left + width], grid)
    assert 0 < top < 40 < left < 250  # the long name is cut
    # dark letters beside both rows, and above the second column alone
    assert (named[top : top + 58, :left] < 100).any()
    assert (named[top + 58 :, :left] < 100).any()
    assert (named[:top, left + 57 :] < 100).any()
    assert (named[:top, : left + 57] > 200).all()


def test_columns_have_one_colour_per_side_and_a_log_axis_where_one_bin_is_full(tmp_path):
    rng = np.random.default_rng(0)
    flat = rng.random((500, 1))
    full = np.where(rng.random((500, 1)) < 0.95, 0.0, 1000 * flat)

    def reddish(path):
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB")).astype(int)
        return (pixels[..., 0] - pixels[..., 2] > 60).sum()

    save_columns(tmp_path / "both.png", {"real": flat, "synthetic": flat}, ["age"])
    save_columns(tmp_path / "one.png", {"synthetic": flat}, ["age"])
    save_columns(tmp_path / "real.png", {"real": flat}, ["age"])
    assert reddish(tmp_path / "real.png") == 0 < reddish(tmp_path / "both.png")
    assert reddish(tmp_path / "one.png") > 1000
    # on a linear axis, the full bin alone is visible: about 0.05 of the area of all bins
    save_columns(tmp_path / "full.png", {"synthetic": full}, ["gain"])
    assert reddish(tmp_path / "full.png") > 0.08 * reddish(tmp_path / "one.png")


def test_columns_of_one_large_value_have_a_picture(tmp_path):
    save_columns(tmp_path / "columns.png", {"synthetic": np.full((5, 1), 2.0**53)}, ["a"])
    assert (tmp_path / "columns.png").stat().st_size > 1000
