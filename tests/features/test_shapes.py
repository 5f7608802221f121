"""Images of distances: exactness, each image by itself, drawing, handles and generators."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.ndimage import distance_transform_edt

from dpswd import InputError, PrivateGenerator, PrivateRecords
from dpswd.commands.main import main
from dpswd.features.shapes import from_distances, inconsistency, to_distances
from dpswd.records import Stored

SIDE = 12
few_records = pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")


def enlarged(image):
    """Return an image (h, w) at twice its side, by torch."""
    return torch.nn.functional.interpolate(
        image[None, None], scale_factor=2, mode="bilinear", align_corners=False
    )[0, 0].numpy()


def reference(image, largest):
    """Return the image of distances by scipy's exact distance transform, without rounding."""
    shape = enlarged(image) > 0.5
    if not shape.any():
        return np.zeros(tuple(image.shape))
    inside = distance_transform_edt(shape) - 0.5
    outside = distance_transform_edt(~shape) - 0.5
    signed = np.where(shape, -inside, outside) / 2
    height, width = image.shape
    averaged = signed.reshape(height, 2, width, 2).mean((1, 3))
    return 0.5 - averaged.clip(-largest, largest) / (2 * largest)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    st.integers(0, 10**6),
    st.floats(0.02, 0.9),
    st.sampled_from([(9, 13), (12, 12), (28, 28)]),
    st.sampled_from([0.5, 1.2, 4.0]),
)
def test_distances_are_those_of_the_exact_transform(seed, part, size, largest):
    generator = torch.Generator().manual_seed(seed)
    image = (torch.rand(size, generator=generator) < part).float()
    found = to_distances(image[None, None], largest=largest)[0, 0].numpy() / 255
    if (enlarged(image) > 0.5).all():  # a shape without a border
        assert (found == 1).all()
        return
    rounding = 0.5 / 255
    assert np.abs(found - reference(image, largest)).max() <= rounding + 1e-6


def blobs(n=40, seed=0):
    """Draw images of one filled circle each, in two classes of sizes."""
    generator = np.random.default_rng(seed)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    images = []
    for number in range(n):
        centre = generator.uniform(4, SIDE - 5, 2)
        radius = 2 + number % 2
        distance = np.hypot(rows - centre[0], columns - centre[1])
        images.append((radius + 0.5 - distance).clip(0, 1))
    return np.stack(images).astype(np.float32)


def test_a_drawn_shape_is_the_image():
    images = torch.from_numpy(blobs())[:, None]
    drawn = from_distances(to_distances(images).float() / 255)
    assert (drawn - images).abs().mean() < 0.03
    assert ((drawn > 0.5) == (images > 0.5)).float().mean() > 0.97


def test_the_ground_is_black_and_the_inside_is_white():
    images = torch.from_numpy(blobs())[:, None]
    drawn = from_distances(to_distances(images).float() / 255)
    far_outside = torch.nn.functional.max_pool2d(images, 5, 1, 2) == 0
    far_inside = torch.nn.functional.avg_pool2d(images, 3, 1, 1) == 1
    assert far_outside.any()
    assert far_inside.any()
    assert (drawn[far_outside] == 0).all()
    assert (drawn[far_inside] == 1).all()


def test_distances_of_a_shape_are_more_consistent_than_a_mean_of_distances():
    distances = to_distances(torch.from_numpy(blobs())[:, None]).float() / 255
    of_shapes = inconsistency(distances)
    of_means = inconsistency((distances[::2] + distances[1::2]) / 2)
    assert of_shapes.max() < of_means.quantile(0.1)
    assert torch.equal(inconsistency(distances[3:4]), of_shapes[3:4])


def test_each_image_is_mapped_by_itself():
    images = torch.from_numpy(blobs())[:, None]
    changed = images.clone()
    changed[3] = 1
    together = to_distances(images)
    others = [i for i in range(len(images)) if i != 3]
    assert torch.equal(to_distances(changed)[others], together[others])
    assert torch.equal(to_distances(images[5:6]), together[5:6])


def test_an_image_without_a_shape_is_far_from_one_everywhere():
    assert not to_distances(torch.full((1, 1, 8, 8), 0.4)).any()
    assert not to_distances(torch.full((1, 1, 8, 8), torch.nan)).any()


def test_dark_ink_is_light_ink_of_the_negative():
    images = torch.from_numpy(blobs())[:, None]
    assert torch.equal(to_distances(1 - images, "dark"), to_distances(images, "light"))
    distances = torch.rand(2, 1, 8, 8)
    torch.testing.assert_close(from_distances(distances, "dark"), 1 - from_distances(distances))


def test_a_handle_of_shapes_keeps_the_public_facts():
    units = np.arange(40) // 2
    records = PrivateRecords(blobs(), np.arange(40) % 2, classes=[0, 1], unit=units, per_unit=2)
    mapped = records.as_shapes("light")
    assert len(mapped) == len(records) == 20
    assert mapped.shapes == "light"
    assert records.shapes is None
    for name in ("shape", "classes", "layout", "protects", "n_entries"):
        assert getattr(mapped, name) == getattr(records, name)


def test_records_on_disk_are_mapped_when_they_are_read():
    images = torch.from_numpy(blobs())[:, None]
    stored = Stored(lambda numbers: images[numbers], tuple(images.shape), torch.float32, "key")
    on_disk = PrivateRecords.from_values(stored, None).as_shapes("light")
    in_memory = PrivateRecords.from_values(images, None).as_shapes("light")
    numbers = torch.tensor([3, 1])
    for one, other in zip(
        on_disk.open_records(numbers), in_memory.open_records(numbers), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("X", "ink", "words"),
    [
        (np.zeros((20, 5)), "light", "grey images"),
        (np.zeros((20, 8, 8, 3), np.uint8), "light", "channels=1"),
        (np.zeros((20, 8, 8)), "grey", "light, dark"),
    ],
)
def test_records_that_are_no_shapes_are_refused(X, ink, words, tmp_path):
    generator = PrivateGenerator(shapes=ink, delta=1e-2, run_dir=tmp_path / "run", bounds=None)
    with pytest.raises(InputError, match=words):
        generator.fit(X)
    assert not (tmp_path / "run").exists()


@few_records
def test_a_generator_draws_whole_shapes_and_is_read_again(tmp_path):
    images = blobs(600)
    generator = PrivateGenerator(
        epsilon=50, delta=1e-3, classes=[0, 1], shapes="light", shift=1.0, run_dir=tmp_path / "run"
    ).fit(images, np.arange(600) % 2)
    drawn, _ = generator.sample(50)
    # Most pixels are bright or dark: the shapes have sharp edges.
    assert ((drawn < 0.2) | (drawn > 0.8)).mean() > 0.8
    generator.save(tmp_path / "generator.pt")
    loaded = PrivateGenerator.load(tmp_path / "generator.pt")
    loaded.random_state = 3
    generator.random_state = 3
    generator._n_draws = 0  # the draw after a load is the first one
    assert loaded.generator_.shapes == "light"
    np.testing.assert_allclose(loaded.sample(4)[0], generator.sample(4)[0], atol=1e-6)


@few_records
def test_generate_takes_shapes(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    np.savez("blobs.npz", images=1 - blobs(60), labels=np.arange(60) % 2)
    words = ["generate", "blobs.npz", "--classes", "0", "1", "--delta", "1e-2", "--out", "run"]
    assert main([*words, "--shapes", "dark"]) == 0
    report = (tmp_path / "run" / "report.md").read_text()
    assert "shapes" in report
    capfd.readouterr()
