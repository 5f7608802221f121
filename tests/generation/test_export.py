"""The generator's file holds weights and the guarantee only. Control: the same search in a checkpoint finds moments."""

import io
import json
import math
import pickletools
import re
import zipfile
from pathlib import Path

import hypothesis.strategies as st
import lightning as L
import numpy as np
import pytest
import torch
from factories import FURTHER_RUNS, REFUSED, Trap, damage, fuzz, outcome, untouched
from lightning.pytorch.callbacks import ModelCheckpoint
from scipy.spatial import cKDTree
from torch.utils.data import DataLoader, TensorDataset

from dpswd import InputError
from dpswd._provenance import seen_runs
from dpswd.commands.main import fit
from dpswd.data import Digits
from dpswd.generation.export import GeneratorFile, read_generator, write_generator
from dpswd.generation.features import Flatten
from dpswd.generation.generators import Generator, MixtureGenerator, MLPGenerator, Table3Generator
from dpswd.generation.module import GeneratorModule
from dpswd.training.callback import PrivacyBudget

ROOT = Path(__file__).parents[2]
SEED = 20261121
MOMENTS = re.compile(r"exp_avg|optimizer|momentum|lr_sched|rng|seed|generator_state|callbacks|loops|global_step")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("run")
    arguments = ["fit", "--config", str(ROOT / "configs" / "digits.yaml"), "--seed_everything", str(SEED)]
    arguments += ["--trainer.default_root_dir", str(directory), "--trainer.max_steps", "30"]
    fit([*arguments, "--trainer.enable_progress_bar", "false", "--trainer.logger", "false"])
    return directory


def strings_of(path):
    """Every string in the pickles of a file and every name in its archive."""
    found = []
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            found.append(name)
            content = archive.read(name)
            if name.endswith(".pkl"):
                found += [str(value) for _, value, _ in pickletools.genops(content) if isinstance(value, str)]
            elif "/data/" not in name:
                found.append(content.decode("latin-1"))
    return found


def numbers_of(path):
    """Every tensor of a file, and every integer in its pickle."""
    with zipfile.ZipFile(path) as archive:
        pickle_file = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        return {value for _, value, _ in pickletools.genops(archive.read(pickle_file)) if isinstance(value, int)}


def tensors_of(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from tensors_of(each)
    elif isinstance(value, list | tuple):
        for each in value:
            yield from tensors_of(each)


def nearest(tensors, rows):
    """Largest entry of the difference between a row and the nearest window of a tensor or its transpose; inf if far."""
    tree, best = cKDTree(rows), math.inf
    for tensor in tensors:
        for layout in (tensor, tensor.T) if tensor.ndim == 2 else (tensor,):
            flat = layout.double().flatten().numpy()
            if len(flat) >= rows.shape[1]:
                windows = np.lib.stride_tricks.sliding_window_view(flat, rows.shape[1])
                best = min(best, float(tree.query(windows, p=math.inf, distance_upper_bound=0.05)[0].min()))
    return best


def private_rows():
    """Training records as pixels in [0, 1] and in [0, 16], centred as the features do, and scaled to their norm."""
    pixels = Digits().private.floats().flatten(1).double()
    varied = pixels[pixels.std(dim=1) > 0.05]  # none is constant
    assert len(varied) == len(pixels)
    centred = (pixels - 0.25) / 6.4
    return np.concatenate([pixels.numpy(), 16 * pixels.numpy(), centred.numpy()])


def test_nothing_but_weights_and_the_guarantee(run):
    path = run / "generator.pt"
    content = torch.load(path, weights_only=True)
    assert set(content) == {"format", "version", "generator", "options", "classes", "guarantee", "state"}
    expected = MixtureGenerator(**content["options"]).state_dict()
    assert {key: value.shape for key, value in content["state"].items()} == {
        key: value.shape for key, value in expected.items()
    }
    assert (content["options"]["sample_shape"], content["options"]["n_classes"]) == ((1, 8, 8), 10)
    facts = json.loads((run / "privacy.json").read_text())
    guarantee = content["guarantee"]
    assert {"private", "sound", "epsilon", "delta", "mu", "regret", "neighboring_relation"} <= set(guarantee)
    assert "runs on the same records compose" in guarantee.pop("scope")
    assert guarantee == {key: facts[key] for key in guarantee}


def test_no_path_moment_seed_or_noise_state(run):
    strings = strings_of(run / "generator.pt")
    assert not [
        text
        for text in strings
        if "/" in text.removeprefix("archive/data/").removeprefix("archive/.data/").removeprefix("archive/")
    ]
    assert not [text for text in strings if re.search(r"/tmp|/home|/root|\\\\|[A-Z]:\\", text)]
    assert not [text for text in strings if MOMENTS.search(text)]
    assert SEED not in numbers_of(run / "generator.pt")
    # control: the same look at the checkpoint of the run finds its loops and its directory
    checkpoint = strings_of(run / "checkpoints" / "last.ckpt")
    assert [text for text in checkpoint if MOMENTS.search(text)]
    assert [text for text in checkpoint if str(run) in text]


def test_no_private_record(run):
    rows = private_rows()
    content = torch.load(run / "generator.pt", weights_only=True)
    tensors = list(tensors_of(content))
    state = read_generator(run / "generator.pt")[0].state_dict()
    assert sum(tensor.numel() for tensor in tensors) == sum(value.numel() for value in state.values())
    assert nearest(tensors, rows) > 1e-3
    # control: one record hidden in the middle of a weight, with some noise on it, is found
    hidden = content["state"]["roots"].clone()
    hidden.flatten()[1000:1064] = torch.from_numpy(rows[700]).float() + 5e-4 * torch.rand(64)
    assert nearest([hidden], rows) < 1e-3


def test_it_generates_what_the_run_does(run):
    generator, guarantee = read_generator(run / "generator.pt")
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    for name, value in generator.state_dict().items():
        assert torch.equal(value, checkpoint[f"generator.{name}"])
    assert not generator.training
    assert generator(generator.latent(3), torch.tensor([0, 4, 9])).shape == (3, 1, 8, 8)
    assert guarantee["epsilon"] <= 10


@pytest.mark.parametrize("kind", [MLPGenerator, Table3Generator])
def test_every_generator_there_and_back(tmp_path, kind):
    made = kind((1, 12, 8), n_classes=3, latent_dim=5, hidden=16).eval()
    made.class_names = ["cat", "dog", 3]
    write_generator(made, tmp_path / "new" / "g.pt")
    back, guarantee = read_generator(tmp_path / "new" / "g.pt")
    latent, labels = made.latent(4), torch.tensor([0, 1, 2, 0])
    assert torch.equal(back(latent, labels), made(latent, labels))
    assert guarantee == {}
    assert back.class_names == made.class_names


def fit_there(directory, *budget, module=None, data=None, steps=2, **changes):
    """Fits a small generator on digits in a directory, and reads its file."""
    if module is None:
        generator = MLPGenerator((1, 8, 8), latent_dim=8, hidden=16, bounded=True)
        module = GeneratorModule(generator, Flatten((1, 8, 8)), n_quantiles=10, generated=30)
    trainer = L.Trainer(
        default_root_dir=directory,
        max_steps=steps,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[GeneratorFile(), *budget, ModelCheckpoint(directory / "ckpt", every_n_train_steps=1)],
    )
    trainer.fit(module, Digits() if data is None else data, **changes)
    return read_generator(directory / "generator.pt")[1]


def test_the_guarantee_is_that_of_this_run_and_not_of_a_file_that_lies_there(tmp_path):
    small = fit_there(tmp_path, PrivacyBudget(0.1, 1e-5))
    assert small["epsilon"] <= 0.1  # control
    other = tmp_path / "other"
    large = fit_there(tmp_path, PrivacyBudget(50.0, 1e-5, run_dir=str(other)))
    stated = json.loads((other / "privacy.json").read_text())
    del large["scope"]
    assert large == {key: stated[key] for key in large}
    assert large["private"] is True
    assert large["epsilon"] > 49


class Plain(L.LightningModule):
    """Memorises the records."""

    def __init__(self):
        super().__init__()
        self.generator = MLPGenerator((1, 8, 8), latent_dim=8, hidden=16, bounded=True)

    def training_step(self, batch, batch_idx):
        records, labels = batch
        return (self.generator(self.generator.latent(len(labels)), labels) - records).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def test_a_run_without_a_budget_claims_nothing(tmp_path):
    assert fit_there(tmp_path, PrivacyBudget(0.1, 1e-5))["private"] is True
    private = Digits().private
    raw = DataLoader(TensorDataset(private.floats(), private.labels), 50)
    (tmp_path / "ckpt").rename(tmp_path / "ckpt of the first")
    assert fit_there(tmp_path, module=Plain(), data=raw) == {"private": False}


def test_no_file_without_a_release(tmp_path):
    """Issue 15, item 8: after a crash between ledger and noise the weights have learnt nothing."""
    module = GeneratorModule(MLPGenerator((1, 8, 8), latent_dim=8, hidden=16), Flatten((1, 8, 8)), n_quantiles=10)
    run = L.Trainer(default_root_dir=tmp_path, accelerator="cpu", logger=False, enable_progress_bar=False)
    with pytest.warns(UserWarning, match="holds no release"):
        GeneratorFile().on_fit_end(run, module)
    assert not list(tmp_path.glob("generator.pt"))
    module.released = object()
    GeneratorFile().on_fit_end(run, module)  # control
    assert (tmp_path / "generator.pt").is_file()


def test_weights_of_further_runs_get_the_guarantee_of_all_of_them(tmp_path):
    """Issue 15, item 3: a generator trained on in a second run does not state the second run's epsilon alone."""
    made = MLPGenerator((4,))
    for facts, expected in FURTHER_RUNS:
        write_generator(made, tmp_path / "g.pt", facts)
        back, guarantee = read_generator(tmp_path / "g.pt")
        assert (guarantee["epsilon"], guarantee["sound"]) == expected
        assert seen_runs(back) == set(facts["weights_from_runs"])
        assert "other runs" in guarantee["scope"]


@pytest.mark.filterwarnings("ignore:Total length of .CombinedLoader. across ranks is zero")  # nothing is left to do
@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty")
def test_a_resumed_run_without_a_step_left_states_what_its_ledger_does(tmp_path):
    first = fit_there(tmp_path, PrivacyBudget(5.0, 1e-5))
    for name in ("generator.pt", "privacy.json"):
        (tmp_path / name).unlink()
    (checkpoint,) = (tmp_path / "ckpt").glob("*step=2.ckpt")
    again = fit_there(tmp_path, PrivacyBudget(5.0, 1e-5), ckpt_path=checkpoint)
    assert again == first


class Mine(Generator):
    pass


def test_refusals(tmp_path):
    with pytest.raises(InputError, match="got Mine"):
        write_generator(Mine((2,), 0, 3), tmp_path / "g.pt")
    (tmp_path / "file").write_text("no zip")
    with pytest.raises(InputError, match="Expected to write"):
        write_generator(MLPGenerator((4,)), tmp_path / "file" / "g.pt")
    with pytest.raises(InputError, match="file name"):
        GeneratorFile("a/b.pt")


FACTS = {"epsilon": 1.0, "delta": 1e-5, "private": True}


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """Bytes of a generator's file, its weights and its guarantee."""
    path = tmp_path_factory.mktemp("released") / "generator.pt"
    generator = MLPGenerator((4,), n_classes=3, latent_dim=2, hidden=8)
    write_generator(generator, path, FACTS)
    return path.read_bytes(), generator.state_dict(), read_generator(path)[1]


@fuzz(60, data=st.data())
def test_damaged_files(released, tmp_path, data):
    whole, state, guarantee = released
    path = tmp_path / "generator.pt"
    path.write_bytes(data.draw(damage(whole)))
    with untouched(tmp_path):
        found = outcome(read_generator, path)
    if found is not REFUSED:  # the changed bytes are padding
        assert found[1] == guarantee
        assert all(torch.equal(value, state[name]) for name, value in found[0].state_dict().items())


@pytest.mark.parametrize("key", ["format", "generator", "options", "state", "guarantee", None])
@pytest.mark.parametrize("content", [None, -1, "Generator", [1], {"hidden": 10**12}, torch.ones(2)])
def test_files_with_other_content(released, tmp_path, key, content):
    whole = torch.load(io.BytesIO(released[0]), weights_only=True)
    torch.save(content if key is None else whole | {key: content}, tmp_path / "generator.pt")
    found = outcome(read_generator, tmp_path / "generator.pt")
    if key in ("format", "generator", "state", None):
        assert found is REFUSED


def test_no_code_of_a_file_is_run(released, tmp_path):
    whole = torch.load(io.BytesIO(released[0]), weights_only=True)
    torch.save(whole | {"guarantee": Trap()}, tmp_path / "generator.pt")
    assert outcome(read_generator, tmp_path / "generator.pt") is REFUSED
    assert not Trap.sprung
