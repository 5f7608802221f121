"""Statistics of all records that are released once, and a loss on them.

:class:`ReleasedStatistics` is the base of :class:`dpswd.moments.MomentMatcher` and
:class:`dpswd.principal.PrincipalSlices`. It makes their releases within a budget, and writes the
released values to a file with the guarantee.
"""

from abc import ABC, abstractmethod
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import nn

from dpswd import __version__
from dpswd._files import atomic_write
from dpswd._provenance import mark_runs, track_runs
from dpswd._validate import at_least
from dpswd.accounting.guarantee import Guarantee
from dpswd.budget.budget import Budget
from dpswd.budget.statement import RunStatement
from dpswd.errors import InputError
from dpswd.features.maps import FeatureMap
from dpswd.files.archives import read_file
from dpswd.records import PrivateRecords, check_n_classes
from dpswd.release import Releasing

__all__ = ["ReleasedStatistics"]


class ReleasedStatistics(nn.Module, ABC):
    """Released statistics of all records, with their guarantee and their file.

    A subclass makes the releases and has a loss on them, which is post-processing.

    Args:
        n_classes: Number C of classes of the records; 0 for none.

    Attributes:
        guarantee: Statement of the guarantee of the released values.

    Raises:
        InputError: If ``n_classes`` is negative.

    Example:
        >>> from dpswd.features.maps import Flatten
        >>> from dpswd.moments import MomentMatcher
        >>> matcher = MomentMatcher(Flatten((1, 4, 4)), n_classes=2)
        >>> isinstance(matcher, ReleasedStatistics), matcher.is_released
        (True, False)
    """

    # What is released, for messages, and the format of the file.
    contents: ClassVar[str]
    file_format: ClassVar[int]

    def __init__(self, n_classes: int) -> None:
        super().__init__()
        at_least(0, n_classes=n_classes)
        track_runs(self)
        self.n_classes = n_classes
        self.guarantee = Guarantee()

    @property
    @abstractmethod
    def is_released(self) -> bool:
        """Whether there are released values, of an own release or of a file."""

    @abstractmethod
    def queries(self) -> list[Releasing[Any]]:
        """Return the releases in their order; the last one takes the rest of the budget."""

    @abstractmethod
    def make_releases(self, records: PrivateRecords) -> None:
        """Make all releases within the budget that records them."""

    @abstractmethod
    def feature_maps(self) -> list[FeatureMap]:
        """Return the feature maps from records to rows."""

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Return what a file must have in common with this object, as JSON values."""

    def release(
        self,
        records: PrivateRecords,
        *,
        target_epsilon: float,
        target_delta: float,
        run_dir: str | Path,
        **options: Any,
    ) -> RunStatement:
        """Make all releases within a budget of their own; return its statement.

        Args:
            records: The private records.
            target_epsilon: Budget.
            target_delta: Budget; below 1 / N.
            run_dir: Directory of the ledger.
            options: Further arguments of :class:`dpswd.Budget`.

        Raises:
            InputError: If records and feature maps do not fit, or the directory holds a run.
        """
        budget = Budget(
            records,
            self.queries(),
            target_epsilon=target_epsilon,
            target_delta=target_delta,
            run_dir=run_dir,
            **options,
        )
        self.check(records)
        with budget:
            self.make_releases(records)
        statement = budget.statement()
        self.guarantee = statement.guarantee_of_weights()
        mark_runs(self, statement.guarantee.weights_from_runs)
        return statement

    def check(self, records: PrivateRecords) -> None:
        """Refuse records of other classes or of another shape, before the first release."""
        check_n_classes(records, self.n_classes, type(self).__name__)
        for features in self.feature_maps():
            if features.sample_shape != records.shape:
                raise InputError(
                    f"Expected records of {features.sample_shape}, as the feature map, got "
                    f"{records.shape}; make a map of their shape."
                )

    def check_released(self) -> None:
        """Raise an InputError before the release."""
        if not self.is_released:
            raise InputError(
                f"Expected released {self.contents}, got none before the release; "
                "call release or load first."
            )

    def save(self, path: str | Path) -> None:
        """Write released values and guarantee to one file, atomically.

        :meth:`load` reads the file.

        Raises:
            InputError: If nothing was released.
        """
        self.check_released()
        content = {
            "format": self.file_format,
            "version": __version__,
            **self.settings(),
            "state": self.state_dict(),
            "guarantee": self.guarantee.to_dict(),
        }
        atomic_write(path, partial(torch.save, content))

    def load(self, path: str | Path) -> Self:
        """Read a file of :meth:`save` into an object with the same feature maps and sizes.

        No code of the file is run.

        Raises:
            InputError: If the file is missing, damaged, or of other feature maps or sizes.
        """
        with read_file(path, f"file of {self.contents}", self.file_format) as content:
            expected = self.settings()
            in_file = {name: content[name] for name in expected}
            if in_file != expected:
                raise InputError(
                    f"Expected {self.contents} of {_in_words(expected)} at {path}, got those of "
                    f"{_in_words(in_file)}; make an object with the same feature maps and sizes."
                )
            self.load_state_dict(content["state"])
            self.guarantee = Guarantee.from_dict(content["guarantee"])
            mark_runs(self, self.guarantee.weights_from_runs)
        return self


def _in_words(settings: dict[str, Any]) -> str:
    """Return settings for a message."""
    return ", ".join(f"{name} {value}" for name, value in settings.items())
