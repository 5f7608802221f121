"""Row by row, or refused: what mixes rows, what keeps statistics, and what the remedy is."""

import pytest
import torch
from torch import nn

from dpswd import InputError
from dpswd.rowwise import check_encoder, digest, rowwise
from models.encoders import DigitEncoder, FeatureEncoder

RECORDS = torch.randn(5, 7, generator=torch.Generator().manual_seed(0))
ROUNDING = 1e-5  # sums of a few hundred float32 of order 1, whose order may change with the memory they lie in


class Centred(nn.Module):
    """Subtracts the mean of the batch."""

    def forward(self, records):
        return records - records.mean(0)


class Memory(nn.Module):
    """Keeps the last record it saw in a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("last", torch.zeros(7))

    def forward(self, records):
        self.last.copy_(records[-1].detach())
        return records * 2


class Branching(nn.Module):
    """Looks at values, which vmap cannot trace."""

    def forward(self, records):
        return records * 2 if float(records.sum()) > 0 else records * 3


class Average(nn.Module):
    """Subtracts a running mean that is a plain attribute."""

    def __init__(self):
        super().__init__()
        self.mean = torch.zeros(7)

    def forward(self, records):
        self.mean = 0.9 * self.mean + 0.1 * records.detach().mean(0)
        return records - self.mean


def test_rowwise_equals_network():
    encoder = nn.Sequential(nn.Linear(7, 4), nn.Tanh(), nn.Dropout(0.9), nn.LayerNorm(4))
    rows = rowwise(encoder, RECORDS)
    assert encoder.training
    assert encoder[2].training  # as it was
    assert not rows.requires_grad
    assert torch.allclose(rows, encoder.eval()(RECORDS), atol=1e-6)


@pytest.mark.parametrize("encoder", [Centred(), Branching(), DigitEncoder(), nn.BatchNorm1d(7)])
def test_rowwise_replaced_record(encoder):
    records = torch.rand(5, 1, 28, 28) if isinstance(encoder, DigitEncoder) else RECORDS
    other = records.clone()
    other[3] = -3 * other[3] + 1
    moved = (rowwise(encoder, records) - rowwise(encoder, other)).abs().flatten(1).amax(1) > ROUNDING
    assert moved.tolist() == [False, False, False, not isinstance(encoder, Centred), False]  # centred alone: nothing
    if isinstance(encoder, Centred):  # control: a whole batch moves
        assert ((encoder(records) - encoder(other)).abs().amax(1) > ROUNDING).all()


@pytest.mark.parametrize("kind", [Average, Memory])
@pytest.mark.parametrize("n", [5, 1200], ids=["one chunk", "three chunks"])
def test_rowwise_encoder_with_memory(kind, n):
    records = torch.rand(n, 7, generator=torch.Generator().manual_seed(0))
    other = records.clone()
    other[0] = 9.0
    encoder, state = kind(), kind()
    moved = (rowwise(encoder, records) - rowwise(encoder, other)).abs().amax(1) > ROUNDING
    assert not moved[1:].any()
    assert {name: str(value) for name, value in vars(encoder).items()} == {
        name: str(value) for name, value in vars(state).items()
    }
    if kind is Average:  # control: a call per record without copies
        for_all = [torch.cat([one(row[None]) for row in batch]) for one, batch in ((kind(), records), (kind(), other))]
        assert ((for_all[0] - for_all[1]).abs().amax(1) > ROUNDING)[1:5].all()


def test_rowwise_encoder_without_copy():
    encoder = nn.Linear(7, 3)
    encoder.last = encoder.weight * 2  # a result with a history
    with pytest.raises(
        InputError, match=r"Expected an encoder that copy\.deepcopy can copy, got Linear \(Only Tensors"
    ):
        rowwise(encoder, RECORDS)
    encoder.last = encoder.last.detach()
    assert rowwise(encoder, RECORDS).shape == (5, 3)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (nn.Sequential(nn.Linear(7, 3), nn.BatchNorm1d(3)), r"BatchNorm1d \(1\) in train mode; call .eval\(\)"),
        (nn.BatchNorm1d(7, track_running_stats=False).eval(), "without running statistics; replace it by GroupNorm"),
        (nn.Sequential(nn.Unflatten(1, (7, 1)), nn.InstanceNorm1d(7, track_running_stats=True)), "InstanceNorm1d"),
        (Centred(), "Centred, whose rows depend on the rest of the batch"),
        (Memory(), "got Memory, whose buffers or parameters changed in evaluation mode"),
        (nn.Unflatten(1, (7, 1)), r"rows \(1, d\), got \(1, 7, 1\)"),
    ],
)
def test_check_encoder_refuses(encoder, message):
    with pytest.raises(InputError, match=message):
        check_encoder(encoder, RECORDS)


def test_check_encoder_accepts():
    for encoder in (
        nn.Sequential(nn.Linear(7, 3), nn.GroupNorm(1, 3)),
        nn.Sequential(nn.Linear(7, 3), nn.BatchNorm1d(3).eval()),
        nn.Sequential(nn.Linear(7, 6), nn.ReLU(), nn.LayerNorm(6)),
        FeatureEncoder(7, 4),
    ):
        check_encoder(encoder, RECORDS)
    with pytest.raises(InputError, match="Expected features of size 5, got 4; set dim"):
        check_encoder(FeatureEncoder(7, 4), RECORDS, 5)


def test_digest_of_every_number():
    encoder = nn.Sequential(nn.Linear(7, 3), nn.BatchNorm1d(3))
    before = digest(encoder)
    encoder[1].running_mean[2] = 1e-6
    assert digest(encoder) != before
