"""What every fuzz test shares: how many cases, what counts as a refusal, values that nobody meant to pass.

``pytest tests/fuzz`` makes a few cases, ``pytest tests/fuzz --hypothesis-profile=thorough`` many; both say how many.
"""

import collections
import contextlib
import functools
import math
import re
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import torch
from hypothesis import given, settings

from dpswd.errors import DpswdError
from dpswd.commands.main import main

COUNTS: collections.Counter = collections.Counter()  # cases by test, of this process
REFUSED = object()


def fuzz(number, **strategies):
    """Runs a test on so many drawn cases, and on more in a thorough run; every case is counted."""

    def decorate(test):
        @functools.wraps(test)
        def counting(*arguments, **named):
            COUNTS[test.__name__] += 1
            return test(*arguments, **named)

        scale = settings().max_examples / 100  # of the profile
        return settings(max_examples=max(1, int(number * scale)))(given(**strategies)(counting))

    return decorate


def outcome(call, *arguments, **named):
    """Returns what a call gives, or REFUSED where it raised a DpswdError of one clear sentence; all else fails."""
    try:
        return call(*arguments, **named)
    except DpswdError as error:
        sentence(str(error))
        return REFUSED


def sentence(text):
    """Checks a message: wanted and got, one line, an end."""
    assert re.match(r"(dpswd|experiments): Expected |Expected ", text), text
    assert "\n" not in text.strip(), text
    assert text.rstrip().endswith((".", ")")), text
    assert "Traceback" not in text
    assert len(text) < 2000, text


def command(capfd, arguments, allowed=(0, 2)):
    """Runs ``dpswd`` in this process; returns its status, after checking stderr and stdout."""
    capfd.readouterr()
    status = None
    try:
        status = main([str(word) for word in arguments])
    except SystemExit as error:  # --help and --version of argparse
        status = error.code
    out, err = capfd.readouterr()
    assert status in allowed, (status, err)
    if status == 2:
        lines = err.strip().splitlines()
        assert len(lines) == 1, err
        sentence(lines[0])
        assert not out.strip()
    assert "Traceback" not in out + err
    return status


def snapshot(directory):
    """Every file below a directory with its content."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(Path(directory).rglob("*"))
    }


@contextlib.contextmanager
def untouched(directory):
    """Checks that nothing below a directory is changed, made or removed."""
    before = snapshot(directory)
    yield
    assert snapshot(directory) == before


# values

ODD_NUMBERS = [
    0, -1, 1, 2, 3, True, False, None, 0.0, -0.0, 0.5, 1e-5, -1e-5, 1e-300, 5e-324, 1e300, 1.7976931348623157e308,
    math.nan, math.inf, -math.inf, 2**31, 2**53, 2**53 + 1, 2**63, 10**30, 10**400, -(10**400), 1j, "1", "", "nan",
    b"1", [], [1], (1,), {}, object(), np.float32(0.5), np.float64(0.5), np.float16(0.5), np.int8(3), np.int64(3),
    np.uint64(2**63), np.bool_(True), np.float64("nan"), np.array(1.0), np.array([1.0]), np.array([]), np.array([1, 2]),
    torch.tensor(1.0), torch.tensor(1.0, requires_grad=True), torch.ones(2), "rows", "pld", Path("x"),
]  # fmt: skip
odd = st.sampled_from(ODD_NUMBERS)
floats = st.floats(allow_nan=True, allow_infinity=True)
plain_floats = st.floats(1e-3, 1e3)


def near(values, *, odds=0.25):
    """Draws from a strategy, and now and then something odd."""
    return st.integers(0, 99).flatmap(lambda n: odd if n < 100 * odds else values)


DTYPES = [
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8, torch.bool,
    torch.complex64,
]  # fmt: skip


@st.composite
def tensors(draw, shapes=((5, 3), (8, 3), (0, 3), (5, 0), (1, 3), (5,), (), (2, 5, 3), (5, 4)), likely=None):
    """Tensors of many types, shapes, layouts and contents; ``likely`` is the shape that fits, half of the time."""
    shape = likely if likely is not None and draw(st.booleans()) else draw(st.sampled_from(shapes))
    dtype = draw(st.sampled_from([torch.float32, torch.float64, *DTYPES]))
    rows = torch.from_numpy(np.random.default_rng(draw(st.integers(0, 99))).standard_normal(shape))
    content = draw(st.sampled_from(["normal", "normal", "normal", "zero", "tiny", "huge", "nan", "inf", "one nan"]))
    scale = {"zero": 0.0, "tiny": 1e-300, "huge": 1e300, "nan": math.nan, "inf": math.inf}
    rows = rows * scale.get(content, 1.0)
    if content == "one nan" and rows.numel():
        rows.view(-1)[-1] = math.nan
    if not dtype.is_floating_point and not dtype.is_complex:
        rows = torch.nan_to_num(rows, posinf=3, neginf=-3).clamp(-100, 100)
    made = rows.to(dtype)
    layout = draw(st.sampled_from(["contiguous", "strided", "transposed", "expanded"]))
    if layout == "strided" and made.ndim:
        made = made.repeat_interleave(2, dim=0)[::2]
    elif layout == "transposed" and made.ndim == 2:
        made = made.T.contiguous().T
    elif layout == "expanded" and made.ndim == 2 and len(made):
        made = made[:1].expand(len(made), -1)
    if made.dtype.is_floating_point and draw(st.booleans()):
        made = made.detach().requires_grad_(True)
    return made


odd_tensors = st.one_of(tensors(), odd)


# files


@st.composite
def damage(draw, content):
    """A file with a byte flipped, cut, doubled, lines swapped, or replaced altogether."""
    kind = draw(st.sampled_from(["flip", "flip", "flip", "cut", "cut", "swap", "insert", "zero", "empty", "garbage"]))
    at = draw(st.integers(0, max(0, len(content) - 1)))
    if kind == "flip":
        byte = content[at] ^ draw(st.integers(1, 255))
        return content[:at] + bytes([byte]) + content[at + 1 :]
    if kind == "cut":
        return content[:at]
    if kind == "swap":
        lines = content.split(b"\n")
        i, j = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines) - 1))
        lines[i], lines[j] = lines[j], lines[i]
        return b"\n".join(lines)
    if kind == "insert":
        return content[:at] + draw(st.binary(min_size=1, max_size=8)) + content[at:]
    if kind == "zero":
        return content[:at] + bytes(min(64, len(content) - at)) + content[at + 64 :]
    return b"" if kind == "empty" else draw(st.binary(max_size=200))
