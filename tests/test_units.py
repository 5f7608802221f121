"""Units: the entries that are drawn, the sensitivity for neighbours that differ in a
unit, the law of S.
"""

import json
import math
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from factories import write_images
from observation import differences, distance, observe, stated_mu
from PIL import Image
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from dpswd import (
    Budget,
    ClassCounts,
    ClassCovariances,
    ClassMeans,
    ColumnCounts,
    DPSlicedWassersteinLoss,
    PrivateAdapter,
    PrivateGenerator,
    PrivateRecords,
    ProjectionMechanism,
    ReleaseLoader,
    SumAndNorm,
)
from dpswd._random import SeededRandom
from dpswd.accounting.shared_ledger import SharedLedger
from dpswd.commands.main import main
from dpswd.data import read
from dpswd.errors import InputError
from dpswd.queries import ClassSquares
from dpswd.sensitivity import ProjectionLaw
from dpswd.slices import random_projections
from dpswd.units import Units

DIM = 4


# Entries


@pytest.mark.parametrize("per_unit", [1, 2, 5])
def test_every_unit_has_its_entries_and_no_others(per_unit):
    generator = np.random.default_rng(per_unit)
    names = generator.integers(0, 40, 200)
    units = Units.draw(names, per_unit)
    assert units.entries.shape == (len(set(names)), per_unit)
    for entries in units.entries.tolist():
        unit = names[entries[0]]
        records = np.flatnonzero(names == unit)
        assert set(entries) <= set(records)
        assert len(set(entries)) == min(per_unit, len(records))


def test_records_of_a_unit_are_drawn_uniformly():
    n_units = 4000
    names = np.repeat(np.arange(n_units), 3)
    first = Units.draw(names, 1).entries[:, 0].numpy() % 3
    counts = np.bincount(first, minlength=3)
    # five standard deviations of a binomial count; the control is a draw of the first record
    tolerance = 5 * math.sqrt(n_units * (1 / 3) * (2 / 3))
    assert np.abs(counts - n_units / 3).max() < tolerance
    assert n_units - n_units / 3 > tolerance


@pytest.mark.parametrize(
    "names", [[7, 7.0, "7"], [np.int64(7), b"7", " 7 "], [7, np.float32(7), torch.tensor(7)]]
)
def test_names_with_equal_texts_are_one_unit(names):
    assert len(Units.draw(names, 1)) == 1


NO_UNIT = r"unit \(the person\) of every record, got none for record 2, counted from 1"


@pytest.mark.parametrize("missing", [None, float("nan"), "", pd.NA, pd.NaT])
def test_a_record_without_a_unit_is_refused(missing):
    with pytest.raises(InputError, match=NO_UNIT):
        PrivateRecords(torch.zeros(3, DIM), unit=["a", missing, "b"])


def test_a_column_of_units_is_no_part_of_the_records():
    frame = pd.DataFrame({"patient": ["a", "b", "a"], "age": [30.0, 40.0, 31.0]})
    records = PrivateRecords(frame, unit="patient", per_unit=2)
    assert records.layout.columns == ("age",)
    assert (len(records), records.n_entries, records.shape) == (2, 4, (1,))


@pytest.mark.parametrize(
    "arguments",
    [
        {"unit": "patient"},  # X is no frame
        {"unit": ["a", "b"]},  # for three records
        {"per_unit": 2},  # without unit
        {"unit": ["a", "b", "c"], "per_unit": 0},
        {"unit": ["a", "b", "c"], "per_unit": 1.5},
    ],
)
def test_wrong_units_are_refused(arguments):
    with pytest.raises(InputError, match="unit"):
        PrivateRecords(torch.zeros(3, DIM), **arguments)


# Sensitivity: neighbours differ in all records of one unit

N_UNITS = 6


def queries():
    """Return one query of every kind, with shares that add up to less than one."""
    bounds = [(-1, 1)] * DIM
    return [
        ClassCounts(3, share=0.1),
        ClassMeans(3, DIM, share=0.1),
        ClassMeans(1, DIM, share=0.1),
        ClassCovariances(3, DIM, share=0.1),
        ClassSquares(3, DIM, share=0.1),
        ColumnCounts(3, bounds, share=0.1),
        SumAndNorm(DIM, share=0.1),
    ]


def released(rows, labels, unit, per_unit, statistics):
    """Release every query, and block means or rows of a batch, of records with units."""
    handle = PrivateRecords(
        rows, labels, classes=range(3), bounds=[(-1, 1)] * DIM, unit=unit, per_unit=per_unit
    )
    parts = statistics()
    with Budget(handle, parts, target_epsilon=2, target_delta=1e-3, run_dir="run"):
        for part in parts:
            if isinstance(part, DPSlicedWassersteinLoss):
                part.release(next(iter(ReleaseLoader(handle, batch_size=N_UNITS, n_releases=1))))
            else:
                part.release(handle)


def orthogonal_loss(statistic, n_classes):
    """Return a loss whose batch is the whole data set, with whole orthonormal bases:
    S is constant.
    """
    n_quantiles = None
    if statistic == "quantiles":
        n_quantiles = 2
    mechanism = ProjectionMechanism(
        DIM,
        2 * DIM,
        batch_size=N_UNITS,
        statistic=statistic,
        n_quantiles=n_quantiles,
        kind="orthogonal",
        n_classes=n_classes,
    )
    return DPSlicedWassersteinLoss(mechanism)


STATISTICS = {
    "queries": queries,
    "block means": lambda: [orthogonal_loss("quantiles", None)],
    "block means of classes": lambda: [orthogonal_loss("quantiles", 3)],
    "rows": lambda: [orthogonal_loss("rows", None)],
    "rows of classes": lambda: [orthogonal_loss("rows", 3)],
}


def neighbours(generator, per_unit):
    """Draw two data sets that differ in all records of one unit; sizes of units differ, too.

    The records of that unit come last, so that the draws of the entries of the other units are
    equal in
    both data sets: the proof couples them.
    """
    sizes = generator.integers(1, per_unit + 2, N_UNITS)
    scale = 10.0 ** generator.integers(-1, 3)
    data_sets = []
    others = scale * generator.standard_normal((sizes[1:].sum(), DIM))
    other_labels = generator.integers(0, 3, sizes[1:].sum())
    for _ in range(2):
        size = generator.integers(1, per_unit + 2)
        row = scale * generator.standard_normal(DIM)
        rows = np.tile(row, (size, 1))  # equal records are the worst case
        if generator.random() < 0.5:
            rows = scale * generator.standard_normal((size, DIM))
        labels = np.full(size, generator.integers(0, 3))
        unit = np.concatenate([np.repeat(np.arange(1, N_UNITS), sizes[1:]), np.zeros(size)])
        data_sets.append(
            (np.concatenate([others, rows]), np.concatenate([other_labels, labels]), unit)
        )
    return data_sets


def observed_distances(name, per_unit, n_trials, stated_per_unit=None):
    """Return the distances of the releases of random neighbours, over the mu that they state."""
    generator = np.random.default_rng([per_unit, n_trials])
    ratios = []
    for _ in range(n_trials):
        runs = [
            observe(
                lambda data=data: released(*data, stated_per_unit or per_unit, STATISTICS[name])
            )
            for data in neighbours(generator, per_unit)
        ]
        assert differences(*runs) == []
        ratios.append(distance(*runs) / stated_mu(runs[0]))
    return ratios


@pytest.mark.parametrize("per_unit", [1, 3])
@pytest.mark.parametrize("name", [*STATISTICS])
def test_no_unit_moves_a_release_further_than_stated(name, per_unit):
    ratios = observed_distances(name, per_unit, n_trials=12)
    assert max(ratios) <= 1 + 1e-9
    assert max(ratios) > 0.3  # the search comes near to the bound


@pytest.mark.parametrize("query", [ClassMeans(1, DIM), ClassCounts(3), ClassCovariances(1, DIM)])
def test_the_bound_is_attained_by_equal_records(query):
    unit = np.repeat(np.arange(N_UNITS), 3)
    first = unit == 0
    rows = np.zeros((len(unit), DIM))
    rows[first, 0] = 9.0
    changed = rows.copy()
    changed[first] = [-9.0, 0, 0, 0]
    if isinstance(query, ClassCovariances):
        changed[first] = [0, 9.0, 0, 0]
    data_sets = [(rows, np.zeros(len(unit), dtype=int)), (changed, first.astype(int))]
    runs = [
        observe(lambda data=data: released(*data, unit, 3, lambda: [type(query)(**vars_of(query))]))
        for data in data_sets
    ]
    assert distance(*runs) == pytest.approx(stated_mu(runs[0]), rel=1e-3)


def vars_of(query):
    """Return the arguments that make a query like this one, which a budget has not used."""
    if isinstance(query, ClassCounts):
        return {"n_classes": query.n_classes}
    return {"n_classes": query.n_classes, "dim": query.dim}


def test_control_records_taken_for_units_are_found():
    unit = np.arange(3 * N_UNITS)
    rows = np.zeros((len(unit), DIM))
    changed = rows.copy()
    rows[:3, 0] = 9.0
    changed[:3, 0] = -9.0
    labels = np.zeros(len(unit), dtype=int)
    means = lambda: [ClassMeans(1, DIM)]  # noqa: E731
    runs = [observe(lambda r=r: released(r, labels, unit, 1, means)) for r in (rows, changed)]
    assert distance(*runs) > 2.9 * stated_mu(runs[0])


# The law of S for several records


@pytest.mark.parametrize("kind", ["iid", "orthogonal"])
def test_survival_of_several_records_is_never_exceeded(kind):
    dim, n_projections, per_unit, n_draws = 5, 7, 3, 4000
    generator = torch.Generator().manual_seed(0)
    law = ProjectionLaw(dim, n_projections, kind, n_replaced=per_unit)
    one = ProjectionLaw(dim, n_projections, kind)
    directions = torch.linalg.qr(torch.randn(dim, per_unit, generator=generator).double())[0].T
    means = []
    roots = []
    for _ in range(n_draws):
        U = random_projections(dim, n_projections, kind=kind, generator=generator).double()
        squares = (directions @ U).square().sum(1)
        means.append(float(squares.mean()))
        roots.append(float(squares.sqrt().mean()) ** 2)
    for drawn in (np.array(means), np.array(roots)):
        for s in np.quantile(drawn, [0.1, 0.5, 0.9, 0.99]):
            rate = np.mean(drawn > s)
            tolerance = 5 * math.sqrt(rate * (1 - rate) / n_draws)
            assert rate <= law.survival(s) + tolerance
    # control: the bound for one record is three times smaller in the tail
    far = np.quantile(means, 0.999)
    assert law.survival(far) == pytest.approx(3 * one.survival(far))


def test_iid_directions_of_units_need_more_noise_than_of_one_record():
    options = {"dim": 50, "n_projections": 100, "batch_size": 32, "statistic": "rows"}
    sigma = []
    for per_unit in (1, 4):
        mechanism = ProjectionMechanism(**options, per_unit=per_unit)
        calibrated = mechanism.calibrate(
            sample_size=500, n_releases=50, target_epsilon=4, target_delta=1e-3
        )
        sigma.append(calibrated.sigma)
    assert 2.0 < sigma[1] / sigma[0] < 2.2  # sqrt(4), and a little for the tail of S


@pytest.mark.system_entropy
def test_secret_draw_has_no_seed():
    units = [Units.draw(np.repeat(np.arange(50), 4), 1).entries for _ in range(2)]
    assert not torch.equal(*units)
    assert SeededRandom(0).words(1) == SeededRandom(0).words(1)  # control: a seed would repeat


# Files, estimators and commands


@pytest.fixture
def table(tmp_path):
    """A table of three records for each of twenty persons, with two classes."""
    generator = np.random.default_rng(0)
    path = tmp_path / "scans.csv"
    lines = ["patient,a,b,diagnosis"]
    for number in range(60):
        a, b = generator.random(2).round(3)
        lines.append(f"p{number % 20},{a},{b},{number % 2}")
    path.write_text("\n".join(lines) + "\n")
    (tmp_path / "bounds.csv").write_text("column,low,high\na,0,1\nb,0,1\n")
    return path


@pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")  # few records
def test_generate_protects_persons_and_leaves_their_column_out(
    table, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = f"generate {table} --target diagnosis --classes 0 1 --bounds bounds.csv --delta 0.01"
    assert main([*words.split(), "--unit", "patient", "--per-unit", "3", "--out", "run"]) == 0
    facts = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert facts["unit"] == "one person, at most 3 records"
    assert facts["sample_size"] == 20
    assert "unit of protection is one record" not in " ".join(facts["not_covered"])
    report = (tmp_path / "run" / "report.md").read_text()
    assert "one person, at most 3 records" in report
    assert "one person, at most 3 records" in capsys.readouterr().out
    synthetic = np.load(tmp_path / "run" / "synthetic.npz")
    assert synthetic["columns"].tolist() == ["a", "b"]
    assert len(synthetic["data"]) == 60


def test_a_folder_of_each_person_is_a_unit(tmp_path):
    for kind in ("ill", "well"):
        for person in ("anna", "bert", "carl"):
            images = {f"{number}.png": np.zeros((8, 8)) for number in range(2)}
            write_images(tmp_path / kind / person, images)
    records = read(tmp_path, size=8, channels=1, unit="folder", per_unit=2)
    assert records.classes == ["ill", "well"]
    assert len(records) == 3  # folders of one name are one person
    assert records.n_entries == 6


def test_an_array_of_an_archive_names_the_units(tmp_path):
    path = tmp_path / "scans.npz"
    np.savez(path, features=np.zeros((6, 2), dtype=np.float32), patient=[1, 1, 2, 2, 3, 3])
    assert len(read(path, unit="patient")) == 3
    with pytest.raises(InputError, match=r"unit .--unit. to be an array"):
        read(path, unit="person")


@pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")  # few records
def test_estimators_protect_persons(tmp_path):
    generator = np.random.default_rng(0)
    rows = generator.random((120, 2))
    unit = np.arange(120) // 3
    made = PrivateGenerator(
        delta=0.01, bounds=[(0, 1)] * 2, unit=unit, per_unit=3, run_dir=tmp_path / "g"
    ).fit(rows)
    assert made.guarantee_["unit"] == "one person, at most 3 records"
    X = pd.DataFrame({"a": rows[:, 0], "b": rows[:, 1], "person": unit})
    domain = np.where(np.arange(120) < 60, 1, -1)
    adapter = PrivateAdapter(delta=0.01, unit="person", run_dir=tmp_path / "a")
    adapter.fit(X, np.arange(120) % 2, sample_domain=domain)
    assert adapter.guarantee_["unit"] == "one person, at most 1 record"
    assert adapter.n_features_in_ == 2


def test_one_record_is_the_unit_where_none_is_stated(tmp_path):
    records = PrivateRecords(torch.zeros(8, DIM))
    query = SumAndNorm(DIM)
    with Budget(records, [query], target_epsilon=1, target_delta=0.01, run_dir=tmp_path) as budget:
        query.release(records)
    assert budget.statement()["unit"] == "one record"


# What one person can change: how many records a person has, and how persons are named


@pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")  # few records
def test_the_number_of_records_of_a_person_does_not_leave_an_adapter():
    generator = np.random.default_rng(0)
    source = generator.random((40, 6))
    target = generator.random((20, 6))
    runs = []
    for n_copies in (1, 200):
        rows = np.concatenate([target, np.repeat(target[-1:], n_copies, axis=0)])
        unit = [None] * len(source) + [*range(20)] + [19] * n_copies
        runs.append(observe(lambda rows=rows, unit=unit: adapted(source, rows, unit)))
    assert differences(*runs) == []


def adapted(source, target, unit):
    """Adapt to a target whose persons are named; return what the adapter shows."""
    adapter = PrivateAdapter(epsilon=2, delta=0.01, unit=unit, run_dir="run")
    domain = [1] * len(source) + [-1] * len(target)
    y = [0, 1] * (len(source) // 2) + [None] * len(target)
    adapter.fit(np.concatenate([source, target]), y, sample_domain=domain)
    return adapter.n_target_, adapter.verdict_, adapter.predict(source)


@pytest.mark.parametrize(
    "labels",
    [[True, False, True, False], [1, 2, 1, 2], ["0", "1", "0", "1"], [1.0, 2.0, 1.0, 2.0]],
)
@pytest.mark.parametrize("of_target", [None, "unknown", 1.5, True])
@pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning")  # few records
def test_a_target_label_does_not_decide_how_source_labels_are_read(labels, of_target, tmp_path):
    X = np.random.default_rng(0).random((8, 3))
    domain = np.repeat([1, -1], 4)
    classes = []
    for number, last in enumerate((labels[0], of_target)):
        y = pd.Series([*labels, *labels[:3], last], dtype=object)
        adapter = PrivateAdapter(delta=0.01, run_dir=tmp_path / str(number), verbose=False)
        classes.append(adapter.fit(X, y, sample_domain=domain).classes_)
    assert classes[0].tolist() == classes[1].tolist()
    assert classes[0].dtype == classes[1].dtype


@pytest.mark.parametrize("missing", ["NA", "n/a", "NULL", b""])
def test_what_files_write_for_a_missing_unit_is_refused(missing):
    with pytest.raises(InputError, match=NO_UNIT):
        Units.draw(["anna", missing], 1)


def test_composed_and_decomposed_accents_are_one_person():
    assert len(Units.draw(["Jos\u00e9", "Jose\u0301"], 1)) == 1


def test_a_generator_with_units_refuses_a_handle_without():
    generator = PrivateGenerator(unit=[0, 0, 1, 1], bounds=[(0, 1)] * DIM)
    with pytest.raises(InputError, match="handle with units"):
        generator.fit(PrivateRecords(torch.zeros(4, DIM), bounds=[(0, 1)] * DIM))


def test_a_shared_ledger_holds_runs_that_protect_the_same(tmp_path):
    ledger = tmp_path / "all.jsonl"
    SharedLedger.create(ledger, target_epsilon=10, target_delta=0.01)
    rows = torch.zeros(8, DIM)
    of_persons = PrivateRecords(rows, unit=[0, 0, 1, 1, 2, 2, 3, 3], per_unit=2)
    of_records = PrivateRecords(rows[:4])

    def release(records, name):
        query = SumAndNorm(DIM)
        options = {"target_epsilon": 1, "target_delta": 0.01, "shared_ledger": ledger}
        with Budget(records, [query], run_dir=tmp_path / name, **options):
            query.release(records)

    release(of_persons, "persons")
    with pytest.raises(InputError, match="protect the same"):
        release(of_records, "records")
    assert not (tmp_path / "records" / "ledger.jsonl").exists()


@pytest.mark.parametrize("kind", [PrivateGenerator, PrivateAdapter])
@pytest.mark.parametrize("form", [np.array, list, pd.Series])
def test_an_estimator_shows_no_names_of_persons(kind, form):
    """A notebook shows an estimator after its fit."""
    estimator = kind(unit=form(["anna", "bert", "anna"]), epsilon=3)
    page = estimator._repr_mimebundle_()
    pipeline = make_pipeline(FunctionTransformer(), estimator)
    texts = [repr(estimator), str(estimator), estimator._repr_html_(), *page.values()]
    texts += [repr(pipeline), pipeline._repr_html_()]
    for text in texts:
        assert "epsilon" in text
        assert "anna" not in text
    copied = clone(estimator)
    assert list(copied.unit.open_names()) == ["anna", "bert", "anna"]
    assert "patient" in repr(kind(unit="patient"))  # control: a name of a column is public


@pytest.mark.parametrize("kind", [PrivateGenerator, PrivateAdapter])
def test_a_pickle_of_an_estimator_holds_no_names_of_persons(kind):
    content = pickle.dumps(kind(unit=["anna", "bert", "anna"], epsilon=3))
    assert b"anna" not in content
    assert b"patient" in pickle.dumps(kind(unit="patient"))  # control
    copied = pickle.loads(content)
    assert copied.epsilon == 3
    rows = np.zeros((3, DIM))
    with pytest.raises(InputError, match=r"pickled.*set_params\(unit="):
        copied.fit(rows, [0, 1, None])
    assert copied.set_params(unit=["anna", "bert", "anna"]).unit.open_names()[1] == "bert"


def test_the_line_on_a_folder_of_persons_does_not_depend_on_other_files(tmp_path, capsys):
    lines = []
    for name in ("before", "after"):
        for number in range(4):
            folder = tmp_path / name / ("ill", "well")[number % 2] / f"person{number}"
            folder.mkdir(parents=True)
            Image.new("L", (8, 8), number).save(folder / "0.png")
        if name == "after":
            (folder / "biopsy.dcm").write_bytes(b"x")
            (folder / ".hidden.png").write_bytes(b"x")
        options = {"size": 8, "channels": 1, "classes": ["ill", "well"]}
        read(tmp_path / name, unit="folder", **options)
        lines.append(capsys.readouterr().err.replace(name, ""))
    assert lines[0] == lines[1]
    assert "are left out" in lines[0]
