"""Matrix products in float32 by the fastest library at hand. Nothing private passes here: that side is float64.

Measured on one core of an AMD EPYC with AVX-512 (docs/performance.md): torch's ``@`` goes to MKL, which is tuned for
other processors, and takes about twice as long as oneDNN, which torch also carries. Both are float32 throughout.
"""

import functools
from typing import Any

import torch
from torch import Tensor

__all__ = ["product"]

_WORTH = 2**20  # multiplications from which it pays


def product(a: Tensor, b: Tensor) -> Tensor:
    """Computes ``a @ b``, without a gradient.

    Args:
        a: (n, l), any strides.
        b: (l, m), likewise, of the same type and on the same device.

    Returns:
        Tensor (n, m).
    """
    fits = a.device.type == "cpu" and a.dtype == b.dtype == torch.float32
    if fits and len(a) * b.numel() >= _WORTH and (linear := _linear()):
        result: Tensor = linear(a, b.T)
        return result
    return a @ b


@functools.cache
def _linear() -> Any:
    """Returns ``a, b -> a @ b.T`` of oneDNN, or None where torch was built without it or calls it otherwise.

    The operator is what ``torch.compile`` makes of a linear layer; being no public name it is tried out first.
    """
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return None
    try:
        operator = torch.ops.mkldnn._linear_pointwise
        a = torch.arange(12, dtype=torch.float32).reshape(3, 4)
        b = torch.arange(20, dtype=torch.float32).reshape(4, 5).T

        def linear(a: Tensor, b: Tensor) -> Tensor:
            found: Tensor = operator(a, b, None, "none", [], "")
            return found

        return linear if torch.equal(linear(a, b), a @ b.T) else None
    except (AttributeError, RuntimeError, TypeError):
        return None
