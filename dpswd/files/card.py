"""Card of a bundle: ``README.md`` with YAML front matter.

Hubs of data sets and models read this front matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

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
_FILL_IN = "# fill in: the licence of what is published"

_TAGS = ["differential-privacy", "dpswd"]
_DRAWN = {
    "equal": "every class equally often",
    "released": "classes in the released proportions",
}

_RECORDS = (
    "{n:,} synthetic records, drawn from a generator that was fitted to noisy statistics of "
    "private records."
)
_USE_OF_RECORDS = (
    "Fill in: what the real records are, who may use the synthetic ones for what, and what they "
    "must not be used for. Rare groups and details below the noise are missing from synthetic "
    "records."
)
_CLASSIFIER = (
    "A classifier that was trained on labelled public records and adapted to private ones, of "
    "which noisy statistics alone were used."
)
_CLASSIFIER_OF_SOURCE = (
    "A classifier that was trained on labelled public records. It was not adapted to private ones, "
    "of which noisy statistics alone were used."
)
_USE_OF_CLASSIFIER = (
    "Fill in: what the public and the private records are, how well the classifier does on records "
    "that may be looked at, and what it must not be used for. `dpswd predict classifier.pt DATA` "
    "gives the classes of new records."
)

_BODY = """\
# {title}

{banner}{intro}

{pictures}**{numbers}**

{attack} *Members* are those whose record was used, *non-members* all others. μ and (ε, δ)
bound the same attacker; the regret says how far μ alone is from the exact guarantee.

{caveats}| | |
|---|---|
{rows}

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

{use}
"""


@dataclass(frozen=True)
class Contents:
    """What a bundle publishes.

    Attributes:
        intro: The first sentence of the card.
        use: What to fill in about the intended use.
        rows: Lines of the table of the card, by their names.
        front: Keys of the front matter that hubs know, besides title and licence.
        files: Names of the files that the card lists.
        n_records: Number of synthetic records; 0 for a classifier.
    """

    intro: str
    use: str
    rows: dict[str, str]
    front: dict[str, Any]
    files: tuple[str, ...]
    n_records: int = 0

    @classmethod
    def of_records(
        cls,
        n: int,
        shape: Sequence[int],
        classes: Sequence[str],
        proportions: str,
        seed: int,
        data_files: str,
        files: Sequence[str],
    ) -> Self:
        """Return the contents of a bundle of synthetic records.

        Args:
            n: Number of records.
            shape: Shape of a record.
            classes: Names of the classes; empty without classes.
            proportions: ``"equal"`` or ``"released"``.
            seed: Seed of the draw.
            data_files: Path or pattern of the records, for hubs.
            files: Names of the files of records, for readers.
        """
        drawn = _DRAWN[proportions] if classes else "without classes"
        front: dict[str, Any] = {"size_categories": [_size_category(n)]}
        task = _task(shape, classes)
        if task is not None:
            front["task_categories"] = [task]
        front["tags"] = ["synthetic", *_TAGS]
        splits = [{"split": "train", "path": data_files}]
        front["configs"] = [{"config_name": "default", "data_files": splits}]
        return cls(
            intro=_RECORDS.format(n=n),
            use=_USE_OF_RECORDS,
            rows={"records": f"{n:,}, {drawn} (seed {seed})"},
            front=front,
            files=tuple(files),
            n_records=n,
        )

    @classmethod
    def of_classifier(
        cls, shape: Sequence[int], classes: Sequence[str], verdict: str, *, adapted: bool
    ) -> Self:
        """Return the contents of a bundle of an adapted classifier.

        Args:
            shape: Shape of a record.
            classes: Names of the classes.
            verdict: What the adaptation did and why, in words.
            adapted: Whether the classifier is adapted; else it is that of the source.
        """
        intro = _CLASSIFIER_OF_SOURCE
        if adapted:
            intro = _CLASSIFIER
        return cls(
            intro=intro,
            use=_USE_OF_CLASSIFIER,
            rows={"classes": ", ".join(classes), "adaptation": verdict},
            front={
                "library_name": "dpswd",
                "pipeline_tag": _task(shape, classes),
                "tags": ["domain-adaptation", *_TAGS],
            },
            files=(),
        )


def _task(shape: Sequence[int], classes: Sequence[str]) -> str | None:
    """Return the name of the task that hubs know; ``None`` for rows without classes."""
    if len(shape) > 1 and classes:
        return "image-classification"
    if len(shape) > 1:
        return "unconditional-image-generation"
    if classes:
        return "tabular-classification"
    return None


def _size_category(n: int) -> str:
    """Return the category of a number of records, as hubs name it."""
    for limit, name in _SIZES.items():
        if n < limit:
            return name
    return _LARGEST_SIZE


def card(report: Report, contents: Contents, licence: str | None) -> str:
    """Return the text of ``README.md``.

    Args:
        report: The report of the run.
        contents: What the bundle publishes.
        licence: Its licence; ``None`` leaves it to be filled in.
    """
    content = _front_matter(report, contents, licence)
    front = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    if licence is None:
        front = front.replace(_NO_LICENCE, f"{_NO_LICENCE}  {_FILL_IN}", 1)
    return f"---\n{front}---\n\n{_body(report, contents)}"


def _front_matter(report: Report, contents: Contents, licence: str | None) -> dict[str, Any]:
    """Return the front matter: keys of hubs, and the guarantee below ``CARD_KEY``."""
    guarantee = report.guarantee
    return {
        "license": licence or _NO_LICENCE,
        "pretty_name": report.title,
        **contents.front,
        CARD_KEY: {
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
        },
    }


def _body(report: Report, contents: Contents) -> str:
    """Return the text below the front matter."""
    warning = banner(report)
    sentences = summary(report)
    lines = {
        "protected": " ".join(report.protected),
        "public": " ".join(report.public),
        **contents.rows,
    }
    rows = [f"| {name} | {escape(text)} |" for name, text in lines.items()]
    rows.append("| files | " + ", ".join(f"`{name}`" for name in contents.files) + " |")
    rows.append(f"| run | {report.runs.this}, dpswd {__version__} |")
    return _BODY.format(
        title=escape(report.title),
        banner="" if warning is None else f"> **{warning.title}.** {escape(warning.text)}\n\n",
        intro=contents.intro,
        pictures="".join(f"![Synthetic records]({name})\n\n" for name in report.pictures),
        numbers=escape(sentences.numbers),
        attack=escape(sentences.attack),
        caveats="".join(f"{escape(caveat)}\n\n" for caveat in report.caveats),
        rows="\n".join(rows),
        not_covered="\n".join(f"- {escape(line)}" for line in report.not_covered),
        use=contents.use,
    )
