"""Pairs of a labelled public source and an unlabelled private target: digits, Office-Caltech-10, feature files.

The guarantee protects the target records that train; their labels are not used. ``test`` is for evaluation only:
separate records for digits (inductive), the target records themselves for public feature files (transductive, as in
Rakotomamonjy2021).

Office-31 and VisDA-2017 are read as features of a ResNet-50 trained on ImageNet (the 2,048 values before its last
layer, which torchvision computes from the images): one ``.npz`` per domain, ``features`` (N, 2048) and ``labels`` (N,).
"""

from pathlib import Path
from typing import Any, Literal

import torch

from dpswd._validate import choice
from dpswd.accounting.calibrate import mu_of_epsilon
from dpswd.adaptation.framing import frame
from dpswd.adaptation.space import SourceSpace, channels_last
from dpswd.data.base import PrivateData, Records, Unreadable
from dpswd.data.benchmarks import MNIST, USPS
from dpswd.data.features import FeatureFile
from dpswd.errors import InputError
from dpswd.training.callback import PrivacyBudget

__all__ = ["AdaptationData", "DigitAdaptation", "FeatureAdaptation", "OfficeCaltech"]

OFFICE = {"A": "amazon", "W": "webcam", "D": "dslr"}
_FIRST = 10_000  # images of MNIST that are used: the first ones
_UNLIMITED_MU = 10.0  # the coordinates of a run without a budget


class AdaptationData(PrivateData):
    """Base class of the pairs; a subclass implements :meth:`domains`.

    ``private`` holds images of the target as they are, and vectors by their leading coordinates in ``space``, whose
    number depends on the budget of the trainer.

    Args:
        root: Directory of the data sets; ``DPSWD_DATA`` or ``./data`` if not given.
        normalise: Scale every vector to norm 1 first, as is usual for features of a network.

    Example:
        >>> class Shifted(AdaptationData):
        ...     def domains(self):
        ...         source = Records(torch.rand(20, 3), torch.arange(20) % 2)
        ...         return source, Records(source.values + 1, source.labels), None
        >>> Shifted().source.labels.sum(), Shifted().target.labels.sum()
        (tensor(10), tensor(0))
    """

    name = "adaptation"

    def __init__(self, root: str | None = None, normalise: bool = False) -> None:
        super().__init__(root)
        self.normalise = normalise
        self._domains: tuple[Records, Records, Records | None] | None = None
        self._space: SourceSpace | None = None

    def domains(self) -> tuple[Records, Records, Records | None]:
        """Reads (labelled source, private target, labelled test records of the target or ``None``)."""
        raise NotImplementedError

    def _read(self) -> tuple[Records, Records, Records | None]:
        if self._domains is None:
            source, target, test = self.domains()
            for records in (target, *([] if test is None else [test])):
                if source.values.shape[1:] != records.values.shape[1:]:
                    raise InputError(
                        f"Expected source and target of one shape, got {tuple(source.values.shape[1:])} and "
                        f"{tuple(records.values.shape[1:])}; use features of the same network."
                    )
            self._domains = source, Records(target.values, torch.zeros_like(target.labels)), test
        return self._domains

    @property
    def source(self) -> Records:
        """Labelled public records."""
        return self._read()[0]

    @property
    def target(self) -> Records:
        """Private records as they are; all labels are 0."""
        return self._read()[1]

    @property
    def test(self) -> Records | None:
        """Labelled records of the target domain, for evaluation only."""
        return self._read()[2]

    @property
    def n_classes(self) -> int | None:
        """The target has no labels."""
        return 0

    @property
    def space(self) -> SourceSpace:
        """Public coordinates of the records."""
        if self._space is None:
            budgets = [each for each in getattr(self.trainer, "callbacks", ()) if isinstance(each, PrivacyBudget)]
            mu = mu_of_epsilon(budgets[0].target_epsilon, budgets[0].target_delta) if budgets else _UNLIMITED_MU
            self._space = SourceSpace.of(channels_last(self.source.floats()), len(self.target), mu, self.normalise)
        return self._space

    @property
    def reference(self) -> torch.Tensor | None:  # type: ignore[override]
        """Source vectors in the form of the private ones; ``None`` for images."""
        if self.source.values.ndim > 2:
            return None
        return torch.from_numpy(self.space.leading(self.source.floats().numpy())).float()

    def load(self) -> tuple[Records, Records | None]:
        """See :class:`~dpswd.data.base.PrivateData`."""
        if self.target.values.ndim > 2:
            return self.target, None
        rows = self.space.target_rows(self.target.floats().numpy())
        return Records(torch.from_numpy(rows), self.target.labels), None

    def setup(self, stage: str) -> None:
        """Reads the records before a fit; see :class:`~dpswd.data.base.PrivateData`."""
        if stage == "fit":
            self._splits = self._space = None  # a budget may have come since
        super().setup(stage)


class DigitAdaptation(AdaptationData):
    """MNIST and USPS: 10,000 and 7,291 records for training, 10,000 and 2,007 of the official test sets for testing.

    The paper has other sizes: 60,000 MNIST and 7,438 USPS images, and MNIST's test set as a target.

    Args:
        source: ``"MNIST"`` or ``"USPS"``, with labels.
        target: The other one; its training images are the private records.
        framing: ``"framed"`` makes each image upright, centred and of one size
            (:func:`dpswd.adaptation.framing.frame`); ``"resized"`` scales it to 28 x 28.
        root: See :class:`AdaptationData`.
        public_benchmark: States whether the target is public; by the checksums of its files if not given.

    Raises:
        InputError: If a name is unknown, or source and target are the same.

    Example:
        >>> DigitAdaptation("USPS", "MNIST").name
        'USPS-MNIST'
    """

    def __init__(
        self,
        source: Literal["MNIST", "USPS"] = "MNIST",
        target: Literal["MNIST", "USPS"] = "USPS",
        framing: Literal["framed", "resized"] = "framed",
        root: str | None = None,
        public_benchmark: bool | None = None,
    ) -> None:
        super().__init__(root)
        choice(("MNIST", "USPS"), source=source, target=target)
        choice(("framed", "resized"), framing=framing)
        if source == target:
            raise InputError(f"Expected two data sets, got {source} for both; adapt from one to the other.")
        makers: dict[str, Any] = {"MNIST": MNIST, "USPS": USPS}
        self._source, self._target = (
            makers[name](root, public_benchmark=public_benchmark) for name in (source, target)
        )
        self.framing, self.name = framing, f"{source}-{target}"

    @property
    def public_benchmark(self) -> bool:  # type: ignore[override]
        """Whether the target is public."""
        return bool(self._target.public_benchmark)

    def domains(self) -> tuple[Records, Records, Records | None]:
        """See :class:`AdaptationData`."""
        (source, _), (target, test) = self._source.load(), self._target.load()
        assert test is not None
        return self._framed(source, _FIRST), self._framed(target, _FIRST), self._framed(test)

    def _framed(self, records: Records, limit: int | None = None) -> Records:
        images = records.floats(slice(limit))
        if self.framing == "framed":
            images = torch.cat([frame(part) for part in images.split(2000)])
        elif images.shape[-1] != 28:
            images = torch.nn.functional.interpolate(images, size=28, mode="bilinear", antialias=True)
        return Records(images, records.labels[:limit])


class FeatureAdaptation(AdaptationData):
    """Feature vectors of two domains, one ``.npz`` each: ``features`` (N, d), and ``labels`` (N,) for the source.

    Args:
        source: File of the labelled domain, relative to the working directory or to the root.
        target: File of the private domain. Its labels are ignored unless it is public.
        root: See :class:`AdaptationData`.
        normalise: See :class:`AdaptationData`.
        test: File of labelled records of the target domain that are not in ``target``.
        public_benchmark: States that the target is public, as Office-31 is. Its labels are then read and, without
            ``test``, it is the test set too.
        unreadable: ``"zero"`` maps a target row with NaN or inf to zeros; ``"refuse"`` raises.

    Example:
        >>> data = FeatureAdaptation("amazon.npz", "webcam.npz", normalise=True, public_benchmark=True)
        >>> data.name, data.n_classes
        ('amazon-webcam', 0)
    """

    def __init__(
        self,
        source: str,
        target: str,
        root: str | None = None,
        normalise: bool = False,
        test: str | None = None,
        public_benchmark: bool = False,
        unreadable: Unreadable = "refuse",
    ) -> None:
        super().__init__(root, normalise)
        self.paths, self.public_benchmark, self.unreadable = (source, target, test), public_benchmark, unreadable
        self.name = f"{Path(source).stem}-{Path(target).stem}"

    def domains(self) -> tuple[Records, Records, Records | None]:
        """See :class:`AdaptationData`."""
        source, target, test = self.paths
        labelled = self.public_benchmark and test is None
        rows = self._file(target, labelled=labelled, unreadable=self.unreadable)
        if test is not None:
            return self._file(source, labelled=True), rows, self._file(test, labelled=True)
        return self._file(source, labelled=True), rows, rows if labelled else None

    def _file(self, path: str, **options: Any) -> Records:
        return FeatureFile(path, self.root, test_split=False, **options).private


class OfficeCaltech(FeatureAdaptation):
    """Office-Caltech-10, GoogLeNet features (1,024): Amazon 958, Webcam 295, DSLR 157 rows of 10 classes; public.

    Args:
        source: ``"A"``, ``"W"`` or ``"D"``.
        target: Another one, which plays the private domain.
        root: See :class:`AdaptationData`.
        normalise: See :class:`AdaptationData`.

    Raises:
        InputError: If a name is unknown, or source and target are the same.

    Example:
        >>> OfficeCaltech("A", "D").paths[:2]
        ('office_caltech10/amazon_GoogleNet1024.npz', 'office_caltech10/dslr_GoogleNet1024.npz')
    """

    def __init__(
        self,
        source: Literal["A", "W", "D"] = "A",
        target: Literal["A", "W", "D"] = "W",
        root: str | None = None,
        normalise: bool = False,
    ) -> None:
        choice(tuple(OFFICE), source=source, target=target)
        if source == target:
            raise InputError(f"Expected two domains, got {source} for both; adapt from one to the other.")
        files = [f"office_caltech10/{OFFICE[letter]}_GoogleNet1024.npz" for letter in (source, target)]
        super().__init__(files[0], files[1], root, normalise, public_benchmark=True)
        self.name = f"{source}-{target}"
