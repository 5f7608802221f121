"""Benchmark data sets on small files made here, on damaged files, and on the real ones."""

import bz2
import hashlib
import shutil
import struct

import numpy as np
import pytest
from PIL import Image

from dpswd import InputError
from dpswd.data import CIFAR10, MNIST, USPS, FashionMNIST, benchmarks


def write_idx(path, shape, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack(">HBB", 0, 8, len(shape)) + struct.pack(f">{len(shape)}I", *shape) + content)


@pytest.fixture
def idx(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    for split, count in (("train", 5), ("t10k", 2)):
        content = bytes(range(256)) * 4 * count
        write_idx(raw / f"{split}-images-idx3-ubyte", (count, 28, 28), content[: count * 784])
        write_idx(raw / f"{split}-labels-idx1-ubyte", (count,), bytes(range(count)))
    return raw


def test_mnist(idx, tmp_path):
    data = MNIST(root=str(tmp_path))
    assert data.sample_shape == (1, 28, 28)
    assert data.n_classes == 10
    assert data.private.labels.tolist() == [0, 1, 2, 3, 4]
    assert len(data.test) == 2


def test_private_scans_in_the_layout_of_mnist_are_not_public(idx, tmp_path):
    """Issue 15, item 4: only official checksums or a statement make a public benchmark."""
    assert MNIST(root=str(tmp_path)).public_benchmark is False
    assert MNIST(root=str(tmp_path), public_benchmark=True).public_benchmark is True
    assert MNIST(root=str(tmp_path / "none")).public_benchmark is False
    (tmp_path / "USPS").mkdir()
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / "USPS" / name).write_bytes(bz2.compress(b"1 1:0\n"))
    assert USPS(root=str(tmp_path)).public_benchmark is False


def test_one_changed_file_is_not_official(idx, tmp_path, monkeypatch):
    official = {f"MNIST/raw/{path.name}": benchmarks._digest(path) for path in idx.iterdir()}
    monkeypatch.setattr(benchmarks, "_OFFICIAL", official)
    assert MNIST(root=str(tmp_path)).public_benchmark is True  # control
    for path in sorted(idx.iterdir()):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert MNIST(root=str(tmp_path)).public_benchmark is False
        path.write_bytes(content)


def test_usps_as_torchvision_checks_it(tmp_path, monkeypatch):
    (tmp_path / "USPS").mkdir()
    content = bz2.compress(b"1 1:0\n")
    for name in ("usps.bz2", "usps.t.bz2"):
        (tmp_path / "USPS" / name).write_bytes(content)
    md5 = hashlib.md5(content).hexdigest()
    split_list = {"train": ("url", "usps.bz2", md5), "test": ("url", "usps.t.bz2", md5)}
    monkeypatch.setattr(benchmarks.torchvision.datasets.USPS, "split_list", split_list)
    assert USPS(root=str(tmp_path)).public_benchmark is True
    (tmp_path / "USPS" / "usps.bz2").write_bytes(content + b"x")
    assert USPS(root=str(tmp_path)).public_benchmark is False


@pytest.mark.parametrize(
    ("shape", "size"),
    [((5, 28, 28), 784), ((10**9, 28, 28), 5 * 784), ((5, 784), 5 * 784), ((3, 28, 28), 3 * 784)],
    ids=["short", "huge", "flat", "fewer than labels"],
)
def test_wrong_idx_files(idx, tmp_path, shape, size):
    write_idx(idx / "train-images-idx3-ubyte", shape, bytes(size))
    with pytest.raises(InputError, match=r"MNIST|images and labels") as caught:
        MNIST(root=str(tmp_path)).load()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [MNIST, FashionMNIST, USPS, CIFAR10])
def test_missing_directory(tmp_path, kind):
    with pytest.raises(InputError, match=rf"{kind.name} under .*none.*--data\.root"):
        kind(root=str(tmp_path / "none")).load()
    assert not (tmp_path / "none" / "MNIST").exists()


def test_cifar10_from_class_folders(tmp_path):
    for i in range(40):
        folder = tmp_path / "cifar10_images" / ("train" if i < 20 else "test") / f"class{i % 10}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((32, 32, 3), i, dtype=np.uint8)).save(folder / f"{i}.png")
    data = CIFAR10(root=str(tmp_path))
    assert data.private.values.shape == data.test.values.shape == (20, 3, 32, 32)
    assert sorted(data.private.labels.tolist()) == sorted([*range(10)] * 2)
    assert data.public_benchmark is False  # a lossy copy has no official checksum
    shutil.rmtree(tmp_path / "cifar10_images" / "test")
    with pytest.raises(InputError, match="test"):
        CIFAR10(root=str(tmp_path)).load()


@pytest.mark.data
@pytest.mark.parametrize(
    ("kind", "shape", "n_test"),
    [
        (MNIST, (60_000, 1, 28, 28), 10_000),
    ],
)
def test_real_data(data_root, kind, shape, n_test):
    data = kind(root=str(data_root))
    assert tuple(data.private.values.shape) == shape
    assert len(data.test) == n_test
    assert sorted(data.private.labels.unique().tolist()) == list(range(10))
    assert data.public_benchmark is True
    assert kind(root=str(data_root)).public_facts() == (shape[0], shape[1:], 10)
