"""Adaptation of tables with categories, dates and missing cells."""

import csv
import json

import numpy as np
import pytest
from factories import answer, refused, untouched

from dpswd import InputError, PrivateAdapter
from dpswd.commands.main import main
from dpswd.files.publish import publish

pd = pytest.importorskip("pandas")
pytestmark = [
    pytest.mark.filterwarnings("ignore::dpswd.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::dpswd.errors.UtilityWarning"),
]

FACTS = {
    "patient": {"kind": "identifier"},
    "admitted": {"kind": "date", "low": "2021-01-01", "high": "2021-12-31", "format": "%d.%m.%Y"},
    "sex": {"kind": "binary", "categories": ["F", "M"]},
    "smoker": {"kind": "binary", "categories": ["no", "yes"], "missing": True},
    "ward": {"kind": "nominal", "categories": ["heart", "lung", "eye"]},
    "weight": {"low": 30, "high": 200, "decimals": 1, "decimal_mark": ",", "missing": True},
}
N = 700


def people(seed, offset=0.0):
    """Text of a table, and the classes: the sick are heavier, and never in the ward eye."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, N)
    weight = random.normal(80, 8, N) + 25 * labels + offset
    frame = pd.DataFrame(
        {
            "patient": [f"p{number}" for number in range(N)],
            "admitted": [f"{day:02d}.03.2021" for day in random.integers(1, 29, N)],
            "sex": random.choice(["F", "M"], N),
            "smoker": random.choice(["no", "yes", ""], N),
            "ward": np.where(
                labels == 1, random.choice(["heart", "lung"], N), random.choice(["eye", "lung"], N)
            ),
            "weight": [f"{kilograms:.1f}".replace(".", ",") for kilograms in weight],
        }
    )
    frame.loc[random.random(N) < 0.1, "weight"] = ""
    return frame, np.array(["no", "yes"])[labels]


SOURCE, LABELS = people(0)
TARGET, TRUTH = people(1, offset=-20.0)
DOMAIN = np.repeat([1, -1], [N, N])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files of source, target and facts, and the run of ``dpswd adapt``."""
    path = tmp_path_factory.mktemp("people")
    SOURCE.assign(sick=LABELS).to_csv(path / "source.csv", index=False)
    TARGET[TARGET.columns[::-1]].to_csv(path / "target.csv", index=False)  # another order
    (path / "columns.yaml").write_text(json.dumps(FACTS))
    words = ["adapt", f"{path}/source.csv", f"{path}/target.csv", "--target", "sick"]
    words += ["--columns", f"{path}/columns.yaml", "--out", f"{path}/run"]
    words += ["--min-shift", "0"]
    assert main(words) == 0
    return path


@pytest.fixture
def place(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


def test_the_accuracy_of_a_table_with_facts(place, capfd):
    """Columns in another order are those of the classifier, without further options."""
    frame = TARGET[TARGET.columns[::-1]].assign(sick=TRUTH)
    frame.to_csv("labelled.csv", index=False)
    words = ("evaluate", "run", "labelled.csv", "--target", "sick", "--out", "private/accuracy")
    figures = answer(capfd, *words)
    expected = PrivateAdapter.load("run/classifier.pt").predict(TARGET) == TRUTH
    assert figures["accuracy"] == pytest.approx(100 * expected.mean(), abs=0.01)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    """An adapter that is fitted to DataFrames."""
    run_dir = tmp_path_factory.mktemp("adapter") / "run"
    frame = pd.concat([SOURCE, TARGET])
    labels = [*LABELS, *[None] * N]
    new = PrivateAdapter(10, 1e-5, columns=FACTS, min_shift=0, run_dir=run_dir, verbose=False)
    return new.fit(frame, labels, DOMAIN)


def test_categories_and_offsets_are_learned(adapter):
    assert adapter.n_features_in_ == 5
    assert adapter.adapted_
    assert (adapter.predict(TARGET) == TRUTH).mean() > 0.87
    sick = (adapter.predict(TARGET) == "yes").mean()
    for ward, factor in (("eye", 0.9), ("heart", 1.1)):
        share = (adapter.predict(TARGET.assign(ward=ward)) == "yes").mean()
        assert (share - sick * factor) * (factor - 1) > 0


def test_columns_are_matched_by_name_and_cells_by_value(adapter, tmp_path):
    expected = adapter.predict(TARGET)
    adapter.save(tmp_path / "classifier.pt")
    loaded = PrivateAdapter.load(tmp_path / "classifier.pt")
    reordered = TARGET[TARGET.columns[::-1]].drop(columns="patient")
    np.testing.assert_array_equal(loaded.predict(reordered), expected)
    typed = TARGET.assign(
        admitted=pd.to_datetime(TARGET["admitted"], format="%d.%m.%Y"),
        ward=TARGET["ward"].astype("category"),
        smoker=TARGET["smoker"].replace("", None),
    )
    np.testing.assert_array_equal(loaded.predict(typed), expected)
    np.testing.assert_array_equal(
        loaded.predict_proba(TARGET).argmax(1), (expected == "yes").astype(int)
    )
    assert loaded.classifier_.coding.names == adapter.classifier_.coding.names


def test_frames_of_polars_and_tables_of_pyarrow_are_read(adapter):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({name: TARGET[name].tolist() for name in TARGET})
    expected = adapter.predict(TARGET)
    np.testing.assert_array_equal(adapter.predict(frame), expected)
    np.testing.assert_array_equal(adapter.predict(frame.to_arrow()), expected)


def test_methods_share_one_synthetic_target(adapter):
    before = adapter.predict(TARGET)
    adapter.set_params(min_shift=1e9).adapt(SOURCE, LABELS)
    assert not adapter.adapted_
    assert (adapter.predict(TARGET) == TRUTH).mean() < 0.83  # the control: offsets matter
    adapter.set_params(min_shift=0).adapt(SOURCE, LABELS)
    np.testing.assert_array_equal(adapter.predict(TARGET), before)


def test_the_command_reads_files_and_predict_takes_any_order(place, adapter, capfd):
    answer(capfd, "predict", "run/classifier.pt", "target.csv", "--out", "predictions.csv")
    with open("predictions.csv") as file:
        predictions = [line["prediction"] for line in csv.DictReader(file)]
    # Two fits have different noise.
    assert np.mean(np.array(predictions) == adapter.predict(TARGET)) > 0.9
    assert np.mean(np.array(predictions) == TRUTH) > 0.87
    loaded = PrivateAdapter.load("run/classifier.pt")
    np.testing.assert_array_equal(loaded.predict(TARGET), predictions)
    pytest.importorskip("pyarrow")
    TARGET.to_parquet("target.parquet")
    out = answer(capfd, "predict", "run/classifier.pt", "target.parquet", "--out", "parquet.csv")
    assert out["n_records"] == N
    assert (place / "parquet.csv").read_bytes() == (place / "predictions.csv").read_bytes()


def test_report_and_bundle_state_the_facts(place, tmp_path):
    report = (place / "run" / "report.html").read_text()
    assert "ward: heart, lung, eye or other" in report
    bundle = publish("run", tmp_path / "bundle")
    assert (bundle.path / "classifier.pt").is_file()
    loaded = PrivateAdapter.load(bundle.path / "classifier.pt")
    np.testing.assert_array_equal(
        loaded.predict(TARGET), PrivateAdapter.load("run/classifier.pt").predict(TARGET)
    )


@pytest.mark.parametrize(
    ("column", "cell", "said"),
    [
        ("sex", "secret", "column sex of bad.csv, got a cell that is no category in line 5"),
        ("sex", "", "column sex of bad.csv, got a missing cell in line 5"),
        ("weight", "7secret", "column weight of bad.csv, got a cell of another form in line 5"),
        ("admitted", "2021-03-01", "column admitted of bad.csv"),
    ],
)
def test_refusals_name_column_and_line_and_no_value(place, capfd, column, cell, said):
    bad = TARGET.copy()
    bad.loc[3, column] = cell
    bad.to_csv("bad.csv", index=False)
    adapt = ["adapt", "source.csv", "bad.csv", "--target", "sick", "--columns", "columns.yaml"]
    with untouched(place):
        for words in ([*adapt, "--out", "other"], ["predict", "run/classifier.pt", "bad.csv"]):
            sentence = refused(capfd, *words)
            assert said in sentence
            assert "secret" not in sentence


def test_other_columns_and_other_records_are_refused(adapter, place, capfd):
    with pytest.raises(InputError, match="lacks ward, and has unit, which the facts"):
        adapter.predict(TARGET.rename(columns={"ward": "unit"}))
    with pytest.raises(InputError, match="shape"):
        adapter.predict(np.zeros((2, 5)))
    new = PrivateAdapter(columns=FACTS, run_dir=place / "arrays")
    with pytest.raises(InputError, match="DataFrame"):
        new.fit(np.zeros((4, 5)), [0, 1, 0, 0], [1, 1, -1, -1])
    assert not (place / "arrays").exists()
    # Without facts, a table of text is refused with the option that reads it.
    sentence = refused(capfd, "adapt", "source.csv", "target.csv", "--target", "sick")
    assert "--columns FILE" in sentence
