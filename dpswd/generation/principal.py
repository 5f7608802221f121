"""Principal directions of the private records, from a second moment that the budget pays for."""

import torch
from torch import Tensor

from dpswd._validate import at_least, positive
from dpswd.errors import InputError
from dpswd.generation.features import FeatureMap

__all__ = ["PrincipalDirections"]


class PrincipalDirections(FeatureMap):
    r"""Projects the rows of a public map on the leading eigenvectors of a RELEASED second moment, and rescales them.

    Slices in all directions see mostly those in which records vary most; classes often differ in others. With
    eigenvalues :math:`\lambda_i` of the released moment per record, coordinate i is divided by
    :math:`\lambda_i^{w/2}`, w the whitening. Everything is computed from the release, hence post-processing; the rows
    are clipped (by the loss) after it, and uniform directions in the subspace have the law of S of its dimension.

    Args:
        base: Public map from records to rows.
        components: Number of directions kept.
        whitening: 0 for plain projection, 1 for equal variance in all directions.
        spread: A row of typical norm is mapped to norm 1 / (2 spread); larger ones than ``spread`` times are clipped.
    """

    analysis: Tensor
    synthesis: Tensor
    fitted: Tensor
    variances: Tensor

    def __init__(self, base: FeatureMap, components: int = 40, whitening: float = 0.6, spread: float = 1.5) -> None:
        super().__init__(base.sample_shape)
        at_least(2, components=components)
        positive(spread=spread)
        if components > base.dim:
            raise InputError(f"Expected components <= {base.dim} (dimension of the rows), got {components}.")
        if not 0 <= whitening <= 1:
            raise InputError(f"Expected whitening between 0 and 1, got {whitening!r}.")
        self.base, self.components, self.whitening, self.spread = base, components, whitening, spread
        self.register_buffer("analysis", torch.zeros(base.dim, components))
        self.register_buffer("synthesis", torch.zeros(components, base.dim))
        self.register_buffer("variances", torch.zeros(components))  # second moments of the rows
        self.register_buffer("fitted", torch.tensor(False))

    @property
    def dim(self) -> int:
        """Number of components."""
        return self.components

    def fit(self, moment: Tensor, sample_size: int) -> None:
        """Takes a released second moment (base.dim, base.dim) of ``sample_size`` rows (public)."""
        values, vectors = torch.linalg.eigh(moment.double().cpu() / sample_size)
        values = _spectrum(values)
        values, vectors = values.flip(0)[: self.components], vectors.flip(1)[:, : self.components]
        if not float(values[0]) > 0:  # the noise left nothing: rows of norm 1/2 in all directions
            values = torch.full_like(values, 0.25 / len(values))
        values = values.clamp(min=1e-4 * float(values[0]))
        scale = values ** (-self.whitening / 2)
        norm = 2 * self.spread * float((values * scale.square()).sum().sqrt())
        self.analysis.copy_(vectors * scale / norm)
        self.synthesis.copy_((vectors / scale * norm).T)
        self.variances.copy_(values * (scale / norm).square())
        self.fitted.fill_(True)

    def probed(self) -> FeatureMap:
        """A copy with random public directions where there are none yet, which mix all that the base map gives."""
        copied = super().probed()
        assert isinstance(copied, PrincipalDirections)
        if not bool(copied.fitted):
            directions = torch.randn(copied.analysis.shape, generator=torch.Generator().manual_seed(0))
            copied.analysis.copy_(directions / self.base.dim**0.5)
            copied.fitted.fill_(True)
        return copied

    def forward(self, records: Tensor) -> Tensor:
        """Maps (n, *sample_shape) to (n, components)."""
        if not bool(self.fitted):
            raise InputError("Expected principal directions to be fitted to a release, got none; call fit first.")
        result: Tensor = self.base(records) @ self.analysis
        return result

    def decode(self, rows: Tensor) -> Tensor:
        """Maps rows (n, components) to records in the subspace."""
        return self.base.decode(rows @ self.synthesis)


def _spectrum(values: Tensor) -> Tensor:
    """Nearest spectrum without negative values that has the same sum: noise spreads a spectrum and leaves its sum.

    Args:
        values: (D,), ascending; the eigenvalues of a second moment with noise.
    """
    descending = values.flip(0)
    excess = (descending.cumsum(0) - descending.sum().clamp(min=0)) / torch.arange(1, len(values) + 1)
    kept = int((descending > excess).sum())
    return (values - excess[max(kept, 1) - 1]).clamp(min=0)
