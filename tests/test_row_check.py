"""The check of a row function on public random records."""

import importlib
import sys
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from factories import X, Y, exact
from sklearn.preprocessing import FunctionTransformer

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


def filled_by_the_mean(values, marker):
    """Missing entries become the mean of the batch."""
    means = values.mean(0, keepdim=True).expand_as(values)
    return torch.where(values == marker, means, values).flatten(1)


def filled_by_a_constant(values, marker):
    return torch.where(values == marker, 0.5, values).flatten(1)


@pytest.mark.parametrize(
    ("shape", "marker"), [((3,), 0.0), ((3,), -1.0), ((40,), -999.0), ((1, 8, 8), 0.0)], ids=str
)
def test_missing_entries_that_become_the_mean_are_refused(shape, marker):
    with pytest.raises(InputError, match="one record each"):
        check_row_function(partial(filled_by_the_mean, marker=marker), shape)
    check_row_function(partial(filled_by_a_constant, marker=marker), shape)  # control


@pytest.mark.parametrize("shape", VECTORS, ids=str)
def test_function_of_all_positive_vectors_is_refused(shape):
    """Where a vector has negative numbers, all its rows are nan, and count as zero."""
    with pytest.raises(InputError, match="one record each"):
        check_row_function(lambda values: values.log() - values.log().mean(0), shape)


@pytest.mark.parametrize("shape", [*VECTORS, *IMAGES], ids=str)
def test_functions_without_a_value_at_zero_are_accepted(shape):
    """They give -inf and nan, of this record alone, and such a row counts as zero."""
    check_row_function(lambda values: values.abs().log().flatten(1), shape)
    check_row_function(lambda values: (values * values.abs().log()).flatten(1), shape)


@pytest.mark.parametrize("shape", VECTORS, ids=str)
def test_rows_of_norm_one_are_accepted(shape):
    check_row_function(lambda values: values / values.norm(dim=1, keepdim=True), shape)


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


def far_records_in_group(group):
    """Returns a function that puts records far from zero into a group, others into group 0."""

    def function(values, labels):
        return values, group * (values[:, 0].abs() > 50).long()

    return LabelledRows(function)


@pytest.mark.parametrize("group", [-1, 3])
def test_groups_that_do_not_exist_are_refused_on_public_records(group):
    with pytest.raises(InputError, match="groups from 0 to 2, got groups outside"):
        released(far_records_in_group(group))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        pytest.param(lambda values, labels: values, "pair", id="no groups"),
        pytest.param(lambda values, labels: (values, labels.float()), "float32", id="floats"),
        pytest.param(lambda values, labels: (values, labels.tolist()), "list", id="list"),
        pytest.param(lambda values, labels: (values, labels[:1]), "shape", id="one group"),
        pytest.param(lambda values, labels: (values, labels[:, None]), "shape", id="a column"),
    ],
)
def test_groups_of_another_form_are_refused_on_public_records(function, message):
    with pytest.raises(InputError, match=message):
        released(LabelledRows(function))


@pytest.mark.parametrize("convert", [torch.Tensor.bool, torch.Tensor.int, torch.Tensor.byte])
def test_groups_may_be_truth_values_or_integers_of_any_type(convert):
    released(LabelledRows(lambda values, labels: (values, convert(values[:, 0] > 0))))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        pytest.param(3, "function of records", id="no function"),
        pytest.param(lambda values: None, "return a tensor", id="no tensor"),
        pytest.param(lambda values: values[:1], "flatten", id="one row"),
        pytest.param(lambda values: values * 1j, "complex", id="complex rows"),
    ],
)
def test_rows_of_another_form_are_refused_on_public_records(function, message):
    with pytest.raises(InputError, match=message):
        released(function)


def test_rows_that_fail_on_the_shape_of_records_are_refused():
    with pytest.raises(InputError, match=r"rows= to map records \(n, 3\).*from Linear .*shapes"):
        released(torch.nn.Linear(4, 2))


@pytest.mark.parametrize("group", [-1, 3])
def test_a_private_record_in_a_group_that_does_not_exist_refuses_nothing(group):
    """A refusal would tell of this record; its row goes to the nearest group."""

    def function(values, labels):
        is_other = values[:, 0] == 0.123456  # as no random record
        return values, torch.where(is_other, group, 1)

    rows = torch.zeros(6, 3)
    rows[0] = 0.123456
    query = ClassMeans(3, 3, row_norm=100.0)
    values = exact(query, rows, torch.zeros(6).long(), function=LabelledRows(function))
    nearest = min(max(group, 0), 2)
    counts = values[:, 0] / query.row_norm
    assert round(float(counts[nearest])) == 1
    assert round(float(counts[1])) == 5


def test_function_with_random_rows_is_refused():
    with pytest.raises(InputError, match="function of the record"):
        released(lambda values: values + torch.randn_like(values))


class KeepsInItsClass(torch.nn.Module):
    """Its copy shares the class, which keeps what it reads."""

    inputs: ClassVar[list[torch.Tensor]] = []

    def forward(self, values):
        self.inputs.append(values)
        return values


class OverwritesInItsClass(torch.nn.Module):
    """As a running maximum for a look at the values does."""

    statistics: ClassVar[dict[str, float]] = {"largest": 0.0}

    def forward(self, values):
        self.statistics["largest"] = float(values.max())
        return values


LIST = []
TENSOR = torch.zeros(())
ARRAY = np.zeros(2)


class Settings:
    """An object of the user's own."""

    largest = 0.0


SETTINGS = Settings()


@pytest.fixture
def empty_variables():
    """Variables without a trace of another test."""
    LIST.clear()
    TENSOR.fill_(-1.0)
    ARRAY.fill(-1.0)
    Settings.largest = -1.0
    SETTINGS.largest = -1.0
    OverwritesInItsClass.statistics["largest"] = -1.0


class KeepsInAGlobalList(torch.nn.Module):
    """Its copy shares the variables of its file, as those below do."""

    def forward(self, values):
        LIST.append(values)
        return values


class OverwritesATensor(torch.nn.Module):
    def forward(self, values):
        TENSOR.copy_(values.max())
        return values


class OverwritesATensorThatTwoMethodsName(torch.nn.Module):
    def forward(self, values):
        TENSOR.copy_(values.max())
        return values

    def largest(self):
        return TENSOR


class OverwritesAnArray(torch.nn.Module):
    def forward(self, values):
        ARRAY[0] = values.max()
        return values


class OverwritesAnAttribute(torch.nn.Module):
    def forward(self, values):
        SETTINGS.largest = float(values.max())
        return values


class OverwritesADefault(torch.nn.Module):
    def forward(self, values, seen={"largest": 0.0}):  # noqa: B006
        seen["largest"] = float(values.max())
        return values


def keep(values):
    TENSOR.copy_(values.max())


class CallsAFunction(torch.nn.Module):
    def forward(self, values):
        keep(values)
        return values


def overwrites_a_class(values):
    """A class is not copied, unlike the other variables of a function."""
    Settings.largest = float(values.max())
    return values


class KeepsInAnInnerFunction(torch.nn.Module):
    def forward(self, values):
        def keeping(row):
            LIST.append(row)
            return row

        return torch.stack([keeping(row) for row in values])


class HasSlots:
    __slots__ = ()
    kept = LIST

    def __call__(self, values):
        self.kept.append(values)
        return values


class Callable:
    """A function that is no module."""

    def __call__(self, values):
        LIST.append(values)
        return values


@pytest.mark.usefixtures("empty_variables")
@pytest.mark.parametrize(
    "function",
    [
        KeepsInItsClass(),
        OverwritesInItsClass(),
        KeepsInAGlobalList(),
        OverwritesATensor(),
        OverwritesATensorThatTwoMethodsName(),
        OverwritesAnArray(),
        OverwritesAnAttribute(),
        OverwritesADefault(),
        CallsAFunction(),
        KeepsInAnInnerFunction(),
        HasSlots(),
        Callable(),
        overwrites_a_class,
        partial(overwrites_a_class),
        KeepsInItsClass().forward,
    ],
    ids=lambda function: getattr(function, "__name__", type(function).__name__),
)
def test_function_that_keeps_what_it_reads_is_refused(function):
    with pytest.raises(InputError, match="keeps nothing"):
        released(function)


KEEPS_IN_A_TABLE = """
import torch

TABLE = {"largest": 0.0}

class Kept(torch.nn.Module):
    seen = []

    def forward(self, values):
        {statement}
        return values
"""


@pytest.mark.parametrize("folder", ["site-packages", "mine"])
@pytest.mark.parametrize(
    "statement", ["TABLE['largest'] = float(values.max())", "self.seen.append(values)"]
)
def test_classes_of_installed_packages_are_examined(tmp_path, monkeypatch, folder, statement):
    (tmp_path / folder).mkdir()
    source = KEEPS_IN_A_TABLE.replace("{statement}", statement)
    (tmp_path / folder / "kept.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path / folder)
    monkeypatch.delitem(sys.modules, "kept", raising=False)
    layer = importlib.import_module("kept").Kept()
    with pytest.raises(InputError, match="keeps nothing"):
        released(layer)
    monkeypatch.delitem(sys.modules, "kept")


def test_variables_of_a_file_that_is_named_with_a_dot_are_examined(tmp_path, monkeypatch):
    (tmp_path / "notes.py").write_text("SEEN = []\n")
    monkeypatch.syspath_prepend(tmp_path)
    notes = importlib.import_module("notes")
    monkeypatch.setitem(globals(), "notes", notes)

    class Keeps(torch.nn.Module):
        def forward(self, values):
            notes.SEEN.append(values)
            return values

    for function in (Keeps(), Keeps().forward):
        with pytest.raises(InputError, match=r"keeps nothing.*notes\.SEEN"):
            released(function)
    monkeypatch.delitem(sys.modules, "notes")


def test_a_module_within_an_object_of_a_library_is_examined():
    transformer = FunctionTransformer(KeepsInItsClass(), validate=False)
    with pytest.raises(InputError, match="keeps nothing"):
        released(lambda values: transformer.func(values))


class IsInitialisedByItsFirstBatch(torch.nn.Module):
    """As the layer ActNorm of normalising flows."""

    def __init__(self):
        super().__init__()
        self.centre = torch.nn.Parameter(torch.zeros(3))
        self.register_buffer("is_initialised", torch.tensor(False))

    def forward(self, values):
        if not self.is_initialised:
            self.centre.data.copy_(values.mean(0))
            self.is_initialised.fill_(True)
        return values - self.centre


def test_a_layer_that_is_initialised_by_its_first_batch_is_refused():
    layer = IsInitialisedByItsFirstBatch()
    with pytest.raises(InputError, match="one record each"):
        released(layer)
    assert torch.equal(layer.centre, torch.zeros(3))


class KeepsInItself(torch.nn.Module):
    """What it keeps goes with its copy."""

    def __init__(self):
        super().__init__()
        self.largest = {"pixel": 0.0}
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.register_buffer("running", torch.zeros(()))

    def forward(self, values):
        self.largest["pixel"] = float(values.max())
        self.running.copy_(values.max())
        self.weight.copy_(values.max())
        return values


def overwrites_a_dictionary(values, seen={"largest": 0.0}):  # noqa: B006
    """Defaults and variables of a function are copied with it."""
    seen["largest"] = float(values.max())
    ARRAY[0] = values.max()
    return values


@pytest.mark.usefixtures("empty_variables")
@pytest.mark.parametrize("function", [KeepsInItself(), overwrites_a_dictionary])
def test_control_a_function_whose_copy_alone_keeps_something_is_accepted(function):
    released(function)
    assert ARRAY[0] == -1


def test_check_does_not_touch_the_generator_of_torch():
    state = torch.get_rng_state()
    check_row_function(torch.nn.Identity(), (3,))
    assert torch.equal(torch.get_rng_state(), state)
