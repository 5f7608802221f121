"""The LightningCLI: configs with a misspelt key or a wrong value, checkpoints and generators that are damaged."""

import contextlib
import io
import shutil
from pathlib import Path

import hypothesis.strategies as st
import lightning.pytorch.cli  # noqa: F401  (at collection: its loggers keep the stderr that they find)
import pytest
import torch
import yaml
from factories import REFUSED, command, damage, fuzz, outcome, untouched

from dpswd.generation.export import read_generator, write_generator
from dpswd.generation.generators import MLPGenerator
from dpswd.training.checkpoints import AtomicCheckpointIO

ROOT = Path(__file__).parents[2]
QUICK = [
    "--trainer.callbacks",
    "[]",
    "--trainer.max_steps",
    "2",
    "--trainer.enable_progress_bar",
    "false",
    "--trainer.log_every_n_steps",
    "1",
    "--model.init_args.generated",
    "20",
]
CONFIG = yaml.safe_load((ROOT / "configs" / "digits.yaml").read_text())

pytestmark = pytest.mark.filterwarnings("ignore:The dirpath has changed")


def keys(value, path=()):
    """Paths of all keys of a config."""
    for key, each in value.items() if isinstance(value, dict) else ():
        yield (*path, key)
        yield from keys(each, (*path, key))


PATHS = sorted(keys(CONFIG))


def edited(value, path, change):
    """A copy of a config in which one entry is changed."""
    if len(path) == 1:
        return change(value, path[0])
    return value | {path[0]: edited(value[path[0]], path[1:], change)}


def misspelt(typo):
    return lambda value, key: {typo(str(name)) if name == key else name: each for name, each in value.items()}


TYPOS = [lambda name: name + "s", lambda name: name[1:] + "x", lambda name: name.upper() + "_", lambda name: " " + name]
WRONG = st.sampled_from([None, -1, 0, 1.5, float("nan"), float("inf"), "nonsense", "", [], {}, [1, "x"], True, 10**30])


@fuzz(20, path=st.sampled_from(PATHS), typo=st.sampled_from(TYPOS))
def test_misspelt_keys(path, typo, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    config = edited(CONFIG, path, misspelt(typo))
    text = yaml.safe_dump(config)
    (tmp_path / "config.yaml").write_text(text)
    quick = QUICK if path[:2] != ("trainer", "callbacks") else []
    with untouched(tmp_path):
        found = command(capfd, ["fit", "--config", "config.yaml", *quick, "--trainer.default_root_dir", "run"])
    assert found == 2


@fuzz(8, path=st.sampled_from([path for path in PATHS if path != ("seed_everything",)]), wrong=WRONG)
def test_wrong_values(path, wrong, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    config = edited(CONFIG, path, lambda value, key: value | {key: wrong})
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    run = tmp_path / "run"
    with contextlib.ExitStack() as stack:
        stack.enter_context(untouched(tmp_path))
        line = ["fit", "--config", "config.yaml", *QUICK, "--trainer.default_root_dir", "run"]
        if command(capfd, line) == 0 and run.exists():
            shutil.rmtree(run)


@fuzz(12, content=st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)), data=st.data())
def test_damaged_configs(content, data, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "configs" / "digits.yaml").read_bytes()
    (tmp_path / "config.yaml").write_bytes(content if data.draw(st.booleans()) else data.draw(damage(text)))
    with untouched(tmp_path):
        line = ["fit", "--config", "config.yaml", *QUICK, "--trainer.default_root_dir", "run"]
        if command(capfd, line) == 0:
            shutil.rmtree(tmp_path / "run")


# checkpoints


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A run that was fitted: its directory and its checkpoint."""
    from dpswd.commands.main import fit

    directory = tmp_path_factory.mktemp("fitted")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        fit(
            [
                "fit",
                "--config",
                str(ROOT / "configs" / "digits.yaml"),
                *QUICK,
                "--trainer.default_root_dir",
                str(directory),
            ]
        )
    return directory, (directory / "checkpoints" / "last.ckpt").read_bytes()


@fuzz(60, data=st.data())
def test_damaged_checkpoints_are_not_loaded(fitted, data, tmp_path):
    path = tmp_path / "x.ckpt"
    path.write_bytes(data.draw(damage(fitted[1])))
    with untouched(tmp_path):
        found = outcome(AtomicCheckpointIO().load_checkpoint, path, weights_only=True)
    if found is not REFUSED:  # what was changed is padding
        (tmp_path / "whole.ckpt").write_bytes(fitted[1])
        assert same(found, AtomicCheckpointIO().load_checkpoint(tmp_path / "whole.ckpt", weights_only=True))
        (tmp_path / "whole.ckpt").unlink()


def same(one, other):
    """Whether two nested values are equal."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(each, other[key]) for key, each in one.items())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other


@pytest.mark.parametrize("goal", ["predict", "fit"])
@pytest.mark.parametrize(("at", "cut"), [(0.3, False), (0.7, True), (0.999, False)])
def test_damaged_checkpoints(fitted, at, cut, goal, tmp_path, monkeypatch, capfd):
    directory, whole = fitted
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "x.ckpt"
    byte = int(at * len(whole))
    path.write_bytes(whole[:byte] + (b"" if cut else bytes([whole[byte] ^ 1]) + whole[byte + 1 :]))
    where = directory if goal == "fit" else tmp_path / "out"
    line = [
        goal,
        "--config",
        ROOT / "configs" / "digits.yaml",
        *QUICK,
        "--ckpt_path",
        path,
        "--trainer.default_root_dir",
        where,
    ]
    line += ["--data.init_args.n_synthetic", 10] if goal == "predict" else []
    before = path.read_bytes()
    ledger = (directory / "ledger.jsonl").read_bytes()
    assert command(capfd, line) == 2
    assert path.read_bytes() == before
    assert (directory / "ledger.jsonl").read_bytes() == ledger


# released generators


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """Bytes of a generator's file, and its weights."""
    path = tmp_path_factory.mktemp("released") / "generator.pt"
    generator = MLPGenerator((4,), n_classes=3, latent_dim=2, hidden=8)
    write_generator(generator, path, {"epsilon": 1.0, "delta": 1e-5, "private": True})
    return path.read_bytes(), generator.state_dict()


@fuzz(200, data=st.data())
def test_damaged_generators(released, tmp_path, data):
    whole, state = released
    path = tmp_path / "generator.pt"
    path.write_bytes(data.draw(damage(whole)))
    with untouched(tmp_path):
        found = outcome(read_generator, path)
    if found is not REFUSED:  # what was changed is padding
        assert found[1] == {"epsilon": 1.0, "delta": 1e-5, "private": True}
        assert all(torch.equal(value, state[name]) for name, value in found[0].state_dict().items())


CONTENT = st.recursive(
    st.sampled_from([None, True, -1, 0, 3, 1.5, "x", "MLPGenerator", "Generator", torch.ones(2), 10**12]),
    lambda each: st.one_of(
        st.lists(each, max_size=3),
        st.dictionaries(
            st.sampled_from(["format", "generator", "options", "state", "guarantee", "sample_shape", "hidden"]),
            each,
            max_size=4,
        ),
    ),
    max_leaves=6,
)


@fuzz(120, key=st.sampled_from(["format", "generator", "options", "state", "guarantee", None]), content=CONTENT)
def test_generators_with_other_content(released, tmp_path, key, content):
    whole = torch.load(io.BytesIO(released[0]), weights_only=True)
    path = tmp_path / "generator.pt"
    torch.save(content if key is None else whole | {key: content}, path)
    found = outcome(read_generator, path)
    one = isinstance(content, int) and content == 1
    if key in ("format", "generator", "state", None) and not (key == "format" and one):
        assert found is REFUSED or (key, content) == ("generator", "MLPGenerator")


class Trap:
    """Code in a file."""

    sprung = 0

    def __reduce__(self):
        return (_spring, ())


def _spring():
    Trap.sprung += 1
    return {}


def test_no_code_of_a_file_is_run(released, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    whole = torch.load(io.BytesIO(released[0]), weights_only=True)
    torch.save(whole | {"guarantee": Trap()}, tmp_path / "generator.pt")
    assert outcome(read_generator, tmp_path / "generator.pt") is REFUSED
    line = ["predict", "--config", ROOT / "configs" / "digits.yaml", *QUICK, "--ckpt_path", "x.ckpt"]
    for content in ({"state_dict": Trap()}, Trap(), [1], {"state_dict": 3}, {}):
        torch.save(content, tmp_path / "x.ckpt")
        assert command(capfd, line) == 2
    assert not Trap.sprung
