"""The check of a row function on public random records."""

from functools import partial
from typing import ClassVar

import pytest
import torch
from factories import X, Y, exact

from dpswd import ClassMeans, InputError, LabelledRows
from dpswd.row_check import check_row_function

IMAGES = [(1, 8, 8), (1, 28, 28), (3, 64, 64)]
VECTORS = [(1,), (3,), (4,), (5,)]


def standardised(values):
    return (values - values.mean(0)) / values.std(0)


def scaled_by_the_longest(values):
    return values / values.norm(dim=1).max()


def attention(values):
    return torch.softmax(values @ values.T, 1) @ values


@pytest.mark.parametrize(
    "function",
    [
        standardised,
        scaled_by_the_longest,
        attention,
        torch.nn.BatchNorm1d(3, track_running_stats=False),
    ],
    ids=["standardised", "longest row", "attention", "BatchNorm"],
)
def test_function_of_all_vectors_is_refused(function):
    with pytest.raises(InputError, match="one record each"):
        check_row_function(function, (3,))


def scaled_above(values, threshold):
    """What a reader of bytes or floats does, by the largest entry of all records."""
    if values.max() > threshold:
        return values / 255
    return values


@pytest.mark.parametrize("shape", VECTORS, ids=str)
@pytest.mark.parametrize("threshold", [1, 30])
def test_threshold_on_all_vectors_is_refused(shape, threshold):
    with pytest.raises(InputError, match="one record each"):
        check_row_function(partial(scaled_above, threshold=threshold), shape)


def scaled_by_the_largest_pixel(images):
    return (images / images.max()).flatten(1)


def scaled_by_the_range(images):
    return ((images - images.min()) / (images.max() - images.min())).flatten(1)


def scaled_by_the_largest_of_a_channel(images):
    return (images / images.amax((0, 2, 3), keepdim=True)).flatten(1)


def moved_by_the_smallest_pixel(images):
    return (images - images.min()).flatten(1)


@pytest.mark.parametrize("shape", IMAGES, ids=str)
@pytest.mark.parametrize(
    "function",
    [
        scaled_by_the_largest_pixel,
        scaled_by_the_range,
        scaled_by_the_largest_of_a_channel,
        moved_by_the_smallest_pixel,
    ],
)
def test_function_of_all_images_is_refused(shape, function):
    with pytest.raises(InputError, match="one record each"):
        check_row_function(function, shape)


def scaled_to_its_largest_pixel(images):
    return (images / images.amax((1, 2, 3), keepdim=True).clamp(min=1e-3)).flatten(1)


@pytest.mark.parametrize("shape", IMAGES, ids=str)
def test_function_of_one_image_is_accepted(shape):
    check_row_function(scaled_to_its_largest_pixel, shape)


def released(function):
    """Counts and sums of rows, almost without noise."""
    return exact(ClassMeans(3, 3, row_norm=100.0), X, Y, function=function)


def centred_by_class(values, labels):
    """Takes off the mean of the class of each record."""
    means = [values[labels == c].mean(0) for c in labels.tolist()]
    return values - torch.stack(means), labels


def centred(values, labels):
    return values - values.mean(0), labels


@pytest.mark.parametrize("function", [centred, centred_by_class])
def test_labelled_function_of_other_records_is_refused(function):
    with pytest.raises(InputError, match="one record each"):
        released(LabelledRows(function))


def test_function_with_random_rows_is_refused():
    with pytest.raises(InputError, match="function of the record"):
        released(lambda values: values + torch.randn_like(values))


class KeepsInItsClass(torch.nn.Module):
    """Its copy shares the class, which keeps what it reads."""

    inputs: ClassVar[list[torch.Tensor]] = []

    def forward(self, values):
        self.inputs.append(values)
        return values


OF_THIS_FILE = []


class KeepsInAGlobalVariable(torch.nn.Module):
    """Its copy shares the variables of its file."""

    def forward(self, values):
        OF_THIS_FILE.append(values)
        return values


@pytest.mark.parametrize("kind", [KeepsInItsClass, KeepsInAGlobalVariable])
def test_module_that_keeps_what_it_reads_is_refused(kind):
    with pytest.raises(InputError, match="keeps nothing"):
        released(kind())


def test_check_does_not_touch_the_generator_of_torch():
    state = torch.get_rng_state()
    check_row_function(torch.nn.Identity(), (3,))
    assert torch.equal(torch.get_rng_state(), state)
