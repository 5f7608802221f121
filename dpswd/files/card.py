"""Dataset card of a bundle: ``README.md`` with YAML front matter, as dataset hubs read it."""

from dataclasses import dataclass
from typing import Any

import yaml  # type: ignore[import-untyped]

from dpswd import __version__
from dpswd.files.verify import CARD_KEY
from dpswd.report.facts import Report
from dpswd.report.markdown import escape
from dpswd.report.sentences import banner, summary

__all__ = ["Contents", "card"]

# Limits of the size categories of dataset hubs, with their names.
_SIZES = {10**3: "n<1K", 10**4: "1K<n<10K", 10**5: "10K<n<100K", 10**6: "100K<n<1M"}
_LARGEST_SIZE = "1M<n<10M"

# A licence that hubs accept, until the author states one.
_NO_LICENCE = "unknown"
_FILL_IN = "# fill in: the licence of the synthetic records"

_BODY = """\
# {title}

{banner}{n:,} synthetic records, drawn from a generator that was fitted to noisy statistics of
private records.

**{numbers}**

{attack}

{caveats}| | |
|---|---|
| protected | {protected} |
| public | {public} |
| records | {n:,}, {drawn} (seed {seed}) |
| files | {files} |
| run | {run}, dpswd {version} |

## Verify

```
pip install dpswd
dpswd verify FOLDER
```

computes the digest of every file, the chain of `ledger.jsonl` and the guarantee once more, and
trusts no number of this page. [The report](report.md) has the privacy profile, the trade-off curve
and every release.

## Not covered

{not_covered}

## Intended use

Fill in: what the real records are, who may use the synthetic ones for what, and what they must not
be used for. Rare groups and details below the noise are missing from synthetic records.
"""


@dataclass(frozen=True)
class Contents:
    """What a bundle has besides the files of the run.

    Attributes:
        n_records: Number of synthetic records.
        drawn: In which proportions of the classes they were drawn, in words.
        seed: Seed of the draw.
        shape: Shape of a record.
        classes: Names of the classes; empty without classes.
        files: Names of the parts of the bundle, for the card.
        data_files: Path or pattern of the records, for hubs.
        licence: Licence of the synthetic records; ``None`` leaves it to be filled in.
    """

    n_records: int
    drawn: str
    seed: int
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    files: tuple[str, ...]
    data_files: str
    licence: str | None

    @property
    def task(self) -> str | None:
        """Name of the task that hubs know; ``None`` for rows without classes."""
        if len(self.shape) > 1 and self.classes:
            return "image-classification"
        if len(self.shape) > 1:
            return "unconditional-image-generation"
        if self.classes:
            return "tabular-classification"
        return None

    @property
    def size_category(self) -> str:
        """Category of the number of records, as hubs name it."""
        for limit, name in _SIZES.items():
            if self.n_records < limit:
                return name
        return _LARGEST_SIZE


def card(report: Report, contents: Contents) -> str:
    """Return the text of ``README.md``."""
    front = yaml.safe_dump(_front_matter(report, contents), sort_keys=False, allow_unicode=True)
    if contents.licence is None:
        front = front.replace(_NO_LICENCE, f"{_NO_LICENCE}  {_FILL_IN}", 1)
    return f"---\n{front}---\n\n{_body(report, contents)}"


def _front_matter(report: Report, contents: Contents) -> dict[str, Any]:
    """Return what hubs read, and the guarantee by name."""
    front: dict[str, Any] = {
        "license": contents.licence or _NO_LICENCE,
        "pretty_name": report.title,
        "size_categories": [contents.size_category],
    }
    if contents.task is not None:
        front["task_categories"] = [contents.task]
    front["tags"] = ["synthetic", "differential-privacy", "dpswd"]
    data_files = [{"split": "train", "path": contents.data_files}]
    front["configs"] = [{"config_name": "default", "data_files": data_files}]
    guarantee = report.guarantee
    front[CARD_KEY] = {
        "private": report.private,
        "sound": report.sound,
        "epsilon": guarantee.epsilon,
        "delta": guarantee.delta,
        "mu": guarantee.mu,
        "regret": guarantee.regret,
        "neighboring_relation": report.releases.neighboring_relation,
        "unit": report.records.unit,
        "n_private": report.records.size,
        "accountant": report.accountant,
        "conditions": list(report.conditions),
        "run": report.runs.this,
        "ledger_head": report.ledger.head,
    }
    return front


def _body(report: Report, contents: Contents) -> str:
    """Return the text below the front matter."""
    warning = banner(report)
    sentences = summary(report)
    return _BODY.format(
        title=escape(report.title),
        banner="" if warning is None else f"> **{warning.title}.** {escape(warning.text)}\n\n",
        n=contents.n_records,
        numbers=escape(sentences.numbers),
        attack=escape(sentences.attack),
        caveats="".join(f"{escape(caveat)}\n\n" for caveat in report.caveats),
        protected=escape(" ".join(report.protected)),
        public=escape(" ".join(report.public)),
        drawn=contents.drawn,
        seed=contents.seed,
        files=", ".join(f"`{name}`" for name in contents.files),
        run=report.runs.this,
        version=__version__,
        not_covered="\n".join(f"- {escape(line)}" for line in report.not_covered),
    )
