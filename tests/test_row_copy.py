"""Private records meet a copy of a row function, which keeps nothing,
logs nothing and shows nothing.
"""

import collections
import copy
import threading
import traceback
from functools import partial

import numpy as np
import pytest
import torch
from factories import X, Y, exact
from torch.nn.modules.module import register_module_forward_hook

from dpswd import ClassMeans, InputError


def released(function, rows=X):
    """Counts (3, 1) and sums (3, 3) of mapped rows, almost without noise."""
    return exact(ClassMeans(3, 3, row_norm=100.0), rows, Y, function=function)


class Encoder(torch.nn.Module):
    """Keeps what it reads in attributes and in a buffer, as an encoder with a cache does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("average", torch.zeros(3))
        self.last = torch.zeros(3)
        self.inputs = collections.deque([0])
        self.n_long = 0

    def forward(self, values):
        self.average += values.mean(0)
        self.average = 0.9 * self.average
        self.last = self.last + values.sum(0)
        self.inputs.append(values)
        self.n_long += int((values.norm(dim=1) > 1).sum())
        return values

    def has_kept(self):
        numbers = [self.average, self.last, torch.tensor(self.n_long)]
        return len(self.inputs) > 1 or any(bool(number.any()) for number in numbers)


def test_module_keeps_nothing():
    encoder = Encoder()
    released(encoder)
    assert not encoder.has_kept()
    encoder(X)  # control
    assert encoder.has_kept()


def test_module_keeps_what_it_read_of_public_rows():
    """With their graph, which copy.deepcopy refuses to copy."""
    encoder = Encoder()
    encoder(X.clone().requires_grad_() * 2)
    assert encoder.last.grad_fn is not None
    released(encoder)
    assert len(encoder.inputs) == 2


def apply(encoder, values):
    return encoder(values)


def test_argument_of_a_partial_function_keeps_nothing():
    encoder = Encoder()
    released(partial(apply, encoder))
    assert not encoder.has_kept()


class Cache:
    """Keeps what it reads, and is not a module."""

    def __init__(self):
        self.values = None

    def __call__(self, values):
        self.values = values
        return values

    encode = __call__


def test_object_keeps_nothing():
    cache = Cache()
    released(cache)
    released(cache.encode)
    assert cache.values is None
    cache.encode(X)  # control
    assert cache.values is not None


def test_closure_keeps_nothing():
    encoder = Encoder()
    cache = Cache()
    inputs = []
    n = 0

    def function(values):
        nonlocal n
        n += len(values)
        inputs.append(values)
        return encoder(cache(values))

    released(function)
    assert n == 0
    assert inputs == []
    assert cache.values is None
    assert not encoder.has_kept()
    function(X)  # control
    assert n == len(X)
    assert encoder.has_kept()


TOTAL = torch.zeros(3)
INPUTS = []


def keeps_in_globals(values, last=torch.zeros(3)):  # noqa: B008
    TOTAL.add_(values.sum(0))
    INPUTS.append(values)
    last += values.sum(0)
    keeps_in_globals.last = values
    return values


def globals_have_kept():
    """Whether a variable of this file, a default argument or an attribute has kept values."""
    tensors = [TOTAL, keeps_in_globals.__defaults__[0]]
    has_values = any(bool(tensor.any()) for tensor in tensors)
    return has_values or bool(INPUTS) or "last" in vars(keeps_in_globals)


def test_function_keeps_nothing_in_globals_defaults_and_attributes():
    released(keeps_in_globals)
    assert not globals_have_kept()
    keeps_in_globals(X + 1)  # control
    assert globals_have_kept()


NORM = torch.nn.BatchNorm1d(3)


def in_a_comprehension(values):
    return torch.stack([NORM(value.expand(2, 3))[0] for value in values])


def in_a_generator(values):
    return torch.cat(list(NORM(value.expand(2, 3))[:1] for value in values))


def in_a_lambda(values):
    rows = map(lambda value: NORM(value.expand(2, 3))[:1], values)
    return torch.cat(list(rows))


def in_an_inner_function(values):
    def row(value):
        return NORM(value.expand(2, 3))[:1]

    return torch.cat(list(map(row, values)))


@pytest.mark.parametrize(
    "function",
    [in_a_comprehension, in_a_generator, in_a_lambda, in_an_inner_function],
    ids=lambda function: function.__name__,
)
def test_a_global_module_that_an_inner_code_names_is_copied_and_evaluated(function):
    """In training mode, its running mean would hold the records, without noise."""
    NORM.reset_running_stats()
    released(function)
    assert not NORM.running_mean.any()
    assert NORM.training
    function(X)  # control
    assert NORM.running_mean.any()


def test_a_warning_on_a_private_record_is_not_shown():
    """A warning, which is an error in these tests, would tell of the record."""

    def logarithms(values):
        return torch.from_numpy(np.log(values.abs().numpy()))

    rows = X.clone()
    rows[0] = 0
    with np.errstate(divide="warn"):
        released(logarithms, rows)
        with pytest.warns(RuntimeWarning, match="divide by zero"):  # control
            logarithms(rows)


def test_function_that_cannot_be_copied_is_refused():
    lock = threading.Lock()

    def function(values):
        with lock:
            return values

    with pytest.raises(InputError, match=r"deepcopy.*lock.*modules, tensors"):
        released(function)


def ignore(*_):
    """A forward hook."""


@pytest.mark.parametrize("hook", [ignore, partial(print)], ids=["function", "partial"])
def test_module_with_a_forward_hook_is_refused(hook):
    layer = torch.nn.Linear(3, 3)
    layer.register_forward_hook(hook)
    with pytest.raises(InputError, match="hooks"):
        released(torch.nn.Sequential(layer))


def test_forward_hook_on_all_modules_is_refused():
    released(torch.nn.Identity())  # control
    with (
        register_module_forward_hook(ignore),
        pytest.raises(InputError, match="all modules"),
    ):
        released(torch.nn.Identity())


def test_error_on_a_private_record_shows_no_value():
    rows = X.exp()
    value = float(rows[7, 0])

    def function(values):
        if bool((values == value).any()):
            raise ValueError(f"bad row {values}")
        return values

    with pytest.raises(InputError, match="got ValueError") as error:
        released(function, rows)
    text = "".join(traceback.format_exception(error.value))
    assert "bad row tensor" not in text
    assert f"{value:.4f}" not in text


def itself(net):
    return net


def in_a_function(net):
    return lambda values: net(values)


def its_method(net):
    return net.forward


@pytest.mark.parametrize("wrap", [itself, in_a_function, its_method])
def test_module_in_training_mode_is_evaluated(wrap):
    """BatchNorm with public statistics, and dropout, are then functions of one record."""
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 3))
    with torch.no_grad():
        net(torch.randn(50, 3))  # public
        rows = net.eval()(X).double()
    net.train()
    net[1].eval()  # as a user may have set it
    before = copy.deepcopy(net.state_dict())
    sums = released(wrap(net))[:, 1:]
    expected = torch.stack([rows[Y == c].sum(0) for c in range(3)])
    torch.testing.assert_close(sums / 100, expected / 100)
    assert [module.training for module in (net, *net)] == [True, True, False, True]
    for name, value in net.state_dict().items():
        assert torch.equal(before[name], value)


def test_row_that_is_not_finite_becomes_zero():
    sums = released(lambda values: values.log())[:, 1:]  # nan where a value is negative
    rows = torch.where((X > 0).all(1, keepdim=True), X.log(), 0.0).double()
    torch.testing.assert_close(sums, torch.stack([rows[Y == c].sum(0) for c in range(3)]))
