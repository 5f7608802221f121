r"""Baselines of Table 1 as LightningModules.

They are DANN, SWD, the published DP-SWD, and the source only, which Table 1 does not print.

NOT PRIVATE: a step reads a raw batch of the target, and the gradient passes through it. Source only
trains on no record of the target; its accuracy reads the labels of the target.
:class:`dpswd.lightning.adaptation.AdaptationModule` is the sound form of the published algorithm,
:mod:`models.dp_dann` has DP-DANN. An encoder g and a classifier h minimise

.. math:: \mathbb{E}\, \ell(h(g(x_s)), y_s) + \lambda D(g(x_s), g(x_t)),

by Adam, from a fixed step on with the term D of a class.

References:
    | Rakotomamonjy2021, Section 4, Algorithm 2 and appendix 8.5.2, and its code (arakotom/dp_swd at
    | 97164ee).
    | DANN: Ganin et al., Domain-Adversarial Training of Neural Networks, JMLR 2016.
    | SWD: Lee et al., Sliced Wasserstein Discrepancy, CVPR 2019.
"""

from typing import Any, cast

import lightning as L
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpswd._validate import at_least, nonnegative, positive
from models.published import published_loss


class SourceOnly(L.LightningModule):
    """Trains encoder and classifier on the source alone; base of the other modules.

    A batch is a dictionary, as :class:`models.domains.Domains` makes it: ``source`` has records and
    numbers of classes, ``target`` raw records.

    Args:
        encoder: Maps records to features (n, dim), each record by itself; ``dim`` is an attribute.
        classifier: Maps features to scores (n, C).
        lr: Learning rate of Adam.
        betas: Decay rates of Adam.

    Raises:
        InputError: If a number is out of range.
    """

    def __init__(
        self,
        encoder: nn.Module,
        classifier: nn.Module,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.5, 0.999),
    ) -> None:
        super().__init__()
        positive(lr=lr)
        # Convolutions are a third faster in this layout on a CPU.
        self.encoder = encoder.to(memory_format=torch.channels_last)
        self.classifier = classifier
        self.lr = lr
        self.betas = betas

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the cross-entropy of a batch of the source."""
        records, classes = batch["source"]
        return self.class_loss(self.encoder(records), classes)

    def class_loss(self, features: Tensor, classes: Tensor) -> Tensor:
        """Return the cross-entropy of features (n, dim), and show it."""
        cross_entropy = F.cross_entropy(self.classifier(features), classes)
        self.log("cross_entropy", cross_entropy, prog_bar=True, batch_size=len(features))
        return cross_entropy

    def forward(self, records: Tensor) -> Tensor:
        """Return the scores (n, C) of records."""
        return cast(Tensor, self.classifier(self.encoder(records)))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam with a constant learning rate."""
        return torch.optim.Adam(self.parameters(), lr=self.lr, betas=self.betas)


class Aligned(SourceOnly):
    """Base of the modules with a term of source and target. NOT PRIVATE.

    Args:
        encoder: Maps records to features (n, dim), each record by itself; ``dim`` is an attribute.
        classifier: Maps features to scores (n, C).
        weight: Weight of the term.
        first_step: First training step with the term.
        lr: Learning rate of Adam.
        betas: Decay rates of Adam.

    Raises:
        InputError: If a number is out of range.
    """

    def __init__(
        self,
        encoder: nn.Module,
        classifier: nn.Module,
        weight: float = 1.0,
        first_step: int = 0,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.5, 0.999),
    ) -> None:
        super().__init__(encoder, classifier, lr, betas)
        nonnegative(weight=weight)
        at_least(0, first_step=first_step)
        self.weight = weight
        self.first_step = first_step

    @property
    def is_aligning(self) -> bool:
        """Whether the present step has the term."""
        return self.global_step >= self.first_step

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Return the cross-entropy of the source plus the weighted term.

        As many source records are used as the target has: the last batch of its epoch is short.
        """
        target = batch["target"]
        records, classes = batch["source"]
        source_features = self.encoder(records[: len(target)])
        loss = self.class_loss(source_features, classes[: len(target)])
        if self.is_aligning:
            term = self.term(source_features, self.encoder(target))
            self.log("term", term, prog_bar=True, batch_size=len(target))
            loss = loss + self.weight * term
        return loss

    def term(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the scalar D of features (n, dim) of both domains."""
        raise NotImplementedError


# DANN


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, features: Tensor) -> Tensor:  # type: ignore[override]
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return -gradient


def reverse(features: Tensor) -> Tensor:
    """Return features (n, d) unchanged, with the opposite gradient."""
    unchanged: Tensor = _Reverse.apply(features)
    return unchanged


class DomainClassifier(nn.Sequential):
    """Map features (n, dim) to logits (n,) of belonging to the target."""

    def __init__(self, dim: int, hidden: int = 100) -> None:
        super().__init__(nn.Linear(dim, hidden), nn.ReLU(), nn.Linear(hidden, 1), nn.Flatten(0))


def domain_loss(logits: Tensor, *, of_target: bool) -> Tensor:
    """Return the cross-entropy of logits (n,) of records of one domain."""
    labels = torch.full_like(logits, float(of_target))
    return F.binary_cross_entropy_with_logits(logits, labels)


class DANN(Aligned):
    """DANN: the encoder maximises the loss of a domain classifier. NOT PRIVATE.

    The loss is a cross-entropy. The gradient that reaches the encoder is reversed, with a constant
    factor, as in the code of Rakotomamonjy2021; Ganin et al. let it rise.

    Args:
        encoder: Maps records to features (n, dim), each record by itself; ``dim`` is an attribute.
        classifier: Maps features to scores (n, C).
        hidden: Size of the hidden layer of the domain classifier.
        options: ``weight``, ``first_step``, ``lr`` and ``betas`` of :class:`Aligned`.
    """

    def __init__(
        self, encoder: nn.Module, classifier: nn.Module, hidden: int = 100, **options: Any
    ) -> None:
        super().__init__(encoder, classifier, **options)
        self.domain = DomainClassifier(cast(int, encoder.dim), hidden)

    def term(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the loss of the domain classifier: the sum of those of both domains."""
        source_loss = domain_loss(self.domain(reverse(source)), of_target=False)
        return source_loss + domain_loss(self.domain(reverse(target)), of_target=True)


# SWD


class SWD(Aligned):
    """SWD: sliced Wasserstein distance of the features, in their units. NOT PRIVATE.

    Args:
        encoder: Maps records to features (n, dim), each record by itself.
        classifier: Maps features to scores (n, C).
        n_projections: Number of directions, which are new at every step.
        options: ``weight``, ``first_step``, ``lr`` and ``betas`` of :class:`Aligned`.
    """

    sigma = 0.0  # of the noise on the projections

    def __init__(
        self, encoder: nn.Module, classifier: nn.Module, n_projections: int = 200, **options: Any
    ) -> None:
        super().__init__(encoder, classifier, **options)
        at_least(1, n_projections=n_projections)
        self.n_projections = n_projections

    def term(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the root of the mean squared distance along the directions."""
        return published_loss(source, target, self.sigma, self.n_projections)


class PublishedDPSWD(SWD):
    """DP-SWD as published: noise on the projections of both sides. NOT PRIVATE.

    The rows are scaled by the largest norm of the private batch, and the gradient passes through
    the private branch (docs/errata.md, items 4 and 5). No noise makes that private, so that no
    epsilon is stated, though the printed one is 10.

    Args:
        encoder: Maps records to features (n, dim), each record by itself.
        classifier: Maps features to scores (n, C).
        sigma: Standard deviation of the noise; Table 4 has it.
        n_projections: Number of directions, which are new at every step.
        options: ``weight``, ``first_step``, ``lr`` and ``betas`` of :class:`Aligned`.
    """

    def __init__(
        self,
        encoder: nn.Module,
        classifier: nn.Module,
        sigma: float = 5.34,
        n_projections: int = 200,
        **options: Any,
    ) -> None:
        super().__init__(encoder, classifier, n_projections, **options)
        positive(sigma=sigma)
        self.sigma = sigma
