"""Generators and their file: round trips, nothing but weights and the guarantee, export, damaged files."""

import csv
import io
import json
import math
import pickletools
import re
import zipfile

import hypothesis.strategies as st
import numpy as np
import pandas as pd
import pytest
import torch
from factories import FURTHER_RUNS, REFUSED, Trap, damage, fuzz, outcome, untouched
from PIL import Image
from scipy.spatial import cKDTree

from dpswd import InputError
from dpswd._layout import Layout
from dpswd._provenance import seen_runs
from dpswd.accounting.guarantee import guarantee_line
from dpswd.commands.main import main
from dpswd.data import benchmark
from dpswd.files.export import export
from dpswd.files.generators import read_generator, write_generator
from dpswd.files.pictures import save_grid
from dpswd.mixture.generator import MixtureGenerator
from dpswd.networks.generator import Generator, draw
from dpswd.networks.image_generators import ConvGenerator, ShuffleGenerator

SEED = 20261121
FACTS = {"epsilon": 1.0, "delta": 1e-5, "mu": 0.27, "private": True, "sound": True}
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


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    assert (
        main(["generate", "digits", "--out", str(directory), "--seed", str(SEED), "-n", "20"]) == 0
    )
    return directory


def strings_of(path):
    """Every string in the pickles of a file and every name in its archive."""
    found = []
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            found.append(name)
            content = archive.read(name)
            if name.endswith(".pkl"):
                found += [
                    str(value)
                    for _, value, _ in pickletools.genops(content)
                    if isinstance(value, str)
                ]
            elif "/data/" not in name:
                found.append(content.decode("latin-1"))
    return found


def nearest(tensors, rows):
    """Largest entry of the difference between a row and the nearest window of a tensor or its transpose; inf if far."""
    tree, best = cKDTree(rows), math.inf
    for tensor in tensors:
        for layout in (tensor, tensor.T) if tensor.ndim == 2 else (tensor,):
            flat = layout.double().flatten().numpy()
            if len(flat) >= rows.shape[1]:
                windows = np.lib.stride_tricks.sliding_window_view(flat, rows.shape[1])
                best = min(
                    best, float(tree.query(windows, p=math.inf, distance_upper_bound=0.05)[0].min())
                )
    return best


def test_nothing_but_weights_and_the_guarantee(run):
    content = torch.load(run / "generator.pt", weights_only=True)
    assert set(content) == KEYS
    expected = MixtureGenerator(**content["options"]).state_dict()
    assert {key: value.shape for key, value in content["state"].items()} == {
        k: v.shape for k, v in expected.items()
    }
    assert (content["options"]["sample_shape"], content["options"]["n_classes"]) == ((1, 8, 8), 10)
    facts, guarantee = json.loads((run / "privacy.json").read_text()), content["guarantee"]
    assert {
        "private",
        "sound",
        "epsilon",
        "delta",
        "mu",
        "regret",
        "neighboring_relation",
        "records",
    } <= set(guarantee)
    assert "runs on the same records compose" in guarantee.pop("scope")
    assert guarantee == {key: facts[key] for key in guarantee}


def test_no_path_and_no_seed(run):
    strings = strings_of(run / "generator.pt")
    inside = re.compile(r"^archive/(\.?data/)?")
    assert not [text for text in strings if "/" in inside.sub("", text)]
    with zipfile.ZipFile(run / "generator.pt") as archive:
        pickled = archive.read(
            next(name for name in archive.namelist() if name.endswith("data.pkl"))
        )
    assert SEED not in {
        value for _, value, _ in pickletools.genops(pickled) if isinstance(value, int)
    }
    torch.save({"where": str(run)}, run / "control.pt")
    assert [text for text in strings_of(run / "control.pt") if "/" in inside.sub("", text)]


def test_no_private_record(run):
    """Training records as pixels in [0, 1] and in [0, 16], and centred and scaled to their norm."""
    pixels = benchmark("digits").train.floats().flatten(1).double()
    rows = np.concatenate([pixels.numpy(), 16 * pixels.numpy(), (pixels - 0.25).numpy() / 6.4])
    state = torch.load(run / "generator.pt", weights_only=True)["state"]
    assert nearest(state.values(), rows) > 1e-3
    # control: one record hidden in the middle of a weight, with some noise on it, is found
    hidden = state["roots"].clone()
    hidden.flatten()[1000:1064] = torch.from_numpy(rows[700]).float() + 5e-4 * torch.rand(64)
    assert nearest([hidden], rows) < 1e-3


def small():
    return MixtureGenerator((4,), n_classes=3, n_cells=1, n_components=2)


@pytest.mark.parametrize(
    "made",
    [
        ConvGenerator((1, 12, 8), n_classes=3, latent_dim=5, hidden=16),
        ShuffleGenerator(
            (1, 12, 8), 3, size=6, chroma_size=3, hidden=16, width=4, jitter={"rotation": 5.0}
        ),
        MixtureGenerator(
            (1, 12, 8), n_classes=3, n_cells=2, n_components=4, n_levels=5, jitter={"shift": 1.0}
        ),
    ],
    ids=lambda made: type(made).__name__,
)
def test_every_generator_there_and_back(tmp_path, made):
    made.class_names, made.proportions = ["cat", "dog", 3], [0.5, 0.25, 0.25]
    write_generator(made.eval(), tmp_path / "new" / "g.pt")
    back, guarantee = read_generator(tmp_path / "new" / "g.pt")
    latent, labels = made.latent(4), torch.tensor([0, 1, 2, 0])
    assert torch.equal(back(latent, labels), made(latent, labels))
    assert draw(back, labels).shape == (4, 1, 12, 8)
    assert (back.class_names, back.proportions, guarantee) == (
        made.class_names,
        made.proportions,
        {},
    )


def test_classes_by_number_and_by_name():
    made = small()
    assert made.labels(7).tolist() == [0, 1, 2, 0, 1, 2, 0]
    with pytest.raises(InputError, match="released"):
        made.labels(7, "released")
    made.proportions = [0.7, 0.2, 0.1]
    assert torch.bincount(made.labels(100, "released")).tolist() == [70, 20, 10]
    assert made.numbers([2, 0]).tolist() == [2, 0]
    made.class_names = ["a", "b", "c"]
    assert made.numbers(np.array(["c", "a"])).tolist() == [2, 0]
    made.class_names = [7, 8, 9]
    assert (
        made.numbers(["9", "7"]).tolist() == made.numbers([9.0, 7.0]).tolist() == [2, 0]
    )  # of a command line
    for wrong in (
        lambda: made.numbers(["d"]),
        lambda: made.labels(0),
        lambda: made.labels(3, "some"),
    ):
        with pytest.raises(InputError):
            wrong()


def test_the_guarantee_of_further_runs_and_of_tensors(tmp_path):
    """Issue 15, item 3: a generator trained on in a second run does not state the second run's epsilon alone."""
    for facts, expected in FURTHER_RUNS:
        write_generator(small(), tmp_path / "g.pt", facts)
        back, guarantee = read_generator(tmp_path / "g.pt")
        assert (guarantee["epsilon"], guarantee["sound"]) == expected
        assert seen_runs(back) == set(facts["weights_from_runs"])
        assert "other runs" in guarantee["scope"]
    handed = {
        "sound": False,
        "records": "handed over by the caller",
        "conditions": ["fresh subsets"],
    }  # issue 30
    write_generator(small(), tmp_path / "g.pt", FACTS | handed)
    stated = read_generator(tmp_path / "g.pt")[1]
    assert stated | handed == stated
    assert ["CONDITIONS" in guarantee_line(each) for each in (stated, FACTS)] == [True, False]
    assert "none" in guarantee_line({"private": False})


def test_refusals(tmp_path):
    with pytest.raises(InputError, match="got Mine"):
        write_generator(type("Mine", (Generator,), {})((2,), 0, 3), tmp_path / "g.pt")
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(InputError, match="Expected to write"):
        write_generator(small(), tmp_path / "file" / "g.pt")


IMAGES = np.random.default_rng(0).integers(0, 256, (12, 6, 6), dtype=np.uint8)
CLASSES = np.array(["cat", "a/b"] * 6)
FRAME = pd.DataFrame({"age": np.arange(4), "income": np.linspace(0, 1, 4)})


def test_images_as_a_folder_and_as_arrays(tmp_path):
    export(tmp_path / "pictures", IMAGES, CLASSES)
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == ["a_b", "cat"]
    with Image.open(tmp_path / "pictures" / "cat" / "02.png") as image:
        assert np.array_equal(np.asarray(image), IMAGES[2])
    export(tmp_path / "floats", IMAGES / 255)  # no classes
    with Image.open(tmp_path / "floats" / "11.png") as image:
        assert np.array_equal(np.asarray(image), IMAGES[11])
    export(tmp_path / "x.npz", IMAGES, CLASSES.astype(object))  # as pandas holds text
    with np.load(tmp_path / "x.npz", allow_pickle=False) as made:
        assert np.array_equal(made["data"], IMAGES)
        assert np.array_equal(made["targets"], CLASSES)


def test_rows_as_a_table(tmp_path):
    export(
        tmp_path / "x.csv",
        FRAME,
        [0, 1, 1, 0],
        Layout(dtypes=("int64", "float64"), columns=("age", "income")),
    )
    lines = list(csv.reader((tmp_path / "x.csv").read_text().splitlines()))
    assert lines[0] == ["age", "income", "class"]
    assert lines[2] == ["1", str(1 / 3), "1"]  # types of the columns, and every digit
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "x.csv").drop(columns="class"), FRAME)
    export(tmp_path / "y.csv", np.eye(2))
    assert (tmp_path / "y.csv").read_text().splitlines() == ["0,1", "1.0,0.0", "0.0,1.0"]


@pytest.mark.parametrize(
    ("name", "records", "said"),
    [
        ("x.csv", IMAGES, "npz or a folder"),
        ("folder", FRAME, "FILE.csv"),
        ("x.tar", IMAGES, "x.tar"),
        ("full", IMAGES, "which exists"),
    ],
)
def test_export_refuses(tmp_path, name, records, said):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with untouched(tmp_path), pytest.raises(InputError, match=said):
        export(tmp_path / name, records)


def test_a_grid_of_pictures(tmp_path):
    images = torch.rand(6, 3, 10, 20)
    save_grid(images, tmp_path / "grid.png", 3)
    with Image.open(tmp_path / "grid.png") as image:
        pixels = np.asarray(image)
    assert pixels.shape == (3 * (2 * 11 + 1), 3 * (3 * 21 + 1), 3)  # enlarged three times
    assert np.abs(pixels[3 * 12 + 1, 3 * 22 + 1] / 255.0 - images[4, :, 0, 0].numpy()).max() < 0.01


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """Bytes of a generator's file, its weights and its guarantee."""
    path = tmp_path_factory.mktemp("released") / "generator.pt"
    generator = small()
    write_generator(generator, path, FACTS)
    return path.read_bytes(), generator.state_dict(), read_generator(path)[1]


@fuzz(60, data=st.data())
def test_damaged_files(released, tmp_path, data):
    whole, state, guarantee = released
    path = tmp_path / "generator.pt"
    path.write_bytes(data.draw(damage(whole)))
    with untouched(tmp_path):
        found = outcome(read_generator, path)
    if found is not REFUSED:  # the changed bytes are padding
        assert found[1] == guarantee
        assert all(torch.equal(value, state[name]) for name, value in found[0].state_dict().items())


@pytest.mark.parametrize(
    "key", ["format", "generator", "options", "state", "guarantee", "layout", None]
)
@pytest.mark.parametrize(
    "content", [None, -1, "Generator", [1], {"hidden": 10**12}, torch.ones(2), Trap()]
)
def test_files_with_other_content(released, tmp_path, key, content):
    """No code of a file is run."""
    whole = torch.load(io.BytesIO(released[0]), weights_only=True)
    torch.save(content if key is None else whole | {key: content}, tmp_path / "generator.pt")
    found = outcome(read_generator, tmp_path / "generator.pt")
    if key in ("format", "generator", "state", None) or isinstance(content, Trap):
        assert found is REFUSED
    assert not Trap.sprung
