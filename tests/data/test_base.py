"""Records, sizes of releases, and the mapping of unreadable records to zeros."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from dpswd import InputError
from dpswd.data import CIFAR10, ArrayData, CelebA, Digits, FeatureFile, ImageFolder, Records
from dpswd.data.base import every_fifth, finite_records

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("values", "labels", "message"),
    [
        (torch.zeros(0, 2), torch.zeros(0).long(), "at least one record"),
        (torch.zeros(3, 2), torch.zeros(2).long(), "a label per record"),
        (torch.zeros(1, 2), torch.tensor([-1]), "labels of at least 0"),
        (torch.tensor([[INF]]), torch.zeros(1).long(), "finite records.*unreadable=zero"),
    ],
)
def test_records_that_do_not_fit(values, labels, message):
    with pytest.raises(InputError, match=message):
        Records(values, labels)


def test_unreadable_records_become_zeros_one_by_one():
    """The map acts per record: the same record gives the same result beside any others, and N stays."""
    good = torch.arange(8.0).reshape(4, 2) + 1
    for bad in (torch.tensor([NAN, 1.0]), torch.tensor([1.0, -INF])):
        values = good.clone()
        values[2] = bad
        assert finite_records(values, "zero").tolist() == [[1, 2], [3, 4], [0, 0], [7, 8]]
        with pytest.raises(InputError, match="finite"):  # control
            finite_records(values, "refuse")
    assert torch.equal(finite_records(good, "zero"), good)
    images = torch.full((2, 1, 2, 2), 0.5)
    images[1, 0, 0, 1] = NAN
    assert finite_records(images, "zero").flatten(1).tolist() == [[0.5] * 4, [0.0] * 4]


def test_floats_of_bytes_are_pixels():
    records = Records(torch.tensor([[0], [255]], dtype=torch.uint8), torch.zeros(2).long())
    assert records.floats().tolist() == [[0.0], [1.0]]


class NoReading:
    """Makes a data module fail where it reads records."""

    def load(self):
        raise AssertionError("a record was read")


def unread(kind, *arguments, **options):
    return type(kind.__name__, (NoReading, kind), {})(*arguments, **options)


def test_public_facts_read_no_record(tmp_path):
    """Number, shape and classes from the list of files, the headers and constants."""
    for i in range(20):
        folder = tmp_path / "images" / "ab"[i % 2]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16), i, dtype=np.uint8)).save(folder / f"{i}.png")
    shutil.copytree(tmp_path / "images", tmp_path / "celeba64")
    shutil.copytree(tmp_path / "images", tmp_path / "cifar10_images" / "train")
    np.savez(tmp_path / "x.npz", features=np.zeros((21, 5)), labels=np.arange(21) % 3)
    root = str(tmp_path)
    cases = [
        (unread(ImageFolder, "images", root=root), (16, (1, 16, 16), 2)),
        (unread(ImageFolder, "images", size=8, channels=3, test_split=False, root=root), (20, (3, 8, 8), 2)),
        (unread(FeatureFile, "x.npz", root=root), (17, (5,), 3)),
        (unread(FeatureFile, "x.npz", root=root, labelled=False, test_split=False), (21, (5,), 0)),
        (unread(Digits), (1438, (1, 8, 8), 10)),
        (unread(CelebA, root=root), (16, (3, 64, 64), 0)),
        (unread(CelebA, "torchvision"), (162_000, (3, 64, 64), 0)),
        (unread(CIFAR10, root=root), (20, (3, 32, 32), 10)),
        (unread(CIFAR10, root=str(tmp_path / "none")), (50_000, (3, 32, 32), 10)),
        (ArrayData(np.zeros((7, 4, 4)), np.arange(7) % 2), (7, (1, 4, 4), 2)),
    ]
    for data, facts in cases:
        assert data.public_facts() == facts
    for data, facts in cases[:5]:
        read = type(data).__mro__[2]
        options = {
            name: getattr(data, name) for name in ("path", "size", "channels", "test_split") if name in vars(data)
        }
        read = read(**options, root=root) if options else read()
        assert (len(read.private), tuple(read.private.values.shape[1:])) == facts[:2]
    assert cases[0][0].class_names == ["a", "b"]


def test_split_by_position():
    train, test = every_fifth(Records(torch.arange(12.0)[:, None], torch.zeros(12, dtype=torch.int64)))
    assert test.values.flatten().tolist() == [4, 9]
    assert len(train) == 10


@pytest.mark.parametrize(
    ("batch_size", "n_quantiles", "size"), [(None, None, 1438), (None, 100, 1400), (None, 1438, 1438), (50, 7, 50)]
)
def test_release_size(batch_size, n_quantiles, size):
    assert Digits(batch_size=batch_size).release_size(n_quantiles) == size


def test_release_size_above_the_number_of_records():
    with pytest.raises(InputError, match="n_quantiles"):
        Digits().release_size(1439)
    with pytest.raises(InputError, match="batch_size"):
        Digits(batch_size=1439).release_size(None)
