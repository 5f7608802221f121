"""Damaged and foreign generator files: refused in one sentence, and no code of a file is run."""

import io

import hypothesis.strategies as st
import pytest
import torch
from factories import REFUSED, damage, fuzz, outcome, untouched

from dpswd.generation.export import read_generator, write_generator
from dpswd.generation.generators import MLPGenerator

FACTS = {"epsilon": 1.0, "delta": 1e-5, "private": True}


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """Bytes of a generator's file, its weights and its guarantee."""
    path = tmp_path_factory.mktemp("released") / "generator.pt"
    generator = MLPGenerator((4,), n_classes=3, latent_dim=2, hidden=8)
    write_generator(generator, path, FACTS)
    return path.read_bytes(), generator.state_dict(), read_generator(path)[1]


@fuzz(200, data=st.data())
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


class Trap:
    sprung = 0

    def __reduce__(self):
        return (_spring, ())


def _spring():
    Trap.sprung += 1
    return {}


def test_no_code_of_a_file_is_run(released, tmp_path):
    whole = torch.load(io.BytesIO(released[0]), weights_only=True)
    torch.save(whole | {"guarantee": Trap()}, tmp_path / "generator.pt")
    assert outcome(read_generator, tmp_path / "generator.pt") is REFUSED
    assert not Trap.sprung
