"""Verification of a bundle: every changed byte and every edited number is found and named."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpswd import PrivateGenerator
from dpswd.accounting.accountant import PrivacyAccountant
from dpswd.accounting.ledger import HANDED_OVER, digest
from dpswd.accounting.shared_ledger import SharedLedger
from dpswd.errors import InputError
from dpswd.files.manifest import Manifest
from dpswd.files.publish import publish
from dpswd.files.verify import verify

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    pixels = np.random.default_rng(0).random((60, 8, 8)).astype(np.float32)
    estimator = PrivateGenerator(epsilon=5, delta=1e-4, run_dir=folder / "run", verbose=False)
    estimator.fit(pixels).save(folder / "run" / "generator.pt")
    publish(folder / "run", folder / "bundle", n=3, generator=True)
    return folder / "bundle"


@pytest.fixture
def bundle(original, tmp_path):
    return shutil.copytree(original, tmp_path / "bundle")


def test_an_untouched_bundle_passes(original):
    verification = verify(original)
    stated = json.loads((original / "privacy.json").read_text())
    assert verification.problems == ()
    assert verification.private
    assert verification.sound
    assert verification.guarantee.epsilon == pytest.approx(stated["epsilon"], rel=1e-3)
    assert verification.guarantee.mu == pytest.approx(stated["mu"], rel=1e-3)
    assert verification.n_files == sum(path.is_file() for path in original.rglob("*"))


def test_one_changed_byte_in_any_file_is_named(bundle):
    generator = np.random.default_rng(0)
    for path in sorted(bundle.rglob("*")):
        if path.is_dir():
            continue
        content = bytearray(path.read_bytes())
        position = int(generator.integers(len(content)))
        content[position] ^= 1 << int(generator.integers(7))
        before = path.read_bytes()
        path.write_bytes(content)
        name = path.relative_to(bundle).as_posix()
        problems = verify(bundle).problems
        assert any(problem.startswith(f"{name}:") for problem in problems), name
        path.write_bytes(before)
    assert verify(bundle).problems == ()


@pytest.mark.parametrize("blank", [b" ", b"\n"])
def test_a_blank_in_the_manifest_is_named(blank, bundle):
    path = bundle / "MANIFEST.json"
    path.write_bytes(path.read_bytes() + blank)
    assert verify(bundle).problems[0].startswith("MANIFEST.json:")


def test_a_missing_and_an_added_file_are_named(bundle):
    (bundle / "samples.png").unlink()
    (bundle / "data" / "more.csv").write_text("1\n")
    (bundle / ".gitattributes").write_text("of a hub\n")
    problems = verify(bundle).problems
    assert [problem.split(":")[0] for problem in problems] == ["samples.png", "data/more.csv"]


def test_a_link_is_not_followed(bundle):
    path = bundle / "samples.png"
    path.rename(bundle.parent / "samples.png")
    path.symlink_to(bundle.parent / "samples.png")
    assert [problem.split(":")[0] for problem in verify(bundle).problems] == ["samples.png"]


# The ledger


def edited(bundle, edit):
    """Edit the entries of the ledger, without the chain."""
    path = bundle / "ledger.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    edit(entries)
    path.write_text("".join(json.dumps(entry, sort_keys=True) + "\n" for entry in entries))


def forged(bundle, edit):
    """Edit the entries of the ledger, and compute the chain and the manifest anew."""

    def edit_and_chain(entries):
        edit(entries)
        head = ""
        for entry in entries:
            del entry["hash"]
            head = digest(head, entry)
            entry["hash"] = head

    edited(bundle, edit_and_chain)
    manifest = Manifest.read(bundle)
    head = json.loads((bundle / "ledger.jsonl").read_text().splitlines()[-1])["hash"]
    Manifest.of(bundle, manifest.run, head).write(bundle)


def numbers_of(entry, path=()):
    """Every place of a number in an entry."""
    items = entry.items() if isinstance(entry, dict) else enumerate(entry)
    for key, value in items:
        if isinstance(value, dict | list):
            yield from numbers_of(value, (*path, key))
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield (*path, key)


def test_one_edited_number_in_the_ledger_is_named_with_its_line(original, bundle):
    lines = (original / "ledger.jsonl").read_text().splitlines()
    n_edits = 0
    for position, line in enumerate(lines):
        for place in numbers_of(json.loads(line)):

            def edit(entries, position=position, place=place):
                *parents, key = place
                part = entries[position]
                for parent in parents:
                    part = part[parent]
                part[key] += 1

            edited(bundle, edit)
            problems = verify(bundle).problems
            assert any(f"line {position + 1} of" in problem for problem in problems), place
            shutil.copyfile(original / "ledger.jsonl", bundle / "ledger.jsonl")
            n_edits += 1
    assert n_edits > 20


def halve_noise(entries):
    for part in entries[0]["plan"]:
        part["mechanism"]["sigma"] /= 2
    for entry in entries:
        if entry["kind"] == "mechanism":
            entry["mechanism"]["sigma"] /= 2


def test_a_forged_chain_contradicts_every_file_that_states_numbers(bundle):
    forged(bundle, halve_noise)
    problems = verify(bundle).problems
    for name in ("ledger.jsonl", "privacy.json", "report.json", "README.md"):
        assert any(problem.startswith(f"{name}: states mu") for problem in problems)
        assert any(problem.startswith(f"{name}: states epsilon") for problem in problems)
    assert any("true-positive rate" in problem for problem in problems)


def test_a_seed_in_a_forged_ledger_contradicts_the_files(bundle):
    def fix_seeds(entries):
        for part in entries[0]["plan"]:
            part["mechanism"]["noise_seed"] = 0
        for entry in entries:
            if entry["kind"] == "mechanism":
                entry["mechanism"]["noise_seed"] = 0

    forged(bundle, fix_seeds)
    verification = verify(bundle)
    assert not verification.private
    assert any(
        problem.startswith("privacy.json: states that the run is private")
        for problem in verification.problems
    )


def test_conditions_of_the_ledger_are_compared_with_the_statements(bundle):
    forged(bundle, lambda entries: entries[0].update(records=HANDED_OVER))
    verification = verify(bundle)
    assert verification.private
    assert not verification.sound
    assert verification.remarks.startswith("CONDITIONAL")
    names = [problem.split(":")[0] for problem in verification.problems if "sound" in problem]
    assert names == ["privacy.json", "report.json", "README.md"]


def test_a_ledger_without_its_last_release_is_named(bundle):
    path = bundle / "ledger.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]))
    problems = verify(bundle).problems
    assert any(problem.startswith("ledger.jsonl: its head is") for problem in problems)
    assert any("releases more than the ledger has" in problem for problem in problems)


def test_numbers_in_the_files_are_not_trusted(bundle):
    path = bundle / "privacy.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"epsilon": 0.5, "mu": 0.1}))
    manifest = Manifest.read(bundle)
    Manifest.of(bundle, manifest.run, manifest.ledger_head).write(bundle)
    problems = verify(bundle).problems
    assert [problem.split(",")[0] for problem in problems] == [
        "privacy.json: states epsilon = 0.5",
        "privacy.json: states mu = 0.1",
    ]


def test_no_accountant_but_dp_accounting_is_asked(original, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("another accountant was asked")

    for name in ("get_epsilon", "get_mu_and_regret", "guarantee", "profile"):
        monkeypatch.setattr(PrivacyAccountant, name, refuse)
    monkeypatch.setattr("dpswd.accounting.accountant.PLDConverter", refuse)
    assert verify(original).problems == ()


@pytest.mark.filterwarnings("ignore::dpswd.errors.PrivacyWarning")
def test_a_shared_budget_is_remarked(tmp_path):
    shared = tmp_path / "all.jsonl"
    SharedLedger.create(shared, target_epsilon=10.0, target_delta=1e-4)
    pixels = np.random.default_rng(0).random((60, 8, 8)).astype(np.float32)
    estimator = PrivateGenerator(
        epsilon=5, delta=1e-4, run_dir=tmp_path / "run", shared_ledger=shared, verbose=False
    )
    estimator.fit(pixels).save(tmp_path / "run" / "generator.pt")
    publish(tmp_path / "run", tmp_path / "bundle", n=3)
    verification = verify(tmp_path / "bundle")
    assert verification.problems == ()
    assert "Other runs share" in verification.remarks


# Without torch


def test_verification_imports_no_torch(original, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('torch')\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from dpswd.commands.main import main\n"
        f"status = main(['verify', {str(original)!r}])\n"
        "heavy = [name for name in ('sklearn', 'matplotlib', 'lightning') if name in sys.modules]\n"
        "sys.exit(status if not heavy else 3)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED" in done.stdout


def test_a_folder_that_is_no_bundle_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"MANIFEST\.json"):
        verify(tmp_path)


def test_another_format_names_the_version_that_wrote_it(bundle):
    path = bundle / "MANIFEST.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"format": 9, "version": "2.5.0"}))
    assert "dpswd 2.5.0" in verify(bundle).problems[0]
