"""Benchmarks on small files made here, on damaged files, and on the real ones."""

import hashlib
import shutil

import numpy as np
import pytest
from factories import write_idx, write_images

from dpswd import InputError
from dpswd.data import benchmark, benchmarks, read, read_public


@pytest.fixture
def idx(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    for split, count in (("train", 5), ("t10k", 2)):
        write_idx(
            raw / f"{split}-images-idx3-ubyte", np.arange(count * 784).reshape(count, 28, 28) % 256
        )
        write_idx(raw / f"{split}-labels-idx1-ubyte", np.arange(count))
    return raw


def test_digits():
    digits = benchmark("digits")
    assert (digits.shape, digits.n_classes, digits.public) == ((1, 8, 8), 10, True)
    assert (len(digits.train), len(digits.private()), len(read("digits")), len(digits.test)) == (
        1438,
        1438,
        1438,
        359,
    )
    with pytest.raises(InputError, match="no size"):
        read("digits", size=16)
    with pytest.raises(InputError, match="digits, mnist"):
        benchmark("imagenet")


def test_a_folder_with_the_name_of_a_benchmark(tmp_path, monkeypatch):
    write_images(tmp_path, {"digits/1.png": np.zeros((8, 8))})
    monkeypatch.chdir(tmp_path)
    for reader in (read, read_public):
        with pytest.raises(InputError, match=r"benchmark:digits .*or \./digits for the path"):
            reader("digits")
    assert len(read("benchmark:digits")) == 1438
    assert len(read("./digits")) == 1


def test_a_folder_of_this_name_under_the_root(tmp_path):
    write_images(tmp_path, {"digits/1.png": np.zeros((8, 8))})
    with pytest.raises(InputError, match=f"or {tmp_path}/digits for the path"):
        read("digits", root=tmp_path)
    assert len(read("benchmark:digits", root=tmp_path)) == 1438


def test_the_directory_of_a_benchmark_is_no_second_meaning(idx, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert len(read("MNIST", root=tmp_path)) == len(read("MNIST", root=".")) == 5
    with pytest.raises(InputError, match="one meaning of MNIST"):
        read("MNIST", root=tmp_path / "data")  # the directory of the benchmark is another one


@pytest.mark.parametrize("name", ["digits", "Digits", "benchmark:digits", "Benchmark:DIGITS"])
def test_spellings_of_a_benchmark(name):
    assert benchmark(name).name == read(name).name == "digits"


def test_mnist(idx, tmp_path):
    data = benchmark("MNIST", tmp_path)
    assert (data.name, data.shape, data.n_classes) == ("MNIST", (1, 28, 28), 10)
    assert (data.train.labels.tolist(), len(data.test)) == ([0, 1, 2, 3, 4], 2)
    assert (read("mnist", root=tmp_path).n_classes, read("mnist", root=tmp_path).name) == (
        10,
        "MNIST",
    )


def test_private_scans_in_the_layout_of_mnist_are_not_public(idx, tmp_path, monkeypatch):
    """Only official checksums or a statement make a public benchmark;
    one changed file is not official.
    """
    assert benchmark("mnist", tmp_path).public is False
    assert benchmark("mnist", tmp_path, public=True).public is True
    official = {
        f"MNIST/raw/{path.name}": hashlib.md5(path.read_bytes()).hexdigest()
        for path in idx.iterdir()
    }
    monkeypatch.setattr(benchmarks, "_OFFICIAL", official)
    assert benchmark("mnist", tmp_path).public is True  # control
    for path in sorted(idx.iterdir()):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert benchmark("mnist", tmp_path).public is False
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("shape", "size"),
    [((5, 28, 28), 784), ((10**9, 28, 28), 5 * 784), ((5, 784), 5 * 784), ((3, 28, 28), 3 * 784)],
    ids=["short", "huge", "flat", "fewer than labels"],
)
def test_wrong_idx_files(idx, tmp_path, shape, size):
    write_idx(idx / "train-images-idx3-ubyte", np.zeros(size), shape)
    with pytest.raises(InputError, match=r"MNIST|images and labels") as caught:
        benchmark("mnist", tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_directory(tmp_path):
    for name in ("mnist", "fashion", "usps", "cifar10", "celeba"):
        with pytest.raises(InputError, match=r"none.*DPSWD_DATA.*fetch"):
            benchmark(name, tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_cifar10_from_class_folders(tmp_path):
    images = {
        f"{'train' if i < 20 else 'test'}/class{i % 10}/{i}.png": np.full((32, 32, 3), i)
        for i in range(40)
    }
    write_images(tmp_path / "cifar10_images", images)
    data = benchmark("cifar10", tmp_path)
    assert data.train.values.shape == data.test.values.shape == (20, 3, 32, 32)
    assert sorted(data.train.labels.tolist()) == sorted([*range(10)] * 2)
    assert data.classes == [f"class{i}" for i in range(10)]
    assert data.public is False  # a lossy copy has no official checksum
    shutil.rmtree(tmp_path / "cifar10_images" / "test")
    with pytest.raises(InputError, match="test"):
        benchmark("cifar10", tmp_path)


def test_faces_from_a_folder(tmp_path):
    rng = np.random.default_rng(0)
    write_images(
        tmp_path / "celeba64", {f"{i:06}.png": rng.integers(0, 256, (64, 64, 3)) for i in range(50)}
    )
    data = benchmark("celeba", tmp_path)
    assert (data.train.values.shape, data.test.values.shape) == ((40, 3, 64, 64), (10, 3, 64, 64))
    assert (data.n_classes, data.public, data.private().n_classes) == (0, False, 0)
    assert read("celeba", root=tmp_path, size=32).shape == (3, 32, 32)
    with pytest.raises(InputError, match="size"):
        benchmark("celeba", tmp_path, size=2)


@pytest.mark.data
def test_real_data(data_root):
    data = benchmark("mnist", data_root)
    assert tuple(data.train.values.shape) == (60_000, 1, 28, 28)
    assert (len(data.test), data.public) == (10_000, True)
    assert sorted(data.train.labels.unique().tolist()) == list(range(10))
