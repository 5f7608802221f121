"""A bundle: what it holds, and what publishing refuses."""

import csv
import hashlib
import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from dpswd import PrivateAdapter, PrivateGenerator, PrivateRecords
from dpswd.accounting.ledger import HANDED_OVER, digest
from dpswd.accounting.recompute import BY_DISTRIBUTION
from dpswd.commands.main import main
from dpswd.data import read_public
from dpswd.errors import InputError
from dpswd.files.card import Contents
from dpswd.files.generators import read_generator, write_generator
from dpswd.files.publish import publish, reseal
from dpswd.files.verify import front_matter, verify

CLASSES = ["cat", "dog/wolf"]


def fit(directory, records, **options):
    """A run directory with a generator."""
    estimator = PrivateGenerator(epsilon=5, delta=1e-4, run_dir=directory, verbose=False, **options)
    estimator.fit(records).save(directory / "generator.pt")
    return directory


def images(n=80):
    generator = np.random.default_rng(0)
    pixels = generator.random((n, 8, 8)).astype(np.float32)
    return PrivateRecords(pixels, [CLASSES[i % 2] for i in range(n)], classes=CLASSES)


def rows(n=80):
    generator = np.random.default_rng(1)
    values = generator.random((n, 3))
    return PrivateRecords(values, np.arange(n) % 2, classes=[0, 1], bounds=[(0, 1)] * 3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return fit(tmp_path_factory.mktemp("runs") / "images", images())


@pytest.fixture(scope="module")
def bundle(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("bundles") / "images"
    publish(run, path, n=30, licence="cc-by-4.0", generator=True)
    return path


pytestmark = pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")


@pytest.mark.parametrize(
    ("licence", "remedy"),
    [("CC BY 4.0", "pass cc-by-4.0, or other"), ("MIT", "pass mit"), ("mine?", "pass other, and")],
)
def test_a_licence_is_spelled_as_hubs_spell_it(run, tmp_path, licence, remedy):
    with pytest.raises(InputError, match=re.escape(remedy)):
        publish(run, tmp_path / "bundle", licence=licence)
    assert not list(tmp_path.iterdir())


def test_images_and_metadata(bundle):
    folder = bundle / "data" / "train"
    with (folder / "metadata.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 30
    assert {line["label"] for line in lines} == set(CLASSES)
    for line in lines:
        with Image.open(folder / line["file_name"]) as image:
            assert image.size == (8, 8)
    assert sorted(path.name for path in folder.iterdir()) == ["cat", "dog%2Fwolf", "metadata.csv"]


def named_rows():
    generator = np.random.default_rng(1)
    values = pd.DataFrame(generator.random((80, 2)), columns=["height", "weight"])
    return PrivateRecords(values, np.arange(80) % 2, classes=[0, 1], bounds=[(0, 1)] * 2)


@pytest.mark.parametrize(
    ("records", "picture"), [(images, "samples.png"), (named_rows, "columns.png")]
)
def test_the_report_of_a_bundle_says_that_its_picture_shows_no_private_record(
    records, picture, tmp_path
):
    publish(fit(tmp_path / "run", records()), tmp_path / "bundle")
    report = (tmp_path / "bundle" / "report.md").read_text()
    assert f"]({picture})" in report
    assert "No picture shows a private record." in report


def test_card_is_read_by_hubs_and_machines(bundle):
    front = front_matter(bundle / "README.md")
    assert front["license"] == "cc-by-4.0"
    assert front["size_categories"] == ["n<1K"]
    assert front["task_categories"] == ["image-classification"]
    assert front["configs"][0]["data_files"] == [{"split": "train", "path": "data/train/**"}]
    stated = json.loads((bundle / "privacy.json").read_text())
    guarantee = front["differential_privacy"]
    for name in ("epsilon", "delta", "private", "sound", "unit", "run", "neighboring_relation"):
        assert guarantee[name] == stated[name]
    assert guarantee["mu"] == pytest.approx(stated["mu"], rel=1e-4)


def test_the_card_names_the_files_of_the_bundle(bundle):
    text = (bundle / "README.md").read_text()
    for path in bundle.iterdir():
        if path.is_file() and path.name != "README.md":
            assert f"`{path.name}`" in text


def test_the_generator_draws_the_records_of_the_bundle(bundle):
    generator, guarantee = read_generator(bundle / "generator.pt")
    assert guarantee.run == json.loads((bundle / "privacy.json").read_text())["run"]
    assert generator.class_names == CLASSES


def test_tables_are_csv(tmp_path):
    publish(fit(tmp_path / "run", rows()), tmp_path / "bundle", n=25, proportions="released")
    records = read_public(tmp_path / "bundle" / "data" / "train.csv", target="class")
    assert records.train.values.shape == (25, 3)
    front = front_matter(tmp_path / "bundle" / "README.md")
    assert front["task_categories"] == ["tabular-classification"]
    assert front["license"] == "unknown"
    assert "# fill in" in (tmp_path / "bundle" / "README.md").read_text()


def test_a_classifier_is_published_with_a_model_card(tmp_path):
    generator = np.random.default_rng(0)
    labels = np.arange(80) % 2
    source = generator.normal(size=(80, 4)) + 3 * labels[:, None]
    target = generator.normal(size=(80, 4)) + 3 * labels[:, None] + 1
    run = tmp_path / "run"
    adapter = PrivateAdapter(epsilon=5, delta=1e-4, run_dir=run, verbose=False)
    domain = np.repeat([1, -1], 80)
    adapter.fit(np.concatenate([source, target]), np.tile(labels, 2), domain)
    adapter.save(run / "classifier.pt")
    options_of_records = [{"n": 5}, {"proportions": "equal"}, {"seed": 0}, {"generator": True}]
    for options in options_of_records:
        with pytest.raises(
            InputError, match=f"{next(iter(options))} to be left out .* draws no records"
        ):
            publish(run, tmp_path / "bundle", **options)
        assert not (tmp_path / "bundle").exists()
    bundle = publish(run, tmp_path / "bundle")
    assert bundle.n_records == 0
    assert verify(bundle.path).problems == ()
    assert not (bundle.path / "data").exists()
    published = PrivateAdapter.load(bundle.path / "classifier.pt")
    assert np.array_equal(published.predict(target), adapter.predict(target))
    front = front_matter(bundle.path / "README.md")
    assert front["library_name"] == "dpswd"
    assert front["pipeline_tag"] == "tabular-classification"
    assert front["differential_privacy"]["private"]


@pytest.mark.parametrize("adapted", [True, False])
def test_the_card_of_a_classifier_says_whether_it_was_adapted(adapted):
    contents = Contents.of_classifier((4,), ["a", "b"], "A verdict.", adapted=adapted)
    assert ("and adapted to private ones" in contents.intro) == adapted
    assert ("was not adapted" in contents.intro) != adapted


def test_the_same_seed_gives_the_same_bundle(run, tmp_path):
    fingerprints = {publish(run, tmp_path / name, n=4).fingerprint for name in ("a", "b")}
    other = publish(run, tmp_path / "c", n=4, seed=1).fingerprint
    assert len(fingerprints) == 1
    assert other not in fingerprints


def test_files_that_lie_in_the_run_by_chance_are_not_published(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    for name in ("samples.png", "synthetic.npz", "evaluation.png", "notes.txt"):
        (copy / name).write_bytes(b"of real records")
    publish(copy, tmp_path / "bundle", n=4)
    for path in (tmp_path / "bundle").rglob("*"):
        assert path.is_dir() or b"of real records" not in path.read_bytes()


# Refusals


def with_config(run, directory, text):
    """A copy of a run whose config has another text, named by the ledger."""
    shutil.copytree(run, directory)
    (directory / "config.yaml").write_text(text)
    lines = []
    head = ""
    for line in (directory / "ledger.jsonl").read_text().splitlines():
        entry = json.loads(line)
        del entry["hash"]
        if "config_sha256" in entry:
            entry["config_sha256"] = hashlib.sha256(text.encode()).hexdigest()
        head = digest(head, entry)
        lines.append(json.dumps(entry | {"hash": head}, sort_keys=True) + "\n")
    (directory / "ledger.jsonl").write_text("".join(lines))
    return directory


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ("data: {root: /home/alice/clinic}", "data.root"),
        ("data: {root: ~/clinic}", "data.root"),
        ("data: {root: 'file:///home/alice'}", "data.root"),
        (r"data: {root: 'C:\alice'}", "data.root"),
        ("model: {files: [a, /home/alice/b]}", "model.files"),
        ("{/home/alice", "config.yaml"),
        ("day: 2026-02-30  # of /home/alice", "config.yaml"),  # YAML reads it as a date
    ],
)
def test_a_config_with_absolute_paths_is_left_out(run, tmp_path, config, key):
    edited = with_config(run, tmp_path / "run", config)
    bundle = publish(edited, tmp_path / "bundle", n=4)
    assert key in bundle.left_out
    assert not (tmp_path / "bundle" / "config.yaml").exists()
    assert not verify(tmp_path / "bundle").problems
    for path in (tmp_path / "bundle").rglob("*.*"):
        assert b"alice" not in path.read_bytes()


@pytest.mark.parametrize("config", ["data: {root: data, classes: [a/b, 1]}", "records: {n: 3}"])
def test_a_config_without_absolute_paths_is_published(run, tmp_path, config):
    edited = with_config(run, tmp_path / "run", config)
    bundle = publish(edited, tmp_path / "bundle", n=4)
    assert not bundle.left_out
    assert (tmp_path / "bundle" / "config.yaml").read_text() == config
    assert not verify(tmp_path / "bundle").problems


def test_a_bundle_names_no_path_of_the_machine(run, bundle):
    for path in bundle.rglob("*.*"):
        assert str(run.parent).encode() not in path.read_bytes()


def check_refused(run, out, message):
    with pytest.raises(InputError, match=message):
        publish(run, out, n=4)
    assert not out.exists()
    assert not list(out.parent.glob("*.part*"))


def test_a_run_without_generator_is_refused(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "generator.pt").unlink()
    check_refused(copy, tmp_path / "bundle", r"without generator\.pt; to finish .*--resume")
    (copy / "config.yaml").write_text("model: {}\n")  # as that of dpswd fit
    check_refused(copy, tmp_path / "bundle", r"generator\.pt.*of your own.*checkpoints/last\.ckpt")
    (copy / "privacy.json").unlink()
    check_refused(copy, tmp_path / "bundle", r"generator\.pt.*takes the directory")


def test_a_run_that_is_not_private_is_refused(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    privacy = json.loads((copy / "privacy.json").read_text())
    (copy / "privacy.json").write_text(json.dumps(privacy | {"private": False}))
    check_refused(copy, tmp_path / "bundle", "NOT PRIVATE")


def test_the_generator_of_another_run_is_refused(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    other = fit(tmp_path / "other", images(70))
    shutil.copyfile(other / "generator.pt", copy / "generator.pt")
    check_refused(copy, tmp_path / "bundle", "does not cover")


def test_a_generator_without_guarantee_is_refused(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    generator, _ = read_generator(copy / "generator.pt")
    write_generator(generator, copy / "generator.pt")
    check_refused(copy, tmp_path / "bundle", "does not cover")


def test_an_incomplete_ledger_is_refused(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    with (copy / "ledger.jsonl").open("ab") as file:
        file.write(b'{"hash": "12')
    check_refused(copy, tmp_path / "bundle", "incomplete")


def test_an_existing_folder_is_refused(run, bundle):
    with pytest.raises(InputError, match="exists"):
        publish(run, bundle, n=4)
    assert verify(bundle).problems == ()


# Resealing


def test_an_edited_card_is_resealed(bundle, tmp_path):
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    card = copy / "README.md"
    card.write_text(card.read_text().replace("license: cc-by-4.0", "license: mit"))
    assert verify(copy).problems != ()
    assert reseal(copy) == verify(copy).fingerprint
    assert verify(copy).problems == ()


@pytest.mark.parametrize("name", ["data/train/metadata.csv", "ledger.jsonl"])
def test_resealing_hides_no_other_change(name, bundle, tmp_path):
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    (copy / name).write_bytes((copy / name).read_bytes() + b" ")
    manifest = (copy / "MANIFEST.json").read_bytes()
    with pytest.raises(InputError, match=name):
        reseal(copy)
    assert (copy / "MANIFEST.json").read_bytes() == manifest


def test_resealing_hides_no_better_guarantee(bundle, tmp_path):
    copy = shutil.copytree(bundle, tmp_path / "bundle")
    _, front, body = (copy / "README.md").read_text().split("---\n", 2)
    content = yaml.safe_load(front)
    content["differential_privacy"]["epsilon"] = 0.1
    (copy / "README.md").write_text(f"---\n{yaml.safe_dump(content)}---\n{body}")
    with pytest.raises(InputError, match="states epsilon"):
        reseal(copy)


def test_conditions_stand_first_in_the_card(run, tmp_path):
    """A run whose records were tensors of the caller states its conditions, and is verified."""
    copy = shutil.copytree(run, tmp_path / "run")
    ledger = copy / "ledger.jsonl"
    head = ""
    lines = []
    for line in ledger.read_text().splitlines():
        entry = json.loads(line)
        del entry["hash"]
        if entry["kind"] == "header":
            entry["records"] = HANDED_OVER
        head = digest(head, entry)
        lines.append(json.dumps(entry | {"hash": head}, sort_keys=True))
    ledger.write_text("\n".join(lines) + "\n")
    privacy = json.loads((copy / "privacy.json").read_text())
    (copy / "privacy.json").write_text(json.dumps(privacy | {"sound": False}))
    publish(copy, tmp_path / "bundle", n=4)
    card = (tmp_path / "bundle" / "README.md").read_text()
    assert "> **CONDITIONAL.**" in card
    assert (
        len(front_matter(tmp_path / "bundle" / "README.md")["differential_privacy"]["conditions"])
        == 3
    )
    verification = verify(tmp_path / "bundle")
    assert verification.problems == ()
    assert not verification.sound


FIT = {
    "seed_everything": 0,
    "trainer": {
        "default_root_dir": "run",
        "max_steps": 2,
        "accelerator": "cpu",
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "logger": False,
        "callbacks": [{"class_path": "dpswd.lightning.callbacks.GeneratorFile"}],
    },
    "privacy": {"target_epsilon": 5.0, "target_delta": 1e-4, "accountant": "rdp"},
    "model": {
        "class_path": "dpswd.lightning.module.GeneratorModule",
        "init_args": {
            "generator": {
                "class_path": "dpswd.networks.image_generators.ConvGenerator",
                "init_args": {"sample_shape": [1, 8, 8], "latent_dim": 4, "hidden": 8},
            },
            "features": {
                "class_path": "dpswd.features.maps.Flatten",
                "init_args": {"sample_shape": [1, 8, 8], "radius": 3.2},
            },
            "batch_size": 40,
            "n_projections": 30,
            "kind": "iid",
            "statistic": "rows",
            "n_quantiles": None,
            "labels": "none",
            "generated": 8,
        },
    },
    "data": {
        "class_path": "dpswd.lightning.data.PrivateDataModule",
        "init_args": {"path": "digits"},
    },
}


def test_a_trained_network_with_random_sensitivity_is_published(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fit.yaml").write_text(json.dumps(FIT))
    assert main(["fit", "--config", "fit.yaml"]) == 0
    publish("run", "bundle", n=6)
    verification = verify("bundle")
    stated = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert verification.problems == ()
    # by the privacy loss distribution, which is tighter than Renyi accounting here
    assert verification.guarantee.epsilon < stated["epsilon"]
    assert verification.guarantee.method == BY_DISTRIBUTION


# The number of records


def generate(data, *options):
    """Generate records in ``run``, and publish them in ``bundle``."""
    assert main(["generate", str(data), "--delta", "1e-3", "--out", "run", *options]) == 0
    assert main(["publish", "run", "--out", "bundle"]) == 0


def published_images():
    """The images of the bundle in the order in which they were drawn, and their classes."""
    folder = Path("bundle/data/train")
    with (folder / "metadata.csv").open() as file:
        lines = list(csv.DictReader(file))
    pixels = np.stack([np.asarray(Image.open(folder / line["file_name"])) for line in lines])
    return pixels, [line["label"] for line in lines]


OF_PERSONS = ("--per-unit", "3", "--unit")


@pytest.mark.parametrize(("options", "n"), [((*OF_PERSONS, "folder"), 30), ((), 20)])
def test_images_of_the_bundle_are_those_of_the_run(options, n, tmp_path, monkeypatch):
    """Ten persons with two images each, of which three enter, or twenty images."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for i in range(20):
        person = tmp_path / "photos" / ("cat", "dog")[i % 2] / f"{i % 10}"
        if not options:
            person = person.parent
        person.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(person / f"{i}.png")
    generate("photos", "--size", "8", "--channels", "1", "--classes", "cat", "dog", *options)
    pixels, labels = published_images()
    with np.load("run/synthetic.npz") as synthetic:
        assert len(pixels) == n
        assert np.array_equal(pixels, synthetic["data"])
        assert labels == synthetic["targets"].tolist()


@pytest.mark.parametrize(("options", "n"), [((*OF_PERSONS, "person"), 60), ((), 40)])
@pytest.mark.parametrize("is_table", [True, False])
def test_rows_of_the_bundle_are_those_of_the_run(is_table, options, n, tmp_path, monkeypatch):
    """Twenty persons with two rows each, of which three enter, or forty rows."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    rows = [f"{i // 2},{a:.3f},{b:.3f},{i % 2}" for i, (a, b) in enumerate(rng.random((40, 2)))]
    (tmp_path / "rows.csv").write_text("\n".join(["person,a,b,sick", *rows]) + "\n")
    facts = "a: {kind: numeric, low: 0, high: 1}\nb: {kind: numeric, low: 0, high: 1}\n"
    bounds = "column,low,high\na,0,1\nb,0,1\n"
    if not options:
        facts += "person: {kind: integer, low: 0, high: 99}\n"
        bounds = bounds.replace("\na", "\nperson,0,99\na")
    (tmp_path / "facts.yaml").write_text(facts)
    (tmp_path / "bounds.csv").write_text(bounds)
    stated = ["--columns", "facts.yaml"] if is_table else ["--bounds", "bounds.csv"]
    generate("rows.csv", *stated, "--target", "sick", "--classes", "0", "1", *options)
    with open("bundle/data/train.csv") as file:
        published = list(csv.reader(file))
    assert len(published) == 1 + n
    if is_table:
        with open("run/synthetic.csv") as file:
            assert published == list(csv.reader(file))
        return
    with np.load("run/synthetic.npz") as synthetic:
        values = np.array([row[:-1] for row in published[1:]], float)
        assert values == pytest.approx(synthetic["data"])
        assert [row[-1] for row in published[1:]] == synthetic["targets"].astype(str).tolist()


def test_of_many_images_a_bundle_has_the_first_ones(tmp_path, monkeypatch):
    """Rows are one file, however many there are, and the order of their classes depends on n."""
    monkeypatch.setattr("dpswd.files.publish.MAX_IMAGES", 10)
    monkeypatch.chdir(tmp_path)
    for name, records, n in (("images", images(), 10), ("rows", rows(), 80)):
        run = fit(tmp_path / name, records)
        assert publish(run, tmp_path / f"{name}-bundle").n_records == n


# The commands


def test_the_commands(run, tmp_path, capsys):
    bundle = tmp_path / "bundle"
    assert main(["publish", str(run), "--out", str(bundle), "-n", "5", "--json"]) == 0
    published = json.loads(capsys.readouterr().out)
    assert published["n_records"] == 5
    fingerprint = published["fingerprint"]
    assert main(["verify", str(bundle), "--fingerprint", fingerprint, "--json"]) == 0
    verified = json.loads(capsys.readouterr().out)
    assert verified["passed"]
    assert verified["epsilon"] == pytest.approx(published["guarantee"]["epsilon"], rel=1e-3)
    assert main(["verify", str(bundle)]) == 0
    assert {"Guarantee:", "Fingerprint:"} <= set(capsys.readouterr().out.split())
    assert main(["verify", str(bundle), "--fingerprint", "0" * 64]) == 1
    screen = capsys.readouterr().out
    assert "fingerprint" in screen
    assert "ask its publisher for it again" in screen
    assert not {"Guarantee:", "Attack:", "Fingerprint:"} & set(screen.split())
    assert main(["publish", str(bundle), "--reseal"]) == 0
    assert fingerprint in capsys.readouterr().out


@pytest.mark.parametrize("options", [(), ("--licence", "cc-by-4.0")])
def test_the_fingerprint_to_publish_is_that_of_the_filled_in_card(options, run, tmp_path, capsys):
    bundle = tmp_path / "bundle"
    assert main(["publish", str(run), "--out", str(bundle), "-n", "5", *options]) == 0
    screen = capsys.readouterr().out
    assert "changes with --reseal" in screen
    assert "second place" not in screen
    assert ("--licence NAME" in screen) == (options == ())
    assert main(["publish", str(bundle), "--reseal"]) == 0
    screen = capsys.readouterr().out
    assert "changes with --reseal" not in screen
    assert "second place" in screen


def test_the_next_command_of_a_folder_with_blanks_can_be_copied(run, tmp_path, capsys):
    bundle = tmp_path / "my bundle"
    assert main(["publish", str(run), "--out", str(bundle), "-n", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    next_command = next(line for line in lines if line.startswith("Next:"))
    assert shlex.split(next_command)[1:] == ["dpswd", "verify", str(bundle)]
    reseal = next(line for line in lines if line.startswith("Fill in:")).partition("then: ")[2]
    assert shlex.split(reseal) == ["dpswd", "publish", str(bundle), "--reseal"]


def test_commands_say_what_is_missing(run, tmp_path, capsys):
    assert main(["publish", str(run)]) == 2
    assert "--out" in capsys.readouterr().err
    assert main(["verify", str(run)]) == 2
    assert "MANIFEST.json" in capsys.readouterr().err
