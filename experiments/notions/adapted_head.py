"""A Gibbs head on the features of an adapted model: tangent DP of a private choice between public heads.

An encoder is adapted from MNIST to USPS as in Table 1 (one release of the 7,291 training images). Its features of
source images, along the 16 principal directions of the source and scaled by the source, train 256 candidate heads.
600 labelled training images of USPS then decide between them: q is proportional to exp(-beta mean loss). That decision
is a second look at private records; ``dp_epsilon_of_one_draw`` is what one draw costs, and composes with the first.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpswd.adaptation.adapters import frame
from dpswd.adaptation.data import DigitAdaptation
from dpswd.data import USPS
from dpswd.training.callback import PrivacyBudget
from experiments.adaptation.adaptation_cells import silence
from experiments.adaptation.adaptation_methods import PROBLEMS, make_module, make_start, train_module
from experiments.notions.tangent import FEATURES, candidates, finite_rows

HELP = "tangent DP of a Gibbs head on the features of an adapted model (minutes)"

EPSILON, PRIVATE, PUBLIC = 10.0, 600, 2000


def principal_scores(public: Tensor, *others: Tensor) -> list[Tensor]:
    """Scores (n, 16) along the principal directions of public features, each scaled to at most 1 in size on them."""
    center = public.mean(0)
    _, _, directions = torch.linalg.svd(public - center, full_matrices=False)
    rotated = [(part - center) @ directions[:FEATURES].T for part in (public, *others)]
    largest = rotated[0].abs().amax(0)
    return [(part / largest).clamp(-1, 1) for part in rotated]


def adapted_features(root: str | None) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Any]]:
    """Adapts an encoder; returns features and classes of public, private and test rows, and what was spent."""
    start = make_start(PROBLEMS["MNIST-USPS"], 0, root)
    module = make_module(start)
    spent = train_module(module, start, PrivacyBudget(EPSILON, start.problem.delta))
    data = start.data
    assert isinstance(data, DigitAdaptation)
    labelled, _ = USPS(root).load()
    images = frame(labelled.floats(slice(PRIVATE)))
    rows = [data.source.values[:PUBLIC], images, data.test.values]
    scores = principal_scores(*(module.features(part).double() for part in rows))
    classes = [data.source.labels[:PUBLIC], labelled.labels[:PRIVATE], data.test.labels]
    return dict(zip(("public", "private", "test"), zip(scores, classes, strict=True), strict=True)), spent


def run(out: Path, *, quick: bool = False, data: Path | None = None) -> dict[str, Any]:
    """Returns one row per loss and beta."""
    silence()
    split, spent = adapted_features(None if data is None else str(data))
    heads = candidates(*split["public"], 24 if quick else 256, torch.Generator().manual_seed(0))
    rows = finite_rows(heads, split["private"], split["test"], [10.0, 100.0, 1000.0])
    for row in rows:
        row["features"] = "adapted"
        print(
            f"{row['loss']:<8} beta {row['beta']:<6g} accuracy {row['accuracy']:.1f}  tangent (TV) "
            f"{row['tangent_tv_exact']:.3g}  removal x n {row['removal_tv'] * row['n_private']:.3g}  "
            f"epsilon of one draw {row['dp_epsilon_of_one_draw']:.3g}"
        )
    return {"adaptation": spent, "rows": rows}
