"""What is compared: our distance and our loss, POT, the paper's way of doing it, and the least that must be done.

axes: n rows on both sides, d dimension, k directions. Everything in float32, gradient for the generated side y.
"""

from collections.abc import Callable
from dataclasses import dataclass

import ot
import torch
import torch.nn.functional as F
from torch import Tensor

from dpswd import DPSlicedWassersteinLoss, ProjectionMechanism, random_projections, sliced_wasserstein
from dpswd._sorting import sort_rows_with_order

SIZES = [(100, 784, 1000), (1000, 784, 1000), (1000, 784, 100), (6000, 144, 288), (256, 8192, 2000), (60000, 784, 1000)]
SIGMA = 0.1


@dataclass
class Problem:
    """Two samples and directions, the same for all."""

    x: Tensor
    y: Tensor
    u: Tensor

    @classmethod
    def make(cls, n: int, d: int, k: int, device: str = "cpu") -> "Problem":
        """Draws a problem, the same one every time."""
        generator = torch.Generator().manual_seed(0)
        x, y = (torch.randn(n, d, generator=generator).to(device) for _ in range(2))
        u = random_projections(d, k, generator=generator, dtype=torch.float32, device=device)
        return cls(x, y.requires_grad_(), u)

    def backward(self, loss: Tensor) -> Tensor:
        """Takes the gradient afresh."""
        self.y.grad = None
        loss.backward()
        return loss.detach()


def ours(problem: Problem) -> Tensor:
    """:func:`dpswd.sliced_wasserstein`, forward and backward."""
    return problem.backward(sliced_wasserstein(problem.x, problem.y, problem.u))


def pot(problem: Problem) -> Tensor:
    """POT's, squared, with its torch backend and the same directions."""
    return problem.backward(ot.sliced_wasserstein_distance(problem.x, problem.y, projections=problem.u) ** 2)


def naive(problem: Problem) -> Tensor:
    """Two products, two sorts, a mean of squares: as in the paper's code, here with the same directions."""
    sorted_x, sorted_y = ((z @ problem.u).sort(dim=0).values for z in (problem.x, problem.y))
    return problem.backward((sorted_x - sorted_y).square().mean())


def floor(problem: Problem) -> Tensor:
    """Two products, the sort of the generated side by the fastest sort at hand, the backward product. No distance."""
    return _floor(problem, torch.matmul)


def strict_floor(problem: Problem) -> Tensor:
    """:func:`floor` with the fastest products at hand, which are ours."""
    return _floor(problem, torch.matmul)


def _floor(problem: Problem, times: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    n, k = len(problem.x), problem.u.shape[1]
    width = k if n * k <= 10**7 else 64  # the projections of all directions do not always fit
    gradient = torch.empty(0)
    for piece in problem.u.T.split(width):
        rows, _ = times(piece, problem.x.T), sort_rows_with_order(times(piece, problem.y.detach().T))
        part = times(rows.T, piece)
        gradient = gradient.add_(part) if len(gradient) else part
    return gradient


def exact(problem: Problem, width: int = 50) -> float:
    """The distance in float64, a few directions at a time."""
    x, y, u = problem.x.double(), problem.y.detach().double(), problem.u.double()
    total = sum(
        float(((part.T @ x.T).sort(1).values - (part.T @ y.T).sort(1).values).square().sum())
        for part in u.split(width, dim=1)
    )
    return total / len(x) / u.shape[1]


DISTANCES: dict[str, Callable[[Problem], Tensor]] = {
    "ours": ours,
    "pot": pot,
    "naive": naive,
    "floor": floor,
    "strict": strict_floor,
}


def private_step(problem: Problem, release: str) -> Callable[[], Tensor]:
    """Our loss with everything that a release takes: secure randomness, clipping, float64, noise, backward."""
    (n, d), k = problem.x.shape, problem.u.shape[1]
    quantiles = max(m for m in range(1, 51) if n % m == 0) if release == "quantiles" else None
    mechanism = ProjectionMechanism(d, k, SIGMA, n, release, quantiles)  # type: ignore[arg-type]
    loss = DPSlicedWassersteinLoss(mechanism)
    return lambda: problem.backward(loss(problem.x, problem.y))


def paper_step(problem: Problem) -> Tensor:
    """The paper's step: torch's generator, float32, both sides blurred; neither clipped nor order-free."""
    d, k = problem.u.shape
    u = F.normalize(torch.randn(d, k, device=problem.x.device), dim=0)
    clouds = (z @ u for z in (problem.x, problem.y))
    x, y = ((cloud + SIGMA * torch.randn_like(cloud)).sort(dim=0).values for cloud in clouds)
    return problem.backward((x - y).square().mean())
