"""Budget of a method that makes a few Gaussian releases of all records, and has no sliced Wasserstein loss.

:class:`dpswd.training.callback.PrivacyBudget` plans around the steps of a trainer. A method that asks once and trains on the
answers needs no trainer for that: it opens a budget, asks its queries, and closes it. What lies in the run directory
afterwards (config.yaml, ledger.jsonl, privacy.json) is what ``dpswd report`` reads.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from dpswd._files import write_json
from dpswd._validate import at_least
from dpswd.errors import InputError
from dpswd.queries import GaussianQuery
from dpswd.training.budget import Budget

__all__ = ["OneShotBudget"]


class OneShotBudget(Budget):
    r"""Splits :math:`\mu^2` over queries by their shares, keeps their ledger, and refuses all that was not planned.

    Every query reads all N records once (q = 1) and is :math:`\mu_i`-GDP; together they are
    :math:`\sqrt{\sum_i \mu_i^2}`-GDP, also where a later one is chosen after the earlier ones (Dong2022, Corollary
    3.3). The accountant checks the sum against (target_epsilon, target_delta) before anything is released.

    Args:
        directory: The run directory; a ledger that is there already is refused.
        target_epsilon: Budget, together with
        target_delta: the probability.

    Example:
        >>> import tempfile, torch
        >>> from dpswd.queries import ClassCounts
        >>> budget, query = OneShotBudget(tempfile.mkdtemp(), 1.0, 1e-5), ClassCounts(2)
        >>> with budget.spend([query], sample_size=10):
        ...     released = query.release(torch.arange(10) % 2)
        >>> len(released), budget.releases
        (2, 1)
    """

    def __init__(self, directory: str | Path, target_epsilon: float, target_delta: float) -> None:
        super().__init__(target_epsilon, target_delta, "pld")
        self._directory = Path(directory)

    @contextmanager
    def spend(
        self, queries: Sequence[GaussianQuery], sample_size: int, config: Mapping[str, Any] | None = None
    ) -> Iterator[None]:
        """Sets the noise of ``queries``; within the context each may be released once.

        Args:
            queries: The last one gets what the shares of the others leave.
            sample_size: Number N of records.
            config: Plain values that describe the method, kept as config.yaml.

        Raises:
            InputError: If a ledger is there, a share is out of range, or the directory cannot be written.
            BudgetExceededError: In the context, if a release was not planned.
        """
        at_least(1, sample_size=sample_size)
        if not queries:
            raise InputError("Expected at least one query to spend a budget on, got none.")
        self.sample_size = sample_size
        self.before_ledger = None if config is None else partial(self._save, config)
        wanted = [(query.mechanism, 1) for query in queries]
        self.plan, self._made = self._open(wanted, [query.share for query in queries[:-1]])
        for query, (mechanism, _) in zip(queries, self.plan, strict=True):
            query.mechanism, query.recorder = mechanism, self
        self._watch(running=True)
        try:
            yield
        finally:
            self._watch(running=False)
            write_json(self._directory / "privacy.json", self._statement())

    @property
    def facts(self) -> dict[str, Any]:
        """What privacy.json says."""
        return self._statement()

    def _save(self, config: Mapping[str, Any]) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            (self._directory / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False))
        except OSError as error:
            raise InputError(f"Expected to write into {self._directory}, got: {error.strerror}.") from None
