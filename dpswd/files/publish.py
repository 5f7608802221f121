"""Publication of a run: a bundle that strangers may read, copy and verify.

A bundle has only what follows from released values and stated facts: new records drawn from the
generator, pictures of such records, the ledger, and the report written from them. Nothing else of
the run directory is read, so that no file which lies there by chance is published, such as figures
on private records. tests/noninterference/test_publish.py compares the bundles of neighbours byte by
byte.
"""

import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]

from dpswd._files import atomic_write, check_new
from dpswd._memory import MAX_SYNTHETIC
from dpswd._paths import has_absolute_path
from dpswd._png import mark_picture
from dpswd._validate import at_least, choice
from dpswd.accounting.guarantee import Guarantee
from dpswd.accounting.ledger import Ledger
from dpswd.errors import InputError
from dpswd.estimators.adapter import PrivateAdapter
from dpswd.estimators.generator import PrivateGenerator, default_proportions
from dpswd.files.archives import refuse_unfinished
from dpswd.files.card import Contents, card
from dpswd.files.export import export, write_csv, write_folder
from dpswd.files.manifest import MANIFEST, Manifest, sha256
from dpswd.files.pictures import save_columns, save_samples
from dpswd.files.verify import CARD, CONFIG, LEDGER, PRIVACY, verify
from dpswd.networks.generator import seeded
from dpswd.report.collect import collect
from dpswd.report.facts import Report
from dpswd.report.render import write_files
from dpswd.report.run_files import RESUMED

__all__ = ["Bundle", "publish", "reseal"]

GENERATOR = "generator.pt"
CLASSIFIER = "classifier.pt"

# Files of a run that a bundle holds as they are; the config only without absolute paths.
_COPIED = (LEDGER, PRIVACY)
# Names of licences in the metadata of dataset cards.
_LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")

# What to do with a run that wrote no file of a network.
_OF_OWN_NETWORKS = (
    "publish needs a network of this library, which the callback GeneratorFile or ClassifierFile "
    "writes at the end of dpswd fit. For a generator of your own, publish the records that you "
    "draw, and for an encoder and a classifier of your own their weights, both from "
    "checkpoints/last.ckpt, with report.html, privacy.json and ledger.jsonl."
)

# Images of a bundle, each of which is a file, unless another number is stated.
MAX_IMAGES = 10_000


@dataclass(frozen=True)
class Bundle:
    """A published bundle.

    Attributes:
        path: The folder.
        n_records: Number of synthetic records; 0 for a classifier.
        n_files: Number of files, the manifest included.
        guarantee: Guarantee of the records.
        fingerprint: SHA-256 of the manifest; :func:`reseal` changes it. Publish the last one
            elsewhere, too.
        left_out: Why ``config.yaml`` of the run is left out; empty if it is in the bundle, or if
            the run has none.
    """

    path: Path
    n_records: int
    n_files: int
    guarantee: Guarantee
    fingerprint: str
    left_out: str = ""


def publish(
    run_dir: str | Path,
    out: str | Path,
    *,
    n: int | None = None,
    proportions: str | None = None,
    seed: int | None = None,
    generator: bool = False,
    licence: str | None = None,
    title: str | None = None,
) -> Bundle:
    """Write a bundle of a finished run.

    A ``config.yaml`` with absolute paths is left out, since these may name people and projects. It
    cannot be edited, as the ledger has its SHA-256.

    Args:
        run_dir: Directory of a run with ``generator.pt`` or ``classifier.pt``, ledger and
            ``privacy.json``. The bundle of a classifier has the classifier and no records.
        out: The new folder.
        n: Number of synthetic records; by default as many as ``dpswd generate`` writes without
            ``-n``, of images at most 10,000.
        proportions: ``"equal"`` or ``"released"``, of the classes; by default, released ones of
            tables and equal ones of images.
        seed: Seed of the records, which is public; by default 0.
        generator: Whether the bundle gets the generator, too.
        licence: Licence of the records, as hubs name it; ``None`` leaves it to be filled in.
        title: Title; by default that of the report.

    Raises:
        InputError: If the run is not finished, is NOT PRIVATE, contradicts itself, or its weights
            depend on releases that its ledger does not have; if the licence is not spelled as hubs
            spell it; or if ``n``, ``proportions``, ``seed`` or ``generator`` is stated for a
            classifier, which draws no records. No file is left then.

    Example:
        >>> import tempfile
        >>> from sklearn.datasets import load_digits
        >>> digits = load_digits().images / 16
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = f"{folder}/run"
        ...     estimator = PrivateGenerator(run_dir=run, verbose=False).fit(digits)
        ...     estimator.save(f"{run}/generator.pt")
        ...     bundle = publish(run, f"{folder}/bundle", n=20)
        ...     problems = verify(f"{folder}/bundle").problems
        >>> bundle.n_records, problems
        (20, ())
    """
    if n is not None:
        at_least(1, n=n)
    if seed is not None:
        at_least(0, seed=seed)
    if proportions is not None:
        choice(("equal", "released"), proportions=proportions)
    if licence is not None:
        _check_licence(licence)
    run_dir = Path(run_dir)
    out = Path(out)
    check_new(out)
    _check_finished(run_dir)
    report, _ = collect(run_dir, title=title, extras=False)
    _check_private(report, run_dir)
    model = _read_model(run_dir)
    if isinstance(model, PrivateAdapter):
        _refuse_options_of_records(
            run_dir, n=n, proportions=proportions, seed=seed, generator=generator or None
        )
    _check_weights(model.guarantee_, report, run_dir)
    paths = _absolute_paths(run_dir / CONFIG)
    partial = out.with_name(f"{out.name}.part-{secrets.token_hex(4)}")
    try:
        if isinstance(model, PrivateGenerator):
            model.random_state = seed or 0
            if n is None:
                n = _default_number(report, model)
            contents = _write_records(model, partial, n, proportions)
        else:
            contents = _write_classifier(model, partial)
        _copy(run_dir, partial)
        if not paths:
            _copy_file(run_dir / CONFIG, partial)
        if not _absolute_paths(run_dir / RESUMED):
            _copy_file(run_dir / RESUMED, partial)
        if isinstance(model, PrivateGenerator) and generator:
            model.save(partial / GENERATOR)
        report = write_files(partial, title=report.title)  # shows the pictures of this bundle
        contents = replace(contents, files=(*contents.files, *_top_level_files(partial)))
        text = card(report, contents, licence)
        atomic_write(partial / CARD, text.encode(errors="replace"))  # as the report
        manifest = _seal(partial, report)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return Bundle(
        path=out,
        n_records=contents.n_records,
        n_files=len(manifest.files) + 1,
        guarantee=model.guarantee_,
        fingerprint=manifest.fingerprint,
        left_out=_why_left_out(paths),
    )


def reseal(bundle: str | Path) -> str:
    """Write the manifest of a bundle anew after its card was edited.

    Return the new fingerprint.

    Raises:
        InputError: If another file than the card has changed, or the card states other numbers than
            the ledger gives.
    """
    bundle = Path(bundle)
    manifest = Manifest.read(bundle)
    before = (bundle / MANIFEST).read_bytes()
    digests = dict(manifest.files)
    if (bundle / CARD).is_file():
        digests[CARD] = sha256(bundle / CARD)
    resealed = Manifest(manifest.run, manifest.ledger_head, digests)
    resealed.write(bundle)
    problems = verify(bundle).problems
    if problems:
        atomic_write(bundle / MANIFEST, before)
        raise InputError(
            f"Expected a bundle of which {CARD} alone was edited, got: {problems[0]} Publish the "
            "run again."
        )
    return resealed.fingerprint


# Checks before a file is written


def _check_licence(licence: str) -> None:
    """Refuse a licence that is not spelled as hubs spell it."""
    if _LICENCE.fullmatch(licence):
        return
    spelled = "-".join(licence.lower().split())
    remedy = "pass other, and write its name into the card"
    if _LICENCE.fullmatch(spelled):
        remedy = f"pass {spelled}, or other if hubs do not list it"
    raise InputError(
        "Expected licence (--licence) as hubs spell it, in small letters without blanks, such as "
        f"cc-by-4.0, got {licence!r}; {remedy}."
    )


def _check_finished(run_dir: Path) -> None:
    """Refuse a directory without weights, or with an incomplete ledger."""
    if not any((run_dir / name).is_file() for name in (GENERATOR, CLASSIFIER)):
        refuse_unfinished(run_dir)
        expected = f"Expected {GENERATOR} or {CLASSIFIER} in {run_dir}, got none"
        if (run_dir / PRIVACY).is_file():
            raise InputError(f"{expected}; {_OF_OWN_NETWORKS}")
        raise InputError(
            f"{expected}; publish takes the directory of a finished run of dpswd generate, fit or "
            "adapt."
        )
    if Ledger.open_existing(run_dir / LEDGER).torn:
        raise InputError(
            f"Expected a finished run in {run_dir}, got a ledger whose last line is incomplete; "
            "resume the run first."
        )


def _check_private(report: Report, run_dir: Path) -> None:
    """Refuse a run without a guarantee."""
    if not report.private:
        raise InputError(
            f"Expected a private run to publish, got {run_dir}, which is NOT PRIVATE: "
            f"{' '.join(report.reasons)} Run it with noise."
        )


def _read_model(run_dir: Path) -> PrivateGenerator | PrivateAdapter:
    """Return the generator of a run, or its classifier if it has no generator."""
    if (run_dir / GENERATOR).is_file():
        return PrivateGenerator.load(run_dir / GENERATOR)
    return PrivateAdapter.load(run_dir / CLASSIFIER)


def _refuse_options_of_records(run_dir: Path, **options: Any) -> None:
    """Refuse options that are not ``None``: a classifier draws no records."""
    for name, value in options.items():
        if value is not None:
            raise InputError(
                f"Expected {name} to be left out for the classifier in {run_dir}, which draws no "
                f"records, got {name}={value}."
            )


def _check_weights(guarantee: Guarantee, report: Report, run_dir: Path) -> None:
    """Refuse weights that depend on other releases than those of the ledger."""
    runs = set(guarantee.weights_from_runs) | {guarantee.run}
    if not guarantee.private or runs != {report.runs.this}:
        names = ", ".join(sorted(str(run) for run in runs))
        raise InputError(
            f"Expected weights in {run_dir} that depend on run {report.runs.this} alone, got those "
            f"of {names}: the ledger does not cover them."
        )


# Parts of a bundle


def _write_classifier(adapter: PrivateAdapter, folder: Path) -> Contents:
    """Write the classifier; return the contents of its bundle."""
    adapter.save(folder / CLASSIFIER)
    classes = [str(name) for name in adapter.classes_.tolist()]
    return Contents.of_classifier(
        adapter.classifier_.space.shape, classes, adapter.verdict_, adapted=adapter.adapted_
    )


def _write_records(
    estimator: PrivateGenerator, folder: Path, n: int, proportions: str | None
) -> Contents:
    """Draw records and write them, with a picture, as hubs read them.

    Return the contents of their bundle.
    """
    generator = estimator.generator_
    if proportions is None:
        proportions = default_proportions(generator.sample_shape)
    records, labels = estimator.sample(n, proportions=proportions)
    classes: list[Any] | None = None
    names: tuple[str, ...] = ()
    if estimator.classes_ is not None:
        classes = estimator.classes_.tolist()
        names = tuple(str(name) for name in classes)
    if len(generator.sample_shape) == 3:
        layout = generator.layout
        files = write_folder(folder / "data" / "train", records, labels, layout, classes)
        columns = [np.array(files)]
        if labels is not None:
            columns.append(np.asarray(labels))
        header = ["file_name", "label"][: len(columns)]
        write_csv(folder / "data" / "train" / "metadata.csv", header, columns)
        data_files = "data/train/**"
        paths = ["data/train/metadata.csv", "data/train/*"]
        picture = folder / "samples.png"
        with seeded(int(estimator.random_state or 0)):
            save_samples(generator, picture)
        mark_picture(picture, estimator.guarantee_.notice, of_releases=True)
    else:
        data_files = "data/train.csv"
        paths = [data_files]
        layout = generator.layout
        if layout is not None:
            layout = replace(layout, separator=",")  # which readers of dataset cards expect
        export(folder / data_files, records, labels, layout)
        if layout is not None and layout.columns is not None:
            values = {"synthetic": layout.numbers(records)}
            picture = folder / "columns.png"
            save_columns(picture, values, layout.columns, layout.table)
            mark_picture(picture, estimator.guarantee_.notice, of_releases=True)
    return Contents.of_records(
        n,
        generator.sample_shape,
        names,
        proportions,
        seed=int(estimator.random_state or 0),
        data_files=data_files,
        files=paths,
    )


def _default_number(report: Report, estimator: PrivateGenerator) -> int:
    """Return how many records a bundle has if no number is stated.

    It is the number of ``dpswd generate``, so that the records are those that were evaluated. Of
    more images than a bundle holds, it has the first ones.
    """
    per_unit = max(int(group.mechanism["per_unit"]) for group in report.releases.groups)
    most = MAX_SYNTHETIC
    if len(estimator.generator_.sample_shape) == 3:
        most = MAX_IMAGES
    return min(report.records.size * per_unit, most)


def _copy(run_dir: Path, folder: Path) -> None:
    """Copy ``ledger.jsonl`` and ``privacy.json``."""
    for name in _COPIED:
        _copy_file(run_dir / name, folder)


def _copy_file(path: Path, folder: Path) -> None:
    """Copy a file to a folder, if there is such a file."""
    if path.is_file():
        atomic_write(folder / path.name, path.read_bytes())


def _absolute_paths(config: Path) -> list[str]:
    """Return the keys of a config whose values are absolute paths.

    A key is as ``data.root``. A file that is no YAML may have paths anywhere, so that its name is
    returned.
    """
    if not config.is_file():
        return []
    try:
        settings = yaml.safe_load(config.read_bytes())
    except (yaml.YAMLError, ValueError, RecursionError):  # ValueError: a date such as 2026-02-30
        return [config.name]
    return list(_keys_of_paths(settings))


def _keys_of_paths(value: Any, key: str = "") -> Iterator[str]:
    """Yield the keys of a nested config whose values are absolute paths."""
    if isinstance(value, dict):
        for name, entry in value.items():
            yield from _keys_of_paths(name, key)
            yield from _keys_of_paths(entry, f"{key}.{name}".lstrip("."))
    elif isinstance(value, list):
        for entry in value:
            yield from _keys_of_paths(entry, key)
    elif isinstance(value, str) and has_absolute_path(value):
        yield key


def _why_left_out(keys: list[str]) -> str:
    """Return one sentence on a config that is left out; empty without such keys."""
    if not keys:
        return ""
    return (
        f"{CONFIG} has absolute paths ({', '.join(keys)}), which may name people or projects, and "
        f"is left out; its SHA-256 is in {LEDGER}."
    )


def _top_level_files(folder: Path) -> list[str]:
    """Return the names of the files at the top of a bundle, and that of its manifest.

    The card is written later, and records are below ``data``.
    """
    names = [path.name for path in folder.iterdir() if path.is_file()]
    return sorted([*names, MANIFEST])


def _seal(folder: Path, report: Report) -> Manifest:
    """Write the manifest of a folder, and return it."""
    manifest = Manifest.of(folder, str(report.runs.this), report.ledger.head)
    manifest.write(folder)
    return manifest
