"""The embedded default: 1,797 real scans of handwritten digits, 8 x 8, that ship with scikit-learn."""

import torch

from dpswd.data.base import PrivateData, Records, every_fifth

__all__ = ["Digits"]


class Digits(PrivateData):
    """scikit-learn's digits: 1,438 private records, 359 for testing."""

    name = "digits"
    public_benchmark = True

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`PrivateData`."""
        from sklearn.datasets import load_digits

        digits = load_digits()
        values = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
        return every_fifth(Records(values, torch.from_numpy(digits.target).long()))
