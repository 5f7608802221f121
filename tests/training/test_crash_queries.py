"""A crash after a module's own queries and before its first step: what they released is in the checkpoint."""

import lightning.pytorch.cli  # noqa: F401  (at collection: its loggers keep the stderr that they find)
import pytest
import torch
from factories import fit_arguments

from dpswd.accounting.ledger import Ledger
from dpswd.commands.main import main
from dpswd.generation.module import GeneratorModule

QUERIES = ["--model.init_args.count_share", "0.1", "--model.init_args.labels", "blocks"]


def test_nothing_is_asked_twice(tmp_path, monkeypatch):
    step = GeneratorModule.training_step
    with monkeypatch.context() as patched:
        patched.setattr(
            GeneratorModule, "training_step", lambda *_: (_ for _ in ()).throw(RuntimeError("the power went"))
        )
        with pytest.raises(RuntimeError, match="the power went"):
            main(fit_arguments(tmp_path / "run", 3, *QUERIES))
    assert GeneratorModule.training_step is step
    path = tmp_path / "run" / "ledger.jsonl"
    assert Ledger.open_existing(path).n_releases == 1
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    stored = torch.load(tmp_path / "run" / "releases" / "0001.pt", weights_only=True)["tensors"]["values"].clamp(min=1)
    assert main(fit_arguments(tmp_path / "run", 3, *QUERIES)) == 0
    assert [count for *_, count in Ledger.open_existing(path).groups()] == [1, 3]
    after = torch.load(last, weights_only=True)
    assert torch.equal(after["state_dict"]["proportions"], (stored / stored.sum()).float())
    assert after["global_step"] == 3
