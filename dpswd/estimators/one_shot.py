"""What the estimators share: one fit within one budget, and its report."""

import datetime
import json
import math
import secrets
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from dpswd import mixture
from dpswd._distributed import Processes
from dpswd._files import atomic_write
from dpswd._progress import say
from dpswd._validate import at_least, probability
from dpswd._validate import budget as check_budget
from dpswd.accounting.calibrate import planning_mu
from dpswd.accounting.guarantee import Guarantee
from dpswd.budget.budget import Budget
from dpswd.columns import Table
from dpswd.errors import InputError
from dpswd.estimators._callers import check_callers
from dpswd.records import PrivateRecords
from dpswd.units import PersonNames

__all__ = ["OneShot"]

# Public facts of the records that the config of a run states.
_PUBLIC_FACTS = ("name", "shape", "n_classes", "classes", "taken", "bounds", "kinds")

_REPORT_ENDINGS = (".html", ".md", ".json")

# Types of constants that describe an object.
_PLAIN = (bool, int, float, str, dict)

# Bits of a seed that is drawn where none is stated.
_SEED_BITS = 63


class OneShot(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of the estimators: one fit, whose run directory has ledger and report.

    A subclass has the arguments ``epsilon``, ``delta``, ``run_dir``, ``shared_ledger``,
    ``random_state``, ``resume`` and ``verbose``.
    """

    # Name of an attribute that only a fitted or loaded estimator has.
    _fitted_name = "generator_"

    @property
    def unit(self) -> Any:
        """The person of each record: a name of a column, or names that no text shows."""
        return self._unit

    @unit.setter
    def unit(self, unit: Any) -> None:
        self._unit = PersonNames.of(unit)

    def report(self, path: str | Path) -> None:
        """Write the report of the run.

        The run directory gets the report in all three formats, and a picture if it has none.

        Args:
            path: File ending in ``.html``, ``.md`` or ``.json``.

        Raises:
            NotFittedError: If the estimator is not fitted.
            InputError: If the estimator was loaded from a file, which holds no ledger, the run
                directory has none any more, or the ending is unknown.
        """
        self._fitted()
        path = Path(path)
        if path.suffix not in _REPORT_ENDINGS:
            raise InputError(f"Expected a path ending in .html, .md or .json, got {path.name!r}.")
        if not hasattr(self, "run_dir_"):
            raise InputError(
                "Expected an estimator with the ledger of its run, got one read from a file; "
                "run dpswd report on the directory of the run."
            )
        from dpswd.report.render import write_report  # matplotlib, needed here only
        from dpswd.report.run_files import PICTURES

        if not any((self.run_dir_ / name).exists() for name in PICTURES):
            self._save_picture(self.run_dir_)
        write_report(self.run_dir_)
        report = self.run_dir_ / f"report{path.suffix}"
        atomic_write(path, report.read_bytes())

    def _save_picture(self, directory: Path) -> None:
        """Write a picture of synthetic records for the report, where they can be shown."""

    def _checked_run_directory(self) -> Path:
        """Return the run directory.

        A further fit is refused, and so is a directory with a ledger, and a fit that scikit-learn
        calls where it reads private records around it.
        """
        if self.epsilon != math.inf:
            check_callers(type(self).__name__)
        if self.resume and self.run_dir is None:
            raise InputError(
                "Expected run_dir, the directory of the run to finish, with resume=True, got none; "
                "pass run_dir."
            )
        directory = self._run_directory()
        is_new_run = not self.resume or Budget.is_free(directory)
        if self._has_released() and is_new_run and self.shared_ledger is None:
            raise InputError(
                f"Expected one fit of a {type(self).__name__}, got a second one, which would spend "
                "a further budget (an interrupted fit counts if it made a release); pass "
                "shared_ledger, or make a new estimator and add the budgets up."
            )
        if not self.resume:
            Budget.check_free(directory)
        return directory

    def _has_released(self) -> bool:
        """Return whether a fit has made a release, or the object was read from a file."""
        is_read_or_fitted = hasattr(self, "generator_") or hasattr(self, self._fitted_name)
        return is_read_or_fitted or getattr(self, "_released", False)

    def _run_directory(self) -> Path:
        """Return ``run_dir``, or a directory below ``runs`` named after the time."""
        if self.run_dir is not None:
            return Path(self.run_dir)
        now = datetime.datetime.now(tz=datetime.UTC).strftime("%Y%m%d-%H%M%S-%f")
        kind = type(self).__name__.removeprefix("Private").lower()
        name = Processes().run_on_rank_0(lambda: f"{kind}-{now}")
        return Path("runs") / str(name)

    def _public_seed(self) -> int:
        """Return ``random_state``, or a new seed if it is ``None``; for public randomness."""
        if self.random_state is None:
            return secrets.randbits(_SEED_BITS)
        at_least(0, random_state=self.random_state)
        return int(self.random_state)

    def _mu(self) -> float:
        """Return the budget of Gaussian differential privacy."""
        check_budget(epsilon=self.epsilon)
        probability(delta=self.delta)
        return planning_mu(self.epsilon, self.delta)

    def _fit_generator(
        self,
        records: PrivateRecords,
        directory: Path,
        config: dict[str, Any],
        *,
        table: Table | None = None,
        **options: Any,
    ) -> None:
        """Fit ``generator_`` within the budget and set the facts of the run.

        Args:
            records: The private records.
            directory: The run directory.
            config: Facts of the estimator, which the report shows beside those of the records.
            table: Facts of the columns that the records were coded from, if they were coded.
            options: Arguments of :func:`dpswd.mixture.fit`.
        """
        budget = Budget(
            records,
            target_epsilon=self.epsilon,
            target_delta=self.delta,
            run_dir=directory,
            config=_plain(config | {"records": _public_facts(records, table)}),
            shared_ledger=self.shared_ledger,
            resume=self.resume,
        )
        try:
            self.generator_: Any = mixture.fit(records, budget, progress=self.verbose, **options)
        finally:
            self._released = self._has_released() or budget.n_releases > 0
        self.guarantee_: Guarantee = Processes().run_on_rank_0(
            lambda: budget.statement().guarantee_of_weights()
        )
        self.summary_: str = Processes().run_on_rank_0(lambda: budget.statement().in_words())
        self.run_dir_ = directory
        if self.verbose:
            say(self.summary_)

    def _fitted(self) -> Any:
        """Return the attribute that a fit sets, or raise NotFittedError."""
        check_is_fitted(self, self._fitted_name)
        return getattr(self, self._fitted_name)


def _public_facts(records: PrivateRecords, table: Table | None) -> dict[str, Any]:
    """Return the public facts of records for the config of a run.

    Args:
        records: The records.
        table: Facts of the columns that the records were coded from; those of their layout if
            ``None``.
    """
    if table is None:
        table = records.layout.table
    public: dict[str, Any] = {"n_records": records.n_entries}
    if records.has_units:
        public["n_units"] = len(records)
        public["per_unit"] = records.per_unit
    for name in _PUBLIC_FACTS:
        public[name] = getattr(records, name)
    if table is not None:
        public["columns"] = [asdict(column) for column in table.columns]
    column_facts = _column_facts(records, table)
    if column_facts:
        public["column_facts"] = column_facts
    return public


def _column_facts(records: PrivateRecords, table: Table | None) -> list[str]:
    """Return the facts of every column in words.

    The list is empty for images, and for vectors without bounds.
    """
    if table is not None:
        return [str(column) for column in table.columns]
    if records.bounds is None:
        return []
    names: Sequence[Any] = range(len(records.bounds))
    if records.layout.columns is not None:
        names = records.layout.columns
    pairs = zip(names, records.bounds, strict=True)
    return [f"{name}: from {low:g} to {high:g}" for name, (low, high) in pairs]


def _plain(config: dict[str, Any]) -> Any:
    """Return a config of plain values; other objects become constants or their text."""
    return json.loads(json.dumps(config, default=_described))


def _described(value: Any) -> Any:
    """Return an object as its class and constants, or as its text.

    The text of an object without one of its own has an address in memory, which is left out.
    """
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if callable(getattr(value, "get_params", None)):
        constants = value.get_params(deep=False)
    elif f" object at {hex(id(value))}" in str(value):
        constants = {name: part for name, part in vars(value).items() if isinstance(part, _PLAIN)}
    else:
        return str(value)
    return {"class": _described(type(value)), **constants}
