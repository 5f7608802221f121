r"""DP-DANN: adversarial training with clipped, noisy gradients of the target.

The target enters through one loss only: the domain classifier's cross-entropy on target records,
with a reversed gradient. Per-example gradients of it with respect to encoder and domain classifier
together are clipped to norm C, summed and noised by Opacus (``GradSampleModule``,
``DPOptimizer``). Source gradients are public and are added afterwards, unclipped.

Accounting. Batches are fresh uniform subsets of fixed size B (:class:`dpswd.FixedSizeSampler`), so
that relation and accountant are those of DP-SWD: under replace-one the clipped sum moves by at most
2 C, hence :class:`dpswd.mechanism.GaussianMechanism` with sensitivity 2 C and batch size B, T
releases, exact PLD with subsampling without replacement (Balle2018). Opacus's own accountant
assumes Poisson batches and add-remove, where the sum moves by C: another relation, in which the
same epsilon means less. Opacus draws the noise, so no :class:`dpswd.Budget` can hold these
releases, and the guarantee is stated as conditional.

Opacus draws this noise from torch's generator, whose seed has 32 bits on the CPU: enough for a
comparison of accuracies, not for a network that is published. Its ``secure_mode`` needs an extra
package.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.calibrate import calibrate_sigma
from dpswd.accounting.ledger import CONDITIONS
from dpswd.mechanism import GaussianMechanism
from dpswd.sampling import FixedSizeSampler
from models.alignment import DomainClassifier, reverse, rising

Gradients = list[Tensor | None]  # of the parameters of the adversary; None without a gradient


def fit_dp_dann(
    encoder: nn.Module,
    classifier: nn.Module,
    dim: int,
    source: Iterator[tuple[Tensor, Tensor]],
    target: Tensor,
    *,
    steps: int,
    batch_size: int,
    lr: float,
    clip: float,
    target_epsilon: float,
    target_delta: float,
) -> dict[str, Any]:
    """Train encoder and classifier in place, with one release at each step.

    Args:
        encoder: Maps records to features (n, dim). Its layers are those that Opacus knows, without
            batch normalisation.
        classifier: Maps features to logits (n, C).
        dim: Dimension of the features.
        source: Batches of public records and their classes, without end.
        target: The private records (N, ...).
        steps: Number of training steps and of releases.
        batch_size: Number B of target records in a release.
        lr: Learning rate of Adam at the start; it falls to a tenth by a cosine.
        clip: Largest norm C of a per-example gradient.
        target_epsilon: Budget.
        target_delta: Budget; below 1 / N.

    Returns:
        ``epsilon``, ``delta``, ``mu``, the ``noise_multiplier`` (noise over C), and that the
        guarantee is conditional: the target is a tensor, so that ``sound`` is false and
        ``conditions`` lists what has to hold.
    """
    mechanism = _mechanism(
        clip,
        batch_size,
        sample_size=len(target),
        n_releases=steps,
        target_epsilon=target_epsilon,
        target_delta=target_delta,
    )
    networks = wrap_for_opacus(
        encoder,
        classifier,
        DomainClassifier(dim),
        lr=lr,
        clip=clip,
        noise_multiplier=mechanism.sigma / clip,
        batch_size=batch_size,
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        networks.optimiser, steps, eta_min=lr / 10
    )
    sampler = FixedSizeSampler(len(target), batch_size, n_steps=steps)
    for step, indices in enumerate(sampler):
        networks.adversary.factor = rising(step / steps)
        noisy_gradients = _release_gradients(networks, target[indices])
        records, classes = next(source)
        _compute_source_gradients(networks, records, classes)
        _add_gradients(networks, noisy_gradients)
        networks.optimiser.step()
        schedule.step()
    _forget_gradients(networks)
    account = PrivacyAccountant("pld")
    account.step(mechanism, sample_size=len(target), n_releases=steps)
    guarantee = account.guarantee(target_delta)
    return {
        "epsilon": guarantee["epsilon"],
        "delta": guarantee["delta"],
        "mu": guarantee["mu"],
        "sound": False,
        "conditions": CONDITIONS,
        "noise_multiplier": mechanism.sigma / clip,
    }


def _mechanism(clip: float, batch_size: int, **budget: Any) -> GaussianMechanism:
    """Return the mechanism of the clipped sum, calibrated for all releases.

    Args:
        clip: Largest norm C of a per-example gradient.
        batch_size: Number B of records in a release.
        budget: Arguments of :func:`dpswd.calibrate_sigma`.
    """
    mechanism = GaussianMechanism(
        sensitivity=2 * clip, sigma=1.0, name="target gradients", batch_size=batch_size
    )
    return replace(mechanism, sigma=calibrate_sigma(mechanism, **budget))


# Networks


class _Adversary(nn.Module):
    """Encoder, gradient reversal and domain classifier in one module.

    Attributes:
        factor: Factor of the reversed gradient.
    """

    def __init__(self, encoder: nn.Module, domain: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.domain = domain
        self.factor = 1.0

    def forward(self, records: Tensor) -> Tensor:
        """Map records to logits (n,) of belonging to the target."""
        return self.domain(reverse(self.encoder(records), self.factor))


@dataclass(frozen=True)
class Networks:
    """The networks, and what Opacus makes of those that read target records."""

    adversary: _Adversary
    classifier: nn.Module
    per_example: Any  # GradSampleModule of the adversary
    dp_optimiser: Any  # DPOptimizer, of which only the noisy gradients are used
    optimiser: torch.optim.Optimizer


def wrap_for_opacus(
    encoder: nn.Module,
    classifier: nn.Module,
    domain: nn.Module,
    *,
    lr: float,
    clip: float,
    noise_multiplier: float,
    batch_size: int,
) -> Networks:
    """Wrap encoder and domain classifier for Opacus.

    The classifier reads no private record and is left as it is.
    """
    # Opacus is an extra of the developers, and slow to import.
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    for module in (encoder, classifier, domain):
        module.train()
    adversary = _Adversary(encoder, domain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        per_example = GradSampleModule(adversary, loss_reduction="mean")
    optimiser = torch.optim.Adam([*adversary.parameters(), *classifier.parameters()], lr=lr)
    dp_optimiser = DPOptimizer(
        torch.optim.SGD(adversary.parameters(), lr=lr),
        noise_multiplier=noise_multiplier,
        max_grad_norm=clip,
        expected_batch_size=batch_size,
    )
    return Networks(adversary, classifier, per_example, dp_optimiser, optimiser)


# Gradients


def _release_gradients(networks: Networks, records: Tensor) -> Gradients:
    """Return noisy gradients of the adversary on target records (B, ...): one release."""
    networks.optimiser.zero_grad()
    networks.dp_optimiser.zero_grad()
    logits = networks.per_example(records)
    cross_entropy = nn.functional.binary_cross_entropy_with_logits
    (cross_entropy(logits, torch.ones_like(logits)) / 2).backward()
    # Clips, adds noise, and divides by B.
    networks.dp_optimiser.pre_step()
    gradients: Gradients = []
    for parameter in networks.dp_optimiser.params:
        if parameter.grad is None:
            gradients.append(None)
        else:
            gradients.append(parameter.grad.clone())
    return gradients


def _compute_source_gradients(networks: Networks, records: Tensor, classes: Tensor) -> None:
    """Set the gradients of all networks to those on public source records (n, ...)."""
    adversary = networks.adversary
    networks.per_example.disable_hooks()
    features = adversary.encoder(records)
    loss = nn.functional.cross_entropy(networks.classifier(features), classes)
    logits = adversary.domain(reverse(features, adversary.factor))
    cross_entropy = nn.functional.binary_cross_entropy_with_logits
    loss = loss + cross_entropy(logits, torch.zeros_like(logits)) / 2
    networks.optimiser.zero_grad()
    loss.backward()
    networks.per_example.enable_hooks()


def _add_gradients(networks: Networks, gradients: Gradients) -> None:
    """Add the released gradients to those of the source."""
    for parameter, gradient in zip(networks.dp_optimiser.params, gradients, strict=True):
        if gradient is None:
            continue
        if parameter.grad is None:
            parameter.grad = gradient
        else:
            parameter.grad = parameter.grad + gradient


def _forget_gradients(networks: Networks) -> None:
    """Delete the hooks of Opacus, and the raw per-example gradients on parameters."""
    networks.dp_optimiser.zero_grad()
    networks.optimiser.zero_grad()
    networks.per_example.to_standard_module()
