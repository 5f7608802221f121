"""MNIST, Fashion-MNIST and USPS, through torchvision. Never downloaded unless asked for."""

from typing import Any

import torch
import torchvision

from dpswd.data.base import PrivateData, Records, data_root
from dpswd.errors import InputError

__all__ = ["MNIST", "USPS", "FashionMNIST"]


class _Torchvision(PrivateData):
    dataset: type
    public_benchmark = True

    def __init__(
        self,
        root: str | None = None,
        batch_size: int | None = None,
        n_synthetic: int = 20_000,
        download: bool = False,
    ) -> None:
        super().__init__(root, batch_size, n_synthetic)
        self.download = download

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`PrivateData`."""
        return self._read(train=True), self._read(train=False)

    def _read(self, train: bool) -> Records:
        root = data_root(self.root) / self.subfolder
        remedy = "pass --data.root or set DPSWD_DATA, or let torchvision fetch it with --data.download true"
        try:
            data: Any = self.dataset(root, train=train, download=self.download)
        except (RuntimeError, FileNotFoundError) as error:
            raise InputError(f"Expected {self.name} under {root}, got: {_first(error)}; {remedy}.") from None
        except Exception as error:  # what the readers of damaged files stumble over has no end
            raise InputError(
                f"Expected readable {self.name} files under {root}, got: {error}; fetch them again."
            ) from None
        values, labels = torch.as_tensor(data.data), torch.as_tensor(data.targets).long()
        if values.ndim != 3 or len(values) != len(labels):
            raise InputError(f"Expected images and labels under {root}, got {tuple(values.shape)} and {len(labels)}.")
        return Records(values.unsqueeze(1), labels)

    @property
    def subfolder(self) -> str:
        """Folder below the root, beyond the one that torchvision adds itself."""
        return ""


def _first(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "Dataset not found"
    return str(error).split(". ")[0].splitlines()[0]


class MNIST(_Torchvision):
    """60,000 private handwritten digits, 28 x 28; 10,000 for testing."""

    name = "MNIST"
    dataset = torchvision.datasets.MNIST


class FashionMNIST(_Torchvision):
    """60,000 private pictures of clothes, 28 x 28; 10,000 for testing."""

    name = "FashionMNIST"
    dataset = torchvision.datasets.FashionMNIST


class USPS(_Torchvision):
    """7,291 private handwritten digits, 16 x 16; 2,007 for testing."""

    name = "USPS"
    dataset = torchvision.datasets.USPS

    @property
    def subfolder(self) -> str:
        """USPS, where torchvision adds no folder of its own."""
        return "USPS"
