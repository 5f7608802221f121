r"""DP-DANN: domain-adversarial training whose target gradients are clipped per example and noised by Opacus.

The target enters through one loss only: the domain classifier's cross-entropy on target records, with a reversed
gradient. Per-example gradients of it with respect to encoder and domain classifier together are clipped to C, summed,
noised by Opacus (``GradSampleModule``, ``DPOptimizer``). Source gradients are public and added afterwards, unclipped.

Accounting. Batches are fresh uniform subsets of fixed size B (:class:`dpswd.FixedSizeSampler`), so that relation and
accountant are those of DP-SWD: under replace-one the clipped sum moves by at most 2 C, hence
:class:`dpswd.mechanism.GaussianMechanism` with sensitivity 2 C and batch size B, T releases, exact PLD with
subsampling without replacement (Balle2018). (Opacus's own accountant assumes Poisson batches and add-remove, where the
sum moves by C: another relation, in which the same epsilon means less.)

Opacus draws this noise from torch's generator, whose seed has 32 bits on the CPU: enough for a comparison of
accuracies, not for a network that is published. Its ``secure_mode`` needs an extra package.
"""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.calibrate import calibrate_sigma
from dpswd.accounting.ledger import CONDITIONS
from dpswd.mechanism import GaussianMechanism
from dpswd.sampling import FixedSizeSampler
from models.alignment import DomainClassifier, reverse, rising


class _Adversary(nn.Module):
    """Encoder, gradient reversal and domain classifier in one module."""

    def __init__(self, encoder: nn.Module, domain: nn.Module) -> None:
        super().__init__()
        self.encoder, self.domain, self.factor = encoder, domain, 1.0

    def forward(self, records: Tensor) -> Tensor:
        return self.domain(reverse(self.encoder(records), self.factor))


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
    """Train encoder and classifier in place, with one release of ``batch_size`` of the N target records each step.

    ``clip`` is the largest norm C of a per-example gradient. The encoder has layers that Opacus knows, no batch
    normalisation. Returned are epsilon, delta, mu, the noise multiplier (noise over C), and that the guarantee is
    conditional: ``target`` is a tensor, so that ``sound`` is false and ``conditions`` lists what has to hold.
    """
    sampler = FixedSizeSampler(len(target), batch_size, n_steps=steps)
    mechanism = GaussianMechanism(
        sensitivity=2 * clip, sigma=1.0, name="target gradients", batch_size=batch_size
    )
    budget = {"target_epsilon": target_epsilon, "target_delta": target_delta}
    mechanism = replace(
        mechanism,
        sigma=calibrate_sigma(mechanism, sample_size=len(target), n_releases=steps, **budget),
    )
    account = PrivacyAccountant("pld").step(mechanism, sample_size=len(target), n_releases=steps)

    domain = DomainClassifier(dim)
    optimizer, network, adversary, private = _opacus(
        encoder, classifier, domain, lr, mechanism, clip, batch_size
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=lr / 10)
    loss = nn.functional.binary_cross_entropy_with_logits
    for step, indices in enumerate(sampler):
        adversary.factor = rising(step / steps)
        optimizer.zero_grad()
        private.zero_grad()
        logits = network(target[indices])
        (loss(logits, torch.ones_like(logits)) / 2).backward()
        private.pre_step()  # clips, adds noise, divides by B: the release
        released = [None if p.grad is None else p.grad.clone() for p in private.params]
        records, classes = next(source)
        network.disable_hooks()
        features = encoder(records)
        public = nn.functional.cross_entropy(classifier(features), classes)
        logits = domain(reverse(features, adversary.factor))
        public = public + loss(logits, torch.zeros_like(logits)) / 2
        optimizer.zero_grad()
        public.backward()
        network.enable_hooks()
        for parameter, gradient in zip(private.params, released, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        optimizer.step()
        schedule.step()
    network.remove_hooks()
    _forget(encoder, classifier)
    spent = account.guarantee(target_delta)
    facts = {"sound": False, "conditions": CONDITIONS, "noise_multiplier": mechanism.sigma / clip}
    return {name: spent[name] for name in ("epsilon", "delta", "mu")} | facts


def _opacus(
    encoder: nn.Module,
    classifier: nn.Module,
    domain: nn.Module,
    lr: float,
    mechanism: GaussianMechanism,
    clip: float,
    batch_size: int,
) -> tuple[torch.optim.Optimizer, nn.Module, _Adversary, torch.optim.Optimizer]:
    """Wrap encoder and domain classifier for Opacus; the classifier reads no private record and is left out."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    for part in (encoder, classifier, domain):
        part.train()
    adversary = _Adversary(encoder, domain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = GradSampleModule(adversary, loss_reduction="mean")
    optimizer = torch.optim.Adam([*adversary.parameters(), *classifier.parameters()], lr=lr)
    private = DPOptimizer(
        torch.optim.SGD(adversary.parameters(), lr=lr),  # only its noisy gradients are used
        noise_multiplier=mechanism.sigma / clip,
        max_grad_norm=clip,
        expected_batch_size=batch_size,
    )
    return optimizer, network, adversary, private


def _forget(*modules: nn.Module) -> None:
    """Delete the raw per-example gradients that Opacus stores on parameters."""
    for module in modules:
        for parameter in module.parameters():
            parameter.grad = None
            for name in ("grad_sample", "summed_grad", "_forward_counter"):
                if hasattr(parameter, name):
                    delattr(parameter, name)
