r"""DP-DANN: adversarial training with clipped, noisy gradients of the target.

The target enters through one loss only: the weighted cross-entropy of the domain classifier on
target records, with a reversed gradient. Its gradients for each record with respect to encoder and
domain classifier together, which Opacus computes (``GradSampleModule``), are clipped to norm C and
summed, with noise. Source gradients are public and are added afterwards, unclipped.

Accounting. Batches are fresh uniform subsets of fixed size B, so that relation and accountant are
those of DP-SWD: under replace-one the clipped sum moves by at most 2 C, hence
:class:`dpswd.mechanism.GaussianMechanism` with sensitivity 2 C and batch size B. Opacus's own
accountant assumes Poisson batches and add-remove, where the sum moves by C: another relation, in
which the same epsilon means less. The noise is that of the library; :class:`dpswd.PrivacyBudget`
calibrates it and writes the releases to its ledger. The guarantee is conditional, since a tensor is
handed over.

The code of Rakotomamonjy2021 clips each weight tensor by itself, adds noise of deviation 17 or
14.65 to the gradient of every record of a batch and not to their sum, does both once more for every
module around the tensor, and counts each record as a release (``da_dp_analysis.py``). On the sum of
128 clipped gradients that is a deviation of 192 or 166, of which the account above gives epsilon =
0.0365 or 0.0310.
"""

from typing import Any

from torch import Tensor, nn

from dpswd._validate import positive
from dpswd.errors import InputError
from dpswd.lightning.budget import budget_of
from models.adaptation import DANN, domain_loss, reverse
from models.domains import Domains
from models.gradients import ClippedGradients, add_to_gradients


class _Adversary(nn.Module):
    """Encoder, gradient reversal and domain classifier in one module."""

    def __init__(self, encoder: nn.Module, domain: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder
        self.domain = domain

    def forward(self, records: Tensor) -> Tensor:
        """Map records to logits (n,) of belonging to the target."""
        logits: Tensor = self.domain(reverse(self.encoder(records)))
        return logits


class DPDANN(DANN):
    """DANN with private gradients of the target.

    The module docstring has the guarantee. ``target`` of a batch has raw records of a fresh subset
    of fixed size, as :class:`models.domains.Domains` with ``fresh=True`` draws it.

    Args:
        encoder: Maps records to features (n, dim). Its layers are those that Opacus knows, without
            batch normalisation.
        classifier: Maps features to scores (n, C).
        clip: Largest norm C of the gradient of the weighted loss of one record.
        batch_size: Number B of target records in a batch.
        options: ``hidden`` of :class:`models.adaptation.DANN`, and ``weight``, ``first_step``,
            ``lr`` and ``betas``.

    Raises:
        InputError: If a number is out of range.
    """

    def __init__(
        self,
        encoder: nn.Module,
        classifier: nn.Module,
        clip: float = 1.0,
        batch_size: int = 128,
        **options: Any,
    ) -> None:
        super().__init__(encoder, classifier, **options)
        positive(clip=clip)
        self.batch_size = batch_size
        self._adversarial = [*self.encoder.parameters(), *self.domain.parameters()]
        n_parameters = sum(parameter.numel() for parameter in self._adversarial)
        self.gradients = ClippedGradients(n_parameters, clip, batch_size)
        self._released: Tensor | None = None

    def on_fit_start(self) -> None:
        """Wrap a copy of encoder and domain classifier for Opacus.

        The hooks of Opacus stay off this one.

        Raises:
            InputError: If the data module does not draw the batches of the account, if the budget
                states another number of records than the target has, or if there are several
                processes.
        """
        self._check_account()
        self.gradients.start(_Adversary(self.encoder, self.domain), self._target_loss)

    def _check_account(self) -> None:
        """Compare batches and number of records of the account with those of the target."""
        data = getattr(self.trainer, "datamodule", None)
        if not isinstance(data, Domains):
            return
        if not data.fresh:
            raise InputError(
                "Expected data.fresh=true, fresh subsets as batches of the target, which the "
                "account of DP-DANN requires, got false; set it."
            )
        budget = budget_of(self.trainer)
        if budget is not None and budget.stated_sample_size != len(data.target):
            raise InputError(
                f"Expected privacy.sample_size={len(data.target)}, the number of target records, "
                f"got {budget.stated_sample_size}; set it."
            )

    def on_fit_end(self) -> None:
        """Delete the copy."""
        self.gradients.stop()

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Release gradients of the target; return the loss of the source."""
        self._released = None
        if self.is_aligning:
            self._released = self.gradients.release(batch["target"]) / self.batch_size
        records, classes = batch["source"]
        features = self.encoder(records)
        loss = self.class_loss(features, classes)
        if self.is_aligning:
            source_loss = domain_loss(self.domain(reverse(features)), of_target=False)
            loss = loss + self.weight * source_loss
        return loss

    def _target_loss(self, logits: Tensor) -> Tensor:
        """Return the weighted loss of the domain classifier on target records."""
        return self.weight * domain_loss(logits, of_target=True)

    def on_after_backward(self) -> None:
        """Add the released gradients to those of the source."""
        if self._released is not None:
            add_to_gradients(self._adversarial, self._released)
