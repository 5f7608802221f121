"""Base class of generators: classes by number and by name, records in the caller's format."""

import numpy as np
import pandas as pd
import pytest
import torch

from dpswd import InputError
from dpswd._layout import Layout
from dpswd.mixture.generator import MixtureGenerator
from dpswd.networks.generator import draw, draw_in_layout, seeded, with_training_noise


def small_generator():
    return MixtureGenerator((4,), n_classes=3, n_cells=1, n_components=2)


def test_labels_are_equal_or_in_released_proportions():
    generator = small_generator()
    assert generator.labels(7).tolist() == [0, 1, 2, 0, 1, 2, 0]
    with pytest.raises(InputError, match="released"):
        generator.labels(7, "released")
    generator.proportions = [0.7, 0.2, 0.1]
    labels = generator.labels(100, "released")
    assert torch.bincount(labels).tolist() == [70, 20, 10]
    with pytest.raises(InputError, match="n="):
        generator.labels(0)
    with pytest.raises(InputError, match="proportions"):
        generator.labels(3, "some")


def test_labels_without_classes_are_zero():
    generator = MixtureGenerator((4,), n_classes=0, n_cells=1, n_components=2)
    assert generator.labels(3, "released").tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("class_names", "names", "numbers"),
    [
        (None, [2, 0], [2, 0]),
        (["a", "b", "c"], np.array(["c", "a"]), [2, 0]),
        ([7, 8, 9], ["9", "7"], [2, 0]),  # as a command line passes them
        ([7, 8, 9], [9.0, 7.0], [2, 0]),
    ],
)
def test_numbers_of_classes_by_name(class_names, names, numbers):
    generator = small_generator()
    generator.class_names = class_names
    assert generator.numbers(names).tolist() == numbers


def test_numbers_of_an_unknown_class_are_refused():
    with pytest.raises(InputError, match="got d"):
        small_generator().numbers(["d"])


def test_draw_restores_the_mode_of_the_generator():
    generator = small_generator()
    for training in (True, False):
        generator.train(training)
        draw(generator, generator.labels(3))
        assert generator.training is training
        with pytest.raises(InputError, match="spread"):
            draw(generator, generator.labels(3), spread=0.0)
        assert generator.training is training


def test_seeded_draws_are_equal_and_leave_the_global_state():
    generator = small_generator()
    generator.roots.copy_(torch.eye(2).expand(3, 2, 2))
    generator.synthesis.copy_(torch.rand(2, 4))
    state = torch.random.get_rng_state()
    draws = []
    for _ in range(2):
        with seeded(5):
            draws.append(draw(generator, generator.labels(6)))
    assert torch.equal(draws[0], draws[1])
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not torch.equal(draws[0], draw(generator, generator.labels(6)))


def test_draw_in_layout_returns_whole_columns_in_their_types():
    generator = small_generator()
    generator.offset.copy_(torch.tensor([1.6, 0.4, 5.2, 0.25]))
    generator.low.zero_()
    generator.high.copy_(torch.tensor([10.0, 1.0, 10.0, 1.0]))
    generator.kinds = ["integer", "binary", "binary", "numeric"]
    generator.layout = Layout(
        dtypes=("int64", "int64", "int64", "float32"), columns=("age", "no", "yes", "part")
    )
    frame = draw_in_layout(generator, generator.labels(2))
    expected = pd.DataFrame({"age": [2, 2], "no": [0, 0], "yes": [10, 10], "part": [0.25, 0.25]})
    pd.testing.assert_frame_equal(frame, expected.astype({"part": "float32"}))


def test_training_noise_has_its_deviation_at_every_pixel():
    torch.manual_seed(0)
    n = 4000
    pixels = torch.tensor([0, 100, 255], dtype=torch.uint8)
    noisy = with_training_noise(pixels.repeat(n, 1))
    assert noisy.dtype == torch.float32
    sigma = 0.2 * 255
    # five standard errors: sigma / sqrt(n) of a mean, sigma / sqrt(2 n) of a deviation
    assert np.allclose(noisy.mean(0), pixels, atol=5 * sigma / n**0.5)
    assert np.allclose(noisy.std(0), sigma, atol=5 * sigma / (2 * n) ** 0.5)
    in_floats = with_training_noise(torch.full((n,), 0.5))
    assert float(in_floats.std()) == pytest.approx(0.2, abs=5 * 0.2 / (2 * n) ** 0.5)
