"""Files of generators: round trips, weights and guarantee and nothing else, damaged files."""

import dataclasses
import io
import json
import math
import pickletools
import re
import struct
import zipfile

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from factories import REFUSED, Trap, damage, fuzz, outcome, untouched
from scipy.spatial import cKDTree

from dpswd import InputError
from dpswd._files import verified_archive
from dpswd._provenance import seen_runs
from dpswd.accounting.guarantee import Guarantee
from dpswd.commands.main import main
from dpswd.data import benchmark
from dpswd.files.archives import read_file
from dpswd.files.generators import read_generator, write_generator
from dpswd.mixture.generator import MixtureGenerator
from dpswd.networks.generator import Generator, draw
from dpswd.networks.image_generators import ConvGenerator, ShuffleGenerator, TransposedGenerator
from dpswd.networks.principal_generator import PrincipalGenerator

SEED = 20261121
GUARANTEE = Guarantee(private=True, sound=True, epsilon=1.0, delta=1e-5, mu=0.27)
KEYS = {
    "format",
    "version",
    "generator",
    "options",
    "classes",
    "proportions",
    "layout",
    "kinds",
    "guarantee",
    "state",
}
STATED = {
    "private",
    "sound",
    "epsilon",
    "delta",
    "mu",
    "regret",
    "neighboring_relation",
    "records",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Directory of a run of ``dpswd generate``."""
    directory = tmp_path_factory.mktemp("run")
    words = ["generate", "digits", "--out", str(directory), "--seed", str(SEED), "-n", "20"]
    assert main(words) == 0
    return directory


def small_generator():
    return MixtureGenerator((4,), n_classes=3, n_cells=1, n_components=2)


def strings_of(path):
    """Every string in the pickles of a file and every name in its archive."""
    strings = []
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            strings.append(name)
            content = archive.read(name)
            if name.endswith(".pkl"):
                values = [value for _, value, _ in pickletools.genops(content)]
                strings += [value for value in values if isinstance(value, str)]
            elif "/data/" not in name:
                strings.append(content.decode("latin-1"))
    return strings


def integers_of(path):
    """Every integer in the pickle of a file of weights."""
    with zipfile.ZipFile(path) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("data.pkl"))
        values = [value for _, value, _ in pickletools.genops(archive.read(name))]
    return {value for value in values if isinstance(value, int)}


def paths_in(strings):
    """The strings that contain a slash beside those of the archive."""
    inside = re.compile(r"^archive/(\.?data/)?")
    return [text for text in strings if "/" in inside.sub("", text)]


def distance_to_windows(tensors, rows):
    """Smallest largest difference between a row and a window of the entries of a tensor.

    A tensor of two axes is read by rows and by columns; the distance is inf beyond 0.05.
    """
    tree = cKDTree(rows)
    smallest = math.inf
    width = rows.shape[1]
    for tensor in tensors:
        orders = [tensor]
        if tensor.ndim == 2:
            orders.append(tensor.T)
        for order in orders:
            entries = order.double().flatten().numpy()
            if len(entries) < width:
                continue
            windows = np.lib.stride_tricks.sliding_window_view(entries, width)
            distances, _ = tree.query(windows, p=math.inf, distance_upper_bound=0.05)
            smallest = min(smallest, float(distances.min()))
    return smallest


def test_a_file_holds_weights_and_the_guarantee_and_nothing_else(run):
    content = torch.load(run / "generator.pt", weights_only=True)
    assert set(content) == KEYS
    expected = MixtureGenerator(**content["options"]).state_dict()
    shapes = {name: value.shape for name, value in content["state"].items()}
    assert shapes == {name: value.shape for name, value in expected.items()}
    assert content["options"]["sample_shape"] == (1, 8, 8)
    assert content["options"]["n_classes"] == 10
    guarantee = content["guarantee"]
    assert set(guarantee) >= STATED
    assert "runs on the same records compose" in guarantee.pop("scope")
    statement = json.loads((run / "privacy.json").read_text())
    assert guarantee == {name: statement[name] for name in guarantee}


def test_a_file_holds_no_path_and_no_seed(run):
    assert paths_in(strings_of(run / "generator.pt")) == []
    assert SEED not in integers_of(run / "generator.pt")


def test_a_path_in_a_file_is_recognised(run):
    """Control of the previous test."""
    torch.save({"where": str(run), "seed": SEED}, run / "control.pt")
    assert str(run) in paths_in(strings_of(run / "control.pt"))
    assert SEED in integers_of(run / "control.pt")


def test_a_file_holds_no_private_record(run):
    """Training records as pixels in [0, 1] and in [0, 16], and centred and scaled to their norm."""
    pixels = benchmark("digits").train.floats().flatten(1).double().numpy()
    rows = np.concatenate([pixels, 16 * pixels, (pixels - 0.25) / 6.4])
    state = torch.load(run / "generator.pt", weights_only=True)["state"]
    assert distance_to_windows(state.values(), rows) > 1e-3
    # Control: one record hidden in the middle of a weight, with some noise on it, is recognised.
    roots = state["roots"].clone()
    record = torch.from_numpy(rows[700]).float()
    roots.flatten()[1000:1064] = record + 5e-4 * torch.rand(64)
    assert distance_to_windows([roots], rows) < 1e-3


@pytest.mark.parametrize(
    "generator",
    [
        ConvGenerator((1, 12, 8), n_classes=3, latent_dim=5, hidden=16),
        ShuffleGenerator(
            (1, 12, 8), 3, size=6, chroma_size=3, hidden=16, width=4, jitter={"rotation": 5.0}
        ),
        PrincipalGenerator(
            (1, 12, 8), 3, size=6, n_directions=5, hidden=16, jitter={"rotation": 5.0}
        ),
        MixtureGenerator(
            (1, 12, 8), n_classes=3, n_cells=2, n_components=4, n_levels=5, jitter={"shift": 1.0}
        ),
        MixtureGenerator((1, 12, 8), n_classes=3, n_components=4, shapes="dark", n_draws=3),
    ],
    ids=lambda generator: type(generator).__name__,
)
def test_every_generator_there_and_back(tmp_path, generator):
    generator.class_names = ["cat", "dog", 3]
    generator.proportions = [0.5, 0.25, 0.25]
    write_generator(generator.eval(), tmp_path / "new" / "g.pt")
    loaded, guarantee = read_generator(tmp_path / "new" / "g.pt")
    latent = generator.latent(4)
    labels = torch.tensor([0, 1, 2, 0])
    assert torch.equal(loaded(latent, labels), generator(latent, labels))
    assert draw(loaded, labels).shape == (4, 1, 12, 8)
    assert loaded.class_names == generator.class_names
    assert loaded.proportions == generator.proportions
    assert guarantee == Guarantee()  # none


def test_a_file_holds_the_guarantee_of_its_weights(tmp_path):
    guarantee = dataclasses.replace(
        GUARANTEE,
        sound=False,
        records="handed over by the caller",
        conditions=("fresh subsets",),
        weights_from_runs=("a", "b"),
    )
    write_generator(small_generator(), tmp_path / "g.pt", guarantee)
    generator, loaded = read_generator(tmp_path / "g.pt")
    assert loaded == guarantee
    assert seen_runs(generator) == {"a", "b"}


def test_a_generator_of_another_class_is_not_written(tmp_path):
    class Mine(Generator):
        pass

    class ConvGenerator(Generator):  # a class of the user with the name of one of the library
        pass

    for kind in (Mine, ConvGenerator):
        with pytest.raises(InputError, match=f"got {kind.__name__}"):
            write_generator(kind((2,), 0, 3), tmp_path / "g.pt")
    assert not (tmp_path / "g.pt").exists()


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InputError, match="Expected to write"):
        write_generator(small_generator(), tmp_path / "file" / "g.pt")


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """Bytes of a generator's file, its weights and its guarantee."""
    path = tmp_path_factory.mktemp("released") / "generator.pt"
    generator = small_generator()
    write_generator(generator, path, GUARANTEE)
    _, guarantee = read_generator(path)
    return path.read_bytes(), generator.state_dict(), guarantee


@fuzz(60, data=st.data())
def test_a_damaged_file_is_refused(released, tmp_path, data):
    whole, state, guarantee = released
    path = tmp_path / "generator.pt"
    path.write_bytes(data.draw(damage(whole)))
    with untouched(tmp_path):
        result = outcome(read_generator, path)
    if result is REFUSED:
        return
    # The changed bytes are padding.
    loaded, loaded_guarantee = result
    assert loaded_guarantee == guarantee
    for name, value in loaded.state_dict().items():
        assert torch.equal(value, state[name])


CONTENTS = [None, -1, "Generator", [1], {"hidden": 10**12}, torch.ones(2), Trap()]


STRICT = ("format", "generator", "options", "state", "guarantee")


@pytest.mark.parametrize("key", [*STRICT, "classes", "proportions", "layout", "kinds", None])
@pytest.mark.parametrize("content", CONTENTS)
def test_files_with_other_content(released, tmp_path, key, content):
    """No code of a file is run."""
    whole = torch.load(io.BytesIO(released[0]), weights_only=True)
    torch.save(content if key is None else whole | {key: content}, tmp_path / "generator.pt")
    result = outcome(read_generator, tmp_path / "generator.pt")
    is_optional = key not in (*STRICT, None) and content is None
    is_unknown_fact = key == "guarantee" and isinstance(content, dict)  # nothing reads it
    assert (result is REFUSED) is not (is_optional or is_unknown_fact)
    assert not Trap.sprung


@pytest.mark.parametrize(
    ("key", "content"),
    [
        ("classes", ["a", "b"]),
        ("classes", ["a", "b", "a"]),
        ("classes", ["a", "b", "1", "01"]),
        ("classes", ["a", "b", "c\0"]),
        ("classes", ["a", "b", None]),
        ("classes", ["a", "b", ["c"]]),
        ("proportions", [0.5, 0.5]),
        ("proportions", [0.0, 0.0, 0.0]),
        ("proportions", [-1.0, 1.0, 1.0]),
        ("proportions", [math.nan] * 3),
        ("layout", {"kind": "images"}),
        ("layout", {"columns": ("a", "b"), "dtypes": ("int64", "int64")}),
        ("layout", {"columns": tuple("abcd"), "dtypes": ("int64",) * 3}),
        ("layout", {"columns": tuple("abcd"), "dtypes": ("int64", "object", "int64", "int64")}),
        ("layout", {"columns": ("a", "b", "c", None), "dtypes": ("int64",) * 4}),
        ("layout", {"dtypes": ("S8",)}),
        ("layout", {"dtypes": (3,)}),
        ("layout", {"target": 3}),
        ("layout", {"kind": "audio"}),
        ("kinds", ["numeric"] * 3),
        ("kinds", ["numeric", "text", "numeric", "numeric"]),
        ("guarantee", {"private": True, "mu": "large", "epsilon": 1.0, "delta": 1e-5}),
        ("guarantee", {"weights_from_runs": [3]}),
        ("guarantee", {"conditions": {1, 2}}),
    ],
)
def test_files_whose_facts_do_not_fit(released, tmp_path, key, content):
    whole = torch.load(io.BytesIO(released[0]), weights_only=True)
    torch.save(whole | {key: content}, tmp_path / "generator.pt")
    assert outcome(read_generator, tmp_path / "generator.pt") is REFUSED


def test_generator_of_wide_rows_there_and_back(tmp_path):
    """Every column has a factor of its own, not a row of a square matrix."""
    generator = MixtureGenerator((4,), n_classes=2, n_cells=1, n_components=0, dim=4)
    generator.synthesis.copy_(torch.arange(1.0, 5.0))
    generator.tail.copy_(torch.ones(4))
    write_generator(generator.eval(), tmp_path / "g.pt")
    loaded, _ = read_generator(tmp_path / "g.pt")
    latent = generator.latent(3)
    labels = torch.tensor([0, 1, 0])
    assert torch.equal(loaded(latent, labels), generator(latent, labels))
    assert sum(weight.numel() for weight in loaded.state_dict().values()) < 40


@pytest.mark.parametrize(
    "changed",
    [
        {"n_components": 0},
        {"sample_shape": (10**6, 10**6)},
        {"sample_shape": (1, 10**5, 10**5), "residual": True},
        {"n_cells": 10**9},
        {"n_classes": 10**9},
        {"n_components": 10**6, "dim": 10**6},
        {"n_bins": 10**9},
        {"n_levels": 10**10},
    ],
)
def test_files_that_ask_for_large_generators(released, tmp_path, changed):
    """They are refused before memory is allocated."""
    whole = torch.load(io.BytesIO(released[0]), weights_only=True)
    whole["options"] |= changed
    torch.save(whole, tmp_path / "generator.pt")
    assert outcome(read_generator, tmp_path / "generator.pt") is REFUSED


def test_files_that_unpack_to_more_than_they_are(released, tmp_path):
    """A compressed archive, and a tensor that repeats one entry."""
    packed = tmp_path / "packed.pt"
    with zipfile.ZipFile(io.BytesIO(released[0])) as archive:
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as again:
            for name in archive.namelist():
                again.writestr(name, archive.read(name))
    assert outcome(read_generator, packed) is REFUSED
    whole = torch.load(io.BytesIO(released[0]), weights_only=True)
    whole["state"]["further"] = torch.zeros(1).expand(10**10)
    torch.save(whole, tmp_path / "generator.pt")
    with pytest.raises(InputError, match="larger than the file"):
        read_generator(tmp_path / "generator.pt")


def test_files_whose_entries_share_bytes_or_lists_are_refused(released, tmp_path):
    """Three thousand names of one megabyte, and ten lists of ten lists, nine times."""
    overlapping = tmp_path / "overlapping.pt"
    with zipfile.ZipFile(overlapping, "w") as archive:
        archive.writestr("a/data.pkl", bytes(2**20))
    content = overlapping.read_bytes()
    end = content.rindex(b"PK\5\6")
    (start,) = struct.unpack("<I", content[end + 16 : end + 20])
    entries = 3000 * content[start:end]
    record = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 3000, 3000, len(entries), start, 0)
    overlapping.write_bytes(content[:start] + entries + record)
    with pytest.raises(ValueError, match="larger than the file"):
        verified_archive(overlapping)
    lists = [0] * 10
    for _ in range(9):
        lists = [lists] * 10
    nested = tmp_path / "nested.pt"
    whole = torch.load(io.BytesIO(released[0]), weights_only=True)
    torch.save(whole | {"classes": lists}, nested)
    for path in (overlapping, nested):
        with pytest.raises(InputError, match=r"a damaged one|flat list"):
            read_generator(path)


def test_a_file_of_another_kind_is_named(released, tmp_path):
    content = torch.load(io.BytesIO(released[0]), weights_only=True)
    torch.save(content | {"format": 4}, tmp_path / "old.pt")
    with pytest.raises(InputError, match=r"format 2 .* got format 4, written by dpswd"):
        read_generator(tmp_path / "old.pt")
    with (
        pytest.raises(InputError, match=r"Expected a classifier .* got a generator; pass a"),
        read_file(tmp_path / "old.pt", "classifier", 5),
    ):
        pass


def test_generator_of_table_5_there_and_back(tmp_path):
    generator = TransposedGenerator((3, 16, 16), width=4).eval()
    write_generator(generator, tmp_path / "g.pt")
    loaded, _ = read_generator(tmp_path / "g.pt")
    latent = generator.latent(4)
    labels = torch.zeros(4, dtype=torch.int64)
    assert torch.equal(loaded(latent, labels), generator(latent, labels))
