"""Files of earlier versions: they load, and give the same numbers (docs/formats.md).

``tests/fixtures/VERSION`` holds a file of every format that this version wrote, and in
``expected.npz`` what it computed from them; ``tests/fixtures/write.py`` wrote both.
"""

import json
import shutil
from importlib import resources
from pathlib import Path

import jsonschema
import numpy as np
import pytest
import torch

from dpswd import InputError, PrivateAdapter, PrivateGenerator, PrivateRecords
from dpswd.accounting.guarantee import Guarantee
from dpswd.accounting.ledger import Ledger, digest
from dpswd.accounting.recompute import recompute
from dpswd.commands.main import main
from dpswd.errors import LedgerError
from dpswd.features.maps import Flatten
from dpswd.files.archives import read_file
from dpswd.files.generators import read_generator
from dpswd.files.publish import publish
from dpswd.files.verify import verify
from dpswd.moments import MomentMatcher
from dpswd.principal import PrincipalSlices, SlicePlan
from dpswd.report import write_report

FIXTURES = Path(__file__).parents[1] / "fixtures"
VERSIONS = ["0.3", "0.4"]
FEATURES = Flatten((1, 8, 8), centre=0.5, radius=2.4)

every_version = pytest.mark.parametrize("version", VERSIONS)


def expected(version):
    with np.load(FIXTURES / version / "expected.npz") as arrays:
        return dict(arrays)


def test_every_version_has_fixtures():
    assert sorted(path.name for path in FIXTURES.iterdir() if path.is_dir()) == VERSIONS


# Weights


@pytest.mark.parametrize(
    ("version", "file", "records", "labels"),
    [
        ("0.3", "generator.pt", "images", "image_labels"),
        ("0.3", "table.pt", "table", "table_labels"),
        ("0.4", "generator.pt", "images", "image_labels"),
        ("0.4", "table.pt", "table", "table_labels"),
        ("0.4", "network.pt", "network", "network_labels"),
    ],
)
def test_generators_sample_equal_records(version, file, records, labels):
    path = FIXTURES / version / file
    values = expected(version)
    estimator = PrivateGenerator.load(path)
    estimator.random_state = 0
    sampled, classes = estimator.sample(len(values[records]), proportions="equal")
    np.testing.assert_allclose(np.asarray(sampled), values[records], atol=1e-4)
    assert np.array_equal(np.asarray(classes), values[labels])
    assert estimator.guarantee_.private
    assert estimator.guarantee_.epsilon <= 8


@every_version
def test_classifiers_predict_equal_probabilities(version):
    values = expected(version)
    adapter = PrivateAdapter.load(FIXTURES / version / "classifier.pt")
    probabilities = adapter.predict_proba(values["new"])
    np.testing.assert_allclose(probabilities, values["probabilities"], atol=1e-6)
    assert adapter.guarantee_.sound


@pytest.mark.parametrize("version", ["0.4"])
def test_moments_give_an_equal_loss(version):
    matcher = MomentMatcher(FEATURES, n_classes=2).load(FIXTURES / version / "moments.pt")
    generated = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(5))
    loss = matcher.loss(generated, torch.arange(12) % 2)
    np.testing.assert_allclose(loss.numpy(), expected(version)["moments"], rtol=1e-4)


@pytest.mark.parametrize("version", ["0.4"])
def test_slices_are_equal(version):
    plan = SlicePlan(n_directions=3, n_bases=2, n_quantiles=2, batch_size=60)
    slices = PrincipalSlices(FEATURES, n_classes=2, plan=plan)
    slices.load(FIXTURES / version / "slices.pt")
    assert slices.is_released
    np.testing.assert_array_equal(slices.values.numpy(), expected(version)["slices"])


# Ledger, statement, report


@every_version
def test_a_ledger_gives_the_guarantee_that_its_run_has_stated(version):
    ledger = Ledger.open_existing(FIXTURES / version / "ledger.jsonl")
    privacy = json.loads((FIXTURES / version / "privacy.json").read_text())
    computed = recompute(ledger)
    assert ledger.n_releases == privacy["releases_made"]
    assert computed.epsilon == pytest.approx(privacy["epsilon"], rel=1e-3)
    assert computed.mu == pytest.approx(privacy["mu"], rel=1e-3)


@every_version
def test_a_run_is_reported_published_and_verified(version, tmp_path):
    run = shutil.copytree(FIXTURES / version, tmp_path / "run")
    before = json.loads((run / "report.json").read_text())
    after = write_report(run)
    for part in ("runs", "ledger", "conditions", "sound", "private"):
        assert after[part] == before[part]
    assert before["records"].items() <= after["records"].items()
    assert after["guarantee"]["mu"] == pytest.approx(before["guarantee"]["mu"], rel=1e-6)
    publish(run, tmp_path / "bundle", n=6)
    assert verify(tmp_path / "bundle").problems == ()


@every_version
def test_the_numbers_of_a_report_are_still_compared(version, tmp_path):
    run = shutil.copytree(FIXTURES / version, tmp_path / "run")
    publish(run, tmp_path / "bundle", n=6)
    shutil.copyfile(FIXTURES / version / "report.json", tmp_path / "bundle" / "report.json")
    problems = verify(tmp_path / "bundle").problems
    assert [problem.split(",")[0] for problem in problems] == ["report.json: changed"]


def test_the_report_of_this_version_fits_its_schema():
    schema = json.loads((resources.files("dpswd.report") / "schema.json").read_text())
    jsonschema.validate(json.loads((FIXTURES / "0.4" / "report.json").read_text()), schema)


def law(generator):
    """Means (C, 64) and covariances (C, 64, 64) of pixels; their axes differ between versions."""
    means = generator.means @ generator.synthesis + generator.offset
    factors = generator.roots @ generator.synthesis
    return means, factors.mT @ factors


@every_version
@pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")
def test_stored_releases_are_read_again(version, tmp_path):
    run = shutil.copytree(FIXTURES / version, tmp_path / "run")
    expected_law = law(PrivateGenerator.load(run / "generator.pt").generator_)
    (run / "generator.pt").unlink()
    zeros = np.zeros((60, 8, 8), dtype=np.float32)  # no record is read: all releases are stored
    names = ["cat", "dog"]
    records = PrivateRecords(zeros, [names[i % 2] for i in range(60)], classes=names)
    estimator = PrivateGenerator(
        epsilon=8.0, delta=1e-4, run_dir=run, resume=True, random_state=0, verbose=False
    )
    resumed_law = law(estimator.fit(records).generator_)
    for resumed, part in zip(resumed_law, expected_law, strict=True):
        torch.testing.assert_close(resumed, part, atol=1e-5, rtol=1e-5)


# Formats of later versions


def later(file, tmp_path, **changes):
    """A file with other fields, as a later version may write it."""
    content = torch.load(FIXTURES / "0.4" / file, weights_only=True)
    path = tmp_path / file
    torch.save(content | {"format": 99, "version": "2.5.0"} | changes, path)
    return path


LOADERS = {
    "generator.pt": read_generator,
    "classifier.pt": PrivateAdapter.load,
    "moments.pt": lambda path: MomentMatcher(FEATURES, n_classes=2).load(path),
    "slices.pt": lambda path: PrincipalSlices(FEATURES, 2, SlicePlan(3, 2, 2, 60)).load(path),
}


@pytest.mark.parametrize("file", LOADERS)
def test_an_unknown_format_names_the_version_that_wrote_it(file, tmp_path):
    with pytest.raises(InputError, match=r"format 99, written by dpswd 2\.5\.0"):
        LOADERS[file](later(file, tmp_path))


@pytest.mark.parametrize("file", LOADERS)
@pytest.mark.parametrize("other", LOADERS)
def test_a_file_of_another_kind_is_named(file, other):
    if file == other:
        return
    kinds = {"moments.pt": "file of moments", "slices.pt": "file of slices"}
    kind = kinds.get(other, other.removesuffix(".pt"))
    with pytest.raises(InputError, match=f"got a {kind}"):
        LOADERS[file](FIXTURES / "0.4" / other)


@pytest.mark.parametrize("kind", ["generator", "classifier", "file of moments", "file of slices"])
@pytest.mark.parametrize("content", [None, b"no archive"])
def test_a_refusal_names_a_file_that_exists(kind, content, tmp_path):
    path = tmp_path / "file.pt"
    if content is not None:
        path.write_bytes(content)
    remedy = f"pass the {kind}.pt of a run"
    if kind.startswith("file of"):
        remedy = "pass a file of its method save"
    with pytest.raises(InputError, match=remedy), read_file(path, kind, 1):
        pass


def test_an_unknown_format_of_an_unknown_version_names_no_package(tmp_path):
    torch.save({"generator": {}, "format": 99}, tmp_path / "file.pt")
    words = "got format 99, of an unknown version of dpswd; read it with the version that wrote it"
    with pytest.raises(InputError, match=words), read_file(tmp_path / "file.pt", "generator", 1):
        pass


def test_predict_with_a_generator_says_what_to_pass(tmp_path, capsys):
    generator = str(FIXTURES / "0.4" / "generator.pt")
    out = str(tmp_path / "predictions.npz")
    assert main(["predict", generator, "digits", "--out", out]) == 2
    message = capsys.readouterr().err
    assert "got a generator; pass a classifier.pt" in message
    assert main(["sample", str(FIXTURES / "0.4" / "classifier.pt"), "--out", out]) == 2
    assert "got a classifier; pass a generator.pt" in capsys.readouterr().err


def test_an_unknown_ledger_names_the_version_that_wrote_it(tmp_path):
    entry = {"kind": "header", "format": 99, "version": "2.5.0"}
    entry["hash"] = digest("", entry)
    (tmp_path / "ledger.jsonl").write_text(json.dumps(entry) + "\n")
    with pytest.raises(LedgerError, match=r"written by dpswd 2\.5\.0"):
        Ledger.open_existing(tmp_path / "ledger.jsonl")


def test_an_unknown_statement_names_the_version_that_wrote_it(tmp_path):
    run = shutil.copytree(FIXTURES / "0.4", tmp_path / "run")
    content = json.loads((run / "privacy.json").read_text())
    assert content["format"] == 1
    later_content = content | {"format": 99, "version": "2.5.0"}
    (run / "privacy.json").write_text(json.dumps(later_content))
    with pytest.raises(InputError, match=r"format 99, written by dpswd 2\.5\.0"):
        write_report(run)


def test_no_file_runs_code():
    """Only what torch.load reads with weights_only, in archives that are not compressed."""
    kinds = {
        "classifier": "classifier",
        "moments": "file of moments",
        "slices": "file of slices",
    }
    for version in VERSIONS:
        for path in (FIXTURES / version).glob("*.pt"):
            kind = kinds.get(path.stem, "generator")
            with read_file(path, kind, 1, 2, 4) as content:
                assert Guarantee.from_dict(content["guarantee"]).private
                assert content["version"]


@pytest.mark.parametrize("kind", ["generator", "classifier"])
def test_a_checkpoint_of_a_network_of_the_user_is_named(tmp_path, kind):
    torch.save({"pytorch-lightning_version": "2.6.0", "state_dict": {}}, tmp_path / "last.ckpt")
    with (
        pytest.raises(InputError, match=r"got a checkpoint; .* a network of your own"),
        read_file(tmp_path / "last.ckpt", kind, 1),
    ):
        pass
