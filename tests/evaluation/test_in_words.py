"""What an evaluation says in words, for images, vectors and tables."""

import numpy as np
import pandas as pd
import pytest
import torch
from factories import answer
from hypothesis import given, settings
from hypothesis import strategies as st

from dpswd.commands.main import main
from dpswd.data import benchmark, every_fifth
from dpswd.evaluation import evaluate
from dpswd.evaluation.in_words import verdict
from dpswd.records import Records

DIGITS = benchmark("digits")
NO_CLASSES = [{"n_classes": 0, "is_image": is_image} for is_image in (False, True)]
LEARNED = ["next to nothing", "less than half", "most of what", "nearly as much", "learns as much"]


def figures(
    accuracy=90.0, real=95.0, area=0.7, recall=0.8, close=0.01, n_synthetic=4000, ratio=None
):
    real_rows = [] if real is None else [{"balanced_accuracy": real, "n_train": 100}]
    return {
        "rows": [
            {"balanced_accuracy": accuracy, "n_train": n_synthetic},
            {"balanced_accuracy": accuracy / 2, "n_train": n_synthetic},
        ],
        "real_rows": real_rows,
        "two_sample": {} if area is None else {"logreg": 0.5, "cnn": area},
        "fidelity": {"recall": recall, "halves": {"recall": 0.8}},
        "nearest": {"close": close, "expected": 0.01},
        "propensity": None if ratio is None else {"pmse": 0.1, "ratio": ratio},
    }


def words(is_image=True, is_grey=False, **changes):
    return verdict(figures(**changes), n_classes=10, is_image=is_image, is_grey=is_grey)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"accuracy": 95.0}, "learns as much"),
        ({"accuracy": 94.9}, "nearly as much"),
        ({"accuracy": 90.8}, "nearly as much"),  # 95 % of the 85 points above guessing
        ({"accuracy": 90.7}, "most of what"),
        ({"accuracy": 52.5}, "most of what"),
        ({"accuracy": 52.4}, "less than half"),
        ({"accuracy": 18.5}, "less than half"),
        ({"accuracy": 18.4}, "next to nothing"),
        ({"accuracy": 8.0}, "87.0 points less than after the real ones and 2.0 points less"),
        ({"accuracy": 97.0}, "from 100 real ones: the best one is right for 97.0 %"),
        ({"accuracy": 97.0}, "2.0 points more than after the real ones and"),
        ({"accuracy": 97.0}, "more of them would be a harder comparison"),
        (
            {"real": 14.0},
            "100 real records teach a classifier hardly more than guessing: after them",
        ),
        ({"real": 14.0}, "After the synthetic records, it is right for 90.0 %, 80.0 points more"),
        (
            {"real": None},
            "A classifier learns from these records: the best one is right for 90.0 %",
        ),
        ({"area": 0.6}, "can hardly tell them from real records (AUC 0.60)"),
        ({"area": 0.602}, "can hardly tell them from real records (AUC 0.60)"),
        ({"area": 0.6, "ratio": 9.9}, "can hardly tell them from real records (AUC 0.60)."),
        ({"area": 0.6, "ratio": 10.0}, "but a regression on all columns can (pMSE, 10 times"),
        ({"area": 0.61, "ratio": 10.0}, "A classifier often tells them from real records (AUC"),
        ({"area": 0.61}, "often tells"),
        ({"area": 0.897}, "nearly always tells them from real records (AUC 0.90)"),
        ({"area": 0.9}, "nearly always tells"),
        ({"recall": 0.39}, "less than half of the variety"),
        ({"close": 0.22}, "22% of them look like copies"),
        ({"area": None}, "at least 20 real records"),
    ],
)
def test_each_sentence_follows_from_its_threshold(changes, sentence):
    assert sentence in words(**changes)
    if "copies" in sentence or "variety" in sentence:
        assert sentence not in words()


@pytest.mark.parametrize(
    ("changes", "image", "rows"),
    [
        ({"accuracy": 60.0}, "--shapes", "fewer columns"),
        ({"accuracy": 94.0, "area": 0.95}, "smaller pictures", "fewer columns"),
        ({"accuracy": 94.0}, "in place of real records", "Do not rely on a single row"),
        ({"accuracy": 60.0, "n_synthetic": 300}, "more synthetic", "more synthetic"),
    ],
)
def test_the_last_sentence_says_what_to_do(changes, image, rows):
    assert image in words(is_grey=True, **changes)
    assert rows in words(is_image=False, **changes)
    assert "--shapes" not in words(**changes)  # colour images are no shapes
    assert "picture" not in words(is_image=False, **changes)


@pytest.mark.parametrize("area", [0.55, 0.95])
@pytest.mark.parametrize("is_image", [True, False])
def test_records_are_praised_for_training_only_where_it_was_measured(is_image, area):
    of_figures = figures(area=area)
    without_classifiers = verdict(
        of_figures | {"rows": [], "real_rows": []}, **NO_CLASSES[is_image]
    )
    for text in (
        words(is_image=is_image, accuracy=12.0, real=14.0, area=area),
        without_classifiers,
    ):
        assert "Use them" not in text
        assert text.count(". ") >= 1
    assert "Use them" in words(is_image=is_image, area=area, accuracy=95.0)


@pytest.mark.parametrize("is_image", [True, False])
def test_a_low_accuracy_beside_few_real_records_is_no_praise(is_image):
    low = words(is_image=is_image, accuracy=44.0, real=39.0)
    assert "learns as much" in low
    assert "more of them would be a harder comparison" in low
    assert "Use them" not in low
    beside_many = figures(accuracy=44.0, real=39.0)
    beside_many["real_rows"][0]["n_train"] = 500
    assert "Use them" in verdict(beside_many, n_classes=10, is_image=is_image)


def test_two_classes_cannot_be_fewer():
    of_two = verdict(figures(60.0), n_classes=2, is_image=True)
    assert "fewer classes" not in of_two
    assert "fewer classes" in words(accuracy=60.0)


PART = st.floats(0, 1)
PERCENT = st.floats(0, 100)


@settings(max_examples=100, deadline=None)
@given(low=PERCENT, high=PERCENT, real=st.floats(15, 100), area=PART, recall=PART, close=PART)
def test_better_accuracy_is_never_described_as_worse(low, high, real, area, recall, close):
    low, high = sorted([low, high])
    ranks = []
    for accuracy in (low, high):
        text = words(accuracy=accuracy, real=real, area=area, recall=recall, close=close)
        assert text.endswith(".")
        ranks.append([phrase in text for phrase in LEARNED].index(True))
    assert ranks == sorted(ranks)


def table(n, seed, shift=0.0):
    random = np.random.default_rng(seed)
    labels = torch.from_numpy(random.integers(2, size=n))
    values = torch.from_numpy(random.normal(size=(n, 4))).float()
    values[:, 0] += 4 * labels + shift
    return Records(values, labels)


def noise_like(records):
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(records.floats().shape, generator=generator)
    return Records(values, records.labels.roll(1))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["images", "rows"])
def test_real_records_are_praised_and_noise_is_not(kind):
    real, synthetic = table(400, 0), table(400, 1)
    if kind == "images":
        synthetic, real = every_fifth(DIGITS.train)
    options = {"classifiers": ["logreg"]}
    praise = evaluate(synthetic, real, **options)["verdict"]
    assert "as much" in praise
    assert "hardly tell" in praise
    assert "Use them in place of real records" in praise
    blame = evaluate(noise_like(synthetic), real, **options)["verdict"]
    assert "next to nothing" in blame
    assert "nearly always tells" in blame
    assert "What helps" in blame


def test_more_records_are_advised_only_where_they_resemble_real_ones():
    advice = "more synthetic records, which cost no privacy"
    assert advice in words(accuracy=60.0, n_synthetic=100, area=0.7)
    assert advice not in words(accuracy=60.0, n_synthetic=100, area=0.95)


def test_the_class_whose_share_differs_most_is_named():
    real, synthetic = table(400, 0), table(400, 1)
    synthetic = synthetic.select(synthetic.labels.argsort()[:250])
    share = evaluate(synthetic, real, classifiers=["logreg"])["class_share"]
    assert share["real"] == pytest.approx(float((real.labels == share["class"]).float().mean()))
    of_synthetic = (synthetic.labels == share["class"]).float().mean()
    assert share["synthetic"] == pytest.approx(float(of_synthetic), abs=1e-4)
    assert abs(share["synthetic"] - share["real"]) > 0.1


def test_records_without_classes_have_a_verdict():
    text = evaluate(table(300, 1, shift=8.0), table(300, 0), classes=False)["verdict"]
    assert text.startswith("A classifier nearly always tells")


def test_the_command_prints_the_verdict_of_a_table(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("made", 0), ("real", 1)):
        records = table(200, seed)
        frame = pd.DataFrame(records.values.numpy(), columns=list("abcd"))
        frame.assign(sick=records.labels.numpy()).to_csv(f"{name}.csv", index=False)
    arguments = ["evaluate", "made.csv", "real.csv", "--target", "sick", "--classifiers", "logreg"]
    text = answer(capfd, *arguments, "--out", "one")["verdict"]
    assert main([*arguments, "--out", "two"]) == 0
    assert f"In words: {text}" in capfd.readouterr().out


def test_images_without_classes_are_shown_in_one_row_and_copies_are_put_plainly(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name in ("made", "real"):
        np.savez(f"{name}.npz", images=random.random((60, 8, 8)))
    assert main(["evaluate", "made.npz", "real.npz"]) == 0
    text = capfd.readouterr().out
    assert "The picture has one row of images: real ones on the left" in text
    assert "record of one half of real than to all others. About" in text
    assert "per class" not in text
