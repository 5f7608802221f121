"""Handles of private records: public facts are shown, records are not."""

import numpy as np
import pytest
import torch
from factories import N, X, Y, loader, records

from dpswd import InputError, PrivateBatch, PrivateRecords, Records
from dpswd._arrays import Layout
from dpswd.records import Stored


def test_public_facts():
    handle = PrivateRecords(np.zeros((6, 8, 8, 3), dtype=np.uint8), list("abcabc"), classes=list("abc"), name="x")
    assert (len(handle), handle.shape, handle.n_classes, handle.classes) == (6, (3, 8, 8), 3, ["a", "b", "c"])
    assert repr(handle) == "PrivateRecords(6 records of shape (3, 8, 8), n_classes=3)"
    assert (handle.name, handle.taken, handle.bounds, handle.kinds) == ("x", (), None, None)
    table = PrivateRecords(X, bounds=[(-1, 1)] * 3, kinds=["numeric", "integer", "binary"])
    assert (table.shape, table.n_classes, table.classes) == ((3,), 0, None)
    assert (table.bounds, table.kinds) == ([(-1, 1)] * 3, ["numeric", "integer", "binary"])


@pytest.mark.parametrize(
    "use",
    [
        lambda handle: handle[0],
        iter,
        list,
        lambda handle: torch.stack([*handle]),
        lambda handle: handle + 1,
        lambda handle: float(handle),
        lambda handle: handle.mean(),
        lambda handle: handle.tensor,
        lambda handle: torch.as_tensor(handle),
        lambda handle: np.asarray(handle) + 0,
    ],
)
@pytest.mark.parametrize("make", [records, lambda: next(iter(loader()))], ids=["records", "batch"])
def test_no_record_is_shown(make, use):
    with pytest.raises((TypeError, AttributeError, RuntimeError, ValueError)):
        use(make())


def test_nothing_public_returns_a_record():
    """Every attribute without an underscore of both handles holds public facts."""
    handle, batch = records(), next(iter(loader()))
    for each in (handle, batch):
        for name in dir(each):
            assert name.startswith("_") or not hasattr(getattr(each, name), "__array__"), name
    assert not any(f"{float(value):.4g}" in repr(handle) + repr(batch) for value in X.flatten())


@pytest.mark.parametrize(
    ("arguments", "options", "match"),
    [
        ((X[:0],), {}, "one record"),
        ((X, Y[:-1]), {"classes": range(3)}, "class per record"),
        ((X, Y), {"classes": range(2)}, "classes"),
        ((X, torch.zeros(N)), {"classes": [0]}, "2 classes"),
        ((X.log(),), {}, "finite|nan|NaN"),
        ((X,), {"unreadable": "skip"}, "unreadable"),
        ((X,), {"bounds": [(0, 1)]}, "bounds"),
        ((X,), {"bounds": [(0, 1), (1, 1), (0, 1)]}, "bounds"),
        ((X,), {"kinds": ["numeric", "text", "binary"]}, "kinds"),
        ((X.reshape(2, 2, 2, 5, 3),), {}, "images|rows"),
    ],
)
def test_invalid_records_are_refused(arguments, options, match):
    with pytest.raises(InputError, match=match) as caught:
        PrivateRecords(*arguments, **options)
    assert "\n" not in str(caught.value)
    assert not any(f"{float(value):.4g}" in str(caught.value) for value in X.flatten())


def test_unreadable_records_become_zero():
    handle = PrivateRecords(X.log(), unreadable="zero")
    values, _ = handle.open_records(torch.arange(N))
    bad = ~torch.isfinite(X.log()).all(1)
    assert torch.equal(values[bad], torch.zeros(int(bad.sum()), 3))
    assert torch.equal(values[~bad], X.log()[~bad])


def test_bytes_are_pixels_and_records_on_disk_are_read():
    images = torch.arange(6 * 16, dtype=torch.uint8).reshape(6, 1, 4, 4)
    disk = Stored(lambda index: images[index], tuple(images.shape), torch.uint8, "key")
    here = Records(images, Y[:6]).private(classes=range(3))
    there = PrivateRecords.from_values(disk, Y[:6], classes=range(3), layout=Layout.of(images))
    for handle in (here, there):
        values, labels = handle.open_records(torch.tensor([4, 1]))
        torch.testing.assert_close(values, images[[4, 1]].float() / 255)
        assert labels.tolist() == [1, 1]
    assert not disk.large
    other = Stored(disk.read, disk.shape, torch.uint8, "other")
    again = PrivateRecords.from_values(other, Y[:6], classes=range(3), layout=Layout.of(images))
    assert len({here.digest(), there.digest(), again.digest()}) == 3


def test_digest_tells_records_apart():
    assert records().digest() == records(X.clone()).digest()
    for rows, labels in ((X.flip(0), Y), (X[:-1], Y), (X, Y.flip(0))):
        assert records(rows, labels).digest() != records().digest()


@pytest.mark.parametrize(("rows", "repeated"), [(X, 0), (torch.cat([X[:30], X[:10]]), 10), (torch.zeros(N, 3), N - 1)])
def test_check_counts_copies(rows, repeated, capsys):
    assert records(rows).check() == repeated
    assert ("Keep this number to yourself" in capsys.readouterr().err) is bool(repeated)


def test_batches():
    handle = records()
    batch = PrivateBatch(handle, 5)
    assert (len(batch), batch.to("cpu", non_blocking=True) is batch, repr(batch)) == (
        5,
        True,
        "PrivateBatch(5 records)",
    )
    assert batch.take() is handle
    with pytest.raises(InputError, match="one release"):
        batch.take()
    with pytest.raises(InputError, match="without a release"):
        PrivateBatch(None, 5).take()
    for size in (0, N + 1):
        with pytest.raises(InputError, match="batch_size"):
            PrivateBatch(handle, size)


def test_records_that_the_user_may_look_at():
    public = Records((X.abs() * 80).to(torch.uint8), Y)
    assert len(public) == N
    torch.testing.assert_close(public.floats(torch.tensor([2])), public.values[[2]].float() / 255)
    assert public.select(torch.tensor([3, 1])).labels.tolist() == [0, 1]
    assert public.private().n_classes == 0
    assert public.private(classes=range(3)).n_classes == 3
