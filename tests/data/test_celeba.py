"""CelebA from a folder, a zip and through torchvision, on a few fake faces."""

import shutil

import numpy as np
import pytest
import torch
import torchvision
from PIL import Image

from dpswd import InputError
from dpswd.data import CelebA


@pytest.fixture
def faces(tmp_path):
    """Fifty pictures in the layout of the folder of cropped faces."""
    rng = np.random.default_rng(0)
    (tmp_path / "celeba64").mkdir()
    for i in range(50):
        Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(tmp_path / "celeba64" / f"{i:06}.png")
    return tmp_path


@pytest.fixture
def full(tmp_path, monkeypatch):
    """Nine pictures in the layout of the full set; the comparison of checksums is disabled."""
    monkeypatch.setattr(torchvision.datasets.CelebA, "_check_integrity", lambda self: True)
    base = tmp_path / "celeba"
    (base / "img_align_celeba").mkdir(parents=True)
    names = [f"{i:06}.jpg" for i in range(1, 10)]
    for i, name in enumerate(names):
        pixels = np.zeros((218, 178, 3), dtype=np.uint8)
        pixels[39:179, 19:159] = 20 * (i + 1)  # the square that is kept
        pixels[:39] = 255  # control: what lies outside
        Image.fromarray(pixels).save(base / "img_align_celeba" / name, quality=100, subsampling=0)
    (base / "list_eval_partition.txt").write_text("".join(f"{n} {0 if i < 6 else 2}\n" for i, n in enumerate(names)))
    (base / "identity_CelebA.txt").write_text("".join(f"{name} 1\n" for name in names))
    for file, header in (
        ("list_bbox_celeba", "a b c d"),
        ("list_landmarks_align_celeba", "x y"),
        ("list_attr_celeba", "u v"),
    ):
        values = " ".join("1" for _ in header.split())
        (base / f"{file}.txt").write_text(f"9\n{header}\n" + "".join(f"{name} {values}\n" for name in names))
    return tmp_path


def test_faces_from_a_folder_and_from_a_zip(faces):
    data = CelebA(root=str(faces))
    assert data.private.values.shape == (40, 3, 64, 64)
    assert data.test.values.shape == (10, 3, 64, 64)
    assert data.private.values.dtype == torch.uint8
    shutil.make_archive(str(faces / "celeba64_5000"), "zip", faces / "celeba64")
    shutil.rmtree(faces / "celeba64")
    zipped = CelebA(root=str(faces))
    assert torch.equal(zipped.private.values, data.private.values)


def test_the_full_set_through_torchvision(full):
    data = CelebA("torchvision", root=str(full), n_records=4, n_test=2)
    assert data.private.values.shape == (4, 3, 64, 64)
    assert data.test.values.shape == (2, 3, 64, 64)
    means = data.private.values.double().mean((1, 2, 3))
    assert torch.allclose(means, 20.0 * torch.arange(1, 5).double(), atol=2)  # in order, the middle square only
    assert len(CelebA("torchvision", root=str(full)).private) == 6
    assert CelebA().n_records == 162_000


def test_missing_data(tmp_path):
    with pytest.raises(InputError, match=r"celeba64_5000\.zip"):
        CelebA(root=str(tmp_path)).load()
    with pytest.raises(InputError, match="torchvision"):
        CelebA("torchvision", root=str(tmp_path)).load()
    with pytest.raises(InputError, match="source"):
        CelebA("web")
    with pytest.raises(InputError, match="size"):
        CelebA(size=4)


def test_a_broken_picture_of_the_full_set(full):
    (full / "celeba" / "img_align_celeba" / "000002.jpg").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"000002\.jpg"):
        CelebA("torchvision", root=str(full)).load()
