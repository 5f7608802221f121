"""Non-interference of a bundle: that of two neighbours is the same, but for released values.

See docs/theory/non-interference.md.
"""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from observation import PLACE, SOURCE, check_neighbours, differences, observe, pairs

from dpswd.commands.main import main
from dpswd.files.manifest import MANIFEST
from dpswd.files.publish import GENERATOR  # loads what releases, before the harness replaces noise

N = 12
CLASSES = ["cat", "dog"]
BOUNDS = "column,low,high,kind\na,0,1,numeric\nb,-5,5,integer\n"
BUDGET = ["--epsilon", "1", "--delta", "0.01", "-n", "6", "--out", "run"]


@st.composite
def images(draw):
    """Draw two archives of images of which the first one differs."""
    pixels = np.linspace(0, 1, N * 64, dtype=np.float32).reshape(N, 8, 8)
    labels = [CLASSES[i % 2] for i in range(N)]
    changed = pixels.copy()
    changed[0] = draw(st.sampled_from([0.0, 1.0, 0.125]))
    other_labels = [draw(st.sampled_from(CLASSES)), *labels[1:]]
    return (pixels, labels), (changed, other_labels)


@st.composite
def tables(draw):
    """Draw two tables of which the first line differs."""
    rows = [f"{i / N},{i % 5},{CLASSES[i % 2]}" for i in range(N)]
    number = draw(st.sampled_from(["0.831771", "0", "1", "-7", "1e9"]))
    first = f"{number},{draw(st.sampled_from(['4', '-5', '99999']))},{CLASSES[0]}"
    return rows, [first, *rows[1:]]


def write_images(folder, data):
    pixels, labels = data
    np.savez(folder / "records.npz", data=pixels, targets=labels)


def write_table(folder, rows):
    (folder / "records.csv").write_text("\n".join(["a,b,class", *rows]) + "\n")
    (folder / "bounds.csv").write_text(BOUNDS)


def generate_and_publish(data, *facts):
    """Generate, lay figures on the records into the run directory, and publish it."""
    status = main(["generate", f"{SOURCE}/{data}", "--classes", *CLASSES, *facts, *BUDGET])
    if status:
        return status
    private = (PLACE / SOURCE / data).read_bytes()
    for name in ("private_evaluation.png", "evaluation.json", "samples.png", "synthetic.npz"):
        (PLACE / "run" / name).write_bytes(private)
    status = main(["publish", "run", "--out", "bundle", "--generator"])
    for name in ("private_evaluation.png", "evaluation.json", "samples.png", "synthetic.npz"):
        (PLACE / "run" / name).unlink()
    return status


def bundle_of(observation):
    return [name for name in observation.files if name.startswith("bundle/")]


@pairs(4, compared=4)
@given(images())
def test_bundles_of_images_of_neighbours_are_the_same(neighbours):
    runs = [
        observe(
            lambda: generate_and_publish("records.npz"),
            lambda folder, data=data: write_images(folder, data),
        )
        for data in neighbours
    ]
    check_neighbours(*runs)
    assert {f"bundle/{MANIFEST}", f"bundle/{GENERATOR}"} <= set(bundle_of(runs[0]))
    assert "bundle/data/train/metadata.csv" in bundle_of(runs[0])


@pairs(4, compared=4)
@given(tables())
def test_bundles_of_tables_of_neighbours_are_the_same(neighbours):
    facts = ["--target", "class", "--bounds", f"{SOURCE}/bounds.csv"]
    runs = [
        observe(
            lambda: generate_and_publish("records.csv", *facts),
            lambda folder, rows=rows: write_table(folder, rows),
        )
        for rows in neighbours
    ]
    check_neighbours(*runs, private=[["0.831771", "99999"]])
    assert "bundle/data/train.csv" in bundle_of(runs[0])


@pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")
def test_control_a_copied_file_is_found():
    def copy_records():
        status = generate_and_publish("records.npz")
        private = (PLACE / SOURCE / "records.npz").read_bytes()
        (PLACE / "bundle" / "extra.npz").write_bytes(private)
        return status

    pixels = np.zeros((N, 8, 8), dtype=np.float32)
    changed = pixels.copy()
    changed[0] = 1
    labels = [CLASSES[i % 2] for i in range(N)]
    runs = [
        observe(copy_records, lambda folder, data=data: write_images(folder, (data, labels)))
        for data in (pixels, changed)
    ]
    lines = differences(*runs)
    assert any(line.startswith("bundle/extra.npz") for line in lines)
    assert not any(line.startswith("bundle/data") for line in lines)
