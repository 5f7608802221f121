"""Pictures of generated records."""

import itertools

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from dpswd.columns import Table
from dpswd.files.pictures import draw_columns, save_columns, save_grid


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


def texts_of(figure):
    """Return the texts around the histograms with their boxes, and the box of the picture."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = []
    for axes in figure.axes:
        if not axes.axison:
            continue
        low, high = axes.get_xlim()
        texts += [axes.title, axes.xaxis.get_offset_text()]
        for place, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True):
            if low <= place <= high:  # others are not drawn
                texts.append(label)
    boxes = [(text.get_text(), text.get_window_extent(canvas.renderer)) for text in texts]
    return [(text, box) for text, box in boxes if text], figure.bbox


@pytest.mark.parametrize("n_columns", [1, 2, 3, 12])
@pytest.mark.parametrize(
    ("low", "high"),
    [(0, 1), (0, 200_000), (999_990, 1_000_010), (-1e-3, 1e-3), (1e6, 9e9), (-123456.7, 99999.9)],
)
def test_texts_of_columns_lie_apart_and_in_the_picture(low, high, n_columns):
    values = np.random.default_rng(0).uniform(low, high, size=(200, n_columns))
    names = [f"diastolic_pressure_of_the_blood_{number}" for number in range(n_columns)]
    values[:190, -1] = low  # a logarithmic axis
    texts, page = texts_of(draw_columns({"real": values, "synthetic": values}, names))
    for text, box in texts:
        assert page.x0 <= box.x0 < box.x1 <= page.x1, text
        assert page.y0 <= box.y0 < box.y1 <= page.y1, text
    for (text, box), (other, other_box) in itertools.combinations(texts, 2):
        assert not box.overlaps(other_box), (text, other)
    titles = [text for text, _ in texts if text.startswith("dia")]
    assert len(set(titles)) == n_columns  # what differs at the end is left


def test_missing_cells_have_a_bar_of_their_own():
    table = Table.of({"crp": {"kind": "numeric", "low": 0, "high": 500, "missing": True}})
    cells = ["", "", "", *map(str, range(17))]  # values that lie in the lowest bin of 30
    numbers = table.included[0].numbers(cells, "people")
    axes = draw_columns({"synthetic": numbers[:, None]}, ["crp"], table).axes[0]
    assert axes.get_xticklabels()[0].get_text() == "missing"
    outline = axes.patches[0].get_xy()
    edges = np.unique(outline[:, 0])
    width = edges[1] - edges[0]
    near = np.abs(outline[:, 0] - axes.get_xticks()[0]) < width  # the edges of the bar at the mark
    assert outline[near, 1].max() * width == pytest.approx(3 / 20)


def test_dates_and_categories_of_columns_lie_apart():
    facts = {}
    for number in range(6):
        facts[f"day {number}"] = {"kind": "date", "low": "2021-01-01", "high": "2021-12-31"}
    facts["smoker"] = {"kind": "binary", "categories": ["never in her life", "every day"]}
    table = Table.of(facts)
    random = np.random.default_rng(0)
    bounds = np.array(table.bounds)
    values = random.uniform(bounds[:, 0], bounds[:, 1], size=(50, len(bounds))).round()
    texts, page = texts_of(draw_columns({"synthetic": values}, list(facts), table))
    for text, box in texts:
        assert page.x0 <= box.x0 < box.x1 <= page.x1, text
    for (text, box), (other, other_box) in itertools.combinations(texts, 2):
        assert not box.overlaps(other_box), (text, other)


def test_dollar_signs_in_names_of_columns_and_categories_are_no_formulas(tmp_path):
    # A control: matplotlib reads the same text as a formula, which it cannot parse.
    canvas = FigureCanvasAgg(Figure())
    canvas.figure.subplots().set_title("price_$_per_$")
    with pytest.raises(ValueError, match="_per_"):
        canvas.draw()
    table = Table.of({"price_$_per_$": {"kind": "nominal", "categories": ["$_$", "$^$"]}})
    rows = np.array([[0.0], [1.0], [2.0]])
    picture = draw_columns({"synthetic": rows}, table.names, table)
    axes = picture.axes[0]
    assert axes.get_title() == "price_$_per_$"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["$_$", "$^$", "other"]
    save_columns(tmp_path / "columns.png", {"synthetic": rows}, table.names, table)


def test_all_of_a_few_categories_are_named_and_the_legend_covers_no_histogram():
    wards = [f"ward {number}" for number in range(9)]
    table = Table.of({"ward": {"kind": "nominal", "categories": wards}})
    numbers = np.arange(10)[:, None]
    figure = draw_columns({"real": numbers, "synthetic": numbers}, ["ward"], table)
    FigureCanvasAgg(figure).draw()
    (axes,) = [axes for axes in figure.axes if axes.axison]
    assert [label.get_text() for label in axes.get_xticklabels()] == [*wards, "other"]
    (legend,) = figure.legends
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())
