"""Generators, the file that holds one, and synthetic records in the format of the private ones.

``generator.pt`` is the file to publish: weights, guarantee and format of the records, as tensors and plain values only.
:func:`read_generator` loads it with ``weights_only=True``.
"""

import csv
import inspect
import io
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd import __version__
from dpswd._arrays import Array, Layout
from dpswd._files import atomic_write, check_new, verified_archive
from dpswd._provenance import mark_runs, track_runs
from dpswd._validate import at_least, choice, positive
from dpswd.accounting.accountant import round_up
from dpswd.errors import InputError

__all__ = ["Generator", "draw", "read_generator", "write_generator"]

FORMAT = 2
GUARANTEE = (  # facts of privacy.json that state the guarantee
    "private sound epsilon delta mu regret neighboring_relation records conditions run weights_from_runs".split()
)
SCOPE = (
    "The guarantee covers the releases of all runs that the weights depend on (weights_from_runs). Releases of other "
    "runs on the same records compose with it."
)
_CLASSES = {"MixtureGenerator": "dpswd.mixture.generator"} | dict.fromkeys(
    ("ConvGenerator", "ShuffleGenerator"), "dpswd.lightning.networks"
)
_PART = 500  # records that are generated at a time
_SHOWN_COLUMNS = 12  # in a picture
_GRID = 56  # least side of an image in a picture, in pixels


class Generator(nn.Module):
    """Base class of generators: sizes, latent codes, and the format of the records.

    A subclass stores its arguments as attributes of the same names, from which :func:`write_generator` writes them.

    Args:
        sample_shape: Shape of one record.
        n_classes: Number C of classes; 0 for none.
        latent_dim: Size of the latent code.

    Attributes:
        class_names: Public names of the classes, in the order of their numbers.
        proportions: Released proportions of the classes, if they were released.
        layout: Format of the private records, in which synthetic ones are returned.
        kinds: Public kinds of columns.
        structure: Facts of the fit, for reports; not in the file.

    Example:
        >>> class Linear(Generator):
        ...     def __init__(self, sample_shape, n_classes, latent_dim):
        ...         super().__init__(sample_shape, n_classes, latent_dim)
        ...         self.map = nn.Linear(latent_dim + n_classes, sample_shape[0])
        ...     def forward(self, latent, labels):
        ...         return self.map(self.code(latent, labels))
        >>> draw(Linear((3,), n_classes=2, latent_dim=4), torch.zeros(5, dtype=torch.int64)).shape
        torch.Size([5, 3])
    """

    def __init__(self, sample_shape: tuple[int, ...], n_classes: int, latent_dim: int) -> None:
        super().__init__()
        track_runs(self)
        at_least(1, latent_dim=latent_dim)
        at_least(0, n_classes=n_classes)
        self.sample_shape, self.n_classes, self.latent_dim = tuple(sample_shape), n_classes, latent_dim
        self.class_names: list[Any] | None = None
        self.proportions: list[float] | None = None
        self.layout: Layout | None = None
        self.kinds: list[str] | None = None
        self.structure: Any = None

    def latent(self, n: int, spread: float = 1.0) -> Tensor:
        """Draw normal codes (n, latent_dim) of standard deviation ``spread``."""
        device = next(itertools.chain(self.parameters(), self.buffers())).device
        return spread * torch.randn(n, self.latent_dim, device=device)

    def code(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Concatenate codes and one-hot classes: (n, latent_dim + C)."""
        if not self.n_classes:
            return latent
        return torch.cat([latent, F.one_hot(labels, self.n_classes).to(latent.dtype)], dim=1)

    def forward(self, latent: Tensor, labels: Tensor) -> Tensor:
        """Map codes (n, latent_dim) and classes (n,) to records ``(n, *sample_shape)``; pixels in [0, 1]."""
        raise NotImplementedError

    def labels(self, n: int, proportions: str = "equal") -> Tensor:
        """Return n classes (n,), every class equally often or in the released proportions; 0 without classes."""
        at_least(1, n=n)
        choice(("equal", "released"), proportions=proportions)
        if proportions == "equal" or not self.n_classes:
            return torch.arange(n) % max(1, self.n_classes)
        if self.proportions is None:
            raise InputError("Expected released proportions of the classes, got a generator without; use 'equal'.")
        edges = (torch.tensor(self.proportions, dtype=torch.float64).cumsum(0) * n).round().long()
        return torch.bucketize(torch.arange(n), edges[:-1], right=True)[torch.randperm(n)]

    def numbers(self, names: Any) -> Tensor:
        """Return the numbers (n,) of classes that are given by name, which may be spelled out."""
        classes = list(self.class_names or range(self.n_classes))
        known = {key: i for i, name in enumerate(classes) for key in (str(name), name)}
        given = np.asarray(names).ravel().tolist()
        if unknown := sorted({str(name) for name in given if name not in known}):
            raise InputError(f"Expected classes out of {classes}, got {', '.join(unknown[:5])}.")
        return torch.tensor([known[name] for name in given])


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed torch for public randomness; the global random state stays as it is."""
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(seed)
        yield


@torch.no_grad()
def draw(generator: Generator, labels: Tensor, spread: float = 1.0) -> Tensor:
    """Generate a record for each class in evaluation mode.

    Args:
        generator: The generator.
        labels: Numbers (n,) of the classes; 0 without classes.
        spread: Factor above 0 on the noise about the means of cells; below 1 draws are closer to them.

    Returns:
        Records ``(n, *sample_shape)`` in float32 on the CPU.

    Example:
        >>> from dpswd.mixture.generator import MixtureGenerator
        >>> draw(MixtureGenerator((1, 8, 8), n_classes=2), torch.tensor([0, 1, 1])).shape
        torch.Size([3, 1, 8, 8])
    """
    return torch.cat(list(_drawn(generator, labels, spread)))


@torch.no_grad()
def _drawn(generator: Generator, labels: Tensor, spread: float) -> Iterator[Tensor]:
    """Yield what :func:`draw` returns in parts."""
    positive(spread=spread)
    training = generator.training
    generator.eval()
    for part in labels.split(_PART):
        latent = generator.latent(len(part), spread)
        yield generator(latent, part.to(latent.device)).cpu()
    generator.train(training)


def draw_in_layout(generator: Generator, labels: Tensor, spread: float = 1.0) -> Any:
    """Generate a record for each class in the format of the private ones; images part by part, to hold bytes only."""
    parts = _drawn(generator, labels, spread)
    if len(generator.sample_shape) == 3:
        return np.concatenate([_in_layout(generator, part) for part in parts])
    return _in_layout(generator, torch.cat(list(parts)))


def _in_layout(generator: Generator, records: Tensor) -> Any:
    """Convert records ``(n, *sample_shape)`` to the format of the private ones: bytes or floats, array or DataFrame."""
    for column, kind in enumerate(generator.kinds or ()):
        values = records[:, column]
        if kind == "integer":
            values.round_()
        elif kind == "binary":
            low, high = (float(getattr(generator, name)[column]) for name in ("low", "high"))
            values.copy_(torch.where(values > (low + high) / 2, high, low))
    layout = generator.layout or Layout.of(records if records.ndim == 2 else records[:1].to(torch.uint8))
    return layout.restore(records)


def write_generator(generator: Generator, path: str | Path, guarantee: dict[str, Any] | None = None) -> None:
    """Write a generator of this library atomically, with those facts of ``privacy.json`` that state the guarantee."""
    name = type(generator).__name__
    if _CLASSES.get(name) != type(generator).__module__:
        raise InputError(f"Expected a generator out of {', '.join(_CLASSES)}, got {name}; save its state_dict instead.")
    content = {
        "format": FORMAT,
        "version": __version__,
        "generator": name,
        "options": {option: getattr(generator, option) for option in inspect.signature(type(generator)).parameters},
        "classes": None if generator.class_names is None else list(generator.class_names),
        "proportions": generator.proportions,
        "layout": None if generator.layout is None else asdict(generator.layout),
        "kinds": generator.kinds,
        "guarantee": stated_guarantee(guarantee or {}),
        "state": {key: value.detach().cpu().clone() for key, value in generator.state_dict().items()},
    }
    atomic_write(path, partial(torch.save, content))


def stated_guarantee(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the facts that state the guarantee of the weights, of all runs that they have seen, and its scope."""
    stated = {key: value for key, value in facts.items() if key in GUARANTEE}
    if set(facts.get("weights_from_runs") or ()) - {facts.get("run")}:
        across = facts.get("across_runs") or {"private": facts.get("private"), "sound": False}
        stated |= {name: across.get(name) for name in ("private", "epsilon", "delta", "mu", "regret", "sound")}
    if stated.get("private"):
        stated["scope"] = SCOPE
    return stated


def guarantee_line(facts: dict[str, Any]) -> str:
    """Return the guarantee in one line, rounded up."""
    if not facts.get("private") or facts.get("mu") is None:
        return "Guarantee: none (not private)."
    conditions = "" if facts.get("sound") else ", ON CONDITIONS (see privacy.json)"
    return (
        f"Guarantee: mu = {round_up(facts['mu'], 3):g}, (epsilon, delta) = ({round_up(facts['epsilon'], 3):g}, "
        f"{facts['delta']:g}), replace-one{conditions}."
    )


@contextmanager
def read_file(path: str | Path, kind: str, file_format: int) -> Iterator[dict[str, Any]]:
    """Yield the content of a file of weights; no code of it is run. InputError if the file or the use of it fails."""
    try:
        content = torch.load(verified_archive(path), map_location="cpu", weights_only=True)
        if content["format"] != file_format:
            got = f"format {content['format']!r}: another kind of file, or one of another version of dpswd"
            raise InputError(f"Expected a {kind} of format {file_format} at {path}, got {got}.")
        yield content
    except OSError as error:
        raise InputError(f"Expected a {kind} at {path}, got: {error.strerror}.") from None
    except InputError:
        raise
    except Exception:  # torch.load raises many types on damaged files
        raise InputError(f"Expected a {kind} written by dpswd at {path}, got a file that is not one.") from None


def read_generator(path: str | Path) -> tuple[Generator, dict[str, Any]]:
    """Read a generator in evaluation mode, and its guarantee; no code of the file is run.

    Raises:
        InputError: If the file is missing or is not a generator.

    Example:
        >>> import tempfile
        >>> from dpswd.mixture.generator import MixtureGenerator
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_generator(MixtureGenerator((1, 8, 8), n_classes=2), f"{folder}/generator.pt", {"epsilon": 1.0})
        ...     generator, guarantee = read_generator(f"{folder}/generator.pt")
        >>> draw(generator, torch.tensor([0, 1, 1])).shape, guarantee["epsilon"]
        (torch.Size([3, 1, 8, 8]), 1.0)
    """
    with read_file(path, "generator", FORMAT) as content:
        name = content["generator"]
        if name not in _CLASSES:
            raise InputError(f"Expected a generator out of {', '.join(_CLASSES)} in {path}, got {name!r}.")
        generator: Generator = getattr(import_module(_CLASSES[name]), name)(**content["options"])
        generator.load_state_dict(content["state"])
        generator.class_names, generator.proportions = content["classes"], content["proportions"]
        generator.layout = None if content["layout"] is None else Layout(**content["layout"])
        generator.kinds = content["kinds"]
        guarantee: dict[str, Any] = content["guarantee"]
        mark_runs(generator, guarantee.get("weights_from_runs") or ())
    return generator.eval(), guarantee


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays to an ``.npz`` file that is read without pickle: objects, as pandas holds text, become text."""
    found = {name: np.asarray(array) for name, array in arrays.items()}
    plain: dict[str, Any] = {name: each.astype(str) if each.dtype == object else each for name, each in found.items()}
    atomic_write(path, lambda file: np.savez_compressed(file, **plain))


def export(path: str | Path, records: Any, classes: Any = None, layout: Layout | None = None) -> None:
    """Write synthetic records, in the caller's format, and their classes (n,) to a file or a folder.

    ``.npz`` has arrays ``data``, ``targets`` and ``columns`` (names, of a table), ``.csv`` the class as its last
    column; a folder gets one PNG per image in class folders. ``layout`` has names and types of the columns of a table.
    """
    path, values, layout = Path(path), np.asarray(records), layout or Layout()
    if path.suffix not in (".npz", ".csv" if values.ndim == 2 else ""):
        wanted = "FILE.npz or FILE.csv for rows" if values.ndim == 2 else "FILE.npz or a folder for images"
        raise InputError(f"Expected {wanted}, got {path.name}.")
    if path.suffix == ".npz":
        content: dict[str, Any] = {"data": values}
        if layout.columns is not None:
            content["columns"] = np.array([str(name) for name in layout.columns])
        if classes is not None:
            content["targets"] = classes
        write_npz(path, content)
    elif path.suffix == ".csv":
        names = list(layout.columns or range(values.shape[1]))
        columns = list(values.T) if layout.columns is None else layout.typed(values)
        if classes is not None:
            names, columns = [*names, layout.target or "class"], [*columns, np.asarray(classes)]
        write_csv(path, names, columns)
    else:
        _write_folder(path, values, classes)


def write_csv(path: Path, names: Sequence[Any], columns: Sequence[Array]) -> None:
    """Write columns (n,) and their names."""
    text = io.StringIO()
    lines = zip(*(column.tolist() for column in columns), strict=True)
    csv.writer(text, lineterminator="\n").writerows([names, *lines])
    atomic_write(path, text.getvalue().encode())


def _write_folder(path: Path, images: Array, classes: Any) -> None:
    from PIL import Image

    check_new(path)
    if images.dtype != np.uint8:
        images = (images.clip(0, 1) * 255).round().astype(np.uint8)
    names = [""] * len(images) if classes is None else [str(name).replace("/", "_") for name in np.asarray(classes)]
    digits = len(str(len(images) - 1))
    for i, (image, name) in enumerate(zip(images, names, strict=True)):
        save = partial(Image.fromarray(image).save, format="PNG")
        atomic_write(path / name / f"{i:0{digits}d}.png", save)


def save_grid(images: Tensor, path: Path, columns: int) -> None:
    """Write images (n, channels, h, w) as one PNG with grey lines between them, small images enlarged."""
    from torchvision.utils import save_image

    scale = max(1, round(_GRID / images.shape[3]))
    large = images.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
    atomic_write(path, partial(save_image, large, nrow=columns, padding=scale, pad_value=0.5, format="PNG"))


def save_samples(generator: Generator, path: Path) -> Tensor:
    """Write a picture with a row of ten generated images per class; return the images."""
    labels = torch.arange(generator.n_classes or 10).repeat_interleave(10)
    images = draw(generator, labels if generator.n_classes else torch.zeros_like(labels))
    save_grid(images, path, 10)
    return images


def save_columns(path: Path, parts: dict[str, Array], names: Sequence[Any] | None = None) -> None:
    """Write a picture of the first columns of rows (n, d): the histograms of all parts on top of each other."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = [np.asarray(values, dtype=float) for values in parts.values()]
    count = min(_SHOWN_COLUMNS, rows[0].shape[1])
    lines, width = -(-count // 3), min(3, count)
    made = Figure(figsize=(2.2 * max(2, width), 2.2 * lines), dpi=150, layout="constrained")
    all_axes = made.subplots(lines, width, squeeze=False).flatten()
    options: dict[str, Any] = {"density": True, "histtype": "stepfilled", "alpha": 0.5, "label": [*parts]}
    for column, axes in enumerate(all_axes[:count]):
        axes.hist([values[:, column] for values in rows], 30, **options)
        axes.set_title(str(names[column]) if names else f"column {column}", fontsize=12)
        axes.tick_params(labelsize=10)
        axes.set_yticks([])  # densities
    for axes in all_axes[count:]:
        axes.set_axis_off()
    all_axes[0].legend(fontsize=10)
    atomic_write(path, FigureCanvasAgg(made).print_png)
