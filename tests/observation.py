"""Everything that leaves a run, for two neighbouring inputs:
the harness of the tests of non-interference.

A run is observed with every released value replaced by one that does not depend on the records, and
with every random draw repeatable. Whatever then differs between the runs of two neighbouring inputs
has left through another way than a release: it is a leak, or a limitation that the documentation
declares.

The exact values, before the noise, are kept aside. Both runs have the same history of released
values, so the sum over the releases of (distance of the exact values / sigma)^2 may not exceed the
square of the mu that the run states. This checks the sensitivities, and the conversion of the
records before them.

Example:
    >>> from dpswd import PrivateRecords
    >>> one = observe(lambda: print(PrivateRecords([[1.0]])))
    >>> other = observe(lambda: print("[[1.0]]"))
    >>> differences(one, other)
    ["stdout: 'PrivateRecords(1 records of shape (1,))\\\\n' or '[[1.0]]\\\\n'"]
"""

import contextlib
import functools
import io
import itertools
import json
import math
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

import dpswd._random
import dpswd.budget.earlier_runs
from dpswd._random import SecureRandom, SeededRandom, on_grid
from dpswd.errors import DpswdError

PLACE = (
    Path(tempfile.gettempdir()) / f"observed-{os.getpid()}"
)  # one path for all runs: paths are shown
SOURCE = "input"  # the folder of the input in PLACE; it is not among the files that leave
LEAST_TELLING = 5  # characters of an entry from which on it tells of a record: not 1 or 0.25
refusals: list[
    bool
] = []  # of the pairs of the test that runs: whether one of the two runs was refused
least_compared: dict[str, int] = {}  # of each test of pairs: its least number of compared pairs
SHOWN = 300  # characters of a difference that are shown


@dataclass
class Observation:
    """What leaves one run.

    Attributes:
        status: Exit status of a command, or ``"returned"``, or ``"refused"`` for an exception of
            the library.
        message: The sentence of a refusal.
        streams: Text of stdout and stderr.
        files: Content of every file that was written, by its relative path.
        result: What the run returned.
        exact: Exact values and sigma of every release, in order. PRIVATE: not compared byte by
            byte.
    """

    status: int | str = "returned"
    message: str = ""
    streams: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    result: Any = None
    exact: list[tuple[Tensor, float]] = field(default_factory=list)

    @property
    def refused(self) -> bool:
        """Whether the run was refused by the library with one sentence."""
        return self.status in ("refused", 2)


def observe(run: Callable[[], Any], prepare: Callable[[Path], None] | None = None) -> Observation:
    """Observe one run in an empty working directory.

    Args:
        run: The run; an exit status as its result is one of a command.
        prepare: Writes the input into the folder that it is given, which is ``input`` of the
            working directory.

    Returns:
        What left the run.

    Raises:
        Exception: If the run raises anything but an exception of the library: that is a mistake of
            its own.
    """
    shutil.rmtree(PLACE, ignore_errors=True)
    (PLACE / SOURCE).mkdir(parents=True)
    if prepare is not None:
        prepare(PLACE / SOURCE)
    before = contents(PLACE)
    observation = Observation()
    stdout = io.StringIO()
    stderr = io.StringIO()
    with (
        contextlib.chdir(PLACE),
        contextlib.redirect_stdout(stdout),
        contextlib.redirect_stderr(stderr),
        _warnings_on(stderr),
        _repeatable(),
        _without_private_values(observation.exact),
    ):
        try:
            observation.result = run()
        except DpswdError as error:
            observation.status = "refused"
            observation.message = str(error)
    if isinstance(observation.result, int):
        observation.status = observation.result
    observation.streams = {"stdout": stdout.getvalue(), "stderr": stderr.getvalue()}
    after = contents(PLACE)
    observation.files = {name: after[name] for name in after if after[name] != before.get(name)}
    shutil.rmtree(PLACE, ignore_errors=True)
    return observation


def contents(directory: Path) -> dict[str, bytes]:
    """Return the content of every file below a directory, by its relative path."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}


def differences(one: Observation, other: Observation) -> list[str]:
    """Describe every difference between what left two runs; an empty list is non-interference."""
    lines = []
    if one.status != other.status:
        lines.append(f"status: {one.status!r} or {other.status!r}")
    for name in one.streams:
        if one.streams[name] != other.streams[name]:
            lines.append(_difference(name, one.streams[name], other.streams[name]))
    for name in sorted(one.files.keys() | other.files.keys()):
        contents_of_one = one.files.get(name)
        contents_of_other = other.files.get(name)
        if contents_of_one != contents_of_other:
            lines.append(_difference(name, contents_of_one, contents_of_other))
    if not same(one.result, other.result):
        lines.append(_difference("result", one.result, other.result))
    return lines


def distance(one: Observation, other: Observation) -> float:
    """Return the distance mu of the releases of two runs:
    the root of the sum of (difference / sigma)^2.
    """
    if len(one.exact) != len(other.exact):
        return math.inf
    total = 0.0
    for (values, sigma), (other_values, other_sigma) in zip(one.exact, other.exact, strict=True):
        if values.shape != other_values.shape or sigma != other_sigma:
            return math.inf
        total += float((values - other_values).square().sum()) / sigma**2
    return math.sqrt(total)


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal in type and value: a label 3 is not a label "3"."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Tensor):
        return one.dtype == other.dtype and torch.equal(one.nan_to_num(), other.nan_to_num())
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and same(one.tolist(), other.tolist())
    if hasattr(one, "equals"):  # of pandas
        return repr(getattr(one, "dtypes", "")) == repr(
            getattr(other, "dtypes", "")
        ) and one.equals(other)
    return repr(one) == repr(other)


def _difference(name: str, one: Any, other: Any) -> str:
    """Describe the first place at which two contents differ."""
    if isinstance(one, bytes | str) and isinstance(other, type(one)):
        length = min(len(one), len(other))
        first = next((i for i in range(length) if one[i] != other[i]), length)
        start = max(0, first - SHOWN // 4)
        end = start + SHOWN
        return f"{name}: {one[start:end]!r} or {other[start:end]!r}"
    return f"{name}: {one!r:.{SHOWN}} or {other!r:.{SHOWN}}"


@contextlib.contextmanager
def _warnings_on(stream: io.StringIO) -> Iterator[None]:
    """Write warnings to a stream, each of them once per run, as the command line does."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        stream.write(f"Warning: {message}\n")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with mock.patch("warnings.showwarning", show):
            yield


@contextlib.contextmanager
def _repeatable() -> Iterator[None]:
    """Let every draw of the secret generator, and the name of a run, be those of a fixed seed."""
    calls = itertools.count()

    def words(self: SecureRandom, count: int) -> Any:
        # a draw depends on its place among the draws, and not on how many numbers others drew
        return SeededRandom(next(calls)).words(count)

    with contextlib.ExitStack() as patches:
        # the seams of the harness: one method draws all secret numbers, one function names runs
        patches.enter_context(mock.patch.object(SecureRandom, "words", words))
        patches.enter_context(mock.patch("secrets.token_hex", lambda n_bytes: "0" * 2 * n_bytes))
        # a process remembers the records that it has released from; each observed run is the first
        # of its process
        runs_of_process = dpswd.budget.earlier_runs._runs_of_process
        patches.enter_context(mock.patch.dict(runs_of_process, clear=True))
        patches.enter_context(torch.random.fork_rng(devices=[]))
        torch.default_generator.manual_seed(0)  # torch.manual_seed takes ten times as long
        yield


@contextlib.contextmanager
def _without_private_values(exact_values: list[tuple[Tensor, float]]) -> Iterator[None]:
    """Replace every released value by noise alone, and keep the exact values and sigma aside."""

    def noise_alone(exact: Tensor, noise: Tensor, sigma: float) -> Tensor:
        exact_values.append((exact.detach().clone().cpu(), sigma))
        return on_grid(noise.mul_(sigma), sigma)

    # the seam of the harness: every release calls this one function to add its noise
    original = dpswd._random.noisy
    with contextlib.ExitStack() as patches:
        modules = [module for name, module in sys.modules.items() if name.startswith("dpswd")]
        for module in modules:
            if getattr(module, "noisy", None) is original:
                patches.enter_context(mock.patch.object(module, "noisy", noise_alone))
        yield


def pairs(count: int, compared: int) -> Callable[[Any], Any]:
    """Return a decorator for a test of ``count`` pairs, the same ones at every run.

    Args:
        count: Number of pairs that hypothesis draws.
        compared: Least number of pairs of which neither run is refused, so that most pairs compare
            what leaves a run and not its refusals. ``test_at_least_2000_pairs_are_compared`` adds
            these numbers up.
    """
    limits = settings(
        max_examples=count,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )

    def decorate(test: Any) -> Any:
        least_compared[test.__name__] = compared
        limited = limits(test)

        @functools.wraps(limited)
        def counted(*arguments: Any, **named: Any) -> None:
            refusals.clear()
            limited(*arguments, **named)
            assert refusals.count(False) >= compared

        return pytest.mark.repetitions(counted)

    return decorate


def stated_mu(observation: Observation) -> float:
    """Return the mu that the runs of an observation state together, in their ``privacy.json``."""
    total_sq = 0.0
    for name, content in observation.files.items():
        if name.endswith("privacy.json"):
            total_sq += json.loads(content)["mu"] ** 2
    return math.sqrt(total_sq)


def check_neighbours(
    one: Observation, other: Observation, private: Sequence[Sequence[Any]] = ()
) -> None:
    """Check that nothing but released values tells two neighbours apart.

    A refusal may depend on a record, which the documentation declares. It must say so without the
    values of the record, and before anything is released.

    Args:
        one: What left the run of the first neighbour.
        other: What left the run of the second.
        private: The entries of the records that differ.
    """
    for observation in (one, other):
        if observation.refused:
            check_refusal(observation, private)
    refusals.append(one.refused or other.refused)
    if refusals[-1]:
        return
    assert differences(one, other) == []
    assert distance(one, other) <= stated_mu(one) * (1 + 1e-9)


def check_refusal(observation: Observation, private: Sequence[Sequence[Any]] = ()) -> None:
    """Check that a refusal spent nothing and shows no entry of a private record."""
    assert observation.exact == [], "a release was made before the refusal"
    text = " ".join([observation.message, *observation.streams.values()])
    for record in private:
        for entry in record:
            if len(str(entry)) >= LEAST_TELLING:
                assert str(entry) not in text


def check_public_facts(
    one: Observation, other: Observation, private: Sequence[Sequence[Any]] = ()
) -> None:
    """Check two neighbours of which some facts were taken from the records.

    The facts are named on the screen. Where they are equal, everything is.
    """
    if _facts_on_the_screen(one) == _facts_on_the_screen(other):
        check_neighbours(one, other, private)


def _facts_on_the_screen(observation: Observation) -> list[str]:
    """Return the lines that name facts taken from the records."""
    lines = observation.streams["stderr"].splitlines()
    return [line for line in lines if "treated as public" in line]
